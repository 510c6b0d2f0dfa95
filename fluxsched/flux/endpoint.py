"""The instance as stock Flux clients meet it: which services there are, and those of Flux's broker and `resource`.

Law: nothing is made up. Targets appear as brokers; every state that an instance of ours can be asked in is `run`. What
each user may ask is in `protocol.topics`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue, Refused
from fluxsched.flux.endpoint_jobs import JobIngest, JobManagerService, TaskService, Waits
from fluxsched.flux.endpoint_logs import JobInfoService, JobList
from fluxsched.messaging.peers import Peer, RpcRequest, ping_answer
from fluxsched.messaging.router import Handler, Router
from fluxsched.protocol.messages import flux as msg
from fluxsched.protocol.messages.common import FreeForm
from fluxsched.protocol.messages.flux import ReloadFromRequest, WaitUpRequest
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.resource.module import ResourceModule
from fluxsched.services.instance import InstanceService
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.job_streams import JobInputs, JobStreams
from fluxsched.services.jobs import JobService
from fluxsched.services.modules import ModuleService
from fluxsched.services.resource import ResourceService
from fluxsched.store.store import Store
from fluxsched.system.loop import Turns

Reload = Callable[[RpcRequest, ReloadRequest], None]
"""Reads the resources again, and answers the request. Raises Refused when that cannot be."""


def serve_instance(
    router: Router,
    resource: ResourceService,
    reload: Reload,
    instance: InstanceService,
    modules: ModuleService,
    turns: Turns,
    started_s: float,
) -> None:
    """Serve `broker`, `attr`, `groups`, `state-machine`, `module` and Flux's dialect of `resource`."""
    FluxResourceService(resource, reload, router, turns)
    FluxInstanceService(instance, resource.module, modules.load_request, lambda: turns.wall_s - started_s, router)


def serve_jobs(
    router: Router, effects: JobEffects, jobs: JobService, streams: JobStreams, inputs: JobInputs, store: Store
) -> None:
    """Serve `job-ingest`, `job-list`, `job-info`, Flux's dialect of `job-manager` and the services of its shells."""
    JobIngest(jobs, Waits(effects.manager, streams, router), router)
    JobList(effects.manager, streams, router, effects.turns)
    JobInfoService(effects, streams, store, router)
    TaskService(inputs, router)
    JobManagerService(effects, jobs, router)


# ---- the instance

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
"""Services of Flux that stock commands request, with the replacements in this instance."""


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
        """Load a policy as for all clients; refuse the path of a broker module, which cannot run in this instance."""
        if "path" in request.payload(FreeForm):
            remedy = "load a scheduler with `fluxsched module load`"
            raise Refused(f"modules of Flux are not loaded here: {remedy}", errno.ENOSYS)
        self._load_policy(request)


# ---- resources

class FluxResourceService:
    """Serves what is special of `resource`."""

    def __init__(self, resource: ResourceService, reload: Reload, router: Router, turns: Turns) -> None:
        self._resource = resource
        self._reload_from = reload
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
        self._reload_from(request, ReloadRequest(path=wanted.path, force=wanted.force))

    def _mute(self, request: RpcRequest) -> None:
        self._resource.mute()
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
