"""ZeroMQ sockets: options, keys, whole messages in and out, edges, the monitor.

Keys are CURVE's options; by ZAP libzmq asks whether a key may connect (ZeroMQ RFC 26, 27).

Law: a stranger gets not one byte of ours but what the handshake itself needs, and a peer's identity within the ROUTER
is neither of its choice nor known to it.
"""

from __future__ import annotations

import errno
import re
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import zmq
from zmq.backend import Socket as _Backend
from zmq.utils import z85

from fluxsched.errors import InvalidValue, LocalProtocolError, Refused
from fluxsched.transport.base import (
    NO_PARTS,
    PARTS_MAX,
    KeyPair,
    ServerKeys,
    Waker,
    check_listening,
    ipc_path,
    tcp_address,
)

if TYPE_CHECKING:  # commands start 15 ms sooner without asyncio
    import asyncio

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Endpoint at which libzmq asks, within a context, whether a key may connect (ZeroMQ RFC 27)."""

ZAP_YES, ZAP_NO = b"200", b"000"
"""`000` is no status of the RFC, and that is the point: libzmq then closes the connection at once and says nothing.

By a 400 the stranger would be told, by a 300 the connection would stay until HANDSHAKE_IVL_MS is over.
"""

HANDSHAKE_IVL_MS = 10_000
"""Time that a stranger may hold a connection without proving to have a key; libzmq's own value is 30 s."""

KEYED_MESSAGE_BYTES_MAX = 8 << 20
"""Largest part that the holder of a key may send, who may be another user than ours.

What is larger, such as the R of a whole machine, goes through a socket of the instance's own machine.
"""
KEYED_UNREAD_MESSAGES_MAX = 128
"""Unread messages of such a peer before the kernel pushes back: with the limit above a gigabyte a connection."""

SEALED_BYTES = 33
"""Number of bytes that encryption adds to a part, which libzmq counts in when it compares with the limit: name, nonce,
code, flags.
"""

Context = zmq.Context[zmq.Socket[bytes]]
Frame = zmq.Frame


