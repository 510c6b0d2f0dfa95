"""The ledger: the only writer of what jobs hold, which also ensures that nothing is held twice.

Law: `commit` takes a job off its queue and marks its blocks in one step, or refuses and changes nothing; `release` and
`adopt` check everything before they change anything. An allocation may be outside what the pools count, because a
target was shrunk or never acquired (foreign): its free is accepted, and no pool changes. Costs follow a job's blocks;
the holders of a target are found by its word.

The sizes of an elastic job follow in the step in which its allocation changes. A target that the job is to leave counts
no more, though the job holds it until it is freed; the target of its first task is no extra, since without it the job
would go on without what leads it. What a job has beyond its minima counts in its account like all else, but never as
that of a job that may not be preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from math import inf
from typing import Final, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import Amounts, less, times, total
from fluxsched.core.request import Count, Request
from fluxsched.core.text import counted
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.sched.decisions import Start
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.fair.usage import UsageBook, safe_of
from fluxsched.sched.pool.placement import (
    NO_TARGET,
    WORD_SHIFT,
    WORST_FIT,
    Block,
    Blocks,
    Fits,
    Part,
    Shape,
    ids_of,
    instance_amounts,
    instance_block,
    joined,
    mask_of,
    on_targets,
    parts_in,
    ranks_in,
    words_of,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select_targets import need_of
from fluxsched.sched.queue import AdmissionControl, AdmissionTerms, PendingJobs

__all__ = [
    "JobAllocation",
    "Ledger",
]


class Ledger:
    """Record of all allocations in all pools of a scheduler; a rank is in at most one pool.

    `book` are the accounts, if kept; `admission` has the rules beside the resources.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._others = pools[1:]
        self._first = pools[0] if pools else Pool()
        self.instance_countables = self._first.instance_countables
        for pool in pools:
            pool.instance_countables = self.instance_countables
        self.book: UsageBook | None = None
        self.admission = AdmissionControl()
        self.allocations: dict[int, JobAllocation] = {}  # by job id; changed here alone
        self.elastic = ElasticJobs()
        self._by_word: dict[int, set[int]] = {}  # jobs that hold something in a word of ranks
        self._uncounted: dict[int, set[int]] = {}  # rank that no pool counts -> jobs

    def __len__(self) -> int:
        return len(self.allocations)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self.allocations

    def __iter__(self) -> Iterator[JobAllocation]:
        """Allocations in the order in which they began."""
        return iter(self.allocations.values())

    def get(self, jobid: int) -> JobAllocation | None:
        return self.allocations.get(jobid)

    def holders(self, ranks: Idset) -> list[JobAllocation]:
        """Return the allocations on these ranks, by job id; linear in the words named and the jobs there."""
        words = dict(words_of(ranks.mask))
        jobids = set().union(*[self._by_word.get(at, set()) for at in words])
        return [self.allocations[jobid] for jobid in sorted(jobids) if any(self.allocations[jobid].on(words))]

    def held(self, ranks: Idset) -> Idset:
        """Return the ranks among these on which a job holds something."""
        found: dict[int, int] = {}
        for allocation in self.holders(ranks):
            for at, word, *_ in allocation.on(dict(words_of(ranks.mask))):
                found[at] = found.get(at, 0) | word
        return Idset(mask_of(found))

    def commit(
        self, start: Start, queue: PendingJobs, pool: Pool, expiration_s: float, now_s: float = 0.0
    ) -> JobAllocation | None:
        """Perform one decision, or refuse it (None): the job or its place is not available, or the fit is not the
        job's.

        A job that the admission does not admit is refused, too, and one that would cross an outage.
        """
        if pool.what_if_open:
            raise LocalProtocolError(f"start of job {start.jobid} inside a what-if: end the what-if, then yield")
        jobid, fit, _ = start
        job = queue.by_id.get(jobid)
        if job is None or jobid in self.allocations:
            return None
        shape = job.shape
        if fit.shape is not shape and fit.shape != shape:
            return None
        if pool.is_barred(shape.request, fit.blocks, now_s, expiration_s):
            return None
        terms = job.terms
        if terms is not None and not self.admission.admits(terms, shape.request.amounts):
            return None
        allocation = self.take(jobid, fit.blocks, pool, expiration_s, now_s)
        if allocation is not None:
            if terms is not None:
                allocation.terms, allocation.priority = terms, job.priority
                self.admission.book(terms, jobid, shape.request.amounts)
            allocation.userid, allocation.queue, allocation.name = job.userid, job.queue, job.name
            after_s = job.preemptible_after_s
            if after_s is not None:
                allocation.preemptible_after_s = after_s
            extras: Blocks = ()
            if shape.request.elastic:
                extras = self.elastic.begins(allocation, fit)
            if self.book is not None and job.account is not None:
                allocation.account = job.account
                self.book.begins(jobid, job.account, fit.blocks, safe_of(after_s, job.duration_s), now_s, extras)
            queue.remove(jobid)
        return allocation

    def take(
        self, jobid: int, blocks: Blocks, pool: Pool, expiration_s: float, now_s: float = 0.0
    ) -> JobAllocation | None:
        """Has a job hold these blocks of a pool, or refuses (None) as not all are free; it holds nothing so far."""
        if not blocks or (len(blocks) > 1 and not once_each(blocks)) or not pool.take(blocks):
            return None
        allocation = JobAllocation(jobid, blocks, expiration_s, now_s)
        self._enter(allocation)
        return allocation

    def adopt(
        self, jobid: int, blocks: Blocks, expiration_s: float, started_s: float = 0.0, account: Account | None = None,
        preemptible_after_s: float | None = None, limit_s: float = 0.0, now_s: float = 0.0,
        elastic: Elastic | None = None,
    ) -> None:  # fmt: skip
        """Take over a job that runs already (RFC 27 hello). Raises RemoteProtocolError if something is held twice."""
        if jobid in self.allocations:
            raise RemoteProtocolError(f"hello names job {jobid} twice")
        for part in parts_in(blocks):
            self._check_free(jobid, part)
        if not on_targets(blocks):
            return  # all was freed before
        mine = blocks
        for pool in self._pools:
            pool.claim(mine)
            mine = _of_targets(mine)
        allocation = JobAllocation(jobid, blocks, expiration_s, started_s, account, preemptible_after_s)
        self._enter(allocation)
        self._note_uncounted(jobid, on_targets(blocks))
        extras = self.elastic.adopts(allocation, elastic)
        if self.book is not None and account is not None:
            self.book.adopts(jobid, account, blocks, safe_of(preemptible_after_s, limit_s), started_s, now_s, extras)

    def adopt_amounts(
        self, jobid: int, blocks: Blocks, terms: AdmissionTerms, started_s: float, priority: int
    ) -> JobAllocation:
        """Take over an allocation that a resource manager has: a fact, whatever the bounds and the target hold.

        Raises RemoteProtocolError if the job holds something already.
        """
        if jobid in self.allocations:
            raise RemoteProtocolError(f"allocation {jobid} exists already")
        for pool in self._pools:
            pool.claim(blocks)
        allocation = JobAllocation(jobid, blocks, 0.0, started_s, None, 0.0)
        allocation.terms, allocation.priority = terms, priority
        self._enter(allocation)
        self._note_uncounted(jobid, blocks)
        self.admission.book(terms, jobid, amounts_held(blocks))
        return allocation

    def replace(self, old: int, new: int, blocks: Blocks, now_s: float) -> tuple[JobAllocation, list[int]]:
        """Hand over these blocks from one job to another in one step; what remains is freed.

        Raise RemoteProtocolError, without a change, if the one does not hold as much there, or the other holds
        something.
        """
        before = self.allocations.get(old)
        if before is None or new in self.allocations or not covers(before.blocks, blocks):
            raise RemoteProtocolError(f"job {old} cannot hand over to {new}: it holds less, or {new} has something")
        terms = before.terms
        emptied = self._end(before, before.blocks, (), now_s)
        for pool in self._pools:
            pool.claim(blocks)
        allocation = JobAllocation(new, blocks, before.expiration_s, now_s, before.account, before.preemptible_after_s)
        self._enter(allocation)
        self._note_uncounted(new, blocks)
        if terms is not None:
            allocation.terms, allocation.priority = terms, before.priority
            self.admission.book(terms, new, amounts_held(blocks))
        return allocation, [rank for rank in emptied if rank not in self._uncounted]

    def release(self, jobid: int, blocks: Blocks, final: bool, now_s: float = 0.0) -> list[int]:
        """Release resources that a job frees; return the ranks that no pool counts and on which no job holds anything
        now.

        A rank is freed whole; what the job has of the instance's countables is freed with the last of its ranks,
        whether it is named or not. Raises RemoteProtocolError, and changes nothing, when the job does not hold exactly
        that, or when `final` leaves something behind.
        """
        allocation = self.allocations.get(jobid)
        if allocation is None:
            if not blocks:
                return []  # the last mark of a job whose parts were all freed before
            raise RemoteProtocolError(f"free of job {jobid}: it holds no resources here, or was freed before")
        if blocks == allocation.blocks:
            return self._end(allocation, blocks, (), now_s)
        shared = instance_block(instance_amounts(allocation.blocks))
        blocks = tuple(on_targets(blocks))
        left = without(allocation, joined(blocks))
        if not left:
            blocks += shared
        elif shared:
            left += shared
        if final and left and not (allocation.elastic is not None and ranks_in(left) <= allocation.elastic.unstored):
            ranks = Idset.of([part.rank for part in parts_in(left)])
            raise RemoteProtocolError(f"final free of job {jobid}: ranks {ranks} would stay held")
        return self._end(allocation, blocks, left, now_s)

    def release_all(self, jobid: int, now_s: float = 0.0) -> list[int]:
        """Take back all that a job holds; like a final `release` of that. Raises RemoteProtocolError if it is none."""
        allocation = self.allocations.get(jobid)
        if allocation is None:
            raise RemoteProtocolError(f"free of job {jobid}: it holds no resources here, or was freed before")
        return self._end(allocation, allocation.blocks, (), now_s)

    def count_in(self, ranks: Idset) -> None:
        """Count allocations on ranks that were added to a pool: they are no longer foreign."""
        mine = Idset.of([rank for rank in self._uncounted if rank in ranks])
        for rank in mine:
            del self._uncounted[rank]
        for allocation in self.holders(mine):
            blocks = tuple(allocation.on(dict(words_of(mine.mask))))
            for pool in self._pools:
                pool.claim(blocks)  # of targets only

    def claim_again(self, ranks: Idset, pool: Pool) -> None:
        """Take what jobs hold on these ranks of a pool, which are idle since it counts other parts of them."""
        words = dict(words_of(ranks.mask))
        for allocation in self.holders(ranks):
            pool.claim(tuple(allocation.on(words)))

    def count_out(self, ranks: Idset) -> None:
        """Note that no pool counts these ranks any more."""
        words = dict(words_of(ranks.mask))
        for allocation in self.holders(ranks):
            self._note_uncounted(allocation.jobid, allocation.on(words))

    def outside(self, down: Idset) -> list[JobAllocation]:
        """Return the allocations that may have a part on these ranks, or on ranks that no pool counts."""
        words = {at for at, _ in words_of(down.mask)} | {rank >> WORD_SHIFT for rank in self._uncounted}
        jobids = set().union(*[self._by_word.get(at, set()) for at in words])
        return [self.allocations[jobid] for jobid in sorted(jobids)]

    def foreign(self) -> int:
        """Return the number of jobs that hold something that no pool counts."""
        return len(set().union(*self._uncounted.values()))

    def check(self) -> None:
        """Assert that free and held are all there is, and nothing is both or held twice; linear in everything."""
        check_held(self.allocations, self._pools, self._by_word, self._uncounted)
        if self.book is not None:
            self.book.check(self)
        admitted = [(each.jobid, each.terms, amounts_held(each.blocks)) for each in self if each.terms is not None]
        self.admission.check(admitted)

    # ---- elastic jobs

    def grow(self, jobid: int, fit: Fits, pool: Pool, now_s: float) -> JobAllocation | None:
        """Give a running job more targets, or refuses (None): see `decisions.Grow`."""
        if pool.what_if_open:
            raise LocalProtocolError(f"grow of job {jobid} inside a what-if: end the what-if, then yield")
        allocation = self.elastic.by_id.get(jobid)
        if allocation is None or refuses_grow(allocation, fit, pool) or self.elastic.rule.refuses_grow(jobid, fit):
            return None
        if pool.is_barred(fit.shape.request, fit.blocks, now_s, allocation.expiration_s) or not pool.take(fit.blocks):
            return None
        self.elastic.grows(allocation, fit, self.book, now_s)
        self._enter(allocation)
        return allocation

    def ungrow(self, jobid: int, ranks: Idset, now_s: float) -> list[int]:
        """Undo a grow that is not stored; return the ranks that no pool counts and on which no job holds anything now.

        Raise RemoteProtocolError if the job did not get these, or they were stored.
        """
        allocation = self.elastic.by_id.get(jobid)
        if allocation is None or allocation.elastic is None or not ranks <= allocation.elastic.unstored:
            raise RemoteProtocolError(f"job {jobid} has no grow by ranks {ranks} that is not stored")
        return self.release(jobid, allocation.on_ranks(ranks), False, now_s)

    def shrink(self, jobid: int, ranks: Idset, by_s: float, now_s: float) -> JobAllocation | None:
        """Has a running job leave these targets by then, or refuses (None): see `decisions.Shrink`."""
        allocation = self.elastic.by_id.get(jobid)
        if allocation is None or refuses_shrink(allocation, ranks):
            return None
        self.elastic.leaves(allocation, ranks, by_s, self.book, now_s)
        return allocation

    def unshrink(self, jobid: int, ranks: Idset, now_s: float) -> Idset:
        """Undo a shrink; return the targets among these that the job was to release and still holds."""
        allocation = self.elastic.by_id.get(jobid)
        return EMPTY if allocation is None else self.elastic.stays(allocation, ranks, self.book, now_s)

    # ---- when jobs end

    def set_expiration(self, jobid: int, expiration_s: float) -> None:
        """Set when a job that holds something is to end (wall time, seconds; 0.0 for none)."""
        self.allocations[jobid].expiration_s = expiration_s

    def set_start(self, jobid: int, started_s: float, expiration_s: float) -> None:
        """Set when a job that holds something starts, and is to end (wall time, seconds; 0.0 for none)."""
        self.allocations[jobid].started_s = started_s
        self.allocations[jobid].expiration_s = expiration_s

    def set_going(self, jobid: int, by_s: float) -> None:
        """Record that a job was preempted, and is to end by `by_s` (wall time, seconds)."""
        self.allocations[jobid].gone_by_s = by_s

    def end_on(self, ranks: Idset, spared: Container[int] = ()) -> list[JobAllocation]:
        """Return the allocations on these shrunk ranks whose jobs now have to end; each is returned once."""
        found = [each for each in self.holders(ranks) if not each.must_end and each.jobid not in spared]
        for allocation in found:
            allocation.must_end = True
        return found

    # ---- within

    def _enter(self, allocation: JobAllocation) -> None:
        jobid = allocation.jobid
        self.allocations[jobid] = allocation
        for block in allocation.blocks:
            jobs = self._by_word.get(block.at)
            if jobs is None:
                self._by_word[block.at] = {jobid}
            else:
                jobs.add(jobid)

    def _end(self, allocation: JobAllocation, blocks: Blocks, left: Blocks, now_s: float) -> list[int]:
        """Free some blocks of a job, which keeps those in `left`."""
        jobid = allocation.jobid
        elastic = allocation.elastic
        extras = beyond_base(allocation, blocks) if elastic is not None else ()
        self._first.give(blocks)
        for pool in self._others:
            pool.give(_of_targets(blocks))
        kept = {block.at for block in left} if left else ()
        for block in blocks:
            if block.at not in kept:
                self._by_word[block.at].discard(jobid)
        if left:
            allocation.blocks = left
            self.elastic.rule.resized(jobid, left)
        else:
            del self.allocations[jobid]
        if self.book is not None and allocation.account is not None:
            firm = allocation.preemptible_after_s is None
            self.book.frees(jobid, allocation.account, blocks, firm, not left, now_s, extras)
        if elastic is not None:
            if left:
                self.elastic.freed(allocation, ranks_in(blocks), self.book, now_s)
            else:
                self.elastic.ended(jobid)
        if allocation.terms is not None:
            self.admission.free(allocation.terms, jobid, amounts_held(blocks) if left else (), not left)
        return self._emptied(jobid, blocks) if self._uncounted else []

    def _emptied(self, jobid: int, blocks: Blocks) -> list[int]:
        emptied = []
        for part in parts_in(blocks):
            jobs = self._uncounted.get(part.rank)
            if jobs is not None:
                jobs.discard(jobid)
                if not jobs:
                    del self._uncounted[part.rank]
                    emptied.append(part.rank)
        return emptied

    def _note_uncounted(self, jobid: int, blocks: Iterable[Block]) -> None:
        for at, word, *_ in blocks:
            for pool in self._pools:
                word &= ~pool.members_at(at)
            for id in ids_of(word):
                self._uncounted.setdefault(at << WORD_SHIFT | id, set()).add(jobid)

    def _check_free(self, jobid: int, part: Part) -> None:
        if not any(is_free(pool, part) for pool in self._pools):  # else all of it is known here, and free
            for other in self.holders(Idset.one(part.rank)):
                check_apart(other, jobid, part)


