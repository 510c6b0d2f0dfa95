"""Keys on ZeroMQ sockets: CURVE's options, and ZAP, by which libzmq asks whether a key may connect (ZeroMQ RFC 26, 27).

Law: a stranger gets not one byte of ours but what the handshake itself needs, and a peer's identity within the ROUTER
is neither of its choice nor known to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from fluxsched.transport.curve import KeyPair

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
    """New keys, from libzmq's source of chance."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public), z85.decode(secret))


def public_of(secret: bytes) -> bytes:
    """The public key that belongs to a secret one."""
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


def key_of(first: Frame) -> bytes | None:
    """The public key that the sender of this frame has proved to have; None where there are no keys."""
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
