"""What Flux's broker answers, for `flux uptime`, `flux lsattr` and `flux ping 0`.

Law: nothing is made up. What stands for brokers are the targets; every state that an instance of ours can be asked in
is `run`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from fluxsched.core.idset import Idset
from fluxsched.errors import Refused
from fluxsched.protocol.messages import flux_instance as msg
from fluxsched.resource.module import ResourceModule
from fluxsched.runtime.peers import Request
from fluxsched.runtime.router import Router, ping_answer
from fluxsched.runtime.services.instance import InstanceService


class InstanceDoor:
    """Serves `broker`, `attr`, `groups` and `state-machine` as far as an instance of ours has what they ask."""

    def __init__(
        self, instance: InstanceService, module: ResourceModule, age_s: Callable[[], float], router: Router
    ) -> None:
        self._instance = instance
        self._age_s = age_s
        self._groups: dict[str, Callable[[], Idset]] = {
            "broker.online": lambda: module.status()["online"],
            "broker.torpid": lambda: module.status()["torpid"],
        }
        router.serve_local(
            {
                "broker.ping": lambda request: request.respond(ping_answer(request)),
                "state-machine.get": self._state,
                "attr.list": self._attributes,
                "groups.get": self._group,
            },
            guests=True,
        )

    def _state(self, request: Request) -> None:
        request.respond(msg.StateResponse("run", self._age_s()))

    def _attributes(self, request: Request) -> None:
        request.respond(msg.AttributesResponse(sorted(self._instance.attributes)))

    def _group(self, request: Request) -> None:
        name = request.payload(msg.GroupRequest).name
        if name not in self._groups:
            raise Refused(f"group {name!r} is unknown; known: {', '.join(sorted(self._groups))}", errno.ENOENT)
        request.respond(msg.GroupResponse(str(self._groups[name]())))