def _of_targets(blocks: Blocks) -> Blocks:
    """Return the blocks without the instance's countables, which the first pool has changed already."""
    return blocks[:-1] if blocks and blocks[-1].at == NO_TARGET else blocks


# ---- allocations


class JobAllocation:
    """Resources held by one job since `started_s`. Times are wall time in seconds, `expiration_s` 0.0 for none.

    `account` is None unless a policy asks for accounts; `preemptible_after_s` is None if the job may not be preempted.
    `elastic` is None unless the job may change its size; `terms` is as in `PendingJob`.
    """

    __slots__ = (
        "account",
        "blocks",
        "elastic",
        "expiration_s",
        "gone_by_s",
        "jobid",
        "must_end",
        "name",
        "preemptible_after_s",
        "priority",
        "queue",
        "started_s",
        "terms",
        "userid",
    )  # fmt: skip

    def __init__(
        self,
        jobid: int,
        blocks: Blocks,
        expiration_s: float,
        started_s: float = 0.0,
        account: Account | None = None,
        preemptible_after_s: float | None = None,
    ) -> None:
        self.jobid = jobid
        self.blocks = blocks
        self.expiration_s = expiration_s
        self.started_s = started_s
        self.account = account
        self.preemptible_after_s = preemptible_after_s
        self.terms: AdmissionTerms | None = None
        self.priority = 0  # that of the request, if it has terms
        self.elastic: Elastic | None = None
        self.userid = 0
        self.queue = self.name = ""
        self.must_end = False  # on a shrunk target: a fatal exception was raised on the job
        self.gone_by_s = inf  # it was preempted, and is killed then

    @property
    def end_s(self) -> float:
        """Return when plans assume the job to end (wall time, seconds; inf if unknown)."""
        return min(self.expiration_s or inf, self.gone_by_s)

    @property
    def is_ending(self) -> bool:
        """Return whether the whole job is to end: it must, or it is being preempted."""
        return self.must_end or self.gone_by_s < inf

    @property
    def parts(self) -> dict[int, tuple[int, int]]:
        """Rank -> (cores, GPUs) as masks; a copy, for people."""
        return {rank: (cores, gpus) for rank, cores, gpus, _ in sorted(parts_in(self.blocks))}

    @property
    def leaving(self) -> Idset:
        """Return the targets that the job is to release while it goes on."""
        return EMPTY if self.elastic is None else self.elastic.leaving

    @property
    def staying(self) -> Blocks:
        """Return the blocks without the targets that the job is to release."""
        leaving = self.leaving
        return without_ranks(self.blocks, leaving) if leaving else self.blocks

    def on_ranks(self, ranks: Idset) -> Blocks:
        """Return the part of the blocks that is on these targets."""
        return tuple(self.on(dict(words_of(ranks.mask))))

    def on(self, words: dict[int, int]) -> Iterator[Block]:
        """Yield the part of the blocks that is on these targets, given as words by their index."""
        for at, word, cores, gpus, amounts in self.blocks:
            if mine := word & words.get(at, 0):
                yield Block(at, mine, cores, gpus, amounts)


