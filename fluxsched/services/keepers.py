"""The `keeper` service: keepers of other hosts connect, and each connection is a `transport.base.Client`.

Law: a host has one connection, the last that it made; those before are closed. A connection that sends what cannot be
read ends, and is not silent: what it had to report is repeated on the next one.
"""

# Not compiled: its connections inherit from a class of the keeper, which is plain.
from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fluxsched.errors import FluxschedError, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.executor.relay import PieceInbox, pieces
from fluxsched.messaging.peers import Peer, RpcRequest, ping_answer
from fluxsched.messaging.router import Router
from fluxsched.protocol.messages.instance import KeeperConnectRequest, KeeperMessages
from fluxsched.system.log import logger

log = logger("keeper")

REPLACED = "its host has connected again"
CLOSED_HERE = "the connection was closed by the instance"


@dataclass(frozen=True, slots=True)
class KeeperConnectionLimits:
    """Limits of the connections of keepers."""

    hosts_max: int = 16_384
    """Hosts that are connected at a time: as many as the largest machines have."""
    host_chars_max: int = 255
    """Characters of a host's name, as in the domain name system."""


class KeeperConnection(PieceInbox):
    """Connection of a keeper: a `transport.base.Client` over the stream that the keeper has opened."""

    def __init__(self, request: RpcRequest, host: str, ended: Callable[[KeeperConnection], None]) -> None:
        """Call `ended` once when the connection has ended, by whichever side."""
        super().__init__()
        self.host = host
        self.peer: Peer = request.peer
        self._request = request
        self._on_end: Callable[[KeeperConnection], None] | None = ended

    def send(self, frames: Sequence[bytes]) -> None:
        if self._request.is_open:
            for one in pieces(frames):
                self._request.respond(one)

    def close(self) -> None:
        """See `Client.close`: what was sent before arrives, and then the end of the stream."""
        self.end(CLOSED_HERE, errno.ENODATA)

    def add(self, one: KeeperMessages) -> None:
        """Add messages of the keeper. Raises RemoteProtocolError."""
        super().add(one)
        self._wake()

    def end(self, reason: str, errnum: int) -> None:
        """End the connection, and the stream with this error if it is open. Idempotent."""
        self._request.on_end = None
        self._request.error(errnum, "" if errnum == errno.ENODATA else reason)
        self._end(reason)
        ended, self._on_end = self._on_end, None
        if ended is not None:
            ended(self)


KeeperArrived = Callable[[KeeperConnectRequest, KeeperConnection], None]


class KeeperConnections:
    """Serves `keeper.connect` and `keeper.report`."""

    def __init__(self, router: Router, arrived: KeeperArrived, limits: KeeperConnectionLimits | None = None) -> None:
        """`arrived` is called for each connection; it raises FluxschedError for a keeper that it does not take."""
        self._router = router
        self._arrived = arrived
        self._limits = KeeperConnectionLimits() if limits is None else limits
        self._by_host: dict[str, KeeperConnection] = {}
        self._by_peer: dict[Peer, KeeperConnection] = {}
        router.serve(
            {
                "keeper.connect": self._connect,
                "keeper.report": self._report,
                "keeper.ping": lambda request: request.respond(ping_answer(request)),
                "keeper.stats-get": lambda request: request.respond({"hosts": len(self._by_host)}),
            }
        )

    @property
    def hosts(self) -> list[str]:
        """Return the hosts that are connected."""
        return list(self._by_host)

    def close(self) -> None:
        for connection in list(self._by_host.values()):
            connection.close()

    def _connect(self, request: RpcRequest) -> None:
        wanted = request.payload(KeeperConnectRequest)
        self._check(wanted.host, request.peer)
        connection = KeeperConnection(request, wanted.host, self._forget)
        request.open_stream(lambda: connection.end("the connection was lost", errno.ENODATA))
        former = self._by_host.get(wanted.host)
        if former is not None:
            log.info("keeper of %s: %s", wanted.host, REPLACED)
            former.end(REPLACED, errno.ENODATA)
            self._router.drop_peer(former.peer, REPLACED)
        self._by_host[wanted.host] = self._by_peer[request.peer] = connection
        try:
            self._arrived(wanted, connection)
        except FluxschedError as fault:
            connection.end(str(fault), fault.errnum)

    def _check(self, host: str, peer: Peer) -> None:
        limits = self._limits
        if peer in self._by_peer:
            raise Refused(f"this connection is that of the keeper of {self._by_peer[peer].host}", errno.EEXIST)
        if not 0 < len(host) <= limits.host_chars_max:
            raise LimitExceeded(f"host name of {len(host)} characters, expected 1-{limits.host_chars_max}")
        if host not in self._by_host and len(self._by_host) >= limits.hosts_max:
            text = f"{len(self._by_host)} hosts are connected, the limit is {limits.hosts_max}: use fewer"
            raise LimitExceeded(text, errno.EMFILE)

    def _report(self, request: RpcRequest) -> None:
        connection = self._by_peer.get(request.peer)
        if connection is None:  # it was on its way when the connection ended
            return
        try:
            connection.add(request.payload(KeeperMessages))
        except RemoteProtocolError as fault:
            log.error("keeper of %s: %s", connection.host, fault)
            connection.end(str(fault), fault.errnum)

    def _forget(self, connection: KeeperConnection) -> None:
        if self._by_host.get(connection.host) is connection:
            del self._by_host[connection.host]
        if self._by_peer.get(connection.peer) is connection:
            del self._by_peer[connection.peer]
