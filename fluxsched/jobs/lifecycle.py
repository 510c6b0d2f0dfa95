"""Lifecycle of jobs from submit to inactive, in turns of events, and the limits of `[[limits]]` on jobs that wait.

What happens is logged, and effects come out.

Laws: a public method of the manager's parts checks first, then begins a turn, logs events and ends the turn; a job
proceeds until it must wait, and all its events of one turn are one Persist. What one job's turn means for others
(dependents, requests to schedulers) is done at the end of the turn from a worklist, so a chain of 2,000 jobs needs no
more stack than one.

`Links` are the schedulers that said hello, and which requests each has in hand (RFC 27): a group has at most one
scheduler; a job has at most one request outstanding; requests leave in priority order and, in limited mode, at most
`limit` are outstanding. A request that is being cancelled counts until it is answered. The next attempt of a job asks
for what it asked for at last, and waits for nothing that it has waited for: its dependencies were met when it was
started. If there is a pause before it, it depends on the time at which that is over, like a job with a begin time.

Limits of a site as submission obeys them: waiting jobs by holder, and jobs that are too large or too long.

Law: the jobs of a holder are those in DEPEND, PRIORITY and SCHED, whatever made them wait; a job that is accepted stays
accepted, so a lower limit, a restart and a further attempt refuse nothing.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any, Final, TypeAlias

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobfields import NOTHING, HolderKey, Holders, SiteLimit, least_amounts
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import format_duration
from fluxsched.core.text import with_path
from fluxsched.errors import Refused, RemoteProtocolError
from fluxsched.jobs.dependencies import (
    RESERVATION,
    Dependency,
    DependencyIndex,
    Verdict,
    beginning,
    depending_on,
    is_met_by_start,
    verdict,
)
from fluxsched.jobs.grants import Grant, Grants
from fluxsched.jobs.job import (
    CANCELING,
    HELD_PRIORITY,
    NO_REQUEST,
    SENT,
    WAITING,
    Job,
    JobSummary,
    priority_of,
    sched_jobspec,
)
from fluxsched.jobs.queues import JobQueue, PriorityHeap, Queues
from fluxsched.jobs.states import (
    CLEANUP,
    DEPEND,
    PENDING,
    PREEMPT,
    RUN,
    SCHED,
    Attempt,
    Effect,
    Event,
    GrowShells,
    Kill,
    Persist,
    ShrinkShells,
    StartShells,
    TargetsFreed,
    TargetsGranted,
    ToScheduler,
    WakeAt,
    clean_context,
    submit_context,
)
from fluxsched.jobs.table import JobTable
from fluxsched.protocol.messages.jobs import AllocRequest, FreeRequest, SchedCancelRequest


class SiteLimits:
    """The limits in force, with the waiting jobs of each holder of those that bound them."""

    def __init__(self, limits: Sequence[SiteLimit] = ()) -> None:
        self._holders = Holders(limits)
        self.are_there = bool(limits)
        self.is_counting = _bound_waiting(limits)
        self._waiting: dict[HolderKey, set[int]] = {}

    def change(self, limits: Sequence[SiteLimit], active: Iterable[Job]) -> None:
        """Obey other limits from now on."""
        self._holders, self._waiting = Holders(limits), {}
        self.are_there = bool(limits)
        self.is_counting = _bound_waiting(limits)
        if self.is_counting:
            for job in active:
                self.enter(job)

    def check(self, jobspec: Jobspec, userid: int, queue: str | None) -> None:
        """Raise Refused (EINVAL, EAGAIN) for a new job that a limit excludes, naming value, limit and remedy."""
        keys = self._holders.of(userid, jobspec.sharing.bank, queue)
        least = least_amounts(jobspec.request) if keys else NOTHING
        for key in keys:
            limit = self._holders.limits[key[0]]
            if exceeded := limit.exceeded(NOTHING, least):
                raise Refused(f"{exceeded}, so the job could never start: ask for less", errno.EINVAL)
            if text := limit.too_long(jobspec.duration_s):
                raise Refused(text, errno.EINVAL)
            count = len(self._waiting.get(key, ()))
            if limit.waiting is not None and count >= limit.waiting:
                may = f"{count} jobs wait, {limit.waiting} may: submit when some have started"
                raise Refused(f"{limit.title}: {may}", errno.EAGAIN)

    def check_duration(self, job: Job, duration_s: float) -> None:
        """Raise Refused (EINVAL) where a job may not have this time limit (seconds, 0: none)."""
        for at, _ in self._holders.of(job.userid, job.sharing.bank, job.queue.name):
            if text := self._holders.limits[at].too_long(duration_s):
                raise Refused(text, errno.EINVAL)

    def enter(self, job: Job) -> None:
        """Count a job, if it waits."""
        if job.state & PENDING:
            for key in self._keys(job):
                self._waiting.setdefault(key, set()).add(job.id)

    def leave(self, job: Job) -> None:
        """Count a job no longer: it waits no more."""
        for key in self._keys(job):
            jobids = self._waiting.get(key)
            if jobids is not None:
                jobids.discard(job.id)
                if not jobids:
                    del self._waiting[key]

    def _keys(self, job: Job) -> list[HolderKey]:
        limits = self._holders.limits
        keys = self._holders.of(job.userid, job.sharing.bank, job.queue.name)
        return [key for key in keys if limits[key[0]].waiting is not None]

    def verify(self, active: Iterable[Job]) -> None:
        """Assert that the jobs that wait are counted, and no others."""
        found = SiteLimits()
        found.change(self._holders.limits, active)
        assert found._waiting == self._waiting, f"waiting jobs by holder: {self._waiting}, but it is {found._waiting}"


def _bound_waiting(limits: Sequence[SiteLimit]) -> bool:
    """Return whether one of the limits is about how many jobs wait."""
    return any(limit.waiting is not None for limit in limits)


# ---- lifecycle

EVENTLOG_VERSION: Final = 1
"""RFC 21's version of the eventlog format."""

