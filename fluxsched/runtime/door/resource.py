"""`resource` of the local door, where Flux's commands ask what our own clients do not.

All else that they ask (status, drain, journal, acquire in the plain dialect) is answered by the `resource` service.
"""

from __future__ import annotations

from fluxsched.errors import InvalidValue
from fluxsched.protocol.messages.flux_instance import ReloadFromRequest
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.runtime.peers import Request
from fluxsched.runtime.router import Router
from fluxsched.runtime.services.resource import ResourceService


class ResourceDoor:
    """Serves what is special of `resource`."""

    def __init__(self, resource: ResourceService, router: Router) -> None:
        self._resource = resource
        router.serve_local({"resource.reload": self._reload, "resource.acquire-mute": self._mute})

    def _reload(self, request: Request) -> None:
        wanted = request.payload(ReloadFromRequest)
        if wanted.xml:
            raise InvalidValue(f"{wanted.path}: hwloc's XML is not read here, give an R file (flux R encode --xml)")
        self._resource.reload(request, ReloadRequest(path=wanted.path, force=wanted.force))

    def _mute(self, request: Request) -> None:
        self._resource.muted = True
        request.respond()
