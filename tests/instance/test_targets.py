"""Targets of a running instance: acquired, drained, moved, watched."""

from __future__ import annotations

import asyncio
import errno
import getpass
import os
import re
import signal

import pytest

from fluxsched.client.aio import AsyncHandle
from fluxsched.core.batch import ADDRESS_KEY
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, Refused
from fluxsched.instance.enclosing import EnclosedTargets, cannot_reload, grace_of
from tests.r import r_of
from tests.waiting import until

# Acquisition on the wire, in both dialects, as somebody else's client reads it (RFC 28 and its draft with groups).


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


async def test_cancel_and_loss_free_the_group(world, site, peer, eventually):
    stream = peer.open("resource.acquire", {"group": "default"})
    await peer.next(stream)
    peer.cancel("resource.acquire", stream)
    ended = await peer.next(stream)
    assert (ended.errnum, bool(ended.flags & STREAMING)) == (errno.ENODATA, True)
    stream = peer.open("resource.acquire", {"group": "default"})
    assert (await peer.next(stream)).payload["offline"] == "0-3,6"
    other = world.second(site)
    errnum, text = await other.refused("resource.acquire", {"group": "default"}, flags=STREAMING)
    assert errnum == errno.EBUSY
    [holder] = site.resource._acquirers
    assert text == (
        f"group 'default' is acquired already by a client of {holder.who} (connection {holder.peer.name}), "
        "which must end first"
    )
    peer.close()
    await eventually(lambda: not site.resource.report()["acquirers"])
    assert (await other.next(other.open("resource.acquire", {"group": "default"}))).errnum == 0


async def test_a_matchtag_in_use_leaves_the_first_stream_whole(world, peer, site, eventually):
    stream = peer.open("resource.acquire", {"group": "default"})
    await peer.next(stream)
    found, text = await peer.refused("resource.acquire", {"group": "debug"}, tag=stream, flags=STREAMING)
    assert (found, "in use" in text) == (errno.EPROTO, True)
    await peer.ok("resource.assign", {"targets": "0", "group": "debug"})
    assert (await peer.next(stream)).payload == {"type": "shrink", "targets": "0"}
    peer.close()
    await eventually(lambda: not site.resource.report()["acquirers"])


# Drain and undrain over real sockets: every mode, every error text, and what status and acquirers show of it.


HOSTS = """
[resource]
exclude = "host7"
[[resource.config]]
hosts = "host[0-7]"
cores = "0-1"
"""


@pytest.fixture
async def two_hosts(world):
    return await world.bare(config=HOSTS)


@pytest.fixture
def admin(world, two_hosts):
    return world.second(two_hosts)


async def lines(admin):
    drain = (await admin.ok("resource.status"))["drain"]
    return {targets: line["reason"] for targets, line in drain.items()}


async def test_who_when_and_why(admin, two_hosts):
    before_s = two_hosts.settings.clock.wall_s()
    await admin.ok("resource.drain", {"targets": "host[0,2]", "reason": "bad DIMM"})
    after_s = two_hosts.settings.clock.wall_s()
    (line,) = (await admin.ok("resource.status"))["drain"].values()
    assert before_s <= line.pop("timestamp") <= after_s
    assert line == {"reason": "bad DIMM", "user": getpass.getuser(), "state": "drained"}
    assert await lines(admin) == {"0,2": "bad DIMM"}


async def test_no_reason_is_an_empty_text(admin):
    """Stock clients insist on a string."""
    await admin.ok("resource.drain", {"targets": "0"})
    assert await lines(admin) == {"0": ""}


@pytest.mark.parametrize(
    ("targets", "errnum", "words"),
    [
        ("0-3,9,12", errno.EINVAL, ("9,12", "not exist|unknown")),
        ("host[1,10-11]", errno.EINVAL, ("host[10-11]",)),
        ("3,7", errno.EINVAL, ("7", "host7", "excluded")),
        ("7,9", errno.EINVAL, ("9",)),
        ("0-1,5", errno.EEXIST, ("0-1", "host[0-1]", "already drained")),
        ("1,7", errno.EEXIST, ("1", "7", "excluded", "already drained")),
        ("", errno.EINVAL, ("empty",)),
        ("3,1", errno.EINVAL, ("3,1",)),
        ("1,,2", errno.EINVAL, ("1,,2",)),
        ("0-4000000000", errno.EINVAL, ("4000000000",)),
        ("host[0-99999999]", errno.EINVAL, ("100000000", "limit")),
        ("x" * 5000, errno.EINVAL, ()),
    ],
)
async def test_all_offenders_are_named_and_nothing_is_done_by_halves(admin, targets, errnum, words):
    await admin.ok("resource.drain", {"targets": "0-1", "reason": "first"})
    found, text = await admin.refused("resource.drain", {"targets": targets, "reason": "late"})
    assert found == errnum, text
    assert all(any(one in text for one in word.split("|")) for word in words), text
    assert len(text) < 600
    assert await lines(admin) == {"0-1": "first"}


