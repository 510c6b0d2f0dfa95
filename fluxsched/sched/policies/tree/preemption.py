"""Which running jobs go for an ask that cannot start: a node is reserved for it until they are gone.

Law: the ask allows it, has waited for the delay of its leaf, and may take back for one of its queues what is lacking
(`guarantees`): on a node, or under a maximum. If a node has room, that one is taken; else the one where those go that
come first by kind, then the fewest, then the first in the order of victims, then the lowest rank (`victims`). No more
go at a time than the rate allows, and while some are going for an ask no others go for it. Where it can start once all
that are going are gone, none goes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from math import ceil, inf
from typing import TypeAlias

from fluxsched.core.duration import format_duration
from fluxsched.sched.policies.giving_way import NOT_ENOUGH, cannot_preempt, rate_reached
from fluxsched.sched.policies.tree.guarantees import Changes, Claim
from fluxsched.sched.policies.tree.node_search import NodeSearch, Offer
from fluxsched.sched.policies.tree.victims import Candidate
from fluxsched.sched.policy import PAUSE, UNKNOWN, Decision, Preempt, Preemptions, View, Waiting, Wake, Withhold
from fluxsched.sched.quotas.bookings import may_begin
from fluxsched.sched.quotas.queue import Application

LOOKED_AT_A_PASS_MAX = 65_536
"""Running jobs that are looked at in a pass; other asks have their turn in the next."""

OFFERS_MAX = 64
"""Nodes that a judge is asked about for one ask, the best first; a callback each."""

Judge: TypeAlias = Callable[[Waiting, int, Sequence[int], int], int | None]
"""(job, rank, ids of those that may go in order, index of the last that must) -> index of the last that does go; None
if the job does not start there even so."""


class TreePreemption:
    """What one pass at `now_s` (wall time, seconds) preempts; `judge` has the last word about each node.

    Of asks that are equal in all that matters here only the first is searched for, and the longer searches in vain
    take, the longer is the rest after them.
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

    def decide(self, job: Waiting) -> Iterator[Decision]:
        """For an ask that cannot start now."""
        application, preemptions, now_s = job.application, self._preemptions, self._now_s
        if application is None or not job.options.may_preempt or job.jobid in preemptions.awaited:
            return
        if not preemptions.running.jobs or not preemptions.rate:
            return
        kind = application, job.shape.number, job.priority, job.options.node
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
        reason = f"{application.queue.path} takes back what it is guaranteed"
        for victim in victims:
            yield Preempt(victim.jobid, job.jobid, reason)
        yield Withhold(job.jobid, rank, takes_over=True)

    def _search(
        self, job: Waiting, application: Application
    ) -> Generator[Decision, None, tuple[int, list[Candidate]]]:
        """Which node, and those that go there."""
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

    def _judged(self, job: Waiting, offers: list[Offer]) -> tuple[int, list[Candidate]]:
        """The best node, or the best that the judge accepts, and those that go there."""
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
        """What is going, and the asks for which it goes."""
        if self._changes is None:
            self._changes = changes_of(self._preemptions, self._view.job, self._preemptions.awaited)
        return self._changes


def why_not_preempted(
    waiting: Callable[[int], Waiting | None], job: Waiting, preemptions: Preemptions, now_s: float
) -> str:
    """Return what keeps running jobs from being preempted for an ask, as a pass would find it first; empty if some are
    going for it. `waiting` has the asks by id.
    """
    application, running = job.application, preemptions.running
    if application is None or job.jobid in preemptions.awaited:
        return ""
    if not job.options.may_preempt:
        return "no job is preempted for it: it may preempt none (allowPreemptOther)"
    if not (running.jobs and preemptions.rate):
        return cannot_preempt(preemptions)
    claim = Claim(application, job.request.amounts, job.priority, changes_of(preemptions, waiting, preemptions.awaited))
    queue = application.queue
    if claim.is_vain:
        if not may_begin(application):
            return "no job is preempted for it: its application may not begin yet"
        return "no job is preempted for it: with it no queue above it stays within what it is guaranteed"
    if not any(True for _ in claim.victims(running.jobs)):
        return "no job is preempted for it: no preemptible job of another queue is beyond what is guaranteed there"
    due_s = job.t_submit_s + queue.settings.preemption_delay_s
    if due_s > now_s:
        return f"no job is preempted for it before {format_duration(ceil(due_s - now_s))} from now (preemption.delay)"
    return rate_reached(preemptions, now_s) or NOT_ENOUGH


def changes_of(
    preemptions: Preemptions, waiting: Callable[[int], Waiting | None], beneficiaries: Iterable[int]
) -> Changes:
    """Return by how much usage differs once all that are going are gone and these asks are placed."""
    changes = Changes()
    for holding in preemptions.holdings_going():
        if holding.application is not None:
            changes.goes(holding.application, holding.application.allocations[holding.jobid])
    for jobid in beneficiaries:
        job = waiting(jobid)
        if job is not None and job.application is not None:
            changes.is_to_be_placed(job.application, job.request.amounts)
    return changes
