"""The transport within one process: no socket, the same behaviour. For tests and for modules run in-process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fluxsched.errors import Disconnected, LocalProtocolError
from fluxsched.transport.base import (
    MESSAGE_BYTES_MAX,
    NO_PARTS,
    PARTS_MAX,
    UNSENT_BYTES_MAX,
    Arrived,
    Lost,
    Waker,
    check_outgoing,
    size_bytes,
    slow_reader,
)

if TYPE_CHECKING:  # commands start 15 ms sooner without asyncio
    import asyncio


class MemoryServer:
    """A `Server`; its clients come from `connect`."""

    json = False

    def __init__(
        self, *, unsent_limit_bytes: int = UNSENT_BYTES_MAX, message_limit_bytes: int = MESSAGE_BYTES_MAX
    ) -> None:
        self.endpoint = "memory://"
        self.dropped = 0
        self._unsent_limit_bytes = unsent_limit_bytes
        self._message_limit_bytes = message_limit_bytes
        self._connections: dict[bytes, MemoryClient] = {}
        self._heard: set[bytes] = set()
        self._arrivals: deque[Arrived | Lost] = deque()
        self._waker: Waker | None = None
        self._serial = 0
        self._closed = False

    def connect(self, *, message_limit_bytes: int = MESSAGE_BYTES_MAX) -> MemoryClient:
        """A new connection, or Disconnected when the server is closed."""
        if self._closed:
            raise Disconnected(f"nothing listens at {self.endpoint}: the server is closed")
        self._serial += 1
        peer = b"\0" + self._serial.to_bytes(4, "big")
        client = self._connections[peer] = MemoryClient(self, peer, message_limit_bytes)
        return client

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `Server.start`."""
        self._waker = Waker(loop, wake)
        self._waker.soon()

    def receive(self, limit: int) -> list[Arrived | Lost]:
        """See `Server.receive`."""
        arrivals = self._arrivals
        taken = [arrivals.popleft() for _ in range(min(limit, len(arrivals)))]
        if arrivals:
            self._nudge()
        return taken

    def send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """See `Server.send`; what the client has not received yet counts as unsent."""
        if not frames:
            raise LocalProtocolError(NO_PARTS)
        client = self._connections.get(peer)
        if client is None or peer not in self._heard:
            self.dropped += 1
            return
        size = size_bytes(frames)
        if client.unread_bytes + size > self._unsent_limit_bytes:
            self.drop(peer, slow_reader(client.unread_bytes + size, self._unsent_limit_bytes))
        else:
            client.deliver(list(frames), size)

    def drop(self, peer: bytes, reason: str) -> None:
        """See `Server.drop`."""
        if peer in self._heard:
            self.ended(peer, reason)

    def ended(self, peer: bytes, reason: str) -> None:
        """The connection is over, whichever side ended it; a peer that never spoke is not mentioned."""
        client = self._connections.pop(peer, None)
        if client is None:
            return
        client.end("connection closed by the server")
        if peer in self._heard:
            self._heard.discard(peer)
            self._arrivals.append(Lost(peer, reason))
            self._nudge()

    def unsent_bytes(self, peer: bytes) -> int:
        """See `Server.unsent_bytes`."""
        client = self._connections.get(peer)
        return client.unread_bytes if client is not None else 0

    def peers(self) -> int:
        """See `Server.peers`."""
        return len(self._heard)

    def close(self) -> None:
        """See `Server.close`."""
        self._closed = True
        for client in list(self._connections.values()):
            client.end("connection closed by the server")
        self._connections.clear()
        self._heard.clear()
        self._arrivals.clear()
        if self._waker is not None:
            self._waker.stop()
            self._waker = None

    def accept(self, peer: bytes, frames: list[bytes]) -> None:
        """A client's message; one that breaks a limit ends that client's connection."""
        if max(map(len, frames)) > self._message_limit_bytes:
            self.ended(peer, "connection closed")
            return
        self._heard.add(peer)
        if len(frames) > PARTS_MAX:
            self.drop(peer, f"message of {len(frames)} parts, limit {PARTS_MAX}")
            return
        self._arrivals.append(Arrived(peer, frames))
        self._nudge()

    def _nudge(self) -> None:
        if self._waker is not None:
            self._waker.soon()


class MemoryClient:
    """A `Client`, made by `MemoryServer.connect`."""

    def __init__(self, server: MemoryServer, peer: bytes, message_limit_bytes: int) -> None:
        self.lost: str | None = None
        self.unread_bytes = 0
        self._server = server
        self._peer = peer
        self._message_limit_bytes = message_limit_bytes
        self._inbox: deque[list[bytes]] = deque()
        self._ending: str | None = None
        self._waker: Waker | None = None

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `Client.start`."""
        self._waker = Waker(loop, wake)
        self._waker.soon()

    def receive(self, limit: int) -> list[list[bytes]]:
        """See `Client.receive`."""
        inbox = self._inbox
        taken = [inbox.popleft() for _ in range(min(limit, len(inbox)))]
        self.unread_bytes -= sum(map(size_bytes, taken))
        if inbox:
            self._nudge()
        else:
            self.lost = self._ending
        return taken

    def send(self, frames: Sequence[bytes]) -> None:
        """See `Client.send`."""
        check_outgoing(frames, self._message_limit_bytes)
        if self._ending is None:
            self._server.accept(self._peer, list(frames))

    def close(self) -> None:
        """See `Client.close`."""
        if self._waker is not None:
            self._waker.stop()
            self._waker = None
        self._server.ended(self._peer, "connection closed")

    def deliver(self, frames: list[bytes], size: int) -> None:
        """Take one message from the server."""
        self._inbox.append(frames)
        self.unread_bytes += size
        self._nudge()

    def end(self, reason: str) -> None:
        """The connection is over; `lost` is set once the rest has been received."""
        if self._ending is None:
            self._ending = reason
            self._nudge()

    def _nudge(self) -> None:
        if self._waker is not None:
            self._waker.soon()
