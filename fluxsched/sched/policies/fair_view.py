"""The waiting jobs under `fair` as another policy sees them: in fair order, without those that limits hold back.

Law: nothing else is changed, so that policy decides here as it does alone. The walk takes again and again the first job
of the account with the least key (progressive filling): a job that starts or gets a reservation counts in the usage of
its account from there on; one that is passed over does not, and its account offers its next. A job that a cap or a
budget holds back holds back those behind it in its account that draw on the same limit, and no others; less and less is
left within a pass, so what is held back once is so for the rest of it. `explain` says which limit holds a job back, or
which account comes before its own; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from math import inf
from typing import Final

from fluxsched.core.jobid import format_f58
from fluxsched.core.reasons import Cause, WaitKind, Why, cause
from fluxsched.sched.fair.accounts import MINUTE_S, NOTHING_KEPT, Account, Blocked, Signal
from fluxsched.sched.fair.order import FairOrder
from fluxsched.sched.policy import (
    FIFO,
    LXF,
    PAUSE_EVERY,
    WORST_FIT,
    AccountLines,
    Fits,
    JobIndex,
    Outcome,
    PendingJob,
    Plan,
    Preemptions,
    Reservation,
    ReservedNodes,
    Running,
    Skips,
    View,
    WhatIfPreempted,
    safe_of,
    warn_of_end,
)


class FairView:
    """The `View` of one pass at `now_s` (wall time, seconds) around the engine's."""

    def __init__(self, view: View, lines: AccountLines, now_s: float) -> None:
        self._lines = lines
        self.limits = PassLimits(lines, now_s)
        self._view = view
        self._now_s = now_s
        self._front: FairWalk | None = None
        # A limit that keeps a job back keeps back others behind it in its account, whatever their queue: one order then
        heads = {} if self.limits.any else {name: own for name, own in lines.by_queue.items() if own.has_jobs}
        self._fronts = {name: FairWalk(own, self.limits, Skips(), FIFO, now_s) for name, own in heads.items()}
        self._reserved: set[int] = set()
        if len(heads) > 1:
            for name, job in self._planned_heads().items():
                self._fronts[name].begin_with(job)

    @property
    def lines(self) -> AccountLines:
        return self._lines

    # ---- waiting jobs

    @property
    def queue(self) -> Iterator[PendingJob]:
        return self._each()

    def _each(self) -> Iterator[PendingJob]:
        for job in self.candidates(Skips()):  # compiled, a generator expression would go through all at once
            if job is not None:
                yield job

    @property
    def first(self) -> PendingJob | None:
        if len(self._fronts) > 1:
            return self.first_beside(())
        if self._front is None:
            self._front = self.walk(Skips())
        return self._front.first()

    def first_beside(self, queues: Collection[str]) -> PendingJob | None:
        """Return the first, in fair order, of the first jobs of other queues.

        The first of a queue that gets a reservation stays so until it starts, though this counts in its account, and
        others come before it in fair order: these would have it overtaken without end.
        """
        if len(self._fronts) < 2:
            return None
        firsts: dict[Account, PendingJob] = {}
        expedited: list[PendingJob] = []
        for name, front in self._fronts.items():
            job = None if name in queues else self._first_of(front)
            if job is None:
                continue
            if self._lines.is_expedited(job):
                expedited.append(job)
                continue
            assert job.account is not None
            other = firsts.get(job.account)
            if other is None or job.key < other.key:
                firsts[job.account] = job
        if expedited or not firsts:
            return min(expedited, key=lambda job: job.key, default=None)
        if len(firsts) == 1:
            return next(iter(firsts.values()))
        order = FairOrder(self._lines.book.tree)
        for account, job in firsts.items():
            order.offer(account, self._lines.book.usage(job.shape))
        first = order.first(self._now_s)
        return None if first is None else firsts[first]

    def _planned_heads(self) -> dict[str, PendingJob]:
        """Return the job of each queue that was planned first, if it is still the first of its account.

        Jobs that others are preempted for keep their reservations anyway; one without a time promises nothing.
        """
        found: dict[str, tuple[float, PendingJob]] = {}
        for jobid, old in self.planned.items():
            job = self.job(jobid)
            if job is None or old.start_s == inf or jobid in self.preemptions.awaited:
                continue
            own = self._lines.by_queue.get(job.queue)
            if own is not None and own.leads(job) and (job.queue not in found or old.start_s < found[job.queue][0]):
                found[job.queue] = old.start_s, job
        return {name: job for name, (_, job) in found.items()}

    def _first_of(self, front: FairWalk) -> PendingJob | None:
        """Return the first job of a queue, but none that a plugin defers: it might be the head for ever."""
        job = front.first()
        while job is not None and self._view.is_held_back(job):
            front.next()
            job = front.first()
        return job

    def candidates(self, skips: Skips, order: str = FIFO) -> Iterator[PendingJob | None]:
        skips.by_limit = self.has_outages
        walk = self.walk(skips, order)
        if order == FIFO and self._front is not None:
            walk.begin_with(self._front.reserved_head(self._reserved))
        while True:
            job = walk.next()
            if job is None and walk.over:
                return
            yield job

    def late(self, order: str = FIFO) -> None:
        """Return None to policies of 0.1.0, which ask for arrivals here: they then examine all jobs."""
        warn_of_end("late of the view", "declare ARRIVALS and REPLANS")

    def has_reserved(self, jobid: int) -> bool:
        """Return whether the job has got a reservation in this pass."""
        return jobid in self._reserved

    def forget_reserved(self) -> None:
        """Ignore the reservations made so far."""
        self._reserved.clear()
        self._lines.forget_plans()

    def reserved(self, jobid: int) -> None:
        """Count a job's reservation in its account from now on."""
        job, lines = self._lines.by_id.get(jobid), self.lines
        if job is not None and job.account is not None and jobid not in self._reserved:
            self._reserved.add(jobid)
            lines.order.plan(job.account, lines.book.usage(job.shape))
            lines.book.touch(job.account)

    def walk(self, skips: Skips, order: str = FIFO) -> FairWalk:
        """Return a walk over the pending jobs in fair order."""
        return FairWalk(self._lines, self.limits, skips, order, self._now_s)

    # ---- as it is

    def job(self, jobid: int) -> PendingJob | None:
        return self._view.job(jobid)

    @property
    def preemptions(self) -> Preemptions:
        return self._view.preemptions

    def if_gone(self, job: PendingJob | None = None) -> WhatIfPreempted:
        return self._view.if_gone(job)

    @property
    def running(self) -> Iterator[Running]:
        return self._view.running

    @property
    def by_end(self) -> Iterator[Running]:
        return self._view.by_end

    @property
    def planned(self) -> Mapping[int, Reservation]:
        return self._view.planned

    @property
    def index(self) -> JobIndex | None:
        return self._view.index

    @property
    def reserved_nodes(self) -> ReservedNodes:
        return self._view.reserved_nodes

    def is_held_back(self, job: PendingJob) -> bool:
        return self._view.is_held_back(job)

    def is_put_off(self, job: PendingJob, whole: bool = False) -> bool:
        return self._view.is_put_off(job, whole)

    @property
    def has_outages(self) -> bool:
        return self._view.has_outages

    def find_on(self, job: PendingJob, rank: int) -> Fits | None:
        return self._view.find_on(job, rank)

    @property
    def plan(self) -> Plan:
        return self._view.plan

    def place(self, job: PendingJob, placement: str = WORST_FIT) -> Outcome:
        return self._view.place(job, placement)

    def find(self, job: PendingJob, placement: str = WORST_FIT) -> Fits | None:
        return self._view.find(job, placement)

    def step(self, jobid: int) -> Fits | None:
        return self._view.step(jobid)

    def reason(self, job: PendingJob) -> Callable[[], str]:
        return self._view.reason(job)