def amounts_held(blocks: Blocks) -> Amounts:
    """Return all amounts in these blocks."""
    if len(blocks) == 1 and not blocks[0].word & (blocks[0].word - 1):
        return blocks[0].amounts
    found: Amounts = ()
    for _, word, _, _, amounts in blocks:
        found = total(found, times(amounts, word.bit_count() or 1))
    return found


def without_ranks(blocks: Blocks, ranks: Idset) -> Blocks:
    """Return the part of the blocks that is not on these targets."""
    words = dict(words_of(ranks.mask))
    found = [block._replace(word=block.word & ~words.get(block.at, 0)) for block in blocks]
    return tuple([block for block in found if block.word or block.at == NO_TARGET])


def covers(blocks: Blocks, part: Blocks) -> bool:
    """Return whether the blocks hold at least the amounts of a part, on its one target."""
    if len(blocks) != 1 or len(part) != 1 or blocks[0][:2] != part[0][:2]:
        return False
    return not less(part[0].amounts, blocks[0].amounts)


def once_each(blocks: Blocks) -> bool:
    """Return whether no target occurs twice."""
    words: dict[int, int] = {}
    for at, word, *_ in blocks:
        before = words.get(at, 0)
        if before & word:
            return False
        words[at] = before | word
    return True


def without(allocation: JobAllocation, blocks: Blocks) -> Blocks:
    """Return the blocks that remain when these are freed.

    Raise RemoteProtocolError naming the ranks that are not held like that.
    """
    blocks_held = joined(on_targets(allocation.blocks))
    held = {(at, cores, gpus, amounts): word for at, word, cores, gpus, amounts in blocks_held}
    wrong: dict[int, int] = {}
    for at, word, cores, gpus, amounts in blocks:
        have = held.get((at, cores, gpus, amounts), 0)
        if word & ~have:
            wrong[at] = wrong.get(at, 0) | word & ~have
        held[at, cores, gpus, amounts] = have & ~word
    if wrong:
        ranks = Idset(mask_of(wrong))
        raise RemoteProtocolError(f"free of job {allocation.jobid}: it does not hold this on ranks {ranks}")
    return tuple([Block(at, word, cores, gpus, amounts) for (at, cores, gpus, amounts), word in held.items() if word])


