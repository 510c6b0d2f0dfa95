"""Lists as Flux makes them: attributes, constraints, order, and the figures of queues."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nextafter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.result import shell_status
from fluxsched.jobs.job.states import State
from fluxsched.jobs.query import attributes, job_query, listing
from fluxsched.jobs.query.job_query import (
    DEPTH_MAX,
    EVERY_JOB,
    EVERY_STATE,
    PATTERN_CHARS_MAX,
    TERMS_MAX,
    find,
    parse_query,
)
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig

USER = 1000


@pytest.fixture
def full(world: Any, spec: Any, r_of: Any) -> Any:
    """Jobs 1 ended well, 2 ended by signal 15, 3 canceled before it ran, 4 runs on ranks 2-3, 5 and 6 wait."""
    for jobid, name in ((1, "good"), (2, "bad"), (3, "gone"), (4, "runs"), (5, "low"), (6, "high")):
        world.submit(jobid, spec(name=name, cwd="/home/u", duration_s=60.0), urgency=20 if name == "high" else 16)
    for jobid, ranks in ((1, "0"), (2, "1"), (4, "2-3")):
        world.grant(jobid, r_of(ranks, "0"))
        world.do("started", jobid)
    world.end(1, 0)
    world.end(2, 15)
    world.do("cancel", 3, USER, "no")
    return world


def _ids(world: Any, constraint: Any, count: int = 100, since_s: float = 0.0) -> list[int]:
    query = parse_query(constraint)._replace(max_entries=count, since_s=since_s)
    return [job.id for job in _last(listing.in_flux_order(world.manager.jobs, query))]


def _last(steps: Iterator[Any]) -> Any:
    *before, found = steps
    assert set(before) <= {None}
    return found


def test_waiting_jobs_by_rank_then_running_then_ended_from_the_latest(full: Any) -> None:
    assert _ids(full, None) == [6, 5, 4, 3, 2, 1]
    assert _ids(full, {}, count=4) == [6, 5, 4, 3]
    assert _ids(full, {"states": [64]}, count=1) == [3]


def test_many_jobs_are_looked_at_in_steps(full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_query, "STEP_JOBS", 2)
    assert _ids(full, None) == [6, 5, 4, 3, 2, 1]
    assert _ids(full, None, count=1) == [6]
    assert _ids(full, {"states": [64]}, count=2) == [3, 2]
    steps = list(listing.in_flux_order(full.manager.jobs, EVERY_JOB))
    assert len(steps) == 6  # three over the active ids, ended ones among them; two over these; the result
    assert len(list(listing.tally(full.manager.jobs, full.manager.queues))) == 6
    assert len(list(listing.newest(full.manager.jobs, EVERY_JOB))) == 6


def test_a_job_that_ends_while_others_are_looked_at_is_found_once(full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_query, "STEP_JOBS", 1)
    steps = listing.in_flux_order(full.manager.jobs, EVERY_JOB)
    tallying = listing.tally(full.manager.jobs, full.manager.queues)
    newest = listing.newest(full.manager.jobs, EVERY_JOB)
    for _ in range(2):
        for looking in (steps, tallying, newest):
            next(looking)
    full.do("cancel", 5, USER, "")
    assert sorted(job.id for job in _last(steps)) == [1, 2, 3, 4, 5, 6]
    assert sum(_last(tallying)[None].states.values()) == 6
    assert _last(newest) == [6, 5, 4, 3, 2, 1]


def test_a_job_set_is_found_by_its_name_as_long_as_its_jobs_are_known(world: Any, spec: Any) -> None:
    for jobid, job_set in ((1, "a"), (2, "b"), (3, None), (4, "a")):
        world.submit(jobid, spec(job_set=job_set, bank="physics", preemptible_after_s=0.0))
    world.do("cancel", 1, USER, "no")
    assert _ids(world, {"set": ["a"]}) == [4, 1]
    assert _ids(world, {"set": ["b", "a", "c"]}) == [2, 4, 1]
    assert _ids(world, {"and": [{"set": ["a"]}, {"states": ["active"]}]}) == [4]
    with pytest.raises(InvalidValue, match=r"constraint set: .* give texts"):
        parse_query({"set": [7]})
    (job,) = world.listing(EVERY_JOB._replace(ids=(1,)))
    assert (job["bank"], job["job_set"], job["preemptible_after"]) == ("physics", "a", 0.0)
    assert attributes.describe(world.job(1), ["bank"]) == {"id": 1, "bank": "physics"}


def test_since_is_about_ended_jobs_alone(full: Any) -> None:
    ended_s = full.manager.jobs.get(2).t_inactive
    assert _ids(full, None, since_s=ended_s) == [6, 5, 4, 3, 2]
    assert _ids(full, None, since_s=nextafter(ended_s, inf)) == [6, 5, 4, 3]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"userid": [USER, 7]}, [6, 5, 4, 3, 2, 1]),
        ({"userid": [7]}, []),
        ({"userid": [0xFFFFFFFF]}, [6, 5, 4, 3, 2, 1]),
        ({"name": ["good", "low"]}, [5, 1]),
        ({"states": [16]}, [4]),
        ({"states": ["pending", "R"]}, [6, 5, 4]),
        ({"states": []}, []),
        ({"results": [1]}, [1]),
        ({"results": ["failed", "CA"]}, [3, 2]),
        ({"results": [15]}, [3, 2, 1]),
        ({"hostlist": ["node[2,7]"]}, [4]),
        ({"ranks": ["0", "3"]}, [4, 1]),
        ({"queue": ["batch"]}, []),
        ({"id": [2, "f6"]}, [5, 2]),
        ({"id": ["2..ƒ4", 6]}, [6, 3, 2]),
        ({"id": []}, []),
        ({"name-pattern": ["g*", "l?w"]}, [5, 3, 1]),
        ({"name-pattern": ["[a-h]*d"]}, [2, 1]),
        ({"name-pattern": []}, []),
        ({"not": [{"states": [126]}]}, []),
        ({"not": [{"name": ["low"]}]}, [6, 4, 3, 2, 1]),
        ({"not": []}, []),
        ({"or": []}, [6, 5, 4, 3, 2, 1]),
        ({"and": []}, [6, 5, 4, 3, 2, 1]),
        ({"or": [{"states": [16]}, {"results": [4]}]}, [4, 3]),
        ({"and": [{"userid": [USER]}, {"states": [64]}, {"not": [{"results": [4]}]}]}, [2, 1]),
        ({"t_run": [">0"]}, [4, 2, 1]),
        ({"t_run": ["<0.5"]}, []),
    ],
)
def test_constraints_select(full: Any, constraint: Any, expected: list[int]) -> None:
    assert _ids(full, constraint) == expected


def test_times_compare_as_they_say(full: Any) -> None:
    at_s = full.manager.jobs.get(4).t_submit
    assert _ids(full, {"t_submit": [f">={at_s}"]}) == [6, 5, 4]
    assert _ids(full, {"t_submit": [f">{at_s}"]}) == [6, 5]
    assert _ids(full, {"t_submit": [f"<={at_s}"]}) == [4, 3, 2, 1]
    assert _ids(full, {"t_submit": [f"<{at_s}"]}) == [3, 2, 1]


@pytest.mark.parametrize(
    ("constraint", "part"),
    [
        ([], "one operator"),
        ({"a": [], "b": []}, "one operator"),
        ({"userid": 3}, "array"),
        ({"userid": ["u"]}, "integers"),
        ({"userid": [True]}, "integers"),
        ({"name": [3]}, "texts"),
        ({"properties": ["ssd"]}, "'properties' is unknown"),
        ({"states": ["nope"]}, "'nope'"),
        ({"states": [128]}, "128"),
        ({"states": [1.5]}, "1.5"),
        ({"results": ["nope"]}, "'nope'"),
        ({"results": [16]}, "16"),
        ({"ranks": ["3-1"]}, "3-1"),
        ({"hostlist": ["a["]}, "a["),
        ({"t_submit": []}, "and a time"),
        ({"t_submit": ["12"]}, "and a time"),
        ({"t_submit": [">x"]}, "'x'"),
        ({"t_submit": [">-1"]}, "'-1'"),
        ({"t_submit": [">inf"]}, "'inf'"),
        ({"and": [{"or": [3]}]}, "3"),
        ({"id": ["x!"]}, "'x!'"),
        ({"id": [1.5]}, "1.5"),
        ({"id": ["5..3"]}, "'5..3' ends before it begins"),
        ({"id": ["5..x!"]}, "'x!'"),
        ({"array": ["1..2"]}, "'1..2' is not a job id"),
        ({"name-pattern": ["x" * (PATTERN_CHARS_MAX + 1)]}, "longer than 256"),
    ],
)
def test_what_is_wrong_with_a_constraint_is_named(constraint: Any, part: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        parse_query(constraint)
    assert part in str(raised.value)


def test_ids_alone_are_selected_active_ones_first_from_the_latest(full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_query, "STEP_JOBS", 2)
    steps = ([job.id for job in some] for some in find(full.manager.jobs, EVERY_JOB))
    assert next(steps) == [6, 5]
    full.do("cancel", 4, USER, "")
    assert list(steps) == [[4], [], [3, 2], [1]], "one that ends meanwhile comes once"
    pending = parse_query({"and": [{"states": ["pending"]}, {"name": ["low", "good"]}]})
    assert [job.id for some in find(full.manager.jobs, pending) for job in some] == [5]


def test_an_array_is_known_by_its_first_job_also_after_a_restart(world: Any, new_world: Any, spec: Any) -> None:
    for jobid, array in ((1, None), (2, 0), (3, 2), (4, 2), (5, 0)):
        raw = spec(name=f"a{jobid}").to_json()
        raw["attributes"]["system"] |= {} if array is None else {"array": array}
        world.submit(jobid, Jobspec.parse(raw))
    world.do("cancel", 4, USER, "")
    again = new_world()
    again.perform(again.manager.restore(world.rows(), 200.0).effects)
    for here in (world, again):
        assert _ids(here, {"array": [2]}) == [2, 3, 4]
        assert _ids(here, {"array": [1, "ƒ6"]}) == [1, 5], "a job that is alone is an array of one"
        assert [job["array"] for job in here.listing() if job["id"] == 3] == [2]
    for wrong in (-1, True, "2", 1 << 64):
        raw["attributes"]["system"]["array"] = wrong
        with pytest.raises(InvalidValue, match=r"attributes\.system\.array: .* is not the id of the array's first job"):
            Jobspec.parse(raw)


def test_a_constraint_is_bounded() -> None:
    deep: Any = {"states": [64]}
    for _ in range(DEPTH_MAX - 1):
        deep = {"not": [deep]}
    parse_query(deep)
    with pytest.raises(LimitExceeded):
        parse_query({"not": [deep]})
    parse_query({"userid": list(range(TERMS_MAX - 1))})
    with pytest.raises(LimitExceeded):
        parse_query({"and": [{"userid": list(range(TERMS_MAX - 1))}]})


_LEAF = st.one_of(
    st.builds(lambda mask: {"states": [mask]}, st.integers(0, EVERY_STATE).map(lambda bits: bits & EVERY_STATE)),
    st.builds(lambda mask: {"results": [mask]}, st.integers(0, 15)),
    st.just({"name": ["good"]}),
)
_TREES = st.recursive(
    _LEAF,
    lambda inner: st.builds(
        lambda operator, parts: {operator: parts}, st.sampled_from(["and", "or", "not"]), st.lists(inner, max_size=3)
    ),
    max_leaves=6,
)


@given(_TREES)
def test_the_states_of_a_selection_leave_no_job_out(tree: Any) -> None:
    selection = parse_query(tree)
    for state in State:
        for result in ("COMPLETED", "FAILED"):
            job = _job(state, result)
            assert not selection.matches(job) or job.state & selection.states or state is State.NEW


def _job(state: State, result: str) -> Job:
    job = Job(1, JobQueue(QueueConfig()), None)
    job.name, job.state, job.status = "good", state, 0 if result == "COMPLETED" else 256
    return job


def test_attributes_of_a_job_that_ended(full: Any) -> None:
    found = attributes.describe(full.manager.jobs.get(2), attributes.checked(["all"]))
    assert found["id"] == 2
    assert (found["state"], found["result"], found["success"]) == (64, 2, False)
    assert (found["waitstatus"], found["ranks"], found["nodelist"]) == (143 << 8, "1", "node1")
    assert (found["nnodes"], found["ncores"], found["ntasks"], found["cwd"]) == (1, 1, 1, "/home/u")
    assert found["t_submit"] == found["t_depend"] == found["t_sched"] <= found["t_run"] < found["t_cleanup"]
    assert found["exception_occurred"] is False
    assert not {"exception_type", "queue", "dependencies", "project", "bank"} & set(found)


def test_attributes_of_a_job_that_waits(full: Any) -> None:
    found = attributes.describe(full.manager.jobs.get(6), attributes.checked(["all"]))
    assert (found["priority"], found["urgency"], found["duration"], found["ncores"]) == (20, 20, 60.0, 1)
    assert not {"t_run", "ranks", "result", "success", "waitstatus", "expiration", "nnodes"} & set(found)


def test_the_gravest_exception_is_shown(full: Any) -> None:
    full.do("raise_exception", 4, "hint", 3, "first", USER)
    full.do("raise_exception", 4, "worse", 1, "second", USER)
    full.end(4, 0)
    found = attributes.describe(full.manager.jobs.get(4), attributes.checked(["all"]))
    shown = {key: found[f"exception_{key}"] for key in ("occurred", "type", "severity", "note")}
    assert shown == {"occurred": True, "type": "worse", "severity": 1, "note": "second"}


def test_unknown_attributes_are_named() -> None:
    with pytest.raises(InvalidValue, match="unknown job attributes a, b"):
        attributes.checked(["state", "a", "b"])


def test_a_job_with_dependencies_comes_into_line_later(world: Any, spec: Any) -> None:
    world.submit(1, spec())
    world.submit(2, spec(dependencies=({"scheme": "afterany", "value": "1"},)))
    names = attributes.checked(["t_depend", "t_sched", "priority", "dependencies"])
    waiting = attributes.describe(world.manager.jobs.get(2), names)
    assert set(waiting) == {"id", "t_depend", "dependencies"}
    world.do("cancel", 1, USER, "")
    found = attributes.describe(world.manager.jobs.get(2), names)
    assert found["t_sched"] > found["t_depend"]


def test_the_newest_jobs_of_a_user(full: Any) -> None:
    for count, userid, expected in ((3, None, [6, 5, 4]), (9, USER, [6, 5, 4, 3, 2, 1]), (9, 7, [])):
        query = parse_query(None, ("userid", userid))._replace(max_entries=count)
        assert _last(listing.newest(full.manager.jobs, query)) == expected


def test_jobs_are_counted_by_state(full: Any) -> None:
    expected = {"depend": 0, "priority": 0, "sched": 2, "run": 1, "cleanup": 0, "inactive": 3}
    tallied = _last(listing.tally(full.manager.jobs, full.manager.queues))
    assert listing.counts(listing.total(tallied)) == expected


def test_jobs_are_counted_by_queue(new_world: Any, spec: Any) -> None:
    world = new_world({name: QueueConfig(name) for name in ("batch", "debug")})
    world.submit(1, spec(queue="batch"))
    world.submit(2, spec(queue="debug"))
    world.do("cancel", 2, USER, "")
    found = _last(listing.tally(world.manager.jobs, world.manager.queues))
    assert found["batch"].states == {"SCHED": 1}
    assert (found["debug"].states, found["debug"].results) == ({"INACTIVE": 1}, {"CANCELED": 1})


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (256, 256), (15, 143 << 8), (139, (128 + 11) << 8)])
def test_a_shell_passes_signals_on(status: int, expected: int) -> None:
    assert shell_status(status) == expected
