"""A judge of the tree's preemption, which tries all sets of running jobs on all nodes, and the sites that it judges.

It knows queues by their paths and adds up what they use; it shares no code with what it judges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.quantities import Amounts
from fluxsched.core.request import Request
from fluxsched.core.resources import Children, Entry, ResourceSet
from fluxsched.sched.decisions import PAUSE, Preempt, Withhold
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.counted_plan import ReservedNodes
from fluxsched.sched.pool.placement import Part, Shape, blocks_of
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.preemption import Preemptions, WhatIfPreempted
from fluxsched.sched.queue import PendingJob
from fluxsched.yunikorn.tree.asks import QuotaAdmission
from fluxsched.yunikorn.tree.preemption import TreePreemption
from fluxsched.yunikorn.tree.queues import Application, AskOptions, AskTerms, QueueSettings, QueueTree

Kinds = dict[str, int]
KINDS = ("memory", "vcore")
NOW_S = 1000.0


@dataclass(frozen=True)
class Told:
    """A queue as the judge knows it."""

    guaranteed: Kinds = field(default_factory=dict)
    maximum: Kinds = field(default_factory=dict)
    preemption: str = "default"
    offset: int = 0
    hides_priority: bool = False
    delay_s: float = 30.0


@dataclass(frozen=True)
class Job:
    """A running job, or (without a rank) the ask."""

    jobid: int
    leaf: str
    application: str
    amounts: Kinds
    priority: int = 0
    rank: int = -1
    started_s: float = 0.0
    stays: bool = False
    originator: bool = False


@dataclass(frozen=True)
class Site:
    queues: dict[str, Told]
    nodes: list[Kinds]
    jobs: list[Job]
    ask: Job
    may_preempt: bool = True
    asked_s: float = 0.0


# ---- the judge


def above(path: str) -> list[str]:
    words = path.split(".")
    return [".".join(words[:count]) for count in range(len(words), 0, -1)]


def used(jobs: list[Job], queue: str) -> Kinds:
    found: Kinds = {}
    for job in jobs:
        if queue in above(job.leaf):
            for kind, amount in job.amounts.items():
                found[kind] = found.get(kind, 0) + amount
    return found


def rank_of_priority(site: Site, job: Job, common: str) -> int:
    priority = job.priority
    for path in above(job.leaf):
        if path == common:
            break
        queue = site.queues[path]
        priority = queue.offset if queue.hides_priority else priority + queue.offset
    return priority


def breaks(site: Site, gone: list[Job], rank: int) -> str | None:
    """The law that is broken if these go on a node for the ask."""
    ask, mine = site.ask, above(site.ask.leaf)
    left = [job for job in site.jobs if job not in gone]
    free = dict(site.nodes[rank])
    for job in left:
        if job.rank == rank:
            free = {kind: free.get(kind, 0) - job.amounts.get(kind, 0) for kind in KINDS}
    if any(free.get(kind, 0) < amount for kind, amount in ask.amounts.items()):
        return "too few go"
    there = [job for job in gone if job.rank == rank]
    before = {kind: free.get(kind, 0) - sum(job.amounts.get(kind, 0) for job in there) for kind in KINDS}
    lacking = {kind for kind, amount in ask.amounts.items() if before[kind] < amount}
    for path in mine:
        for kind, most in site.queues[path].maximum.items():
            if kind in ask.amounts:
                if used(left, path).get(kind, 0) + ask.amounts[kind] > most:
                    return "over a maximum"
                if used(site.jobs, path).get(kind, 0) + ask.amounts[kind] > most:
                    lacking.add(kind)
    served = [
        path for path in mine
        if (own := site.queues[path].guaranteed)
        and all(used(site.jobs, path).get(kind, 0) + ask.amounts.get(kind, 0) <= most for kind, most in own.items())
        and lacking <= own.keys()
        and not any(path in above(job.leaf) for job in gone)
    ]  # fmt: skip
    if not served:
        return "no queue is below its guarantee"
    for job in gone:
        theirs = above(job.leaf)
        common = next(path for path in theirs if path in mine)
        if job.application == ask.application:
            return "its own application"
        if rank_of_priority(site, job, common) > rank_of_priority(site, ask, common):
            return "of higher priority"
        if any(site.queues[path].preemption == "disabled" for path in theirs):
            return "preemption is disabled"
        fenced = [path for path in mine if site.queues[path].preemption == "fence"]
        if fenced and fenced[0] not in theirs:
            return "across a fence"
        for path in set(theirs) - set(mine):
            for kind, own in site.queues[path].guaranteed.items():
                if job.amounts.get(kind, 0) and used(left, path).get(kind, 0) < own:
                    return "below its guarantee"
    return None


def best_of_all(site: Site) -> set[int]:
    """Who should go."""
    if not site.may_preempt or site.asked_s + site.queues[site.ask.leaf].delay_s > NOW_S:
        return set()
    best: tuple[Any, set[int]] | None = None
    for rank in range(len(site.nodes)):
        for count in range(1, len(site.jobs) + 1):
            if best is not None and not any(best[0][0]) and count > best[0][1]:
                break
            for gone in combinations(site.jobs, count):
                if breaks(site, list(gone), rank) is None:
                    line = [(job.stays, job.originator, job.priority, -job.started_s, -job.jobid) for job in gone]
                    line.sort(reverse=True)
                    key = line[0][:2], count, line, rank
                    if best is None or key < best[0]:
                        best = key, {job.jobid for job in gone}
    return set() if best is None else best[1]


# ---- the same site for the policy


class SiteView:
    """Just what preemption asks of a view: a pool and a ledger with the jobs of the site, and no scheduler."""

    def __init__(self, site: Site, tree: QueueTree) -> None:
        self.pool = Pool()
        for rank, held in enumerate(site.nodes):
            ranks = Idset(1 << rank)
            self.pool.add(ResourceSet((Entry(ranks, Children(amounts=amounts(held))),), Hostlist((f"n{rank}",))), ranks)
        self.ledger = Ledger([self.pool])
        self.ledger.admission = QuotaAdmission(tree)
        self.preemptions = Preemptions(self.ledger)
        self.reserved_nodes = ReservedNodes(self.pool, lambda: None)
        applications = {job.application: self._application(tree, job) for job in [*site.jobs, site.ask]}
        for job in site.jobs:
            options = AskOptions(is_originator=job.originator, may_be_preempted=not job.stays)
            blocks = blocks_of([Part(job.rank, 0, 0, amounts(job.amounts))])
            terms = AskTerms(applications[job.application], options)
            self.preemptions.began(self.ledger.adopt_amounts(job.jobid, blocks, terms, job.started_s, job.priority))
        ask, request = site.ask, Request.of_amounts(amounts(site.ask.amounts))
        self.asking = PendingJob(
            ask.jobid, ask.priority, 0, site.asked_s, Shape(request), 0.0,
            terms=AskTerms(applications[ask.application], AskOptions(may_preempt=site.may_preempt)),
        )  # fmt: skip

    def job(self, jobid: int) -> PendingJob | None:
        return self.asking if jobid == self.asking.jobid else None

    @staticmethod
    def _application(tree: QueueTree, job: Job) -> Application:
        queue = tree.queue(job.leaf)
        assert queue is not None
        return queue.applications.get(job.application) or tree.add_application(job.application, queue, "me", (), 0.0)

    def if_gone(self, job: object = None) -> WhatIfPreempted:
        return self.preemptions.if_gone(self.pool)


def amounts(kinds: Kinds) -> Amounts:
    return tuple(sorted((kind, amount) for kind, amount in kinds.items() if amount))


def tree_of(site: Site) -> QueueTree:
    def settings_of(path: str) -> QueueSettings:
        told = site.queues[path]
        below = [other for other in site.queues if other.rpartition(".")[0] == path]
        return QueueSettings(
            path.rpartition(".")[2], bool(below), tuple(sorted(told.guaranteed.items())),
            tuple(sorted(told.maximum.items())), preemption=told.preemption, priority_offset=told.offset,
            priority_fence=told.hides_priority, preemption_delay_s=told.delay_s,
            children=tuple(map(settings_of, below)),
        )  # fmt: skip

    return QueueTree(settings_of("root"))


def decided(site: Site, judge: Any = None) -> tuple[set[int], int | None, list[Any]]:
    """Who goes, on which node, and what else is decided."""
    view: Any = SiteView(site, tree_of(site))
    gone, others, rank = set(), [], None
    for decision in TreePreemption(view, NOW_S, judge).decide(view.asking):
        if isinstance(decision, Preempt):
            assert decision.for_jobid == site.ask.jobid
            gone.add(decision.jobid)
        elif isinstance(decision, Withhold):
            assert decision.jobid == site.ask.jobid
            assert decision.takes_over
            rank = decision.rank
        elif decision is not PAUSE:
            others.append(decision)
    return gone, rank, others
