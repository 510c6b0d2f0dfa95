"""`resource` of the endpoint for Flux clients, where Flux's commands ask what our own clients do not.

All else that they ask (status, drain, journal, acquire in the plain dialect) is answered by the `resource` service.
"""

from __future__ import annotations

from fluxsched.errors import InvalidValue
from fluxsched.protocol.messages.flux_instance import ReloadFromRequest, WaitUpRequest
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.peers import Peer, RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.resource import ResourceService


class FluxResourceService:
    """Serves what is special of `resource`."""

    def __init__(self, resource: ResourceService, router: Router, turns: Turns) -> None:
        self._resource = resource
        self._waiting: dict[RpcRequest, int] = {}
        router.serve_local(
            {
                "resource.reload": self._reload,
                "resource.acquire-mute": self._mute,
                "resource.monitor-waitup": self._wait_up,
            }
        )
        router.serve_local({"sched.resource-status": resource.sched_status})
        router.on_lost(self._forget)
        turns.at_end(self._look)

    def _reload(self, request: RpcRequest) -> None:
        wanted = request.payload(ReloadFromRequest)
        if wanted.xml:
            raise InvalidValue(f"{wanted.path}: hwloc's XML is not read here, give an R file (flux R encode --xml)")
        self._resource.reload(request, ReloadRequest(path=wanted.path, force=wanted.force))

    def _mute(self, request: RpcRequest) -> None:
        self._resource.muted = True
        request.respond()

    def _wait_up(self, request: RpcRequest) -> None:
        wanted, size = request.payload(WaitUpRequest).up, len(self._resource.module.resources)
        if wanted > size:
            raise InvalidValue(f"{wanted} targets cannot be online: there are {size}")
        self._waiting[request] = wanted

    def _look(self) -> None:
        if self._waiting:
            online = len(self._resource.module.status()["online"])
            for request in [one for one, wanted in self._waiting.items() if wanted == online]:
                del self._waiting[request]
                request.respond()

    def _forget(self, peer: Peer) -> None:
        for request in [one for one in self._waiting if one.peer is peer]:
            del self._waiting[request]
