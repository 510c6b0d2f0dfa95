"""ZeroMQ: a ROUTER that knows its peers, a DEALER, and a blocking DEALER.

EAGAIN is per peer while POLLOUT is per socket, so each peer has its own outbox, bounded in bytes; `roster` decides
when a peer is lost; `sockets` is all that touches libzmq.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fluxsched.errors import Disconnected, InvalidValue, LimitExceeded, Refused
from fluxsched.transport.authentication import KEYED_MESSAGE_BYTES_MAX, Context, Frame, key_of
from fluxsched.transport.base import (
    MESSAGE_BYTES_MAX,
    PARTS_MAX,
    UNSENT_BYTES_MAX,
    Arrived,
    Lost,
    check_outgoing,
    size_bytes,
    slow_reader,
)
from fluxsched.transport.curve import KeyPair, ServerKeys
from fluxsched.transport.endpoints import PathClaim, bound_address, ipc_path, reachable
from fluxsched.transport.roster import ConnectedPeer, Roster
from fluxsched.transport.sockets import ACCEPTED, RECEIVE_MESSAGES_MAX, chose_identity, dealer, router

if TYPE_CHECKING:  # commands start 15 ms sooner without asyncio
    from asyncio import AbstractEventLoop

TCP_IS_OPEN = (
    "without keys every account of this machine could run commands there as you: "
    "make some with `fluxsched keygen --server`, use ipc:// or local://, or give --insecure-tcp if all of them may"
)
BEYOND_LOOPBACK = "tcp beyond loopback needs CURVE keys (`fluxsched keygen --server`); without them use 127.0.0.1"
CHOSEN_IDENTITY = "a client with a key may not choose its identity"
"""Else the first message on a connection could be taken for one of the connection that had the identity before."""
NOT_ADMITTED = (
    "it does not know your key (an admin adds its .pub file and reloads), or the address names another server's key"
)
"""Likely cause when the connection of a client with a key ends before the first message: strangers get no answer."""
NO_KEY = "if it is opened by keys its address is tcp://KEY@HOST:PORT, as `fluxsched uri --tcp` prints it there"
"""Likely cause when the connection of a client without a key ends before the first message."""
CLIENT_SETTLE_MS = 50
"""After a client's connection ended, its last messages are handed over within this time."""