# ---- checks of the ledger

NOTHING: Final = Part(NO_TARGET, 0, 0)
"""Part for a target on which no job holds anything."""


def check_held(
    allocations: Mapping[int, JobAllocation],
    pools: Sequence[Pool],
    by_word: Mapping[int, Set[int]],
    uncounted: Mapping[int, Set[int]],
) -> None:
    """Assert it, linear in everything; `by_word` lists jobs by words of ranks, `uncounted` by ranks not in a pool."""
    held: dict[int, Part] = {}
    shared: Amounts = ()
    counted_ranks = EMPTY
    for pool in pools:
        counted_ranks |= pool.ranks
    for jobid, allocation in allocations.items():
        shared = total(shared, instance_amounts(allocation.blocks))
        _check_elastic(allocation)
        for rank, cores, gpus, amounts in parts_in(allocation.blocks):
            _, cores_before, gpus_before, amounts_before = held.get(rank, NOTHING)
            assert not cores & cores_before, f"job {jobid}: a core of rank {rank} is held twice"
            assert not gpus & gpus_before, f"job {jobid}: a gpu of rank {rank} is held twice"
            assert jobid in by_word.get(rank >> WORD_SHIFT, ()), f"job {jobid} is not listed"
            counted = rank in counted_ranks
            listed = jobid in uncounted.get(rank, ())
            assert counted != listed, f"rank {rank} is counted: {counted}, but listed as not counted: {listed}"
            held[rank] = Part(rank, cores | cores_before, gpus | gpus_before, total(amounts, amounts_before))
    if pools:
        used = pools[0].instance_countables.used()
        assert shared == used, f"jobs hold {shared} of the instance, {used} is booked"
    for pool in pools:
        _check_pool(pool, held)


