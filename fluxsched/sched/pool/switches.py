"""Switches over the targets of a pool, and how many nodes, or slots, fit under each now.

Law: exact as of the last `refresh`, which compares words of targets with what they were, so no event has to be
reported. The lowest switch with room is found without a look at all switches: those of a level are kept by how much
room they have. A target that has left may still be under its switch here. Without a topology there is nothing, and
nothing costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from fluxsched.core.constraint import Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.sched.pool.allowed_targets import Need
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, Bits, ids_of, words_of


class Place(NamedTuple):
    """A switch, with its targets that are no more hops from each other than those of its level."""

    level: int
    at: int


class Level:
    """Switches with the same largest hops between two of their targets, by name."""

    __slots__ = ("hops", "leaves", "names")

    def __init__(self, hops: int, switches: dict[str, list[str]]) -> None:
        self.hops = hops
        self.names = sorted(switches)
        self.leaves = [switches[name] for name in self.names]


class Switches:
    """The switches in order, lowest level first. `places` has of each leaf all the places that its targets are in.

    A switch whose targets are not equally deep is on several levels: with those that are near, and with all.
    """

    __slots__ = ("levels", "places")

    def __init__(self, leaves: list[str], parent_of: dict[str, str]) -> None:
        chains: dict[str, list[str]] = {}
        depths: dict[str, set[int]] = {}
        for leaf in leaves:
            chain = chains[leaf] = [leaf]
            while (above := parent_of.get(chain[-1])) is not None:
                chain.append(above)
            for depth, name in enumerate(chain, 1):
                depths.setdefault(name, set()).add(depth)
        by_depth: dict[int, dict[str, list[str]]] = {}
        for leaf, chain in chains.items():
            for own_depth, name in enumerate(chain, 1):
                for depth in depths[name]:
                    if depth >= own_depth:
                        by_depth.setdefault(depth, {}).setdefault(name, []).append(leaf)
        self.levels = [Level(2 * depth, by_depth[depth]) for depth in sorted(by_depth)]
        self.places: dict[str, list[Place]] = {leaf: [] for leaf in leaves}
        for number, level in enumerate(self.levels):
            for at, below in enumerate(level.leaves):
                for leaf in below:
                    self.places[leaf].append(Place(number, at))


class PoolNetwork:
    """`by_word` has for a word of ranks the leaves there, each with its targets in that word.

    `stamp` counts changes of what is under which switch.
    """

    __slots__ = ("_leaves", "_parent_of", "_places_of", "_switches", "_under", "by_word", "stamp")

    def __init__(self) -> None:
        self.stamp = 0
        self.by_word: dict[int, dict[str, int]] = {}
        self._leaves: dict[str, dict[int, int]] = {}  # of each leaf the words
        self._parent_of: dict[str, str] = {}
        self._switches: Switches | None = None
        self._under: dict[Place, Bits] = {}
        self._places_of: dict[int, list[Place]] = {}

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def add(self, resources: ResourceSet) -> None:
        """Targets have joined, with the switches above them."""
        topology = resources.topology
        if not topology and not self._leaves:
            return
        self._forget(resources.ranks)
        self._parent_of.update(topology.parent_of)
        leaf_of = topology.leaf_of
        for rank, host in zip(resources.ranks, resources.nodelist.hosts, strict=False):
            leaf = leaf_of.get(host)
            if leaf is not None:
                at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
                here = self.by_word.setdefault(at, {})
                self._leaves.setdefault(leaf, {})[at] = here[leaf] = here.get(leaf, 0) | bit
        self._renew()

    def change(self, topology: Topology, source: ResourceSet) -> None:
        """Set another topology for all targets, whose hosts `source` knows."""
        self.by_word.clear()
        self._leaves.clear()
        self._parent_of.clear()
        self.add(source.with_topology(topology))
        self._renew()

    @property
    def switches(self) -> Switches:
        """Return the switches above some target."""
        if self._switches is None:
            self._switches = Switches(list(self._leaves), self._parent_of)
        return self._switches

    def under(self, place: Place) -> Bits:
        """Return the targets of a place."""
        bits = self._under.get(place)
        if bits is None:
            words: dict[int, int] = {}
            for leaf in self.switches.levels[place.level].leaves[place.at]:
                for at, word in self._leaves[leaf].items():
                    words[at] = words.get(at, 0) | word
            bits = self._under[place] = Bits()
            for at, word in words.items():
                bits.put(at, word)
        return bits

    def name(self, place: Place) -> str:
        """Return the switch of a place."""
        return self.switches.levels[place.level].names[place.at]

    def places_of(self, rank: int) -> list[Place]:
        """Return all places that a target is in, the lowest first; none if it is under no switch."""
        found = self._places_of.get(rank)
        if found is None:
            at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
            leaf = next((leaf for leaf, word in self.by_word.get(at, {}).items() if word & bit), None)
            found = self._places_of[rank] = [] if leaf is None else self.switches.places[leaf]
        return found

    def common(self, ranks: Idset) -> list[tuple[int, Idset]]:
        """Return the places that all of these targets are in, the lowest first: the largest hops there, and the
        targets.
        """
        found = []
        for place in self.places_of(ranks.min()) if ranks else ():
            there = Idset(self.under(place).mask())
            if ranks <= there:
                found.append((self.switches.levels[place.level].hops, there))
        return found

    def within(self, ranks: Idset, max_hops: int) -> Idset:
        """Return all targets that are at most `max_hops` from each of these; these alone if no more is known of them.
        """
        for hops, there in reversed(self.common(ranks)):
            if hops <= max_hops:
                return there
        return ranks

    # ---- within

    def _forget(self, ranks: Idset) -> None:
        """Remove targets, since they may have other places when they are added again."""
        for at, word in words_of(ranks.mask):
            here = self.by_word.get(at, {})
            for leaf in list(here):
                left = here[leaf] & ~word
                if left:
                    here[leaf] = self._leaves[leaf][at] = left
                else:
                    del here[leaf], self._leaves[leaf][at]
                    if not self._leaves[leaf]:
                        del self._leaves[leaf]

    def _renew(self) -> None:
        self.stamp += 1
        self._switches = None
        self._under.clear()
        self._places_of.clear()


# ---- room

ROOMS_MAX = 32
"""Kinds of nodes and slots whose room is kept up to date; 200 KiB each with 131,072 targets under 4,096 leaves."""

RoomKey: TypeAlias = tuple[Constraint, Need, bool]
"""Key of room under switches: the constraint on targets, the need on each, and whether slots are counted."""

Layers: TypeAlias = Mapping[int, tuple[int, Mapping[int, int]]]
"""Targets that fit, in layers that have no target in common: how many nodes or slots of the request each holds, and the
words of the targets.
"""

NO_WORDS: Mapping[int, int] = {}


class Room:
    """Room for one kind of node or slot. `total` counts all targets, under a switch or not."""

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
        """Return the number of nodes, or slots, that fit under a switch."""
        return self._room[place.level][place.at]

    def lowest(self, n: int, max_hops: int | None) -> Place | None:
        """Return the lowest switch with room for `n`, of those the one with least room, then by name; None if none has.
        """
        return next(self.in_order(n, max_hops), None)

    def in_order(self, n: int, max_hops: int | None) -> Iterator[Place]:
        """Yield all switches with room for `n`, in the order of `lowest`."""
        for number, level in enumerate(self._network.switches.levels):
            if max_hops is not None and level.hops > max_hops:
                return
            by_room = self._by_room[number]
            for room in sorted([room for room in by_room if room >= n]):
                for at in ids_of(by_room[room]):
                    yield Place(number, at)

    def most(self, max_hops: int | None) -> int:
        """Return the most that fits under one switch."""
        found = 0
        for number, level in enumerate(self._network.switches.levels):
            if max_hops is not None and level.hops > max_hops:
                break
            found = max(found, max(self._by_room[number], default=0))
        return found

    def with_most(self, max_hops: int) -> list[str]:
        """Return the switches under which that is, of the lowest level where there are such."""
        most = self.most(max_hops)
        for number, level in enumerate(self._network.switches.levels):
            if most and level.hops <= max_hops and most in self._by_room[number]:
                return [level.names[at] for at in ids_of(self._by_room[number][most])]
        return []

    # ---- changes

    def refresh(self, layers: Layers) -> None:
        """Update the room by what fits now."""
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
    """Network of a pool, and the room of earlier requests, until the targets change."""

    __slots__ = ("_generation", "_kept", "_stamp", "network")

    def __init__(self) -> None:
        self.network = PoolNetwork()
        self._kept: dict[RoomKey, Room] = {}
        self._generation = self._stamp = -1

    def get(self, key: RoomKey, generation: int) -> Room:
        """Return the room of a kind, as it was when this was last asked; a new one if need be."""
        if (generation, self.network.stamp) != (self._generation, self._stamp):
            self._kept.clear()
            self._generation, self._stamp = generation, self.network.stamp
        room = self._kept.get(key)
        if room is None:
            if len(self._kept) >= ROOMS_MAX:
                self._kept.clear()
            room = self._kept[key] = Room(self.network)
        return room
