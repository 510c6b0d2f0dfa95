"""Targets of amounts that are kept for jobs that fit nowhere: one job a target, one target a job.

Law: a target that is kept is withheld from the pool's indexes, so that only its job is placed there. It is offered
again when its job starts or leaves, when it leaves or goes down itself, and after RESERVED_MAX_S.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from fluxsched.core.idset import Idset
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.sorted_jobs import PendingJob

RESERVED_MAX_S = 300.0
"""Time after which a reserved target is released (seconds), since no end is known of what runs there.

Others may then use the target, and the job may reserve again.
"""


class ReservedNodes:
    """`by_job` maps jobs to ranks, in the order in which they got them; `changed` is called when one is offered."""

    __slots__ = ("_by_rank", "_changed", "_pool", "_since_s", "by_job")

    def __init__(self, pool: Pool, changed: Callable[[], None]) -> None:
        self._pool = pool
        self._changed = changed
        self.by_job: dict[int, int] = {}
        self._by_rank: dict[int, int] = {}
        self._since_s: dict[int, float] = {}

    def reserve(self, jobid: int, rank: int, now_s: float) -> bool:
        """Keep a target from now on, unless the job has another one, or another has it."""
        if self.by_job.get(jobid) == rank:
            return True
        target = self._pool.amount_targets.by_rank.get(rank)
        if target is None or jobid in self.by_job or rank in self._by_rank:
            return False
        self._pool.withhold(rank)
        self.by_job[jobid] = rank
        self._by_rank[rank] = jobid
        self._since_s[jobid] = now_s
        return True

    def clear(self, jobid: int, rank: int) -> None:
        """Release the job's reservation of another target, and another job's reservation of this one."""
        if self.by_job.get(jobid, rank) != rank:
            self.release(jobid)
        holder = self._by_rank.get(rank, jobid)
        if holder != jobid:
            self.release(holder)

    def holder(self, rank: int) -> int | None:
        """Return the job for which a target is reserved, or None."""
        return self._by_rank.get(rank)

    def release(self, jobid: int) -> None:
        """Release the reservation of a job that has started or was removed."""
        rank = self.by_job.pop(jobid, None)
        if rank is not None:
            del self._by_rank[rank], self._since_s[jobid]
            if rank in self._pool.amount_targets.by_rank:
                self._pool.offer(rank)
            self._changed()

    def release_on(self, ranks: Idset) -> None:
        """Release reservations of targets that have left or went down."""
        for rank in [rank for rank in self._by_rank if rank in ranks]:
            self.release(self._by_rank[rank])

    def lapse(self, now_s: float) -> None:
        """Release reservations that have lasted for too long."""
        for jobid, since_s in list(self._since_s.items()):
            if since_s + RESERVED_MAX_S > now_s:
                return  # they are in the order of their beginning
            self.release(jobid)

    @property
    def next_s(self) -> float:
        """Return when the next reservation ends (wall time, seconds; inf if there is none)."""
        return next(iter(self._since_s.values()), inf) + RESERVED_MAX_S

    def may_reserve(self, rank: int) -> bool:
        """Return whether a target is usable and reserved for no job."""
        target = self._pool.amount_targets.by_rank.get(rank)
        return target is not None and target.usable

    @property
    def all_taken(self) -> bool:
        """Return whether each target is reserved for a job."""
        return len(self.by_job) >= len(self._pool.amount_targets.by_rank)

    def best_first(self, job: PendingJob) -> list[int]:
        """Return the usable targets that could hold the job if they were empty and are kept for none, the best first.

        That is the one that lacks least: what is lacking is measured by the request, kind by kind, and the largest part
        of it counts; then the lowest rank. Linear in the targets.
        """
        need = job.request.amounts
        allowed = self._pool.amount_targets.allowed(job.request.constraint)
        narrowed = self._pool.narrowed.get(job.shape.number)  # what plugins leave
        found: list[tuple[float, int]] = []
        for rank, target in self._pool.amount_targets.by_rank.items():
            if not target.usable or not target.could_hold(need) or (allowed is not None and rank not in allowed):
                continue
            if narrowed is not None and not narrowed.ranks >> rank & 1:
                continue
            free = target.free
            lacks = max([(amount - free.get(kind, 0)) / amount for kind, amount in need], default=0.0)
            found.append((lacks, rank))
        found.sort()
        return [rank for _, rank in found]

    def check(self) -> None:
        """Assert that both tables say the same."""
        assert {rank: jobid for jobid, rank in self.by_job.items()} == self._by_rank
        assert self._since_s.keys() == self.by_job.keys()
