"""The pool: allocations and frees per second, as the machine grows from 1,024 to 131,072 targets of 64 cores.

    python benchmarks/pool.py [--targets 1024,16384,131072] [--rounds 7] [--placement best-fit] [--amounts]

Each step places a request as a policy does, takes the blocks as the ledger does, and gives back those of the oldest job
of a window of running ones, so that the pool is neither empty nor in order. Two fifths of the machine are filled
beforehand with jobs of random sizes. Figures are of CPU time, medians of the rounds; jobs of many nodes count as nodes.
`ratio` is the time on the largest machine over that on the smallest. `--amounts`: targets without cores instead, of
64 vcore and 64 GiB, added one by one with a property of their own; two jobs a target run, or so many that few fit.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections import deque

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import Children, Entry, ResourceSet
from fluxsched.sched.pool.find_fit import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, BINPACKING, FAIR, PLACEMENTS, Fits, Shape
from fluxsched.sched.pool.pool import Pool

CORES, GPUS = 64, 4

CASES: dict[str, tuple[Request, int, int, float]] = {
    # name: request, nodes it counts for, other such jobs that run, figure asked for a second
    "1 core": (Request(cores=1), 1, 2000, 400_000),
    "1 whole node": (Request(nodes=Count.fixed(1), cores=CORES, gpus=GPUS, exclusive=True), 1, 200, 600_000),
    "8 cores, 1 gpu": (Request(cores=8, gpus=1), 1, 200, 350_000),
    "32 nodes": (Request(nodes=Count.fixed(32), cores=CORES, exclusive=True), 32, 8, 500_000),
    "512 nodes": (Request(nodes=Count.fixed(512), cores=CORES, exclusive=True), 512, 0, 300_000),
}


def machine(targets: int) -> Pool:
    """An idle pool of equal targets."""
    children = Children(Idset.span(0, CORES - 1), Idset.span(0, GPUS - 1))
    hosts = Hostlist.of(f"n{rank}" for rank in range(targets))
    pool = Pool()
    pool.add(ResourceSet((Entry(Idset.span(0, targets - 1), children),), hosts), Idset.span(0, targets - 1))
    return pool


def start(pool: Pool, shape: Shape, placement: str) -> Fits:
    fit = find_fit(pool, shape, placement)
    assert fit is not None, shape
    taken = pool.take(fit.blocks)
    assert taken
    return fit


def fill(pool: Pool, targets: int, random_: random.Random) -> None:
    """Some two fifths of the targets busy, with jobs of random sizes, many of which have ended since."""
    jobs: list[Fits] = []
    for _ in range(targets * 3 // 2):
        wanted = Shape(Request(cores=random_.randint(1, CORES // 2), gpus=random_.randint(0, 1)))
        jobs.append(start(pool, wanted, BEST_FIT))
        if random_.random() < 0.3:
            pool.give(jobs.pop(random_.randrange(len(jobs))).blocks)


def measure(targets: int, name: str, placement: str, steps: int, rounds: int) -> float:
    """Nodes (or jobs) allocated and freed per second."""
    request, nodes, window, _ = CASES[name]
    shape = Shape(request)
    pool = machine(targets)
    fill(pool, targets, random.Random(1))
    running = deque(start(pool, shape, placement) for _ in range(window))
    figures = []
    for _ in range(rounds):
        begin_s = time.process_time()
        for _ in range(steps):
            fit = find_fit(pool, shape, placement)
            assert fit is not None
            taken = pool.take(fit.blocks)
            assert taken
            running.append(fit)
            pool.give(running.popleft().blocks)
        figures.append(steps * nodes / (time.process_time() - begin_s))
    return statistics.median(figures)


def machine_of_amounts(targets: int) -> tuple[Pool, float]:
    """An idle pool of targets without cores, and how many of them were added a second."""
    amounts = (("memory", 64 << 30), ("vcore", 64_000))
    children, nodes = Children(amounts=amounts), []
    for rank in range(targets):
        ranks = Idset(1 << rank)
        nodes.append(ResourceSet((Entry(ranks, children),), Hostlist((f"n{rank}",)), {f"p{rank}": ranks}))
    pool = Pool()
    begin_s = time.process_time()
    for node in nodes:
        pool.add(node, node.ranks)
    return pool, targets / (time.process_time() - begin_s)


def measure_amounts(targets: int, placement: str, sizes: int, is_full: bool, steps: int, rounds: int) -> float:
    """Jobs of so many different sizes allocated and freed per second; on a full machine tries count, too."""
    pool, _ = machine_of_amounts(targets)
    random_ = random.Random(1)
    shapes = [
        Shape(Request.of_amounts((("memory", random_.randrange(1, 4 << 30)), ("vcore", random_.randrange(10, 4000)))))
        for _ in range(sizes)
    ]
    running: deque[Fits] = deque()
    while is_full or len(running) < 2 * targets:
        fit = find_fit(pool, shapes[len(running) % sizes], placement)
        if fit is None:
            break
        pool.take(fit.blocks)
        running.append(fit)
    figures = []
    for _ in range(rounds):
        begin_s = time.process_time()
        for at in range(steps):
            fit = find_fit(pool, shapes[at % sizes], placement)
            if fit is not None:
                pool.take(fit.blocks)
                running.append(fit)
            pool.give(running.popleft().blocks)
        figures.append(steps / (time.process_time() - begin_s))
    return statistics.median(figures)


def report_amounts(machines: list[int], steps: int, rounds: int) -> None:
    """A line a case."""
    print("without cores, allocation + free per second")
    print(f"{'':28}" + "".join(f"{size:>12,}" for size in machines))
    print(f"{'targets added, one by one':28}" + "".join(f"{machine_of_amounts(n)[1]:>12,.0f}" for n in machines))
    for placement in (FAIR, BINPACKING):
        for name, sizes, is_full in (("8 sizes", 8, False), ("3,000 sizes", 3000, False), ("full", 3000, True)):
            found = [measure_amounts(size, placement, sizes, is_full, steps, rounds) for size in machines]
            print(f"{f'{placement}, {name}':28}" + "".join(f"{figure:>12,.0f}" for figure in found), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="1024,4096,16384,131072", help="sizes of machine")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20_000, help="allocations a round (fewer of many nodes)")
    parser.add_argument("--placement", choices=PLACEMENTS, default=BEST_FIT)
    parser.add_argument("--amounts", action="store_true", help="targets without cores")
    options = parser.parse_args()
    sizes = [int(size) for size in options.targets.split(",")]
    gc.disable()
    if options.amounts:
        report_amounts(sizes, options.steps, options.rounds)
        return 0
    print(f"{options.placement}, allocation + free per second")
    print(f"{'':16}" + "".join(f"{size:>12,}" for size in sizes) + f"{'ratio':>8}{'asked':>12}")
    for name, (_, nodes, _, asked) in CASES.items():
        steps = max(options.steps // max(nodes // 4, 1), 200)
        found = [measure(size, name, options.placement, steps, options.rounds) for size in sizes]
        row = "".join(f"{figure:>12,.0f}" for figure in found)
        print(f"{name:16}{row}{found[0] / found[-1]:>8.2f}{asked:>12,.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
