"""The RPCs of jobs in a running instance."""

from __future__ import annotations

import asyncio
import copy
import errno
import os
import time

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import ARRAY_JOBS_MAX, Jobspec
from fluxsched.errors import RPCError
from fluxsched.jobs import query
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs as messages
from fluxsched.protocol.messages.instance import REASONS_MAX
from fluxsched.protocol.messages.jobs import LIST_START_MAX, QUEUE_WAITING_MAX, ListRequest
from fluxsched.services import job_streams, jobs, outages
from fluxsched.services.jobs import LIST_ENTRIES_MAX, list_query, stored_job
from fluxsched.services.scheduling import ANNOTATIONS_BYTES_MAX
from fluxsched.store.jobs import unpack_events
from fluxsched.store.store import Database
from fluxsched.system.clock import SystemClock
from tests.r import r_of

# Elastic jobs in an instance: a scheduler by hand grows and shrinks one; who follows it sees what is on disk.


ELASTIC = Jobspec.from_command(
    ["work"], nodes="1-3", exclusive=True, elastic=True, test_run_duration_s=3600.0
).to_json()


async def started(world, site):
    """A scheduler, a user, and the user's job on ranks 0 and 1."""
    sched, user = world.second(site), world.second(site)
    await sched.schedule("default")
    jobid = (await user.ok("job-manager.submit", {"jobspec": ELASTIC}))["id"]
    assert (await sched.request()).payload["id"] == jobid
    sched.answer("sched.alloc", {"id": jobid, "type": 0, "R": r_of("0-1")})
    while (await listed(user))["state"] != "RUN":
        pass
    return sched, user, jobid


async def listed(user):
    (found,) = (await user.ok("job-manager.list", {}))["jobs"]
    return dict(found)


def names(site, jobid):
    found = stored_job(site.store, jobid)
    assert found is not None
    return [event["name"] for event in found["eventlog"]]


async def test_a_change_is_on_disk_when_it_is_answered(world):
    site = await world.bare(fake="4x2")
    sched, user, jobid = await started(world, site)
    changes = user.open("job-manager.changes", {"id": jobid})
    first = (await user.next(changes)).payload
    assert (first["event"], first["ranks"]) == ("now", "0-1")
    assert first["R"]["execution"]["R_lite"] == r_of("0-1")["execution"]["R_lite"]
    assert await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("3")}) is None
    assert names(site, jobid)[-1] == "grow"
    grown = (await user.next(changes)).payload
    assert (grown["event"], grown["ranks"]) == ("grow", "3")
    assert grown["R"]["execution"]["R_lite"] == [{"rank": "0-1,3", "children": {"core": "0-1"}}]
    found = await listed(user)
    assert (found["nnodes"], found["ncores"], found["ranks"], found["nodelist"]) == (3, 6, "0-1,3", "fake[0-1,3]")
    ((running, ranks, *_, sizes),) = (await user.ok("job-manager.running", {}))["jobs"]
    assert (running, ranks, [(size[0], size[2]) for size in sizes]) == (jobid, "0-1,3", [("0-1", 4)])
    assert (await user.ok("job-manager.lookup", {"id": jobid, "keys": ["R"]}))["R"] == grown["R"]

    assert await sched.ok("job-manager.sched-shrink", {"id": jobid, "ranks": "1", "note": "for another"}) is None
    shrunk = (await user.next(changes)).payload
    assert (shrunk["event"], shrunk["ranks"], shrunk["note"]) == ("shrink", "1", "for another")
    free = (await sched.request()).payload
    assert (free.get("final", False), free["R"]["execution"]["R_lite"][0]["rank"]) == (False, "1")
    while names(site, jobid)[-1] != "release":
        await sched.settle()
    assert names(site, jobid)[-3:] == ["grow", "shrink", "release"]
    found = await listed(user)
    assert (found["nnodes"], found["ranks"]) == (2, "0,3")
    assert [(size[0], size[2]) for size in found["sizes"]] == [("0-1", 4), ("0-1,3", 6)]
    late = user.open("job-manager.changes", {"id": jobid})
    now = (await user.next(late)).payload
    assert (now["event"], now["ranks"]) == ("now", "0,3")
    await user.ok("job-manager.cancel", {"id": jobid})
    for stream in (changes, late):
        assert (await user.next(stream)).errnum == errno.ENODATA
    assert (await sched.request()).payload["final"] is True
    over = user.open("job-manager.changes", {"id": jobid})
    assert (await user.next(over)).errnum == errno.ENODATA


