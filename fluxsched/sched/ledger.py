"""The ledger: the only writer of what jobs hold, which also ensures that nothing is held twice.

Law: `commit` takes a job off its queue and marks its blocks in one step, or refuses and changes nothing; `release` and
`adopt` check everything before they change anything. A holding may be outside what the pools count, because a target
was shrunk or never acquired (foreign): its free is accepted, and no pool changes. Costs follow a job's blocks; the
holders of a target are found by its word.

The sizes of an elastic job follow in the step in which its holding changes. A target that the job is to leave counts no
more, though the job holds it until it is freed; the target of its first task is no extra, since without it the job
would go on without what leads it. What a job has beyond its minima counts in its account like all else, but never as
that of a job that may not be preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from math import inf
from typing import Final, NamedTuple

from fluxsched.core.amounts import Amounts, less, times, total
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.request import Count, Request
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.sched.admission import AdmissionControl
from fluxsched.sched.decisions import Start
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.fair.usage import UsageBook, safe_of
from fluxsched.sched.pool.choice import need_of
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
from fluxsched.sched.queue import PendingJobs
from fluxsched.sched.sorted_jobs import AdmissionTerms

__all__ = [
    "Holding",
    "Ledger",
]

class Ledger:
    """Record of all holdings in all pools of a scheduler; a rank is in at most one pool.

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
        self.holdings: dict[int, Holding] = {}  # by job id; changed here alone
        self.elastic = ElasticJobs()
        self._by_word: dict[int, set[int]] = {}  # jobs that hold something in a word of ranks
        self._uncounted: dict[int, set[int]] = {}  # rank that no pool counts -> jobs

    def __len__(self) -> int:
        return len(self.holdings)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self.holdings

    def __iter__(self) -> Iterator[Holding]:
        """Holdings in the order in which they began."""
        return iter(self.holdings.values())

    def get(self, jobid: int) -> Holding | None:
        return self.holdings.get(jobid)

    def holders(self, ranks: Idset) -> list[Holding]:
        """The holdings on these ranks, by job id; linear in the words named and the jobs there."""
        words = dict(words_of(ranks.mask))
        jobids = set().union(*[self._by_word.get(at, set()) for at in words])
        return [self.holdings[jobid] for jobid in sorted(jobids) if any(self.holdings[jobid].on(words))]

    def held(self, ranks: Idset) -> Idset:
        """Return the ranks among these on which a job holds something."""
        found: dict[int, int] = {}
        for holding in self.holders(ranks):
            for at, word, *_ in holding.on(dict(words_of(ranks.mask))):
                found[at] = found.get(at, 0) | word
        return Idset(mask_of(found))

    def commit(
        self, start: Start, queue: PendingJobs, pool: Pool, expiration_s: float, now_s: float = 0.0
    ) -> Holding | None:
        """Perform one decision, or refuse it (None): the job or its place is not available, or the fit is not the
        job's.

        A job that the admission does not admit is refused, too.
        """
        if pool.what_if_open:
            raise LocalProtocolError(f"start of job {start.jobid} inside a what-if: end the what-if, then yield")
        jobid, fit, _ = start
        job = queue.by_id.get(jobid)
        if job is None or jobid in self.holdings:
            return None
        shape = job.shape
        if fit.shape is not shape and fit.shape != shape:
            return None
        terms = job.terms
        if terms is not None and not self.admission.admits(terms, shape.request.amounts):
            return None
        holding = self.take(jobid, fit.blocks, pool, expiration_s, now_s)
        if holding is not None:
            if terms is not None:
                holding.terms, holding.priority = terms, job.priority
                self.admission.book(terms, jobid, shape.request.amounts)
            holding.userid, holding.queue, holding.name = job.userid, job.queue, job.name
            after_s = job.preemptible_after_s
            if after_s is not None:
                holding.preemptible_after_s = after_s
            extras: Blocks = ()
            if shape.request.elastic:
                extras = self.elastic.begins(holding, fit)
            if self.book is not None and job.account is not None:
                holding.account = job.account
                self.book.begins(jobid, job.account, fit.blocks, safe_of(after_s, job.duration_s), now_s, extras)
            queue.remove(jobid)
        return holding

    def take(
        self, jobid: int, blocks: Blocks, pool: Pool, expiration_s: float, now_s: float = 0.0
    ) -> Holding | None:
        """Has a job hold these blocks of a pool, or refuses (None) as not all are free; it holds nothing so far."""
        if not blocks or (len(blocks) > 1 and not once_each(blocks)) or not pool.take(blocks):
            return None
        holding = Holding(jobid, blocks, expiration_s, now_s)
        self._enter(holding)
        return holding

    def adopt(
        self, jobid: int, blocks: Blocks, expiration_s: float, started_s: float = 0.0, account: Account | None = None,
        preemptible_after_s: float | None = None, limit_s: float = 0.0, now_s: float = 0.0,
        elastic: Elastic | None = None,
    ) -> None:  # fmt: skip
        """Takes over a job that runs already (RFC 27 hello). Raises RemoteProtocolError if something is held twice."""
        if jobid in self.holdings:
            raise RemoteProtocolError(f"hello names job {jobid} twice")
        for part in parts_in(blocks):
            self._check_free(jobid, part)
        if not on_targets(blocks):
            return  # all was freed before
        mine = blocks
        for pool in self._pools:
            pool.claim(mine)
            mine = _of_targets(mine)
        holding = Holding(jobid, blocks, expiration_s, started_s, account, preemptible_after_s)
        self._enter(holding)
        self._note_uncounted(jobid, on_targets(blocks))
        extras = self.elastic.adopts(holding, elastic)
        if self.book is not None and account is not None:
            self.book.adopts(jobid, account, blocks, safe_of(preemptible_after_s, limit_s), started_s, now_s, extras)

    def adopt_amounts(
        self, jobid: int, blocks: Blocks, terms: AdmissionTerms, started_s: float, priority: int
    ) -> Holding:
        """Takes over an allocation that a resource manager has: a fact, whatever the bounds and the target hold.

        Raises RemoteProtocolError if the job holds something already.
        """
        if jobid in self.holdings:
            raise RemoteProtocolError(f"allocation {jobid} exists already")
        for pool in self._pools:
            pool.claim(blocks)
        holding = Holding(jobid, blocks, 0.0, started_s, None, 0.0)
        holding.terms, holding.priority = terms, priority
        self._enter(holding)
        self._note_uncounted(jobid, blocks)
        self.admission.book(terms, jobid, amounts_held(blocks))
        return holding

    def replace(self, old: int, new: int, blocks: Blocks, now_s: float) -> tuple[Holding, list[int]]:
        """Hand over these blocks from one job to another in one step; what remains is freed.

        Raise RemoteProtocolError, without a change, if the one does not hold as much there, or the other holds
        something.
        """
        before = self.holdings.get(old)
        if before is None or new in self.holdings or not covers(before.blocks, blocks):
            raise RemoteProtocolError(f"job {old} cannot hand over to {new}: it holds less, or {new} has something")
        terms = before.terms
        emptied = self._end(before, before.blocks, (), now_s)
        for pool in self._pools:
            pool.claim(blocks)
        holding = Holding(new, blocks, before.expiration_s, now_s, before.account, before.preemptible_after_s)
        self._enter(holding)
        self._note_uncounted(new, blocks)
        if terms is not None:
            holding.terms, holding.priority = terms, before.priority
            self.admission.book(terms, new, amounts_held(blocks))
        return holding, [rank for rank in emptied if rank not in self._uncounted]

    def release(self, jobid: int, blocks: Blocks, final: bool, now_s: float = 0.0) -> list[int]:
        """Release resources that a job frees; return the ranks that no pool counts and on which no job holds anything
        now.

        A rank is freed whole; what the job has of the instance's countables is freed with the last of its ranks,
        whether it is named or not. Raises RemoteProtocolError, and changes nothing, when the job does not hold exactly
        that, or when `final` leaves something behind.
        """
        holding = self.holdings.get(jobid)
        if holding is None:
            if not blocks:
                return []  # the last mark of a job whose parts were all freed before
            raise RemoteProtocolError(f"free of job {jobid}: it holds no resources here, or was freed before")
        if blocks == holding.blocks:
            return self._end(holding, blocks, (), now_s)
        shared = instance_block(instance_amounts(holding.blocks))
        blocks = tuple(on_targets(blocks))
        left = without(holding, joined(blocks))
        if not left:
            blocks += shared
        elif shared:
            left += shared
        if final and left and not (holding.elastic is not None and ranks_in(left) <= holding.elastic.unstored):
            ranks = Idset.of([part.rank for part in parts_in(left)])
            raise RemoteProtocolError(f"final free of job {jobid}: ranks {ranks} would stay held")
        return self._end(holding, blocks, left, now_s)

    def release_all(self, jobid: int, now_s: float = 0.0) -> list[int]:
        """Takes back all that a job holds; like a final `release` of that. Raises RemoteProtocolError if it is none."""
        holding = self.holdings.get(jobid)
        if holding is None:
            raise RemoteProtocolError(f"free of job {jobid}: it holds no resources here, or was freed before")
        return self._end(holding, holding.blocks, (), now_s)

    def count_in(self, ranks: Idset) -> None:
        """Count holdings on ranks that were added to a pool: they are no longer foreign."""
        mine = Idset.of([rank for rank in self._uncounted if rank in ranks])
        for rank in mine:
            del self._uncounted[rank]
        for holding in self.holders(mine):
            blocks = tuple(holding.on(dict(words_of(mine.mask))))
            for pool in self._pools:
                pool.claim(blocks)  # of targets only

    def count_out(self, ranks: Idset) -> None:
        """Notes that no pool counts these ranks any more."""
        words = dict(words_of(ranks.mask))
        for holding in self.holders(ranks):
            self._note_uncounted(holding.jobid, holding.on(words))

    def outside(self, down: Idset) -> list[Holding]:
        """The holdings of which a part may be on these ranks, or on some that no pool counts."""
        words = {at for at, _ in words_of(down.mask)} | {rank >> WORD_SHIFT for rank in self._uncounted}
        jobids = set().union(*[self._by_word.get(at, set()) for at in words])
        return [self.holdings[jobid] for jobid in sorted(jobids)]

    def foreign(self) -> int:
        """Return the number of jobs that hold something that no pool counts."""
        return len(set().union(*self._uncounted.values()))

    def check(self) -> None:
        """Asserts that free and held are all there is, and nothing is both or held twice; linear in everything."""
        check_held(self.holdings, self._pools, self._by_word, self._uncounted)
        if self.book is not None:
            self.book.check(self)
        admitted = [(each.jobid, each.terms, amounts_held(each.blocks)) for each in self if each.terms is not None]
        self.admission.check(admitted)

    # ---- elastic jobs

    def grow(self, jobid: int, fit: Fits, pool: Pool, now_s: float) -> Holding | None:
        """Gives a running job more targets, or refuses (None): see `decisions.Grow`."""
        if pool.what_if_open:
            raise LocalProtocolError(f"grow of job {jobid} inside a what-if: end the what-if, then yield")
        holding = self.elastic.by_id.get(jobid)
        if holding is None or refuses_grow(holding, fit, pool) or not pool.take(fit.blocks):
            return None
        self.elastic.grows(holding, fit, self.book, now_s)
        self._enter(holding)
        return holding

    def ungrow(self, jobid: int, ranks: Idset, now_s: float) -> list[int]:
        """Undo a grow that is not stored; return the ranks that no pool counts and on which no job holds anything now.

        Raise RemoteProtocolError if the job did not get these, or they were stored.
        """
        holding = self.elastic.by_id.get(jobid)
        if holding is None or holding.elastic is None or not ranks <= holding.elastic.unstored:
            raise RemoteProtocolError(f"job {jobid} has no grow by ranks {ranks} that is not stored")
        return self.release(jobid, holding.on_ranks(ranks), False, now_s)

    def shrink(self, jobid: int, ranks: Idset, by_s: float, now_s: float) -> Holding | None:
        """Has a running job leave these targets by then, or refuses (None): see `decisions.Shrink`."""
        holding = self.elastic.by_id.get(jobid)
        if holding is None or refuses_shrink(holding, ranks):
            return None
        self.elastic.leaves(holding, ranks, by_s, self.book, now_s)
        return holding

    def unshrink(self, jobid: int, ranks: Idset, now_s: float) -> Idset:
        """Undo a shrink; return the targets among these that the job was to release and still holds."""
        holding = self.elastic.by_id.get(jobid)
        return EMPTY if holding is None else self.elastic.stays(holding, ranks, self.book, now_s)

    # ---- when jobs end

    def set_expiration(self, jobid: int, expiration_s: float) -> None:
        """Sets when a job that holds something is to end (wall time, seconds; 0.0 for none)."""
        self.holdings[jobid].expiration_s = expiration_s

    def set_start(self, jobid: int, started_s: float, expiration_s: float) -> None:
        """Sets when a job that holds something starts, and is to end (wall time, seconds; 0.0 for none)."""
        self.holdings[jobid].started_s = started_s
        self.holdings[jobid].expiration_s = expiration_s

    def set_going(self, jobid: int, by_s: float) -> None:
        """Record that a job was preempted, and is to end by `by_s` (wall time, seconds)."""
        self.holdings[jobid].gone_by_s = by_s

    def end_on(self, ranks: Idset, spared: Container[int] = ()) -> list[Holding]:
        """Return the holdings on these ranks, which were shrunk, whose jobs now have to end; each is returned once."""
        found = [each for each in self.holders(ranks) if not each.must_end and each.jobid not in spared]
        for holding in found:
            holding.must_end = True
        return found

    # ---- within

    def _enter(self, holding: Holding) -> None:
        jobid = holding.jobid
        self.holdings[jobid] = holding
        for block in holding.blocks:
            jobs = self._by_word.get(block.at)
            if jobs is None:
                self._by_word[block.at] = {jobid}
            else:
                jobs.add(jobid)

    def _end(self, holding: Holding, blocks: Blocks, left: Blocks, now_s: float) -> list[int]:
        """Free some blocks of a job, which keeps those in `left`."""
        jobid = holding.jobid
        elastic = holding.elastic
        extras = beyond_base(holding, blocks) if elastic is not None else ()
        self._first.give(blocks)
        for pool in self._others:
            pool.give(_of_targets(blocks))
        kept = {block.at for block in left} if left else ()
        for block in blocks:
            if block.at not in kept:
                self._by_word[block.at].discard(jobid)
        if left:
            holding.blocks = left
        else:
            del self.holdings[jobid]
        if self.book is not None and holding.account is not None:
            firm = holding.preemptible_after_s is None
            self.book.frees(jobid, holding.account, blocks, firm, not left, now_s, extras)
        if elastic is not None:
            if left:
                self.elastic.freed(holding, ranks_in(blocks), self.book, now_s)
            else:
                self.elastic.ended(jobid)
        if holding.terms is not None:
            self.admission.free(holding.terms, jobid, amounts_held(blocks) if left else (), not left)
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


