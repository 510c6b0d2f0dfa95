"""Messages on a stream of bytes: framed as Flux's local connector frames them (rfc/local.md), a client and a server.

A frame is the magic number in host order, the length of its body in 4 bytes big-endian, and the body: parts, each after
its length in one byte, or in `ff` and 4 bytes big-endian. The messages are those of `framing`.

`StreamClient` is a `Client` over a stream socket that is connected already, both ends of a conversation between two of
our processes. What the other side sends faster than it is received stays in the kernel. `LocalServer` is the UNIX
socket that stock Flux clients know: SOCK_STREAM, one admission byte, then framed messages both ways.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import TYPE_CHECKING

from fluxsched.errors import Disconnected, LocalProtocolError
from fluxsched.transport.base import (
    MESSAGE_BYTES_MAX,
    NO_PARTS,
    PARTS_MAX,
    UNSENT_BYTES_MAX,
    Arrived,
    Lost,
    PathClaim,
    Waker,
    check_outgoing,
    check_server,
    local_path,
    size_bytes,
    slow_reader,
)

if TYPE_CHECKING:  # commands start 15 ms sooner without asyncio
    from asyncio import AbstractEventLoop

FRAMING_BYTES_MAX = 64 << 10
"""Number of bytes that a body may have beside its largest part: topic, header, a long route, and the lengths of all
parts.
"""

_MAGIC = struct.pack("=I", 0xFFEE0012)
_FRAME = struct.Struct(">4sI")
_LENGTH = struct.Struct(">I")
_LONG = 0xFF
"""First byte of a part's length that takes 4 more."""


def pack_frame(parts: Sequence[bytes]) -> bytes:
    """Return the bytes of a message on the socket."""
    body: list[bytes] = [b""]
    for part in parts:
        size = len(part)
        body += (bytes((size,)) if size < _LONG else b"\xff" + _LENGTH.pack(size), part)
    body[0] = _FRAME.pack(_MAGIC, size_bytes(body))
    return b"".join(body)


class Malformed(Exception):
    """The data is not a frame, or exceeds a limit; the text names which."""


class Unpacker:
    """Puts a stream of bytes back into messages, however it was cut."""

    __slots__ = ("_buffer", "_limit_bytes", "_wanted")

    def __init__(self, limit_bytes: int) -> None:
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes
        self._wanted = _FRAME.size

    def feed(self, data: bytes, messages: list[list[bytes]]) -> None:
        """Add the messages that are complete with `data`. Raises Malformed at what follows them."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= self._wanted:
            magic, size = _FRAME.unpack_from(buffer, start)
            self._check(magic, size)
            end = start + _FRAME.size + size
            if len(buffer) < end:
                self._wanted = end - start
                break
            messages.append(self._parts(start + _FRAME.size, end))
            start, self._wanted = end, _FRAME.size
        del buffer[:start]

    def _check(self, magic: bytes, size: int) -> None:
        if magic != _MAGIC:
            raise Malformed(f"no message frame: it starts with {magic.hex()}, expected {_MAGIC.hex()}")
        if size > self._limit_bytes + FRAMING_BYTES_MAX:
            raise Malformed(f"message of {size} bytes, limit {self._limit_bytes} a part")

    def _parts(self, at: int, end: int) -> list[bytes]:
        buffer = self._buffer
        parts: list[bytes] = []
        while at < end:
            size = buffer[at]
            at += 1
            if size == _LONG:
                if at + _LENGTH.size > end:
                    raise Malformed("a part's length goes beyond its message")
                (size,) = _LENGTH.unpack_from(buffer, at)
                at += _LENGTH.size
            if at + size > end:
                raise Malformed(f"a part of {size} bytes goes beyond its message")
            if size > self._limit_bytes:
                raise Malformed(f"message part of {size} bytes, limit {self._limit_bytes}")
            parts.append(bytes(memoryview(buffer)[at : at + size]))
            at += size
            if len(parts) > PARTS_MAX:
                raise Malformed(f"message of more than {PARTS_MAX} parts")
        if not parts:
            raise Malformed("message without parts")
        return parts


# ---- a client over a connected socket

READ_BYTES = 64 << 10
"""Taken from a connection at a time: buffers of 128 KiB or more would be mapped and unmapped for each (mallopt(3))."""
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
    """Return a client at a local socket of Flux's protocol. Raises Disconnected if nothing listens there."""
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


