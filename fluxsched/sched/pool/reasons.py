"""Why a job waits or never starts, in words for its owner; the outcomes of law 9 carry these texts.

The scheduler does not learn whether a target is drained, torpid or offline: all three are `down` here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fluxsched.core.amounts import Amounts, amount_text, total
from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.amounts.asked import AskedAmounts, is_single
from fluxsched.sched.pool.choice import Candidates, need_of
from fluxsched.sched.pool.listing import down_in
from fluxsched.sched.pool.pool import Pool

_MEMBERSHIP: Final = re.compile(r"(?<![\w.@+-])\+(?=\w)")
"""The prefix of a property by which a queue marks its hosts (RFC 33): people know the queue, not the property."""


def asked(request: Request) -> str:
    """The request and its constraint: `4 nodes of 1 slot of 1 core with ssd and queue debug`."""
    text, shown = str(request), str(request.constraint)
    if request.constraint != EVERYTHING and shown not in text:
        text = f"{text} with {shown}"
    return _MEMBERSHIP.sub("queue ", text)


def counted(n: int, thing: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def insufficient(pool: Pool, choice: Sequence[Candidates], request: Request, found: int) -> str:
    """What is missing now: `found` nodes (or slots) fit; the others that could ever fit are down or busy."""
    need = need_of(request, request.slots.min if request.nodes is not None else 1)
    able = down = 0
    for each in choice:
        if need.fits_ever(each.targets):
            able += each.size
            down += down_in(pool, each)
    thing = "node" if request.nodes is not None else "slot"
    parts = [f"{counted(found, thing)} {'fits' if found == 1 else 'fit'} now" if found else "none is free"]
    if down:
        parts.append(f"{counted(down, 'node')} {'is' if down == 1 else 'are'} down")
    busy = able - down - found if request.nodes is not None else 0
    if busy:
        parts.append(f"{counted(busy, 'node')} {'is' if busy == 1 else 'are'} busy")
    return f"needs {asked(request)}; {', '.join(parts)}"


def insufficient_amounts(asked_amounts: AskedAmounts) -> str:
    """The same for a request without cores."""
    now, ever, down = asked_amounts.count()
    parts = [f"{counted(now, 'node')} {'fits' if now == 1 else 'fit'} now" if now else "none is free"]
    if down:
        parts.append(f"{counted(down, 'node')} {'is' if down == 1 else 'are'} down")
    if busy := ever - down - now:
        parts.append(f"{counted(busy, 'node')} {'is' if busy == 1 else 'are'} busy")
    return f"needs {asked(asked_amounts.request)}; {', '.join(parts)}"


def infeasible_amounts(asked_amounts: AskedAmounts) -> str:
    """What is missing for good for a request without cores: of each kind, the most that a node has."""
    request = asked_amounts.request
    if not is_single(request):
        return f"needs {asked(request)}; without cores it can only be one slot on one node"
    most = asked_amounts.largest()
    if most is None:
        return f"needs {asked(request)}; no node of the group matches"
    there = [amount_text(kind, most[kind]) if most.get(kind) else f"no {kind}" for kind, _ in asked_amounts.need]
    return f"needs {asked(request)}; no node is large enough: the largest that match have {' and '.join(there)}"


def lacking(request: Request, there: Amounts) -> str:
    """What the instance does not have, ever: of each kind that is asked for, what there is."""
    return f"needs {asked(request)}; the instance has only {_listed(there)}"


def lacking_now(request: Request, there: Amounts) -> str:
    """What other jobs hold of the countables of the instance: of each kind, what is left."""
    return f"needs {asked(request)}; only {_listed(there)} {'is' if len(there) == 1 else 'are'} left"


def _listed(amounts: Amounts) -> str:
    return " and ".join([amount_text(kind, amount) for kind, amount in amounts])


def infeasible(choice: Sequence[Candidates], able: Sequence[Candidates], request: Request, have: int) -> str:
    """What is missing for good: `have` nodes (or slots) of the group could hold the request, in the classes `able`."""
    if not choice:
        return f"needs {asked(request)}; no node of the group matches"
    if not able:
        cores, gpus, amounts = max((each.targets.cores, each.targets.gpus, each.targets.amounts) for each in choice)
        parts = [counted(cores, "core"), *([counted(gpus, "gpu")] if gpus else [])]
        parts += [amount_text(kind, amount) for kind, amount in amounts]
        absent = [kind for kind, _ in total(request.amounts, request.node_amounts) if kind not in dict(amounts)]
        parts += [f"no {kind}" for kind in absent]
        size = " and ".join(parts) + (" (see `amounts` in the configuration)" if absent else "")
        return f"needs {asked(request)}; no node is large enough: the largest that matches has {size}"
    thing = "such node" if request.nodes is not None else "such slot"
    return f"needs {asked(request)}; the group has only {counted(have, thing)}"
