"""The schedulers that said hello, and which requests each has in hand (RFC 27).

Law: a group has at most one scheduler; a job has at most one request outstanding; requests leave in priority order and,
in limited mode, at most `limit` are outstanding. A request that is being cancelled counts until it is answered.

Displacing, in limited mode: when the best waiting job has a higher priority than the worst request outstanding, that
request is cancelled, one at a time: the next is considered when the answer has come. A tie displaces none.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import Refused, RemoteProtocolError
from fluxsched.jobs.effects import Effect, SchedAlloc, SchedCancel, SchedFree
from fluxsched.jobs.job.job import CANCELING, SENT, Job, sched_jobspec
from fluxsched.jobs.queue.priority_heap import PriorityHeap
from fluxsched.jobs.queue.queues import JobQueue

LIMIT_MAX = 2147483647
"""RFC 27: the largest `limit` of limited mode."""


class HelloItem(NamedTuple):
    """One job with allocated resources, as sched-hello answers it; `preempted_s`: when it was preempted, 0.0 if not;
    `going`: what it was shrunk by and holds still; `grown`: which of its targets it has grown by; `shrunk_s`: when it
    was last shrunk, 0.0 if never.
    """

    jobid: int
    priority: int
    userid: int
    t_submit: float
    free: Idset
    R: dict[str, Any]
    jobspec: dict[str, Any]
    preempted_s: float = 0.0
    going: Idset = EMPTY
    grown: Idset = EMPTY
    shrunk_s: float = 0.0


class Link:
    """One scheduler: its groups' queues, its mode, and the requests that it has not answered."""

    def __init__(self, scheduler: Hashable, groups: tuple[str, ...], queues: list[JobQueue]) -> None:
        self.scheduler = scheduler
        self.groups = groups
        self.queues = queues
        self.ready = False
        self.limit: int | None = None
        self.outstanding: dict[int, Job] = {}
        self.deferred: list[SchedFree] = []
        self.growing: dict[int, Idset] = {}
        """By job the targets that it has grown by, while that is not answered: no free of them is sent."""
        self._worst = PriorityHeap()
        self._displaced: Job | None = None

    def free(self, free: SchedFree, out: list[Effect]) -> None:
        """Send a free now, or once the scheduler is ready: RFC 27 sends it nothing before."""
        if self.ready:
            out.append(free)
        else:
            self.deferred.append(free)

    def cancel(self, job: Job, out: list[Effect]) -> None:
        """Cancel the job's request, once."""
        if job.request == SENT:
            job.request = CANCELING
            self._worst.discard(job.id)
            out.append(SchedCancel(self.scheduler, job.id))

    def answered(self, job: Job) -> None:
        """The scheduler has answered the job's request for good."""
        del self.outstanding[job.id]
        if self.limit is not None:
            self._worst.discard(job.id)
            if self._displaced is job:
                self._displaced = None

    def reorder(self, job: Job) -> None:
        """The priority of a job whose request is outstanding has changed."""
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
        out.append(SchedAlloc(self.scheduler, job.id, job.priority, job.userid, job.t_first, sched_jobspec(job)))

    def _next_queue(self) -> JobQueue | None:
        """The queue with the best job, among those that are started."""
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

    def __iter__(self) -> Iterator[Link]:
        return iter(self._by_scheduler.values())

    def add(self, link: Link) -> None:
        """Raises Refused (EBUSY) naming the groups that another scheduler serves."""
        taken = [group for group in link.groups if group in self._by_group]
        if taken:
            raise Refused(f"another scheduler serves group {', '.join(taken)}: remove it first", errno.EBUSY)
        self._by_scheduler[link.scheduler] = link
        self._by_group.update(dict.fromkeys(link.groups, link))

    def remove(self, scheduler: Hashable) -> Link | None:
        """The link that is no more, if there was one."""
        link = self._by_scheduler.pop(scheduler, None)
        for group in link.groups if link is not None else ():
            del self._by_group[group]
        return link

    def get(self, scheduler: Hashable) -> Link:
        """The scheduler's link. Raises RemoteProtocolError if it has not said hello."""
        link = self._by_scheduler.get(scheduler)
        if link is None:
            raise RemoteProtocolError("this connection has no scheduler: send job-manager.sched-hello first (RFC 27)")
        return link

    def find(self, scheduler: Hashable) -> Link | None:
        """The scheduler's link; None once it is lost."""
        return self._by_scheduler.get(scheduler)

    def serving(self, group: str) -> Link | None:
        """The link of the scheduler that serves a group."""
        return self._by_group.get(group)

    def known(self, scheduler: Hashable) -> bool:
        """Return whether this scheduler has sent its hello."""
        return scheduler in self._by_scheduler


def checked_groups(groups: Iterable[str]) -> tuple[str, ...]:
    """The groups of a hello, each once. Raises RemoteProtocolError when there are none."""
    wanted = tuple(dict.fromkeys(groups))
    if not wanted:
        raise RemoteProtocolError("sched-hello names no group: leave the key out for the group default")
    return wanted


def _reversed_key(job: Job) -> tuple[float, ...]:
    """The worst first: lowest priority, then latest (first) submit time, then highest id."""
    return (job.priority, -job.t_first, -job.id)
