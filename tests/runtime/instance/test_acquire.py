"""Acquisition on the wire, in both dialects, as somebody else's client reads it (RFC 28 and its draft with groups)."""

from __future__ import annotations

import asyncio
import errno
import re

import pytest

STREAMING = 0x40
GROUPS = """
[resource]
exclude = "host7"
[resource.groups]
debug = "host[4-5]"
empty = ""
[[resource.config]]
hosts = "host[0-7]"
cores = "0-3"
"""


@pytest.fixture
async def site(world):
    """Eight hosts that nobody stands for yet, in groups default 0-3,6, debug 4-5, exclude 7, and an empty one."""
    return await world.bare(config=GROUPS)


@pytest.fixture
def peer(world, site):
    return world.second(site)


async def test_typed_first_grow_is_what_the_draft_says(world):
    peer = world.second(await world.bare(fake="4x4+1"))
    await peer.ok("resource.drain", {"targets": "1", "reason": "bad"})
    first = await peer.next(peer.open("resource.acquire", {"group": "default"}))
    assert (first.topic, first.errnum) == ("resource.acquire", 0)
    assert first.flags & STREAMING
    execution = {
        "R_lite": [{"rank": "0-3", "children": {"core": "0-3", "gpu": "0"}}],
        "nodelist": ["fake[0-3]"],
        "starttime": 0.0,
        "expiration": 0.0,
    }
    assert first.payload == {
        "type": "grow",
        "resources": {"version": 1, "execution": execution},
        "online": "0,2-3",
        "offline": "1",
    }


@pytest.mark.parametrize("payload", [None, {}])
async def test_plain_first_and_changes_are_todays_rfc(world, payload):
    peer = world.second(await world.bare())
    stream = peer.open("resource.acquire", payload)
    first = (await peer.next(stream)).payload
    assert first.keys() == {"resources", "up"}
    assert first["up"] == "0-3"
    await peer.ok("resource.drain", {"targets": "0-1"})
    await peer.ok("resource.undrain", {"targets": "1"})
    await peer.ok("resource.property-add", {"properties": {"ssd": "2"}})
    await peer.ok("resource.property-remove", {"properties": {"ssd": "2"}})
    await peer.ok("resource.expiration-update", {"expiration": 4e9})
    await peer.ok("resource.assign", {"targets": "3", "group": "b"})
    await peer.settle()
    assert peer.waiting(stream) == [
        {"down": "0-1"},
        {"up": "1"},
        {"property-add": {"ssd": "2"}},
        {"property-remove": {"ssd": "2"}},
        {"expiration": 4e9},
        {"shrink": "3", "down": "3"},
    ]


async def test_typed_changes_in_order(world):
    peer = world.second(await world.bare())
    stream = peer.open("resource.acquire", {"group": "default"})
    await peer.next(stream)
    await peer.ok("resource.drain", {"targets": "0-1"})
    await peer.ok("resource.undrain", {"targets": "1"})
    await peer.ok("resource.property-add", {"properties": {"ssd": "2"}})
    await peer.ok("resource.expiration-update", {"expiration": 4e9})
    await peer.ok("resource.assign", {"targets": "3", "group": "b"})
    await peer.ok("resource.assign", {"targets": "0", "group": "b"})
    await peer.settle()
    assert peer.waiting(stream) == [
        {"type": "offline", "targets": "0-1"},
        {"type": "online", "targets": "1"},
        {"type": "shrink", "targets": "3"},
        {"type": "shrink", "targets": "0"},
    ]


async def test_updates_come_only_to_those_who_accept_them(world):
    peer = world.second(await world.bare())
    stream = peer.open("resource.acquire", {"group": "default", "accept": ["update", "what-comes-later"]})
    await peer.next(stream)
    await peer.ok("resource.property-add", {"properties": {"ssd": "2-3", "big": "0"}})
    await peer.ok("resource.property-remove", {"properties": {"ssd": "3"}})
    await peer.ok("resource.expiration-update", {"expiration": 4e9})
    await peer.settle()
    assert peer.waiting(stream) == [
        {"type": "update", "property-add": {"ssd": "2-3", "big": "0"}},
        {"type": "update", "property-remove": {"ssd": "3"}},
        {"type": "update", "expiration": 4e9},
    ]


async def test_what_changes_within_one_turn_merges(world):
    """A flip and back is not mentioned; offline comes before online."""
    instance = await world.bare()
    peer = world.second(instance)
    stream = peer.open("resource.acquire", {"group": "default"})
    await peer.next(stream)
    await peer.ok("resource.drain", {"targets": "3"})
    await peer.settle()
    peer.waiting(stream)
    ours = await world.client(instance)
    await asyncio.gather(ours.drain("0-2"), ours.undrain("1"), ours.undrain("3"))  # one bundle, one turn
    await peer.settle()
    assert peer.waiting(stream) == [{"type": "offline", "targets": "0,2"}, {"type": "online", "targets": "3"}]


@pytest.mark.parametrize(
    ("payload", "flags", "errnum", "word"),
    [
        ({"group": "exclude"}, 0, errno.EPROTO, "streaming"),  # shape comes before who may
        ({"groups": "default"}, STREAMING, errno.EPROTO, "without `group`"),
        ({"accept": ["update"]}, STREAMING, errno.EPROTO, "group"),
        ({"group": 7}, STREAMING, errno.EPROTO, "group"),
        ({"group": "default", "accept": "update"}, STREAMING, errno.EPROTO, "accept"),
        (["default"], STREAMING, errno.EPROTO, "object"),
        (b"\xc1", STREAMING, errno.EPROTO, "AcquireRequest|dict"),
        ({"group": "exclude"}, STREAMING, errno.EPERM, "exclude"),
        ({"group": "nope"}, STREAMING, errno.ENOENT, "debug, default, empty, exclude"),
    ],
)
async def test_refusals(peer, payload, flags, errnum, word):

    found, text = await peer.refused("resource.acquire", payload, flags=flags)
    assert found == errnum
    assert re.search(word, text), text
    assert (await peer.next(peer.open("resource.acquire", {"group": "default"}))).errnum == 0


