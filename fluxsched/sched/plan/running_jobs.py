"""Running jobs of one group as a plan needs them: when each is to end, and how many usable cores it frees then.

Law: the index follows the ledger, job by job, from the first question on; policies that do not plan pay nothing. Cores
on targets that are down, shrunk or foreign do not come back, so they do not count; when targets change, only the jobs
on them are weighed again. `free` is what is usable and not held, exactly. Adding and removing cost O(log n) and move at
most one chunk; the question "from when on will so much have been freed" skips whole chunks by their sums. Jobs without
an end (`math.inf`) come last.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Final, NamedTuple

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.ledger import JobAllocation, Ledger
from fluxsched.sched.plan.earliest import BusyTargets
from fluxsched.sched.pool.placement import NO_TARGET, WORD_SHIFT, Block, Blocks, Shape, words_of
from fluxsched.sched.pool.pool import Pool

INSIDE_MAX = 16
"""Sets of targets for which the jobs there are indexed: the outages that the next few jobs in line would cross."""

NEEDS_MAX = 4096
"""Requests whose need is remembered in a generation; some hundred bytes each."""


class RunningJobs:
    """The index of one pool, as of its `generation`. `each` target has so many cores if all are equal, else it is 0.

    `shared` are the jobs that hold a part of some target: then free cores are not all as good as any others. `free` are
    the cores that are usable and not held, and `needs` what `need` has answered, by number of the shape, once
    `releases` were asked for.
    """

    def __init__(self, pool: Pool, ledger: Ledger) -> None:
        self._pool = pool
        self._ledger = ledger
        self._releases: ReleaseIndex | None = None
        self._busy_targets: BusyTargets | None = None
        self._counted: dict[int, int] = {}
        self._usable: dict[int, int] = {}
        self._usable_mask = 0
        self.needs: dict[int, int] = {}  # by number of the shape
        self.free = 0
        self.generation = -1
        self.each = 0
        self.shared: set[int] = set()
        self._split: set[int] = set()  # jobs that are to leave targets: these are released under minus its id
        self._inside: dict[int, ReleaseIndex] = {}  # by mask

    # ---- questions

    def follow(self) -> ReleaseIndex:
        """Return the index of releases, kept up to date from now on."""
        if self._releases is None:
            self._releases = ReleaseIndex()
            self._busy_targets = None
            self.shared.clear()
            self._split.clear()
            self._inside.clear()
            self._look()
            for allocation in self._ledger:
                self._weigh(allocation)
        return self._releases

    @property
    def is_followed(self) -> bool:
        """Return whether the index is kept up to date already."""
        return self._releases is not None

    @property
    def releases(self) -> ReleaseIndex:
        """Return the index of releases by end; weights are usable cores."""
        return self.follow() if self._releases is None else self._releases

    @property
    def busy_targets(self) -> BusyTargets:
        """Return the index of busy targets, kept up to date from now on."""
        self.follow()
        if self._busy_targets is None:
            self._busy_targets = BusyTargets(self._pool, self._ledger)
        return self._busy_targets

    def by_end(self) -> Iterator[tuple[float, JobAllocation, int]]:
        """Yield (end, allocation, usable cores) of all jobs with an end, the earliest first; none may begin or end
        meanwhile.

        What a job is to leave while it goes on comes as an allocation of its own.
        """
        for end_s, jobid, weight in self.releases:
            allocation = self._ledger.get(abs(jobid))
            if end_s == inf or allocation is None:
                return
            if jobid in self._split or -jobid in self._split:
                allocation = part_of(allocation, is_leaving=jobid < 0)
            yield end_s, allocation, weight

    @property
    def uniform(self) -> bool:
        """Return whether counting free cores is exact: on one target, or if all jobs hold targets whole; and only if no
        outage makes it matter which targets are free.
        """
        if self._pool.outages:
            return False
        return self.are_whole or len(self._pool.ranks) == 1

    @property
    def are_whole(self) -> bool:
        """Return whether all targets are equal and all jobs hold them whole."""
        if self._releases is None:
            self.follow()
        return bool(self.each) and not self.shared

    def inside(self, mask: int) -> ReleaseIndex:
        """Return the index of what jobs free on these targets, kept up to date from now on; no job may be to leave
        any.
        """
        self.follow()
        found = self._inside.get(mask)
        if found is None:
            if len(self._inside) >= INSIDE_MAX:
                self._inside.clear()
            found = self._inside[mask] = ReleaseIndex()
            for allocation in self._ledger.holders(Idset(mask)):
                self._enter_inside(found, mask, allocation.jobid, allocation.end_s, allocation.blocks)
        return found

    def free_inside(self, mask: int) -> int:
        """Return the number of cores that are usable and not held on these targets, which are all equal."""
        return (mask & self._usable_mask).bit_count() * self.each - self.inside(mask).weight

    @property
    def any_leaving(self) -> bool:
        """Return whether some job that goes on is to leave some of its targets."""
        return bool(self._split)

    @property
    def weight_leaving(self) -> int:
        """Return the number of usable cores that become free when jobs that go on have released what they are to
        release.
        """
        return sum([self.releases.weight_of(-jobid) for jobid in self._split])

    def usable(self, blocks: Iterable[Block]) -> bool:
        """Return whether all targets of the blocks are in this group and up."""
        usable = self._usable_then
        return all(not block.word & ~usable.get(block.at, 0) for block in blocks)

    @property
    def _usable_then(self) -> dict[int, int]:
        """Return the targets that are usable, or will be when the outages that are on have ended, word by word."""
        returning = self.busy_targets.returning
        if not returning:
            return self._usable
        found = dict(self._usable)
        for at, word in words_of(returning.mask):
            found[at] = found.get(at, 0) | word
        return found

    def usable_for(self, shape: Shape) -> dict[int, int]:
        """Return the usable targets that the shape's constraint, and plugins, allow, word by word."""
        self.follow()
        pool = self._pool
        narrowed = pool.narrowed.get(shape.number)
        if narrowed is None and shape.request.constraint == EVERYTHING:
            return self._usable_then
        allowed = shape.request.constraint.match(pool.ranks, pool.source.properties, pool.source.ranks_of).mask
        if narrowed is not None:
            allowed &= narrowed.ranks
        usable = self._usable_then
        return {at: word & usable.get(at, 0) for at, word in words_of(allowed)}

    def need(self, shape: Shape) -> int:
        """Return the number of cores that the shape takes if any free ones will do; 0 if it matters which.

        Any will do where targets are equal and the shape takes them whole, wherever they are, or where all cores are on
        one target: then whatever is free in number can be had (intervals on equal units can always be packed).
        """
        known = self.needs.get(shape.number)
        if known is None:
            if len(self.needs) >= NEEDS_MAX:
                self.needs.clear()
            narrowed = shape.number in self._pool.narrowed
            known = self.needs[shape.number] = 0 if narrowed else self._need(shape.request)
        return known

    # ---- what happens to jobs and targets

    def placed(self, allocation: JobAllocation) -> None:
        """Add a job that was started in this group just now, so all its resources are counted and usable."""
        if self._releases is None:
            return
        if self._busy_targets is not None:
            self._busy_targets.touch(allocation.jobid)
        weight = 0
        for _, word, cores, _, _ in allocation.blocks:
            each = cores.bit_count()
            weight += word.bit_count() * each
            if each != self.each and word:
                self.shared.add(allocation.jobid)
        self._releases.add(allocation.jobid, allocation.expiration_s or inf, weight)
        self.free -= weight
        for mask, index in self._inside.items():
            self._enter_inside(index, mask, allocation.jobid, allocation.end_s, allocation.blocks)

    def began(self, allocation: JobAllocation) -> None:
        """Update a job that holds resources, or whose end has changed."""
        if self._releases is not None:
            self._weigh(allocation)

    def freed(self, jobid: int) -> None:
        """Update a job that has freed a part of its resources, or all."""
        if self._releases is not None:
            if self._busy_targets is not None:
                self._busy_targets.touch(jobid)
            allocation = self._ledger.get(jobid)
            if allocation is None:
                if self._split:
                    self._join(jobid)
                ended = self._releases.remove(jobid)
                if ended is not None:
                    self.free += ended.weight
                for index in self._inside.values():
                    index.remove(jobid)
                if self.shared:
                    self.shared.discard(jobid)
            else:
                self._weigh(allocation)

    def changed(self, ranks: Idset) -> None:
        """Update all jobs after these targets were added or removed, or went up or down."""
        if self._releases is None:
            return
        if self._pool.generation != self.generation:
            self._releases = None  # what is equal and what is whole may have changed: all is weighed when asked
            return
        self._look()
        if self._busy_targets is not None:
            self._busy_targets.touch()
        for allocation in self._ledger.holders(ranks):
            self._weigh(allocation)

    def check(self) -> None:
        """Assert that the index agrees with the ledger; linear in both, for tests and the simulator."""
        if self._releases is not None:
            fresh = RunningJobs(self._pool, self._ledger)
            assert list(fresh.releases) == list(self._releases), "the index of running jobs differs from the ledger"
            assert (fresh.shared, fresh.free) == (self.shared, self.free), "free cores are counted wrongly"
            for mask, index in self._inside.items():
                assert list(fresh.inside(mask)) == list(index), "the index of jobs inside outages differs"

    # ---- within

    def _look(self) -> None:
        """Read the counted and the usable targets of the pool; linear in its words and entries."""
        pool = self._pool
        if pool.generation != self.generation:
            self.generation = pool.generation
            self.needs.clear()
            sizes = {(len(entry.children.cores), len(entry.children.gpus)) for entry in pool.resources.entries}
            self.each = sizes.pop()[0] if len(sizes) == 1 else 0
        self._counted = dict(words_of(pool.ranks.mask))
        usable = pool.ranks - pool.down
        self._usable_mask = usable.mask
        self._usable = dict(words_of(usable.mask))
        self.free = sum(len(entry.ranks & usable) * len(entry.children.cores) for entry in pool.source.entries)
        assert self._releases is not None
        self.free -= self._releases.weight

    def _weigh(self, allocation: JobAllocation) -> None:
        releases, jobid = self._releases, allocation.jobid
        assert releases is not None
        if self._busy_targets is not None:
            self._busy_targets.touch(jobid)
        before = releases.remove(jobid)
        if before is not None:
            self.free += before.weight
            self.shared.discard(jobid)
        if self._split:
            self._join(jobid)
        for mask, index in self._inside.items():
            index.remove(jobid)
            self._enter_inside(index, mask, jobid, allocation.end_s, allocation.blocks)
        if allocation.leaving:
            self._split.add(jobid)
            self._enter(releases, jobid, part_of(allocation, is_leaving=False))
            self._enter(releases, -jobid, part_of(allocation, is_leaving=True))
        else:
            self._enter(releases, jobid, allocation)

    def _enter(self, releases: ReleaseIndex, number: int, allocation: JobAllocation) -> None:
        weight = counted = 0
        is_shared = False
        for block in allocation.blocks:
            at, word, cores = block.at, block.word, block.cores.bit_count()
            counted |= word & self._counted.get(at, 0)
            if not self._pool.drained:
                weight += (word & self._usable.get(at, 0)).bit_count() * cores
            if cores != self.each and at != NO_TARGET:
                is_shared = True
        if self._pool.drained:  # what is drained of a target does not come back
            for _, at, word, ids, _, _ in self._pool.classes.counted(allocation.blocks):
                weight += (word & self._usable.get(at, 0)).bit_count() * ids.bit_count()
        if counted:
            releases.add(number, allocation.end_s, weight)
            self.free -= weight
            if is_shared:
                self.shared.add(allocation.jobid)

    def _enter_inside(self, index: ReleaseIndex, mask: int, jobid: int, end_s: float, blocks: Blocks) -> None:
        weight, usable = 0, mask & self._usable_mask
        for at, word, cores, *_ in blocks:
            if at != NO_TARGET:
                weight += (usable >> (at << WORD_SHIFT) & word).bit_count() * cores.bit_count()
        if weight:
            index.add(jobid, end_s, weight)

    def _join(self, jobid: int) -> None:
        """Remove the separate entry of the targets that a job was to release."""
        if jobid in self._split and self._releases is not None:
            self._split.discard(jobid)
            before = self._releases.remove(-jobid)
            if before is not None:
                self.free += before.weight

    def _need(self, request: Request) -> int:
        if request.parts:
            each = [self._need(part) for part in request.parts]
            return sum(each) if all(each) and not request.shared else 0
        nodes, slots = request.nodes, request.slots
        if not self.each or not slots.is_fixed or not (nodes is None or nodes.is_fixed or request.elastic):
            return 0  # an elastic job starts with its least, others with the most that fits
        if request.max_hops is not None or request.reservation:
            return 0  # it matters which targets are free
        if request.amounts or request.node_amounts or request.shared:
            return 0  # cores are not all that it may lack
        if not self._anywhere(request.constraint):
            return 0
        asked = slots.min * request.cores
        if len(self._pool.ranks) == 1:
            return 0 if request.gpus else self.each if request.exclusive else asked
        if nodes is None:
            return asked if request.cores == self.each else 0
        return nodes.min * self.each if request.exclusive or asked == self.each else 0

    def _anywhere(self, constraint: Constraint) -> bool:
        if constraint == EVERYTHING:
            return True
        source, ranks = self._pool.source, self._pool.ranks
        return constraint.match(ranks, source.properties, source.ranks_of) == ranks


