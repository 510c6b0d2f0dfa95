"""What a scheduler's session asks its adapter to do, besides the effects of the scheduler itself.

Law: values only, of the protocol and not of a transport: how they are performed is the adapter's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from fluxsched.errors import FluxschedError
from fluxsched.sched import effects as sched

ACQUIRE: Final = "resource.acquire"
RELEASE: Final = "resource.release"
HELLO: Final = "job-manager.sched-hello"
READY: Final = "job-manager.sched-ready"
RAISE: Final = "job-manager.raise"
GROW: Final = "job-manager.sched-grow"
SHRINK: Final = "job-manager.sched-shrink"
SAVE: Final = "job-manager.sched-save"
"""The topics of our own requests."""


class Call(NamedTuple):
    """Send a request of ours and give its answers to `answered`. `message` None: no payload; `group`: of a stream."""

    topic: str
    message: Any = None
    streaming: bool = False
    group: str = ""


class Respond(NamedTuple):
    """Answer the request that came with `token`; an alloc request may get more answers, by job id (RFC 27)."""

    token: Any
    message: Any = None


class Fail(NamedTuple):
    """The request that came with `token` was wrong or is refused: answer it with this error if it wants an answer."""

    token: Any
    error: FluxschedError


class End(NamedTuple):
    """The scheduler cannot continue."""

    reason: str


class Left(NamedTuple):
    """All is saved: the adapter may go."""


class Log(NamedTuple):
    """A line for the log."""

    text: str
    is_error: bool = False


SessionEffect: TypeAlias = sched.Effect | Call | Respond | Fail | End | Left | Log
"""The scheduler's `Release`, `Raise`, `Grown` and `Shrunk` come out as calls, its answers to alloc as they are."""

Effects: TypeAlias = Sequence[SessionEffect]
