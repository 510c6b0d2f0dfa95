"""What another policy sees under `fair`: the waiting jobs in fair order, without those that limits hold back.

Law: nothing else is changed, so a policy decides here as it does alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from fluxsched.sched.policies.fair.limits import PassLimits
from fluxsched.sched.policies.fair.walk import FairWalk
from fluxsched.sched.policy import (
    FIFO,
    WORST_FIT,
    AccountLines,
    Asks,
    Fits,
    IfGone,
    Outcome,
    Plan,
    Preemptions,
    Reservation,
    ReservedNodes,
    Running,
    Skips,
    View,
    Waiting,
)


class FairView:
    """The `View` of one pass at `now_s` (wall time, seconds) around the engine's."""

    def __init__(self, view: View, lines: AccountLines, now_s: float) -> None:
        self._lines = lines
        self.limits = PassLimits(lines, now_s)
        self._view = view
        self._now_s = now_s
        self._front: FairWalk | None = None
        self._reserved: set[int] = set()

    @property
    def lines(self) -> AccountLines:
        return self._lines

    # ---- waiting jobs

    @property
    def queue(self) -> Iterator[Waiting]:
        return self._each()

    def _each(self) -> Iterator[Waiting]:
        for job in self.candidates(Skips()):  # compiled, a generator expression would go through all at once
            if job is not None:
                yield job

    @property
    def first(self) -> Waiting | None:
        if self._front is None:
            self._front = self.walk(Skips())
        while not self._front.over:
            job = self._front.peek()
            if job is not None:
                return job
        return None

    def first_beside(self, queues: Collection[str]) -> Waiting | None:
        return None  # accounts span queues, and so does their order

    def candidates(self, skips: Skips, order: str = FIFO) -> Iterator[Waiting | None]:
        walk = self.walk(skips, order)
        if order == FIFO and self._front is not None:
            walk.begin_with(self._front.reserved_head(self._reserved))
        while True:
            job = walk.next()
            if job is None and walk.over:
                return
            yield job

    def late(self, order: str = FIFO) -> None:
        """What policies of 0.1.0 ask for arrivals: there is no answer, so they examine all jobs."""

    def has_reserved(self, jobid: int) -> bool:
        """Whether the job has got a reservation in this pass."""
        return jobid in self._reserved

    def forget_reserved(self) -> None:
        """From here on no reservation counts."""
        self._reserved.clear()
        self._lines.order.forget_plans()

    def reserved(self, jobid: int) -> None:
        """The job has a reservation: it counts in its account from here on."""
        job, lines = self._lines.by_id.get(jobid), self.lines
        if job is not None and job.account is not None and jobid not in self._reserved:
            self._reserved.add(jobid)
            lines.order.plan(job.account, lines.book.usage(job.shape))
            lines.book.touch(job.account)

    def walk(self, skips: Skips, order: str = FIFO) -> FairWalk:
        """From the first waiting job on, in fair order."""
        return FairWalk(self._lines, self.limits, skips, order, self._now_s)

    # ---- as it is

    def job(self, jobid: int) -> Waiting | None:
        return self._view.job(jobid)

    @property
    def preemptions(self) -> Preemptions:
        return self._view.preemptions

    def if_gone(self) -> IfGone:
        return self._view.if_gone()

    @property
    def running(self) -> Iterator[Running]:
        return self._view.running

    @property
    def by_end(self) -> Iterator[Running]:
        return self._view.by_end

    @property
    def planned(self) -> Mapping[int, Reservation]:
        return self._view.planned

    @property
    def asks(self) -> Asks | None:
        return self._view.asks

    @property
    def reserved_nodes(self) -> ReservedNodes:
        return self._view.reserved_nodes

    def is_held_back(self, job: Waiting) -> bool:
        return self._view.is_held_back(job)

    def is_put_off(self, job: Waiting, whole: bool = False) -> bool:
        return self._view.is_put_off(job, whole)

    def find_on(self, job: Waiting, rank: int) -> Fits | None:
        return self._view.find_on(job, rank)

    @property
    def plan(self) -> Plan:
        return self._view.plan

    def place(self, job: Waiting, placement: str = WORST_FIT) -> Outcome:
        return self._view.place(job, placement)

    def find(self, job: Waiting, placement: str = WORST_FIT) -> Fits | None:
        return self._view.find(job, placement)

    def step(self, jobid: int) -> Fits | None:
        return self._view.step(jobid)

    def reason(self, job: Waiting) -> Callable[[], str]:
        return self._view.reason(job)
