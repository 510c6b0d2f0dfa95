"""Why a request does not fit, now or ever: found by counting what there is, and told in words for the job's owner.

Law: nothing is changed here. A request that what the pool counts, up or down, busy or free, could hold is feasible. The
scheduler does not learn whether a target is drained, torpid or offline: all three are down.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts, amount_text, total
from fluxsched.core.text import counted
from fluxsched.sched.pool.amounts import AskedAmounts, is_single
from fluxsched.sched.pool.parts import (
    Hall,
    NearEver,
    NearParts,
    Shortfall,
    by_suited,
    choices_ever,
    choices_of,
    nodes_of,
    offers,
    suited_ever,
    suited_now,
)
from fluxsched.sched.pool.placement import BEST_FIT, FIRST_FIT, Infeasible, Insufficient, Shape
from fluxsched.sched.pool.pool import Pool, down_in
from fluxsched.sched.pool.select_targets import (
    Candidates,
    Choice,
    Narrowed,
    Need,
    PartChoice,
    count_nodes,
    count_slots,
    need_of,
    restricted,
    slots_of_idle,
)
from fluxsched.sched.pool.switches import Nearest, Room, Rooms, hops_count, layers_ever


def why_no_fit(pool: Pool, shape: Shape) -> Infeasible | Insufficient:
    """Return the outcome for a shape that has no place now."""
    request = shape.request
    narrowed = pool.narrowed.get(shape.number)
    never = infeasible(pool, request, narrowed)
    if never is not None:
        return Infeasible(never)
    if narrowed is not None and narrowed.later:
        return Insufficient(narrowed.later)
    if lacking := pool.instance_countables.lacking(request.shared):
        return Insufficient(_lacking_now(request, lacking))
    if request.is_of_amounts:
        return Insufficient(_insufficient_amounts(pool.asked_amounts(request, narrowed)))
    if request.parts:
        return Insufficient(_insufficient_parts(pool, request, choices_of(pool, request, narrowed)))
    choice = pool.choice_of(shape)
    found = _found(choice, request)
    why = _insufficient(pool, choice, request, found)
    is_far = request.max_hops is not None and found >= (request.slots if request.nodes is None else request.nodes).min
    return Insufficient(why + _beyond_now(pool.rooms, choice, request) if is_far else why)


def infeasible(pool: Pool, request: Request, narrowed: Narrowed | None = None) -> str | None:
    """Return why the request can never fit on what the pool counts, up or down, busy or free; None if it can.
    """
    return shortage(pool, request, narrowed)[1]


def shortage(pool: Pool, request: Request, narrowed: Narrowed | None = None) -> tuple[int | None, str | None]:
    """Return how many nodes (or slots) of the pool, or of those plugins leave, could ever hold the request, and why too
    few.

    The number is None where countables of the instance are missing, and for several parts, which have no common one.
    Drained parts of targets count.
    """
    found = _shortage(pool, request, narrowed)
    if found[1] is None or pool.whole is pool or request.is_of_amounts:
        return found
    return _shortage(pool.whole, request, None if narrowed is None else _on_whole(pool, request, narrowed))


def _on_whole(pool: Pool, request: Request, narrowed: Narrowed) -> Narrowed:
    """Return what plugins leave of the targets with their drained parts."""
    ever = restricted(pool.whole.choice(request.constraint), narrowed.ever_ranks)
    return Narrowed((), ever, narrowed.ranks, narrowed.later, narrowed.never, narrowed.ever_ranks)


def _shortage(pool: Pool, request: Request, narrowed: Narrowed | None) -> tuple[int | None, str | None]:
    if lacking := pool.instance_countables.lacking(request.shared, ever=True):
        return None, _lacking(request, lacking)
    if request.is_of_amounts:
        return _shortage_of_amounts(pool, request, narrowed)
    if request.parts:
        ever = choices_ever(pool, request, narrowed)
        why = _infeasible_parts(request, ever)
        if why is None and request.max_hops is not None:
            why = _never_within_parts(pool, request, ever)
        return None, why if why is None or narrowed is None else narrowed.never or why
    choice = pool.choice(request.constraint) if narrowed is None else narrowed.ever
    per_node = request.slots.min if request.nodes is not None else 1
    need = need_of(request, per_node)
    able = [each for each in choice if need.fits_ever(each.targets)]
    if request.nodes is not None:
        have, wanted = sum([each.size for each in able]), request.nodes.min
    else:
        have = sum([each.size * slots_of_idle(request, each.targets) for each in able])
        wanted = request.slots.min
    if have >= wanted and request.max_hops is not None and hops_count(pool.rooms, request):
        return _never_within(pool.rooms, able, request, need)
    if have >= wanted:
        return have, None
    if narrowed is not None and narrowed.never:
        return have, narrowed.never
    return have, _infeasible_nodes(choice, able, request, have)


def _shortage_of_amounts(pool: Pool, request: Request, narrowed: Narrowed | None) -> tuple[int, str | None]:
    """Return `shortage` for a request without cores; the number is just 1 or 0, since counting all would take longer.
    """
    asked = pool.asked_amounts(request, narrowed)
    if is_single(request) and asked.could_ever():
        return 1, None
    return 0, narrowed.never if narrowed and narrowed.never else _infeasible_amounts(asked)


def _found(choice: Choice, request: Request) -> int:
    """Return the number of nodes that fit now, or of slots if the request names no nodes."""
    if request.nodes is None:
        return count_slots(choice, request)
    return count_nodes(choice, need_of(request, request.slots.min))


# ---- texts

_MEMBERSHIP: Final = re.compile(r"(?<![\w.@+-])\+(?=\w)")
"""The prefix of a property by which a queue marks its hosts (RFC 33): people know the queue, not the property."""


def _asked(request: Request) -> str:
    """Return the request and its constraint: `4 nodes of 1 slot of 1 core with ssd and queue debug`."""
    text, shown = str(request), str(request.constraint)
    if request.constraint != EVERYTHING and shown not in text:
        text = f"{text} with {shown}"
    return _MEMBERSHIP.sub("queue ", text)


def _insufficient(pool: Pool, choice: Sequence[Candidates], request: Request, found: int) -> str:
    """Return what is missing now: `found` nodes (or slots) fit; the others that could ever fit are down or busy."""
    need = need_of(request, request.slots.min if request.nodes is not None else 1)
    able = down = 0
    for each in choice:
        if need.fits_ever(each.targets):
            able += each.size
            down += down_in(pool, each)
    busy = able - down - found if request.nodes is not None else 0
    return f"needs {_asked(request)}; {_available(found, down, busy, 'node' if request.nodes is not None else 'slot')}"


def _insufficient_amounts(asked_amounts: AskedAmounts) -> str:
    """Return what is missing now for a request without cores."""
    now, ever, down = asked_amounts.count()
    return f"needs {_asked(asked_amounts.request)}; {_available(now, down, ever - down - now)}"


def _available(found: int, down: int, busy: int, thing: str = "node") -> str:
    """Return how many fit now, and of the nodes that could hold the request how many are down and busy."""
    parts = [f"{counted(found, thing)} {_are('fits', 'fit', found)} now" if found else "none is free"]
    parts += [f"{counted(n, 'node')} {_are('is', 'are', n)} {how}" for n, how in ((down, "down"), (busy, "busy")) if n]
    return ", ".join(parts)


def _infeasible_amounts(asked_amounts: AskedAmounts) -> str:
    """Return what is missing for good for a request without cores: of each kind, the most that a node has."""
    request = asked_amounts.request
    if not is_single(request):
        return f"needs {_asked(request)}; without cores it can only be one slot on one node"
    most = asked_amounts.largest()
    if most is None:
        return f"needs {_asked(request)}; no node of the group matches"
    there = [amount_text(kind, most[kind]) if most.get(kind) else f"no {kind}" for kind, _ in asked_amounts.need]
    return f"needs {_asked(request)}; no node is large enough: the largest that match have {' and '.join(there)}"


def _lacking(request: Request, there: Amounts) -> str:
    """Return what the instance can never provide: of each kind that is asked for, what there is."""
    return f"needs {_asked(request)}; the instance has only {_listed(there)}"


def _lacking_now(request: Request, there: Amounts) -> str:
    """Return what the instance lacks now, since other jobs hold its countables: of each kind, what is left."""
    return f"needs {_asked(request)}; only {_listed(there)} {_are('is', 'are', len(there))} left"


def _listed(amounts: Amounts) -> str:
    return " and ".join([amount_text(kind, amount) for kind, amount in amounts])


def _infeasible_nodes(choice: Sequence[Candidates], able: Sequence[Candidates], request: Request, have: int) -> str:
    """Return what is missing for good: `have` nodes (or slots) of the group could hold the request, in the classes
    `able`.
    """
    if not choice:
        return f"needs {_asked(request)}; no node of the group matches"
    if not able:
        cores, gpus, amounts = max((each.targets.cores, each.targets.gpus, each.targets.amounts) for each in choice)
        parts = [counted(cores, "core"), *([counted(gpus, "gpu")] if gpus else [])]
        parts += [amount_text(kind, amount) for kind, amount in amounts]
        absent = [kind for kind, _ in total(request.amounts, request.node_amounts) if kind not in dict(amounts)]
        parts += [f"no {kind}" for kind in absent]
        size = " and ".join(parts) + (" (see `amounts` in the configuration)" if absent else "")
        return f"needs {_asked(request)}; no node is large enough: the largest that matches has {size}"
    thing = "such node" if request.nodes is not None else "such slot"
    return f"needs {_asked(request)}; the group has only {counted(have, thing)}"


# ---- within the bound on hops

NAMES_TOLD = 4
"""Maximum number of switches that a text names, since more are not read."""

NO_NETWORK = "it is not known which targets are near each other, since there is no [topology]: submit without max-hops"


def _beyond_now(rooms: Rooms, choice: Sequence[Candidates], request: Request) -> str:
    """Return a text about the room within the bound now, to follow that about the whole room."""
    search = Nearest(rooms, -1, tuple(choice), None, BEST_FIT, None)
    by_slots = request.nodes is None
    room = search.slot_room(request)[0] if by_slots else search.node_room(need_of(request, request.slots.min))
    return f"; {_most_within(room, request)}"


def _never_within(rooms: Rooms, able: Sequence[Candidates], request: Request, need: Need) -> tuple[int, str | None]:
    """Return the number of nodes, or slots, there could ever be within the bound, and why not enough; None if enough.
    """
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
    return have, f"needs {request}; {_most_within(room, request)}, also when all are free"


def _most_within(room: Room, request: Request) -> str:
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


# ---- several parts

def _infeasible_parts(request: Request, choices: Sequence[PartChoice]) -> str | None:
    """Return which parts can never all be placed, and the targets there are for them; None if they can."""
    short = _shortfall(request, suited_ever(choices))
    if short is None:
        return None
    each = " of them" if len(short.parts) > 1 else ""
    there = f"only {counted(short.there, 'node')}" if short.there else "no node"
    suited = f"any{each}" if each else "it"
    return f"needs {_asked(request)}; {_need(request, short)}, the group has {there} for {suited}"


def _never_within_parts(pool: Pool, request: Request, choices: Sequence[PartChoice]) -> str | None:
    """Return which part can never be within the bound on hops, or that never all are at one time; None if they could
    be.
    """
    for part, (need, able) in zip(request.parts, choices, strict=True):
        _, why = _never_within(pool.rooms, able, part, need)
        if why is not None:
            return f"{part.label} {why}"
    assert request.max_hops is not None
    needs = [count.min for count in nodes_of(request)]
    if NearEver(pool.rooms.network, needs, request.max_hops).can_be(suited_ever(choices)):
        return None
    return f"needs {_asked(request)}; each part has room within the bound, but never all of them at one time"


def _insufficient_parts(pool: Pool, request: Request, choices: Sequence[PartChoice]) -> str:
    """Return which parts cannot all be placed now; the other nodes that could ever suit them are down or busy."""
    all_offers = [offers(choice, FIRST_FIT) for choice in choices]
    now, ever = suited_now(all_offers), suited_ever(choices)
    short = _shortfall(request, now)
    if short is None and request.max_hops is not None:
        near = NearParts(pool.rooms, request, {}, all_offers, 0)
        each = [(part, near.room(number)) for number, part in enumerate(request.parts) if part.least_nodes > 1]
        said = [f"of {part.label} {_most_within(room, part)}" for part, room in each]
        return f"needs {_asked(request)}; all parts fit, but not that near each other: {'; '.join(said)}"
    if short is None:
        return f"needs {_asked(request)}; none is free"
    free = able = 0
    for part in short.parts:
        free |= now[part]
        able |= ever[part]
    down = (able & pool.down.mask).bit_count()
    busy = able.bit_count() - down - free.bit_count()
    return f"needs {_asked(request)}; {_need(request, short)}; {_available(short.there, down, busy)}"


def _shortfall(request: Request, suited: Sequence[int]) -> Shortfall | None:
    counts = {some: mask.bit_count() for some, mask in by_suited(suited).items()}
    return Hall(counts, [count.min for count in nodes_of(request)]).shortfall()


def _need(request: Request, short: Shortfall) -> str:
    """`coordinator and workers need 5 nodes`."""
    labels = [request.parts[part].label for part in short.parts]
    names = " and ".join(filter(None, (", ".join(labels[:-1]), labels[-1])))
    return f"{names} {_are('needs', 'need', len(labels))} {counted(short.needed, 'node')}"


def _are(one: str, several: str, count: int) -> str:
    return one if count == 1 else several
