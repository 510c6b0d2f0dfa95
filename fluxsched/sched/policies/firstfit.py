"""Every job that fits starts: jobs that cannot start now are skipped, and big jobs may be overtaken for ever.

Within a pass things only become less free, so a request that failed once fails for every equal one behind it: those are
skipped, and only the owner of the first of them is sent a new reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from fluxsched.sched.policy import (
    BACKFILLED,
    FIFO,
    IMMEDIATE,
    ITSELF,
    ORDER,
    PAUSE,
    PLACEMENT,
    WORST_FIT,
    Decision,
    Option,
    Pending,
    Skips,
    Start,
    View,
)


class FirstFit:
    """Starts every job that fits, in `order`; others are skipped."""

    name: ClassVar[str] = "firstfit"
    ARRIVALS: ClassVar[str] = ITSELF
    OPTIONS: ClassVar[Mapping[str, Option]] = {"order": ORDER, "placement": PLACEMENT}

    def __init__(self, placement: str = WORST_FIT, order: str = FIFO) -> None:
        self.placement = placement
        self._order = order

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        skips = Skips()
        selection = IMMEDIATE
        for job in view.candidates(skips, self._order):
            if job is None:
                yield PAUSE
                continue
            fit = view.find(job, self.placement)
            if fit is not None:
                yield Start(job.jobid, fit, selection)
            else:
                skips.fits_nowhere(job)
                selection = BACKFILLED
                yield Pending(job.jobid, view.reason(job))
