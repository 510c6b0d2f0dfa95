"""What limits of a site cost: CPU of a submit that a job manager checks, and of a start with its end in a scheduler.

    python benchmarks/limits.py [--jobs 20000] [--rounds 5]

Jobs of one core of 200 users in 10 banks arrive, start and end one by one under `fifo`, on 1,024 x 64: without limits,
with one, and with 100, two of which are about each job. None is reached. Medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import deque

from fluxsched.core.idset import EMPTY
from fluxsched.core.jobfields import EACH, SiteLimit
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.jobs.lifecycle import SiteLimits
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.hooks import with_limits
from fluxsched.sched.registry import load

USERS = 200
RUNNING = 2_000
PLENTY = 1_000_000
EXECUTION = {
    "R_lite": [{"rank": "0-1023", "children": {"core": "0-63"}}],
    "starttime": 0.0, "expiration": 0.0, "nodelist": ["n[0-1023]"],
}  # fmt: skip
RESOURCES = ResourceSet.parse({"version": 1, "execution": EXECUTION})


def limits_of(count: int) -> list[SiteLimit]:
    """So many limits: on each user, and on some by name."""
    named = [SiteLimit(user=1000 + at, cores=PLENTY, waiting=PLENTY) for at in range(max(0, count - 2))]
    every = [SiteLimit(user=EACH, cores=PLENTY, waiting=PLENTY), SiteLimit(bank=EACH, running=PLENTY)]
    return [*every, *named][:count]


def starts_us(jobs: int, limits: list[SiteLimit]) -> float:
    """CPU of an arrival with its start and its end in a scheduler (microseconds)."""
    scheduler = Scheduler(load("fifo").policy, plugins=with_limits({}, limits))
    scheduler.grown("default", RESOURCES, RESOURCES.ranks, EMPTY)
    specs = [Jobspec.from_command(["true"], duration_s=3600.0, bank=f"bank{at}") for at in range(10)]
    running: deque[int] = deque()
    gc.collect()
    begun_s = 0.0
    for jobid in range(RUNNING + jobs):
        if jobid == RUNNING:
            begun_s = time.process_time()
        user = 1000 + jobid % USERS
        scheduler.alloc(jobid, 16, user, float(jobid), specs[user % 10], float(jobid))
        if jobid % 8 == 0:  # jobs that arrive in a turn
            deque(scheduler.schedule(float(jobid)), 0)
        running.append(jobid)
        if len(running) > RUNNING:
            scheduler.free_all(running.popleft(), float(jobid))
    return 1e6 * (time.process_time() - begun_s) / jobs


def checks_us(jobs: int, limits: list[SiteLimit]) -> float:
    """CPU of the check of a submit (microseconds)."""
    found = SiteLimits(limits)
    specs = [Jobspec.from_command(["true"], duration_s=3600.0, bank=f"bank{at}") for at in range(10)]
    begun_s = time.process_time()
    for jobid in range(jobs):
        user = jobid % USERS
        found.check(specs[user % 10], 1000 + user, None)
    return 1e6 * (time.process_time() - begun_s) / jobs


def main() -> None:
    """Print a line for each number of limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    counts = (0, 1, 100)
    starts: dict[int, list[float]] = {count: [] for count in counts}
    checks: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(options.rounds):
        for count in counts:
            starts[count].append(starts_us(options.jobs, limits_of(count)))
            checks[count].append(checks_us(options.jobs, limits_of(count)))
    for count in counts:
        start, check = statistics.median(starts[count]), statistics.median(checks[count])
        print(f"{count} limits: {start:.1f} us a start with its end, {check:.2f} us a check of a submit")


if __name__ == "__main__":
    main()
