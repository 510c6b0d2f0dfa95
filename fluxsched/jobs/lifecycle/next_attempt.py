"""Jobspec and context of the next attempt of a preempted job.

Law: it asks for what it asked for at last, and waits for nothing that it has waited for: its dependencies were met when
it was started.
"""

from __future__ import annotations

from typing import Any, Final

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.jsontext import with_path
from fluxsched.jobs.job.attempts import Attempt, submit_context
from fluxsched.jobs.job.job import Job

EVENTLOG_VERSION: Final = 1
"""RFC 21's version of the eventlog format."""

DURATION_KEY: Final = "attributes.system.duration"
ARRAY_KEY: Final = "attributes.system.array"


def jobspec_of_next(job: Job) -> Jobspec:
    """The job's jobspec with what was changed since: its duration, and as first of an array that this is its array."""
    jobspec = job.jobspec
    assert jobspec is not None, "an active job has its jobspec"
    raw = jobspec.raw
    if job.duration_s != jobspec.duration_s:
        raw = with_path(raw, DURATION_KEY, job.duration_s)
    if jobspec.array == 0:
        raw = with_path(raw, ARRAY_KEY, job.id)
    return jobspec if raw is jobspec.raw else Jobspec.parse(raw)


def submitted(userid: int, urgency: int, flags: int) -> dict[str, Any]:
    """The context of a `submit` event (RFC 21)."""
    return {"userid": userid, "urgency": urgency, "flags": flags, "version": EVENTLOG_VERSION}


def submitted_again(job: Job) -> dict[str, Any]:
    """Return the context of the `submit` event of the next attempt; one that never began is not counted."""
    number = (0 if job.attempt is None else job.attempt.number) + (not job.is_returned)
    return submitted(job.userid, job.urgency, job.flags) | submit_context(Attempt(job.id, number, job.t_first))
