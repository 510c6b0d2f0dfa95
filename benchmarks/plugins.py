"""What plugins cost: a pass under three plugins to one without, and how often `filter` is asked.

    python benchmarks/plugins.py [--jobs 50000] [--rounds 7]

A pass starts equal jobs of one core on 4,096 nodes of 32 cores in 4 classes, under each of four policies. The plugins:
one filters classes, one scores them, one books jobs in reserve and on_free. CPU time, medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.hooks import PASS
from fluxsched.sched.registry import load

NODES = 4096
CORES = 32


class Filters:
    """Asked about classes."""

    name = "filters"
    READS = ("user",)

    def __init__(self) -> None:
        self.calls = 0

    def filter(self, shape: Any, kind: Any) -> Any:
        self.calls += 1
        return PASS


class Scores:
    """All classes are equally good."""

    name = "scores"

    def score(self, shape: Any, kind: Any) -> int:
        return 50


class Counts:
    """Books each job."""

    name = "counts"

    def __init__(self) -> None:
        self.cores = 0

    def reserve(self, job: Any, fit: Any) -> Any:
        self.cores += job.request.cores
        return PASS

    def unreserve(self, job: Any, fit: Any) -> None:
        self.cores -= job.request.cores

    def on_free(self, job: Any, fit: Any) -> None:
        self.cores -= job.request.cores


def site() -> ResourceSet:
    """Four classes of nodes, told apart by properties."""
    quarter = NODES // 4
    properties = {f"class{n}": f"{n * quarter}-{(n + 1) * quarter - 1}" for n in range(4)}
    execution = {
        "R_lite": [{"rank": f"0-{NODES - 1}", "children": {"core": f"0-{CORES - 1}"}}],
        "starttime": 0.0,
        "expiration": 0.0,
        "nodelist": [f"n[0-{NODES - 1}]"],
        "properties": properties,
    }
    return ResourceSet.parse({"version": 1, "execution": execution})


def a_pass(policy: str, jobs: int, plugins: list[Any], resources: ResourceSet) -> tuple[float, int]:
    """CPU seconds of one pass over equal jobs, and how many it starts."""
    scheduler = Scheduler(load(policy).policy, plugins={"": plugins})
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    spec = Jobspec.from_command(["true"], duration_s=3600.0)
    for jobid in range(jobs):
        scheduler.alloc(jobid, 16, 1000, float(jobid), spec, 100.0)
    gc.collect()
    begun_s = time.process_time()
    started = sum(isinstance(effect, Granted) for effect in scheduler.schedule(200.0))
    return time.process_time() - begun_s, started


def main() -> None:
    """Print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    resources = site()
    assert resources.ranks == Idset.parse(f"0-{NODES - 1}")
    for policy in ("fifo", "firstfit", "easy", "conservative"):
        bare, hooked, calls = [], [], 0
        for _ in range(options.rounds):
            bare.append(a_pass(policy, options.jobs, [], resources)[0])
            filters = Filters()
            spent_s, started = a_pass(policy, options.jobs, [filters, Scores(), Counts()], resources)
            hooked.append(spent_s)
            calls = filters.calls
        ratio = statistics.median(hooked) / statistics.median(bare)
        each, under = 1e6 * statistics.median(bare) / started, 1e6 * statistics.median(hooked) / started
        print(
            f"{policy}: {started} starts, {each:.1f} us each without plugins, {under:.1f} us under three: {ratio:.2f}; "
            f"filter was asked {calls} times"
        )


if __name__ == "__main__":
    main()
