"""Jobs and targets in the interface's amounts: which asks a job is, and what a target has.

A job is one ask for each node that it is to have, since the interface places asks and knows no core ids. Cores are
thousandths of a vcore. The kind SHARE lets a job have a node to itself: of its thousandths such a job asks for all, any
other for one. What a request leaves open (ranges) is asked for at its least.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from fluxsched.core.children import Children
from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.count import ONE, Count
from fluxsched.core.idset import Idset
from fluxsched.core.request import Request
from fluxsched.sched.pool.pool import Pool

VCORE: Final = "vcore"
GPU: Final = "gpu"
SHARE: Final = "fluxsched.org/share"
WHOLE: Final = 1000
"""Of SHARE on each node: as many jobs may be on it."""

RANK: Final = "fluxsched.org/rank"
"""The attribute of a node by which a constraint names its target."""


class NodesAsked(NamedTuple):
    """Request for so many nodes of a job, each with so many of its slots."""

    slots: int
    nodes: int


def pieces_of(request: Request, pool: Pool) -> tuple[NodesAsked, ...]:
    """Return the division of a job: by nodes if it names them; slots that may be anywhere are on one node, if one can
    have them all.
    """
    if request.nodes is not None:
        return (NodesAsked(request.slots.min, request.nodes.min),)
    slots = request.slots.min
    most = 1 if slots == 1 else max([_slots_on(request, entry.children) for entry in pool.resources.entries], default=1)
    if slots <= most:
        return (NodesAsked(slots, 1),)
    full, rest = divmod(slots, max(most, 1))
    return (NodesAsked(most, full), NodesAsked(rest, 1)) if rest else (NodesAsked(most, full),)


def _slots_on(request: Request, children: Children) -> int:
    has = dict(children.amounts)
    most = [len(children.cores) // request.cores] if request.cores else []
    most += [len(children.gpus) // request.gpus] if request.gpus else []
    most += [has.get(kind, 0) // amount for kind, amount in request.amounts]
    return min(most, default=1)


def amounts_of(request: Request, slots: int) -> dict[str, int]:
    """Return the amounts that a job requests on a node on which it has so many slots."""
    found = {VCORE: 1000 * request.cores * slots, GPU: request.gpus * slots}
    for kind, amount in request.amounts:
        found[kind] = found.get(kind, 0) + amount * slots
    for kind, amount in request.node_amounts:
        found[kind] = found.get(kind, 0) + amount
    found[SHARE] = WHOLE if request.exclusive else 1
    return {kind: amount for kind, amount in found.items() if amount}


def amounts_on(children: Children) -> dict[str, int]:
    """Return the amounts of a target."""
    found = {VCORE: 1000 * len(children.cores), GPU: len(children.gpus), **dict(children.amounts), SHARE: WHOLE}
    return {kind: amount for kind, amount in found.items() if amount}


def amounts_held(cores: int, gpus: int, amounts: Any, is_whole: bool) -> dict[str, int]:
    """Return the amounts that a running job holds of a target; core and GPU ids are masks."""
    found = {VCORE: 1000 * cores.bit_count(), GPU: gpus.bit_count(), **dict(amounts), SHARE: WHOLE if is_whole else 1}
    return {kind: amount for kind, amount in found.items() if amount}


def on_one_node(request: Request, slots: int) -> Request:
    """The part of a request that is to be on one node: it is placed here, on the node that was given."""
    return replace(request, nodes=ONE, slots=Count.fixed(slots), constraint=EVERYTHING, shared=())


def constraint_of(constraint: Constraint, without: frozenset[int] = frozenset()) -> dict[str, Any] | None:
    """The constraint over the attributes of our nodes, and on none of these ranks; None if it allows all."""
    own = _translated(constraint.to_json())
    others = [{"properties": [f"^{RANK}={rank}" for rank in sorted(without)]}] if without else []
    both = ([own] if own else []) + others
    return (both[0] if len(both) == 1 else {"and": both}) if both else None


def _translated(constraint: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for operator, values in constraint.items():
        match operator:
            case "properties":
                found[operator] = [f"{name}=true" for name in values]
            case "ranks":
                ranks = [rank for idset in values for rank in Idset.parse(idset)]
                found["or"] = [{"properties": [f"{RANK}={rank}"]} for rank in ranks]
            case "hostlist":
                found[operator] = values
            case _:
                found[operator] = [_translated(value) for value in values]
    return found
