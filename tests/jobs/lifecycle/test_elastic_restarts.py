"""Elastic jobs: what another scheduler hears of them, what a restart reads, and what they used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidTransition, Refused, RemoteProtocolError
from fluxsched.jobs.effects import SchedFree
from fluxsched.jobs.job.sizes import used
from fluxsched.jobs.job.states import State
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.query.job_query import EVERY_JOB
from fluxsched.jobs.query.listing import list_jobs
from tests.jobs.elastic import grow, ids, r_of, released, shrink, started


def restarted(world: Any, new_world: Callable[..., Any]) -> Any:
    """Another world that has read what this one has stored."""
    again = new_world()
    rows = world.rows()
    again.stored = {jobid: {**row, "events": [*row["events"]]} for jobid, row in world.stored.items()}
    again.now_s = world.now_s
    again.perform(again.manager.restore(rows, again.now_s).effects)
    return again


def test_a_scheduler_that_comes_anew_hears_of_the_whole_job(world: Any) -> None:
    started(world)
    grow(world, r_of("7"), answered=False)
    shrink(world, "2")
    world.do("scheduler_lost", "sched")
    (hello,), _, _ = world.scheduler("next")
    assert (hello.going, hello.grown, hello.free) == (ids("2"), ids("7"), EMPTY)
    assert hello.shrunk_s == world.stored[1]["events"][-1]["timestamp"]
    assert ResourceSet.parse(hello.R).ranks == ids("0-3,7")
    world.manager.allocation.grow_answered("sched", 1, ids("7"))  # the one that asked is gone
    world.end()
    assert ResourceSet.parse(world.freed()[0].R).ranks == ids("0-3,7")


def test_a_free_in_run_waits_for_ready_and_is_sent_without_a_scheduler_to_none(world: Any) -> None:
    started(world)
    shrink(world, "2-3")
    world.do("scheduler_lost", "sched")
    released(world, "2")
    assert world.freed() == []
    (hello,) = world.manager.allocation.hello("next")
    assert ResourceSet.parse(hello.R).ranks == ids("0-1,3")
    released(world, "3")
    assert world.freed() == []
    world.now_s += 1.0
    _, effects = world.manager.allocation.ready("next", None, world.now_s)
    assert [one for one in effects if isinstance(one, SchedFree)] == [SchedFree("next", 1, r_of("3"), False)]


@pytest.mark.parametrize("point", ["grown", "shrunk", "left", "ending", "moved"])
def test_a_restart_reads_the_same_job(world: Any, new_world: Callable[..., Any], point: str) -> None:
    """At each point: a grow that was not answered, tasks that are still there, a job that ends meanwhile."""
    started(world)
    grow(world, r_of("7"), answered=False)
    if point != "grown":
        world.manager.allocation.grow_answered("sched", 1, ids("7"))
        shrink(world, "1,3")
    if point in ("left", "moved"):
        released(world, "3")
    if point == "moved":
        grow(world, r_of("3"))
        world.do("update", 1, {"attributes.system.duration": 900.0})
        world.do("expiration_answered", 1, None)
    if point == "ending":
        world.do("cancel", 1, 5, "")
    again = restarted(world, new_world)
    one, other = world.job(), again.job()
    for name in (
        "R", "ranks", "held", "freed", "going", "grown", "t_shrunk", "sizes", "ncores", "ngpus", "nodelist",
        "properties", "starttime_s", "expiration_s", "duration_s", "state", "t_run",
    ):  # fmt: skip
        assert getattr(one, name) == getattr(other, name), name
    assert again.manager.holdings.entries() == world.manager.holdings.entries()
    assert again.held == {1: one.held}
    if point == "shrunk":
        again.scheduler()
        released(again, "1,3")
        assert [ResourceSet.parse(free.R).ranks for free in again.freed()] == [ids("1,3")]


def test_a_job_that_finished_while_targets_were_going_is_released_at_a_restart(
    world: Any, new_world: Callable[..., Any]
) -> None:
    started(world)
    shrink(world, "3")
    world.do("finished", 1, 0)
    again = restarted(world, new_world)
    assert (again.held, again.state()) == ({}, State.INACTIVE)


def test_what_a_job_used_is_exact(world: Any) -> None:
    """4 nodes of 2 cores for 2 s, 5 for 2 s, one of which is leaving in the second, then 3."""
    started(world)
    begin_s = world.job().t_run
    grow(world, r_of("7"))
    shrink(world, "2-3")
    released(world, "2-3")
    job = world.job()
    assert [size[:3] for size in job.sizes] == [(begin_s + 2, 8, 0), (begin_s + 4, 10, 0)]
    assert used(job, begin_s, begin_s + 8).core_s == 8 * 2 + 10 * 2 + 6 * 4
    assert used(job, begin_s + 1, begin_s + 3).core_s == 8 + 10
    assert used(job, begin_s + 6, begin_s + 7).core_s == 6
    assert used(job, begin_s + 7, begin_s + 6).core_s == 0
    world.end()
    assert used(world.job(), begin_s, begin_s + 5).core_s == 8 * 2 + 10 * 2 + 6


STEPS = st.lists(st.tuples(st.sampled_from(["grow", "shrink", "left", "answer"]), st.integers(0, 9)), max_size=25)


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_whatever_happens_it_keeps_its_minimum_and_is_read_back(steps: list[tuple[str, int]]) -> None:
    from tests.jobs.conftest import World

    world = World()
    world.scheduler()
    started(world)
    expected = set(range(4))
    for step, rank in steps:
        before = set(world.job().held - world.job().going)
        text = str(rank)
        try:
            if step == "grow":
                grow(world, r_of(text), answered=False)
                assert rank not in expected
                expected.add(rank)
            elif step == "shrink":
                shrink(world, text)
                assert rank in before
            elif step == "left":
                released(world, text)
                expected.discard(rank)
            else:
                world.manager.allocation.grow_answered("sched", 1, ids(text))
        except (Refused, RemoteProtocolError, InvalidTransition):
            assert set(world.job().held - world.job().going) == before
        job = world.job()
        assert set(job.held) == expected == set(ResourceSet.parse(job.R).ranks)
        assert 2 <= len(job.held - job.going) <= 6
    manager = JobManager(lambda now_s: 5)
    manager.restore(world.rows(), world.now_s)
    manager.check()
    (shown,) = [one for some in list_jobs(manager.jobs, EVERY_JOB) for one in some]
    assert shown["ranks"] == str(world.job().ranks)
