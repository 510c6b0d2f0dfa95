"""Where a request goes: counts what is free, decides how much of a range to grant, then picks targets in order.

Law: nothing is changed here, and failing costs no more than the buckets: targets are only walked once it is known that
enough of them fit. Ranges: as many slots a node as still leave enough nodes, then as many nodes (or slots) as are free.
A target gets as many slots as fit on it, so a job touches few. Exclusive requests take idle targets whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from itertools import chain, islice

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.sched import reasons
from fluxsched.sched.bits import Bits, lowest
from fluxsched.sched.outcome import Fits, Infeasible, Insufficient, Outcome, Part
from fluxsched.sched.pool import Choice, Pool
from fluxsched.sched.shelf import WALKS, Shelf, Walk

Plan = tuple[Choice, ...]
First = Mapping[int, tuple[int, int]] | None


def place(pool: Pool, request: Request, placement: str) -> Outcome:
    """What the request comes to on what is free now, in the order of `placement` (BEST_FIT or WORST_FIT)."""
    plan = pool.plan(request.constraint)
    parts, nslots, found = _search(pool, plan, request, WALKS[placement])
    if parts:
        return Fits(request, parts, nslots)
    never = infeasible(pool, request)
    return Insufficient(reasons.insufficient(pool, plan, request, found)) if never is None else Infeasible(never)


def find(pool: Pool, request: Request, placement: str, first: First = None) -> Fits | None:
    """Where the request fits now, or None. `first` maps ranks to the ids there that are chosen before all others."""
    plan = pool.plan(request.constraint)
    if first:
        wanted = Idset.of(first).mask
        plan = (*_restricted(plan, wanted), *_restricted(plan, ~wanted))
    parts, nslots, _ = _search(pool, plan, request, WALKS[placement], first)
    return Fits(request, parts, nslots) if parts else None


def _search(
    pool: Pool, plan: Plan, request: Request, walk: Walk, first: First = None
) -> tuple[tuple[Part, ...], int, int]:
    """Parts, number of slots, and, when there are no parts, how many nodes (or slots) would fit now."""
    if request.nodes is None:
        return _by_slots(pool, plan, request, walk, first)
    return _by_nodes(pool, plan, request, request.nodes, walk, first)


def _restricted(plan: Plan, ranks: int) -> Iterator[Choice]:
    for shelf, mask, _ in plan:
        if mask & ranks:
            yield Choice(shelf, mask & ranks, Bits.of(mask & ranks))


def infeasible(pool: Pool, request: Request) -> str | None:
    """Why the request can never fit on what the pool counts, up or down, busy or free; None if it can (law 10)."""
    plan = pool.plan(request.constraint)
    per_node = request.slots.min if request.nodes is not None else 1
    able = [choice for choice in plan if choice.shelf.fits_ever(*amount(request, per_node))]
    if request.nodes is not None:
        have, need = sum(choice.mask.bit_count() for choice in able), request.nodes.min
    else:
        have = sum(mask.bit_count() * slots_on(request, shelf.cores, shelf.gpus) for shelf, mask, _ in able)
        need = request.slots.min
    return None if have >= need else reasons.infeasible(plan, able, request, have)


def amount(request: Request, slots: int) -> tuple[int, int]:
    """Cores and GPUs that so many slots on one target ask for."""
    return slots * request.cores, slots * request.gpus


def slots_on(request: Request, cores: int, gpus: int) -> int:
    """How many slots that many cores and GPUs of one target can hold; a slot has at least one core (RFC 25)."""
    by_cores = cores // request.cores
    return min(by_cores, gpus // request.gpus) if request.gpus else by_cores


def _by_slots(
    pool: Pool, plan: Plan, request: Request, walk: Walk, first: First
) -> tuple[tuple[Part, ...], int, int]:
    """Parts, number of slots, and, when there are no parts, how many slots would fit now."""
    slots = request.slots
    if slots.max == 1:
        wanted: int | None = 1
    else:
        free = _weigh(plan, request, 1, lambda cores, gpus: slots_on(request, cores, gpus))
        wanted = slots.largest(free)
        if wanted is None:
            return (), 0, free
    parts, left = [], wanted or 0
    for rank in _in_order(plan, request, 1, walk, first):
        target = pool.targets[rank]
        fitting = min(left, slots_on(request, target.cores.bit_count(), target.gpus.bit_count()))
        parts.append(_part(pool, rank, request, fitting, first))
        left -= fitting
        if not left:
            return tuple(parts), wanted or 0, 0
    return (), 0, 0


def _by_nodes(
    pool: Pool, plan: Plan, request: Request, nodes: Count, walk: Walk, first: First
) -> tuple[tuple[Part, ...], int, int]:
    """Parts, number of slots, and, when there are no parts, how many nodes would fit now."""
    per_node: int | None = request.slots.largest(_most_slots(plan, request))
    while per_node is not None:
        found = 0
        if nodes.max == 1:
            wanted: int | None = 1  # the first one that fits is found without counting
        else:
            found = _weigh(plan, request, per_node, lambda cores, gpus: 1)
            wanted = nodes.largest(found)
        ranks = islice(_in_order(plan, request, per_node, walk, first), wanted or 0)
        parts = tuple([_part(pool, rank, request, per_node, first) for rank in ranks])
        if parts:
            return parts, len(parts) * per_node, 0
        if per_node == request.slots.min:
            return (), 0, found
        per_node = request.slots.largest(per_node - 1)
    return (), 0, 0


def _most_slots(plan: Plan, request: Request) -> int:
    """The most slots that a node of the plan could ever hold; bounds the slots a node that are tried."""
    return max((slots_on(request, choice.shelf.cores, choice.shelf.gpus) for choice in plan), default=0)


def _part(pool: Pool, rank: int, request: Request, slots: int, first: First) -> Part:
    target = pool.targets[rank]
    if request.exclusive:
        return Part(rank, target.all_cores, target.all_gpus)
    cores, gpus = request.cores * slots, request.gpus * slots
    if first and rank in first:
        return Part(rank, _chosen(target.cores, cores, first[rank][0]), _chosen(target.gpus, gpus, first[rank][1]))
    return Part(rank, lowest(target.cores, cores), lowest(target.gpus, gpus) if gpus else 0)


def _chosen(free: int, n: int, first: int) -> int:
    """The `n` lowest of what is free, those in `first` before the others."""
    early = free & first
    if early.bit_count() >= n:
        return lowest(early, n) if n else 0
    return early | lowest(free ^ early, n - early.bit_count())


def _weigh(plan: Plan, request: Request, slots: int, weight: Callable[[int, int], int]) -> int:
    """The sum, over usable targets where `slots` slots fit now, of the weight of what is free there."""
    total = 0
    needs = amount(request, slots)
    for shelf, _, only in plan:
        for cores, gpus, bucket in shelf.free_at(*_least(shelf, needs, request.exclusive)):
            total += weight(cores, gpus) * (bucket.count if only is None else bucket.count_common(only))
    return total


def _least(shelf: Shelf, needs: tuple[int, int], exclusive: bool) -> tuple[int, int]:
    """What must be free on a target of this shelf: all of it for an exclusive request that fits there at all."""
    return (max(shelf.cores, needs[0]), max(shelf.gpus, needs[1])) if exclusive else needs


def _in_order(plan: Plan, request: Request, slots: int, walk: Walk, first: First) -> Iterator[int]:
    """Ranks where `slots` slots fit now, in the order of the placement; ties over shelves go to the lowest rank."""
    needs = amount(request, slots)
    if len(plan) == 1:
        shelf, _, only = plan[0]
        return _along(walk(shelf, *_least(shelf, needs, request.exclusive)), only)
    streams = [_keyed(walk(shelf, *_least(shelf, needs, request.exclusive)), only) for shelf, _, only in plan]
    if first:
        early = [stream for stream, choice in zip(streams, plan, strict=True) if choice.mask & Idset.of(first).mask]
        return (rank for _, rank in chain(merge(*early), merge(*streams[len(early) :])))
    return (rank for _, rank in merge(*streams))


def _along(buckets: Iterator[tuple[tuple[int, int], Bits]], only: Bits | None) -> Iterator[int]:
    for _, bucket in buckets:
        yield from bucket if only is None else bucket.common(only)


def _keyed(
    buckets: Iterator[tuple[tuple[int, int], Bits]], only: Bits | None
) -> Iterator[tuple[tuple[int, int], int]]:
    for key, bucket in buckets:
        for rank in bucket if only is None else bucket.common(only):
            yield key, rank
