"""Stock Flux clients and jobs that are submitted again: a waitable job is waited for to its last attempt, once."""

from __future__ import annotations

import errno
from typing import Any

TEST = {"test": {"run_duration": "1h"}}


async def preempted(flux: Any, jobid: int) -> int:
    """Preempt a job as it runs; the job that continues it."""
    await flux.ok("job-list.list-id", {"id": jobid, "attrs": [], "state": 16})
    await flux.ok("job-manager.raise", {"id": jobid, "type": "preempt", "severity": 0, "note": "for another"})
    clean = (await flux.events(jobid))[-1]
    return int(clean["context"]["requeue"]["as"])


async def test_a_waitable_job_is_waited_for_to_its_last_attempt(flux: Any) -> None:
    first = await flux.submit("true", flags=4, exec=TEST, fluxsched={"requeue": 2})
    any_job = flux.open("job-manager.wait", {"id": -1}, flags=0x0B)
    second = await preempted(flux, first)
    third = await preempted(flux, second)
    await flux.ok("job-manager.raise", {"id": first, "type": "cancel", "severity": 0, "note": "enough"})
    errnum, found = await flux.next(any_job)
    assert (errnum, found["id"], found["success"]) == (0, first, False)
    assert found["errstr"] == "Fatal exception type=cancel enough"
    assert (await flux.ask("job-manager.wait", {"id": first}))[0] == errno.ECHILD, "a job is waited for once"
    assert (await flux.ok("job-manager.wait", {"id": third}))["id"] == third


async def test_one_waits_by_id_for_an_attempt_that_was_preempted_before(flux: Any) -> None:
    first = await flux.submit("true", flags=4, exec=TEST, fluxsched={"requeue": 1})
    await preempted(flux, first)
    wait = flux.open("job-manager.wait", {"id": first}, flags=0x0B)
    await flux.ok("job-manager.raise", {"id": first, "type": "cancel", "severity": 0, "note": ""})
    assert (await flux.next(wait))[1]["id"] == first
