"""Who is there, in the order of arrival, for walks that take long.

Law: a dictionary cannot be left half read while it changes, and to copy a million ids holds everybody up for 40 ms. So
the ids are also kept in an array, which only grows; who has left is found out by whoever walks. It is replaced, never
changed, where most of it is stale: walks under way keep theirs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

STALE_SLACK = 4096
"""Ids of those who have left that are not worth a new array."""


class ActiveIds:
    """The keys of `present`, ids below 2**64, in the order in which they were added."""

    __slots__ = ("_ids", "_present")

    def __init__(self, present: Mapping[int, object]) -> None:
        self._present = present
        self._ids = array("Q")

    def add(self, jobid: int) -> None:
        """Somebody arrives: to be called when it is in `present`."""
        ids = self._ids
        ids.append(jobid)
        if len(ids) > 2 * len(self._present) + STALE_SLACK:
            self._ids = array("Q", self._present)

    def walk(self, step: int) -> Iterator[Sequence[int]]:
        """From the latest on, `step` ids at a time; whatever happens meanwhile, each of those who are there now comes
        once. Some of the others may have left, before or since.
        """
        ids = self._ids
        return (ids[max(0, end - step) : end][::-1] for end in range(len(ids), 0, -step))
