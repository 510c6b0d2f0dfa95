"""Drain answered durable, and `offline` seen by an acquirer over ipc; at 16,384 targets, or so many as --fake says.

    python benchmarks/drain.py [--fake 131072x64] [--rounds 500]

Each round drains one target and undrains it again; the acquirer is a second connection of the same process, so the
figure holds the instance's whole work and two wake-ups. The second figures are of some cores of one target after the
other, which stay drained until all are. Milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

import fluxsched
from fluxsched.instance import launch


async def measure(uri: str, rounds: int) -> None:
    async with fluxsched.connect(uri) as admin, fluxsched.connect(uri) as scheduler:
        stream = scheduler.stream("resource.acquire", {"group": "default"})
        first = await anext(stream)
        assert first["type"] == "grow"
        answered, seen = [], []

        async def offline(begin_s: float) -> None:
            message = await anext(stream)
            assert message["type"] == "offline", message
            seen.append((time.perf_counter() - begin_s) * 1e3)

        for number in range(rounds):
            target = str(number % 1000)
            begin_s = time.perf_counter()
            waiting = asyncio.ensure_future(offline(begin_s))
            await admin.drain(target, "benchmark")
            answered.append((time.perf_counter() - begin_s) * 1e3)
            await waiting
            await admin.undrain(target)
            await anext(stream)
    show(("answered durable", answered), ("offline seen", seen))


async def measure_parts(uri: str, rounds: int) -> None:
    async with fluxsched.connect(uri) as admin, fluxsched.connect(uri) as scheduler:
        stream = scheduler.stream("resource.acquire", {"group": "default", "accept": ["update", "parts"]})
        await anext(stream)
        answered, seen = [], []

        async def told(begin_s: float) -> None:
            message = await anext(stream)
            assert message["type"] == "update", message
            seen.append((time.perf_counter() - begin_s) * 1e3)

        for number in range(rounds):
            begin_s = time.perf_counter()
            waiting = asyncio.ensure_future(told(begin_s))
            await admin.drain(str(number), f"benchmark {number}", cores="0-1")
            answered.append((time.perf_counter() - begin_s) * 1e3)
            await waiting
        await admin.undrain(f"0-{rounds - 1}", cores="0-1")
    show(("parts, durable", answered), ("parts, seen", seen))


def show(*found: tuple[str, list[float]]) -> None:
    for name, figures in found:
        quantiles = statistics.quantiles(figures, n=100)
        print(f"{name:18} p50 {quantiles[49]:6.2f} ms   p99 {quantiles[98]:6.2f} ms   max {max(figures):6.2f} ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", default="16384x64")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake, schedulers=("none",)))
    try:
        for _ in range(options.runs):
            asyncio.run(measure(uri, options.rounds))
            asyncio.run(measure_parts(uri, options.rounds))
    finally:
        launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
