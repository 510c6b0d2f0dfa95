"""Places a request of several parts: all their minima at once, or not at all.

Law: nothing is changed here. How many targets each part gets is settled first (`hall`); then part after part takes
them, those first that fewest other parts could use, in the order of the placement, and never so that a later part
would have too few. Ranges: the first part gets as much as fits beside the minima of all others, then the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.bitset import lowest, mask_of, words_of
from fluxsched.sched.pool.choice import PartChoice
from fluxsched.sched.pool.parts.hall import Hall, by_suited
from fluxsched.sched.pool.parts.suited import ANY_RANK, IdleTargets, offers, suited_now
from fluxsched.sched.pool.placement import Block, Fits, instance_block, joined
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select import Preferred, emit
from fluxsched.sched.pool.target_class import TargetClass
from fluxsched.sched.shape import Shape


def place_parts(
    pool: Pool,
    shape: Shape,
    choices: Sequence[PartChoice],
    placement: str,
    preferred: Preferred | None,
    among: Idset | None,
    extras: bool,
) -> Fits | None:
    """Where all parts fit now, or None; what is `preferred` comes before all else, only what is `among`."""
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
    taken, blocks, nslots = 0, list[Block](), 0
    by_part: list[Idset] = []
    for number, part in enumerate(request.parts):
        chosen = _take(hall, suited, all_offers[number], number, first, taken)
        mine = 0
        for targets, mask in chosen:
            mine |= mask
            for at, word in words_of(mask):
                emit(blocks, targets, at, word, choices[number].need, preferred)
        taken |= mine
        nslots += mine.bit_count() * part.slots.min
        by_part.append(Idset(mine))
    return Fits(shape, joined(blocks) + instance_block(request.shared), nslots, tuple(by_part))


def nodes_of(request: Request) -> list[Count]:
    """How many nodes each part asks for."""
    return [part.nodes for part in request.parts if part.nodes is not None]


def settle(hall: Hall, request: Request, extras: bool) -> None:
    """Has each part need as many as it gets: an elastic one its minimum unless it is given `extras`, too."""
    for number, nodes in enumerate(nodes_of(request)):
        if extras or not request.elastic:
            hall.needs[number] = nodes.largest(hall.most(number)) or nodes.min


def _take(
    hall: Hall, suited: Mapping[int, int], offered: Sequence[IdleTargets], number: int, early: int, taken: int
) -> list[tuple[TargetClass, int]]:
    """The targets of one part, class by class; all parts after it can still have theirs."""
    wanted, hall.needs[number] = hall.needs[number], 0
    others = (1 << len(hall.needs)) - (2 << number)
    chosen: list[tuple[TargetClass, int]] = []
    for some, tie in _in_order(suited, offered, number, early, taken):
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
    raise LocalProtocolError(f"part {number} was counted to fit, and {wanted} of its targets are missing")


def _in_order(
    suited: Mapping[int, int], offered: Sequence[IdleTargets], number: int, early: int, taken: int
) -> list[tuple[int, list[tuple[TargetClass, int]]]]:
    """What is offered to a part, in order: which parts the targets suit, and such as are equally good, by class."""
    ties: dict[tuple[int, ...], list[tuple[TargetClass, int]]] = {}
    for some, mask in suited.items():
        if not some >> number & 1:
            continue
        for (score, first, second), targets, idle in offered:
            left = idle & mask & ~taken
            for late, part in enumerate((left & early, left & ~early)):
                if part:
                    key = late, score, some.bit_count(), first, second, some
                    ties.setdefault(key, []).append((targets, part))
    return [(key[-1], ties[key]) for key in sorted(ties)]