async def test_what_is_refused_says_why_and_the_scheduler_goes_on(world):
    site = await world.bare(fake="4x2", config='[resource.groups]\nlab = "fake3"\n')
    sched, user, jobid = await started(world, site)
    for topic, payload, errnum, text in (
        ("sched-grow", {"id": jobid, "R": r_of("3")}, errno.EPROTO, "targets 3, which are not its scheduler's"),
        ("sched-grow", {"id": jobid, "R": r_of("1-2")}, errno.EPROTO, "ranks 1, which it already holds"),
        ("sched-grow", {"id": jobid + 1, "R": r_of("2")}, errno.ENOENT, "is not known"),
        ("sched-shrink", {"id": jobid, "ranks": "0-1", "note": ""}, errno.EINVAL, "would have 0 nodes, and needs 1"),
        ("sched-shrink", {"id": jobid, "ranks": "x", "note": ""}, errno.EINVAL, "x"),
    ):
        found, said = await sched.refused(f"job-manager.{topic}", payload)
        assert (found, text in said) == (errnum, True), said
    found, said = await user.refused("job-manager.sched-grow", {"id": jobid, "R": r_of("2")})
    assert (found, "send job-manager.sched-hello" in said) == (errno.EPROTO, True)
    assert await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("2")}) is None
    site.scheduling.suspend()
    found, _ = await sched.refused("job-manager.sched-shrink", {"id": jobid, "ranks": "0", "note": ""})
    assert found == errno.ESHUTDOWN


async def test_a_job_that_runs_in_another_instance_keeps_its_size(world):
    site = await world.bare(fake="4x2")
    sched, _, jobid = await started(world, site)

    class Leases:
        def has(self, leased):
            return leased == jobid

        def explain(self, job, why):
            return why

        def extend_listed(self, jobs): ...

    site.effects.add_leases(Leases())
    for topic, payload in (("grow", {"R": r_of("3")}), ("shrink", {"ranks": "1", "note": ""})):
        found, said = await sched.refused(f"job-manager.sched-{topic}", {"id": jobid, **payload})
        assert (found, "its size was settled when it was sent" in said) == (errno.EOPNOTSUPP, True)


@pytest.mark.plain_only("replaces a method")
async def test_a_job_that_ends_in_the_transaction_of_its_grow_is_freed_without_it(world, monkeypatch):
    site = await world.bare(fake="4x2")
    sched, _, jobid = await started(world, site)
    allocation, effects = site.effects.manager.allocation, site.effects
    before = allocation.grow

    def grow(*args):
        made = before(*args)
        site.turns.post(lambda: effects.finished(jobid, 0, None))
        return made

    monkeypatch.setattr(type(allocation), "grow", lambda self, *args: grow(*args))
    found, said = await sched.refused("job-manager.sched-grow", {"id": jobid, "R": r_of("3")})
    assert (found, "ended while it grew" in said) == (errno.EINVAL, True)
    free = (await sched.request()).payload
    assert (free.get("final", False), free["R"]["execution"]["R_lite"][0]["rank"]) == (True, "0-1")


async def test_a_client_follows_the_size_of_a_job(world):
    site = await world.bare(fake="4x2")
    sched, _, jobid = await started(world, site)
    handle = await world.client(site)
    stream = await handle.changes(jobid)
    assert (await anext(stream))["event"] == "now"
    await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("3")})
    assert (await anext(stream))["ranks"] == "3"
    await handle.cancel(jobid)
    assert [one async for one in stream] == []


