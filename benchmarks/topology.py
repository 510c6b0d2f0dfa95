"""Placement by hops: microseconds a placement on machines of 64 cores a target under leaves of 32, medians; and a pass.

    python benchmarks/topology.py [--rounds 300]

Each step places whole targets and takes them, and gives back those of the oldest of a window of jobs, so that leaves
are neither empty nor in order; two fifths of the machine are filled beforehand with jobs of random sizes. `plain` is
the same without a topology. A pass is one of EASY with 10,000 running jobs of one or two whole targets on 16,384 (512
leaves), whose first waiting job asks for 32 under one leaf; 10,000 others wait, and none can start. Figures are of CPU
time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import deque

from passes import passes  # the scripts beside this one

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Count, Jobspec, Request
from fluxsched.core.resources import Children, Entry, ResourceSet
from fluxsched.core.topology import Switch, Topology
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.pool.find_fit import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, Blocks, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.registry import load

CORES, LEAF, SPINE = 64, 32, 32
MACHINES = ((16_384, 1_000.0), (131_072, 5_000.0))
"""Targets, and the figure asked for, in microseconds."""
SIZES = (1, 2, 32, 512)
RUNNING, WAITING = 10_000, 10_000
FREE = 8
"""Targets that stay free: too few for any that wait."""
PASS_MS = 20.0


def network(targets: int) -> Topology:
    """Leaves of 32 hosts, spines of 32 leaves, one core."""
    leaves = [Switch(f"leaf{at}", hosts_of(at * LEAF, LEAF)) for at in range(targets // LEAF)]
    names = [leaf.name for leaf in leaves]
    spines = [
        Switch(f"spine{at}", switches=tuple(names[at * SPINE : (at + 1) * SPINE])) for at in range(len(names) // SPINE)
    ]
    return Topology([*leaves, *spines, Switch("core", switches=tuple(spine.name for spine in spines))])


def hosts_of(first: int, n: int) -> Hostlist:
    return Hostlist(tuple(f"node{host}" for host in range(first, first + n)))


def machine(targets: int, topology: Topology) -> ResourceSet:
    """Equal targets, one a host."""
    entry = Entry(Idset.span(0, targets - 1), Children(Idset.span(0, CORES - 1)))
    return ResourceSet((entry,), hosts_of(0, targets), topology=topology)


def whole(n: int) -> Shape:
    return Shape(Request(nodes=Count.fixed(n), cores=1, exclusive=True))


def filled(resources: ResourceSet) -> Pool:
    """A pool of which two fifths are taken, by jobs of random sizes that are gone again in part."""
    chance, pool, taken = random.Random(7), Pool(), list[Blocks]()
    pool.add(resources, resources.ranks)
    left = len(resources) * 3 // 5
    while left > 0:
        n = min(chance.choice((1, 1, 2, 4, 8, 16)), left)
        fit = find_fit(pool, whole(n), BEST_FIT)
        assert fit is not None
        pool.take(fit.blocks)
        taken.append(fit.blocks)
        left -= n
    for blocks in chance.sample(taken, len(taken) // 3):
        pool.give(blocks)
    return pool


def placements(pool: Pool, n: int, rounds: int) -> float:
    """The median of a placement, in microseconds."""
    shape, window, spent = whole(n), deque[Blocks](), []
    for _ in range(rounds):
        begun = time.process_time_ns()
        fit = find_fit(pool, shape, BEST_FIT)
        spent.append((time.process_time_ns() - begun) / 1000)
        assert fit is not None
        pool.take(fit.blocks)
        window.append(fit.blocks)
        if len(window) > 8:
            pool.give(window.popleft())
    for blocks in window:
        pool.give(blocks)
    return statistics.median(spent)


def loaded() -> Scheduler:
    """A full machine, and many who wait behind one that asks for a whole leaf."""
    chance = random.Random("pass")
    scheduler = Scheduler(load("easy")[0], notify=False)
    resources = machine(16_384, network(16_384))
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    twos = len(resources) - FREE - RUNNING
    sizes = chance.sample([2] * twos + [1] * (RUNNING - twos), RUNNING)
    for jobid, size in enumerate(sizes):
        scheduler.alloc(jobid, 16, 1, 0.0, spec_of(size, chance.uniform(600, 86400)))
    for _ in scheduler.schedule(0.0):
        pass
    head = spec_of(LEAF, 3600.0, max_hops=2)
    scheduler.alloc(RUNNING, 16, 1, 1.0, head)
    for jobid in range(RUNNING + 1, RUNNING + WAITING):
        scheduler.alloc(jobid, 16, 1, float(jobid), spec_of(chance.choice((16, 32, 64)), 3600.0))
    return scheduler


def spec_of(n: int, limit_s: float, max_hops: int | None = None) -> Jobspec:
    return Jobspec.from_command(["x"], nodes=n, exclusive=True, duration_s=limit_s, max_hops=max_hops)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    print(f"{'targets':>8}{'leaves':>8}{'nodes':>7}{'us':>9}{'plain us':>10}{'aim':>8}")
    for targets, aim_us in MACHINES:
        near, plain = filled(machine(targets, network(targets))), filled(machine(targets, Topology()))
        for n in SIZES:
            took_us, plain_us = placements(near, n, rounds), placements(plain, n, rounds)
            print(f"{targets:>8}{targets // LEAF:>8}{n:>7}{took_us:>9.1f}{plain_us:>10.1f}{aim_us:>8.0f}", flush=True)
    scheduler = loaded()
    stats = scheduler.report.stats()
    took_ms, waiting = statistics.median(passes(scheduler)), stats["groups"]["default"]["waiting"]
    running = stats["running"]
    print(f"EASY, bounded head, {running} run, {waiting} wait: {took_ms:.1f} ms a pass (aim {PASS_MS:.0f})")


if __name__ == "__main__":
    main()
