"""R of a free request: R_lite alone (RFC 20), checked while it is decoded.

Law: every part is typed, so nothing is walked again behind the decoder: a free is read in a quarter of the time that
its whole R takes, and most messages to a scheduler are frees.
"""

from __future__ import annotations

from typing import Final, NotRequired, TypedDict

import msgspec

from fluxsched.protocol import framing
from fluxsched.protocol.messages.sched import FreeRequest

# Not compiled: msgspec decodes into these classes by annotations, of which mypyc keeps few


class LiteEntry(TypedDict):
    """Entry of R_lite: ranks with the same children and amounts.

    It is a plain dictionary, as parsers of R_lite expect it.
    """

    rank: str
    children: dict[str, str]
    amounts: NotRequired[dict[str, int]]


class LiteExecution(msgspec.Struct, frozen=True, gc=False):
    """The part of `execution` that names resources; one entry alone is how it was written in 2019."""

    R_lite: list[LiteEntry] | LiteEntry


class LiteR(msgspec.Struct, frozen=True, gc=False):
    """R without hosts, properties and times, which do not matter for what is freed."""

    execution: LiteExecution


FREE: Final = framing.retyped(FreeRequest, "R", LiteR)
"""A FreeRequest (RFC 27) whose `R` is a LiteR."""
