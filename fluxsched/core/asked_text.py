"""Text of a request whose size is not fixed: `1-4 nodes, elastic`, `lead:1 work:4-10 nodes, elastic`.

Law: a request of fixed size without a bound has no text, for its size says it all.
"""

from __future__ import annotations

from fluxsched.core.count import Count
from fluxsched.core.request import Request


def asked_text(request: Request) -> str:
    """One line; empty if the size is fixed and hops are not bounded."""
    if request.is_fixed and request.max_hops is None:
        return ""
    words = [_counts(request)]
    if request.elastic:
        words.append("elastic")
    if request.max_hops is not None:
        words.append(f"at most {request.max_hops} hops")
    return ", ".join(words)


def _counts(request: Request) -> str:
    if request.parts:
        return " ".join([f"{part.label}:{part.nodes}" for part in request.parts]) + " nodes"
    if request.nodes is None:
        return _many(request.slots, "slot")
    nodes = _many(request.nodes, "node")
    return nodes if request.slots.is_fixed else f"{nodes} with {_many(request.slots, 'slot')} each"


def _many(count: Count, what: str) -> str:
    return f"{count} {what}{'' if count.min == count.max == 1 else 's'}"
