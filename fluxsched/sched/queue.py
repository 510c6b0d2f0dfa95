"""Pending jobs in order: higher priority, earlier submission, the lower job id (RFC 27), and by account.

Law: adding, removing and re-prioritising cost O(log n) in each order that is kept. Jobs of priority 0 are held (RFC
21): they are in the queue but are not offered. By account, each line has the jobs that the queue offers, no more; jobs
of the highest urgency come before all accounts, in a line of their own. A line costs what is asked of it: orders other
than the queue's are sorted on first use, and then kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from itertools import chain, islice
from math import frexp, inf, ldexp
from typing import Final, cast

from fluxsched.errors import LimitExceeded, LocalProtocolError
from fluxsched.sched.admission import JobIndex
from fluxsched.sched.fair.account_order import FairOrder
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.fair.usage import UsageBook
from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.sorted_jobs import FIFO, FIXED, LXF, PendingJob, QueueKey, Skips, SortedJobs, expansion

WAITING_MAX = 2_000_000
"""Jobs in one queue: twice the million that RFC 27 asks for, about 1 KiB each."""


class PendingJobs:
    """The waiting jobs of one group, or of one queue of it that has a policy of its own; `by_id` is changed here alone.

    `book` are the accounts, if they are kept, and `lines` the jobs by account, if the policy asks for them; `index` is
    that of the admission, if it has one. `counted` says in how many lines each job waits, where it may be in those of
    several groups: for its account it waits once.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, PendingJob] = {}
        self._offered = SortedJobs()
        self._held = SortedJobs()
        self._orders: dict[str, SortedJobs] = {}
        self._queue: str | None = None  # that of all jobs, as long as there is one
        self._by_queue: dict[str, SortedJobs] = {}  # jobs that may start, once there are several
        self.book: UsageBook | None = None
        self.counted: dict[int, int] | None = None
        self.lines: AccountLines | None = None
        self.index: JobIndex | None = None

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self.by_id

    def __iter__(self) -> Iterator[PendingJob]:
        """Jobs that may start, in order; one that is added meanwhile may be met or not."""
        return cast("Iterator[PendingJob]", self._offered.walk(Skips()))  # None comes only where jobs are skipped

    @property
    def first(self) -> PendingJob | None:
        """The first job that may start."""
        chunks = self._offered.chunks
        return chunks[0].jobs[0] if chunks else None

    def first_but(self, shapes: set[int]) -> PendingJob | None:
        """Return the first of them that is of none of these shapes, by number."""
        skips = Skips()
        skips.unfit = shapes
        return next((job for job in self._offered.walk(skips) if job is not None), None)

    def first_beside(self, queues: Collection[str], shapes: Set[int] = frozenset()) -> PendingJob | None:
        """Return the first of them that is neither of these queues nor of one of these shapes, by number.

        None where all jobs are of one queue.
        """
        found: PendingJob | None = None
        for name, jobs in self._by_queue.items():
            if name in queues:
                continue
            first: PendingJob | None = jobs.chunks[0].jobs[0]
            if shapes:
                skips = Skips()
                skips.unfit |= shapes
                first = next((job for job in jobs.walk(skips) if job is not None), None)
            if first is not None and (found is None or first.key < found.key):
                found = first
        return found

    def is_head(self, job: PendingJob) -> bool:
        """Return whether the job is the first of its queue, where there are several."""
        jobs = self._by_queue.get(job.queue)
        return jobs is not None and jobs.chunks[0].jobs[0] is job

    def first_of(self, shapes: set[int], limit: int) -> list[PendingJob]:
        """Return the first jobs that are of one of these shapes, `limit` at most."""
        skips = Skips()
        skips.unfit = {shape.number for shape, _ in self._offered.shapes()} - shapes
        return list(islice((job for job in self._offered.walk(skips) if job is not None), limit))

    @property
    def offered(self) -> int:
        """Return the number of jobs that may start."""
        return self._offered.size

    @property
    def last(self) -> PendingJob | None:
        """The last job that may start."""
        chunks = self._offered.chunks
        return chunks[-1].jobs[-1] if chunks else None

    def shapes(self) -> Iterator[tuple[Shape, int]]:
        """Yield the different shapes and the number of jobs of each, with those on hold; a shape may occur more than
        once.
        """
        return chain(self._offered.shapes(), self._held.shapes())

    def get(self, jobid: int) -> PendingJob | None:
        return self.by_id.get(jobid)

    def everyone(self) -> list[PendingJob]:
        """Return all jobs in order, those on hold last."""
        return [*self._offered, *self._held]

    def walk(self, skips: Skips, order: str = FIFO, now_s: float = 0.0) -> Iterator[PendingJob | None]:
        """Jobs that may start, in one of the ORDERS, without those that `skips` names, now or later.

        Now and then None comes instead of a job, so that the caller may pause.
        """
        if order == FIFO:
            return self._offered.walk(skips)
        if order == LXF:
            return self._by_expansion(skips, now_s)
        return self._ordered(order).walk(skips)

    def add(self, job: PendingJob) -> QueueKey:
        """Return the job's key. Raises LimitExceeded when the queue is full."""
        jobid, priority, t_submit_s = job[0], job[1], job[3]  # names of a tuple cost more
        if jobid in self.by_id:
            raise LocalProtocolError(f"job {jobid} is in the queue already")
        if len(self.by_id) >= WAITING_MAX:
            raise LimitExceeded(f"the queue is full: {WAITING_MAX} jobs wait; submit again when some have started")
        self.by_id[jobid] = job
        key: QueueKey = (-priority, t_submit_s, jobid)
        sort = job[9]
        if sort:
            key = (*sort, *key)
        if not priority:
            self._held.add(key, job)
            return key
        self._offered.add(key, job)
        if self._by_queue:
            self._by_queue.setdefault(job[10], SortedJobs()).add(key, job)
            if self.lines is not None:
                self.lines.of_queue(job[10]).add(key, job)
        elif job[10] != self._queue:
            self._tell_apart(job[10])
        if self.book is not None:
            self._enters(self.book, key, job)
        if self.index is not None:
            self.index.add(job)
        if self._orders:
            for order, jobs in self._orders.items():
                jobs.add(FIXED[order](job), job)
        return key

    def remove(self, jobid: int) -> PendingJob | None:
        """Take a job off the queue; None if it is not there."""
        job = self.by_id.pop(jobid, None)
        if job is None:
            return None
        priority, t_submit_s = job[1], job[3]
        if priority:
            key = job.key if job[9] else (-priority, t_submit_s, jobid)
            self._offered.remove(key)
            if self._by_queue:
                jobs = self._by_queue[job[10]]
                jobs.remove(key)
                if not jobs.size:
                    del self._by_queue[job[10]]
                if self.lines is not None:
                    self.lines.by_queue[job[10]].remove(key, job)
            if self.book is not None:
                self._exits(self.book, key, job)
            if self.index is not None:
                self.index.remove(job)
            if self._orders:
                for order, jobs in self._orders.items():
                    jobs.remove(FIXED[order](job))
        else:
            self._held.remove(job.key)
        return job

    def prioritize(self, jobid: int, priority: int) -> bool:
        """Move the job to its new place; return whether it is there."""
        job = self.by_id.get(jobid)
        if job is None:
            return False
        if job.priority != priority:
            self.remove(jobid)
            self.add(job._replace(priority=priority))
        return True

    def ahead_of(self, jobid: int, order: str = FIFO, now_s: float = 0.0) -> int:
        """Return the number of jobs before this one, which is in the queue, in one of the ORDERS; held jobs have their
        own.

        In the queue's order only jobs of its own queue count.
        """
        job = self.by_id[jobid]
        if not job.priority:
            return self._held.before(job.key) + len(self.by_id) - self._held.size
        if order == LXF:
            mine = (-expansion(job, now_s), *job.key)
            return sum((-expansion(each, now_s), *each.key) < mine for each in self._offered)
        if order == FIFO:
            return self._by_queue.get(job.queue, self._offered).before(job.key)
        return self._ordered(order).before(FIXED[order](job))

    def _tell_apart(self, queue: str) -> None:
        """Keep an order of its own for each queue, since a job of another queue than before was added."""
        if self._offered.size > 1:
            for each in self._offered:
                self._by_queue.setdefault(each.queue, SortedJobs()).add(each.key, each)
                if self.lines is not None:
                    self.lines.of_queue(each.queue).add(each.key, each)
        self._queue = queue

    def _enters(self, book: UsageBook, key: QueueKey, job: PendingJob) -> None:
        assert job.account is not None
        counted = self.counted
        if counted is None:
            book.waits(job.account)
        else:
            before = counted.get(job.jobid, 0)
            counted[job.jobid] = before + 1
            if not before:
                book.waits(job.account)
        if self.lines is not None:
            self.lines.add(key, job)

    def _exits(self, book: UsageBook, key: QueueKey, job: PendingJob) -> None:
        assert job.account is not None
        counted = self.counted
        if counted is None or counted[job.jobid] == 1:
            book.leaves(job.account)
        if counted is not None:
            counted[job.jobid] -= 1
            if not counted[job.jobid]:
                del counted[job.jobid]
        if self.lines is not None:
            self.lines.remove(key, job)

    def check(self) -> None:
        """Assert that the lines of queues and accounts have the jobs that are offered, in their order."""
        if self._by_queue:
            both = sorted([job for jobs in self._by_queue.values() for job in jobs], key=lambda job: job.key)
            assert both == list(self._offered), "queues have other jobs in line"
        if self.lines is not None:
            lines = [self.lines.expedited, *self.lines.by_account.values()]
            found = [job for line in lines for job in line.jobs]
            assert sorted(found, key=lambda job: job.key) == list(self._offered), "accounts have other jobs in line"
            kinds = sum(sum(counts.values()) for each in self.lines.kinds.values() for counts in each.values())
            assert kinds == len(found) - lines[0].jobs.size, "kinds of waiting jobs are counted wrongly"
            for name, own in self.lines.by_queue.items():
                found = [job for line in (own.expedited, *own.by_account.values()) for job in line.jobs]
                mine = list(self._by_queue.get(name, ()))
                assert sorted(found, key=lambda job: job.key) == mine, f"queue {name!r} has other jobs by account"

    def _by_expansion(self, skips: Skips, now_s: float) -> Iterator[PendingJob | None]:
        jobs = SortedJobs()
        for job in self._offered:
            jobs.add((-expansion(job, now_s), *job.key), job)
        for met in jobs.walk(skips):
            if met is None or self.by_id.get(met.jobid) is met:
                yield met

    def _ordered(self, order: str) -> SortedJobs:
        """Return the jobs in a fixed order: sorted on its first use, then kept."""
        jobs = self._orders.get(order)
        if jobs is None:
            jobs = self._orders[order] = SortedJobs()
            for job in self._offered:
                jobs.add(FIXED[order](job), job)
        return jobs


