"""Result of a simulation: the table of jobs, its figures, the shares of accounts, and the cost of scheduling.

Law: computed of the table of jobs, never while the simulation runs, so that policies that know no accounts compare with
those that do. Formulas are those of rfc/fair.md, over usable targets. Of an account with usage U, share S and demand D
(U, and the usage of all its jobs that wait), the shortfall is the integral of max(0, min(S, D) - U) over time. Bounded
slowdown is max(1, (wait + run) / max(run, tau)), tau 10 s, over all jobs that have ended (Feitelson 2001); percentiles
are of the values themselves, interpolated linearly; a figure over no jobs is None. A job keeps its row whatever became
of it; what did not happen is None, and an empty cell in a file.

Table of a simulation's jobs, column by column, and the step functions, stretches and amounts computed from it.

Law: a job keeps its row whatever became of it; what did not happen is None. A step function is a list of (time, value
from then on), times ascending, the first one the earliest that matters; it is computed from the table of jobs on
demand, never while the simulation runs. The stretches of an attempt follow each other without a gap; a job whose size
never changes has one an attempt. Amounts are whole numbers in the order of `kinds`; a row has what its job asked for
until it started.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from math import inf
from operator import add, itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.sched.fair.accounts import Account, FairSettings, Vector
from fluxsched.sched.fair.usage import UsageBook
from fluxsched.sim.traces import number_text

WAITING: Final = "waiting"
RUNNING: Final = "running"
COMPLETED: Final = "completed"
TIMEOUT: Final = "timeout"
FAILED: Final = "failed"
DENIED: Final = "denied"
"""`state`: not started, not ended by then, ran to its end, cut at its limit, ended with its targets, never possible."""

PREEMPTED: Final = "preempted"
"""`state`: ended so that another job could start."""

UNSUBMITTED: Final = "unsubmitted"
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
        """Return the amount of the change by kind, without a sign, where the job has these amounts with so many
        cores.
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
    """Return the running sum of (time, change); changes of one time are one step, and no step repeats the one
    before.
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
        """Return the part of each kind that was held, of what was usable; kinds of which there is nothing are left
        out.
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


# ---- result

UNKNOWN_USER = "unknown"
"""Name of the user of jobs for which a trace names none."""

Course = list[tuple[float, float]]
"""(time, value from then on)."""


@dataclass(slots=True)
class AccountCourse:
    """One account, by its path from below the root. Usage and share are in units of weight, their integrals times s."""

    path: tuple[str, ...]
    usage: Course = field(default_factory=list, repr=False)
    share: Course = field(default_factory=list, repr=False)
    used_s: float = 0.0
    share_s: float = 0.0
    shortfall_s: float = 0.0
    jobs: int = 0
    waits_s: float = 0.0
    started: int = 0
    preempted: int = 0
    lost_core_s: float = 0.0
    _since_s: float = 0.0
    _demand: float = 0.0

    @property
    def name(self) -> str:
        """Return the name of the account: `physics/ann`."""
        return "/".join(self.path)

    @property
    def wait_mean_s(self) -> float | None:
        """From submission to start, of the jobs that have started."""
        return self.waits_s / self.started if self.started else None

    def settle(self, now_s: float) -> None:
        """Add up to now what has been so since the last time."""
        usage, share, passed_s = _last(self.usage), _last(self.share), now_s - self._since_s
        self.used_s += usage * passed_s
        self.share_s += share * passed_s
        self.shortfall_s += max(0.0, min(share, self._demand) - usage) * passed_s
        self._since_s = now_s

    def read(self, now_s: float, usage: float, share: float, demand: float) -> None:
        """Record usage, share and demand from now on."""
        self._demand = demand
        _step(self.usage, now_s, usage)
        _step(self.share, now_s, share)


class _Change(NamedTuple):
    """Change of a job of an account: 1 where it begins to be there, to wait, or to hold `amounts`, -1 where it ends."""

    when_s: float
    account: Account
    amounts: Vector
    active: int
    waits: int
    holds: int


