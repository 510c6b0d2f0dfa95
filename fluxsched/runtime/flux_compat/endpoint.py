"""Opens the instance to stock Flux clients: which services they meet. What each user may ask is in `protocol.roles`."""

from __future__ import annotations

from fluxsched.runtime.flux_compat.instance import FluxInstanceService
from fluxsched.runtime.flux_compat.job_info import JobInfoService
from fluxsched.runtime.flux_compat.job_ingest import JobIngest
from fluxsched.runtime.flux_compat.job_list import JobList
from fluxsched.runtime.flux_compat.job_manager import JobManagerService
from fluxsched.runtime.flux_compat.resource import FluxResourceService
from fluxsched.runtime.flux_compat.shell import TaskService
from fluxsched.runtime.flux_compat.waits import Waits
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.instance import InstanceService
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.jobs.input import JobInputs
from fluxsched.runtime.services.jobs.service import JobService
from fluxsched.runtime.services.jobs.streams import JobStreams
from fluxsched.runtime.services.modules.service import ModuleService
from fluxsched.runtime.services.resource import ResourceService


def serve_instance(
    router: Router,
    resource: ResourceService,
    instance: InstanceService,
    modules: ModuleService,
    turns: Turns,
    started_s: float,
) -> None:
    """Serve `broker`, `attr`, `groups`, `state-machine`, `module` and Flux's dialect of `resource`."""
    FluxResourceService(resource, router, turns)
    FluxInstanceService(instance, resource.module, modules.load_request, lambda: turns.wall_s - started_s, router)


def serve_jobs(
    router: Router, effects: JobEffects, jobs: JobService, streams: JobStreams, inputs: JobInputs, store: Store
) -> None:
    """Serve `job-ingest`, `job-list`, `job-info`, Flux's dialect of `job-manager` and what its shells serve."""
    JobIngest(jobs, Waits(effects.manager, streams, router), router)
    JobList(effects.manager, streams, router, effects.turns)
    JobInfoService(effects, streams, store, router)
    TaskService(inputs, router)
    JobManagerService(effects, jobs, router)