async def test_one_acquirer(world, site, peer):
    """A group has one, an instance as many as it has groups."""
    other = world.second(site)
    grown = (await peer.next(peer.open("resource.acquire", {"group": "default"}))).payload
    assert (grown["online"], grown["offline"]) == ("", "0-3,6")
    for group in ("debug", "empty"):
        stream = other.open("resource.acquire", {"group": group})
        first = (await other.next(stream)).payload
        assert first["type"] == "grow"
        assert first["offline"] == {"debug": "4-5", "empty": ""}[group]
    for taker in (peer, other):
        for payload in ({"group": "default"}, {"group": "debug"}, None):
            found, text = await taker.refused("resource.acquire", payload, flags=STREAMING)
            assert found == errno.EBUSY
            assert "acquired already" in text
    groups = {group["name"]: group for group in (await peer.ok("resource.groups"))["groups"]}
    assert [name for name, group in groups.items() if group["acquired"]] == ["default", "debug", "empty"]
    assert groups["default"]["acquirer"] != groups["debug"]["acquirer"] == groups["empty"]["acquirer"]
    assert groups["debug"]["dialect"] == "typed"


async def test_the_empty_grow_is_an_empty_r(peer):
    first = (await peer.next(peer.open("resource.acquire", {"group": "empty"}))).payload
    execution = {"R_lite": [], "starttime": 0.0, "expiration": 0.0, "nodelist": [""]}
    assert first["resources"] == {"version": 1, "execution": execution}
    assert (first["online"], first["offline"]) == ("", "")


async def test_silent_yes(world, site, peer):
    """Nothing is released but what is to be released: the error names the targets, and no targets are no targets."""
    other = world.second(site)
    stream = peer.open("resource.acquire", {"group": "default"})
    await peer.next(stream)
    beside = other.open("resource.acquire", {"group": "debug"})
    await other.next(beside)
    await peer.ok("resource.assign", {"targets": "0-1", "group": "debug"})
    for who, payload, words in (
        (peer, {"group": "default", "targets": "0-2"}, ("2", "not leaving")),  # one that is not leaving spoils all
        (peer, {"group": "debug", "targets": "0"}, ("not acquired", "debug", "0")),
        (peer, {"group": "nope", "targets": "0"}, ("not acquired", "nope")),
        (other, {"group": "default", "targets": "0-1"}, ("not acquired", "0-1")),
        (other, {"group": "debug", "targets": "0"}, ("not leaving",)),
        (peer, {"group": "default", "targets": "99"}, ("99",)),
        (peer, {"group": "default"}, ("targets",)),
    ):
        found, text = await who.refused("resource.release", payload)
        assert found == errno.EPROTO, text
        assert all(word in text for word in words), text
        site.check()
    assert peer.waiting(stream) == [{"type": "shrink", "targets": "0-1"}]
    assert await peer.ok("resource.release", {"group": "default", "targets": ""}) is None
    assert other.waiting(beside) == []
    assert await peer.ok("resource.release", {"group": "default", "targets": "0"}) is None
    grown = (await other.next(beside)).payload
    assert (grown["type"], grown["offline"]) == ("grow", "0")
    found, text = await peer.refused("resource.release", {"group": "default", "targets": "0-1"})  # 0: not a second time
    assert (found, "0" in text) == (errno.EPROTO, True)
    await peer.ok("resource.release", {"group": "default", "targets": "1"})
    assert (await other.next(beside)).payload["offline"] == "1"


async def test_a_plain_acquirer_has_no_release(world):
    peer = world.second(await world.bare())
    await peer.next(peer.open("resource.acquire"))
    await peer.ok("resource.assign", {"targets": "0", "group": "b"})
    found, _ = await peer.refused("resource.release", {"group": "default", "targets": "0"})
    assert found == errno.EPROTO


async def test_cancel_and_loss_free_the_group(world, site, peer, eventually):
    stream = peer.open("resource.acquire", {"group": "default"})
    await peer.next(stream)
    peer.cancel("resource.acquire", stream)
    ended = await peer.next(stream)
    assert (ended.errnum, bool(ended.flags & STREAMING)) == (errno.ENODATA, True)
    stream = peer.open("resource.acquire", {"group": "default"})
    assert (await peer.next(stream)).payload["offline"] == "0-3,6"
    other = world.second(site)
    assert (await other.refused("resource.acquire", {"group": "default"}, flags=STREAMING))[0] == errno.EBUSY
    peer.close()
    await eventually(lambda: not site.resource.report()["acquirers"], 0.5)
    assert (await other.next(other.open("resource.acquire", {"group": "default"}))).errnum == 0


async def test_a_matchtag_in_use_leaves_the_first_stream_whole(world, peer, site, eventually):
    stream = peer.open("resource.acquire", {"group": "default"})
    await peer.next(stream)
    found, text = await peer.refused("resource.acquire", {"group": "debug"}, tag=stream, flags=STREAMING)
    assert (found, "in use" in text) == (errno.EPROTO, True)
    await peer.ok("resource.assign", {"targets": "0", "group": "debug"})
    assert (await peer.next(stream)).payload == {"type": "shrink", "targets": "0"}
    peer.close()
    await eventually(lambda: not site.resource.report()["acquirers"], 0.5)
