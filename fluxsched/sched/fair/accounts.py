"""The tree of accounts: settings of a site, usage from a leaf to the root, its decay by half-lives, shares from the
root to the leaves, limits.

Law: the usage of an account is that of all below it; it is active while a job below it waits or holds something; and
its share is a part of its parent's, by weight among its active siblings (or among all configured ones). Amounts are
whole numbers in a fixed order of resources, so that what is added can be taken away without a remainder. Usage is
remembered by two signals that fall by half in each half-life h:

    flow(t) = U + max(F - U, 0) * 0.5 ** (dt / h)
    decayed usage(t) = U + (D - U) * 0.5 ** (dt / h)

Between two changes of the usage U, either is `U + excess * scale(t)` with one scale for all accounts. An account may
have a cap on firm usage, of jobs that can never be preempted, and a budget for what preemptible jobs take beyond the
share. A value of the settings is complete and checked, so that a scheduler that has one cannot fail for it later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import exp2, inf, isfinite, log2
from types import MappingProxyType
from typing import Final, TypeAlias

from fluxsched.core.jobfields import check_name
from fluxsched.core.text import path_text, printable, shown, there_are
from fluxsched.errors import InvalidParts, InvalidValue, LimitExceeded

ACCOUNTS_MAX = 65_536
"""Maximum number of accounts in a tree."""

DEPTH_MAX = 8
"""Maximum number of levels below the root."""


class Account:
    """One node; `all_jobs` and `firm` meter what jobs hold: of all, and of those that cannot be preempted.

    `guarantee` and `maximum` are amounts, or None.
    """

    __slots__ = (
        "active", "all_jobs", "children", "configured", "depth", "firm", "guarantee", "maximum", "name", "parent",
        "planned_usage", "weight", "weights_active", "weights_configured",
    )  # fmt: skip

    def __init__(self, name: str, parent: Account | None, resources: int, signal: Signal) -> None:
        self.name = name
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.weight = 1.0
        self.configured = False
        self.children: dict[str, Account] = {}
        self.all_jobs = UsageMeter(resources, signal)
        self.firm = UsageMeter(resources, Signal.FLOW)
        self.planned_usage = 0.0  # of reservations, within a pass
        self.guarantee: Vector | None = None
        self.maximum: Vector | None = None
        self.active = 0  # jobs of it that wait unheld or hold something, and active children
        self.weights_active: dict[float, int] = {}  # weight -> active children of it: sums do not drift
        self.weights_configured: dict[float, int] = {}  # the same of configured ones

    @property
    def path(self) -> tuple[str, ...]:
        """Return the names from below the root down to this account."""
        return () if self.parent is None else (*self.parent.path, self.name)

    def up(self) -> Iterator[Account]:
        """Yield this account and its ancestors, the root last."""
        at: Account | None = self
        while at is not None:
            yield at
            at = at.parent

    def walk(self) -> Iterator[Account]:
        """Yield this account and all its descendants."""
        below = [self]
        while below:
            account = below.pop()
            yield account
            below += account.children.values()


class Accounts:
    """The tree. Times are wall time in seconds; `shares_of_all` counts configured siblings whether active or not."""

    def __init__(
        self, measure: Measure, signal: Signal, half_life_s: float, now_s: float, shares_of_all: bool = False
    ) -> None:
        self.measure = measure
        self.signal = signal
        self.decay = Decay(half_life_s, now_s)
        self.bookings = 0  # how often something was booked: signals that were kept before are no longer these
        self._shares_of_all = shares_of_all
        self.made: list[Account] = []
        """All accounts below the root, in the order in which they were made."""
        self.root = Account("", None, len(measure.resources), signal)
        self.root.configured = True

    # ---- nodes

    def account(self, path: Sequence[str]) -> Account:
        """Return the account at a path from below the root, made if need be. Raises InvalidValue naming the limit."""
        if len(path) > DEPTH_MAX:
            raise InvalidValue(f"account {'/'.join(path)!r} is {len(path)} levels deep, the limit is {DEPTH_MAX}")
        at = self.root
        for name in path:
            child = at.children.get(name)
            if child is None:
                if len(self.made) >= ACCOUNTS_MAX:
                    raise InvalidValue(f"no account {name!r}: there are {ACCOUNTS_MAX}, which is the limit")
                child = Account(name, at, len(self.measure.resources), self.signal)
                at.children[name] = child
                self.made.append(child)
            at = child
        return at

    def configure(self, account: Account, weight: float) -> None:
        """Give an account a weight, and let it count where all configured siblings share. Raises InvalidValue."""
        if not (isfinite(weight) and weight > 0):
            raise InvalidValue(f"weight {weight!r} of account {'/'.join(account.path)!r} must be a number above 0")
        parent = account.parent
        assert parent is not None, "the root has no weight"
        if account.active:
            _count_weight(parent.weights_active, account.weight, -1)
            _count_weight(parent.weights_active, weight, 1)
        if account.configured:
            _count_weight(parent.weights_configured, account.weight, -1)
        _count_weight(parent.weights_configured, weight, 1)
        account.weight = weight
        account.configured = True

    # ---- events

    def advance(self, now_s: float) -> float:
        """Let time pass until `now_s` (wall time, seconds); the scale of falling parts then."""
        factor = self.decay.advance(now_s)
        if factor != 1.0:
            for account in self.root.walk():
                account.all_jobs.excess *= factor
                account.firm.excess *= factor
        return self.decay.scale

    def activate(self, account: Account, jobs: int) -> None:
        """Count `jobs` more (or fewer, below 0) active jobs of this leaf: pending without a hold, or holding
        something.
        """
        at, change = account, jobs
        while True:
            before = at.active
            at.active = before + change
            assert at.active >= 0, f"account {'/'.join(account.path)} has {at.active} active jobs"
            if at.parent is None or (before == 0) == (at.active == 0):
                return
            change = 1 if before == 0 else -1
            _count_weight(at.parent.weights_active, at.weight, change)
            at = at.parent

    def book(self, account: Account, amounts: Vector, sign: int, firm: bool, now_s: float) -> None:
        """Book amounts that a job begins to hold (sign 1) or frees (-1) at `now_s`; `firm` if it cannot be
        preempted.
        """
        scale, measure = self.advance(now_s), self.measure
        changes = [(resource, sign * amount) for resource, amount in enumerate(amounts) if amount]
        units, unit = sign * measure.units(amounts), measure.unit
        self.bookings += 1
        at: Account | None = account
        while at is not None:
            meters = (at.all_jobs, at.firm) if firm and at.parent is not None else (at.all_jobs,)  # the root has no cap
            for meter in meters:
                held = meter.held
                for resource, change in changes:
                    held[resource] += change
                meter.units += units
                meter.set_usage(measure.usage(held) if measure.dominant else meter.units * unit, scale)
            at = at.parent

    def set_capacity(self, capacity: Vector, now_s: float) -> None:
        """Set the capacity: all usable targets, and resources held on others."""
        scale = self.advance(now_s)
        self.measure.set_capacity(capacity)
        if self.measure.dominant:  # what is held counts by its part of the capacity
            for account in self.root.walk():
                account.all_jobs.set_usage(self.measure.usage(account.all_jobs.held), scale)
                account.firm.set_usage(self.measure.usage(account.firm.held), scale)

    # ---- questions

    def share(self, account: Account) -> float:
        """Return the account's part of everything, between 0 and 1."""
        share = 1.0
        at = account
        while at.parent is not None:
            share *= at.weight / self._weights_beside(at)
            at = at.parent
        return share

    def fair_usage(self, account: Account) -> float:
        """Return the account's share of the capacity, in units of weight (S in the formulas)."""
        return self.share(account) * self.measure.total

    def _weights_beside(self, account: Account) -> float:
        """Return the sum of the weights of the account and its siblings."""
        parent = account.parent
        assert parent is not None
        if self._shares_of_all:
            weights, is_in = parent.weights_configured, account.configured
        else:
            weights, is_in = parent.weights_active, account.active > 0
        total = 0.0
        for weight, count in weights.items():
            total += weight * count
        return total if is_in else total + account.weight

    # ---- state

    def levels(self, now_s: float) -> dict[tuple[str, ...], tuple[float, float]]:
        """Return the signals of all accounts that are above nothing, to be kept: path -> (signal, flow of firm
        usage).
        """
        scale = self.advance(now_s)
        found = {
            account.path: (account.all_jobs.level(scale), account.firm.level(scale)) for account in self.root.walk()
        }
        return {path: levels for path, levels in found.items() if any(levels)}

    def restore(self, levels: Mapping[tuple[str, ...], tuple[float, float]], saved_s: float, now_s: float) -> None:
        """Set signals as they were at `saved_s`, decayed to `now_s` towards the present usage."""
        scale = self.advance(now_s)
        fallen = 0.5 ** (max(now_s - saved_s, 0.0) / self.decay.half_life_s)
        for path, (level, firm_level) in levels.items():
            account = self.account(path)
            for meter, saved in ((account.all_jobs, level), (account.firm, firm_level)):
                brought = meter.usage + (saved - meter.usage) * fallen
                meter.set_level(brought, meter.usage, scale)


