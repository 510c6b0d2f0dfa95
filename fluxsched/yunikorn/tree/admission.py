"""Admission of asks by a tree of queues: what a scheduler asks of the tree, and what the tree learns of its nodes.

Law: the terms of an ask are its application and its options; nothing else has terms in such a scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, cast

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import Idset
from fluxsched.core.request import Request
from fluxsched.sched.admission import AdmissionControl, Exceeded, JobIndex
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import BINPACKING, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.sorted_jobs import AdmissionTerms
from fluxsched.yunikorn.tree.asks import Asks
from fluxsched.yunikorn.tree.queue import AskTerms
from fluxsched.yunikorn.tree.queue_tree import QueueTree, admits, first_exceeded

QUOTA_RATE, QUOTA_WINDOW_S = 10, 1.0
"""Maximum number of preemptions in a tree of queues, and the window for it (seconds)."""


class QuotaAdmission(AdmissionControl):
    """Quotas of a tree of queues."""

    __slots__ = ("tree",)

    def __init__(self, tree: QueueTree) -> None:
        super().__init__(is_open_ended=True, preemption_rate=(QUOTA_RATE, QUOTA_WINDOW_S))
        self.tree: Final = tree

    @property
    def generation(self) -> int:
        return self.tree.order.generation

    def renew(self) -> None:
        self.tree.order.generation += 1

    def index(self, pool: Pool) -> JobIndex | None:
        return Asks(self.tree, partial(has_room, pool))

    def change_capacity(self, pool: Pool, targets: Idset, sign: int) -> None:
        """Add the capacity of these targets, up or down, to the root's maximum, or (sign -1) subtract it."""
        by_rank = pool.amount_targets.by_rank
        for rank in targets:
            if rank in by_rank:
                self.tree.change_capacity(by_rank[rank].offered(), sign)

    def admits(self, terms: AdmissionTerms, amounts: Amounts) -> bool:
        return admits(cast(AskTerms, terms).application, amounts)

    def exceeded(self, terms: AdmissionTerms, amounts: Amounts) -> Exceeded | None:
        return first_exceeded(cast(AskTerms, terms).application, amounts)

    def book(self, terms: AdmissionTerms, jobid: int, amounts: Amounts) -> None:
        self.tree.book(cast(AskTerms, terms).application, jobid, amounts)

    def free(self, terms: AdmissionTerms, jobid: int, amounts: Amounts, all_of_it: bool) -> None:
        self.tree.free(cast(AskTerms, terms).application, jobid, amounts, all_of_it)

    def describe(self, terms: AdmissionTerms) -> str:
        application = cast(AskTerms, terms).application
        return f"of application {application.id} in queue {application.queue.path}"

    def check(self, held: Iterable[tuple[int, AdmissionTerms, Amounts]]) -> None:
        self.tree.check()
        for jobid, terms, amounts in held:
            booked = cast(AskTerms, terms).application.allocations.get(jobid)
            assert booked == amounts, f"job {jobid} holds {amounts}, {booked} is booked"


def has_room(pool: Pool, amounts: Amounts) -> bool:
    """Return whether these amounts fit on some target now."""
    shape = Shape(Request.of_amounts(amounts))
    fits = find_fit(pool, shape, BINPACKING) is not None
    pool.prepared.pop(shape.number, None)  # it does not come again
    return fits
