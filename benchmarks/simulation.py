"""Simulated jobs per second, and whether a trace ten times as long costs more per job.

    python benchmarks/simulation.py [TRACE] [--policy easy --policy fifo ...] [--runs 3]
    python benchmarks/simulation.py --busy [--jobs 77000] [--policy conservative ...]

Without TRACE a made-up one of the size of KTH-SP2 (28,481 jobs, 100 processors). Each policy runs on one-core targets
and on one target of all cores, then on the trace ten times over. Reading the file is not part of the figure. Medians;
the plain counting loop of tests/sim/reference.py, which decides the same, stands beside them. With `--busy` one run of
each policy on what `sim gen` makes at load 0.95 for 128 processors, where hundreds of jobs wait.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from fluxsched.sim import Machine, Trace, generate, read_trace, run

TIMES = 10
BUSY_PROCS, BUSY_LOAD = 128, 0.95
LOOPS = {"fifo": "fcfs", "easy": "easy", "easy:order=sjf": "easy_sjf"}
REFERENCE = Path(__file__).parents[1] / "tests" / "sim" / "reference.py"


def repeated(trace: Trace, times: int) -> Trace:
    """The trace again and again, each time where the one before ended."""
    span_s = trace.jobs[-1].submit_s + 1
    jobs = [
        job._replace(job=at * len(trace.jobs) + number, submit_s=job.submit_s + at * span_s)
        for at in range(times)
        for number, job in enumerate(trace.jobs)
    ]
    return Trace.of(jobs, f"{trace.name} x {times}", trace.machine)


def rate(jobs: int, runs: int, work: Callable[[], object]) -> float:
    """Jobs per second of CPU, the median of some runs: a simulation waits for nothing."""
    figures = []
    for _ in range(runs):
        begun_s = time.process_time()
        work()
        figures.append(jobs / (time.process_time() - begun_s))
    return statistics.median(figures)


def measure_busy(jobs: int, policy: str) -> None:
    """One run: it takes minutes."""
    trace = generate(jobs, BUSY_PROCS, seed=1, load=BUSY_LOAD)
    begun_s = time.process_time()
    table = run(trace, policy, procs=BUSY_PROCS).jobs
    spent_s = time.process_time() - begun_s
    waited_s = sum(start - submit for start, submit in zip(table.start, table.submit, strict=True) if start is not None)
    waiting = waited_s / (trace.jobs[-1].submit_s or 1.0)
    print(f"{policy:16} {jobs / spent_s:9,.0f} jobs/s on {BUSY_PROCS} targets, {waiting:,.0f} jobs waiting on average")


def loops() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sim_reference", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def measure(trace: Trace, longer: Trace, policy: str, runs: int) -> None:
    machine = trace.machine or Machine(100)
    cores = machine.targets * machine.cores
    n, reference = len(trace.jobs), loops()
    targets = rate(n, runs, lambda: run(trace, policy, procs=cores))
    counting = rate(n, runs, lambda: run(trace, policy, nodes=1, cores=cores))
    tenfold = rate(len(longer.jobs), 1, lambda: run(longer, policy, procs=cores))
    print(
        f"{policy:16} {targets:9,.0f} jobs/s on {cores} targets, {counting:9,.0f} on one, "
        f"{tenfold:9,.0f} on the {TIMES} times longer trace ({targets / tenfold:.2f} x the cost a job)"
    )
    if policy in LOOPS:
        known = [reference.Job(job.submit_s, job.run_s, job.limit_s or 1e11, job.ask.nslots) for job in trace.jobs]
        plain = rate(n, runs, lambda: reference.simulate(known, cores, getattr(reference, LOOPS[policy])))
        print(f"{'':16} {plain:9,.0f} jobs/s by a plain counting loop")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="hundreds of jobs wait, on a made-up trace")
    parser.add_argument("--jobs", type=int, default=77_000, help="of the made-up trace of --busy")
    options = parser.parse_args()
    if options.busy:
        for policy in options.policy or ["conservative"]:
            measure_busy(options.jobs, policy)
        return 0
    trace = read_trace(options.trace) if options.trace else generate(28_481, 100, seed=1, load=0.7)
    longer = repeated(trace, TIMES)
    print(f"{trace.name}: {len(trace.jobs):,} jobs")
    for policy in options.policy or ["fifo", "easy", "easy:order=sjf"]:
        measure(trace, longer, policy, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
