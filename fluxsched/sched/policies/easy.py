"""EASY backfill: the first job that cannot start gets a reservation, and jobs that do not delay it may overtake.

Where jobs of several queues wait, each queue has such a head: a blocked one holds back none of another queue, and is
protected against all of them, also against one that becomes the head of its queue later.

The head is planned at the earliest time at which running jobs, if they use up their limits, leave it what it needs.
A job behind it starts if it fits now, and either ends by then or takes nothing that the head is to get. The reservation
is made anew in each pass, so it only moves to an earlier time as long as limits hold and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import ClassVar

from fluxsched.sched.policy import (
    BACKFILLED,
    FIFO,
    ITS_START,
    ORDER,
    PAUSE,
    PLACEMENT,
    WORST_FIT,
    Decision,
    Option,
    Reserve,
    Start,
    View,
    Waiting,
)


class Easy:
    """The first job that cannot start has a reservation; others start, in `order`, if they do not delay it."""

    name: ClassVar[str] = "easy"
    BACKFILLS: ClassVar[bool] = True
    ARRIVALS: ClassVar[str] = ITS_START
    OPTIONS: ClassVar[Mapping[str, Option]] = {"order": ORDER, "placement": PLACEMENT}

    def __init__(self, order: str = FIFO, placement: str = WORST_FIT) -> None:
        self._order = order
        self.placement = placement

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        yield from self._keep_promises(view)
        while (head := view.first) is not None:
            fit = view.find(head, self.placement)
            if fit is None:
                break
            yield Start(head.jobid, fit)
        if head is None:
            return
        plan = view.plan
        if not plan.has(head.jobid):  # with arrivals alone, the plan of the last pass has it
            yield Reserve(plan.reserve(head), view.reason(head))
        yield from self._heads_beside(head, view)
        for found in plan.placeable(view.candidates(plan.skips, self._order), self.placement):
            if found is None:
                yield PAUSE
            else:
                job, fit = found
                yield Start(job.jobid, fit, BACKFILLED)

    def _keep_promises(self, view: View) -> Iterator[Decision]:
        """Plan the heads that have been promised a start before a job that has become the first of another queue."""
        heads: list[Waiting] = []
        while (job := view.first_beside([head.queue for head in heads])) is not None:
            heads.append(job)
        promised = [(view.planned[job.jobid].start_s, job) for job in heads if job.jobid in view.planned]
        for _, job in sorted(promised, key=lambda each: (each[0], each[1].key)):
            yield from self._seat(job, view)

    def _heads_beside(self, head: Waiting, view: View) -> Iterator[Decision]:
        """Start jobs of other queues that delay no head, and reserve for the first of each that cannot start."""
        blocked = [head.queue]
        while (job := view.first_beside(blocked)) is not None:
            if not (yield from self._seat(job, view)):
                blocked.append(job.queue)

    def _seat(self, job: Waiting, view: View) -> Generator[Decision, None, bool]:
        """Start the first job of a queue, or see that it has a reservation. Return whether it starts."""
        fit = view.find(job, self.placement)
        if fit is not None:
            yield Start(job.jobid, fit)
        elif not view.plan.has(job.jobid):
            yield Reserve(view.plan.reserve(job), view.reason(job))
        return fit is not None
