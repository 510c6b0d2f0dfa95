"""Reservations and preemption for asks that cannot start: which ask gets which node, and which running jobs go for it.

Law: only what has failed in this generation for lack of a node is looked at, in the order in which it failed. Jobs go
for an ask that allows it, has waited for the delay of its leaf, and may take back for one of its queues what is
lacking, on a node or under a maximum; a node is reserved for it until they are gone. If a node has room, that one is
taken; else the one where those go that come first by kind, then the fewest, then the first in the order of victims,
then the lowest rank. No more go at a time than the rate allows, and while some are going for an ask no others go for
it. Candidates are running jobs of queues that may lose them, not of the ask's application, and not going already. What
a node lacks has to come free there; what is over a maximum, anywhere below it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from math import ceil, inf
from typing import Final, NamedTuple, TypeAlias, cast

from fluxsched.core.quantities import Amounts, format_duration
from fluxsched.sched.policies.backfill import NOT_ENOUGH, cannot_preempt, rate_reached
from fluxsched.sched.policy import (
    PAUSE,
    UNKNOWN,
    AskedAmounts,
    Decision,
    PendingJob,
    Preempt,
    Preemptions,
    View,
    Wake,
    WhatIfPreempted,
    Withhold,
    rank_of,
)
from fluxsched.yunikorn.tree.asks import Asks
from fluxsched.yunikorn.tree.queue import Application, AskTerms, Queue, ask_of
from fluxsched.yunikorn.tree.queue_tree import may_begin
from fluxsched.yunikorn.tree.victims import Candidate, Changes, Claim, Excess, Order, VictimKind, fewest, more

LOOKED_AT_MAX = 16_384
"""Running jobs that are looked at for one ask; then the best node so far is taken."""

ELSEWHERE_MAX = 256
"""Running jobs anywhere, the first in the order of victims, that are tried so that an ask stays within a maximum."""

NODES_AT_ONCE: Final = 128
"""Nodes that are looked at between two pauses: some milliseconds."""


class Offer(NamedTuple):
    """Jobs to preempt on a node; of two offers the lesser is better.

    `further` are those that might be preempted as well.
    """

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

    def __init__(self, job: PendingJob, claim: Claim, view: View, keeps_all: bool = False) -> None:
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
        """Look at some more nodes."""
        with self._view.if_gone(self._job) as what_if:
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

    def _with_room(self, what_if: WhatIfPreempted, asked: AskedAmounts) -> list[int]:
        """Return nodes where the ask fits once all that are going are gone; no more than the judge may want."""
        job, reserved = self._job, self._view.reserved_nodes
        node = ask_of(job).options.node
        if node is not None:
            mine = node
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
        only = ask_of(self._job).options.node
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
                allocation = running.jobs.get(jobid)
                if allocation is None:
                    continue
                self.looked_at += 1
                options = cast(AskTerms, allocation.terms).options
                order = not options.may_be_preempted, options.is_originator, allocation.priority
                place = (*order, -allocation.started_s, -jobid)
                found.append(HeldOnNode(place, jobid, application, amounts, rank_of(allocation)))
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
        """Return whether a reserved node may be taken: its ask can be placed elsewhere, and no job is preempted for
        that ask.
        """
        view = self._view
        jobid = view.reserved_nodes.holder(rank)
        if jobid is None or jobid == self._job.jobid:
            return True
        other = view.job(jobid)
        return jobid not in view.preemptions.awaited and (other is None or ask_of(other).options.node is None)


def _order(candidate: Candidate) -> Order:
    return candidate.order


def _held_order(held: HeldOnNode) -> Order:
    return held.order


# ---- preemption

LOOKED_AT_A_PASS_MAX = 65_536
"""Running jobs that are looked at in a pass; other asks have their turn in the next."""

OFFERS_MAX = 64
"""Nodes that a judge is asked about for one ask, the best first; a callback each."""

Judge: TypeAlias = Callable[[PendingJob, int, Sequence[int], int], int | None]
"""(job, rank, ids of those that may go in order, index of the last that must) -> index of the last that does go; None
if the job does not start there even so.
"""


class TreePreemption:
    """Preemptions of one pass at `now_s` (wall time, seconds); `judge` has the final decision on each node.

    Of asks that are equal in all that matters here only the first is searched for. The longer searches without success
    take, the longer is the pause after them.
    """

    __slots__ = ("_changes", "_in_vain", "_judge", "_looked_at", "_now_s", "_preemptions", "_rests_until_s", "_view")

    def __init__(self, view: View, now_s: float, judge: Judge | None = None) -> None:
        self._view = view
        self._now_s = now_s
        self._judge = judge
        self._preemptions = view.preemptions
        self._rests_until_s = view.preemptions.rests_until_s(UNKNOWN, now_s)
        self._changes: Changes | None = None
        self._in_vain: set[tuple[Application, int, int, int | None]] = set()
        self._looked_at = 0

    def decide(self, job: PendingJob) -> Iterator[Decision]:
        """Yield the preemptions for an ask that cannot start now."""
        preemptions, now_s, ask = self._preemptions, self._now_s, ask_of(job)
        application = ask.application
        if not ask.options.may_preempt or job.jobid in preemptions.awaited:
            return
        if not preemptions.running.jobs or not preemptions.rate:
            return
        kind = application, job.shape.number, job.priority, ask.options.node
        if kind in self._in_vain or self._looked_at >= LOOKED_AT_A_PASS_MAX:
            return
        due_s = max(
            job.t_submit_s + application.queue.settings.preemption_delay_s,
            self._rests_until_s,
            preemptions.next_s(1, now_s),
        )
        if due_s > now_s:
            yield Wake(due_s)
            return
        rank, victims = yield from self._search(job, application)
        again_s = preemptions.next_s(len(victims), now_s)
        if not victims or again_s > now_s:
            self._in_vain.add(kind)
            if now_s < again_s < inf:
                yield Wake(again_s)
            return
        self._changes = None
        reason = f"{application.queue.path} takes back its guarantee"
        for victim in victims:
            yield Preempt(victim.jobid, job.jobid, reason)
        yield Withhold(job.jobid, rank, takes_over=True)

    def _search(
        self, job: PendingJob, application: Application
    ) -> Generator[Decision, None, tuple[int, list[Candidate]]]:
        """Search a node for the ask; return its rank and the jobs to preempt there, or -1 and none."""
        claim = Claim(application, job.request.amounts, job.priority, self._counted())
        if claim.is_vain:
            return -1, []
        search = NodeSearch(job, claim, self._view, self._judge is not None)
        while not search.is_over:
            search.go_on()
            yield PAUSE
        self._looked_at += search.looked_at
        found = self._judged(job, search.offers)
        if not found[1]:
            self._preemptions.searched_in_vain(UNKNOWN, self._looked_at, self._now_s)
        return found

    def _judged(self, job: PendingJob, offers: list[Offer]) -> tuple[int, list[Candidate]]:
        """Return the best node, or the best that the judge accepts, and those that go there."""
        offers.sort()
        for offer in offers[:OFFERS_MAX]:
            if self._judge is None:
                return offer.rank, offer.chosen
            line = [*offer.chosen, *offer.further]
            last = self._judge(job, offer.rank, [each.jobid for each in line], len(offer.chosen) - 1)
            if last is not None:
                return offer.rank, line[: max(last + 1, len(offer.chosen))]
        return -1, []

    def _counted(self) -> Changes:
        """Return the changes by jobs being preempted and by the asks that they are preempted for."""
        if self._changes is None:
            self._changes = changes_of(self._preemptions, self._view.job, self._preemptions.awaited)
        return self._changes


def why_not_preempted(
    waiting: Callable[[int], PendingJob | None], job: PendingJob, preemptions: Preemptions, now_s: float
) -> str:
    """Return what keeps running jobs from being preempted for an ask, as a pass would find it first; empty if some are
    going for it. `waiting` has the asks by id.
    """
    if job.terms is None or job.jobid in preemptions.awaited:
        return ""
    application, running = ask_of(job).application, preemptions.running
    if not ask_of(job).options.may_preempt:
        return "no job is preempted for it: it may preempt none (allowPreemptOther)"
    if not (running.jobs and preemptions.rate):
        return cannot_preempt(preemptions)
    claim = Claim(application, job.request.amounts, job.priority, changes_of(preemptions, waiting, preemptions.awaited))
    queue = application.queue
    if claim.is_vain:
        if not may_begin(application):
            return "no job is preempted for it: its application may not begin yet"
        return "no job is preempted for it: with it no queue above it stays within its guarantee"
    if not any(True for _ in claim.victims(running.jobs)):
        return "no job is preempted for it: no preemptible job of another queue is beyond its guarantee"
    due_s = job.t_submit_s + queue.settings.preemption_delay_s
    if due_s > now_s:
        return f"no job is preempted for it before {format_duration(ceil(due_s - now_s))} from now (preemption.delay)"
    return rate_reached(preemptions, now_s) or NOT_ENOUGH


def changes_of(
    preemptions: Preemptions, waiting: Callable[[int], PendingJob | None], beneficiaries: Iterable[int]
) -> Changes:
    """Return by how much usage differs once all that are going are gone and these asks are placed."""
    changes = Changes()
    for allocation in preemptions.allocations_going():
        if allocation.terms is not None:
            application = cast(AskTerms, allocation.terms).application
            changes.goes(application, application.allocations[allocation.jobid])
    for jobid in beneficiaries:
        job = waiting(jobid)
        if job is not None and job.terms is not None:
            changes.is_to_be_placed(ask_of(job).application, job.request.amounts)
    return changes


# ---- reservations

RESERVE_AFTER_S = 2.0
"""Time that an ask waits until a node is reserved for it (seconds)."""

SEARCHES_A_PASS = 4
"""Different asks for which a pass looks at all nodes: some milliseconds each, at 5,000."""

LINES_A_PASS = 256
"""Lines of asks without a node that a pass looks at."""

LOOK_AGAIN_S = 0.1
"""Delay of the next pass for the asks left over (seconds)."""


REFUSALS_A_PASS = 64
"""Nodes that may be refused in a pass, each by a callback; then no more are reserved in it."""

MayReserve: TypeAlias = Callable[[PendingJob, int], bool]
"""(ask, rank) -> whether the node may be kept for it."""


class _Nodes:
    """Next node for each ask, looked up once for all asks with the same request."""

    __slots__ = ("_by_shape", "_may_reserve", "_refusals", "_view", "searches")

    def __init__(self, view: View, may_reserve: MayReserve | None) -> None:
        self._view = view
        self._may_reserve = may_reserve
        self._by_shape: dict[int, Iterator[int]] = {}
        self._refusals = 0
        self.searches = 0

    def next(self, job: PendingJob) -> int | None:
        node = ask_of(job).options.node
        if node is not None:
            return node if self._may_have(job, node) else None
        nodes = self._by_shape.get(job.shape.number)
        if nodes is None:
            self.searches += 1
            nodes = self._by_shape[job.shape.number] = iter(self._view.reserved_nodes.best_first(job))
        return next((rank for rank in nodes if self._may_have(job, rank)), None)

    def _may_have(self, job: PendingJob, rank: int) -> bool:
        if self._refusals >= REFUSALS_A_PASS or not self._view.reserved_nodes.may_reserve(rank):
            return False
        if self._may_reserve is None or self._may_reserve(job, rank):
            return True
        self._refusals += 1
        return False


def reservations(
    view: View, asks: Asks, now_s: float, may_reserve: MayReserve | None = None
) -> Iterator[Decision]:
    """Reserves nodes for those that wait long enough, and asks for a pass when the next ones do."""
    reserved, nodes, looked_at = view.reserved_nodes, _Nodes(view, may_reserve), 0
    wake_s = inf
    for line in asks.lacking_nodes():
        if looked_at >= LINES_A_PASS or reserved.all_taken:
            break
        if nodes.searches >= SEARCHES_A_PASS:
            wake_s = min(wake_s, now_s + LOOK_AGAIN_S)
            break
        missed = False
        for job in line.in_order():
            if job.jobid in reserved.by_job:
                continue
            due_s = now_s if line.node is not None else job.t_submit_s + RESERVE_AFTER_S
            missed = True
            if due_s > now_s:
                wake_s = min(wake_s, due_s)
                break
            rank = nodes.next(job)
            if rank is None:
                break
            yield Withhold(job.jobid, rank)
        looked_at += missed
    wake_s = min(wake_s, reserved.next_s)
    if wake_s < inf:
        yield Wake(wake_s)
