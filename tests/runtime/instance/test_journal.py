"""The journal, live properties, the expiration and reloads over real sockets (RFC 44, RFC 20)."""

from __future__ import annotations

import errno
import json

import pytest

from fluxsched.resource.journal import HISTORY_EVENTS_MAX
from fluxsched.runtime.inventory.discovery import discover

STREAMING = 0x40


def r_text(hosts, cores="0-1", ranks=None, **execution):
    count = ranks or "0-3"
    rlite = [{"rank": count, "children": {"core": cores}}]
    return json.dumps({"version": 1, "execution": {"R_lite": rlite, "nodelist": [hosts], **execution}})


async def history(peer, stream):
    """Payloads up to the mark."""
    found = []
    while True:
        answer = await peer.next(stream)
        assert answer.errnum == 0
        if not answer.payload["events"]:
            return found
        found.append(answer.payload)


def names(payloads):
    return [event["name"] for payload in payloads for event in payload["events"]]


async def test_history_mark_live_and_cancel(world):
    peer = world.second(await world.bare())
    await peer.ok("resource.drain", {"targets": "1", "reason": "before"})
    stream = peer.open("resource.journal", {})
    found = await history(peer, stream)
    assert names(found) == ["restart", "resource-define", "online", "drain"]
    (define,) = [payload for payload in found if "R" in payload]
    assert names([define]) == ["resource-define"]
    assert define["R"]["execution"]["nodelist"] == ["fake[0-3]"]
    assert define["events"][0]["context"] == {"method": "configuration"}
    await peer.ok("resource.undrain", {"targets": "1"})
    (event,) = (await peer.next(stream)).payload["events"]
    assert (event["name"], event["context"]["idset"], event["context"]["nodelist"]) == ("undrain", "1", "fake1")
    peer.cancel("resource.journal", stream)
    assert (await peer.next(stream)).errnum == errno.ENODATA
    await peer.ok("resource.drain", {"targets": "1"})
    await peer.settle()
    assert peer.waiting(stream) == []


async def test_a_reader_in_the_turn_of_an_event_gets_it_once(world):
    ours = await world.client(await world.bare())
    stream = ours.stream("resource.journal")
    drain = ours.stream("resource.drain", {"targets": "1"})  # both in one bundle, so in one turn
    late = ours.stream("resource.journal")
    await drain.next()
    await ours.undrain("1")
    for reader in (stream, late):
        seen = []
        while "undrain" not in seen:
            seen += [event["name"] for event in (await anext(reader))["events"]]
        assert seen.count("drain") == seen.count("undrain") == 1


async def test_events_are_in_order_of_time_and_of_what_happened(world):
    peer = world.second(await world.bare())
    await peer.ok("resource.drain", {"targets": "0", "reason": "a"})
    await peer.ok("resource.drain", {"targets": "0", "reason": "b", "mode": "overwrite"})
    await peer.ok("resource.drain", {"targets": "0", "reason": "c", "mode": "force-overwrite"})
    await peer.ok("resource.assign", {"targets": "0-1", "group": "exclude"})
    await peer.ok("resource.property-add", {"properties": {"ssd": "2"}})
    await peer.ok("resource.expiration-update", {"expiration": 4e9})
    found = await history(peer, peer.open("resource.journal"))
    events = [event for payload in found for event in payload["events"]]
    assert names(found)[3:] == [
        *["drain"] * 3, "assign", "release", "undrain", "property-add", "resource-update"
    ]  # fmt: skip
    assert [event["context"]["overwrite"] for event in events if event["name"] == "drain"] == [0, 1, 2]
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)


