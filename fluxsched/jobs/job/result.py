"""Results of jobs.

Law: it follows from the job's log alone, so a job that is read back from the store has the result that it had.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.states import INACTIVE


class JobResult(msgspec.Struct, frozen=True, gc=False):
    """Result of a job; `status` is a wait status, -1 if nothing ran; `result` COMPLETED, FAILED, CANCELED, TIMEOUT.

    `next_id` is the attempt that follows on it; `last_id` the attempt that it tells of, where that is another job (0:
    there is none).
    """

    jobid: int
    success: bool
    status: int
    result: str
    errstr: str
    exception_type: str | None
    exception_note: str | None
    t_inactive: float
    next_id: int = 0
    last_id: int = 0


RESULTS: Final = ("COMPLETED", "FAILED", "CANCELED", "TIMEOUT")
"""Names of all results."""
_RESULTS = {"cancel": "CANCELED", "timeout": "TIMEOUT", "timelimit": "TIMEOUT"}


def result_name(job: Job) -> str | None:
    """The name of the job's result (RFC 43); None until it is inactive."""
    if job.state is not INACTIVE:
        return None
    if job.success:
        return "COMPLETED"
    return _RESULTS.get(job.fatal["type"], "FAILED") if job.fatal else "FAILED"


def result(job: Job) -> JobResult | None:
    """The job's result; None until it is inactive."""
    name = result_name(job)
    if name is None:
        return None
    fatal = None if job.success else job.fatal
    return JobResult(
        jobid=job.id,
        success=job.success,
        status=-1 if job.status is None else job.status,
        result=name,
        errstr=error_text(job),
        exception_type=fatal["type"] if fatal else None,
        exception_note=fatal["note"] if fatal else None,
        t_inactive=job.t_inactive,
        next_id=job.next_id,
    )


def as_asked(asked: int, found: JobResult) -> JobResult:
    """The result of a job's last attempt as that of the job that was asked for."""
    if found.jobid == asked:
        return found
    return msgspec.structs.replace(found, jobid=asked, last_id=found.jobid)


def shell_status(status: int) -> int:
    """A wait status as a shell passes it on, whose exit code is 128 + n where signal n ended its program (RFC 21)."""
    signum = status & 0x7F
    return (128 + signum if signum else status >> 8 & 0xFF) << 8


def error_text(job: Job) -> str:
    """Return the reason of the job's end, in words; empty if it ended well by itself."""
    fatal, status = job.fatal, job.status
    if job.success:
        return ""
    if fatal is not None:
        return f"exception {fatal['type']}: {fatal['note']}" if fatal["note"] else f"exception {fatal['type']}"
    if not status:
        return ""
    signum = status & 0x7F
    return f"ended by signal {signum}" if signum else f"exit code {status >> 8 & 0xFF}"
