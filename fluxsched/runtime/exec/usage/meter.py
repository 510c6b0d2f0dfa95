"""What the tasks of one job used: wall time, CPU time and peak memory, as the kernel accounts for them.

Law: the figures are those of wait4(2): of a task and of all descendants that their own parents waited for. Processes
reaped by others (daemons, what is left of a task and killed with its group) are not included. A process starts
with the peak of the one that spawned it, which is this one: a peak that is not above ours is only known to be no
more than that, and says so.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from functools import partial
from typing import Any

from fluxsched.runtime.system.clock import Clock
from fluxsched.runtime.system.exit_watch import ExitWatch

TASK_ROWS_MAX = 128
"""Tasks of a job with a row each, in the order of their ranks: some 15 KiB of its record. The rest is in the sums."""
_KIB = 1024


class Meter:
    """Adds up what one job's tasks use. Told when they run, when each is reaped, and asked at the end."""

    __slots__ = ("_begun_s", "_clock", "_ended_s", "_floor", "_opened_s", "_rows", "_sums", "_watches")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._opened_s: float | None = None
        self._begun_s: dict[int, float] = {}
        """When tasks began, of those that did not begin with the job."""
        self._ended_s: dict[int, float] = {}
        self._watches: list[ExitWatch] = []
        self._rows: dict[int, dict[str, Any]] = {}
        self._sums = [0.0, 0.0, 0]

    def opened(self, pids: Sequence[int], first: int = 0) -> None:
        """These tasks, numbered from `first` on, run from now on. The end of each is noted, where there are several and
        each has a row.
        """
        now_s = self._clock.monotonic_s()
        if self._opened_s is None:
            self._opened_s = now_s
        else:
            self._begun_s |= dict.fromkeys(range(first, min(first + len(pids), TASK_ROWS_MAX)), now_s)
        if 1 < first + len(pids) <= TASK_ROWS_MAX:
            loop = asyncio.get_running_loop()
            for task, pid in enumerate(pids, first):
                try:
                    self._watches.append(ExitWatch(loop, pid, partial(self._ended, task)))
                except OSError:  # out of descriptors, so its wall time is the job's
                    return

    def _ended(self, task: int) -> None:
        self._ended_s[task] = self._clock.monotonic_s()

    def reaped(self, task: int, status: int, used: resource.struct_rusage) -> None:
        """What wait4 says of a task."""
        sums = self._sums
        sums[0] += used.ru_utime
        sums[1] += used.ru_stime
        sums[2] = max(sums[2], used.ru_maxrss)
        if task < TASK_ROWS_MAX:
            self._rows[task] = {"status": status, **self._figures(task, used.ru_utime, used.ru_stime, used.ru_maxrss)}

    def _figures(self, task: int | None, user_s: float, system_s: float, peak: float) -> dict[str, Any]:
        now_s = self._clock.monotonic_s()
        ended_s = now_s if task is None else self._ended_s.get(task, now_s)
        begun_s = self._opened_s if task is None else self._begun_s.get(task, self._opened_s)
        figures: dict[str, Any] = {
            "wall_s": round(max(0.0, ended_s - (begun_s or ended_s)), 6),
            "user_s": round(user_s, 6),
            "system_s": round(system_s, 6),
            "max_rss_bytes": max(int(peak), self._floor) * _KIB,
        }
        if peak <= self._floor:
            figures["max_rss_is_bound"] = True
        return figures

    def total(self, ntasks: int) -> dict[str, Any] | None:
        """All that is known, fit for JSON; None if the tasks never ran. With a row a task where there are several."""
        if self._opened_s is None:
            return None
        total = self._figures(None, *self._sums)
        if ntasks > 1:
            total["tasks"] = [self._rows[task] for task in sorted(self._rows)]
        if ntasks > TASK_ROWS_MAX:
            total["tasks_left_out"] = ntasks - TASK_ROWS_MAX
        return total

    def close(self) -> None:
        """Watch no more."""
        for watch in self._watches:
            watch.close()
        self._watches.clear()
