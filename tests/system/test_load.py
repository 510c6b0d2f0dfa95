"""Many at once: bursts that become runnable in one instant, storms of changes, and nothing held twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import RPCError

BURST = 2000


def states(instance: Any) -> Counter[str]:
    return Counter(job.state.name for job in instance.effects.manager.jobs.active.values())


@pytest.mark.parametrize("scheduler", ["fifo", "firstfit:placement=best-fit"])
async def test_a_burst_becomes_runnable_in_one_instant(world: Any, timed: Any, scheduler: str) -> None:
    """2,000 jobs wait in a stopped queue; it is started; nothing is granted twice, nobody is forgotten."""
    instance = await world.instance(fake="16x16", schedulers=(scheduler,))
    client = await world.client(instance)
    await client.rpc("job-manager.queue-start", {"start": False})
    ids = await client.submit_many([timed("5ms")] * BURST)
    assert states(instance) == {"SCHED": BURST}
    watch = await client.watch(["alloc", "clean"])
    await client.rpc("job-manager.queue-start", {"start": True})
    seen: Counter[tuple[str, int]] = Counter()
    async with asyncio.timeout(60):
        async for answer in watch:
            for jobid, _, name, _ in answer["events"]:
                seen[name, jobid] += 1
            world.check()
            if sum(name == "clean" for name, _ in seen) == BURST:
                break
    watch.cancel()
    assert set(seen.values()) == {1}
    assert {jobid for _, jobid in seen} == set(ids)
    assert states(instance) == {}
    assert len(instance.resource.module.held) == 0


async def test_cancels_frees_and_urgencies_in_a_storm(world: Any, timed: Any) -> None:
    """Each job is canceled, reprioritised or left alone while grants are on their way; every core comes back."""
    instance = await world.instance(fake="4x4", schedulers=("firstfit",))
    client = await world.client(instance)
    ids = await client.submit_many([timed("10ms", cores_per_task=1 + at % 4) for at in range(300)])

    async def act(at: int, jobid: int) -> None:
        if at % 3 == 0:
            await quietly(client.cancel(jobid))
        elif at % 3 == 1:
            await quietly(client.rpc("job-manager.urgency", {"id": jobid, "urgency": at % 32}))
            await quietly(client.rpc("job-manager.urgency", {"id": jobid, "urgency": 16}))

    await asyncio.gather(*(act(at, jobid) for at, jobid in enumerate(ids)))
    world.check()
    results = await asyncio.wait_for(asyncio.gather(*map(client.wait, ids)), 60)
    world.check()
    assert len(results) == len(ids)
    assert len(instance.resource.module.held) == 0
    async with asyncio.timeout(60):  # the last frees may be on their way to the scheduler's process
        while (await client.rpc("module.stats", {"name": "sched-firstfit"}))["running"]:
            pass
    allocated = await client.rpc("resource.sched-status")
    assert allocated["allocated"]["execution"]["R_lite"] == []


async def quietly(call: Any) -> None:
    """What has ended meanwhile refuses, which is as it should be."""
    with contextlib.suppress(RPCError):
        await call


async def test_real_processes_in_a_burst(world: Any) -> None:
    """100 one-core commands on 16 cores: each runs once and gets its own cores."""
    instance = await world.instance(fake="4x4")
    client = await world.client(instance)
    environment = {"PATH": "/usr/bin:/bin"}
    ids = await client.submit_many([Jobspec.from_command(["true"], environment=environment)] * 100)
    results = await asyncio.wait_for(asyncio.gather(*map(client.wait, ids)), 60)
    assert all(result["success"] for result in results)
    world.check()
