"""The tree of accounts: usage booked from a leaf to the root, shares given from the root to the leaves.

Law: the usage of an account is that of all below it; it is active while a job below it waits or holds something; and
its share is a part of its parent's, by weight among its active siblings (or among all configured ones).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from fluxsched.errors import InvalidValue
from fluxsched.sched.accounts.measure import Measure, Vector
from fluxsched.sched.accounts.signal import Decay, Signal, UsageMeter

ACCOUNTS_MAX = 65_536
"""Accounts of one tree."""

DEPTH_MAX = 8
"""Levels below the root."""


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
        """Names from below the root down to here."""
        return () if self.parent is None else (*self.parent.path, self.name)

    def up(self) -> Iterator[Account]:
        """This account and those above it, the root last."""
        at: Account | None = self
        while at is not None:
            yield at
            at = at.parent

    def walk(self) -> Iterator[Account]:
        """This account and all below it."""
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
        """The account at a path from below the root, made if need be. Raises InvalidValue naming the limit."""
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
        """So many more (or fewer, below 0) jobs of this leaf wait unheld or hold something."""
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
        """A job begins to hold (sign 1) or frees (-1) amounts at `now_s`; `firm` if it cannot be preempted."""
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
        """All usable targets, and what is held on others, have changed."""
        scale = self.advance(now_s)
        self.measure.set_capacity(capacity)
        if self.measure.dominant:  # what is held counts by its part of the capacity
            for account in self.root.walk():
                account.all_jobs.set_usage(self.measure.usage(account.all_jobs.held), scale)
                account.firm.set_usage(self.measure.usage(account.firm.held), scale)

    # ---- questions

    def share(self, account: Account) -> float:
        """The account's part of everything, between 0 and 1."""
        share = 1.0
        at = account
        while at.parent is not None:
            share *= at.weight / self._weights_beside(at)
            at = at.parent
        return share

    def fair_usage(self, account: Account) -> float:
        """Its share of the capacity, in units of weight (S in the formulas)."""
        return self.share(account) * self.measure.total

    def _weights_beside(self, account: Account) -> float:
        """Sum of the weights of those who share with this account, itself included."""
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
        """The signals of all accounts that are above nothing, to be kept: path -> (signal, flow of firm usage)."""
        scale = self.advance(now_s)
        found = {
            account.path: (account.all_jobs.level(scale), account.firm.level(scale)) for account in self.root.walk()
        }
        return {path: levels for path, levels in found.items() if any(levels)}

    def restore(self, levels: Mapping[tuple[str, ...], tuple[float, float]], saved_s: float, now_s: float) -> None:
        """Set signals as they were at `saved_s`, brought up to `now_s` over what is used now."""
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
