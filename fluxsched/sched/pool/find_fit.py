"""Place of a request on what is free now (`find_fit`), or why it does not fit now (`place_now`) or ever (`infeasible`).

Law: nothing is changed here. A request that what the pool counts, up or down, busy or free, could hold is feasible. The
scheduler does not learn whether a target is drained, torpid or offline: all three are down. Why a request does not fit
is found by counting what there is, and told in words for the job's owner.

Two contexts change what is found, and are undone when they are left: `WhatIf` changes the pool itself, with a log
instead of a copy, and `LeftOut` leaves targets out of one shape's choice, since outages keep them:

    with WhatIf(pool) as what_if:
        for blocks in ends:  # running jobs, the earliest end first
            what_if.give(blocks)
    with LeftOut(pool, shape, pool.outages_for(shape.request).barred(now_s, end_s)):
        fit = find_fit(pool, shape, placement)

Targets that are down since an outage keeps them are usable once it is over (`Returned`).

Laws: finding counts what is free, decides how much of a range to grant, then selects targets in order, and changes
nothing. A request for one target looks at one small mask per GPU count, one summary and one word; one for many goes
over words, 512 targets at a time, and only when the levels hold enough of them. Ranges: as many slots a node as still
leave enough nodes, then as many nodes (or slots) as are free. A target gets as many slots as fit on it, so a job
touches few. Exclusive requests take idle targets whole. Leaving the block of a what-if undoes every change, last first,
and only what was learnt remains; the ledger refuses to commit while one is open, so a policy does not yield inside. The
choice of a job depends on when it would end, and that of its shape does not, so what is left out is put back;
feasibility ignores it (`ever`). What is worked out for a shape and the same targets left out is kept for a generation
of the pool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.quantities import Amounts, amount_text, total
from fluxsched.core.reasons import WaitKind, cause
from fluxsched.core.text import counted
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.amounts import AmountTarget, AskedAmounts, is_single
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
    place_parts,
    suited_ever,
    suited_now,
)
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    BITS,
    FIRST_FIT,
    LEAST_LOST,
    LIKE,
    WORST_FIT,
    Block,
    Blocks,
    Fits,
    Infeasible,
    Insufficient,
    Outcome,
    Shape,
    instance_block,
    lowest,
    mask_of,
)
from fluxsched.sched.pool.pool import Pool, down_in, free_of
from fluxsched.sched.pool.select_targets import (
    Candidates,
    Choice,
    Narrowed,
    Need,
    PartChoice,
    Preferred,
    Prepared,
    Remaining,
    count_nodes,
    count_slots,
    most_slots,
    need_of,
    restricted,
    select_nodes,
    select_slots,
    slots_of_idle,
)
from fluxsched.sched.pool.switches import Nearest, Room, Rooms, hops_count, layers_ever
from fluxsched.sched.pool.target_class import TargetClass


def why_no_fit(pool: Pool, shape: Shape) -> Infeasible | Insufficient:
    """Return the outcome for a shape that has no place now."""
    request = shape.request
    narrowed = pool.narrowed.get(shape.number)
    never = infeasible(pool, request, narrowed)
    if never is not None:
        return Infeasible(cause(never, WaitKind.TOO_LARGE))
    if narrowed is not None and narrowed.later:
        return Insufficient(narrowed.later)
    return Insufficient(cause(_why_insufficient(pool, shape, narrowed), WaitKind.NO_ROOM))


def _why_insufficient(pool: Pool, shape: Shape, narrowed: Narrowed | None) -> str:
    request = shape.request
    if lacking := pool.instance_countables.lacking(request.shared):
        return _lacking_now(request, lacking)
    if request.is_of_amounts:
        return _insufficient_amounts(pool, pool.asked_amounts(request, narrowed))
    if request.parts:
        return _insufficient_parts(pool, request, choices_of(pool, request, narrowed))
    choice = pool.choice_of(shape)
    found = _found(choice, request)
    why = _insufficient(pool, choice, request, found)
    is_far = request.max_hops is not None and found >= (request.slots if request.nodes is None else request.nodes).min
    return why + _beyond_now(pool.rooms, choice, request) if is_far else why


def infeasible(pool: Pool, request: Request, narrowed: Narrowed | None = None) -> str | None:
    """Return why the request can never fit on what the pool counts, up or down, busy or free; None if it can."""
    return shortage(pool, request, narrowed)[1]


def shortage(pool: Pool, request: Request, narrowed: Narrowed | None = None) -> tuple[int | None, str | None]:
    """Return how many nodes (or slots) of the pool, or of those plugins leave, could ever hold the request, and why too
    few.

    The number is None where countables of the instance are missing, and for several parts, which have no common one.
    Drained parts of targets count, spares beside what they replace do not.
    """
    if pool.spares:
        narrowed = _without_spares(pool, request, narrowed)
    found = _shortage(pool, request, narrowed)
    if found[1] is None or pool.whole is pool or request.is_of_amounts:
        return found
    return _shortage(pool.whole, request, None if narrowed is None else _on_whole(pool, request, narrowed))


def _without_spares(pool: Pool, request: Request, narrowed: Narrowed | None) -> Narrowed:
    """Return what plugins leave of the targets that feasibility counts."""
    ever, mask = pool.feasible(request.constraint)
    if narrowed is None:
        return Narrowed((), ever, pool.ranks.mask, "", "", mask)
    ever, mask = restricted(narrowed.ever, mask), narrowed.ever_ranks & mask
    return Narrowed((), ever, narrowed.ranks, narrowed.later, narrowed.never, mask, narrowed.scores)


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
    """Return `shortage` for a request without cores; the number is just 1 or 0, since counting all would take
    longer.
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


