"""Job manager: all jobs of an instance (RFC 21), their queues (RFC 33), dependencies (RFC 26) and grants.

It is put together from parts that share the `Lifecycle`; each part is all that one kind of caller may ask for. Here are
the control of queues by administrators (enable, start, reconfigure, and what a restart restores of them), the restoring
of stored jobs, and `check`, which asserts the laws of the package over its whole state, for tests, shutdown and the
simulator.

Law: when an instance restarts, the eventlog alone says how a job stood (RFC 21), R comes from beside it. Pending jobs
wait again. What ran is an orphan: it holds its targets until the caller has killed or confirmed its processes and calls
`exec_failed`. A job whose `finish` is stored has nothing left that runs: it is released and ends as it finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fluxsched.core.jobfields import SiteLimit
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.jobs.allocation import Allocation
from fluxsched.jobs.dependencies import Name, name_of
from fluxsched.jobs.grants import Grant, Grants, parse_grant
from fluxsched.jobs.job import HELD_PRIORITY, NO_REQUEST, WAITING, Job, JobSummary, priority_of
from fluxsched.jobs.lifecycle import Lifecycle, Links, PackJobspec, SentR, SiteLimits
from fluxsched.jobs.queues import ANY_BANK, Banks, JobQueue, QueueConfig, Queues, checked_reason
from fluxsched.jobs.requests import JOBS_ACTIVE_MAX, Execution, Requests
from fluxsched.jobs.states import (
    CLEANUP,
    DEPEND,
    EPILOG_FINISH,
    EPILOG_START,
    INACTIVE,
    PRIORITY,
    RUN,
    SCHED,
    Effect,
    Event,
    SaveQueue,
    TargetsGranted,
)
from fluxsched.jobs.table import INACTIVE_KEPT_MAX, JobTable


def check(lifecycle: Lifecycle) -> None:
    """Assert every law of the package over the whole state."""
    lifecycle.grants.check()
    lifecycle.limits.verify(lifecycle.jobs.active.values())
    for link in lifecycle.links:
        link.check()
    for queue in lifecycle.queues:
        jobs = [job for job in lifecycle.jobs.active.values() if job.queue is queue]
        assert queue.active == len(jobs), f"{queue.title}: {queue.active} counted as active, {len(jobs)} are"
        running = sum(job.id in lifecycle.grants for job in jobs)
        assert queue.running == running, f"{queue.title}: {queue.running} counted as running, {running} are"
        pending = {job.id for job in jobs if job.id not in lifecycle.grants}
        assert queue.pending.keys() == pending, f"{queue.title}: {[*queue.pending]} kept as pending, {pending} are"
        waiting = sum(job.request == WAITING for job in jobs)
        assert len(queue.waiting) == waiting, f"{queue.title}: {len(queue.waiting)} queued, {waiting} wait"
    for job in lifecycle.jobs.active.values():
        _check_job(lifecycle, job)
    for ended in lifecycle.jobs.inactive.values():
        assert ended.state is INACTIVE, f"job {ended.id} is kept as ended but is not"
        assert type(ended) is JobSummary, f"job {ended.id} has ended but more than a summary is in memory"
    waiting_ids = {job.id for job in lifecycle.jobs.active.values() if job.state is DEPEND}
    assert lifecycle.dependencies.dependents() <= waiting_ids, "jobs without dependencies are in the index"
    names: dict[Name, set[int]] = {}
    for job in lifecycle.jobs.active.values():
        if (name := name_of(job)) is not None:
            names.setdefault(name, set()).add(job.id)
    assert lifecycle.dependencies.named() == names, "the active jobs of each name are not those in the index"


def _check_job(lifecycle: Lifecycle, job: Job) -> None:
    link = lifecycle.links.serving(job.queue.group)
    sent = link is not None and job.id in link.outstanding
    assert job.jobspec is not None, f"job {job.id} has no jobspec"
    assert job.state in (DEPEND, SCHED, RUN, CLEANUP), f"job {job.id} rests in {job.state.name}"
    assert bool(job.dependencies) == (job.state is DEPEND), f"job {job.id}: dependencies and state disagree"
    assert lifecycle.dependencies.open_of(job.id, (job.dependencies or {}).values()), f"job {job.id} is not indexed"
    assert lifecycle.grants.ranks(job.id) == job.held, f"job {job.id} does not hold what the record says"
    assert bool(job.held) == (job.state in (RUN, CLEANUP)), f"job {job.id} in {job.state.name} holds {job.held}"
    assert job.held ^ job.freed == job.ranks, f"job {job.id} lost targets"
    assert job.going <= job.held, f"job {job.id} is leaving {job.going - job.held}, which it does not hold"
    assert sent == (job.request > WAITING), f"job {job.id}: the request state is wrong"
    if job.state is SCHED:
        assert (job.request == NO_REQUEST) <= (job.priority == HELD_PRIORITY), f"job {job.id} waits in no queue"
        assert (job.id in job.queue.waiting) == (job.request == WAITING), f"job {job.id} is queued wrongly"
    else:
        assert job.request == NO_REQUEST, f"job {job.id} in {job.state.name} asks for resources"


# ---- control of queues


class QueueControl:
    """Administrators' side of the job manager."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._queues = lifecycle.queues

    def enable(
        self, name: str | None, enable: bool, reason: str | None = None, *, all_queues: bool = False
    ) -> list[Effect]:
        """Take jobs, or refuse them with the reason. Raises Refused (ENOENT, EINVAL)."""
        text = "" if enable else checked_reason(reason, "disabled by an administrator")
        queues = self._queues.select(name, all_queues, "enable" if enable else "disable")
        for queue in queues:
            queue.enabled, queue.enable_reason = enable, text
        return [SaveQueue(queue.name, queue.state()) for queue in queues]

    def start(
        self, name: str | None, start: bool, reason: str | None = None, *, all_queues: bool = False, now_s: float
    ) -> list[Effect]:
        """Schedule, or hold back: then requests in hand are cancelled (RFC 33). Raises Refused (ENOENT, EINVAL)."""
        text = "" if start else checked_reason(reason, "stopped by an administrator")
        queues = self._queues.select(name, all_queues, "start" if start else "stop")
        self._lifecycle.begin(now_s)
        for queue in queues:
            queue.started, queue.start_reason = start, text
            self._lifecycle.out.append(SaveQueue(queue.name, queue.state()))
            self._lifecycle.touched[queue.group] = None
            if not start:
                self._withdraw_queue(queue)
        return self._lifecycle.end()

    def reconfigure(self, configs: Mapping[str | None, QueueConfig], default: str | None, now_s: float) -> list[Effect]:
        """Other configurations of the queues, against which `queues.faults` has nothing to say.

        Jobs that were accepted stay accepted; those of a queue that is gone wait until it is back.
        """
        new, gone = self._queues.reconfigure(configs, default)
        self._lifecycle.begin(now_s)
        self._lifecycle.out += [SaveQueue(queue.name, queue.state()) for queue in new]
        for queue in gone:
            self._withdraw_queue(queue)
        for link in self._lifecycle.links:
            link.queues = self._queues.served_by(link.groups)
            self._lifecycle.touched.update(dict.fromkeys(link.groups))
        return self._lifecycle.end()

    def restore(self, name: str | None, state: Mapping[str, Any]) -> None:
        """Switches as SaveQueue stored them; those of a queue that is no more are ignored."""
        for queue in self._queues:
            if queue.name == name:
                queue.enabled, queue.enable_reason = bool(state["enable"]), str(state["enable_reason"])
                queue.started, queue.start_reason = bool(state["start"]), str(state["start_reason"])

    def held_back(self, queue: JobQueue) -> tuple[str | None, str]:
        """Return the obstacle to scheduling the queue besides administrators, and the reason why it is not scheduled.

        The obstacle is `scheduler` if none is ready; the reason is empty if the queue is scheduled.
        """
        link = self._lifecycle.links.serving(queue.group)
        if queue.started and (link is None or not link.ready):
            return "scheduler", f"no scheduler serves group {queue.groups_text}"
        return None, queue.start_reason

    def _withdraw_queue(self, queue: JobQueue) -> None:
        link = self._lifecycle.links.serving(queue.group)
        if link is not None:
            for job in link.outstanding.values():
                if job.queue is queue:
                    link.cancel(job, self._lifecycle.out)


