"""Which targets of a pool are under which switch.

Law: what may be used of them is asked of the pool's classes; a target that has left may still be under its switch
here. Adding targets costs what they are, and the switches are put in order when they are asked for. Without a topology
there is nothing, and nothing costs.
"""

from __future__ import annotations

from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, Bits, words_of


class Place(NamedTuple):
    """A switch, with its targets that are no more hops from each other than those of its level."""

    level: int
    at: int


class Level:
    """All switches with the same largest hops between two of their targets, by name."""

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
        """Another topology for all targets, of which `source` knows the hosts."""
        self.by_word.clear()
        self._leaves.clear()
        self._parent_of.clear()
        self.add(source.with_topology(topology))
        self._renew()

    @property
    def switches(self) -> Switches:
        """Those above some target."""
        if self._switches is None:
            self._switches = Switches(list(self._leaves), self._parent_of)
        return self._switches

    def under(self, place: Place) -> Bits:
        """The targets of a place."""
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
        """The switch of a place."""
        return self.switches.levels[place.level].names[place.at]

    def places_of(self, rank: int) -> list[Place]:
        """All places that a target is in, the lowest first; none if it is under no switch."""
        found = self._places_of.get(rank)
        if found is None:
            at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
            leaf = next((leaf for leaf, word in self.by_word.get(at, {}).items() if word & bit), None)
            found = self._places_of[rank] = [] if leaf is None else self.switches.places[leaf]
        return found

    def common(self, ranks: Idset) -> list[tuple[int, Idset]]:
        """The places that all of these targets are in, the lowest first: the largest hops there, and the targets."""
        found = []
        for place in self.places_of(ranks.min()) if ranks else ():
            there = Idset(self.under(place).mask())
            if ranks <= there:
                found.append((self.switches.levels[place.level].hops, there))
        return found

    def within(self, ranks: Idset, max_hops: int) -> Idset:
        """All targets that are at most so many hops from each of these; they alone if nothing more is known of them."""
        for hops, there in reversed(self.common(ranks)):
            if hops <= max_hops:
                return there
        return ranks

    # ---- within

    def _forget(self, ranks: Idset) -> None:
        """Targets that come again may be elsewhere."""
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
