"""The named limits of messaging, each reached."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from contextlib import nullcontext
from typing import Any

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.protocol.framing.header import (
    ROLE_ADMIN,
    ROLE_LOCAL,
    ROLE_OWNER,
    ROLE_USER,
    decode,
    encode,
    make_request,
)
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging import limits, outgoing_calls, router
from fluxsched.runtime.messaging.limits import SERVICES_PEER_MAX, PeerLimits, TokenBucket
from fluxsched.runtime.messaging.outgoing_calls import OutgoingCalls
from fluxsched.runtime.messaging.payload_memo import SPEC_BYTES_MAX, SPECS_KEPT, PayloadMemo
from fluxsched.runtime.messaging.peers import Peer
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.transport.base import Arrived
from fluxsched.transport.framing import Unpacker, pack_frame


class Server:
    """A transport with messages of one peer in hand."""

    endpoint, dropped, json = "test", 0, False

    def __init__(self, count: int) -> None:
        self.arrivals = deque(Arrived(b"peer", encode(make_request("a.b", matchtag=tag + 1))) for tag in range(count))
        self.limits: set[int] = set()

    def receive(self, limit: int) -> list[Arrived]:
        self.limits.add(limit)
        return [self.arrivals.popleft() for _ in range(min(limit, len(self.arrivals)))]

    def send(self, peer: bytes, frames: Any) -> None: ...


def test_a_transport_is_asked_for_a_few_frames_at_a_time() -> None:
    server, turns = Server(10), Turns(SystemClock())
    Router(turns, [server])._take(float("inf"))  # type: ignore[list-item]
    assert (server.limits, len(server.arrivals)) == ({router.RECEIVE_MAX}, 0)


def test_a_peer_registers_so_many_services() -> None:
    own, peer = Router(Turns(SystemClock()), []), Peer(Server(0), b"peer", 0, 0)  # type: ignore[arg-type]
    for number in range(SERVICES_PEER_MAX):
        own.register(f"s{number}", peer)
    with pytest.raises(FluxschedError, match=str(SERVICES_PEER_MAX)) as raised:
        own.register("more", peer)
    assert raised.value.errnum == errno.EMFILE
    own.unregister("s0", peer)
    own.register("more", peer)


@pytest.mark.plain_only("has an empty Peer")
def test_matchtags_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_calls, "TAG_MAX", 2)
    calls, peer = OutgoingCalls(), Peer.__new__(Peer)
    assert [calls.begin(peer, "a.b", lambda answer: None, is_question=True) for _ in range(3)] == [1, 2, 1]


def test_what_is_large_is_read_each_time() -> None:
    read: list[int] = []
    memo = PayloadMemo(lambda data: read.append(len(data)) or len(data), SPECS_KEPT, SPEC_BYTES_MAX)
    for size in (SPEC_BYTES_MAX, SPEC_BYTES_MAX, SPEC_BYTES_MAX + 1, SPEC_BYTES_MAX + 1):
        assert memo.read(b" " * size) == size
    assert read == [SPEC_BYTES_MAX, SPEC_BYTES_MAX + 1, SPEC_BYTES_MAX + 1]


def test_a_bucket_lets_a_burst_through_and_then_its_rate() -> None:
    bucket = TokenBucket(10, 5)
    assert [bucket.take(100.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert bucket.wait_s() == pytest.approx(0.1)
    assert [bucket.take(100.2) for _ in range(3)] == [True, True, False]
    assert sum(bucket.take(1e6) for _ in range(10)) == 5


def test_guests_have_a_rate_and_the_owner_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GUEST_BURST", 3)
    monkeypatch.setattr(limits, "GUEST_RATE_PER_S", 2)
    guest, owner = PeerLimits(True, None), PeerLimits(False, None)
    for _ in range(10):
        owner.check_request(0, lambda: 7.0)
    for _ in range(3):
        guest.check_request(0, lambda: 7.0)
    with pytest.raises(FluxschedError, match=r"more than 3 .* or 2 a second.*wait 0\.500 s") as raised:
        guest.check_request(0, lambda: 7.0)
    assert raised.value.errnum == errno.EAGAIN
    guest.check_request(0, lambda: 7.5)


def test_of_the_roles_only_guests_have_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GUEST_BURST", 0)
    for rolemask, is_limited in ((ROLE_OWNER, False), (ROLE_USER | ROLE_ADMIN, False), (ROLE_USER, True)):
        peer = Peer(Server(0), b"peer", 1, rolemask | ROLE_LOCAL)  # type: ignore[arg-type]
        with pytest.raises(FluxschedError) if is_limited else nullcontext():
            peer.limits.check_request(0, lambda: 0.0)


async def test_a_peer_opens_so_many_streams(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_PEER_MAX", 2)
    site = await world.bare()
    peer = world.second(site)
    streams = [peer.open("resource.journal") for _ in range(3)]
    answer = await peer.next(streams[2])
    assert (answer.errnum, "the limit is 2" in answer.payload) == (errno.EMFILE, True)
    peer.cancel("resource.journal", streams[0])
    while (await peer.next(streams[0])).errnum != errno.ENODATA:
        pass
    assert (await peer.next(peer.open("resource.journal"))).errnum == 0


async def test_an_instance_serves_so_many_peers(world: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any) -> None:
    site = await world.bare()
    first, second = world.second(site), world.second(site)
    await first.ok("instance.info")
    monkeypatch.setattr(limits, "PEERS_MAX", len(site.router.peers))
    found, text = await second.refused("instance.info")
    assert (found, "end some clients" in text) == (errno.EMFILE, True)
    await first.ok("instance.info")
    first.close()
    second.close()
    await eventually(lambda: not site.router.peers)
    await world.second(site).ok("instance.info")


async def test_garbage_ends_the_connection_in_the_end(
    world: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(limits, "MALFORMED_BURST", 5)
    site = await world.bare()
    rogue, other = world.second(site), world.second(site)
    for _ in range(5):
        rogue.socket.send_multipart([b"what", b"is", b"this"])
        answer = await rogue.next(0)
        assert (answer.topic, answer.errnum) == ("malformed", errno.EPROTO)
    rogue.socket.send_multipart([b"what", b"is", b"this"])
    await eventually(lambda: not site.router.peers)
    await other.ok("instance.info")


async def test_what_a_service_answers_that_is_no_message_is_an_error_at_the_local_socket(world: Any) -> None:
    """Such an answer was converted to JSON at the end of a turn, where a fault ends the instance."""
    site = await world.bare()
    service, local = world.second(site), LocalClient(site.local_uri.removeprefix("local://"))
    await service.ok("instance.info")
    (peer,) = site.router.peers.values()
    site.router.register("odd", peer)
    for payload in (b"\xc1", b"\x81\x90\x01", b"\xa2\xff\xfe", b"\x91" * 5000, b"\xd6\x05abcd"):
        local.send("odd.ask", b"{}\0")
        asked = await service.request()
        service.answer("odd.ask", payload, tag=asked.tag)
        found, text = await local.answer()
        assert (found, text[:29]) == (errno.EPROTO, "odd.ask: its service answered")
        assert not site.ended.done()
    local.close()


class LocalClient:
    """Speaks at the local socket, in bytes."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.setblocking(False)
        self._unpacker, self._messages = Unpacker(1 << 20), list[list[bytes]]()
        self._is_admitted = False

    def send(self, topic: str, payload: bytes) -> None:
        self._socket.send(pack_frame(encode(make_request(topic, payload, matchtag=1))))

    async def answer(self) -> tuple[int, str]:
        """Errno and text of the next answer."""
        while not self._messages:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._socket, 1 << 16), 15.0)
            assert data
            self._unpacker.feed(data if self._is_admitted else data[1:], self._messages)
            self._is_admitted = True
        message = decode(self._messages.pop(0))
        return message.errnum, (message.payload or b"").decode()

    def close(self) -> None:
        self._socket.close()


def test_a_peer_may_err_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = PeerLimits(False, None)
    assert [peer.may_err(0.0) for _ in range(limits.MALFORMED_BURST + 1)] == [True] * limits.MALFORMED_BURST + [False]
    assert [peer.may_err(1.0) for _ in range(limits.MALFORMED_RATE_PER_S + 1)] == [True, False]
