"""Jobs per second, submit to inactive, durable, `test` execution: the whole path over real sockets and SQLite.

    python benchmarks/jobs.py [--fake 1000x64] [--jobs 3000] [--runs 5] [--window 512]

One client bundles its submits and follows the jobs by one subscription. CPU seconds a process are printed, since the
machine may be shared. Peers' figures: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import time
from pathlib import Path

import fluxsched
from fluxsched.runtime import launch

JOBSPEC = fluxsched.Jobspec.from_command(["true"], test_run_duration_s=0.001, cwd="/", environment={}).to_json()


async def one_run(uri: str, jobs: int, window: int) -> float:
    """Seconds from the first submit to the last job inactive."""
    async with fluxsched.connect(uri) as h:
        events = h.stream("job-manager.watch", {"names": ["clean"]})
        await h.rpc("instance.info")
        done = 0
        sent = 0
        begin_s = time.perf_counter()
        answers: list[asyncio.Future[bytes | None]] = []
        while done < jobs:
            while sent < jobs and sent - done < window:
                answers.append(h.call("job-manager.submit", {"jobspec": JOBSPEC}))
                sent += 1
            message = await anext(events)
            done += len(message["events"])
        elapsed_s = time.perf_counter() - begin_s
        await asyncio.gather(*answers)
        return elapsed_s


def cpu_s(pid: int) -> float:
    """User and system seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace, uri: str) -> None:
    with fluxsched.connect_sync(uri) as h:
        instance = h.rpc("instance.info")["pid"]
        scheduler = next(mod["pid"] for mod in h.rpc("module.list")["mods"] if mod["name"] == "sched-fifo")
    await one_run(uri, min(options.jobs, 500), options.window)
    rates = []
    for _ in range(options.runs):
        before = [cpu_s(instance), cpu_s(scheduler), time.process_time()]
        elapsed_s = await one_run(uri, options.jobs, options.window)
        after = [cpu_s(instance), cpu_s(scheduler), time.process_time()]
        per_job = [(b - a) / options.jobs * 1e6 for a, b in zip(before, after, strict=True)]
        rates.append(options.jobs / elapsed_s)
        print(
            f"{rates[-1]:8.0f} jobs/s   CPU us a job: instance {per_job[0]:.0f}, scheduler {per_job[1]:.0f}, "
            f"client {per_job[2]:.0f}"
        )
    print(f"median {statistics.median(rates):.0f} jobs/s of {options.jobs} jobs on {options.fake}, {options.runs} runs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", default="1000x64")
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--window", type=int, default=512, help="jobs under way at once")
    options = parser.parse_args()
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake))
    try:
        asyncio.run(measure(options, uri))
    finally:
        launch.stop(uri)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"peak memory of the client: {peak_mib} MiB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
