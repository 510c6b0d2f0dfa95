"""What is not ZMTP 3 at the ZeroMQ socket: whoever says it is dropped, and the instance answers all others."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import struct
import subprocess

import pytest

NULL = b"NULL".ljust(20, b"\0")
SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
NAMELESS = b"\x05READY" + b"\x0bSocket-Type\0\0\0\6DEALER"
READY = NAMELESS + b"\x08Identity\0\0\0\0"
HEADER = struct.pack(">BBBBIIII", 0x8E, 1, 1, 0x09, 0xFFFFFFFF, 0, 0xFFFFFFFF, 7)
MESSAGE = b"\1\0" + b"\1\x0dinstance.info" + b"\0\x14" + HEADER
GREETING_BYTES = 64
"""libzmq hangs up on whoever does not wait for its own greeting before saying more."""
ROUNDS, SEED = 250, 11
WAIT_S = 5.0

ZMTP_1 = b"\1\0\1\1\5\0abcd"
ZMTP_2 = SIGNATURE + b"\x01\x05" + b"\0\3abc" + MESSAGE
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
HTTP = b"GET / HTTP/1.0\r\n\r\n"


def greeting(major: int = 3, minor: int = 0, mechanism: bytes = NULL) -> bytes:
    return SIGNATURE + bytes((major, minor)) + mechanism + bytes(32)


def command(body: bytes) -> bytes:
    return bytes((4, len(body))) + body


def session(minor: int = 0, ready: bytes = READY) -> bytes:
    """All that a client of ZMTP 3 says which asks one thing."""
    return greeting(3, minor) + command(ready) + MESSAGE


def connect(instance) -> socket.socket:
    endpoint = socket.socket(socket.AF_UNIX)
    endpoint.setblocking(False)
    endpoint.connect(instance.uri.removeprefix("ipc://"))
    return endpoint


async def ends(endpoint: socket.socket) -> bool:
    """Whether the instance hangs up; the endpoint is closed."""
    loop = asyncio.get_running_loop()
    with endpoint:
        try:
            async with asyncio.timeout(WAIT_S):
                while await loop.sock_recv(endpoint, 4096):
                    pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
    return True


@pytest.mark.parametrize("said", [ZMTP_1, ZMTP_2, TLS, HTTP], ids=["zmtp1", "zmtp2", "tls", "http"])
async def test_a_peer_older_than_zmtp_3_or_none_at_all_is_dropped(world, said):
    site = await world.bare()
    endpoint = connect(site)
    endpoint.send(said)
    assert await ends(endpoint)
    assert not site.ended.done()
    assert (await world.second(site).ok("instance.info"))["ready"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_at_the_ipc_socket_leaves_the_instance_alive(world):
    site = await world.bare()
    words = ["curl", "-sk", "--max-time", "2", "--unix-socket", site.uri.removeprefix("ipc://"), "https://x/"]
    assert (await asyncio.to_thread(subprocess.run, words, check=False)).returncode
    assert (await world.second(site).ok("instance.info"))["ready"]


@pytest.mark.parametrize(
    "said", [session(0), session(1), session(9), session(1, NAMELESS)], ids=["3.0", "3.1", "3.9", "no Identity"]
)
async def test_every_zmtp_3_is_answered(world, said):
    site = await world.bare()
    with connect(site) as endpoint:
        loop, heard = asyncio.get_running_loop(), b""
        await loop.sock_sendall(endpoint, said[:GREETING_BYTES])
        async with asyncio.timeout(WAIT_S):
            while b"instance.info" not in heard:
                if len(heard) >= GREETING_BYTES:
                    await loop.sock_sendall(endpoint, said[GREETING_BYTES:])
                    said = b""
                heard += (some := await loop.sock_recv(endpoint, 4096))
                assert some, heard


async def test_every_truncation_and_fuzzed_greetings_leave_the_instance_answering(world):
    """All beginnings of what a client says, each version of the greeting, then what chance makes of them."""
    site = await world.bare()
    chance = random.Random(SEED)
    whole = [ZMTP_1, ZMTP_2, greeting(4), session(0), session(1), session(1, NAMELESS)]
    said = [text[:end] for text in whole for end in range(len(text) + 1)]
    said += [greeting(major, minor) + session()[GREETING_BYTES:] for major in range(256) for minor in (0, 1, 255)]
    said += [broken(chance, chance.choice(whole)) for _ in range(ROUNDS)]
    peer = world.second(site)
    for start in range(0, len(said), 100):
        endpoints = []
        for text in said[start : start + 100]:
            endpoints.append(connect(site))
            endpoints[-1].send(text[:GREETING_BYTES])
        await peer.settle()
        for endpoint, text in zip(endpoints, said[start : start + 100], strict=True):
            with contextlib.suppress(OSError):  # it was dropped for its greeting
                endpoint.send(text[GREETING_BYTES:])
        await peer.settle()
        for endpoint in endpoints:
            endpoint.close()
    await peer.settle()
    assert not site.ended.done()


def broken(chance: random.Random, text: bytes) -> bytes:
    """A session with bytes changed, another mechanism, commands that nobody knows, or noise."""
    kind = chance.randrange(5)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 200))
    if kind == 1:
        return greeting(chance.randrange(256), chance.randrange(256), chance.randbytes(20)) + text
    if kind == 2:
        names = (b"\5ERROR\1x", b"\4PING\0\1abc", b"\4PONG", b"\4JOIN\1x", b"\x09SUBSCRIBE", chance.randbytes(20))
        return greeting() + command(READY) + b"".join(command(chance.choice(names)) for _ in range(4)) + MESSAGE
    if kind == 3:
        return greeting() + command(READY) + bytes((chance.randrange(256),)) + chance.randbytes(40)
    changed = bytearray(text)
    for _ in range(chance.randrange(1, 6)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)
