"""Table of a simulation's jobs, column by column, and the step functions, stretches and amounts computed from it.

Law: a job keeps its row whatever became of it; what did not happen is None. A step function is a list of (time, value
from then on), times ascending, the first one the earliest that matters; it is computed from the table of jobs on
demand, never while the simulation runs. The stretches of an attempt follow each other without a gap; a job whose size
never changes has one an attempt. Amounts are whole numbers in the order of `kinds`; a row has what its job asked for
until it started.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.sched.fair.accounts import Vector

WAITING, RUNNING, COMPLETED, TIMEOUT, FAILED, DENIED = "waiting", "running", "completed", "timeout", "failed", "denied"
"""`state`: not started, not ended by then, ran to its end, cut at its limit, ended with its targets, never possible."""

PREEMPTED = "preempted"
"""`state`: ended so that another job could start."""

UNSUBMITTED = "unsubmitted"
"""`state`: not even waiting, as its time had not come by then, or, with feedback, the preceding job was not over."""

LEFT = frozenset({WAITING, RUNNING, UNSUBMITTED})
"""States of jobs that are not over."""


NO_ROW = -1
"""In place of a row: it is not known for which job another was preempted."""


class Preemption(NamedTuple):
    """An attempt of the job in `row` that was ended so that the one in `for_row` (or NO_ROW) could start.

    If it was submitted `again`, the row has a later attempt, else this one. Times are virtual, in seconds.
    """

    row: int
    start_s: float
    end_s: float
    procs: int
    for_row: int
    again: bool
    ranks: str | None = None
    """On which targets it ran, if that was asked for."""

    @property
    def lost_core_s(self) -> float:
        """The work that was lost."""
        return (self.end_s - self.start_s) * self.procs


class Resizing(NamedTuple):
    """A running job of a row got so many cores more, or left them (`change` below 0), from `when_s` until its end.

    `until_s` is None while it runs. Times are virtual, in seconds; `ranks` are the targets.
    """

    row: int
    when_s: float
    until_s: float | None
    change: int
    ranks: str

    def of(self, amounts: Vector, procs: int) -> Vector:
        """Return the amount of the change by kind, without a sign, where the job has these amounts with so many cores.
        """
        return tuple([amount * abs(self.change) // procs for amount in amounts])

    def core_s(self, until_s: float) -> float:
        """Core seconds more, or less, than it would have had by then at its size before."""
        end_s = until_s if self.until_s is None else min(self.until_s, until_s)
        return self.change * max(0.0, end_s - self.when_s)


@dataclass(slots=True, repr=False)
class Columns:
    """One list a column, one entry a job, in order of submission; of a job with several attempts the last one."""

    job: list[int | str]
    submit: list[float]
    start: list[float | None]
    end: list[float | None]
    procs: list[int]
    user: list[int | str | None]
    queue: list[int | str | None]
    state: list[str]
    ranks: list[str | None] | None = None
    notes: dict[int, str] = field(default_factory=dict)
    """Why a job was denied, or waits set aside, by row: several jobs may have one name."""

    bank: list[str | None] = field(default_factory=list)
    """The bank that each job is charged to; empty if the trace names none."""

    preemptions: list[Preemption] = field(default_factory=list)
    """In the order in which the attempts ended."""

    resizes: list[Resizing] = field(default_factory=list)
    """In order of time; `procs` is what a job had at its start."""

    hops: list[int | None] = field(default_factory=list)
    """The most between any two targets of a job, or of one of its parts; None of one target. Empty if not known."""

    def __len__(self) -> int:
        return len(self.job)

    def earlier_attempts(self) -> Iterator[Preemption]:
        """Yield the attempts that no row has, since the job was submitted again."""
        return (each for each in self.preemptions if each.again)

    def __repr__(self) -> str:
        """In a line: the names of the columns, which may have a million rows."""
        return f"<Columns of {len(self)} jobs: {', '.join(self.__slots__)}>"


# ---- step functions

Steps = list[tuple[float, int]]


def steps_of(changes: Iterable[tuple[float, int]]) -> Steps:
    """Return the running sum of (time, change); changes of one time are one step, and no step repeats the one before.
    """
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
    """Return the mean over a time; 0 over no time and before the first step."""
    return averages(steps, begin_s, end_s, 1)[0]


def averages(steps: Sequence[tuple[float, float]], begin_s: float, end_s: float, parts: int) -> list[float]:
    """Return the means over equal parts of a time, one after the other."""
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
    """Return the largest value, 0 of nothing."""
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


# ---- stretches of time

class Stretch(NamedTuple):
    """The job of a row had so many cores, on these targets; `end_s` is None while it does (virtual times, seconds)."""

    row: int
    start_s: float
    end_s: float | None
    procs: int
    ranks: str


def stretches(jobs: Columns, rows: Iterable[int]) -> Iterator[Stretch]:
    """Yield the stretches of some rows, in their order and that of time; none of an attempt whose targets were not
    recorded.
    """
    earlier: dict[int, list[Preemption]] = {}
    changes: dict[int, list[Resizing]] = {}
    for attempt in jobs.earlier_attempts():
        earlier.setdefault(attempt.row, []).append(attempt)
    for change in jobs.resizes:
        changes.setdefault(change.row, []).append(change)
    for row in rows:
        whole = [Stretch(row, each.start_s, each.end_s, each.procs, each.ranks) for each in earlier.get(row, ())
                 if each.ranks is not None]  # fmt: skip
        start_s, ranks = jobs.start[row], None if jobs.ranks is None else jobs.ranks[row]
        if start_s is not None and ranks is not None:
            whole.append(Stretch(row, start_s, jobs.end[row], jobs.procs[row], ranks))
        if row not in changes:
            yield from whole
            continue
        for each in whole:
            yield from _cut(each, [change for change in changes[row] if change.until_s == each.end_s])


def _cut(whole: Stretch, changes: Iterable[Resizing]) -> Iterator[Stretch]:
    """Yield an attempt, at its changes, in order of time; several of one instant are one."""
    row, start_s, end_s, procs, ranks = whole
    held = Idset.parse(ranks)
    for change in changes:
        if change.when_s > start_s:
            yield Stretch(row, start_s, change.when_s, procs, str(held))
            start_s = change.when_s
        targets = Idset.parse(change.ranks)
        held = held | targets if change.change > 0 else held - targets
        procs += change.change
    if end_s is None or end_s > start_s or start_s == whole.start_s:
        yield Stretch(row, start_s, end_s, procs, str(held))


# ---- columns of amounts

class AmountColumns(NamedTuple):
    """Of each row, and what is usable from each time on (virtual, seconds)."""

    kinds: tuple[str, ...]
    of_row: list[Vector]
    capacity: list[tuple[float, Vector]]

    def only(self, kinds: Sequence[str]) -> AmountColumns:
        """Return the amounts of these kinds only, in their order; 0 for a kind that is missing."""
        places = [self.kinds.index(kind) if kind in self.kinds else -1 for kind in kinds]
        known: dict[Vector, Vector] = {}

        def chosen(vector: Vector) -> Vector:
            if vector not in known:
                known[vector] = tuple([0 if at < 0 else vector[at] for at in places])
            return known[vector]

        rows, capacity = [chosen(vector) for vector in self.of_row], self.capacity
        return AmountColumns(tuple(kinds), rows, [(when_s, chosen(vector)) for when_s, vector in capacity])

    def utilisation(self, jobs: Columns, begin_s: float, end_s: float) -> dict[str, float]:
        """Return the part of each kind that was held, of what was usable; kinds of which there is nothing are left out.
        """
        used = [0.0] * len(self.kinds)
        attempts = [(lost.row, lost.start_s, lost.end_s) for lost in jobs.earlier_attempts()]
        last = [(row, start_s, jobs.end[row]) for row, start_s in enumerate(jobs.start) if start_s is not None]
        for row, start_s, ended_s in [*attempts, *last]:
            passed_s = min(end_s, end_s if ended_s is None else ended_s) - max(begin_s, start_s)
            if passed_s > 0:
                for at, amount in enumerate(self.of_row[row]):
                    used[at] += amount * passed_s
        for resize in jobs.resizes:
            passed_s = (resize.core_s(end_s) - resize.core_s(begin_s)) / abs(resize.change)
            for at, amount in enumerate(resize.of(self.of_row[resize.row], jobs.procs[resize.row])):
                used[at] += amount * passed_s
        found = {}
        for at, kind in enumerate(self.kinds):
            usable = average([(when_s, vector[at]) for when_s, vector in self.capacity], begin_s, end_s)
            if usable:
                found[kind] = used[at] / (usable * (end_s - begin_s))
        return found