def _check_pool(pool: Pool, held: Mapping[int, Part]) -> None:
    for rank in pool.ranks:
        target, part = pool[rank], held.get(rank, NOTHING)
        assert target.cores == target.all_cores & ~part.cores, f"rank {rank}: free and held are not its cores"
        assert target.gpus == target.all_gpus & ~part.gpus, f"rank {rank}: free and held are not its gpus"
        wrong = less(target.all_amounts, total(target.amounts, part.amounts))
        assert not wrong, f"rank {rank}: free and held are not its {wrong}"
        if rank in pool.amount_targets.by_rank:
            there = pool.amount_targets.by_rank[rank].held()
            assert there == dict(part.amounts), f"rank {rank}: jobs hold {part.amounts}, {there} is booked"
    pool.amount_targets.check()


def _check_elastic(allocation: JobAllocation) -> None:
    elastic = allocation.elastic
    if elastic is None:
        return
    found = EMPTY
    for part in elastic.parts:
        assert part.ranks.isdisjoint(part.leaving), f"job {allocation.jobid} is to leave what it has"
        assert found.isdisjoint(part.ranks | part.leaving), f"job {allocation.jobid}: a target is of two parts"
        is_right = elastic.is_settled or part.size in part.nodes
        assert is_right, f"job {allocation.jobid}: {part.size} is not in {part.nodes}"
        assert part.base <= part.ranks, f"job {allocation.jobid}: a minimum is to go"
        found |= part.ranks | part.leaving
    assert found == ranks_in(allocation.blocks), f"job {allocation.jobid} holds other targets than its parts have"
    asked = EMPTY
    for ranks in elastic.asked:
        asked |= ranks
    assert asked <= elastic.unstored <= found, f"job {allocation.jobid}: {elastic.unstored} are not stored"


def is_free(pool: Pool, part: Part) -> bool:
    """Return whether the pool counts the whole part, and no job holds any of it."""
    if part.rank not in pool:
        return False
    target = pool[part.rank]
    return part.cores & target.cores == part.cores and part.gpus & target.gpus == part.gpus


def check_apart(other: JobAllocation, jobid: int, part: Part) -> None:
    """Check that a job taken over shares nothing with another one. Raise RemoteProtocolError if it does."""
    cores, gpus = other.parts[part.rank]
    if cores & part.cores or gpus & part.gpus:
        raise RemoteProtocolError(
            f"hello: jobs {other.jobid} and {jobid} both hold rank {part.rank}, "
            f"cores {Idset(cores & part.cores)} gpus {Idset(gpus & part.gpus)}"
        )


# ---- parts of elastic jobs

SHRINK_PAUSE_S: Final = 60.0
"""Pause between a shrink of a job and its next growth (seconds)."""

SETTLED: Final = "its size does not change any more: it is at its end, or keeps its size where it runs"


