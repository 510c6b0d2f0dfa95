"""Which jobs go so that another can start, with 100,000 preemptible jobs on 16,384 targets: milliseconds, medians.

    python benchmarks/preemption.py

The machine is full, with jobs of 4, 8 and 16 cores of ten accounts, all above their share. Another account wants one
core, a whole target, or 64 whole targets. `search` is the search alone, `pass` all from the submission to the last
decision, `gap` the longest time in it for which no question is answered, and `first` the first pass of all, in which
the running jobs are taken in.
"""

from __future__ import annotations

import gc
import random
import statistics
import time

from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Granted, Raise
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.policies.fair_preemption import Levels, VictimSearch
from fluxsched.sched.policy import PendingJob
from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.registry import load

TARGETS = 16_384
CORES = 64
ACCOUNTS = 10
SIZES = (4, 8, 8, 16, 16)
STEPS = 200
STEP_S = 3.0
REPEATS = 9
NEW_USER = 99
RATE_S = 61.0
"""After which as many may be preempted again."""

CASES = (
    ("one core", Jobspec.from_command(["x"], duration_s=60.0)),
    ("one target", Jobspec.from_command(["x"], nodes=1, cores_per_task=CORES, exclusive=True, duration_s=60.0)),
    ("64 targets", Jobspec.from_command(["x"], nodes=64, cores_per_task=CORES, exclusive=True, duration_s=60.0)),
    ("64 half targets", Jobspec.from_command(["x"], nodes=64, cores_per_task=CORES // 2, duration_s=60.0)),
)


def full(chance: random.Random) -> tuple[Scheduler, float]:
    """A scheduler whose machine is full, and when that was reached."""
    policy = load("fair:backfill=firstfit,placement=best-fit")[0]
    scheduler = Scheduler(policy, fair=FairSettings(rate=2000), notify=False)
    ranks = f"0-{TARGETS - 1}"
    targets = [{"rank": ranks, "children": {"core": f"0-{CORES - 1}"}}]
    execution = {"R_lite": targets, "starttime": 0.0, "expiration": 0.0, "nodelist": [f"n[{ranks}]"]}
    resources = ResourceSet.parse({"version": 1, "execution": execution})
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    scheduler.group("default").running.follow()
    specs = {size: preemptible(Jobspec.from_command(["x"], cores_per_task=size)) for size in SIZES}
    jobid, now_s = 0, 0.0
    (group,) = scheduler._groups.values()
    for step in range(STEPS + 1):
        free = group.running.free if step == STEPS else 0
        for size in [4] * (free // 4) if free else chance.choices(SIZES, k=100_000 // STEPS):
            jobid += 1
            scheduler.alloc(jobid, 16, jobid % ACCOUNTS, now_s, specs[size], now_s)
        now_s += STEP_S
        started = {effect.jobid for effect in scheduler.schedule(now_s) if isinstance(effect, Granted)}
        for waiting in [each for each in group.queues[""].jobs.by_id if each not in started]:
            scheduler.cancel(waiting)
    return scheduler, now_s


def preemptible(spec: Jobspec) -> Jobspec:
    raw = {**spec.raw, "attributes": {"system": {**spec.raw["attributes"]["system"], "preemptible-after": 0}}}
    return Jobspec.parse(raw)


def search(scheduler: Scheduler, spec: Jobspec, now_s: float) -> tuple[float, int]:
    """CPU milliseconds of the search alone, and how many go."""
    book, preemptions = scheduler.accounts, scheduler._preemptions
    assert book is not None
    (group,) = scheduler._groups.values()
    shape = Shape(spec.request)
    account = book.account_of(None, NEW_USER)
    book.tree.activate(account, 1)
    begun = time.process_time()
    levels = Levels(book.tree)
    banks = levels.scope(account, book.usage(shape))
    job = PendingJob(10**9, 16, NEW_USER, now_s, shape, 60.0, account)
    found = VictimSearch(job, banks, levels, preemptions.running, now_s)
    done = False
    while not done:
        with preemptions.if_gone(group.pool) as what_if:
            done = found.go_on(what_if)
    took_ms = (time.process_time() - begun) * 1000
    book.tree.activate(account, -1)
    return took_ms, len(found.victims)


def whole_pass(scheduler: Scheduler, jobid: int, spec: Jobspec, now_s: float) -> tuple[float, float, int]:
    """CPU milliseconds of a pass, of its longest part without a pause, and how many go; then all is as before."""
    scheduler.alloc(jobid, 16, NEW_USER, now_s, spec, now_s)
    begun = last = time.process_time()
    gap_s, going = 0.0, []
    for effect in scheduler.schedule(now_s):
        gap_s, last = max(gap_s, time.process_time() - last), time.process_time()
        if isinstance(effect, Raise):
            going.append(effect.jobid)
        assert not isinstance(effect, Granted)
    took_s = time.process_time() - begun
    for each in going:
        scheduler.preempt_failed(each)  # it stays
    preemptions = scheduler._preemptions
    preemptions._spared.clear()
    for each in going:
        preemptions.began(scheduler._ledger.allocations[each])
    scheduler.cancel(jobid)
    return took_s * 1000, gap_s * 1000, len(going)


def main() -> None:
    scheduler, now_s = full(random.Random(1))
    print(f"{scheduler.report.stats()['running']} preemptible jobs on {TARGETS} targets", flush=True)
    gc.freeze()
    first_ms, gap_ms, _ = whole_pass(scheduler, 10**6, CASES[0][1], now_s)
    print(f"first: {first_ms:.0f} ms, its longest gap {gap_ms:.1f} ms")
    print(f"{'wanted':<18}{'go':>6}{'search':>9}{'pass':>9}{'gap':>9}")
    for name, spec in CASES:
        searches = [search(scheduler, spec, now_s + 100 + n) for n in range(REPEATS)]
        now_s += RATE_S
        passes = []
        for n in range(REPEATS):
            now_s += RATE_S
            passes.append(whole_pass(scheduler, 10**6 + 1 + n, spec, now_s))
        figures = [
            statistics.median([took for took, _ in searches]),
            statistics.median([took for took, _, _ in passes]),
            statistics.median([gap for _, gap, _ in passes]),
        ]
        print(f"{name:<18}{searches[0][1]:>6}" + "".join(f"{each:>9.2f}" for each in figures), flush=True)


if __name__ == "__main__":
    main()