# ---- restoring of stored jobs

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
            raise InvalidValue(f"eventlog of {job.title}: event {name!r}: {type(error).__name__}: {error}") from error


def replayed(jobid: int, events: Iterable[Any], resources: dict[str, Any] | None) -> Job:
    """Return a job as its events and the R of its `alloc` tell it, whatever it asked for. Raises InvalidValue."""
    job = Job(jobid, JobQueue(QueueConfig()))
    if resources is not None:
        job.grant(resources, parse_grant(jobid, resources))
    replay(job, events)
    return job


def read(row: StoredJob, queue: JobQueue) -> tuple[Job, Grant | None]:
    """Return the job as its eventlog tells it, and what it was granted. Raises InvalidValue for a row that cannot
    be.
    """
    jobid, events, jobspec, resources = row
    job = Job(jobid, queue, jobspec=jobspec)
    grant = None
    if resources is not None:
        grant = parse_grant(jobid, resources)
        job.grant(resources, grant)
    replay(job, events)
    if job.sizes and (R := job.R) is not None:  # noqa: N806 - RFC 20's name
        grant = parse_grant(jobid, R)  # it has grown or shrunk since
    if not job.t_submit:
        raise InvalidValue(f"eventlog of {job.title} has no submit event")
    if job.state is not INACTIVE and jobspec is None:
        raise InvalidValue(f"{job.title} is active, but its jobspec is not in the store")
    if job.t_run and grant is None and job.state is not INACTIVE:
        raise InvalidValue(f"{job.title} has an alloc event, but its R is not in the store")
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
            lifecycle.grants.adopt(job.id, grant)
            if job.freed:
                lifecycle.grants.release(job.id, job.freed)
            job.executing = True
            job.queue.running += 1
            job.queue.pending.pop(job.id, None)
            lifecycle.out.append(TargetsGranted(job.id, job.held))
    for job in sorted(ended, key=lambda job: job.t_inactive):  # as they ended: listings rely on it
        lifecycle.jobs.keep(job.summary())
    shared: dict[int, list[Event]] = {}
    orphans = [job.id for job in restored if not _resume(lifecycle, job, shared)]
    lifecycle.wake()
    return Restored(lifecycle.end(), tuple(orphans))