# ---- the walk in fair order

FEW: Final = 4
"""Divisor of the number of accounts: if fewer than one in so many has jobs left that could start, these are ordered on
their own.
"""


class FairWalk:
    """One walk over the waiting jobs of a queue, from the first on, each account in one of the ORDERS.

    Several may be under way at once: each knows how far it is in each account.
    """

    def __init__(self, lines: AccountLines, limits: PassLimits, skips: Skips, order: str, now_s: float) -> None:
        self.over = False
        self._lines = lines
        self._limits = limits
        self._skips = skips
        self._by = order
        self._now_s = now_s
        self._is_flow = lines.book.tree.signal is Signal.FLOW
        self._job: PendingJob | None = None  # the job that was given last
        self._heads: dict[Account, PendingJob | None] = {}  # what is offered if not the first; None: no more
        self._walks: dict[Account, Iterator[PendingJob | None]] = {}
        self._order = lines.order
        self._few: dict[Account, None] = {}  # those in it, where it is not that of all
        self._expedited = lines.expedited.sorted(order, now_s).walk(skips) if lines.expedited.jobs.size else None
        self._given: PendingJob | None = None
        self._turn = -1
        self._misses = 0
        self._look_at = 0 if order != FIFO or skips.unfit or skips.long else 1

    def reserved_head(self, reserved: Set[int]) -> PendingJob | None:
        """Return the last job of the walk, if it is pending, the first of its account, and has one of these
        reservations.
        """
        job = self._job
        return job if job is not None and job.jobid in reserved and self._lines.leads(job) else None

    def begin_with(self, head: PendingJob | None) -> None:
        """Give this job before all others: it has a reservation, and need not be found again by its account's key."""
        if self._expedited is None:
            self._given = head

    def first(self) -> PendingJob | None:
        """Return the next job, if it is pending unchanged; None at the end."""
        while not self.over:
            job = self.peek()
            if job is not None:
                return job
        return None

    def peek(self) -> PendingJob | None:
        """Return the next job, if it is pending unchanged; None at the end (`over`), or for a pause."""
        job = self._job
        if job is not None and self._lines.has(job):
            return job
        return self.next()

    def next(self) -> PendingJob | None:
        """Return the next job; None at the end (`over`), or for a pause. The one before was passed over if it still
        waits.
        """
        passed, self._job = self._job, None
        if self._given is not None:
            self._job, self._given = self._given, None
            return self._job
        if self._expedited is not None:
            self._job = self._next_expedited(self._expedited)
            if self._job is not None:
                return self._job
            self._expedited = None
            passed = None
        if passed is not None and not self._lines.has(passed):
            passed = None
        self._misses += passed is not None
        few = self._look_ahead() if self._misses >= self._look_at else None
        if self.over:
            return None
        self._take_over()
        if passed is not None and passed.account is not None:
            self._set_head(passed.account, self._after(passed.account, passed))
        if few is not None:
            self._narrow(few)
        return self._search()

    def _search(self) -> PendingJob | None:
        for _ in range(PAUSE_EVERY):
            if self.over:
                return None
            self._catch_up()
            account = self._order.first(self._now_s)
            if account is None:
                self.over = True
                return None
            job = self._turn_of(account)
            if job is not None:
                self._job = job
                return job
        return None

    def _turn_of(self, account: Account) -> PendingJob | None:
        """Return the first job of the account that may start, unless the account's turn is later by that job.

        Only under `flow` does the key depend on the job, and then a job that adds no more usage has the same turn.
        """
        usage, limits = self._lines.book.usage, self._limits
        offered = job = self._head(account)
        while job is not None:
            if limits.admits(job, self._may_start(job)):
                self._heads[account] = job
                self._lines.moved[account] = None
                return job
            job = self._after(account, job)
            if job is not None and self._is_flow and offered is not None and usage(job.shape) > usage(offered.shape):
                break
        self._set_head(account, job)
        return None

    def _next_expedited(self, jobs: Iterator[PendingJob | None]) -> PendingJob | None:
        for job in jobs:
            if job is not None and self._lines.has(job) and self._limits.admits(job, True):
                return job
        return None

    # ---- where the walk is in each account

    def _head(self, account: Account) -> PendingJob | None:
        """Return the job that the account offers in this walk."""
        if account in self._heads:
            return self._heads[account]
        line = self._lines.by_account.get(account)
        if line is None:
            return None
        return line.first if self._by == FIFO else self._after(account, None)

    def _after(self, account: Account, passed: PendingJob | None) -> PendingJob | None:
        """Return the next job of the account; without those that cannot start, unless they may hold others back."""
        line = self._lines.by_account.get(account)
        if line is None or self._limits.holds_all(account, line.preemptible):
            return None
        walk = self._walks.get(account)
        if walk is None:
            skips = Skips() if self._is_flow or self._limits.any else self._skips
            walk = self._walks[account] = line.sorted(self._by, self._now_s).walk(skips)
        for job in walk:
            if job is not None and job is not passed and (self._by != LXF or self._lines.has(job)):
                return job
        return None

    def _set_head(self, account: Account, job: PendingJob | None) -> None:
        """Have the account offer this job from now on, or no more in this walk."""
        self._heads[account] = job
        self._lines.moved[account] = None
        if job is None:
            self._order.withdraw(account)
        elif self._is_flow:
            self._order.offer(account, self._lines.book.usage(job.shape))

    def _may_start(self, job: PendingJob) -> bool:
        number, skips = job.shape.number, self._skips
        return number not in skips.unfit and (number not in skips.long or job.limit_s < skips.long[number])

    # ---- the order of accounts

    def _take_over(self) -> None:
        """Have the order stand where this walk is: another one may have moved it."""
        lines = self._lines
        if lines.turn == self._turn:
            return
        lines.turn += 1
        self._turn = lines.turn
        lines.offer_again()
        if self._is_flow and self._by != FIFO and self._order is lines.order:
            self._narrow(dict.fromkeys(lines.by_account))  # the first of each account is another one
        for account in self._few:
            if account not in lines.by_account:
                self._order.withdraw(account)
            self._order.changed(account)
        for account, head in list(self._heads.items()):
            gone = head is not None and not lines.has(head)
            self._set_head(account, self._after(account, head) if gone else head)

    def _catch_up(self) -> None:
        """Apply starts and reservations, which change keys, and the jobs that accounts offer."""
        lines, order = self._lines, self._order
        if not lines.touched:
            return
        touched = list(lines.touched)
        lines.touched.clear()
        kept = order is lines.order
        for account in touched:
            lines.moved[account] = None
            if account in self._heads:
                head = self._heads[account]
                if head is not None and not lines.has(head):
                    self._set_head(account, self._after(account, head))
            elif kept:
                lines.offer_first(account)
                continue
            elif account not in lines.by_account:
                order.withdraw(account)
            order.changed(account)

    def _look_ahead(self) -> dict[Account, None] | None:
        """End the walk if no pending job is known to be able to start; return the accounts that have some, if these are
        few.
        """
        lines = self._lines
        enough = len(lines.by_account) // FEW
        live = lines.live(self._skips, enough)
        self._look_at = self._misses + 1 + len(lines.kinds) // FEW
        self.over = not live
        return live if live and len(live) <= enough and not self._is_flow and self._order is lines.order else None

    def _narrow(self, accounts: dict[Account, None]) -> None:
        """Restrict the walk to these accounts, in an order of their own."""
        lines = self._lines
        order = FairOrder(lines.book.tree)
        self._order, self._few = order, accounts
        for account in accounts:
            job = self._head(account)
            if job is not None:
                order.offer(account, lines.book.usage(job.shape))
                if self._by != FIFO:
                    self._heads[account] = job