async def test_a_job_that_gets_a_target_of_an_outage_that_ends_jobs_is_to_end(world):
    site = await world.bare(fake="4x2")
    sched, user, jobid = await started(world, site)
    outage = {"targets": "2", "from": time.time(), "for": 600.0, "end_jobs": True}
    await user.ok("resource.outage-add", outage)
    # its scheduler has decided before it was told of the outage
    assert await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("2")}) is None
    asked = await sched.request()
    assert (asked.topic, asked.payload["id"]) == ("sched.expiration", jobid)
    assert asked.payload["expiration"] <= time.time()


async def test_an_outage_that_is_removed_before_a_scheduler_has_answered_ends_no_job(world):
    site = await world.bare(fake="4x2")
    sched, user, jobid = await started(world, site)
    begin_s = time.time() + 3000.0
    outage = {"targets": "1", "from": begin_s, "for": 600.0, "end_jobs": True, "name": "upd"}
    await user.ok("resource.outage-add", outage)
    asked = await sched.request()
    assert asked.payload == {"id": jobid, "expiration": begin_s}
    await user.ok("resource.outage-remove", {"name": "upd"})
    sched.answer("sched.expiration", tag=asked.tag)
    asked = await sched.request()
    assert (asked.topic, asked.payload) == ("sched.expiration", {"id": jobid, "expiration": 0.0})


async def test_a_job_that_leaves_the_target_of_an_outage_gets_back_its_end(world, monkeypatch):
    monkeypatch.setattr(outages, "ASK_AGAIN_S", 1e6)  # else it may be noticed by chance
    site = await world.bare(fake="4x2")
    sched, user, jobid = await started(world, site)
    begin_s = time.time() + 3000.0
    await user.ok("resource.outage-add", {"targets": "1", "from": begin_s, "for": 600.0, "end_jobs": True})
    asked = await sched.request()
    assert asked.payload == {"id": jobid, "expiration": begin_s}
    sched.answer("sched.expiration", tag=asked.tag)
    assert await sched.ok("job-manager.sched-shrink", {"id": jobid, "ranks": "1", "note": ""}) is None
    assert (await sched.request()).topic == "sched.free"
    assert (await sched.request()).payload == {"id": jobid, "expiration": 0.0}


async def test_a_target_that_a_job_gets_again_before_it_is_stored_that_it_left_it_remains_held(world):
    site = await world.bare(fake="4x2")
    sched, user, jobid = await started(world, site)
    (scheduler,) = site.effects.manager.links
    allocation, execution = site.effects.manager.allocation, site.effects.manager.execution
    again = Idset.parse("1")

    def in_one_turn():
        now_s = site.effects.now_s
        site.effects.perform(allocation.shrink(scheduler.scheduler, jobid, again, "", now_s))
        site.effects.perform(execution.released(jobid, again, False, now_s))
        site.effects.perform(allocation.grow(scheduler.scheduler, jobid, r_of("1"), now_s))

    site.turns.post(in_one_turn)
    assert (await sched.request()).payload["id"] == jobid
    await user.ok("job-manager.memo", {"id": jobid, "memo": {"stored": True}})
    assert site.resource.module._target_use.of(jobid) == Idset.parse("0-1")
    await user.ok("job-manager.cancel", {"id": jobid})
    await user.ok("job-manager.wait", {"id": jobid})
    assert not site.resource.module._target_use.of(jobid)


async def test_a_job_begins_with_what_is_stored_and_not_with_what_it_grew_by_meanwhile(world, eventually):
    site = await world.bare(fake="4x2")
    sched, user = world.second(site), world.second(site)
    await sched.schedule("default")
    jobid = (await user.ok("job-manager.submit", {"jobspec": ELASTIC}))["id"]
    assert (await sched.request()).payload["id"] == jobid
    executor = site.effects.executors["test"] = Recorder(site)
    allocation, now_s = site.effects.manager.allocation, site.effects.now_s

    def both():
        peer = allocation._lifecycle.links.serving("default").scheduler
        site.effects.perform(allocation.alloc_granted(peer, jobid, r_of("0"), None, now_s))
        site.effects.perform(allocation.grow(peer, jobid, r_of("3"), now_s))

    site.turns.post(both)
    site.turns.wake()
    await eventually(lambda: len(executor.told) == 2)
    assert executor.told == [("start", r_of("0")), ("grow", r_of("3"))]


