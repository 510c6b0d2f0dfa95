"""A queue with the policy that orders it, over the targets of a group that it may share with others.

Law: lanes of one group see the same pool and keep each other's reservations; what one plans, no other is in the way of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluxsched.sched.decisions import Reservation
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.queue.pending import PendingJobs, Waiting
from fluxsched.sched.queue.sorted_jobs import Entry

if TYPE_CHECKING:
    from fluxsched.sched.engine.set_aside import Aside
    from fluxsched.sched.plan.counted import CountedPlan
    from fluxsched.sched.plan.placed import PoolPlan
    from fluxsched.sched.policy import Policy


UNJUDGED = -2
"""No generation of a pool, nor that of an index that nobody has asked (-1)."""


class Lane:
    """`name` is the queue's, or empty for all queues of the group that have no policy of their own.

    `planned` are the reservations that the policy made in its last pass, `plan` is what it made them in. `news` are the
    jobs that came since, if that is all that has happened and none is ahead of the first who waits or of one who is
    planned; else None. `order` is the one of `orders` in which the policy last asked for jobs, None if in none of them.
    `aside` are the jobs of the group that are set aside.
    """

    __slots__ = ("_front", "_judged", "_odd", "aside", "name", "news", "order", "plan", "planned", "policy", "queue")

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self.queue = PendingJobs()
        self.planned: dict[int, Reservation] = {}
        self.plan: CountedPlan | PoolPlan | None = None
        self.news: list[Waiting] | None = None
        self.order: str | None = None
        self.aside: Mapping[int, Aside] = {}
        self._front: Entry | None = None  # who is behind it is behind all who were looked at
        self._odd = 0  # jobs whose need cannot be counted, as of generation `_judged`
        self._judged = UNJUDGED

    def enter(self, job: Waiting, running: RunningJobs) -> None:
        """A job joins the queue. Raises LimitExceeded when that is full."""
        if self.news is not None and self._front is None:
            self._front = self._rearmost()
        entry = self.queue.add(job)
        if self.news is not None and job.priority:
            if self._front is None or entry < self._front:
                self.news = None
            else:
                self.news.append(job)
        if self._judged == running.generation and not running.need(job.request):
            self._odd += 1

    def passed(self, plan: CountedPlan | PoolPlan | None) -> None:
        """A pass came to its end: until something else happens, only new jobs need be looked at."""
        self.plan = plan
        self.news = []
        self._front = None  # worked out when somebody comes, since mostly something else happens first

    def _rearmost(self) -> Entry | None:
        """The last in order of the first who waits and those who are planned; None if nobody waits."""
        rear, entries = self.queue.front, self.queue.entries
        for jobid in self.planned:
            entry = entries.get(jobid)
            if rear is not None and entry is not None and entry > rear:
                rear = entry
        return rear

    def left(self, job: Waiting, running: RunningJobs) -> None:
        """A job was taken off the queue."""
        self.planned.pop(job.jobid, None)
        if self._odd and self._judged == running.generation and not running.need(job.request):
            self._odd -= 1

    def countable(self, running: RunningJobs) -> bool:
        """Whether for all who wait it only matters how many cores are free."""
        if self._judged != running.generation:
            self._judged = running.generation
            self._odd = sum(waiting for request, waiting in self.queue.requests() if not running.need(request))
        return not self._odd