# ---- limits


class PassLimits:
    """Asked about each job when it is its turn.

    `blocked` are jobs that met a limit, `wake_s` when the first may start by itself (wall time, seconds).
    """

    __slots__ = ("_capped", "_kept", "_kept_for", "_lines", "_now_s", "_spent", "any", "blocked", "wake_s")

    def __init__(self, lines: AccountLines, now_s: float) -> None:
        self.any = lines.book.limits.any
        self.blocked: list[tuple[PendingJob, Blocked]] = []
        self.wake_s = inf
        self._lines = lines
        self._now_s = now_s
        self._kept: dict[Account, float] = {}
        self._kept_for: set[int] = set()
        self._capped: set[Account] = set()
        self._spent: set[Account] = set()

    def admits(self, job: PendingJob, may_start: bool) -> bool:
        """Return whether a job that `may_start` otherwise is within limits now; one that may not can still defer
        others.
        """
        if not self.any or job.jobid in self._kept_for:
            return may_start
        account = job.account
        assert account is not None
        firm = job.preemptible_after_s is None
        if account in (self._capped if firm else self._spent) and (firm or charge_of(self._lines, job)):
            return False
        found = limit_of(self._lines, job, self._now_s, self._kept)
        if found is None:
            return may_start
        (self._capped if firm else self._spent).add(account)
        self.blocked.append((job, found))
        self.wake_s = min(self.wake_s, found.until_s)
        return False

    def keep(self, job: PendingJob) -> None:
        """Reserve what is left of the caps for an admitted job that others are preempted for."""
        self._kept_for.add(job.jobid)
        if job.account is not None and job.preemptible_after_s is None:
            usage = self._lines.book.usage(job.shape)
            for at in job.account.up():
                self._kept[at] = self._kept.get(at, 0.0) + usage

    def holds_all(self, account: Account, preemptible: int) -> bool:
        """Return whether no job of the account can start, where `preemptible` of them are preemptible."""
        return not preemptible and account in self._capped