async def test_draining_until_no_job_holds_it(world, timed, eventually):
    two_hosts = await world.instance()
    admin = world.second(two_hosts)
    jobid = (await admin.ok("job-manager.submit", {"jobspec": timed("60s").to_json()}))["id"]
    await eventually(lambda: two_hosts.resource.module.held)
    held = str(two_hosts.resource.module.held)
    await admin.ok("resource.drain", {"targets": "0-3"})
    status = await admin.ok("resource.status")
    assert {line["state"]: targets for targets, line in status["drain"].items()}["draining"] == held
    shares = await admin.ok("resource.sched-status")
    assert [r["rank"] for r in shares["allocated"]["execution"]["R_lite"]] == [held]
    assert shares["allocated"]["execution"]["R_lite"][0]["children"] == {"core": "0"}
    assert [r["rank"] for r in shares["down"]["execution"]["R_lite"]] == ["0-3"]
    waiting = (await admin.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    await admin.ok("job-manager.cancel", {"id": jobid})
    await eventually(lambda: not two_hosts.resource.module.held)
    status = await admin.ok("resource.status")
    assert {line["state"]: targets for targets, line in status["drain"].items()} == {"drained": "0-3"}
    await admin.ok("resource.undrain", {"targets": "1"})
    assert (await admin.ok("job-manager.wait", {"id": waiting}))["success"]
    found = await admin.ok("job-manager.lookup", {"id": waiting, "keys": ["R"]})
    assert found["R"]["execution"]["R_lite"] == [{"rank": "1", "children": {"core": "0"}}]


async def test_status_of_everything_at_once(world, admin, two_hosts):
    agent = world.second(two_hosts)
    await agent.ok("agent.hello", {"host": "host1", "heartbeat_s": 1.0})
    await admin.ok("resource.drain", {"targets": "2"})
    await admin.ok("resource.assign", {"targets": "4-5", "group": "b"})
    status = await admin.ok("resource.status")
    assert status["R"]["execution"]["nodelist"] == ["host[0-7]"]
    found = {name: status[name] for name in ("online", "offline", "exclude", "torpid", "groups")}
    assert found == {
        "online": "1",
        "offline": "0,2-7",
        "exclude": "7",
        "torpid": "",
        "groups": {"default": "0-3,6", "b": "4-5", "exclude": "7"},
    }
    shares = await admin.ok("resource.sched-status")
    made_up = shares.pop("made_up", "")
    assert made_up == "0-6"
    ranks = {name: [r["rank"] for r in share["execution"]["R_lite"]] for name, share in shares.items()}
    assert ranks == {"all": ["0-6"], "down": ["0,2-6"], "allocated": []}
    assert shares["allocated"]["execution"]["nodelist"] == [""]


# Targets go from group to group over real sockets, with jobs on them and schedulers that vanish (design, Groups).


STUBBORN = ["/bin/sh", "-c", "trap '' TERM; echo ready > {0}; while :; do sleep 0.02; done"]
QUICK_KILL = """
[exec]
kill-timeout = "1500ms"
[[resource.config]]
hosts = "host[0-3]"
cores = "0-3"
[queues.batch]
[queues.other]
group = "b"
[resource.groups]
b = ""
"""


def groups_of(answer):
    return {group["name"]: (group["targets"], group["leaving"], group["incoming"]) for group in answer["groups"]}


async def events_of(peer, jobid):
    found = await peer.ok("job-manager.lookup", {"id": jobid, "keys": ["eventlog"]})
    return [event["name"] for event in found["eventlog"]]


async def test_shrink_release_grow(world):
    site = await world.bare()
    a, b, admin = (world.second(site) for _ in range(3))
    stream_a = a.open("resource.acquire", {"group": "default"})
    await a.next(stream_a)
    assert await admin.ok("resource.assign", {"targets": "", "group": "b"}) == {
        "moved": "", "leaving": "", "draining": "", "there": "", "ending": []
    }  # fmt: skip
    stream_b = b.open("resource.acquire", {"group": "b"})
    assert (await b.next(stream_b)).payload["online"] == ""
    answer = await admin.ok("resource.assign", {"targets": "fake[2-3]", "group": "b"})
    assert answer == {"moved": "", "leaving": "2-3", "draining": "", "there": "", "ending": []}
    answer = await admin.ok("resource.include", {"targets": "0-1"})
    assert answer == {"moved": "", "leaving": "", "draining": "", "there": "0-1", "ending": []}
    assert (await a.next(stream_a)).payload == {"type": "shrink", "targets": "2-3"}
    assert groups_of(await admin.ok("resource.groups"))["default"] == ("0-1", "2-3", "")
    await admin.ok("resource.drain", {"targets": "2", "reason": "disk"})  # applies, and shows in b's grow alone
    await admin.settle()
    await a.ok("resource.release", {"group": "default", "targets": "2-3"})
    grown = (await b.next(stream_b)).payload
    assert (grown["type"], grown["online"], grown["offline"]) == ("grow", "3", "2")
    assert grown["resources"]["execution"]["nodelist"] == ["fake[2-3]"]
    assert a.waiting(stream_a) == []
    site.check()
    assert groups_of(await admin.ok("resource.groups"))["b"] == ("2-3", "", "")


async def test_a_scheduler_ends_jobs_on_a_move_and_judges_again(world, timed, eventually):
    """The real module: shrink, exception, free, release; the grow of the other group starts what waits there."""
    site = await world.instance(
        config="[queues.batch]\n[queues.other]\ngroup='b'\n[resource.groups]\nb='host3'\n"
        "[[resource.config]]\nhosts='host[0-3]'\ncores='0-3'\n"
        "[[scheduler]]\npolicy='fifo'\n[[scheduler]]\npolicy='firstfit'\ngroups=['b']\n",
    )
    user = world.second(site)
    agents = [world.second(site) for _ in range(4)]
    for number, agent in enumerate(agents):
        await agent.ok("agent.hello", {"host": f"host{number}", "heartbeat_s": 1.0})
    wide = timed("60s", nodes=2, exclusive=True, queue="batch").to_json()
    one = (await user.ok("job-manager.submit", {"jobspec": wide}))["id"]
    await eventually(lambda: site.resource.module.held)
    held = site.resource.module.held
    never = timed("60s", nodes=3, queue="batch").to_json()
    two = (await user.ok("job-manager.submit", {"jobspec": never}))["id"]
    later = timed("1ms", nodes=2, queue="other").to_json()
    denied, text = await user.refused("feasibility.check", {"jobspec": later})
    assert (denied, "1 node" in text or "2 nodes" in text) == (errno.EOVERFLOW, True)
    await user.ok("resource.assign", {"targets": str(held), "group": "b"})
    result = await user.ok("job-manager.wait", {"id": one})
    assert (result["success"], result["exception_type"]) == (False, "node-failure")
    assert site.effects.manager.jobs.get(two).annotations["sched"]["reason_pending"].startswith("needs 3 nodes")
    await eventually(lambda: site.resource.module.targets_of_group("b") >= held)
    site.check()
    assert (await user.ok("job-manager.wait", await user.ok("job-manager.submit", {"jobspec": later})))["success"]
    assert (await events_of(user, one)).count("exception") == 1
    groups = groups_of(await user.ok("resource.groups"))
    assert groups["default"][1:] == ("", "")
    assert len(site.resource.module.targets_of_group("b")) == 3


async def test_graceful_drains_now_and_moves_when_the_job_is_done(world, timed, eventually):
    site = await world.instance()
    user = world.second(site)
    jobid = (await user.ok("job-manager.submit", {"jobspec": timed("60s", nodes=2).to_json()}))["id"]
    await eventually(lambda: len(site.resource.module.held) == 2)
    held = str(site.resource.module.held)
    answer = await user.ok("resource.assign", {"targets": "0-3", "group": "b", "graceful": True})
    assert answer["draining"] == held
    status = await user.ok("resource.status")
    assert {key: (line["reason"], line["state"]) for key, line in status["drain"].items()} == {
        held: ("moving to group b", "draining")
    }
    assert (await events_of(user, jobid)).count("exception") == 0
    await eventually(lambda: len(site.resource.module.targets_of_group("b")) == 2)
    await user.ok("job-manager.cancel", {"id": jobid})
    await eventually(lambda: len(site.resource.module.targets_of_group("b")) == 4)
    assert (await user.ok("resource.status"))["drain"] == {}


async def test_an_exception_for_targets_that_a_job_does_not_hold_is_none(world, timed, eventually):
    """A scheduler sends it for targets of which the release is on its way."""
    site = await world.bare()
    scheduler, user = world.second(site), world.second(site)
    await scheduler.schedule("default")
    jobid = (await user.ok("job-manager.submit", {"jobspec": timed("60s").to_json()}))["id"]
    await scheduler.grant("1", "fake1")
    await eventually(lambda: site.effects.manager.jobs.get(jobid).started)
    left = {"id": jobid, "type": "exec", "severity": 0, "note": "target 3 left the group"}
    await scheduler.ok("job-manager.raise", left | {"ranks": "2-3"})
    assert "exception" not in await events_of(user, jobid)
    await scheduler.ok("job-manager.raise", left | {"ranks": "1-3"})
    assert "exception" in await events_of(user, jobid)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
async def test_a_typed_scheduler_vanishes_during_a_shrink(world, timed, eventually, again):
    """Its jobs may still run: nothing is in B before they are gone, and the exception is raised once."""
    site = await world.bare(config=QUICK_KILL)
    scheduler, b, user = (world.second(site) for _ in range(3))
    streams = await scheduler.schedule("default")
    beside = b.open("resource.acquire", {"group": "b"})
    await b.next(beside)
    marks = [world.directory / name for name in "pq"]
    ids = []
    for rank, mark in enumerate(marks):
        command = [word.format(mark) for word in STUBBORN]
        jobspec = timed(queue="batch").to_json()
        jobspec["tasks"][0]["command"] = command
        del jobspec["attributes"]["system"]["exec"]
        ids.append((await user.ok("job-manager.submit", {"jobspec": jobspec}))["id"])
        await scheduler.grant(str(rank), f"host{rank}")
    await eventually(lambda: all(mark.exists() for mark in marks))
    await user.ok("resource.assign", {"targets": "0,2", "group": "b"})
    await scheduler.next(streams["default"])
    shrink = await scheduler.next(streams["default"])
    assert shrink.payload == {"type": "shrink", "targets": "0,2"}
    assert b.waiting(beside) == []
    scheduler.close()
    grown = (await b.next(beside)).payload  # nobody's: it moves with the loss; 0 has a job
    assert (grown["type"], grown["offline"]) == ("grow", "2")
    site.check()
    await eventually(lambda: site.effects.manager.jobs.get(ids[0]).exceptions)
    if again:  # a new scheduler before the job is gone: the target is not in its grow, and there is one exception
        new = world.second(site)
        streams = await new.schedule("default")
        assert (await new.next(streams["default"])).payload["offline"] == "1,3"
    assert b.waiting(beside) == []
    assert str(site.resource.module.held) == "0-1"
    grown = (await b.next(beside)).payload
    assert (grown["type"], grown["offline"]) == ("grow", "0")
    site.check()
    log = await events_of(user, ids[0])
    assert log.count("exception") == 1
    assert log[-2:] == ["free", "clean"]
    assert (await events_of(user, ids[1])).count("exception") == 0
    await user.ok("job-manager.cancel", {"id": ids[1]})


async def test_reload_kills(world, timed, eventually):
    """It does not: also a module that was killed leaves jobs alone, and a reload goes on."""
    site = await world.instance()
    user = world.second(site)
    jobid = (await user.ok("job-manager.submit", {"jobspec": timed("60s").to_json()}))["id"]
    await eventually(lambda: site.resource.module.held)
    held = str(site.resource.module.held)
    modules = (await user.ok("module.list"))["mods"]
    pid = next(module["pid"] for module in modules if module["name"] == "sched-fifo")
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not site.resource.report()["acquirers"])
    site.check()
    assert (await user.ok("resource.assign", {"targets": held, "group": "b"}))["leaving"] == held
    await user.ok("module.reload", {"name": "sched-fifo"})
    assert "exception" not in await events_of(user, jobid)  # nobody was told to shrink: it may end by itself
    assert str(site.resource.module.held) == held
    site.check()
    await user.ok("job-manager.cancel", {"id": jobid})
    await eventually(lambda: str(site.resource.module.targets_of_group("b")) == held)


