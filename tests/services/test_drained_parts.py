"""Drained parts of targets in real instances: jobs beside them, reloads of the scheduler, restarts, errors."""

from __future__ import annotations

import asyncio
import errno
import os
import signal

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet


def job(cores: int, command: str = "true", duration_s: float = 60.0) -> Jobspec:
    return Jobspec.from_command([command, "1000"], ntasks=cores, duration_s=duration_s)


async def parts(client):
    lines = (await client.rpc("resource.status")).get("parts", [])
    keys = ("targets", "cores", "gpus", "reason", "state")
    return [tuple(line.get(key, "") for key in keys) for line in lines]


async def cores_of(client, jobid):
    info = await client.rpc("job-manager.lookup", {"id": jobid, "keys": ["R"]})
    return ResourceSet.parse(info["R"]).summary() if info.get("R") else ""


async def test_jobs_that_hold_a_part_run_on_and_no_other_gets_it(world, eventually):
    site = await world.instance(fake="1x4+2", schedulers=("easy",))
    client = await world.client(site)
    runs = await client.submit(job(4, "sleep"))
    while await cores_of(client, runs) != "rank0/core[0-3]":  # the session's time limit ends this
        await asyncio.sleep(0.01)
    await client.drain("0", "bad dimm", cores="2-3", gpus="1")
    assert await parts(client) == [("0", "2-3", "1", "bad dimm", "draining")]
    waits, small = await client.submit(job(3)), await client.submit(job(2))
    await client.cancel(runs)
    assert (await client.wait(small))["success"]
    assert await cores_of(client, small) == "rank0/core[0-1]"
    assert await parts(client) == [("0", "2-3", "1", "bad dimm", "drained")]
    await client.undrain("0", cores="2-3", gpus="1")
    assert (await client.wait(waits))["success"]
    assert await parts(client) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "conservative"])
async def test_they_survive_a_restart_and_a_reload_of_the_scheduler(world, policy):
    statedir = world.directory / "state"
    site = await world.instance(fake="2x4", statedir=statedir, schedulers=(policy,))
    client = await world.client(site)
    await client.drain("0-1", "hot", cores="0")
    await client.drain("1", "dimm", cores="3")
    before = await parts(client)
    await world.stop(site)
    site = await world.instance(fake="2x4", statedir=statedir, schedulers=(policy,))
    client = await world.client(site)
    assert await parts(client) == before == [("0-1", "0", "", "hot", "drained"), ("1", "3", "", "dimm", "drained")]
    fits = await client.submit(job(5))
    assert (await client.wait(fits))["success"]
    assert await cores_of(client, fits) == "rank0/core[1-3] rank1/core[1-2]"
    await client.rpc("module.reload", {"name": f"sched-{policy}"})
    again = await client.submit(job(5))
    assert (await client.wait(again))["success"]
    assert await cores_of(client, again) == "rank0/core[1-3] rank1/core[1-2]"


async def test_what_was_answered_is_there_after_kill_9(world):
    options = ("--fake", "16x4", "--statedir", str(world.directory / "state"), "--scheduler", "none")
    uri, pid = await world.daemon(*options)
    peer = world.second(uri)
    for rank in range(8):
        await peer.ok("resource.drain", {"targets": str(rank), "cores": "1,3", "reason": f"r{rank}"})
    await peer.ok("resource.undrain", {"targets": "2", "cores": "3"})
    for reason in ("disk", "fan", "hot"):
        await peer.ok("resource.drain", {"targets": "8", "reason": reason, "mode": "add"})
    await peer.ok("resource.drain", {"targets": "9", "reason": "other"})
    await peer.ok("resource.undrain", {"targets": "all", "only": "fan"})
    for targets in ("8", "all", "15"):  # the last one is not drained
        refusal = errno.EINVAL, "undrain mode 'add' is unknown: give one of none, update, overwrite, force-overwrite"
        assert await peer.refused("resource.undrain", {"targets": targets, "mode": "add"}) == refusal
    drain = (await peer.ok("resource.status"))["drain"]
    assert drain["8"]["reason"] == "disk; also: hot"
    assert [each["reason"] for each in drain["8"]["reasons"]] == ["disk", "hot"]
    os.kill(pid, signal.SIGKILL)
    uri, _ = await world.daemon(*options)
    status = await world.second(uri).ok("resource.status")
    lines = status["parts"]
    assert status["drain"] == drain
    found = {line["targets"]: (line["cores"], line["reason"]) for line in lines}
    assert found == {str(rank): ("1" if rank == 2 else "1,3", f"r{rank}") for rank in range(8)}


async def test_a_drain_ends_by_itself(world):
    site = await world.instance(fake="2x4")
    client = await world.client(site)
    await client.rpc("resource.drain", {"targets": "0", "reason": "x", "for": 0.3})
    await client.rpc("resource.drain", {"targets": "1", "cores": "0-1", "reason": "y", "for": 0.3})
    waits = await client.submit(job(8))
    assert (await client.wait(waits))["success"]  # it starts when both are over
    status = await client.rpc("resource.status")
    assert (status["drain"], status.get("parts", [])) == ({}, [])


async def test_a_job_that_is_submitted_again_leaves_what_was_drained_meanwhile(world, eventually):
    site = await world.instance(fake="2x4", schedulers=("easy",))
    client = await world.client(site)
    runs = await client.submit(job(3, "sleep"))
    await eventually(lambda: site.resource.module.held)
    assert await cores_of(client, runs) == "rank0/core[0-2]"
    await client.drain("0-1", "bad dimm", cores="0")
    await client.rpc("job-manager.raise", {"id": runs, "type": "requeue", "severity": 0})
    while (again := max(each["id"] for each in (await client.rpc("job-manager.list"))["jobs"])) == runs:
        await asyncio.sleep(0.01)  # a wait for the first would wait for its successor
    while not (found := await cores_of(client, again)):  # the session's time limit ends this
        await asyncio.sleep(0.01)
    assert found == "rank0/core[1-3]"


async def test_what_needs_withheld_cores_can_never_run(world):
    site = await world.instance(fake="2x4", config='[resource]\nwithhold = "0@all"\n')
    client = await world.client(site)
    fits = await client.submit(job(6))
    assert (await client.wait(fits))["success"]
    assert await cores_of(client, fits) == "rank[0-1]/core[1-3]"
    status = await client.rpc("resource.status")
    assert [(each["targets"], each["cores"], each["state"]) for each in status["withheld"]] == [
        ("0-1", "0", "withheld")
    ]
    listed = await client.rpc("resource.sched-status")
    assert listed["withheld"]["execution"]["R_lite"] == [{"rank": "0-1", "children": {"core": "0"}}]
    found, text = await world.second(site).refused("resource.drain", {"targets": "0", "cores": "0"})
    assert (found, "without core0" in text) == (22, True)
    ended = await client.wait(await client.submit(job(7)))
    assert not ended["success"]
