"""Strict order: the first job that cannot start holds back all others, so none is ever overtaken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from fluxsched.sched.policy import NOTHING, PLACEMENT, WORST_FIT, Decision, Option, Pending, Start, View


class Fifo:
    """Strict order: the first job that cannot start holds back all others."""

    name: ClassVar[str] = "fifo"
    ARRIVALS: ClassVar[str] = NOTHING
    OPTIONS: ClassVar[Mapping[str, Option]] = {"placement": PLACEMENT}

    def __init__(self, placement: str = WORST_FIT) -> None:
        self.placement = placement

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        while (job := view.first) is not None:
            fit = view.find(job, self.placement)
            if fit is None:
                yield Pending(job.jobid, view.reason(job))
                return
            yield Start(job.jobid, fit)