def limit_of(
    lines: AccountLines, job: PendingJob, now_s: float, kept: Mapping[Account, float] = NOTHING_KEPT
) -> Blocked | None:
    """Return the limit that the job would exceed if it started now, less the part of caps `kept` for others."""
    book, account = lines.book, job.account
    assert account is not None
    usage = book.usage(job.shape)
    safe_s = safe_of(job.preemptible_after_s, job.duration_s)
    if safe_s is None:
        return book.limits.over_cap(account, usage, now_s, kept)
    return book.limits.over_budget(account, account.name, usage, safe_s / MINUTE_S)


def charge_of(lines: AccountLines, job: PendingJob) -> float:
    """Return the charge of a preemptible job at its start, in resource minutes; 0.0 for a firm job."""
    book, account = lines.book, job.account
    safe_s = safe_of(job.preemptible_after_s, job.duration_s)
    assert account is not None
    return 0.0 if safe_s is None else book.limits.charge(account, book.usage(job.shape), safe_s / MINUTE_S)


def limit_text(found: Blocked) -> Cause:
    """Return the limit and its numbers in words, for the job's owner."""
    name = "/".join(found.account)
    if found.limit == "cap":
        text = (
            f"account {name} is at its cap: jobs that may not be preempted use {found.used:,.6g} of {found.bound:,.6g} "
            f"resources, and the job asks for {found.asks:,.6g}"
        )
    else:
        text = (
            f"budget of {found.account[-1]}: {found.used:,.6g} of {found.bound:,.6g} resource minutes are charged, and "
            f"the job would be charged {found.asks:,.6g}"
        )
    return cause(text, WaitKind.LIMIT_OF_ACCOUNT)


