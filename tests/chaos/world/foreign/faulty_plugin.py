"""A plugin that now and then raises, refuses for a while, or has jobs wait that hold their resources already."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import ClassVar

from fluxsched.sched.hooks import PASS, Gate, JobSeen, Later, Option, Pass, Wait
from fluxsched.sched.pool.placement import Fits

DELAY_S = 2.0


class FaultyPlugin:
    """Faults in `rate` of its answers."""

    name: ClassVar[str] = "faulty"
    OPTIONS: ClassVar[Mapping[str, Option]] = {"rate": Option(0.1, parse=float, help="faults an answer")}

    def __init__(self, rate: float = 0.1) -> None:
        self._rate = rate

    def pre_enqueue(self, job: JobSeen) -> Pass | Gate:
        """Some jobs come later."""
        return Gate("not yet", at_s=job.now_s + DELAY_S) if self._is_faulty("enqueue", job.jobid, job.now_s) else PASS

    def reserve(self, job: JobSeen, fit: Fits) -> Pass | Later:
        """Some placements are not taken."""
        return Later("not now", job.now_s + DELAY_S) if self._is_faulty("reserve", job.jobid, job.now_s) else PASS

    def permit(self, job: JobSeen, fit: Fits, now_s: float) -> Pass | Wait | Later:
        """Some jobs wait with what they hold."""
        return Wait(DELAY_S, "for the others") if self._is_faulty("permit", job.jobid, now_s) else PASS

    def pre_bind(self, job: JobSeen, fit: Fits) -> Pass | Later:
        """Some fail late."""
        return Later("not at all", job.now_s + DELAY_S) if self._is_faulty("bind", job.jobid, job.now_s) else PASS

    def _is_faulty(self, what: str, jobid: int, now_s: float) -> bool:
        number = Random(f"{what} {jobid} {now_s}").random()
        if number < self._rate / 2:
            raise RuntimeError("a fault of the plugin")
        return number < self._rate
