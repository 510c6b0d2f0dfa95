"""Jobs through an instance of its own, submit to inactive, durable, `test` execution, over real sockets and SQLite.

    python benchmarks/jobs.py [--fake 1000x64] [--jobs 3000] [--runs 5] [--window 512]   how many a second
    python benchmarks/jobs.py --paced 5000 --duration 10                                  how long each takes
    python benchmarks/jobs.py --waiting 1000000                                           with so many in the queue
    python benchmarks/jobs.py --restart 100000                                            how long a restart takes then
    ... --accounts 1000 --policy easy --policy fair     of so many accounts, and in each of them a job waits
    ... --probe       how long another client's calls take meanwhile
    ... --client      as a plain program does it: gather all `submit`, then all `wait`
    ... --distinct    no two jobspecs alike, so that none is found among those read before

One client bundles its submits and follows the jobs by one subscription (with `--client` it waits for each). CPU time of
each process is printed, since the machine may be shared. Several policies have an instance each, and runs take turns.
With accounts the jobs of a run are backfilled: ahead of them, in each account, a job waits for a node that is in use.
Peers' figures: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeVar

import fluxsched
from fluxsched.errors import FluxschedError
from fluxsched.instance import launch
from fluxsched.protocol import framing

RUN_S = 0.001
"""How long a job runs."""
WAITING_RUN_S = 10_000.0
"""How long a job runs behind which others shall wait."""
TICK_S = 0.002
"""How often a paced client submits what has become due."""
PROBE_S = 0.005
"""Pause of the probe between two calls."""
WINDOW_WAITING = 4096
"""Submits under way while a queue is filled."""
LIMIT_S = 60.0
"""Time limit of jobs that are backfilled."""
DAY_S = 86_400.0


class SourceOfJobspecs(Protocol):
    """What a burst takes its jobs from."""

    def next(self) -> dict[str, Any]:
        """The next job's."""
        ...


class Jobspecs:
    """Jobspecs as messages carry them: all alike, each with its own argument, or of as many banks in turn."""

    def __init__(self, distinct: bool, run_s: float, accounts: int = 0) -> None:
        self._distinct = distinct
        self._counter = itertools.count()
        self._run_s = run_s
        self._alike = [self._make("true", f"bank{at}") for at in range(accounts)] or [self._make("true")]

    def _make(self, argument: str, bank: str | None = None) -> dict[str, Any]:
        made = fluxsched.Jobspec.from_command(
            ["true", argument], test_run_duration_s=self._run_s, cwd="/", environment={},
            bank=bank, duration_s=max(LIMIT_S, 2 * self._run_s) if bank else 0.0,
        )  # fmt: skip
        return made.to_json()

    def next(self) -> dict[str, Any]:
        """The next job's."""
        at = next(self._counter)
        return self._make(str(at)) if self._distinct else self._alike[at % len(self._alike)]


async def crowd(uri: str, accounts: int) -> None:
    """Let a job of each account wait for the first node, on which another runs for a day."""

    def asking(bank: str) -> dict[str, Any]:
        made = fluxsched.Jobspec.from_command(
            ["true"], nodes=1, exclusive=True, duration_s=DAY_S, bank=bank, constraint={"ranks": ["0"]},
            test_run_duration_s=DAY_S, cwd="/", environment={},
        )  # fmt: skip
        return made.to_json()

    async with fluxsched.connect(uri) as h:
        for at in range(accounts + 1):
            h.call("job-manager.submit", {"jobspec": asking(f"bank{at % accounts}")})
        await h.rpc("instance.info")


async def burst(uri: str, jobs: int, window: int, specs: SourceOfJobspecs, event: str = "clean") -> float:
    """Seconds from the first submit until all jobs are inactive, or have had this event; with at most `window` jobs
    under way.
    """
    wanted = iter([specs.next() for _ in range(jobs)])  # making them is no part of the path
    async with fluxsched.connect(uri) as h:
        events = h.stream("job-manager.watch", {"names": [event]})
        await h.rpc("instance.info")
        done = sent = 0
        begin_s = time.perf_counter()
        answers: list[asyncio.Future[bytes | None]] = []
        while done < jobs:
            for jobspec in itertools.islice(wanted, window - (sent - done)):
                answers.append(h.call("job-manager.submit", {"jobspec": jobspec}))
                sent += 1
            message = await anext(events)
            done += len(message["events"])
        elapsed_s = time.perf_counter() - begin_s
        await asyncio.gather(*answers)
        return elapsed_s


