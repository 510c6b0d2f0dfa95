"""The way of one alloc request through `sched`: files entered, calls, and moves from one file to another.

    python benchmarks/alloc_path.py

One job on an idle machine of 1,024 targets under `easy`: its request, its pass, its answer with R and annotations, and
its free. Another one goes first, so that what is worked out once is not counted. Compiled calls are not seen.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import FrameType

from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Granted
from fluxsched.sched.engine import scheduler as engine
from fluxsched.sched.registry import load

SCHED = Path(engine.__file__).parents[1]


def alloc(scheduler: engine.Scheduler, jobid: int) -> None:
    spec = Jobspec.from_command(["x"], duration_s=600.0)
    scheduler.alloc(jobid, 16, 1, float(jobid), spec)
    (granted,) = scheduler.schedule(float(jobid))
    assert isinstance(granted, Granted)
    assert granted.R
    assert granted.annotations
    scheduler.free(jobid, granted.resources, final=True)


def main() -> int:
    execution = {"R_lite": [{"rank": "0-1023", "children": {"core": "0-63"}}], "starttime": 0.0, "expiration": 0.0}
    resources = ResourceSet.parse({"version": 1, "execution": {**execution, "nodelist": ["n[0-1023]"]}})
    scheduler = engine.Scheduler(load("easy")[0])
    scheduler.grown("default", resources, resources.ranks, EMPTY)
    alloc(scheduler, 1)
    way: list[str] = []

    def follow(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and SCHED in file.parents:
            way.append(file.relative_to(SCHED).as_posix())

    sys.setprofile(follow)
    alloc(scheduler, 2)
    sys.setprofile(None)
    moves = sum(one != other for one, other in pairwise(way))
    print(f"{len(set(way))} files, {len(way)} calls, {moves} moves between files")
    for file, calls in Counter(way).most_common():
        print(f"{calls:5} {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
