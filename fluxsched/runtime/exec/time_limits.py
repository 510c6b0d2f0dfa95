"""When the time of running jobs is up.

Law: a job has one timer at most; 0 is no limit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fluxsched.runtime.loop.turns import Timer, Turns


class TimeLimits:
    """Calls `reached` with a job whose time is up."""

    def __init__(self, turns: Turns, reached: Callable[[int], None]) -> None:
        self._turns = turns
        self._reached = reached
        self._end = self._is_up  # one bound method for all jobs
        self._timers: dict[int, Timer] = {}

    def arm(self, jobid: int, expiration_s: float) -> None:
        """The job's time is up then (wall time)."""
        self.disarm(jobid)
        if expiration_s > 0.0:
            delay_s = expiration_s - self._turns.clock.wall_s()
            self._timers[jobid] = self._turns.after(delay_s, partial(self._end, jobid))

    def disarm(self, jobid: int) -> None:
        """The job has no limit any more, or has ended."""
        timer = self._timers.pop(jobid, None)
        if timer is not None:
            timer.cancel()

    def _is_up(self, jobid: int) -> None:
        self._timers.pop(jobid, None)
        self._reached(jobid)
