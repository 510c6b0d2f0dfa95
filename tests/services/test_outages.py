"""Planned outages in real instances: what jobs do beside them, drains by the clock, restarts."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import RPCError


def job(duration_s: float, nodes: int = 2) -> Jobspec:
    return Jobspec.from_command(["true"], nodes=nodes, exclusive=True, duration_s=duration_s)


async def drains(client):
    return {key: line["reason"] for key, line in (await client.rpc("resource.status"))["drain"].items()}


async def told(client, jobid, words):
    """The reason of a waiting job, once it has these words: a pass of its scheduler may have to come first."""
    async with asyncio.timeout(60):
        while words not in (reason := (await client.rpc("sched.why", {"id": jobid}))["reason"]):
            await asyncio.sleep(0.01)
    return reason


async def end_soon(client, name):
    """Have an outage end in a moment; one that is over when it arrives is refused, then a later end is tried."""
    for doublings in range(8):
        with suppress(RPCError):
            return await client.rpc(
                "resource.outage-update", {"name": name, "until": time.time() + 0.2 * 2**doublings}
            )
    raise AssertionError(f"outage {name} cannot be changed")


async def test_a_job_that_would_cross_waits_and_is_told_so(world):
    site = await world.instance(fake="2x4", schedulers=("easy",))
    client = await world.client(site)
    now_s = time.time()
    assert await client.add_outage("0-1", now_s + 1000.0, now_s + 2000.0, name="upd", reason="kernel") == "upd"
    long, short = await client.submit(job(5000.0)), await client.submit(job(60.0))
    assert (await client.wait(short))["success"]
    why = await told(client, long, "outage upd keeps fake[0-1] from ")
    assert why.startswith("outage upd")
    assert "it fits with --time-limit 1" in why
    await client.remove_outage("upd")
    assert (await client.wait(long))["success"]
    assert await client.outages() == {"outages": []}


async def test_it_drains_and_undrains_by_the_clock(world):
    site = await world.instance(fake="2x4")
    client = await world.client(site)
    now_s = time.time()
    await client.add_outage("1", now_s, now_s + 3600.0, name="upd", reason="kernel")
    assert await drains(client) == {"1": "kernel"}
    waits = await client.submit(job(1.0))
    await end_soon(client, "upd")
    assert (await client.wait(waits))["success"]  # what waits starts at its end
    assert await drains(client) == {}
    later = time.time() + 0.2
    await client.add_outage("0-1", later, later + 3600.0, name="soon")
    while not await drains(client):
        assert time.time() < later + 60.0
    assert await drains(client) == {"0-1": "outage soon"}


async def test_it_survives_a_restart(world):
    statedir = world.directory / "state"
    site = await world.bare(fake="2x4", statedir=statedir)
    peer = world.second(site)
    now_s = time.time()
    await peer.ok("resource.outage-add", {"targets": "1", "from": now_s, "for": 3600.0, "every": 86400.0})
    listed = await peer.ok("resource.outage-list")
    await world.stop(site)
    config = '[[outages]]\ntargets = "0"\nfrom = 4000000000\nfor = "2h"\nreason = "move"\n'
    peer = world.second(await world.bare(fake="2x4", statedir=statedir, config=config))
    again = await peer.ok("resource.outage-list")
    assert again["outages"][0] == listed["outages"][0]
    assert again["outages"][0]["on"]
    configured = {"name": "config1", "targets": "0", "from": 4e9, "until": 4e9 + 7200.0, "reason": "move"}
    assert again["outages"][1] == {**configured, "configured": True}
    assert list((await peer.ok("resource.status"))["drain"]) == ["1"]