async def gathered(uri: str, jobs: int, window: int, specs: Jobspecs) -> float:
    """Seconds from the first submit to the last job inactive, all submitted at once, then all waited for."""
    wanted = [specs.next() for _ in range(jobs)]
    async with fluxsched.connect(uri) as h:
        await h.rpc("instance.info")
        begin_s = time.perf_counter()
        ids = await asyncio.gather(*[h.submit(jobspec) for jobspec in wanted])
        await asyncio.gather(*[h.wait(jobid) for jobid in ids])
        return time.perf_counter() - begin_s


async def paced(uri: str, rate: float, duration_s: float, specs: Jobspecs) -> list[float]:
    """Latency of each job (seconds), from its submit to the news that it is inactive, at `rate` jobs a second."""
    submitted_s: dict[int, float] = {}
    ended_s: dict[int, float] = {}
    async with fluxsched.connect(uri) as h:
        events = h.stream("job-manager.watch", {"names": ["clean"]})
        await h.rpc("instance.info")

        async def submit() -> int:
            begin_s = time.perf_counter()
            sent = 0
            while (now_s := time.perf_counter()) < begin_s + duration_s:
                for _ in range(int((now_s - begin_s) * rate) - sent):
                    call = h.call("job-manager.submit", {"jobspec": specs.next()})
                    call.add_done_callback(partial(answered, now_s))
                    sent += 1
                await asyncio.sleep(TICK_S)
            return sent

        def answered(sent_s: float, call: asyncio.Future[bytes | None]) -> None:
            submitted_s[framing.unpack_answer(call.result())["id"]] = sent_s

        submitting = asyncio.ensure_future(submit())
        while not submitting.done() or len(ended_s) < submitting.result():
            message = await anext(events)
            ended_s.update(dict.fromkeys([jobid for jobid, *_ in message["events"]], time.perf_counter()))
        await asyncio.sleep(TICK_S)  # the answers have come, but not all have been told
    return [ended_s[jobid] - sent_s for jobid, sent_s in submitted_s.items()]


async def fill(uri: str, jobs: int, specs: Jobspecs) -> float:
    """Seconds until `jobs` submits are answered; nothing is watched."""
    async with fluxsched.connect(uri) as h:
        begin_s = time.perf_counter()
        for start in range(0, jobs, WINDOW_WAITING):
            count = min(WINDOW_WAITING, jobs - start)
            await asyncio.gather(*[h.call("job-manager.submit", {"jobspec": specs.next()}) for _ in range(count)])
        return time.perf_counter() - begin_s


def probe(uri: str, results: Connection) -> None:
    """Another client in a process of its own, until it is stopped: how long its calls take, or what failed, as text."""
    try:
        results.send(_probed(uri, results))
    except fluxsched.FluxschedError as fault:
        results.send(f"the probe failed: {fault}")


def _probed(uri: str, results: Connection) -> dict[str, list[float]]:
    with fluxsched.connect_sync(uri) as h:
        calls: list[tuple[str, str, dict[str, Any]]] = [
            ("ping", "instance.ping", {}),
            ("list of 10", "job-manager.list", {"max_entries": 10}),
            ("ping of the scheduler", f"{_scheduler(h)}.ping", {}),
        ]
        took_s: dict[str, list[float]] = {name: [] for name, _, _ in calls}
        is_over = False
        while not is_over:
            for name, topic, payload in calls:
                begin_s = time.perf_counter()
                h.rpc(topic, payload)
                took_s[name].append(time.perf_counter() - begin_s)
            is_over = results.poll(PROBE_S)
    return took_s


@contextmanager
def probing(wanted: bool, uri: str) -> Iterator[None]:
    """Have a probe ask meanwhile, and print what it saw. Raises SystemExit in the end if one of its calls failed."""
    if not wanted:
        yield
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=probe, args=(uri, theirs))
    process.start()
    theirs.close()  # else the end of the probe would not be noticed
    try:
        yield
    finally:
        found = _results(ours)
        process.join()
    if isinstance(found, str):
        raise SystemExit(f"{Path(__file__).name}: {found}")
    for name, took_s in found.items():
        print(f"  meanwhile {name}: {percentiles(took_s)}")