class Recorder:
    """An executor that notes what it is told."""

    def __init__(self, site):
        self.site, self.told = site, []

    def start(self, job):
        self.told.append(("start", job.R))

    def grow(self, jobid, r):
        self.told.append(("grow", r))

    def kill(self, jobid, signum, grace_s):
        self.site.turns.post(lambda: self.site.effects.exec_failed(jobid, "killed"))

    def close(self):
        pass


# A preempted job that is submitted again, as its clients see it: waits, cancels and listings mean its last attempt.


SPEC = Jobspec.from_command(["true"], test_run_duration_s=3600.0).to_json()
NOTE = "for job ƒX of default/ann: U 0 of S 8"


def spec(requeue=1, **system):
    made = copy.deepcopy(SPEC)
    made["attributes"]["system"] |= {"fluxsched": {"requeue": requeue}, **system}
    return made


async def submitted(peer, **system):
    return int((await peer.ok("job-manager.submit", {"jobspec": spec(**system)}))["id"])


async def preempt(peer, jobid):
    await until(peer, jobid, "start")
    await peer.ok("job-manager.raise", {"id": jobid, "type": "preempt", "severity": 0, "note": NOTE})


async def until(peer, jobid, event):
    """The events of a job up to this one."""
    tag = peer.open("job-manager.eventlog", {"id": jobid, "follow": True})
    found = []
    while event not in [one["name"] for one in found]:
        found += (await peer.next(tag)).payload["events"]
    peer.cancel("job-manager.eventlog", tag)
    return found


async def after(peer, jobid):
    """The attempt after a job that ends now."""
    (*_, clean) = await until(peer, jobid, "clean")
    return int(clean["context"]["requeue"]["as"])


async def test_every_waiter_is_told_of_the_last_attempt(world):
    site = await world.instance()
    peer, other = world.second(site), world.second(site)
    first, plain = await submitted(peer, requeue=2), await submitted(peer, requeue=0)
    waits = [one.send("job-manager.wait", {"id": first}) for one in (peer, other)]
    all_waits = [one.open("job-manager.wait-all", {"ids": [first, plain]}) for one in (peer, other)]
    clean = peer.open("job-manager.watch", {"names": ["clean"]})
    await preempt(peer, first)
    second = await after(peer, first)
    (news,) = (await peer.next(clean)).payload["events"]
    assert (news[0], news[3]["requeued_as"], news[3]["success"]) == (first, second, False)
    waits.append(peer.send("job-manager.wait", {"id": first}))
    all_waits.append(peer.open("job-manager.wait-all", {"ids": [first, second]}))
    await preempt(peer, second)
    third = await after(peer, second)
    await preempt(peer, plain)
    assert [one.peer is not None for one in site.waits._left] == [True] * 3
    assert not any(peer.waiting(tag) for tag in (waits[0], waits[2]))
    await peer.ok("job-manager.cancel", {"id": third, "note": "enough"})
    expected = {"id": first, "last": third, "success": False, "exception_type": "cancel", "exception_note": "enough"}
    for at, one in ((0, peer), (1, other), (2, peer)):
        found = (await one.next(waits[at])).payload
        assert {key: found[key] for key in expected} == expected
    for at, one in ((0, peer), (1, other)):
        found = [(await one.next(all_waits[at])).payload for _ in range(2)]
        assert sorted((each["id"], each.get("last")) for each in found) == [(first, third), (plain, None)]
        assert (await one.next(all_waits[at])).errnum == errno.ENODATA
    found = [(await peer.next(all_waits[2])).payload for _ in range(2)]
    assert [(each["id"], each["last"]) for each in found] == [(first, third), (second, third)]
    assert (await peer.ok("job-manager.wait", {"id": second}))["last"] == third
    assert site.waits._left == site.streams._waits == {}


