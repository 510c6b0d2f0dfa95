"""Waits, watches and the journal: history and news meet."""

from __future__ import annotations

import errno
import json
from collections import Counter

import pytest

from fluxsched.config.discovery import discover
from fluxsched.resource.effects import HISTORY_EVENTS_MAX
from fluxsched.services.jobs import NAMED_MAX

# The journal, live properties, the expiration and reloads over real sockets (RFC 44, RFC 20).


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


@pytest.mark.slow
async def test_the_history_is_bounded_and_says_so(world):
    """Also after a restart, and in the store."""
    statedir = world.directory / "state"
    site = await world.bare(statedir=statedir)
    journal = site.resource.module.journal
    dropped = 100
    for number in range(HISTORY_EVENTS_MAX + dropped - len(journal.events)):
        journal.post(1000.0 + number, "online", {"idset": "0"})
    site.resource.perform(journal.take_effects())
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
    assert (await peer.ok("job-manager.wait", {"id": jobid}))["exception_type"] == "node-failure"
    assert (await peer.ok("resource.status"))["lost"] == "0"


# Many jobs in one request: `job-manager.select` and `job-manager.wait-all`.


SPEC = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 10, "exec": {"test": {"run_duration": "1ms"}}}},
}


async def held(peer, count):
    return [(await peer.ok("job-manager.submit", {"jobspec": SPEC, "urgency": 0}))["id"] for _ in range(count)]


async def ends(peer, tag):
    found = []
    while (answer := await peer.next(tag)).errnum == 0:
        found.append((answer.payload["id"], answer.payload["exception_type"]))
    assert answer.errnum == errno.ENODATA
    return found


async def test_one_stream_tells_of_the_end_of_each_job_once_and_ends_with_the_last(world):
    site = await world.instance()
    peer = world.second(site)
    first, *others = ids = await held(peer, 100)
    await peer.ok("job-manager.cancel", {"id": first})
    waiting = peer.open("job-manager.wait-all", {"ids": [*ids, *ids]})
    early = peer.open("job-manager.wait-all", {"ids": [first]})
    assert await ends(peer, early) == [(first, "cancel")]
    for jobid in others:
        peer.send("job-manager.cancel", {"id": jobid})
    assert sorted(await ends(peer, waiting)) == [(jobid, "cancel") for jobid in ids]
    assert await ends(peer, peer.open("job-manager.wait-all", {"ids": []})) == []
    assert site.waits._left == {}


async def test_unknown_jobs_are_all_named_and_nothing_is_waited_for(world):
    site = await world.instance()
    peer = world.second(site)
    [known] = await held(peer, 1)
    tag = peer.open("job-manager.wait-all", {"ids": [known, 1, 2]})
    answer = await peer.next(tag)
    assert (answer.errnum, answer.payload) == (errno.ENOENT, "no such job: ƒ2, ƒ3")
    answer = await peer.next(peer.open("job-manager.wait-all", {"ids": list(range(1, NAMED_MAX + 6))}))
    assert answer.payload.endswith(" and 5 more")
    assert site.waits._left == {}


async def test_who_cancels_a_wait_or_leaves_is_forgotten(world, eventually):
    site = await world.instance()
    peer, gone = world.second(site), world.second(site)
    ids = await held(peer, 3)
    tag = peer.open("job-manager.wait-all", {"ids": ids})
    gone.open("job-manager.wait-all", {"ids": ids})
    await eventually(lambda: len(site.waits._left) == 2)
    peer.cancel("job-manager.wait-all", tag)
    await peer.ok("instance.info")
    gone.send("instance.goodbye", flags=0x04)
    await eventually(lambda: site.waits._left == {})


async def test_a_selection_is_streamed_and_lists_are_narrowed_by_it(world):
    site = await world.instance()
    peer = world.second(site)
    ids = await held(peer, 5)
    await peer.ok("job-manager.cancel", {"id": ids[1]})
    constraint = {"and": [{"id": [f"{ids[1]}..{ids[3]}"]}, {"states": ["active"]}]}
    tag = peer.open("job-manager.select", {"constraint": constraint})
    assert (await peer.next(tag)).payload == {"ids": [ids[3], ids[2]]}
    assert (await peer.next(tag)).errnum == errno.ENODATA
    found = await peer.ok("job-manager.list", {"constraint": constraint, "max_entries": 1})
    assert [job["id"] for job in found["jobs"]] == [ids[3]]
    wrong = await peer.next(peer.open("job-manager.select", {"constraint": {"nope": []}}))
    assert (wrong.errnum, "'nope' is unknown" in wrong.payload) == (errno.EINVAL, True)