def _results(probe: Connection) -> dict[str, list[float]] | str:
    with suppress(BrokenPipeError):  # its failure may still be there to be read
        probe.send(None)
    try:
        found: dict[str, list[float]] | str = probe.recv()
    except (EOFError, ConnectionResetError):
        return "the probe has ended without results"
    return found


def percentiles(took_s: list[float]) -> str:
    """Of delays, for people."""
    took_s = sorted(took_s)
    shown = [f"{name} {took_s[int(part * (len(took_s) - 1))] * 1e3:.2f}" for name, part in
             (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))]  # fmt: skip
    return f"{', '.join(shown)} ms of {len(took_s)}"


T = TypeVar("T")


class Usage:
    """CPU seconds and memory of the processes that take part."""

    def __init__(self, uri: str) -> None:
        with fluxsched.connect_sync(uri) as h:
            mods = h.rpc("module.list")["mods"]
            self._pids = {
                "instance": h.rpc("instance.info")["pid"],
                "scheduler": next(mod["pid"] for mod in mods if "sched" in mod["services"]),
                "client": os.getpid(),
            }

    def add(self, name: str, pid: int) -> None:
        """Another process takes part."""
        self._pids[name] = pid

    def cpu_s(self) -> dict[str, float]:
        """User and system seconds of each. Raises FluxschedError if one has ended."""
        return {name: self._of(name, _cpu_s) for name in self._pids}

    def since(self, before: dict[str, float], units: float) -> dict[str, float]:
        """CPU seconds of each since `before`, divided by `units`."""
        return {name: (now_s - before[name]) / units for name, now_s in self.cpu_s().items()}

    def resident(self) -> str:
        """Memory of each now."""
        return ", ".join(f"{name} {self._of(name, _resident_mib)} MiB" for name in self._pids)

    def _of(self, name: str, read: Callable[[int], T]) -> T:
        try:
            return read(self._pids[name])
        except (FileNotFoundError, ProcessLookupError, IndexError) as gone:
            text = f"process {self._pids[name]} ({name}) has ended, so its use cannot be measured: see its log"
            raise FluxschedError(text) from gone


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20


def measure_bursts(options: argparse.Namespace, uris: dict[str, str]) -> None:
    """Jobs a second, run by run, by policy in turn."""
    specs = Jobspecs(options.distinct, RUN_S, options.accounts)
    run = gathered if options.client else burst
    for uri in uris.values():
        if options.accounts:
            asyncio.run(crowd(uri, options.accounts))
        asyncio.run(run(uri, min(options.jobs, 500), options.window, specs))
    rates: dict[str, list[float]] = {policy: [] for policy in uris}
    for _ in range(options.runs):
        for policy, uri in uris.items():
            usage = Usage(uri)
            before = usage.cpu_s()
            with probing(options.probe, uri):
                elapsed_s = asyncio.run(run(uri, options.jobs, options.window, specs))
            used = ", ".join(f"{name} {value:.0f}" for name, value in usage.since(before, options.jobs / 1e6).items())
            rates[policy].append(options.jobs / elapsed_s)
            print(f"{rates[policy][-1]:8.0f} jobs/s   CPU us a job: {used}; {usage.resident()}; {policy}", flush=True)
    for policy, found in rates.items():
        what = f"{options.jobs} jobs on {options.fake}, {options.runs} runs"
        print(f"median {statistics.median(found):.0f} jobs/s of {what}, {policy}")


def measure_paced(options: argparse.Namespace, uris: dict[str, str]) -> None:
    """Latency of jobs that come at a steady rate, and the share of a core that each process needs for it."""
    (uri,) = uris.values()
    usage, specs = Usage(uri), Jobspecs(options.distinct, RUN_S)
    asyncio.run(paced(uri, options.paced, 1.0, specs))
    before = usage.cpu_s()
    with probing(options.probe, uri):
        begin_s = time.perf_counter()
        latencies_s = asyncio.run(paced(uri, options.paced, options.duration, specs))
        elapsed_s = time.perf_counter() - begin_s
        used = usage.since(before, elapsed_s / 100)
    rate = len(latencies_s) / elapsed_s
    print(f"{rate:.0f} jobs/s on {options.fake}, submit to inactive: {percentiles(latencies_s)}")
    print(f"  of a core: {', '.join(f'{name} {share:.0f} %' for name, share in used.items())}; {usage.resident()}")


