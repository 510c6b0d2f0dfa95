"""Elastic jobs: what a running job may be given and made to leave, and what each step stores."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.core.idset import EMPTY
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidTransition, Refused, RemoteProtocolError
from fluxsched.jobs.effects import GrowShells, Held, SchedFree, ShrinkShells, Unheld
from fluxsched.jobs.job import sizes
from fluxsched.jobs.job.states import State
from tests.jobs.elastic import elastic, grow, ids, parts, r_of, released, shrink, started


def seen(world: Any, jobid: int = 1) -> dict[str, Any]:
    """What a listing shows of its size."""
    (found,) = [one for one in world.listing() if one["id"] == jobid]
    return {name: found[name] for name in ("nnodes", "ncores", "ranks", "nodelist")}


def test_its_tasks_are_those_of_what_it_holds(world: Any) -> None:
    def ntasks() -> int:
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
        R = r_of(f"{2 * jobid}-{2 * jobid + 1}")  # noqa: N806
        R["execution"]["nslots"] = nslots
        started(world, spec, R, jobid)
        assert world.job(jobid).ntasks == expected


def test_a_job_grows_and_shrinks_in_steps_that_are_stored(world: Any) -> None:
    started(world)
    grow(world, r_of("7"))
    assert [type(one).__name__ for one in world.last] == ["Persist", "Held", "GrowShells"]
    assert world.of(Held) == [Held(1, ids("7"))]
    assert world.of(GrowShells) == [GrowShells(1, r_of("7"))]
    assert world.contexts(1, "grow") == [{"R": r_of("7")}]
    assert seen(world) == {"nnodes": 5, "ncores": 10, "ranks": "0-3,7", "nodelist": "node[0-3,7]"}
    shrink(world, "2-3")
    assert [type(one).__name__ for one in world.last] == ["Persist", "ShrinkShells"]
    assert world.of(ShrinkShells) == [ShrinkShells(1, ids("2-3"), "for others")]
    assert (world.job().going, world.job().held) == (ids("2-3"), ids("0-3,7"))
    assert seen(world)["nnodes"] == 5
    released(world, "3")
    assert world.freed() == [SchedFree("sched", 1, r_of("3"), False)]
    assert world.of(Unheld) == [Unheld(1, ids("3"))]
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


def test_each_part_has_its_own_range(world: Any) -> None:
    started(world, parts(), r_of("0-2", lead="0", workers="1-2"))
    with pytest.raises(Refused, match=r"cannot grow by ranks 3: it would have 2 nodes of part lead, which is not in 1"):
        grow(world, r_of("3", lead="3"))
    grow(world, r_of("3-4", workers="3-4"))
    assert ResourceSet.parse(world.job().R).parts == {"lead": ids("0"), "workers": ids("1-4")}
    assert world.listing()[0]["parts"] == {"lead": "0", "workers": "1-4"}
    with pytest.raises(Refused, match="cannot shrink by ranks 0: it would have 0 nodes of part lead, and needs 1"):
        shrink(world, "0")
    with pytest.raises(RemoteProtocolError, match="is to grow by ranks 5 of no part: it has lead, workers"):
        grow(world, r_of("5"))
    with pytest.raises(RemoteProtocolError, match="ranks 6 of no part"):
        grow(world, r_of("5-6", workers="5", others="6"))
    shrink(world, "1,4")
    released(world, "1,4")
    assert ResourceSet.parse(world.job().R).parts == {"lead": ids("0"), "workers": ids("2-3")}
    grow(world, r_of("1", workers="1"))
    assert ResourceSet.parse(world.job().R).parts == {"lead": ids("0"), "workers": ids("1-3")}


WRONG_GROWS: list[tuple[dict[str, Any], type[Exception], str]] = [
    (r_of("3-4"), RemoteProtocolError, "is to grow by ranks 3, which it holds"),
    (r_of("4-6"), Refused, "cannot grow by ranks 4-6: it would have 7 nodes, which is not in 2-6"),
    (r_of("8"), RemoteProtocolError, "job 1 was granted rank8/core0-1 held by job 2"),
    (r_of("9"), RemoteProtocolError, "is to grow by targets 9, which are not its scheduler's"),
    ({"version": 1}, RemoteProtocolError, "R for job 1 is not an RFC 20 R"),
    ({"version": 1, "execution": {"R_lite": []}}, RemoteProtocolError, "R for job 1 has no ranks"),
    (
        r_of("4") | {"scheduling": {"writer": "fluxsched", "parts": 1}},
        RemoteProtocolError, "R for job 1 is not an RFC 20 R: .*scheduling.parts must be an object",
    ),
    (
        {"version": 1, "execution": {"R_lite": [{"rank": "4", "children": {"core": "0"}}]}},
        RemoteProtocolError, "does not fit to what it has: union: one of the two has no nodelist",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("R", "error", "match"), WRONG_GROWS)
def test_a_wrong_grow_changes_nothing(world: Any, R: dict[str, Any], error: type[Exception], match: str) -> None:  # noqa: N803
    started(world)
    started(world, elastic(), r_of("8,10"), jobid=2)
    before = (dict(world.stored[1]), world.job().R, len(world.stored[1]["events"]))
    with pytest.raises(error, match=match):
        world.do("grow", "sched", 1, R, foreign=lambda groups, ranks: ranks & ids("9"))
    assert (dict(world.stored[1]), world.job().R, len(world.stored[1]["events"])) == before
    world.manager.check()
    assert world.manager.links.find("sched").growing == {}


WRONG_SHRINKS: list[tuple[str, type[Exception], str]] = [
    ("", RemoteProtocolError, "is to shrink by no ranks"),
    ("5", RemoteProtocolError, "is to shrink by ranks 5, which it does not hold: 0-3"),
    ("8", RemoteProtocolError, "is to shrink by ranks 8, which it does not hold"),
    ("1-3", Refused, "cannot shrink by ranks 1-3: it would have 1 nodes, and needs 2"),
]


@pytest.mark.parametrize(("ranks", "error", "match"), WRONG_SHRINKS)
def test_a_wrong_shrink_changes_nothing(world: Any, ranks: str, error: type[Exception], match: str) -> None:
    started(world)
    started(world, elastic(), r_of("8,10"), jobid=2)
    with pytest.raises(error, match=match):
        shrink(world, ranks)
    assert world.contexts(1, "shrink") == []
    assert world.job().going == EMPTY


def test_sizes_are_values_of_the_range(world: Any) -> None:
    started(world, elastic("2-8:2:*"))
    for ranks, count in (("4", 5), ("4-5", 6), ("4-6", 7)):
        with pytest.raises(Refused, match=f"it would have {count} nodes, which is not in 2-8:2:"):
            grow(world, r_of(ranks))
    with pytest.raises(Refused, match="it would have 3 nodes, which is not in 2-8:2:"):
        shrink(world, "3")
    grow(world, r_of("4-7"))
    assert seen(world)["nnodes"] == 8


def test_a_target_is_left_once(world: Any) -> None:
    started(world)
    shrink(world, "3")
    with pytest.raises(RemoteProtocolError, match="is to shrink by ranks 3, which it is leaving already"):
        shrink(world, "2-3")
    with pytest.raises(Refused, match="cannot shrink by ranks 1-2: it would have 1 nodes, and needs 2"):
        shrink(world, "1-2")
    with pytest.raises(RemoteProtocolError, match="is to grow by ranks 3, which it holds"):
        grow(world, r_of("3"))
    released(world, "3")
    with pytest.raises(RemoteProtocolError, match="does not hold"):
        shrink(world, "3")


def test_only_a_running_elastic_job_of_ones_own_changes_its_size(world: Any) -> None:
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
    with pytest.raises(Refused, match="is not elastic: it keeps what it started with"):
        grow(world, r_of("7"), 2)
    with pytest.raises(RemoteProtocolError, match="hello first"):
        world.do("grow", "stranger", 2, r_of("7"))
    world.scheduler("other", ("elsewhere",))
    with pytest.raises(RemoteProtocolError, match="is of group default, which another scheduler serves"):
        world.do("shrink", "other", 2, ids("0"), "")


def test_a_job_that_ends_before_its_grow_is_answered_is_freed_without_it(world: Any) -> None:
    started(world)
    grow(world, r_of("7"), answered=False)
    with pytest.raises(RemoteProtocolError, match="is to shrink by ranks 7, which it does not hold"):
        shrink(world, "7")
    world.end()
    (free,) = world.freed()
    assert (free.final, ResourceSet.parse(free.R).ranks) == (True, ids("0-3"))
    assert world.of(Unheld) == [Unheld(1, ids("0-3,7"))]
    with pytest.raises(Refused, match="ended while it grew: it has released all"):
        world.manager.allocation.grow_answered("sched", 1, ids("7"))
    assert world.manager.links.find("sched").growing == {}
    started(world, R=r_of("0-3,7"), jobid=2)


def test_grows_are_answered_one_by_one(world: Any) -> None:
    started(world)
    grow(world, r_of("6"), answered=False)
    grow(world, r_of("7"), answered=False)
    world.manager.allocation.grow_answered("sched", 1, ids("6"))
    world.end()
    (free,) = world.freed()
    assert ResourceSet.parse(free.R).ranks == ids("0-3,6")


def test_the_executor_releases_only_what_was_to_go(world: Any) -> None:
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


def test_a_job_does_not_change_its_size_for_ever(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.jobs.lifecycle.resizing.SIZE_CHANGES_MAX", 2)
    started(world)
    grow(world, r_of("7"))
    shrink(world, "7")
    released(world, "7")
    with pytest.raises(Refused, match="has changed its size 2 times, the limit"):
        grow(world, r_of("7"))
    shrink(world, "3")
    released(world, "3")
    assert sizes.SIZE_CHANGES_MAX == 10_000


def test_of_many_sizes_the_last_are_told_and_when_they_begin(monkeypatch: pytest.MonkeyPatch, world: Any) -> None:
    monkeypatch.setattr(sizes, "SIZES_LISTED_MAX", 1)
    started(world, elastic(), r_of("0-1"))
    assert sizes.listed_sizes(world.manager.jobs.get(1)) == []
    for ranks in ("2", "3", "4"):
        grow(world, r_of(ranks))
    told = sizes.listed_sizes(world.manager.jobs.get(1))
    assert [(ranks, ncores) for ranks, _, ncores in told] == [("", 0), ("0-3", 8)]
    assert told[0][1] < told[1][1]


def test_an_elastic_job_that_is_preempted_starts_anew(world: Any) -> None:
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
