"""Switches over the targets of a pool: how many nodes, or slots, fit under each, and places under the lowest with room.

A request for several targets that are to be near each other is placed so that their largest hops are least.

Laws: exact as of the last `refresh`, which compares words of targets with what they were, so no event has to be
reported. The lowest switch with room is found without a look at all switches: those of a level are kept by how much
room they have. Of those at that level it is the one with least room, then the first by name; how many a range gets is
decided before, as without a topology: the most that fits, under one switch where there is a bound. What fits on one
target goes to one. Within a switch the placement orders targets as it does anywhere. A target that has left may still
be under its switch here. Without a topology there is nothing, and nothing costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from fluxsched.core.constraint import Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.quantities import Amounts
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.sched.pool.placement import BEST_FIT, LOW_BITS, WORD_SHIFT, Bits, Block, Fits, Shape, ids_of, words_of
from fluxsched.sched.pool.select_targets import (
    Candidates,
    Choice,
    Need,
    Preferred,
    most_slots,
    need_of,
    select_nodes,
    select_slots,
    slots_of_idle,
    slots_on,
)
from fluxsched.sched.pool.target_class import LEVELS_MAX, TargetClass


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
        """Return all targets that are at most `max_hops` from each of these; these alone if no more is known of
        them.
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
        """Return the lowest switch with room for `n`, of those the one with least room, then by name; None if none
        has.
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


# ---- whether hops count


def hops_count(rooms: Rooms, request: Request) -> bool:
    """Return whether the distance of its targets matters: the request may need several, and switches are known."""
    if not rooms.network and request.max_hops is None:
        return False
    return request.slots.max != 1 if request.nodes is None else request.nodes.max != 1


# ---- what fits now


def node_layers(choice: Choice, need: Need) -> Layers:
    """Return the targets that fit, one node each."""
    layers: dict[int, tuple[int, Mapping[int, int]]] = {}
    for number, (targets, _, only, _) in enumerate(choice):
        if not need.fits_ever(targets):
            continue
        amounts = need.amounts_on(targets)
        for level in targets.index.in_use(*need.on(targets), BEST_FIT):
            words: Mapping[int, int] = level.words
            if only is not None or amounts:
                words = _allowed(targets, words, only, amounts)
            layers[_key(number, targets, level.cores, level.gpus)] = (1, words)
    return layers


def slot_layers(choice: Choice, request: Request) -> Layers:
    """Return the targets that fit, with the slots that each can hold."""
    layers: dict[int, tuple[int, Mapping[int, int]]] = {}
    counted: dict[int, dict[int, int]] = {}  # by slots on a target, where these depend on its amounts
    need = need_of(request, 1)
    for number, (targets, _, only, _) in enumerate(choice):
        if not need.fits_ever(targets):
            continue
        for level in targets.index.in_use(*need.on(targets), BEST_FIT):
            words: Mapping[int, int] = level.words
            if only is not None or need.amounts:
                words = _allowed(targets, words, only, need.amounts)
            if not need.amounts:
                units = slots_on(request, level.cores, level.gpus)
                layers[_key(number, targets, level.cores, level.gpus)] = (units, words)
                continue
            for at, word in words.items():
                for id in ids_of(word):
                    left = targets.free_amounts(at << WORD_SHIFT | id)
                    with_so_many = counted.setdefault(slots_on(request, level.cores, level.gpus, left), {})
                    with_so_many[at] = with_so_many.get(at, 0) | 1 << id
    for units, some in counted.items():
        layers[units] = (units, some)
    return layers


def _key(number: int, targets: TargetClass, cores: int, gpus: int) -> int:
    return number * LEVELS_MAX + gpus * (targets.cores + 1) + cores


def _allowed(targets: TargetClass, words: Mapping[int, int], only: Bits | None, amounts: Amounts) -> dict[int, int]:
    """Return the targets of some words that a constraint allows and that have all the amounts."""
    found: dict[int, int] = {}
    countables = [(targets.countables[kind], amount) for kind, amount in amounts]
    for at, word in words.items():
        if only is not None:
            word &= only.words.get(at, 0)
        for countable, amount in countables:
            word = countable.enough(at, word, amount)
        if word:
            found[at] = word
    return found


def layers_ever(choice: Choice, request: Request, need: Need) -> Layers:
    """Return the targets that could hold the request if all were idle and up, with how many nodes or slots of it."""
    layers: dict[int, tuple[int, Mapping[int, int]]] = {}
    for number, (targets, _, only, _) in enumerate(choice):
        if need.fits_ever(targets):
            units = 1 if request.nodes is not None else slots_of_idle(request, targets)
            words: Mapping[int, int] = targets.members.words
            layers[number] = (units, words if only is None else _allowed(targets, words, only, ()))
    return layers


# ---- where it goes


class Nearest:
    """A search in one choice. `constraint` is what the choice follows from, None where it is narrower than that."""

    __slots__ = ("_choice", "_constraint", "_generation", "_placement", "_preferred", "_rooms")

    def __init__(
        self,
        rooms: Rooms,
        generation: int,
        choice: Choice,
        constraint: Constraint | None,
        placement: str,
        preferred: Preferred | None,
    ) -> None:
        self._rooms = rooms
        self._generation = generation
        self._choice = choice
        self._constraint = constraint
        self._placement = placement
        self._preferred = preferred

    def fit(self, shape: Shape, nodes: Count | None) -> Fits | None:
        """Return a placement of the request, with `nodes` if it asks for nodes; None if it does not fit."""
        request = shape.request
        if nodes is None:
            found, n = self.slots(request)
            return Fits(shape, tuple(found), n) if found else None
        per_node = request.slots.largest(most_slots(self._choice, request))
        while per_node is not None:
            blocks = self.nodes(need_of(request, per_node), nodes, request.max_hops)
            if blocks:
                return Fits(shape, tuple(blocks), per_node * sum([block.word.bit_count() for block in blocks]))
            per_node = request.slots.largest(per_node - 1)
        return None

    def nodes(self, need: Need, count: Count, max_hops: int | None) -> list[Block] | None:
        """Return the blocks of as many nodes as the count allows and there is room for; None if there are too few."""
        room = self.node_room(need)
        have = room.total if max_hops is None else max(room.most(max_hops), min(room.total, 1))
        wanted = count.largest(have)
        return self.so_many_nodes(need, wanted, max_hops, room) if wanted else None

    def so_many_nodes(self, need: Need, n: int, max_hops: int | None, room: Room | None = None) -> list[Block] | None:
        """Return the blocks of exactly `n` nodes under the lowest switch with room; None if there are too few."""
        choice: Choice | None = self._choice
        if n > 1:
            choice = self._lowest(self.node_room(need) if room is None else room, n, max_hops)
        return None if choice is None else select_nodes(choice, need, n, self._placement, self._preferred)

    def slots(self, request: Request) -> tuple[list[Block] | None, int]:
        """Return the blocks of as many slots as the request allows and there is room for, and their number."""
        room, largest = self.slot_room(request)
        have = room.total if request.max_hops is None else max(room.most(request.max_hops), largest)
        n = request.slots.largest(have)
        if not n:
            return None, 0
        if n <= largest:
            return select_nodes(self._choice, need_of(request, n), 1, self._placement, self._preferred), n
        choice = self._lowest(room, n, request.max_hops)
        if choice is None:
            return None, 0
        return select_slots(choice, request, n, self._placement, self._preferred), n

    def node_room(self, need: Need) -> Room:
        """Return how many such nodes fit under each switch."""
        return self._room(need, node_layers(self._choice, need), is_slots=False)

    def slot_room(self, request: Request) -> tuple[Room, int]:
        """Return how many such slots fit under each switch, and the most that fit on one target."""
        layers = slot_layers(self._choice, request)
        largest = max([units for units, words in layers.values() if any(words.values())], default=0)
        return self._room(need_of(request, 1), layers, is_slots=True), largest

    def _room(self, need: Need, layers: Layers, *, is_slots: bool) -> Room:
        if self._constraint is None:
            room = Room(self._rooms.network)
        else:
            room = self._rooms.get((self._constraint, need, is_slots), self._generation)
        room.refresh(layers)
        return room

    def _lowest(self, room: Room, n: int, max_hops: int | None) -> Choice | None:
        """Return the part of the choice under the lowest switch with room for `n`.

        Without such a switch, return the whole choice if there is no bound on hops, else None.
        """
        place = room.lowest(n, max_hops)
        if place is not None:
            return under(self._choice, self._rooms.network.under(place))
        return self._choice if max_hops is None else None


def under(choice: Choice, bits: Bits) -> Choice:
    """Return the part of a choice that is among these targets."""
    found = []
    for targets, _, only, score in choice:
        some = bits if only is None else only.common(bits)
        count = targets.members.count_common(some)
        if count:
            found.append(Candidates(targets, count, some, score))
    return tuple(found)
