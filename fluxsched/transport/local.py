"""The UNIX socket that stock Flux clients know: SOCK_STREAM, one admission byte, then framed messages both ways.

Who connects is known from SO_PEERCRED before a byte is exchanged; what follows are the messages of `framing`. The
kernel's stream tells a loss by itself, after the last byte.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import TYPE_CHECKING

from fluxsched.errors import LocalProtocolError
from fluxsched.transport.base import (
    NO_PARTS,
    UNSENT_BYTES_MAX,
    Arrived,
    Lost,
    Waker,
    slow_reader,
)
from fluxsched.transport.endpoints import PathClaim, local_path
from fluxsched.transport.framing import Malformed, Unpacker, pack_frame
from fluxsched.transport.stream import READ_AHEAD_MAX, READ_BYTES, peer_of

if TYPE_CHECKING:  # commands start 15 ms sooner without asyncio
    from asyncio import AbstractEventLoop

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
CLOSE_LINGER_S = 0.2
"""Time that a close waits in all for the last messages to leave (seconds)."""
NAME_BYTES = 8
"""Of a connection's name, its number: with four, scripts that ask a thousand times a second use them up in weeks."""
BACKLOG = 1_024
"""Connections that wait to be accepted: scripts start many commands at once."""

_CLOSED = "connection closed"

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

    __slots__ = ("ahead", "fd", "heard", "name", "outbox", "paused", "socket", "unpacker", "unsent_bytes", "userid")

    def __init__(self, name: bytes, connection: socket.socket, userid: int, limit_bytes: int) -> None:
        self.name = name
        self.socket = connection
        self.fd = connection.fileno()
        self.userid = userid
        self.unpacker = Unpacker(limit_bytes)
        self.heard = False
        self.ahead = 0  # messages that were read and not received yet
        self.paused = False
        self.outbox: deque[memoryview] = deque()
        self.unsent_bytes = 0


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
        """See `Server.start`."""
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
        known = self._connections[name] = Connection(name, connection, userid, limit_bytes)
        self._follow(known)

    def _is_full(self, userid: int) -> bool:
        """Return whether a user may not have one more connection."""
        return len(self._connections) >= connections_max() or self._guests[userid] >= GUEST_CONNECTIONS_MAX

    def _end(self, connection: Connection, reason: str) -> None:
        """The connection is over, whichever side ended it; a peer that never spoke is not mentioned."""
        if self._loop is not None:
            self._loop.remove_reader(connection.fd)
            self._loop.remove_writer(connection.fd)
        connection.socket.close()
        del self._connections[connection.name]
        self._guests -= Counter((connection.userid,))  # drops whom it does not count any more
        if connection.heard:
            self._arrivals.append(Lost(connection.name, reason))
            self._nudge()

    def drop(self, peer: bytes, reason: str) -> None:
        """See `Server.drop`."""
        connection = self._connections.get(peer)
        if connection is not None:
            self._end(connection, reason)

    def peers(self) -> int:
        """See `Server.peers`."""
        return sum(connection.heard for connection in self._connections.values())

    def close(self) -> None:
        """See `Server.close`."""
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
            if connection.outbox:
                _linger(connection, CLOSE_LINGER_S / unsent)
            self._end(connection, _CLOSED)
        self._loop = self._waker = None
        self._arrivals.clear()
        claim.release()

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int) -> list[Arrived | Lost]:
        """See `Server.receive`."""
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
            ending = None if data else _CLOSED
        except BlockingIOError:
            return
        except OSError:  # reset: it closed with something of ours unread
            ending = _CLOSED
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
        self._nudge()

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
        left = memoryview(pack_frame(frames))
        if not connection.outbox:
            left = self._write(connection, left)
        if left:
            self._keep(connection, left)

    def _write(self, connection: Connection, data: memoryview) -> memoryview:
        """Send data; return the part that the kernel does not take now.

        Of a lost peer's data nothing is left: its loss is read in order.
        """
        try:
            return data[connection.socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            self.dropped += 1
            return data[:0]

    def _keep(self, connection: Connection, left: memoryview) -> None:
        unsent_bytes = connection.unsent_bytes + len(left)
        if connection.outbox and unsent_bytes > self._unsent_limit_bytes:
            self._end(connection, slow_reader(unsent_bytes, self._unsent_limit_bytes))
            return
        if not connection.outbox and self._loop is not None:
            self._loop.add_writer(connection.fd, self._flush, connection)
        connection.outbox.append(left)
        connection.unsent_bytes = unsent_bytes

    def _flush(self, connection: Connection) -> None:
        """Send the outbox when the kernel takes more."""
        outbox = connection.outbox
        while outbox:
            left = self._write(connection, outbox[0])
            connection.unsent_bytes -= len(outbox[0]) - len(left)
            if left:
                outbox[0] = left
                return
            outbox.popleft()
        if self._loop is not None:
            self._loop.remove_writer(connection.fd)

    def unsent_bytes(self, peer: bytes) -> int:
        """See `Server.unsent_bytes`; what the kernel holds is not counted."""
        connection = self._connections.get(peer)
        return connection.unsent_bytes if connection is not None else 0


def _linger(connection: Connection, wait_s: float) -> None:
    """Give what was sent last so long to leave (seconds): in one call, for each has its own time-out."""
    connection.socket.settimeout(wait_s)
    with contextlib.suppress(OSError):
        connection.socket.sendall(b"".join(connection.outbox))
