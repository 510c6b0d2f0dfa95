"""What is due at which time, for one resource manager.

Law: a row that is no longer due at the time of its timer is for its owner to pass over; timers are not taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """Rows by the time at which they are due (wall time, seconds), equal times in the order in which they were set."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._count = 0

    def set(self, at_s: float, row: T) -> None:
        """A row is due at a time."""
        self._count += 1
        heappush(self._heap, (at_s, self._count, row))

    def due(self, now_s: float) -> Iterator[tuple[float, T]]:
        """The rows that are due, each with its time; those that are set meanwhile, too."""
        while self._heap and self._heap[0][0] <= now_s:
            at_s, _, row = heappop(self._heap)
            yield at_s, row

    @property
    def next_s(self) -> float:
        """When the next is due, inf if none is."""
        return self._heap[0][0] if self._heap else inf