class ZmqServer:
    """A `Server` on a ROUTER at `ipc:///PATH` or `tcp://HOST:PORT` (PORT may be `*`)."""

    json = False

    def __init__(
        self,
        endpoint: str,
        *,
        insecure_tcp: bool = False,
        unsent_limit_bytes: int = UNSENT_BYTES_MAX,
        message_limit_bytes: int = MESSAGE_BYTES_MAX,
        context: Context | None = None,
        keys: ServerKeys | None = None,
    ) -> None:
        """Refused (EADDRINUSE) if the endpoint is in use, InvalidValue for an endpoint we do not bind.

        A tcp port without `keys` is open to every account of this machine, and ZeroMQ does not tell which one
        connects: it is Refused (EPERM) unless `insecure_tcp` says that they all may be taken for the owner. With keys
        a port may be reachable from anywhere. The keys of a socket are asked for in its context: one such server each.
        """
        path = ipc_path(endpoint)
        address = bound_address(endpoint) if path is None else None
        if address is not None and (keys is None or insecure_tcp):
            keys = None
            if not address.is_loopback():
                raise InvalidValue(f"endpoint {endpoint!r}: {BEYOND_LOOPBACK}")
            if not insecure_tcp:
                raise Refused(f"endpoint {endpoint!r}: {TCP_IS_OPEN}", errno.EPERM)
        self._has_keys = keys is not None and address is not None
        self._claim = PathClaim(path) if path is not None else None
        self._pump = router(
            message_limit_bytes, heartbeat=path is None, context=context, keys=keys if self._has_keys else None
        )
        self.dropped = 0
        self._unsent_limit_bytes = unsent_limit_bytes
        self._roster = Roster(hides_identities=self._has_keys)
        self._full: set[ConnectedPeer] = set()
        try:
            self.endpoint = self._pump.bind(endpoint)
            if self._claim is not None:
                self._claim.set_mode(0o600)
            elif keys is not None:
                self.endpoint = reachable(self.endpoint).with_key(keys.own.public)
        except BaseException:
            self.close()
            raise

    def start(self, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `Server.start`."""
        self._pump.start(loop, wake, self._flush)

    def receive(self, limit: int) -> list[Arrived | Lost]:
        """See `Server.receive`."""
        if self._pump.closed:
            return []
        self._follow()
        roster = self._roster
        if roster.ending:
            roster.settle(self._pump.now_s())
        arrivals: list[Arrived | Lost] = []
        dry = self._drain(arrivals, limit)
        if dry:
            roster.ran_dry(self._pump.now_s())
        if roster.ending:
            arrivals += roster.losses(arrivals, dry, limit)
            if roster.ending:
                self._pump.nudge_later()
        if not dry:
            self._pump.nudge()
        return arrivals

    def _drain(self, arrivals: list[Arrived | Lost], limit: int) -> bool:
        """Read up to `limit` messages; True if the socket ran dry."""
        read = self._pump.read
        by_identity = self._roster.by_identity
        for _ in range(limit):
            message = read()
            if message is None:
                return True
            first, identity, fd, frames = message
            peer = by_identity.get(identity)
            if peer is None or peer.fd != fd or peer.reason is not None:
                self._follow()
                peer = self._adopt(first, identity, fd)
            if len(frames) > PARTS_MAX:
                self._cut(peer, f"message of more than {PARTS_MAX} parts")
            else:
                arrivals.append(Arrived(peer.name, frames, None, peer.key))
        return False

    def _adopt(self, first: Frame, identity: bytes, fd: int) -> ConnectedPeer:
        former = self._roster.by_identity.get(identity)
        peer = self._roster.adopt(identity, chose_identity(first), fd, self._pump.now_s())
        if self._has_keys and former is not peer:
            peer.key = key_of(first)
            if peer.chosen:
                self._cut(peer, CHOSEN_IDENTITY)
        if former is not None and former is not peer:
            self._shut(former)
        if peer.doubtful:
            self._pump.catch_up()
        return peer

    def _follow(self) -> None:
        """Tell the roster what the monitor has seen."""
        for event, fd in self._pump.events():
            if event == ACCEPTED:
                self._roster.accepted(fd)
            else:
                self._roster.disconnected(fd, self._pump.now_s())

    def send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """See `Server.send`."""
        record = self._roster.by_name.get(peer)
        if record is None or record.reason is not None:
            self.dropped += 1
        elif record.outbox or not self._try(record, frames):
            self._keep(record, frames)
        self._pump.touched()

    def _try(self, record: ConnectedPeer, frames: Sequence[bytes]) -> bool:
        """Hand a message to libzmq; False if the peer is full. To a peer that is gone: counted as dropped."""
        error = self._pump.write(record.identity, frames)
        if error == errno.EHOSTUNREACH:
            self.dropped += 1
            self._roster.end(record, "connection closed", self._pump.now_s(), closed=True)
            self._pump.nudge()
        elif not error:
            record.doubtful = False
        return error != errno.EAGAIN

    def _keep(self, record: ConnectedPeer, frames: Sequence[bytes]) -> None:
        size = size_bytes(frames)
        if record.unsent_bytes + size > self._unsent_limit_bytes:
            self._cut(record, slow_reader(record.unsent_bytes + size, self._unsent_limit_bytes))
            return
        record.outbox.append(tuple(frames))
        record.unsent_bytes += size
        self._full.add(record)

    def _flush(self) -> bool:
        for record in list(self._full):
            outbox = record.outbox
            while outbox and self._try(record, outbox[0]):
                if outbox:  # emptied if the peer turned out to be gone
                    record.unsent_bytes -= size_bytes(outbox.popleft())
            if not outbox:
                self._full.discard(record)
        return bool(self._full)

    def drop(self, peer: bytes, reason: str) -> None:
        """See `Server.drop`."""
        record = self._roster.by_name.get(peer)
        if record is not None:
            self._cut(record, reason)

    def _cut(self, record: ConnectedPeer, reason: str) -> None:
        self._follow()
        if record.reason is None:
            self._roster.end(record, reason, self._pump.now_s())
            self._shut(record)
            self._pump.nudge()

    def _shut(self, record: ConnectedPeer) -> None:
        """Shut the peer's connection down under libzmq, which has no call for it."""
        if self._roster.is_open(record) and not record.doubtful:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(record.fd)) as connection:
                if os.fstat(connection.fileno()).st_ino == record.inode:
                    connection.shutdown(socket.SHUT_RDWR)

    def unsent_bytes(self, peer: bytes) -> int:
        """See `Server.unsent_bytes`; what libzmq and the kernel hold is not counted."""
        record = self._roster.by_name.get(peer)
        return record.unsent_bytes if record is not None else 0

    def peers(self) -> int:
        """See `Server.peers`."""
        return len(self._roster.by_name) - len(self._roster.ending)

    def close(self) -> None:
        """See `Server.close`."""
        if self._pump.closed:
            return
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.unlink()
        self._flush()
        self._roster = Roster()
        self._pump.close()
        if claim is not None:
            claim.release()