def courses(jobs: Columns, amounts: AmountColumns, fair: FairSettings, end_s: float) -> list[AccountCourse]:
    """All accounts that have jobs, those that used most first, up to `end_s`."""
    amounts = amounts.only(list(fair.weights))
    sweep = _Sweep(UsageBook(fair))
    leaves = [sweep.leaf(fair, bank, user) for bank, user in zip(_banks(jobs), jobs.user, strict=True)]
    changes = sorted(_changes(jobs, leaves, amounts.of_row), key=itemgetter(0))
    capacity = iter([*amounts.capacity, (inf, ())])
    next_s, usable = next(capacity)
    for when_s, group in groupby(changes, key=itemgetter(0)):
        while next_s <= when_s:
            sweep.set_capacity(usable, next_s)
            next_s, usable = next(capacity)
        sweep.apply(list(group), when_s)
    sweep.end(end_s)
    _count(jobs, leaves, sweep)
    return sorted(sweep.found.values(), key=lambda course: (-course.used_s, course.path))


class _Sweep:
    """The tree of accounts as time goes by."""

    def __init__(self, book: UsageBook) -> None:
        self.found: dict[Account, AccountCourse] = {}
        self._tree = book.tree
        self._waiting: dict[Account, float] = {}
        self._known: dict[tuple[str, object], Account] = {}

    def leaf(self, fair: FairSettings, bank: str | None, user: int | str | None) -> Account:
        """Return the account of a user in a bank."""
        key = bank or DEFAULT_BANK, user
        account = self._known.get(key)
        if account is None:
            path = fair.account_path(key[0], UNKNOWN_USER if user is None else str(user))
            account = self._known[key] = self._tree.account(path)
            for at in above(account):
                self.found.setdefault(at, AccountCourse(at.path))
        return account

    def set_capacity(self, usable: Vector, now_s: float) -> None:
        """Set the usable capacity from now on."""
        self._tree.set_capacity(usable, now_s)
        self._read(self.found, now_s)

    def apply(self, changes: Sequence[_Change], now_s: float) -> None:
        """All changes of one instant."""
        were_active: dict[Account, bool] = {}
        for _, account, amounts, active, waits, holds in changes:
            were_active.setdefault(account, bool(account.active))
            if active:
                self._tree.activate(account, active)
            if holds:
                self._tree.book(account, amounts, holds, False, now_s)
            usage = waits * self._tree.measure.usage(amounts)
            for at in above(account):
                self._waiting[at] = self._waiting.get(at, 0.0) + usage
        moves = any(bool(account.active) != was for account, was in were_active.items())  # the shares of others
        self._read(self.found if moves else {at for account in were_active for at in above(account)}, now_s)

    def end(self, end_s: float) -> None:
        """End all courses at this time."""
        for course in self.found.values():
            course.settle(end_s)

    def _read(self, accounts: Iterable[Account], now_s: float) -> None:
        for account in accounts:
            course = self.found[account]
            course.settle(now_s)
            usage = account.all_jobs.usage
            share = self._tree.fair_usage(account) if account.active else 0.0
            course.read(now_s, usage, share, usage + self._waiting.get(account, 0.0))


