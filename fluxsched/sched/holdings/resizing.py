"""What becomes of an elastic job's holding and its account as it gets targets, is to leave some, and frees them.

Law: called by the ledger alone, in the step in which it changes what is free. What a job has beyond its minima counts
in its account like all else, but never as that of a job that may not be preempted: it may always go.
"""

from __future__ import annotations

from typing import Final

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.sched.holdings.elastic import Elastic, targets_of
from fluxsched.sched.holdings.holding import Holding, once_each
from fluxsched.sched.pool.placement import NO_TARGET, Blocks, Fits, joined, on_targets, ranks_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.usage.book import UsageBook

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
        """A job has started that may change its size; what it has beyond its minima."""
        by_part = targets_of(fit)
        return self.adopts(holding, Elastic(fit.shape, by_part, by_part[0].min()))

    def adopts(self, holding: Holding, elastic: Elastic | None) -> Blocks:
        """A job is found that may change its size (None: it may not); what it has beyond its minima."""
        holding.elastic = elastic
        if elastic is None:
            return ()
        self.by_id[holding.jobid] = holding
        self._note(holding)
        return holding.on_ranks(ranks_in(holding.blocks) - elastic.base)

    def ended(self, jobid: int) -> None:
        """The job holds nothing any more."""
        del self.by_id[jobid]
        self.growable.pop(jobid, None)

    def settle(self, holding: Holding) -> None:
        """The job keeps its size from now on."""
        assert holding.elastic is not None
        holding.elastic.is_settled = True
        self._note(holding)

    def _note(self, holding: Holding) -> None:
        if holding.elastic is not None and holding.elastic.can_grow:
            self.growable[holding.jobid] = holding
        else:
            self.growable.pop(holding.jobid, None)

    def grows(self, holding: Holding, fit: Fits, book: UsageBook | None, now_s: float) -> None:
        """The job has this, too."""
        assert holding.elastic is not None
        holding.elastic.add(fit, now_s)
        shared = tuple([block for block in holding.blocks if block.at == NO_TARGET])
        holding.blocks = (*joined((*on_targets(holding.blocks), *fit.blocks)), *shared)
        if book is not None and holding.account is not None:
            book.changes(holding.account, fit.blocks, 1, False, now_s)
        self._note(holding)

    def leaves(self, holding: Holding, ranks: Idset, by_s: float, book: UsageBook | None, now_s: float) -> None:
        """The job is to leave these targets by then."""
        assert holding.elastic is not None
        before = holding.elastic.base
        holding.elastic.leave(ranks, by_s)
        _move_base(holding, before, book, now_s)
        self._note(holding)

    def stays(self, holding: Holding, ranks: Idset, book: UsageBook | None, now_s: float) -> Idset:
        """The job is not to leave these targets; those of them that it was to leave, and still holds."""
        assert holding.elastic is not None
        before = holding.elastic.base
        found = holding.elastic.stay(ranks)
        _move_base(holding, before, book, now_s)
        self._note(holding)
        return found

    def freed(self, holding: Holding, ranks: Idset, book: UsageBook | None, now_s: float) -> None:
        """The job holds these targets no more, and others."""
        assert holding.elastic is not None
        before = holding.elastic.base - ranks
        holding.elastic.lost(ranks)
        _move_base(holding, before, book, now_s)
        self._note(holding)


def beyond_base(holding: Holding, blocks: Blocks) -> Blocks:
    """What of these blocks, which the job is about to free, is beyond its minima."""
    return () if holding.elastic is None else holding.on_ranks(ranks_in(blocks) - holding.elastic.base)


def _move_base(holding: Holding, before: Idset, book: UsageBook | None, now_s: float) -> None:
    """Other targets count as the minima of a job that cannot be preempted, which caps of accounts count."""
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
