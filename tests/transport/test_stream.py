"""A client over a connected stream: both of its ends, which the keeper and its instance are."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from fluxsched.transport.local import CLOSED, READ_AHEAD_MAX, StreamClient, pack_frame, peer_of


def pair(driver: type[Any], **options: int) -> tuple[Any, Any]:
    ours, theirs = socket.socketpair()
    return driver(StreamClient(ours, **options)), driver(StreamClient(theirs))


async def test_messages_come_in_order_and_before_the_loss(driver: type[Any]) -> None:
    one, other = pair(driver)
    messages = [[b"%d" % n, bytes(n)] for n in range(100)]
    for message in messages:
        one.send(message)
    one.end.close()
    await other.until(lambda: other.end.lost)
    assert (other.items, other.end.lost) == (messages, CLOSED)
    other.send([b"in vain"])
    other.end.close()


async def test_what_was_read_before_is_heard_first(driver: type[Any]) -> None:
    ours, theirs = socket.socketpair()
    said = pack_frame([b"first"])
    one = driver(StreamClient(ours, said[:7]))
    theirs.sendall(said[7:] + pack_frame([b"second"]))
    await one.until(lambda: len(one.items) == 2)
    assert one.items == [[b"first"], [b"second"]]
    one.end.close()
    theirs.close()


async def test_what_is_not_received_stays_in_the_kernel(driver: type[Any]) -> None:
    one, other = pair(driver)
    other.paused = True
    body = bytes(64 << 10)
    for _ in range(3 * READ_AHEAD_MAX):
        one.send([body])
    await one.until(lambda: one.end._outbox.unsent_bytes)
    other.resume()
    await other.until(lambda: len(other.items) == 3 * READ_AHEAD_MAX)
    one.end.close()
    other.end.close()


async def test_a_slow_reader_is_cut_off(driver: type[Any]) -> None:
    one, other = pair(driver, unsent_limit_bytes=1 << 20)
    other.paused = True
    for _ in range(64):
        one.send([bytes(256 << 10)])
    await one.until(lambda: one.end.lost)
    assert one.end.lost.startswith("slow reader: ")
    other.end.close()


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", pack_frame([b"x"])[:4] + b"\xff" * 4])
async def test_noise_ends_the_connection(driver: type[Any], noise: bytes) -> None:
    ours, theirs = socket.socketpair()
    one = driver(StreamClient(ours))
    theirs.sendall(noise)
    await one.until(lambda: one.end.lost)
    assert theirs.recv(1) == b""
    theirs.close()


def test_the_kernel_knows_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(ours) == (os.getpid(), os.geteuid())
