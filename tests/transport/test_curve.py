"""Keys on a port: who gets in, and that a stranger is told nothing."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from fluxsched.errors import Disconnected, InvalidValue, LimitExceeded, Refused
from fluxsched.transport.base import KeyPair, Lost, ServerKeys, bound_address, parse_key, reachable, tcp_address
from fluxsched.transport.sockets import KEYED_MESSAGE_BYTES_MAX, KEYED_UNREAD_MESSAGES_MAX, make_key_pair, public_of
from fluxsched.transport.zeromq import CHOSEN_IDENTITY, NO_KEY, BlockingClient, ZmqClient, ZmqServer

OTHER = "f0" * 32


def port_of(server: Any) -> tuple[str, int]:
    address = tcp_address(server.end.endpoint)
    return address.host, int(address.port)


def stranger(server: Any, greeting: bytes) -> bytes:
    """All that a connection gets which says only this."""
    with socket.create_connection(port_of(server)) as connection:
        connection.settimeout(5)
        said = b""
        with suppress(OSError):  # it has hung up
            connection.sendall(greeting)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := connection.recv(4096):
                said += data
    return said


def greeting_of(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


async def still_serves(server: Any, net: Any) -> None:
    client, peer = await net.known(server)
    server.send(peer, [b"", b"welcome"])
    await client.until(lambda: client.items)
    assert not [item for item in server.items if not isinstance(item, Lost)]


async def test_a_key_pair_shows_its_public_half_only() -> None:
    pair = make_key_pair()
    assert pair.public.hex() in repr(pair)
    assert pair.secret.hex() not in f"{pair!r} {pair} {ServerKeys(pair, bool)}"
    assert public_of(pair.secret) == pair.public
    assert parse_key(pair.public.hex()) == pair.public


async def test_a_client_whose_key_is_not_admitted_sees_nothing_and_is_cut(curve: Any) -> None:
    server = curve.server()
    known, curve.keys = curve.keys, make_key_pair()
    client = curve.client(server)
    client.send([b"", b"let me in"])
    await client.until(lambda: client.end.lost)
    assert (client.items, server.items) == ([], [])
    curve.keys = known
    await still_serves(server, curve)


async def test_a_client_that_expects_another_server_is_cut(curve: Any) -> None:
    server = curve.server()
    real = server.end.endpoint
    server.end.endpoint = tcp_address(real).with_key(bytes.fromhex(OTHER))
    client = curve.client(server)
    client.send([b"", b"secret of mine"])
    await client.until(lambda: client.end.lost)
    assert (client.items, server.items) == ([], [])
    server.end.endpoint = real
    await still_serves(server, curve)


async def test_a_client_without_keys_of_its_own_is_not_let_in(curve: Any) -> None:
    server = curve.server()
    plain = ZmqClient(tcp_address(server.end.endpoint).bare())
    client = type(server)(plain)
    client.send([b"", b"hello"])
    await client.until(lambda: plain.lost)
    plain.close()
    assert plain.lost == f"connection closed by the server: {NO_KEY}"
    assert (client.items, server.items) == ([], [])
    with pytest.raises(InvalidValue, match="requires a key, and none was given"):
        ZmqClient(server.end.endpoint)
    await still_serves(server, curve)


@pytest.mark.parametrize(
    "greeting",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 200, bytes(64), greeting_of(b"NULL"), greeting_of(b"PLAIN"),
     greeting_of(b"CURVE") + b"\x04\xc8\x05HELLO" + bytes(194), greeting_of(b"CURVE") + b"\x06" + b"\xff" * 8],
    ids=["http", "ones", "zeros", "null", "plain", "hello of zeros", "endless command"],
)  # fmt: skip
async def test_garbage_at_the_port_gets_a_greeting_at_most(curve: Any, greeting: bytes) -> None:
    server = curve.server()
    said = await asyncio.to_thread(stranger, server, greeting)
    assert len(said) <= 64, "ZMTP's own greeting"
    assert server.items == []
    await still_serves(server, curve)


async def test_keys_at_a_local_socket_are_refused(ipc: Any) -> None:
    server = ipc.server()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        pair = make_key_pair()
        dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = bytes(32), pair.public, pair.secret
        dealer.linger = 0
        monitor = dealer.get_monitor_socket()
        dealer.connect(server.end.endpoint)
        dealer.send(b"hello")
        events = []
        while zmq.EVENT_DISCONNECTED not in events:
            assert monitor.poll(5000)
            events.append(struct.unpack("=Hi", monitor.recv_multipart()[0])[0])
        dealer.disable_monitor()
        monitor.close()
    assert server.items == []
    await still_serves(server, ipc)


async def test_a_client_that_chooses_its_identity_is_cut(curve: Any) -> None:
    """It could be taken for the client that had the identity before it."""
    server = curve.server()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.identity, dealer.linger = b"bob", 0
        address = tcp_address(server.end.endpoint)
        assert address.server_key is not None
        dealer.curve_serverkey = address.server_key
        dealer.curve_publickey, dealer.curve_secretkey = curve.keys.public, curve.keys.secret
        dealer.connect(address.bare())
        dealer.send_multipart([b"", b"hello"])
        await server.until(lambda: server.lost)
    assert [lost.reason for lost in server.lost] == [CHOSEN_IDENTITY]


def raw_peer(port: int, identity: bytes) -> socket.socket:
    """A peer that claims an identity in its greeting, as libzmq's own API would not."""
    connection = socket.create_connection(("127.0.0.1", port))
    parts = [(b"Socket-Type", b"DEALER"), (b"Identity", identity)]
    body = b"\x05READY" + b"".join(
        bytes([len(name)]) + name + struct.pack(">I", len(value)) + value for name, value in parts
    )
    connection.sendall(greeting_of(b"NULL") + bytes([4, len(body)]) + body)
    return connection


