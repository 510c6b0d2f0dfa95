"""The ids of active jobs in the order of arrival, for walks that take long.

Law: a dictionary cannot be iterated while it changes, and copying a million ids blocks the instance for 40 ms. So the
ids are also kept in an array that only grows; a walk finds out which jobs have ended. The array is replaced, never
changed, once most of it is stale: a walk under way keeps the one it began with.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

STALE_SLACK = 4096
"""Ids of ended jobs that are not worth a new array."""


class ActiveIds:
    """The keys of `present`, ids below 2**64, in the order in which they were added."""

    __slots__ = ("_ids", "_present", "_slack")

    def __init__(self, present: Mapping[int, object], slack: int = STALE_SLACK) -> None:
        self._present = present
        self._slack = slack
        self._ids = array("Q")

    def add(self, jobid: int) -> None:
        """Append an id, which must be in `present` already."""
        ids = self._ids
        ids.append(jobid)
        if len(ids) > 2 * len(self._present) + self._slack:
            self._ids = array("Q", self._present)

    def walk(self, step: int) -> Iterator[Sequence[int]]:
        """The latest first, `step` ids at a time.

        Each id that is present throughout comes once, whatever happens meanwhile; others may have left before or since.
        """
        ids = self._ids
        return (ids[max(0, end - step) : end][::-1] for end in range(len(ids), 0, -step))