def _count_weight(weights: dict[float, int], weight: float, change: int) -> None:
    count = weights.get(weight, 0) + change
    if count:
        weights[weight] = count
    else:
        del weights[weight]


# ---- signal

HALF_LIFE_MIN_S = 1.0
"""A shorter half-life remembers nothing between two passes."""

REBASE_HALF_LIVES = 128.0
"""Number of half-lives after which excesses are rescaled: far below the limit of a float's exponent."""


class Signal(Enum):
    """Signal that orders accounts, beside their current usage."""

    FLOW = "flow"
    DECAYED_USAGE = "decayed-usage"


class Decay:
    """The scale of falling parts over time; 1.0 at its origin, and never rising again."""

    __slots__ = ("_now_s", "half_life_s", "origin_s", "scale")

    def __init__(self, half_life_s: float, now_s: float) -> None:
        if not (isfinite(half_life_s) and half_life_s >= HALF_LIFE_MIN_S):
            raise InvalidValue(f"half-life of {half_life_s!r} s must be a number of at least {HALF_LIFE_MIN_S:g} s")
        self.half_life_s = half_life_s
        self.origin_s = self._now_s = now_s
        self.scale = 1.0

    def advance(self, now_s: float) -> float:
        """Go on to `now_s`; a clock that steps back leaves time where it was.

        Returns by what all excesses must be multiplied: 1.0, unless the origin moved.
        """
        if now_s <= self._now_s:
            return 1.0
        self._now_s = now_s
        age = (now_s - self.origin_s) / self.half_life_s
        if age <= REBASE_HALF_LIVES:
            self.scale = exp2(-age)
            return 1.0
        self.origin_s = now_s
        self.scale = 1.0
        return exp2(-age)


