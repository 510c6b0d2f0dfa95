"""Passes of the policies with 10,000 running jobs: milliseconds a pass, medians.

    python benchmarks/passes.py            # all
    python benchmarks/passes.py easy       # those whose name begins so
    python benchmarks/passes.py easy --outages 50    # with so many outages planned in the next week

Each pass is a whole one, after something was freed, so that every waiting job is looked at; no job can start, so all
passes are alike. `counted` machines have one core a target, `pool` machines have targets of 64 cores and 4 GPUs that
jobs share, where reservations are tried on the real pool; on `wide` ones, all but some of 131,072 targets are held, and
one or three jobs wait for 129,000; on `whole` and `shared` ones, 10,000 jobs hold 16,384 targets of 64 cores whole, on
`shared` ones but for one target that jobs share. Under `fair` jobs are of 1,000 accounts, which all have some waiting;
time passes, a minute from one pass to the next.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import Outage, Outages
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.registry import load

RUNNING = 10_000
REPEATS = 15
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LIMITS_S = (600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400)

# name, policy, machine, waiting jobs, milliseconds to reach (None: none was set)
CASES: tuple[tuple[str, str, str, int, float | None], ...] = (
    ("easy", "easy", "counted", 10_000, 5.0),
    ("easy sjf", "easy:order=sjf", "counted", 10_000, None),
    ("hybrid 8", "hybrid:depth=8", "counted", 10_000, None),
    ("conservative", "conservative", "counted", 1_000, 25.0),
    ("conservative compress", "conservative:compress", "counted", 1_000, None),
    ("firstfit", "firstfit", "counted", 10_000, None),
    ("fifo", "fifo", "counted", 10_000, None),
    ("easy on the pool", "easy", "pool", 10_000, None),
    ("hybrid 8 on the pool", "hybrid:depth=8", "pool", 10_000, None),
    ("easy, 16,384 targets", "easy", "whole", 10_000, None),
    ("easy, 16,384 targets, shared", "easy", "shared", 10_000, None),
    ("easy, 129,000 targets", "easy", "wide", 1, 150.0),
    ("hybrid 8, 129,000 targets", "hybrid:depth=8", "wide", 3, None),
    ("fair easy", "fair:backfill=easy", "counted", 10_000, 5.0),
    ("fair easy flow", "fair:backfill=easy,signal=flow", "counted", 10_000, 5.0),
    ("fair easy cap", "fair:backfill=easy,cap=1.2,budget=600", "counted", 10_000, None),
    ("fair fifo", "fair:backfill=fifo", "counted", 10_000, None),
    ("fair easy on the pool", "fair:backfill=easy", "pool", 10_000, 5.0),
)
ACCOUNTS = 1_000
SITE = 16_384
WIDE, EACH, ASKED = 131_072, 13, 129_000
"""On `wide` machines: targets, those of a running job, and those of the one that waits."""


def machine(kind: str, running: list[int]) -> ResourceSet:
    """Just as large as the running jobs, and a little more that stays free."""
    targets, cores, gpus = (sum(running) + 3, 1, 0) if kind == "counted" else (RUNNING // 16 + 8, 64, 4)
    targets = {"wide": WIDE, "whole": SITE, "shared": SITE}.get(kind, targets)
    children = {"core": "0" if cores == 1 else f"0-{cores - 1}"} | ({"gpu": f"0-{gpus - 1}"} if gpus else {})
    ranks = f"0-{targets - 1}"
    execution = {"R_lite": [{"rank": ranks, "children": children}], "starttime": 0.0, "expiration": 0.0}
    return ResourceSet.parse({"version": 1, "execution": {**execution, "nodelist": [f"n[{ranks}]"]}})


def loaded(policy: str, kind: str, waiting: int) -> Scheduler:
    """A scheduler whose machine is full, with a long queue of jobs that do not fit now."""
    chance = random.Random(kind)
    of_each = {"pool": 1, "wide": EACH * 64}.get(kind)
    running = [of_each or chance.choice(SIZES[:5]) for _ in range(RUNNING)]
    if kind in ("whole", "shared"):
        running = [64 * (1 + (at < SITE - RUNNING - 4)) for at in range(RUNNING)]  # four targets are left
    scheduler = Scheduler(load(policy)[0], notify=False)
    resources = machine(kind, running)
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    for jobid, size in enumerate(running):
        spec = spec_of(kind, 4 if kind == "pool" else size, chance.uniform(600, 86400), chance.random() < 0.2)
        scheduler.alloc(jobid, 16, jobid % ACCOUNTS, 0.0, spec)
    if kind in ("wide", "shared"):  # with a target that jobs share, cores do not suffice to plan
        scheduler.alloc(RUNNING + waiting, 16, 0, 0.0, spec_of(kind, 4, 100_000.0, False))
    for _ in scheduler.schedule(0.0):
        pass
    for jobid in range(RUNNING, RUNNING + waiting):
        size = ASKED * 64 if kind == "wide" else chance.choice(SIZES[2:])
        if kind in ("whole", "shared"):
            size *= 64 * 2  # eight targets at least
        spec = spec_of(kind, size, float(chance.choice(LIMITS_S)), False)
        scheduler.alloc(jobid, 16, jobid % ACCOUNTS, float(jobid), spec)
    return scheduler


def spec_of(kind: str, size: int, limit_s: float, gpu: bool) -> Jobspec:
    """On single cores, or on targets: up to 32 cores shared, from there on as many targets as that is."""
    if kind == "counted":
        return Jobspec.from_command(["x"], ntasks=size, duration_s=limit_s)
    if size < 64:
        return Jobspec.from_command(["x"], cores_per_task=size, gpus_per_task=int(gpu), duration_s=limit_s)
    nodes = size // 64 * 4 if kind == "pool" else size // 64
    return Jobspec.from_command(["x"], nodes=nodes, exclusive=True, duration_s=limit_s)


def passes(scheduler: Scheduler) -> list[float]:
    """Milliseconds of each pass, of CPU: a pass waits for nothing."""
    spent = []
    for n in range(REPEATS):
        scheduler.went_offline(Idset.of([0]))  # a change after which all are looked at
        scheduler.went_online(Idset.of([0]))
        begun = time.process_time()
        for _ in scheduler.schedule(60.0 * (n + 1)):
            pass
        spent.append((time.process_time() - begun) * 1000)
    return spent


def plan_outages(scheduler: Scheduler, number: int) -> None:
    """Plan outages of up to 512 neighbouring targets, each for some hours of the next week."""
    chance, targets, found = random.Random(number), len(scheduler.group("default").pool.ranks), list[Outage]()
    for at in range(number):
        first, count, from_s = chance.randrange(targets), chance.randint(1, 512), chance.uniform(0, 7 * 86400)
        ranks = Idset.of(range(first, min(first + count, targets)))
        found.append(Outage(f"o{at}", ranks, from_s, from_s + chance.uniform(3600, 8 * 3600)))
    scheduler.updated("default", outages=Outages(found))


def main() -> None:
    arguments = sys.argv[1:]
    outages = 0
    if "--outages" in arguments:
        at = arguments.index("--outages")
        outages = int(arguments[at + 1])
        del arguments[at : at + 2]
    print(f"{'policy':<24}{'machine':<10}{'running':>9}{'waiting':>9}{'ms':>9}{'aim':>7}")
    for name, policy, kind, waiting, aim_ms in CASES:
        if any(not name.startswith(wanted) for wanted in arguments[:1]):
            continue
        scheduler = loaded(policy, kind, waiting)
        if outages:
            plan_outages(scheduler, outages)
        stats = scheduler.report.stats()
        took_ms = statistics.median(passes(scheduler))
        left = stats["groups"]["default"]["waiting"]
        print(f"{name:<24}{kind:<10}{stats['running']:>9}{left:>9}{took_ms:>9.2f}{aim_ms or '':>7}", flush=True)


if __name__ == "__main__":
    main()