class StreamOutbox:
    """Frames that the kernel does not take yet, in order."""

    __slots__ = ("_frames", "_limit_bytes", "_loop", "_socket", "is_broken", "unsent_bytes")

    def __init__(self, connection: socket.socket, limit_bytes: int, loop: AbstractEventLoop | None = None) -> None:
        self._socket = connection
        self._limit_bytes = limit_bytes
        self._loop = loop
        self._frames: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self.is_broken = False
        """True once the peer is known to be lost: nothing of its frames is kept, and its loss is read in order."""

    def __bool__(self) -> bool:
        return bool(self._frames)

    def start(self, loop: AbstractEventLoop) -> None:
        """Send what is kept whenever the kernel takes more."""
        self._loop = loop
        if self._frames:
            loop.add_writer(self._socket, self._flush)

    def send(self, frame: bytes) -> str | None:
        """Send or keep a frame, one of any size if no other is kept; return why the peer must be cut off, if so."""
        left = memoryview(frame)
        if not self._frames:
            left = self._write(left)
        if not left:
            return None
        unsent_bytes = self.unsent_bytes + len(left)
        if self._frames and unsent_bytes > self._limit_bytes:
            return slow_reader(unsent_bytes, self._limit_bytes)
        if not self._frames and self._loop is not None:
            self._loop.add_writer(self._socket, self._flush)
        self._frames.append(left)
        self.unsent_bytes = unsent_bytes
        return None

    def _write(self, data: memoryview) -> memoryview:
        """Send data; return the part that the kernel does not take now."""
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            self.is_broken = True
            return data[:0]

    def _flush(self) -> None:
        frames = self._frames
        while frames:
            left = self._write(frames[0])
            self.unsent_bytes -= len(frames[0]) - len(left)
            if left:
                frames[0] = left
                return
            frames.popleft()
        if self._loop is not None:
            self._loop.remove_writer(self._socket)

    def close(self, wait_s: float = 0.0) -> None:
        """Drop what is kept; before that it has so long to leave (seconds): in one call, which has its own time-out."""
        if self._loop is not None:
            self._loop.remove_writer(self._socket)
        if self._frames and wait_s:
            self._socket.settimeout(wait_s)
            with contextlib.suppress(OSError):
                self._socket.sendall(b"".join(self._frames))
        self._frames.clear()