# ---- why it does not fit, in words

_MEMBERSHIP: Final = re.compile(r"(?<![\w.@+-])\+(?=\w)")
"""The prefix of a property by which a queue marks its hosts (RFC 33): people know the queue, not the property."""


def _asked(request: Request) -> str:
    """Return the request and its constraint: `4 nodes of 1 core with ssd and queue debug`."""
    text, shown = str(request), str(request.constraint)
    if request.constraint != EVERYTHING and shown not in text:
        text = f"{text} with {shown}"
    return _MEMBERSHIP.sub("queue ", text)


def _insufficient(pool: Pool, choice: Sequence[Candidates], request: Request, found: int) -> str:
    """Return what is missing now: `found` nodes (or slots) fit; the others that could ever fit are down or busy."""
    need = need_of(request, request.slots.min if request.nodes is not None else 1)
    able, down = 0, EMPTY
    for each in choice:
        if need.fits_ever(each.targets):
            able += each.size
            down |= down_in(pool, each)
    busy = able - len(down) - found if request.nodes is not None else 0
    thing = "node" if request.nodes is not None else "slot"
    return f"needs {_asked(request)}; {_available(pool, found, down, busy, thing)}"


def _insufficient_amounts(pool: Pool, asked_amounts: AskedAmounts) -> str:
    """Return what is missing now for a request without cores."""
    now, ever, down = asked_amounts.count()
    return f"needs {_asked(asked_amounts.request)}; {_available(pool, now, down, ever - len(down) - now)}"


NODES_NAMED = 3
"""Nodes that are down and named; of more the number is told."""


