"""Disasters: `python -m tests.chaos --seeds 1000`, `--hours 2`, `--replay SEED[:ACTIONS:FAULTS]`, `--mutations`,
`--clusters 200`, `--exhaustive`.

Every third seed from 200 on has jobs that grow and shrink; those from 1000000 on are each one crash point of a resize
(runs/crash_points.py), and those from 2000000 on have hosts that an engine holds: hosts, the links to them and their
keepers fail, beside the instance; those from 3000000 on are made for one rule of hosts each (runs/host_points.py), and
those from 4000000 on are short, with reservations, deadlines and outages of the configuration. A violation is printed
with its seed, the fewest actions and faults that still bring it about, and the command that replays them.

`--exhaustive` is no matter of chance: it tries every history of a small world (exhaustive/), for `--minutes`, or until
`--levels` are complete; with `--mutations` it looks for a sabotage of each law of RFC 28's draft instead.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from os import cpu_count

from tests.chaos.exhaustive.search import explore
from tests.chaos.mutations.report import notice_law, report_mutations
from tests.chaos.mutations.rfc28 import LAWS
from tests.chaos.runs.replay import Replay, reduced
from tests.chaos.runs.run import Verdict, run
from tests.chaos.runs.two_worlds import Crash, crashes, judged

PROGRESS_S = 10.0
RUNS_OF_SHRINKER = 300
LEVELS_MAX = 100
"""More than there is ever time for."""


def main() -> int:
    """Run what the arguments say; 1 if a law was broken, or a sabotage was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--hours", type=float, help="run for so long instead")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="how many processes")
    parser.add_argument("--replay", help="SEED[:ACTIONS:FAULTS], as printed with a violation")
    parser.add_argument("--trace", action="store_true", help="with --replay: print what outsiders see")
    parser.add_argument("--mutations", action="store_true", help="sabotage the code; each must be noticed")
    parser.add_argument("--clusters", type=int, help="runs of two instances; besides, one for each effect of leases")
    parser.add_argument("--exhaustive", action="store_true", help="every history of a small world, in both dialects")
    parser.add_argument("--levels", type=int, default=LEVELS_MAX, help="with --exhaustive: things that others do")
    parser.add_argument("--minutes", type=float, default=10.0, help="with --exhaustive: how long")
    arguments = parser.parse_args()
    if arguments.exhaustive:
        return _exhaustive(arguments)
    if arguments.replay:
        return _replay(Replay.parse(arguments.replay), arguments.trace)
    if arguments.mutations:
        return report_mutations(_say, arguments.jobs)
    if arguments.clusters is not None:
        return _clusters(range(arguments.seed, arguments.seed + arguments.clusters), arguments.jobs)
    return _many(arguments)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _replay(replay: Replay, trace: bool) -> int:
    verdict = run(replay.plan(), (lambda one: _say(str(one))) if trace else None)
    _say(str(verdict.violation or f"no violation; {verdict.observations} observations"))
    return int(verdict.violation is not None)


def _clusters(seeds: Sequence[int], jobs: int) -> int:
    runs: list[tuple[int, Crash | None]] = [(seed, None) for seed in seeds]
    runs += enumerate(crashes())
    broken = 0
    with ProcessPoolExecutor(jobs) as pool:
        for (seed, crash), why in zip(runs, pool.map(_why_not, *zip(*runs, strict=True)), strict=True):
            if why:
                broken += 1
                _say(f"seed {seed}, {crash or 'chance'}: {why}")
    _say(f"{len(runs)} runs of two instances, {broken} violations")
    return int(broken > 0)


