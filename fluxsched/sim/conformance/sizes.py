"""Judges how elastic jobs grow and shrink: within their ranges, on free targets, and never at the cost of who waits.

Law: nothing is shared with what is judged. What a job holds follows from what it was granted, got and left.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.request import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.policy import Fits
from fluxsched.sched.pool.placement import parts_in
from fluxsched.sim.conformance.rule_broken import RuleBroken

SIZES, EXTRAS = "sizes", "extras"
"""Laws, by the names of the rules that they belong to."""


class _Sized:
    """An elastic job that runs: by part, the targets that it has and is not to leave."""

    def __init__(self, request: Request, held: ResourceSet) -> None:
        by_label = held.parts
        self.parts = request.each_part
        self.ranks = [by_label.get(part.label, EMPTY) for part in self.parts] if by_label else [held.ranks]


class SizeJudge:
    """`usable` and `free` are asked of the truth."""

    def __init__(self) -> None:
        self.grown: set[int] = set()
        self._jobs: dict[int, _Sized] = {}

    def began(self, jobid: int, request: Request, held: ResourceSet) -> None:
        """A job has started; only elastic ones are of interest."""
        if request.elastic:
            self._jobs[jobid] = _Sized(request, held)

    def ended(self, jobid: int) -> None:
        """A job has ended."""
        self._jobs.pop(jobid, None)

    def grew(self, jobid: int, added: ResourceSet) -> None:
        """A job has got more."""
        job = self._jobs[jobid]
        by_label = added.parts
        for at, part in enumerate(job.parts):
            job.ranks[at] |= by_label.get(part.label, EMPTY) if by_label else added.ranks
        self.grown.add(jobid)
        self._check(jobid, job)

    def shrank(self, jobid: int, ranks: Idset) -> None:
        """A job is to leave targets. Raises RuleBroken below a minimum."""
        job = self._jobs[jobid]
        job.ranks = [mine - ranks for mine in job.ranks]
        self._check(jobid, job)

    def judge_shrink(self, jobid: int, ranks: Idset) -> None:
        """Raises RuleBroken for a decision that may not be."""
        name, job = format_f58(jobid), self._jobs.get(jobid)
        if job is None:
            raise RuleBroken(SIZES, f"job {name} is shrunk, although no elastic job of this id runs")
        if foreign := ranks - Idset.of([rank for mine in job.ranks for rank in mine]):
            raise RuleBroken(SIZES, f"job {name} is shrunk by ranks {foreign}, which it does not hold")
        for part, mine in zip(job.parts, job.ranks, strict=True):
            self._check_count(name, part, len(mine - ranks))

    def judge_grow(self, jobid: int, fit: Fits, usable: Idset, free: Mapping[int, tuple[int, int]]) -> None:
        """The same for more targets."""
        name, job = format_f58(jobid), self._jobs.get(jobid)
        if job is None:
            raise RuleBroken(SIZES, f"job {name} is grown, although no elastic job of this id runs")
        parts = list(parts_in(fit.blocks))
        ranks = Idset.of([part.rank for part in parts])
        if useless := ranks - usable:
            raise RuleBroken(SIZES, f"job {name} is grown by ranks {useless}, which are down, drained or leaving")
        for part in parts:
            cores, gpus = free[part.rank]
            if part.cores & ~cores or part.gpus & ~gpus:
                raise RuleBroken(SIZES, f"job {name} is grown by more of rank {part.rank} than is free there")
        added = fit.by_part or (ranks,)
        for each, mine, more in zip(job.parts, job.ranks, added, strict=True):
            self._check_count(name, each, len(mine | more))

    def _check(self, jobid: int, job: _Sized) -> None:
        for part, mine in zip(job.parts, job.ranks, strict=True):
            self._check_count(format_f58(jobid), part, len(mine))

    def _check_count(self, name: str, part: Request, count: int) -> None:
        asked = part.nodes
        assert asked is not None, "an elastic job has a range of nodes"
        if count not in asked:
            whose = f"part {part.label} of job {name}" if part.label else f"job {name}"
            raise RuleBroken(SIZES, f"{whose} would have {count} nodes, although it asks for {asked}")
