"""Roster of connected peers: matches identities, file descriptors and the monitor's events, and decides when a peer is
lost.

A ROUTER does not tell that a peer left; its monitor names a file descriptor, and descriptors are reused at once.
ACCEPTED and DISCONNECTED of one descriptor alternate, so each ACCEPTED opens a new *generation* of it, and a peer
belongs to the generation that is open when its first message is read. A peer is reported lost when
- DISCONNECTED ended its generation (or a send found it unreachable), and
- its descriptor has really been closed, or accepted again: only then has the I/O thread handed over its last
  messages, for it tells the monitor *before* it flushes them, and
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

import os
from collections import deque
from collections.abc import Sequence

from fluxsched.transport.base import Arrived, Lost

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
    )

    def __init__(
        self, name: bytes, identity: bytes, chosen: bool, fd: int, connection: list[ConnectedPeer] | None
    ) -> None:
        self.name = name
        self.identity = identity
        self.chosen = chosen  # by the client, not by the ROUTER
        self.key: bytes | None = None  # what the client proved to have
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
        """The monitor's DISCONNECTED. One without a peer only looked, or its messages have not been read yet."""
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
        """The peer of a message that the hot path could not place; the monitor must have been read just now.

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
        """The ending peer whose connection the ROUTER now calls `identity`, because another took its own one."""
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
        """The identity, or a longer name while an earlier peer of that identity is not reported lost.

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
        """True while the peer's descriptor is certainly still its own."""
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