def write_courses(titled: Iterable[tuple[str, Sequence[AccountCourse]]], file: TextIO) -> None:
    """Usage against share over time, a line each time that one of them changes, as CSV; `titled` is by policy."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("policy", "account", "time", "usage", "share"))
    for title, found in titled:
        for course in found:
            usage, share = dict(course.usage), dict(course.share)
            row = [0.0, 0.0]
            for when_s in sorted({*usage, *share}):
                row = [usage.get(when_s, row[0]), share.get(when_s, row[1])]
                writer.writerow((title, course.name, *map(number_text, (when_s, *row))))


def above(account: Account) -> Iterator[Account]:
    """Yield the account and those above it, without the root."""
    return (at for at in account.up() if at.parent is not None)


def _banks(jobs: Columns) -> Sequence[str | None]:
    return jobs.bank or [None] * len(jobs)


def _changes(jobs: Columns, leaves: Sequence[Account], of_row: Sequence[Vector]) -> Iterator[_Change]:
    """Each job waits, then holds something; one that was preempted does so several times."""
    attempts: dict[int, list[tuple[float, float]]] = {}
    for lost in jobs.earlier_attempts():
        attempts.setdefault(lost.row, []).append((lost.start_s, lost.end_s))
    for row, (submit_s, start_s, state) in enumerate(zip(jobs.submit, jobs.start, jobs.state, strict=True)):
        if state in (DENIED, UNSUBMITTED):
            continue
        account, amounts = leaves[row], of_row[row]
        yield _Change(submit_s, account, amounts, 1, 1, 0)
        for begun_s, ended_s in attempts.get(row, ()):
            yield _Change(begun_s, account, amounts, 0, -1, 1)
            yield _Change(ended_s, account, amounts, 0, 1, -1)
        if start_s is not None:
            yield _Change(start_s, account, amounts, 0, -1, 1)
        last_s = jobs.end[row]
        if last_s is not None:
            yield _Change(last_s, account, amounts, -1, 0, -1)
    for resize in jobs.resizes:
        account, amounts = leaves[resize.row], resize.of(of_row[resize.row], jobs.procs[resize.row])
        sign = 1 if resize.change > 0 else -1
        yield _Change(resize.when_s, account, amounts, 0, 0, sign)
        if resize.until_s is not None:
            yield _Change(resize.until_s, account, amounts, 0, 0, -sign)


def _count(jobs: Columns, leaves: Sequence[Account], sweep: _Sweep) -> None:
    """Count the figures that do not depend on time: jobs, waits, and the cost of preemption."""
    for leaf, submit_s, start_s in zip(leaves, jobs.submit, jobs.start, strict=True):
        for at in above(leaf):
            course = sweep.found[at]
            course.jobs += 1
            if start_s is not None:
                course.started += 1
                course.waits_s += start_s - submit_s
    for lost in jobs.preemptions:
        for at in above(leaves[lost.row]):
            sweep.found[at].preempted += 1
            sweep.found[at].lost_core_s += lost.lost_core_s


def _step(course: Course, when_s: float, value: float) -> None:
    if course and course[-1][0] == when_s:
        course[-1] = when_s, value
    elif _last(course) != value:
        course.append((when_s, value))


def _last(course: Course) -> float:
    return course[-1][1] if course else 0.0


# ---- metrics

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
    """Figures of one user or queue."""

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
    """Return the bounded slowdown of a job: wait and run over run, of at least `tau_s`."""
    return max(1.0, (wait_s + run_s) / max(run_s, tau_s))


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean, median, 95th percentile and maximum of what is known; None if nothing is."""
    known = sorted([value for value in values if value is not None])
    if not known:
        return None
    return Spread(sum(known) / len(known), percentile(known, 0.5), percentile(known, 0.95), known[-1])


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the value below which `part` (0 to 1) of the ordered values lie, interpolated linearly."""
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
    """Return the figures of each name (one a job), the largest in core seconds first; jobs without a name count under
    None.
    """
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


# ---- results

COLUMNS = (
    "job", "submit", "start", "end", "procs", "policy", "user", "queue", "wait", "slowdown", "state", "ranks",
    "note", "bank", "preempted", "lost",
)  # fmt: skip
"""Of `to_csv`, in order. Times in seconds since the trace began; `slowdown` is bounded; `ranks` only if asked for.

