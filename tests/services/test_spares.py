"""Spares in real instances: what schedulers, jobs and people see of them, and kill -9."""

from __future__ import annotations

import os
import signal

import pytest

from fluxsched.core.jobspec import Jobspec

CONFIG = '[resource]\nspares = "fake[4-5]"\n'


def job(nodes: int) -> Jobspec:
    return Jobspec.from_command(["true"], nodes=nodes, ntasks=nodes, duration_s=60.0)


def in_service(status):
    return [(each["target"], each["replaces"], each["group"]) for each in status.get("replaced", [])]


@pytest.mark.parametrize("policy", ["easy", "firstfit"])
async def test_jobs_run_on_the_spare_of_a_drained_target(world, policy):
    site = await world.instance(fake="6x2", config=CONFIG, schedulers=(policy,))
    client = await world.client(site)
    assert not (await client.wait(await client.submit(job(5))))["success"], "the site has four targets"
    await client.drain("1,3", "bad dimm")
    status = await client.rpc("resource.status")
    assert in_service(status) == [(4, 1, "default"), (5, 3, "default")]
    assert status["spares"] == "4-5"
    ended = await client.submit(job(4))
    assert (await client.wait(ended))["success"]
    refused = await client.wait(await client.submit(job(5)))
    assert not refused["success"], "two are drained, and their spares are there: the site has four targets still"
    listed = await client.rpc("resource.sched-status")
    assert listed["spare"]["execution"]["R_lite"] == []
    await client.undrain("1,3")
    status = await client.rpc("resource.status")
    assert in_service(status) == []
    assert (await client.wait(await client.submit(job(4))))["success"]


async def test_a_spare_in_service_is_so_after_kill_9(world):
    path = world.write("site.toml", CONFIG)
    options = ("--fake", "6x2", "--config", str(path), "--statedir", str(world.directory / "state"))
    uri, pid = await world.daemon(*options, "--scheduler", "none")
    peer = world.second(uri)
    await peer.ok("resource.drain", {"targets": "0-2", "reason": "bad"})
    before = await peer.ok("resource.status")
    assert in_service(before) == [(4, 0, "default"), (5, 1, "default")]
    os.kill(pid, signal.SIGKILL)
    uri, _ = await world.daemon(*options, "--scheduler", "none")
    peer = world.second(uri)
    after = await peer.ok("resource.status")
    assert (after["replaced"], after["groups"]) == (before["replaced"], before["groups"])
    await peer.ok("resource.undrain", {"targets": "0"})
    assert in_service(await peer.ok("resource.status")) == [(5, 1, "default"), (4, 2, "default")]


async def test_a_reload_makes_spares(world, eventually):
    path = world.write("site.toml", "")
    site = await world.instance(fake="6x2", config=path, schedulers=("easy",))
    client = await world.client(site)
    await client.drain("0", "bad dimm")
    path.write_text(CONFIG)
    await client.rpc("config.reload")
    spares = site.resource.module.spares
    await eventually(lambda: [(each.target, each.replaces) for each in spares] == [(4, 0)])  # released by then
