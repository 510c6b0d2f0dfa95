"""Running jobs by the time at which they are to end, with running sums of what each will free.

Law: adding and removing cost O(log n) and move at most one chunk; the question "from when on will so much have been
freed" skips whole chunks by their sums. Jobs without an end (`math.inf`) come last and are never waited for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Final, NamedTuple

from fluxsched.errors import LocalProtocolError

CHUNK = 256
"""Releases a chunk at rest (at most twice that): 40 chunks at 10,000 running jobs, so both levels stay short."""


class JobRelease(NamedTuple):
    """`end_s` is wall time in seconds, `math.inf` for none; `weight` counts what the job frees then."""

    end_s: float
    jobid: int
    weight: int


class ReleaseIndex:
    """A sorted list in chunks; iterating gives the earliest first, jobs that end together by job id."""

    def __init__(self) -> None:
        self._by_job: dict[int, JobRelease] = {}
        self._chunks: list[list[JobRelease]] = []
        self._lasts: list[JobRelease] = []
        self._sums: list[int] = []
        self.weight = 0

    def __len__(self) -> int:
        return len(self._by_job)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._by_job

    def __iter__(self) -> Iterator[JobRelease]:
        """From the earliest; nothing may be added or removed meanwhile."""
        return chain.from_iterable(self._chunks)

    @property
    def first_s(self) -> float:
        """The earliest end; `inf` if there is none."""
        return self._chunks[0][0].end_s if self._chunks else inf

    def get(self, jobid: int) -> JobRelease | None:
        return self._by_job.get(jobid)

    def weight_of(self, jobid: int) -> int:
        """What the job frees; 0 if it is not here."""
        release = self._by_job.get(jobid)
        return 0 if release is None else release.weight

    def add(self, jobid: int, end_s: float, weight: int) -> None:
        """A job begins. Raises LocalProtocolError if it is here already."""
        if jobid in self._by_job:
            raise LocalProtocolError(f"job {jobid} is among the running jobs already")
        release = self._by_job[jobid] = _ending(JobRelease, (end_s, jobid, weight))
        self.weight += weight
        chunks, lasts, sums = self._chunks, self._lasts, self._sums
        if not chunks:
            chunks.append([release])
            lasts.append(release)
            sums.append(weight)
            return
        last = len(lasts) - 1
        at = bisect_left(lasts, release, 0, last) if last else 0
        chunk = chunks[at]
        insort(chunk, release)
        lasts[at] = chunk[-1]
        sums[at] += weight
        if len(chunk) > 2 * CHUNK:
            self._split(at)

    def remove(self, jobid: int) -> JobRelease | None:
        """A job is over, or holds nothing any more; None if it is not here."""
        release = self._by_job.pop(jobid, None)
        if release is None:
            return None
        self.weight -= release[2]
        lasts = self._lasts
        last = len(lasts) - 1
        at = bisect_left(lasts, release, 0, last) if last else 0
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, release)]
        if chunk:
            lasts[at] = chunk[-1]
            self._sums[at] -= release[2]
        else:
            del self._chunks[at], self._lasts[at], self._sums[at]
        return release

    def change(self, jobid: int, end_s: float | None = None, weight: int | None = None) -> bool:
        """Another end or weight (part of the job was freed); False if the job is not here."""
        old = self.remove(jobid)
        if old is None:
            return False
        self.add(jobid, old.end_s if end_s is None else end_s, old.weight if weight is None else weight)
        return True

    def when(self, weight: int) -> tuple[float, int]:
        """The earliest end by which jobs free `weight` in all, and how much they do by then; `inf` if never.

        Those that end together are all included. 0 or less is freed already: `-inf`, and 0.
        """
        if weight <= 0:
            return -inf, 0
        left = weight
        for at, total in enumerate(self._sums):
            if left > total:
                left -= total
                continue
            ends = chain.from_iterable(self._chunks[at:] if at else self._chunks)
            for end_s, _, each in ends:
                left -= each
                if left <= 0:
                    when_s = end_s
                    break
            for end_s, _, each in ends:
                if end_s > when_s:
                    break
                left -= each
            return when_s, weight - left
        return inf, weight - left

    def given_by(self, end_s: float) -> int:
        """How much all jobs that end at `end_s` or before free."""
        after = JobRelease(end_s, _AFTER_ALL_JOBIDS, 0)
        at = bisect_left(self._lasts, after)
        total = sum(self._sums[:at])
        if at < len(self._chunks):
            chunk = self._chunks[at]
            total += sum(map(_weight, chunk[: bisect_left(chunk, after)]))
        return total

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        rest = chunk[CHUNK:]
        del chunk[CHUNK:]
        moved = sum(map(_weight, rest))
        self._chunks.insert(at + 1, rest)
        self._lasts[at : at + 1] = [chunk[-1], rest[-1]]
        self._sums[at : at + 1] = [self._sums[at] - moved, moved]


_weight: Final = itemgetter(2)
_ending: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once a job
_AFTER_ALL_JOBIDS: Final = 1 << 64
"""Job ids have 64 bits (RFC 19)."""
