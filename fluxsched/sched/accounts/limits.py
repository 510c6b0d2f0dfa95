"""What an account may have at once: a cap on firm usage, a budget for what preemptible jobs take beyond the share.

Firm is a job that can never be preempted. Law: what a limit says depends on time only by signals that fall, so that the
time at which a blocked job may start by itself is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, log2
from types import MappingProxyType
from typing import Final

from fluxsched.errors import InvalidValue
from fluxsched.sched.accounts.tree import Account, Accounts

CAP = "cap"
BUDGET = "budget"

MINUTE_S: Final = 60.0
"""Budgets are in resource minutes."""

SLACK: Final = 1e-9
"""Relative: sums of weights and shares are rounded, and what is just at a bound is not above it."""

NOTHING_KEPT: Final[Mapping[Account, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a job may not start: `used` and what it `asks` are more than the `bound` of `limit` in `account`.

    In units of weight for a cap, resource minutes for a budget. `until_s` is when time alone lifts it, at the earliest.
    """

    limit: str
    account: tuple[str, ...]
    used: float
    asks: float
    bound: float
    until_s: float = inf


class AccountLimits:
    """Caps as factors of the share (accounts without one of their own have `cap`), and budgets of users in minutes."""

    def __init__(self, accounts: Accounts, cap: float | None = None, budget: float | None = None) -> None:
        for name, value in ((CAP, cap), (BUDGET, budget)):
            _check(name, value)
        self._accounts = accounts
        self._cap = cap
        self._caps: dict[Account, float] = {}
        self.budget = budget
        self._charged: dict[str, float] = {}

    def set_cap(self, account: Account, cap: float | None) -> None:
        """A cap of its own; None: that of all. Raises InvalidValue."""
        _check(CAP, cap)
        if cap is None:
            self._caps.pop(account, None)
        else:
            self._caps[account] = cap

    @property
    def any(self) -> bool:
        """Whether anything is limited."""
        return self.budget is not None or self._cap is not None or bool(self._caps)

    # ---- cap

    def cap_of(self, account: Account) -> float | None:
        """Its cap as a factor of its share; None: no limit."""
        return self._caps.get(account, self._cap) if account.parent is not None else None

    def over_cap(
        self, account: Account, usage: float, now_s: float, kept: Mapping[Account, float] = NOTHING_KEPT
    ) -> Blocked | None:
        """The first account, from the leaf up, in which a firm job of this usage would be over the cap.

        `kept` is usage that firm jobs are about to have, for which others are going; it counts like theirs.
        """
        if self._cap is None and not self._caps:
            return None
        scale = self._accounts.advance(now_s)
        for at in account.up():
            cap = self.cap_of(at)
            if cap is None:
                continue
            bound = cap * self._accounts.fair_usage(at)
            most = bound * (1 + SLACK)
            held, flow = at.firm.usage + kept.get(at, 0.0), at.firm.level(scale)
            if held + usage > most:
                return Blocked(CAP, at.path, held, usage, bound)
            if flow > most:
                return Blocked(CAP, at.path, flow, usage, bound, self._falls_to(at, max(bound, held)))
        return None

    def _falls_to(self, account: Account, level: float) -> float:
        """When the flow of firm usage will have fallen to a level, if that is above the usage."""
        decay = self._accounts.decay
        if level <= account.firm.usage:
            return inf
        return decay.origin_s - decay.half_life_s * log2((level - account.firm.usage) / account.firm.excess)

    # ---- budget

    def charge(self, account: Account, usage: float, minutes: float, used: float | None = None) -> float:
        """What a preemptible job costs that starts now and is safe for so long: its usage beyond the share, by time.

        `used` is what its account uses without it; None: what it uses now.
        """
        if not minutes:
            return 0.0
        beyond = (account.all_jobs.usage if used is None else used) + usage - self._accounts.fair_usage(account)
        return minutes * min(usage, max(0.0, beyond))

    def left(self, user: str) -> float:
        """Resource minutes that a user has left; inf without a budget."""
        return inf if self.budget is None else self.budget - self._charged.get(user, 0.0)

    def over_budget(self, account: Account, user: str, usage: float, minutes: float) -> Blocked | None:
        """The budget that does not suffice for a preemptible job to start now."""
        if self.budget is None:
            return None
        charge, charged = self.charge(account, usage, minutes), self._charged.get(user, 0.0)
        if charge and charged + charge > self.budget * (1 + SLACK):
            return Blocked(BUDGET, account.path, charged, charge, self.budget)
        return None

    def pay(self, user: str, charge: float) -> None:
        """A job starts; what is freed at its end is `-charge`."""
        if charged := self._charged.pop(user, 0.0) + charge:
            self._charged[user] = charged


def _check(name: str, value: float | None) -> None:
    if value is not None and not (isfinite(value) and value >= 0):
        raise InvalidValue(f"{name} {value!r} must be a number of at least 0")