def part_of(allocation: JobAllocation, *, is_leaving: bool) -> JobAllocation:
    """Return a copy of the part of a job that it is to release while it goes on, or of all else of it.

    The part to release ends by the time at which it is to be released.
    """
    blocks = allocation.on_ranks(allocation.leaving) if is_leaving else allocation.staying
    account, after_s = allocation.account, allocation.preemptible_after_s
    found = JobAllocation(allocation.jobid, blocks, allocation.expiration_s, allocation.started_s, account, after_s)
    found.gone_by_s = allocation.gone_by_s
    if is_leaving and allocation.elastic is not None:
        found.gone_by_s = min(found.gone_by_s, allocation.elastic.leave_by_s)
    return found


def touches(blocks: Iterable[Block], others: Iterable[Block]) -> bool:
    """Return whether both hold some core or GPU of one target, or countables of one target or of the instance."""
    by_word: dict[int, list[Block]] = {}
    for block in others:
        by_word.setdefault(block.at, []).append(block)
    return any(
        (one.word & other.word or one.at == NO_TARGET)
        and (one.cores & other.cores or one.gpus & other.gpus or (one.amounts and other.amounts))
        for one in blocks
        for other in by_word.get(one.at, ())
    )


# ---- running jobs by their ends

CHUNK = 256
"""Releases a chunk at rest (at most twice that): 40 chunks at 10,000 running jobs, so both levels stay short."""


