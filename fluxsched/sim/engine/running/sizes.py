"""Jobs whose size changes while they run, and jobs that end when they have had their work.

Law: work is done by the cores that a job has, but for those that it is to leave; a job ends with the last of its work,
or at its limit. All others end after their run time, and nothing of them is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.sim.results.table import Resizing
from fluxsched.sim.traces.trace import TraceJob


class PartLeft(NamedTuple):
    """A job that goes on has ended on these targets."""

    jobid: int
    resources: ResourceSet


class SizedJob:
    """One that runs: what it has, since when it has just these cores, and when it ends if that stays so."""

    __slots__ = ("at_start", "cores", "due_s", "is_done_at_end", "latest_s", "left", "resources", "since_s")

    def __init__(self, resources: ResourceSet, job: TraceJob, now_s: float, limit_s: float) -> None:
        self.resources = resources
        self.cores = self.at_start = resources.count("core")
        self.since_s = now_s
        self.left = inf if job.work is None else job.work
        self.latest_s = now_s + (limit_s if job.work is not None else min(job.run_s, limit_s))
        self.is_done_at_end = job.run_s <= limit_s
        self.due_s = self._end_s()

    def set_cores(self, cores: int, now_s: float) -> None:
        """It has so many from now on."""
        self.left = max(0.0, self.left - self.cores * (now_s - self.since_s))
        self.cores, self.since_s = cores, now_s
        self.due_s = self._end_s()

    def _end_s(self) -> float:
        return min(self.latest_s, self.since_s + self.left / self.cores)


class Sizes:
    """Those that run, by row; `resizes` are all changes so far."""

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self.rows = {row for row, job in enumerate(jobs) if job.work is not None or job.ask.elastic}
        """Of jobs that this is about."""
        self.running: dict[int, SizedJob] = {}
        self.resizes: list[Resizing] = []
        self._jobs = jobs
        self._begun: dict[int, int] = {}  # row -> how many resizes there were before its present attempt

    def began(self, row: int, resources: ResourceSet, now_s: float, limit_s: float) -> float:
        """A job starts: when it ends if it keeps its size."""
        job = self.running[row] = SizedJob(resources, self._jobs[row], now_s, limit_s)
        self._begun[row] = len(self.resizes)
        return job.due_s

    def grew(self, row: int, added: ResourceSet, now_s: float) -> float:
        """It has these, too: when it ends now."""
        job = self.running[row]
        job.resources |= added
        return self._resize(row, job, added.count("core"), added.ranks, now_s)

    def shrank(self, row: int, ranks: Idset, now_s: float) -> tuple[ResourceSet, float]:
        """It is to leave these targets: what it has there, and when it ends now."""
        job = self.running[row]
        leaves = job.resources.restrict(ranks)
        job.resources = job.resources.restrict(job.resources.ranks - ranks)
        return leaves, self._resize(row, job, -leaves.count("core"), ranks, now_s)

    def _resize(self, row: int, job: SizedJob, change: int, ranks: Idset, now_s: float) -> float:
        job.set_cores(job.cores + change, now_s)
        self.resizes.append(Resizing(row, now_s, None, change, str(ranks)))
        return job.due_s

    def ended(self, row: int, now_s: float) -> bool:
        """An attempt is over: whether it has had all its work, if it had to have some."""
        job = self.running.pop(row)
        for at in range(self._begun.pop(row), len(self.resizes)):
            if self.resizes[at].row == row:
                self.resizes[at] = self.resizes[at]._replace(until_s=now_s)
        job.set_cores(job.cores, now_s)
        work = self._jobs[row].work
        return job.is_done_at_end if work is None else job.left <= work * DONE


DONE = 1e-9
"""Of the work of a job may be left when it ends with it, as doubles round."""
