"""`sched.plan` of a real scheduler."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.protocol.messages.live.reasons import REASONS_MAX

LOOK_S = 0.05


@pytest.mark.parametrize(("policy", "is_promised"), [("conservative", True), ("fifo", False)])
async def test_what_is_planned_is_told(
    world: Any, timed: Callable[..., Jobspec], policy: str, is_promised: bool
) -> None:
    site = await world.instance(fake="2x4", schedulers=(policy,))
    client = await world.client(site)
    await client.submit(timed("1h", nodes=2, exclusive=True, duration_s=600.0))
    second = await client.submit(timed("1h", nodes=1, exclusive=True, duration_s=60.0))
    third = await client.submit(timed("1h", nodes=2, exclusive=True))
    found: dict[str, Any] = {"jobs": []}
    while len(found["jobs"]) < 2:  # an answer with forecasts serves for seconds
        found = await client.plan()
        await asyncio.sleep(LOOK_S)
    one, other = found["jobs"]
    assert found["left_out"] == 0
    assert (one[0], one[2] - one[1], one[4], one[6]) == (second, 60.0, 1, is_promised)
    assert (other[0], other[4], other[5]) == (third, 2, 8 if is_promised else other[5])
    assert (await client.plan(max_entries=1))["left_out"] == 1


async def test_who_plans_nothing_and_who_is_not_there(world: Any) -> None:
    asker = world.second(await world.instance())
    assert await asker.ok("sched.plan") == {"jobs": [], "left_out": 0}
    errnum, text = await asker.refused("sched.plan", {"group": "lab"})
    assert (errnum, "no scheduler serves group 'lab'" in text) == (errno.ENOSYS, True)
    assert (await asker.refused("sched.plan", {"max_entries": -1}))[0] == errno.EPROTO


async def test_why_many_jobs_wait(world: Any, timed: Callable[..., Jobspec]) -> None:
    site = await world.instance(fake="2x4", schedulers=("easy",))
    client, asker = await world.client(site), world.second(site)
    runs = await client.submit(timed("1h", nodes=2, exclusive=True, duration_s=600.0))
    waits = [await client.submit(timed("1h", nodes=2, exclusive=True, duration_s=60.0)) for _ in range(3)]
    held = await client.submit(timed("1h"), 0)
    found: dict[int, Any] = {}
    while not {*waits, held} <= found.keys() or found[waits[0]][2] is False:
        found = {jobid: rest for jobid, *rest in (await client.reasons([runs, *waits, held, 7]))["jobs"]}
        await asyncio.sleep(LOOK_S)
    assert (runs in found, 7 in found) == (False, False)
    assert all(reason and earliest for reason, earliest, _ in (found[jobid] for jobid in waits))
    assert [found[jobid][2] for jobid in waits] == [True, False, False]
    assert (await client.reasons([]))["jobs"] == []
    assert (await asker.refused("job-manager.reasons", {"ids": [1] * (REASONS_MAX + 1)}))[0] == errno.EPROTO