def make_key_pair() -> KeyPair:
    """Return new keys, from libzmq's source of chance."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public), z85.decode(secret))


def public_of(secret: bytes) -> bytes:
    """Return the public key that belongs to a secret one."""
    return z85.decode(zmq.curve_public(z85.encode(secret)))


def server_options(own: KeyPair, message_limit_bytes: int) -> dict[zmq.SocketOption, int | bytes]:
    """Of a ROUTER that lets in keys only.

    No handover: libzmq believes a client's greeting, and one that claims the identity of another peer would get its
    answers. So a second connection of one identity is never heard.
    """
    return {
        zmq.CURVE_SERVER: 1,
        zmq.CURVE_SECRETKEY: own.secret,
        zmq.ZAP_ENFORCE_DOMAIN: 1,
        zmq.MAXMSGSIZE: min(message_limit_bytes, KEYED_MESSAGE_BYTES_MAX) + SEALED_BYTES,
        zmq.RCVHWM: KEYED_UNREAD_MESSAGES_MAX,
        zmq.HANDSHAKE_IVL: HANDSHAKE_IVL_MS,
        zmq.ROUTER_HANDOVER: 0,
    }


def client_options(own: KeyPair, server_key: bytes) -> dict[zmq.SocketOption, int | bytes]:
    """Of a DEALER that proves who it is, to a server that must do so, too."""
    return {zmq.CURVE_SERVERKEY: server_key, zmq.CURVE_PUBLICKEY: own.public, zmq.CURVE_SECRETKEY: own.secret}


def hide_identities() -> None:
    """Have the identities that the next ROUTER makes count from a secret number.

    A client that claims one before it is given out makes libzmq 4.3.5 abort. It takes the first from the C library's
    `rand`, which it does not seed: it was the same in each process.
    """
    import ctypes  # clients do without

    ctypes.CDLL(None).srand(int.from_bytes(make_key_pair().secret[:4], "little"))


def users_options(message_limit_bytes: int) -> dict[zmq.SocketOption, int | bytes]:
    """Return the options of a ROUTER at a path that other users reach: no handover, for the reason above."""
    return {
        zmq.MAXMSGSIZE: min(message_limit_bytes, KEYED_MESSAGE_BYTES_MAX),
        zmq.RCVHWM: KEYED_UNREAD_MESSAGES_MAX,
        zmq.HANDSHAKE_IVL: HANDSHAKE_IVL_MS,
        zmq.ROUTER_HANDOVER: 0,
    }


def user_of(first: Frame) -> int | None:
    """Return the user who has connected to the path at which this frame was received, as the kernel told libzmq then
    (SO_PEERCRED); None if that is unknown.

    A peer cannot set this: what libzmq knows of a connection goes before what the peer says of itself.
    """
    try:
        found = _PEER.fullmatch(str(first.get("Peer-Address")))
    except (UnicodeDecodeError, zmq.ZMQError):
        return None
    return None if found is None else int(found[1])


def key_of(first: Frame) -> bytes | None:
    """Return the public key that the sender of this frame has proved to have; None where there are no keys."""
    try:
        name = first.get("User-Id")
    except zmq.ZMQError:
        return None
    return bytes.fromhex(name) if isinstance(name, str) and name else None


class Authenticator:
    """Answers libzmq's questions whether a key may connect (ZAP), between the turns of the loop.

    A connection whose question is unanswered waits; nothing of it is received before.
    """

    def __init__(self, context: Context, admits: Callable[[bytes, str], bool]) -> None:
        self._admits = admits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start answering libzmq on this loop."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self._answer)
        loop.call_soon(self._answer)

    def _answer(self) -> None:
        """All that is asked: the descriptor's edge is taken by the first look."""
        while not self._socket.closed and self._socket.poll(0):
            version, sequence, _, address, _, mechanism, *credentials = self._socket.recv_multipart()
            key = credentials[0] if mechanism == b"CURVE" and credentials else b""
            is_admitted = bool(key) and self._admits(key, address.decode(errors="replace"))
            verdict = [ZAP_YES, b"", key.hex().encode(), b""] if is_admitted else [ZAP_NO, b"", b"", b""]
            self._socket.send_multipart([version, sequence, *verdict])

    def close(self) -> None:
        """Answer no more: connections that wait stay out."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()


# ---- sockets

RECEIVE_MESSAGES_MAX = 100_000
"""Unread messages of one peer before the kernel pushes back.

Not less: when a peer with a full queue is killed, libzmq forgets what it has not read yet, and a client may have this
many requests in flight.
"""

SEND_MESSAGES_MAX = 512
"""Messages within libzmq for one peer; more go to the outbox, which is counted in bytes. At 64 sends cost 5x more."""

CLIENT_RECEIVE_MESSAGES_MAX = 1_000
"""A client that does not read shall push back soon, so that the server sees it."""

NEVER_MS = 864_000_000
"""Ten days until a reconnect. Not -1: libzmq then throws away what arrived before the end and is not read yet."""

BACKLOG = 4096
"""Connections that may wait for accept: thousands of agents start in one instant."""

HEARTBEAT_IVL_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 30_000
"""On tcp a peer may vanish without a word; libzmq's own threads answer these, however busy the peer is."""

CLOSE_LINGER_MS = 200
"""Time for the last messages to leave at close."""

CONTEXT_END_S = 10.0
"""Wait for libzmq's end of a context, which takes CLOSE_LINGER_MS and little more, before it is left behind."""

POLL_MS = 1_000
"""A signal that comes just before a poll is looked at after it: no poll is longer, however long the wait is."""

RETRY_S = 0.002
"""Pause between looks at a full peer or an ending connection, should no edge tell."""

DOMAIN = b"fluxsched"
"""Name of our authentication domain.

A socket that has one is refused by libzmq to peers older than ZMTP 3.0, whose messages name no connection (SRCFD):
software from before 2013, or no ZeroMQ at all (`curl` is taken for ZMTP 1).
"""

