"""What would go for one ask, node by node.

Law: a node is looked at if it may be used and could hold the ask, and others are not going there for another ask; what
is just reserved is taken over. Candidates are running jobs of queues that may lose them, not of the ask's application,
and not going already.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from fluxsched.core.amounts import Amounts
from fluxsched.sched.policies.tree.guarantees import Claim
from fluxsched.sched.policies.tree.victims import Candidate, Order, VictimKind, fewest, more
from fluxsched.sched.policy import AskedAmounts, View, Waiting, rank_of
from fluxsched.sched.quotas.queue import Application

LOOKED_AT_MAX = 16_384
"""Running jobs that are looked at for one ask; then the best node so far is taken."""

NODES_AT_ONCE: Final = 128
"""Nodes that are looked at between two pauses: some milliseconds."""


class Offer(NamedTuple):
    """What would go on a node; of two offers the lesser is better. `further` are those that might go as well."""

    kind: VictimKind
    victims: int
    orders: tuple[Order, ...]
    rank: int
    chosen: list[Candidate]
    further: list[Candidate]


class HeldOnNode(NamedTuple):
    """A running job on a node."""

    order: Order
    jobid: int
    application: Application
    amounts: Amounts


class NodeSearch:
    """The search for one ask, in slices: `go_on` until it `is_over`.

    Then `offers` has the best, or with `keeps_all` what would do on each node.
    """

    __slots__ = ("_claim", "_job", "_keeps_all", "_nodes", "_view", "is_over", "looked_at", "offers")

    def __init__(self, job: Waiting, claim: Claim, view: View, keeps_all: bool = False) -> None:
        self._job = job
        self._keeps_all = keeps_all
        self._claim = claim
        self._view = view
        self.looked_at = 0
        self._nodes: Iterator[tuple[int, list[HeldOnNode]]] = iter(sorted(self._by_node().items()))
        self.offers: list[Offer] = []
        self.is_over = False

    def go_on(self) -> None:
        """Looks at some more nodes."""
        with self._view.if_gone() as what_if:
            if what_if.fits(self._job.shape):
                self.offers.clear()
                self.is_over = True
                return
            asked = what_if.asked(self._job.shape)
            nodes = list(islice(self._nodes, NODES_AT_ONCE))
            for rank, held in nodes:
                self._look_at(rank, held, asked)
        self.is_over = not nodes

    def _by_node(self) -> dict[int, list[HeldOnNode]]:
        """Jobs that may go, as far as their queues are concerned."""
        found: dict[int, list[HeldOnNode]] = {}
        running, only = self._view.preemptions.running, self._job.options.node
        for application in self._claim.losers():
            for jobid, amounts in application.allocations.items():
                holding = running.jobs.get(jobid)
                if holding is None:
                    continue
                self.looked_at += 1
                rank = rank_of(holding)
                if only is None or rank == only:
                    options = holding.options
                    order = not options.may_be_preempted, options.is_originator, holding.priority
                    held = HeldOnNode((*order, -holding.started_s, -jobid), jobid, application, amounts)
                    found.setdefault(rank, []).append(held)
            if self.looked_at >= LOOKED_AT_MAX:
                break
        return found

    def _look_at(self, rank: int, held: list[HeldOnNode], asked: AskedAmounts) -> None:
        lacking, claim = asked.lacking_on(rank, self._may_take(rank)), self._claim
        if not lacking:
            return
        served = claim.served([*lacking, *[each.kind for each in claim.excess]])
        if served is None:
            return
        lacking.update({each.key: each.amount for each in claim.excess})
        candidates = []
        for order, jobid, application, amounts in held:
            losing = claim.losing(application, order[2], served)
            if losing:
                frees = amounts
                for each in claim.excess:
                    frees += each.freed(application, amounts)
                above = tuple([claim.above(queue) for queue in losing])
                candidates.append(Candidate(order, jobid, amounts, frees, above))
        candidates.sort(key=_order)
        known = (self.offers[0].kind, self.offers[0].victims) if self.offers and not self._keeps_all else None
        chosen = fewest(candidates, lacking, known)
        if chosen is None:
            return
        further = more(candidates, chosen) if self._keeps_all else []
        orders = tuple([each.order for each in reversed(chosen)])
        offer = Offer(chosen[-1].kind, len(chosen), orders, rank, chosen, further)
        if self._keeps_all or not self.offers:
            self.offers.append(offer)
        elif offer < self.offers[0]:
            self.offers[0] = offer

    def _may_take(self, rank: int) -> bool:
        """Whether a node may be had though it is reserved: for an ask that can go elsewhere, and none goes for it."""
        view = self._view
        jobid = view.reserved_nodes.holder(rank)
        if jobid is None or jobid == self._job.jobid:
            return True
        other = view.job(jobid)
        return jobid not in view.preemptions.awaited and (other is None or other.options.node is None)


def _order(candidate: Candidate) -> Order:
    return candidate.order
