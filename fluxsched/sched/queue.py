"""Pending jobs in order, also by account, and the interface of rules beside the resources, such as quotas.

The order is higher priority, earlier submission, the lower job id (RFC 27).

Law: adding, removing and re-prioritising cost O(log n) in each order that is kept. Jobs of priority 0 are held (RFC
21): they are in the queue but are not offered. By account, each line has the jobs that the queue offers, no more; jobs
of the highest urgency come before all accounts, in a line of their own. A line costs what is asked of it: orders other
than the queue's are sorted on first use, and then kept.

Waiting jobs in one order, as sorted chunks, and the orders in which a policy may try them (option `order`).

Law: adding and removing cost O(log n) and move at most one chunk; a walk stays valid while jobs come and go. Each chunk
counts its shapes, so a walk skips a chunk in which every shape has failed already: at a million jobs of a few shapes a
pass goes over the chunks, not over the jobs. Every order is total and stable, with ties in the order of the queue; a
job without a limit counts as endless. All but one are fixed for a job, so the queue keeps them like its own; `lxf`
changes with time and is sorted each time.

Interface of rules beside the resources by which jobs may start, such as quotas.

Law: the scheduler carries the `AdmissionTerms` of a job and never reads them. It asks the admission before a job with
terms starts, and tells it what each holds; jobs without terms start without it. `AdmissionControl` itself has no rules.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from itertools import chain, islice
from math import frexp, inf, ldexp
from typing import Any, Final, NamedTuple, TypeAlias, cast

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts
from fluxsched.errors import LimitExceeded, LocalProtocolError
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.fair.order import FairOrder
from fluxsched.sched.fair.usage import UsageBook
from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.pool.pool import Pool

CHUNK = 512
"""Jobs of a chunk after a split, and half the most: moving 4 KiB of pointers costs less than a microsecond."""

CHUNKS_SKIPPED: Final = 8
"""Chunks that a walk skips before its caller may pause: at most 8,192 jobs, about a millisecond."""

JOBS_FIRST: Final = 64
"""Jobs that a walk takes at first; then eight times as many, up to a chunk: many walks do not go far."""

QueueKey: TypeAlias = tuple[Any, ...]
"""Sort key of a job; it ends with the job id, so no two are equal."""


class AdmissionTerms:
    """Terms on which a job is admitted, known to the admission of its scheduler alone (`sched.queue`)."""

    __slots__ = ()


class PendingJob(NamedTuple):
    """One waiting job, as policies see it; times in seconds, `duration_s` 0.0 for no limit.

    `account` is None unless a policy asks for accounts; `preemptible_after_s` is None if the job may not be preempted.
    `terms` are those on which the scheduler's admission lets it start, None for a job that it need not admit.
    `sort` is the tuple of the plugin that sorts its queue, else empty; `queue` is the name of its queue, and
    `name` its own, or empty.
    """

    jobid: int
    priority: int
    userid: int
    t_submit_s: float
    shape: Shape
    duration_s: float
    account: Account | None = None
    preemptible_after_s: float | None = None
    terms: AdmissionTerms | None = None
    sort: tuple[Any, ...] = ()
    queue: str = ""
    name: str = ""

    @property
    def request(self) -> Request:
        """Return the request of the job."""
        return self.shape.request

    @property
    def key(self) -> QueueKey:
        """The order of a queue: higher priority first, then earlier submission, then the lower id (RFC 27).

        What a plugin sorts by comes before all that.
        """
        key = (-self.priority, self.t_submit_s, self.jobid)
        return (*self.sort, *key) if self.sort else key

    @property
    def limit_s(self) -> float:
        """Return the time limit of the job; `inf` without a limit."""
        return self.duration_s or inf


def warn_of_end(name: str, instead: str) -> None:
    """Warn the policy that uses this name of 0.1.0. It is a FutureWarning, since Python hides a DeprecationWarning in
    modules that others load, as policies are.
    """
    warnings.warn(f"{name} goes with the next version: {instead} instead", FutureWarning, stacklevel=3)


class Skips:
    """Shapes that a pass need not look at again, by number: `unfit` fit nowhere, `long` only for short jobs.

    `long` has the shortest limit (seconds) that was too long. Less and less is free within a pass, so what failed once
    fails for the rest of it; with `by_limit`, since outages are ahead, not for jobs with a shorter limit.
    """

    __slots__ = ("by_limit", "long", "unfit")

    def __init__(self) -> None:
        self.by_limit = False
        self.unfit: set[int] = set()
        self.long: dict[int, float] = {}

    def see_shapes(self, numbers: Iterable[int]) -> None:
        """Add those of the shapes in a stretch of the queue that are known to fail; called before its jobs are
        offered.
        """

    @property
    def kinds(self) -> set[int]:
        """Return a set for policies of 0.1.0 that add to it instead of `fits_nowhere`; that has no effect but longer
        walks.
        """
        warn_of_end("Skips.kinds", "call fits_nowhere(job)")
        return set()

    def fits_nowhere(self, job: PendingJob) -> None:
        """Record that the job does not fit now, and so no other one of its shape does, with this limit or longer."""
        if self.by_limit:
            self.too_long(job, job.limit_s)
        else:
            self.unfit.add(job.shape.number)

    def too_long(self, job: PendingJob, limit_s: float) -> None:
        """Record that a job with this limit would delay a reservation, and so would a longer one of its shape."""
        number = job.shape.number
        self.long[number] = min(limit_s, self.long.get(number, inf))


class _Chunk:
    """Consecutive jobs, their keys, and the number of jobs of each shape, by its number."""

    __slots__ = ("jobs", "keys", "shapes")

    def __init__(self, keys: list[QueueKey], jobs: list[PendingJob], shapes: dict[int, int]) -> None:
        self.keys = keys
        self.jobs = jobs
        self.shapes = shapes


class SortedJobs:
    """Jobs in order of their keys."""

    def __init__(self) -> None:
        self.chunks: list[_Chunk] = []  # changed here alone; none is empty
        self._lasts: list[QueueKey] = []  # the last key of each chunk
        self._changes = 0
        self.size = 0

    def __iter__(self) -> Iterator[PendingJob]:
        """Yield all jobs; nothing may change meanwhile."""
        return (job for chunk in self.chunks for job in chunk.jobs)

    def add(self, key: QueueKey, job: PendingJob) -> None:
        """Add a job that is not in the list."""
        self._changes += 1
        self.size += 1
        lasts = self._lasts
        if not lasts:
            self.chunks.append(_Chunk([key], [job], {job.shape.number: 1}))
            lasts.append(key)
            return
        at = bisect_left(lasts, key, 0, len(lasts) - 1) if len(lasts) > 1 else 0
        chunk = self.chunks[at]
        keys, jobs, shapes = chunk.keys, chunk.jobs, chunk.shapes
        if key > lasts[at]:  # most jobs arrive at the end
            keys.append(key)
            jobs.append(job)
            lasts[at] = key
        else:
            place = bisect_left(keys, key)
            keys.insert(place, key)
            jobs.insert(place, job)
        number = job.shape.number
        shapes[number] = shapes.get(number, 0) + 1
        if len(keys) > 2 * CHUNK:
            halves = (keys[:CHUNK], jobs[:CHUNK]), (keys[CHUNK:], jobs[CHUNK:])
            self.chunks[at : at + 1] = [
                _Chunk(keys, jobs, Counter([job.shape.number for job in jobs])) for keys, jobs in halves
            ]
            lasts[at : at + 1] = [keys[CHUNK - 1], keys[-1]]

    def remove(self, key: QueueKey) -> None:
        """Remove the job with this key."""
        self._changes += 1
        self.size -= 1
        lasts = self._lasts
        at = bisect_left(lasts, key, 0, len(lasts) - 1) if len(lasts) > 1 else 0
        chunk = self.chunks[at]
        keys = chunk.keys
        if len(keys) == 1:
            del self.chunks[at], lasts[at]
            return
        place = 0 if keys[0] == key else bisect_left(keys, key)  # most jobs leave from the front
        del keys[place]
        lasts[at] = keys[-1]
        number, shapes = chunk.jobs.pop(place).shape.number, chunk.shapes
        if shapes[number] > 1:
            shapes[number] -= 1
        else:
            del shapes[number]

    def shapes(self) -> Iterator[tuple[Shape, int]]:
        """Yield the different shapes of each chunk, and how many of its jobs are of each; mostly linear in the
        chunks.
        """
        known: dict[int, Shape] = {}
        for chunk in self.chunks:
            if not known.keys() >= chunk.shapes.keys():
                known.update([(job.shape.number, job.shape) for job in chunk.jobs])
            for number, count in chunk.shapes.items():
                yield known[number], count

    def before(self, key: QueueKey) -> int:
        """Return the number of jobs before one with this key, which need not be in the list."""
        at = bisect_left(self._lasts, key)
        if at == len(self.chunks):
            return self.size
        return sum(len(chunk.jobs) for chunk in self.chunks[:at]) + bisect_left(self.chunks[at].keys, key)

    def has(self, key: QueueKey, job: PendingJob) -> bool:
        """Return whether this very job is in the list."""
        at = bisect_left(self._lasts, key)
        if at == len(self.chunks):
            return False
        chunk = self.chunks[at]
        return chunk.jobs[bisect_left(chunk.keys, key)] is job

    def walk(self, skips: Skips) -> Iterator[PendingJob | None]:
        """Jobs in order without those that `skips` names, now or later; None after CHUNKS_SKIPPED chunks without one.

        A job that is added meanwhile may be met or not; none is met twice, or after it was removed.
        """
        unfit, long = skips.unfit, skips.long
        last: QueueKey | None = None
        silent, step = 0, JOBS_FIRST
        while (at := 0 if last is None else bisect_right(self._lasts, last)) < len(self.chunks):
            silent += 1
            if silent > CHUNKS_SKIPPED:
                silent = 0
                yield None
                continue  # from `last`, since the chunks may have changed
            chunk = self.chunks[at]
            skips.see_shapes(chunk.shapes)
            if unfit and unfit.issuperset(chunk.shapes):
                last = self._lasts[at]
                continue
            seen = self._changes
            begin = 0 if last is None else bisect_right(chunk.keys, last)
            keys, jobs = chunk.keys[begin : begin + step], chunk.jobs[begin : begin + step]
            step = 8 * step if step < CHUNK else step
            for key, job in zip(keys, jobs):  # noqa: B905 - once a walk, and the keyword costs
                number = job[4].number  # `shape`, and below `duration_s`: names of a tuple cost more, job by job
                if number in unfit or (number in long and (job[5] or inf) >= long[number]):
                    continue
                if seen == self._changes or self.has(key, job):
                    silent = 0
                    yield job
            last = keys[-1]


# ---- orders of jobs

FIFO: Final = "fifo"
"""The order of the queue."""

LXF: Final = "lxf"
"""Largest expansion factor first: (time waited + limit) / limit, so that short jobs do not wait long."""


def cores_asked(request: Request) -> int:
    """Return the least number of cores of a request, over all its nodes; a whole node counts as what it asks for."""
    return request.least_cores if request.parts else request.least_nodes * request.slots.min * request.cores


FIXED: Final[Mapping[str, Callable[[PendingJob], tuple[Any, ...]]]] = {
    "sjf": lambda job: (job.limit_s, *job.key),
    "ljf": lambda job: (-job.limit_s, *job.key),
    "saf": lambda job: (job.limit_s * cores_asked(job.request), *job.key),
    "laf": lambda job: (-job.limit_s * cores_asked(job.request), *job.key),
    "sqf": lambda job: (cores_asked(job.request), *job.key),
    "lqf": lambda job: (-cores_asked(job.request), *job.key),
}
"""Shortest and longest limit, smallest and largest area (limit times cores), fewest and most cores first."""

ORDERS: Final = (FIFO, *FIXED, LXF)


def expansion(job: PendingJob, now_s: float) -> float:
    """(time waited + limit) / limit; 1.0 for a job without a limit."""
    return 1.0 + (now_s - job.t_submit_s) / job.limit_s


def key_of(order: str, now_s: float) -> Callable[[PendingJob], tuple[Any, ...]]:
    """Return the sort key of jobs in one of the ORDERS."""
    if order == LXF:
        return lambda job: (-expansion(job, now_s), *job.key)
    return FIXED.get(order) or (lambda job: job.key)


# ---- rules beside the resources


class Exceeded(NamedTuple):
    """Bound that a start would exceed: of a queue, or of a user or group (`is_limit`).

    `is_of_root`: the capacity of all nodes, which a reason about nodes explains better where none has room.
    """

    is_limit: bool
    text: str
    is_of_root: bool = False


class JobIndex:
    """Pending jobs of a queue that may start, in an order of the admission, for a policy that knows it."""

    __slots__ = ()

    def add(self, job: PendingJob) -> None:
        """Add a job that may start from now on."""

    def remove(self, job: PendingJob) -> None:
        """Remove a job that starts, or may not start any more."""


class AdmissionControl:
    """Rules of one scheduler, and the record of what jobs with terms hold.

    `is_open_ended`: targets may come at any time and no job has an end that is known, so that no request is infeasible
    and no start is forecast. `preemption_rate` is the most preemptions in a window (seconds), None for the usual one.
    """

    __slots__ = ("is_open_ended", "preemption_rate")

    def __init__(self, is_open_ended: bool = False, preemption_rate: tuple[int, float] | None = None) -> None:
        self.is_open_ended = is_open_ended
        self.preemption_rate = preemption_rate

    @property
    def generation(self) -> int:
        """Return a number that is another one after each change by which a job may start."""
        return -1

    def renew(self) -> None:
        """Begin another generation, since something has happened in a group."""

    def index(self, pool: Pool) -> JobIndex | None:
        """Return a new index of pending jobs for a queue on these targets, None where the queue's order is enough."""
        return None

    def change_capacity(self, pool: Pool, targets: Idset, sign: int) -> None:
        """Count these targets of a pool, or (sign -1) count them no more."""

    def admits(self, terms: AdmissionTerms, amounts: Amounts) -> bool:
        """Return whether these amounts more exceed no bound."""
        return True

    def exceeded(self, terms: AdmissionTerms, amounts: Amounts) -> Exceeded | None:
        """Return the first bound that these amounts more would exceed, None if there is none."""
        return None

    def book(self, terms: AdmissionTerms, jobid: int, amounts: Amounts) -> None:
        """Add amounts to what a job holds."""

    def free(self, terms: AdmissionTerms, jobid: int, amounts: Amounts, all_of_it: bool) -> None:
        """Subtract amounts from what a job holds, or remove the job."""

    def describe(self, terms: AdmissionTerms) -> str:
        """Return to what a job belongs, in words for people, behind "waits"."""
        return ""

    def check(self, held: Iterable[tuple[int, AdmissionTerms, Amounts]]) -> None:
        """Assert that these jobs hold what is booked."""


# ---- pending jobs

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


# ---- lines of accounts

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
