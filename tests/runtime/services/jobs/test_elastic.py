"""Elastic jobs in an instance: a scheduler by hand grows and shrinks one; who follows it sees what is on disk."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.exec.base import JobLaunch
from fluxsched.runtime.services.jobs.records import stored_job

ELASTIC = Jobspec.from_command(
    ["work"], nodes="1-3", exclusive=True, elastic=True, test_run_duration_s=3600.0
).to_json()


def r_of(ranks: str) -> dict[str, Any]:
    return {
        "version": 1,
        "execution": {
            "R_lite": [{"rank": ranks, "children": {"core": "0-1"}}],
            "nodelist": [f"fake{rank}" for rank in Idset.parse(ranks)],
            "starttime": 0.0,
            "expiration": 0.0,
        },
    }


async def started(world: Any, site: Any) -> tuple[Any, Any, int]:
    """A scheduler, a user, and the user's job on ranks 0 and 1."""
    sched, user = world.second(site), world.second(site)
    await sched.schedule("default")
    jobid = (await user.ok("job-manager.submit", {"jobspec": ELASTIC}))["id"]
    assert (await sched.request()).payload["id"] == jobid
    sched.answer("sched.alloc", {"id": jobid, "type": 0, "R": r_of("0-1")})
    while (await listed(user))["state"] != "RUN":
        pass
    return sched, user, jobid


async def listed(user: Any) -> dict[str, Any]:
    (found,) = (await user.ok("job-manager.list", {}))["jobs"]
    return dict(found)


def names(site: Any, jobid: int) -> list[str]:
    found = stored_job(site.store, jobid)
    assert found is not None
    return [event["name"] for event in found["eventlog"]]


async def test_a_change_is_on_disk_when_it_is_answered(world: Any) -> None:
    site = await world.bare(fake="4x2")
    sched, user, jobid = await started(world, site)
    changes = user.open("job-manager.changes", {"id": jobid})
    first = (await user.next(changes)).payload
    assert (first["event"], first["ranks"]) == ("now", "0-1")
    assert first["R"]["execution"]["R_lite"] == r_of("0-1")["execution"]["R_lite"]
    assert await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("3")}) is None
    assert names(site, jobid)[-1] == "grow"
    grown = (await user.next(changes)).payload
    assert (grown["event"], grown["ranks"]) == ("grow", "3")
    assert grown["R"]["execution"]["R_lite"] == [{"rank": "0-1,3", "children": {"core": "0-1"}}]
    found = await listed(user)
    assert (found["nnodes"], found["ncores"], found["ranks"], found["nodelist"]) == (3, 6, "0-1,3", "fake[0-1,3]")
    ((running, ranks, *_, sizes),) = (await user.ok("job-manager.running", {}))["jobs"]
    assert (running, ranks, [(size[0], size[2]) for size in sizes]) == (jobid, "0-1,3", [("0-1", 4)])
    assert (await user.ok("job-manager.lookup", {"id": jobid, "keys": ["R"]}))["R"] == grown["R"]

    assert await sched.ok("job-manager.sched-shrink", {"id": jobid, "ranks": "1", "note": "for another"}) is None
    shrunk = (await user.next(changes)).payload
    assert (shrunk["event"], shrunk["ranks"], shrunk["note"]) == ("shrink", "1", "for another")
    free = (await sched.request()).payload
    assert (free.get("final", False), free["R"]["execution"]["R_lite"][0]["rank"]) == (False, "1")
    while names(site, jobid)[-1] != "release":
        await sched.settle()
    assert names(site, jobid)[-3:] == ["grow", "shrink", "release"]
    found = await listed(user)
    assert (found["nnodes"], found["ranks"]) == (2, "0,3")
    assert [(size[0], size[2]) for size in found["sizes"]] == [("0-1", 4), ("0-1,3", 6)]
    late = user.open("job-manager.changes", {"id": jobid})
    now = (await user.next(late)).payload
    assert (now["event"], now["ranks"]) == ("now", "0,3")
    await user.ok("job-manager.cancel", {"id": jobid})
    for stream in (changes, late):
        assert (await user.next(stream)).errnum == errno.ENODATA
    assert (await sched.request()).payload["final"] is True
    over = user.open("job-manager.changes", {"id": jobid})
    assert (await user.next(over)).errnum == errno.ENODATA


async def test_what_is_refused_says_why_and_the_scheduler_goes_on(world: Any) -> None:
    site = await world.bare(fake="4x2", config='[resource.groups]\nlab = "fake3"\n')
    sched, user, jobid = await started(world, site)
    for topic, payload, errnum, text in (
        ("sched-grow", {"id": jobid, "R": r_of("3")}, errno.EPROTO, "targets 3, which are not its scheduler's"),
        ("sched-grow", {"id": jobid, "R": r_of("1-2")}, errno.EPROTO, "ranks 1, which it holds"),
        ("sched-grow", {"id": jobid + 1, "R": r_of("2")}, errno.ENOENT, "is not known"),
        ("sched-shrink", {"id": jobid, "ranks": "0-1", "note": ""}, errno.EINVAL, "would have 0 nodes, and needs 1"),
        ("sched-shrink", {"id": jobid, "ranks": "x", "note": ""}, errno.EINVAL, "x"),
    ):
        found, said = await sched.refused(f"job-manager.{topic}", payload)
        assert (found, text in said) == (errnum, True), said
    found, said = await user.refused("job-manager.sched-grow", {"id": jobid, "R": r_of("2")})
    assert (found, "say job-manager.sched-hello" in said) == (errno.EPROTO, True)
    assert await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("2")}) is None
    site.scheduling.suspend()
    found, _ = await sched.refused("job-manager.sched-shrink", {"id": jobid, "ranks": "0", "note": ""})
    assert found == errno.ESHUTDOWN


