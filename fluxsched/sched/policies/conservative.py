"""Conservative backfill: every waiting job has a reservation, and a job overtakes only if it delays no other.

By default the whole plan is made anew in each pass, from the running jobs on: that promises the order of the plan, not
its times, since a job that moves up may take the place of one behind it. With `compress` each job keeps its reservation
and only moves to an earlier time, one job after the other, so that no job starts later than first estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from fluxsched.sched.policy import (
    ANYTHING,
    BACKFILLED,
    FIFO,
    IMMEDIATE,
    ITSELF,
    NO,
    ORDER,
    PAUSE,
    PAUSE_EVERY,
    PLACEMENT,
    SWITCH,
    WORST_FIT,
    YES,
    Decision,
    Fits,
    Option,
    Plan,
    Reserve,
    Skips,
    Start,
    View,
    Waiting,
)


class Conservative:
    """Every job has a reservation, made in `order`; others start early only if they delay none."""

    name: ClassVar[str] = "conservative"
    BACKFILLS: ClassVar[bool] = True
    REPLANS: ClassVar[bool] = True
    OPTIONS: ClassVar[Mapping[str, Option]] = {"compress": SWITCH, "order": ORDER, "placement": PLACEMENT}

    def __init__(self, compress: str = NO, order: str = FIFO, placement: str = WORST_FIT) -> None:
        self._compress = compress == YES
        self._order = order
        self.placement = placement
        self.ARRIVALS = ITSELF if order == FIFO and compress == NO else ANYTHING

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        plan = view.plan
        if self._compress:
            _keep_promises(view, plan)
        selection, planned = IMMEDIATE, 0
        for job in view.candidates(Skips(), self._order):
            planned += 1
            if job is None or not planned % PAUSE_EVERY:
                yield PAUSE
            if job is None:
                continue
            plan.drop(job.jobid)
            found = plan.seat(job, self.placement)
            if isinstance(found, Fits):
                yield Start(job.jobid, found, selection)
            else:
                selection = BACKFILLED
                yield Reserve(found, view.reason(job))


def _keep_promises(view: View, plan: Plan) -> None:
    """All jobs as they were planned, the earliest first; what cannot be kept any more is planned again in its turn."""
    jobs: dict[int, Waiting] = {job.jobid: job for job in view.queue if job.jobid in view.planned}
    for old in sorted(view.planned.values(), key=lambda old: (old.start_s, old.jobid)):
        job = jobs.get(old.jobid)
        if job is not None:
            plan.keep(job, old)
