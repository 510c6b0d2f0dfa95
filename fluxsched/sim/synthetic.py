"""Made-up workloads, by the model of Lublin and Feitelson; some of their jobs can be made elastic.

Sizes: serial, a power of two, or any, over a two-stage uniform distribution of their logarithm. Run times: the
exponential of a hyper-gamma distribution whose mixture depends on the size. Arrivals: the exponential of a gamma
distribution, stretched and squeezed by a daily cycle that a second gamma distribution gives. Limits are ours, since the
model has none: the run time, overestimated by an exponentially distributed factor and rounded up to a time that people
write. Users are ours too, some of them far busier than others.

Source: U. Lublin, D. Feitelson, "The workload on parallel supercomputers: modeling the characteristics of rigid jobs",
JPDC 63 (2003), with the parameters that it gives for a whole sample.

Law: the same seed gives the same trace. Which jobs are elastic follows from the seed alone, and all others stay as they
are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from math import exp, inf, lgamma, log, log2

from fluxsched.core.jobfields import checked_max_hops
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sim.traces import JOBS_MAX, Ask, Machine, Trace, TraceJob, check_count, machine_of
from fluxsched.system.clock import RandomSource, seeded


def made_elastic(
    jobs: list[TraceJob], machine: Machine, chance: RandomSource, elastic: float, parts: float, max_hops: int | None
) -> list[TraceJob]:
    """Return the jobs, of which these fractions are elastic, and elastic with a target of its own for a first part.

    At most `max_hops` are within them. Raises InvalidValue for what is no fraction, or together more than all, and for
    a bound that no job may have, or that there is no job for.
    """
    if max_hops is not None:
        checked_max_hops(max_hops, "max-hops")
        if not elastic + parts:
            raise InvalidValue("max-hops bounds elastic jobs alone, and there are none: give elastic or parts, too")
    if min(elastic, parts) < 0 or not elastic + parts <= 1:
        raise InvalidValue(f"elastic {elastic:g} and parts {parts:g} are not fractions of the jobs, at most 1 together")
    found = []
    for job in jobs:
        kind = chance.random()
        if kind < elastic + parts:
            job = _resizable(job, machine, kind < parts, max_hops)
        found.append(job)
    return found


def _resizable(job: TraceJob, machine: Machine, of_parts: bool, max_hops: int | None) -> TraceJob:
    procs = job.ask.nslots * job.ask.cores
    nodes = -(-procs // machine.cores)
    room = machine.targets - of_parts
    least, most = max(1, nodes // 2), min(max(2, 2 * nodes), room)
    if least >= most:
        return job  # nothing to choose on this machine
    count = f"{least}-{most}"
    if of_parts:
        work = {"label": "work", "nodes": count, "cores": machine.cores}
        both = json.dumps([{"label": "lead", "nodes": 1}, work], sort_keys=True)
        ask = Ask(elastic=True, max_hops=max_hops, parts=both)
    else:
        ask = Ask(cores=machine.cores, nodes=count, exclusive=True, elastic=True, max_hops=max_hops)
    limit_s = None if job.limit_s is None else job.limit_s * max(2.0, procs / (least * machine.cores))
    return job._replace(ask=ask, run_s=0.0, work=float(procs * job.run_s), limit_s=limit_s)


# ---- the generator

SERIAL, POWER_OF_TWO = 0.244, 0.576
LOG_LOW, LOG_MIDDLE_BELOW_HIGH, LOWER_STAGE = 0.8, 2.5, 0.86
RUN_GAMMAS = ((4.2, 0.94), (312.0, 0.03))
RUN_MIX_SLOPE, RUN_MIX_AT_ZERO = -0.0054, 0.78
RUN_LOG_MAX = 12.0
"""exp(12) s is two days."""

ARRIVAL_GAMMA = (10.2303 * 1.0225, 0.4871)
ARRIVAL_LOG_MAX = 13.0
"""exp(13) s is five days."""

CYCLE_GAMMA = (8.1737, 3.9631)
CYCLE_BEGINS_AT = 11
BUCKETS = 48
"""Half hours of a day; the cycle's distribution begins with bucket CYCLE_BEGINS_AT."""

BUCKET_S = 86400.0 / BUCKETS

LIMITS_S = (
    300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 28800, 43200, 64800, 86400, 129600, 172800, 259200, 432000,
)  # fmt: skip
"""Limits that people usually write (seconds)."""

OVERESTIMATE = 2.0
"""Mean of what a limit exceeds the run time by, in run times."""

PROCS, USERS = 128, 50
"""If nothing else is asked for."""