async def test_a_job_that_runs_in_another_instance_keeps_its_size(world: Any) -> None:
    site = await world.bare(fake="4x2")
    sched, _, jobid = await started(world, site)
    site.effects.is_leased = lambda leased: leased == jobid
    for topic, payload in (("grow", {"R": r_of("3")}), ("shrink", {"ranks": "1", "note": ""})):
        found, said = await sched.refused(f"job-manager.sched-{topic}", {"id": jobid, **payload})
        assert (found, "its size was settled when it was sent" in said) == (errno.EOPNOTSUPP, True)


@pytest.mark.plain_only("replaces a method")
async def test_a_job_that_ends_in_the_transaction_of_its_grow_is_freed_without_it(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await world.bare(fake="4x2")
    sched, _, jobid = await started(world, site)
    allocation, effects = site.effects.manager.allocation, site.effects
    before = allocation.grow

    def grow(*args: Any) -> Any:
        made = before(*args)
        site.turns.post(lambda: effects.finished(jobid, 0, None))
        return made

    monkeypatch.setattr(type(allocation), "grow", lambda self, *args: grow(*args))
    found, said = await sched.refused("job-manager.sched-grow", {"id": jobid, "R": r_of("3")})
    assert (found, "ended while it grew" in said) == (errno.EINVAL, True)
    free = (await sched.request()).payload
    assert (free.get("final", False), free["R"]["execution"]["R_lite"][0]["rank"]) == (True, "0-1")


async def test_a_client_follows_the_size_of_a_job(world: Any) -> None:
    site = await world.bare(fake="4x2")
    sched, _, jobid = await started(world, site)
    handle = await world.client(site)
    stream = await handle.changes(jobid)
    assert (await anext(stream))["event"] == "now"
    await sched.ok("job-manager.sched-grow", {"id": jobid, "R": r_of("3")})
    assert (await anext(stream))["ranks"] == "3"
    await handle.cancel(jobid)
    assert [one async for one in stream] == []


async def test_a_target_that_a_job_gets_again_before_it_is_stored_that_it_left_it_remains_held(world: Any) -> None:
    site = await world.bare(fake="4x2")
    sched, user, jobid = await started(world, site)
    (scheduler,) = site.effects.manager.links
    allocation, execution = site.effects.manager.allocation, site.effects.manager.execution
    again = Idset.parse("1")

    def in_one_turn() -> None:
        now_s = site.effects.now_s
        site.effects.perform(allocation.shrink(scheduler.scheduler, jobid, again, "", now_s))
        site.effects.perform(execution.released(jobid, again, False, now_s))
        site.effects.perform(allocation.grow(scheduler.scheduler, jobid, r_of("1"), now_s))

    site.turns.post(in_one_turn)
    assert (await sched.request()).payload["id"] == jobid
    await user.ok("job-manager.memo", {"id": jobid, "memo": {"stored": True}})
    assert site.resource.module._holdings.of(jobid) == Idset.parse("0-1")
    await user.ok("job-manager.cancel", {"id": jobid})
    await user.ok("job-manager.wait", {"id": jobid})
    assert not site.resource.module._holdings.of(jobid)


async def test_a_job_begins_with_what_is_stored_and_not_with_what_it_grew_by_meanwhile(world: Any) -> None:
    site = await world.bare(fake="4x2")
    sched, user = world.second(site), world.second(site)
    await sched.schedule("default")
    jobid = (await user.ok("job-manager.submit", {"jobspec": ELASTIC}))["id"]
    assert (await sched.request()).payload["id"] == jobid
    executor = site.effects.executors["test"] = Recorder()
    allocation, now_s = site.effects.manager.allocation, site.effects.now_s

    def both() -> None:
        peer = allocation._lifecycle.links.serving("default").scheduler
        site.effects.perform(allocation.alloc_granted(peer, jobid, r_of("0"), None, now_s))
        site.effects.perform(allocation.grow(peer, jobid, r_of("3"), now_s))

    site.turns.post(both)
    site.turns.wake()
    await user.settle()
    assert executor.told == [("start", r_of("0")), ("grow", r_of("3"))]


class Recorder:
    """An executor that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def start(self, job: JobLaunch) -> None:
        self.told.append(("start", job.R))

    def grow(self, jobid: int, r: Any) -> None:
        self.told.append(("grow", r))

    def kill(self, jobid: int, signum: int, grace_s: float | None) -> None:
        pass

    def close(self) -> None:
        pass