async def test_the_history_is_bounded_and_says_so(world):
    """Also after a restart, and in the store."""
    statedir = world.directory / "state"
    site = await world.bare(statedir=statedir)
    journal = site.resource.module.journal
    dropped = 100
    for number in range(HISTORY_EVENTS_MAX + dropped - len(journal.events)):
        journal.post(1000.0 + number, "online", {"idset": "0"})
    site.resource.perform(journal.take())
    peer = world.second(site)
    await peer.ok("resource.drain", {"targets": "0"})
    for _ in range(2):
        stream = peer.open("resource.journal")
        found = await history(peer, stream)
        assert all(len(payload["events"]) <= 512 for payload in found)
        seen = names(found)
        assert len(seen) == HISTORY_EVENTS_MAX + 1
        assert (seen[0], seen.count("truncate")) == ("truncate", 1)
        first, second = found[0]["events"][:2]
        assert "context" not in first
        assert first["timestamp"] <= second["timestamp"]
        ((stored,),) = site.store.read("SELECT count(*) FROM journal")
        assert stored <= HISTORY_EVENTS_MAX + 1025
        await world.stop(site)
        site = await world.bare(statedir=statedir)
        peer = world.second(site)


async def test_properties_come_and_go_live(world, timed):
    site = await world.instance()
    peer = world.second(site)
    job = timed("1ms", constraint={"properties": ["ssd"]}).to_json()
    _, text = await peer.refused("feasibility.check", {"jobspec": job})
    assert "ssd" in text
    await peer.ok("resource.property-add", {"properties": {"ssd": "fake[2-3]", "+local": "0"}})
    status = await peer.ok("resource.status")
    assert status["R"]["execution"]["properties"] == {"ssd": "2-3", "+local": "0"}
    jobid = (await peer.ok("job-manager.submit", {"jobspec": job}))["id"]
    assert (await peer.ok("job-manager.wait", {"id": jobid}))["success"]
    found = (await peer.ok("job-manager.lookup", {"id": jobid, "keys": ["R"]}))["R"]
    assert found["execution"]["R_lite"][0]["rank"] in ("2", "3")
    for topic, properties, words in (
        ("property-remove", {"ssd": "0,2"}, ("0",)),
        ("property-remove", {"nope": "0"}, ("nope",)),
        ("property-add", {"ssd": "0,17-18"}, ("17-18",)),
        ("property-add", {"a|b": "0"}, ("a|b",)),
        ("property-add", {"": "0"}, ()),
    ):
        found, text = await peer.refused(f"resource.{topic}", {"properties": properties})
        assert found == errno.EINVAL
        assert all(word in text for word in words), text
    status = await peer.ok("resource.status")
    assert status["R"]["execution"]["properties"] == {"ssd": "2-3", "+local": "0"}
    await peer.ok("resource.property-remove", {"properties": {"ssd": "2-3"}})
    while (await peer.call("feasibility.check", {"jobspec": job})).errnum == 0:
        pass  # the question may overtake the change on its way to the scheduler


