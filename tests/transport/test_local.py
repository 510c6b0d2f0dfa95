"""The local socket beyond what all transports do: golden bytes, admission, pieces, limits, what is no message."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from itertools import pairwise
from pathlib import Path
from resource import RLIM_INFINITY
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import InvalidValue, Refused
from fluxsched.transport.base import PARTS_MAX
from fluxsched.transport.local import (
    CLOSE_LINGER_S,
    FRAMING_BYTES_MAX,
    GUEST_MESSAGE_BYTES_MAX,
    LOCAL_MESSAGE_BYTES_MAX,
    READ_AHEAD_MAX,
    LocalServer,
    Malformed,
    Unpacker,
    pack_frame,
)

WAIT_S = 5.0

# what flux-core 0.88's own clients were seen to send
GOLDEN = {
    "flux resource status": (
        "1200eeff00000026000f7265736f757263652e737461747573148e010109ffffffff000000000000000000000001",
        [b"", b"resource.status", bytes.fromhex("8e010109ffffffff000000000000000000000001")],
    ),
    "flux getattr size": (
        "1200eeff000000300008617474722e676574107b226e616d65223a2273697a65227d00148e01010bffffffff00000000ffffffff00000001",
        [b"", b"attr.get", b'{"name":"size"}\0', bytes.fromhex("8e01010bffffffff00000000ffffffff00000001")],
    ),
    "flux resource drain 1 bad": (
        "1200eeff00000048000e7265736f757263652e647261696e227b2274617267657473223a202231222c2022726561736f6e223a202262616422"
        "7d00148e01010bffffffff000000000000000000000001",
        [
            b"",
            b"resource.drain",
            b'{"targets": "1", "reason": "bad"}\0',
            bytes.fromhex("8e01010bffffffff000000000000000000000001"),
        ],
    ),
}


def unpacked(*pieces: bytes, limit_bytes: int = 1 << 20) -> list[list[bytes]]:
    unpacker, messages = Unpacker(limit_bytes), []
    for piece in pieces:
        unpacker.feed(piece, messages)
    return messages


@pytest.mark.parametrize("command", GOLDEN)
def test_what_flux_sends_is_read_and_written_to_the_byte(command: str) -> None:
    raw, parts = GOLDEN[command]
    assert unpacked(bytes.fromhex(raw)) == [parts]
    assert pack_frame(parts).hex() == raw


@given(
    st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 3000), max_size=8),
)
@settings(max_examples=50)
def test_messages_are_the_same_however_they_are_cut(messages: list[list[bytes]], cuts: list[int]) -> None:
    stream = b"".join(map(pack_frame, messages))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert unpacked(*[stream[a:b] for a, b in pairwise(edges)]) == messages


@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 70_000])
def test_lengths_of_a_byte_and_of_five(size: int) -> None:
    part = bytes(size)
    frame = pack_frame([part, b"x"])
    assert unpacked(frame) == [[part, b"x"]]
    assert len(frame) == 8 + (1 if size < 255 else 5) + size + 2


def frame_of(body: bytes) -> bytes:
    return bytes.fromhex("1200eeff") + struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"GET / HT", "no message frame: it starts with 47455420"),
        (frame_of(b""), "without parts"),
        (frame_of(b"\x05abc"), "a part of 5 bytes goes beyond its message"),
        (frame_of(b"\xff\x00\x00"), "a part's length goes beyond its message"),
        (frame_of(b"\xff\xff\xff\xff\xff"), "4294967295 bytes goes beyond"),
        (frame_of(bytes(PARTS_MAX + 1)), f"more than {PARTS_MAX} parts"),
        (frame_of(b"\xff" + struct.pack(">I", 1001) + bytes(1001)), "1001 bytes, limit 1000"),
        (bytes.fromhex("1200eeff") + struct.pack(">I", 1001 + FRAMING_BYTES_MAX), "limit 1000 a part"),
    ],
)
def test_what_is_no_message_is_named_and_what_came_before_it_is_kept(raw: bytes, why: str) -> None:
    messages: list[list[bytes]] = []
    with pytest.raises(Malformed, match=why):
        Unpacker(1000).feed(pack_frame([b"good"]) + raw, messages)
    assert messages == [[b"good"]]


# -- on a socket ----------------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"local://{tmp_path}/local-0"


@pytest.fixture
async def serve(endpoint: str, driver: Any) -> Any:
    made: list[LocalServer] = []

    def start(**options: Any) -> Any:
        made.append(LocalServer(endpoint, **options))
        return driver(made[-1])

    yield start
    for server in made:
        server.close()


async def connected(server: Any) -> tuple[socket.socket, int]:
    """A bare socket, and the byte that it was received with."""
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, server.end.endpoint.removeprefix("local://"))
    return client, (await asyncio.wait_for(loop.sock_recv(client, 1), WAIT_S))[0]


async def gone(client: socket.socket) -> bool:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), WAIT_S) == b""


async def test_who_is_admitted_gets_a_zero_and_is_known_by_its_user(serve: Any) -> None:
    server = serve()
    client, verdict = await connected(server)
    assert verdict == 0
    client.send(pack_frame([b"hello"]))
    await server.until(lambda: server.items)
    assert server.items[0].userid == os.getuid()
    client.close()


async def test_who_is_turned_away_gets_the_errno_and_nothing_more(serve: Any) -> None:
    asked: list[int] = []
    server = serve(admit=lambda userid: asked.append(userid) or errno.EPERM)
    client, verdict = await connected(server)
    assert verdict == errno.EPERM
    assert asked == [os.getuid()]
    assert await gone(client)
    assert server.items == []
    client.close()


async def check_that_two_may_connect(server: Any) -> None:
    """And another one as soon as one of them has left."""
    first, second, third = [await connected(server) for _ in range(3)]
    assert [verdict for _, verdict in (first, second, third)] == [0, 0, errno.EMFILE]
    first[0].close()
    await asyncio.sleep(0.01)
    again = await connected(server)
    assert again[1] == 0
    for client, _ in (second, third, again):
        client.close()


@pytest.mark.parametrize(("most", "descriptors"), [(2, RLIM_INFINITY), (2, 1024), (8_192, 4)])
async def test_one_connection_too_many_is_told_so(
    serve: Any, monkeypatch: pytest.MonkeyPatch, most: int, descriptors: int
) -> None:
    monkeypatch.setattr("fluxsched.transport.local.CONNECTIONS_MAX", most)
    monkeypatch.setattr("fluxsched.transport.local.getrlimit", lambda what: (descriptors, descriptors))
    await check_that_two_may_connect(serve())


async def test_modes_of_the_socket(endpoint: str, tmp_path: Path) -> None:
    for options, mode in (({}, 0o600), ({"admit": lambda userid: 0, "mode": 0o666}, 0o666)):
        server = LocalServer(endpoint, **options)
        assert (tmp_path / "local-0").stat().st_mode & 0o777 == mode
        server.close()
        assert not (tmp_path / "local-0").exists()


async def test_a_dead_servers_socket_is_replaced_a_living_ones_is_not(endpoint: str, tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "local-0"))
    stale.close()
    server = LocalServer(endpoint)
    with pytest.raises(Refused, match="in use by another server") as caught:
        LocalServer(endpoint)
    assert caught.value.errnum == errno.EADDRINUSE
    server.close()


@pytest.mark.parametrize("endpoint", ["ipc:///x", "local:x", "local://x", f"local:///{'x' * 107}"])
def test_endpoints_that_cannot_be(endpoint: str) -> None:
    with pytest.raises(InvalidValue, match=r"expected local:///PATH|absolute path|longer than 107 bytes"):
        LocalServer(endpoint)


async def test_a_peer_that_talks_nonsense_is_cut_off_with_the_reason(serve: Any) -> None:
    server = serve()
    client, _ = await connected(server)
    client.send(pack_frame([b"hello"]) + b"what is this")
    await server.until(lambda: server.lost)
    assert server.items[0].frames == [b"hello"]
    assert server.lost[0].reason.startswith("no message frame")
    assert await gone(client)
    client.close()


async def test_a_message_larger_than_what_may_be_kept_passes(serve: Any) -> None:
    server = serve(unsent_limit_bytes=1000)
    client, _ = await connected(server)
    client.send(pack_frame([b"hello"]))
    await server.until(lambda: server.items)
    peer, big = server.items[0].peer, bytes(3_000_000)
    server.send(peer, [big])
    assert server.end.unsent_bytes(peer) > 1000
    came = b""
    while len(came) < len(big) + 13:
        came += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 20), WAIT_S)
    assert unpacked(came, limit_bytes=1 << 22) == [[big]]
    assert server.end.unsent_bytes(peer) == 0
    client.close()


async def test_closing_waits_no_longer_for_many_who_do_not_read(serve: Any) -> None:
    server = serve()
    clients = [(await connected(server))[0] for _ in range(5)]
    for client in clients:
        client.send(pack_frame([b"hello"]))
    await server.until(lambda: len(server.items) == len(clients))
    for item in server.items:
        for _ in range(2):
            server.send(item.peer, [bytes(1_000_000)])
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    server.end.close()
    assert CLOSE_LINGER_S / 2 < loop.time() - begun_s < 4 * CLOSE_LINGER_S
    for client in clients:
        client.close()


async def test_who_floods_us_waits_and_loses_nothing(serve: Any) -> None:
    server = serve()
    server.paused = True
    client, _ = await connected(server)
    messages = [[b"%0200d" % number] for number in range(20_000)]
    sending = asyncio.ensure_future(
        asyncio.get_running_loop().sock_sendall(client, b"".join(map(pack_frame, messages)))
    )
    await asyncio.sleep(0.05)
    assert not sending.done()
    server.resume()
    await sending
    await server.until(lambda: len(server.items) == len(messages))
    assert [item.frames for item in server.items] == messages
    client.close()


async def test_a_message_is_refused_by_the_size_that_it_announces(serve: Any) -> None:
    server = serve()
    client, _ = await connected(server)
    size = LOCAL_MESSAGE_BYTES_MAX + FRAMING_BYTES_MAX + 1
    client.send(bytes.fromhex("1200eeff") + struct.pack(">I", size))
    assert await gone(client)
    client.close()


async def test_reading_ahead_stops_at_a_limit(serve: Any) -> None:
    """Of messages that have arrived and were not taken; it goes on once they are."""
    server = serve()
    server.paused = True
    client, _ = await connected(server)
    sent = READ_AHEAD_MAX * 4
    flood = pack_frame([b"topic", b"payload"]) * sent
    sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(client, flood))
    (connection,) = server.end._connections.values()
    async with asyncio.timeout(WAIT_S):
        while not connection.paused:
            await asyncio.sleep(0.002)
    server.resume()
    await server.until(lambda: len(server.arrived) == sent)
    await sending
    client.close()


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> None:
    """We are another user than the one whom the instance belongs to."""
    owner = os.geteuid() + 1
    monkeypatch.setattr("fluxsched.transport.local.os.geteuid", lambda: owner)


async def test_a_guest_has_so_many_connections(serve: Any, guest: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.transport.local.GUEST_CONNECTIONS_MAX", 2)
    server = serve(admit=lambda userid: 0)
    await check_that_two_may_connect(server)


async def test_a_guest_sends_no_more_than_a_guest_needs(serve: Any, guest: None) -> None:
    server = serve(admit=lambda userid: 0)
    client, _ = await connected(server)
    small, large = bytes(GUEST_MESSAGE_BYTES_MAX), bytes(GUEST_MESSAGE_BYTES_MAX + FRAMING_BYTES_MAX + 1)
    sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(client, pack_frame([small])))
    await server.until(lambda: server.items)
    await sending
    client.send(pack_frame([large])[:8])
    await server.until(lambda: server.lost)
    assert str(GUEST_MESSAGE_BYTES_MAX) in server.lost[0].reason
    assert await gone(client)
    client.close()