# ---- holding

class Holding:
    """Resources held by one job since `started_s`. Times are wall time in seconds, `expiration_s` 0.0 for none.

    `account` is None unless a policy asks for accounts; `preemptible_after_s` is None if the job may not be preempted.
    `elastic` is None unless the job may change its size; `terms` is as in `Waiting`.
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


def without(holding: Holding, blocks: Blocks) -> Blocks:
    """Return the blocks that remain when these are freed.

    Raise RemoteProtocolError naming the ranks that are not held like that.
    """
    blocks_held = joined(on_targets(holding.blocks))
    held = {(at, cores, gpus, amounts): word for at, word, cores, gpus, amounts in blocks_held}
    wrong: dict[int, int] = {}
    for at, word, cores, gpus, amounts in blocks:
        have = held.get((at, cores, gpus, amounts), 0)
        if word & ~have:
            wrong[at] = wrong.get(at, 0) | word & ~have
        held[at, cores, gpus, amounts] = have & ~word
    if wrong:
        ranks = Idset(mask_of(wrong))
        raise RemoteProtocolError(f"free of job {holding.jobid}: it does not hold this on ranks {ranks}")
    return tuple([Block(at, word, cores, gpus, amounts) for (at, cores, gpus, amounts), word in held.items() if word])


# ---- check

NOTHING: Final = Part(NO_TARGET, 0, 0)
"""Part for a target on which no job holds anything."""


def check_held(
    holdings: Mapping[int, Holding],
    pools: Sequence[Pool],
    by_word: Mapping[int, Set[int]],
    uncounted: Mapping[int, Set[int]],
) -> None:
    """Asserts it, linear in everything; `by_word` lists jobs by words of ranks, `uncounted` by ranks not in a pool."""
    held: dict[int, Part] = {}
    shared: Amounts = ()
    counted_ranks = EMPTY
    for pool in pools:
        counted_ranks |= pool.ranks
    for jobid, holding in holdings.items():
        shared = total(shared, instance_amounts(holding.blocks))
        _check_elastic(holding)
        for rank, cores, gpus, amounts in parts_in(holding.blocks):
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


def _check_elastic(holding: Holding) -> None:
    elastic = holding.elastic
    if elastic is None:
        return
    found = EMPTY
    for part in elastic.parts:
        assert part.ranks.isdisjoint(part.leaving), f"job {holding.jobid} is to leave what it has"
        assert found.isdisjoint(part.ranks | part.leaving), f"job {holding.jobid}: a target is of two parts"
        assert elastic.is_settled or part.size in part.nodes, f"job {holding.jobid}: {part.size} is not in {part.nodes}"
        assert part.base <= part.ranks, f"job {holding.jobid}: a minimum is to go"
        found |= part.ranks | part.leaving
    assert found == ranks_in(holding.blocks), f"job {holding.jobid} holds other targets than its parts have"
    asked = EMPTY
    for ranks in elastic.asked:
        asked |= ranks
    assert asked <= elastic.unstored <= found, f"job {holding.jobid}: {elastic.unstored} are not stored"


def is_free(pool: Pool, part: Part) -> bool:
    """Return whether the pool counts the whole part, and no job holds any of it."""
    if part.rank not in pool:
        return False
    target = pool[part.rank]
    return part.cores & target.cores == part.cores and part.gpus & target.gpus == part.gpus


def check_apart(other: Holding, jobid: int, part: Part) -> None:
    """Check that a job taken over shares nothing with another one. Raise RemoteProtocolError if it does."""
    cores, gpus = other.parts[part.rank]
    if cores & part.cores or gpus & part.gpus:
        raise RemoteProtocolError(
            f"hello: jobs {other.jobid} and {jobid} both hold rank {part.rank}, "
            f"cores {Idset(cores & part.cores)} gpus {Idset(gpus & part.gpus)}"
        )


# ---- elastic

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
                return f"{part} would have {size} nodes, and asks for {part.nodes}"
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
                return f"{part} would have {size} nodes, and asks for {part.nodes}"
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

    def leave(self, ranks: Idset, by_s: float) -> None:
        """Record that the job is to release these targets by `by_s`."""
        for part in self.parts:
            mine = part.ranks & ranks
            part.ranks -= mine
            part.leaving |= mine
        self.leave_by_s = max(self.leave_by_s, by_s) if self.leaving else by_s
        self.leaving |= ranks
        self.choose_base()

    def stay(self, ranks: Idset) -> Idset:
        """Undo a shrink by these targets; return those that the job was to release."""
        found = self.leaving & ranks
        for part in self.parts:
            mine = part.leaving & ranks
            part.leaving -= mine
            part.ranks |= mine
        self.leaving -= ranks
        self.choose_base()
        return found

    def lost(self, ranks: Idset) -> None:
        """Remove targets that the job no longer holds; a job that frees targets it need not release is about to end."""
        if ranks - self.leaving - self.unstored:
            self.is_settled = True
        for part in self.parts:
            part.leaving -= ranks
            part.ranks -= ranks
        self.leaving -= ranks
        self.unstored -= ranks
        self.asked = deque([asked - ranks for asked in self.asked])
        self.grown = [(since_s, left) for since_s, some in self.grown if (left := some - ranks)]
        for part in self.parts:
            part.base -= ranks
        if not self.is_settled:
            self.choose_base()


def targets_of(fit: Fits) -> tuple[Idset, ...]:
    """The targets of each part in a fit."""
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


# ---- resizing

NOT_ELASTIC: Final = "it is not elastic"
ENDING: Final = "it is ending"


def refuses_grow(holding: Holding, fit: Fits, pool: Pool) -> str:
    """Why the job must not get this, even if it is free (`decisions.Grow`); empty if it may."""
    if holding.elastic is None:
        return NOT_ELASTIC
    if holding.is_ending:
        return ENDING
    if not fit.blocks:
        return "the fit has no targets"
    if not once_each(fit.blocks):
        return "the fit names a target twice"
    if held := ranks_in(fit.blocks) & ranks_in(holding.blocks):
        return f"it holds ranks {held} already"
    return holding.elastic.refuses_grow(fit, pool)


def refuses_shrink(holding: Holding, ranks: Idset) -> str:
    """Why the job must not leave these targets (`decisions.Shrink`); empty if it may."""
    if holding.elastic is None:
        return NOT_ELASTIC
    return ENDING if holding.is_ending else holding.elastic.refuses_shrink(ranks)


class ElasticJobs:
    """The running jobs that may change their size, `by_id`; those that may have more are `growable`, too."""

    __slots__ = ("by_id", "growable")

    def __init__(self) -> None:
        self.by_id: dict[int, Holding] = {}
        self.growable: dict[int, Holding] = {}

    def begins(self, holding: Holding, fit: Fits) -> Blocks:
        """Enter an elastic job that has started, and return its blocks beyond its minima."""
        by_part = targets_of(fit)
        return self.adopts(holding, Elastic(fit.shape, by_part, by_part[0].min()))

    def adopts(self, holding: Holding, elastic: Elastic | None) -> Blocks:
        """Enter a job found running (`elastic` None: it is not elastic), and return its blocks beyond its minima."""
        holding.elastic = elastic
        if elastic is None:
            return ()
        self.by_id[holding.jobid] = holding
        self._note(holding)
        return holding.on_ranks(ranks_in(holding.blocks) - elastic.base)

    def ended(self, jobid: int) -> None:
        """Remove a job that holds nothing any more."""
        del self.by_id[jobid]
        self.growable.pop(jobid, None)

    def settle(self, holding: Holding) -> None:
        """Fix the size of a job from now on."""
        assert holding.elastic is not None
        holding.elastic.is_settled = True
        self._note(holding)

    def _note(self, holding: Holding) -> None:
        if holding.elastic is not None and holding.elastic.can_grow:
            self.growable[holding.jobid] = holding
        else:
            self.growable.pop(holding.jobid, None)

    def grows(self, holding: Holding, fit: Fits, book: UsageBook | None, now_s: float) -> None:
        """Add a fit to the resources of a job."""
        assert holding.elastic is not None
        holding.elastic.add(fit, now_s)
        shared = tuple([block for block in holding.blocks if block.at == NO_TARGET])
        holding.blocks = (*joined((*on_targets(holding.blocks), *fit.blocks)), *shared)
        if book is not None and holding.account is not None:
            book.changes(holding.account, fit.blocks, 1, False, now_s)
        self._note(holding)

    def leaves(self, holding: Holding, ranks: Idset, by_s: float, book: UsageBook | None, now_s: float) -> None:
        """Record that the job is to release these targets by `by_s`."""
        assert holding.elastic is not None
        before = holding.elastic.base
        holding.elastic.leave(ranks, by_s)
        _move_base(holding, before, book, now_s)
        self._note(holding)

    def stays(self, holding: Holding, ranks: Idset, book: UsageBook | None, now_s: float) -> Idset:
        """Undo a shrink by these targets; return those that the job was to release and still holds."""
        assert holding.elastic is not None
        before = holding.elastic.base
        found = holding.elastic.stay(ranks)
        _move_base(holding, before, book, now_s)
        self._note(holding)
        return found

    def freed(self, holding: Holding, ranks: Idset, book: UsageBook | None, now_s: float) -> None:
        """Remove targets that the job has freed while it holds others."""
        assert holding.elastic is not None
        before = holding.elastic.base - ranks
        holding.elastic.lost(ranks)
        _move_base(holding, before, book, now_s)
        self._note(holding)


def beyond_base(holding: Holding, blocks: Blocks) -> Blocks:
    """Return the part of these blocks, which the job is about to free, that is beyond its minima."""
    return () if holding.elastic is None else holding.on_ranks(ranks_in(blocks) - holding.elastic.base)


def _move_base(holding: Holding, before: Idset, book: UsageBook | None, now_s: float) -> None:
    """Book the change of the targets that count as minima, if caps of accounts count them: the job cannot be preempted.
    """
    if book is None or holding.account is None or holding.preemptible_after_s is not None:
        return
    after = EMPTY if holding.elastic is None else holding.elastic.base
    if after == before:
        return
    old, new = holding.on_ranks(before - after), holding.on_ranks(after - before)
    if book.amounts.of_blocks(old) == book.amounts.of_blocks(new):
        return  # as many of equals
    for blocks, is_firm in ((old, False), (new, True)):
        if blocks:
            book.changes(holding.account, blocks, -1, not is_firm, now_s)
            book.changes(holding.account, blocks, 1, is_firm, now_s)
