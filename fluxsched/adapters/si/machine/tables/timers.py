"""Timers of one resource manager.

Law: a timer is never taken back; one that no longer holds is passed over when it is due, and once most do not hold they
are all dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

T = TypeVar("T")

OLD_TIMERS: Final = 1000
"""Least number of timers that are searched for old ones, once they are twice as many as were left the last time."""


class Timers(Generic[T]):
    """Rows by the time at which they are due (wall time, seconds), equal times in the order in which they were set.

    `holds` says whether a row is still due at a time.
    """

    __slots__ = ("_count", "_heap", "_holds", "_look_at")

    def __init__(self, holds: Callable[[float, T], bool]) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._holds = holds
        self._count = 0
        self._look_at = OLD_TIMERS

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at_s: float, row: T) -> None:
        """A row is due at a time."""
        self._count += 1
        heappush(self._heap, (at_s, self._count, row))
        if len(self._heap) > self._look_at:
            self._heap = [timer for timer in self._heap if self._holds(timer[0], timer[2])]
            heapify(self._heap)
            self._look_at = max(OLD_TIMERS, 2 * len(self._heap))

    def due(self, now_s: float) -> Iterator[T]:
        """The rows that are due; those that are set meanwhile, too."""
        while self._heap and self._heap[0][0] <= now_s:
            at_s, _, row = heappop(self._heap)
            if self._holds(at_s, row):
                yield row

    @property
    def next_s(self) -> float:
        """Return the time of the next timer, inf if there is none."""
        return self._heap[0][0] if self._heap else inf
