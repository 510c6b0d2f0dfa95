"""CPU of the answer to `submit --when`: 8 sizes at 16,384 x 64 with 10,000 jobs running and as many waiting.

    python benchmarks/when.py [--jobs 10000] [--rounds 5]

Under `easy`, once with whole nodes, where cores are counted, and once with parts of nodes, where each job has its
place. The sizes are of one job, as `--when` asks for them, of 24 cores a node: nobody asked for this before, so the
first answer finds on each node when they are free. First answer, and median of the rounds, in a scheduler's process,
without the RPC.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import deque

from fluxsched.core.build import BUILD
from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.registry import load

TARGETS = 16_384
SIZES = (1, 4, 16, 64, 256, 1024, 4096, 16_384)
EXECUTION = {
    "R_lite": [{"rank": f"0-{TARGETS - 1}", "children": {"core": "0-63"}}],
    "starttime": 0.0, "expiration": 0.0, "nodelist": [f"n[0-{TARGETS - 1}]"],
}  # fmt: skip


def spec(rng: random.Random, nodes: int, whole: bool, cores: int | None = None) -> Jobspec:
    limit_s = 7200.0 if cores else float(rng.choice((600, 1800, 3600, 7200, 14_400, 43_200)))
    cores = 64 if whole else cores or rng.choice((1, 8, 32, 48))
    return Jobspec.from_command(
        ["true"], nodes=nodes, ntasks=nodes, cores_per_task=cores, exclusive=whole, duration_s=limit_s
    )


def answer_s(jobs: int, rounds: int, whole: bool) -> tuple[float, float]:
    """Return the CPU of the first answer, and the median of all (seconds)."""
    rng = random.Random(1)
    scheduler = Scheduler(load("easy").policy, notify=False)
    resources = ResourceSet.parse({"version": 1, "execution": EXECUTION})
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    for jobid in range(1, 2 * jobs + 1):  # the first ones fill the targets
        nodes = 1 + jobid % 2 if jobid <= jobs else rng.choice((1, 2, 8, 32, 128, 512))
        scheduler.alloc(jobid, 16, 1000, float(jobid), spec(rng, nodes, whole), 100_000.0)
        if jobid == jobs:
            deque(scheduler.schedule(100_000.0), 0)
    deque(scheduler.schedule(100_000.0), 0)
    scheduler.free_all(1, 100_000.0)
    deque(scheduler.schedule(100_000.0), 0)  # the plan of a scheduler at work is up to date
    asked = [spec(rng, nodes, whole, 24) for nodes in SIZES]
    took_s = []
    for _ in range(rounds):
        begun_s = time.process_time()
        found = scheduler.when(asked, 1000, 16, 100_000.0)
        took_s.append(time.process_time() - begun_s)
    stats = scheduler.report.stats()
    print(f"{stats['running']} running, {stats['groups']['default']['waiting']} waiting:", end=" ")
    print("; ".join("-" if one.start_s is None else f"+{one.start_s - 1e5:.0f} s" for one in found))
    print(f"  {found[-1].when}")
    return took_s[0], statistics.median(took_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for whole in (True, False):
        first_s, took_s = answer_s(given.jobs, given.rounds, whole)
        kind = "whole nodes" if whole else "parts of nodes"
        print(f"{kind}: {1000 * first_s:.0f} ms for {len(SIZES)} sizes at first, then {1000 * took_s:.0f} ms ({BUILD})")


if __name__ == "__main__":
    main()
