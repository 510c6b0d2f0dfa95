"""Bad input over real sockets: each gets an error that says what and why, and the instance lives on unharmed."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import subprocess

import msgpack
import pytest

from fluxsched.protocol.framing.bundle import BUNDLE_BYTES_MAX, BUNDLE_MESSAGES_MAX
from fluxsched.protocol.framing.codec import DEPTH_MAX
from fluxsched.protocol.topics import TOPICS
from fluxsched.runtime.messaging import limits
from fluxsched.transport.base import MESSAGE_BYTES_MAX, PARTS_MAX

STREAMING, NORESPONSE = 0x40, 0x04
HEADER = struct.Struct(">BBBBIIII")
ANY = 0xFFFFFFFF
SPARED = {"instance.restart", "instance.stop", "instance.goodbye", "instance.disconnect"}
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
    await eventually(lambda: not site.resource.report()["acquirers"], 2.0)
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


@pytest.mark.parametrize("flags", [0, STREAMING])
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
    peer.send("resource.acquire", {"group": "default"}, flags=STREAMING | NORESPONSE)
    peer.send("resource.journal", None, flags=STREAMING | NORESPONSE)
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


async def test_streams_have_a_limit(world, peer, monkeypatch):
    monkeypatch.setattr(limits, "IN_FLIGHT_PEER_MAX", 10)
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
    monkeypatch.undo()


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
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as crowd:
        crowd.setattr("fluxsched.runtime.services.modules.starter.subprocess.Popen", full)
        crowd.setattr(subprocess, "Popen", full)  # which compiled code asks
        _, text = await peer.refused("module.load", {"spec": "fifo", "groups": ["default"]})
    assert "cannot start module 'sched-fifo': [Errno 24] Too many open files; fix this and load it again" in text
    assert (await peer.ok("module.load", {"spec": "fifo", "groups": ["default"]}))["name"] == "sched-fifo"
