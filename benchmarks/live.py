"""Submits at a steady rate for minutes: how long it takes from each until a pass has considered the job.

    python benchmarks/live.py [--minutes 10] [--rate 1667] [--run 60] [--accounts 1000] [--policy fair]

Over a real socket, durable, with `test` execution; jobs are of as many banks in turn. There is room for all, so the
first pass that considers a job starts it, and the time is that until its `alloc` event arrives. CPU and memory of the
processes are printed for each minute.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from functools import partial
from math import inf

from jobs import TICK_S, Jobspecs, Usage, percentiles  # the script beside this one

import fluxsched
from fluxsched.errors import FluxschedError
from fluxsched.instance import launch
from fluxsched.protocol import framing

MINUTE_S = 60.0
WARM_UP_S = 2.0
PATIENCE_S = 30.0
"""How long after the last submit jobs may still be considered."""


class Steady:
    """Jobs submitted at a steady rate, and when each was considered (seconds of the process's clock)."""

    def __init__(self, uri: str, rate: float, specs: Jobspecs) -> None:
        self._uri, self._rate, self._specs = uri, rate, specs
        self.submitted_s: dict[int, float] = {}
        self.considered_s: dict[int, float] = {}
        self.sent = 0

    async def run(self, duration_s: float) -> None:
        async with fluxsched.connect(self._uri) as h:
            self._events = h.stream("job-manager.watch", {"names": ["alloc"]})
            await h.rpc("instance.info")
            watching = asyncio.ensure_future(self._watch())
            begin_s = time.perf_counter()
            before = self.sent
            while (now_s := time.perf_counter()) < begin_s + duration_s:
                for _ in range(int((now_s - begin_s) * self._rate) - (self.sent - before)):
                    call = h.call("job-manager.submit", {"jobspec": self._specs.next()})
                    call.add_done_callback(partial(self._answered, now_s))
                    self.sent += 1
                await asyncio.sleep(TICK_S)
            while len(self.considered_s) < self.sent and time.perf_counter() < begin_s + duration_s + PATIENCE_S:
                await asyncio.sleep(TICK_S)
            watching.cancel()

    def _answered(self, sent_s: float, call: asyncio.Future[bytes | None]) -> None:
        self.submitted_s[framing.unpack_answer(call.result())["id"]] = sent_s

    async def _watch(self) -> None:
        while True:
            message = await anext(self._events)
            self.considered_s.update(dict.fromkeys([jobid for jobid, *_ in message["events"]], time.perf_counter()))

    def took_s(self) -> list[float]:
        """Of all jobs since the last call; inf of those that were not considered."""
        took = [self.considered_s.get(jobid, inf) - sent_s for jobid, sent_s in self.submitted_s.items()]
        self.submitted_s.clear()
        self.considered_s.clear()
        self.sent = 0
        return took


def measure(options: argparse.Namespace, uri: str) -> None:
    usage = Usage(uri)
    steady = Steady(uri, options.rate, Jobspecs(False, options.run, options.accounts))
    asyncio.run(steady.run(WARM_UP_S))
    steady.took_s()
    total: list[float] = []
    left_s = options.minutes * MINUTE_S
    while left_s > 0:
        before, begin_s = usage.cpu_s(), time.perf_counter()
        asyncio.run(steady.run(min(left_s, MINUTE_S)))
        left_s -= MINUTE_S
        used = usage.since(before, (time.perf_counter() - begin_s) / 100)
        took_s = steady.took_s()
        total += took_s
        shares = ", ".join(f"{name} {share:.0f} %" for name, share in used.items())
        print(f"{percentiles(took_s)}; of a core: {shares}; {usage.resident()}", flush=True)
    print(f"submit to considered at {options.rate:g}/s on {options.fake}, {options.policy}: {percentiles(total)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--rate", type=float, default=1667.0)
    parser.add_argument("--run", type=float, default=60.0, help="seconds that a job runs")
    parser.add_argument("--fake", default="15625x64")
    parser.add_argument("--accounts", type=int, default=1000)
    parser.add_argument("--policy", default="fair:backfill=easy")
    options = parser.parse_args()
    uri = launch.start_daemon(launch.StartOptions(fake=options.fake, schedulers=(options.policy,)))
    try:
        measure(options, uri)
    except FluxschedError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    finally:
        launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