def test_without_handover_no_peer_gets_the_answers_of_another() -> None:
    """What a keyed port relies on: shown without keys, since libzmq has no client that would try."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as victim:
        router.router_handover, router.router_mandatory = 0, 1
        port = router.bind_to_random_port("tcp://127.0.0.1")
        victim.connect(f"tcp://127.0.0.1:{port}")
        victim.send(b"hello")
        identity, _ = router.recv_multipart()
        with raw_peer(port, identity) as thief:
            thief.settimeout(5)
            while not thief.recv(64).endswith(b"Identity\0\0\0\0"):
                pass
            assert router.poll(100) == 0
            router.send_multipart([identity, b"for the victim"])
            assert victim.poll(5000)
            assert victim.recv() == b"for the victim"


def test_the_identities_of_a_keyed_port_are_no_known_numbers(tmp_path: Path) -> None:
    """The first one is the same in each process, unless libzmq's source of it is seeded."""
    script = (
        "import zmq; from fluxsched.transport.sockets import hide_identities\n"
        "hide_identities(); c = zmq.Context(); r, d = c.socket(zmq.ROUTER), c.socket(zmq.DEALER)\n"
        "p = r.bind_to_random_port('tcp://127.0.0.1'); d.connect(f'tcp://127.0.0.1:{p}'); d.send(b'')\n"
        "print(r.recv().hex()); d.close(0); r.close(0); c.term()\n"
    )
    made = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in "12"]
    assert made[0].stdout != made[1].stdout


async def test_the_holder_of_a_key_sends_no_more_than_a_guest_may(curve: Any) -> None:
    server, client, _ = await curve.pair()
    client.send([b"", bytes(KEYED_MESSAGE_BYTES_MAX)])
    await server.until(lambda: server.arrived)
    with pytest.raises(LimitExceeded, match=f"limit {KEYED_MESSAGE_BYTES_MAX}"):
        client.send([b"", bytes(KEYED_MESSAGE_BYTES_MAX + 1)])
    client.end._message_limit_bytes = 1 << 30
    client.send([b"", bytes(KEYED_MESSAGE_BYTES_MAX + 1)])
    await server.until(lambda: server.lost)
    assert len(server.arrived) == 1


async def test_what_is_unread_of_the_holder_of_a_key_is_bounded(curve: Any) -> None:
    """The rest waits in its own process."""
    server = curve.server()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        address = tcp_address(server.end.endpoint)
        assert address.server_key is not None
        dealer.curve_serverkey = address.server_key
        dealer.curve_publickey, dealer.curve_secretkey = curve.keys.public, curve.keys.secret
        dealer.sndhwm, dealer.linger = 1, 0
        dealer.connect(address.bare())
        dealer.send(b"hello")
        await server.until(lambda: server.arrived)
        server.paused = True
        part, sent = bytes(1 << 18), 0
        while sent < 4 * KEYED_UNREAD_MESSAGES_MAX and dealer.poll(200, zmq.POLLOUT):
            dealer.send(part)
            sent += 1
        assert sent < 2 * KEYED_UNREAD_MESSAGES_MAX
        server.resume()


async def test_peers_are_not_told_their_identities(curve: Any) -> None:
    _, _, first = await curve.pair()
    assert first == bytes([0, 0, 0, 0, 1])


async def test_a_port_with_keys_may_be_reachable_from_anywhere() -> None:
    keys = ServerKeys(make_key_pair(), lambda key, address: True)
    server = ZmqServer("tcp://*:*", keys=keys)
    address = tcp_address(server.endpoint)
    server.close()
    assert (address.host, address.server_key) == (socket.gethostname(), keys.own.public)
    with pytest.raises(InvalidValue, match=r"needs CURVE keys .* without them use 127\.0\.0\.1"):
        ZmqServer("tcp://*:*", insecure_tcp=True, keys=keys)
    with pytest.raises(Refused, match="make some with `fluxsched keygen --server`"):
        ZmqServer("tcp://127.0.0.1:*")


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("tcp://example.org:7", "needs the server's key, as in tcp://KEY@HOST:PORT"),
        ("tcp://abc@127.0.0.1:7", "a key has 64 hexadecimal digits in lower case; these are 3 characters"),
        (f"tcp://{OTHER.upper()}@127.0.0.1:7", "in lower case"),
        (f"tcp://{OTHER}@127.0.0.1", "PORT 0-65535"),
        (f"tcp://{OTHER}@a b:7", "the host is an IPv4 address or a name"),
        (f"tcp://{OTHER}@127.0.0.1:*", "name the port"),
        (f"tcp://{OTHER}@*:7", "name the host"),
    ],
)
def test_addresses_that_clients_cannot_use(endpoint: str, text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        BlockingClient(endpoint, keys=KeyPair(bytes(32), bytes(32)))


def test_addresses_with_keys() -> None:
    address = tcp_address(f"tcp://{OTHER}@login.example.org:7000")
    assert address == ("login.example.org", "7000", bytes.fromhex(OTHER))
    assert address.bare() == "tcp://login.example.org:7000"
    assert address.with_key(bytes(32)) == f"tcp://{'0' * 64}@login.example.org:7000"
    assert reachable("tcp://10.0.0.7:9").host == "10.0.0.7"
    with pytest.raises(InvalidValue, match="a server's key is in its certificate"):
        bound_address(f"tcp://{OTHER}@127.0.0.1:*")


def test_nothing_listens_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Disconnected, match="nothing listens at"):
            BlockingClient(f"tcp://{OTHER}@127.0.0.1:{taken.getsockname()[1]}", keys=make_key_pair())
