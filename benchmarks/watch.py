"""What looking costs an instance: CPU a job with no reader of `resource.watch` and with some, at a steady rate.

    python benchmarks/watch.py [--fake 16384x64] [--rate 1000] [--duration 5] [--runs 4] [--length 0.001] [--readers 1]

Readers are processes of their own; all of them read everything. CPU time is compared, since the machine may be shared.
The first answer is timed before and after. `views.py` measures the process that follows for viewers.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from jobs import Jobspecs, Usage, paced

import fluxsched
from fluxsched.instance import launch
from fluxsched.protocol import framing

POLL_S = 0.01


def read(uri: str, results: Connection) -> None:
    """Another client, until it is stopped: how many answers came, and their bytes."""

    async def follow() -> tuple[int, int]:
        answers = size = 0
        async with fluxsched.connect(uri) as h:

            async def count() -> None:
                nonlocal answers, size
                async for answer in await h.watch_resources():
                    answers += 1
                    size += len(framing.pack(answer))

            counting = asyncio.ensure_future(count())
            while not results.poll():
                await asyncio.sleep(POLL_S)
            counting.cancel()
            with suppress(asyncio.CancelledError):
                await counting
        return answers, size

    results.send(asyncio.run(follow()))


@contextmanager
def reading(readers: int, uri: str, told: list[tuple[int, int]]) -> Iterator[None]:
    """Have so many of them follow meanwhile."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(readers)]
    processes = [context.Process(target=read, args=(uri, theirs)) for _, theirs in pipes]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for ours, _ in pipes:
            ours.send(None)
            told.append(ours.recv())
        for process in processes:
            process.join()


def connected(uri: str, count: int) -> None:
    """Wait until so many streams are open besides the scheduler's."""
    with fluxsched.connect_sync(uri) as h:
        while h.rpc("resource.stats-get")["watch_streams"] < count:
            time.sleep(POLL_S)


def measure(options: argparse.Namespace, uri: str) -> None:
    """CPU of the instance a job, without and with readers."""
    usage, specs = Usage(uri), Jobspecs(distinct=False, run_s=options.length)
    asyncio.run(paced(uri, options.rate, 1.0, specs))
    used: dict[int, list[float]] = {0: [], options.readers: []}
    told: list[tuple[int, int]] = []
    for _ in range(options.runs):
        for readers, found in used.items():
            with reading(readers, uri, told):
                connected(uri, readers)
                before = usage.cpu_s()
                jobs = asyncio.run(paced(uri, options.rate, options.duration, specs))
                found.append(usage.since(before, len(jobs) / 1e6)["instance"])
            print(f"{readers} readers: {found[-1]:.1f} us a job, {len(jobs)} jobs", flush=True)
    without, having = used.values()
    more = statistics.median([one / other - 1 for one, other in zip(having, without, strict=True)])
    answers, size = (statistics.median(each) for each in zip(*told, strict=True))
    print(f"{statistics.median(without):.0f} us a job, with {options.readers} readers {more:+.1%} (medians, in turn)")
    print(f"  {options.rate:.0f} jobs/s of {options.length:g} s on {options.fake}, in {options.duration:g} s each")
    print(f"  a reader got {answers:.0f} answers of {size / answers:.0f} bytes")


def first_answer(uri: str) -> str:
    """What one more reader costs, and its first answer."""
    usage = Usage(uri)
    before = usage.cpu_s()
    with fluxsched.connect_sync(uri) as h:
        begin_s = time.perf_counter()
        whole: dict[str, Any] = next(h.watch_resources())
        took_s = time.perf_counter() - begin_s
    size, cpu_s = len(framing.pack(whole)), usage.since(before, 1.0)["instance"]
    return f"first answer: {took_s * 1e3:.0f} ms, {cpu_s * 1e3:.0f} ms of CPU, {size} bytes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", default="16384x64")
    parser.add_argument("--rate", type=float, default=1000.0, help="jobs a second")
    parser.add_argument("--duration", type=float, default=5.0, help="of a run (seconds)")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--length", type=float, default=0.001, help="of a job (seconds)")
    parser.add_argument("--readers", type=int, default=1)
    options = parser.parse_args()
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake))
    try:
        print(first_answer(uri))
        measure(options, uri)
        print(first_answer(uri))
    finally:
        launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