DURATION_KEY: Final = "attributes.system.duration"
ARRAY_KEY: Final = "attributes.system.array"


def jobspec_of_next(job: Job) -> Jobspec:
    """Return the job's jobspec with what was changed since: its duration, and as first of an array that this is its
    array.
    """
    jobspec = job.jobspec
    assert jobspec is not None, "an active job has its jobspec"
    raw = jobspec.raw
    if job.duration_s != jobspec.duration_s:
        raw = with_path(raw, DURATION_KEY, job.duration_s)
    if jobspec.array == 0:
        raw = with_path(raw, ARRAY_KEY, job.id)
    return jobspec if raw is jobspec.raw else Jobspec.parse(raw)


def submitted(userid: int, urgency: int, flags: int) -> dict[str, Any]:
    """Return the context of a `submit` event (RFC 21)."""
    return {"userid": userid, "urgency": urgency, "flags": flags, "version": EVENTLOG_VERSION}


def submitted_again(job: Job) -> dict[str, Any]:
    """Return the context of the `submit` event of the next attempt, which may be one that is not counted."""
    number = job.attempts + (not job.is_free_again)
    following = Attempt(job.id, number, job.t_first, job.prologs + job.is_unprepared)
    return submitted(job.userid, job.urgency, job.flags) | submit_context(following)


NamedEvent: TypeAlias = tuple[str, dict[str, Any] | None]
"""Name and context of an event that is to happen now."""


def _entering(context: dict[str, Any]) -> tuple[NamedEvent, NamedEvent]:
    """Return the events of a job that becomes active, by the context of the first."""
    return ("submit", context), ("validate", None)


def _waiting(urgency: int) -> tuple[NamedEvent, NamedEvent]:
    """Return the events of a job that begins to wait for resources."""
    return ("depend", None), ("priority", {"priority": priority_of(urgency)})


def _cleaned(next_id: int) -> NamedEvent:
    """Return the last event of a job; `next_id` is its next attempt, 0 if there is none."""
    return "clean", clean_context(next_id) if next_id else None


# ---- schedulers and their requests

LIMIT_MAX = 2147483647
"""RFC 27: the largest `limit` of limited mode."""


PackJobspec: TypeAlias = Callable[[dict[str, Any]], Any]
"""Returns a jobspec as messages to schedulers have it: the object, or the object in the form of the wire."""


SentR: TypeAlias = Callable[[bytes], Any]
"""Returns R, of which it gets the MessagePack, as messages to schedulers have it: the object, or that in their form."""


