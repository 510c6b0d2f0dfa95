"""The router: bad input, lost streams, request ids, limits of peers, tracing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import io
import json
import logging
import os
import pty
import random
import shutil
import socket
import struct
import subprocess
import termios
from collections import deque
from contextlib import nullcontext
from typing import Any

import msgpack
import pytest

from fluxsched.errors import FluxschedError
from fluxsched.messaging import router
from fluxsched.messaging.memo import SPEC_BYTES_MAX, SPECS_KEPT, PayloadMemo
from fluxsched.messaging.peers import Peer, PeerLimits, PeerRates, RpcRequest, TokenBucket
from fluxsched.messaging.router import HIDDEN, LINE_CHARS_MAX, OutgoingCalls, Router, content, printer
from fluxsched.protocol import framing
from fluxsched.protocol.framing import (
    BUNDLE_BYTES_MAX,
    BUNDLE_MESSAGES_MAX,
    DEPTH_MAX,
    REQUEST,
    ROLE_ADMIN,
    ROLE_LOCAL,
    ROLE_OWNER,
    ROLE_USER,
    STREAMING,
    Message,
    decode,
    encode,
    make_request,
)
from fluxsched.protocol.topics import TOPICS
from fluxsched.system import log as logs
from fluxsched.system.clock import SystemClock
from fluxsched.system.log import request_id
from fluxsched.system.loop import Turns
from fluxsched.transport.base import MESSAGE_BYTES_MAX, PARTS_MAX, Arrived
from fluxsched.transport.local import Unpacker, pack_frame
from tests.transport.memory import MemoryServer
from tests.waiting import WAIT_S

# Bad input over real sockets: each gets an error that says what and why, and the instance lives on unharmed.


STREAMING_FLAG, NORESPONSE = 0x40, 0x04
HEADER = struct.Struct(">BBBBIIII")
ANY = 0xFFFFFFFF
SPARED = {"instance.restart", "instance.stop", "instance.goodbye", "instance.renounce", "instance.disconnect"}
"""What would end the conversation."""


def header(kind=1, flags=0x0B, magic=0x8E, version=1, aux1=ANY, tag=77):
    return HEADER.pack(magic, version, kind, flags, ANY, 0, aux1, tag)


def nested(depth, inner=1):
    for _ in range(depth):
        inner = {"a": inner}
    return inner


@pytest.fixture
async def site(world):
    return await world.bare()


@pytest.fixture
async def peer(world, site):
    peer = world.second(site)
    yield peer
    await peer.ok("instance.info")
    assert not site.ended.done()
    site.check()


MALFORMED = {
    "header short": [b"", b"resource.status", b"\x8e\x01"],
    "header alone": [header()],
    "nothing": [b""],
    "magic": [b"", b"resource.status", header(flags=0x09, magic=0x8D)],
    "version": [b"", b"resource.status", header(flags=0x09, version=2)],
    "type": [b"", b"resource.status", header(flags=0x09, kind=3)],
    "payload missing": [b"", b"resource.status", header(flags=0x0B)],
    "payload unannounced": [b"", b"resource.status", b"\x80", header(flags=0x09)],
    "topic missing": [b"", b"\x80", header(flags=0x0A)],
    "topic empty": [b"", b"", b"\x80", header()],
    "topic NUL": [b"", b"resource.status\0", header(flags=0x09)],
    "topic not UTF-8": [b"", b"\xff\xfe", header(flags=0x09)],
    "topic huge": [b"", b"x" * 100_000, header(flags=0x09)],
    "delimiter missing": [b"resource.status", b"\x80", header()],
    "no route flag": [b"", b"resource.status", header(flags=0x01)],
    "noise": [bytes(range(256))] * 5,
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_frames(peer, frames):
    """The answer cannot copy a topic or matchtag that was not understood: it says `malformed`."""
    peer.socket.send_multipart(frames)
    answer = await peer.next(0)
    assert (answer.topic, answer.errnum) == ("malformed", errno.EPROTO)
    assert len(answer.payload) > 10


async def test_more_parts_than_any_route_has_cut_the_peer_off(world, site):
    rogue, other = world.second(site), world.second(site)
    rogue.socket.send_multipart([b""] * (PARTS_MAX + 1) + [b"resource.status", header(flags=0x09)])
    await other.ok("instance.info")
    with pytest.raises(TimeoutError):
        await rogue.next(0, 0.1)


async def test_an_oversized_message_ends_its_connection_and_no_other(world, site, eventually):
    rogue, other = world.second(site), world.second(site)
    stream = rogue.open("resource.acquire", {"group": "default"})
    await rogue.next(stream)
    rogue.send("resource.ping", bytes(MESSAGE_BYTES_MAX + 1))
    await eventually(lambda: not site.resource.report()["acquirers"])
    await other.ok("resource.drain", {"targets": "0"})
    assert (await other.next(other.open("resource.acquire", {"group": "default"}))).payload["offline"] == "0"


async def test_unknown_topics_methods_and_ranks(peer):
    for topic, flags, nodeid, wanted in (
        ("nobody.home", 0, ANY, (errno.ENOSYS, "No service matching nobody.home is registered")),
        ("resource", 0, ANY, (errno.ENOSYS, "Unknown service method 'resource'")),
        ("resource.", 0, ANY, (errno.ENOSYS, "Unknown service method 'resource.'")),
        ("resource.nope", 0, ANY, (errno.ENOSYS, "Unknown service method 'resource.nope'")),
        ("resource.nope-cancel", 0, ANY, (errno.ENOSYS, "Unknown service method 'resource.nope-cancel'")),
        ("resource.Status", 0, ANY, (errno.ENOSYS, "Unknown service method 'resource.Status'")),
        ("sched.alloc", 0, ANY, (errno.ENOSYS, "Unknown service method 'sched.alloc'")),
    ):
        assert await peer.refused(topic, {}, flags=flags, nodeid=nodeid) == wanted
    assert (await peer.call("resource.status", nodeid=0)).errnum == 0
    for rank in (1, 2, 1 << 31):
        found, text = await peer.refused("resource.status", nodeid=rank)
        assert (found, str(rank) in text) == (errno.EHOSTUNREACH, True)


WRONG = [
    b"\xc1",
    b"\x81",
    b"not msgpack at all",
    b"\x80\x80",
    msgpack.packb(7),
    msgpack.packb([]),
    msgpack.packb("text"),
    msgpack.packb({1: 2}),
    msgpack.packb({"targets": 1, "group": [], "id": "x", "matchtag": -1, "jobspec": [], "name": {}, "spec": 0}),
    msgpack.packb({"targets": None, "group": None, "id": None, "reason": 5, "host": 5, "heartbeat_s": "x"}),
    msgpack.packb({"id": 1 << 63, "urgency": 99, "severity": 99, "signum": 1 << 40, "limit": -1, "ids": [-1]}),
    msgpack.packb({"targets": b"\xff", "group": b"x", "properties": {"a": 1}, "expiration": 1e308}),
    msgpack.packb({"jobspec": {}, "R": [], "path": 1, "keys": "x", "states": [1]}),
    b"\x81\xa1a" * (DEPTH_MAX + 1) + b"\x01",
    b"\x91" * 100_000,
    b"\x81\xa1a" * 100_000 + b"\x01",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\x81\xa7targets\xd9\xff",
    b"\x81\xa7targets\xa2\xff\xfe",
    b"\x81\xa7targets\xc7\x01\x05x",
    b"\x81\xa7targets\xd6\xff\x00\x00\x00\x00",
]
"""Payloads that fit no message, or just one: too deep, too long, not JSON, ints that are none, dates, extensions."""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [0, STREAMING_FLAG])
async def test_wrong_payloads_to_every_topic(peer, site, flags):
    """Errors are EPROTO, EINVAL or what a well-formed request may get; nobody dies and nothing is held."""
    topics = sorted((TOPICS.keys() | site.router.services.handlers.keys()) - SPARED)
    tags = [(topic, peer.send(topic, payload, flags=flags)) for topic in topics for payload in WRONG]
    for topic in ("resource.drain", "resource.undrain"):  # what is answered after the store is answered before these
        await peer.ok(topic, {"targets": "0"})
    unanswered = {topic for topic, tag in tags if not peer.waiting(tag)}
    # streams that have nothing to say yet, and questions to the scheduler, which is this peer once it has said hello
    streams = {"instance.trace", "job-manager.watch", "resource.watch"}
    assert unanswered <= streams | {"sched.accounts", "sched.plan", "sched.reasons"}
    kinds = {answer.errnum for answer in [await peer.call("resource.drain", payload) for payload in WRONG]}
    assert kinds == {errno.EPROTO}


async def test_texts_name_the_part(peer):
    for topic, payload, word in (
        ("resource.drain", {}, "targets"),
        ("resource.drain", {"targets": 5}, "targets"),
        ("resource.drain", {"targets": "0", "reason": ["x"]}, "reason"),
        ("resource.drain", {"targets": "0", "reason": "x" * 5000}, "1024"),
        ("resource.assign", {"targets": "0"}, "group"),
        ("job-manager.submit", {"jobspec": nested(DEPTH_MAX + 1)}, str(DEPTH_MAX)),
        ("job-manager.submit", {"jobspec": {}}, "version"),
        ("job-manager.submit", {"jobspec": {"version": 1}}, "resources"),
        ("job-manager.wait", {"id": -1}, "id"),
        ("job-manager.wait", {"id": 1 << 64 - 1}, "id"),
        ("job-manager.list", {"states": ["nope"]}, "nope"),
        ("attr.get", {"name": "nope"}, "nope"),
        ("module.stats", {"name": "nope"}, "nope"),
        ("service.add", {"service": "sched-evil"}, "modules"),
        ("service.add", {"service": "resource"}, "resource"),
        ("service.remove", {"service": "resource"}, "not registered"),
        ("job-manager.sched-ready", {"mode": "unlimited"}, "hello"),
        ("job-manager.sched-hello", {}, "streaming"),
        ("resource.journal", {}, "streaming"),
    ):
        _, text = await peer.refused(topic, payload)
        assert word in text, (topic, text)
        assert len(text) < 1000


async def test_a_stream_that_wants_no_response_is_none(peer, site):
    peer.send("resource.acquire", {"group": "default"}, flags=STREAMING_FLAG | NORESPONSE)
    peer.send("resource.journal", None, flags=STREAMING_FLAG | NORESPONSE)
    await peer.ok("instance.info")
    assert (site.resource.report()["acquirers"], site.resource.report()["journal_streams"]) == (0, 0)


async def test_noresponse_gets_nothing_and_is_done(peer):
    tags = [
        peer.send("resource.drain", {"targets": "0"}, flags=NORESPONSE),
        peer.send("resource.drain", {"targets": "99"}, flags=NORESPONSE),
        peer.send("resource.nope", None, flags=NORESPONSE),
        peer.send("nobody.home", None, flags=NORESPONSE),
    ]
    assert list((await peer.ok("resource.status"))["drain"]) == ["0"]
    assert [peer.waiting(tag) for tag in tags] == [[]] * 4


async def test_cancels_of_nothing_are_nothing(peer):
    stream = peer.open("resource.journal")
    await peer.next(stream)
    for topic, tag in (("resource.acquire", stream), ("resource.journal", stream + 1), ("resource.journal", 0)):
        peer.cancel(topic, tag)
    await peer.settle()
    peer.waiting(stream)
    await peer.ok("resource.drain", {"targets": "0"})
    assert [event["name"] for event in (await peer.next(stream)).payload["events"]] == ["drain"]
    found, text = await peer.refused("resource.journal-cancel", {"matchtag": "x"})
    assert (found, "matchtag" in text) == (errno.EPROTO, True)
    peer.cancel("resource.journal", stream)
    assert (await peer.next(stream)).errnum == errno.ENODATA


async def test_requests_in_flight_have_a_limit(world):
    peer = world.second(await world.bare(peer_limits=PeerLimits(in_flight_max=10)))
    tags = [peer.open("resource.journal") for _ in range(12)]
    await peer.next(tags[9])
    for tag in tags[10:]:
        answer = await peer.next(tag)
        assert (answer.errnum, "10" in answer.payload) == (errno.EMFILE, True)
    peer.cancel("resource.journal", tags[0])
    for tag in (tags[0],):
        while (await peer.next(tag)).errnum == 0:
            pass
    assert (await peer.next(peer.open("resource.journal"))).errnum == 0


async def test_bundles(world, peer):
    """One message for one turn, in order; who has sent one gets bundles, nobody else does."""
    items = [
        [1, "resource.drain", 0, ANY, 5, {"targets": "0", "reason": "bad"}],
        [1, "resource.drain", 0, ANY, 6, {"targets": "0", "reason": "bad"}],
        [1, "resource.nope", 0, ANY, 7, None],
        [1, "resource.undrain", NORESPONSE, ANY, 0, {"targets": "0"}],
        [1, "instance.info", 0, ANY, 8, None],
    ]
    other = world.second(peer.uri)
    other.send("bundle", items, tag=0, flags=NORESPONSE)
    answers = []
    while len(answers) < 4:
        async with asyncio.timeout(60):
            while not other.socket.poll(0):
                await asyncio.sleep(0.002)
        _, topic, *payload, head = other.socket.recv_multipart()
        if topic == b"bundle":
            answers += [(tag, errnum) for _, _, _, errnum, tag, _ in msgpack.unpackb(payload[0])]
        else:
            *_, errnum, tag = HEADER.unpack(head)
            answers.append((tag, errnum))
    assert sorted(answers) == [(5, 0), (6, errno.EEXIST), (7, errno.ENOSYS), (8, 0)]
    assert (await peer.ok("resource.status"))["drain"] == {}


@pytest.mark.parametrize(
    "payload",
    [
        7,
        [[1]],
        [[1, "resource.status", 0, ANY, 1]],
        [[3, "resource.status", 0, ANY, 1, None]],
        [[1, "", 0, ANY, 1, None]],
        [[1, "bundle", 0, ANY, 1, []]],
        [[1, "resource.status", 0, -1, 1, None]],
        [[1, "resource.status", 0, ANY, 1, None]] * (BUNDLE_MESSAGES_MAX + 1),
        [[1, "resource.ping", 0, ANY, 1, {"pad": "x" * BUNDLE_BYTES_MAX}]],
    ],
    ids=lambda payload: str(payload)[:40],
)
async def test_bad_bundles_are_refused_whole(peer, payload):
    peer.send("bundle", payload, tag=0, flags=NORESPONSE)
    answer = await peer.next(0)
    assert (answer.topic, answer.errnum) == ("malformed", errno.EPROTO)


async def test_a_module_that_cannot_be_started_is_refused(world, peer, site, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as crowd:
        crowd.setattr("fluxsched.services.module_processes.subprocess.Popen", full)
        crowd.setattr(subprocess, "Popen", full)  # which compiled code asks
        _, text = await peer.refused("module.load", {"spec": "fifo", "groups": ["default"]})
    assert "cannot start module 'sched-fifo': [Errno 24] Too many open files; fix this and load it again" in text
    assert (await peer.ok("module.load", {"spec": "fifo", "groups": ["default"]}))["name"] == "sched-fifo"


# The named limits of messaging, each reached.


class Server:
    """A transport with messages of one peer in hand."""

    endpoint, dropped, json = "test", 0, False

    def __init__(self, count):
        self.arrivals = deque(Arrived(b"peer", encode(make_request("a.b", matchtag=tag + 1))) for tag in range(count))
        self.limits = set()

    def receive(self, limit):
        self.limits.add(limit)
        return [self.arrivals.popleft() for _ in range(min(limit, len(self.arrivals)))]

    def send(self, peer, frames): ...


def test_a_transport_is_asked_for_a_few_frames_at_a_time():
    server, turns = Server(10), Turns(SystemClock())
    Router(turns, [server])._take(float("inf"))  # type: ignore[list-item]
    assert (server.limits, len(server.arrivals)) == ({router.RECEIVE_MAX}, 0)


def test_a_peer_registers_so_many_services():
    own, peer = Router(Turns(SystemClock()), []), Peer(Server(0), b"peer", 0, 0, PeerLimits(services_max=2))  # type: ignore[arg-type]
    for number in range(2):
        own.register(f"s{number}", peer)
    with pytest.raises(FluxschedError, match="the limit is 2") as raised:
        own.register("more", peer)
    assert raised.value.errnum == errno.EMFILE
    own.unregister("s0", peer)
    own.register("more", peer)


@pytest.mark.plain_only("has an empty Peer")
def test_matchtags_begin_anew():
    calls, peer = OutgoingCalls(tag_max=2), Peer.__new__(Peer)
    assert [calls.begin_call(peer, "a.b", lambda answer: None, is_question=True) for _ in range(3)] == [1, 2, 1]


def test_what_is_large_is_read_each_time():
    read = []
    memo = PayloadMemo(lambda data: read.append(len(data)) or len(data), SPECS_KEPT, SPEC_BYTES_MAX)
    for size in (SPEC_BYTES_MAX, SPEC_BYTES_MAX, SPEC_BYTES_MAX + 1, SPEC_BYTES_MAX + 1):
        assert memo.read(b" " * size) == size
    assert read == [SPEC_BYTES_MAX, SPEC_BYTES_MAX + 1, SPEC_BYTES_MAX + 1]


def test_a_bucket_lets_a_burst_through_and_then_its_rate():
    bucket = TokenBucket(10, 5)
    assert [bucket.take(100.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert bucket.wait_s() == pytest.approx(0.1)
    assert [bucket.take(100.2) for _ in range(3)] == [True, True, False]
    assert sum(bucket.take(1e6) for _ in range(10)) == 5


def test_guests_have_a_rate_and_the_owner_has_none():
    few = PeerLimits(guest_burst=3, guest_rate_per_s=2)
    guest, owner = PeerRates(few, True, None), PeerRates(few, False, None)
    for _ in range(10):
        owner.check_request(0, lambda: 7.0)
    for _ in range(3):
        guest.check_request(0, lambda: 7.0)
    with pytest.raises(FluxschedError, match=r"more than 3 .* or 2 a second.*wait 0\.500 s") as raised:
        guest.check_request(0, lambda: 7.0)
    assert raised.value.errnum == errno.EAGAIN
    guest.check_request(0, lambda: 7.5)
    owner.count_requests(100.0, lambda: 7.5)
    with pytest.raises(FluxschedError, match=r"wait 0\.500 s"):
        guest.count_requests(3.0, lambda: 8.5)
    guest.count_requests(3.0, lambda: 9.0)


def test_of_the_roles_only_guests_have_a_rate():
    for rolemask, is_limited in ((ROLE_OWNER, False), (ROLE_USER | ROLE_ADMIN, False), (ROLE_USER, True)):
        peer = Peer(Server(0), b"peer", 1, rolemask | ROLE_LOCAL, PeerLimits(guest_burst=0))  # type: ignore[arg-type]
        with pytest.raises(FluxschedError) if is_limited else nullcontext():
            peer.rates.check_request(0, lambda: 0.0)


def test_who_gives_up_its_rights_again_gets_no_new_rate_by_it():
    few = PeerLimits(guest_burst=2)
    for rolemask in (ROLE_OWNER, ROLE_USER):
        peer = Peer(Server(0), b"peer", 1, rolemask | ROLE_LOCAL, few)  # type: ignore[arg-type]
        for _ in range(2):
            peer.renounce()
            peer.rates.check_request(0, lambda: 0.0)
        peer.renounce()
        with pytest.raises(FluxschedError, match="more than 2 requests"):
            peer.rates.check_request(0, lambda: 0.0)


async def test_a_peer_opens_so_many_streams(world):
    site = await world.bare(peer_limits=PeerLimits(streams_max=2))
    peer = world.second(site)
    streams = [peer.open("resource.journal") for _ in range(3)]
    answer = await peer.next(streams[2])
    assert (answer.errnum, "the limit is 2" in answer.payload) == (errno.EMFILE, True)
    peer.cancel("resource.journal", streams[0])
    while (await peer.next(streams[0])).errnum != errno.ENODATA:
        pass
    assert (await peer.next(peer.open("resource.journal"))).errnum == 0


async def test_an_instance_serves_so_many_peers(world, eventually):
    site = await world.bare(peer_limits=PeerLimits(peers_max=1))
    first, second = world.second(site), world.second(site)
    await first.ok("instance.info")
    found, text = await second.refused("instance.info")
    assert (found, "end some clients" in text) == (errno.EMFILE, True)
    await first.ok("instance.info")
    first.close()
    second.close()
    await eventually(lambda: not site.router.peers)
    await world.second(site).ok("instance.info")


async def test_garbage_ends_the_connection_in_the_end(world, eventually):
    site = await world.bare(peer_limits=PeerLimits(malformed_burst=5))
    rogue, other = world.second(site), world.second(site)
    for _ in range(5):
        rogue.socket.send_multipart([b"what", b"is", b"this"])
        answer = await rogue.next(0)
        assert (answer.topic, answer.errnum) == ("malformed", errno.EPROTO)
    rogue.socket.send_multipart([b"what", b"is", b"this"])
    await eventually(lambda: not site.router.peers)
    await other.ok("instance.info")


async def test_what_a_service_answers_that_is_no_message_is_an_error_at_the_local_socket(world):
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

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.setblocking(False)
        self._unpacker, self._messages = Unpacker(1 << 20), list[list[bytes]]()
        self._is_admitted = False

    def send(self, topic, payload):
        self._socket.send(pack_frame(encode(make_request(topic, payload, matchtag=1))))

    async def answer(self):
        """Errno and text of the next answer."""
        while not self._messages:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._socket, 1 << 16), 60.0)
            assert data
            self._unpacker.feed(data if self._is_admitted else data[1:], self._messages)
            self._is_admitted = True
        message = decode(self._messages.pop(0))
        return message.errnum, (message.payload or b"").decode()

    def close(self):
        self._socket.close()


def test_a_peer_may_err_again_after_a_while():
    peer = PeerRates(PeerLimits(malformed_burst=3, malformed_rate_per_s=2), False, None)
    assert [peer.may_err(0.0) for _ in range(4)] == [True] * 3 + [False]
    assert [peer.may_err(1.0) for _ in range(3)] == [True, True, False]


# What becomes of a lost peer's streams, and of what is asked of it: both are over, also when they begin later.


async def test_a_stream_of_a_lost_peer_is_not_begun_later():
    """Else a service keeps it for ever: the journal did, of a reader that left before the store had settled."""
    server, opened, ended = MemoryServer(), list[RpcRequest](), list[RpcRequest]()
    router = Router(Turns(SystemClock()), [server])

    def handle(request):
        request.open_stream(lambda: ended.append(request))
        opened.append(request)

    router.serve({"a.follow": handle})
    router.start()
    client, loop = server.connect(), asyncio.get_running_loop()
    client.start(loop, lambda: None)
    server.start(loop, router.turns.wake)
    router.turns.start(loop)
    client.send(encode(make_request("a.follow", None, matchtag=1, flags=STREAMING)))
    async with asyncio.timeout(60):
        while not opened:
            await asyncio.sleep(0)
        assert opened[0].is_open
        client.close()
        while not ended:
            await asyncio.sleep(0)
    assert not opened[0].is_open
    assert not router.peers
    router.turns.stop()


async def test_a_call_of_a_peer_that_is_gone_ends_at_once():
    """Else the figures of a scheduler that had just been killed were waited for until the client gave up."""
    server, peers, answers = MemoryServer(), list[Peer](), list[object]()
    router = Router(Turns(SystemClock()), [server])
    router.serve({"a.hello": lambda request: peers.append(request.peer)})
    router.start()
    client, loop = server.connect(), asyncio.get_running_loop()
    client.start(loop, lambda: None)
    server.start(loop, router.turns.wake)
    router.turns.start(loop)
    client.send(encode(make_request("a.hello", None, matchtag=1)))
    async with asyncio.timeout(60):
        while not peers:
            await asyncio.sleep(0)
        client.close()
        while router.peers:
            await asyncio.sleep(0)
        router.call(peers[0], "b.ask", None, answers.append)
        while not answers:
            await asyncio.sleep(0)
    assert answers == [None]
    router.turns.stop()


# A request's id is the client's own matchtag, and everything that the instance logs on its behalf carries it.


World = Any


def lines_of(path, **fields):
    """The lines that have these fields."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in found if fields.items() <= line.items()]


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        ("resource.drain", {"targets": "0", "reason": "fan"}),
        ("job-manager.queue-enable", {"enable": False, "reason": "x"}),
    ],
)
async def test_from_its_arrival_to_the_store_and_the_answer(world, topic, payload):
    site = await world.bare(verbose=2, log_format="json")
    peer = world.second(site)
    tag = peer.send(topic, payload, tag=0xABCDEF)
    await peer.next(tag)
    await peer.settle()
    lines = lines_of(site.run_directory / "log", request="00abcdef", topic=topic)
    assert [line["text"].partition(" by ")[0].split(" ")[0] for line in lines] == ["<-", "stored", "->"]
    assert len({line["peer"] for line in lines}) == 1


