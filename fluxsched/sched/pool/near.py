"""Placing of requests for several targets under the lowest switch with room, so that their largest hops are least.

Law: of the switches at that level it is the one with least room, then the first by name; how many a range gets is
decided before, as without a topology: the most that fits, under one switch where there is a bound. What fits on one
target goes to one. Within a switch the placement orders targets as it does anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxsched.core.constraint import Constraint
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.quantities import Amounts
from fluxsched.sched.pool.allowed_targets import Candidates, Choice, Need, most_slots, need_of, slots_of_idle, slots_on
from fluxsched.sched.pool.bitset import WORD_SHIFT, Bits, ids_of
from fluxsched.sched.pool.placement import BEST_FIT, Block, Fits, Shape
from fluxsched.sched.pool.select_targets import Preferred, select_nodes, select_slots
from fluxsched.sched.pool.switches import Layers, Room, Rooms
from fluxsched.sched.pool.target_class import LEVELS_MAX, TargetClass


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