class Link:
    """One scheduler: its groups' queues, its mode, and the requests that it has not answered."""

    def __init__(
        self, scheduler: Hashable, groups: tuple[str, ...], queues: list[JobQueue], packed: PackJobspec,
        unjudged: set[int],
    ) -> None:  # fmt: skip
        self.scheduler = scheduler
        self._packed = packed
        self._unjudged = unjudged
        self.groups = groups
        self.queues = queues
        self.ready = False
        self.limit: int | None = None
        self.outstanding: dict[int, Job] = {}
        self.deferred: list[FreeRequest] = []
        self.growing: dict[int, Idset] = {}
        """By job the targets that it has grown by, while that is not answered: no free of them is sent."""
        self._worst = PriorityHeap()
        self._displaced: Job | None = None

    def free(self, jobid: int, R: Any, final: bool, out: list[Effect]) -> None:  # noqa: N803 - RFC 20's name
        """Send a free, with R as messages have it (`SentR`), now or once the scheduler is ready.

        RFC 27 sends it nothing before.
        """
        free = FreeRequest(jobid, R, final)
        if self.ready:
            out.append(ToScheduler(self.scheduler, free))
        else:
            self.deferred.append(free)

    def cancel(self, job: Job, out: list[Effect]) -> None:
        """Cancel the job's request, once."""
        if job.request == SENT:
            job.request = CANCELING
            self._worst.discard(job.id)
            out.append(ToScheduler(self.scheduler, SchedCancelRequest(job.id)))

    def answered(self, job: Job) -> None:
        """Record that the scheduler has answered the job's request for good."""
        del self.outstanding[job.id]
        if self.limit is not None:
            self._worst.discard(job.id)
            if self._displaced is job:
                self._displaced = None

    def reorder(self, job: Job) -> None:
        """Record that the priority of a job whose request is outstanding has changed."""
        if self.limit is not None and job.request == SENT:
            self._worst.push(job.id, _reversed_key(job))

    def pump(self, jobs: Mapping[int, Job], out: list[Effect]) -> None:
        """Send what may be sent."""
        if not self.ready:
            return
        limit = self.limit
        if limit is None:
            waiting = [entry for queue in self.queues if queue.started for entry in queue.waiting.drain()]
            if len(waiting) > 1:
                waiting.sort()  # after a restart a hundred thousand may wait, and a heap takes thrice as long
            for _, jobid in waiting:
                self._send(jobs[jobid], out)
            return
        while len(self.outstanding) < limit:
            queue = self._next_queue()
            if queue is None:
                return
            job = jobs[queue.waiting.pop()]
            self._worst.push(job.id, _reversed_key(job))
            self._send(job, out)
        self._displace(out)

    def _send(self, job: Job, out: list[Effect]) -> None:
        job.request = SENT
        self.outstanding[job.id] = job
        jobspec, unjudged = self._packed(sched_jobspec(job)), job.id in self._unjudged
        self._unjudged.discard(job.id)
        request = AllocRequest(job.id, job.priority, job.userid, jobspec, job.t_first, unjudged)
        out.append(ToScheduler(self.scheduler, request))

    def _next_queue(self) -> JobQueue | None:
        """Return the queue with the best job, among those that are started."""
        best, best_key = None, None
        for queue in self.queues:
            head = queue.waiting.head() if queue.started else None
            if head is not None and (best_key is None or head[0] < best_key):
                best, best_key = queue, head[0]
        return best

    def _displace(self, out: list[Effect]) -> None:
        """Make room for a waiting job of higher priority than the worst that was sent."""
        queue = self._next_queue() if self._displaced is None else None
        worst = self._worst.head()
        if queue is None or worst is None:
            return
        waiting = queue.waiting.head()
        job = self.outstanding[worst[1]]
        if waiting is not None and waiting[0][0] < -job.priority:
            self._displaced = job
            self.cancel(job, out)

    def check(self) -> None:
        """Assert the law for this scheduler."""
        assert self.limit is None or len(self.outstanding) <= self.limit, "more requests outstanding than the limit"
        assert self.ready or not self.outstanding, "requests sent before ready"
        for job in self.outstanding.values():
            assert job.request in (SENT, CANCELING), f"job {job.id} is outstanding but has no request"
            assert job.queue.group in self.groups, f"job {job.id} was sent to a scheduler of another group"
            worst = self.limit is not None and job.request == SENT
            assert (job.id in self._worst) == worst, f"job {job.id} is not among those that may be displaced"
        if self.ready and (self.limit is None or len(self.outstanding) < self.limit):
            assert self._next_queue() is None, "a job waits though it may be sent"


