"""What a site settles about fair shares: the values of a `[fair]` table, independent of where they are read.

Law: a value of these classes is complete and checked, so that a scheduler that has one cannot fail for it later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Final, TypeAlias

from fluxsched.core.jsontext import shown
from fluxsched.core.sharing import check_name
from fluxsched.core.text import printable, some_of
from fluxsched.core.tomltext import path_text
from fluxsched.errors import InvalidParts, InvalidValue, LimitExceeded
from fluxsched.sched.accounts.measure import RESOURCES_MAX
from fluxsched.sched.accounts.signal import HALF_LIFE_MIN_S, Signal
from fluxsched.sched.accounts.tree import ACCOUNTS_MAX, DEPTH_MAX

DAY_S: Final = 86_400.0

SIGNALS: Final = tuple([signal.value for signal in Signal])
WEIGHTED, DOMINANT = "weighted", "dominant"
USAGES: Final = (WEIGHTED, DOMINANT)
ACTIVE, ALL = "active", "all"
SHARES: Final = (ACTIVE, ALL)
"""What people write for `signal`, `usage` and `shares`, in a file or as options."""

RATE_MAX: Final = 65_536
"""Jobs that may be preempted in RATE_WINDOW_S: each begin is remembered for that long."""

RATE_WINDOW_S: Final = 60.0

FAULTS_TOLD: Final = 10
"""How many of its faults the text of an error names; all of them are in `InvalidParts.faults`."""

Fault: TypeAlias = tuple[tuple[str, ...], str]
"""The path of keys to what is wrong, and what is wrong with it."""

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
    is how many jobs may be preempted in any RATE_WINDOW_S. Raises InvalidParts with all that is wrong, LimitExceeded.
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
        accounts = sum([1 + len(bank.users) for bank in (self.banks or {}).values()])
        if accounts > ACCOUNTS_MAX:
            raise LimitExceeded(f"banks: {accounts} banks and users, the limit is {ACCOUNTS_MAX} accounts: remove some")
        if len(self.weights) > RESOURCES_MAX:
            raise LimitExceeded(f"weights: {len(self.weights)} resources, the limit is {RESOURCES_MAX}: remove some")
        faults = [*self._faults(), *_bank_faults(self.banks or {})]
        if faults:
            raise InvalidParts("; ".join([f"{path_text(path)}: {text}" for path, text in faults[:FAULTS_TOLD]]), faults)

    def _faults(self) -> Iterator[Fault]:
        if not (isfinite(self.half_life_s) and self.half_life_s >= HALF_LIFE_MIN_S):
            yield ("half-life",), f"{self.half_life_s:g} s is not a time of at least {HALF_LIFE_MIN_S:g} s"
        for name, weight in self.weights.items():
            yield from _at_least_0(("weights", name), weight)
        if not any(self.weights.values()):
            yield ("weights",), "all are 0: nothing would count; give one above 0"
        yield from _at_least_0(("cap",), self.cap)
        yield from _at_least_0(("budget",), self.budget_min)
        if not 0 <= self.rate <= RATE_MAX:
            yield ("rate",), f"{self.rate} is not within 0-{RATE_MAX}"

    def path(self, bank: str) -> tuple[str, ...]:
        """The bank's names from below the root down to it; one that is not configured is below the root."""
        found = [bank]
        known = self.banks or {}
        while bank in known:
            parent = known[bank].parent
            if parent is None:
                break
            found.append(parent)
            bank = parent
        return tuple(reversed(found))

    def is_bank(self, path: tuple[str, ...]) -> bool:
        """Whether the account at this path is a bank and not a user."""
        return len(path) == 1 or (path[-1] in (self.banks or {}) and self.path(path[-1]) == path)

    def account_path(self, bank: str, user: str) -> tuple[str, ...]:
        """The account of a user in a bank; one who is called like a bank below it is not taken for that bank."""
        known = (self.banks or {}).get(user)
        return (*self.path(bank), f"{user} (user)" if known is not None and known.parent == bank else user)


def _bank_faults(banks: Mapping[str, Bank]) -> Iterator[Fault]:
    for name, bank in banks.items():
        at = ("banks", name)
        yield from _name_faults(at, name)
        yield from _above_0((*at, "weight"), bank.weight)
        yield from _at_least_0((*at, "cap"), bank.cap)
        for user, weight in bank.users.items():
            yield from _name_faults((*at, "users", user), user)
            yield from _above_0((*at, "users", user), weight)
        if bank.parent is not None and bank.parent not in banks:
            yield (*at, "parent"), f"there is no bank {shown(bank.parent)}; there are {some_of(list(banks))}"
    yield from _depth_faults(banks)


def _depth_faults(banks: Mapping[str, Bank]) -> Iterator[Fault]:
    """Circles, each once, and the uppermost banks that leave no level for users, who are one below."""
    depths: dict[str, int] = {}
    for name in banks:
        chain: dict[str, None] = {}
        at: str | None = name
        while at is not None and at in banks and at not in depths and at not in chain:
            chain[at] = None
            at = banks[at].parent
        if at is not None and at in chain:
            circle = list(chain)[list(chain).index(at) :]
            more = ["..."] if len(circle) > DEPTH_MAX else []
            names = " -> ".join([*map(printable, circle[:DEPTH_MAX]), *more, printable(at)])
            yield ("banks", at, "parent"), f"parents in a circle, {names}: give one of them another parent, or none"
            depths.update(dict.fromkeys(chain, 0))
            continue
        depth = 0 if at is None else depths.get(at, 0)
        for bank in reversed(chain):
            depth += 1
            depths[bank] = depth
            if depth == DEPTH_MAX:
                yield ("banks", bank), f"is {depth} levels deep, the limit is {DEPTH_MAX - 1}: give it another parent"


def _name_faults(path: tuple[str, ...], name: str) -> Iterator[Fault]:
    try:
        check_name(name)
    except InvalidValue as fault:
        yield path, str(fault)


def _above_0(path: tuple[str, ...], value: float) -> Iterator[Fault]:
    if not (isfinite(value) and value > 0):
        yield path, f"{value:g} is not a number above 0"


def _at_least_0(path: tuple[str, ...], value: float | None) -> Iterator[Fault]:
    if value is not None and not (isfinite(value) and value >= 0):
        yield path, f"{value:g} is not a number of at least 0"
