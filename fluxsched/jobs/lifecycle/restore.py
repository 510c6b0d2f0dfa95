"""Restoring the stored jobs after a restart of the instance.

Law: the eventlog alone says how a job stood (RFC 21), R comes from beside it. Pending jobs wait again. What ran is an
orphan: it holds its targets until the caller has killed or confirmed its processes and calls `exec_failed`. A job whose
`finish` is stored has nothing left that runs: it is released and ends as it finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.jobs.effects import Effect, Event, Held
from fluxsched.jobs.holdings.holdings import Grant, parse_grant
from fluxsched.jobs.job.job import Job, priority_of
from fluxsched.jobs.job.states import CLEANUP, DEPEND, INACTIVE, PRIORITY, SCHED
from fluxsched.jobs.lifecycle.lifecycle import Lifecycle
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig

StoredJob = tuple[int, Sequence[Event], Jobspec | None, dict[str, Any] | None]
"""A stored job: id, all its events, the jobspec as stored with `submit`, R as stored with `alloc`.

What it has grown and shrunk by since is in its events.
"""


class Restored(NamedTuple):
    """Effects of a restore, and the jobs whose processes may still exist."""

    effects: list[Effect]
    orphans: tuple[int, ...]


def replay(job: Job, events: Iterable[Any]) -> None:
    """Let stored events happen to a new job. Raises InvalidValue naming job and event that cannot be."""
    for event in events:
        try:
            job.apply(event)
        except (FluxschedError, KeyError, TypeError, ValueError) as error:
            name = event.get("name") if isinstance(event, dict) else event
            raise InvalidValue(f"eventlog of job {job.id}: event {name!r}: {type(error).__name__}: {error}") from error


def replayed(jobid: int, events: Iterable[Any], resources: dict[str, Any] | None) -> Job:
    """A job as its events and the R of its `alloc` tell it, whatever it asked for. Raises InvalidValue."""
    job = Job(jobid, JobQueue(QueueConfig()), None)
    if resources is not None:
        job.grant(resources, parse_grant(jobid, resources))
    replay(job, events)
    return job


def read(row: StoredJob, queue: JobQueue) -> tuple[Job, Grant | None]:
    """The job as its eventlog tells it, and what it was granted. Raises InvalidValue for a row that cannot be."""
    jobid, events, jobspec, resources = row
    job = Job(jobid, queue, jobspec)
    grant = None
    if resources is not None:
        grant = parse_grant(jobid, resources)
        job.grant(resources, grant)
    replay(job, events)
    if job.sizes and (R := job.R) is not None:  # noqa: N806 - RFC 20's name
        grant = parse_grant(jobid, R)  # it has grown or shrunk since
    if not job.t_submit:
        raise InvalidValue(f"eventlog of job {jobid} has no submit event")
    if job.state is not INACTIVE and jobspec is None:
        raise InvalidValue(f"job {jobid} is active, but its jobspec is not in the store")
    if job.t_run and grant is None and job.state is not INACTIVE:
        raise InvalidValue(f"job {jobid} has an alloc event, but its R is not in the store")
    return job, grant


def restore(lifecycle: Lifecycle, rows: Iterable[StoredJob], now_s: float) -> Restored:
    """Restore the jobs of all rows, oldest first; the lifecycle must be new."""
    restored: list[Job] = []
    ended: list[Job] = []
    lifecycle.begin(now_s)
    for row in rows:
        job, grant = read(row, _queue_of(lifecycle, row))
        if job.state is INACTIVE:
            ended.append(job)
            continue
        lifecycle.admit(job)
        restored.append(job)
        if grant is not None and job.held:
            lifecycle.holdings.adopt(job.id, grant)
            if job.freed:
                lifecycle.holdings.give(job.id, job.freed)
            job.executing = True
            job.queue.running += 1
            lifecycle.out.append(Held(job.id, job.held))
    for job in sorted(ended, key=lambda job: job.t_inactive):  # as they ended: listings rely on it
        lifecycle.jobs.keep(job)
    shared: dict[int, list[Event]] = {}
    orphans = [job.id for job in restored if not _resume(lifecycle, job, shared)]
    lifecycle.wake()
    return Restored(lifecycle.end(), tuple(orphans))


def restore_ended(
    lifecycle: Lifecycle, pieces: Iterable[Sequence[StoredJob]], failed: Callable[[InvalidValue], None]
) -> Iterator[None]:
    """Restore ended jobs, some at each step; `failed` is called with what is wrong with one that cannot be."""
    found: list[Job] = []
    for rows in pieces:
        for row in rows:
            try:
                found.append(read(row, _queue_of(lifecycle, row))[0])
            except InvalidValue as fault:
                failed(fault)
        yield
    lifecycle.jobs.keep_earlier(sorted(found, key=lambda job: job.t_inactive))


def _queue_of(lifecycle: Lifecycle, row: StoredJob) -> JobQueue:
    jobspec = row[2]
    return lifecycle.queues.for_restored(None if jobspec is None else jobspec.queue)


def _resume(lifecycle: Lifecycle, job: Job, shared: dict[int, list[Event]]) -> bool:
    """Continue where the log ended; False for an orphan. `shared`: what waiting jobs log, by their priority."""
    if job.state is SCHED:
        priority = priority_of(job.urgency)
        if priority not in shared:
            restarted = {"timestamp": lifecycle.now_s, "name": "flux-restart"}
            prioritized = {"timestamp": lifecycle.now_s, "name": "priority", "context": {"priority": priority}}
            shared[priority] = [restarted, prioritized]
        lifecycle.log_shared(job, shared[priority])
        lifecycle.enqueue(job)
        return True
    lifecycle.log(job, "flux-restart")
    if job.state is DEPEND:
        lifecycle.await_dependencies(job)
    if job.state in (DEPEND, PRIORITY):
        lifecycle.advance(job)
    elif job.held and job.status is not None:
        lifecycle.release(job, None)
    elif job.held:
        return False
    elif job.state is CLEANUP:
        lifecycle.clean(job)
    return True
