"""Who holds what: the only writer of holdings (law 2), and the place where nothing is held twice (law 5).

Law: `commit` takes a job off its queue and marks its parts in one step, or refuses and changes nothing; `release` and
`adopt` check all that they are told before they change anything. A holding may lie outside what the pools count, since
the target was shrunk, or was never acquired by us (foreign): its free is accepted all the same, no pool is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fluxsched.core.idset import Idset
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.sched.decisions import Start
from fluxsched.sched.outcome import Block, Part, blocks_of
from fluxsched.sched.pool import Pool
from fluxsched.sched.queue import Queue, Waiting


class Holding:
    """What one job holds: rank -> (cores, GPUs) as masks. `expiration_s` is wall time, 0.0 for none."""

    __slots__ = ("doomed", "expiration_s", "jobid", "parts")

    def __init__(self, jobid: int, parts: dict[int, tuple[int, int]], expiration_s: float) -> None:
        self.jobid = jobid
        self.parts = parts
        self.expiration_s = expiration_s
        self.doomed = False  # a fatal exception was raised on it, for a shrunk target

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The parts, word by word: what trials take."""
        return blocks_of((rank, cores, gpus) for rank, (cores, gpus) in self.parts.items())


class Ledger:
    """All holdings over all pools of a scheduler; a rank is in at most one pool."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._holdings: dict[int, Holding] = {}
        self._holders: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._holdings)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._holdings

    def __iter__(self) -> Iterator[Holding]:
        """Holdings in the order in which they began."""
        return iter(self._holdings.values())

    def get(self, jobid: int) -> Holding | None:
        return self._holdings.get(jobid)

    def holders(self, ranks: Idset) -> list[Holding]:
        """Who holds a part of these ranks, by job id; linear in the ranks and their jobs."""
        jobids: set[int] = set()
        for rank in ranks:
            jobids |= self._holders.get(rank, set())
        return [self._holdings[jobid] for jobid in sorted(jobids)]

    def held(self, ranks: Iterable[int]) -> Iterator[int]:
        """Those of the ranks on which a job holds something."""
        return (rank for rank in ranks if rank in self._holders)

    def commit(self, start: Start, queue: Queue, pool: Pool, expiration_s: float) -> Waiting | None:
        """Makes one decision real, or refuses it (None) because the world has moved on or the fit is not the job's."""
        if pool.trying:
            raise LocalProtocolError(f"start of job {start.jobid} inside a trial: end the trial, then yield")
        job, fit = queue.get(start.jobid), start.fit
        if job is None or not fit.parts or start.jobid in self._holdings:
            return None
        if fit.request is not job.request and fit.request != job.request:
            return None
        if not pool.holds_free(fit.parts):
            return None
        queue.remove(start.jobid)
        parts = {}
        for rank, cores, gpus in fit.parts:
            pool.take(rank, cores, gpus)
            parts[rank] = (cores, gpus)
        self._enter(Holding(start.jobid, parts, expiration_s))
        return job

    def adopt(self, jobid: int, parts: Sequence[Part], expiration_s: float) -> None:
        """Takes over a job that runs already (RFC 27 hello). Raises RemoteProtocolError if something is held twice."""
        if jobid in self._holdings:
            raise RemoteProtocolError(f"hello names job {jobid} twice")
        for part in parts:
            self._check_free(jobid, part)
        for part in parts:
            self._take_counted(part)
        if parts:
            self._enter(Holding(jobid, {rank: (cores, gpus) for rank, cores, gpus in parts}, expiration_s))

    def release(self, jobid: int, parts: Sequence[Part], final: bool) -> list[int]:
        """Takes back what a job frees; returns the ranks on which no job holds anything now.

        A rank is freed whole. Raises RemoteProtocolError, and changes nothing, when the job does not hold exactly that,
        or when `final` leaves something behind.
        """
        holding = self._holdings.get(jobid)
        if holding is None:
            if not parts:
                return []  # the last mark of a job whose parts were all freed before
            raise RemoteProtocolError(f"free of job {jobid}: it holds nothing here, or was freed before")
        held = holding.parts
        wrong = [rank for rank, cores, gpus in parts if held.get(rank) != (cores, gpus)]
        if wrong:
            raise RemoteProtocolError(f"free of job {jobid}: it does not hold this on ranks {Idset.of(wrong)}")
        if final and len(parts) != len(held):
            left = Idset.of(held) - Idset.of([part.rank for part in parts])
            raise RemoteProtocolError(f"final free of job {jobid}: ranks {left} would stay held")
        emptied = []
        for rank, cores, gpus in parts:
            pool = self._pool_of(rank)
            if pool is not None:
                target = pool.targets[rank]
                pool.give(rank, cores & target.all_cores, gpus & target.all_gpus)
            del held[rank]
            jobs = self._holders[rank]
            jobs.discard(jobid)
            if not jobs:
                del self._holders[rank]
                emptied.append(rank)
        if not held:
            del self._holdings[jobid]
        return emptied

    def count_in(self, ranks: Idset) -> None:
        """Marks what is held on ranks that a pool has just begun to count: foreign holdings no longer are."""
        for rank in self.held(ranks):
            for jobid in self._holders[rank]:
                self._take_counted(Part(rank, *self._holdings[jobid].parts[rank]))

    def foreign(self) -> int:
        """How many jobs hold something that no pool counts."""
        return sum(any(self._pool_of(rank) is None for rank in holding.parts) for holding in self)

    def check(self) -> None:
        """Asserts that free and held are all there is, and nothing is both or held twice; linear in everything."""
        held: dict[int, tuple[int, int]] = {}
        for holding in self:
            for rank, (cores, gpus) in holding.parts.items():
                cores_before, gpus_before = held.get(rank, (0, 0))
                assert not cores & cores_before, f"job {holding.jobid}: a core of rank {rank} is held twice"
                assert not gpus & gpus_before, f"job {holding.jobid}: a gpu of rank {rank} is held twice"
                assert holding.jobid in self._holders.get(rank, ()), f"rank {rank} does not know job {holding.jobid}"
                held[rank] = (cores | cores_before, gpus | gpus_before)
        assert held.keys() == self._holders.keys(), "a rank has holders that hold nothing there"
        for pool in self._pools:
            for rank, target in pool.targets.items():
                cores, gpus = held.get(rank, (0, 0))
                assert target.cores == target.all_cores & ~cores, f"rank {rank}: free and held cores are not its cores"
                assert target.gpus == target.all_gpus & ~gpus, f"rank {rank}: free and held gpus are not its gpus"

    def _enter(self, holding: Holding) -> None:
        self._holdings[holding.jobid] = holding
        holders = self._holders
        for rank in holding.parts:
            jobs = holders.get(rank)
            if jobs is None:
                holders[rank] = {holding.jobid}
            else:
                jobs.add(holding.jobid)

    def _pool_of(self, rank: int) -> Pool | None:
        for pool in self._pools:
            if rank in pool.targets:
                return pool
        return None

    def _take_counted(self, part: Part) -> None:
        """Marks busy what a pool counts of a part; what the target does not have, by its R, is foreign."""
        pool = self._pool_of(part.rank)
        if pool is not None:
            target = pool.targets[part.rank]
            pool.take(part.rank, part.cores & target.all_cores, part.gpus & target.all_gpus)

    def _check_free(self, jobid: int, part: Part) -> None:
        for other in self._holders.get(part.rank, ()):
            cores, gpus = self._holdings[other].parts[part.rank]
            if cores & part.cores or gpus & part.gpus:
                raise RemoteProtocolError(
                    f"hello: jobs {other} and {jobid} both hold rank {part.rank}, "
                    f"cores {Idset(cores & part.cores)} gpus {Idset(gpus & part.gpus)}"
                )