class ElasticPart:
    """One part: `ranks` are its targets but for those that it is to leave, which are `leaving`.

    `base` are those that count as its minimum.
    """

    __slots__ = ("base", "leaving", "nodes", "ranks", "request")

    def __init__(self, request: Request, ranks: Idset) -> None:
        assert request.nodes is not None, "a part of an elastic job asks for nodes"
        self.request = request
        self.nodes: Count = request.nodes
        self.ranks = ranks
        self.leaving = EMPTY
        self.base = EMPTY

    def __str__(self) -> str:
        return f"part {self.request.label}" if self.request.label else "it"

    @property
    def size(self) -> int:
        """Return the number of targets of the part."""
        return len(self.ranks)

    @property
    def beyond_minimum(self) -> int:
        """Return the number of targets beyond the part's minimum."""
        return len(self.ranks) - self.nodes.min

    @property
    def step(self) -> int:
        """Return the number of targets to add for the next value of the range; 0 at the largest."""
        after = self.nodes.after(len(self.ranks))
        return 0 if after is None else after - len(self.ranks)

    def rounded(self, count: int) -> int | None:
        """Return the least number of targets, `count` or more, to release for a value of the range; None below the
        minimum.
        """
        size = len(self.ranks)
        left = self.nodes.largest(size - count)
        return None if left is None else size - left

    def choose_base(self, first: int) -> None:
        """Choose as minimum the highest targets, as they are released last of equals, and that of the first task."""
        chosen = self.base & self.ranks
        missing = self.nodes.min - len(chosen)
        if missing > 0 and first in self.ranks and first not in chosen:
            chosen |= Idset.one(first)
            missing -= 1
        if missing > 0:
            chosen |= highest_of(self.ranks - chosen, missing)
        self.base = chosen


class Extras(NamedTuple):
    """Extras of a part: of its targets `ranks`, `spare` may be released.

    `ElasticPart.rounded` says how many must be if some are.
    """

    part: ElasticPart
    ranks: Idset
    spare: int


