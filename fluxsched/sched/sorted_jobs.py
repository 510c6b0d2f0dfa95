"""Waiting jobs in one order, as sorted chunks, and the orders in which a policy may try them (option `order`).

Law: adding and removing cost O(log n) and move at most one chunk; a walk stays valid while jobs come and go. Each chunk
counts its shapes, so a walk skips a chunk in which every shape has failed already: at a million jobs of a few shapes a
pass goes over the chunks, not over the jobs. Every order is total and stable, with ties in the order of the queue; a
job without a limit counts as endless. All but one are fixed for a job, so the queue keeps them like its own; `lxf`
changes with time and is sorted each time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from fluxsched.core.jobspec import Request
from fluxsched.sched.fair.accounts import Account
from fluxsched.sched.pool.placement import Shape

CHUNK = 512
"""Jobs of a chunk after a split, and half the most: moving 4 KiB of pointers costs less than a microsecond."""

CHUNKS_SKIPPED: Final = 8
"""Chunks that a walk skips before its caller may pause: at most 8,192 jobs, about a millisecond."""

JOBS_FIRST: Final = 64
"""Jobs that a walk takes at first; then eight times as many, up to a chunk: many walks do not go far."""

QueueKey: TypeAlias = tuple[Any, ...]
"""Sort key of a job; it ends with the job id, so no two are equal."""


class AdmissionTerms:
    """Terms on which a job is admitted, known to the admission of its scheduler alone (`sched.admission`)."""

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
        """Add those of the shapes in a stretch of the queue that are known to fail; called before its jobs are offered.
        """

    @property
    def kinds(self) -> set[int]:
        """Return a set for policies of 0.1.0 that add to it instead of `fits_nowhere`; that has no effect but longer
        walks.
        """
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
        """Yield the different shapes of each chunk, and how many of its jobs are of each; mostly linear in the chunks.
        """
        known: dict[int, Shape] = {}
        for chunk in self.chunks:
            if not known.keys() >= chunk.shapes.keys():
                known.update([(job.shape.number, job.shape) for job in chunk.jobs])
            for number, count in chunk.shapes.items():
                yield known[number], count

    def before(self, key: QueueKey) -> int:
        """Return the number of jobs before the one with this key, which is in the list."""
        at = bisect_left(self._lasts, key)
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


# ---- orders

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
