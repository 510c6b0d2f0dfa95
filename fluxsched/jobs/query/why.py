"""Reason why a job waits outside of a scheduler; while one has its request, `sched/engine/why.py` answers."""

from __future__ import annotations

from typing import Final

from fluxsched.core.jobid import format_f58
from fluxsched.core.why import Why
from fluxsched.jobs.job.attempts import PREEMPT
from fluxsched.jobs.job.job import HELD_PRIORITY, SENT, WAITING, Job
from fluxsched.jobs.job.result import error_text, result
from fluxsched.jobs.job.states import DEPEND, PENDING, RUN, SCHED
from fluxsched.jobs.job.table import JobTable
from fluxsched.jobs.lifecycle.links import Links

BEGIN_TIME: Final = "begin-time="
"""Prefix of the description of a begin-time dependency; seconds since the epoch follow."""


def _what_became(job: Job) -> str:
    """The reason of a job that waits no longer."""
    ended = result(job)
    if ended is not None:
        again = f"; it was submitted again as job {format_f58(job.next_id)}" if job.next_id else ""
        return f"it has ended: {ended.errstr or 'success'}{again}"
    where = f"on {job.nodelist or 'nothing'}"
    if job.state is RUN:
        return f"it runs {where}"
    return f"it is ending {where}{f': {error_text(job)}' if job.fatal else ''}"


def history(jobs: JobTable, job: Job) -> str | None:
    """Return the number of the attempt and its reason, in words; None for a first attempt."""
    attempt = job.attempt
    if attempt is None:
        return None
    before = jobs.find(attempt.of)
    reason = error_text(before) if before is not None else f"exception {PREEMPT}"
    if not attempt.number:  # it was never preempted
        return f"submitted again: {format_f58(attempt.of)} ended with {reason}"
    return f"attempt {attempt.number} of {job.sharing.requeue}; {format_f58(attempt.of)} ended with {reason}"


def why(links: Links, job: Job) -> Why:
    """Return the reason why the job waits; the scheduler's own reason if it has given one."""
    if not job.state & PENDING:
        return Why(_what_became(job))
    if job.state is DEPEND:
        return _depends(job)
    if job.priority == HELD_PRIORITY:
        rule = "a job on hold is not started: give it an urgency, fluxsched urgency JOBID default"
        return Why("it is held: its urgency is 0", rule, "not while it is held")
    queue = job.queue
    if not queue.started:
        rule = "jobs of a stopped queue are not scheduled: it is for an administrator to start it"
        return Why(f"{queue.title} is stopped: {queue.start_reason}", rule, "not while it is stopped")
    link = links.serving(queue.group)
    if link is None or not link.ready:
        rule = "a scheduler has to serve the group of the job's queue: see fluxsched module list"
        return Why(f"no scheduler serves group {queue.groups_text}", rule, "not before one is there")
    if job.state is SCHED and job.request == WAITING:
        sent = len(link.outstanding)
        return Why(f"{sent} jobs are with the scheduler already, its limit; this one comes later")
    reason = (job.annotations or {}).get("sched", {}).get("reason_pending") if job.request == SENT else None
    return Why(str(reason) if reason else "the scheduler has not decided yet")


def _depends(job: Job) -> Why:
    """Times are known, the ends of other jobs are not."""
    waits = job.dependencies or ()
    times = [float(one.removeprefix(BEGIN_TIME)) for one in waits if one.startswith(BEGIN_TIME)]
    when = "not known: the jobs that it depends on come first" if len(times) < len(waits) else "its begin time"
    return Why(
        f"waits for its dependencies: {', '.join(waits)}",
        "a job is scheduled once all its dependencies are met",
        when,
        max(times) if len(times) == len(waits) and times else None,
    )
