"""Whether a scheduler of ours keeps a machine of a million cores busy, on virtual time that passes while it works.

    python benchmarks/million_cores.py [--scale 0.02] [--policy fair:backfill=easy] [--minutes 20] [--accounts 1000]

At scale 1: 15,625 targets of 64 cores. (a) At 0 s a million one-core jobs wait, and a thousand more; they end from (b)
on. (b) From `--begin` on 1,750 jobs a second arrive, with 5 % of their work in jobs of 1 to 64 whole targets.
The mean work of a job is 600 core seconds, so 5 % more is asked for than there is, and no scheduler can start more than
1,667 jobs a second for long. Run times are exponential, limits are longer and whole minutes. Printed are the time until
the machine is full, and of (b) jobs started a second, submission to considered, utilisation, how long whole-node jobs
wait, and what the process took. Exit status 1 if a figure falls short, which is named; figures depend on the
machine, and smaller scales are easier.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from math import ceil, inf
from typing import overload

from fluxsched.sim import Ask, Machine, Result, Trace, TraceJob, run
from fluxsched.sim.result import Steps, average, busy_steps, percentile
from fluxsched.system.clock import RandomSource, seeded
from fluxsched.system.processes import settle

TARGETS, CORES, NODES_MAX = 15_625, 64, 64
JOBS_PER_S, WORK_CORE_S, NODE_WORK = 1750.0, 600.0, 0.05
"""What arrives, the mean work of a job, and the part of the work in jobs of whole targets."""

BANKS = 40
LIMIT_MAX_MIN = 1440
OVERESTIMATE = 1.0
"""Mean of what a limit exceeds the run time by, in run times."""

WAITING = 1.001
"""Jobs of (a) for each core: once the machine is full, the first of the others is planned, as on any full machine."""

FILLS_PER_S = 11_000.0
"""About as many start a second while the machine fills: what runs at the begin of (b) ends from then on at the rate at
which it would in a steady state."""

FULL = 1.0
"""Of the cores busy."""

QUEUES = ("batch", "wide")
"""Queues with `--queues`: of jobs of one core, and of whole targets."""

STARVES_S = 600.0
"""A whole-node job that waits longer is counted."""

ASKED = {"full": 600.0, "started": 1667.0, "p99": 1.0, "utilisation": 0.9, "gib": 6.0}


CLOCKS = {"cpu": time.process_time, "real": time.perf_counter}
"""The same on a machine that nothing else uses."""


class Workload(Sequence[TraceJob]):
    """Jobs in 17 bytes each; a TraceJob is made when one is asked for."""

    def __init__(
        self, machine: Machine, accounts: int, begin_s: float, minutes: float, chance: RandomSource,
        has_queues: bool = False,
    ) -> None:  # fmt: skip
        self._has_queues = has_queues
        self._submit, self._run = array("d"), array("f")
        self._account, self._nodes, self._limit_min = array("H"), array("B"), array("H")
        self._banks = [f"bank{at}" for at in range(BANKS)]
        nodes_max = min(NODES_MAX, max(1, machine.targets // CORES))
        self._asks = [Ask(), *(Ask(nodes, nodes=nodes, exclusive=True) for nodes in range(1, nodes_max + 1))]
        scale = machine.targets / TARGETS
        per_s = JOBS_PER_S * scale
        node_work = (1 + nodes_max) / 2 * CORES * WORK_CORE_S  # mean work of a whole-node job
        part = NODE_WORK * WORK_CORE_S / node_work  # of the jobs that are whole-node
        one_core_s = (1 - NODE_WORK) * WORK_CORE_S / (1 - part)
        for at in range(round(machine.targets * CORES * WAITING)):
            self._add(0.0, 0, one_core_s, accounts, chance, max(1.0, begin_s - at / FILLS_PER_S))
        self.first_s, self.backlog, now_s = begin_s, len(self._submit), begin_s
        while (now_s := now_s + chance.expovariate(per_s)) < begin_s + 60 * minutes:
            nodes = chance.randint(1, nodes_max) if chance.random() < part else 0
            self._add(now_s, nodes, WORK_CORE_S if nodes else one_core_s, accounts, chance)

    def _add(
        self, submit_s: float, nodes: int, mean_s: float, accounts: int, chance: RandomSource, least_s: float = 1.0
    ) -> None:
        run_s = least_s + chance.expovariate(1 / mean_s)
        wanted_s = run_s * (1 + chance.expovariate(1 / OVERESTIMATE))
        self._submit.append(submit_s)
        self._run.append(run_s)
        self._nodes.append(nodes)
        self._limit_min.append(min(LIMIT_MAX_MIN, ceil(wanted_s / 60)))
        self._account.append(int(accounts * chance.random()))

    def __len__(self) -> int:
        return len(self._submit)

    @overload
    def __getitem__(self, at: int) -> TraceJob: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[TraceJob]: ...
    def __getitem__(self, at: int | slice) -> TraceJob | Sequence[TraceJob]:
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        account = self._account[at]
        return TraceJob(
            at + 1, self._submit[at], self._run[at], 60.0 * self._limit_min[at], self._asks[self._nodes[at]],
            account, bank=self._banks[account % BANKS], queue=QUEUES[self._nodes[at] > 0] if self._has_queues else None,
        )  # fmt: skip

    def __iter__(self) -> Iterator[TraceJob]:
        return (self[at] for at in range(len(self)))

    def whole_node(self) -> list[int]:
        """The places of jobs of whole targets."""
        return [at for at, nodes in enumerate(self._nodes) if nodes]


def full_s(busy: Steps, cores: int) -> float:
    """When the machine is full for the first time."""
    return next((when_s for when_s, used in busy if used >= FULL * cores), inf)


def judge(result: Result, jobs: Workload, minutes: float, scale: float, real_s: float) -> bool:
    """Print all figures; whether they are what they are to be."""
    table, cores, begin_s = result.jobs, result.cores, jobs.first_s
    end_s = begin_s + 60 * minutes
    busy = busy_steps(table)
    filled_s = full_s(busy, cores)
    started = sum([start_s is not None and begin_s <= start_s < end_s for start_s in table.start]) / (60 * minutes)
    considered = sorted(result.cost.considered_s[jobs.backlog :])
    used = average(busy, begin_s, end_s) / cores
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    waits = [(table.start[at] or end_s) - table.submit[at] for at in jobs.whole_node() if table.submit[at] < end_s]
    starving = sum([wait_s > STARVES_S for wait_s in waits])
    passes = sorted(result.cost.pass_s)
    filling_s = max(result.cost.considered_s[: jobs.backlog])
    print(f"full after {filled_s:.1f} s ({cores / filled_s:,.0f} started a second), considered after {filling_s:.1f} s")
    print(
        f"{started:,.1f} started a second, {used:.1%} utilisation; submission to considered: "
        f"p50 {percentile(considered, 0.5):.3f}, p99 {percentile(considered, 0.99):.3f}, most {considered[-1]:.3f} s"
    )
    print(
        f"{len(waits)} whole-node jobs: they wait {sum(waits) / max(1, len(waits)):.0f} s on average, "
        f"{max(waits, default=0):.0f} s at most, {starving} more than {STARVES_S:.0f} s"
    )
    print(
        f"{len(passes):,} passes: p50 {1e3 * percentile(passes, 0.5):.2f}, p99 {1e3 * percentile(passes, 0.99):.2f} ms"
        f"; {real_s:,.0f} s spent on {end_s:,.0f} s, {gib:.2f} GiB"
    )
    kept = {
        f"full within {ASKED['full']:.0f} s": filled_s <= ASKED["full"],
        f"{ASKED['started'] * scale:,.1f} started a second": started >= ASKED["started"] * scale,
        f"p99 of submission to considered {ASKED['p99']:g} s": percentile(considered, 0.99) <= ASKED["p99"],
        f"utilisation {ASKED['utilisation']:.0%}": used >= ASKED["utilisation"],
        f"no whole-node job waits more than {STARVES_S:.0f} s": not starving,
        "no more time spent than passes": real_s <= end_s,
        f"{ASKED['gib']:g} GiB": gib <= ASKED["gib"],
    }
    missed = [figure for figure, is_kept in kept.items() if not is_kept]
    print(f"falls short of: {'; '.join(missed)}" if missed else "all figures are as asked")
    return not missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.02, help="of the machine and its load")
    parser.add_argument("--policy", default="fair:backfill=easy")
    parser.add_argument("--accounts", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=20.0, help="of (b)")
    parser.add_argument("--begin", type=float, help="when (b) begins (s); by default after 240 s at scale 1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queues", action="store_true", help="whole-node jobs are in queue wide, others in batch")
    parser.add_argument("--clock", choices=list(CLOCKS), default="cpu", help="what passes while the scheduler works")
    options = parser.parse_args()
    if options.queues and ";wide=" not in options.policy:
        print("warning: --queues changes nothing without a policy of queue wide: --policy 'fair;wide=easy'", flush=True)
    machine = Machine(max(1, round(TARGETS * options.scale)), CORES)
    begin_s = 240.0 * options.scale if options.begin is None else options.begin
    jobs = Workload(machine, options.accounts, begin_s, options.minutes, seeded(options.seed), options.queues)
    trace = Trace("million", jobs, machine=machine)
    what = f"{len(jobs):,} jobs of {options.accounts:,} accounts, {machine.targets:,} x {CORES}"
    print(f"{what}, {options.policy}", flush=True)
    settle()
    begun_s = CLOCKS[options.clock]()
    result = run(
        trace, options.policy, nodes=machine.targets, cores=CORES, until_s=begin_s + 60 * options.minutes,
        stopwatch=CLOCKS[options.clock], own_time=True,
    )  # fmt: skip
    return 0 if judge(result, jobs, options.minutes, options.scale, CLOCKS[options.clock]() - begun_s) else 1


if __name__ == "__main__":
    sys.exit(main())