class UsageMeter:
    """Amounts held, their usage U (also in whole units), and the falling part of one signal over it."""

    __slots__ = ("excess", "held", "is_flow", "units", "usage")

    def __init__(self, resources: int, signal: Signal) -> None:
        self.held = [0] * resources
        self.units = 0
        self.usage = 0.0
        self.excess = 0.0
        self.is_flow = signal is Signal.FLOW

    def level(self, scale: float) -> float:
        """Return the signal at this scale."""
        return self.usage + self.excess * scale

    def set_usage(self, usage: float, scale: float) -> None:
        """Change the usage: the signal itself does not jump, but a flow is never below the usage."""
        excess = self.excess + (self.usage - usage) / scale
        self.excess = 0.0 if excess < 0.0 and self.is_flow else excess
        self.usage = usage

    def set_level(self, level: float, usage: float, scale: float) -> None:
        """Put usage and signal at values of this moment."""
        self.usage, self.excess = level, 0.0
        self.set_usage(usage, scale)


# ---- measure

RESOURCES_MAX = 32
"""Kinds of resources that count in one tree."""

Vector = tuple[int, ...]
"""Amount of each resource, in the order of the tree's resources."""


class Measure:
    """Measure that maps amounts to one number: their weighted sum, or the dominant share of the capacity.

    `weights` maps a resource's name to the weight of one unit; resources without a weight do not count.
    """

    __slots__ = ("_unit_weights", "_weights", "capacity", "dominant", "resources", "total", "unit")

    def __init__(self, weights: Mapping[str, float], dominant: bool = False) -> None:
        if len(weights) > RESOURCES_MAX:
            raise InvalidValue(f"{len(weights)} resources have weights, the limit is {RESOURCES_MAX}: remove some")
        for name, weight in weights.items():
            if not (isfinite(weight) and weight >= 0):
                raise InvalidValue(f"weight {weight!r} of resource {name!r} must be a number of at least 0")
        self.resources = tuple(weights)
        self._weights = tuple(weights.values())
        ratios = [float(weight).as_integer_ratio() for weight in self._weights]
        parts = max([denominator for _, denominator in ratios], default=1)  # all are powers of 2
        self._unit_weights = tuple([numerator * (parts // denominator) for numerator, denominator in ratios])
        self.unit = 1.0 / parts
        self.dominant = dominant
        self.capacity: Vector = (0,) * len(weights)
        self.total = 0.0

    @property
    def unit_weights(self) -> dict[str, int]:
        """The weights in `unit`s, which are whole numbers."""
        return dict(zip(self.resources, self._unit_weights, strict=True))

    def amounts(self, named: Mapping[str, int]) -> Vector:
        """Return the amounts that count, by resource name."""
        return tuple([named.get(name, 0) for name in self.resources])

    def set_capacity(self, capacity: Vector) -> None:
        """Set the capacity; `total` is its weighted sum (C in the formulas)."""
        self.capacity = capacity
        self.total = self.weighted(capacity)

    def weighted(self, amounts: Sequence[int]) -> float:
        """Sum of weight times amount."""
        total = 0.0
        for weight, amount in zip(self._weights, amounts, strict=True):
            total += weight * amount
        return total

    def usage(self, amounts: Sequence[int]) -> float:
        """Return the usage of these amounts: their weighted sum, or `total` times the dominant share."""
        if not self.dominant:
            return self.weighted(amounts)
        largest = 0.0
        for amount, capacity in zip(amounts, self.capacity, strict=True):
            if amount:
                largest = max(largest, amount / capacity if capacity else 1.0)
        return self.total * largest

    def units(self, amounts: Sequence[int]) -> int:
        """Return the weighted sum in whole `unit`s, of which every weight is a multiple: no order of changes leaves a
        rest.
        """
        total = 0
        for weight, amount in zip(self._unit_weights, amounts, strict=True):
            total += weight * amount
        return total


# ---- settings

DAY_S: Final = 86_400.0

SIGNALS: Final = tuple([signal.value for signal in Signal])
WEIGHTED, DOMINANT = "weighted", "dominant"
USAGES: Final = (WEIGHTED, DOMINANT)
ACTIVE, ALL = "active", "all"
SHARES: Final = (ACTIVE, ALL)
"""Values of `signal`, `usage` and `shares`, in a file or as options."""

RATE_MAX: Final = 65_536
"""Jobs that may be preempted in RATE_WINDOW_S: each begin is remembered for that long."""

RATE_WINDOW_S: Final = 60.0

FAULTS_TOLD: Final = 10
"""Number of faults that the text of an error names; all of them are in `InvalidParts.faults`."""

Fault: TypeAlias = tuple[tuple[str, ...], str]
"""Fault as its path of keys and a text."""

WEIGHTS: Final = MappingProxyType({"core": 1.0, "gpu": 10.0, "memory": 0.25 / 2**30})
"""Weight of one unit of each resource; memory is counted in bytes. Others weigh 0."""


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
        """Return the bank's names from below the root down to it; one that is not configured is below the root."""
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
        """Return whether the account at this path is a bank and not a user."""
        return len(path) == 1 or (path[-1] in (self.banks or {}) and self.path(path[-1]) == path)

    def account_path(self, bank: str, user: str) -> tuple[str, ...]:
        """Return the path of a user in a bank; a user with the name of a bank below it is not taken for that bank."""
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
            yield (*at, "parent"), f"there is no bank {shown(bank.parent)}; {there_are(list(banks))}"
    yield from _depth_faults(banks)


def _depth_faults(banks: Mapping[str, Bank]) -> Iterator[Fault]:
    """Yield circles, each once, and the uppermost banks that leave no level for users, who are one below."""
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


# ---- limits

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
        """Set a cap of its own; None: that of all. Raises InvalidValue."""
        _check(CAP, cap)
        if cap is None:
            self._caps.pop(account, None)
        else:
            self._caps[account] = cap

    @property
    def any(self) -> bool:
        """Return whether anything is limited."""
        return self.budget is not None or self._cap is not None or bool(self._caps)

    # ---- cap

    def cap_of(self, account: Account) -> float | None:
        """Return the account's cap as a factor of its share; None: no limit."""
        return self._caps.get(account, self._cap) if account.parent is not None else None

    def over_cap(
        self, account: Account, usage: float, now_s: float, kept: Mapping[Account, float] = NOTHING_KEPT
    ) -> Blocked | None:
        """Return the first account, from the leaf up, in which a firm job of this usage would be over the cap.

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
        """Return when the flow of firm usage will have fallen to a level; inf if the usage is no less than the
        level.
        """
        decay = self._accounts.decay
        if level <= account.firm.usage:
            return inf
        return decay.origin_s - decay.half_life_s * log2((level - account.firm.usage) / account.firm.excess)

    # ---- budget

    def charge(self, account: Account, usage: float, minutes: float, used: float | None = None) -> float:
        """Return the charge of a preemptible job that starts now and is safe for `minutes`: its usage beyond the share,
        by time.

        `used` is the usage of its account without the job; None: the current usage.
        """
        if not minutes:
            return 0.0
        beyond = (account.all_jobs.usage if used is None else used) + usage - self._accounts.fair_usage(account)
        return minutes * min(usage, max(0.0, beyond))

    def left(self, user: str) -> float:
        """Resource minutes that a user has left; inf without a budget."""
        return inf if self.budget is None else self.budget - self._charged.get(user, 0.0)

    def over_budget(self, account: Account, user: str, usage: float, minutes: float) -> Blocked | None:
        """Return the budget that does not suffice for a preemptible job to start now."""
        if self.budget is None:
            return None
        charge, charged = self.charge(account, usage, minutes), self._charged.get(user, 0.0)
        if charge and charged + charge > self.budget * (1 + SLACK):
            return Blocked(BUDGET, account.path, charged, charge, self.budget)
        return None

    def pay(self, user: str, charge: float) -> None:
        """Charge a user for the start of a job; the charge is returned at its end as `-charge`."""
        if charged := self._charged.pop(user, 0.0) + charge:
            self._charged[user] = charged


def _check(name: str, value: float | None) -> None:
    if value is not None and not (isfinite(value) and value >= 0):
        raise InvalidValue(f"{name} {value!r} must be a number of at least 0")
