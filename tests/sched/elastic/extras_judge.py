"""Judges elastic jobs under fair shares from what outsiders see, by the formulas alone; the scheduler is not asked.

Law: no part is below its minimum. An extra goes only from an account above its share on each level below the bank that
it shares with the job for which it goes, which stays within its share on each of these, and never from its own. Where
nothing is under way none is kept while the first in fair order could start there: whichever extras go first.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from fluxsched.sched.decisions import Effect, Granted, Grown, Raise, Shrunk
from tests.sched.progressive_filling import Asked, Filling, Path, Site, above

PIECES = 1000
"""Each target of a job counts as a job of its own, of this many times the job's id."""

SLACK = Fraction(1, 10**9)


class ElasticAsked:
    """A job of whole targets: whose it is, and which sizes it may have."""

    def __init__(self, jobid: int, path: Path, sizes: list[int], is_elastic: bool) -> None:
        self.jobid, self.path, self.sizes, self.is_elastic = jobid, path, sorted(sizes), is_elastic
        self.ranks: set[int] = set()
        self.leaving: dict[int, int] = {}  # rank, and for whom
        self.goes_for: int | None = None  # it ends for this job

    @property
    def staying(self) -> set[int]:
        return set() if self.goes_for is not None else self.ranks - self.leaving.keys()

    def bundle(self, size: int) -> int:
        """How many targets go next if it has so many; 0 if none may."""
        below = [each for each in self.sizes if each < size]
        return size - below[-1] if self.is_elastic and below else 0


