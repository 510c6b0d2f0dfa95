"""Peers of an instance: many, slow, lost, and agents of hosts."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fluxsched.client.blocking import Handle
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.protocol.sessions import PENDING_CHANGES_MAX

# Peers of every kind at once: slow, lost, many, over tcp, under names used again, with 20,000 requests in flight.


STREAMING = 0x40
UNSENT_BYTES = 1 << 20
CHATTY = b"\x81\xa3pad\xdb" + (20_000).to_bytes(4, "big") + b"x" * 20_000
"""A ping that comes back as large as it went."""
FILLED = 700
"""So many of them: libzmq takes SEND_MESSAGES_MAX for a peer, and the kernel some."""


async def test_a_peer_that_does_not_read_is_cut_off_and_others_go_on(world, eventually):
    site = await world.bare(unsent_limit_bytes=UNSENT_BYTES)
    deaf, other = world.second(site, receive_hwm=1), world.second(site)
    await deaf.ok("instance.info")
    held = deaf.open("resource.acquire", {"group": "default"})
    await deaf.next(held)
    for _ in range(FILLED):
        deaf.send("resource.ping", CHATTY)
    while site.resource.report()["acquirers"]:
        await other.ok("instance.info")
        assert all(peer.server.unsent_bytes(peer.identity) <= UNSENT_BYTES for peer in site.router.peers.values())
    assert (await other.next(other.open("resource.acquire", {"group": "default"}))).errnum == 0
    await eventually(lambda: len(site.router.peers) == 1)
    site.check()


@pytest.mark.slow
async def test_an_acquirer_that_reads_slowly_gets_the_sum(world, eventually):
    """While bytes wait for it, its changes merge; one timer looks after all of them."""
    site = await world.bare(unsent_limit_bytes=64 << 20)
    slow, admin = world.second(site, receive_hwm=1), world.second(site)
    stream = slow.open("resource.acquire", {"group": "default"})
    await slow.next(stream)
    for _ in range(FILLED):
        slow.send("resource.ping", CHATTY)
    (peer,) = [each for each in site.router.peers.values() if each.streams]
    await eventually(lambda: site.router.unsent_bytes(peer) > 0)
    await admin.ok("resource.drain", {"targets": "2"})
    turns = site.turns.count
    for _ in range(50):
        await admin.ok("resource.drain", {"targets": "0-1"})
        await admin.ok("resource.undrain", {"targets": "0-1"})
    assert len(site.turns._timers) < 10
    turns = site.turns.count
    await asyncio.sleep(0.1)
    assert site.turns.count - turns < 20
    async with asyncio.timeout(60):
        while not (changes := slow.waiting(stream)):
            await asyncio.sleep(0)
    assert changes == [{"type": "offline", "targets": "2"}]


@pytest.mark.slow
async def test_an_acquirer_that_never_reads_is_ended_when_too_much_waits(world, eventually):
    """What cannot merge is bounded as well: the stream ends with an error, and the group is free."""
    site = await world.bare(unsent_limit_bytes=64 << 20)
    slow, admin = world.second(site, receive_hwm=1), world.second(site)
    stream = slow.open("resource.acquire", {"group": "default", "accept": ["update"]})
    await slow.next(stream)
    for _ in range(FILLED):
        slow.send("resource.ping", CHATTY)
    (peer,) = [each for each in site.router.peers.values() if each.streams]
    await eventually(lambda: site.router.unsent_bytes(peer) > 0)
    for number in range(PENDING_CHANGES_MAX + 2):
        admin.send("resource.expiration-update", {"expiration": 4e9 + number})
    await eventually(lambda: not site.resource.report()["acquirers"])
    await admin.next(admin.open("resource.acquire", {"group": "default"}))
    async with asyncio.timeout(60):
        while (answer := await slow.next(stream)).errnum == 0:
            assert answer.payload["type"] == "update"
    assert (answer.errnum, str(PENDING_CHANGES_MAX) in answer.payload) == (errno.EOVERFLOW, True)


@pytest.mark.slow
async def test_everything_of_a_lost_peer_ends(world, timed, eventually):
    """A killed process: its acquisition, streams, agent, waits and scheduling end; what it had sent is done."""
    site = await world.bare(config="[[resource.config]]\nhosts='host[0-1]'\ncores='0'")
    admin = world.second(site)
    jobid = (await admin.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    script = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[2])!r}]
from tests.site import Second
import asyncio
async def main():
    peer = Second({site.uri!r})
    await peer.ok("agent.hello", {{"host": "host1", "heartbeat_s": 1.0}})
    streams = await peer.schedule("default")
    peer.open("resource.journal"); peer.open("job-manager.watch")
    peer.open("job-manager.eventlog", {{"id": {jobid}}})
    peer.send("job-manager.wait", {{"id": {jobid}}})
    await peer.request()
    peer.send("resource.drain", {{"targets": "0", "reason": "last words"}})
    await asyncio.sleep(0.1)  # until it is on its way
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=subprocess.PIPE, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    try:
        assert await process.stdout.readline() == b"ready\n"
        assert site.resource.report()["acquirers"] == 1
    finally:
        process.send_signal(signal.SIGKILL)
    await process.wait()
    await eventually(lambda: not site.resource.report()["acquirers"])
    await eventually(lambda: len(site.router.peers) == 1)
    assert site.resource.report()["journal_streams"] == 0
    assert not site.streams._waits
    status = await admin.ok("resource.status")
    assert (status["online"], [line["reason"] for line in status["drain"].values()]) == ("", ["last words"])
    found, _ = await admin.refused("feasibility.check", {"jobspec": timed().to_json()})
    assert found == errno.ENOSYS
    await admin.schedule("default")
    assert (await admin.request()).payload["id"] == jobid
    process._transport.close()


async def test_an_identity_used_again_is_another_peer(world, eventually):
    """A client that chose its identity and comes back at once finds its former life ended, and its group free."""
    site = await world.bare()
    for _ in range(20):
        first = world.second(site, identity=b"me")
        await first.next(first.open("resource.acquire", {"group": "default"}))
        first.close()
        again = world.second(site, identity=b"me")
        async with asyncio.timeout(60):
            while (answer := await again.call("resource.acquire", {"group": "default"}, flags=STREAMING)).errnum:
                assert answer.errnum == errno.EBUSY
        again.close()
        await eventually(lambda: not site.resource.report()["acquirers"])
    await eventually(lambda: not site.router.peers)


@pytest.mark.slow
async def test_twenty_thousand_requests_of_one_client(world, timed):
    """All are in flight at once: as many waits for one held job, and nobody else waits for them."""
    count = 20_000
    site = await world.bare()
    ours, other = await world.client(site), world.second(site)
    jobid = await ours.submit(timed("1ms"), urgency=0)
    waits = [ours.stream("job-manager.wait", {"id": jobid}) for _ in range(count)]
    await ours.rpc("instance.info")
    assert max(peer.in_flight for peer in site.router.peers.values()) == count
    await other.ok("resource.drain", {"targets": "0"})
    await ours.cancel(jobid)
    answers = [await wait.next() for wait in waits]
    assert all(answer.error is None and b"cancel" in answer.payload for answer in answers)
    assert all(peer.in_flight == 0 for peer in site.router.peers.values())


@pytest.mark.slow
async def test_twenty_thousand_requests_one_by_one_message(world):
    """Somebody who knows no bundles: each request and each answer is a message of its own."""
    peer = world.second(await world.bare())
    tags = [peer.send("instance.info") for _ in range(20_000)]
    for tag in tags:
        assert (await peer.next(tag)).errnum == 0


async def test_tcp_on_loopback(world, eventually):
    site = await world.bare(bind=("tcp://127.0.0.1:*",), insecure_tcp=True)
    (endpoint,) = [server.endpoint for server in site.servers if server.endpoint.startswith("tcp")]
    over_tcp, over_ipc = world.second(endpoint), world.second(site)
    assert endpoint in (await over_ipc.ok("attr.get", {"name": "endpoints"}))["value"].split()
    stream = over_tcp.open("resource.acquire", {"group": "default"})
    assert (await over_tcp.next(stream)).payload["online"] == "0-3"
    assert (await over_ipc.refused("resource.acquire", None, flags=STREAMING))[0] == errno.EBUSY
    await over_ipc.ok("resource.drain", {"targets": "1"})
    assert (await over_tcp.next(stream)).payload == {"type": "offline", "targets": "1"}

    def ours():
        with Handle(endpoint) as handle:
            handle.undrain("1")

    await asyncio.to_thread(ours)
    assert (await over_tcp.next(stream)).payload == {"type": "online", "targets": "1"}
    over_tcp.close()
    await eventually(lambda: not site.resource.report()["acquirers"])


@pytest.mark.parametrize(
    "endpoint", ["tcp://0.0.0.0:*", "tcp://192.168.7.7:9000", "tcp://*:1", "udp://127.0.0.1:1", "tcp://127.0.0.1:x"]
)
async def test_endpoints_beyond_loopback_are_refused(world, endpoint):
    with pytest.raises(InvalidValue, match=r"127\.0\.0\.1"):
        await world.bare(bind=(endpoint,), insecure_tcp=True)
    assert not list(world.directory.glob("fluxsched-*/instance.json"))


async def test_a_failed_start_leaves_nothing_behind(world):
    site = await world.bare(bind=("tcp://127.0.0.1:*",), insecure_tcp=True)
    (endpoint,) = [server.endpoint for server in site.servers if server.endpoint.startswith("tcp")]
    with pytest.raises(FluxschedError):
        await world.bare(bind=(endpoint,), insecure_tcp=True)
    assert len(list(world.directory.glob("fluxsched-*"))) == 1


async def test_many_peers_come_and_go(world, eventually):
    site = await world.bare()
    for _ in range(5):
        peers = [world.second(site) for _ in range(40)]
        for peer in peers:
            peer.send("resource.status")
            peer.open("resource.journal")
        for peer in peers:
            await peer.next(1)
        for peer in peers:
            peer.close()
    await eventually(lambda: not site.router.peers)
    assert site.resource.report()["journal_streams"] == 0


async def test_a_service_that_answers_nonsense_is_cut_off_alone(world, timed):
    """A module whose answers cannot be read loses its connection; who asked gets an answer all the same."""
    site = await world.bare()
    rogue, user = world.second(site), world.second(site)
    await rogue.schedule("default")
    jobid = (await user.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    await rogue.request()
    why = user.send("job-manager.why", {"id": jobid})
    asked = await rogue.request()
    rogue.answer(asked.topic, b"\xc1", tag=asked.tag)
    answer = await user.next(why)
    assert (answer.errnum, answer.payload["id"]) == (0, jobid)
    other = world.second(site)
    async with asyncio.timeout(60):
        while (await other.call("resource.acquire", {"group": "default"}, flags=STREAMING)).errnum:
            await asyncio.sleep(0.005)
    site.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    "payload",
    [
        {"id": 1, "type": 0},
        {"id": 1, "type": 9},
        {"id": "x"},
        {"id": -1, "type": 0},
        b"\xc1",
        {"id": 1, "type": 0, "R": {"version": 1, "execution": {"R_lite": [{"rank": "99"}]}}},
        {"id": 1, "type": 0, "R": {"version": 1}},
        {"id": 1, "type": 1, "annotations": 5},
        {"id": 1, "type": 1, "annotations": {"user": {5: "text"}}},
        {"id": 1, "type": 1},
        {"type": 2},
        None,
    ],
    ids=str,
)
async def test_a_scheduler_that_answers_alloc_with_nonsense(world, timed, payload):
    """It is cut off; the job waits for the next one, and nothing is held."""
    site = await world.bare()
    rogue, user = world.second(site), world.second(site)
    await rogue.schedule("default")
    jobid = (await user.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    await rogue.request()
    if isinstance(payload, dict) and payload.get("id") == 1:
        payload = payload | {"id": jobid}
    rogue.answer("sched.alloc", payload)
    async with asyncio.timeout(60):
        while site.scheduling.scheduler_of("default") is not None:
            await asyncio.sleep(0.005)
    assert not site.resource.module.held
    site.check()
    good = world.second(site)
    await good.schedule("default")
    assert (await good.grant("2", "fake2")) == jobid
    assert (await user.ok("job-manager.wait", {"id": jobid}))["success"]


# Target agents: processes for pretended hosts, and their silence, loss and return as acquirers see them.


RESOURCE = """
[resource]
heartbeat = "40ms"
torpid-after = "{torpid}"
offline-after = "{offline}"
lost-after = "150ms"
"""
PATIENT = RESOURCE.format(torpid="1h", offline="2h")
"""Silence is no matter, however slow this machine is; the end of a connection is."""
HOSTS = """
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


