"""Clients on other hosts: tasks find their instance at sockets of the keeper of their host, which passes messages on.

Laws: a client of these sockets is a client of the instance like any other. Its messages stay in order, its loss is
reported once and after the last of them, and it ends with the connection between keeper and instance. On that
connection all that keeper and instance send each other themselves goes first; then follow the messages of clients, in
pieces, of each client in turn, and never more of them is on the way than a window: so neither a client that sends a lot
nor one that does not read delays the keeper, or another client. A client's messages are not read before there is room
for them, so that it waits as it would for a busy instance. Messages of `executor.wire` go within those of an instance:
what arrives is what was sent, in order, whatever its size. One may have half a gigabyte, and is cut into pieces, none
so large that heartbeats of the connection wait for it, or that a transport refuses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fluxsched.errors import FluxschedError, LocalProtocolError, RemoteProtocolError
from fluxsched.executor import wire as msg
from fluxsched.executor.base import no_op
from fluxsched.executor.wire import PART_BYTES_MAX
from fluxsched.protocol.framing import NORESPONSE, REQUEST, decode, encode, make_error, unpack_bundle
from fluxsched.protocol.messages.instance import KeeperMessages
from fluxsched.system.files import (
    INFO_NAME,
    LOCAL_NAME,
    PARENT_VARIABLE,
    SOCKET_NAME,
    TEMPORARY_VARIABLE,
    URI_VARIABLE,
    level_here,
    replace_private_text,
    temporary_directory,
)
from fluxsched.system.log import logger
from fluxsched.system.loop import Timer, Turns
from fluxsched.transport.base import (
    MESSAGE_BYTES_MAX,
    NO_PARTS,
    PARTS_MAX,
    UNSENT_BYTES_MAX,
    Arrived,
    Lost,
    Server,
    size_bytes,
    slow_reader,
)
from fluxsched.transport.local import LocalServer
from fluxsched.transport.zeromq import ZmqServer

PIECE_BYTES: Final = 1 << 20
"""Bytes of messages in one message of the instance."""
REPORT_MESSAGES_MAX: Final = PARTS_MAX
"""Messages, or pieces of one, in a message of the instance."""


def pieces(parts: Sequence[bytes], piece_bytes: int = PIECE_BYTES) -> Iterator[KeeperMessages]:
    """Yield the parts of a transport's message, of which `wire.packed` makes no more than fit, in pieces."""
    taken: list[bytes] = []
    room = piece_bytes
    for part in parts:
        begin = 0
        while len(part) - begin > room:
            taken.append(part[begin : begin + room])
            yield KeeperMessages(taken, is_cut=True)
            begin, taken, room = begin + room, [], piece_bytes
        taken.append(part[begin:])
        room -= len(part) - begin
    if taken:
        yield KeeperMessages(taken)


class PieceInbox:
    """Messages that have arrived in pieces, until they are received: the receiving half of a
    `transport.base.Client`.
    """

    def __init__(self, part_bytes_max: int = PART_BYTES_MAX) -> None:
        self.lost: str | None = None
        """See `Client.lost`."""
        self._part_bytes_max = part_bytes_max
        self._arrived: deque[list[bytes]] = deque()
        self._begun: list[bytes] = []
        """Pieces of a message that goes on."""
        self._begun_bytes = 0
        self._ended: str | None = None
        self._wake: Callable[[], None] = no_op

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._wake = wake
        wake()

    def add(self, one: KeeperMessages) -> None:
        """Add messages. Raises RemoteProtocolError for too many, or one that is too large."""
        messages = list(one.messages)
        if not 0 < len(messages) <= REPORT_MESSAGES_MAX:
            raise RemoteProtocolError(f"{len(messages)} messages of a keeper in one, expected 1-{REPORT_MESSAGES_MAX}")
        if self._begun:
            self._keep(messages.pop(0))
            if one.is_cut and not messages:
                return
            messages.insert(0, b"".join(self._begun))
            self._begun, self._begun_bytes = [], 0
        if one.is_cut:
            self._keep(messages.pop())
        if messages:
            self._arrived.append(messages)

    def _keep(self, piece: bytes) -> None:
        self._begun_bytes += len(piece)
        if self._begun_bytes > self._part_bytes_max:
            raise RemoteProtocolError(f"message of a keeper above the limit of {self._part_bytes_max} bytes")
        self._begun.append(piece)

    def _end(self, reason: str) -> None:
        """Note that nothing will arrive any more; the first reason counts."""
        if self._ended is None:
            self._ended = reason
        self._look()
        self._wake()

    def receive(self, limit: int) -> list[list[bytes]]:
        arrived = self._arrived
        taken = [arrived.popleft() for _ in range(min(limit, len(arrived)))]
        self._look()
        if arrived:
            self._wake()
        return taken

    def _look(self) -> None:
        if not self._arrived:
            self.lost = self._ended


