"""`job-manager.running` of a real instance: what holds resources, and how much of it is shown."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.jobs.query import running
from fluxsched.runtime.services.jobs import running as service


async def test_what_runs_is_listed_with_its_targets_and_limit(world: Any, timed: Callable[..., Jobspec]) -> None:
    site = await world.instance(fake="4x4", config="[queues.batch]\n")
    client = await world.client(site)
    small = await client.submit(timed("1h", ntasks=1, queue="batch", duration_s=600.0, name="<i>"))
    large = await client.submit(timed("1h", nodes=3, exclusive=True, queue="batch", duration_s=600.0))
    async for message in client.stream("job-manager.watch", {"names": ["start"], "history": True}):
        if large in [event[0] for event in message["events"]]:
            break
    found = await client.running()
    assert ([entry[0] for entry in found["jobs"]], found["left_out"]) == ([large, small], 0)
    jobid, ranks, t_run, expiration, ncores, userid, queue, name, _ = found["jobs"][1]
    assert (jobid, ncores, userid, queue, name) == (small, 1, os.getuid(), "batch", "<i>")
    assert abs(expiration - t_run - 600) < 60
    other = [f"fake{rank}" for rank in range(4) if str(rank) != ranks]
    assert [entry[0] for entry in (await client.running(",".join(other)))["jobs"]] == [large]
    assert (await client.running(ranks))["jobs"][0][0] == small
    assert (await client.running(max_entries=1))["left_out"] == 1
    asker = world.second(site)
    errnum, text = await asker.refused("job-manager.running", {"targets": "fake[3-5]"})
    assert (errnum, "fake[4-5]" in text) == (errno.EINVAL, True)


async def test_an_answer_has_a_limit(
    world: Any, timed: Callable[..., Jobspec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RUNNING_JOBS_MAX", 2)
    assert running.RUNNING_JOBS_MAX == 10_000
    site = await world.instance(fake="4x4")
    client = await world.client(site)
    ids = [await client.submit(timed("1h")) for _ in range(3)]
    seen: set[int] = set()
    async for message in client.stream("job-manager.watch", {"names": ["start"], "history": True}):
        seen |= {event[0] for event in message["events"]}
        if seen == set(ids):
            break
    found = await client.running(max_entries=3)
    assert (len(found["jobs"]), found["left_out"]) == (2, 1)
