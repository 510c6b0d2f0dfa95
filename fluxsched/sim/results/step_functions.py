"""Numbers that change at points in time: busy cores, usable cores, jobs that wait.

Law: a step function is a list of (time, value from then on), times ascending, the first one the earliest that matters;
it is computed from the table of jobs on demand, never while the simulation runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fluxsched.sim.results.table import Columns

Steps = list[tuple[float, int]]


def steps_of(changes: Iterable[tuple[float, int]]) -> Steps:
    """The running sum of (time, change); changes of one time are one step, and no step repeats the one before."""
    found: Steps = []
    value = 0
    for when_s, change in sorted(changes):
        value += change
        if found and found[-1][0] == when_s:
            found[-1] = (when_s, value)
        else:
            found.append((when_s, value))
    return [step for at, step in enumerate(found) if not at or found[at - 1][1] != step[1]]


def busy_steps(jobs: Columns) -> Steps:
    """Cores in use, attempts that were preempted included."""
    changes = []
    for lost in jobs.earlier_attempts():
        changes += [(lost.start_s, lost.procs), (lost.end_s, -lost.procs)]
    for start_s, end_s, procs in zip(jobs.start, jobs.end, jobs.procs, strict=True):
        if start_s is not None:
            changes.append((start_s, procs))
            if end_s is not None:
                changes.append((end_s, -procs))
    for resize in jobs.resizes:
        changes.append((resize.when_s, resize.change))
        if resize.until_s is not None:
            changes.append((resize.until_s, -resize.change))
    return steps_of(changes)


def queue_steps(jobs: Columns) -> Steps:
    """Jobs that wait: submitted, not denied and not started, or preempted and not started again."""
    changes = []
    for lost in jobs.earlier_attempts():
        changes += [(lost.start_s, -1), (lost.end_s, 1)]
    for submit_s, start_s, state in zip(jobs.submit, jobs.start, jobs.state, strict=True):
        if start_s is not None or state == "waiting":
            changes.append((submit_s, 1))
            if start_s is not None:
                changes.append((start_s, -1))
    return steps_of(changes)


def used_core_s(jobs: Columns, until_s: float) -> float:
    """Core seconds that jobs had by then, attempts that were preempted included."""
    rows = zip(jobs.start, jobs.end, jobs.procs, strict=True)
    return sum([lost.lost_core_s for lost in jobs.earlier_attempts()]) + sum([
        ((until_s if end_s is None else end_s) - start_s) * procs for start_s, end_s, procs in rows
        if start_s is not None and start_s < until_s
    ]) + sum([resize.core_s(until_s) for resize in jobs.resizes])  # fmt: skip


def beside_start_core_s(jobs: Columns, until_s: float) -> dict[int, tuple[float, float]]:
    """By row: core seconds by then that the job had above its size at the start, and those that it had less."""
    found: dict[int, tuple[float, float]] = {}
    of_attempt: dict[tuple[int, float | None], list[tuple[float, int]]] = {}
    for resize in jobs.resizes:
        of_attempt.setdefault((resize.row, resize.until_s), []).append((resize.when_s, resize.change))
    for (row, ended_s), changes in of_attempt.items():
        above, below = found.get(row, (0.0, 0.0))
        end_s = until_s if ended_s is None else min(ended_s, until_s)
        steps = steps_of(changes)
        for at, (from_s, cores) in enumerate(steps):
            then_s = min(end_s, steps[at + 1][0] if at + 1 < len(steps) else end_s)
            core_s = cores * max(0.0, then_s - from_s)
            above, below = above + max(0.0, core_s), below + max(0.0, -core_s)
        found[row] = above, below
    return found


def average(steps: Sequence[tuple[float, int]], begin_s: float, end_s: float) -> float:
    """The mean over a time; 0 over no time and before the first step."""
    return averages(steps, begin_s, end_s, 1)[0]


def averages(steps: Sequence[tuple[float, float]], begin_s: float, end_s: float, parts: int) -> list[float]:
    """The means over equal parts of a time, one after the other."""
    if end_s <= begin_s:
        return [0.0] * parts
    bounds = [begin_s + (end_s - begin_s) * part / parts for part in range(parts)] + [end_s]
    sums, part = [0.0] * parts, 0
    for at, (from_s, value) in enumerate(steps):
        until_s = min(steps[at + 1][0] if at + 1 < len(steps) else end_s, end_s)
        now_s = max(from_s, begin_s)
        while now_s < until_s:
            while bounds[part + 1] <= now_s:
                part += 1
            then_s = min(until_s, bounds[part + 1])
            sums[part] += value * (then_s - now_s)
            now_s = then_s
    return [total / (bounds[part + 1] - bounds[part]) for part, total in enumerate(sums)]


def maximum(steps: Sequence[tuple[float, int]]) -> int:
    """The largest value, 0 of nothing."""
    return max([value for _, value in steps], default=0)


def sampled(steps: Sequence[tuple[float, int]], points_max: int) -> Steps:
    """At most about so many steps, for drawing: of each stretch of time the first, the lowest and the highest."""
    if len(steps) <= points_max or points_max < 3:
        return list(steps)
    width = -(-len(steps) * 3 // points_max)
    found: Steps = []
    for at in range(0, len(steps), width):
        stretch = steps[at : at + width]
        low, high = min(stretch, key=_value), max(stretch, key=_value)
        found += sorted({stretch[0], low, high})
    return found


def _value(step: tuple[float, int]) -> int:
    return step[1]