# ---- account lines

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
    def first(self) -> PendingJob:
        """The first job in the queue's order."""
        return self.jobs.chunks[0].jobs[0]

    def add(self, key: QueueKey, job: PendingJob) -> None:
        self.jobs.add(key, job)
        self.preemptible += job.preemptible_after_s is not None
        for order, jobs in self._orders.items():
            jobs.add(FIXED[order](job), job)

    def remove(self, key: QueueKey, job: PendingJob) -> None:
        self.jobs.remove(key)
        self.preemptible -= job.preemptible_after_s is not None
        for order, jobs in self._orders.items():
            jobs.remove(FIXED[order](job))

    def sorted(self, order: str, now_s: float) -> SortedJobs:
        """Return the jobs in one of the ORDERS."""
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
    the order stands as it is, and `moved` are the accounts that it may have moved. `by_queue` has lines of their own
    for queues once several have had jobs.
    """

    def __init__(self, book: UsageBook, by_id: Mapping[int, PendingJob]) -> None:
        self.book = book
        self.by_id = by_id
        self.by_account: dict[Account, AccountLine] = {}
        self.expedited = AccountLine()
        self.kinds: dict[int, dict[float, dict[Account, int]]] = {}
        self.order = FairOrder(book.tree)
        self.touched = book.follow()
        self.moved: dict[Account, None] = {}
        self.turn = 0
        self.by_queue: dict[str, AccountLines] = {}

    @property
    def has_jobs(self) -> bool:
        """Return whether any job may start."""
        return bool(self.by_account) or bool(self.expedited.jobs.size)

    def of_queue(self, name: str) -> AccountLines:
        """Return the lines of one queue, which are kept once made: there are as many as queues."""
        own = self.by_queue.get(name)
        if own is None:
            own = self.by_queue[name] = AccountLines(self.book, self.by_id)
        return own

    def forget_plans(self) -> None:
        """Count no reservations of a pass in usage from now on."""
        planned = self.order.forget_plans()
        if self.by_queue:
            for account in planned:
                self.book.touch(account)

    def add(self, key: QueueKey, job: PendingJob) -> None:
        """Add a job that may start."""
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

    def remove(self, key: QueueKey, job: PendingJob) -> None:
        """Remove a job that may start."""
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
        """Offer the first job of the account, or withdraw the account if it has none."""
        line = self.by_account.get(account)
        if line is None:
            self.order.withdraw(account)
            self.order.changed(account)  # those above it
        else:
            self.order.offer(account, self.book.usage(line.first.shape))

    def is_expedited(self, job: PendingJob) -> bool:
        """Return whether the job precedes all accounts."""
        return job.priority == EXPEDITED

    def has(self, job: PendingJob) -> bool:
        """Return whether this very job is in the lines: with another priority, or on hold, it is another object."""
        return self.by_id.get(job.jobid) is job

    def leads(self, job: PendingJob) -> bool:
        """Return whether this very job is the first of its account."""
        line = None if job.account is None else self.by_account.get(job.account)
        return line is not None and line.first is job

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
    """Return a lower bound of a limit, at most an eighth below it: there are few, however many limits there are.

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
