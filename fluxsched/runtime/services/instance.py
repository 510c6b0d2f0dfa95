"""The instance itself as a service: info, ready, stop, attributes, and `ping`/`stats-get` of each service."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

import msgspec

from fluxsched.errors import Refused
from fluxsched.protocol.messages.common import AttrRequest, AttrResponse, InstanceInfo
from fluxsched.runtime.messaging.peers import RpcRequest, ping_answer
from fluxsched.runtime.messaging.permissions import role_of
from fluxsched.runtime.messaging.router import GOODBYE, Router
from fluxsched.runtime.messaging.services import Handler


class InstanceService:
    """Serves `instance.*`, `attr.get` and the two questions that every service answers."""

    def __init__(
        self,
        router: Router,
        info: Callable[[], InstanceInfo],
        stop: Callable[[], None],
        restart: Callable[[], None] | None,
    ) -> None:
        """`restart` raises FluxschedError where the next start would fail; None where there is no restart."""
        self._router = router
        self._restart = restart
        self._info = info
        self._stop = stop
        self._waiting: list[Callable[[], None]] = []
        self.attributes: dict[str, str] = {}
        """What `attr.get` answers."""
        router.serve(
            {
                "instance.info": self._answer,
                "instance.ready": self._ready,
                "instance.stop": self._stop_request,
                "instance.restart": self._restart_request,
                "instance.goodbye": lambda request: router.drop(request.peer, GOODBYE),
                "attr.get": self._attr_get,
            }
        )

    def set_attributes(self, attributes: dict[str, str]) -> None:
        """Add to `attributes`."""
        self.attributes.update(attributes)

    def serve_common(self, services: Mapping[str, Handler]) -> None:
        """`NAME.ping` and `NAME.stats-get` of the built-in services; the latter is answered by the handler given."""
        for name, stats in services.items():
            self._router.serve(
                {
                    f"{name}.ping": lambda request: request.respond(ping_answer(request)),
                    f"{name}.stats-get": stats,
                }
            )

    def _ready(self, request: RpcRequest) -> None:
        """Answer once the agents are online and the schedulers are ready or have failed."""
        self.when_ready(lambda: self._answer(request))

    def _answer(self, request: RpcRequest) -> None:
        role = str(role_of(request.message.rolemask))
        request.respond(msgspec.structs.replace(self._info(), role=role, userid=request.userid))

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call now, or once the agents are online and the schedulers are ready or have failed."""
        if self._info().ready:
            call()
        else:
            self._waiting.append(call)

    def became_ready(self) -> None:
        """Call those that wait."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def _stop_request(self, request: RpcRequest) -> None:
        request.respond()
        self._stop()

    def _restart_request(self, request: RpcRequest) -> None:
        if self._restart is None:
            raise Refused("this instance cannot restart in place: stop it, and start it again", errno.ENOSYS)
        self._restart()
        request.respond()

    def _attr_get(self, request: RpcRequest) -> None:
        name = request.payload(AttrRequest).name
        value = self.attributes.get(name)
        if value is None:
            raise Refused(f"attribute {name!r} is unknown; known: {', '.join(sorted(self.attributes))}", errno.ENOENT)
        request.respond(AttrResponse(value=value))
