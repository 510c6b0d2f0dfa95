"""Peers that misbehave, by kind: each sends a batch of inputs over raw UNIX sockets and says how many it sent.

Law: a sender never waits for long: what the instance does not take is its right to refuse.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from random import Random

from fluxsched.errors import Disconnected, LimitExceeded, LocalProtocolError
from fluxsched.transport.base import tcp_address
from fluxsched.transport.local import pack_frame
from fluxsched.transport.zeromq import BlockingClient
from tests.fuzz.live.inputs import GREETING, READY, MessageMaker, broken_curve, broken_session, broken_stream, zmtp
from tests.fuzz.live.instance import LiveInstance

SEND_TIMEOUT_S = 5.0
BATCH = 200
CONNECTIONS = 50
"""Open at once, of a batch of sessions."""
GREETING_BYTES = len(GREETING)
SLOW = 40
"""Half-open connections that are kept while a life lasts."""

Send = Callable[[LiveInstance, Random], int]


def connected(path: str) -> socket.socket:
    """A connection to a UNIX socket."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(SEND_TIMEOUT_S)
    made.connect(path)
    return made


def session_bytes(instance: LiveInstance, chance: Random) -> int:
    """Greetings, handshakes and frames of ZMTP that are wrong somewhere, on connections of their own."""
    return _sessions(instance, lambda: connected(instance.ipc_path), lambda: broken_session(chance))


def curve_bytes(instance: LiveInstance, chance: Random) -> int:
    """The same at the port that keys open, from strangers."""
    address = tcp_address(instance.tcp_uri)
    where = (address.host, int(address.port))
    return _sessions(instance, lambda: socket.create_connection(where, SEND_TIMEOUT_S), lambda: broken_curve(chance))


def _sessions(instance: LiveInstance, connect: Callable[[], socket.socket], make: Callable[[], bytes]) -> int:
    for _ in range(BATCH // CONNECTIONS):
        said = [make() for _ in range(CONNECTIONS)]
        open_now = [connect() for _ in said]
        for each, text in zip(open_now, said, strict=True):
            with contextlib.suppress(OSError):
                each.send(text[:GREETING_BYTES])
        instance.check()
        for each, text in zip(open_now, said, strict=True):
            with contextlib.suppress(OSError), each:  # dropped for its greeting
                each.send(text[GREETING_BYTES:])
    return BATCH


def stream_bytes(instance: LiveInstance, chance: Random) -> int:
    """Bytes at the local socket that are no frames, each on a connection of its own."""
    for _ in range(BATCH):
        with connected(instance.local_path) as each, contextlib.suppress(OSError):
            each.recv(1)
            each.send(broken_stream(chance))
    return BATCH


def zmtp_messages(maker: MessageMaker) -> Send:
    """A batch of messages over a proper session at the ZeroMQ socket."""

    def send(instance: LiveInstance, chance: Random) -> int:
        with connected(instance.ipc_path) as peer:
            peer.sendall(GREETING)
            heard = b""
            while len(heard) < GREETING_BYTES:
                heard += peer.recv(4096)
            peer.sendall(READY)
            _send_all(peer, [zmtp(parts) for parts in maker.batch(BATCH, chance)])
        return BATCH

    return send


def guest_messages(maker: MessageMaker) -> Send:
    """The same at the port that keys open, from a guest who has one."""

    def send(instance: LiveInstance, chance: Random) -> int:
        peer = BlockingClient(instance.tcp_uri, keys=instance.guest_key)
        with contextlib.suppress(Disconnected, LimitExceeded, LocalProtocolError):
            for parts in maker.batch(BATCH, chance):
                peer.send([b"", *parts[1:]])
            while peer.receive(0.0) is not None:
                pass
        peer.close()
        return BATCH

    return send


def local_messages(maker: MessageMaker) -> Send:
    """The same at the local socket."""

    def send(instance: LiveInstance, chance: Random) -> int:
        with connected(instance.local_path) as peer:
            peer.recv(1)
            _send_all(peer, [pack_frame(parts) for parts in maker.batch(BATCH, chance)])
        return BATCH

    return send


def _send_all(peer: socket.socket, frames: list[bytes]) -> None:
    """Send and read by turns; a peer that is cut off has said enough."""
    peer.setblocking(False)
    data = memoryview(b"".join(frames))
    with contextlib.suppress(OSError):
        while data:
            readable, writable, _ = select.select([peer], [peer], [], SEND_TIMEOUT_S)
            if readable and not peer.recv(1 << 20):
                return
            if writable:
                data = data[peer.send(data[: 1 << 16]) :]
            if not readable and not writable:
                return


class SlowPeers:
    """Connections that begin and do not go on, and one that sends a byte now and then."""

    def __init__(self, instance: LiveInstance) -> None:
        huge = zmtp([b"", bytes(300)])[:3] + b"\x02" + (1 << 25).to_bytes(8, "big") + bytes(1000)
        beginnings = (b"", GREETING[:1], GREETING[:11], GREETING, GREETING + READY, GREETING + READY + huge)
        self._open = [connected(instance.ipc_path) for _ in range(SLOW)]
        for at, each in enumerate(self._open):
            self._say(each, beginnings[at % len(beginnings)])
        frame = pack_frame([b"resource.status", bytes(20)])
        for length in (0, 1, 7, 8, 12):
            self._open.append(connected(instance.local_path))
            self._say(self._open[-1], frame[:length])
        self._open.append(connected(instance.local_path))
        self._say(self._open[-1], frame[:4] + (512 << 20).to_bytes(4, "big"))

    def trickle(self) -> None:
        """One byte more from each."""
        for each in self._open:
            self._say(each, b"\0")

    def _say(self, peer: socket.socket, text: bytes) -> None:
        with contextlib.suppress(OSError):
            peer.send(text, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """All of them leave."""
        for each in self._open:
            each.close()


def senders() -> dict[str, Send]:
    """All kinds, by name."""
    return {
        "zmtp-bytes": session_bytes,
        "curve-bytes": curve_bytes,
        "curve-messages": guest_messages(MessageMaker(json=False)),
        "zmtp-messages": zmtp_messages(MessageMaker(json=False)),
        "local-bytes": stream_bytes,
        "local-messages": local_messages(MessageMaker(json=True)),
    }
