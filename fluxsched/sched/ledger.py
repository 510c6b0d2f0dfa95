"""What each job holds: the only writer of holdings (law 2), which also ensures that nothing is held twice (law 5).

Law: `commit` takes a job off its queue and marks its blocks in one step, or refuses and changes nothing; `release` and
`adopt` check everything before they change anything. A holding may be outside what the pools count, because a target
was shrunk or never acquired (foreign): its free is accepted, and no pool changes. Costs follow a job's blocks; the
holders of a target are found by its word.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.decisions import Start
from fluxsched.sched.holdings.check import check_apart, check_booked, check_held, is_free
from fluxsched.sched.holdings.elastic import Elastic
from fluxsched.sched.holdings.holding import Holding, amounts_held, covers, once_each, without
from fluxsched.sched.holdings.resizing import ElasticJobs, beyond_base, refuses_grow, refuses_shrink
from fluxsched.sched.pool.bitset import WORD_SHIFT, ids_of, mask_of, words_of
from fluxsched.sched.pool.placement import (
    NO_TARGET,
    Block,
    Blocks,
    Fits,
    Part,
    instance_amounts,
    instance_block,
    joined,
    on_targets,
    parts_in,
    ranks_in,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue.pending import PendingJobs
from fluxsched.sched.quotas.queue import Application, AskOptions
from fluxsched.sched.quotas.tree import QueueTree
from fluxsched.sched.usage.book import UsageBook, safe_of

__all__ = ["Holding", "Ledger"]


class Ledger:
    """All holdings in all pools of a scheduler; a rank is in at most one pool.

    `book` are the accounts, if kept, and `quotas` the tree of queues, if there is one.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._others = pools[1:]
        self._first = pools[0] if pools else Pool()
        self.instance_countables = self._first.instance_countables
        for pool in pools:
            pool.instance_countables = self.instance_countables
        self.book: UsageBook | None = None
        self.quotas: QueueTree | None = None
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
        """Those of the ranks on which a job holds something."""
        found: dict[int, int] = {}
        for holding in self.holders(ranks):
            for at, word, *_ in holding.on(dict(words_of(ranks.mask))):
                found[at] = found.get(at, 0) | word
        return Idset(mask_of(found))

    def commit(
        self, start: Start, queue: PendingJobs, pool: Pool, expiration_s: float, now_s: float = 0.0
    ) -> Holding | None:
        """Makes one decision real, or refuses it (None): the job or its place is gone, or the fit is not the job's.

        An ask that would exceed a maximum or a limit of its queue is refused, too.
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
        quotas = self.quotas
        application = None if quotas is None else job.application
        if application is not None and quotas is not None and not quotas.admits(application, shape.request.amounts):
            return None
        holding = self.take(jobid, fit.blocks, pool, expiration_s, now_s)
        if holding is not None:
            if application is not None and quotas is not None:
                holding.application, holding.options, holding.priority = application, job.options, job.priority
                quotas.book(application, jobid, shape.request.amounts)
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

    def adopt_ask(
        self, jobid: int, blocks: Blocks, application: Application, started_s: float, options: AskOptions, priority: int
    ) -> Holding:
        """Takes over an allocation that a resource manager has: a fact, whatever the quotas and the target hold.

        Raises RemoteProtocolError if the job holds something already.
        """
        if jobid in self.holdings:
            raise RemoteProtocolError(f"allocation {jobid} is here already")
        for pool in self._pools:
            pool.claim(blocks)
        holding = Holding(jobid, blocks, 0.0, started_s, None, 0.0)
        holding.application, holding.options, holding.priority = application, options, priority
        self._enter(holding)
        self._note_uncounted(jobid, blocks)
        if self.quotas is not None:
            self.quotas.book(application, jobid, amounts_held(blocks))
        return holding

    def replace(self, old: int, new: int, blocks: Blocks, now_s: float) -> tuple[Holding, list[int]]:
        """Hands over from one job to another, which gets these blocks, in one step; what is left over is freed.

        Raises RemoteProtocolError, and changes nothing, if the one does not hold as much there, or the other does.
        """
        before = self.holdings.get(old)
        if before is None or new in self.holdings or not covers(before.blocks, blocks):
            raise RemoteProtocolError(f"job {old} cannot hand over to {new}: it holds less, or {new} has something")
        application = before.application
        emptied = self._end(before, before.blocks, (), now_s)
        for pool in self._pools:
            pool.claim(blocks)
        holding = Holding(new, blocks, before.expiration_s, now_s, before.account, before.preemptible_after_s)
        self._enter(holding)
        self._note_uncounted(new, blocks)
        if application is not None and self.quotas is not None:
            holding.application, holding.options, holding.priority = application, before.options, before.priority
            self.quotas.book(application, new, amounts_held(blocks))
        return holding, [rank for rank in emptied if rank not in self._uncounted]

    def release(self, jobid: int, blocks: Blocks, final: bool, now_s: float = 0.0) -> list[int]:
        """Takes back what a job frees; returns the ranks that no pool counts and that no job holds any more.

        A rank is freed whole; what the job has of the instance's countables is freed with the last of its ranks,
        whether it is named or not. Raises RemoteProtocolError, and changes nothing, when the job does not hold exactly
        that, or when `final` leaves something behind.
        """
        holding = self.holdings.get(jobid)
        if holding is None:
            if not blocks:
                return []  # the last mark of a job whose parts were all freed before
            raise RemoteProtocolError(f"free of job {jobid}: it holds nothing here, or was freed before")
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
            raise RemoteProtocolError(f"free of job {jobid}: it holds nothing here, or was freed before")
        return self._end(holding, holding.blocks, (), now_s)

    def count_in(self, ranks: Idset) -> None:
        """Marks what is held on ranks that a pool has just begun to count: it is no longer foreign."""
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
        """How many jobs hold something that no pool counts."""
        return len(set().union(*self._uncounted.values()))

    def check(self) -> None:
        """Asserts that free and held are all there is, and nothing is both or held twice; linear in everything."""
        check_held(self.holdings, self._pools, self._by_word, self._uncounted)
        if self.book is not None:
            self.book.check(self)
        if self.quotas is not None:
            check_booked(self.holdings.values(), self.quotas)

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
        """Takes back what the job manager has not stored; the ranks that no pool counts and that no job holds now.

        Raises RemoteProtocolError if the job did not get these, or they were stored.
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
        """The job is not to leave these targets; those of them that it was to leave, and still holds."""
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
        """A job that holds something was preempted, and is to be gone by then (wall time, seconds)."""
        self.holdings[jobid].gone_by_s = by_s

    def end_on(self, ranks: Idset, spared: Container[int] = ()) -> list[Holding]:
        """The holdings on these ranks, which were shrunk, whose jobs now have to end; each is named once."""
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
        """A job frees some blocks and keeps what is left."""
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
        if self.quotas is not None and holding.application is not None:
            self.quotas.free(holding.application, jobid, amounts_held(blocks) if left else (), not left)
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
    """What is left for the other pools when the first one has changed the countables of the instance."""
    return blocks[:-1] if blocks and blocks[-1].at == NO_TARGET else blocks