async def test_assigns_are_refused_whole(world):
    site = await world.bare()
    admin = world.second(site)
    for payload, words in (
        ({"targets": "0,7,9", "group": "b"}, ("7,9",)),
        ({"targets": "fake[1,8-9]", "group": "b"}, ("fake8", "fake9")),
        ({"targets": "0", "group": "not a name"}, ("not a name",)),
        ({"targets": "0", "group": "x" * 65}, ("64",)),
        ({"targets": "0-4000000000", "group": "b"}, ("4000000000",)),
        ({"group": "b"}, ("targets",)),
        ({"targets": "0"}, ("group",)),
        ({"targets": "0", "group": "b", "graceful": "yes"}, ("graceful",)),
    ):
        _, text = await admin.refused("resource.assign", payload)
        assert all(word in text or word.replace("fake", "") in text for word in words), text
    assert list(groups_of(await admin.ok("resource.groups"))) == ["default", "exclude"]


# An instance inside an elastic job: its targets come and go with what the job has.


NESTED = Jobspec.from_command(["flux", "broker", "-Sbroker.rc2_none=1"], nodes="1-3", exclusive=True, elastic=True)


async def event_of(user, stream, name):
    """The next event of this name of a job."""
    while True:
        for event in (await user.next(stream)).payload["events"]:
            if event["name"] == name:
                return dict(event["context"])


