"""A tree of queues: asks that have a node reserved, then one ask after the other in the order of the queues.

A pass first tries the asks for which a node is kept, in the order in which they got it. Then it goes down the tree
after each allocation, since that changes whose turn it is; what fails once is not tried again until there is more to
have. An ask that fits nowhere for RESERVE_AFTER_S has a node kept for it; one that needs a certain node, at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import ClassVar, Final

from fluxsched.core.compiling import mypyc_attr
from fluxsched.sched.policy import (
    FAIR,
    IMMEDIATE,
    NO,
    PAUSE,
    PAUSE_EVERY,
    RESERVED,
    SWITCH,
    TREE_PLACEMENT,
    WORST_FIT,
    YES,
    Decision,
    Option,
    Pending,
    PendingJob,
    PendingJobs,
    Preemptions,
    Skips,
    Start,
    View,
)
from fluxsched.yunikorn.tree.asks import Asks
from fluxsched.yunikorn.tree.preemption import (
    Judge,
    MayReserve,
    TreePreemption,
    changes_of,
    reservations,
    why_not_preempted,
)
from fluxsched.yunikorn.tree.queues import ask_of

PREEMPTING_A_PASS = 16
"""Lines of asks for which a pass looks for others to preempt."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Tree:
    __doc__: Final = "Shares of queues in a tree, with guarantees and maxima; in a leaf by application."

    name: ClassVar[str] = "tree"
    OPTIONS: ClassVar[Mapping[str, Option]] = {"placement": TREE_PLACEMENT, "preemption": SWITCH}

    def __init__(self, placement: str = FAIR, preemption: str = NO) -> None:
        self.judge: Judge | None = None  # has the last word about what is preempted
        self.may_reserve: MayReserve | None = None  # and this about nodes that are kept
        self.settle(placement, preemption)

    def settle(self, placement: str, preemption: str) -> None:
        """Set other options from the next pass on."""
        self._placement = placement
        self._preempts = preemption == YES

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        asks = view.index
        if not isinstance(asks, Asks):
            yield from self._others(view)
            return
        if asks.without:
            yield from self._others(view)
        if view.reserved_nodes.by_job:
            yield from self._on_reserved_nodes(view, asks)
        yield from self._in_order(view, asks)
        yield from reservations(view, asks, now_s, self.may_reserve)
        yield from self._preempting(view, asks, now_s)

    def why_not_preempted(self, jobs: PendingJobs, job: PendingJob, preemptions: Preemptions, now_s: float) -> str:
        """Return what keeps jobs from being preempted for this ask; empty if some are, or without preemption."""
        return why_not_preempted(jobs.by_id.get, job, preemptions, now_s) if self._preempts else ""

    def _in_order(self, view: View, asks: Asks) -> Iterator[Decision]:
        find, placement, admits, next_ask = view.find, self._placement, asks.tree.admits, asks.next
        tried, awaited = 0, view.preemptions.awaited
        promised = None
        if awaited:  # what comes free below a maximum is for the asks for which others go, as their nodes are
            reserved = view.reserved_nodes.by_job
            promised = changes_of(view.preemptions, view.job, [jobid for jobid in awaited if jobid in reserved])
        while (line := next_ask()) is not None:
            application = line.application
            tried += 1
            if not tried % PAUSE_EVERY:
                yield PAUSE
                if line.is_over:
                    continue
            if not admits(application, line.need):
                asks.held_back(line)
                continue
            job = line.first
            if promised is not None and job.jobid not in awaited and not promised.admit(application, line.need):
                asks.held_back(line)
                continue
            fit = find(job, placement) if line.node is None else view.find_on(job, line.node)
            if fit is None:
                if view.is_held_back(job):
                    asks.pass_over(line)
                else:
                    asks.fits_nowhere(line)
                continue
            yield Start(job.jobid, fit, IMMEDIATE)
            if job.jobid in line.by_id and line.first is job:  # it was refused
                asks.pass_over(line)

    def _preempting(self, view: View, asks: Asks, now_s: float) -> Iterator[Decision]:
        """Others go for the first asks that could not start and may have that."""
        if not self._preempts or not view.preemptions.running.jobs:
            return
        preemption, awaited = TreePreemption(view, now_s, self.judge), view.preemptions.awaited
        for line in list(islice(asks.may_preempt(), PREEMPTING_A_PASS)):
            for job in line.in_order():
                if not line.is_over and job.jobid not in awaited:
                    yield from preemption.decide(job)
                    if job.jobid not in awaited:
                        break  # nor would it help the others of the line

    def _on_reserved_nodes(self, view: View, asks: Asks) -> Iterator[Decision]:
        for jobid, rank in list(view.reserved_nodes.by_job.items()):
            job = view.job(jobid)
            if job is None or job.terms is None or not asks.tree.admits(ask_of(job).application, job.request.amounts):
                continue
            fit = view.find_on(job, rank)
            if fit is not None:
                yield Start(jobid, fit, RESERVED)

    def _others(self, view: View) -> Iterator[Decision]:
        """Jobs of no application: every one that fits starts."""
        skips = Skips()
        for job in view.candidates(skips):
            if job is None:
                yield PAUSE
            elif job.terms is None:
                fit = view.find(job, WORST_FIT)
                if fit is not None:
                    yield Start(job.jobid, fit)
                    continue
                skips.fits_nowhere(job)
                yield Pending(job.jobid, view.reason(job))
