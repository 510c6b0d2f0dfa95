"""What a site settles about fair shares: the values of a `[fair]` table, independent of where they are read.

Law: a value of these classes is complete and checked, so that a scheduler that has one cannot fail for it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Final

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.accounts.measure import RESOURCES_MAX
from fluxsched.sched.accounts.signal import HALF_LIFE_MIN_S, Signal
from fluxsched.sched.accounts.tree import ACCOUNTS_MAX, DEPTH_MAX

DAY_S: Final = 86_400.0

RATE_MAX: Final = 65_536
"""Jobs that may be preempted in RATE_WINDOW_S: each begin is remembered for that long."""

RATE_WINDOW_S: Final = 60.0

WEIGHTS: Final = MappingProxyType({"core": 1.0, "gpu": 10.0, "memory": 0.25 / 2**30})
"""Of one unit of each resource; memory is counted in bytes. Others weigh 0."""


@dataclass(frozen=True, slots=True)
class Bank:
    """One configured account: `parent` None is the root, `users` are weights of its users by name (others weigh 1)."""

    weight: float = 1.0
    parent: str | None = None
    cap: float | None = None
    users: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FairSettings:
    """`banks` None: any bank counts and weighs 1; else only these are known.

    `cap` is a factor of the share, `budget_min` resource minutes a user (in units of weight), None for no limit; `rate`
    is how many jobs may be preempted in any RATE_WINDOW_S. Raises InvalidValue, LimitExceeded naming the part.
    """

    signal: Signal = Signal.DECAYED_USAGE
    half_life_s: float = 7 * DAY_S
    dominant: bool = False
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    shares_of_all: bool = False
    cap: float | None = None
    budget_min: float | None = None
    rate: int = 60
    banks: Mapping[str, Bank] | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.half_life_s) and self.half_life_s >= HALF_LIFE_MIN_S):
            raise InvalidValue(f"half-life {self.half_life_s!r} s must be a number of at least {HALF_LIFE_MIN_S:g} s")
        if len(self.weights) > RESOURCES_MAX:
            raise LimitExceeded(f"weights: {len(self.weights)} resources, the limit is {RESOURCES_MAX}: remove some")
        for name, weight in self.weights.items():
            _check_at_least_0(f"weights.{name}", weight)
        _check_at_least_0("cap", self.cap)
        _check_at_least_0("budget", self.budget_min)
        if not 0 <= self.rate <= RATE_MAX:
            raise InvalidValue(f"rate {self.rate} is not within 0-{RATE_MAX}")
        self._check_banks(self.banks or {})

    def _check_banks(self, banks: Mapping[str, Bank]) -> None:
        total = len(banks) + sum(len(bank.users) for bank in banks.values())
        if total > ACCOUNTS_MAX:
            raise LimitExceeded(f"banks: {total} banks and users, the limit is {ACCOUNTS_MAX} accounts: remove some")
        for name, bank in banks.items():
            _check_above_0(f"banks.{name}.weight", bank.weight)
            _check_at_least_0(f"banks.{name}.cap", bank.cap)
            for user, weight in bank.users.items():
                _check_above_0(f"banks.{name}.users.{user}", weight)
            if bank.parent is not None and bank.parent not in banks:
                raise InvalidValue(f"banks.{name}.parent: no bank {bank.parent!r}; there are {', '.join(banks)}")
        for name in banks:
            self.path(name)

    def path(self, bank: str) -> tuple[str, ...]:
        """The bank's names from below the root down to it; one that is not configured is below the root.

        Raises InvalidValue for parents in a circle, and for one that is deeper than leaves place for its users.
        """
        found: list[str] = []
        at: str | None = bank
        while at is not None:
            if at in found:
                circle = " -> ".join([*found[found.index(at) :], at])
                raise InvalidValue(f"banks.{bank}.parent: parents in a circle: {circle}")
            found.append(at)
            if len(found) >= DEPTH_MAX:  # users are one level below
                raise InvalidValue(f"banks.{bank} is {len(found)} levels deep, the limit is {DEPTH_MAX - 1}")
            known = (self.banks or {}).get(at)
            at = None if known is None else known.parent
        return tuple(reversed(found))


def _check_above_0(path: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise InvalidValue(f"{path}: {value!r} must be a number above 0")


def _check_at_least_0(path: str, value: float | None) -> None:
    if value is not None and not (isfinite(value) and value >= 0):
        raise InvalidValue(f"{path}: {value!r} must be a number of at least 0")
