"""Why a job with a bound on hops waits or never starts, in words for its owner."""

from __future__ import annotations

from collections.abc import Sequence

from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.choice import Candidates, Need, need_of
from fluxsched.sched.pool.hops.nearest import Nearest, layers_ever
from fluxsched.sched.pool.hops.room import Room, Rooms
from fluxsched.sched.pool.placement import BEST_FIT

NAMES_TOLD = 4
"""More switches than this are not read."""

NO_NETWORK = "it is not known which targets are near each other, since there is no [topology]: submit without max-hops"


def beyond_now(rooms: Rooms, choice: Sequence[Candidates], request: Request) -> str:
    """What there is within the bound now, to be put behind what there is in all."""
    search = Nearest(rooms, -1, tuple(choice), None, BEST_FIT, None)
    by_slots = request.nodes is None
    room = search.slot_room(request)[0] if by_slots else search.node_room(need_of(request, request.slots.min))
    return f"; {most_within(room, request)}"


def never_within(rooms: Rooms, able: Sequence[Candidates], request: Request, need: Need) -> tuple[int, str | None]:
    """How many nodes, or slots, there could ever be within the bound, and why not enough; None if they are."""
    assert request.max_hops is not None
    room = Room(rooms.network)
    layers = layers_ever(tuple(able), request, need)
    room.refresh(layers)
    on_one = max([units for units, words in layers.values() if any(words.values())], default=0)
    have, wanted = max(room.most(request.max_hops), on_one), request.slots.min
    if request.nodes is not None:
        wanted = request.nodes.min
    if have >= wanted:
        return have, None
    if not rooms.network:
        return have, f"needs {request}; {NO_NETWORK}"
    return have, f"needs {request}; {most_within(room, request)}, also when all are free"


def most_within(room: Room, request: Request) -> str:
    """`at most 2 nodes are under one switch of 2 hops (leaf0 or leaf1)`."""
    assert request.max_hops is not None
    n, names = room.most(request.max_hops), room.with_most(request.max_hops)
    thing = "node" if request.nodes is not None else "slot"
    if not names:
        return "no two of them are under one switch"
    told = " or ".join(names[:NAMES_TOLD])
    more = f" or {len(names) - NAMES_TOLD} others" if len(names) > NAMES_TOLD else ""
    are = f"{thing}s are" if n > 1 else f"{thing} is"
    return f"at most {n} {are} under one switch of {request.max_hops} hops ({told}{more})"
