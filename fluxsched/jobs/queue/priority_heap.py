"""Job ids by priority: the first one in O(log n), with lazy deletion in O(1).

Law: the heap may hold stale entries, the dictionary never does; an entry counts only if the dictionary holds
an equal one. Stale entries are removed before they outnumber the live ones by much.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

PriorityKey = tuple[float, ...]
_Entry = tuple[PriorityKey, int]

STALE_SLACK = 64
"""Stale entries that are not worth a new heap."""


class PriorityHeap:
    """Job ids by ascending key; pushing an id again gives it its new place."""

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._live: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self._live

    def push(self, jobid: int, key: PriorityKey) -> None:
        """Add the job, or give it another key."""
        entry = (key, jobid)
        self._live[jobid] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._live) + STALE_SLACK:
            self._heap = list(self._live.values())
            heapify(self._heap)

    def discard(self, jobid: int) -> None:
        """Remove the job, wherever it is; nothing happens if it is not there."""
        self._live.pop(jobid, None)
        if not self._live:
            self._heap.clear()

    def head(self) -> _Entry | None:
        """Key and id of the first job, or None."""
        heap, live = self._heap, self._live
        while heap:
            entry = heap[0]
            if live.get(entry[1]) == entry:
                return entry
            heappop(heap)
        return None

    def drain(self) -> list[_Entry]:
        """Take out all jobs, in no order: keys and ids."""
        entries = list(self._live.values())
        self._live.clear()
        self._heap.clear()
        return entries

    def pop(self) -> int:
        """Take out the first job. Raises IndexError when there is none."""
        live = self._live
        while True:
            entry = heappop(self._heap)
            if live.get(entry[1]) == entry:
                del live[entry[1]]
                return entry[1]
