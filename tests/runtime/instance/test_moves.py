"""Targets go from group to group over real sockets, with jobs on them and schedulers that vanish (design, Groups)."""

from __future__ import annotations

import asyncio
import errno
import os
import signal

import pytest

STUBBORN = ["/bin/sh", "-c", "trap '' TERM; echo ready > {0}; while :; do sleep 0.02; done"]
QUICK_KILL = """
[exec]
kill-timeout = "300ms"
[[resource.config]]
hosts = "host[0-3]"
cores = "0-3"
[queues.batch]
[queues.other]
group = "b"
[resource.groups]
b = ""
"""
STREAMING = 0x40


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


async def test_a_second_assign_changes_the_destination_and_home_is_a_grow(world):
    site = await world.bare()
    a, c = world.second(site), world.second(site)
    stream = a.open("resource.acquire", {"group": "default"})
    await a.next(stream)
    await c.ok("resource.assign", {"targets": "0-2", "group": "b"})
    await c.ok("resource.assign", {"targets": "1", "group": "c"})
    await c.ok("resource.assign", {"targets": "2", "group": "default"})
    assert groups_of(await c.ok("resource.groups")) == {
        "default": ("3", "0-2", "2"),
        "exclude": ("", "", ""),
        "b": ("", "", "0"),
        "c": ("", "", "1"),
    }
    assert (await a.next(stream)).payload == {"type": "shrink", "targets": "0-2"}
    await a.ok("resource.release", {"group": "default", "targets": "0-2"})
    grown = (await a.next(stream)).payload
    assert (grown["type"], grown["online"]) == ("grow", "2")
    site.check()


async def test_exclude_undrains_and_include_brings_home(world):
    config = "[resource]\nexclude='host3'\n[[resource.config]]\nhosts='host[0-3]'\ncores='0'"
    site = await world.bare(config=config)
    admin = world.second(site)
    stream = admin.open("resource.acquire", {"group": "default"})
    await admin.next(stream)
    await admin.ok("resource.drain", {"targets": "0"})
    await admin.ok("resource.assign", {"targets": "0", "group": "exclude"})
    await admin.ok("resource.release", {"group": "default", "targets": "0"})
    status = await admin.ok("resource.status")
    assert (status["exclude"], status["drain"]) == ("0,3", {})
    found, text = await admin.refused("resource.drain", {"targets": "0,3"})
    assert (found, "0,3" in text, "excluded" in text) == (errno.EINVAL, True, True)
    await admin.ok("resource.include", {"targets": "host[0,3]"})
    assert (await admin.ok("resource.status"))["exclude"] == ""
    await admin.settle()
    changes = [(change["type"], change.get("targets", change.get("offline"))) for change in admin.waiting(stream)]
    assert changes == [("shrink", "0"), ("grow", "0,3")]


async def test_a_plain_acquirer_is_left_when_no_job_holds(world, timed):
    """The plain dialect knows no release and no grow: what joins belongs to the group and to no acquirer."""
    site = await world.bare()
    plain, user, b = (world.second(site) for _ in range(3))
    stream = plain.open("resource.acquire")
    await plain.next(stream)
    hello = plain.open("job-manager.sched-hello", {"partial-ok": False})
    assert (await plain.next(hello)).errnum == errno.ENODATA
    await plain.ok("job-manager.sched-ready", {"mode": "limited", "limit": 1})
    await user.ok("resource.assign", {"targets": "", "group": "b"})
    beside = b.open("resource.acquire", {"group": "b"})
    await b.next(beside)
    jobid = (await user.ok("job-manager.submit", {"jobspec": timed("60s").to_json()}))["id"]
    assert await plain.grant("0", "fake0") == jobid
    await plain.settle()
    assert (await user.ok("resource.assign", {"targets": "0-1", "group": "b"}))["leaving"] == "0"
    assert (await b.next(beside)).payload["online"] == "1"
    assert (await plain.next(stream)).payload == {"shrink": "0-1", "down": "0-1"}
    assert "exception" not in await events_of(user, jobid)  # today's RFC forbids it
    await user.ok("job-manager.cancel", {"id": jobid})
    assert (await b.next(beside)).payload["online"] == "0"
    await user.ok("resource.assign", {"targets": "0", "group": "default"})
    await b.ok("resource.release", {"group": "b", "targets": "0"})
    assert groups_of(await user.ok("resource.groups"))["default"] == ("0,2-3", "", "")
    await user.settle()
    await user.ok("resource.assign", {"targets": "0", "group": "b"})  # it moves on unmentioned
    assert (await b.next(beside)).payload == {"type": "shrink", "targets": "0"}
    assert (await b.next(beside)).payload["online"] == "0"
    assert plain.waiting(stream) == []


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
    assert (result["success"], result["exception_type"]) == (False, "exec")
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