def _exhaustive(arguments: argparse.Namespace) -> int:
    """Both dialects at once, each with a core of its own."""
    if arguments.mutations:
        with ProcessPoolExecutor(arguments.jobs) as pool:
            noticed = list(pool.map(notice_law, LAWS))
        for law, why in zip(LAWS, noticed, strict=True):
            _say(f"{law.name}: {why or 'NOT NOTICED'}")
        _say(f"{len(LAWS)} laws, {noticed.count('')} not noticed")
        return int("" in noticed)
    seconds = 60 * arguments.minutes
    with ProcessPoolExecutor(2) as pool:
        searches = [pool.submit(explore, typed, arguments.levels, seconds, spoken=True) for typed in (True, False)]
        both = [search.result() for search in searches]
    for dialect, found in zip(("typed", "plain"), both, strict=True):
        _say(
            f"{dialect}: {found.states} states, {found.steps} steps, every history of {found.levels} levels; the "
            f"longest has {found.longest} events; {found.violation or 'no violation'}"
        )
        for event in found.history:
            _say(f"    {' '.join(map(str, event))}")
    return int(any(found.violation for found in both))


def _why_not(seed: int, crash: Crash | None) -> str:
    try:
        judged(seed, crash)
    except Exception as exc:  # of the services, too
        return f"{type(exc).__name__}: {exc}"
    return ""


def _verdict(seed: int) -> Verdict:
    return run(Replay(seed).plan())


def _seeds(arguments: argparse.Namespace) -> Iterator[int]:
    if arguments.hours is None:
        yield from range(arguments.seed, arguments.seed + arguments.seeds)
        return
    until_s = time.monotonic() + 3600 * arguments.hours
    for seed in count(arguments.seed):
        if time.monotonic() > until_s:
            return
        yield seed


def _many(arguments: argparse.Namespace) -> int:
    began_s = said_s = time.monotonic()
    done = observations = broken = 0
    simulated_s = 0.0
    with ProcessPoolExecutor(arguments.jobs, initializer=_ignore_interrupts) as pool:
        try:
            for verdict in _spread(pool, _seeds(arguments), arguments.jobs):
                done += 1
                observations += verdict.observations
                simulated_s += verdict.simulated_s
                if verdict.violation is not None:
                    broken += 1
                    _report(verdict)
                if time.monotonic() - said_s > PROGRESS_S:
                    said_s = time.monotonic()
                    _say(f"{done} seeds, {broken} violations, {observations / (said_s - began_s):.0f} events/s")
        except KeyboardInterrupt:
            _ignore_interrupts()  # what is under way takes a second
            pool.shutdown(cancel_futures=True)
            rest = f" --seeds {arguments.seeds - done}" if arguments.hours is None else ""
            _say(f"the rest: python -m tests.chaos --seed {arguments.seed + done}{rest}")
    lasted_s = time.monotonic() - began_s
    _say(
        f"{done} seeds in {lasted_s:.1f} s: {broken} violations; {observations} events, {observations / lasted_s:.0f} "
        f"a second; {simulated_s / 3600:.1f} simulated hours"
    )
    return int(broken > 0)


def _ignore_interrupts() -> None:
    """Of processes that run seeds, since Ctrl-C is for their parent, which says where to go on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _spread(pool: ProcessPoolExecutor, seeds: Iterator[int], jobs: int) -> Iterator[Verdict]:
    """Verdicts in order of seeds, with a few runs under way."""
    waiting = []
    for seed in seeds:
        waiting.append(pool.submit(_verdict, seed))
        if len(waiting) >= 4 * jobs:
            yield waiting.pop(0).result()
    for one in waiting:
        yield one.result()


def _report(verdict: Verdict) -> None:
    _say(f"seed {verdict.seed}: {verdict.violation}")
    replay = reduced(verdict, RUNS_OF_SHRINKER)
    plan = replay.plan()
    for _, action in plan.actions:
        _say(f"    {action.at_s:9.3f} s  {action.actor}: {action.verb} {action.arguments}")
    for _, fault in plan.faults:
        _say(f"    {fault.at_s:9.3f} s  fault: {fault.kind} {fault.victim} {fault.amount:g}")
    _say(f"    python -m tests.chaos --replay {replay}")


if __name__ == "__main__":
    sys.exit(main())
