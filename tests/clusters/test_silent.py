"""A cluster that has not answered yet, or is silent when this instance starts again: its jobs wait."""

from __future__ import annotations

import asyncio
import errno

import pytest

from fluxsched.clusters.links import ClusterPace
from fluxsched.instance import instance
from tests.clusters.conftest import BOTH, job

# A cluster that has not answered yet, or is silent when this instance starts again: its jobs wait.
#
# With a queue whose jobs run here or there.


EXPECTED = "waits for the targets of group 'east', which are not known yet: its cluster has not answered"


def wide(nodes, queue="far"):
    return job(nodes=nodes, exclusive=True, queue=queue)


@pytest.fixture
async def silent(pair, tmp_path):
    """silent(): an instance whose cluster can begin to listen with `begin_east`, on the same state each time."""
    pair.pace = ClusterPace(reconnect_s=0.01)
    address = f"ipc://{pair.world.directory}/east"

    async def begin_east(fake="4x4"):
        options = {"bind": (address,), "statedir": tmp_path / "east", "schedulers": ("easy",)}
        pair.there = await pair.world.instance(fake=fake, **options)
        pair.far = pair.world.second(pair.there)

    pair.begin_east = begin_east
    pair.begin_here = lambda: pair.open(address, more=BOTH, statedir=tmp_path / "here")
    return pair


async def state(pair, jobid):
    return (await pair.info(jobid))["state"]


async def told(pair, jobid):
    """What the job's owner sees in `jobs`."""

    async def found():
        return (await pair.info(jobid))["annotations"].get("sched", {}).get("reason_pending")

    return await pair.until(found)


async def test_jobs_wait_until_a_cluster_has_answered_once(silent):
    await silent.begin_here()
    for queue in ("far", "both"):
        await silent.near.ok("feasibility.check", {"jobspec": wide(9, queue)})
    first, never, either = [await silent.submit(spec) for spec in (job(), wide(9), wide(3, "both"))]
    here = await silent.submit(wide(2, "both"))
    assert (await silent.wait(here))["success"], "the targets of this instance are known"
    why = await silent.near.ok("job-manager.why", {"id": first})
    assert (why["state"], why["reason"]) == ("SCHED", EXPECTED)
    assert [await told(silent, jobid) for jobid in (first, either)] == [EXPECTED] * 2
    busy = await silent.submit(job("sleep", "60", nodes=2, exclusive=True, queue="both"))
    behind = await silent.submit(wide(2, "both"))
    assert "busy" in await told(silent, behind), "the group that is known speaks for it"
    assert {await state(silent, jobid) for jobid in (first, never, either)} == {"SCHED"}
    await silent.begin_east()
    assert [(await silent.wait(jobid))["success"] for jobid in (first, either, behind)] == [True] * 3
    await silent.near.ok("job-manager.cancel", {"id": busy})
    # it was accepted: its owner is told what is missing, and new ones are denied
    assert "the group has only 4 such nodes" in (await silent.near.ok("job-manager.why", {"id": never}))["reason"]
    assert "the group has only 4 such nodes" in (await silent.wait(await silent.submit(wide(9))))["errstr"]


async def test_its_targets_are_known_from_the_store_when_this_instance_starts_again(silent):
    await silent.begin_east()
    await silent.begin_here()
    busy = await silent.submit(job("sleep", "60", nodes=2, exclusive=True, queue="both"))
    ran = await silent.submit(wide(2, "both"))
    assert (await silent.wait(ran))["success"]
    assert {one["nodelist"].partition(":")[0] for one in await silent.jobs(silent.near)} >= {"east"}
    await silent.near.ok("job-manager.cancel", {"id": busy})
    await silent.wait(busy)
    await silent.world.stop(silent.there)

    async def is_silent():
        return (await silent.cluster())["online"] == 0

    await silent.until(is_silent)
    waiting = await silent.submit(wide(3))
    why = await silent.near.ok("job-manager.why", {"id": waiting})
    assert "; cluster east is silent since " in why["reason"], "its nodes are not said to be down for nothing"
    assert "; cluster east is silent since " in await told(silent, waiting), "`jobs` has the same words"
    await silent.world.stop(silent.here)
    await silent.begin_here()
    found = await silent.cluster()
    assert (found["state"], found["targets"], found["online"]) == ("silent", 4, 0)
    assert (await silent.near.refused("feasibility.check", {"jobspec": wide(5)}))[0] == errno.EOVERFLOW
    submitted = await silent.submit(wide(4))
    assert await state(silent, submitted) == "SCHED"
    await silent.begin_east()
    assert (await silent.wait(submitted))["success"]
    assert (await silent.wait(waiting))["success"]