class ZmqClient:
    """A `Client` on a DEALER. Disconnected at once if nothing listens at `endpoint`.

    `keys` are the client's own, for an endpoint that names its server's key. A connection over tcp is lost once nothing
    has come for `lost_after_ms`, if that is not 0; a server that is merely busy still sends heartbeats.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        unsent_limit_bytes: int = UNSENT_BYTES_MAX,
        message_limit_bytes: int = MESSAGE_BYTES_MAX,
        context: Context | None = None,
        keys: KeyPair | None = None,
        lost_after_ms: int = 0,
    ) -> None:
        self._pump = dealer(endpoint, context, keys, lost_after_ms)
        self.endpoint = endpoint
        self.lost: str | None = None
        self._unsent_limit_bytes = unsent_limit_bytes
        self._message_limit_bytes = _outgoing_limit(message_limit_bytes, keys)
        self._outbox: deque[Sequence[bytes]] = deque()
        self._unsent_bytes = 0
        self._ended_s: float | None = None
        self._supposed = _supposed(endpoint, keys)

    def start(self, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `Client.start`."""
        self._pump.start(loop, wake, self._flush)

    def receive(self, limit: int) -> list[list[bytes]]:
        """See `Client.receive`."""
        if self._pump.closed:
            return []
        if self._pump.events() and self._ended_s is None:
            self._ended_s = self._pump.now_s()
        settled = self._ended_s is not None and self._pump.now_s() >= self._ended_s + CLIENT_SETTLE_MS / 1e3
        messages, dry = self._drain(limit)
        if not dry:
            self._pump.nudge()
        elif settled:
            self.lost = f"connection closed by the server{self._supposed}"
            self._outbox.clear()
        elif self._ended_s is not None:
            self._pump.nudge_later()
        return messages

    def _drain(self, limit: int) -> tuple[list[list[bytes]], bool]:
        messages: list[list[bytes]] = []
        for _ in range(limit):
            message = self._pump.read_plain()
            if message is None:
                return messages, True
            self._supposed = ""
            messages.append(message)
        return messages, False

    def send(self, frames: Sequence[bytes]) -> None:
        """See `Client.send`; LimitExceeded when the server has not read for too long."""
        check_outgoing(frames, self._message_limit_bytes)
        if self._ended_s is not None or self._pump.closed:
            return
        if self._outbox or not self._try(frames):
            size = size_bytes(frames)
            if self._unsent_bytes + size > self._unsent_limit_bytes:
                raise LimitExceeded(
                    f"{self._unsent_bytes + size} bytes unsent, limit {self._unsent_limit_bytes}: "
                    "the server does not read, wait for its answers before sending more"
                )
            self._outbox.append(tuple(frames))
            self._unsent_bytes += size
        self._pump.touched()

    def _try(self, frames: Sequence[bytes]) -> bool:
        return self._pump.write(None, frames) == 0

    def _flush(self) -> bool:
        while self._outbox and self._try(self._outbox[0]):
            self._unsent_bytes -= size_bytes(self._outbox.popleft())
        return bool(self._outbox)

    def close(self) -> None:
        """See `Client.close`."""
        if not self._pump.closed:
            self._flush()
        self._pump.close()


class BlockingClient:
    """A client that waits, for commands. Every call raises Disconnected once the server is gone, or it was closed."""

    def __init__(
        self, endpoint: str, *, message_limit_bytes: int = MESSAGE_BYTES_MAX, keys: KeyPair | None = None
    ) -> None:
        self._pump = dealer(endpoint, None, keys)
        self.endpoint = endpoint
        self._message_limit_bytes = _outgoing_limit(message_limit_bytes, keys)
        self._ended = False
        self._supposed = _supposed(endpoint, keys)

    def send(self, frames: Sequence[bytes]) -> None:
        """Send; LimitExceeded with RECEIVE_MESSAGES_MAX messages unsent."""
        check_outgoing(frames, self._message_limit_bytes)
        if self._pump.closed or self._has_ended():
            raise self._gone()
        if self._pump.write(None, frames):
            raise LimitExceeded(f"{RECEIVE_MESSAGES_MAX} messages unsent: receive answers before sending more")

    def receive(self, timeout_s: float | None = None, beside: int | None = None) -> list[bytes] | None:
        """The next message; None after `timeout_s` (None: no limit), or when the file `beside` can be read."""
        if self._pump.closed:
            raise self._gone()
        message = self._pump.read_plain()
        if message is None and not self._ended:
            if not self._pump.wait(None if timeout_s is None else max(0, round(timeout_s * 1e3)), beside):
                return None
            message = self._pump.read_plain()
        if message is None and self._has_ended():
            self._pump.wait_message(CLIENT_SETTLE_MS)
            message = self._pump.read_plain()
            if message is None:
                raise self._gone()
        if message is not None:
            self._supposed = ""
        return message

    @property
    def has_ended(self) -> bool:
        """Return whether the connection has ended; messages may still be there."""
        return self._pump.closed or self._has_ended()

    def _has_ended(self) -> bool:
        self._ended = bool(self._pump.events()) or self._ended
        return self._ended

    def _gone(self) -> Disconnected:
        if self._pump.closed:
            return Disconnected(f"the connection to {self.endpoint} was closed here")
        return Disconnected(f"the server at {self.endpoint} closed the connection{self._supposed}")

    def close(self) -> None:
        """End the connection; what was sent last gets a short time to leave."""
        self._pump.close()


def _supposed(endpoint: str, keys: KeyPair | None) -> str:
    """Return the likely cause, as text, for a connection that ends before the first message."""
    if keys is not None:
        return f": {NOT_ADMITTED}"
    return f": {NO_KEY}" if endpoint.startswith("tcp:") else ""


def _outgoing_limit(limit_bytes: int, keys: KeyPair | None) -> int:
    """Return the limit of a message that the server accepts (bytes)."""
    return limit_bytes if keys is None else min(limit_bytes, KEYED_MESSAGE_BYTES_MAX)