class StreamClient:
    """A `Client` on one socket, which it owns."""

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
        self._message_limit_bytes = message_limit_bytes
        self._unpacker = Unpacker(message_limit_bytes)
        self._inbox: deque[list[bytes]] = deque()
        self._outbox = StreamOutbox(connection, unsent_limit_bytes)
        self._ending: str | None = None
        self._is_admitted = is_admitted
        self._reads = False
        self._loop: AbstractEventLoop | None = None
        self._waker: Waker | None = None
        connection.setblocking(False)
        self._feed(received)

    def start(self, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop, self._waker = loop, Waker(loop, wake)
        self._waker.soon()
        if self._ending is None:
            self._follow()
            self._outbox.start(loop)

    def receive(self, limit: int) -> list[list[bytes]]:
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
        check_outgoing(frames, self._message_limit_bytes)
        if self._ending is None:
            slow = self._outbox.send(pack_frame(frames))
            if slow is not None:
                self._end(slow)

    def close(self) -> None:
        if self._waker is not None:
            self._waker.stop()
            self._waker = None
        if self._ending is None:
            self._end(CLOSED, CLOSE_LINGER_S)

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
        if self._ending is None and len(self._inbox) > READ_AHEAD_MAX and self._reads and self._loop is not None:
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
            if self._waker is not None:
                self._waker.now()

    def _end(self, reason: str, wait_s: float = 0.0) -> None:
        if self._ending is None:
            self._ending = reason
            if self._loop is not None:
                self._loop.remove_reader(self._socket)
            self._outbox.close(wait_s)
            self._socket.close()
            self._nudge()

    def _nudge(self) -> None:
        if self._waker is not None:
            self._waker.soon()


# ---- the server of the local socket

LOCAL_MESSAGE_BYTES_MAX = 512 << 20
"""Largest part taken in: Flux's clients send payloads of hundreds of MB in one message, and have no smaller pieces."""
GUEST_MESSAGE_BYTES_MAX = 4 << 20
"""Limit of a message from another user than ours, whose jobspec has kilobytes: the part received so far is in our
memory.
"""
CONNECTIONS_MAX = 8_192
"""Most connections at a time, if the process may have twice as many descriptors; the next one gets EMFILE."""
GUEST_CONNECTIONS_MAX = 128
"""Of each other user; he, too, gets EMFILE. All of them are served, and each keeps a descriptor."""
ACCEPT_RETRY_S = 0.1
"""Time until the next try to accept when the process is out of descriptors (seconds)."""
NAME_BYTES = 8
"""Of a connection's name, its number: with four, scripts that ask a thousand times a second use them up in weeks."""
BACKLOG = 1_024
"""Connections that wait to be accepted: scripts start many commands at once."""

Admit = Callable[[int], int]
"""0 lets a user (by id) in, an errno turns it away."""


def owner_only(userid: int) -> int:
    """Let in who runs this process, as Flux does by default."""
    return 0 if userid == os.geteuid() else errno.EPERM


def connections_max() -> int:
    """Return the maximum number of connections: half of what the process may have open, for the rest is for jobs."""
    descriptors, _ = getrlimit(RLIMIT_NOFILE)
    return CONNECTIONS_MAX if descriptors == RLIM_INFINITY else min(CONNECTIONS_MAX, descriptors // 2)


class Connection:
    """One client: its socket, what it has begun to send and what it has not taken yet."""

    __slots__ = ("ahead", "fd", "heard", "name", "outbox", "paused", "socket", "unpacker", "userid")

    def __init__(
        self, name: bytes, connection: socket.socket, userid: int, limit_bytes: int, outbox: StreamOutbox
    ) -> None:
        self.name = name
        self.socket = connection
        self.fd = connection.fileno()
        self.userid = userid
        self.unpacker = Unpacker(limit_bytes)
        self.heard = False
        self.ahead = 0  # messages that were read and not received yet
        self.paused = False
        self.outbox = outbox


class LocalServer:
    """A `Server` at `local:///PATH`; `admit` decides which users may connect."""

    json = True

    def __init__(
        self,
        endpoint: str,
        *,
        admit: Admit = owner_only,
        mode: int = 0o600,
        unsent_limit_bytes: int = UNSENT_BYTES_MAX,
        message_limit_bytes: int = LOCAL_MESSAGE_BYTES_MAX,
    ) -> None:
        """Refused (EADDRINUSE) if the endpoint is in use, InvalidValue for a path that is too long.

        `mode` is that of the socket's file: more than 0600 only makes sense with an `admit` for others.
        """
        self.endpoint = endpoint
        self.dropped = 0
        self._admit = admit
        self._unsent_limit_bytes = unsent_limit_bytes
        self._message_limit_bytes = message_limit_bytes
        self._connections: dict[bytes, Connection] = {}
        self._arrivals: deque[Arrived | Lost] = deque()
        self._guests: Counter[int] = Counter()
        """Connections of each user but ours."""
        self._serial = 0
        self._loop: AbstractEventLoop | None = None
        self._waker: Waker | None = None
        self._claim: PathClaim | None = PathClaim(local_path(endpoint))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listen(self._claim, mode)
        except BaseException:
            self.close()
            raise

    def _listen(self, claim: PathClaim, mode: int) -> None:
        claim.unlink()  # of a predecessor that was killed: the claim is ours
        self._listener.setblocking(False)
        self._listener.bind(str(claim.path))
        claim.set_mode(mode)
        self._listener.listen(BACKLOG)

    # -- coming and going ---------------------------------------------------------------------------------------

    def start(self, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._waker = Waker(loop, wake)
        loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors or memory: others will go, and free some
                self._pause_accepting()
                return
            self._greet(connection)

    def _pause_accepting(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._listener)
            self._loop.call_later(ACCEPT_RETRY_S, self._resume_accepting)

    def _resume_accepting(self) -> None:
        if self._loop is not None:
            self._loop.add_reader(self._listener, self._accept)

    def _greet(self, connection: socket.socket) -> None:
        """Send the one byte that decides: 0, or the errno that the client reports."""
        connection.setblocking(False)
        _, userid = peer_of(connection)
        verdict = self._admit(userid) or (errno.EMFILE if self._is_full(userid) else 0)
        with contextlib.suppress(OSError):  # it has gone already: the first read will show it
            connection.send(bytes((verdict,)))
        if verdict:
            connection.close()
            return
        self._serial += 1
        name = self._serial.to_bytes(NAME_BYTES, "big")
        limit_bytes = self._message_limit_bytes
        if userid != os.geteuid():
            limit_bytes = min(limit_bytes, GUEST_MESSAGE_BYTES_MAX)
            self._guests[userid] += 1
        outbox = StreamOutbox(connection, self._unsent_limit_bytes, self._loop)
        known = self._connections[name] = Connection(name, connection, userid, limit_bytes, outbox)
        self._follow(known)

    def _is_full(self, userid: int) -> bool:
        """Return whether a user may not have one more connection."""
        return len(self._connections) >= connections_max() or self._guests[userid] >= GUEST_CONNECTIONS_MAX

    def _end(self, connection: Connection, reason: str, wait_s: float = 0.0) -> None:
        """Record that the connection is over, whichever side ended it; a peer that never spoke is not mentioned."""
        if self._loop is not None:
            self._loop.remove_reader(connection.fd)
        connection.outbox.close(wait_s)
        connection.socket.close()
        del self._connections[connection.name]
        self._guests -= Counter((connection.userid,))  # drops whom it does not count any more
        if connection.heard:
            self._arrivals.append(Lost(connection.name, reason))
            self._nudge()

    def drop(self, peer: bytes, reason: str) -> None:
        connection = self._connections.get(peer)
        if connection is not None:
            self._end(connection, reason)

    def peers(self) -> int:
        return sum(connection.heard for connection in self._connections.values())

    def close(self) -> None:
        claim, self._claim = self._claim, None
        if claim is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._listener)
        if self._waker is not None:
            self._waker.stop()
        claim.unlink()
        self._listener.close()
        unsent = sum(bool(connection.outbox) for connection in self._connections.values())
        for connection in list(self._connections.values()):
            self._end(connection, CLOSED, CLOSE_LINGER_S / max(1, unsent))
        self._loop = self._waker = None
        self._arrivals.clear()
        claim.release()

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int) -> list[Arrived | Lost]:
        arrivals = self._arrivals
        taken = [arrivals.popleft() for _ in range(min(limit, len(arrivals)))]
        for one in taken:
            connection = self._connections.get(one.peer)
            if connection is not None:
                connection.ahead -= 1
                if connection.paused and not connection.ahead:
                    self._follow(connection)
        if arrivals:
            self._nudge()
        return taken

    def _follow(self, connection: Connection) -> None:
        connection.paused = False
        if self._loop is not None:
            self._loop.add_reader(connection.fd, self._read, connection)

    def _read(self, connection: Connection) -> None:
        messages: list[list[bytes]] = []
        ending = None
        try:
            data = connection.socket.recv(READ_BYTES)
            connection.unpacker.feed(data, messages)
            ending = None if data else CLOSED
        except BlockingIOError:
            return
        except OSError:  # reset: it closed with something of ours unread
            ending = CLOSED
        except Malformed as exc:
            ending = str(exc)
        if messages:
            self._take(connection, messages)
        if ending is not None:
            self._end(connection, ending)

    def _take(self, connection: Connection, messages: list[list[bytes]]) -> None:
        connection.heard = True
        connection.ahead += len(messages)
        name, userid = connection.name, connection.userid
        self._arrivals.extend([Arrived(name, frames, userid) for frames in messages])
        if connection.ahead > READ_AHEAD_MAX and self._loop is not None:
            connection.paused = True
            self._loop.remove_reader(connection.fd)
        if self._waker is not None:
            self._waker.now()

    def _nudge(self) -> None:
        if self._waker is not None:
            self._waker.soon()

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """See `Server.send`; one message of any size is kept for a peer that has taken all others."""
        if not frames:
            raise LocalProtocolError(NO_PARTS)
        connection = self._connections.get(peer)
        if connection is None:
            self.dropped += 1
            return
        slow = connection.outbox.send(pack_frame(frames))
        self.dropped += connection.outbox.is_broken
        if slow is not None:
            self._end(connection, slow)

    def unsent_bytes(self, peer: bytes) -> int:
        """See `Server.unsent_bytes`; what the kernel holds is not counted."""
        connection = self._connections.get(peer)
        return connection.outbox.unsent_bytes if connection is not None else 0
