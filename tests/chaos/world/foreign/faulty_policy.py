"""A policy that now and then raises in the midst of a pass, after some of its decisions; else strict order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import ClassVar

from fluxsched.sched.policy import Decision, Option, Pending, Start, View


class FaultyPolicy:
    """Strict order, with faults: in `rate` of its decisions."""

    name: ClassVar[str] = "faulty"
    OPTIONS: ClassVar[Mapping[str, Option]] = {"rate": Option(0.1, parse=float, help="faults a decision")}

    def __init__(self, rate: float = 0.1) -> None:
        self._rate = rate

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """See `Policy.schedule`."""
        chance = Random(f"{now_s}")
        while (job := view.first) is not None:
            if chance.random() < self._rate:
                raise RuntimeError("a fault of the policy")
            fit = view.find(job)
            if fit is None:
                yield Pending(job.jobid, view.reason(job))
                return
            yield Start(job.jobid, fit)