def restore_ended(
    lifecycle: Lifecycle, pieces: Iterable[Sequence[StoredJob]], failed: Callable[[InvalidValue], None]
) -> Iterator[None]:
    """Restore ended jobs, some at each step; `failed` is called with what is wrong with one that cannot be."""
    found: list[JobSummary] = []
    for rows in pieces:
        for row in rows:
            try:
                found.append(read(row, _queue_of(lifecycle, row))[0].summary())
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
        lifecycle.log_all(job, shared[priority])
        lifecycle.enqueue(job)
        return True
    lifecycle.log(job, "flux-restart")
    if job.state is DEPEND:
        lifecycle.await_dependencies(job)
    if job.state in (DEPEND, PRIORITY):
        lifecycle.advance(job)
    elif job.held and job.status is not None and job.perilog not in (EPILOG_START, EPILOG_FINISH):
        lifecycle.release(job, None)
    elif job.held:
        return False
    elif job.state is CLEANUP:
        lifecycle.clean(job)
    return True


# ---- the manager


def as_object(jobspec: dict[str, Any]) -> dict[str, Any]:
    """Return the jobspec as it is."""
    return jobspec


class JobManager:
    """`requests` is for users, `execution` for executors, `allocation` for schedulers, `queue_control` for
    administrators; `jobs`, `queues`, `grants` and `links` may be read by all. `new_id` makes ids for jobs that are
    submitted again, each greater than all before it.
    """

    def __init__(
        self,
        new_id: Callable[[float], int],
        queues: Mapping[str | None, QueueConfig] | None = None,
        *,
        default_queue: str | None = None,
        active_max: int = JOBS_ACTIVE_MAX,
        inactive_kept_max: int = INACTIVE_KEPT_MAX,
        banks: Banks = ANY_BANK,
        limits: Sequence[SiteLimit] = (),
        there: Callable[[], ResourceSet] | None = None,
        packed: PackJobspec = as_object,
        sent_r: SentR = msgspec.msgpack.decode,
    ) -> None:
        """`there` returns the resources of which amounts are granted (see `Grants`), `packed` a jobspec and `sent_r` an
        R as messages to schedulers have them.
        """
        self.jobs = JobTable(inactive_kept_max)
        self.queues = Queues(queues or {}, default_queue)
        self.grants = Grants(there)
        self.links = Links()
        self._lifecycle = lifecycle = Lifecycle(
            self.jobs, self.queues, self.grants, self.links, new_id, SiteLimits(limits), sent_r
        )
        self.requests = Requests(lifecycle, active_max, banks)
        self.execution = Execution(lifecycle)
        self.allocation = Allocation(lifecycle, packed)
        self.queue_control = QueueControl(lifecycle)

    def due(self, now_s: float) -> list[Effect]:
        """Begin-times up to now have come; a call that is too early asks for another."""
        return self._lifecycle.due(now_s)

    def restore(self, rows: Iterable[StoredJob], now_s: float) -> Restored:
        """Restore the stored jobs, oldest first, before anything else is asked; see `restore.py`."""
        return restore(self._lifecycle, rows, now_s)

    def restore_ended(
        self, pieces: Iterable[Sequence[StoredJob]], failed: Callable[[InvalidValue], None]
    ) -> Iterator[None]:
        """Restore stored jobs that have ended: long work, which is done at once when something needs an ended job.

        `failed` is called with what is wrong with one that cannot be read.
        """
        return self.jobs.read_later(restore_ended(self._lifecycle, pieces, failed))

    def check(self) -> None:
        """Assert every law of the package over the whole state."""
        check(self._lifecycle)