class Links:
    """All schedulers, by their own key and by group."""

    def __init__(self) -> None:
        self._by_scheduler: dict[Hashable, Link] = {}
        self._by_group: dict[str, Link] = {}
        self.serving = self._by_group.get
        """Returns the link of the scheduler that serves a group."""
        self.unjudged = set[int]()
        """Jobs that were submitted while no scheduler was ready for them, until one gets them."""

    def __iter__(self) -> Iterator[Link]:
        return iter(self._by_scheduler.values())

    def add(self, link: Link) -> None:
        """Raise Refused (EBUSY) naming the groups that another scheduler serves."""
        taken = [group for group in link.groups if group in self._by_group]
        if taken:
            raise Refused(f"another scheduler serves group {', '.join(taken)}: remove it first", errno.EBUSY)
        self._by_scheduler[link.scheduler] = link
        self._by_group.update(dict.fromkeys(link.groups, link))

    def remove(self, scheduler: Hashable) -> Link | None:
        """Return the link that is no more, if there was one."""
        link = self._by_scheduler.pop(scheduler, None)
        for group in link.groups if link is not None else ():
            del self._by_group[group]
        return link

    def get(self, scheduler: Hashable) -> Link:
        """Return the scheduler's link. Raises RemoteProtocolError if it has not said hello."""
        link = self._by_scheduler.get(scheduler)
        if link is None:
            raise RemoteProtocolError("this connection has no scheduler: send job-manager.sched-hello first (RFC 27)")
        return link

    def find(self, scheduler: Hashable) -> Link | None:
        """Return the scheduler's link; None once it is lost."""
        return self._by_scheduler.get(scheduler)

    def known(self, scheduler: Hashable) -> bool:
        """Return whether this scheduler has sent its hello."""
        return scheduler in self._by_scheduler


def checked_groups(groups: Iterable[str]) -> tuple[str, ...]:
    """Return the groups of a hello, each once. Raises RemoteProtocolError when there are none."""
    wanted = tuple(dict.fromkeys(groups))
    if not wanted:
        raise RemoteProtocolError("sched-hello names no group: leave the key out for the group default")
    return wanted


def _reversed_key(job: Job) -> tuple[float, ...]:
    """Return the worst first: lowest priority, then latest (first) submit time, then highest id."""
    return (job.priority, -job.t_first, -job.id)


# ---- turns of events

SIGTERM: Final = 15
"""First signal sent to a job with a fatal exception."""


_STARTED: Final = ("start",)

DEADLINE: Final = "deadline"
"""Type of the exception of a job that can no longer be over by its deadline."""


