"""Target agents: processes for pretended hosts, and their silence, loss and return as acquirers see them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal

import pytest

QUICK = """
[resource]
heartbeat = "40ms"
torpid-after = "160ms"
offline-after = "400ms"
lost-after = "150ms"
"""
HOSTS = QUICK + """
[[resource.config]]
hosts = "host[0-3]"
cores = "0-1"
"""


def r_of(host, cores="0-1", targets=1, **execution):
    ranks = f"0-{targets - 1}" if targets > 1 else "0"
    rlite = [{"rank": ranks, "children": {"core": cores}}]
    hosts = ",".join([host] * targets)
    return {"version": 1, "execution": {"R_lite": rlite, "nodelist": [hosts], **execution}}


@pytest.fixture
def acquired(world):
    """Acquire the default group of an instance: the peer, its stream, and the first grow."""

    async def acquire(site):
        peer = world.second(site)
        stream = peer.open("resource.acquire", {"group": "default"})
        return peer, stream, (await peer.next(stream)).payload

    return acquire


async def until(peer, stream, wanted):
    """Changes up to one that has all of `wanted`."""
    seen = []
    while not seen or not wanted.items() <= seen[-1].items():
        seen.append((await peer.next(stream)).payload)
    return seen


async def beat(agent, stop):
    """Heartbeats until `stop` is set."""
    while not stop.is_set():
        agent.send("agent.heartbeat", {"seq": 1}, tag=0, flags=0x04)
        await asyncio.sleep(0.03)


async def test_a_process_stands_for_a_host_falls_silent_and_comes_back(world, acquired):
    """SIGSTOP: torpid, then offline; SIGCONT: the next heartbeat brings it back; SIGKILL: offline at once."""
    site = await world.bare(config=HOSTS)
    peer, stream, first = await acquired(site)
    assert first["offline"] == "0-3"
    agent = world.spawn("agent", "--uri", site.uri, "--host", "host2", "--heartbeat", "40ms", is_real=True)
    assert (await peer.next(stream)).payload == {"type": "online", "targets": "2"}
    await asyncio.sleep(0.3)  # longer than torpid-after: it does beat
    assert peer.waiting(stream) == []
    os.kill(agent.pid, signal.SIGSTOP)
    assert (await peer.next(stream)).payload == {"type": "offline", "targets": "2"}
    assert (await peer.ok("resource.status"))["torpid"] == "2"
    while (await peer.ok("resource.status"))["offline"] != "0-3":
        await asyncio.sleep(0.02)
    assert (await peer.ok("resource.status"))["torpid"] == ""
    os.kill(agent.pid, signal.SIGCONT)
    assert (await peer.next(stream)).payload == {"type": "online", "targets": "2"}
    agent.kill()
    assert (await peer.next(stream, 0.35)).payload == {"type": "offline", "targets": "2"}
    journal = peer.open("resource.journal")
    names = [event["name"] for event in (await peer.next(journal)).payload["events"]]
    while (events := (await peer.next(journal)).payload["events"]) != []:
        names += [event["name"] for event in events]
    assert names == [
        *["restart", "resource-define", "online", "torpid", "offline", "lively", "online", "offline"],
    ]
    site.check()


async def test_a_process_ends_with_its_instance_and_says_why_it_was_refused(world):
    site = await world.bare(config=HOSTS)
    stranger = world.spawn("agent", "--uri", site.uri, "--host", "elsewhere")
    agent = world.spawn("agent", "--uri", site.uri, "--host", "host1", "--heartbeat", "10s")
    _, errors = await asyncio.to_thread(stranger.communicate, timeout=10)
    assert (stranger.returncode, "elsewhere" in errors, "host[0-3]" in errors) == (1, True, True)
    peer = world.second(site)
    while (await peer.ok("resource.status"))["online"] != "1":
        await asyncio.sleep(0.01)
    await world.stop(site)
    _, errors = await asyncio.to_thread(agent.communicate, timeout=2)  # not only at its next heartbeat
    assert (agent.returncode, "Traceback" in errors) == (1, False)


async def test_a_torpid_target_runs_on_and_gets_nothing_new(world, timed, eventually):
    site = await world.instance(config=HOSTS)
    agent, user = world.second(site), world.second(site)
    await agent.ok("agent.hello", {"host": "host1", "heartbeat_s": 1.0})
    jobid = (await user.ok("job-manager.submit", {"jobspec": timed("350ms").to_json()}))["id"]
    await eventually(lambda: site.resource.module.held)
    await eventually(lambda: not site.resource.module.usable("default"))
    later = (await user.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    while "not decided" in (reason := (await user.ok("job-manager.why", {"id": later}))["reason"]):
        await asyncio.sleep(0.01)
    assert "down" in reason
    assert (await user.ok("job-manager.wait", {"id": jobid}))["success"]
    agent.send("agent.heartbeat", {"seq": 1}, tag=0, flags=0x04)
    assert (await user.ok("job-manager.wait", {"id": later}))["success"]


async def test_refusals_change_nothing(world):
    site = await world.bare(config=HOSTS)
    agent, other = world.second(site), world.second(site)
    assert await agent.ok("agent.hello", {"host": "host1", "heartbeat_s": 1.0}) == {
        "targets": "1", "interval_s": 0.04
    }  # fmt: skip
    for who, payload, expected, words in (
        (agent, {"host": "host1", "heartbeat_s": 1.0}, errno.EEXIST, ("host1",)),
        (other, {"host": "host1", "heartbeat_s": 1.0}, errno.EEXIST, ("1", "host1")),
        (other, {"host": "host9", "heartbeat_s": 1.0}, errno.ENOENT, ("host9", "host[0-3]")),
        (other, {"host": "host9", "heartbeat_s": 1.0, "R": r_of("host9")}, errno.ENOENT, ("host9",)),  # not dynamic
        (other, {"host": "host2", "heartbeat_s": 1.0, "ranks": "2-3"}, errno.EINVAL, ("2-3", "host2")),
        (other, {"host": "host2", "heartbeat_s": 1.0, "ranks": ""}, errno.EINVAL, ()),
        (other, {"host": "host2", "heartbeat_s": -1.0}, errno.EPROTO, ("heartbeat_s",)),
        (other, {"heartbeat_s": 1.0}, errno.EPROTO, ("host",)),
    ):
        found, text = await who.refused("agent.hello", payload)
        assert found == expected, text
        assert all(word in text for word in words), text
    found, text = await other.refused("agent.heartbeat", {"seq": 1})
    assert (found, "agent.hello" in text) == (errno.EPROTO, True)
    assert (await other.ok("resource.status"))["online"] == "1"


async def test_two_agents_share_a_host(world, acquired):
    path = world.write("R.json", json.dumps(r_of("a", targets=3)))
    site = await world.bare(config=QUICK, r_path=path)
    peer, stream, _ = await acquired(site)
    one, two = world.second(site), world.second(site)
    await one.ok("agent.hello", {"host": "a", "heartbeat_s": 1.0, "ranks": "1"})
    assert (await peer.next(stream)).payload == {"type": "online", "targets": "1"}
    found, text = await two.refused("agent.hello", {"host": "a", "heartbeat_s": 1.0})
    assert (found, "targets 1 " in text) == (errno.EEXIST, True)
    await two.ok("agent.hello", {"host": "a", "heartbeat_s": 1.0, "ranks": "0,2"})
    assert (await peer.next(stream)).payload == {"type": "online", "targets": "0,2"}
    one.close()
    assert (await peer.next(stream)).payload == {"type": "offline", "targets": "1"}


async def test_an_unknown_host_joins_is_lost_and_returns(world, acquired, eventually):
    """Dynamic inventory: grow, shrink and release, and its old rank in a new grow."""
    site = await world.bare(config=QUICK)
    peer, stream, first = await acquired(site)
    assert first["online"] == "0"
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        agent = world.second(site)
        welcome = await agent.ok("agent.hello", {"host": "new1", "heartbeat_s": 0.03, "R": r_of("new1", "0-7")})
        assert welcome["targets"] == "1"
        tasks.create_task(beat(agent, stop))
        seen = await until(peer, stream, {"type": "grow"})
        assert seen[-1]["resources"]["execution"]["R_lite"] == [{"rank": "1", "children": {"core": "0-7"}}]
        assert seen[-1]["online"] == "1"
        await peer.ok("resource.drain", {"targets": "new1", "reason": "stays with the host"})
        await until(peer, stream, {"type": "offline", "targets": "1"})
        stop.set()
    agent.close()
    seen = await until(peer, stream, {"type": "shrink", "targets": "1"})
    assert (await peer.ok("resource.status"))["lost"] == "1"
    found, text = await peer.refused("resource.drain", {"targets": "new1"})
    assert (found, "lost" in text) == (errno.EINVAL, True)
    await peer.ok("resource.release", {"group": "default", "targets": "1"})
    site.check()
    back = world.second(site)
    another = world.second(site)
    await another.ok("agent.hello", {"host": "new2", "heartbeat_s": 1.0, "R": r_of("new2")})
    await back.ok("agent.hello", {"host": "new1", "heartbeat_s": 1.0, "R": r_of("new1", "0-7")})
    grown = await until(peer, stream, {"type": "grow", "offline": "1"})
    assert [change["type"] for change in grown].count("grow") == 2
    assert list((await peer.ok("resource.status"))["drain"]) == ["1"]
    site.check()


async def test_a_lost_host_with_a_job_waits_for_the_job(world, timed, eventually):
    site = await world.instance(config=QUICK)
    agent, user = world.second(site), world.second(site)
    await agent.ok("agent.hello", {"host": "new1", "heartbeat_s": 1.0, "R": r_of("new1", "0-63")})
    job = timed("60s", ntasks=64, nodes=1).to_json()
    jobid = (await user.ok("job-manager.submit", {"jobspec": job}))["id"]
    await eventually(lambda: str(site.resource.module.held) == "1")
    agent.close()
    result = await user.ok("job-manager.wait", {"id": jobid})
    assert (result["success"], result["exception_type"]) == (False, "exec")
    await eventually(lambda: site.resource.module.group_of(1) is None)
    site.check()


async def test_a_joining_host_is_refused_whole(world, acquired):
    site = await world.bare(config=QUICK)
    peer, stream, _ = await acquired(site)
    agent = world.second(site)
    for payload in (
        {"R": r_of("other")},
        {"R": r_of("new1,other", targets=1)},
        {"R": {"version": 1, "execution": {"R_lite": [], "nodelist": [""]}}},
        {"R": r_of("new1"), "ranks": "7"},
        {"R": r_of("new1", cores="3,1")},
        {"R": {"version": 2}},
        {"R": "all of it"},
        {},
    ):
        await agent.refused("agent.hello", {"host": "new1", "heartbeat_s": 1.0} | payload)
    await peer.settle()
    assert peer.waiting(stream) == []
    assert (await peer.ok("resource.status"))["R"]["execution"]["nodelist"] != "new1"
    await agent.ok("agent.hello", {"host": "new1", "heartbeat_s": 1.0, "R": r_of("new1", targets=2)})
    grown = (await until(peer, stream, {"type": "grow"}))[-1]
    assert grown["online"] == "1-2"
    site.check()


async def test_agents_find_their_targets_back_after_reloads(world, acquired):
    site = await world.bare(config=HOSTS)
    peer = world.second(site)
    agent = world.second(site)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        await agent.ok("agent.hello", {"host": "host1", "heartbeat_s": 1.0})
        tasks.create_task(beat(agent, stop))
        await peer.ok("resource.reload", {"R": r_of("host0")})
        status = await peer.ok("resource.status")
        assert (status["online"], status["lost"]) == ("", "1-3")
        await peer.ok("resource.reload")
        status = await peer.ok("resource.status")
        assert (status["online"], status.get("lost", "")) == ("1", "")
        stop.set()
    site.check()
