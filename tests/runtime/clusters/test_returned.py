"""Jobs that another instance does not begin: they are returned, at no cost, and run elsewhere, or there later."""

from __future__ import annotations

import pytest

from fluxsched.runtime.clusters import loop, own
from fluxsched.views.jobs import JobRow

from .conftest import BOTH, job


@pytest.fixture
def blind(monkeypatch):
    """What becomes of the queue there is not noticed."""
    monkeypatch.setattr(own, "QUEUE_S", 3600.0)
    monkeypatch.setattr(loop, "LISTEN_S", 3600.0)


async def returned(pair, jobid):
    """The job that continues this one."""

    async def following():
        return (await pair.info(jobid)).get("requeued_as")

    return await pair.until(following)


async def stop(pair, *, start=False, reason="maintenance"):
    await pair.far.ok("job-manager.queue-start", {"start": start, "all": True, "reason": reason})


async def begun(pair):
    return [one["id"] for one in await pair.jobs(pair.far) if one.get("t_run")]


async def test_a_job_that_is_not_begun_in_time_is_returned_at_no_cost(pair, blind):
    await pair.begin(more='return-after = "50ms"')
    await stop(pair)
    jobid = await pair.submit(job("true"))
    found = await pair.info(await returned(pair, jobid))
    assert (found["requeue_of"], found.get("attempt", 0)) == (jobid, 0)
    await stop(pair, start=True)
    assert (await pair.wait(jobid))["success"]
    assert len(await begun(pair)) == 1


async def test_what_one_cluster_does_not_begin_runs_elsewhere_and_waits_for_it_meanwhile(pair, blind):
    await pair.begin(more=f'return-after = "1h"{BOTH}')
    await stop(pair)
    await pair.near.ok("resource.drain", {"targets": "0-1"})
    jobid = await pair.submit(job(queue="both"))
    await pair.granted(jobid)
    await pair.near.ok("resource.undrain", {"targets": "0-1"})
    why = await pair.near.ok("job-manager.why", {"id": jobid})
    assert (why["state"], why["reason"]) == ("RUN", "it was given targets of cluster east and waits to be begun there")
    assert "submitted again here, at no cost of attempts" in why["rule"]
    assert JobRow(await pair.info(jobid), 0.0).contextual_info() == "waits to be begun in cluster east"
    pair.make_late()
    following = await returned(pair, jobid)
    assert (await pair.wait(jobid))["success"]
    assert (await pair.info(following))["nodelist"] == "fake0", "not in the cluster that has just returned it"
    assert await begun(pair) == []
    assert not (await pair.info(following)).get("requeued_as")


async def test_for_a_while_no_job_is_sent_that_wants_as_many_targets_as_one_that_was_returned(pair, blind):
    await pair.begin(more='return-after = "1h"')
    await stop(pair)
    wide = await pair.submit(job(nodes=3, exclusive=True))
    await pair.granted(wide)
    pair.make_late()
    following = await returned(pair, wide)
    found = await pair.cluster()
    assert (found["online"], found["leases"]["sent"]) == (2, 0)
    assert "no job of 3 nodes or more is sent until" in found["note"]
    why = await pair.near.ok("job-manager.why", {"id": following})
    assert "; cluster east: " in why["reason"]
    assert "was not begun there in time" in why["reason"]
    await stop(pair, start=True)
    assert (await pair.wait(await pair.submit(job(nodes=2, exclusive=True))))["success"]
    assert (await pair.info(following))["state"] == "SCHED"
    pair.forget_returned()
    assert (await pair.wait(wide))["success"]


async def test_nothing_is_sent_to_a_queue_that_is_stopped_and_its_reason_is_told(pair, monkeypatch):
    monkeypatch.setattr(own, "QUEUE_S", 0.02)
    await pair.begin(more=BOTH)
    await stop(pair)

    async def note():
        return (await pair.cluster())["note"]

    assert await pair.until(note) == "its queue is stopped: maintenance"
    jobid = await pair.submit(job())
    why = await pair.near.ok("job-manager.why", {"id": jobid})
    assert why["reason"].endswith("; cluster east: its queue is stopped: maintenance")
    behind = await pair.info(await pair.submit(job()))
    assert JobRow(behind, 0.0).contextual_info() == "cluster east: its queue is stopped: maintenance"
    assert (await pair.wait(await pair.submit(job(queue="both"))))["success"]
    assert await pair.jobs(pair.far) == []
    await stop(pair, start=True)
    assert (await pair.wait(jobid))["success"]
    assert (await pair.cluster())["note"] == ""


async def test_a_job_that_a_disabled_queue_refuses_waits_for_it(pair, blind):
    await pair.begin()
    await pair.far.ok("job-manager.queue-enable", {"enable": False, "reason": "closed today", "all": True})
    jobid = await pair.submit(job())
    following = await returned(pair, jobid)
    assert "closed today" in (await pair.info(jobid))["exception"]["note"]
    assert (await pair.info(following))["state"] == "SCHED"
    assert (await pair.cluster())["online"] == 0