ACCEPTED, DISCONNECTED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED)
CONNECT_FAILED = int(zmq.EVENT_CLOSED)

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.SNDMORE) | _NOBLOCK
_EVENTS, _SRCFD, _POLLIN = int(zmq.EVENTS), int(zmq.SRCFD), int(zmq.POLLIN)
_EVENT = struct.Struct("=Hi")
_PEER = re.compile(r"localhost:([0-9]{1,10}):[0-9]{1,10}:[0-9]{1,10}")
"""The other end of a connection at a path, with user, group and process."""
_send = _Backend.send


def router(
    message_limit_bytes: int, *, heartbeat: bool, context: Context | None, keys: ServerKeys | None = None,
    for_users: bool = False,
) -> Pump:  # fmt: skip
    """Return a server's socket; with `keys`, strangers are let in by these alone and get not a byte otherwise.

    `for_users`: other users of this machine reach it, too.

    ROUTER_MANDATORY, or messages to a full or lost peer vanish silently.
    """
    if keys is not None or for_users:
        hide_identities()
    pump = Pump(zmq.ROUTER, ACCEPTED | DISCONNECTED, context)
    options: dict[zmq.SocketOption, int | bytes] = {
        zmq.ROUTER_MANDATORY: 1,
        # without handover a client that reconnects at once under its own identity is never read again
        zmq.ROUTER_HANDOVER: 1,
        zmq.RCVHWM: RECEIVE_MESSAGES_MAX,
        zmq.SNDHWM: SEND_MESSAGES_MAX,
        zmq.MAXMSGSIZE: message_limit_bytes,
        zmq.BACKLOG: BACKLOG,
        zmq.ZAP_DOMAIN: DOMAIN,
    }
    if heartbeat:
        options |= {zmq.HEARTBEAT_IVL: HEARTBEAT_IVL_MS, zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS}
    if keys is not None:
        pump.authenticate(keys.admits)  # before the bind: from there on strangers come
        options |= server_options(keys.own, message_limit_bytes)
    elif for_users:
        options |= users_options(message_limit_bytes)
    pump.configure(options)
    return pump