class ExtrasJudge:
    """Told of what happens, in order; times are wall time in seconds, and usage is in targets."""

    def __init__(self, targets: int) -> None:
        self.targets = targets
        self.filling = Filling(Site(Fraction(targets), half_life_s=7 * 86400.0))
        self.jobs: dict[int, ElasticAsked] = {}
        self.now_s = 0.0
        self.shrunk = self.kept = 0

    # ---- what happens

    def submitted(self, job: ElasticAsked, t_submit_s: float) -> None:
        self.jobs[job.jobid] = job
        self.filling.waits(Asked(job.jobid, job.path, Fraction(job.sizes[0]), submit_s=t_submit_s))

    def got(self, jobid: int, ranks: list[int]) -> None:
        job = self.jobs[jobid]
        if not job.ranks:
            self.filling.leaves(jobid)
        for rank in ranks:
            assert all(rank not in other.ranks for other in self.jobs.values()), f"target {rank} is held twice"
            job.ranks.add(rank)
            piece = Asked(jobid * PIECES + rank, job.path, Fraction(1))
            self.filling.waits(piece)
            self.filling.starts(piece.jobid, self.now_s)
        assert len(job.staying) in job.sizes, f"job {jobid} has {len(job.staying)}, not one of {job.sizes}"

    def freed(self, jobid: int, ranks: list[int]) -> None:
        job = self.jobs[jobid]
        for rank in ranks:
            job.ranks.remove(rank)
            job.leaving.pop(rank, None)
            self.filling.frees(jobid * PIECES + rank, self.now_s)
        if not job.ranks:
            del self.jobs[jobid]

    def stays(self, jobid: int) -> None:
        """A shrink of it was refused."""
        self.jobs[jobid].leaving.clear()

    def decided(self, effects: list[Effect], now_s: float) -> None:
        """All decisions of one pass."""
        self.now_s = now_s
        at = 0
        while at < len(effects):
            match effects[at]:
                case Granted(jobid):
                    self.got(jobid, list(effects[at].resources.ranks))  # type: ignore[union-attr]
                case Grown(jobid):
                    self._check_growth(len(effects[at].resources.ranks))  # type: ignore[union-attr]
                    self.got(jobid, list(effects[at].resources.ranks))  # type: ignore[union-attr]
                case Raise(jobid, for_jobid=beneficiary):
                    self.jobs[jobid].goes_for = beneficiary
                case Shrunk(for_jobid=beneficiary):
                    together = []
                    while at < len(effects) and isinstance(one := effects[at], Shrunk) and one.for_jobid == beneficiary:
                        together.append(one)
                        at += 1
                    self._shrink(together, beneficiary)
                    continue
            at += 1

    # ---- what is allowed

    def awaited(self) -> set[int]:
        """Those for which others are going."""
        found = {beneficiary for job in self.jobs.values() for beneficiary in job.leaving.values()}
        return found | {job.goes_for for job in self.jobs.values() if job.goes_for is not None}

    def usage(self, path: Path) -> Fraction:
        """U: what is held less what is going, plus what those ask for who preempt."""
        held = sum([len(job.staying) for job in self.jobs.values() if job.path[: len(path)] == path])
        awaited = [self.jobs[jobid] for jobid in self.awaited() if jobid in self.jobs and not self.jobs[jobid].ranks]
        return Fraction(held + sum([job.sizes[0] for job in awaited if job.path[: len(path)] == path]))

    def is_within(self, path: Path, more: int) -> bool:
        return self.usage(path) + more <= self.filling.fair_usage(path) * (1 + SLACK)

    def _levels(self, path: Path, other: Path) -> Iterator[Path]:
        """The first account and those above it, below the bank that it shares with the other."""
        for at in above(path):
            if at != other[: len(at)]:
                yield at

    def _shrink(self, together: list[Shrunk], beneficiary: int) -> None:
        waiting = self.jobs[beneficiary]
        assert not waiting.ranks, f"job {beneficiary} runs"
        assert beneficiary not in self.awaited(), f"others are going for job {beneficiary}"
        largest: dict[Path, int] = {}
        for one in together:
            job, ranks = self.jobs[one.jobid], set(one.ranks)
            assert job.path != waiting.path, f"job {one.jobid} and job {beneficiary} are of one account"
            for at in self._levels(waiting.path, job.path):
                assert self.is_within(at, waiting.sizes[0]), f"{at} is not within its share with job {beneficiary}"
            assert ranks <= job.staying
            size = len(job.staying)
            while size > len(job.staying) - len(ranks):
                step = job.bundle(size)
                assert step, f"job {one.jobid} has only {size}"
                size -= step
                for at in self._levels(job.path, waiting.path):
                    largest[at] = max(largest.get(at, 0), step)
            assert size == len(job.staying) - len(ranks), f"job {one.jobid} would have no value of its range"
        for one in together:
            self.jobs[one.jobid].leaving.update(dict.fromkeys(one.ranks, 0))
            self.shrunk += 1
        for at, step in largest.items():  # before the last of it went, it was above its share
            assert not self.is_within(at, step + self._to_spare(at, beneficiary)), f"{at} is not above its share"
        for one in together:
            self.jobs[one.jobid].leaving.update(dict.fromkeys(one.ranks, beneficiary))

    def _to_spare(self, path: Path, beneficiary: int) -> int:
        """What others of the account may get, at most, of targets that come free and that no job awaits."""
        awaited = [self.jobs[jobid].sizes[0] for jobid in self.awaited() if jobid in self.jobs]
        going = sum([len(job.ranks) - len(job.staying) for job in self.jobs.values()])
        others = [
            job.sizes[0] for job in self.jobs.values()
            if not job.ranks and job.jobid not in (*self.awaited(), beneficiary) and job.path[: len(path)] == path
        ]  # fmt: skip
        return max(0, min(self.free + going - sum(awaited), sum(others)))

    def _check_growth(self, count: int) -> None:
        """What grows gets nothing where the first could start; where others are going there may be reservations."""
        firsts = self._firsts()
        if firsts and not self.awaited() and all(job.sizes[0] <= self.free for job in firsts):
            raise AssertionError(f"job {firsts[0].jobid} could start where {count} were given")

    @property
    def free(self) -> int:
        return self.targets - sum([len(job.ranks) for job in self.jobs.values()])

    def _firsts(self) -> list[ElasticAsked]:
        """Who comes first in fair order: several where rounding decides."""
        return [self.jobs[one.jobid] for one in self.filling.next(self.now_s, set())]

    def check_settled(self, now_s: float) -> None:
        """Nothing is under way: no first one could start, not even if extras went that may."""
        self.now_s = now_s
        assert not self.awaited()
        firsts = self._firsts()
        if firsts and all(self.could_start(job) for job in firsts):
            raise AssertionError(f"job {firsts[0].jobid} could start where extras are kept")
        self.kept += bool(firsts) and any(job.bundle(len(job.ranks)) for job in self.jobs.values())

    def could_start(self, waiting: ElasticAsked) -> bool:
        """Whether it fits once extras have gone, in whatever order they go while they may."""
        need = waiting.sizes[0]
        if need <= self.free:
            return True
        givers = []
        for job in self.jobs.values():
            below = list(self._levels(waiting.path, job.path))
            if job.ranks and job.is_elastic and below and all(self.is_within(at, need) for at in below):
                givers.append(job)
        seen: set[tuple[int, ...]] = set()
        todo = [tuple([len(job.ranks) for job in givers])]
        while todo:
            sizes = todo.pop()
            gone = sum([len(job.ranks) - size for job, size in zip(givers, sizes, strict=True)])
            if self.free + gone >= need or sizes in seen:
                continue
            seen.add(sizes)
            after = list(self._one_less(waiting, givers, sizes))
            if not after:
                return False
            todo += after
        return True

    def _one_less(
        self, waiting: ElasticAsked, givers: list[ElasticAsked], sizes: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        """After one more step of any of them that may still."""
        for at, job in enumerate(givers):
            step = job.bundle(sizes[at])
            lost = {
                level: sum([
                    len(each.ranks) - size
                    for each, size in zip(givers, sizes, strict=True) if each.path[: len(level)] == level
                ])
                for level in self._levels(job.path, waiting.path)
            }  # fmt: skip
            if step and not any(self.is_within(level, -gone) for level, gone in lost.items()):
                yield (*sizes[:at], sizes[at] - step, *sizes[at + 1 :])