def measure_waiting(options: argparse.Namespace, uris: dict[str, str]) -> None:
    """Calls of others while a queue is filled, and once it is full."""
    (uri,) = uris.values()
    usage, specs = Usage(uri), Jobspecs(options.distinct, WAITING_RUN_S)
    before = usage.cpu_s()
    with probing(True, uri):
        elapsed_s = asyncio.run(fill(uri, options.waiting, specs))
    used = ", ".join(f"{name} {value:.0f}" for name, value in usage.since(before, options.waiting / 1e6).items())
    print(f"{options.waiting / elapsed_s:.0f} submits/s   CPU us a job: {used}; {usage.resident()}")
    with probing(True, uri):
        time.sleep(options.duration)
    print(f"with {options.waiting} jobs waiting on {options.fake}")


def _scheduler(h: Any) -> str:
    """What the scheduler's module is called, which depends on its policy; `sched` answers no questions."""
    return next((each["name"] for each in h.rpc("module.list")["mods"] if "sched" in each["services"]), "none")


def _waiting(h: Any) -> int:
    """The requests that the scheduler has; none while it is too busy to answer."""
    try:
        groups = h.rpc(f"{_scheduler(h)}.stats-get")["groups"]
    except fluxsched.RPCError:
        return 0
    return int(groups["default"]["waiting"]) if "default" in groups else 0


def measure_restart(options: argparse.Namespace) -> None:
    """Restarts with a queue of jobs that wait: until the scheduler has them all."""
    with tempfile.TemporaryDirectory() as directory:
        start = launch.StartOptions(fake=options.fake, statedir=Path(directory))
        uri = launch.start_daemon(start)
        try:
            asyncio.run(fill(uri, options.restart, Jobspecs(options.distinct, WAITING_RUN_S)))
            for _ in range(options.runs):
                launch.stop(uri)
                begin_s = time.perf_counter()
                uri = launch.start_daemon(start)
                with fluxsched.connect_sync(uri) as h:
                    while _waiting(h) < options.restart - options.runs - 1:
                        time.sleep(PROBE_S)
                usage = Usage(uri)
                used = ", ".join(f"{name} {value:.2f}" for name, value in usage.cpu_s().items() if name != "client")
                print(f"{time.perf_counter() - begin_s:.2f} s; CPU s: {used}; {usage.resident()}", flush=True)
        finally:
            launch.stop(uri)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", default="1000x64")
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--window", type=int, default=512, help="jobs under way at once")
    parser.add_argument("--client", action="store_true", help="gather all submits, then all waits")
    parser.add_argument("--distinct", action="store_true", help="no two jobspecs are alike")
    parser.add_argument("--paced", type=float, help="submit so many jobs a second")
    parser.add_argument("--duration", type=float, default=10.0, help="for so long (seconds)")
    parser.add_argument("--waiting", type=int, help="submit so many jobs that do not end")
    parser.add_argument("--restart", type=int, help="restart with so many jobs waiting")
    parser.add_argument("--policy", action="append", help="instead of fifo; several with the first form alone")
    parser.add_argument("--accounts", type=int, default=0, help="jobs are of so many accounts, with others ahead")
    parser.add_argument("--config", type=Path, help="of the instance, as one with submit filters or limits")
    parser.add_argument("--probe", action="store_true", help="another client asks meanwhile")
    options = parser.parse_args()
    if options.restart:
        measure_restart(options)
        return 0
    measure: Callable[[argparse.Namespace, dict[str, str]], None] = measure_bursts
    if options.waiting:
        measure = measure_waiting
    elif options.paced:
        measure = measure_paced
    uris: dict[str, str] = {}
    try:
        for policy in options.policy or ["fifo"]:
            uris[policy] = launch.start_daemon(
                launch.StartOptions(fake=options.fake, schedulers=(policy,), config=options.config)
            )
        measure(options, uris)
    finally:
        for uri in uris.values():
            launch.stop(uri)
    return 0


if __name__ == "__main__":
    sys.exit(main())
