"""How a job ended.

Law: it follows from the job's log alone, so a job that is read back from the store has the result that it had.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.states import INACTIVE


class JobResult(msgspec.Struct, frozen=True, gc=False):
    """How a job ended; `status` is a wait status, -1 if nothing ran; `result` COMPLETED, FAILED, CANCELED, TIMEOUT."""

    jobid: int
    success: bool
    status: int
    result: str
    errstr: str
    exception_type: str | None
    exception_note: str | None
    t_inactive: float


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
    fatal, status = job.fatal, job.status
    return JobResult(
        jobid=job.id,
        success=job.success,
        status=-1 if status is None else status,
        result=name,
        errstr=_error_text(fatal, status),
        exception_type=fatal["type"] if fatal else None,
        exception_note=fatal["note"] if fatal else None,
        t_inactive=job.t_inactive,
    )


def shell_status(status: int) -> int:
    """A wait status as a shell passes it on, whose exit code is 128 + n where signal n ended its program (RFC 21)."""
    signum = status & 0x7F
    return (128 + signum if signum else status >> 8 & 0xFF) << 8


def _error_text(fatal: dict[str, Any] | None, status: int | None) -> str:
    if fatal is not None:
        return f"exception {fatal['type']}: {fatal['note']}" if fatal["note"] else f"exception {fatal['type']}"
    if not status:
        return ""
    signum = status & 0x7F
    return f"ended by signal {signum}" if signum else f"exit code {status >> 8 & 0xFF}"
