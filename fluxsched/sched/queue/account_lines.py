"""The waiting jobs of a queue by account: in each its own order, and how many there are of each shape and limit.

Law: what is here are the jobs that the queue offers, no more. Jobs of the highest urgency come before all accounts, so
they are in one line of their own. A line costs what is asked of it: orders other than the queue's are sorted on first
use, and then kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp, inf, ldexp
from typing import Final

from fluxsched.sched.accounts.order import FairOrder
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.queue.orders import FIFO, FIXED, LXF, expansion
from fluxsched.sched.queue.sorted_jobs import QueueKey, Skips, SortedJobs, Waiting
from fluxsched.sched.usage.book import UsageBook

EXPEDITED: Final = 4294967295
"""The priority of jobs of urgency 31 (RFC 21)."""

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0

STEPS: Final = 16.0
"""Half of them between a limit and its double."""


class AccountLine:
    """The waiting jobs of one account; `preemptible` counts those that are."""

    __slots__ = ("_orders", "jobs", "preemptible")

    def __init__(self) -> None:
        self.jobs = SortedJobs()
        self.preemptible = 0
        self._orders: dict[str, SortedJobs] = {}

    @property
    def first(self) -> Waiting:
        """The first job in the queue's order."""
        return self.jobs.chunks[0].jobs[0]

    def add(self, key: QueueKey, job: Waiting) -> None:
        """A job joins."""
        self.jobs.add(key, job)
        self.preemptible += job.preemptible_after_s is not None
        for order, jobs in self._orders.items():
            jobs.add(FIXED[order](job), job)

    def remove(self, key: QueueKey, job: Waiting) -> None:
        """A job leaves."""
        self.jobs.remove(key)
        self.preemptible -= job.preemptible_after_s is not None
        for order, jobs in self._orders.items():
            jobs.remove(FIXED[order](job))

    def sorted(self, order: str, now_s: float) -> SortedJobs:
        """The jobs in one of the ORDERS."""
        if order == FIFO:
            return self.jobs
        if order == LXF:
            return _by_expansion(self.jobs, now_s)
        jobs = self._orders.get(order)
        if jobs is None:
            jobs = self._orders[order] = SortedJobs()
            for job in self.jobs:
                jobs.add(FIXED[order](job), job)
        return jobs


class AccountLines:
    """The lines of a queue, whose jobs are `by_id`, by account.

    In `order` each of them offers its first job once `offer_again` was called. `kinds` are numbers of shapes, lower
    bounds of limits (`about`), and how many jobs of which account have them. `turn` is the number of the walk for which
    the order stands as it is, and `moved` are the accounts that it may have moved.
    """

    def __init__(self, book: UsageBook, by_id: Mapping[int, Waiting]) -> None:
        self.book = book
        self.by_id = by_id
        self.by_account: dict[Account, AccountLine] = {}
        self.expedited = AccountLine()
        self.kinds: dict[int, dict[float, dict[Account, int]]] = {}
        self.order = FairOrder(book.tree)
        self.touched = book.follow()
        self.moved: dict[Account, None] = {}
        self.turn = 0

    def add(self, key: QueueKey, job: Waiting) -> None:
        """A job that may start joins."""
        account = job.account
        assert account is not None
        if job.priority == EXPEDITED:
            self.expedited.add(key, job)
            return
        line = self.by_account.get(account)
        if line is None:
            line = self.by_account[account] = AccountLine()
        line.add(key, job)
        by_limit = self.kinds.setdefault(job.shape.number, {})
        counts = by_limit.setdefault(about(job.limit_s), {})
        counts[account] = counts.get(account, 0) + 1
        if line.first is job:
            self.touched[account] = None

    def remove(self, key: QueueKey, job: Waiting) -> None:
        """A job that may start leaves."""
        account = job.account
        assert account is not None
        if job.priority == EXPEDITED:
            self.expedited.remove(key, job)
            return
        line = self.by_account[account]
        if line.first is job:
            self.touched[account] = None
        line.remove(key, job)
        if not line.jobs.size:
            del self.by_account[account]
        number, limit_s = job.shape.number, about(job.limit_s)
        by_limit = self.kinds[number]
        counts = by_limit[limit_s]
        if counts[account] > 1:
            counts[account] -= 1
            return
        del counts[account]
        if not counts:
            del by_limit[limit_s]
            if not by_limit:
                del self.kinds[number]

    def offer_again(self) -> None:
        """Each account offers the first of its jobs, if it has one: those are looked at that were touched or moved."""
        self.moved |= self.touched
        self.touched.clear()
        for account in self.moved:
            self.offer_first(account)
        self.moved.clear()

    def offer_first(self, account: Account) -> None:
        """This account offers the first of its jobs."""
        line = self.by_account.get(account)
        if line is None:
            self.order.withdraw(account)
            self.order.changed(account)  # those above it
        else:
            self.order.offer(account, self.book.usage(line.first.shape))

    def is_expedited(self, job: Waiting) -> bool:
        """Whether it comes before all accounts."""
        return job.priority == EXPEDITED

    def has(self, job: Waiting) -> bool:
        """Whether this very job is here: with another priority, or on hold, it is another one."""
        return self.by_id.get(job.jobid) is job

    def live(self, skips: Skips, enough: int) -> dict[Account, None]:
        """Accounts with jobs that `skips` does not name, and few others; once there are more than enough, not all."""
        skips.see_shapes(self.kinds)
        found: dict[Account, None] = {}
        unfit, long = skips.unfit, skips.long
        for number, by_limit in self.kinds.items():
            if number in unfit:
                continue
            bound = long.get(number)
            for limit_s, counts in by_limit.items():
                if bound is None or limit_s < bound:
                    found.update(dict.fromkeys(counts))
                    if len(found) > enough:
                        return found
        return found


def about(limit_s: float) -> float:
    """A lower bound of a limit, at most an eighth below it: there are few, however many limits there are.

    What people write is kept as it is: a limit that was too long is one of those, and so are all that equal it.
    """
    if limit_s == inf or not limit_s % (MINUTE_S if limit_s <= DAY_S else HOUR_S):
        return limit_s
    part, exponent = frexp(limit_s)
    return ldexp(int(part * STEPS) / STEPS, exponent)


def _by_expansion(jobs: SortedJobs, now_s: float) -> SortedJobs:
    found = SortedJobs()
    for job in jobs:
        found.add((-expansion(job, now_s), *job.key), job)
    return found