def generate(
    jobs: int = 1000,
    procs: int | None = None,
    seed: int = 0,
    *,
    load: float | None = None,
    users: int = USERS,
    nodes: int | None = None,
    cores: int | None = None,
    banks: int | None = None,
    elastic: float = 0.0,
    parts: float = 0.0,
    max_hops: int | None = None,
) -> Trace:
    """Return a trace of so many jobs for a machine of `procs` one-core targets (PROCS), or of `nodes` with `cores` each
    (1).

    `load` is the demand as a fraction of the machine: arrivals are then stretched or compressed evenly. The users are
    dealt out to so many `banks`, if given, the busiest to the first; a bank is the group of its users as well. These
    fractions of the jobs are `elastic`, or have two `parts` as well, with `max_hops` (see `made_elastic`).
    Raises InvalidValue for counts below 1, for two machines, and for a load that is not positive.
    """
    machine = machine_of(procs, nodes, cores) or Machine(PROCS)
    total = machine.targets * machine.cores
    check_count("jobs", jobs)
    check_count("users", users)
    if banks is not None:
        check_count("banks", banks)
    if load is not None and not 0 < load < inf:
        raise InvalidValue(
            f"load {load:g} is not a number above 0: give the demand as a fraction of the machine, such as 0.8"
        )
    if jobs > JOBS_MAX:
        raise LimitExceeded(f"{jobs} jobs exceed the limit of {JOBS_MAX} in one trace")
    chance = seeded(seed)
    arrivals = _arrivals(chance)
    rows = [(next(arrivals), *_made_job(chance, total)) for _ in range(jobs)]
    first_s = rows[0][0]
    stretch = 1.0 if load is None else _stretch(rows, total, load)
    weights = list(accumulate(1 / rank for rank in range(1, users + 1)))
    asks = {size: Ask(size) for _, size, _ in rows}
    made = [
        TraceJob(
            at, float(round((submit_s - first_s) * stretch)), float(run_s), _limit(chance, run_s), asks[size],
            user=chance.choices(range(1, users + 1), cum_weights=weights)[0],
        )
        for at, (submit_s, size, run_s) in enumerate(rows, 1)
    ]  # fmt: skip
    if banks is not None:
        made = [_in_bank(job, banks) for job in made]
    if elastic or parts or max_hops is not None:
        made = made_elastic(made, machine, seeded(seed), elastic, parts, max_hops)
    return Trace(f"lublin-{jobs}x{total}-seed{seed}", made, {"Note": f"Lublin-Feitelson model, seed {seed}"}, machine)


def _in_bank(job: TraceJob, banks: int) -> TraceJob:
    assert isinstance(job.user, int)
    number = (job.user - 1) % banks + 1
    return job._replace(group=number, bank=f"bank{number}")


def _stretch(rows: list[tuple[float, int, int]], procs: int, load: float) -> float:
    """By what to stretch the arrivals, so that the work in them is `load` of the machine."""
    span_s = rows[-1][0] - rows[0][0]
    work = sum(size * run_s for _, size, run_s in rows)
    return work / (procs * load * span_s) if span_s else 1.0


def _made_job(chance: RandomSource, procs: int) -> tuple[int, int]:
    """Size and run time (seconds, at least 1)."""
    size = _size(chance, procs)
    mix = RUN_MIX_SLOPE * size + RUN_MIX_AT_ZERO
    while (value := chance.gammavariate(*RUN_GAMMAS[0 if chance.random() <= mix else 1])) > RUN_LOG_MAX:
        pass
    return size, max(1, round(exp(value)))


def _size(chance: RandomSource, procs: int) -> int:
    kind = chance.random()
    if procs == 1 or kind <= SERIAL:
        return 1
    high = log2(procs)
    low = min(LOG_LOW, high)
    middle = max(low, high - LOG_MIDDLE_BELOW_HIGH)
    exponent = chance.uniform(low, middle) if chance.random() <= LOWER_STAGE else chance.uniform(middle, high)
    if kind <= SERIAL + POWER_OF_TWO:
        exponent = float(round(exponent))
    return min(procs, max(1, round(2**exponent)))


def _limit(chance: RandomSource, run_s: int) -> float:
    wanted = run_s * (1 + chance.expovariate(1 / OVERESTIMATE))
    for limit_s in LIMITS_S:
        if limit_s >= wanted:
            return float(limit_s)
    return float(max(run_s, LIMITS_S[-1]))


def _arrivals(chance: RandomSource) -> Iterator[float]:
    """Yield times of arrival from midnight on; each waits for an amount of the day's cycle to pass, not of time."""
    weights = _cycle()
    now_s = 0.0
    while True:
        while (value := chance.gammavariate(*ARRIVAL_GAMMA)) > ARRIVAL_LOG_MAX:
            pass
        left = exp(value)
        while True:
            weight = weights[int(now_s // BUCKET_S) % BUCKETS]
            rest_s = (now_s // BUCKET_S + 1) * BUCKET_S - now_s
            if left <= rest_s * weight:
                now_s += left / weight
                break
            left -= rest_s * weight
            now_s += rest_s
        yield now_s


def _cycle() -> list[float]:
    """Return the load of each half hour of a day, 1 on average."""
    weights = [0.0] * BUCKETS
    for at in range(CYCLE_BEGINS_AT, CYCLE_BEGINS_AT + BUCKETS):
        weights[at % BUCKETS] = sum([_density(at + (step + 0.5) / 8) for step in range(-4, 4)])
    mean = sum(weights) / BUCKETS
    floor = mean / 100  # the tail of the distribution is 0: keep it positive
    return [max(weight, floor) / mean for weight in weights]


def _density(x: float) -> float:
    """Of the cycle's gamma distribution; `x` in half hours since midnight."""
    shape, scale = CYCLE_GAMMA
    return exp((shape - 1) * log(x) - x / scale - lgamma(shape) - shape * log(scale))
