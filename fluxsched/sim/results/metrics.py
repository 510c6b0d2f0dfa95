"""The figures of a schedule, computed from the table of jobs alone.

Law: bounded slowdown is max(1, (wait + run) / max(run, tau)), tau 10 s, over all jobs that have ended (Feitelson 2001);
percentiles are of the values themselves, interpolated linearly; a figure over no jobs is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from fluxsched.sim.results.step_functions import (
    Steps,
    average,
    averages,
    beside_start_core_s,
    busy_steps,
    maximum,
    queue_steps,
    used_core_s,
)
from fluxsched.sim.results.table import Columns

PARTS = 48
"""Of the makespan, in figures over time: as many as a line of text has room for, twice."""

TAU_S = 10.0
"""A shorter job counts as one of this length: a wait of a second does not matter for a job of a millisecond."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in four numbers."""

    mean: float
    median: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Share:
    """What one user or queue got."""

    name: int | str | None
    jobs: int
    wait_mean_s: float
    slowdown_mean: float
    core_s: float


@dataclass(frozen=True, slots=True)
class OverTime:
    """Means of PARTS equal parts of the makespan, `part_s` each; utilisation is None while nothing was usable."""

    begin_s: float
    part_s: float
    utilisation: tuple[float | None, ...]
    queue: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one policy on one trace. Times in seconds; utilisation is of the usable cores from the first submission on.

    `preemptions` counts the attempts that were ended for other jobs, whose work (core seconds) is lost. Jobs have grown
    and shrunk so often; grown are the core seconds that they had above their size at the start, shrunk those that they
    had less. Hops are those of jobs of several targets, where switches are known.
    """

    jobs: int
    states: dict[str, int]
    wait_s: Spread | None
    slowdown: Spread | None
    utilisation: float | None
    makespan_s: float
    queue_mean: float
    queue_max: int
    fairness_users: float | None
    fairness_queues: float | None
    users: tuple[Share, ...] = field(repr=False)
    queues: tuple[Share, ...] = field(repr=False)
    over_time: OverTime = field(repr=False)
    preemptions: int = 0
    lost_core_s: float = 0.0
    grows: int = 0
    shrinks: int = 0
    grown_core_s: float = 0.0
    shrunk_core_s: float = 0.0
    hops_mean: float | None = None
    hops_max: int | None = None


def bounded_slowdown(wait_s: float, run_s: float, tau_s: float = TAU_S) -> float:
    """How many times longer than its run a job took, waiting included."""
    return max(1.0, (wait_s + run_s) / max(run_s, tau_s))


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean, median, 95th percentile and maximum of what is known; None if nothing is."""
    known = sorted([value for value in values if value is not None])
    if not known:
        return None
    return Spread(sum(known) / len(known), percentile(known, 0.5), percentile(known, 0.95), known[-1])


def percentile(ordered: Sequence[float], part: float) -> float:
    """The value below which `part` (0 to 1) of the ordered values lie, interpolated linearly."""
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def jain(values: Sequence[float]) -> float | None:
    """Jain's index of fairness: 1 if all are equal, 1/n if one has everything; None for no values."""
    squares = sum([value * value for value in values])
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def shares(
    jobs: Columns, wait: Sequence[float | None], slowdown: Sequence[float | None], names: Sequence[int | str | None]
) -> tuple[Share, ...]:
    """What each name (one a job) got, the largest in core seconds first; jobs without a name count under None."""
    sums: dict[int | str | None, list[float]] = {}
    more: dict[int, float] = {}
    for resize in jobs.resizes:
        if resize.until_s == jobs.end[resize.row]:  # of the last attempt
            more[resize.row] = more.get(resize.row, 0.0) + resize.core_s(inf)
    for row, (name, wait_s, slow, start_s, end_s, procs) in enumerate(
        zip(names, wait, slowdown, jobs.start, jobs.end, jobs.procs, strict=True)
    ):
        if wait_s is None or slow is None or start_s is None or end_s is None:
            continue
        mine = sums.setdefault(name, [0, 0.0, 0.0, 0.0])
        mine[0] += 1
        mine[1] += wait_s
        mine[2] += slow
        mine[3] += (end_s - start_s) * procs + more.get(row, 0.0)
    found = [Share(name, int(n), wait_s / n, slow / n, core_s) for name, (n, wait_s, slow, core_s) in sums.items()]
    return tuple(sorted(found, key=lambda share: (-share.core_s, str(share.name))))


def waits(jobs: Columns) -> list[float | None]:
    """Seconds from submission to start."""
    pairs = zip(jobs.start, jobs.submit, strict=True)
    return [None if start is None else start - submit for start, submit in pairs]


def slowdowns(jobs: Columns) -> list[float | None]:
    """Bounded slowdown of the jobs that have ended."""
    rows = zip(jobs.submit, jobs.start, jobs.end, strict=True)
    return [
        None if start is None or end is None else bounded_slowdown(start - submit, end - start)
        for submit, start, end in rows
    ]


def summarize(jobs: Columns, capacity: Steps, end_s: float) -> Summary:
    """All figures of a table of jobs up to `end_s`, with the usable cores from each time on."""
    wait, slowdown = waits(jobs), slowdowns(jobs)
    users, queues = (shares(jobs, wait, slowdown, names) for names in (jobs.user, jobs.queue))
    begun = min(jobs.submit, default=0.0)
    ended = max(begun, end_s)
    usable_core_s = average(capacity, begun, ended) * (ended - begun)
    waiting = queue_steps(jobs)
    beside_start = beside_start_core_s(jobs, ended).values()
    hops = [count for count in jobs.hops if count is not None]
    states: dict[str, int] = {}
    for state in jobs.state:
        states[state] = states.get(state, 0) + 1
    return Summary(
        jobs=len(jobs),
        states=states,
        wait_s=spread(wait),
        slowdown=spread(slowdown),
        utilisation=used_core_s(jobs, ended) / usable_core_s if usable_core_s else None,
        makespan_s=ended - begun,
        queue_mean=average(waiting, begun, ended),
        queue_max=maximum(waiting),
        fairness_users=jain([share.slowdown_mean for share in users]),
        fairness_queues=jain([share.slowdown_mean for share in queues]),
        users=users,
        queues=queues,
        over_time=_over_time(jobs, capacity, waiting, begun, ended),
        preemptions=len(jobs.preemptions),
        lost_core_s=sum([each.lost_core_s for each in jobs.preemptions]),
        grows=sum([resize.change > 0 for resize in jobs.resizes]),
        shrinks=sum([resize.change < 0 for resize in jobs.resizes]),
        grown_core_s=sum([grown for grown, _ in beside_start]),
        shrunk_core_s=sum([shrunk for _, shrunk in beside_start]),
        hops_mean=sum(hops) / len(hops) if hops else None,
        hops_max=max(hops, default=None),
    )


def _over_time(jobs: Columns, capacity: Steps, waiting: Steps, begun: float, ended: float) -> OverTime:
    busy = averages(busy_steps(jobs), begun, ended, PARTS)
    usable = averages(capacity, begun, ended, PARTS)
    utilisation = [used / there if there else None for used, there in zip(busy, usable, strict=True)]
    return OverTime(begun, (ended - begun) / PARTS, tuple(utilisation), tuple(averages(waiting, begun, ended, PARTS)))