async def test_a_fault_while_it_is_handled_and_another_after_it(world):
    site = await world.bare(log_format="json")
    peer, log = world.second(site), logging.getLogger("fluxsched.test")

    def handle(request):
        log.warning("during")
        site.turns.post(lambda: log.warning("afterwards"))
        raise ArithmeticError("a bug")

    site.router.serve({"instance.bug": handle})
    await peer.refused("instance.bug", tag=7)
    await peer.settle()
    path = site.run_directory / "log"
    about = lines_of(path, request=request_id(7), topic="instance.bug")
    assert [line["text"].partition(":")[0] for line in about] == ["during", "instance.bug"]
    assert "ArithmeticError: a bug" in about[1]["traceback"]
    (after,) = lines_of(path, text="afterwards")
    assert "request" not in after


async def test_a_client_logs_the_same_id(world, capsys):
    site = await world.bare(verbose=2, log_format="json")
    logs.logger("client").setLevel(logging.DEBUG)
    client = await world.client(site)
    await client.drain("1", "fan")
    logs.logger("client").setLevel(logging.NOTSET)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (known,) = [line["text"].split()[1] for line in said if line["logger"] == "fluxsched.client"]
    assert lines_of(site.run_directory / "log", request=known.removesuffix(":"), topic="resource.drain")


