"""Submits beside clients that list all jobs in a loop: how long each waits for its answer.

    python benchmarks/listing.py [--jobs 28000] [--listers 3] [--seconds 20] [--flood 64] [--most-ms 250]

A real instance on a state directory has JOBS jobs that are held. LISTERS processes of the plain public client
(`fluxsched.connect_sync`) ask for all jobs again and again; another client submits a job, waits for the answer, and
pauses a moment. With --flood a further process keeps so many submits of short jobs under way, which run at once: the
store is never idle then. Prints latencies of submits and pings without and with the listers; fails if the 99th
percentile of submits beside them is above MOST_MS. Listers decode what they get: on two cores they compete with the
instance for these, which is measured, too.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from outside.jobspecs import passing
from outside.program import Program
from outside.wire import Wire

from fluxsched import connect_sync

PAUSE_S = 0.01
"""Between two submits."""
FAKE = "64x16"
RUN_S = 0.01
HELD = {"jobspec": passing(RUN_S), "urgency": 0}


def list_all(uri: str, stop: Event, counts: Any, at: int) -> None:
    """List all jobs until `stop`; how often goes to `counts`."""
    with connect_sync(uri) as handle:
        while not stop.is_set():
            handle.rpc("job-manager.list", {"max_entries": 0})
            counts[at] += 1


def flood(uri: str, stop: Event, under_way: int) -> None:
    """Submit jobs that run at once, so many at a time, until `stop`."""

    async def one(wire: Wire) -> None:
        while not stop.is_set():
            await wire.call("job-manager.submit", {"jobspec": passing(RUN_S)})

    async def all_of_them() -> None:
        wire = Wire(uri)
        await asyncio.gather(*[one(wire) for _ in range(under_way)])
        wire.close()

    asyncio.run(all_of_them())


def measure(uri: str, seconds: float) -> tuple[list[float], list[float]]:
    """Latencies of submits and of pings in turn (seconds)."""
    took: tuple[list[float], list[float]] = ([], [])
    until_s = time.monotonic() + seconds
    with connect_sync(uri) as handle:
        while time.monotonic() < until_s:
            for latencies, topic, payload in ((took[0], "job-manager.submit", HELD), (took[1], "instance.ping", {})):
                begun_s = time.monotonic()
                handle.rpc(topic, payload)
                latencies.append(time.monotonic() - begun_s)
            time.sleep(PAUSE_S)
    return took


def show(what: str, latencies: list[float]) -> float:
    """Print one line; the 99th percentile (milliseconds)."""
    ms = sorted(1000 * one for one in latencies)
    p99 = ms[min(len(ms) - 1, int(0.99 * len(ms)))]
    print(f"{what:28} {len(ms):6} {statistics.median(ms):9.1f} {p99:9.1f} {ms[-1]:9.1f}", flush=True)
    return p99


def compare(uri: str, given: argparse.Namespace) -> float:
    """Measure without and with listers; the 99th percentile of submits beside them (milliseconds)."""
    stop, counts = multiprocessing.Event(), multiprocessing.Array("i", given.listers)
    others = [multiprocessing.Process(target=flood, args=(uri, stop, given.flood))] if given.flood else []
    listers = [multiprocessing.Process(target=list_all, args=(uri, stop, counts, at)) for at in range(given.listers)]
    print(f"{'':28} {'number':>6} {'p50 ms':>9} {'p99 ms':>9} {'max ms':>9}")
    try:
        for one in others:
            one.start()
        time.sleep(1.0)
        submits, pings = measure(uri, given.seconds / 2)
        show("submit, nobody lists", submits)
        show("ping, nobody lists", pings)
        for one in listers:
            one.start()
        time.sleep(1.0)
        submits, pings = measure(uri, given.seconds)
        p99 = show(f"submit, {given.listers} list", submits)
        show(f"ping, {given.listers} list", pings)
        print(f"lists answered: {sum(counts[:])}, at least {min(counts[:], default=0)} a client")
    finally:
        stop.set()
        for one in (*others, *listers):
            if one.pid is not None:
                one.join()
    return p99


async def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=28_000)
    parser.add_argument("--listers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flood", type=int, default=0)
    parser.add_argument("--most-ms", type=float, default=250.0)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="fluxsched-listing-"))
    program = Program(directory / "state", "--fake", FAKE)
    program.spawn()
    try:
        await program.ready()
        wire = Wire(program.uri)
        for begin in range(0, given.jobs, 1000):
            some = min(1000, given.jobs - begin)
            await asyncio.gather(*[wire.call("job-manager.submit", HELD) for _ in range(some)])
        wire.close()
        print(f"{given.jobs} jobs, {given.listers} listers, {given.flood} submits of others under way; "
              f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
        return 0 if compare(program.uri, given) <= given.most_ms else 1
    finally:
        program.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(asyncio.run(main()))
