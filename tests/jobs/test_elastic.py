"""Elastic jobs: what a running job may be given and made to leave, what each step stores, and what a restart reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidTransition, Refused, RemoteProtocolError
from fluxsched.jobs import table
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.query import EVERY_JOB, list_jobs
from fluxsched.jobs.states import GrowShells, ShrinkShells, State, TargetsFreed, TargetsGranted, ToScheduler
from fluxsched.jobs.table import used
from fluxsched.protocol.messages.jobs import FreeRequest
from tests.jobs.elastic import elastic, grow, ids, parts, r_of, released, shrink, started

# Elastic jobs: what a running job may be given and made to leave, and what each step stores.


def seen(world, jobid=1):
    """What a listing shows of its size."""
    (found,) = [one for one in world.listing() if one["id"] == jobid]
    return {name: found[name] for name in ("nnodes", "ncores", "ranks", "nodelist")}


def test_its_tasks_are_those_of_what_it_holds(world):
    def ntasks():
        return int(world.listing()[-1]["ntasks"])

    world.submit(1, elastic())
    assert ntasks() == 2  # at least
    world.grant(1, r_of("0-3"))
    assert ntasks() == 4
    world.do("started", 1)
    grow(world, r_of("7"))
    assert ntasks() == 5
    shrink(world, "2-3")
    assert ntasks() == 5
    released(world, "2-3")
    assert ntasks() == 3
    world.end()
    assert ntasks() == 3
    started(world, parts(), r_of("0-2", lead="0", workers="1-2"), 2)
    grow(world, r_of("3-4", workers="3-4"), 2)
    assert world.job(2).ntasks == 5
    for jobid, spec, nslots, expected in (
        (3, Jobspec.from_command(["work"], nodes="1-4", ntasks=6), 8, 6),  # a total stays
        (4, Jobspec.from_command(["work"], nodes="1-4"), "two", 2),  # a wrong nslots is not believed
        (5, Jobspec.from_command(["work"], nodes="1-4"), 2, 2),
    ):
        R = r_of(f"{2 * jobid}-{2 * jobid + 1}")
        R["execution"]["nslots"] = nslots
        started(world, spec, R, jobid)
        assert world.job(jobid).ntasks == expected


def test_a_job_grows_and_shrinks_in_steps_that_are_stored(world):
    started(world)
    grow(world, r_of("7"))
    assert [type(one).__name__ for one in world.last] == ["Persist", "TargetsGranted", "GrowShells"]
    assert world.of(TargetsGranted) == [TargetsGranted(1, ids("7"))]
    assert world.of(GrowShells) == [GrowShells(1, r_of("7"))]
    assert world.contexts(1, "grow") == [{"R": r_of("7")}]
    assert seen(world) == {"nnodes": 5, "ncores": 10, "ranks": "0-3,7", "nodelist": "node[0-3,7]"}
    shrink(world, "2-3")
    assert [type(one).__name__ for one in world.last] == ["Persist", "ShrinkShells"]
    assert world.of(ShrinkShells) == [ShrinkShells(1, ids("2-3"), "for others")]
    assert (world.job().going, world.job().held) == (ids("2-3"), ids("0-3,7"))
    assert seen(world)["nnodes"] == 5
    released(world, "3")
    assert world.freed() == [FreeRequest(1, r_of("3"), False)]
    assert world.of(TargetsFreed) == [TargetsFreed(1, ids("3"))]
    assert world.contexts(1, "release") == [{"ranks": "3", "final": False}]
    assert seen(world) == {"nnodes": 4, "ncores": 8, "ranks": "0-2,7", "nodelist": "node[0-2,7]"}
    assert (world.job().going, world.job().grown) == (ids("2"), ids("7"))
    released(world, "2")
    assert world.state() is State.RUN
    grow(world, r_of("2"))
    world.end()
    assert world.freed()[0].final
    assert ResourceSet.parse(world.freed()[0].R).ranks == ids("0-2,7")
    assert world.contexts(1, "release")[-1] == {"ranks": "all", "final": True}
    assert world.result().success


def test_an_exception_for_targets_that_the_job_has_left_is_none(world):
    """A shrink of the group crossed their release: the job was ended for what it no longer had."""
    started(world)
    shrink(world, "2-3")
    released(world, "3")
    world.do("raise_exception", 1, "exec", 0, "target 3 left the group", None, ranks=ids("3"))
    assert (world.last, world.state()) == ([], State.RUN)
    world.do("raise_exception", 1, "exec", 0, "target 2 left the group", None, ranks=ids("2-3"))
    assert world.state() is State.CLEANUP


def test_each_part_has_its_own_range(world):
    started(world, parts(), r_of("0-2", lead="0", workers="1-2"))
    with pytest.raises(Refused, match=r"cannot grow by ranks 3: it would have 2 nodes of part lead, which is not in 1"):
        grow(world, r_of("3", lead="3"))
    grow(world, r_of("3-4", workers="3-4"))
    assert ResourceSet.parse(world.job().R).parts == {"lead": ids("0"), "workers": ids("1-4")}
    assert world.listing()[0]["parts"] == {"lead": "0", "workers": "1-4"}
    with pytest.raises(Refused, match="cannot shrink by ranks 0: it would have 0 nodes of part lead, and needs 1"):
        shrink(world, "0")
    with pytest.raises(RemoteProtocolError, match="cannot grow by ranks 5 without a part: lead, workers"):
        grow(world, r_of("5"))
    with pytest.raises(RemoteProtocolError, match="ranks 6 without a part"):
        grow(world, r_of("5-6", workers="5", others="6"))
    shrink(world, "1,4")
    released(world, "1,4")
    assert ResourceSet.parse(world.job().R).parts == {"lead": ids("0"), "workers": ids("2-3")}
    grow(world, r_of("1", workers="1"))
    assert ResourceSet.parse(world.job().R).parts == {"lead": ids("0"), "workers": ids("1-3")}


WRONG_GROWS = [
    (r_of("3-4"), RemoteProtocolError, "cannot grow by ranks 3, which it already holds"),
    (r_of("4-6"), Refused, "cannot grow by ranks 4-6: it would have 7 nodes, which is not in 2-6"),
    (r_of("8"), RemoteProtocolError, "job 1 was granted rank8/core0-1 held by job 2"),
    (r_of("9"), RemoteProtocolError, "cannot grow by targets 9, which are not its scheduler's"),
    ({"version": 1}, RemoteProtocolError, "R for job 1 is not an RFC 20 R"),
    ({"version": 1, "execution": {"R_lite": []}}, RemoteProtocolError, "R for job 1 has no ranks"),
    (
        r_of("4") | {"scheduling": {"writer": "fluxsched", "parts": 1}},
        RemoteProtocolError, "R for job 1 is not an RFC 20 R: .*scheduling.parts must be an object",
    ),
    (
        {"version": 1, "execution": {"R_lite": [{"rank": "4", "children": {"core": "0"}}]}},
        RemoteProtocolError, "does not fit its present resources: union: one of the two has no nodelist",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("R", "error", "match"), WRONG_GROWS)
def test_a_wrong_grow_changes_nothing(world, R, error, match):
    started(world)
    started(world, elastic(), r_of("8,10"), jobid=2)
    before = (dict(world.stored[1]), world.job().R, len(world.stored[1]["events"]))
    with pytest.raises(error, match=match):
        world.do("grow", "sched", 1, R, foreign=lambda groups, ranks: ranks & ids("9"))
    assert (dict(world.stored[1]), world.job().R, len(world.stored[1]["events"])) == before
    world.manager.check()
    assert world.manager.links.find("sched").growing == {}


WRONG_SHRINKS = [
    ("", RemoteProtocolError, "cannot shrink by no ranks"),
    ("5", RemoteProtocolError, "cannot shrink by ranks 5, which it does not hold: 0-3"),
    ("8", RemoteProtocolError, "cannot shrink by ranks 8, which it does not hold"),
    ("1-3", Refused, "cannot shrink by ranks 1-3: it would have 1 node, and needs 2"),
]


@pytest.mark.parametrize(("ranks", "error", "match"), WRONG_SHRINKS)
def test_a_wrong_shrink_changes_nothing(world, ranks, error, match):
    started(world)
    started(world, elastic(), r_of("8,10"), jobid=2)
    with pytest.raises(error, match=match):
        shrink(world, ranks)
    assert world.contexts(1, "shrink") == []
    assert world.job().going == EMPTY


def test_sizes_are_values_of_the_range(world):
    started(world, elastic("2-8:2:*"))
    for ranks, count in (("4", 5), ("4-5", 6), ("4-6", 7)):
        with pytest.raises(Refused, match=f"it would have {count} nodes, which is not in 2-8:2:"):
            grow(world, r_of(ranks))
    with pytest.raises(Refused, match="it would have 3 nodes, which is not in 2-8:2:"):
        shrink(world, "3")
    grow(world, r_of("4-7"))
    assert seen(world)["nnodes"] == 8


def test_targets_on_which_its_tasks_failed_are_left_where_its_range_allows(world):
    started(world, elastic("2-4"))
    shrink(world, "3")
    world.do("lost", 1, ids("0,3,9"), "host node0 was lost")
    assert world.contexts(1, "shrink")[1:] == [{"ranks": "0", "note": "host node0 was lost"}]
    assert world.of(ShrinkShells) == [ShrinkShells(1, ids("0"), "host node0 was lost")]
    released(world, "0,3")
    assert [(ResourceSet.parse(free.R).ranks, free.final) for free in world.freed()] == [(ids("0,3"), False)]
    assert world.do("lost", 1, ids("1"), "host node1 was lost") == []
    assert (world.job().held, world.job().going) == (ids("1-2"), EMPTY)
    grow(world, r_of("7"), answered=False)
    assert world.do("lost", 1, ids("7"), "its grow is not answered yet") == []


def test_a_target_is_left_once(world):
    started(world)
    shrink(world, "3")
    with pytest.raises(RemoteProtocolError, match="cannot shrink by ranks 3, by which it is shrinking already"):
        shrink(world, "2-3")
    with pytest.raises(Refused, match="cannot shrink by ranks 1-2: it would have 1 node, and needs 2"):
        shrink(world, "1-2")
    with pytest.raises(RemoteProtocolError, match="cannot grow by ranks 3, which it already holds"):
        grow(world, r_of("3"))
    released(world, "3")
    with pytest.raises(RemoteProtocolError, match="does not hold"):
        shrink(world, "3")


def test_only_a_running_elastic_job_of_ones_own_changes_its_size(world):
    world.submit(1, elastic())
    for change in (lambda: grow(world, r_of("7")), lambda: shrink(world, "0")):
        with pytest.raises(Refused, match="is in state SCHED: only a running job changes its size") as caught:
            change()
        assert caught.value.errnum == 22
    world.grant(1, r_of("0-3"))
    world.do("cancel", 1, 5, "")
    with pytest.raises(Refused, match="is in state CLEANUP"):
        grow(world, r_of("7"))
    world.end()
    with pytest.raises(Refused, match="has ended"):
        shrink(world, "0")
    with pytest.raises(Refused, match="is not known") as unknown:
        grow(world, r_of("7"), 99)
    assert unknown.value.errnum == 2
    world.run(2, r_of("0-3"))
    with pytest.raises(Refused, match="is not elastic: its size cannot change"):
        grow(world, r_of("7"), 2)
    with pytest.raises(RemoteProtocolError, match="hello first"):
        world.do("grow", "stranger", 2, r_of("7"))
    world.scheduler("other", ("elsewhere",))
    with pytest.raises(RemoteProtocolError, match="is of group default, which another scheduler serves"):
        world.do("shrink", "other", 2, ids("0"), "")


def test_a_job_that_ends_before_its_grow_is_answered_is_freed_without_it(world):
    started(world)
    grow(world, r_of("7"), answered=False)
    with pytest.raises(RemoteProtocolError, match="cannot shrink by ranks 7, which it does not hold"):
        shrink(world, "7")
    world.end()
    (free,) = world.freed()
    assert (free.final, ResourceSet.parse(free.R).ranks) == (True, ids("0-3"))
    assert world.of(TargetsFreed) == [TargetsFreed(1, ids("0-3,7"))]
    with pytest.raises(Refused, match="ended while it grew: it has released all"):
        world.manager.allocation.grow_answered("sched", 1, ids("7"))
    assert world.manager.links.find("sched").growing == {}
    started(world, R=r_of("0-3,7"), jobid=2)


def test_grows_are_answered_one_by_one(world):
    started(world)
    grow(world, r_of("6"), answered=False)
    grow(world, r_of("7"), answered=False)
    world.manager.allocation.grow_answered("sched", 1, ids("6"))
    world.end()
    (free,) = world.freed()
    assert ResourceSet.parse(free.R).ranks == ids("0-3,6")


def test_the_executor_releases_only_what_was_to_go(world):
    started(world)
    with pytest.raises(InvalidTransition, match="release in state RUN, before finish"):
        released(world, "3")
    shrink(world, "3")
    with pytest.raises(InvalidTransition, match="before finish"):
        released(world, "2-3")
    with pytest.raises(RemoteProtocolError, match="release of ranks 9, held: "):
        released(world, "9")
    world.do("cancel", 1, 5, "")
    released(world, "3")  # it was under way
    assert (world.job().going, world.job().held, world.state()) == (EMPTY, ids("0-2"), State.CLEANUP)
    world.end()
    assert world.result().result == "CANCELED"


def test_a_job_does_not_change_its_size_for_ever(world, monkeypatch):
    monkeypatch.setattr("fluxsched.jobs.allocation.SIZE_CHANGES_MAX", 2)
    started(world)
    grow(world, r_of("7"))
    shrink(world, "7")
    released(world, "7")
    with pytest.raises(Refused, match="has changed its size 2 times, the limit"):
        grow(world, r_of("7"))
    shrink(world, "3")
    released(world, "3")
    assert table.SIZE_CHANGES_MAX == 10_000


def test_of_many_sizes_the_last_are_told_and_when_they_begin(world):
    started(world, elastic(), r_of("0-1"))
    assert table.listed_sizes(world.manager.jobs.get(1), 1) == []
    for ranks in ("2", "3", "4"):
        grow(world, r_of(ranks))
    told = table.listed_sizes(world.manager.jobs.get(1), 1)
    assert [(ranks, ncores) for ranks, _, ncores in told] == [("", 0), ("0-3", 8)]
    assert told[0][1] < told[1][1]
    assert table.SIZES_LISTED_MAX == 100, "as rfc/live.md says"


def test_an_elastic_job_that_is_preempted_starts_anew(world):
    started(world, elastic(preemptible_after_s=0.0, requeue=1))
    grow(world, r_of("7"))
    shrink(world, "3")
    world.do("raise_exception", 1, "preempt", 0, "for another", None)
    world.end(status=15)
    again = world.job().next_id
    assert world.sent() == [again]
    world.grant(again, r_of("0-1"))
    world.do("started", again)
    grow(world, r_of("7"), again)
    assert seen(world, again)["nnodes"] == 3


# Elastic jobs: what another scheduler hears of them, what a restart reads, and what they used.


def restarted(world, new_world):
    """Another world that has read what this one has stored."""
    again = new_world()
    rows = world.rows()
    again.stored = {jobid: {**row, "events": [*row["events"]]} for jobid, row in world.stored.items()}
    again.now_s = world.now_s
    again.perform(again.manager.restore(rows, again.now_s).effects)
    return again


def test_a_scheduler_that_comes_anew_hears_of_the_whole_job(world):
    started(world)
    grow(world, r_of("7"), answered=False)
    shrink(world, "2")
    world.do("scheduler_lost", "sched")
    (hello,), _, _ = world.scheduler("next")
    assert (hello.going, hello.grown, hello.free) == ("2", "7", "")
    assert hello.shrunk == world.stored[1]["events"][-1]["timestamp"]
    assert ResourceSet.parse(hello.R).ranks == ids("0-3,7")
    world.manager.allocation.grow_answered("sched", 1, ids("7"))  # the one that asked is gone
    world.end()
    assert ResourceSet.parse(world.freed()[0].R).ranks == ids("0-3,7")


def test_a_free_in_run_waits_for_ready_and_is_sent_without_a_scheduler_to_none(world):
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
    assert ToScheduler("next", FreeRequest(1, r_of("3"), False)) in effects


@pytest.mark.parametrize("point", ["grown", "shrunk", "left", "ending", "moved"])
def test_a_restart_reads_the_same_job(world, new_world, point):
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
    assert again.manager.grants.entries() == world.manager.grants.entries()
    assert again.held == {1: one.held}
    if point == "shrunk":
        again.scheduler()
        released(again, "1,3")
        assert [ResourceSet.parse(free.R).ranks for free in again.freed()] == [ids("1,3")]


def test_a_job_that_finished_while_targets_were_going_is_released_at_a_restart(world, new_world):
    started(world)
    shrink(world, "3")
    world.do("finished", 1, 0)
    again = restarted(world, new_world)
    assert (again.held, again.state()) == ({}, State.INACTIVE)


def test_what_a_job_used_is_exact(world):
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
def test_whatever_happens_it_keeps_its_minimum_and_is_read_back(steps):
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
