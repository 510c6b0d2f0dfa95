"""How accounts shared a machine: usage against share over time, and how far each fell short of what was its.

Law: computed of the table of jobs, never while the simulation runs, so that policies that know no accounts compare with
those that do. Formulas are those of rfc/fair.md, over usable targets. Of an account with usage U, share S and demand D
(U, and the usage of all its jobs that wait), the shortfall is the integral of max(0, min(S, D) - U) over time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import NamedTuple, TextIO

from fluxsched.core.sharing import DEFAULT_BANK
from fluxsched.sched.fair.accounts import Account, FairSettings, Vector
from fluxsched.sched.fair.usage import UsageBook
from fluxsched.sim.results.amount_columns import AmountColumns
from fluxsched.sim.results.table import DENIED, UNSUBMITTED, Columns
from fluxsched.sim.traces.swf import number_text

UNKNOWN_USER = "unknown"
"""What the user of jobs is called for which a trace names none."""

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
        """`physics/ann`."""
        return "/".join(self.path)

    @property
    def wait_mean_s(self) -> float | None:
        """From submission to start, of the jobs that have started."""
        return self.waits_s / self.started if self.started else None

    def settle(self, now_s: float) -> None:
        """Adds up to now what has been so since the last time."""
        usage, share, passed_s = _last(self.usage), _last(self.share), now_s - self._since_s
        self.used_s += usage * passed_s
        self.share_s += share * passed_s
        self.shortfall_s += max(0.0, min(share, self._demand) - usage) * passed_s
        self._since_s = now_s

    def read(self, now_s: float, usage: float, share: float, demand: float) -> None:
        """What is so from now on."""
        self._demand = demand
        _step(self.usage, now_s, usage)
        _step(self.share, now_s, share)


class _Change(NamedTuple):
    """What becomes of a job of an account: 1 where it begins to be there, to wait, or to hold `amounts`, -1 where it
    ends."""

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
        """The account of a user in a bank."""
        key = bank or DEFAULT_BANK, user
        account = self._known.get(key)
        if account is None:
            path = fair.account_path(key[0], UNKNOWN_USER if user is None else str(user))
            account = self._known[key] = self._tree.account(path)
            for at in above(account):
                self.found.setdefault(at, AccountCourse(at.path))
        return account

    def set_capacity(self, usable: Vector, now_s: float) -> None:
        """What is usable has changed."""
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
        """No more comes."""
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
    """The account and those above it, without the root."""
    return (at for at in account.up() if at.parent is not None)


def _banks(jobs: Columns) -> Sequence[str | None]:
    return jobs.bank or [None] * len(jobs)


def _changes(
    jobs: Columns, leaves: Sequence[Account], of_row: Sequence[Vector]
) -> Iterator[_Change]:
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
    """What needs no time: jobs, waits, and what preemption cost."""
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