# ---- limits, and messages in pieces

log = logger("relay")

RECEIVE_MAX: Final = 64
"""Messages of clients taken from a socket at a time."""
LOOK_S: Final = 0.02
"""Interval of checking what is left at a keeper of a client that does not read (seconds)."""
PIECE_COST_BYTES: Final = 256
"""Bytes that a piece counts beside those of its frames, or small messages would have no limit."""
FLUX_VARIABLE: Final = "FLUX_URI"

ClientKey = tuple[bool, bytes]
"""A client of a host: whether its payloads are JSON, and its name at the keeper."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits of the clients on one host."""

    window_bytes: int = 4 << 20
    """Bytes on the way between host and instance, each way: 30 ms of a network of 1 Gbit/s."""
    piece_bytes: int = 256 << 10
    """Bytes of a piece, after which it is the next client's turn."""
    message_bytes: int = MESSAGE_BYTES_MAX
    """Bytes of a message of a client, all parts together."""
    waiting_bytes: int = MESSAGE_BYTES_MAX
    """Bytes of clients' messages that wait at the keeper, beyond which no more are read."""
    unsent_bytes: int = UNSENT_BYTES_MAX
    """Bytes kept for a client that does not read, in the instance and at the keeper; beyond it is cut off."""
    clients: int = 4096
    """Clients of one host at a time: thousands of tasks, each with a connection. Requests of others are refused."""


LIMITS: Final = RelayLimits()


class PieceQueue:
    """Pieces of messages that wait for room on a connection."""

    def __init__(self, window_bytes: int) -> None:
        self._room_bytes = window_bytes
        self._queues: dict[ClientKey, deque[msg.KeeperMessage]] = {}
        """Pieces by client, in the order of their turns."""
        self._waiting_bytes: dict[ClientKey, int] = {}
        self.total_bytes = 0
        """Bytes that wait of all clients."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, key: ClientKey, piece: msg.KeeperMessage) -> None:
        """Add a piece of a client's message, or what is said of the client after it."""
        self._queues.setdefault(key, deque()).append(piece)
        cost = _cost_bytes(piece)
        self._waiting_bytes[key] = self._waiting_bytes.get(key, 0) + cost
        self.total_bytes += cost

    def add_message(
        self, kind: type[msg.ClientFrames | msg.ToClient], key: ClientKey, frames: Sequence[bytes], piece_bytes: int
    ) -> None:
        """Add a message of a client, or to it, in pieces."""
        for piece in pieces(frames, piece_bytes):
            self.add(key, kind(*key, piece.messages, piece.is_cut))

    def take(self) -> list[msg.KeeperMessage]:
        """Return the pieces for which there is room, of each client in turn."""
        taken: list[msg.KeeperMessage] = []
        while self._queues and self._room_bytes > 0:
            key = next(iter(self._queues))
            queue = self._queues.pop(key)
            piece = queue.popleft()
            taken.append(piece)
            cost = _cost_bytes(piece)
            self._room_bytes -= cost
            self.total_bytes -= cost
            if queue:
                self._queues[key] = queue
                self._waiting_bytes[key] -= cost
            else:
                del self._waiting_bytes[key]
        return taken

    def credit(self, size: int) -> None:
        """Add room, since the other side has taken over so many bytes."""
        self._room_bytes += size

    def waiting_bytes(self, key: ClientKey) -> int:
        """Return the bytes that wait of one client."""
        return self._waiting_bytes.get(key, 0)

    def held_up_bytes(self, key: ClientKey) -> int:
        """Return the bytes of one client that the next turn will leave, as far as that is up to itself."""
        return max(0, self.waiting_bytes(key) - max(0, self._room_bytes))

    def discard(self, key: ClientKey) -> None:
        """Discard what waits of one client."""
        self._queues.pop(key, None)
        self.total_bytes -= self._waiting_bytes.pop(key, 0)


