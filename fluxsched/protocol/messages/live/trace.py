"""`instance.trace`: messages between the instance and its peers, as they pass."""

from __future__ import annotations

from typing import Literal

from fluxsched.protocol.messages.common import Payload, Size, WallTime


class TraceRequest(Payload, frozen=True):
    """Messages whose topics have one of these beginnings; all if none is given."""

    topics: tuple[str, ...] = ()


class TracedMessage(Payload, frozen=True, omit_defaults=False):
    """One message: received (`<-`) from a peer or sent (`->`) to it, and its payload as text, shortened.

    Environments, input and output of jobs are left out of the text.
    """

    t: WallTime
    direction: Literal["<-", "->"]
    peer: str
    type: Literal["request", "response"]
    topic: str
    text: str


class TraceResponse(Payload, frozen=True, omit_defaults=False):
    """Some messages in order, and how many more there were since the answer before."""

    messages: list[TracedMessage]
    dropped: Size
