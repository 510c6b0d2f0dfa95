"""Targets held by jobs, by the job manager's record.

Law: a target is held from the moment its scheduler's success arrives until the stored `release` that names it; several
jobs may share a target. Every change costs the size of the job, not of the machine.
"""

from __future__ import annotations

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import LocalProtocolError


class HeldTargets:
    """Counts, per target, the jobs that hold it.

    The union of what is held is read seldom and changes with every job, so it is updated when it is read: at 16,384
    targets that halves the cost of a job here.
    """

    def __init__(self) -> None:
        self._held = EMPTY
        self._changed: set[int] = set()
        self._jobs: dict[int, Idset] = {}
        self._holders: dict[int, int] = {}
        self._raised: set[int] = set()

    @property
    def held(self) -> Idset:
        """Return the targets that jobs hold."""
        if self._changed:
            changed, self._changed = self._changed, set()
            now = Idset.of([rank for rank in changed if rank in self._holders])
            self._held = self._held - Idset.of(changed) | now
        return self._held

    def add(self, jobid: int, targets: Idset) -> None:
        """The job holds these targets too; those that it holds already are not counted twice."""
        before = self._jobs.get(jobid)
        holders = self._holders
        for rank in targets if before is None else targets - before:
            holders[rank] = holders.get(rank, 0) + 1
            self._changed.add(rank)
        if targets:
            self._jobs[jobid] = targets if before is None else before | targets

    def drop(self, jobid: int, targets: Idset) -> list[int]:
        """The job has released these targets; returns those that no job holds any more.

        Raises LocalProtocolError if the job does not hold one of them: our record is wrong, and targets would move
        under a running job.
        """
        before = self._jobs.get(jobid, EMPTY)
        if targets == before:
            self._jobs.pop(jobid, None)
            self._raised.discard(jobid)
        elif targets <= before:
            self._jobs[jobid] = before - targets
        else:
            raise LocalProtocolError(f"job {jobid} releases ranks {targets - before} that it does not hold")
        freed = [rank for rank in targets if self._leave(rank)]
        self._changed.update(freed)
        return freed

    def of(self, jobid: int) -> Idset:
        """Return the targets that the job holds."""
        return self._jobs.get(jobid, EMPTY)

    def jobs_on(self, targets: Idset) -> list[int]:
        """Return the jobs that hold some of these targets."""
        if targets.isdisjoint(self.held):
            return []
        return [jobid for jobid, held in self._jobs.items() if not held.isdisjoint(targets)]

    def raise_once(self, targets: Idset) -> tuple[int, ...]:
        """The jobs that hold a part of `targets` and were not returned before."""
        jobids = [job for job in self.jobs_on(targets) if job not in self._raised]
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