class Lifecycle:
    """The steps that jobs take, over the jobs and what is indexed over them. The parts of the job manager share it.

    `touched` names the groups whose schedulers may be sent requests at the end of the turn, `settled` has the jobs on
    whose start or end others may depend. `new_id` makes the id of a job at a time.
    """

    def __init__(
        self,
        jobs: JobTable,
        queues: Queues,
        grants: Grants,
        links: Links,
        new_id: Callable[[float], int],
        limits: SiteLimits,
        sent_r: SentR,
    ) -> None:
        self.jobs = jobs
        self.queues = queues
        self.grants = grants
        self.links = links
        self.limits = limits
        self._new_id = new_id
        self._sent_r = sent_r
        self.dependencies = DependencyIndex()
        self.now_s = 0.0
        self.out: list[Effect] = []
        self.settled: deque[Job] = deque()
        self.touched: dict[str, None] = {}
        self._rows: dict[int, Persist] = {}
        """The rows of this turn, by job."""
        self._alike: dict[tuple[Any, ...], list[Event]] = {}
        """Events that jobs log alike at `now_s`, by their first name and what else tells them apart."""
        self._woken_at_s: float | None = None
        self.reservation_ends_s: dict[str, float] = {}
        self._latest: list[tuple[float, int]] = []  # a heap: when a job has to start at the latest, of those bound so

    # -- a turn

    def begin(self, now_s: float) -> None:
        """Begin a turn at `now_s`."""
        if now_s != self.now_s:
            self.now_s = now_s
            self._alike.clear()
        self.out = []
        self._rows = {}

    def end(self) -> list[Effect]:
        """End the turn: what follows for other jobs, then all effects."""
        out, settled, touched = self.out, self.settled, self.touched
        while settled:
            self._settle(settled.popleft())
        if self.dependencies.changed_names:
            for found in self.dependencies.next_of_names():
                self._take_effect(found)
        if touched:
            for group in touched:
                link = self.links.serving(group)
                if link is not None:
                    link.pump(self.jobs.active, out)
            touched.clear()
        self.out = []  # effects name schedulers: kept here they were a cycle, which structs like them never end
        return out

    def log(self, job: Job, name: str, context: dict[str, Any] | None = None) -> None:
        """Let an event happen now, and add it to the job's events of this turn."""
        self.log_all(job, [self._event(name, context)])

    def log_start(self, job: Job) -> None:
        """Log that the job's tasks run."""
        events = self._alike.get(_STARTED)
        self.log_all(job, self._keep_alike(_STARTED, ("start", None)) if events is None else events)

    def log_all(
        self,
        job: Job,
        events: list[Event],
        jobspec: dict[str, Any] | None = None,
        R: dict[str, Any] | None = None,  # noqa: N803 - RFC 20's name
    ) -> None:
        """Let events of now happen, and add them to the job's events of this turn; the list must not change."""
        job.apply_all(events)
        row = self._rows.get(job.id)
        if row is not None:
            row.events = [*row.events, *events]
        else:
            self._rows[job.id] = row = Persist(job.id, events, jobspec, R)
            self.out.append(row)

    def _keep_alike(self, key: tuple[Any, ...], *named: NamedEvent) -> list[Event]:
        """Return events for all jobs that log the same now."""
        events = self._alike[key] = self._events_of(named)
        return events

    def _events_of(self, named: Iterable[NamedEvent]) -> list[Event]:
        return [self._event(name, context) for name, context in named]

    def _event(self, name: str, context: dict[str, Any] | None) -> Event:
        if context is None:
            return {"timestamp": self.now_s, "name": name}
        return {"timestamp": self.now_s, "name": name, "context": context}

    # -- the way of a job

    def admit(self, job: Job) -> None:
        """Enter a job that becomes active."""
        self.jobs.add(job)
        if job.jobspec is not None and job.jobspec.job_name is not None:
            self.dependencies.enter(job)
        if self.limits.is_counting:
            self.limits.enter(job)
        job.queue.active += 1
        job.queue.pending[job.id] = None
        if self.reservation_ends_s or (job.jobspec is not None and job.jobspec.deadline_s is not None):
            self.bound(job)

    def bound(self, job: Job) -> None:
        """Remember when a job with a deadline, or in a reservation, has to start at the latest."""
        end_s, _ = self._last_end(job)
        if end_s < inf:
            heappush(self._latest, (end_s - job.duration_s, job.id))
            self.wake()

    def _last_end(self, job: Job) -> tuple[float, str]:
        """Return when the job has to be over, and the type of the exception if it cannot be; `inf` without a bound."""
        if job.jobspec is None:
            return inf, ""
        deadline_s = inf if job.jobspec.deadline_s is None else job.jobspec.deadline_s
        reserved_s = self.reservation_ends_s.get(job.jobspec.request.reservation, inf)
        return (deadline_s, DEADLINE) if deadline_s <= reserved_s else (reserved_s, RESERVATION)

    def advance(self, job: Job) -> None:
        """From DEPEND to SCHED, as far as the job gets."""
        depends = job.state is DEPEND
        if depends and job.dependencies:
            return
        key = ("wait", depends, job.urgency)
        events = self._alike.get(key)
        if events is None:
            events = self._keep_alike(key, *_waiting(job.urgency)[0 if depends else 1 :])
        self.log_all(job, events)
        self.enqueue(job)

    def enqueue(self, job: Job) -> None:
        """Wait to be sent to the scheduler, unless held; the end of the turn sends what may be sent."""
        if job.priority == HELD_PRIORITY:
            job.request = NO_REQUEST
            return
        job.request = WAITING
        queue = job.queue
        queue.waiting.push(job.id, job.key())
        self.touched[queue.config.group] = None

    def run(self, job: Job, R: dict[str, Any], grant: Grant, noted: dict[str, Any] | None) -> None:  # noqa: N803
        """Give the job its grant, which is recorded already, with `noted` as its annotations; its shells start after
        commit.
        """
        job.request = NO_REQUEST
        job.grant(R, grant)
        context = {"annotations": noted} if noted else {}
        self.log_all(job, [self._event("alloc", context)], R=R)
        job.executing = True
        job.queue.running += 1
        job.queue.pending.pop(job.id, None)
        if self.limits.is_counting:
            self.limits.leave(job)
        self.out.append(TargetsGranted(job.id, grant.ranks))
        self.out.append(StartShells(job.id, R))

    def grow(self, job: Job, R: dict[str, Any], grant: Grant) -> None:  # noqa: N803 - RFC 20's name
        """Give a running job this grant, too, which is recorded already; its tasks there start after commit."""
        self.log(job, "grow", {"R": R})
        self.out.append(TargetsGranted(job.id, grant.ranks))
        self.out.append(GrowShells(job.id, R))

    def shrink(self, job: Job, ranks: Idset, note: str) -> None:
        """Have a running job leave targets; it holds each of them until that is released."""
        self.log(job, "shrink", {"ranks": str(ranks), "note": note})
        self.out.append(ShrinkShells(job.id, ranks, note))

    def finish(self, job: Job, status: int, usage: dict[str, Any] | None, *, release: bool) -> None:
        """End the job's tasks, whose usage is None if it was not measured; with `release` it releases all, too."""
        if release and usage is None and job.fatal is None and not job.sharing.requeue:  # it is not submitted again
            self.release(job, None, status)
            return
        context: dict[str, Any] = {"status": status}
        self.log(job, "finish", context if usage is None else context | {"usage": usage})
        if release:
            self.release(job, None)

    def release(self, job: Job, ranks: Idset | None, status: int | None = None) -> None:
        """Release targets (None: all that are left); with the last of them the job ends. With a `status`, its tasks
        have ended now.
        """
        given = job.held if ranks is None else ranks
        final = ranks is None or given == job.held
        whole = given is job.ranks or given == job.ranks
        link = self.links.serving(job.queue.config.group)
        unknown = link.growing.get(job.id, EMPTY) if link is not None and link.growing else EMPTY
        known = given if unknown is EMPTY else given - unknown
        assert job.packed_r is not None, "a job that holds targets has its R"
        remainder: Any = self._sent_r(job.packed_r) if whole and known is given else job.remainder(known)
        was_last = final or job.held == given | unknown
        ranks_text, next_id = "all" if whole else str(given), self._next_id(job) if final else 0
        key = ("release", ranks_text, final, next_id, status)
        events = self._alike.get(key)
        if events is None:
            finished = () if status is None else (("finish", {"status": status}),)
            released = "release", {"ranks": ranks_text, "final": final}
            ended = (("free", None), _cleaned(next_id)) if final else ()
            events = self._keep_alike(key, *finished, released, *ended)
        self.log_all(job, events)
        # the record first: the scheduler's next grant of these cores may come at once
        self.grants.release(job.id, None if final else given)
        if link is not None and known:
            link.free(job.id, remainder, was_last, self.out)
        self.out.append(TargetsFreed(job.id, given))
        if final:
            job.executing = False
            job.queue.running -= 1
            self._leave(job, next_id)

    def clean(self, job: Job) -> None:
        """Nothing is left to be done: the job, which holds nothing, becomes inactive."""
        next_id = self._next_id(job)
        self.log(job, *_cleaned(next_id))
        self._leave(job, next_id)

    def _next_id(self, job: Job) -> int:
        """Return the id of the next attempt of a job that ends now, 0 if there is to be none."""
        is_due = (job.fatal is not None or job.sharing.requeue) and job.is_due_again
        return self._new_id(self.now_s) if is_due else 0

    def _leave(self, job: Job, next_id: int) -> None:
        """Count an inactive job no longer.

        Its next attempt, if it is to have one, is submitted in the same turn, so in the same transaction: a crash can
        neither lose it nor submit it twice.
        """
        job.queue.active -= 1
        job.queue.pending.pop(job.id, None)
        if next_id:
            self._submit_again(job, next_id)
        elif job.id in self.dependencies.awaited:
            self.settled.append(job)
        if job.jobspec is not None and job.jobspec.job_name is not None:
            self.dependencies.leave(job)
        self.links.unjudged.discard(job.id)
        if self.limits.is_counting:
            self.limits.leave(job)
        self.jobs.end(job)

    def submit(self, job: Job, userid: int, urgency: int, flags: int, *, depends: bool) -> None:
        """Record that a new job becomes active: in state DEPEND, or, unless it `depends` on something, in SCHED."""
        key = ("submit", userid, urgency, flags, depends)
        events = self._alike.get(key)
        if events is None:
            then = () if depends else _waiting(urgency)
            events = self._keep_alike(key, *_entering(submitted(userid, urgency, flags)), *then)
        self._enter(job, events)
        if not depends:
            self.enqueue(job)

    def _enter(self, job: Job, events: list[Event]) -> None:
        assert job.jobspec is not None, "a new job has its jobspec"
        self.log_all(job, events, jobspec=job.jobspec.raw)
        self.admit(job)

    def _submit_again(self, job: Job, next_id: int) -> None:
        """Begin the next attempt of a job; what depends on the job depends on that from now on."""
        following = Job(next_id, job.queue, jobspec=jobspec_of_next(job))
        self._enter(following, self._events_of(_entering(submitted_again(job))))
        for jobid, dependencies in self.dependencies.take(job.id).items():
            dependent = self.jobs.active[jobid]
            for dependency in dependencies:
                new = self._move(dependent, dependency, following)
                if new is not None:
                    self.dependencies.add(dependent, new)
        if job.pause_s:
            self.log(following, "dependency-add", {"description": beginning(self.now_s + job.pause_s).description})
            self.await_dependencies(following)
        self.advance(following)

    # -- exceptions

    def log_exception(self, job: Job, type: str, severity: int, note: str, **optional: int | None) -> None:
        """Log an exception (RFC 21); optional members without a value are left out."""
        context: dict[str, Any] = {"type": type, "severity": severity, "note": note}
        self.log(job, "exception", context | {key: value for key, value in optional.items() if value is not None})

    def fail(self, job: Job, type: str, note: str, **optional: int | None) -> None:
        """Raise a fatal exception: the job goes to CLEANUP and, if nothing runs or is held, to its end."""
        state = job.state
        self._forget_dependencies(job)
        self.log_exception(job, type, 0, note, **optional)
        if state is CLEANUP:
            if job.executing and job.is_preempted and type != PREEMPT:  # its grace time may be longer than others'
                self.out.append(Kill(job.id, SIGTERM, type))
            return
        if state is SCHED:
            self.withdraw(job)
        if state is RUN:
            self.out.append(Kill(job.id, SIGTERM, f"{type}: {note}" if note else type, type == PREEMPT))
        else:
            self.clean(job)

    def withdraw(self, job: Job) -> None:
        """Record that the job wants no resources now: it waits no longer, or its request is cancelled."""
        if job.request == WAITING:
            job.queue.waiting.discard(job.id)
            job.request = NO_REQUEST
        elif job.request == SENT:
            link = self.links.serving(job.queue.config.group)
            assert link is not None, "a request is outstanding at no scheduler"
            link.cancel(job, self.out)

    # -- dependencies

    def await_dependencies(self, job: Job) -> None:
        """Remember the job's open dependencies; those that are decided already take effect at once."""
        for named in list((job.dependencies or {}).values()):
            if job.state is not DEPEND:
                break  # an earlier one can never be met
            dependency = named if named.antecedent is None else self._on_last_attempt(job, named, named.antecedent)
            if dependency is None:
                continue
            found = self._verdict(job, dependency)
            if found is not None:
                self._decide(found)
            else:
                self.dependencies.add(job, dependency)
        self.wake()

    def _verdict(self, job: Job, dependency: Dependency) -> Verdict | None:
        """Return whether a dependency is met, or never will be; None while it is open."""
        if dependency.antecedent is None:
            at_s = dependency.at_s
            return None if at_s is None or at_s > self.now_s else Verdict(job.id, dependency, "")
        antecedent = self.jobs.find(dependency.antecedent)
        if antecedent is None:
            note = f"{dependency.description}: job {format_f58(dependency.antecedent)} is no longer known"
            return Verdict(job.id, dependency, note)
        return verdict(job.id, dependency, antecedent)

    def _on_last_attempt(self, job: Job, dependency: Dependency, jobid: int) -> Dependency | None:
        """Return the dependency as it is once its antecedent was submitted again; None if the job has that one
        already.
        """
        antecedent = self.jobs.find(jobid)
        if antecedent is None or not antecedent.next_id or is_met_by_start(dependency, antecedent):
            return dependency
        return self._move(job, dependency, self.jobs.last(antecedent.id))

    def _move(self, job: Job, dependency: Dependency, last: JobSummary) -> Dependency | None:
        """Let the job depend on another attempt of its antecedent; None if it does so already."""
        new = depending_on(dependency.scheme, last.id)
        self.log(job, "dependency-remove", {"description": dependency.description})
        if new.description in (job.dependencies or ()):
            return None
        self.log(job, "dependency-add", {"description": new.description})
        return new

    def _forget_dependencies(self, job: Job) -> None:
        if job.dependencies:
            self.dependencies.forget(job.id, job.dependencies.values())

    def _settle(self, antecedent: Job) -> None:
        for found in self.dependencies.settle(antecedent):
            self._take_effect(found)

    def _take_effect(self, found: Verdict) -> None:
        self._decide(found)
        job = self.jobs.active.get(found.jobid)
        if job is not None and job.state is DEPEND:
            self.advance(job)

    def _decide(self, found: Verdict) -> None:
        job = self.jobs.active.get(found.jobid)
        description = found.dependency.description
        if job is None or job.state is not DEPEND or description not in (job.dependencies or ()):
            return  # canceled meanwhile, or failed by an earlier verdict
        if found.failure:
            self.fail(job, "depend", found.failure)
        else:
            self.log(job, "dependency-remove", {"description": description})

    def begun(self, reservation: str) -> None:
        """Let the jobs go on that wait for the begin of a reservation, which is on."""
        for found in self.dependencies.begun(reservation):
            self._take_effect(found)

    def wake(self) -> None:
        """Ask for a call of `due` at the next begin-time, unless that was asked already."""
        at_s = self.dependencies.next_time_s
        if self._latest and (at_s is None or self._latest[0][0] < at_s):
            at_s = self._latest[0][0]
        if at_s is not None and at_s != self._woken_at_s:
            self.out.append(WakeAt(at_s))
        self._woken_at_s = at_s

    def due(self, now_s: float) -> list[Effect]:
        """Begin-times up to now have come; a call that is too early asks for another."""
        self._woken_at_s = None
        self.begin(now_s)
        for found in self.dependencies.due(now_s):
            self._take_effect(found)
        while self._latest and self._latest[0][0] <= now_s:
            job = self.jobs.active.get(heappop(self._latest)[1])
            if job is None or not job.state & PENDING:
                continue
            if self._last_end(job)[0] - job.duration_s > now_s:
                continue  # its limit was made shorter, or its reservation moved, and it was entered again
            self.give_up(job)
        self.wake()
        return self.end()

    def is_late(self, job: Job, now_s: float) -> bool:
        """Return whether a job that starts now could not be over by its deadline."""
        deadline_s = None if job.jobspec is None else job.jobspec.deadline_s
        return deadline_s is not None and deadline_s - job.duration_s < now_s

    def give_up(self, job: Job) -> None:
        """End a pending job that can no longer be over by its deadline, or within its reservation."""
        _, kind = self._last_end(job)
        limit = f": its limit is {format_duration(job.duration_s)}" if job.duration_s else ""
        over = "can no longer be over" if limit else "has not started"
        by = "by its deadline" if kind == DEADLINE else "when its reservation ends"
        self.fail(job, kind, f"it {over} {by}{limit}")
