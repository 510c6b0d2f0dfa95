"""Booking of usage in the accounts of one scheduler, over all its groups and queues, and reports of it.

Law: usage is booked in the step that grants, adopts or frees, so a tree of accounts says at any time what the ledger
says; and what is charged to a budget comes back when the job holds nothing any more. Amounts are whole numbers in the
smallest unit of their kind, in the order of the resources that have weights. A report lists accounts in the order in
which they were made, so that one in parts leaves none out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple, Protocol

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.sched.fair.accounts import MINUTE_S, Account, AccountLimits, Accounts, FairSettings, Measure, Vector
from fluxsched.sched.pool.placement import NO_TARGET, SHAPES_MAX, Block, Blocks, Holds, Shape

ROWS_MAX: Final = 500
"""Maximum number of rows in one part of a report, which takes a few milliseconds."""


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
    """Return the accounts from `start` on, at most `limit` of them."""
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


# ---- amounts


class AmountCounter:
    """Counts cores, GPUs and countables, each by its place among the resources; others are left out."""

    __slots__ = ("_core", "_gpu", "_kinds", "_size")

    def __init__(self, resources: Sequence[str]) -> None:
        self._size = len(resources)
        places = {name: at for at, name in enumerate(resources)}
        self._core = places.pop("core", -1)
        self._gpu = places.pop("gpu", -1)
        self._kinds = places

    def of_blocks(self, blocks: Iterable[Block]) -> Vector:
        """Return the amounts held in these blocks."""
        found = [0] * self._size
        core, gpu, kinds = self._core, self._gpu, self._kinds
        for at, word, cores, gpus, amounts in blocks:
            targets = word.bit_count()
            if core >= 0:
                found[core] += targets * cores.bit_count()
            if gpu >= 0 and gpus:
                found[gpu] += targets * gpus.bit_count()
            if amounts and kinds:
                self._add(found, amounts, 1 if at == NO_TARGET else targets)
        return tuple(found)

    def of_request(self, request: Request) -> Vector:
        """Return the least amounts of a request, over all its nodes; a whole node counts as what is asked of it."""
        found = [0] * self._size
        for part in request.each_part:
            nodes = part.least_nodes
            slots = nodes * part.slots.min
            if self._core >= 0:
                found[self._core] += slots * part.cores
            if self._gpu >= 0:
                found[self._gpu] += slots * part.gpus
            self._add(found, part.amounts, slots)
            self._add(found, part.node_amounts, nodes)
        self._add(found, request.shared, 1)
        return tuple(found)

    def of_targets(self, resources: ResourceSet, ranks: Idset) -> Vector:
        """Return all resources of these targets."""
        found = [0] * self._size
        for entry in resources.entries:
            targets = len(entry.ranks & ranks)
            if self._core >= 0:
                found[self._core] += targets * len(entry.children.cores)
            if self._gpu >= 0:
                found[self._gpu] += targets * len(entry.children.gpus)
            self._add(found, entry.children.amounts, targets)
        return tuple(found)

    def of_amounts(self, amounts: Amounts) -> Vector:
        """Countables that no target has."""
        found = [0] * self._size
        self._add(found, amounts, 1)
        return tuple(found)

    def _add(self, found: list[int], amounts: Amounts, times: int) -> None:
        for kind, amount in amounts:
            at = self._kinds.get(kind, -1)
            if at >= 0:
                found[at] += times * amount


def summed(vectors: Iterable[Vector], size: int) -> Vector:
    """Return the sum of all vectors."""
    found = [0] * size
    for vector in vectors:
        for at, amount in enumerate(vector):
            found[at] += amount
    return tuple(found)


# ---- the book of usage


class Charged(Holds, Protocol):
    """Holder of resources that is charged to an account."""

    @property
    def account(self) -> Account | None:
        """Return the account; None where no accounts are kept."""
        ...


class UsageBook:
    """`tree` and `limits` as `settings` has them. Times are wall time in seconds; `user_name` names users by their id.

    `running` and `waiting` count jobs by account that hold something, and that wait and are not on hold.
    """

    def __init__(self, settings: FairSettings, user_name: Callable[[int], str] = str) -> None:
        self.settings = settings
        measure = Measure(settings.weights, settings.dominant)
        self.tree = Accounts(measure, settings.signal, settings.half_life_s, 0.0, settings.shares_of_all)
        self.limits = AccountLimits(self.tree, settings.cap, settings.budget_min)
        self.amounts = AmountCounter(measure.resources)
        self.running: dict[Account, int] = {}
        self.waiting: dict[Account, int] = {}
        self._user_name = user_name
        self._known: dict[tuple[str | None, int], Account] = {}
        self._asked: dict[int, Vector] = {}  # by number of the shape
        self._usages: dict[int, float] = {}  # the same
        self._charges: dict[int, float] = {}  # what running jobs were charged, by id
        self._adopted: dict[int, _Adopted] = {}  # not charged yet
        self._touched: list[dict[Account, None]] = []
        self._usable: dict[int, int] = {}  # targets, word by word
        self._inside: Vector = measure.capacity  # what they have
        self._elsewhere: Vector = measure.capacity  # what is held on others
        self._configure(settings)

    def _configure(self, settings: FairSettings) -> None:
        for name, bank in (settings.banks or {}).items():
            path = settings.path(name)
            account = self.tree.account(path)
            self.tree.configure(account, bank.weight)
            self.limits.set_cap(account, bank.cap)
            for user, weight in bank.users.items():
                self.tree.configure(self.tree.account((*path, user)), weight)

    # ---- accounts

    def account_of(self, bank: str | None, userid: int) -> Account:
        """Return the account of a user in a bank, created if need be.

        Raise InvalidValue naming the limit that it would exceed.
        """
        account = self._known.get((bank, userid))
        if account is None:
            path = self.settings.account_path(bank or DEFAULT_BANK, self._user_name(userid))
            account = self._known[bank, userid] = self.tree.account(path)
        return account

    def known_account(self, bank: str | None, userid: int) -> Account | None:
        """Return the account of a user in a bank if it is known; none is created."""
        return self._known.get((bank, userid))

    def account_above(self, bank: str | None, userid: int) -> Account:
        """Return the account of a job that already runs and cannot be refused: the root if a limit is exceeded."""
        try:
            return self.account_of(bank, userid)
        except InvalidValue:
            return self.tree.root

    def follow(self) -> dict[Account, None]:
        """Return a table to which each account is added whose usage or line of pending jobs changes from now on.

        It is iterated, and the order of a set of accounts would depend on their addresses.
        """
        touched: dict[Account, None] = {}
        self._touched.append(touched)
        return touched

    def touch(self, account: Account) -> None:
        """Record that the keys of an account have changed, or the job that it offers."""
        for touched in self._touched:
            touched[account] = None

    def touch_all(self) -> None:
        """Record that the keys of all accounts have changed."""
        for account in self.tree.root.walk():
            self.touch(account)

    def report(self, preempted: Mapping[Account, int], now_s: float, start: int = 0) -> AccountsReport:
        """Return a report of the accounts from the `start`th on; `preempted` counts preempted jobs by account."""
        counts = Counts(self.waiting, self.running, preempted)
        return report(self.tree, self.limits, self.settings, counts, now_s, start)

    # ---- jobs that wait

    def waits(self, account: Account) -> None:
        """Count one more pending job of the account that is not on hold."""
        self.waiting[account] = self.waiting.get(account, 0) + 1
        self.tree.activate(account, 1)

    def leaves(self, account: Account) -> None:
        """Count one less pending job of the account that is not on hold."""
        self.waiting[account] -= 1
        self.tree.activate(account, -1)

    def usage(self, shape: Shape) -> float:
        """Return the least usage of a pending job of this shape, in units of weight (u in the formulas)."""
        usage = self._usages.get(shape.number, -1.0)
        if usage < 0.0:
            if len(self._usages) >= SHAPES_MAX:
                self._usages.clear()
            usage = self.tree.measure.usage(self.amounts.of_request(shape.request))
            self._usages[shape.number] = usage
        return usage

    # ---- jobs that hold something

    def begins(
        self, jobid: int, account: Account, blocks: Blocks, safe_s: float | None, now_s: float, extras: Blocks = ()
    ) -> None:
        """Book the start of a job that may be preempted after `safe_s` (None: never), and its extras at once."""
        amounts = self.amounts.of_blocks(blocks)
        some = self.amounts.of_blocks(extras) if extras else ()
        if some:
            amounts = _less(amounts, some)
        if safe_s and self.limits.budget is not None:  # before its extras count as used: they cost nothing
            usage = self.tree.measure.usage(amounts)
            self._pay(jobid, account, self.limits.charge(account, usage, safe_s / MINUTE_S))
        if some:
            self.tree.book(account, some, 1, False, now_s)
        self._hold(account, amounts, safe_s is None, now_s)

    def adopts(
        self,
        jobid: int,
        account: Account,
        blocks: Blocks,
        safe_s: float | None,
        started_s: float,
        now_s: float,
        extras: Blocks = (),
    ) -> None:
        """Book a job found running; it is charged by `settle`, but not for its extras."""
        amounts = held = self.amounts.of_blocks(blocks)
        if extras:
            amounts = self._without(account, amounts, extras, 1, now_s)
        self._adopted[jobid] = _Adopted(jobid, account, amounts, held, safe_s, started_s)
        self._hold(account, amounts, safe_s is None, now_s)
        self._count_elsewhere(blocks, 1, now_s)

    def frees(
        self, jobid: int, account: Account, blocks: Blocks, firm: bool, last: bool, now_s: float, extras: Blocks = ()
    ) -> None:
        """Book resources that a job frees, the `last` that it held or a part; `extras` are among them."""
        amounts = self.amounts.of_blocks(blocks)
        if extras:
            amounts = self._without(account, amounts, extras, -1, now_s)
        self.tree.book(account, amounts, -1, firm, now_s)
        if any(self._elsewhere):
            self._count_elsewhere(blocks, -1, now_s)
        if last:
            self.tree.activate(account, -1)
            self.running[account] -= 1
            self._adopted.pop(jobid, None)
            charge = self._charges.pop(jobid, 0.0)
            if charge:
                self.limits.pay(account.name, -charge)
        self.touch(account)

    def changes(self, account: Account, blocks: Blocks, sign: int, firm: bool, now_s: float) -> None:
        """Book resources that a running job gains (sign 1) or frees (-1) while it goes on."""
        self.tree.book(account, self.amounts.of_blocks(blocks), sign, firm, now_s)
        self.touch(account)

    def _without(self, account: Account, amounts: Vector, extras: Blocks, sign: int, now_s: float) -> Vector:
        """Books extras, which may always be preempted, by themselves; the amounts without them."""
        some = self.amounts.of_blocks(extras)
        self.tree.book(account, some, sign, False, now_s)
        return _less(amounts, some)

    def settle(self) -> None:
        """Charges the jobs that were found running, as if they had started now in the order in which they did."""
        if not self._adopted:
            return
        adopted = sorted(self._adopted.values(), key=_start_of)
        self._adopted.clear()
        if self.limits.budget is None:
            return
        held: dict[Account, float] = {}
        for job in adopted:
            before = held.get(job.account, 0.0)
            held[job.account] = before + self.tree.measure.usage(job.held)
            if job.safe_s:
                usage = self.tree.measure.usage(job.amounts)
                self._pay(job.jobid, job.account, self.limits.charge(job.account, usage, job.safe_s / MINUTE_S, before))

    def held_usage(self, allocation: Holds) -> float:
        """Return the usage of a running job in units of weight (u in the formulas)."""
        return self.tree.measure.usage(self.amounts.of_blocks(allocation.blocks))

    def charged(self, jobid: int) -> float:
        """Return the charge of a running job in resource minutes."""
        return self._charges.get(jobid, 0.0)

    def _hold(self, account: Account, amounts: Vector, firm: bool, now_s: float) -> None:
        self.tree.activate(account, 1)
        self.running[account] = self.running.get(account, 0) + 1
        self.tree.book(account, amounts, 1, firm, now_s)
        self.touch(account)

    def _pay(self, jobid: int, account: Account, charge: float) -> None:
        if charge:
            self._charges[jobid] = charge
            self.limits.pay(account.name, charge)

    def check(self, allocations: Iterable[Charged]) -> None:
        """Assert that accounts agree with all allocations and counts; for tests and simulations."""
        held: dict[Account, list[int]] = {}
        jobs: dict[Account, int] = {}
        for allocation in allocations:
            account = allocation.account
            assert account is not None, "a job holds something and is in no account"
            amounts = self.amounts.of_blocks(allocation.blocks)
            jobs[account] = jobs.get(account, 0) + 1
            for at in account.up():
                total = held.setdefault(at, [0] * len(amounts))
                for resource, amount in enumerate(amounts):
                    total[resource] += amount
        assert jobs == {account: count for account, count in self.running.items() if count}, "running jobs miscounted"
        active: dict[Account, int] = {}
        for counts in (self.running, self.waiting):
            for account, count in counts.items():
                active[account] = active.get(account, 0) + count
        for account in self.tree.root.walk():
            mine = held.get(account)
            assert any(mine or ()) == any(account.all_jobs.held), f"account {account.path} holds what no job holds"
            assert mine is None or list(account.all_jobs.held) == mine, f"account {account.path}: wrong usage"
            below = sum([child.active > 0 for child in account.children.values()])
            assert account.active == active.get(account, 0) + below, f"account {account.path}: {account.active} active"

    # ---- all that there is

    def set_capacity(self, usable: Mapping[int, int], inside: Vector, held: Iterable[Block], now_s: float) -> None:
        """Set the usable targets, word by word, their amounts, and the least amounts that jobs hold on other
        targets.
        """
        self._usable = dict(usable)
        self._inside = inside
        self._elsewhere = self.amounts.of_blocks(self._outside(held))
        self._capacity_changed(now_s)

    def _outside(self, blocks: Iterable[Block]) -> list[Block]:
        usable = self._usable
        found = []
        for at, word, cores, gpus, amounts in blocks:
            if at != NO_TARGET and (outside := word & ~usable.get(at, 0)):
                found.append(Block(at, outside, cores, gpus, amounts))
        return found

    def _count_elsewhere(self, blocks: Blocks, sign: int, now_s: float) -> None:
        outside = self._outside(blocks)
        if outside:
            more = self.amounts.of_blocks(outside)
            self._elsewhere = tuple([one + sign * other for one, other in zip(self._elsewhere, more, strict=True)])
            self._capacity_changed(now_s)

    def _capacity_changed(self, now_s: float) -> None:
        measure = self.tree.measure
        capacity = tuple([one + other for one, other in zip(self._inside, self._elsewhere, strict=True)])
        if capacity == measure.capacity:
            return
        self.tree.set_capacity(capacity, now_s)
        if measure.dominant:  # what is asked and what is held count by their part of it
            self._usages.clear()
            self.touch_all()


def _less(amounts: Vector, some: Vector) -> Vector:
    return tuple([all_of_it - one for all_of_it, one in zip(amounts, some, strict=True)])


class _Adopted:
    """Job found running that is not charged yet: for its `amounts`, not for all that it has `held`."""

    __slots__ = ("account", "amounts", "held", "jobid", "safe_s", "started_s")

    def __init__(
        self, jobid: int, account: Account, amounts: Vector, held: Vector, safe_s: float | None, started_s: float
    ) -> None:
        self.jobid = jobid
        self.account = account
        self.amounts = amounts
        self.held = held
        self.safe_s = safe_s
        self.started_s = started_s


def _start_of(job: _Adopted) -> tuple[float, int]:
    return job.started_s, job.jobid


def safe_of(preemptible_after_s: float | None, limit_s: float) -> float | None:
    """Return the time for which a job is safe from its start on, at most its time limit (0.0: it has none); None: it is
    firm.
    """
    if preemptible_after_s is None:
        return None
    return min(preemptible_after_s, limit_s or inf)