class Elastic:
    """Parts of a running elastic job. Times are wall time in seconds.

    `first` is the target of its first task; `unstored` are targets that the job manager has not stored yet, `asked` the
    same targets, grow by grow. It grows by `placement` (one of PLACEMENTS), as it was started, but not before
    `paused_until_s`; it is not shrunk before `kept_until_s`, since a shrink was refused; targets that it is to release
    are released by `leave_by_s`. `is_settled`: it neither grows nor shrinks any more, since it frees its resources, or
    has a size of its own where it runs.
    """

    __slots__ = (
        "asked", "first", "grown", "is_settled", "kept_until_s", "leave_by_s", "leaving", "parts", "paused_until_s",
        "placement", "shape", "unstored",
    )  # fmt: skip

    def __init__(self, shape: Shape, by_part: Sequence[Idset], first: int) -> None:
        self.shape = shape
        self.parts = [
            ElasticPart(request, ranks) for request, ranks in zip(shape.request.each_part, by_part, strict=True)
        ]
        self.first = first
        self.placement: str = WORST_FIT
        self.leaving = EMPTY
        self.unstored = EMPTY
        self.asked: deque[Idset] = deque()
        self.grown: list[tuple[float, Idset]] = []  # when which targets came after the start
        self.leave_by_s = inf
        self.paused_until_s = self.kept_until_s = -inf
        self.is_settled = False
        self.choose_base()

    # ---- questions

    @property
    def can_grow(self) -> bool:
        """Return whether a part of the job is not at the largest value of its range."""
        return not self.is_settled and any(part.step for part in self.parts)

    @property
    def base(self) -> Idset:
        """The targets that count as its minima."""
        found = EMPTY
        for part in self.parts:
            found |= part.base
        return found

    @property
    def held(self) -> Idset:
        """Return all targets that the job is not to release."""
        found = EMPTY
        for part in self.parts:
            found |= part.ranks
        return found

    def extras(self, now_s: float) -> Iterator[Extras]:
        """Yield the extras of each part at `now_s`; none if a shrink was refused a short while ago."""
        if self.is_settled or now_s < self.kept_until_s:
            return
        for part in self.parts:
            spare = part.beyond_minimum - len(part.ranks & self.unstored)  # a grow that is not stored may be refused
            if spare > 0:
                ranks = part.ranks - self.unstored - Idset.one(self.first)
                if ranks:
                    yield Extras(part, ranks, spare)

    def ages(self, started_s: float) -> Iterator[tuple[float, Idset | None]]:
        """Yield when targets were added, the last first; at the end the start, with None for all other targets."""
        yield from reversed(self.grown)
        yield started_s, None

    def refuses_grow(self, fit: Fits, pool: Pool) -> str:
        """Return why the job must not get this: too many targets, or not what its part has of each; empty if it may."""
        by_part = targets_of(fit)
        if self.is_settled:
            return SETTLED
        if self.leaving:
            return f"it is leaving ranks {self.leaving}"
        if len(by_part) != len(self.parts):
            return f"the fit is of {len(by_part)} parts, the job has {len(self.parts)}"
        of_rank: dict[int, ElasticPart] = {}
        for part, ranks in zip(self.parts, by_part, strict=True):
            size, bound = part.size + len(ranks), part.request.max_hops
            if ranks and size not in part.nodes:
                return f"{part} would have {counted(size, 'node')}, and asks for {part.nodes}"
            if ranks and bound is not None and not ranks <= pool.rooms.network.within(part.ranks, bound):
                return f"ranks {ranks} are more than {bound} hops from what {part} has"
            of_rank.update(dict.fromkeys(ranks, part))
        for rank, cores, gpus, amounts in parts_in(fit.blocks):
            of = of_rank.pop(rank, None)
            if of is None:
                return f"the fit has rank {rank} in no part"
            if not _is_node_of(of.request, pool, rank, (cores, gpus), amounts):
                return f"on rank {rank} the fit has other cores, GPUs or amounts than {of} has of each target"
        if of_rank or any(block.at == NO_TARGET for block in fit.blocks):
            return "the parts of the fit name other targets than its blocks"
        return ""

    def refuses_shrink(self, ranks: Idset) -> str:
        """Why the job must not leave these targets: it has not all, or too few would be left; empty if it may."""
        if self.is_settled:
            return SETTLED
        if not ranks:
            return "no ranks are named"
        for part in self.parts:
            mine = part.ranks & ranks
            ranks -= mine
            size = part.size - len(mine)
            if mine and size not in part.nodes:
                return f"{part} would have {counted(size, 'node')}, and asks for {part.nodes}"
        if again := ranks & self.leaving:
            return f"it is leaving ranks {again} already"
        return f"it does not hold ranks {ranks}" if ranks else ""

    def to_leave(self, lost: Idset) -> Idset | None:
        """Return the targets that the job has to release if it loses these, with more of a part, down to a value of its
        range.

        None if less than a minimum would remain, or where just the last grow, not stored yet, would have to be released
        later.
        """
        lost -= self.unstored
        found = EMPTY
        for part in self.parts:
            mine = part.ranks & lost
            count = part.rounded(len(mine)) if mine else 0
            if count is None:
                return None
            more = count - len(mine)
            left = part.ranks - mine - self.unstored
            if more > len(left):
                return None
            spared = left - Idset.one(self.first)
            found |= mine | (highest_of(spared if more <= len(spared) else left, more) if more else EMPTY)
        return found

    # ---- what the ledger has changed

    def choose_base(self) -> None:
        """Choose the targets that count as minima, after targets were added or released."""
        for part in self.parts:
            part.choose_base(self.first)

    def add(self, fit: Fits, now_s: float) -> Idset:
        """Add the targets of a fit to the job, and return them."""
        added = EMPTY
        for part, ranks in zip(self.parts, targets_of(fit), strict=True):
            part.ranks |= ranks
            added |= ranks
        self.unstored |= added
        if self.grown and self.grown[-1][0] == now_s:
            self.grown[-1] = now_s, self.grown[-1][1] | added
        else:
            self.grown.append((now_s, added))
        return added

    def stored(self) -> Idset:
        """Record that the job manager has stored the oldest grow, and return its targets."""
        ranks = self.asked.popleft() if self.asked else EMPTY
        self.unstored -= ranks
        return ranks

    def stored_not(self, ranks: Idset) -> None:
        """Record that the job manager has refused the grow by these targets."""
        self.asked = deque([asked for asked in self.asked if asked != ranks])

    def begin_shrink(self, ranks: Idset, by_s: float) -> None:
        """Record that the job is to release these targets by `by_s`."""
        for part in self.parts:
            mine = part.ranks & ranks
            part.ranks -= mine
            part.leaving |= mine
        self.leave_by_s = max(self.leave_by_s, by_s) if self.leaving else by_s
        self.leaving |= ranks
        self.choose_base()

    def cancel_shrink(self, ranks: Idset) -> Idset:
        """Undo a shrink by these targets; return those that the job was to release."""
        found = self.leaving & ranks
        for part in self.parts:
            mine = part.leaving & ranks
            part.leaving -= mine
            part.ranks |= mine
        self.leaving -= ranks
        self.choose_base()
        return found

    def remove(self, ranks: Idset, now_s: float) -> None:
        """Remove targets that the job no longer holds. One that frees targets which it was not to release has lost
        them, and pauses as after a shrink; with a size that is not in its range left, it is about to end.
        """
        is_lost = bool(ranks - self.leaving - self.unstored)
        for part in self.parts:
            part.leaving -= ranks
            part.ranks -= ranks
        self.leaving -= ranks
        self.unstored -= ranks
        self.asked = deque([asked - ranks for asked in self.asked])
        self.grown = [(since_s, left) for since_s, some in self.grown if (left := some - ranks)]
        for part in self.parts:
            part.base -= ranks
        if is_lost:
            self.paused_until_s = now_s + SHRINK_PAUSE_S
            self.is_settled |= any(part.size not in part.nodes for part in self.parts)
        if not self.is_settled:
            self.choose_base()


def targets_of(fit: Fits) -> tuple[Idset, ...]:
    """Return the targets of each part in a fit."""
    return fit.by_part or (ranks_in(fit.blocks),)


def _is_node_of(request: Request, pool: Pool, rank: int, ids: tuple[int, int], amounts: Amounts) -> bool:
    """Return whether these ids and amounts are exactly those that the request takes of the target."""
    if request.exclusive:
        return rank in pool and pool.all_ids(rank) == ids and pool[rank].all_amounts == amounts
    need = need_of(request, request.slots.min)
    return (ids[0].bit_count(), ids[1].bit_count(), amounts) == (need.cores, need.gpus, need.amounts)


def highest_of(ranks: Idset, count: int) -> Idset:
    """Return the `count` highest ranks."""
    return ranks - ranks.first(len(ranks) - count) if count < len(ranks) else ranks


# ---- sizes of elastic jobs

NOT_ELASTIC: Final = "it is not elastic"
ENDING: Final = "it is ending"


def refuses_grow(allocation: JobAllocation, fit: Fits, pool: Pool) -> str:
    """Why the job must not get this, even if it is free (`decisions.Grow`); empty if it may."""
    if allocation.elastic is None:
        return NOT_ELASTIC
    if allocation.is_ending:
        return ENDING
    if not fit.blocks:
        return "the fit has no targets"
    if not once_each(fit.blocks):
        return "the fit names a target twice"
    if held := ranks_in(fit.blocks) & ranks_in(allocation.blocks):
        return f"it holds ranks {held} already"
    return allocation.elastic.refuses_grow(fit, pool)


