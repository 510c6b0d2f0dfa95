"""Ended jobs from their records, for those who count them again."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.json import decode

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.lifecycle import restore
from fluxsched.jobs.queue.queues import JobQueue
from fluxsched.runtime.storage.jobs import JobRecord, Query
from fluxsched.runtime.system.log import logger

log = logger("history")

QueueOf = Callable[[str | None], JobQueue]
"""The queue of a name that a stored job has."""


def uncounted(read: Query, counted: int) -> list[int]:
    """The jobs whose ends are in rows after that one."""
    return [jobid for (jobid,) in read("SELECT jobid FROM job_log WHERE seq > ? AND ended ORDER BY seq", (counted,))]


def ended_job(record: JobRecord, queue_of: QueueOf) -> Job | None:
    """The job as it ended; None, logged, if its record cannot be read."""
    try:
        jobspec = None if record.jobspec is None else Jobspec.parse(decode(record.jobspec))
        queue = queue_of(None if jobspec is None else jobspec.queue)
        return restore.read((record.jobid, record.events, jobspec, record.R), queue)[0]
    except (FluxschedError, ValueError) as fault:
        log.error("not counted: job %d: %s", record.jobid, fault)
        return None
