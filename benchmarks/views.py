"""What viewers of a busy instance cost: the process that follows it for them, and the instance.

    python benchmarks/views.py [--fake 16384x64] [--rate 1000] [--run 2] [--exclusive] [--duration 10]
        [--viewers 1] [--topics machine,jobs,figures]

Jobs come at a steady rate, each of a core, or of a target (`--exclusive`); their client is another process. CPU time
is counted, since the machine may be shared: without viewers, then with them, then without again.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fluxsched
from fluxsched.instance import launch
from fluxsched.views.follower import Follower

SETTLED_S = 1.5
"""Before something is measured."""
TICK_S = 0.005


def main() -> None:
    """Measure as the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", default="16384x64")
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--duration", type=float, default=10.0)
    parser.add_argument("--viewers", type=int, default=1)
    parser.add_argument("--run", type=float, default=2.0, help="how long each job runs (seconds)")
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("--topics", default="machine,jobs,figures")
    options = parser.parse_args()
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake))
    context = multiprocessing.get_context("spawn")
    client = context.Process(target=submitting, args=(uri, options.rate, options.run, options.exclusive))
    client.start()
    try:
        asyncio.run(measure(uri, options))
    finally:
        client.terminate()
        client.join()
        launch.stop(uri)


def submitting(uri: str, rate: float, run_s: float, is_exclusive: bool) -> None:
    """Submit jobs at a rate until this process is ended."""
    asyncio.run(_submit(uri, rate, run_s, is_exclusive))


async def _submit(uri: str, rate: float, run_s: float, is_exclusive: bool) -> None:
    nodes = 1 if is_exclusive else None
    spec = fluxsched.Jobspec.from_command(
        ["true"], nodes=nodes, exclusive=is_exclusive, test_run_duration_s=run_s, cwd="/", environment={}
    ).to_json()
    async with fluxsched.connect(uri) as h:
        begin_s, sent = time.perf_counter(), 0
        while True:
            for _ in range(int((time.perf_counter() - begin_s) * rate) - sent):
                h.call("job-manager.submit", {"jobspec": spec})
                sent += 1
            await asyncio.sleep(TICK_S)


async def measure(uri: str, options: argparse.Namespace) -> None:
    """Print the shares of a core."""
    async with fluxsched.connect(uri) as h:
        pid = (await h.rpc("instance.info"))["pid"]
        await asyncio.sleep(options.run + SETTLED_S)
        await _period(h, pid, options.duration, "no viewer")
        seen: Counter[str] = Counter()
        async with Follower(uri) as follower:
            tasks = [
                asyncio.create_task(view(follower, topic, seen))
                for topic in options.topics.split(",")
                for _ in range(options.viewers)
            ]
            await asyncio.sleep(SETTLED_S)
            seen.clear()
            await _period(h, pid, options.duration, f"{options.viewers} viewers of {options.topics}")
            told = ", ".join(f"{what} {count}" for what, count in sorted(seen.items()))
            print(f"  in {options.duration:.0f} s: {told}")
            for task in tasks:
                task.cancel()
        await _period(h, pid, options.duration, "no viewer")


async def view(follower: Follower, topic: str, seen: Counter[str]) -> None:
    """A viewer that has every message encoded, as the page does."""
    async with follower.subscribe(topic) as messages:
        async for message in messages:
            seen[f"{topic} {message.kind}"] += 1
            seen[f"{topic} bytes"] += len(message.json)


async def _period(h: Any, pid: int, duration_s: float, what: str) -> None:
    ended, begin_s = await _ended(h), time.perf_counter()
    ours_s, theirs_s = time.process_time(), cpu_s(pid)
    await asyncio.sleep(duration_s)
    took_s = time.perf_counter() - begin_s
    ours, theirs = (time.process_time() - ours_s) / took_s, (cpu_s(pid) - theirs_s) / took_s
    rate = (await _ended(h) - ended) / took_s
    print(
        f"{rate:6.0f} jobs/s  of a core: viewers {100 * ours:.1f} %, instance {100 * theirs:.1f} %  ({what})",
        flush=True,
    )


async def _ended(h: Any) -> int:
    return sum((await h.rpc("instance.metrics"))["jobs"]["ended"].values())


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