def dealer(endpoint: str, context: Context | None, keys: KeyPair | None, lost_after_ms: int = 0) -> Pump:
    """Return a client's socket, connected; Disconnected if nothing listens there. It does not reconnect.

    On tcp it ends when nothing has come for `lost_after_ms`, if that is not 0: it is asked for heartbeats then.

    Where the endpoint names its server's key, `keys` are the client's own. Raises InvalidValue without them.
    """
    check_listening(endpoint)
    options: dict[zmq.SocketOption, int | bytes] = {
        zmq.RECONNECT_IVL: NEVER_MS,
        zmq.SNDHWM: RECEIVE_MESSAGES_MAX,
        zmq.RCVHWM: CLIENT_RECEIVE_MESSAGES_MAX,
    }
    address = None if ipc_path(endpoint) else tcp_address(endpoint)
    if address is not None and lost_after_ms:
        options |= {zmq.HEARTBEAT_IVL: max(1, lost_after_ms // 3), zmq.HEARTBEAT_TIMEOUT: lost_after_ms}
    if address is not None and address.server_key is not None:
        if keys is None:
            raise InvalidValue(f"{endpoint} requires a key, and none was given")
        options |= client_options(keys, address.server_key)
    pump = Pump(zmq.DEALER, DISCONNECTED | CONNECT_FAILED, context)
    pump.configure(options)
    pump.connect(endpoint if address is None else address.bare())
    return pump


def chose_identity(first: Frame) -> bool:
    """Return true if the client that sent this frame chose its own identity, whatever the ROUTER calls it now."""
    try:
        return bool(first.get("Identity"))
    except UnicodeDecodeError:
        return True
    except zmq.ZMQError:  # the greeting of ZMTP may leave it out
        return False


def _readable(socket: Any) -> bool:
    """Return whether a message waits; asking costs an eighth of the exception that an empty `recv` raises."""
    return bool(int(_Backend.get(socket, _EVENTS)) & _POLLIN)


class Pump:
    """One socket with its monitor; on an event loop once started."""

    def __init__(self, kind: int, events: int, context: Context | None) -> None:
        self.closed = False
        self._owned = context is None
        self._context: Context = context if context is not None else zmq.Context()
        self._socket = _opened(self._context, kind)
        address = f"inproc://monitor-{id(self._socket)}"
        self._socket.monitor(address, events)
        self._monitor = _opened(self._context, zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # or a burst of connections would stop the I/O thread
        self._monitor.connect(address)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Waker | None = None
        self._check: Waker | None = None
        self._flush: Callable[[], bool] = bool
        self._authenticator: Authenticator | None = None

    def authenticate(self, admits: Callable[[bytes, str], bool]) -> None:
        """Have `admits` decide which keys may connect to the sockets of this context."""
        self._authenticator = Authenticator(self._context, admits)

    def configure(self, options: Mapping[zmq.SocketOption, int | bytes]) -> None:
        """Set socket options, before bind or connect."""
        for option, value in options.items():
            self._socket.setsockopt(option, value)

    def bind(self, endpoint: str) -> str:
        """Return the endpoint as bound, or Refused with the system's errno."""
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise Refused(f"cannot bind {endpoint}: {error.strerror}", error.errno) from error
        bound = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        return bound.rstrip(b"\0").decode() if isinstance(bound, bytes) else endpoint

    def connect(self, endpoint: str) -> None:
        """Start to connect to an endpoint."""
        self._socket.connect(endpoint)

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None], flush: Callable[[], bool]) -> None:
        """Call `wake` for arrivals and ends; `flush` sends what was kept and is true if some is still kept."""
        self._loop = loop
        self._flush = flush
        self._wake = Waker(loop, wake)
        self._check = Waker(loop, self.recheck)
        loop.add_reader(self._socket.fileno(), self.recheck)
        loop.add_reader(self._monitor.fileno(), self._on_event)
        if self._authenticator is not None:
            self._authenticator.start(loop)
        self._check.soon()
        self._wake.soon()

    def recheck(self) -> None:
        """Do what an edge would trigger, edge or not: flush full peers, then look for arrivals."""
        full = self._flush()
        if full and self._check is not None:
            self._check.later(RETRY_S)
        if self._wake is not None and _readable(self._socket):
            self._wake.now()

    def _on_event(self) -> None:
        _Backend.get(self._monitor, _EVENTS)  # takes the edge; the events are read with the messages
        self.nudge()

    def nudge(self) -> None:
        """Ask for a receive in the next turn."""
        if self._wake is not None:
            self._wake.soon()

    def nudge_later(self) -> None:
        """Ask for a receive after RETRY_S."""
        if self._wake is not None:
            self._wake.later(RETRY_S)

    def touched(self) -> None:
        """To be called after a send, which may have swallowed an edge: look at EVENTS once this turn is over."""
        if self._check is not None:
            self._check.soon()

    def now_s(self) -> float:
        """Return the loop's clock; without a loop time stands still."""
        return self._loop.time() if self._loop is not None else 0.0

    def events(self) -> list[tuple[int, int]]:
        """Return the events of the monitor since the last call: (event, descriptor)."""
        events: list[tuple[int, int]] = []
        try:
            while _readable(self._monitor):
                events.append(_EVENT.unpack(self._monitor.recv(_NOBLOCK)))
                self._monitor.recv(_NOBLOCK)
        except KeyboardInterrupt:
            self.close()
            raise
        return events

    def catch_up(self) -> None:
        """Have libzmq take note of all connections that have ended by now: a send to them fails from here on."""
        _Backend.get(self._socket, _EVENTS)
        if self._check is not None:
            self._check.soon()

    def write(self, identity: bytes | None, frames: Sequence[bytes]) -> int:
        """One message, whole or not at all: 0, or EAGAIN (full) or EHOSTUNREACH (gone).

        Interrupted by a KeyboardInterrupt within the message, the socket is closed, as `read_plain` and `events` do:
        what came next would be taken for the rest of it.
        """
        if not frames:
            raise LocalProtocolError(NO_PARTS)
        sock = self._socket
        try:
            if identity is not None:
                _send(sock, identity, _MORE)
            for frame in frames[:-1]:
                _send(sock, frame, _MORE)
            _send(sock, frames[-1], _NOBLOCK)
        except zmq.ZMQError as error:  # only ever at the first part
            if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                raise
            return error.errno
        except TypeError:
            if identity is not None or isinstance(frames[0], bytes):
                _send(sock, b"", _NOBLOCK)  # ends the broken message, or the next one would be taken for its rest
            raise
        except KeyboardInterrupt:
            self.close()
            raise
        return 0

    def read(self) -> tuple[Frame, bytes, int, list[bytes]] | None:
        """Return a ROUTER's next message: first frame, identity, descriptor, parts. None: the socket ran dry.

        A message that names no connection has no sender whose loss could be reported: it is dropped.
        """
        while _readable(self._socket):
            try:
                first = self._socket.recv(_NOBLOCK, False)
            except zmq.Again:
                return None
            try:
                return first, first.bytes, first.get(_SRCFD), self._rest(first)
            except zmq.ZMQError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._rest(first)
        return None

    def read_plain(self) -> list[bytes] | None:
        """Return the next message of a DEALER; None if there is none."""
        if not _readable(self._socket):
            return None
        try:
            first = self._socket.recv(_NOBLOCK, False)
            return [first.bytes, *self._rest(first)]
        except zmq.Again:
            return None
        except KeyboardInterrupt:
            self.close()
            raise

    def _rest(self, first: zmq.Frame) -> list[bytes]:
        """Return the parts that follow; those beyond PARTS_MAX + 1 are thrown away."""
        recv = self._socket.recv
        frames: list[bytes] = []
        more = first.more
        while more:
            part = recv(_NOBLOCK, False)
            if len(frames) <= PARTS_MAX:
                frames.append(part.bytes)
            more = part.more
        return frames

    def wait(self, timeout_ms: int | None, beside: int | None = None) -> bool:
        """Wait for a message or an event, or until the file `beside` can be read; False after `timeout_ms` (None: no
        limit).
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        if beside is not None:
            poller.register(beside, zmq.POLLIN)
        while timeout_ms is None or timeout_ms > POLL_MS:
            if poller.poll(POLL_MS):
                return True
            if timeout_ms is not None:
                timeout_ms -= POLL_MS
        return bool(poller.poll(timeout_ms))

    def wait_message(self, timeout_ms: int) -> bool:
        """Wait for a message; False after `timeout_ms`."""
        return bool(self._socket.poll(timeout_ms))

    def close(self) -> None:
        """Close; waits for CLOSE_LINGER_MS at most, since a process may exit right after."""
        if self.closed:
            return
        self.closed = True
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_reader(self._monitor.fileno())
        for waker in (self._wake, self._check):
            if waker is not None:
                waker.stop()
        self._wake = self._check = None
        if self._authenticator is not None:
            self._authenticator.close()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(CLOSE_LINGER_MS)
        if self._owned:
            end_context(self._context)


def end_context(context: Context, limit_s: float = CONTEXT_END_S) -> bool:
    """End a context whose sockets are closed; False if libzmq is not through with them within `limit_s`.

    An instance that had done all its work once waited here for ever (libzmq 4.3.5; libzmq's #2330, #2586 and #4407 tell
    of the like). What is left behind then is a few files, until the process ends.
    """
    ending = threading.Thread(target=context.term, name="fluxsched-zmq-end", daemon=True)
    ending.start()
    ending.join(limit_s)
    return not ending.is_alive()


def _opened(context: Context, kind: int) -> zmq.Socket[bytes]:
    try:
        return context.socket(kind)
    except zmq.ZMQError as fault:
        if fault.errno != errno.EMFILE:
            raise
        text = "too many files are open for one more connection: allow more (`ulimit -n`)"
        raise Refused(text, errno.EMFILE) from None
