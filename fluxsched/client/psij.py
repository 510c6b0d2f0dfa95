"""Executor of PSI/J (exaworks.org/psij-python) for jobs of an instance: `JobExecutor.get_instance("fluxsched")`.

The wheel tells PSI/J of it by `psij-descriptors/fluxsched_descriptor.py`. PSI/J itself comes with who uses it.
"""

from __future__ import annotations

import os
import warnings
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final

from psij import (
    InvalidJobException,
    Job,
    JobExecutor,
    JobExecutorConfig,
    JobSpec,
    JobState,
    JobStatus,
    ResourceSpecV1,
    SubmitException,
)

from fluxsched.client.blocking import connect_sync
from fluxsched.client.executor import Executor, JobError, JobFuture
from fluxsched.core.jobfields import ENV_EXPAND
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.text import with_path
from fluxsched.errors import FluxschedError, InvalidValue

LAUNCHERS: Final = (None, "", "single", "multiple", "srun", "mpirun")
"""Launchers that a job may name: the instance starts all its tasks itself, as with MPI, whichever is named."""

HOSTS: Final = {"PSIJ_NODEFILE": "{{hostfile}}"}
"""Variables with tags (`env-expand`) that all jobs have, since PSI/J has them in each of its batch scripts."""

LISTED_MAX: Final = 100_000
"""Jobs that `list` returns at most, the newest ones."""


class FluxschedJobExecutor(JobExecutor):  # type: ignore[misc]  # PSI/J has no types here
    """Submits to the instance of `url`, else of FLUXSCHED_URI, else to the user's only one."""

    def __init__(self, url: str | None = None, config: JobExecutorConfig | None = None) -> None:
        super().__init__(url=url, config=config or JobExecutorConfig())
        self._uri = url or None
        self._executor = Executor(self._uri)
        self._futures: dict[Job, JobFuture] = {}

    def submit(self, job: Job) -> None:
        """Submit a job, which has its id then. Raises InvalidJobException, or SubmitException if it is refused."""
        spec = self._check_job(job)
        try:
            future = self._executor.submit(jobspec_of(spec))
            job._native_id = format_f58(future.jobid())
        except InvalidValue as fault:
            raise InvalidJobException(str(fault)) from fault
        except FluxschedError as fault:
            raise SubmitException(str(fault)) from fault
        self._set_job_status(job, JobStatus(JobState.QUEUED))
        self._follow(job, future)

    def attach(self, job: Job, native_id: str) -> None:
        """Follow a job that was submitted before, by whatever program."""
        job.executor = self
        future = self._executor.attach(parse_jobid(native_id))
        job._native_id = native_id
        self._set_job_status(job, JobStatus(JobState.QUEUED))
        self._follow(job, future)

    def cancel(self, job: Job) -> None:
        """Cancel a job; it is CANCELED at once, whatever its tasks still do."""
        if job.native_id is None:
            raise SubmitException("the job was not submitted yet: there is nothing to cancel")
        future = self._futures.get(job)
        if future is not None:
            future.cancel()

    def list(self) -> list[str]:
        """Return the ids of all jobs of the instance that are not over."""
        with connect_sync(self._uri) as handle:
            found = handle.rpc("job-manager.list", {"constraint": {"states": ["active"]}, "max_entries": LISTED_MAX})
        return [format_f58(row["id"]) for row in found["jobs"]]

    def _follow(self, job: Job, future: JobFuture) -> None:
        self._futures[job] = future
        future.add_event_callback("start", lambda *_: self._set_job_status(job, JobStatus(JobState.ACTIVE)))
        future.add_done_callback(partial(self._over, job))

    def _over(self, job: Job, future: Future[Any]) -> None:
        del self._futures[job]
        self._set_job_status(job, status_of(future))


def status_of(future: Future[Any]) -> JobStatus:
    """Return how a job has ended."""
    try:
        status = future.result()
    except CancelledError:
        return JobStatus(JobState.CANCELED)
    except JobError as fault:
        state = JobState.CANCELED if fault.exception_type == "cancel" else JobState.FAILED
        return JobStatus(state, message=str(fault))
    except FluxschedError as fault:
        return JobStatus(JobState.FAILED, message=str(fault))
    return JobStatus(JobState.FAILED if status else JobState.COMPLETED, exit_code=status)


def jobspec_of(spec: JobSpec) -> Jobspec:
    """Translate what PSI/J's users ask for (its specification, JobSpec). Raises InvalidJobException, InvalidValue."""
    for given, name in ((spec.pre_launch, "pre_launch"), (spec.post_launch, "post_launch")):
        if given:
            raise InvalidJobException(f"{name} is not supported: call the script in the job's own command")
    if not spec.executable:
        raise InvalidJobException("the job has no executable")
    if spec.launcher not in LAUNCHERS:
        raise InvalidJobException(f"launcher {spec.launcher!r} is not supported: leave it out, tasks are started by us")
    asked = spec.resources or ResourceSpecV1()
    if not isinstance(asked, ResourceSpecV1):
        raise InvalidJobException(f"resources of version {asked.version} are not supported: use ResourceSpecV1")
    if asked.memory:
        warnings.warn("the memory of a job is not limited: `memory` of its resources is passed over", stacklevel=3)
    attributes = spec.attributes
    environment = {**os.environ} if spec.inherit_environment else {}
    environment |= {name: str(value) for name, value in (spec.environment or {}).items()}
    made = Jobspec.from_command(
        [str(spec.executable), *(spec.arguments or [])],
        nodes=asked.node_count if asked.processes_per_node is None else asked.computed_node_count,
        ntasks=asked.computed_process_count,
        cores_per_task=asked.cpu_cores_per_process or 1,
        gpus_per_task=asked.gpu_cores_per_process or 0,
        exclusive=asked.exclusive_node_use,
        duration_s=attributes.duration.total_seconds(),
        queue=attributes.queue_name,
        bank=attributes.account,
        cwd=str(spec.directory or os.getcwd()),
        environment=environment,
        input=_path(spec.stdin_path),
        output=_path(spec.stdout_path),
        error=_path(spec.stderr_path),
        name=spec.name,
    )
    return Jobspec.parse(with_path(made.to_json(), f"attributes.system.shell.options.{ENV_EXPAND}", HOSTS))


def _path(path: Any) -> str | None:
    return None if path is None else str(path)