async def test_what_is_done_to_an_earlier_attempt_is_done_to_the_last(world):
    site = await world.instance(fake="1x1")
    peer = world.second(site)
    first = await submitted(peer)
    await until(peer, first, "start")
    urgent = (await peer.ok("job-manager.submit", {"jobspec": spec(0), "urgency": 20}))["id"]
    await preempt(peer, first)
    second = await after(peer, first)
    await until(peer, urgent, "start")
    assert await peer.ok("job-manager.urgency", {"id": first, "urgency": 17}) == {"old": 16}
    await peer.ok("job-manager.update", {"id": first, "updates": {"attributes.system.duration": 60}})
    text = await peer.refused("job-manager.kill", {"id": first, "signum": 10})
    assert text[0] == errno.EINVAL
    assert f"job {format_f58(second)} is in state SCHED" in text[1]
    for kind in ("exec", "preempt"):  # these mean the very job, whatever its user has
        text = await peer.refused("job-manager.raise", {"id": first, "type": kind, "severity": 0})
        assert f"job {format_f58(first)} has ended" in text[1]
    (job,) = (await peer.ok("job-manager.list", {"ids": [second]}))["jobs"]
    assert (job["state"], job["urgency"], job["duration"]) == ("SCHED", 17, 60)
    assert (job["attempt"], job["requeue_of"], job["requeue"]) == (1, first, 1)
    await peer.ok("job-manager.raise", {"id": first, "type": "cancel", "severity": 0})
    found = await peer.ok("job-manager.wait", {"id": first})
    assert (found["last"], found["exception_type"]) == (second, "cancel")
    (job,) = (await peer.ok("job-manager.list", {"ids": [first]}))["jobs"]
    assert (job["result"], job["requeued_as"], job["exception"]["note"]) == ("FAILED", second, NOTE)
    assert await peer.ok("job-manager.usage", {"id": second}) == {"usage": None}, "it waits"
    why = await peer.ok("job-manager.why", {"id": second})
    assert why["attempt"] == f"attempt 1 of 1; {format_f58(first)} ended with exception preempt: {NOTE}"
    why = await peer.ok("job-manager.why", {"id": first})
    assert why["reason"] == (
        f"it has ended: exception preempt: {NOTE}; it was submitted again as job {format_f58(second)}"
    )


async def test_the_end_of_an_attempt_and_the_next_one_are_one_transaction(world, monkeypatch):
    """And what moves with it: all that a crash could tear apart."""
    transactions = []
    transact = Database._transact

    def recorded(store, connection, groups):
        rows = [row for table, some in groups if table == "job_log" for row in some]
        transactions.append({row[0]: [event["name"] for event in unpack_events(row[2])] for row in rows})
        transact(store, connection, groups)

    monkeypatch.setattr(Database, "_transact", recorded)
    peer = world.second(await world.instance())
    first = await submitted(peer)
    dependency = {"scheme": "afterok", "value": format_f58(first)}
    dependent = await submitted(peer, requeue=0, dependencies=[dependency])
    await preempt(peer, first)
    second = await after(peer, first)
    (ending,) = [rows for rows in transactions if "clean" in rows.get(first, ())]
    assert "submit" in ending[second]
    assert [name.partition("-")[0] for name in ending[dependent]].count("dependency") == 2
    await peer.ok("job-manager.cancel", {"id": first})


# A policy preempts in a real instance: by an exception of its scheduler, which ends the job and frees its place.


POLICY = '''
from fluxsched.sched.policies.backfill import Fifo
from fluxsched.sched.policy import Preempt

class Eager(Fifo):
    """Preempts whatever it may for the first that waits."""
    name = "eager"
    def schedule(self, view, now_s):
        yield from super().schedule(view, now_s)
        if view.first is not None:
            for job in list(view.running):
                yield Preempt(job.jobid, view.first.jobid, "account b uses 0 of its share 4")
'''


