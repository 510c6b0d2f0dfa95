"""Which jobs hold which targets, by the job manager's record.

Law: a target is held from the moment its scheduler's success arrives until the stored `release` that names it; several
jobs may share a target. Every change costs the size of the job, not of the machine.
"""

from __future__ import annotations

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import LocalProtocolError


class Holdings:
    """Counts, per target, the jobs that hold it."""

    def __init__(self) -> None:
        self.held = EMPTY
        self._jobs: dict[int, Idset] = {}
        self._holders: dict[int, int] = {}
        self._raised: set[int] = set()

    def add(self, jobid: int, targets: Idset) -> None:
        """The job holds these targets too; those that it holds already are not counted twice."""
        before = self._jobs.get(jobid, EMPTY)
        for rank in targets - before:
            self._holders[rank] = self._holders.get(rank, 0) + 1
        if targets:
            self._jobs[jobid] = before | targets
            self.held |= targets

    def drop(self, jobid: int, targets: Idset) -> Idset:
        """The job has released these targets; returns those that no job holds any more.

        Raises LocalProtocolError if the job does not hold one of them: our record is wrong, and targets would move
        under a running job.
        """
        before = self._jobs.get(jobid, EMPTY)
        if not targets <= before:
            raise LocalProtocolError(f"job {jobid} releases ranks {targets - before} that it does not hold")
        free = [rank for rank in targets if self._leave(rank)]
        self._jobs[jobid] = before - targets
        if not self._jobs[jobid]:
            del self._jobs[jobid]
            self._raised.discard(jobid)
        freed = Idset.of(free)
        self.held -= freed
        return freed

    def of(self, jobid: int) -> Idset:
        """What the job holds."""
        return self._jobs.get(jobid, EMPTY)

    def raise_once(self, targets: Idset) -> tuple[int, ...]:
        """The jobs that hold a part of `targets` and were not returned before."""
        if targets.isdisjoint(self.held):
            return ()
        jobids = [job for job, held in self._jobs.items() if not held.isdisjoint(targets) and job not in self._raised]
        self._raised.update(jobids)
        return tuple(jobids)

    def check(self) -> None:
        """Assert that counts, sets and union agree."""
        counts: dict[int, int] = {}
        for targets in self._jobs.values():
            assert targets, "a job that holds nothing is remembered"
            for rank in targets:
                counts[rank] = counts.get(rank, 0) + 1
        assert counts == self._holders, "the number of holders of a target is wrong"
        assert Idset.of(counts) == self.held, "the union of what jobs hold is wrong"

    def _leave(self, rank: int) -> bool:
        self._holders[rank] -= 1
        if self._holders[rank]:
            return False
        del self._holders[rank]
        return True
