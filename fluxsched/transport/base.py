"""Behaviour of every transport, and its limits, held to by one conformance suite.

A message is a list of parts (RFC 3: route stack, delimiter, topic, payload, header). A send never waits, a receive
never waits, and a peer that ends is reported once, after everything that it had sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fluxsched.errors import LimitExceeded, LocalProtocolError

if TYPE_CHECKING:  # commands start 15 ms sooner without asyncio
    import asyncio

MESSAGE_BYTES_MAX = 64 << 20
"""Largest part of a message that is taken in: room for R of 131,072 different targets, not for a flood."""

PARTS_MAX = 64
"""Most parts of a message: a route of 60 hops is far beyond any tree, a million empty parts is an attack."""

UNSENT_BYTES_MAX = 64 << 20
"""Most bytes kept for a peer that does not read; beyond it the peer is cut off so that others live on."""

NO_PARTS = "a message without parts cannot be sent: it has at least its header"


class Arrived(NamedTuple):
    """A message from a peer; `frames` come without the peer's identity: `[b"", topic, payload?, header]`.

    `userid` or `key` (the public key that the peer has proved to have) is who the transport knows it to be; both are
    None where its access rules let in the owner only.
    """

    peer: bytes
    frames: list[bytes]
    userid: int | None = None
    key: bytes | None = None


class Lost(NamedTuple):
    """The peer's connection ended; exactly once a peer, after its last message. `reason` is for people."""

    peer: bytes
    reason: str


class Server(Protocol):
    """One bound endpoint with many peers. A peer is known from its first message until its `Lost`."""

    endpoint: str
    dropped: int
    """Messages that were not delivered because their peer was unknown or lost."""
    json: bool
    """True if payloads are JSON here (rfc/local.md), not msgpack (rfc/wire.md)."""

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Call `wake()` on `loop` whenever `receive` may have something; it may also be called in vain."""

    def receive(self, limit: int) -> list[Arrived | Lost]:
        """Up to `limit` messages and as many losses, without waiting; `wake()` is called again if more remains."""
        ...

    def send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """Send now or keep it for the peer, in order; drops the peer when too much is kept (UNSENT_BYTES_MAX)."""

    def drop(self, peer: bytes, reason: str) -> None:
        """Cut the peer off; its `Lost` carries `reason`. Nothing happens if it is unknown or already ending."""

    def unsent_bytes(self, peer: bytes) -> int:
        """Bytes kept for the peer because it does not read."""
        ...

    def peers(self) -> int:
        """Return the number of peers that have sent a message and are not lost."""
        ...

    def close(self) -> None:
        """End all connections; what was sent last gets a short time to leave."""


class Client(Protocol):
    """One connection to a server. It does not come back by itself: a lost session needs a new hello."""

    lost: str | None
    """Why the connection ended, once everything that came before has been received."""

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """Call `wake()` on `loop` whenever `receive` may have something or `lost` may have changed."""

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages, without waiting; if there may be more, `wake()` is called again."""
        ...

    def send(self, frames: Sequence[bytes]) -> None:
        """Send without waiting; once the connection is lost this does nothing."""

    def close(self) -> None:
        """End the connection; what was sent last gets a short time to leave."""


def size_bytes(frames: Sequence[bytes]) -> int:
    """Bytes of a message, all parts together."""
    return sum(map(len, frames))


def check_outgoing(frames: Sequence[bytes], limit_bytes: int) -> None:
    """Refuse here what the other side would cut the connection for: LimitExceeded."""
    if not frames:
        raise LocalProtocolError(NO_PARTS)
    if len(frames) > PARTS_MAX:
        raise LimitExceeded(f"message of {len(frames)} parts, limit {PARTS_MAX}: shorten its route")
    largest = max(map(len, frames))
    if largest > limit_bytes:
        raise LimitExceeded(f"message part of {largest} bytes, limit {limit_bytes}: send it in smaller pieces")


def slow_reader(unsent_bytes: int, limit_bytes: int) -> str:
    """Return the reason that a peer which does not read is given."""
    return f"slow reader: {unsent_bytes} bytes unsent, limit {limit_bytes}"


class Waker:
    """Calls one function on a loop: many requests within a turn become one call."""

    __slots__ = ("_callback", "_loop", "_soon", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Call in the loop's next turn."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._fire)

    def later(self, delay_s: float) -> None:
        """Call after `delay_s`, or earlier if that was already asked for."""
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._fire_timer)

    def stop(self) -> None:
        """Forget what was asked for."""
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None

    def _fire(self) -> None:
        self._soon = None
        self._callback()

    def _fire_timer(self) -> None:
        self._timer = None
        self._callback()