@pytest.mark.slow
async def test_a_process_stands_for_a_host_falls_silent_and_comes_back(world, acquired):
    """SIGSTOP: torpid, then offline; SIGCONT: the next heartbeat brings it back; SIGKILL: offline at once."""
    site = await world.bare(config=RESOURCE.format(torpid="1500ms", offline="4s") + HOSTS)
    peer, stream, first = await acquired(site)
    assert first["offline"] == "0-3"
    agent = world.spawn("agent", "--uri", site.uri, "--host", "host2", "--heartbeat", "40ms", is_real=True)
    assert (await peer.next(stream)).payload == {"type": "online", "targets": "2"}
    os.kill(agent.pid, signal.SIGSTOP)
    assert (await peer.next(stream)).payload == {"type": "offline", "targets": "2"}
    assert (await peer.ok("resource.status"))["torpid"] == "2"
    while (await peer.ok("resource.status"))["offline"] != "0-3":
        await asyncio.sleep(0.02)
    assert (await peer.ok("resource.status"))["torpid"] == ""
    os.kill(agent.pid, signal.SIGCONT)
    assert (await peer.next(stream)).payload == {"type": "online", "targets": "2"}
    agent.kill()
    assert (await peer.next(stream)).payload == {"type": "offline", "targets": "2"}
    journal = peer.open("resource.journal")
    names = [event["name"] for event in (await peer.next(journal)).payload["events"]]
    while (events := (await peer.next(journal)).payload["events"]) != []:
        names += [event["name"] for event in events]
    assert names == [
        *["restart", "resource-define", "online", "torpid", "offline", "lively", "online", "offline"],
    ]
    site.check()


