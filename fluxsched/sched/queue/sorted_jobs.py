"""Waiting jobs in one order, as sorted chunks: the queue keeps one jobs, and one more for each order asked for.

Law: adding and taking away cost O(log n) and move at most one chunk; walking stays valid while jobs come and go. Each
chunk counts its requests, so that a walk steps over a chunk in which every request has failed already: at a million
jobs of a few kinds a pass looks at the chunks, not at the jobs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, NamedTuple

from fluxsched.core.jobspec import Request
from fluxsched.sched.shape import Shape

CHUNK = 512
"""Entries a chunk at rest (at most twice that): moving 4 KiB of pointers costs less than a microsecond."""

CHUNKS_SKIPPED = 8
"""Chunks that a walk skips at most before it lets its caller look up: at most 8,192 jobs, about a millisecond."""

JOBS_FIRST = 64
"""Jobs that a walk looks at first; then eight times as many, up to a chunk: many walks do not go far."""

Entry = tuple[Any, ...]
"""A sort key that ends with the job id, then the job: the id is unique, so jobs are never compared."""


class Waiting(NamedTuple):
    """One waiting job, as policies see it; times in seconds, `duration_s` 0.0 for no limit."""

    jobid: int
    priority: int
    userid: int
    t_submit_s: float
    shape: Shape
    duration_s: float

    @property
    def request(self) -> Request:
        """What the job asks for."""
        return self.shape.request

    @property
    def key(self) -> tuple[int, float, int]:
        """The order of a queue: higher priority first, then earlier submission, then the lower id (RFC 27)."""
        return (-self.priority, self.t_submit_s, self.jobid)

    @property
    def limit_s(self) -> float:
        """How long the job may run; `inf` without a limit."""
        return self.duration_s or inf


class Skips:
    """What a pass need not look at again, by number of shape: `unfit` fit nowhere, `long` only for short jobs.

    `long` has the shortest limit (seconds) that was too long. Less and less is free within a pass, so what failed once
    fails for the rest of it.
    """

    __slots__ = ("long", "unfit")

    def __init__(self) -> None:
        self.unfit: set[int] = set()
        self.long: dict[int, float] = {}

    def see_shapes(self, numbers: Iterable[int]) -> None:
        """Called with the shapes in a stretch of the queue before its jobs are offered: adds those known to fail."""

    @property
    def kinds(self) -> set[int]:
        """What policies of 0.1.0 add to instead of `fits_nowhere`: without effect, their walks only meet more jobs."""
        return set()

    def fits_nowhere(self, job: Waiting) -> None:
        """The job does not fit now, so no other one of its shape does."""
        self.unfit.add(job.shape.number)

    def too_long(self, job: Waiting, limit_s: float) -> None:
        """With this limit the job would delay a reservation, and so would a longer one of its shape."""
        number = job.shape.number
        self.long[number] = min(limit_s, self.long.get(number, inf))


class _Chunk:
    __slots__ = ("entries", "shapes")

    def __init__(self, entries: list[Entry], shapes: dict[int, int]) -> None:
        self.entries = entries
        self.shapes = shapes  # number -> how many entries are of it


class SortedJobs:
    """Entries in order."""

    def __init__(self) -> None:
        self.chunks: list[_Chunk] = []  # changed here alone; none is empty
        self._lasts: list[Entry] = []  # the last entry of each chunk
        self._changes = 0
        self.size = 0

    def __iter__(self) -> Iterator[Entry]:
        """All entries; nothing may change meanwhile."""
        return (entry for chunk in self.chunks for entry in chunk.entries)

    def add(self, entry: Entry) -> None:
        """Puts in an entry that is not there."""
        self._changes += 1
        self.size += 1
        chunks, lasts = self.chunks, self._lasts
        number = entry[-1].shape.number
        if not chunks:
            chunks.append(_Chunk([entry], {number: 1}))
            lasts.append(entry)
            return
        at = bisect_left(lasts, entry, 0, len(lasts) - 1)
        chunk = chunks[at]
        entries, shapes = chunk.entries, chunk.shapes
        insort(entries, entry)
        lasts[at] = entries[-1]
        shapes[number] = shapes.get(number, 0) + 1
        if len(entries) > 2 * CHUNK:
            halves = entries[:CHUNK], entries[CHUNK:]
            chunks[at : at + 1] = [_Chunk(half, Counter([one[-1].shape.number for one in half])) for half in halves]
            lasts[at : at + 1] = [half[-1] for half in halves]

    def remove(self, entry: Entry) -> None:
        """Takes out an entry that is there."""
        self._changes += 1
        self.size -= 1
        at = bisect_left(self._lasts, entry, 0, len(self._lasts) - 1)
        chunk = self.chunks[at]
        entries = chunk.entries
        if len(entries) == 1:
            del self.chunks[at], self._lasts[at]
            return
        del entries[bisect_left(entries, entry)]
        self._lasts[at] = entries[-1]
        number, shapes = entry[-1].shape.number, chunk.shapes
        if shapes[number] > 1:
            shapes[number] -= 1
        else:
            del shapes[number]

    def shapes(self) -> Iterator[tuple[Shape, int]]:
        """The different shapes of each chunk, and how many entries it has of them; mostly linear in the chunks."""
        known: dict[int, Shape] = {}
        for chunk in self.chunks:
            if not known.keys() >= chunk.shapes.keys():
                known.update([(entry[-1].shape.number, entry[-1].shape) for entry in chunk.entries])
            for number, count in chunk.shapes.items():
                yield known[number], count

    def before(self, entry: Entry) -> int:
        """How many entries come before this one, which is in the jobs."""
        at = bisect_left(self._lasts, entry)
        return sum(len(chunk.entries) for chunk in self.chunks[:at]) + bisect_left(self.chunks[at].entries, entry)

    def has(self, entry: Entry) -> bool:
        """Whether this very entry is in the jobs."""
        at = bisect_left(self._lasts, entry)
        if at == len(self.chunks):
            return False
        entries = self.chunks[at].entries
        found = bisect_left(entries, entry)
        return found < len(entries) and entries[found] is entry

    def walk(self, skips: Skips) -> Iterator[Waiting | None]:
        """Jobs in order without those that `skips` names, now or later; None after CHUNKS_SKIPPED chunks without one.

        What is added or removed meanwhile is met or not, never met twice or when it is gone.
        """
        unfit, long = skips.unfit, skips.long
        last: Entry | None = None
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
            entries = chunk.entries
            seen = self._changes
            begin = 0 if last is None else bisect_right(entries, last)
            part = entries[begin : begin + step]
            step = 8 * step if step < CHUNK else step
            for entry in part:
                job = entry[-1]
                number = job.shape.number
                if number in unfit or (number in long and (job.duration_s or inf) >= long[number]):
                    continue
                if seen == self._changes or self.has(entry):
                    silent = 0
                    yield job
            last = part[-1]
