"""Grow and shrink of one target of a running job, from the scheduler's request to the answer: it is on disk then.

    python benchmarks/resize.py [--fake 16384x64] [--nodes 8] [--rounds 500]

The scheduler is this process, over the socket, so the figure holds the instance's work, its store and two wake-ups; a
third of the figures is from a shrink to the free of the target, whose tasks (of a test job) end at once. Milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from fluxsched.client.aio import AsyncHandle
from fluxsched.core.jobspec import Jobspec
from fluxsched.instance import launch
from fluxsched.protocol import framing
from fluxsched.protocol.framing import REQUEST, Message, decode, make_response, unpack_bundle

HOUR_S = 3600.0


class ByHand(AsyncHandle):
    """A scheduler: what it is asked is kept."""

    async def __aenter__(self) -> ByHand:
        await super().__aenter__()
        return self

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.asked: asyncio.Queue[Message] = asyncio.Queue()

    def receive(self, frames: Sequence[bytes]) -> None:
        """Also requests."""
        for message in unpack_bundle(decode(frames)):
            if message.type == REQUEST:
                self.asked.put_nowait(message)
        super().receive(frames)


def r_of(ranks: str, hosts: str, cores: str) -> dict[str, Any]:
    execution = {"R_lite": [{"rank": ranks, "children": {"core": cores}}], "nodelist": [hosts], "starttime": 0.0}
    return {"version": 1, "execution": {**execution, "expiration": 0.0}}


async def measure(uri: str, nodes: int, cores: str, rounds: int) -> None:
    """One elastic job that has `nodes` targets, and grows and shrinks by another one."""
    async with ByHand(uri) as scheduler, AsyncHandle(uri) as user:
        await anext(scheduler.stream("resource.acquire", {"group": "default"}))
        async for _ in scheduler.stream("job-manager.sched-hello", {"partial-ok": True}):
            pass
        await scheduler.rpc("job-manager.sched-ready", {"mode": "unlimited"})
        spec = Jobspec.from_command(
            ["work"], nodes=f"{nodes}+", exclusive=True, elastic=True, test_run_duration_s=HOUR_S
        )
        jobid = await user.submit(spec)
        changes = await user.changes(jobid)
        asked = await scheduler.asked.get()
        first = r_of(f"0-{nodes - 1}", f"fake[0-{nodes - 1}]", cores)
        scheduler.post(make_response(asked, framing.pack({"id": jobid, "type": 0, "R": first})))
        await anext(changes)
        figures: dict[str, list[float]] = {"grow stored": [], "shrink stored": [], "shrink to free": []}
        for number in range(rounds):
            rank = nodes + number % 100
            begin_s = time.perf_counter()
            await scheduler.rpc("job-manager.sched-grow", {"id": jobid, "R": r_of(str(rank), f"fake{rank}", cores)})
            figures["grow stored"].append(time.perf_counter() - begin_s)
            begin_s = time.perf_counter()
            await scheduler.rpc("job-manager.sched-shrink", {"id": jobid, "ranks": str(rank), "note": "for another"})
            figures["shrink stored"].append(time.perf_counter() - begin_s)
            await scheduler.asked.get()
            figures["shrink to free"].append(time.perf_counter() - begin_s)
        await user.cancel(jobid)
    for name, found in figures.items():
        quantiles = [each * 1e3 for each in statistics.quantiles(found, n=100)]
        print(f"{name:15} p50 {quantiles[49]:6.2f} ms   p99 {quantiles[98]:6.2f} ms   max {max(found) * 1e3:6.2f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", default="16384x64")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    cores = f"0-{int(options.fake.split('x')[1]) - 1}"
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake, schedulers=("none",)))
    try:
        for _ in range(options.runs):
            asyncio.run(measure(uri, options.nodes, cores, options.rounds))
    finally:
        launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
