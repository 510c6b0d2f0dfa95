"""What every transport does, asked of each of them: ZeroMQ on ipc and tcp, and the twin in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fluxsched.errors import LimitExceeded, LocalProtocolError
from fluxsched.transport.base import PARTS_MAX, UNSENT_BYTES_MAX, Lost
from tests.transport.memory import MemoryServer

LOSS_KNOWN_S = 20.0
"""Far above what it takes: not the speed of a busy machine is tested, but that nobody need send anything."""


def numbered(count: int, size_bytes: int = 0) -> list[list[bytes]]:
    return [[b"", b"topic", b"%d" % n + bytes(size_bytes), b"h" * 20] for n in range(count)]


async def test_a_message_comes_part_for_part_and_is_answered(net: Any) -> None:
    server = net.server()
    client = net.client(server)
    client.send([b"", b"a.topic", b"", b"h" * 20])
    await server.until(lambda: server.items)
    (arrived,) = server.items
    assert arrived == net.arrived(arrived.peer, [b"", b"a.topic", b"", b"h" * 20])
    server.send(arrived.peer, [b"", b"answer"])
    await client.until(lambda: client.items)
    assert client.items == [[b"", b"answer"]]


async def test_two_clients_are_two_peers(net: Any) -> None:
    server, first, first_name = await net.pair()
    second, second_name = await net.known(server)
    assert first_name != second_name
    assert server.end.peers() == 2
    server.send(second_name, [b"for the second"])
    server.send(first_name, [b"for the first"])
    await second.until(lambda: second.items)
    await first.until(lambda: first.items)
    assert (first.items, second.items) == ([[b"for the first"]], [[b"for the second"]])


@pytest.mark.slow
async def test_order_is_kept_both_ways_in_a_burst(net: Any) -> None:
    server, client, peer = await net.pair()
    server.on_item = lambda item: server.send(item.peer, item.frames)
    messages = numbered(2000)
    for message in messages:
        client.send(message)
        server.send(peer, [b"pushed"])
    await client.until(lambda: len(client.items) == 4000)
    assert [item for item in client.items if item != [b"pushed"]] == messages
    assert [item.frames for item in server.arrived] == messages


@pytest.mark.slow
async def test_big_messages_pass(net: Any) -> None:
    server, client, peer = await net.pair()
    big = bytes(range(256)) * 32768
    client.send([b"", big])
    await server.until(lambda: server.items)
    assert server.items[0].frames == [b"", big]
    server.send(peer, [big, b""])
    await client.until(lambda: client.items)
    assert client.items == [[big, b""]]


async def test_a_client_refuses_to_send_what_is_too_large(net: Any) -> None:
    server = net.server()
    client = net.client(server, message_limit_bytes=1000)
    with pytest.raises(LimitExceeded, match="1001 bytes, limit 1000"):
        client.send([b"", bytes(1001)])
    with pytest.raises(LimitExceeded, match=f"65 parts, limit {PARTS_MAX}"):
        client.send([b""] * 65)
    client.send([bytes(1000)] * PARTS_MAX)
    await server.until(lambda: server.items)
    assert len(server.items[0].frames) == PARTS_MAX


async def test_an_oversized_message_ends_its_sender_only(net: Any) -> None:
    server, offender, offending = await net.pair(message_limit_bytes=1000)
    other, _ = await net.known(server)
    offender.send([b"", bytes(1001)])
    await server.until(lambda: server.items)
    (lost,) = server.lost
    assert lost.peer == offending
    await offender.until(lambda: offender.end.lost)
    other.send([b"", bytes(1000)])
    await server.until(lambda: server.arrived)
    assert server.end.peers() == 1


async def test_a_loss_is_known_soon_once_and_after_the_last_message(net: Any) -> None:
    server, client, peer = await net.pair()
    messages = numbered(500)
    for message in messages:
        client.send(message)
    client.end.close()
    await server.until(lambda: server.lost, LOSS_KNOWN_S)
    assert server.items == [*(net.arrived(peer, message) for message in messages), Lost(peer, "connection closed")]
    await asyncio.sleep(0.02)
    assert len(server.lost) == 1
    assert server.end.peers() == 0


async def test_a_loss_waits_for_messages_that_the_server_has_not_read(net: Any) -> None:
    server, client, peer = await net.pair()
    server.paused = True
    messages = numbered(300)
    for message in messages:
        client.send(message)
    client.end.close()
    await asyncio.sleep(0.05)
    server.resume()
    await server.until(lambda: server.lost)
    assert [item.frames for item in server.items[:-1]] == messages
    assert server.items[-1] == Lost(peer, "connection closed")


async def test_a_loss_is_known_while_another_peer_never_pauses(net: Any) -> None:
    server, noisy, noisy_name = await net.pair()
    quiet, quiet_name = await net.known(server)
    server.on_item = lambda item: server.send(noisy_name, [b"again"]) if item.peer == noisy_name else None
    noisy.on_item = lambda item: noisy.send(item)
    for _ in range(300):
        noisy.send([b"again"])
    quiet.end.close()
    await server.until(lambda: server.lost, LOSS_KNOWN_S)
    assert server.lost == [Lost(quiet_name, "connection closed")]


async def test_a_client_that_never_spoke_is_never_mentioned(net: Any) -> None:
    server = net.server()
    silent = net.client(server)
    await asyncio.sleep(0.02)
    silent.end.close()
    _, name = await net.known(server)
    await asyncio.sleep(0.02)
    assert server.items == []
    assert server.end.peers() == 1
    assert name


async def test_what_is_sent_to_lost_and_unknown_peers_is_counted(net: Any) -> None:
    server, client, peer = await net.pair()
    client.end.close()
    await server.until(lambda: server.lost)
    server.send(peer, [b"too late"])
    server.send(b"nobody", [b"who"])
    assert server.end.dropped == 2
    assert server.end.unsent_bytes(peer) == 0
    server.end.drop(b"nobody", "no effect")


async def test_sending_before_the_loss_is_noticed_does_no_harm(net: Any) -> None:
    server, client, peer = await net.pair()
    server.paused = True
    client.end.close()
    await asyncio.sleep(0.05)
    for _ in range(3):
        server.send(peer, [b"late"])
    server.resume()
    await server.until(lambda: server.lost)
    assert server.items == [Lost(peer, "connection closed")]
    assert server.end.dropped == 3


async def test_a_slow_reader_is_cut_off_and_others_live_on(net: Any) -> None:
    limit = 100_000
    server, slow, slow_name = await net.pair(unsent_limit_bytes=limit)
    other, other_name = await net.known(server)
    slow.paused = True
    for message in numbered(20_000, 1000):
        server.send(slow_name, message)
        assert server.end.unsent_bytes(slow_name) <= limit
        if server.end.peers() == 1:
            break
    await server.until(lambda: server.lost)
    assert server.lost[0].peer == slow_name
    assert server.lost[0].reason.startswith("slow reader: ")
    assert server.lost[0].reason.endswith(f"bytes unsent, limit {limit}")
    server.send(other_name, [b"still here"])
    await other.until(lambda: other.items)
    slow.resume()
    await slow.until(lambda: slow.end.lost)
    assert server.end.peers() == 1


@pytest.mark.slow
async def test_a_reader_that_catches_up_gets_everything_in_order(net: Any) -> None:
    server, client, peer = await net.pair()
    client.paused = True
    messages = numbered(30_000, 1000)
    sent = 0
    while not server.end.unsent_bytes(peer):
        for message in messages[sent : sent + 1000]:
            server.send(peer, message)
        sent += 1000
        await asyncio.sleep(0.01)
    client.resume()
    await client.until(lambda: len(client.items) == sent)
    assert client.items == messages[:sent]
    async with asyncio.timeout(LOSS_KNOWN_S):
        while server.end.unsent_bytes(peer):  # a host reports it from time to time
            await asyncio.sleep(0.001)


async def test_drop_ends_a_peer_with_a_reason_once(net: Any) -> None:
    server, client, peer = await net.pair()
    other, _ = await net.known(server)
    server.send(peer, [b"welcome"])  # from then on the server knows beyond doubt which connection is the peer's
    await client.until(lambda: client.items)
    server.end.drop(peer, "unwelcome")
    server.end.drop(peer, "twice")
    server.send(peer, [b"no more"])
    await server.until(lambda: server.lost, LOSS_KNOWN_S)
    assert server.items == [Lost(peer, "unwelcome")]
    await client.until(lambda: client.end.lost)
    assert client.items == [[b"welcome"]]
    assert server.end.dropped == 1
    other.send([b"fine"])
    await server.until(lambda: server.arrived)


async def test_a_client_sees_the_server_close_after_its_last_message(net: Any) -> None:
    server, client, peer = await net.pair()
    for message in numbered(200):
        server.send(peer, message)
    server.end.close()
    server.end.close()
    server.send(peer, [b"closed"])
    assert server.end.receive(1) == []
    await client.until(lambda: client.end.lost)
    assert client.items == numbered(200)
    client.send([b"nobody listens"])
    client.end.close()
    client.end.close()


async def test_receive_takes_no_more_than_asked_and_wakes_again(net: Any) -> None:
    server, client, _ = await net.pair()
    server.paused = True
    for message in numbered(20):
        client.send(message)
    await asyncio.sleep(0.05)
    taken = server.end.receive(7)
    assert [item.frames for item in taken] == numbered(20)[:7]
    server.paused = False
    await server.until(lambda: len(server.items) == 13)


async def test_an_empty_message_is_our_own_bug(net: Any) -> None:
    server, client, peer = await net.pair()
    with pytest.raises(LocalProtocolError):
        client.send([])
    with pytest.raises(LocalProtocolError):
        server.send(peer, [])


def test_what_is_kept_for_a_peer_has_a_limit() -> None:
    """In memory, where the same bytes can wait a thousand times."""
    server = MemoryServer()
    client = server.connect()
    client.send([b"hello"])
    (arrived,) = server.receive(1)
    piece = bytes(1 << 20)
    for _ in range(UNSENT_BYTES_MAX // len(piece)):
        server.send(arrived.peer, [piece])
    assert server.unsent_bytes(arrived.peer) <= UNSENT_BYTES_MAX
    assert server.peers() == 1
    server.send(arrived.peer, [b"more"])
    (lost,) = server.receive(1)
    assert lost.reason.endswith(f"limit {UNSENT_BYTES_MAX}")
