"""What would go for one ask, node by node.

Law: a node is looked at if it may be used and could hold the ask, and others are not going there for another ask; what
is just reserved is taken over. Candidates are running jobs of queues that may lose them, not of the ask's application,
and not going already. What a node lacks has to come free there; what is over a maximum, anywhere below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from fluxsched.core.amounts import Amounts
from fluxsched.sched.policies.tree.guarantees import Claim, Excess
from fluxsched.sched.policies.tree.victims import Candidate, Order, VictimKind, fewest, more
from fluxsched.sched.policy import AskedAmounts, IfGone, View, Waiting, rank_of
from fluxsched.sched.quotas.queue import Application, Queue

LOOKED_AT_MAX = 16_384
"""Running jobs that are looked at for one ask; then the best node so far is taken."""

ELSEWHERE_MAX = 256
"""Running jobs anywhere, the first in the order of victims, that are tried so that an ask stays within a maximum."""

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
    rank: int


class NodeSearch:
    """The search for one ask, in slices: `go_on` until it `is_over`.

    Then `offers` has the best, or with `keeps_all` what would do on each node.
    """

    __slots__ = (
        "_claim", "_elsewhere", "_held", "_job", "_keeps_all", "_nodes", "_view", "is_over", "looked_at", "offers",
    )  # fmt: skip

    def __init__(self, job: Waiting, claim: Claim, view: View, keeps_all: bool = False) -> None:
        self._job = job
        self._keeps_all = keeps_all
        self._claim = claim
        self._view = view
        self.looked_at = 0
        self._held = self._running()
        self._elsewhere: dict[tuple[Queue, tuple[str, ...]], list[tuple[int, Candidate]]] = {}
        self._nodes: Iterator[tuple[int, list[HeldOnNode]]] = iter(sorted(self._by_node().items()))
        self.offers: list[Offer] = []
        self.is_over = False

    def go_on(self) -> None:
        """Looks at some more nodes."""
        with self._view.if_gone() as what_if:
            asked = what_if.asked(self._job.shape)
            room = self._with_room(what_if, asked)
            if room:
                self.offers.clear()
                self.is_over = True
                if self._claim.excess:
                    for rank in room:
                        self._look_at(rank, [], asked)
                return
            nodes = list(islice(self._nodes, NODES_AT_ONCE))
            for rank, held in nodes:
                self._look_at(rank, held, asked)
        self.is_over = not nodes

    def _with_room(self, what_if: IfGone, asked: AskedAmounts) -> list[int]:
        """Return nodes where the ask fits once all that are going are gone; no more than the judge may want."""
        job, reserved = self._job, self._view.reserved_nodes
        if job.options.node is not None:
            mine = job.options.node
        else:
            fit = what_if.find(job.shape)
            if fit is not None and self._keeps_all and self._claim.excess:
                ranks = reserved.best_first(job)
                return [rank for rank in ranks if asked.lacking_on(rank, self._may_take(rank)) == {}]
            if fit is not None:
                return [part.rank for part in fit.parts]
            mine = reserved.by_job.get(job.jobid, -1)
        return [mine] if asked.lacking_on(mine, self._may_take(mine)) == {} else []

    def _by_node(self) -> dict[int, list[HeldOnNode]]:
        found: dict[int, list[HeldOnNode]] = {}
        only = self._job.options.node
        for held in self._held:
            if only is None or held.rank == only:
                found.setdefault(held.rank, []).append(held)
        return found

    def _running(self) -> list[HeldOnNode]:
        """Jobs that may go, as far as their queues are concerned."""
        found: list[HeldOnNode] = []
        running = self._view.preemptions.running
        for application in self._claim.losers():
            for jobid, amounts in application.allocations.items():
                holding = running.jobs.get(jobid)
                if holding is None:
                    continue
                self.looked_at += 1
                options = holding.options
                order = not options.may_be_preempted, options.is_originator, holding.priority
                place = (*order, -holding.started_s, -jobid)
                found.append(HeldOnNode(place, jobid, application, amounts, rank_of(holding)))
            if self.looked_at >= LOOKED_AT_MAX:
                break
        return found

    def _look_at(self, rank: int, held: list[HeldOnNode], asked: AskedAmounts) -> None:
        lacking, claim = asked.lacking_on(rank, self._may_take(rank)), self._claim
        if lacking is None:
            return
        excess = [each for each in claim.excess if not each.is_freed_by(lacking)]
        if not lacking and not excess:
            return
        served = claim.served([*lacking, *[each.kind for each in excess]])
        if served is None:
            return
        lacking.update({each.key: each.amount for each in excess})
        candidates = []
        for each in held:
            found = self._candidate(each, served, each.amounts, excess)
            if found is not None:
                candidates.append(found)
        if excess:
            candidates += [found for there, found in self._under_maxima(served, excess) if there != rank or not held]
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

    def _under_maxima(self, served: Queue, excess: Sequence[Excess]) -> list[tuple[int, Candidate]]:
        """Return those that bring the ask within the maxima that it is over, wherever they run, with their nodes."""
        key = served, tuple([each.key for each in excess])
        found = self._elsewhere.get(key)
        if found is None:
            found = self._elsewhere[key] = []
            for held in sorted(self._held, key=_held_order):
                candidate = self._candidate(held, served, (), excess)
                if candidate is not None and candidate.frees and candidate.allows:
                    found.append((held.rank, candidate))
                    if len(found) >= ELSEWHERE_MAX:
                        break
        return found

    def _candidate(
        self, held: HeldOnNode, served: Queue, frees: Amounts, excess: Sequence[Excess]
    ) -> Candidate | None:
        """Return a job that may go, which `frees` this on the node, and what of the excess; None if it may not."""
        claim, application = self._claim, held.application
        losing = claim.losing(application, held.order[2], served)
        if not losing:
            return None
        for each in excess:
            frees += each.freed(application, held.amounts)
        above = tuple([claim.above(queue) for queue in losing])
        return Candidate(held.order, held.jobid, held.amounts, frees, above)

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


def _held_order(held: HeldOnNode) -> Order:
    return held.order