# Streams about jobs: whoever joins in the middle hears of each event once, from history or as news, and whoever reads
# slowly ends nothing but his own patience.


JOBS = 150
JOINS_EVERY = 10
OUTPUT_BYTES = 3_000_000


@pytest.mark.slow
async def test_history_and_news_meet_without_gap_or_overlap(world):
    site = await world.instance()
    peer = world.second(site)
    submits, streams, logs = [], [], []
    for number in range(JOBS):
        submits.append(peer.send("job-manager.submit", {"jobspec": SPEC}))
        if number % JOINS_EVERY == 0:
            streams.append(peer.open("job-manager.watch", {"history": True}))
            peer.send("instance.info")
    ids = [(await peer.next(tag)).payload["id"] for tag in submits]
    logs = [peer.open("job-manager.eventlog", {"id": jobid, "follow": True}) for jobid in ids]
    for jobid in ids:
        await peer.ok("job-manager.wait", {"id": jobid})
    await peer.settle()

    for tag in streams:
        heard = [tuple(event[:3]) for answer in peer.waiting(tag) for event in answer["events"]]
        assert [count for count in Counter(heard).values() if count > 1] == []
        for jobid in ids:
            names = [name for owner, _, name in heard if owner == jobid]
            assert names[-1:] == ["clean"], names
    for tag in logs:
        answers = peer.waiting(tag)
        names = [event["name"] for answer in answers if isinstance(answer, dict) for event in answer["events"]]
        assert names[0] == "submit"
        assert names.count("clean") == 1
        assert len(names) == len(set(names))


@pytest.mark.plain_only("replaces a method of a Router")
async def test_who_reads_output_more_slowly_than_its_job_is_forgotten_has_it_all(world, monkeypatch):
    site = await world.instance()
    site.effects.manager.jobs.inactive_kept_max = 2
    peer, slow = world.second(site), world.second(site)
    tasks = [{**SPEC["tasks"][0], "command": ["head", "-c", str(OUTPUT_BYTES), "/dev/zero"]}]
    noisy = {**SPEC, "tasks": tasks, "attributes": {"system": {"duration": 10, "cwd": "/"}}}
    with monkeypatch.context() as pager:
        pager.setattr(site.router, "unsent_bytes", lambda peer: 1)
        jobid = (await peer.ok("job-manager.submit", {"jobspec": noisy}))["id"]
        reading = slow.open("job-manager.output", {"id": jobid, "follow": True})
        await peer.ok("job-manager.wait", {"id": jobid})
        for _ in range(3):
            other = (await peer.ok("job-manager.submit", {"jobspec": SPEC}))["id"]
            await peer.ok("job-manager.wait", {"id": other})
        assert jobid not in site.effects.manager.jobs.inactive
    size = 0
    while (answer := await slow.next(reading)).errnum == 0:
        size += len(answer.payload["data"])
    assert (answer.errnum, size) == (errno.ENODATA, OUTPUT_BYTES)


async def test_the_ends_of_more_jobs_than_are_kept_are_told(world):
    site = await world.instance()
    site.effects.manager.jobs.inactive_kept_max = 5
    peer = world.second(site)
    ids = [(await peer.ok("job-manager.submit", {"jobspec": SPEC, "urgency": 0}))["id"] for _ in range(50)]
    watching = peer.open("job-manager.watch", {"names": ["clean"]})
    waits = [peer.send("job-manager.wait", {"id": jobid}) for jobid in ids]
    for jobid in ids:
        peer.send("job-manager.raise", {"id": jobid, "type": "cancel", "severity": 0})
    results = [(await peer.next(tag)).payload for tag in waits]
    assert [(one["id"], one["exception_type"]) for one in results] == [(jobid, "cancel") for jobid in ids]
    await peer.settle()
    heard = [event for answer in peer.waiting(watching) for event in answer["events"]]
    assert [(jobid, context["result"]) for jobid, _, _, context in heard] == [(jobid, "CANCELED") for jobid in ids]
