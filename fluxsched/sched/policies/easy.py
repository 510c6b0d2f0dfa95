"""EASY backfill: the first job that cannot start gets a reservation, and whoever does not delay it may overtake.

The head is planned at the earliest time at which running jobs, if they use up their limits, leave it what it needs.
A job behind it starts if it fits now, and either ends by then or takes nothing that the head is to get. The reservation
is made anew in each pass, so it only moves to an earlier time as long as limits hold and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from fluxsched.sched.policy import (
    BACKFILLED,
    FIFO,
    ORDER,
    PAUSE,
    PLACEMENT,
    WORST_FIT,
    Decision,
    Option,
    Plan,
    Reserve,
    Start,
    View,
    Waiting,
)


class Easy:
    """One reservation, for the head; the others are tried in `order`."""

    name: ClassVar[str] = "easy"
    BACKFILLS: ClassVar[bool] = True
    OPTIONS: ClassVar[Mapping[str, Option]] = {"order": ORDER, "placement": PLACEMENT}

    def __init__(self, order: str = FIFO, placement: str = WORST_FIT) -> None:
        self._order = order
        self._placement = placement

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        late = view.late(self._order)
        if late is not None:
            yield from self._backfill(late, view.plan)
            return
        plan = view.plan
        for job in view.queue:
            fit = plan.place(job, self._placement)
            if fit is None:
                yield Reserve(plan.reserve(job), view.reason(job))
                yield from self._backfill(view.candidates(plan.skips, self._order), plan)
                return
            yield Start(job.jobid, fit)

    def _backfill(self, jobs: Iterable[Waiting | None], plan: Plan) -> Iterator[Decision]:
        for found in plan.placeable(jobs, self._placement):
            if found is None:
                yield PAUSE
            else:
                job, fit = found
                yield Start(job.jobid, fit, BACKFILLED)