async def reached(handle, jobid, name):
    async for message in handle.stream("job-manager.eventlog", {"id": jobid, "follow": True}):
        if any(event["name"] == name for event in message["events"]):
            return


@pytest.mark.slow
async def test_it_grows_with_its_job_and_leaves_what_the_job_gives_back(world):
    site = await world.bare(fake="4x2")
    sched, user = world.second(site), world.second(site)
    await sched.schedule("default")
    jobid = (await user.ok("job-manager.submit", {"jobspec": NESTED.to_json()}))["id"]
    await sched.request()
    sched.answer("sched.alloc", {"id": jobid, "type": 0, "R": r_of("0-1")})
    log = user.open("job-manager.eventlog", {"id": jobid, "follow": True})
    memo = await event_of(user, log, "memo")
    async with AsyncHandle(memo[ADDRESS_KEY]) as inner:
        each = Jobspec.from_command(["sleep", "300"], nodes=1, exclusive=True).to_json()
        jobs = [(await inner.rpc("job-manager.submit", {"jobspec": each}))["id"] for _ in range(3)]
        await reached(inner, jobs[1], "start")
        await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("3")})
        await reached(inner, jobs[2], "start")
        await sched.ok("job-manager.sched-shrink", {"id": jobid, "ranks": "1", "note": "for another"})
        assert await event_of(user, log, "release") == {"ranks": "1", "final": False}
        await reached(inner, jobs[1], "clean")
        found = (await inner.rpc("job-manager.list", {}))["jobs"]
        assert [job["id"] for job in found if job["state"] == "RUN"] == [jobs[2], jobs[0]]
    errnum, said = await user.refused("job-manager.released", {"id": jobid + 1, "ranks": "0"})
    assert (errnum, "not an elastic instance" in said) == (errno.EINVAL, True)


