"""Places a request of several parts: all their minima at once, or not at all.

Law: nothing is changed here. How many targets each part gets is settled first (`hall`); then part after part takes
them (`taking`), where hops count each under one switch (`near`). Ranges: the first part gets as much as fits beside the
minima of all others, then the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.bitset import mask_of, words_of
from fluxsched.sched.pool.choice import PartChoice
from fluxsched.sched.pool.hops.nearest import hops_count
from fluxsched.sched.pool.hops.room import Rooms
from fluxsched.sched.pool.parts.hall import Hall, by_suited
from fluxsched.sched.pool.parts.near import NearParts
from fluxsched.sched.pool.parts.suited import ANY_RANK, IdleTargets, offers, suited_now
from fluxsched.sched.pool.parts.taking import Taken, take_part
from fluxsched.sched.pool.placement import Block, Fits, instance_block, joined
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select import Preferred, emit
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
    """What each part takes; None if they cannot all be within the bound on hops."""
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
    """How many nodes each part asks for."""
    return [part.nodes for part in request.parts if part.nodes is not None]


def settle(hall: Hall, request: Request, extras: bool) -> None:
    """Has each part need as many as it gets: an elastic one its minimum unless it is given `extras`, too."""
    for number, nodes in enumerate(nodes_of(request)):
        if extras or not request.elastic:
            hall.needs[number] = nodes.largest(hall.most(number)) or nodes.min
