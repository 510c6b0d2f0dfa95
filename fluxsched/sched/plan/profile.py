"""How many cores are free from when to when, if running jobs end by their limits and reservations are kept.

Law: only counts, so it is exact where any free cores are as good as any others (`base.py`). Steps are kept in chunks
with their extremes, so that a search compares two numbers for a whole chunk. The time of the pass is the first instant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import inf, nextafter
from operator import itemgetter

from fluxsched.sched.plan.releases import ReleaseIndex

CHUNK = 64
"""Steps a chunk at rest (at most twice that): 200 chunks with 10,000 running jobs and 1,000 reservations."""

_end_s, _weight = itemgetter(0), itemgetter(2)


class Profile:
    """Free cores over time: what is `free` now and what `releases` free, less what is taken here.

    Chunk `c` has the times at which its steps begin and what is free in each, still to be lessened by `owed[c]`;
    `least[c]` and `most[c]` are its extremes, and `firsts[c]` is when it begins. `bounds` has, by number of cores,
    limits and the times before which no job with such a limit, or a longer one, can start, until something is freed.
    """

    __slots__ = ("_bounds", "_firsts", "_free", "_least", "_most", "_now_s", "_owed", "_times")

    def __init__(self, releases: ReleaseIndex, free: int, now_s: float) -> None:
        ends: list[float] = [now_s, *map(_end_s, releases)]
        levels: list[int] = list(accumulate(map(_weight, releases), initial=free))
        late = bisect_right(ends, nextafter(now_s, inf), lo=1)
        if late > 1:  # a job past its end still runs, and may end at any time from now on
            ends[1:late] = [nextafter(now_s, inf)] * (late - 1)
        steps = dict(zip(ends, levels, strict=True))  # of jobs that end together the last one says what is free then
        steps.pop(inf, None)
        times, free_of = list(steps), list(steps.values())
        self._now_s = now_s
        self._bounds: dict[int, tuple[list[float], list[float]]] = {}
        self._times = [times[at : at + CHUNK] for at in range(0, len(times), CHUNK)]
        self._free = [free_of[at : at + CHUNK] for at in range(0, len(times), CHUNK)]
        self._firsts = [chunk[0] for chunk in self._times]
        self._owed = [0] * len(self._firsts)
        self._least = [chunk[0] for chunk in self._free]
        self._most = [chunk[-1] for chunk in self._free]

    def take(self, start_s: float, end_s: float, cores: int) -> None:
        """Reserves cores from `start_s` (now or later) to before `end_s`; a negative number gives them back."""
        if cores < 0:
            self._bounds.clear()
        firsts = self._firsts
        first, last = bisect_right(firsts, start_s) - 1, bisect_left(firsts, end_s) - 1
        if first < last:  # from behind, since chunks may be split
            self._take_in(last, firsts[last], end_s, cores)
            end_s = firsts[first + 1]
            for totals in (self._least, self._most):
                totals[first + 1 : last] = [count - cores for count in totals[first + 1 : last]]
            self._owed[first + 1 : last] = [owed + cores for owed in self._owed[first + 1 : last]]
        self._take_in(first, start_s, end_s, cores)

    def advance(self, now_s: float) -> None:
        """Time has gone on, and nothing else has happened."""
        self._now_s = now_s
        passed = bisect_right(self._firsts, now_s) - 1
        if passed > 0:
            for chunks in (self._times, self._free, self._firsts, self._owed, self._least, self._most):
                del chunks[:passed]

    def earliest(self, cores: int, limit_s: float) -> float:
        """The first instant from which on so many are free for so long; `inf` if never."""
        bounds = self._bounds.get(cores)
        if bounds is None:
            bounds = self._bounds[cores] = [0.0], [-inf]
        limits, starts = bounds
        at = bisect_right(limits, limit_s)
        bound_s = starts[at - 1]
        found_s = self._search(cores, limit_s, bound_s if bound_s > self._now_s else self._now_s)
        if found_s > bound_s:
            until = bisect_right(starts, found_s, at)
            if limits[at - 1] == limit_s:
                at -= 1
            limits[at:until] = [limit_s]
            starts[at:until] = [found_s]
        return found_s

    def fits(self, start_s: float, limit_s: float, cores: int) -> bool:
        """Whether so many are free from `start_s` on for so long."""
        return self._search(cores, limit_s, start_s, start_s) == start_s

    def free_until_s(self, cores: int) -> float:
        """Until when, from now on, so many are free: now if they are not, `inf` if for ever."""
        now_s = self._now_s
        first = bisect_right(self._firsts, now_s) - 1
        for chunk in range(first, len(self._firsts)):
            if self._least[chunk] < cores:
                times, free, need = self._times[chunk], self._free[chunk], cores + self._owed[chunk]
                for step in range(bisect_right(times, now_s) - 1 if chunk == first else 0, len(times)):
                    if free[step] < need:
                        return max(times[step], now_s)
        return inf

    def _search(self, cores: int, limit_s: float, from_s: float, until_s: float = inf) -> float:
        """The earliest start at `from_s` or later; `inf` when there is none up to `until_s`."""
        firsts, least, most = self._firsts, self._least, self._most
        start_s, chunks = from_s, len(firsts)
        chunk = bisect_right(firsts, start_s) - 1
        end_s = start_s + limit_s
        while start_s <= until_s and start_s < inf:
            if least[chunk] < cores:
                if most[chunk] < cores:  # not enough anywhere in this chunk, nor in some that follow
                    chunk += 1
                    while chunk < chunks and most[chunk] < cores:
                        chunk += 1
                    if chunk == chunks:
                        return inf
                    start_s = firsts[chunk]
                    end_s = start_s + limit_s
                    continue
                start_s = self._within(chunk, cores, limit_s, start_s)
                end_s = start_s + limit_s
            chunk += 1
            if chunk == chunks or firsts[chunk] >= end_s:
                break
        return start_s if start_s <= until_s else inf

    def _within(self, chunk: int, cores: int, limit_s: float, start_s: float) -> float:
        """The earliest start that nothing in this chunk forbids; the start of the next chunk if there is none."""
        times, free, need = self._times[chunk], self._free[chunk], cores + self._owed[chunk]
        first, steps = max(bisect_right(times, start_s) - 1, 0), len(times)
        end_s, chunk_end_s = start_s + limit_s, self._end_of(chunk)
        if end_s >= chunk_end_s:  # what lacks last decides: it forbids every start before
            for step in range(steps - 1, first - 1, -1):
                if free[step] < need:
                    return times[step + 1] if step + 1 < steps else chunk_end_s
            return start_s
        lacking = False
        for step in range(first, steps):
            if free[step] < need:
                if not lacking:
                    if times[step] >= end_s:
                        return start_s
                    lacking = True
            elif lacking:
                lacking = False
                start_s = times[step]
                end_s = start_s + limit_s
        return chunk_end_s if lacking else start_s

    def _end_of(self, chunk: int) -> float:
        return self._firsts[chunk + 1] if chunk + 1 < len(self._firsts) else inf

    def _take_in(self, chunk: int, start_s: float, end_s: float, cores: int) -> None:
        """The same within one chunk; steps that begin and end then are made if there are none."""
        times, free, owed = self._times[chunk], self._free[chunk], self._owed[chunk]
        first = bisect_left(times, start_s)
        if first == len(times) or times[first] != start_s:
            times.insert(first, start_s)
            free.insert(first, free[first - 1])
        last = len(times)
        if end_s < self._end_of(chunk):
            last = bisect_left(times, end_s, first)
            if last == len(times) or times[last] != end_s:
                times.insert(last, end_s)
                free.insert(last, free[last - 1])
        free[first:last] = [count - cores for count in free[first:last]]
        self._least[chunk] = min(free) - owed
        self._most[chunk] = max(free) - owed
        if len(times) > 2 * CHUNK:
            self._split(chunk)

    def _split(self, chunk: int) -> None:
        times, free, owed = self._times[chunk], self._free[chunk], self._owed[chunk]
        self._times[chunk : chunk + 1] = times[:CHUNK], times[CHUNK:]
        self._free[chunk : chunk + 1] = free[:CHUNK], free[CHUNK:]
        self._owed[chunk : chunk + 1] = owed, owed
        self._firsts[chunk : chunk + 1] = times[0], times[CHUNK]
        self._least[chunk : chunk + 1] = min(free[:CHUNK]) - owed, min(free[CHUNK:]) - owed
        self._most[chunk : chunk + 1] = max(free[:CHUNK]) - owed, max(free[CHUNK:]) - owed