async def test_a_target_that_returns_is_its_old_self_and_one_that_was_left_is_told_again(world):
    site = await world.bare(fake="4x2")
    parts, told, module = site._parts, list[str](), site._parts.resource.module
    module.targets.dynamic = True
    outer = ResourceSet.parse(r_of("0-3")).rerank_by({0: 4, 1: 5, 2: 6, 3: 9})
    targets = EnclosedTargets(outer, parts.resource, parts.agents, parts.effects, lambda left: told.append(str(left)))
    turns = parts.turns
    turns.post(lambda: targets.follow(outer.without(Idset.parse("5,9")), 1.0))
    await until(lambda: told == ["5,9"])
    assert str(module.lost) == "1,3"
    turns.post(lambda: targets.follow(outer.without(Idset.parse("9")), 1.0))
    await until(lambda: told == ["5,9", "9"])
    assert str(module.lost) == "3"
    assert str(module.usable("default")) == "0-2"
    moved = ResourceSet.parse(r_of("0")).rerank_by({0: 11})
    turns.post(lambda: targets.follow(outer.without(Idset.parse("9")) | moved, 1.0))
    await until(lambda: str(module.usable("default")) == "0-2,4")


def test_the_grace_time_is_that_of_the_instance_around():
    assert grace_of({}) == 5.0
    assert grace_of({"exec": {"kill-timeout": "7s"}}) == 7.0
    assert grace_of({"exec": {"kill-timeout": "7s", "preempt-timeout": "1m"}}) == 60.0
    with pytest.raises(InvalidValue):
        grace_of({"exec": {"kill-timeout": "soon"}})
    with pytest.raises(Refused, match="inside an elastic job"):
        cannot_reload(None)
