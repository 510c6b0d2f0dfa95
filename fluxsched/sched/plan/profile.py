"""How many cores are free from when to when, if running jobs end by their limits and reservations are kept.

Law: only counts, so it is exact where any free cores are as good as any others (see `base.py`). What running jobs give
back only ever grows, so within a step between two reservations the least is free at its start, the most before its end.
Steps are kept in chunks with their extremes, so that a search compares two numbers for a whole chunk. The time of the
pass is the first instant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import inf, nextafter
from operator import itemgetter
from typing import Final

from fluxsched.sched.plan.releases import ReleaseIndex

CHUNK = 32
"""Steps a chunk at rest (at most twice that); with the steps of 1,000 reservations both levels stay short."""


CLASSES: Final = 256
"""Sizes of three significant binary digits: more than any number of cores has."""

_end_s, _weight = itemgetter(0), itemgetter(2)


class FreeLevels:
    """What running jobs leave free, copied from their index when the pass begins."""

    def __init__(self, releases: ReleaseIndex, free: int, now_s: float) -> None:
        soon_s = nextafter(now_s, inf)  # a job past its end still runs, and may end at any time
        self._ends = [now_s, *map(_end_s, releases)]
        late = bisect_right(self._ends, soon_s, lo=1) - 1
        self._ends[1 : late + 1] = [soon_s] * late
        self._levels: list[int] = list(accumulate(map(_weight, releases), initial=free))

    def when(self, cores: int) -> float:
        """The first instant from which on so many are free; `inf` if never."""
        at = bisect_left(self._levels, cores)
        return self._ends[at] if at < len(self._ends) else inf

    def at(self, time_s: float) -> int:
        """How many are free at this instant, which is not before the pass."""
        return self._levels[bisect_right(self._ends, time_s) - 1]

    def before(self, time_s: float) -> int:
        """How many are free just before this instant, which is after the start of the pass."""
        return self._levels[bisect_left(self._ends, time_s) - 1]


class Profile:
    """Free cores over time: what `levels` leaves less what is taken here.

    Chunk `c` has the times at which its steps begin, and for each step what is free at its start (`low`) and just
    before its end (`high`), both still to be lessened by `owed[c]`; `least[c]` and `most[c]` are their extremes.
    """

    def __init__(self, levels: FreeLevels, now_s: float) -> None:
        self._levels = levels
        self._now_s = now_s
        low, high = levels.at(now_s), levels.at(inf)
        self._times = [[now_s]]
        self._low = [[low]]
        self._high = [[high]]
        self._owed = [0]
        self._least = [low]
        self._most = [high]
        self._firsts = [now_s]
        self._bounds = StartBounds()

    def take(self, start_s: float, end_s: float, cores: int) -> None:
        """Reserves cores from `start_s` (now or later) to before `end_s`; a negative number gives them back."""
        if cores < 0:
            self._bounds.clear()
        first, step = self._step_at(start_s)
        if end_s == inf:
            last = len(self._firsts)
        else:
            before = len(self._firsts)
            last, until = self._step_at(end_s)
            if len(self._firsts) != before:  # the chunk of the start may have been split
                first, step = self._step_at(start_s)
            if first == last:
                self._lessen(first, step, until, cores)
                return
            if until:
                self._lessen(last, 0, until, cores)
        if step:
            self._lessen(first, step, len(self._low[first]), cores)
            first += 1
        for totals in (self._least, self._most):
            totals[first:last] = [total - cores for total in totals[first:last]]
        self._owed[first:last] = [owed + cores for owed in self._owed[first:last]]

    def advance(self, now_s: float) -> None:
        """Time has gone on, and nothing else has happened."""
        self._now_s = now_s

    def earliest(self, cores: int, limit_s: float) -> float:
        """The first instant from which on so many are free for so long; `inf` if never."""
        found_s = self._search(cores, limit_s, max(self._bounds.of(cores, limit_s), self._now_s))
        self._bounds.add(cores, limit_s, found_s)
        return found_s

    def fits(self, start_s: float, limit_s: float, cores: int) -> bool:
        """Whether so many are free from `start_s` on for so long."""
        return self._search(cores, limit_s, start_s, start_s) == start_s

    def free_until_s(self, cores: int) -> float:
        """Until when, from now on, so many are free: now if they are not, `inf` if for ever."""
        now_s, levels = self._now_s, self._levels
        first = bisect_right(self._firsts, now_s) - 1
        for chunk in range(first, len(self._firsts)):
            if self._least[chunk] >= cores:
                continue
            times, lows, need = self._times[chunk], self._low[chunk], cores + self._owed[chunk]
            for step in range(bisect_right(times, now_s) - 1 if chunk == first else 0, len(times)):
                if lows[step] >= need:
                    continue
                time_s = times[step]
                if time_s >= now_s:
                    return time_s
                if levels.at(now_s) - levels.at(time_s) + lows[step] < need:  # now is within this step
                    return now_s
        return inf

    def _search(self, cores: int, limit_s: float, from_s: float, until_s: float = inf) -> float:
        """The earliest start at `from_s` or later; `inf` when there is none up to `until_s`."""
        start_s = max(from_s, self._levels.when(cores))
        firsts, least, most = self._firsts, self._least, self._most
        chunks = len(firsts)
        chunk = bisect_right(firsts, start_s) - 1
        end_s = start_s + limit_s
        while start_s <= until_s and start_s < inf:
            if least[chunk] < cores:
                if most[chunk] < cores:  # room nowhere in this chunk, nor in some that follow
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
        times, lows, highs = self._times[chunk], self._low[chunk], self._high[chunk]
        need, end_s, last = cores + self._owed[chunk], start_s + limit_s, len(times) - 1
        for step in range(max(bisect_right(times, start_s) - 1, 0), last + 1):
            if lows[step] >= need:
                continue
            time_s = times[step]
            if time_s >= end_s:
                return start_s
            next_s = times[step + 1] if step < last else self._end_of(chunk)
            if highs[step] >= need:
                taken = self._levels.at(time_s) - lows[step]
                free_s = self._levels.when(need + taken)
                if free_s <= start_s:
                    continue
                next_s = min(free_s, next_s)
            start_s = next_s
            end_s = start_s + limit_s
        return start_s

    def _end_of(self, chunk: int) -> float:
        return self._firsts[chunk + 1] if chunk + 1 < len(self._firsts) else inf

    def _lessen(self, chunk: int, first: int, last: int, cores: int) -> None:
        """Takes so many more in the steps of a chunk from `first` to before `last`."""
        lows, highs, owed = self._low[chunk], self._high[chunk], self._owed[chunk]
        lows[first:last] = [low - cores for low in lows[first:last]]
        highs[first:last] = [high - cores for high in highs[first:last]]
        self._least[chunk] = min(lows) - owed
        self._most[chunk] = max(highs) - owed

    def _step_at(self, time_s: float) -> tuple[int, int]:
        """Chunk and place of the step that begins at this time, which is made if there is none."""
        chunk = bisect_right(self._firsts, time_s) - 1
        times = self._times[chunk]
        step = bisect_left(times, time_s)
        if step < len(times) and times[step] == time_s:
            return chunk, step
        lows, highs = self._low[chunk], self._high[chunk]
        taken = self._levels.at(times[step - 1]) - lows[step - 1]
        times.insert(step, time_s)
        lows.insert(step, self._levels.at(time_s) - taken)
        highs.insert(step - 1, self._levels.before(time_s) - taken)
        if len(times) <= 2 * CHUNK:
            return chunk, step
        self._times[chunk : chunk + 1] = times[:CHUNK], times[CHUNK:]
        self._low[chunk : chunk + 1] = lows[:CHUNK], lows[CHUNK:]
        self._high[chunk : chunk + 1] = highs[:CHUNK], highs[CHUNK:]
        owed = self._owed[chunk]
        self._owed[chunk : chunk + 1] = owed, owed
        self._firsts[chunk : chunk + 1] = [steps[0] for steps in self._times[chunk : chunk + 2]]
        self._least[chunk : chunk + 1] = [min(steps) - owed for steps in self._low[chunk : chunk + 2]]
        self._most[chunk : chunk + 1] = [max(steps) - owed for steps in self._high[chunk : chunk + 2]]
        return (chunk, step) if step < CHUNK else (chunk + 1, step - CHUNK)


class StartBounds:
    """Where a search may begin: a job cannot start before one that asked for no more cores, for no longer, could.

    True as long as less and less is free, as while jobs are planned one after the other. Bounds may be too early (sizes
    are rounded to three binary digits), never too late. It is a Fenwick tree over the classes of size, whose nodes keep
    the limits at which the start becomes later: both operations cost O(log n).
    """

    def __init__(self) -> None:
        self._nodes: dict[int, tuple[list[float], list[float]]] = {}

    def of(self, cores: int, limit_s: float) -> float:
        """No start before this is possible for so many cores and so long; `-inf` if nothing is known."""
        at, found_s, nodes = _class(cores), -inf, self._nodes
        while at:
            node = nodes.get(at)
            if node is not None:
                step = bisect_right(node[0], limit_s)
                if step and node[1][step - 1] > found_s:
                    found_s = node[1][step - 1]
            at &= at - 1
        return found_s

    def add(self, cores: int, limit_s: float, start_s: float) -> None:
        """Such a job cannot start before `start_s`."""
        at = _class(cores)
        if _least(at) < cores:
            at += 1
        while at < CLASSES:
            limits, starts = self._nodes.setdefault(at, ([], []))
            step = bisect_right(limits, limit_s)
            if not step or starts[step - 1] < start_s:
                until = bisect_right(starts, start_s, lo=step)
                if step and limits[step - 1] == limit_s:
                    step -= 1
                limits[step:until] = [limit_s]
                starts[step:until] = [start_s]
            at += at & -at

    def clear(self) -> None:
        """More is free than was."""
        self._nodes.clear()


def _class(cores: int) -> int:
    """Sizes below 8 for themselves, then four classes for each doubling."""
    digits = cores.bit_length()
    return cores if digits < 4 else 4 * (digits - 4) + 4 + (cores >> (digits - 3))


def _least(at: int) -> int:
    """The smallest size of a class."""
    return at if at < 8 else (at - 4) % 4 + 4 << (at - 8) // 4 + 1
