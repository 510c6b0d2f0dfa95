"""Who waits, in order: higher priority first, then who submitted earlier, then the lower job id (RFC 27).

Law: adding, taking away and re-prioritising cost O(log n); iterating stays valid while jobs come and go. Keys are kept
sorted in chunks, so that a change moves at most one chunk. Jobs of priority 0 are held (RFC 21): they are in the queue
but are not offered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from fluxsched.core.jobspec import Request
from fluxsched.errors import LimitExceeded, LocalProtocolError

WAITING_MAX = 2_000_000
"""Jobs in one queue: twice the million that RFC 27 asks for; about 1 KiB each, so 2 GiB is where we stop."""

CHUNK = 512
"""Keys a chunk at rest (at most twice that): moving 4 KiB of pointers costs less than a microsecond."""

Key = tuple[int, float, int]


class Waiting(NamedTuple):
    """One waiting job, as policies see it; times in seconds, `duration_s` 0.0 for no limit."""

    jobid: int
    priority: int
    userid: int
    t_submit_s: float
    request: Request
    duration_s: float

    @property
    def key(self) -> Key:
        return (-self.priority, self.t_submit_s, self.jobid)


class Queue:
    """The waiting jobs of one group."""

    def __init__(self, limit: int = WAITING_MAX) -> None:
        self._limit = limit
        self._jobs: dict[int, Waiting] = {}
        self._chunks: list[list[Key]] = []
        self._lasts: list[Key] = []  # the last key of each chunk

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._jobs

    def get(self, jobid: int) -> Waiting | None:
        return self._jobs.get(jobid)

    def everyone(self) -> list[Waiting]:
        """All jobs, held ones too, in order."""
        return [self._jobs[key[2]] for chunk in self._chunks for key in chunk]

    def __iter__(self) -> Iterator[Waiting]:
        """Jobs that may start, in order; what is added or removed meanwhile is met or not, never met twice or wrong."""
        last: Key | None = None
        while (at := 0 if last is None else bisect_right(self._lasts, last)) < len(self._chunks):
            chunk = self._chunks[at]
            for key in chunk[0 if last is None else bisect_right(chunk, last) :]:
                last = key
                if not key[0]:
                    return  # held, and so is everyone behind
                job = self._jobs.get(key[2])
                if job is not None and job.priority == -key[0]:
                    yield job

    def add(self, job: Waiting) -> None:
        """Raises LimitExceeded when the queue is full."""
        if job.jobid in self._jobs:
            raise LocalProtocolError(f"job {job.jobid} is in the queue already")
        if len(self._jobs) >= self._limit:
            raise LimitExceeded(f"the queue is full: {self._limit} jobs wait; submit again when some have started")
        self._jobs[job.jobid] = job
        self._insert(job.key)

    def remove(self, jobid: int) -> Waiting | None:
        """The job, off the queue; None if it is not there."""
        job = self._jobs.pop(jobid, None)
        if job is not None:
            self._delete(job.key)
        return job

    def prioritize(self, jobid: int, priority: int) -> bool:
        """Whether the job is there; it moves to its new place."""
        job = self._jobs.get(jobid)
        if job is None:
            return False
        self._delete(job.key)
        job = self._jobs[jobid] = job._replace(priority=priority)
        self._insert(job.key)
        return True

    def ahead_of(self, jobid: int) -> int:
        """How many jobs come before this one, which is in the queue."""
        key = self._jobs[jobid].key
        at = bisect_left(self._lasts, key)
        return sum(map(len, self._chunks[:at])) + bisect_left(self._chunks[at], key)

    def _insert(self, key: Key) -> None:
        chunks, lasts = self._chunks, self._lasts
        if not chunks:
            chunks.append([key])
            lasts.append(key)
            return
        at = min(bisect_left(lasts, key), len(chunks) - 1)
        chunk = chunks[at]
        insort(chunk, key)
        if len(chunk) > 2 * CHUNK:
            chunks.insert(at + 1, chunk[CHUNK:])
            del chunk[CHUNK:]
            lasts.insert(at + 1, chunks[at + 1][-1])
        lasts[at] = chunk[-1]

    def _delete(self, key: Key) -> None:
        at = bisect_left(self._lasts, key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]
