"""Between first fit and conservative backfill: the first `depth` jobs that cannot start get reservations.

With depth 0 this is firstfit, with 1 it is easy, with all it is conservative. A few reservations protect more than the
head from being overtaken, and cost much less than a plan of everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import ClassVar, Final

from fluxsched.sched.policy import (
    BACKFILLED,
    FIFO,
    IMMEDIATE,
    ITSELF,
    ORDER,
    PAUSE,
    PAUSE_EVERY,
    PLACEMENT,
    WORST_FIT,
    Decision,
    Fits,
    Option,
    Plan,
    Reserve,
    Start,
    View,
    Waiting,
)

DEPTH_DIGITS_MAX = 9
"""More jobs than that no queue has."""
ALL: Final = "all"
"""Depth without a limit."""


def parse_depth(text: str) -> float:
    """`all`, or how many jobs are planned. Raises ValueError."""
    if text == ALL:
        return inf
    if not text.isascii() or not text.isdigit() or len(text) > DEPTH_DIGITS_MAX:
        raise ValueError(f"a depth is a number or {ALL!r}")
    return int(text)


DEPTH: Final = Option(8, parse=parse_depth, help="how many jobs get a reservation: 0 is firstfit, 1 is easy, or 'all'")


class Hybrid:
    """The first `depth` jobs that cannot start have reservations; others start, in `order`, if they delay none."""

    name: ClassVar[str] = "hybrid"
    BACKFILLS: ClassVar[bool] = True
    ARRIVALS: ClassVar[str] = ITSELF
    OPTIONS: ClassVar[Mapping[str, Option]] = {"depth": DEPTH, "order": ORDER, "placement": PLACEMENT}

    def __init__(self, depth: float = 8, order: str = FIFO, placement: str = WORST_FIT) -> None:
        self._depth = depth
        self._order = order
        self.placement = placement

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        plan, planned = view.plan, 0
        for job in view.queue:
            if planned >= self._depth:
                yield from self._backfill(view.candidates(plan.skips, self._order), plan)
                return
            found = plan.seat(job, self.placement)
            if isinstance(found, Fits):
                yield Start(job.jobid, found, BACKFILLED if planned else IMMEDIATE)
                continue
            planned += 1
            yield Reserve(found, view.reason(job))
            if not planned % PAUSE_EVERY:
                yield PAUSE

    def _backfill(self, jobs: Iterable[Waiting | None], plan: Plan) -> Iterator[Decision]:
        for found in plan.placeable(jobs, self.placement):
            if found is None:
                yield PAUSE
            else:
                job, fit = found
                yield Start(job.jobid, fit, BACKFILLED)
