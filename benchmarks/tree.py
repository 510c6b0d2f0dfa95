"""Asks of amounts through a tree of queues: ask, decision, commit and free, by the number of nodes and of queues.

    python benchmarks/tree.py [NODES...]

CPU microseconds an allocation, each line of another case; the queue holds WAITING asks at a time.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable
from statistics import median

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import Amounts
from fluxsched.core.request import Request
from fluxsched.core.resources import Children, Entry, ResourceSet
from fluxsched.sched.decisions import Granted
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.yunikorn.tree.asks import QuotaAdmission
from fluxsched.yunikorn.tree.policy import Tree
from fluxsched.yunikorn.tree.queues import AskTerms, QueueSettings, QueueTree

ALLOCATIONS = 20_000
WAITING = 1000
HELD = 8  # a node
VCORE, MEMORY = 64_000, 1 << 38


def shape(at: int) -> Amounts:
    """One of eight."""
    return ("memory", (1 + at % 8) << 30), ("vcore", 500 * (1 + at % 8))


def own(at: int) -> Amounts:
    """No two alike."""
    return ("memory", (1 << 30) + 4096 * at), ("vcore", 1000 + at % 977)


def site(nodes: int, queues: int) -> tuple[Scheduler, QueueTree]:
    """So many nodes, and leaves."""
    leaves = tuple([QueueSettings(f"q{at}", guaranteed=(("vcore", 1 << 30),)) for at in range(queues)])
    tree = QueueTree(QueueSettings("root", is_parent=True, children=leaves))
    scheduler = Scheduler(Tree(), notify=False, admission=QuotaAdmission(tree))
    ranks = Idset((1 << nodes) - 1)
    held = (("memory", MEMORY), ("vcore", VCORE))
    found = ResourceSet((Entry(ranks, Children(amounts=held)),), Hostlist(tuple([f"n{at}" for at in range(nodes)])))
    scheduler.grown(DEFAULT_GROUP, found, ranks, EMPTY)
    return scheduler, tree


def terms_of(tree: QueueTree) -> list[AskTerms]:
    """Terms of asks of an application in each leaf."""
    leaves = enumerate(tree.root.children.values())
    return [AskTerms(tree.add_application(f"a{at}", leaf, "ann", (), 0.0)) for at, leaf in leaves]


def churn(nodes: int, queues: int, asked: Callable[[int], Amounts]) -> float:
    """Microseconds an allocation: so many wait at a time, and as many as HELD a node hold something."""
    scheduler, tree = site(nodes, queues)
    terms = terms_of(tree)
    running: deque[int] = deque()
    jobid = 0
    gc.collect()
    gc.freeze()
    begin_s = time.process_time()
    while jobid < ALLOCATIONS:
        for _ in range(WAITING):
            jobid += 1
            request = Request.of_amounts(asked(jobid))
            scheduler.enter(jobid, 1, float(jobid), request, terms[jobid % queues], 0.0)
        for effect in scheduler.schedule(0.0):
            if isinstance(effect, Granted):
                running.append(effect.jobid)
        while len(running) > HELD * nodes:
            scheduler.free_all(running.popleft(), 0.0)
    spent_s = time.process_time() - begin_s
    gc.unfreeze()
    return spent_s / ALLOCATIONS * 1e6


def blocked(nodes: int, asked: Callable[[int], Amounts], waiting: int) -> float:
    """Microseconds for an allocation and a free while so many asks wait that fit nowhere."""
    scheduler, tree = site(nodes, 2)
    large, small = terms_of(tree)
    for jobid in range(1, waiting + 1):
        needs = tuple([(kind, 2 * VCORE + amount if kind == "vcore" else amount) for kind, amount in asked(jobid)])
        scheduler.enter(jobid, 1, 0.0, Request.of_amounts(needs), large, 0.0)
    deque(scheduler.schedule(0.0), 0)
    begin_s = time.process_time()
    rounds = 200
    for jobid in range(waiting + 1, waiting + 1 + rounds):
        scheduler.enter(jobid, 1, 0.0, Request.of_amounts(shape(jobid)), small, 0.0)
        deque(scheduler.schedule(0.0), 0)
        scheduler.free_all(jobid, 0.0)
    return (time.process_time() - begin_s) / rounds * 1e6


def main() -> None:
    for nodes in [int(text) for text in sys.argv[1:]] or [500, 5000]:
        cases = ("8 shapes", 1, shape), ("8 shapes, 1,000 queues", 1000, shape), ("all differ", 1, own)
        for text, queues, asked in cases:
            print(f"{nodes:5} nodes, {text}: {median(churn(nodes, queues, asked) for _ in range(3)):.1f} us")
        for text, asked in (("8 shapes", shape), ("all differ", own)):
            print(f"{nodes:5} nodes, 50,000 {text} fit nowhere: {blocked(nodes, asked, 50_000):.0f} us a pass")


if __name__ == "__main__":
    main()
