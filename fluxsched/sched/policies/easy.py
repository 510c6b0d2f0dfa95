"""EASY backfill: the first job that cannot start gets a reservation, and jobs that do not delay it may overtake.

The head is planned at the earliest time at which running jobs, if they use up their limits, leave it what it needs.
A job behind it starts if it fits now, and either ends by then or takes nothing that the head is to get. The reservation
is made anew in each pass, so it only moves to an earlier time as long as limits hold and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
        for found in plan.placeable(view.candidates(plan.skips, self._order), self.placement):
            if found is None:
                yield PAUSE
            else:
                job, fit = found
                yield Start(job.jobid, fit, BACKFILLED)
