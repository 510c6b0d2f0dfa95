"""How many nodes, or slots, fit now under each switch: counted once, then only where something has changed.

Law: exact as of the last `refresh`, which compares words of targets with what they were, so no event has to be told.
The lowest switch with room is found without a look at all switches: those of a level are kept by how much room
they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from fluxsched.core.constraint import Constraint
from fluxsched.sched.pool.bitset import ids_of
from fluxsched.sched.pool.choice import Need
from fluxsched.sched.pool.hops.network import Place, PoolNetwork

ROOMS_MAX = 32
"""Kinds of nodes and slots whose room is kept up to date; 200 KiB each with 131,072 targets under 4,096 leaves."""

RoomKey: TypeAlias = tuple[Constraint, Need, bool]
"""Whose targets, what of each, and whether slots are counted."""

Layers: TypeAlias = Mapping[int, tuple[int, Mapping[int, int]]]
"""Targets that fit, in layers that have no target in common: how many nodes or slots of the request each holds, and the
words of the targets."""

NO_WORDS: Mapping[int, int] = {}


class Room:
    """Of one kind of node or slot. `total` counts everywhere, under a switch or not."""

    __slots__ = ("_by_room", "_leaves", "_network", "_places", "_room", "_seen", "total")

    def __init__(self, network: PoolNetwork) -> None:
        levels = network.switches.levels
        self._network = network
        self._seen: dict[int, tuple[int, dict[int, int]]] = {}
        self._room: list[list[int]] = [[0] * len(level.names) for level in levels]
        self._by_room: list[dict[int, int]] = [{0: (1 << len(level.names)) - 1} for level in levels]
        self._places = network.switches.places
        self.total = 0

    # ---- questions

    def of(self, place: Place) -> int:
        """What fits there."""
        return self._room[place.level][place.at]

    def lowest(self, n: int, max_hops: int | None) -> Place | None:
        """The lowest switch with room for so many, of those the one with least room, then by name; None if none has."""
        return next(self.in_order(n, max_hops), None)

    def in_order(self, n: int, max_hops: int | None) -> Iterator[Place]:
        """All switches with room for so many, in that order."""
        for number, level in enumerate(self._network.switches.levels):
            if max_hops is not None and level.hops > max_hops:
                return
            by_room = self._by_room[number]
            for room in sorted([room for room in by_room if room >= n]):
                for at in ids_of(by_room[room]):
                    yield Place(number, at)

    def most(self, max_hops: int | None) -> int:
        """The most that fits under one switch."""
        found = 0
        for number, level in enumerate(self._network.switches.levels):
            if max_hops is not None and level.hops > max_hops:
                break
            found = max(found, max(self._by_room[number], default=0))
        return found

    def with_most(self, max_hops: int) -> list[str]:
        """The switches under which that is, of the lowest level where there are such."""
        most = self.most(max_hops)
        for number, level in enumerate(self._network.switches.levels):
            if most and level.hops <= max_hops and most in self._by_room[number]:
                return [level.names[at] for at in ids_of(self._by_room[number][most])]
        return []

    # ---- changes

    def refresh(self, layers: Layers) -> None:
        """Takes in what fits now."""
        changes: dict[str, int] = {}
        for key in [key for key in self._seen if key not in layers]:
            self._compare(key, self._seen[key][0], NO_WORDS, changes)
            del self._seen[key]
        for key, (units, words) in layers.items():
            self._compare(key, units, words, changes)
        if changes:
            self._apply(changes)

    def _compare(self, key: int, units: int, words: Mapping[int, int], changes: dict[str, int]) -> None:
        entry = self._seen.get(key)
        if entry is None:
            entry = self._seen[key] = (units, {})
        seen = entry[1]
        by_word = self._network.by_word
        if len(seen) != len(words) or seen.keys() != words.keys():
            for at in [at for at in seen if at not in words]:
                self._change(by_word.get(at), units, seen.pop(at), 0, changes)
        for at, word in words.items():
            before = seen.get(at, 0)
            if word != before:
                self._change(by_word.get(at), units, before, word, changes)
                seen[at] = word

    def _change(
        self, leaves: dict[str, int] | None, units: int, before: int, after: int, changes: dict[str, int]
    ) -> None:
        self.total += units * (after.bit_count() - before.bit_count())
        if leaves is None:
            return
        other = before ^ after
        for leaf, mask in leaves.items():
            if mask & other:
                more = (mask & after).bit_count() - (mask & before).bit_count()
                if more:
                    changes[leaf] = changes.get(leaf, 0) + units * more

    def _apply(self, changes: dict[str, int]) -> None:
        by_place: dict[Place, int] = {}
        for leaf, more in changes.items():
            if more:
                for place in self._places[leaf]:
                    by_place[place] = by_place.get(place, 0) + more
        for place, more in by_place.items():
            level, at = place
            rooms, by_room, bit = self._room[level], self._by_room[level], 1 << at
            before = rooms[at]
            left = by_room[before] ^ bit
            if left:
                by_room[before] = left
            else:
                del by_room[before]
            rooms[at] = before + more
            by_room[before + more] = by_room.get(before + more, 0) | bit


class Rooms:
    """The network of a pool, and the room of what was asked for, until what exists changes."""

    __slots__ = ("_generation", "_kept", "_stamp", "network")

    def __init__(self) -> None:
        self.network = PoolNetwork()
        self._kept: dict[RoomKey, Room] = {}
        self._generation = self._stamp = -1

    def get(self, key: RoomKey, generation: int) -> Room:
        """The room of a kind, as it was when this was last asked; a new one if need be."""
        if (generation, self.network.stamp) != (self._generation, self._stamp):
            self._kept.clear()
            self._generation, self._stamp = generation, self.network.stamp
        room = self._kept.get(key)
        if room is None:
            if len(self._kept) >= ROOMS_MAX:
                self._kept.clear()
            room = self._kept[key] = Room(self.network)
        return room