class JobRelease(NamedTuple):
    """`end_s` is wall time in seconds, `math.inf` for none; `weight` counts what the job frees then."""

    end_s: float
    jobid: int
    weight: int


class ReleaseIndex:
    """A sorted list in chunks; iterating gives the earliest first, jobs that end together by job id."""

    def __init__(self) -> None:
        self._by_job: dict[int, JobRelease] = {}
        self._chunks: list[list[JobRelease]] = []
        self._lasts: list[JobRelease] = []
        self._sums: list[int] = []
        self.weight = 0

    def __len__(self) -> int:
        return len(self._by_job)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._by_job

    def __iter__(self) -> Iterator[JobRelease]:
        """Yield releases from the earliest; nothing may be added or removed meanwhile."""
        return chain.from_iterable(self._chunks)

    @property
    def first_s(self) -> float:
        """The earliest end; `inf` if there is none."""
        return self._chunks[0][0].end_s if self._chunks else inf

    def get(self, jobid: int) -> JobRelease | None:
        return self._by_job.get(jobid)

    def weight_of(self, jobid: int) -> int:
        """Return the number of cores that the job frees; 0 if it is not in the index."""
        release = self._by_job.get(jobid)
        return 0 if release is None else release.weight

    def add(self, jobid: int, end_s: float, weight: int) -> None:
        """Add a job. Raise LocalProtocolError if it is in the index already."""
        if jobid in self._by_job:
            raise LocalProtocolError(f"job {jobid} is among the running jobs already")
        release = self._by_job[jobid] = _ending(JobRelease, (end_s, jobid, weight))
        self.weight += weight
        chunks, lasts, sums = self._chunks, self._lasts, self._sums
        if not chunks:
            chunks.append([release])
            lasts.append(release)
            sums.append(weight)
            return
        last = len(lasts) - 1
        at = bisect_left(lasts, release, 0, last) if last else 0
        chunk = chunks[at]
        insort(chunk, release)
        lasts[at] = chunk[-1]
        sums[at] += weight
        if len(chunk) > 2 * CHUNK:
            self._split(at)

    def remove(self, jobid: int) -> JobRelease | None:
        """Remove a job, and return its release; None if it is not in the index."""
        release = self._by_job.pop(jobid, None)
        if release is None:
            return None
        self.weight -= release[2]
        lasts = self._lasts
        last = len(lasts) - 1
        at = bisect_left(lasts, release, 0, last) if last else 0
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, release)]
        if chunk:
            lasts[at] = chunk[-1]
            self._sums[at] -= release[2]
        else:
            del self._chunks[at], self._lasts[at], self._sums[at]
        return release

    def change(self, jobid: int, end_s: float | None = None, weight: int | None = None) -> bool:
        """Change the end or weight of a job (a part of it was freed); return False if the job is not in the index."""
        old = self.remove(jobid)
        if old is None:
            return False
        self.add(jobid, old.end_s if end_s is None else end_s, old.weight if weight is None else weight)
        return True

    def when(self, weight: int) -> tuple[float, int]:
        """Return the earliest end by which jobs free `weight` in all, and how much they do by then; `inf` if never.

        Those that end together are all included. 0 or less is freed already: `-inf`, and 0.
        """
        if weight <= 0:
            return -inf, 0
        left = weight
        for at, total in enumerate(self._sums):
            if left > total:
                left -= total
                continue
            ends = chain.from_iterable(self._chunks[at:] if at else self._chunks)
            for end_s, _, each in ends:
                left -= each
                if left <= 0:
                    when_s = end_s
                    break
            for end_s, _, each in ends:
                if end_s > when_s:
                    break
                left -= each
            return when_s, weight - left
        return inf, weight - left

    def given_by(self, end_s: float) -> int:
        """Return the number of cores that all jobs that end at `end_s` or before free."""
        after = JobRelease(end_s, _AFTER_ALL_JOBIDS, 0)
        at = bisect_left(self._lasts, after)
        total = sum(self._sums[:at])
        if at < len(self._chunks):
            chunk = self._chunks[at]
            total += sum(map(_weight, chunk[: bisect_left(chunk, after)]))
        return total

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        rest = chunk[CHUNK:]
        del chunk[CHUNK:]
        moved = sum(map(_weight, rest))
        self._chunks.insert(at + 1, rest)
        self._lasts[at : at + 1] = [chunk[-1], rest[-1]]
        self._sums[at : at + 1] = [self._sums[at] - moved, moved]


_weight: Final = itemgetter(2)
_ending: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once a job
_AFTER_ALL_JOBIDS: Final = 1 << 64
"""Job ids have 64 bits (RFC 19)."""
