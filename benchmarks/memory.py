"""Memory of an instance and its scheduler on a machine of 131,072 equal targets, at rest and after some thousand jobs.

    python benchmarks/memory.py [--fake 131072x64] [--jobs 5000] [--running 100000]

RSS counts shared pages in each process, PSS in parts: what the two cost together lies between their sums.
The last line is of the objects alone: a resource module and a scheduler that has acquired all of it, by tracemalloc.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tracemalloc
from pathlib import Path

from jobs import DAY_S, RUN_S, Jobspecs, burst

import fluxsched
from fluxsched.config.discovery import discover
from fluxsched.config.inventory import build_inventory
from fluxsched.core.idset import EMPTY
from fluxsched.instance import launch
from fluxsched.resource.inventory import Inventory
from fluxsched.resource.module import ResourceModule
from fluxsched.sched import registry
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.loading import parse_spec

ASKED_MIB = 250
"""What issue 3 grants both processes together."""
WINDOW = 512
"""Jobs under way at once."""
ACCOUNTS = 1000
"""Of the jobs that run at once."""


def memory_mib(pid: int) -> dict[str, float]:
    """RSS and PSS of a process."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    sizes_kib = {name.rstrip(":"): int(size) for name, size, _ in lines}
    return {"RSS": sizes_kib["Rss"] / 1024, "PSS": sizes_kib["Pss"] / 1024}


def show(when: str, pids: dict[str, int]) -> None:
    found = {name: memory_mib(pid) for name, pid in pids.items()}
    for kind in ("RSS", "PSS"):
        each = ", ".join(f"{name} {sizes[kind]:.0f}" for name, sizes in found.items())
        both = sum(sizes[kind] for sizes in found.values())
        print(f"{when:24} {kind}: {each}, both {both:.0f} MiB (asked {ASKED_MIB})", flush=True)


def live(fake: str, jobs: int, running: int) -> None:
    """Of real processes."""
    command = [str(Path(sys.executable).with_name("fluxsched")), "start", "--fake", fake, "--daemon"]
    uri = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    try:
        with fluxsched.connect_sync(uri) as handle:
            mods = handle.rpc("module.list")["mods"]
            pids = {
                "instance": int(handle.rpc("instance.info")["pid"]),
                "scheduler": next(mod["pid"] for mod in mods if mod["name"] == "sched-fifo"),
            }
        show("at rest", pids)
        asyncio.run(burst(uri, jobs, WINDOW, Jobspecs(distinct=True, run_s=RUN_S)))
        show(f"after {jobs:,} jobs", pids)
        if running:
            asyncio.run(burst(uri, running, WINDOW, Jobspecs(False, DAY_S, ACCOUNTS), "start"))
            show(f"and {running:,} running", pids)
    finally:
        launch.stop(uri)


def objects(fake: str) -> None:
    """Of a resource module and a scheduler, in this process."""
    tracemalloc.start()
    resources = build_inventory(None, fake=fake, topology=discover).inventory.resources
    before = tracemalloc.get_traced_memory()[0]
    module = ResourceModule(Inventory(resources, "configuration"), {}, now_s=0.0, online=resources.ranks)
    scheduler = Scheduler(registry.make(*parse_spec("fifo")))
    scheduler.grown("default", resources, online=resources.ranks, offline=EMPTY)
    size, peak = tracemalloc.get_traced_memory()
    del module, scheduler
    print(f"objects: R {before / 2**20:.0f}, with module and scheduler {size / 2**20:.0f}, peak {peak / 2**20:.0f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", default="131072x64")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--running", type=int, default=0, help="then so many of one core that run at once")
    options = parser.parse_args()
    live(options.fake, options.jobs, options.running)
    objects(options.fake)
    return 0


if __name__ == "__main__":
    sys.exit(main())
