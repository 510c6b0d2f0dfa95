"""Notices of admins in real instances: what users are shown, limits, ends, restarts."""

from __future__ import annotations

import asyncio
import errno
import time
from math import inf

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.protocol.messages.common import WALL_TIME_MAX_S
from fluxsched.protocol.topics import ADMINS, GUESTS, TOPICS
from fluxsched.services.instance import NOTICE_CHARS_MAX, NOTICES_MAX, check_notice


def test_admins_set_and_all_users_read():
    assert {name: TOPICS[f"instance.notice-{name}"].right for name in ("add", "remove", "list")} == {
        "add": ADMINS, "remove": ADMINS, "list": GUESTS
    }  # fmt: skip


async def test_it_is_listed_until_it_is_removed(world):
    client = await world.client(await world.instance(fake="2x4"))
    until_s = time.time() + 3600.0
    assert await client.notices() == {"notices": []}
    assert [await client.add_notice("one"), await client.add_notice("two", until_s)] == [1, 2]
    listed = (await client.notices())["notices"]
    assert [(each["id"], each["text"], each.get("until")) for each in listed] == [(1, "one", None), (2, "two", until_s)]
    assert all(each["user"] and each["timestamp"] <= time.time() for each in listed)
    await client.remove_notice([1])
    await client.remove_notice([])
    assert [each["text"] for each in (await client.notices())["notices"]] == ["two"]
    assert await client.add_notice("three") == 3
    await client.remove_notice()
    assert await client.notices() == {"notices": []}


async def test_it_ends_at_its_time_and_survives_a_restart(world):
    statedir = world.directory / "state"
    site = await world.bare(fake="2x4", statedir=statedir)
    peer = world.second(site)
    now_s = time.time()
    for text, ends in (("stays", {}), ("ends", {"for": 0.2}), ("goes", {"until": now_s + 3600.0})):
        await peer.ok("instance.notice-add", {"text": text, **ends})
    await peer.ok("instance.notice-remove", {"ids": [3]})
    listed = (await peer.ok("instance.notice-list"))["notices"]
    assert listed[0]["text"] == "stays"
    while len((await peer.ok("instance.notice-list"))["notices"]) > 1:
        assert time.time() < now_s + 60.0
        await asyncio.sleep(0.02)
    assert (await peer.refused("instance.notice-remove", {"ids": [1, 2]}))[0] == errno.ENOENT
    assert await peer.ok("instance.notice-list") == {"notices": listed[:1]}
    await world.stop(site)
    peer = world.second(await world.bare(fake="2x4", statedir=statedir))
    assert await peer.ok("instance.notice-list") == {"notices": listed[:1]}
    assert await peer.ok("instance.notice-add", {"text": "next"}) == {"id": 3}


async def test_there_are_no_more_than_the_limit(world):
    peer = world.second(await world.bare(fake="2x4"))
    for at in range(NOTICES_MAX):
        await peer.ok("instance.notice-add", {"text": f"notice {at}"})
    errnum, text = await peer.refused("instance.notice-add", {"text": "one more"})
    assert (errnum, text) == (errno.EINVAL, f"{NOTICES_MAX} notices are shown, the limit: remove one")
    await peer.ok("instance.notice-remove", {"ids": [4]})
    assert await peer.ok("instance.notice-add", {"text": "one more"}) == {"id": NOTICES_MAX + 1}


@pytest.mark.parametrize(
    ("text", "until_s", "words"),
    [
        (" ", 2.0, "a notice has a text"),
        ("two\nlines", 2.0, "character 4 is U+000A"),
        ("\x1b[31mred", 2.0, "character 1 is U+001B"),
        ("turned \u202e", 2.0, "character 8 is U+202E"),
        ("late", 1.0, "the end of the notice, 1 s after 1970, is not after now"),
    ],
)
def test_what_is_no_notice_is_named(text, until_s, words):
    with pytest.raises(InvalidValue, match=words.replace("+", r"\+")):
        check_notice(text, 10.0 if text == "late" else 1.0, until_s)


def test_it_is_no_longer_than_the_limit():
    check_notice("x" * NOTICE_CHARS_MAX, 1.0, 2.0)
    with pytest.raises(LimitExceeded, match=f"limit of {NOTICE_CHARS_MAX}"):
        check_notice("x" * (NOTICE_CHARS_MAX + 1), 1.0, 2.0)
    check_notice("x", 1.0, WALL_TIME_MAX_S)
    check_notice("x", 1.0, inf)
    with pytest.raises(LimitExceeded, match=f"above the limit of {WALL_TIME_MAX_S:.0f}: give an earlier end"):
        check_notice("x", 1.0, 1.0 + WALL_TIME_MAX_S)
