"""ZeroMQ transports: a ROUTER that knows its peers, a DEALER, and a blocking DEALER.

The roster of peers matches identities, file descriptors and the monitor's events, and decides when a peer is lost. A
ROUTER does not tell that a peer left; its monitor names a file descriptor, and descriptors are reused at once. ACCEPTED
and DISCONNECTED of one descriptor alternate, so each ACCEPTED opens a new *generation* of it, and a peer belongs to the
generation that is open when its first message is read. A peer is reported lost when
- DISCONNECTED ended its generation (or a send found it unreachable), and
- its descriptor has really been closed, or accepted again: only then has the I/O thread handed over its last messages,
  for it tells the monitor *before* it flushes them, and
- the ROUTER then ran dry, or gave (it serves its peers in turn) two full rounds without a message of that peer.

No probe message is ever sent to find out: it could reach another peer.

A peer may have come, spoken and gone before its first message is read. Then the open generation of its descriptor is
another peer's. A peer adopted where that is possible is *doubtful* until a message was sent to it: libzmq refuses those
who are gone. A doubtful peer's connection is never shut down.

An identity that the ROUTER makes is unique to its connection. One that a client chose may come back at once, on the
same descriptor even: that is a new peer. The ROUTER then renames the former connection, whose last messages arrive
under an identity made up for it.
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
from fluxsched.transport.base import (
    MESSAGE_BYTES_MAX,
    PARTS_MAX,
    UNSENT_BYTES_MAX,
    Arrived,
    KeyPair,
    Lost,
    PathClaim,
    ServerKeys,
    bound_address,
    check_outgoing,
    ipc_path,
    reachable,
    size_bytes,
    slow_reader,
)
from fluxsched.transport.sockets import (
    ACCEPTED,
    KEYED_MESSAGE_BYTES_MAX,
    RECEIVE_MESSAGES_MAX,
    Context,
    Frame,
    chose_identity,
    dealer,
    key_of,
    router,
    user_of,
)

if TYPE_CHECKING:  # commands start 15 ms sooner without asyncio
    from asyncio import AbstractEventLoop

CLOSE_SETTLE_S = 0.4
"""Longest wait for a descriptor to be closed, within the 0.5 s in which a loss must be known."""

MADE_IDENTITY_BYTES = 5
"""An identity that the ROUTER makes is a zero byte and a 32-bit number."""


class ConnectedPeer:
    """One peer on one connection."""

    __slots__ = (
        "chosen",
        "closed",
        "connection",
        "deadline_s",
        "doubtful",
        "fd",
        "identity",
        "inode",
        "key",
        "name",
        "outbox",
        "quiet",
        "reason",
        "unsent_bytes",
        "userid",
    )

    def __init__(
        self, name: bytes, identity: bytes, chosen: bool, fd: int, connection: list[ConnectedPeer] | None
    ) -> None:
        self.name = name
        self.identity = identity
        self.chosen = chosen  # by the client, not by the ROUTER
        self.key: bytes | None = None  # what the client proved to have
        self.userid: int | None = None  # who has connected, where other users do
        self.fd = fd
        self.connection = connection
        self.inode = _inode(fd) if connection is not None else None
        self.doubtful = False  # the descriptor may be another peer's by now
        self.reason: str | None = None  # set: the peer is ending
        self.closed = False
        self.deadline_s = 0.0
        self.quiet = 0
        self.outbox: deque[Sequence[bytes]] = deque()
        self.unsent_bytes = 0


def _inode(fd: int) -> int | None:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return None


class Roster:
    """All peers of one ROUTER. `by_name` answers sends, `by_identity` the hot path of receive."""

    __slots__ = ("_generations", "_hides_identities", "_unheard", "by_identity", "by_name", "ending", "serial")

    def __init__(self, *, hides_identities: bool = False) -> None:
        self._hides_identities = hides_identities
        self.by_name: dict[bytes, ConnectedPeer] = {}
        self.by_identity: dict[bytes, ConnectedPeer] = {}
        self.ending: dict[bytes, ConnectedPeer] = {}
        self.serial = 0
        self._unheard: dict[int, float] = {}  # descriptors that closed before a message of theirs was read, and when
        self._generations: dict[int, list[ConnectedPeer]] = {}  # open ones by descriptor, with the peers seen on each

    def accepted(self, fd: int) -> None:
        """Open a generation by the monitor's ACCEPTED."""
        self._generations[fd] = []

    def disconnected(self, fd: int, now_s: float) -> None:
        """Handle the monitor's DISCONNECTED. One without a peer only looked, or its messages have not been read yet."""
        peers = self._generations.pop(fd, ())
        if not peers:
            self._unheard[fd] = now_s
        for peer in peers:
            self.end(peer, "connection closed", now_s)

    def ran_dry(self, now_s: float) -> None:
        """No message is unread: a peer that closed a while ago without sending will send nothing more."""
        if self._unheard:
            self._unheard = {fd: at_s for fd, at_s in self._unheard.items() if now_s <= at_s + CLOSE_SETTLE_S}

    def adopt(self, identity: bytes, chosen: bool, fd: int, now_s: float) -> ConnectedPeer:
        """Return the peer of a message that the hot path could not place; the monitor must have been read just now.

        `chosen`: the client chose an identity, though the ROUTER may have replaced it.
        """
        known = self.by_identity.get(identity) or (self._renamed(identity, fd) if chosen else None)
        generation = self._generations.get(fd)
        if known is not None:
            same = not known.chosen or generation is None or generation is known.connection
            if known.fd == fd and same:
                return known  # a last message of a peer that is ending
            self.end(known, "its identity came back on another connection", now_s)
        peer = ConnectedPeer(self._name(identity), identity, chosen, fd, generation)
        peer.doubtful = fd in self._unheard
        self.by_name[peer.name] = self.by_identity[identity] = peer
        if generation is None:
            self.end(peer, "connection closed", now_s)
        else:
            generation.append(peer)
        return peer

    def _renamed(self, identity: bytes, fd: int) -> ConnectedPeer | None:
        """Return the ending peer whose connection the ROUTER now calls `identity`, because another took its own one."""
        if len(identity) != MADE_IDENTITY_BYTES or identity[0] != 0:
            return None
        for peer in self.ending.values():
            if peer.fd == fd and peer.chosen:
                if self.by_identity.get(peer.identity) is peer:
                    del self.by_identity[peer.identity]
                self.by_identity[identity] = peer
                peer.identity, peer.chosen = identity, False
                return peer
        return None

    def _name(self, identity: bytes) -> bytes:
        """Return the identity, or a longer name while an earlier peer of that identity is not reported lost.

        Names are told to peers: where identities are a secret they are numbers.
        """
        if self._hides_identities:
            self.serial += 1
            return self.serial.to_bytes(MADE_IDENTITY_BYTES, "big")
        name = identity
        while name in self.by_name:
            self.serial += 1
            name = b"%b#%d" % (identity, self.serial)
        return name

    def is_open(self, peer: ConnectedPeer) -> bool:
        """Return true while the peer's descriptor is certainly still its own."""
        return peer.connection is not None and self._generations.get(peer.fd) is peer.connection

    def end(self, peer: ConnectedPeer, reason: str, now_s: float, *, closed: bool = False) -> None:
        """Nothing more is sent to the peer; it is reported when its last message has been read."""
        if peer.reason is None:
            peer.reason = reason
            peer.deadline_s = now_s + CLOSE_SETTLE_S
            peer.outbox.clear()
            peer.unsent_bytes = 0
            self.ending[peer.name] = peer
        peer.closed = peer.closed or closed

    def settle(self, now_s: float) -> None:
        """Note whose descriptors are closed by now. Call it before the ROUTER is read."""
        for peer in self.ending.values():
            peer.closed = peer.closed or now_s > peer.deadline_s or self._is_closed(peer)

    def _is_closed(self, peer: ConnectedPeer) -> bool:
        generation = self._generations.get(peer.fd)
        if generation is not None:
            return generation is not peer.connection
        inode = _inode(peer.fd)
        return inode is None or (peer.inode is not None and inode != peer.inode)

    def losses(self, read: Sequence[Arrived | Lost], dry: bool, limit: int) -> list[Lost]:
        """Up to `limit` peers that are lost, given what was read since `settle` and whether nothing was left."""
        heard = set() if dry else {message.peer for message in read}
        lost: list[Lost] = []
        for peer in [peer for peer in self.ending.values() if peer.closed]:
            peer.quiet = 0 if peer.name in heard else peer.quiet + len(read)
            if len(lost) < limit and (dry or peer.quiet > 2 * len(self.by_name)):
                self._forget(peer)
                lost.append(Lost(peer.name, peer.reason or ""))
        return lost

    def _forget(self, peer: ConnectedPeer) -> None:
        del self.ending[peer.name], self.by_name[peer.name]
        if self.by_identity.get(peer.identity) is peer:
            del self.by_identity[peer.identity]
        if peer.connection is not None:
            peer.connection.remove(peer)


