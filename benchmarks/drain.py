"""Drain answered durable, and `offline` seen by an acquirer over ipc; at 16,384 targets, or so many as --fake says.

    python benchmarks/drain.py [--fake 131072x64] [--rounds 500]

Each round drains one target and undrains it again; the acquirer is a second connection of the same process, so the
figure holds the instance's whole work and two wake-ups. The second figures are of some cores of one target after the
other, which stay drained until all are. The third are of the spare that replaces the drained target: until the
acquirer has been grown by it, and the drain is answered. Milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import fluxsched
from fluxsched.instance import launch

SPARES = 64


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


async def measure_spares(uri: str, rounds: int) -> None:
    async with fluxsched.connect(uri) as admin, fluxsched.connect(uri) as scheduler:
        stream = scheduler.stream("resource.acquire", {"group": "default", "accept": ["update", "parts"]})
        await anext(stream)
        answered, seen = [], []

        async def grown(begin_s: float) -> str:
            while (message := await anext(stream))["type"] != "grow":
                pass
            seen.append((time.perf_counter() - begin_s) * 1e3)
            return str(message["online"])

        for number in range(rounds):
            begin_s = time.perf_counter()
            waiting = asyncio.ensure_future(grown(begin_s))
            await admin.drain(str(number % 1000), "benchmark")
            answered.append((time.perf_counter() - begin_s) * 1e3)
            spare = await waiting
            await admin.undrain(str(number % 1000))
            while (await anext(stream))["type"] != "shrink":
                pass
            await scheduler.rpc("resource.release", {"group": "default", "targets": spare})
    show(("spare, durable", answered), ("spare, seen", seen))


def show(*found: tuple[str, list[float]]) -> None:
    for name, figures in found:
        quantiles = statistics.quantiles(figures, n=100)
        print(f"{name:18} p50 {quantiles[49]:6.2f} ms   p99 {quantiles[98]:6.2f} ms   max {max(figures):6.2f} ms")


def run(
    fake: str, config: Path | None, runs: int, measures: Callable[[str], list[Coroutine[object, object, None]]]
) -> None:
    uri = launch.start_daemon(launch.StartOptions(fake=fake, schedulers=("none",), config=config))
    try:
        for _ in range(runs):
            for each in measures(uri):
                asyncio.run(each)
    finally:
        launch.stop(uri)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fake", default="16384x64")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rounds = options.rounds
    run(options.fake, None, options.runs, lambda uri: [measure(uri, rounds), measure_parts(uri, rounds)])
    targets = int(options.fake.partition("x")[0])
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f'[resource]\nspares = "{targets - SPARES}-{targets - 1}"\n')
        config.flush()
        run(options.fake, Path(config.name), options.runs, lambda uri: [measure_spares(uri, rounds)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