# ---- why a job waits

LIFTED = "with time, as past usage counts less and less; sooner if jobs of the account end"
NOT_LIFTED = "not known: when jobs that draw on this limit end"
TOO_LARGE = "not before the share of the account grows, or the limit: it asks for more than the whole limit"
KEYS = {
    Signal.FLOW: "the flow of its usage with that job, by weight,",
    Signal.DECAYED_USAGE: "its usage and its decayed usage, by weight,",
}
"""Keys by which accounts are ordered, in words."""


def explain(lines: AccountLines, job: PendingJob, now_s: float) -> Why:
    """Explain why a job waits: the reason is empty if no limit defers it; the rule gives its place in the queue."""
    held = _held_back(lines, job, now_s)
    if held is None:
        return Why("", _place(lines, job, now_s))
    ahead, found = held, limit_of(lines, held, now_s)
    assert found is not None
    reason = limit_text(found)
    if ahead.jobid != job.jobid:
        reason = cause(
            f"waits behind job {format_f58(ahead.jobid)}, which draws on the same limit: {reason}", reason.kind
        )
    rule = "no job starts beyond a limit of its account"
    if found.until_s < inf:
        return Why(reason, rule, LIFTED, found.until_s, reason.kind)
    return Why(reason, rule, TOO_LARGE if found.asks > found.bound else NOT_LIFTED, None, reason.kind)


def _held_back(lines: AccountLines, job: PendingJob, now_s: float) -> PendingJob | None:
    """Return the first job of the account, up to this one, that a limit holds back on which this one draws, too."""
    account = job.account
    line = None if account is None else lines.by_account.get(account)
    if not lines.book.limits.any or (job.preemptible_after_s is not None and not charge_of(lines, job)):
        return None
    known = set()
    for ahead in line.jobs if line is not None and not lines.is_expedited(job) else ():
        kind = ahead.shape.number, ahead.preemptible_after_s, ahead.duration_s
        if (ahead.preemptible_after_s is None) == (job.preemptible_after_s is None) and kind not in known:
            known.add(kind)
            if limit_of(lines, ahead, now_s) is not None:
                return ahead
        if ahead is job:
            return None
    return job if limit_of(lines, job, now_s) is not None else None


def _place(lines: AccountLines, job: PendingJob, now_s: float) -> str:
    """Return the number of jobs ahead of it in its account, and the account that is first, with both keys, in words."""
    account = job.account
    line = None if account is None else lines.by_account.get(account)
    if account is None or line is None or lines.is_expedited(job):
        return "comes before all accounts: its urgency is the highest"
    before = line.jobs.before(job.key)
    place = f"{before} ahead of it" if before else "first"
    mine, first = _compared(lines, account, now_s)
    name = "/".join(account.path)
    if mine is None or first is None:
        return f"{place} in account {name}, which comes first"
    (own, own_key), (other, other_key) = mine, first
    by = KEYS[lines.book.tree.signal]
    text = f"{by} is {other_key:.6g}, that of {'/'.join(own.path)} {own_key:.6g}"
    return f"{place} in account {name}; account {'/'.join(other.path)} comes first: {text}"


_Keyed = tuple[Account, float]


def _compared(lines: AccountLines, account: Account, now_s: float) -> tuple[_Keyed | None, _Keyed | None]:
    """Return the two accounts, with their keys, at which the path of the account and that of the first account part.

    None for both if the account is the first itself.
    """
    order = FairOrder(lines.book.tree)
    for each, line in lines.by_account.items():
        order.offer(each, lines.book.usage(line.first.shape))
    first = order.first(now_s)
    assert first is not None
    for own, other in zip(reversed(list(account.up())), reversed(list(first.up())), strict=False):
        if own is not other:
            return (own, order.key(own, now_s)), (other, order.key(other, now_s))
    return None, None
