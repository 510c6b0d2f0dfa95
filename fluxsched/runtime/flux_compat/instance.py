"""What Flux's broker answers, for `flux uptime`, `flux lsattr`, `flux ping 0` and `flux module load`.

Law: nothing is made up. Targets appear as brokers; every state that an instance of ours can be asked in
is `run`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from fluxsched.core.idset import Idset
from fluxsched.errors import Refused
from fluxsched.protocol.messages import flux_instance as msg
from fluxsched.protocol.messages.common import FreeForm
from fluxsched.resource.module import ResourceModule
from fluxsched.runtime.messaging.peers import RpcRequest, ping_answer
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.messaging.services import Handler
from fluxsched.runtime.services.instance import InstanceService

_NO_KVS = "fluxsched has no KVS; of a job ask `fluxsched job info` or `flux job info`"
ABSENT = {
    "kvs": _NO_KVS,
    "content": _NO_KVS,
    "log": "fluxsched has no ring buffer of messages; its log is the file `log` of its run directory, and its stderr",
    "event": "fluxsched publishes no events; watch `fluxsched top`, or one job by `flux job eventlog -f`",
    "rexec": "fluxsched runs commands in jobs only: `flux run`, or `fluxsched run`",
    "shutdown": "end this instance with `fluxsched stop`",
    "overlay": "fluxsched has no network of brokers; see `flux resource list`, or `fluxsched resource status`",
    "cron": "fluxsched has no cron; submit with --begin-time",
}
"""Services of Flux that stock commands ask for, and what to use here instead."""


class FluxInstanceService:
    """Serves `broker`, `attr`, `groups`, `state-machine` and Flux's `module.load`, as far as we have what they ask."""

    def __init__(
        self,
        instance: InstanceService,
        module: ResourceModule,
        load: Handler,
        age_s: Callable[[], float],
        router: Router,
    ) -> None:
        self._instance = instance
        self._load_policy = load
        self._age_s = age_s
        self._groups: dict[str, Callable[[], Idset]] = {
            "broker.online": lambda: module.status()["online"],
            "broker.torpid": lambda: module.status()["torpid"],
        }
        router.serve_local(
            {
                "broker.ping": lambda request: request.respond(ping_answer(request)),
                "state-machine.get": self._state,
                "state-machine.wait": lambda request: instance.when_ready(request.respond),
                "attr.list": self._attributes,
                "groups.get": self._group,
            }
        )
        router.serve_local({"module.load": self._load})
        router.absent_local(ABSENT)

    def _state(self, request: RpcRequest) -> None:
        request.respond(msg.StateResponse("run", self._age_s()))

    def _attributes(self, request: RpcRequest) -> None:
        request.respond(msg.AttributesResponse(sorted(self._instance.attributes)))

    def _group(self, request: RpcRequest) -> None:
        name = request.payload(msg.GroupRequest).name
        if name not in self._groups:
            raise Refused(f"group {name!r} is unknown; known: {', '.join(sorted(self._groups))}", errno.ENOENT)
        request.respond(msg.GroupResponse(str(self._groups[name]())))

    def _load(self, request: RpcRequest) -> None:
        """Flux asks with the path of a broker module, which cannot run here; a policy is loaded as for all clients."""
        if "path" in request.payload(FreeForm):
            remedy = "load a scheduler with `fluxsched module load`"
            raise Refused(f"modules of Flux are not loaded here: {remedy}", errno.ENOSYS)
        self._load_policy(request)
