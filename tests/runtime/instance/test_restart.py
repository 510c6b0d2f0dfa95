"""What a restart with the same state directory finds again: after a clean end, and after kill -9 (law 3)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from pathlib import Path

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.runtime.exec.keeper.local_host import LocalKeeperHost

GROUPS = """
[resource]
exclude = "host5"
[resource.groups]
debug = "host4"
[[resource.config]]
hosts = "{hosts}"
cores = "0-1"
"""


@pytest.fixture
def life(world):
    """Start the next life of one instance: ends the one before, keeps its state; a peer of it and the instance."""
    lives = []

    async def begin(hosts="host[0-5]", config=GROUPS, **options):
        for site in lives:
            await world.stop(site)
        site = await world.bare(config=config.format(hosts=hosts), statedir=world.directory / "state", **options)
        lives[:] = [site]
        return world.second(site), site

    return begin


def r_text(hosts, ranks):
    rlite = [{"rank": ranks, "children": {"core": "0-1"}}]
    return json.dumps({"version": 1, "execution": {"R_lite": rlite, "nodelist": [hosts]}})


async def status_of(peer):
    status = await peer.ok("resource.status")
    hosts = status["R"]["execution"]["nodelist"]
    return hosts, {key: line["reason"] for key, line in status["drain"].items()}, status["groups"]


async def test_drains_groups_and_assignments_follow_their_hosts(life):
    peer, _ = await life()
    await peer.ok("resource.drain", {"targets": "host[1-2]", "reason": "disk"})
    await peer.ok("resource.assign", {"targets": "host3", "group": "live"})
    await peer.ok("resource.assign", {"targets": "", "group": "idle"})
    await peer.ok("resource.assign", {"targets": "host4", "group": "default"})  # away from its configured group
    await peer.ok("resource.include", {"targets": "host5"})
    await peer.ok("resource.property-add", {"properties": {"ssd": "host0"}})
    before = await peer.ok("resource.status")
    peer, site = await life("host[5,4,3,2,1,0]")  # all ranks are others now
    hosts, drains, groups = await status_of(peer)
    assert hosts == ["host[5,4,3,2,1,0]"]
    assert drains == {"3-4": "disk"}
    assert groups == {"default": "0-1,3-5", "exclude": "", "debug": "", "live": "2", "idle": ""}
    after = await peer.ok("resource.status")
    assert [*after["drain"].values()] == [*before["drain"].values()]  # who and when as well
    assert after["R"]["execution"]["properties"] == {"ssd": "5"}
    await peer.ok("resource.include", {"targets": "host[3-5]"})
    _, _, groups = await status_of(peer)
    assert groups == {"default": "0,2-5", "exclude": "", "debug": "1", "live": "", "idle": ""}
    site.check()


async def test_what_was_undone_stays_undone(life):
    peer, _ = await life()
    await peer.ok("resource.drain", {"targets": "0-3"})
    await peer.ok("resource.assign", {"targets": "0-1", "group": "b"})
    await peer.ok("resource.undrain", {"targets": "0,2"})
    await peer.ok("resource.assign", {"targets": "0-1", "group": "default"})
    await peer.ok("resource.property-add", {"properties": {"ssd": "0"}})
    await peer.ok("resource.property-remove", {"properties": {"ssd": "0"}})
    peer, _ = await life()
    _, drains, groups = await status_of(peer)
    assert drains == {"1,3": ""}
    assert groups == {"default": "0-3", "exclude": "5", "debug": "4", "b": ""}
    assert "properties" not in (await peer.ok("resource.status"))["R"]["execution"]


async def test_a_move_under_way_goes_on(life):
    """Nobody has acquired anything after a restart, so what no job holds arrives."""
    peer, site = await life()
    await peer.next(peer.open("resource.acquire", {"group": "default"}))
    await peer.ok("resource.assign", {"targets": "host[0-1]", "group": "debug"})
    await peer.ok("resource.drain", {"targets": "host1"})
    assert str(site.resource.module.move_state(site.resource.module.resources.ranks).leaving) == "0-1"
    peer, site = await life("host[3,2,1,0,4,5]")
    first = (await peer.next(peer.open("resource.acquire", {"group": "debug"}))).payload
    assert first["resources"]["execution"]["nodelist"] == ["host[1,0,4]"]
    _, drains, groups = await status_of(peer)
    assert (drains, groups["debug"]) == ({"2": ""}, "2-4")
    assert not site.resource.module.move_state(site.resource.module.resources.ranks).leaving


async def test_the_journal_goes_on(life):
    peer, _ = await life()
    await peer.ok("resource.drain", {"targets": "1", "reason": "first life"})
    peer, _ = await life()
    stream = peer.open("resource.journal")
    events = []
    while batch := (await peer.next(stream)).payload["events"]:
        events += batch
    assert [event["name"] for event in events] == [
        *["restart", "resource-define", "drain"], *["restart", "resource-define"]
    ]  # fmt: skip
    assert events[2]["context"]["reason"] == "first life"
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)


async def test_another_configuration_wins_where_nothing_live_was_said(life):
    peer, _ = await life()
    await peer.ok("resource.drain", {"targets": "host[0-1]"})
    config = GROUPS.replace('exclude = "host5"', 'exclude = "host0"').replace("host4", "host[1-2]")
    peer, site = await life(config=config)
    _, drains, groups = await status_of(peer)
    assert drains == {"1": ""}  # an excluded target is undrained, with an event
    assert groups == {"default": "3-5", "exclude": "0", "debug": "1-2"}
    assert "undrain" in [event["name"] for event in site.resource.module.journal.events]


async def test_several_targets_a_host(world):
    statedir, path = world.directory / "state", world.write("R.json", r_text("a,a,b,b", "0-3"))
    site = await world.bare(r_path=path, statedir=statedir)
    peer = world.second(site)
    await peer.ok("resource.drain", {"targets": "1,2"})  # the second of a, the first of b
    await world.stop(site)
    path.write_text(r_text("b,b,a,a", "0-3"))
    site = await world.bare(r_path=path, statedir=statedir)
    _, drains, _ = await status_of(world.second(site))
    assert drains == {"0,3": ""}


async def test_a_host_that_is_away_for_one_life_is_not_forgotten(life):
    peer, _ = await life()
    await peer.ok("resource.drain", {"targets": "host2", "reason": "mended soon"})
    await peer.ok("resource.assign", {"targets": "host3", "group": "b"})
    peer, _ = await life("host[0-1,4-5]")
    assert (await status_of(peer))[1:] == ({}, {"default": "0-1", "exclude": "3", "debug": "2", "b": ""})
    peer, _ = await life()
    assert (await status_of(peer))[1:] == (
        {"2": "mended soon"}, {"default": "0-2", "exclude": "5", "debug": "4", "b": "3"}
    )  # fmt: skip


async def test_one_instance_a_state_directory(world):
    statedir = world.directory / "state"
    await world.bare(statedir=statedir)
    with pytest.raises(FluxschedError, match=r"in use|another instance"):
        await world.bare(statedir=statedir)


async def test_kill_9_right_after_an_answer(world):
    """Drains and moves one by one and pipelined; all that was answered is there again, and an undrain too."""
    options = ("--fake", "64x1", "--statedir", str(world.directory / "state"), "--scheduler", "none")
    uri, pid = await world.daemon(*options)
    peer = world.second(uri)
    await peer.ok("resource.drain", {"targets": "0-3", "reason": "answered"})
    await peer.ok("resource.assign", {"targets": "60-63", "group": "b"})
    await peer.ok("resource.undrain", {"targets": "3"})
    tags = {peer.send("resource.drain", {"targets": str(rank)}): rank for rank in range(8, 56)}
    first = await peer.next(next(iter(tags)))
    os.kill(pid, signal.SIGKILL)
    assert first.errnum == 0
    peer.read()
    answered = {8} | {rank for tag, rank in tags.items() if peer.waiting(tag)}
    uri, _ = await world.daemon(*options)
    peer = world.second(uri)
    status = await peer.ok("resource.status")
    drained = {rank for key in status["drain"] for rank in ranks(key)}
    assert {0, 1, 2} | answered <= drained
    assert 3 not in drained
    assert status["groups"]["b"] == "60-63"
    found, _ = await peer.refused("resource.drain", {"targets": "0-2"})
    assert found == errno.EEXIST


async def test_kill_9_during_a_graceful_move_with_a_job_on_it(world, timed, eventually):
    """The job goes on, and its target leaves once it is over."""
    options = ("--fake", "2x1", "--statedir", str(world.directory / "state"))
    uri, pid = await world.daemon(*options)
    peer = world.second(uri)
    mark = world.directory / "pid"
    jobspec = timed().to_json()
    del jobspec["attributes"]["system"]["exec"]
    jobspec["tasks"][0]["command"] = ["/bin/sh", "-c", f"echo $$ > {mark}; exec sleep 60"]
    jobid = (await peer.ok("job-manager.submit", {"jobspec": jobspec}))["id"]
    await eventually(lambda: mark.exists() and mark.read_text().strip())
    found = await peer.ok("job-manager.lookup", {"id": jobid, "keys": ["R"]})
    rank = found["R"]["execution"]["R_lite"][0]["rank"]
    moved = await peer.ok("resource.assign", {"targets": rank, "group": "b", "graceful": True})
    assert moved["draining"] == rank
    os.kill(pid, signal.SIGKILL)
    uri, _ = await world.daemon(*options)
    assert alive(int(mark.read_text()))
    peer = world.second(uri)
    status = await peer.ok("resource.status")
    assert status["groups"].get("b", "") == ""
    await peer.ok("job-manager.cancel", {"id": jobid})
    result = await peer.ok("job-manager.wait", {"id": jobid})
    assert (result["success"], result["exception_type"]) == (False, "cancel")
    assert not alive(int(mark.read_text()))
    async with asyncio.timeout(15):  # the news of the job's end may come first
        while (status := await peer.ok("resource.status"))["groups"].get("b") != rank:
            await asyncio.sleep(0.01)
    assert status["drain"] == {}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ranks(text):
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


async def test_an_instance_that_cannot_ask_what_became_of_its_jobs_ends(world, monkeypatch):
    def living(host):
        raise FluxschedError("too many open files")

    monkeypatch.setattr(LocalKeeperHost, "living", living)
    with pytest.raises(FluxschedError, match="too many open files"):
        await world.instance(statedir=world.directory / "state")