def refuses_shrink(allocation: JobAllocation, ranks: Idset) -> str:
    """Why the job must not leave these targets (`decisions.Shrink`); empty if it may."""
    if allocation.elastic is None:
        return NOT_ELASTIC
    return ENDING if allocation.is_ending else allocation.elastic.refuses_shrink(ranks)


class SizeRule:
    """Rule beside the resources on what jobs may grow to, which is told each size; this one allows all."""

    def refuses_extras(self, fit: Fits) -> bool:
        """Return whether a job must not start with this fit, which has more than the least that it asks for."""
        return False

    def refuses_grow(self, jobid: int, fit: Fits) -> str:
        """Why a running job must not get a fit in addition; empty if it may."""
        return ""

    def resized(self, jobid: int, blocks: Blocks) -> None:
        """Record what a running job has from now on; it has not ended."""


class ElasticJobs:
    """The running jobs that may change their size, `by_id`; those that may have more are `growable`, too."""

    __slots__ = ("by_id", "growable", "rule")

    def __init__(self) -> None:
        self.rule = SizeRule()
        self.by_id: dict[int, JobAllocation] = {}
        self.growable: dict[int, JobAllocation] = {}

    def obey(self, rule: SizeRule) -> None:
        """Obey a rule from now on, while no job runs."""
        self.rule = rule

    def begins(self, allocation: JobAllocation, fit: Fits) -> Blocks:
        """Enter an elastic job that has started, and return its blocks beyond its minima."""
        by_part = targets_of(fit)
        return self.adopts(allocation, Elastic(fit.shape, by_part, by_part[0].min()))

    def adopts(self, allocation: JobAllocation, elastic: Elastic | None) -> Blocks:
        """Enter a job found running (`elastic` None: it is not elastic), and return its blocks beyond its minima."""
        allocation.elastic = elastic
        if elastic is None:
            return ()
        self.by_id[allocation.jobid] = allocation
        self._note(allocation)
        return allocation.on_ranks(ranks_in(allocation.blocks) - elastic.base)

    def ended(self, jobid: int) -> None:
        """Remove a job that holds nothing any more."""
        del self.by_id[jobid]
        self.growable.pop(jobid, None)

    def settle(self, allocation: JobAllocation) -> None:
        """Fix the size of a job from now on."""
        assert allocation.elastic is not None
        allocation.elastic.is_settled = True
        self._note(allocation)

    def _note(self, allocation: JobAllocation) -> None:
        if allocation.elastic is not None and allocation.elastic.can_grow:
            self.growable[allocation.jobid] = allocation
        else:
            self.growable.pop(allocation.jobid, None)

    def grows(self, allocation: JobAllocation, fit: Fits, book: UsageBook | None, now_s: float) -> None:
        """Add a fit to the resources of a job."""
        assert allocation.elastic is not None
        allocation.elastic.add(fit, now_s)
        shared = tuple([block for block in allocation.blocks if block.at == NO_TARGET])
        allocation.blocks = (*joined((*on_targets(allocation.blocks), *fit.blocks)), *shared)
        self.rule.resized(allocation.jobid, allocation.blocks)
        if book is not None and allocation.account is not None:
            book.changes(allocation.account, fit.blocks, 1, False, now_s)
        self._note(allocation)

    def leaves(
        self, allocation: JobAllocation, ranks: Idset, by_s: float, book: UsageBook | None, now_s: float
    ) -> None:
        """Record that the job is to release these targets by `by_s`."""
        assert allocation.elastic is not None
        before = allocation.elastic.base
        allocation.elastic.begin_shrink(ranks, by_s)
        _move_base(allocation, before, book, now_s)
        self._note(allocation)

    def stays(self, allocation: JobAllocation, ranks: Idset, book: UsageBook | None, now_s: float) -> Idset:
        """Undo a shrink by these targets; return those that the job was to release and still holds."""
        assert allocation.elastic is not None
        before = allocation.elastic.base
        found = allocation.elastic.cancel_shrink(ranks)
        _move_base(allocation, before, book, now_s)
        self._note(allocation)
        return found

    def freed(self, allocation: JobAllocation, ranks: Idset, book: UsageBook | None, now_s: float) -> None:
        """Remove targets that the job has freed while it holds others."""
        assert allocation.elastic is not None
        before = allocation.elastic.base - ranks
        allocation.elastic.remove(ranks, now_s)
        _move_base(allocation, before, book, now_s)
        self._note(allocation)


def beyond_base(allocation: JobAllocation, blocks: Blocks) -> Blocks:
    """Return the part of these blocks, which the job is about to free, that is beyond its minima."""
    return () if allocation.elastic is None else allocation.on_ranks(ranks_in(blocks) - allocation.elastic.base)


def _move_base(allocation: JobAllocation, before: Idset, book: UsageBook | None, now_s: float) -> None:
    """Book the change of the targets that count as minima, if caps of accounts count them: the job cannot be
    preempted.
    """
    if book is None or allocation.account is None or allocation.preemptible_after_s is not None:
        return
    after = EMPTY if allocation.elastic is None else allocation.elastic.base
    if after == before:
        return
    old, new = allocation.on_ranks(before - after), allocation.on_ranks(after - before)
    if book.amounts.of_blocks(old) == book.amounts.of_blocks(new):
        return  # as many of equals
    for blocks, is_firm in ((old, False), (new, True)):
        if blocks:
            book.changes(allocation.account, blocks, -1, not is_firm, now_s)
            book.changes(allocation.account, blocks, 1, is_firm, now_s)