class PieceJoiner:
    """Puts the pieces of the messages of one client together."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[list[bytes]] = []
        """Pieces of each part of a message that is not complete."""

    def add(self, frames: Sequence[bytes], *, is_cut: bool) -> list[bytes] | None:
        """Add a piece; return the message that it completes, if it does."""
        if not self._parts and not is_cut:
            return list(frames)
        begun, new = self._parts, [[frame] for frame in frames]
        if begun and new:
            begun[-1] += new.pop(0)
        begun += new
        if is_cut:
            return None
        self._parts = []
        return [b"".join(part) for part in begun]


def _cost_bytes(piece: msg.KeeperMessage) -> int:
    return PIECE_COST_BYTES + (size_bytes(piece.frames) if isinstance(piece, msg.ClientFrames | msg.ToClient) else 0)


# ---- at the keeper


class ClientRelay:
    """Sockets on a keeper's host at which its tasks find the instance; the keeper's half."""

    def __init__(self, turns: Turns, directory: Path, limits: RelayLimits = LIMITS) -> None:
        """`directory`, where the sockets will be, is accessible to its owner alone."""
        self._turns = turns
        self._directory = directory
        self._limits = limits
        self._is_wanted = self._is_connected = False
        self._servers: dict[bool, Server] = {}
        """The sockets by whether payloads are JSON there; empty without a connection to the instance."""
        self._queue = PieceQueue(limits.window_bytes)
        self._due: list[msg.KeeperMessage] = []
        """Messages of the keeper itself about the relay."""
        self._taken_bytes = 0
        self._joiners: dict[ClientKey, PieceJoiner] = {}
        """Pieces of messages to each client that has sent one."""
        self._cut: set[ClientKey] = set()
        """Clients that were cut off, and whose loss is not reported yet."""
        self._unsent: dict[ClientKey, int] = {}
        """Bytes left at each client that does not read, as reported."""
        self._looking: Timer | None = None
        self._told: str | None = None
        self.handlers: Mapping[type, Callable[[Any], None]] = {
            msg.ToClient: self._to_client,
            msg.DropClient: self._drop_client,
            msg.RelayCredit: self._credited,
        }
        turns.source(self._read)

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for tasks here in place of those given for tasks beside the instance."""
        found = {
            **given,
            URI_VARIABLE: f"ipc://{self._directory / SOCKET_NAME}",
            FLUX_VARIABLE: f"local://{self._directory / LOCAL_NAME}",
            TEMPORARY_VARIABLE: temporary_directory(),
        }
        if PARENT_VARIABLE in given:  # the instance around that one has sockets of its own on this host, or none
            del found[PARENT_VARIABLE]
            if level_here() and URI_VARIABLE in os.environ:
                found[PARENT_VARIABLE] = os.environ[URI_VARIABLE]
        return found

    def want(self) -> None:
        """Have the sockets from now on, as long as there is a connection: a task may need them."""
        self._is_wanted = True
        self._open()

    def connected(self) -> None:
        """Begin with a new connection to the instance."""
        self.disconnected()
        self._is_connected = True
        if self._is_wanted:
            self._open()

    def disconnected(self) -> None:
        """End the connections of all clients, as that of the instance has ended."""
        self._is_connected = False
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
        self._queue = PieceQueue(self._limits.window_bytes)
        self._due.clear()
        self._joiners.clear()
        self._cut.clear()
        self._unsent.clear()
        self._taken_bytes = 0

    def _open(self) -> None:
        if self._servers or not self._is_connected:
            return
        limits, servers = self._limits, dict[bool, Server]()
        unsent, size = limits.unsent_bytes, limits.message_bytes
        try:
            servers[False] = ZmqServer(
                f"ipc://{self._directory / SOCKET_NAME}", unsent_limit_bytes=unsent, message_limit_bytes=size
            )
            servers[True] = LocalServer(
                f"local://{self._directory / LOCAL_NAME}", unsent_limit_bytes=unsent, message_limit_bytes=size
            )
            # by this clients know that the instance may come back, as long as this process lives; it is none itself
            replace_private_text(self._directory / INFO_NAME, json.dumps({"pid": os.getpid()}))
        except (OSError, FluxschedError) as fault:
            for server in servers.values():
                server.close()
            if self._told != str(fault):
                self._told = str(fault)
                log.error("tasks here do not find their instance: %s", fault)
            return
        self._servers = servers
        for server in servers.values():
            self._turns.attach(server.start)

    # -- from clients -------------------------------------------------------------------------------------------

    def _read(self, until_s: float) -> bool:
        """Read messages of clients, unless too many that were read before wait for room."""
        more = False
        if self._queue.total_bytes < self._limits.waiting_bytes:
            for is_json, server in self._servers.items():
                arrived = server.receive(RECEIVE_MAX)
                more |= len(arrived) >= RECEIVE_MAX
                for one in arrived:
                    self._arrived(server, (is_json, one.peer), one)
        return more

    def _arrived(self, server: Server, key: ClientKey, one: Arrived | Lost) -> None:
        if isinstance(one, Lost):
            self._cut.discard(key)
            self._joiners.pop(key, None)
            self._unsent.pop(key, None)
            self._queue.add(key, msg.ClientLost(*key, one.reason))
        elif key not in self._cut:
            self._joiners.setdefault(key, PieceJoiner())
            size, limits = size_bytes(one.frames), self._limits
            if size > limits.message_bytes:
                self._cut.add(key)
                server.drop(one.peer, f"message of {size} bytes, limit {limits.message_bytes}")
            else:
                self._queue.add_message(msg.ClientFrames, key, one.frames, limits.piece_bytes)

    def take(self) -> list[msg.KeeperMessage]:
        """Return what is to be sent now, after all that the keeper itself has to send; to be called in each turn."""
        due, self._due = self._due, []
        if self._taken_bytes:
            due.append(msg.RelayCredit(self._taken_bytes))
            self._taken_bytes = 0
        was_full = self._queue.total_bytes >= self._limits.waiting_bytes
        due += self._queue.take()
        if was_full and self._queue.total_bytes < self._limits.waiting_bytes:
            self._turns.wake()  # there is room to read further messages
        return due

    # -- from the instance --------------------------------------------------------------------------------------

    def _credited(self, one: msg.RelayCredit) -> None:
        self._queue.credit(one.size_bytes)

    def _to_client(self, one: msg.ToClient) -> None:
        self._taken_bytes += _cost_bytes(one)
        self._turns.wake()
        key = one.json, one.peer
        joiner = self._joiners.get(key)
        frames = None if joiner is None else joiner.add(one.frames, is_cut=one.is_cut)
        if frames is not None:
            server = self._servers[one.json]
            server.send(one.peer, frames)
            self._note_unsent(server, key)

    def _drop_client(self, one: msg.DropClient) -> None:
        self._taken_bytes += _cost_bytes(one)
        self._turns.wake()
        if (one.json, one.peer) in self._joiners:
            self._servers[one.json].drop(one.peer, one.reason)

    def _note_unsent(self, server: Server, key: ClientKey) -> None:
        """Report what a client leaves unread, if that has changed, and look at it again."""
        unsent = server.unsent_bytes(key[1])
        if unsent == self._unsent.get(key, 0):
            return
        self._due.append(msg.ClientUnsent(*key, unsent))
        self._turns.wake()
        if not unsent:
            del self._unsent[key]
            return
        self._unsent[key] = unsent
        if self._looking is None:
            self._looking = self._turns.after(LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        for key in list(self._unsent):
            self._note_unsent(self._servers[key[0]], key)
        if self._unsent and self._looking is None:
            self._looking = self._turns.after(LOOK_S, self._look)


# ---- at the instance


class RelayedClient:
    """Client on another host."""

    __slots__ = ("host", "is_ended", "joiner", "key", "name", "refusal", "unsent_bytes")

    def __init__(self, name: bytes, host: HostRelay, key: ClientKey) -> None:
        self.name = name
        self.host = host
        self.key = key
        self.joiner = PieceJoiner()
        self.unsent_bytes = 0
        """Bytes that it leaves unread at the keeper."""
        self.is_ended = False
        """True if nothing more of it counts: its loss is reported, or will be after what it has sent."""
        self.refusal = ""
        """Why it is not served, if it is not."""


class RelayServer:
    """A `Server` whose peers are the clients on all other hosts, of one kind of socket."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.endpoint = f"keepers://{LOCAL_NAME if json else SOCKET_NAME}"
        self.dropped = 0
        self._wake: Callable[[], None] | None = None
        self._clients: dict[bytes, RelayedClient] = {}
        self._serial = 0
        self._arrived: dict[HostRelay, deque[tuple[Arrived | Lost, int]]] = {}
        """Messages and losses by host, in the order of their turns; with the bytes that the host may then send."""

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._wake = wake
        wake()

    def receive(self, limit: int) -> list[Arrived | Lost]:
        """See `Server.receive`; hosts have their turns."""
        taken: list[Arrived | Lost] = []
        while self._arrived and len(taken) < limit:
            host = next(iter(self._arrived))
            queue = self._arrived.pop(host)
            one, cost = queue.popleft()
            taken.append(one)
            host.taken(cost)
            if queue:
                self._arrived[host] = queue
        if self._arrived:
            self._nudge()
        return taken

    def send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        if not frames:
            raise LocalProtocolError(NO_PARTS)
        client = self._clients.get(peer)
        if client is None:
            self.dropped += 1
        else:
            client.host.send(client, frames)

    def drop(self, peer: bytes, reason: str) -> None:
        """See `Server.drop`; what it was sent before arrives."""
        client = self._clients.get(peer)
        if client is not None:
            client.host.drop(client, reason)

    def unsent_bytes(self, peer: bytes) -> int:
        """See `Server.unsent_bytes`; what is on the way to the host is not counted."""
        client = self._clients.get(peer)
        return 0 if client is None else client.host.unsent_bytes(client)

    def peers(self) -> int:
        return len(self._clients)

    def close(self) -> None:
        """See `Server.close`; the clients' connections end with those of the keepers."""
        self._clients.clear()
        self._arrived.clear()
        self._wake = None

    # -- for the hosts ------------------------------------------------------------------------------------------

    def admit(self, host: HostRelay, key: ClientKey) -> RelayedClient:
        """Return a new client, under a name that no other had."""
        self._serial += 1
        name = f"{host.name}/{self._serial}".encode()
        client = self._clients[name] = RelayedClient(name, host, key)
        return client

    def add(self, client: RelayedClient, one: Arrived | Lost, cost: int) -> None:
        """Add a message of a client, or its loss; the host may send so many bytes more when it is received."""
        if isinstance(one, Lost):
            client.is_ended = True
            self._clients.pop(client.name, None)
        self._arrived.setdefault(client.host, deque()).append((one, cost))
        self._nudge()

    def _nudge(self) -> None:
        if self._wake is not None:
            self._wake()


class HostRelay:
    """Clients on one other host; the instance's half."""

    def __init__(
        self, wake: Callable[[], None], name: str, servers: tuple[RelayServer, RelayServer],
        limits: RelayLimits = LIMITS,
    ) -> None:  # fmt: skip
        """`wake` has a turn run soon in which `take` is called. `servers` are those of the instance, without JSON and
        with it.
        """
        self.name = name
        self._wake = wake
        self._servers = servers
        self._limits = limits
        self._clients: dict[ClientKey, RelayedClient] = {}
        """Clients whose loss the keeper has not reported."""
        self._queue = PieceQueue(limits.window_bytes)
        self._credit_bytes = 0
        self._refused = 0
        """Number of clients that are not served."""
        self.handlers: Mapping[type, Callable[[Any], None]] = {
            msg.ClientFrames: self._frames,
            msg.ClientLost: self._lost,
            msg.ClientUnsent: self._unsent,
            msg.RelayCredit: self._credited,
        }

    def disconnected(self) -> None:
        """End all clients, since the connection to the keeper has ended."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            if not (client.is_ended or client.refusal):
                self._end(client, f"the connection to the keeper of {self.name} has ended")
        self._queue = PieceQueue(self._limits.window_bytes)
        self._credit_bytes = self._refused = 0

    def take(self) -> list[msg.KeeperMessage]:
        """Return what is to be sent to the keeper now, after all else that it is sent; to be called in each turn."""
        due: list[msg.KeeperMessage] = []
        if self._credit_bytes:
            due.append(msg.RelayCredit(self._credit_bytes))
            self._credit_bytes = 0
        return due + self._queue.take()

    # -- from the keeper ----------------------------------------------------------------------------------------

    def _frames(self, one: msg.ClientFrames) -> None:
        key, cost = (one.json, one.peer), _cost_bytes(one)
        client = self._clients.get(key) or self._admit(key)
        if client.is_ended:
            self.taken(cost)
            return
        frames = client.joiner.add(one.frames, is_cut=one.is_cut)
        if frames is None or client.refusal:
            self.taken(cost)  # else a message above the window would never arrive
        if frames is not None and client.refusal:
            self._refuse(client, frames)
        elif frames is not None:
            self._servers[one.json].add(client, Arrived(client.name, frames), cost)

    def _admit(self, key: ClientKey) -> RelayedClient:
        served, limit = len(self._clients) - self._refused, self._limits.clients
        if served < limit:
            client = self._servers[key[0]].admit(self, key)
        else:
            self._refused += 1
            client = RelayedClient(b"", self, key)
            client.refusal = f"{served} clients on {self.name} are connected, the limit is {limit}: end some of them"
            log.warning("a further one is refused: %s", client.refusal)
        self._clients[key] = client
        return client

    def _refuse(self, client: RelayedClient, frames: list[bytes]) -> None:
        """Answer the requests of a client that is not served. Cutting it off would not give it the reason."""
        text = client.refusal + ("\0" if client.key[0] else "")
        with contextlib.suppress(RemoteProtocolError):
            for message in unpack_bundle(decode(frames)):
                if message.type == REQUEST and not message.flags & NORESPONSE:
                    answer = encode(make_error(message, errno.EMFILE, text))
                    self._queue.add_message(msg.ToClient, client.key, answer, self._limits.piece_bytes)

    def _lost(self, one: msg.ClientLost) -> None:
        self.taken(_cost_bytes(one))
        key = (one.json, one.peer)
        client = self._clients.pop(key, None)
        self._queue.discard(key)
        if client is not None and client.refusal:
            self._refused -= 1
        elif client is not None and not client.is_ended:
            self._end(client, one.reason)

    def _unsent(self, one: msg.ClientUnsent) -> None:
        client = self._clients.get((one.json, one.peer))
        if client is not None:
            client.unsent_bytes = one.size_bytes

    def _credited(self, one: msg.RelayCredit) -> None:
        self._queue.credit(one.size_bytes)
        self._wake()

    # -- from the instance --------------------------------------------------------------------------------------

    def send(self, client: RelayedClient, frames: Sequence[bytes]) -> None:
        """Send a message to a client, one of any size if it has read all others; a client that does not read is cut
        off.
        """
        unsent, limit = self._queue.waiting_bytes(client.key) + client.unsent_bytes, self._limits.unsent_bytes
        size = unsent + size_bytes(frames)
        if unsent and size > limit:
            self._queue.discard(client.key)
            self.drop(client, slow_reader(size, limit))
            return
        self._queue.add_message(msg.ToClient, client.key, frames, self._limits.piece_bytes)
        self._wake()

    def drop(self, client: RelayedClient, reason: str) -> None:
        self._queue.add(client.key, msg.DropClient(*client.key, reason))
        self._end(client, reason)
        self._wake()

    def unsent_bytes(self, client: RelayedClient) -> int:
        return self._queue.held_up_bytes(client.key) + client.unsent_bytes

    def taken(self, cost: int) -> None:
        """Record that the host may send so many bytes more."""
        self._credit_bytes += cost
        self._wake()

    def _end(self, client: RelayedClient, reason: str) -> None:
        self._servers[client.key[0]].add(client, Lost(client.name, reason), 0)
