"""The ids of kept ended jobs in the order in which they ended, for walks from the last one, long ones and short ones.

Law: each has a number, which it keeps, from the first that ever ended on. A walk remembers numbers: from one it goes
back, and what has a higher one has ended since it began. Nothing is copied but what a step asks for.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence

FORGOTTEN_SLACK = 4096
"""Ids of forgotten jobs that are not worth moving the others."""


class EndedIds:
    """Ids below 2**64, of the jobs in `kept` and of some that were kept and are forgotten: mostly the oldest."""

    __slots__ = ("_first", "_forgotten", "_ids", "_kept", "_slack")

    def __init__(self, kept: Container[int], slack: int = FORGOTTEN_SLACK) -> None:
        self._kept = kept
        self._slack = slack
        self._ids = array("Q")
        self._first = 0
        """The number of the first id in the array."""
        self._forgotten = 0
        """Ids at the front that are not kept any more."""

    @property
    def end(self) -> int:
        """The number that the next one gets."""
        return self._first + len(self._ids)

    def add(self, jobid: int) -> None:
        """A job has ended, which is kept."""
        self._ids.append(jobid)

    def forget(self) -> None:
        """Something is not kept any more."""
        while self._forgotten < len(self._ids) and self._ids[self._forgotten] not in self._kept:
            self._forgotten += 1
        if self._forgotten > len(self._ids) // 2 + self._slack:
            del self._ids[: self._forgotten]
            self._first += self._forgotten
            self._forgotten = 0

    def between(self, low: int, high: int) -> Sequence[int]:
        """Return ids numbered from `low` to below `high`, in the order in which they ended, without the oldest
        forgotten ones.
        """
        begin = self._first + self._forgotten
        return self._ids[max(low, begin) - self._first : max(high, begin) - self._first]
