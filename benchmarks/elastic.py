"""Elastic jobs that give way, and grow: 1,000 of them on 16,384 targets; milliseconds of CPU, medians.

    python benchmarks/elastic.py

Each has 4 targets at least, and 12 or 13 beyond; they are of three accounts, or of none. Another job wants 4,096 whole
targets, as much as its share. `give way` is the pass from its submission to the last decision, `gap` the longest time
in it for which no question is answered, and `in vain` a pass in which all could grow and none finds room. `grow` is the
pass in which the jobs get back what they gave.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

from fluxsched.core.idset import EMPTY
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Effect, Granted, Grown, Shrunk
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.registry import load

TARGETS, CORES, JOBS, WANTED = 16_384, 64, 1000, 4096
ACCOUNTS = 3
NEW_USER = 99
REPEATS = 5
PAUSE_S = 61.0


def resources(ranks: str) -> ResourceSet:
    """So many whole targets."""
    targets = [{"rank": ranks, "children": {"core": f"0-{CORES - 1}"}}]
    execution = {"R_lite": targets, "starttime": 0.0, "expiration": 0.0, "nodelist": [f"n[{ranks}]"]}
    return ResourceSet.parse({"version": 1, "execution": execution})


def jobspec(nodes: int | str, is_elastic: bool) -> dict[str, Any]:
    """A job of whole nodes."""
    core = {"type": "core", "count": 1}
    slot = {"type": "slot", "count": 1, "label": "task", "with": [core]}
    node = {"type": "node", "count": nodes, "exclusive": True, "with": [slot]}
    system = {"duration": 0, "fluxsched": {"elastic": True} if is_elastic else {}}
    tasks = [{"command": ["x"], "slot": "task", "count": {"per_slot": 1}}]
    return {"version": 1, "resources": [node], "tasks": tasks, "attributes": {"system": system}}


def timed(effects: Iterator[Effect]) -> tuple[float, float, list[Effect]]:
    """CPU milliseconds of a pass, and of its longest stretch between two effects."""
    found: list[Effect] = []
    gap = 0.0
    gc.collect()
    begun = last = time.process_time()
    for effect in effects:
        now = time.process_time()
        gap, last = max(gap, now - last), now
        found.append(effect)
    return 1e3 * (time.process_time() - begun), 1e3 * gap, found


def answer(scheduler: Scheduler, effects: list[Effect], now_s: float) -> int:
    """Stores grows and frees what jobs leave; how many targets that were."""
    count = 0
    for effect in effects:
        match effect:
            case Grown(jobid):
                scheduler.grow_stored(jobid, now_s)
                count += len(effect.resources.ranks)
            case Shrunk(jobid, ranks):
                scheduler.free(jobid, resources(str(ranks)), False, now_s)
                count += len(ranks)
    return count


def measure(policy: str) -> None:
    """One site, and all passes on it again and again."""
    scheduler = Scheduler(load(policy)[0], fair=FairSettings(), notify=False)
    whole = resources(f"0-{TARGETS - 1}")
    scheduler.grown("default", whole, whole.ranks, EMPTY)
    now_s = 1000.0
    for jobid in range(1, JOBS + 1):
        scheduler.alloc(jobid, 16, jobid % ACCOUNTS, now_s, jobspec(f"4-{TARGETS // JOBS + 1}", True), now_s)
    answer(scheduler, list(scheduler.schedule(now_s)), now_s)
    rows: dict[str, list[float]] = {"give way": [], "gap": [], "in vain": [], "grow": []}
    for turn in range(REPEATS):
        now_s += PAUSE_S
        scheduler.group("default").invalidate_pass()
        rows["in vain"].append(timed(scheduler.schedule(now_s))[0])
        large = 100_000 + turn
        scheduler.alloc(large, 16, NEW_USER, now_s, jobspec(WANTED, False), now_s)
        took, gap, effects = timed(scheduler.schedule(now_s))
        assert sum([len(one.ranks) for one in effects if isinstance(one, Shrunk)]) == WANTED
        rows["give way"].append(took)
        rows["gap"].append(gap)
        answer(scheduler, effects, now_s)
        assert [one.jobid for one in scheduler.schedule(now_s) if isinstance(one, Granted)] == [large]
        now_s += PAUSE_S
        scheduler.free_all(large, now_s)
        took, gap, effects = timed(scheduler.schedule(now_s))
        assert answer(scheduler, effects, now_s) == WANTED
        rows["grow"].append(took)
        rows["gap"].append(gap)
    medians = "  ".join([f"{name} {statistics.median(found):7.1f}" for name, found in rows.items()])
    print(f"{policy:6}  {medians}  longest gap {max(rows['gap']):.1f}")


def main() -> None:
    """With accounts and without."""
    for policy in ("fair", "easy"):
        measure(policy)


if __name__ == "__main__":
    main()
