"""Why a job of several parts waits or never starts, in words for its owner: which parts, and the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.choice import PartChoice
from fluxsched.sched.pool.hops.reasons import most_within, never_within
from fluxsched.sched.pool.parts.hall import Hall, Shortfall, by_suited
from fluxsched.sched.pool.parts.near import NearParts
from fluxsched.sched.pool.parts.near_ever import NearEver
from fluxsched.sched.pool.parts.placing import nodes_of
from fluxsched.sched.pool.parts.suited import offers, suited_ever, suited_now
from fluxsched.sched.pool.placement import FIRST_FIT
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.reasons import asked, counted


def infeasible_parts(request: Request, choices: Sequence[PartChoice]) -> str | None:
    """Which parts can never all be had, and what there is for them; None if they can."""
    short = _shortfall(request, suited_ever(choices))
    if short is None:
        return None
    each = " of them" if len(short.parts) > 1 else ""
    there = f"only {counted(short.there, 'node')}" if short.there else "no node"
    suited = f"any{each}" if each else "it"
    return f"needs {asked(request)}; {_need(request, short)}, the group has {there} for {suited}"


def never_within_parts(pool: Pool, request: Request, choices: Sequence[PartChoice]) -> str | None:
    """Which part can never be within the bound on hops, or that never all are at one time; None if they could be."""
    for part, (need, able) in zip(request.parts, choices, strict=True):
        _, why = never_within(pool.rooms, able, part, need)
        if why is not None:
            return f"{part.label} {why}"
    assert request.max_hops is not None
    needs = [count.min for count in nodes_of(request)]
    if NearEver(pool.rooms.network, needs, request.max_hops).can_be(suited_ever(choices)):
        return None
    return f"needs {asked(request)}; each part has room within the bound, but never all of them at one time"


def insufficient_parts(pool: Pool, request: Request, choices: Sequence[PartChoice]) -> str:
    """Which parts cannot all be had now; the other nodes that could ever do are down or busy."""
    all_offers = [offers(choice, FIRST_FIT) for choice in choices]
    now, ever = suited_now(all_offers), suited_ever(choices)
    short = _shortfall(request, now)
    if short is None and request.max_hops is not None:
        near = NearParts(pool.rooms, request, {}, all_offers, 0)
        each = [(part, near.room(number)) for number, part in enumerate(request.parts) if part.least_nodes > 1]
        said = [f"of {part.label} {most_within(room, part)}" for part, room in each]
        return f"needs {asked(request)}; all parts fit, but not that near each other: {'; '.join(said)}"
    if short is None:
        return f"needs {asked(request)}; none is free"
    free = able = 0
    for part in short.parts:
        free |= now[part]
        able |= ever[part]
    down = (able & pool.down.mask).bit_count()
    busy = able.bit_count() - down - free.bit_count()
    said = [f"{counted(short.there, 'node')} {_are('fits', 'fit', short.there)} now" if free else "none is free"]
    said += [f"{counted(n, 'node')} {_are('is', 'are', n)} {how}" for n, how in ((down, "down"), (busy, "busy")) if n]
    return f"needs {asked(request)}; {_need(request, short)}; {', '.join(said)}"


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
