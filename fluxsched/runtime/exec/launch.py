"""What an executor is given of a job that the job manager has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.jobs.job.job import Job
from fluxsched.runtime.exec.base import JobLaunch


def launch_of(
    job: Job,
    r: Mapping[str, Any],
    environment: Mapping[str, str],
    spool: Path,
    cores: Sequence[Idset] | None,
) -> JobLaunch:
    """The job as it is to start with `r`, or as it runs with what it has now."""
    assert job.jobspec is not None, "a job that is to start has its jobspec"
    return JobLaunch(
        jobid=job.id,
        jobspec=job.jobspec,
        R=r,
        environment=environment,
        spool=spool,
        cores=cores,
        attempt=0 if job.attempt is None else job.attempt.number,
        expiration_s=job.expiration_s,
    )
