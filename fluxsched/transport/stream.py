"""A `Client` over a stream socket that is connected already: both ends of a conversation between two of our processes.

Law: as for every client; the messages are those of `framing`. What the other side sends faster than it is received
stays in the kernel.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fluxsched.errors import Disconnected
from fluxsched.transport.base import (
    MESSAGE_BYTES_MAX,
    UNSENT_BYTES_MAX,
    Waker,
    check_outgoing,
    slow_reader,
)
from fluxsched.transport.endpoints import check_server, local_path
from fluxsched.transport.framing import Malformed, Unpacker, pack_frame

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

READ_BYTES = 256 << 10
"""Taken from a connection at a time: about what the kernel keeps."""
READ_AHEAD_MAX = 256
"""Messages of a connection that wait to be received; more are left in the kernel, so that their sender waits."""
CLOSE_LINGER_S = 0.2
"""Time that a close waits for the last messages to leave (seconds)."""
CLOSED = "connection closed"
_CREDENTIALS = struct.Struct("3i")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a local connection, as the kernel knows them."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, userid, _ = _CREDENTIALS.unpack(found)
    return pid, userid


def connect_local(endpoint: str) -> StreamClient:
    """A client at a local socket of Flux's protocol. Raises Disconnected if nothing listens there."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(local_path(endpoint)))
        check_server(local_path(endpoint), connection)
    except Disconnected:
        connection.close()
        raise
    except OSError as exc:
        connection.close()
        raise Disconnected(f"nothing listens at {endpoint} ({exc.strerror}): is the instance running?") from exc
    return StreamClient(connection, is_admitted=False)


class StreamClient:
    """One connection. Owns the socket."""

    def __init__(
        self,
        connection: socket.socket,
        received: bytes = b"",
        *,
        message_limit_bytes: int = MESSAGE_BYTES_MAX,
        unsent_limit_bytes: int = UNSENT_BYTES_MAX,
        is_admitted: bool = True,
    ) -> None:
        """`received` is what was read from it before. If it is not admitted yet, a byte comes first: 0, or why not."""
        self.lost: str | None = None
        self._socket = connection
        self._unsent_limit_bytes = unsent_limit_bytes
        self._message_limit_bytes = message_limit_bytes
        self._unpacker = Unpacker(message_limit_bytes)
        self._inbox: deque[list[bytes]] = deque()
        self._outbox: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._ending: str | None = None
        self._is_admitted = is_admitted
        self._reads = False
        self._loop: AbstractEventLoop | None = None
        self._waker: Waker | None = None
        connection.setblocking(False)
        self._feed(received)

    def start(self, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `Client.start`."""
        self._loop, self._waker = loop, Waker(loop, wake)
        self._waker.soon()
        if self._ending is None:
            self._follow()
            if self._outbox:
                loop.add_writer(self._socket, self._flush)

    def receive(self, limit: int) -> list[list[bytes]]:
        """See `Client.receive`."""
        inbox = self._inbox
        taken = [inbox.popleft() for _ in range(min(limit, len(inbox)))]
        if inbox:
            self._nudge()
        else:
            self.lost = self._ending
            if self._ending is None and not self._reads:
                self._follow()
        return taken

    def send(self, frames: Sequence[bytes]) -> None:
        """See `Client.send`."""
        check_outgoing(frames, self._message_limit_bytes)
        if self._ending is not None:
            return
        left = memoryview(pack_frame(frames))
        if not self._outbox:
            left = self._write(left)
        if not left:
            return
        unsent_bytes = self._unsent_bytes + len(left)
        if self._outbox and unsent_bytes > self._unsent_limit_bytes:
            self._end(slow_reader(unsent_bytes, self._unsent_limit_bytes))
            return
        if not self._outbox and self._loop is not None:
            self._loop.add_writer(self._socket, self._flush)
        self._outbox.append(left)
        self._unsent_bytes = unsent_bytes

    def close(self) -> None:
        """See `Client.close`."""
        if self._waker is not None:
            self._waker.stop()
            self._waker = None
        if self._ending is None:
            if self._outbox:
                self._socket.settimeout(CLOSE_LINGER_S)
                with contextlib.suppress(OSError):
                    self._socket.sendall(b"".join(self._outbox))
            self._end(CLOSED)

    def _follow(self) -> None:
        if self._loop is not None:
            self._reads = True
            self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset: it closed with something of ours unread
            data = b""
        if not data:
            self._end(CLOSED)
            return
        if not self._is_admitted:
            self._is_admitted = True
            if data[0]:
                self._end(f"not admitted: {os.strerror(data[0])}")
                return
            data = data[1:]
        self._feed(data)
        if len(self._inbox) > READ_AHEAD_MAX and self._reads and self._loop is not None:
            self._reads = False
            self._loop.remove_reader(self._socket)

    def _feed(self, data: bytes) -> None:
        messages: list[list[bytes]] = []
        try:
            self._unpacker.feed(data, messages)
        except Malformed as exc:
            self._inbox.extend(messages)
            self._end(str(exc))
            return
        if messages:
            self._inbox.extend(messages)
            self._nudge()

    def _write(self, data: memoryview) -> memoryview:
        """Send data; return the part that the kernel does not take now; nothing of a lost peer's, whose loss is read in
        order.
        """
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            return data[:0]

    def _flush(self) -> None:
        """Send the outbox when the kernel takes more."""
        outbox = self._outbox
        while outbox:
            left = self._write(outbox[0])
            self._unsent_bytes -= len(outbox[0]) - len(left)
            if left:
                outbox[0] = left
                return
            outbox.popleft()
        if self._loop is not None:
            self._loop.remove_writer(self._socket)

    def _end(self, reason: str) -> None:
        if self._ending is None:
            self._ending = reason
            if self._loop is not None:
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()
            self._outbox.clear()
            self._nudge()

    def _nudge(self) -> None:
        if self._waker is not None:
            self._waker.soon()
