"""The RPCs of resources: watchers, the journal, traces, limits."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.services import instance, modules, resource, scheduling
from fluxsched.services.instance import TEXT_PAYLOAD_BYTES_MAX, TRACE_MESSAGES_MAX, target_states
from fluxsched.services.resource import JournalService

# `resource.watch` over real sockets: whole, then exactly what is new, to every reader at its pace.


HOSTS = """
[resource]
exclude = "fake7"
[resource.groups]
lab = "fake6"
"""
SITE = {"fake": "8x4+1", "config": HOSTS}


def spec(cores, run_s=100.0, gpus=0):
    """A job of some cores of one node that lets time pass."""
    wanted = {"cores_per_task": cores, "gpus_per_task": gpus}
    return Jobspec.from_command(["true"], duration_s=1000.0, test_run_duration_s=run_s, **wanted).to_json()


class Picture:
    """What a reader knows, by what it was told."""

    def __init__(self):
        self.states = {}
        self.busy = {}
        self.gpus = {}
        self.others = {}
        self.answers = 0

    def apply(self, answer):
        self.answers += 1
        assert answer, "an answer that says nothing"
        for state, ranks in answer.pop("states", {}).items():
            for rank in Idset.parse(ranks):
                assert self.states.get(rank) != state, "told twice"
                self.states[rank] = state
        for key, known in (("busy", self.busy), ("busy_gpus", self.gpus)):
            for count, ranks in answer.pop(key, {}).items():
                known.update(dict.fromkeys(Idset.parse(ranks), int(count)))
        self.others |= answer


async def follow(peer, tag, picture, holds):
    while not holds(picture):
        answer = await peer.next(tag)
        assert answer.errnum == 0, answer
        picture.apply(answer.payload)


def true_states(site):
    found = site.resource.module.report.states()
    return {rank: state for state, ranks in found.items() for rank in ranks}


def true_counts(site, kind):
    return {rank: mask.bit_count() for rank, mask in site.effects.manager.grants.busy(kind).items()}


async def test_the_first_answer_is_whole(world):
    site = await world.bare(**SITE)
    peer = world.second(site)
    await peer.ok("resource.drain", {"targets": "1", "reason": "<b>"})
    await peer.ok("resource.drain", {"targets": "2", "cores": "0-1", "reason": "dimm"})
    await peer.ok("resource.outage-add", {"targets": "3", "from": 4e9, "for": 60.0, "reason": "firmware"})
    whole = (await peer.next(peer.open("resource.watch"))).payload
    status = await peer.ok("resource.status")
    groups = (await peer.ok("resource.groups"))["groups"]
    assert (whole["R"], whole["drains"], whole["made_up"]) == (status["R"], status["drain"], status["made_up"])
    assert (whole["parts"], len(whole["parts"])) == (status["parts"], 1)
    assert (whole["outages"], len(whole["outages"])) == ((await peer.ok("resource.outage-list"))["outages"], 1)
    assert whole["groups"] == groups
    assert whole["states"] == {"excluded": "7", "drained": "1", "free": "0,2-6"}
    assert (whole["busy"], whole["busy_gpus"]) == ({}, {})


async def test_every_change_is_told_and_nothing_else(world, eventually):
    site = await world.instance(**SITE)
    peer = world.second(site)
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.states)
    job = (await peer.ok("job-manager.submit", {"jobspec": spec(3, gpus=1)}))["id"]
    await follow(peer, tag, picture, lambda known: 3 in known.busy.values() and "allocated" in known.states.values())
    (rank,) = true_counts(site, "core")
    assert (picture.busy, picture.gpus, picture.states[rank]) == ({rank: 3}, {rank: 1}, "allocated")
    await peer.ok("resource.drain", {"targets": str(rank), "reason": "bad"})
    await follow(peer, tag, picture, lambda known: known.states[rank] == "draining")
    assert picture.others["drains"][str(rank)]["state"] == "draining"
    await peer.ok("job-manager.cancel", {"id": job})
    await follow(peer, tag, picture, lambda known: known.states[rank] == "drained")
    assert picture.others["drains"][str(rank)]["state"] == "drained"
    assert (picture.busy, picture.gpus) == ({rank: 0}, {rank: 0})
    await peer.ok("resource.assign", {"targets": "5", "group": "lab"})
    await follow(peer, tag, picture, lambda known: known.others["groups"][2]["targets"] == "5-6")
    assert picture.states == true_states(site)
    told = picture.answers
    await peer.ok("resource.property-add", {"properties": {"big": "0-3"}})
    await follow(peer, tag, picture, lambda known: "properties" in known.others["R"]["execution"])
    assert picture.answers == told + 1
    peer.cancel("resource.watch", tag)
    assert (await peer.next(tag)).errnum == errno.ENODATA
    assert (await peer.ok("resource.stats-get"))["watch_streams"] == 0


async def test_leaving_targets_are_seen_and_count_for_metrics_as_what_they_are(world):
    site = await world.bare(**SITE)
    scheduler, peer = world.second(site), world.second(site)
    streams = await scheduler.schedule("default")
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.states)
    await peer.ok("resource.assign", {"targets": "0", "group": "lab"})
    await follow(peer, tag, picture, lambda known: known.states[0] == "leaving")
    found, usable = target_states(site.resource.module)
    assert (0 in found["free"], 0 in usable, "leaving" in found) == (True, True, False)
    await scheduler.ok("resource.release", {"group": "default", "targets": "0"})
    await follow(peer, tag, picture, lambda known: known.states[0] == "free")
    assert streams


async def test_two_readers_that_come_at_different_times_end_up_with_the_same(world):
    site = await world.instance(**SITE)
    peer, late = world.second(site), world.second(site)
    first, picture = peer.open("resource.watch"), Picture()
    jobs = [peer.send("job-manager.submit", {"jobspec": spec(1, 0.001)}) for _ in range(60)]
    ids = [(await peer.next(tag)).payload["id"] for tag in jobs[:30]]
    second, other = late.open("resource.watch"), Picture()
    ids += [(await peer.next(tag)).payload["id"] for tag in jobs[30:]]
    last = (await peer.ok("job-manager.submit", {"jobspec": spec(4)}))["id"]
    for jobid in ids:
        await peer.ok("job-manager.wait", {"id": jobid})

    def is_done(known):
        busy = {rank: count for rank, count in known.busy.items() if count}
        return known.states == true_states(site) and busy == true_counts(site, "core") and 4 in busy.values()

    await follow(peer, first, picture, is_done)
    await follow(late, second, other, is_done)
    assert last


@pytest.mark.parametrize(("name", "value"), [("WATCH_EVERY_S", 1e6), ("SHARE", 1e-9)])
async def test_a_drain_waits_neither_as_long_as_changes_by_jobs_nor_longer(world, monkeypatch, name, value):
    monkeypatch.setattr(resource, name, value)
    site = await world.instance(**SITE)
    peer = world.second(site)
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.states)
    await peer.ok("job-manager.submit", {"jobspec": spec(1)})
    for rank in (3, 4):
        await peer.ok("resource.drain", {"targets": str(rank)})
        await follow(peer, tag, picture, lambda known, rank=rank: known.states[rank] == "drained")


@pytest.mark.plain_only("replaces a method of a Router")
async def test_the_changes_of_a_slow_reader_merge(world, monkeypatch):
    site = await world.bare(**SITE)
    peer, slow = world.second(site), world.second(site)
    tag, picture = slow.open("resource.watch"), Picture()
    await follow(slow, tag, picture, lambda known: known.states)
    with monkeypatch.context() as pager:
        pager.setattr(site.router, "unsent_bytes", lambda peer: 1)
        quick = peer.open("resource.watch")
        for rank in range(4):
            await peer.ok("resource.drain", {"targets": str(rank)})
        await peer.ok("resource.undrain", {"targets": "0"})
        assert (slow.waiting(tag), peer.waiting(quick)) == ([], [])
    told = picture.answers
    await follow(slow, tag, picture, lambda known: known.states == true_states(site))
    assert (picture.answers, set(picture.others["drains"])) == (told + 1, {"1", "2", "3"})
    assert (await peer.next(quick)).payload["states"]["drained"] == "1-3"


async def test_without_readers_nothing_is_gathered(world):
    site = await world.instance(**SITE)
    peer, watch = world.second(site), site.resource.watch
    tag = peer.open("resource.watch")
    await peer.next(tag)
    assert watch._last is not None
    peer.close()
    other = world.second(site)
    while len(watch):
        await other.settle()
    job = (await other.ok("job-manager.submit", {"jobspec": spec(1, 0.001)}))["id"]
    await other.ok("job-manager.wait", {"id": job})
    assert (watch._last, watch._touched, watch._counts) == (None, [], {})


async def test_drained_parts_and_planned_outages_are_told(world):
    """Parts that are draining are drained when their job ends, though the state of their target does not change."""
    site = await world.instance(**SITE)
    peer = world.second(site)
    job = (await peer.ok("job-manager.submit", {"jobspec": spec(2)}))["id"]
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.busy)
    ((rank, _),) = true_counts(site, "core").items()
    await peer.ok("resource.drain", {"targets": str(rank), "cores": "0-3", "reason": "dimm"})
    await follow(peer, tag, picture, lambda known: known.others["parts"])
    (part,) = picture.others["parts"]
    assert (part["targets"], part["cores"], part["reason"], part["state"]) == (str(rank), "0-3", "dimm", "draining")
    await peer.ok("job-manager.cancel", {"id": job})
    await follow(peer, tag, picture, lambda known: known.others["parts"][0]["state"] == "drained")
    await peer.ok("resource.outage-add", {"targets": "0-1", "from": 4e9, "for": 60.0, "name": "upd"})
    await follow(peer, tag, picture, lambda known: known.others["outages"])
    assert [each["name"] for each in picture.others["outages"]] == ["upd"]
    await peer.ok("resource.outage-remove", {"name": "upd"})
    await follow(peer, tag, picture, lambda known: known.others["outages"] == [])


async def test_an_offline_target_that_is_drained_is_drained_when_its_job_ends(world):
    """Its state stays, its line does not."""
    site = await world.instance(**SITE)
    peer = world.second(site)
    job = (await peer.ok("job-manager.submit", {"jobspec": spec(1)}))["id"]
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.busy)
    ((rank, _),) = true_counts(site, "core").items()
    await peer.ok("resource.drain", {"targets": str(rank)})
    site.resource.perform(site.resource.module.set_offline(Idset.of([rank]), site.turns.wall_s))
    await follow(peer, tag, picture, lambda known: known.states[rank] == "offline")
    assert picture.others["drains"][str(rank)]["state"] == "draining"
    await peer.ok("job-manager.cancel", {"id": job})
    await follow(peer, tag, picture, lambda known: known.others["drains"][str(rank)]["state"] == "drained")
    assert picture.states[rank] == "offline"


async def test_a_reload_tells_of_the_new_targets(world):
    site = await world.bare(**SITE)
    peer = world.second(site)
    tag, picture = peer.open("resource.watch"), Picture()
    await follow(peer, tag, picture, lambda known: known.states)
    resources = (await peer.ok("resource.status"))["R"]
    resources["execution"] |= {"R_lite": [{"rank": "0-9", "children": {"core": "0-3"}}], "nodelist": ["fake[0-9]"]}
    await peer.ok("resource.reload", {"R": resources})
    await follow(peer, tag, picture, lambda known: known.states.keys() == set(range(10)))
    assert picture.states == true_states(site)
    assert picture.others["R"]["execution"]["nodelist"] == ["fake[0-9]"]


async def test_the_request_needs_the_streaming_flag(world):
    site = await world.bare(**SITE)
    peer = world.second(site)
    assert (await peer.refused("resource.watch"))[0] == errno.EPROTO


# The journal's readers are told of an event once it is on disk, as history or as news, never as both.


class SlowDisk:
    """A store that has not committed until `commit`."""

    def __init__(self):
        self._waiting = []

    def add(self, table, values):
        pass

    def remove(self, table, key):
        pass

    def after_commit(self, done):
        self._waiting.append(done)

    def when_idle(self, done):
        done()

    def commit(self):
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()


class Reader:
    """A request for the stream."""

    is_open = True

    def __init__(self):
        self.told = []

    def open_stream(self, on_end):
        pass

    def respond(self, payload):
        self.told += [event["name"] for event in payload["events"]] or ["mark"]


class Handlers(dict[str, Callable[[Any], None]]):
    """A router."""

    def serve(self, handlers):
        self.update(handlers)


@pytest.mark.plain_only("has stand-ins for router and requests")
def test_an_event_is_told_once_it_is_on_disk():
    history = [{"timestamp": 1.0, "name": "restart"}]
    disk, router = SlowDisk(), Handlers()
    service = JournalService(router, disk, lambda: history, dict)  # type: ignore[arg-type]
    early, late = Reader(), Reader()
    router["resource.journal"](early)
    drain = {"timestamp": 2.0, "name": "drain"}
    history.append(drain)
    service.add(drain)
    service.publish()
    router["resource.journal"](late)
    assert early.told == late.told == ["restart", "mark"]
    disk.commit()
    assert early.told == late.told == ["restart", "mark", "drain"]


# The named limits of the services, each reached.


async def test_so_many_agents_are_connected(world, monkeypatch):
    monkeypatch.setattr(instance, "AGENTS_MAX", 1)
    site = await world.bare(config="[[resource.config]]\nhosts = 'host[0-1]'\ncores = '0-1'\n")
    first, second = world.second(site), world.second(site)
    await first.ok("agent.hello", {"host": "host0", "heartbeat_s": 1.0})
    assert await second.refused("agent.hello", {"host": "host1", "heartbeat_s": 1.0}) == (
        errno.EMFILE, "agents report for 1 hosts, which is the limit",
    )  # fmt: skip


async def test_so_many_modules_are_loaded(world, monkeypatch):
    monkeypatch.setattr(modules, "MODULES_MAX", 0)
    peer = world.second(await world.bare())
    assert (await peer.refused("module.load", {"spec": "fifo"}))[0] == errno.EMFILE


async def test_the_store_keeps_so_many_events(world, monkeypatch):
    monkeypatch.setattr(resource, "STORED_EVENTS_MAX", 3)
    monkeypatch.setattr(resource, "PRUNE_EVENTS", 1)
    site = await world.bare()
    peer = world.second(site)
    for _ in range(4):
        await peer.ok("resource.drain", {"targets": "0", "reason": "fan"})
        await peer.ok("resource.undrain", {"targets": "0"})
    kept = [row[0] for row in site.store.read("SELECT event FROM journal ORDER BY seq")]
    assert len(kept) in (3, 4)
    assert b'"undrain"' in bytes(kept[-1])


async def test_a_scheduler_that_leaves_a_feasibility_check_unanswered_is_not_asked_again(world, monkeypatch):
    """Each submit would wait as long; once the answer has come it is asked again."""
    monkeypatch.setattr(scheduling, "FEASIBILITY_S", 0.05)
    site = await world.bare(fake="1x1")
    scheduler, user = world.second(site), world.second(site)
    await scheduler.schedule("default")
    jobspec = Jobspec.from_command(["true"]).to_json()
    errnum, text = await user.refused("feasibility.check", {"jobspec": jobspec})
    assert (errnum, "no answer of the scheduler in 0.05 s" in text) == (errno.ETIMEDOUT, True)
    errnum, text = await user.refused("feasibility.check", {"jobspec": jobspec})
    assert (errnum, "gets no more until it answers" in text) == (errno.ENOSYS, True)
    monkeypatch.undo()
    asked = await scheduler.request()
    assert (asked.topic, len(scheduler.requests)) == ("feasibility.check", 0)
    scheduler.answer("feasibility.check", tag=asked.tag)
    await scheduler.settle()
    tag = user.send("feasibility.check", {"jobspec": jobspec})
    scheduler.answer("feasibility.check", tag=(await scheduler.request()).tag)
    assert (await user.next(tag)).errnum == 0


# `instance.trace` over real sockets: messages as they pass, bounded, and without what users keep to themselves.


SECRET = "xyzzy-secret"
SPEC = Jobspec.from_command(["printenv", "TOKEN"], duration_s=10.0, cwd="/", environment={"TOKEN": SECRET}).to_json()


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
        await asyncio.sleep(2 * instance.TRACE_EVERY_S)
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