async def test_the_targets_of_a_cluster_stay_in_its_group(pair):
    await pair.begin()
    own, other = "ranks 4-5 (east:fake[2-3])", "rank 1 (fake1)"
    remedies = {"default": "assign targets of this instance", "exclude": "drain them, or exclude them there"}
    for group, remedy in remedies.items():
        errnum, text = await pair.near.refused("resource.assign", {"targets": "1,4-5", "group": group})
        assert errnum == errno.EINVAL
        assert text == f"cannot assign {own}: of cluster 'east', in whose group they stay; {remedy}"
    assert await pair.near.refused("resource.assign", {"targets": "1,4", "group": "east"}) == (
        errno.EINVAL,
        f"cannot assign {other}: group 'east' has the targets of cluster 'east' and no others",
    )
    await pair.near.ok("resource.assign", {"targets": "2-5", "group": "east"})
    # drained here: so many of them get no jobs, whichever the other instance gives
    await pair.near.ok("resource.drain", {"targets": "3-5", "reason": "leave the rest to others"})
    asked = [await pair.submit(job("sleep", "60", nodes=1, exclusive=True)) for _ in range(2)]
    await pair.running(pair.near)
    assert sorted([await state(pair, jobid) for jobid in asked]) == ["RUN", "SCHED"]
    await pair.near.ok("resource.undrain", {"targets": "3"})
    await pair.running(pair.near, 2)


async def test_a_stop_does_not_wait_for_jobs_in_a_silent_cluster(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(instance, "END_JOBS_S", 3600.0)
    await pair.begin(statedir=tmp_path)
    there, here = [await pair.submit(job("sleep", "60", queue=queue)) for queue in ("far", "near")]
    await pair.begun()
    await pair.fall_silent()
    async with asyncio.timeout(60):
        await pair.world.stop(pair.here)
    await pair.open("ipc:///nowhere/at/all", statedir=tmp_path)
    assert [await state(pair, jobid) for jobid in (there, here)] == ["CLEANUP", "INACTIVE"]
    assert (await pair.cluster())["leases"] == {"wanted": 0, "sent": 0, "running": 1}


async def test_one_that_has_no_targets_any_more_keeps_its_jobs_waiting_until_it_has_some(pair):
    await pair.begin()
    await pair.far.ok("resource.assign", {"targets": "0-3", "group": "exclude"})

    async def says_so():
        return (await pair.cluster())["note"]

    assert await pair.until(says_so) == "it has no targets for jobs of this instance at present"
    found = await pair.cluster()
    assert (found["state"], found["targets"], found["online"]) == ("connected", 4, 0)
    jobid = await pair.submit(wide(3))
    why = await pair.near.ok("job-manager.why", {"id": jobid})
    assert why["reason"].endswith("; cluster east: it has no targets for jobs of this instance at present")
    assert "the group has only 4 such nodes" in (await pair.wait(await pair.submit(wide(9))))["errstr"]
    await pair.far.ok("resource.include", {"targets": "0-2"})
    assert (await pair.wait(jobid))["success"]
    assert (await pair.cluster())["targets"] == 3, "it has come back with fewer"
    assert "the group has only 3 such nodes" in (await pair.wait(await pair.submit(wide(4))))["errstr"]
