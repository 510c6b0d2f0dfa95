"""Who comes first among those whose keys change now and then: a heap in which old entries are passed over.

Law: a key is worked out when its owner has changed and the first is asked for; nothing is sorted. What has nothing that
can start is put aside until the generation is another one.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeAlias

Key: TypeAlias = tuple[Any, ...]

OLD_ENTRIES: Final = 64
"""So many entries and more are looked through for old ones, once they are twice as many as were left the last time."""


class Claimant:
    """One of them. `priority` is the highest of what waits there, None if nothing does; `ticket` names its entry.

    One that is not `aside` has not been put there since its last key.
    """

    __slots__ = ("aside", "changed", "label", "priorities", "priority", "ticket")

    def __init__(self, label: str) -> None:
        self.label = label
        self.priority: int | None = None
        self.priorities: dict[int, int] = {}  # how many wait of each
        self.changed = False
        self.aside = False
        self.ticket = 0

    def gain(self, priority: int) -> bool:
        """One more of this priority waits; whether that is the highest now."""
        self.priorities[priority] = self.priorities.get(priority, 0) + 1
        if self.priority is None or priority > self.priority:
            self.priority = priority
            return True
        return False

    def lose(self, priority: int) -> bool:
        """One less of this priority waits; whether the highest is another one now."""
        left = self.priorities[priority] - 1
        if left:
            self.priorities[priority] = left
            return False
        del self.priorities[priority]
        if priority != self.priority:
            return False
        self.priority = max(self.priorities) if self.priorities else None
        return True


_Entry: TypeAlias = tuple[Key, int, Claimant]


class Claimants:
    """Those with something that waits; `changed` are to get new keys."""

    __slots__ = ("_heap", "_idle", "_look_at", "changed", "generation", "version")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._idle: list[_Entry] = []
        self._look_at: int = OLD_ENTRIES
        self.changed: list[Claimant] = []
        self.generation = -1
        self.version = 0

    def change(self, claimant: Claimant) -> None:
        """Its key is another one, or it takes part again."""
        if not claimant.changed:
            claimant.changed = True
            self.changed.append(claimant)

    def enter(self, claimant: Claimant, key: Key) -> None:
        """Its key from now on."""
        claimant.ticket += 1
        claimant.aside = False
        heappush(self._heap, (key, claimant.ticket, claimant))
        if len(self._heap) > self._look_at:
            self._heap = [entry for entry in self._heap if _holds(entry)]
            heapify(self._heap)
            self._look_at = max(OLD_ENTRIES, 2 * len(self._heap))

    def wake(self, generation: int) -> None:
        """Those that were put aside take part again, if this is another generation."""
        if self.generation == generation:
            return
        self.generation = generation
        if self._idle:
            self._heap += self._idle
            self._idle.clear()
            heapify(self._heap)

    def is_of(self, version: int) -> bool:
        """Whether its keys are of this version; if not, none is left, and each is to be changed."""
        if self.version == version:
            return True
        self.version = version
        self._heap.clear()
        self._idle.clear()
        return False

    def first(self) -> Claimant | None:
        """The one with the least key; all keys are up to date."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if _holds(entry):
                return entry[2]
            heappop(heap)
        return None

    def put_aside(self, claimant: Claimant) -> None:
        """The one that came first has nothing that can start now."""
        heap = self._heap
        if heap and heap[0][2] is claimant:
            claimant.aside = True
            self._idle.append(heappop(heap))

    @property
    def one_aside_is_before(self) -> bool:
        """Whether one that was put aside, and has not changed since, comes before the first of the others."""
        first = self._heap[0][0]
        return any(entry[0] < first for entry in self._idle if _holds(entry))


def _holds(entry: _Entry) -> bool:
    """Whether it is the last one of its owner, for which something waits."""
    return entry[2].ticket == entry[1] and entry[2].priority is not None