@pytest.mark.parametrize("reload", [False, True])
async def test_a_victim_ends_with_an_exception_and_its_place_goes_to_the_beneficiary(world, timed, reload):
    """After a reload the scheduler knows by its jobspec that the job may be preempted."""
    site = await world.instance(fake="1x1", schedulers=(str(world.write("eager.py", POLICY)),))
    peer = world.second(site)
    victim = timed("60s").to_json()
    victim["attributes"]["system"]["preemptible-after"] = 0
    first = (await peer.ok("job-manager.submit", {"jobspec": victim}))["id"]
    log = peer.open("job-manager.eventlog", {"id": first, "follow": True})
    names = list[str]()
    while "start" not in names:
        names += [event["name"] for event in (await peer.next(log)).payload["events"]]
    if reload:
        await peer.ok("module.reload", {"name": "sched-eager"})
    second = (await peer.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    ended = await peer.ok("job-manager.wait", {"id": first})
    assert (ended["success"], ended["exception_type"]) == (False, "preempt")
    assert ended["exception_note"].startswith("preempted so that job ")
    assert ended["exception_note"].endswith(": account b uses 0 of its share 4")
    assert (await peer.ok("job-manager.wait", {"id": second}))["success"] is True


async def test_a_job_that_has_not_allowed_it_is_left_alone(world, timed):
    site = await world.instance(fake="1x1", schedulers=(str(world.write("eager.py", POLICY)),))
    peer = world.second(site)
    first = (await peer.ok("job-manager.submit", {"jobspec": timed("200ms").to_json()}))["id"]
    second = (await peer.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    for jobid in (first, second):
        assert (await peer.ok("job-manager.wait", {"id": jobid}))["success"] is True


# A job that waits for a date follows the clock of the machine, however that is set meanwhile.


async def test_a_clock_that_is_set_forward_begins_what_is_due(world, timed, monkeypatch):
    ahead_s = 0.0
    monkeypatch.setattr(SystemClock, "wall_s", staticmethod(lambda: time.time() + ahead_s))
    peer = world.second(await world.instance())
    begin = {"scheme": "begin-time", "value": str(time.time() + 3600)}
    jobid = (await peer.ok("job-manager.submit", {"jobspec": timed(dependencies=[begin]).to_json()}))["id"]
    assert (await peer.ok("job-manager.why", {"id": jobid}))["state"] == "DEPEND"
    ahead_s = 7200.0
    async with asyncio.timeout(60):
        await peer.ok("job-manager.wait", {"id": jobid})


# `job-manager.running` of a real instance: what holds resources, and how much of it is shown.


async def test_what_runs_is_listed_with_its_targets_and_limit(world, timed):
    site = await world.instance(fake="4x4", config="[queues.batch]\n")
    client = await world.client(site)
    small = await client.submit(timed("1h", ntasks=1, queue="batch", duration_s=600.0, name="<i>"))
    large = await client.submit(timed("1h", nodes=3, exclusive=True, queue="batch", duration_s=600.0))
    async for message in client.stream("job-manager.watch", {"names": ["start"], "history": True}):
        if large in [event[0] for event in message["events"]]:
            break
    found = await client.running()
    assert ([entry[0] for entry in found["jobs"]], found["left_out"]) == ([large, small], 0)
    jobid, ranks, t_run, expiration, ncores, userid, queue, name, _ = found["jobs"][1]
    assert (jobid, ncores, userid, queue, name) == (small, 1, os.getuid(), "batch", "<i>")
    assert abs(expiration - t_run - 600) < 60
    other = [f"fake{rank}" for rank in range(4) if str(rank) != ranks]
    assert [entry[0] for entry in (await client.running(",".join(other)))["jobs"]] == [large]
    assert (await client.running(ranks))["jobs"][0][0] == small
    assert (await client.running(max_entries=1))["left_out"] == 1
    asker = world.second(site)
    errnum, text = await asker.refused("job-manager.running", {"targets": "fake[3-5]"})
    assert (errnum, "fake[4-5]" in text) == (errno.EINVAL, True)


async def test_an_answer_has_a_limit(world, timed, monkeypatch):
    monkeypatch.setattr(jobs, "RUNNING_JOBS_MAX", 2)
    assert query.RUNNING_JOBS_MAX == 10_000
    site = await world.instance(fake="4x4")
    client = await world.client(site)
    ids = [await client.submit(timed("1h")) for _ in range(3)]
    seen = set()
    async for message in client.stream("job-manager.watch", {"names": ["start"], "history": True}):
        seen |= {event[0] for event in message["events"]}
        if seen == set(ids):
            break
    found = await client.running(max_entries=3)
    assert (len(found["jobs"]), found["left_out"]) == (2, 1)


@pytest.mark.plain_only("replaces a method")
async def test_a_queue_names_its_first_waiting_jobs_and_to_guests_in_private_mode_their_own(world, monkeypatch):
    site = await world.bare(fake="1x1", config="[queues.batch]\n[queues.debug]\n")
    client, asker = await world.client(site), world.second(site)
    ids = [await client.submit(Jobspec.from_command(["true"], queue="batch"), urgency) for urgency in (16, 0, 31)]

    async def waiting(count, queue="batch"):
        return (await asker.ok("job-manager.queue-status", {"name": queue, "waiting": count})).get("waiting")

    assert await waiting(QUEUE_WAITING_MAX) == [ids[2], ids[0], ids[1]]
    assert (await waiting(1), await waiting(0), await waiting(1, "debug")) == ([ids[2]], None, [])
    too_many = {"name": "batch", "waiting": QUEUE_WAITING_MAX + 1}
    assert (await asker.refused("job-manager.queue-status", too_many))[0] == errno.EPROTO
    monkeypatch.setattr(site.router.permissions, "sees_only", lambda request: os.getuid() + 1)
    assert await waiting(9) == []
    assert (QUEUE_WAITING_MAX, query.WAITING_LOOKED_MAX) == (REASONS_MAX, 10_000)


# Limits of the services about jobs, each reached.


SLEEP = Jobspec.from_command(["true"], duration_s=10.0, test_run_duration_s=0.001).to_json()


def test_one_list_answer_has_a_limit():
    for asked, given in ((5, 5), (0, LIST_ENTRIES_MAX), (LIST_ENTRIES_MAX + 1, LIST_ENTRIES_MAX)):
        assert list_query(ListRequest(max_entries=asked)).max_entries == given


async def test_a_list_in_an_order_has_pages_and_the_count_of_all(world):
    peer = world.second(await world.instance())
    ids = [(await peer.ok("job-manager.submit", {"jobspec": SLEEP, "urgency": 0}))["id"] for _ in range(3)]

    async def page(**more):
        found = await peer.ok("job-manager.list", {"max_entries": 2, **more})
        return [job["id"] for job in found["jobs"]], found["count"]

    assert await page(order="id") == (ids[:2], 3)
    assert await page(order="id", start=2) == (ids[2:], 3)
    assert await page(order="t_submit", descending=True, start=1) == (ids[1::-1], 3)
    assert await page(order="active", start=LIST_START_MAX) == ([], 3)
    assert (await peer.refused("job-manager.list", {"order": "id", "start": LIST_START_MAX + 1}))[0] == errno.EPROTO
    assert (await peer.refused("job-manager.list", {"order": "colour"}))[0] == errno.EPROTO
    for wrong in ({"start": 1}, {"descending": True}, {"order": "active", "descending": True}):
        assert (await peer.refused("job-manager.list", wrong))[0] == errno.EINVAL


async def test_a_list_in_the_order_of_an_attribute_has_a_limit_of_its_own(world, monkeypatch):
    assert messages.LIST_SORTED_MAX == 5_000
    monkeypatch.setattr(messages, "LIST_SORTED_MAX", 2)
    peer = world.second(await world.instance())
    ids = [(await peer.ok("job-manager.submit", {"jobspec": SLEEP, "urgency": 0}))["id"] for _ in range(3)]
    for more, expected in (({}, ids[:2]), ({"start": 1}, ids[1:]), ({"max_entries": 1}, ids[:1])):
        found = await peer.ok("job-manager.list", {"order": "id", "max_entries": 0, **more})
        assert ([job["id"] for job in found["jobs"]], found["count"]) == (expected, 3)


async def test_a_watch_response_has_few_events(world, monkeypatch):
    monkeypatch.setattr(job_streams, "WATCH_EVENTS_MAX", 3)
    peer = world.second(await world.instance())
    jobid = (await peer.ok("job-manager.submit", {"jobspec": SLEEP}))["id"]
    await peer.ok("job-manager.wait", {"id": jobid})
    tag = peer.open("job-manager.watch", {"ids": [jobid], "history": True})
    names = []
    while "clean" not in names:
        events = (await peer.next(tag)).payload["events"]
        assert 0 < len(events) <= 3
        names += [name for _, _, name, _ in events]
    assert names[0] == "submit"


async def test_only_short_annotations_are_shared(world):
    memo = (await world.instance()).scheduling.annotations
    for chars, shared in ((10, True), (ANNOTATIONS_BYTES_MAX, False)):
        data = framing.pack({"sched": {"reason_pending": "x" * chars}})
        assert (memo.read(data) is memo.read(data)) == shared


# Jobs that are submitted together.

WORD = [["tasks", 0, "command", 0]]


async def test_an_array_is_as_if_its_jobs_had_come_one_by_one(world):
    limits = '[[limits]]\nuser = "*"\nwaiting = 3\n'
    site = await world.bare(fake="4x2", config=limits)
    handle = await world.client(site)
    spec = Jobspec.from_command(["a"], cwd="/", environment={})
    first = await handle.submit_array(spec, WORD, [["a"], [""], ["b"]])
    ids = first["ids"]
    assert [bool(jobid) for jobid in ids] == [True, False, True]
    [(row, errnum, text)] = first["refused"]
    assert (row, errnum, "tasks[0].command[0] is empty" in text) == (1, errno.EINVAL, True)
    more = await handle.submit_array(spec, WORD, [["c"], ["d"]], array=ids[0])
    assert [(row, errnum) for row, errnum, _ in more["refused"]] == [(1, errno.EAGAIN)], "three wait, the limit"
    for jobid, word, array in ((ids[0], "a", 0), (ids[2], "b", ids[0]), (more["ids"][0], "c", ids[0])):
        found = stored_job(site.store, jobid)
        assert found is not None
        assert found["jobspec"]["tasks"][0]["command"] == [word]
        assert found["jobspec"]["attributes"]["system"]["array"] == array
    with pytest.raises(RPCError, match="3 jobs wait, 3 may"):
        await handle.submit_array(spec, WORD, [["e"], ["f"]])
    assert len((await handle.rpc("job-manager.list"))["jobs"]) == 3


async def test_an_array_has_so_many_jobs_a_request(world):
    handle = await world.client(await world.bare(fake="4x2"))
    spec = Jobspec.from_command(["a"], cwd="/", environment={})
    for count in (0, ARRAY_JOBS_MAX + 1):
        with pytest.raises(RPCError, match=f"{count} jobs in one request, which has 1 to {ARRAY_JOBS_MAX}"):
            await handle.submit_array(spec, WORD, [["a"]] * count)
    found = await handle.submit_array(spec, WORD, [["a"]] * ARRAY_JOBS_MAX)
    assert len(set(found["ids"])) == ARRAY_JOBS_MAX


async def test_each_reason_has_a_kind_also_of_a_scheduler_that_gives_none(world, timed):
    site = await world.bare(fake="1x1")
    client, peer = await world.client(site), world.second(site)
    await peer.schedule("default")
    held = await client.submit(timed(), urgency=0)
    sent = await client.submit(timed())
    asked = asyncio.create_task(client.rpc("job-manager.reasons", {"ids": [held, sent]}))
    while (question := await peer.request()).topic != "sched.reasons":
        pass
    peer.answer("sched.reasons", {"jobs": [[sent, "wait and see", None, False]]}, tag=question.tag)
    answer = await asked
    kinds = {row[0]: kind for row, kind in zip(answer["jobs"], answer["kinds"], strict=True)}
    assert kinds == {held: "held", sent: "other reasons"}
    assert (await client.rpc("job-manager.why", {"id": held}))["kind"] == "held"
