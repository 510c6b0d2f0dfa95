"""Peers of every kind at once: slow, lost, many, over tcp, under names used again, with 20,000 requests in flight."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.protocol.sessions.acquire_server import PENDING_CHANGES_MAX
from fluxsched.runtime.client.blocking import Handle

STREAMING = 0x40
LOSS_KNOWN_S = 0.5
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
    longest_s = 0.0
    clock = site.settings.clock
    while site.resource.report()["acquirers"]:
        begin_s = clock.monotonic_s()
        await other.ok("instance.info")
        longest_s = max(longest_s, clock.monotonic_s() - begin_s)
        assert all(peer.server.unsent_bytes(peer.identity) <= UNSENT_BYTES for peer in site.router.peers.values())
    assert longest_s < 0.25
    assert (await other.next(other.open("resource.acquire", {"group": "default"}))).errnum == 0
    await eventually(lambda: len(site.router.peers) == 1)
    site.check()


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


async def test_everything_of_a_lost_peer_ends_within_half_a_second(world, timed, eventually):
    """A killed process: its acquisition, streams, agent, waits and scheduling end; what it had sent is done."""
    site = await world.bare(config="[[resource.config]]\nhosts='host[0-1]'\ncores='0'")
    admin = world.second(site)
    jobid = (await admin.ok("job-manager.submit", {"jobspec": timed("1ms").to_json()}))["id"]
    script = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[1])!r}, {str(Path(__file__).parents[3])!r}]
from conftest import Second
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
    await eventually(lambda: not site.resource.report()["acquirers"], LOSS_KNOWN_S)
    await eventually(lambda: len(site.router.peers) == 1, LOSS_KNOWN_S)
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
        await eventually(lambda: not site.resource.report()["acquirers"], LOSS_KNOWN_S)
    await eventually(lambda: not site.router.peers)


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
    await eventually(lambda: not site.resource.report()["acquirers"], LOSS_KNOWN_S)


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
        for peer in peers[::2]:
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
