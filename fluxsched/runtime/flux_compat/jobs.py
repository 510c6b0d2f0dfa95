"""The jobs side of the endpoint for Flux clients, put together: what stock Flux commands ask about jobs."""

from __future__ import annotations

from fluxsched.runtime.flux_compat.job_info import JobInfoService
from fluxsched.runtime.flux_compat.job_ingest import JobIngest
from fluxsched.runtime.flux_compat.job_list import JobList
from fluxsched.runtime.flux_compat.job_manager import JobManagerService
from fluxsched.runtime.flux_compat.shell import TaskService
from fluxsched.runtime.flux_compat.waits import Waits
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.jobs.input import JobInputs
from fluxsched.runtime.services.jobs.service import JobService
from fluxsched.runtime.services.jobs.streams import JobStreams


def serve_jobs(
    router: Router, effects: JobEffects, jobs: JobService, streams: JobStreams, inputs: JobInputs, store: Store
) -> None:
    """Serve `job-ingest`, `job-list`, `job-info`, Flux's dialect of `job-manager` and what its shells serve."""
    JobIngest(jobs, Waits(effects.manager, streams, router), router)
    JobList(effects.manager, streams, router, effects.turns)
    JobInfoService(effects, streams, store, router)
    TaskService(inputs, router)
    JobManagerService(effects, jobs, router)