async def test_graceful_can_be_called_off_and_can_lose_patience(world, timed, eventually):
    site = await world.instance()
    user = world.second(site)
    job = {"jobspec": timed("60s", nodes=4).to_json()}
    jobid = (await user.ok("job-manager.submit", job))["id"]
    await eventually(lambda: len(site.resource.module.held) == 4)
    await user.ok("resource.assign", {"targets": "0-1", "group": "b", "graceful": True})
    await user.ok("resource.include", {"targets": "1"})
    status = await user.ok("resource.status")
    assert list(status["drain"]) == ["0"]
    assert (await events_of(user, jobid)).count("exception") == 0
    await user.ok("resource.assign", {"targets": "0", "group": "b"})
    assert (await user.ok("job-manager.wait", {"id": jobid}))["exception_type"] == "exec"
    await eventually(lambda: str(site.resource.module.targets_of_group("b")) == "0")
    assert (await user.ok("resource.status"))["drain"] == {}


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
    await eventually(lambda: site.effects.manager.jobs.get(ids[0]).exceptions, 1.0)
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
    await eventually(lambda: not site.resource.report()["acquirers"], 1.0)
    site.check()
    assert (await user.ok("resource.assign", {"targets": held, "group": "b"}))["leaving"] == held
    await user.ok("module.reload", {"name": "sched-fifo"})
    assert "exception" not in await events_of(user, jobid)  # nobody was told to shrink: it may end by itself
    assert str(site.resource.module.held) == held
    site.check()
    await user.ok("job-manager.cancel", {"id": jobid})
    await eventually(lambda: str(site.resource.module.targets_of_group("b")) == held)


async def test_a_standalone_acquirer_is_believed_only_by_release_or_loss(world, eventually):
    """No job manager knows what it does with its targets."""
    site = await world.bare()
    alone, admin = world.second(site), world.second(site)
    stream = alone.open("resource.acquire", {"group": "default"})
    await alone.next(stream)
    await admin.ok("resource.assign", {"targets": "0-1", "group": "b"})
    await alone.ok("resource.release", {"group": "default", "targets": "0"})
    await admin.settle()
    assert str(site.resource.module.targets_of_group("b")) == "0"
    alone.close()
    await eventually(lambda: str(site.resource.module.targets_of_group("b")) == "0-1", 0.5)


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


async def test_moves_back_and_forth_never_hold_twice(world):
    """Forty moves at random-looking times between three groups while two clients acquire, release and vanish."""
    site = await world.bare(fake="16x1")
    admin = world.second(site)
    names = ("default", "b", "c")
    for name in names[1:]:
        await admin.ok("resource.assign", {"targets": "", "group": name})
    holders = {name: world.second(site) for name in names}
    streams = {name: holder.open("resource.acquire", {"group": name}) for name, holder in holders.items()}
    held = {name: set() for name in names}

    async def listen():
        for name, holder in holders.items():
            for change in holder.waiting(streams[name]):
                if change["type"] == "grow":
                    held[name] |= {rank for part in ("online", "offline") for rank in ranks(change[part])}
                elif change["type"] == "shrink":
                    await holder.ok("resource.release", {"group": name, "targets": change["targets"]})
                    held[name] -= set(ranks(change["targets"]))
            others = [rank for group in held.values() for rank in group]
            assert len(others) == len(set(others))
        site.check()

    for step in range(40):
        first = step * 7 % 15
        await admin.ok("resource.assign", {"targets": f"{first}-{min(15, first + 4)}", "group": names[step * 5 % 3]})
        if step % 3 == 0:
            await listen()
        if step % 10 == 9:
            name = names[step // 10 % 3]
            holders[name].close()
            held[name] = set()
            holders[name] = world.second(site)
            while (answer := await holders[name].call("resource.acquire", {"group": name}, flags=STREAMING)).errnum:
                assert answer.errnum == errno.EBUSY
                await asyncio.sleep(0.005)
            streams[name] = answer.tag
            held[name] = {rank for part in ("online", "offline") for rank in ranks(answer.payload[part])}
    for _ in range(4):
        await admin.settle()
        await listen()
    assert sum(map(len, held.values())) == 16


def ranks(text):
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
