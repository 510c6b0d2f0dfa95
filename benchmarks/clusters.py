"""Leases: from the grant here to the start in the other instance, and how many a second over two clusters.

    python benchmarks/clusters.py [--rounds 100] [--jobs 3000] [--real]

Three instances as processes of their own, with their state on disk. `--real`: the jobs of the first figure run `true`;
all others only let time pass. Latencies are differences of events' times, of one clock.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fluxsched
from fluxsched.core.jobspec import Jobspec
from fluxsched.instance import launch

CLUSTERS = ("east", "west")
CONFIG = '[[scheduler]]\npolicy = "fifo"\ngroups = ["default", "east", "west"]\n' + "".join(
    f'[queues.{name}]\ngroup = "{name}"\n[[cluster]]\nname = "{name}"\nuri = "{{{name}}}"\n' for name in CLUSTERS
)


def spec(queue: str, *, real: bool = False) -> dict[str, Any]:
    """A job of one core."""
    options: dict[str, Any] = {} if real else {"test_run_duration_s": 0.0}
    return Jobspec.from_command(["true"], queue=queue, **options).to_json()


async def started(uri: str, ids: list[int], name: str) -> dict[int, float]:
    """When these jobs had this event."""
    async with fluxsched.connect(uri) as h:
        found = {}
        for jobid in ids:
            log = (await h.rpc("job-manager.lookup", {"id": jobid, "keys": ["eventlog"]}))["eventlog"]
            found[jobid] = next(event["timestamp"] for event in log if event["name"] == name)
        return found


async def latencies(here: str, there: str, rounds: int, *, real: bool) -> list[float]:
    """Milliseconds from `alloc` here to `start` there, one job after the other."""
    pairs = []
    async with fluxsched.connect(here) as h, fluxsched.connect(there) as other:
        for _ in range(rounds):
            jobid = await h.submit(spec("east", real=real))
            await h.wait(jobid)
            (last,) = (await other.rpc("job-manager.list", {"max_entries": 1}))["jobs"]
            pairs.append((jobid, last["id"]))
    allocated = await started(here, [jobid for jobid, _ in pairs], "alloc")
    begun = await started(there, [jobid for _, jobid in pairs], "start")
    return [(begun[there_id] - allocated[jobid]) * 1e3 for jobid, there_id in pairs]


async def rate(here: str, jobs: int) -> float:
    """Leases a second, from the first submit to the last end."""
    async with fluxsched.connect(here) as h:
        begin_s = time.perf_counter()
        ids = await h.submit_many([spec(CLUSTERS[at % 2]) for at in range(jobs)])
        await asyncio.gather(*[h.wait(jobid) for jobid in ids])
        return jobs / (time.perf_counter() - begin_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--real", action="store_true")
    options = parser.parse_args()
    uris: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        try:
            for name in CLUSTERS:
                uris.append(launch.start_daemon(launch.StartOptions(fake="64x64", statedir=top / name)))
            (top / "here.toml").write_text(CONFIG.format(**dict(zip(CLUSTERS, uris, strict=True))))
            uris.append(
                launch.start_daemon(launch.StartOptions(fake="1x1", config=top / "here.toml", statedir=top / "here"))
            )
            found = sorted(asyncio.run(latencies(uris[-1], uris[0], options.rounds, real=options.real)))
            p50, p99 = statistics.median(found), found[int(len(found) * 0.99)]
            print(f"granted here to started there: p50 {p50:6.2f} ms, p99 {p99:6.2f} ms (of {len(found)})")
            print(f"over two clusters: {asyncio.run(rate(uris[-1], options.jobs)):7.0f} leases/s ({options.jobs} jobs)")
        finally:
            for uri in reversed(uris):
                launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
