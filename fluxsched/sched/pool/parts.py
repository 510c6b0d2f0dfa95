"""Placing of requests of several parts: all their minima at once, each target for one part, or not at all.

Law: exact, by Hall's theorem: parts can all have their targets if, for each set of parts, the targets that suit any of
them are as many as the set needs. Sets of parts are numbers, bit `i` for part `i`; there are 2^8 at most. Targets are
counted by the set of parts that they suit, so nothing here grows with the machine. A part has whole targets, so one
suits it now if all that it has is free. How many targets each part gets is settled first: the first part as much of its
range as fits beside the minima of all others, then the second. Then part after part takes those first that fewest other
parts could use, then in the order of the placement, and never so that a later part would have too few.

Where hops count, parts choose a switch one after the other, those that need most first; with a bound, a choice that
leaves a later part no switch is undone, TRIES_MAX times. Nothing of the pool is changed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.constraint import Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ONE_PART
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    LEAST_LOST,
    LIKE,
    WORST_FIT,
    Bits,
    Block,
    Fits,
    Shape,
    instance_block,
    joined,
    lowest,
    mask_of,
    words_of,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select_targets import Candidates, Narrowed, PartChoice, Preferred, emit, need_of, restricted
from fluxsched.sched.pool.switches import PoolNetwork, Room, Rooms, hops_count
from fluxsched.sched.pool.target_class import TargetClass


def by_suited(masks: Sequence[int]) -> dict[int, int]:
    """Targets by the set of parts that they suit, as masks, from the mask of those that suit each part."""
    found: dict[int, int] = {}
    for part, mask in enumerate(masks):
        split: dict[int, int] = {}
        rest = mask
        for suited, some in found.items():
            if both := some & mask:
                split[suited | 1 << part] = both
                rest ^= both
            if some != both:
                split[suited] = some ^ both
        if rest:
            split[1 << part] = rest
        found = split
    return found


class Shortfall(NamedTuple):
    """Parts, by number, that need more targets than suit any of them."""

    parts: tuple[int, ...]
    needed: int
    there: int


class Hall:
    """Targets that may be taken, counted by the set of parts that they suit, and how many each part needs."""

    __slots__ = ("_all", "_there", "needs")

    def __init__(self, counts: Mapping[int, int], needs: Sequence[int]) -> None:
        self.needs = list(needs)
        self._all = (1 << len(needs)) - 1
        within = [0] * (self._all + 1)  # first what suits just these parts, then what suits no others
        for suited, count in counts.items():
            within[suited] = count
        for part in range(len(needs)):
            for some in range(self._all + 1):
                if some >> part & 1:
                    within[some] += within[some ^ 1 << part]
        total = within[self._all]
        self._there = [total - within[self._all ^ some] for some in range(self._all + 1)]

    def copy(self) -> Hall:
        """Return a copy to be changed on its own."""
        made = Hall({}, self.needs)
        made._there = list(self._there)
        return made

    def shortfall(self) -> Shortfall | None:
        """Return the parts that lack most together, of several such sets the smallest, then the first; None if all
        fit.
        """
        needed = self._needed()
        short = [some for some in range(1, self._all + 1) if self._there[some] < needed[some]]
        if not short:
            return None
        some = min(short, key=lambda some: (self._there[some] - needed[some], some.bit_count(), self._parts(some)))
        return Shortfall(self._parts(some), needed[some], self._there[some])

    def lead(self, short: Shortfall) -> int:
        """Return by how many more these parts lack, together, than any set without one of them."""
        needed, there, mine = self._needed(), self._there, sum([1 << part for part in short.parts])
        others = [needed[some] - there[some] for some in range(self._all + 1) if some & mine != mine]
        return short.needed - short.there - max(others)

    def most(self, part: int) -> int:
        """Return the most targets that one part could have, with what the others need left to them."""
        needed, bit = self._needed(), 1 << part
        return min([self._there[some] - needed[some ^ bit] for some in range(self._all + 1) if some & bit])

    def takeable(self, suited: int, others: int) -> int:
        """Return the number of targets that suit these parts and may be taken without a loss to a set of others."""
        needed, there = self._needed(), self._there
        least = there[self._all]
        some = others
        while some:  # its subsets
            if some & suited and there[some] - needed[some] < least:
                least = there[some] - needed[some]
            some = (some - 1) & others
        return least

    def take(self, suited: int, count: int) -> None:
        """Remove `count` targets that suit these parts."""
        there = self._there
        for some in range(1, self._all + 1):
            if some & suited:
                there[some] -= count

    def _needed(self) -> list[int]:
        """Return the number of targets that each set of parts needs."""
        found = [0] * (self._all + 1)
        for part, count in enumerate(self.needs):
            for some in range(1 << part):
                found[some | 1 << part] = found[some] + count
        return found

    def _parts(self, some: int) -> tuple[int, ...]:
        return tuple([part for part in range(len(self.needs)) if some >> part & 1])


# ---- parts near each other, now

TRIES_MAX = 256
"""Switches tried for all parts of a request at one time; each try costs what placing a part does."""


class NearParts:
    """Search among the targets offered to each part; `early` are those that precede all others."""

    __slots__ = ("_early", "_offers", "_request", "_rooms", "_suited", "_tries")

    def __init__(
        self,
        rooms: Rooms,
        request: Request,
        suited: Mapping[int, int],
        offers: Sequence[Sequence[IdleTargets]],
        early: int,
    ) -> None:
        self._rooms = rooms
        self._request = request
        self._suited = suited
        self._offers = offers
        self._early = early
        self._tries = 0

    def most(self, number: int) -> int:
        """Return the most that a part could have within the bound, if it were alone."""
        room = self.room(number)
        return max(room.most(self._request.max_hops), min(room.total, 1))

    def all_parts(self, hall: Hall) -> list[Taken] | None:
        """Return the targets that each part takes; None if there is not room for all within the bound."""
        self._tries = 0
        found: dict[int, Taken] = {}
        order = sorted(range(len(self._offers)), key=lambda number: -hall.needs[number])
        if not self._from(order, 0, hall, found):
            return None
        return [found[number] for number in range(len(self._offers))]

    def _from(self, order: list[int], taken: int, hall: Hall, found: dict[int, Taken]) -> bool:
        """Has the parts in this order take theirs."""
        if not order:
            return True
        number = order[0]
        for among in self._switches(number, hall.needs[number], taken):
            self._tries += 1
            left = hall.copy()
            chosen = take_part(left, self._suited, self._offers[number], number, self._early, taken, among)
            if chosen is not None:
                mine = 0
                for _, mask in chosen:
                    mine |= mask
                found[number] = chosen
                if self._from(order[1:], taken | mine, left, found):
                    return True
            if self._tries >= TRIES_MAX:
                return False
        return False

    def _switches(self, number: int, wanted: int, taken: int) -> Iterator[int]:
        """Yield where a part may be placed, as masks of targets, the best first."""
        bound = self._request.max_hops
        if wanted > 1:
            for place in self.room(number, taken).in_order(wanted, bound):
                yield self._rooms.network.under(place).mask()
        if wanted == 1 or bound is None:
            yield ANY_RANK

    def room(self, number: int, taken: int = 0) -> Room:
        """Under each switch, the targets that a part is offered, without those that are taken."""
        mask = 0
        for offered in self._offers[number]:
            mask |= offered.mask
        room = Room(self._rooms.network)
        room.refresh({0: (1, dict(words_of(mask & ~taken)))})
        return room


# ---- parts near each other, ever


class NearEver:
    """One search: part `i` needs `needs[i]` targets of the mask `suited[i]`, at most `max_hops` from each other."""

    __slots__ = ("_max_hops", "_needs", "_network", "_tries")

    def __init__(self, network: PoolNetwork, needs: Sequence[int], max_hops: int) -> None:
        self._network = network
        self._needs = needs
        self._max_hops = max_hops
        self._tries = 0

    def can_be(self, suited: Sequence[int]) -> bool:
        """Return whether all parts could have their targets."""
        order = [part for part, need in enumerate(self._needs) if need > 1]
        return self._can(sorted(order, key=lambda part: -self._needs[part]), suited)

    def _can(self, order: Sequence[int], suited: Sequence[int]) -> bool:
        """Return whether the parts in this order could be placed; the others have their switches, or need none."""
        counts = {some: mask.bit_count() for some, mask in by_suited(suited).items()}
        if Hall(counts, self._needs).shortfall() is not None:
            return False
        if not order:
            return True
        part, rest = order[0], order[1:]
        for there in self._under_switches(suited[part], self._needs[part]):
            self._tries += 1
            if self._tries > TRIES_MAX or self._can(rest, [*suited[:part], there, *suited[part + 1 :]]):
                return True
        return False

    def _under_switches(self, mask: int, need: int) -> Iterator[int]:
        """Yield the targets under each switch with room for `need` of the mask, without switches below such a one."""
        room = Room(self._network)
        room.refresh({0: (1, dict(words_of(mask)))})
        seen: list[int] = []
        for place in reversed([*room.in_order(need, self._max_hops)]):
            there = self._network.under(place).mask() & mask
            if not any(there & ~other == 0 for other in seen):
                seen.append(there)
                yield there


# ---- placing of all parts


def place_parts(
    pool: Pool,
    shape: Shape,
    choices: Sequence[PartChoice],
    placement: str,
    preferred: Preferred | None,
    among: Idset | None,
    extras: bool,
) -> Fits | None:
    """Return a placement of all parts now, or None; `preferred` targets are selected first, only those `among`."""
    request = shape.request
    if request.shared and pool.instance_countables.lacking(request.shared):
        return None
    left = ANY_RANK if among is None else among.mask
    all_offers = [offers(choice, placement, left) for choice in choices]
    suited = by_suited(suited_now(all_offers))
    hall = Hall({some: mask.bit_count() for some, mask in suited.items()}, [count.min for count in nodes_of(request)])
    if hall.shortfall() is not None:
        return None
    settle(hall, request, extras)
    first = ANY_RANK if preferred is None else mask_of(preferred.words)
    found = _all_parts(pool.rooms, request, hall, suited, all_offers, first)
    if found is None:
        return None
    blocks, nslots = list[Block](), 0
    by_part: list[Idset] = []
    for number, (part, chosen) in enumerate(zip(request.parts, found, strict=True)):
        mine = 0
        for targets, mask in chosen:
            mine |= mask
            for at, word in words_of(mask):
                emit(blocks, targets, at, word, choices[number].need, preferred)
        nslots += mine.bit_count() * part.slots.min
        by_part.append(Idset(mine))
    return Fits(shape, joined(blocks) + instance_block(request.shared), nslots, tuple(by_part))


def _all_parts(
    rooms: Rooms,
    request: Request,
    hall: Hall,
    suited: Mapping[int, int],
    all_offers: Sequence[Sequence[IdleTargets]],
    first: int,
) -> list[Taken] | None:
    """Return the targets that each part takes; None if not all can be within the bound on hops."""
    if not hops_count(rooms, request):
        found, taken = list[Taken](), 0
        for number, offered in enumerate(all_offers):
            chosen = take_part(hall, suited, offered, number, first, taken, ANY_RANK)
            if chosen is None:
                raise LocalProtocolError(f"part {number} was counted to fit, and some of its targets are missing")
            found.append(chosen)
            for _, mask in chosen:
                taken |= mask
        return found
    near = NearParts(rooms, request, suited, all_offers, first)
    if request.max_hops is None:
        return near.all_parts(hall)
    settled = [count.largest(min(hall.needs[at], near.most(at))) for at, count in enumerate(nodes_of(request))]
    if None in settled:
        return None
    hall.needs = [count for count in settled if count is not None]
    within = near.all_parts(hall)
    if within is None:  # some may have to have less for all to find room
        hall.needs = [count.min for count in nodes_of(request)]
        within = near.all_parts(hall)
    return within


def nodes_of(request: Request) -> list[Count]:
    """Return the number of nodes that each part asks for."""
    return [part.nodes for part in request.parts if part.nodes is not None]


def settle(hall: Hall, request: Request, extras: bool) -> None:
    """Has each part need as many as it gets: an elastic one its minimum unless it is given `extras`, too."""
    for number, nodes in enumerate(nodes_of(request)):
        if extras or not request.elastic:
            hall.needs[number] = nodes.largest(hall.most(number)) or nodes.min


# ---- targets that suit a part

ANY_RANK: Final = -1
"""The mask of all ranks."""


class IdleTargets(NamedTuple):
    """Idle targets of one class that suit a part, and where they come in the order of a placement."""

    order: tuple[int, int, int]
    targets: TargetClass
    mask: int


def choices_of(pool: Pool, request: Request, narrowed: Narrowed | None) -> tuple[PartChoice, ...]:
    """Return the choice of each part; `narrowed` is what plugins leave."""
    found = []
    for part in request.parts:
        need, choice = need_of(part, part.slots.min), pool.choice(_constraint(pool, part))
        if narrowed is not None:
            choice = restricted(choice, narrowed.ranks, narrowed.scores)
        found.append(PartChoice(need, tuple([each for each in choice if need.fits_ever(each.targets)])))
    return tuple(found)


def _constraint(pool: Pool, part: Request) -> Constraint:
    """Return that of the part, less the targets that take no parts."""
    if ONE_PART not in pool.source.properties:
        return part.constraint
    elsewhere = {"not": [{"properties": [ONE_PART]}]}
    return Constraint.parse({"and": [*filter(None, [part.constraint.to_json()]), elsewhere]})


def choices_ever(pool: Pool, request: Request, narrowed: Narrowed | None) -> tuple[PartChoice, ...]:
    """Return the choices of all parts ever, whatever plugins answer about the present."""
    if narrowed is None:
        return choices_of(pool, request, None)
    left = 0
    for each in narrowed.ever:
        left |= members_of(each)
    found = [(choice.need, restricted(choice.able, left)) for choice in choices_of(pool, request, None)]
    return tuple([PartChoice(need, able) for need, able in found])


def members_of(candidates: Candidates) -> int:
    """Return all targets of the candidates, whatever is free."""
    members, only = candidates.targets.members, candidates.only
    return members.mask() if only is None else members.mask() & only.mask()


def suited_ever(choices: Sequence[PartChoice]) -> list[int]:
    """Return for each part the targets that have what it needs, up or down, busy or free."""
    return [_union([members_of(each) for each in choice.able]) for choice in choices]


def offers(choice: PartChoice, placement: str, among: int = ANY_RANK) -> list[IdleTargets]:
    """Return the idle targets for a part, class by class, those in `among`."""
    placement = LIKE.get(placement, placement)
    found = []
    for targets, _, only, score in choice.able:
        mask = _idle(targets, only) & among
        if mask:
            first, second = _place(targets, placement)
            found.append(IdleTargets((-score, first, second), targets, mask))
    return found


def suited_now(all_offers: Sequence[Sequence[IdleTargets]]) -> list[int]:
    """Return for each part the targets that it is offered."""
    return [_union([offer.mask for offer in some]) for some in all_offers]


def _union(masks: Sequence[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _place(targets: TargetClass, placement: str) -> tuple[int, int]:
    if placement == BEST_FIT:
        return targets.gpus, targets.cores
    if placement == LEAST_LOST:
        return targets.lost.of(targets.cores, targets.gpus, targets.amounts), 0
    return (-targets.cores, targets.gpus) if placement == WORST_FIT else (0, 0)


def _idle(targets: TargetClass, only: Bits | None) -> int:
    """Return the usable targets of a class of which nothing is taken."""
    level = targets.index.level(targets.cores, targets.gpus)
    words = {at: word if only is None else word & only.words.get(at, 0) for at, word in level.filled()}
    for kind, amount in targets.amounts:
        countable = targets.countables[kind]
        words = {at: countable.enough(at, word, amount) for at, word in words.items()}
    return mask_of(words) if words else 0


# ---- targets that a part takes

Taken: TypeAlias = list[tuple[TargetClass, int]]
"""Targets that a part takes, class by class, as masks."""


def take_part(
    hall: Hall,
    suited: Mapping[int, int],
    offered: Sequence[IdleTargets],
    number: int,
    early: int,
    taken: int,
    among: int,
) -> Taken | None:
    """Return the targets of one part, all of them in `among`; all parts that still need some can have theirs.

    None if there are too few. `early` come first, and `taken` are those of the parts before.
    """
    wanted, hall.needs[number] = hall.needs[number], 0
    others = sum([1 << other for other, need in enumerate(hall.needs) if need])
    chosen: Taken = []
    for some, tie in _in_order(suited, offered, number, early, among & ~taken):
        n = min(wanted, hall.takeable(some, others))
        mine = 0
        for _, mask in tie:
            mine |= mask
        if mine.bit_count() > n:
            mine = lowest(mine, n)
        chosen += [(targets, mask & mine) for targets, mask in tie if mask & mine]
        hall.take(some, mine.bit_count())
        wanted -= mine.bit_count()
        if not wanted:
            return chosen
    return None


def _in_order(
    suited: Mapping[int, int], offered: Sequence[IdleTargets], number: int, early: int, among: int
) -> list[tuple[int, list[tuple[TargetClass, int]]]]:
    """Return the targets offered to a part, in order: the parts that they suit, and equally good ones by class."""
    ties: dict[tuple[int, ...], list[tuple[TargetClass, int]]] = {}
    for some, mask in suited.items():
        if not some >> number & 1:
            continue
        for (score, first, second), targets, idle in offered:
            left = idle & mask & among
            for late, part in enumerate((left & early, left & ~early)):
                if part:
                    key = late, score, some.bit_count(), first, second, some
                    ties.setdefault(key, []).append((targets, part))
    return [(key[-1], ties[key]) for key in sorted(ties)]