def _available(pool: Pool, found: int, down: Idset, busy: int, thing: str = "node") -> str:
    """Return how many fit now, and of the nodes that could hold the request which are down and how many are busy."""
    parts = [f"{counted(found, thing)} {_are('fits', 'fit', found)} now" if found else "none is free"]
    if down:
        those = pool.source.named(down) if len(down) <= NODES_NAMED else counted(len(down), "node")
        parts.append(f"{those} {_are('is', 'are', len(down))} out of service")
    if busy:
        parts.append(f"{counted(busy, 'node')} {_are('is', 'are', busy)} busy")
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
        parts = [counted(cores, "core"), *([counted(gpus, "gpu")] if gpus else ["no gpu"] if request.gpus else [])]
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
    """Return the number of nodes, or slots, there could ever be within the bound, and why not enough; None if
    enough.
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
    down = Idset(able) & pool.down
    busy = able.bit_count() - len(down) - free.bit_count()
    return f"needs {_asked(request)}; {_need(request, short)}; {_available(pool, short.there, down, busy)}"


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


# ---- targets that are left out


class LeftOut:
    """Nothing is placed on the targets of the mask `barred` within the `with` block, for this shape; blocks nest."""

    __slots__ = ("_barred", "_kept", "_narrowed", "_pool", "_prepared", "_shape")

    def __init__(self, pool: Pool, shape: Shape, barred: int) -> None:
        self._pool = pool
        self._shape = shape
        self._barred = barred
        self._narrowed: Narrowed | None = None
        self._prepared: Prepared | None = None
        self._kept: Remaining | None = None

    def __enter__(self) -> LeftOut:
        if self._barred:
            pool, shape = self._pool, self._shape
            base = self._narrowed = pool.narrowed.get(shape.number)
            self._prepared = pool.prepared.pop(shape.number, None)
            kept = pool.remaining.get((shape.number, self._barred))
            if kept is None or kept.base is not base:
                kept = pool.keep_remaining(shape, self._barred, base)
            pool.narrowed[shape.number] = kept.narrowed
            if kept.prepared is not None:
                pool.prepared[shape.number] = kept.prepared
            self._kept = kept
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if self._kept is None:
            return
        pool, number = self._pool, self._shape.number
        self._kept.prepared = pool.prepared.pop(number, None)
        if self._prepared is not None:
            pool.prepared[number] = self._prepared
        if self._narrowed is None:
            del pool.narrowed[number]
        else:
            pool.narrowed[number] = self._narrowed


class Returned:
    """These targets of the pool, which are down, count as usable within the `with` block."""

    __slots__ = ("_pool", "_targets")

    def __init__(self, pool: Pool, targets: Idset) -> None:
        self._pool = pool
        self._targets = targets

    def __enter__(self) -> None:
        if self._targets:
            self._pool.set_up(self._targets)

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if self._targets:
            self._pool.set_down(self._targets)


# ---- finding a place

PREPARED_MAX = 4096
"""Shapes that are kept prepared in a generation; 1 KiB each."""


def place_now(pool: Pool, shape: Shape, placement: str) -> Outcome:
    """Return the outcome for a shape on what is free now, in the order of `placement` (one of PLACEMENTS)."""
    fit = find_fit(pool, shape, placement)
    return why_no_fit(pool, shape) if fit is None else fit


def find_fit(
    pool: Pool,
    shape: Shape,
    placement: str,
    preferred: Preferred | None = None,
    among: Idset | None = None,
    extras: bool = False,
) -> Fits | None:
    """Return a placement of the shape now, or None. Targets in `preferred` are selected first, only those in `among`.

    Of a range it gets the most that fits; if it is elastic just the least, unless `extras` is true.
    """
    try:
        prepared = pool.prepared[shape.number]
    except KeyError:
        prepared = _prepare(pool, shape)
    index = prepared.free_index
    if index is None or preferred is not None or among is not None or (extras and shape.request.elastic):
        if prepared.whole is not None and preferred is None and among is None and not extras:
            return _idle(shape, prepared.whole, prepared.wanted, prepared.nslots)
        return _find_many(pool, prepared, placement, preferred, among, extras)
    while True:
        if placement == BEST_FIT:
            some, order = index.best & prepared.best, index.by_best
        elif placement == WORST_FIT:
            some, order = (index.spread() if index.worst is None else index.worst) & prepared.worst, index.by_worst
        elif placement in LIKE:
            placement = LIKE[placement]
            continue
        elif placement == LEAST_LOST and prepared.choice[0].targets.weighs_amounts:
            return _search(pool, shape, prepared.choice, shape.request.constraint, placement, None, extras)
        else:
            lost = prepared.choice[0].targets.lost if placement == LEAST_LOST else None
            at, word = index.first(prepared.best) if lost is None else index.least(prepared.best, lost)
            if word:
                break
            return None
        if not some:
            return None
        level = order[some.bit_length()]
        top = level.top
        at = (top & -top).bit_length() - 1
        word = level.words[at]
        if word:
            break
        level.unlist_word(at)
    lowest_id = (word & -word).bit_length() - 1
    partial = pool.partials[at][lowest_id]
    if partial is None:  # it is idle
        cores, gpus = prepared.first_cores, prepared.first_gpus
    else:
        cores, gpus, level = partial
        if prepared.cores != level.cores:
            cores = cores & -cores if prepared.cores == 1 else lowest(cores, prepared.cores)
        if prepared.gpus != level.gpus:
            gpus = gpus & -gpus if prepared.gpus == 1 else lowest(gpus, prepared.gpus)
    return _tuple(Fits, (shape, (_tuple(Block, (at, BITS[lowest_id], cores, gpus, ())),), prepared.nslots, ()))


def _find_many(
    pool: Pool, prepared: Prepared, placement: str, preferred: Preferred | None, among: Idset | None, extras: bool
) -> Fits | None:
    """Find a placement as `find_fit` does, for any shape but one that asks for targets of one class, any one or
    whole.
    """
    shape = prepared.shape
    if prepared.asked is not None:
        return _amounts(pool, shape, prepared.asked, placement, preferred, among)
    if prepared.parts:
        return place_parts(pool, shape, prepared.parts, placement, preferred, among, extras)
    choice = prepared.choice if among is None else restricted(prepared.choice, among.mask)
    constraint = shape.request.constraint if among is None and shape.number not in pool.narrowed else None
    return _search(pool, shape, choice, constraint, LIKE.get(placement, placement), preferred, extras)


def room_for(pool: Pool, shape: Shape, among: int | None = None) -> tuple[Room, int]:
    """Return the room of a shape in nodes, or slots, under each switch now, and the most on one target; only `among`
    these.
    """
    request, choice = shape.request, pool.choice_of(shape)
    constraint = None if shape.number in pool.narrowed or among is not None else request.constraint
    choice = choice if among is None else restricted(choice, among)
    search = Nearest(pool.rooms, pool.generation, choice, constraint, BEST_FIT, None)
    if request.nodes is None:
        return search.slot_room(request)
    room = search.node_room(need_of(request, request.slots.min))
    return room, min(room.total, 1)


def find_on(pool: Pool, shape: Shape, rank: int) -> Fits | None:
    """Return a placement of the shape on one target, which may be withheld, or None."""
    prepared = pool.prepared.get(shape.number) or _prepare(pool, shape)
    if prepared.asked is None:
        return find_fit(pool, shape, BEST_FIT, None, Idset.one(rank))
    request = shape.request
    if not is_single(request) or (request.shared and pool.instance_countables.lacking(request.shared)):
        return None
    return _on(shape, prepared.asked, prepared.asked.find_on(rank))


_tuple: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once an allocation


def _amounts(
    pool: Pool, shape: Shape, asked: AskedAmounts, placement: str, preferred: Preferred | None, among: Idset | None
) -> Fits | None:
    """Return a placement of amounts without cores: on one target without cores."""
    request = shape.request
    if not is_single(request) or (request.shared and pool.instance_countables.lacking(request.shared)):
        return None
    target: AmountTarget | None = None
    if preferred is not None:
        first = Idset(mask_of(preferred.words))
        target = asked.find(placement, first if among is None else first & among)
    if target is None:
        target = asked.find(placement, among)
    return _on(shape, asked, target)


def _on(shape: Shape, asked: AskedAmounts, target: AmountTarget | None) -> Fits | None:
    if target is None:
        return None
    blocks: Blocks = (_tuple(Block, (target.at, target.bit, 0, 0, asked.need)),)
    if shape.request.shared:
        blocks += instance_block(shape.request.shared)
    return _tuple(Fits, (shape, blocks, 1, ()))


def _search(
    pool: Pool,
    shape: Shape,
    choice: Choice,
    constraint: Constraint | None,
    placement: str,
    preferred: Preferred | None,
    extras: bool,
) -> Fits | None:
    """Search in the general way: any number of targets of any number of classes, and countables of the instance.

    `constraint` is what the choice follows from, None if it is narrower than that.
    """
    request = shape.request
    if request.shared and pool.instance_countables.lacking(request.shared):
        return None
    nodes = request.nodes
    if nodes is not None and request.elastic and not extras:
        nodes = Count.fixed(nodes.min)
    if hops_count(pool.rooms, request):
        fit = Nearest(pool.rooms, pool.generation, choice, constraint, placement, preferred).fit(shape, nodes)
    elif nodes is not None:
        fit = _by_nodes(choice, shape, nodes, placement, preferred)
    else:
        fit = _by_slots(choice, shape, placement, preferred)
    if fit is None or not request.shared:
        return fit
    return Fits(shape, fit.blocks + instance_block(request.shared), fit.nslots)


def _by_slots(choice: Choice, shape: Shape, placement: str, preferred: Preferred | None) -> Fits | None:
    request = shape.request
    slots: int | None = request.slots.min
    if not request.slots.is_fixed or (slots != 1 and not request.amounts):
        slots = request.slots.largest(count_slots(choice, request))
    blocks = select_slots(choice, request, slots, placement, preferred) if slots else None
    return Fits(shape, tuple(blocks), slots) if slots and blocks else None


def _idle(shape: Shape, targets: TargetClass, n: int, nslots: int) -> Fits | None:
    """Return the `n` lowest idle targets of a class, whole."""
    idle = targets.idle
    if idle.count < n:
        return None
    cores, gpus = targets.all_cores, targets.all_gpus
    at = (idle.top & -idle.top).bit_length() - 1
    word = idle.words[at]
    if word.bit_count() >= n:  # mostly one word will do
        return _tuple(Fits, (shape, (_tuple(Block, (at, lowest(word, n), cores, gpus, ())),), nslots, ()))
    blocks: list[Block] = []
    for at, word in idle.filled():
        have = word.bit_count()
        if have > n:
            word, have = lowest(word, n), n
        blocks.append(_tuple(Block, (at, word, cores, gpus, ())))
        n -= have
        if not n:
            break
    return _tuple(Fits, (shape, tuple(blocks), nslots, ()))


def _by_nodes(choice: Choice, shape: Shape, nodes: Count, placement: str, preferred: Preferred | None) -> Fits | None:
    request = shape.request
    per_node = request.slots.largest(most_slots(choice, request))
    while per_node is not None:
        need = need_of(request, per_node)
        wanted: int | None = 1
        if nodes.max != 1:  # the first one that fits is found without counting
            wanted = nodes.largest(count_nodes(choice, need))
        blocks = select_nodes(choice, need, wanted, placement, preferred) if wanted else None
        if wanted and blocks:
            return Fits(shape, tuple(blocks), wanted * per_node)
        per_node = request.slots.largest(per_node - 1)
    return None


def _prepare(pool: Pool, shape: Shape) -> Prepared:
    """Prepare what each attempt to place a request needs, once."""
    if len(pool.prepared) >= PREPARED_MAX:
        pool.prepared.clear()
    request = shape.request
    if request.is_of_amounts:
        prepared = pool.prepared[shape.number] = Prepared(shape, ())
        prepared.asked = pool.asked_amounts(request, pool.narrowed.get(shape.number))
        return prepared
    choice = pool.choice_of(shape)
    prepared = pool.prepared[shape.number] = Prepared(shape, choice)
    if request.parts:
        prepared.parts = choices_of(pool, request, pool.narrowed.get(shape.number))
        return prepared
    if request.slots.is_fixed and not request.shared and len(choice) == 1 and choice[0].only is None:
        _prepare_for_class(prepared, choice[0].targets, choice[0].size, by_hops=hops_count(pool.rooms, request))
    return prepared


def _prepare_for_class(prepared: Prepared, targets: TargetClass, size: int, *, by_hops: bool) -> None:
    """Prepare a shape whose choice is one whole class, of `size` targets."""
    request = prepared.shape.request
    slots, nodes = request.slots.min, request.nodes
    if nodes is not None and request.elastic:
        nodes = Count.fixed(nodes.min)
    is_alone = nodes.max == 1 if nodes is not None else slots == 1 or size == 1
    prepared.nslots = slots if is_alone or nodes is not None else 1
    need = need_of(request, prepared.nslots)
    cores, gpus = need.on(targets)
    if not need.fits_ever(targets) or need.amounts_on(targets):
        return
    if is_alone:
        prepared.free_index = targets.index
        prepared.best, prepared.worst = targets.index.fitting(cores, gpus)
        prepared.cores, prepared.gpus = cores, gpus
        if not targets.mixed:
            prepared.first_cores, prepared.first_gpus = lowest(targets.all_cores, cores), lowest(targets.all_gpus, gpus)
        return
    if (cores, gpus) != (targets.cores, targets.gpus) or targets.mixed or by_hops:
        return
    if nodes is None and request.cores == cores:
        prepared.whole, prepared.wanted, prepared.nslots = targets, slots, slots
    elif nodes is not None and nodes.is_fixed:
        prepared.whole, prepared.wanted, prepared.nslots = targets, nodes.min, nodes.min * slots


# ---- what-ifs


class WhatIf:
    """Changes of `pool` within a `with` block; one at a time."""

    __slots__ = ("_log", "_pool", "_preferred")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._log: list[tuple[bool, Blocks]] = []
        self._preferred = Preferred()

    def __enter__(self) -> WhatIf:
        if self._pool.what_if_open:
            raise LocalProtocolError("a what-if of this pool is open: end it before another begins")
        self._pool.what_if_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.back(0)
        self._pool.what_if_open = False

    # ---- changes

    def give(self, blocks: Blocks) -> None:
        """Give back blocks as if a job had freed them; those that the pool does not count (foreign, shrunk) are
        ignored.
        """
        self._pool.give(blocks)
        self._log.append((True, blocks))
        self._preferred.add(blocks)

    def prefer(self, blocks: Blocks) -> None:
        """Prefer blocks as if they had been freed and taken by another job: `prefer_given` prefers their targets,
        too.
        """
        self._preferred.add(blocks)

    def take(self, blocks: Blocks) -> None:
        """Take blocks as if a job had got them. Raise LocalProtocolError unless all are free."""
        if not self._pool.take(blocks):
            raise LocalProtocolError("what-if: some of what is to be taken is not free")
        self._log.append((False, blocks))

    def keep(self, blocks: Iterable[Block]) -> None:
        """Take the part of these blocks that is free now."""
        self.take(tuple(free_of(self._pool, tuple(blocks))))

    def mark(self) -> int:
        """Return a mark to which the what-if can be undone."""
        return len(self._log)

    def back(self, mark: int) -> None:
        """Undoes all changes since `mark`."""
        while len(self._log) > mark:
            gave, blocks = self._log.pop()
            if gave:
                self._pool.claim(blocks)
                self._preferred.undo(blocks)
            else:
                self._pool.give(blocks)

    # ---- questions

    def find(
        self, shape: Shape, placement: str, avoid: Sequence[Block] = (), prefer_given: bool = False
    ) -> Fits | None:
        """Return a placement of the shape on what is free in the what-if, or None: `place_now` without the reason.

        It gets nothing of `avoid` (the reservation of another job). With `prefer_given`, targets and ids that `give`
        freed are selected first, so that a reservation leaves what is free already to others.
        """
        mark = len(self._log)
        if avoid:
            self.keep(avoid)
        try:
            return find_fit(self._pool, shape, placement, self._preferred if prefer_given else None)
        finally:
            self.back(mark)
