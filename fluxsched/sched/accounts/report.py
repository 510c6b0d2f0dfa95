"""Accounts as values for people and programs: what each uses, what its share is, and what it may still have.

Law: reads only, in the order in which accounts were made, so that a report in parts leaves none out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fluxsched.sched.accounts.limits import AccountLimits
from fluxsched.sched.accounts.settings import FairSettings
from fluxsched.sched.accounts.tree import Account, Accounts

ROWS_MAX: Final = 500
"""In one part of a report, which takes a few milliseconds."""


class AccountRow(NamedTuple):
    """One account. `level` is its signal; `firm_usage` and `firm_level` are of the jobs that cannot be preempted.

    Usage, `fair_usage` (S in the formulas) and `cap_usage`, the most that firm jobs may use, are in units of weight;
    `budget_left_min`, of users only, in resource minutes; None means no limit. `held` are amounts by resource. Jobs are
    counted with all below: those that wait and are not on hold, those that hold something, and those that were
    preempted since the scheduler started.
    """

    path: tuple[str, ...]
    is_user: bool
    is_active: bool
    weight: float
    share: float
    fair_usage: float
    usage: float
    level: float
    firm_usage: float
    firm_level: float
    cap_usage: float | None
    budget_left_min: float | None
    held: dict[str, int]
    waiting: int
    running: int
    preempted: int


class AccountsReport(NamedTuple):
    """A part of the accounts; the next begins at `next_start`, None at the end. `capacity` is in units of weight."""

    settings: FairSettings
    capacity: float
    rows: list[AccountRow]
    next_start: int | None


class Counts(NamedTuple):
    """Jobs by the accounts that they are charged to."""

    waiting: Mapping[Account, int]
    running: Mapping[Account, int]
    preempted: Mapping[Account, int]


def report(
    tree: Accounts,
    limits: AccountLimits,
    settings: FairSettings,
    counts: Counts,
    now_s: float,
    start: int = 0,
    limit: int = ROWS_MAX,
) -> AccountsReport:
    """The accounts from `start` on, at most `limit` of them."""
    scale = tree.advance(now_s)
    accounts = tree.made[start : start + limit]
    rows = [_row(tree, limits, settings, counts, account, scale) for account in accounts]
    end = start + limit
    return AccountsReport(settings, tree.measure.total, rows, end if end < len(tree.made) else None)


def _row(
    tree: Accounts, limits: AccountLimits, settings: FairSettings, counts: Counts, account: Account, scale: float
) -> AccountRow:
    waiting, running, preempted = _counted(account, counts)
    share, cap = tree.share(account), limits.cap_of(account)
    fair_usage, path = share * tree.measure.total, account.path
    is_user = not settings.is_bank(path)
    left_min = limits.left(account.name) if is_user and limits.budget is not None else None
    held = {name: amount for name, amount in zip(tree.measure.resources, account.all_jobs.held, strict=True) if amount}
    return AccountRow(
        path,
        is_user,
        account.active > 0,
        account.weight,
        share,
        fair_usage,
        account.all_jobs.usage,
        max(account.all_jobs.level(scale), 0.0),  # sums of floats may end just below
        account.firm.usage,
        account.firm.level(scale),
        None if cap is None else cap * fair_usage,
        left_min,
        held,
        waiting,
        running,
        preempted,
    )


def _counted(account: Account, counts: Counts) -> tuple[int, int, int]:
    waiting = running = preempted = 0
    for at in account.walk():
        waiting += counts.waiting.get(at, 0)
        running += counts.running.get(at, 0)
        preempted += counts.preempted.get(at, 0)
    return waiting, running, preempted