async def test_the_expiration_reaches_schedulers_and_new_jobs(world, timed):
    site = await world.instance()
    peer = world.second(site)
    await peer.ok("resource.expiration-update", {"expiration": 4e9})
    await peer.settle()
    await peer.ok("instance.info")
    jobid = (await peer.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    await peer.ok("job-manager.wait", {"id": jobid})
    found = (await peer.ok("job-manager.lookup", {"id": jobid, "keys": ["R"]}))["R"]
    assert found["execution"]["expiration"] == 4e9
    assert (await peer.ok("resource.status"))["R"]["execution"]["expiration"] == 4e9
    for wrong in (-1.0, float("nan"), float("inf"), 1e300, "soon", None):
        assert (await peer.refused("resource.expiration-update", {"expiration": wrong}))[0] == errno.EPROTO
    await peer.ok("resource.expiration-update", {"expiration": 0})
    assert (await peer.ok("resource.status"))["R"]["execution"]["expiration"] == 0.0


@pytest.fixture
async def reloaded(world):
    """An instance on an R file that a test may rewrite; its path, the site and a peer with the group acquired."""
    path = world.write("R.json", r_text("host[0-3]"))
    site = await world.bare(r_path=path)
    return path, site, world.second(site)


async def test_reload_of_the_file_shrinks_and_grows(reloaded):
    path, site, peer = reloaded
    stream = peer.open("resource.acquire", {"group": "default"})
    await peer.next(stream)
    await peer.ok("resource.drain", {"targets": "host2", "reason": "stays"})
    path.write_text(r_text("host[1-2,4-5]"))
    await peer.ok("resource.reload")
    changes = [(await peer.next(stream)).payload for _ in range(2)]
    assert {change["type"]: change.get("targets", change.get("offline")) for change in changes} == {
        "shrink": "0,3",
        "grow": "4-5",
    }
    await peer.ok("resource.release", {"group": "default", "targets": "0,3"})
    status = await peer.ok("resource.status")
    assert (status["lost"], list(status["drain"])) == ("0,3", ["2"])
    path.write_text(r_text("host[0-3]"))
    await peer.ok("resource.reload", {})
    changes = [(await peer.next(stream)).payload for _ in range(2)]
    assert [change["type"] for change in changes] == ["grow", "shrink"]
    assert changes[0]["resources"]["execution"]["nodelist"] == ["host[0,3]"]
    site.check()


async def test_reload_from_another_file_or_from_an_object(world, reloaded):
    _, site, peer = reloaded
    other = world.write("other.json", r_text("host[0-3]", cores="0-3"))
    await peer.ok("resource.reload", {"path": str(other)})
    assert (await peer.ok("resource.status"))["R"]["execution"]["R_lite"][0]["children"] == {"core": "0-3"}
    await peer.ok("resource.reload", {"R": json.loads(r_text("host[0-3]", cores="0-7"))})
    assert (await peer.ok("resource.status"))["R"]["execution"]["R_lite"][0]["children"] == {"core": "0-7"}
    found = await history(peer, peer.open("resource.journal"))
    defines = [event["context"] for payload in found for event in payload["events"] if "R" in payload]
    assert [context["method"] for context in defines] == ["configuration", "reload", "reload"]
    site.check()


async def test_a_reload_that_names_this_machine_brings_it_online(reloaded):
    _, site, peer = reloaded
    assert (await peer.ok("resource.status"))["online"] == ""
    await peer.ok("resource.reload", {"R": json.loads(r_text(f"host[0-2],{discover().host}"))})
    status = await peer.ok("resource.status")
    assert (status["online"], status["lost"]) == ("4", "3")
    site.check()


async def test_a_bad_reload_changes_nothing(world, reloaded):
    path, site, peer = reloaded
    before = await peer.ok("resource.status")
    path.write_text("{")
    for payload in (
        None,
        {"path": "/nowhere/R"},
        {"path": str(world.directory)},
        {"path": "a", "R": {}},
        {"R": {"version": 1}},
        {"R": {"version": 1, "execution": {"R_lite": [], "nodelist": [""]}}},
        {"R": json.loads(r_text("host[0-1]"))},
        {"path": 7},
    ):
        await peer.refused("resource.reload", payload)
    assert await peer.ok("resource.status") == before
    site.check()


async def test_reload_of_held_targets_is_refused_unless_forced(world, timed, eventually):
    path = world.write("R.json", r_text("host[0-1]", ranks="0-1"))
    site = await world.instance(r_path=path)
    peer = world.second(site)
    for host in ("host0", "host1"):
        await world.second(site).ok("agent.hello", {"host": host, "heartbeat_s": 1.0})
    jobid = (await peer.ok("job-manager.submit", {"jobspec": timed("60s", nodes=2).to_json()}))["id"]
    await eventually(lambda: len(site.resource.module.held) == 2)
    path.write_text(r_text("host1", ranks="0"))
    found, text = await peer.refused("resource.reload")
    assert (found, "host0" in text) == (errno.EBUSY, True)
    assert "lost" not in await peer.ok("resource.status")
    await peer.ok("resource.reload", {"force": True})
    assert (await peer.ok("job-manager.wait", {"id": jobid}))["exception_type"] == "exec"
    assert (await peer.ok("resource.status"))["lost"] == "0"