async def test_a_process_ends_with_its_instance_and_says_why_it_was_refused(world):
    site = await world.bare(config=PATIENT + HOSTS)
    stranger = world.spawn("agent", "--uri", site.uri, "--host", "elsewhere")
    agent = world.spawn("agent", "--uri", site.uri, "--host", "host1", "--heartbeat", "1h")
    _, errors = await asyncio.to_thread(stranger.communicate, timeout=60)
    assert (stranger.returncode, "elsewhere" in errors, "host[0-3]" in errors) == (1, True, True)
    peer = world.second(site)
    while (await peer.ok("resource.status"))["online"] != "1":
        await asyncio.sleep(0.01)
    await world.stop(site)
    _, errors = await asyncio.to_thread(agent.communicate, timeout=60)  # not only at its next heartbeat
    assert (agent.returncode, "Traceback" in errors) == (1, False)


async def test_a_torpid_target_runs_on_and_gets_nothing_new(world, timed, eventually):
    site = await world.instance(config=RESOURCE.format(torpid="500ms", offline="2h") + HOSTS)
    agent, user = world.second(site), world.second(site)
    jobid = (await user.ok("job-manager.submit", {"jobspec": timed("1s").to_json()}))["id"]
    stop = asyncio.Event()
    await agent.ok("agent.hello", {"host": "host1", "heartbeat_s": 1.0})
    beating = asyncio.create_task(beat(agent, stop))
    await eventually(lambda: site.resource.module.held)
    stop.set()
    await beating
    await eventually(lambda: not site.resource.module.usable("default"))
    later = (await user.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    async with asyncio.timeout(60):
        while "out of service" not in (await user.ok("job-manager.why", {"id": later}))["reason"]:
            await asyncio.sleep(0.01)
    assert (await user.ok("job-manager.wait", {"id": jobid}))["success"]
    agent.send("agent.heartbeat", {"seq": 1}, tag=0, flags=0x04)
    assert (await user.ok("job-manager.wait", {"id": later}))["success"]


async def test_refusals_change_nothing(world):
    site = await world.bare(config=PATIENT + HOSTS)
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


async def test_an_agent_of_several_hosts_registers_all_or_none_and_names_each(world):
    site = await world.bare(config=PATIENT + HOSTS)
    stranger = world.spawn("agent", "--uri", site.uri, "--host", "host1,x,host2,y")
    _, errors = await asyncio.to_thread(stranger.communicate, timeout=60)
    assert stranger.returncode == 1
    assert "no host was registered: 2 of 4 cannot be: host 'x' has no targets in this instance" in errors
    assert "host 'y' has no targets" in errors
    assert "reports targets" not in errors
    peer = world.second(site)
    events = (await peer.next(peer.open("resource.journal"))).payload["events"]
    assert "online" not in [event["name"] for event in events]


async def test_two_agents_share_a_host(world, acquired):
    path = world.write("R.json", json.dumps(r_of("a", targets=3)))
    site = await world.bare(config=PATIENT, r_path=path)
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
    site = await world.bare(config=PATIENT)
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


async def test_a_reload_keeps_the_hosts_of_agents_and_only_them(world, eventually):
    site = await world.bare(config="[resource]\n")
    admin, stays, goes = [world.second(site) for _ in range(3)]
    for agent, host in ((stays, "new1"), (goes, "new2")):
        await agent.ok("agent.hello", {"host": host, "heartbeat_s": 60.0, "R": r_of(host)})
    await admin.ok("resource.assign", {"targets": "new1", "group": "lab"})
    goes.close()
    module = site.resource.module
    await eventually(lambda: str(module.targets.present) == "0-2" and str(module.usable("default")) == "0")
    await admin.ok("resource.reload")
    assert (str(module.lost), str(module.usable("default")), str(module.usable("lab"))) == ("2", "0", "1")
    site.check()


async def test_a_reload_takes_switches_away_though_an_agent_has_brought_a_host(world):
    switch = "[resource]\n[[topology.switch]]\nname = '{}'\nhosts = '{}'\n"
    site = await world.bare(config=switch.format("leaf0", "x,new1"))
    admin, agent, module = world.second(site), world.second(site), site.resource.module
    await agent.ok("agent.hello", {"host": "new1", "heartbeat_s": 60.0, "R": r_of("new1")})
    assert module.resources.topology.leaf_of == {"x": "leaf0", "new1": "leaf0"}
    for text, leaf_of in (
        (switch.format("rack0", "new1"), {"new1": "rack0"}),
        (switch.format("rack0", "x"), {"x": "rack0"}),
        ("[resource]\n", {}),
    ):
        Path(site.settings.config.name).write_text(text)
        await admin.ok("config.reload")
        assert module.resources.topology.leaf_of == leaf_of
        assert list(module.resources.topology.switches) == sorted(set(leaf_of.values()))
    site.check()


async def test_a_refused_reload_blames_no_host_that_an_agent_has_brought(world, timed, eventually):
    config = "[resource]\n[queues.a]\n[queues.b]\n"
    site = await world.instance(config=config)
    agent, user = world.second(site), world.second(site)
    await agent.ok("agent.hello", {"host": "new1", "heartbeat_s": 60.0, "R": r_of("new1", "0-63")})
    job = timed("60s", ntasks=64, nodes=1, queue="a").to_json()
    await user.ok("job-manager.submit", {"jobspec": job})
    await eventually(lambda: str(site.resource.module.held) == "1")
    changed = config.replace("[queues.a]", "groups.other = ''\n[queues.a]\ngroup = 'other'")
    Path(site.settings.config.name).write_text(changed)
    found, said = await user.refused("config.reload")
    assert (found, said.count("\n"), "queue a has 1 active job" in said) == (errno.EBUSY, 0, True)
    site.check()


async def test_a_lost_host_with_a_job_waits_for_the_job(world, timed, eventually):
    site = await world.instance(config=PATIENT)
    agent, user = world.second(site), world.second(site)
    await agent.ok("agent.hello", {"host": "new1", "heartbeat_s": 1.0, "R": r_of("new1", "0-63")})
    job = timed("60s", ntasks=64, nodes=1).to_json()
    jobid = (await user.ok("job-manager.submit", {"jobspec": job}))["id"]
    await eventually(lambda: str(site.resource.module.held) == "1")
    agent.close()
    result = await user.ok("job-manager.wait", {"id": jobid})
    assert (result["success"], result["exception_type"]) == (False, "node-failure")
    await eventually(lambda: site.resource.module.group_of(1) is None)
    site.check()


async def test_a_joining_host_is_refused_whole(world, acquired):
    site = await world.bare(config=PATIENT)
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
    site = await world.bare(config=PATIENT + HOSTS)
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
