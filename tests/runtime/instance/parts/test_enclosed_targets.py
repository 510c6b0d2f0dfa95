"""An instance inside an elastic job: its targets come and go with what the job has."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.nested import ADDRESS_KEY
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, Refused
from fluxsched.runtime.client.asyncio_client import AsyncHandle
from fluxsched.runtime.instance.parts.enclosed_targets import EnclosedTargets, cannot_reload, grace_of

WAIT_S = 15.0
NESTED = Jobspec.from_command(["flux", "broker", "-Sbroker.rc2_none=1"], nodes="1-3", exclusive=True, elastic=True)


def r_of(ranks: str) -> dict[str, Any]:
    hosts = [f"fake{rank}" for rank in Idset.parse(ranks)]
    lite = [{"rank": ranks, "children": {"core": "0-1"}}]
    return {"version": 1, "execution": {"R_lite": lite, "nodelist": hosts, "starttime": 0.0, "expiration": 0.0}}


async def event_of(user: Any, stream: int, name: str) -> dict[str, Any]:
    """The next event of this name of a job."""
    while True:
        for event in (await user.next(stream)).payload["events"]:
            if event["name"] == name:
                return dict(event["context"])


async def when(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


async def until(handle: AsyncHandle, jobid: int, name: str) -> None:
    async for message in handle.stream("job-manager.eventlog", {"id": jobid, "follow": True}):
        if any(event["name"] == name for event in message["events"]):
            return


async def test_it_grows_with_its_job_and_leaves_what_the_job_gives_back(world: Any) -> None:
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
        await until(inner, jobs[1], "start")
        await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("3")})
        await until(inner, jobs[2], "start")
        await sched.ok("job-manager.sched-shrink", {"id": jobid, "ranks": "1", "note": "for another"})
        assert await event_of(user, log, "release") == {"ranks": "1", "final": False}
        await until(inner, jobs[1], "clean")
        found = (await inner.rpc("job-manager.list", {}))["jobs"]
        assert [job["id"] for job in found if job["state"] == "RUN"] == [jobs[2], jobs[0]]
    errnum, said = await user.refused("job-manager.released", {"id": jobid + 1, "ranks": "0"})
    assert (errnum, "no elastic instance" in said) == (errno.EINVAL, True)


async def test_a_target_that_returns_is_its_old_self_and_one_that_was_left_is_told_again(world: Any) -> None:
    site = await world.bare(fake="4x2")
    parts, told, module = site._parts, list[str](), site._parts.resource.module
    module.targets.dynamic = True
    outer = ResourceSet.parse(r_of("0-3")).rerank_by({0: 4, 1: 5, 2: 6, 3: 9})
    targets = EnclosedTargets(outer, parts.resource, parts.agents, parts.effects, lambda left: told.append(str(left)))
    turns = parts.turns
    turns.post(lambda: targets.follow(outer.without(Idset.parse("5,9")), 1.0))
    await when(lambda: told == ["5,9"])
    assert str(module.lost) == "1,3"
    turns.post(lambda: targets.follow(outer.without(Idset.parse("9")), 1.0))
    await when(lambda: told == ["5,9", "9"])
    assert str(module.lost) == "3"
    assert str(module.usable("default")) == "0-2"
    moved = ResourceSet.parse(r_of("0")).rerank_by({0: 11})
    turns.post(lambda: targets.follow(outer.without(Idset.parse("9")) | moved, 1.0))
    await when(lambda: str(module.usable("default")) == "0-2,4")


def test_the_grace_time_is_that_of_the_instance_around() -> None:
    assert grace_of({}) == 5.0
    assert grace_of({"exec": {"kill-timeout": "7s"}}) == 7.0
    assert grace_of({"exec": {"kill-timeout": "7s", "preempt-timeout": "1m"}}) == 60.0
    with pytest.raises(InvalidValue):
        grace_of({"exec": {"kill-timeout": "soon"}})
    with pytest.raises(Refused, match="inside an elastic job"):
        cannot_reload(None)
