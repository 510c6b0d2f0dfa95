"""`instance.trace` over real sockets: messages as they pass, bounded, and without what users keep to themselves."""

from __future__ import annotations

import asyncio
import errno

import msgpack
import pytest

from fluxsched.runtime.services import trace
from fluxsched.runtime.services.trace import TEXT_PAYLOAD_BYTES_MAX, TRACE_MESSAGES_MAX

SECRET = "xyzzy-secret"
SPEC = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["printenv", "TOKEN"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 10, "cwd": "/", "environment": {"TOKEN": SECRET}}},
}


async def seen(peer, tag, until):
    """All messages up to one that is meant."""
    found = []
    while not any(until(one) for one in found):
        answer = await peer.next(tag)
        assert answer.errnum == 0, answer
        assert len(answer.payload["messages"]) <= TRACE_MESSAGES_MAX
        found += answer.payload["messages"]
    return found


async def test_messages_pass_with_peer_topic_and_text(world):
    site = await world.instance()
    peer, other = world.second(site), world.second(site)
    tag = peer.open("instance.trace", {"topics": ["resource.", "attr."]})
    await peer.settle()
    await other.ok("resource.drain", {"targets": "0", "reason": "bad <b>"})
    await other.refused("attr.get", {"name": "no"})
    found = await seen(peer, tag, lambda one: one["topic"] == "attr.get" and one["direction"] == "->")
    drain = next(one for one in found if one["topic"] == "resource.drain")
    assert (drain["direction"], drain["type"]) == ("<-", "request")
    assert drain["text"] == '{"targets":"0","reason":"bad <b>"}'
    assert found[-1]["text"].startswith(f"error {errno.ENOENT}: attribute 'no' is unknown")
    assert {one["topic"] for one in found} <= {"resource.drain", "attr.get", "resource.acquire"}
    assert {one["peer"] for one in found} >= {drain["peer"], "sched-fifo"}
    peer.cancel("instance.trace", tag)
    assert (await peer.next(tag)).errnum == errno.ENODATA
    assert site.router._trace is None


async def test_no_environment_and_no_output_is_told(world):
    site = await world.instance()
    peer, other = world.second(site), world.second(site)
    tag = peer.open("instance.trace", {})
    await peer.settle()
    jobid = (await other.ok("job-manager.submit", {"jobspec": SPEC}))["id"]
    await other.ok("job-manager.wait", {"id": jobid})
    output = other.open("job-manager.output", {"id": jobid})
    assert SECRET in str((await other.next(output)).payload)
    await other.ok("job-manager.lookup", {"id": jobid, "keys": ["jobspec"]})
    found = await seen(peer, tag, lambda one: one["topic"] == "job-manager.lookup" and one["direction"] == "->")
    assert {"job-manager.submit", "job-manager.output", "sched.alloc"} <= {one["topic"] for one in found}
    assert SECRET not in str(found)
    assert not any(one["topic"].startswith("instance.trace") for one in found)


async def test_what_is_too_much_is_counted(world):
    site = await world.bare()
    peer, other = world.second(site), world.second(site)
    tag = peer.open("instance.trace", {"topics": ["attr."]})
    await peer.settle()
    tags = [other.send("attr.get", {"name": "rank"}) for _ in range(4 * TRACE_MESSAGES_MAX)]
    await other.next(tags[-1])
    count = 0
    while count < 2 * len(tags):
        answer = (await peer.next(tag)).payload
        assert len(answer["messages"]) <= TRACE_MESSAGES_MAX
        count += len(answer["messages"]) + answer["dropped"]
    assert count == 2 * len(tags)


@pytest.mark.plain_only("replaces a method of a Router")
async def test_a_slow_reader_costs_no_more_than_one_answer(world, monkeypatch):
    site = await world.bare()
    peer, other = world.second(site), world.second(site)
    tag = peer.open("instance.trace", {"topics": ["attr."]})
    await peer.settle()
    with monkeypatch.context() as pager:
        pager.setattr(site.router, "unsent_bytes", lambda peer: 1)
        tags = [other.send("attr.get", {"name": "rank"}) for _ in range(TRACE_MESSAGES_MAX)]
        await other.next(tags[-1])
        await asyncio.sleep(2 * trace.TRACE_EVERY_S)
        assert peer.waiting(tag) == []
    answer = (await peer.next(tag)).payload
    assert (len(answer["messages"]), answer["dropped"]) == (TRACE_MESSAGES_MAX, TRACE_MESSAGES_MAX)


async def test_of_a_large_payload_the_size_is_told(world):
    site = await world.bare()
    peer, other = world.second(site), world.second(site)
    tag = peer.open("instance.trace", {"topics": ["attr."]})
    await peer.settle()
    await other.refused("attr.get", {"name": "x" * TEXT_PAYLOAD_BYTES_MAX})
    found = await seen(peer, tag, lambda one: one["direction"] == "<-")
    assert found[0]["text"] == f"{len(msgpack.packb({'name': 'x' * TEXT_PAYLOAD_BYTES_MAX}))} bytes"


async def test_a_reader_that_is_lost_leaves_nothing_behind(world):
    site = await world.bare()
    peer, other = world.second(site), world.second(site)
    peer.open("instance.trace", {})
    await peer.settle()
    assert site.router._trace is not None
    peer.send("instance.goodbye")
    while site.router._trace is not None:
        await other.settle()
    assert (await other.refused("instance.trace", {}))[0] == errno.EPROTO