async def test_clients_begin_with_different_ids(world):
    site = await world.bare()
    first, second = [await world.client(site) for _ in range(2)]
    tags = {handle.calls.start("instance.info").matchtag for handle in (first, second)}
    assert len(tags) == 2


# Lines of `start --trace`: as wide as the terminal is at the time, else of a fixed length at most.


LONG = Message(REQUEST, "resource.drain", framing.pack({"reason": "x" * 1000}))


def test_a_line_is_as_wide_as_the_terminal():
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "r") as screen, os.fdopen(theirs, "w") as out:
        trace = printer(out)
        for columns in (80, 100):
            fcntl.ioctl(out, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            trace("in", LONG)
            line = screen.readline().rstrip("\n")
            assert (len(line), line[-1]) == (columns, "…")


def test_without_a_terminal_a_line_has_a_limit_and_short_ones_are_whole():
    out = io.StringIO()
    trace = printer(out, ("resource.",))
    trace("in", LONG)
    trace("in", Message(REQUEST, "resource.drain", framing.pack({"reason": "x"})))
    trace("in", Message(REQUEST, "job-manager.list", None))
    long, short = out.getvalue().splitlines()
    assert (len(long), long[-1]) == (LINE_CHARS_MAX, "…")
    assert short.endswith('{"reason":"x"}')


def test_environments_and_task_data_are_left_out():
    def said(topic, payload):
        return content(Message(REQUEST, topic, framing.pack(payload)))

    jobspec = {"environment": {"TOKEN": "xyzzy"}, "tasks": [{"command": ["a"]}]}
    shown = said("job-manager.submit", {"jobspec": jobspec})
    assert shown == f'{{"jobspec":{{"environment":"{HIDDEN}","tasks":[{{"command":["a"]}}]}}}}'
    updates = {"updates": {"attributes.system.environment.TOKEN": "xyzzy", "attributes.system.duration": 1}}
    assert "xyzzy" not in said("job-manager.update", updates)
    assert "duration" in said("job-manager.update", updates)
    for topic, payload in (
        ("job-ingest.submit", {"J": "xyzzy"}), ("job-manager.getattr", {"jobspec": "xyzzy"}),
        ("job-manager.input", {"data": "xyzzy"}), ("shell-123.stdin", {"data": "xyzzy"}),
    ):  # fmt: skip
        assert "xyzzy" not in said(topic, payload)


def test_messages_of_local_peers_are_read_too():
    assert content(Message(REQUEST, "attr.get", b'{"name":"rank"}\0')) == '{"name":"rank"}'
    assert content(Message(REQUEST, "attr.get", b"{oops")) == "5 bytes"


# What is not ZMTP 3 at the ZeroMQ socket: whoever says it is dropped, and the instance answers all others.


NULL = b"NULL".ljust(20, b"\0")
SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
NAMELESS = b"\x05READY" + b"\x0bSocket-Type\0\0\0\6DEALER"
READY = NAMELESS + b"\x08Identity\0\0\0\0"
ZMTP_HEADER = struct.pack(">BBBBIIII", 0x8E, 1, 1, 0x09, 0xFFFFFFFF, 0, 0xFFFFFFFF, 7)
MESSAGE = b"\1\0" + b"\1\x0dinstance.info" + b"\0\x14" + ZMTP_HEADER
GREETING_BYTES = 64
"""libzmq hangs up on whoever does not wait for its own greeting before saying more."""
ROUNDS, SEED = 250, 11

ZMTP_1 = b"\1\0\1\1\5\0abcd"
ZMTP_2 = SIGNATURE + b"\x01\x05" + b"\0\3abc" + MESSAGE
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
HTTP = b"GET / HTTP/1.0\r\n\r\n"


def greeting(major=3, minor=0, mechanism=NULL):
    return SIGNATURE + bytes((major, minor)) + mechanism + bytes(32)


def command(body):
    return bytes((4, len(body))) + body


def session(minor=0, ready=READY):
    """All that a client of ZMTP 3 says which asks one thing."""
    return greeting(3, minor) + command(ready) + MESSAGE


def connect(instance):
    endpoint = socket.socket(socket.AF_UNIX)
    endpoint.setblocking(False)
    endpoint.connect(instance.uri.removeprefix("ipc://"))
    return endpoint


async def ends(endpoint):
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


def broken(chance, text):
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