`policy` is the label, if one was given; `note` says why the job was denied, or can only wait; `preempted` how often
the job was, and `lost` how many core seconds of its work.
"""

SIZE_COLUMNS = ("grown", "shrunk", "hops")
"""The last ones, if any job of the table changed its size or the hops are known: core seconds above and below its size
at the start, and the most hops between any two of its targets.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of scheduling: instants, passes, and, if a stopwatch was given, seconds in all and in each pass.

    `refused` are the decisions of the policy that could not be made real: one that keeps the laws has none. What was
    wrong with the first grow or shrink among them is the `refusal`. `considered_s` has, with time of its own, how long
    after each submission a pass had ended that began after it.
    """

    instants: int
    passes: int
    wall_s: float | None = None
    pass_s: Sequence[float] = ()
    refused: int = 0
    considered_s: Sequence[float] = ()
    refusal: str = ""


@dataclass(repr=False)
class Result:
    """One policy on one trace, up to `until_s`. `jobs` is the table, `capacity` the usable cores from each time on.

    `held` has all kinds of resources, if they were recorded; `fair` is what was settled about accounts.
    """

    policy: str
    trace: str
    jobs: Columns
    capacity: list[tuple[float, int]]
    targets: int
    cost: Cost
    until_s: float = inf
    label: str | None = None
    held: AmountColumns | None = None
    fair: FairSettings | None = None

    @property
    def title(self) -> str:
        """Return the name of the result in tables and plots: its label, else its policy."""
        return self.policy if self.label is None else self.label

    def __repr__(self) -> str:
        """In a line: the table may have a million rows."""
        return f"<Result of {self.policy} on {self.trace}: {len(self.jobs)} jobs, {self.targets} targets>"

    @property
    def cores(self) -> int:
        """Return the number of cores at the beginning."""
        return self.capacity[0][1]

    @cached_property
    def end_s(self) -> float:
        """Up to when figures are: the last end of a job, or `until_s` if there were jobs left."""
        if self.until_s < inf and not LEFT.isdisjoint(self.jobs.state):
            return self.until_s
        return max([end for end in self.jobs.end if end is not None], default=0.0)

    @cached_property
    def wait(self) -> list[float | None]:
        """Seconds from submission to start."""
        return waits(self.jobs)

    @cached_property
    def slowdown(self) -> list[float | None]:
        """Bounded slowdown of the jobs that have ended."""
        return slowdowns(self.jobs)

    @cached_property
    def summary(self) -> Summary:
        """The figures that reports show."""
        return summarize(self.jobs, self.capacity, self.end_s)

    @cached_property
    def accounts(self) -> list[AccountCourse]:
        """Return the courses of accounts, those that used most first; none if they were not recorded."""
        if self.held is None or self.fair is None:
            return []
        return courses(self.jobs, self.held, self.fair, self.end_s)

    @cached_property
    def utilisation_of(self) -> dict[str, float]:
        """Of each kind of resource from the first submission to `end_s`; empty if that was not recorded."""
        begun_s = min(self.jobs.submit, default=0.0)
        if self.held is None or self.end_s <= begun_s:
            return {}
        return self.held.utilisation(self.jobs, begun_s, self.end_s)

    @property
    def started_per_s(self) -> float:
        """Jobs started from the first submission to `end_s`, attempts that were preempted included."""
        begun_s = min(self.jobs.submit, default=0.0)
        started = sum([start is not None for start in self.jobs.start]) + sum(1 for _ in self.jobs.earlier_attempts())
        return started / (self.end_s - begun_s) if self.end_s > begun_s else 0.0

    @property
    def has_sizes(self) -> bool:
        """Return whether there are values for SIZE_COLUMNS."""
        return bool(self.jobs.resizes or any(self.jobs.hops))

    def _sizes(self) -> Iterator[tuple[Any, ...]]:
        jobs, beside_start = self.jobs, beside_start_core_s(self.jobs, self.end_s)
        for row, hops in enumerate(jobs.hops or [None] * len(jobs)):
            yield *beside_start.get(row, (None, None)), hops

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the table line by line, in the order of COLUMNS."""
        jobs = self.jobs
        ranks = jobs.ranks if jobs.ranks is not None else [None] * len(jobs)
        policy = [self.title] * len(jobs)
        times: dict[int, int] = {}
        lost: dict[int, float] = {}
        for each in jobs.preemptions:
            times[each.row] = times.get(each.row, 0) + 1
            lost[each.row] = lost.get(each.row, 0.0) + each.lost_core_s
        return zip(
            jobs.job, jobs.submit, jobs.start, jobs.end, jobs.procs, policy, jobs.user, jobs.queue, self.wait,
            self.slowdown, jobs.state, ranks, map(jobs.notes.get, range(len(jobs))), jobs.bank or [None] * len(jobs),
            map(times.get, range(len(jobs))), map(lost.get, range(len(jobs))), strict=True,
        )  # fmt: skip

    def to_csv(self, file: TextIO | Path | str, header: bool = True, sizes: bool | None = None) -> None:
        """Write the table, with SIZE_COLUMNS if `sizes`, or if there is anything to say in them.

        Numbers are exact: whole ones without a point, others as Python prints them.
        """
        if isinstance(file, Path | str):
            with Path(file).open("w", newline="", encoding="utf-8") as opened:
                self.to_csv(opened, header, sizes)
            return
        writer, has_sizes = csv.writer(file, lineterminator="\n"), self.has_sizes if sizes is None else sizes
        if header:
            writer.writerow(COLUMNS + SIZE_COLUMNS if has_sizes else COLUMNS)
        rows = map(add, self.rows(), self._sizes()) if has_sizes else self.rows()
        writer.writerows([_cell(value) for value in row] for row in rows)


def write_csv(results: Sequence[Result], path: Path) -> None:
    """All tables in one file, one after the other; the column `policy` tells them apart."""
    sizes = any(result.has_sizes for result in results)
    with path.open("w", newline="", encoding="utf-8") as file:
        for at, result in enumerate(results):
            result.to_csv(file, at == 0, sizes)


def _cell(value: object) -> object:
    return number_text(value) if isinstance(value, float) else value