# ---- server and clients

TCP_IS_OPEN = (
    "without keys every account of this machine could run commands there as you: "
    "make some with `fluxsched keygen --server`, use ipc:// or local://, or give --insecure-tcp if all of them may"
)
BEYOND_LOOPBACK = "tcp beyond loopback needs CURVE keys (`fluxsched keygen --server`); without them use 127.0.0.1"
CHOSEN_IDENTITY = "a client of another user may not choose its identity"
"""Else the first message on a connection could be taken for one of the connection that had the identity before."""
UNKNOWN_USER = "who has connected is not known beyond doubt, or the client chose its identity"
NOT_ADMITTED = (
    "it does not know your key (an admin adds its .pub file and reloads), or the address names another server's key"
)
"""Likely cause when the connection of a client with a key ends before the first message: strangers get no answer."""
NO_KEY = "if it is opened by keys its address is tcp://KEY@HOST:PORT, as `fluxsched uri --tcp` prints it there"
"""Likely cause when the connection of a client without a key ends before the first message."""
OWNER_MODE, USERS_MODE = 0o600, 0o666
"""Modes of a socket's file: Linux requires write permission to connect."""
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
        for_users: bool = False,
    ) -> None:
        """Refused (EADDRINUSE) if the endpoint is in use, InvalidValue for an endpoint we do not bind.

        A tcp port without `keys` is open to every account of this machine, and ZeroMQ does not tell which one
        connects: it is Refused (EPERM) unless `insecure_tcp` says that they all may be taken for the owner. With keys
        a port may be reachable from anywhere. The keys of a socket are asked for in its context: one such server each.

        `for_users`: the path is open to all users of this machine, and each message comes with its sender's user.
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
        self._for_users = for_users and path is not None
        self._claim = PathClaim(path) if path is not None else None
        self._pump = router(
            message_limit_bytes, heartbeat=path is None, context=context, keys=keys if self._has_keys else None,
            for_users=self._for_users,
        )  # fmt: skip
        self.dropped = 0
        self._unsent_limit_bytes = unsent_limit_bytes
        self._roster = Roster(hides_identities=self._has_keys or self._for_users)
        self._full: set[ConnectedPeer] = set()
        try:
            self.endpoint = self._pump.bind(endpoint)
            if self._claim is not None:
                self._claim.set_mode(USERS_MODE if self._for_users else OWNER_MODE)
            elif keys is not None:
                self.endpoint = reachable(self.endpoint).with_key(keys.own.public)
        except BaseException:
            self.close()
            raise

    def start(self, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._pump.start(loop, wake, self._flush)

    def receive(self, limit: int) -> list[Arrived | Lost]:
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
            userid = user_of(first) if self._for_users else None
            if len(frames) > PARTS_MAX:
                self._cut(peer, f"message of more than {PARTS_MAX} parts")
            elif self._for_users and (userid is None or userid != peer.userid):
                self._cut(peer, UNKNOWN_USER)
            else:
                arrivals.append(Arrived(peer.name, frames, userid, peer.key))
        return False

    def _adopt(self, first: Frame, identity: bytes, fd: int) -> ConnectedPeer:
        former = self._roster.by_identity.get(identity)
        peer = self._roster.adopt(identity, chose_identity(first), fd, self._pump.now_s())
        if self._has_keys and former is not peer:
            peer.key = key_of(first)
            if peer.chosen:
                self._cut(peer, CHOSEN_IDENTITY)
        elif self._for_users and former is not peer and not peer.chosen:
            peer.userid = user_of(first)
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
        return len(self._roster.by_name) - len(self._roster.ending)

    def close(self) -> None:
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
        self._pump.start(loop, wake, self._flush)

    def receive(self, limit: int) -> list[list[bytes]]:
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
        if not self._pump.closed:
            self._flush()
        self._pump.close()


class BlockingClient:
    """A client that waits, for commands. Every call raises Disconnected once the server is gone, or it was closed."""

    def __init__(self, endpoint: str, *, keys: KeyPair | None = None) -> None:
        self._pump = dealer(endpoint, None, keys)
        self.endpoint = endpoint
        self._message_limit_bytes = _outgoing_limit(MESSAGE_BYTES_MAX, keys)
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
        """Return the next message; None after `timeout_s` (None: no limit), or when the file `beside` can be read."""
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
