"""Waiting jobs in fair order: again and again the first job of the account with the least key (progressive filling).

Law: a job that starts or gets a reservation counts in the usage of its account from there on; one that is passed over
does not, and its account offers its next. A walk costs what it looks at: it ends at once when no job is left that could
start, and looks only at accounts that have such jobs where these are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

from fluxsched.sched.accounts.order import FairOrder
from fluxsched.sched.accounts.signal import Signal
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.policies.fair.limits import PassLimits
from fluxsched.sched.policy import FIFO, LXF, PAUSE_EVERY, AccountLines, Skips, Waiting

FEW: Final = 4
"""Where fewer than one of so many accounts have jobs left that could start, these get an order of their own."""


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
        self._job: Waiting | None = None  # the job that was given last
        self._heads: dict[Account, Waiting | None] = {}  # what is offered, where that is not the first; None: no more
        self._walks: dict[Account, Iterator[Waiting | None]] = {}
        self._order = lines.order
        self._few: dict[Account, None] = {}  # those in it, where it is not that of all
        self._expedited = lines.expedited.sorted(order, now_s).walk(skips) if lines.expedited.jobs.size else None
        self._given: Waiting | None = None
        self._turn = -1
        self._misses = 0
        self._look_at = 0 if order != FIFO or skips.unfit or skips.long else 1

    def reserved_head(self, reserved: Set[int]) -> Waiting | None:
        """The job that was given last, if it waits, the first of its account, and has one of these reservations."""
        job = self._job
        if job is None or job.account is None or job.jobid not in reserved or not self._lines.has(job):
            return None
        line = self._lines.by_account.get(job.account)
        return job if line is not None and line.first is job else None

    def begin_with(self, head: Waiting | None) -> None:
        """Gives this job before all others: it has a reservation, and need not be found again by its account's key."""
        if self._expedited is None:
            self._given = head

    def peek(self) -> Waiting | None:
        """The job that comes next, if it waits the same as before; None at the end (`over`), or for a pause."""
        job = self._job
        if job is not None and self._lines.has(job):
            return job
        return self.next()

    def next(self) -> Waiting | None:
        """The next job; None at the end (`over`), or for a pause. The one before was passed over if it still waits."""
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

    def _search(self) -> Waiting | None:
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

    def _turn_of(self, account: Account) -> Waiting | None:
        """The first job of the account that may start, if it has one by which its turn does not come later.

        Only under `flow` the key depends on the job, and then a job that adds no more comes at the same turn.
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

    def _next_expedited(self, jobs: Iterator[Waiting | None]) -> Waiting | None:
        for job in jobs:
            if job is not None and self._lines.has(job) and self._limits.admits(job, True):
                return job
        return None

    # ---- where the walk is in each account

    def _head(self, account: Account) -> Waiting | None:
        """What the account offers in this walk."""
        if account in self._heads:
            return self._heads[account]
        line = self._lines.by_account.get(account)
        if line is None:
            return None
        return line.first if self._by == FIFO else self._after(account, None)

    def _after(self, account: Account, passed: Waiting | None) -> Waiting | None:
        """The next job of the account; without those that cannot start, unless they may hold others back."""
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

    def _set_head(self, account: Account, job: Waiting | None) -> None:
        """The account offers this job from now on, or no more in this walk."""
        self._heads[account] = job
        self._lines.moved[account] = None
        if job is None:
            self._order.withdraw(account)
        elif self._is_flow:
            self._order.offer(account, self._lines.book.usage(job.shape))

    def _may_start(self, job: Waiting) -> bool:
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
        """Take in what was started or planned, which changes keys, and the jobs that accounts offer."""
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
        """End the walk if no waiting job could start by what is known; the accounts that have some, if these are few.
        """
        lines = self._lines
        enough = len(lines.by_account) // FEW
        live = lines.live(self._skips, enough)
        self._look_at = self._misses + 1 + len(lines.kinds) // FEW
        self.over = not live
        return live if live and len(live) <= enough and not self._is_flow and self._order is lines.order else None

    def _narrow(self, accounts: dict[Account, None]) -> None:
        """From here on only these accounts come, in an order of their own."""
        lines = self._lines
        order = FairOrder(lines.book.tree)
        self._order, self._few = order, accounts
        for account in accounts:
            job = self._head(account)
            if job is not None:
                order.offer(account, lines.book.usage(job.shape))
                if self._by != FIFO:
                    self._heads[account] = job
