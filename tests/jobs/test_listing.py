"""Listings, results, reasons: attributes, constraints, order, and the figures of queues."""

from __future__ import annotations

import itertools
import random
from math import inf, nextafter
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.cli.jobs import FIELDS
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import JOB_ATTRIBUTES
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.reasons import WaitKind
from fluxsched.core.text import NAMES_TOLD
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.jobs.job import Job, JobSummary
from fluxsched.jobs.query import (
    DEPTH_MAX,
    EVERY_JOB,
    EVERY_STATE,
    FLUX_ATTRIBUTES,
    LISTED,
    ORDERS,
    PATTERN_CHARS_MAX,
    PIECE_JOBS,
    RESULT_BITS,
    TERMS_MAX,
    JobQuery,
    RunningQuery,
    checked_attributes,
    find,
    flux_attributes,
    in_flux_order,
    largest,
    list_jobs,
    newest_ids,
    parse_query,
    running_first,
    sorted_by,
    state_counts,
    tally_jobs,
    total_tally,
)
from fluxsched.jobs.queues import JobQueue, QueueConfig
from fluxsched.jobs.states import State, state_mask
from fluxsched.jobs.table import JobResult, shell_status
from fluxsched.protocol.messages.jobs import JobInfo, ListOrder
from tests.generated.share import first

# Listings, results, reasons.


def test_info_of_a_job_on_its_way(world, spec, r_of):
    jobspec = spec(ntasks=6, cores_per_task=2, name="sim", duration_s=60.0)
    world.submit(1, jobspec)
    (found,) = world.listing()
    assert found == {
        "id": 1,
        "state": "SCHED",
        "name": "sim",
        "userid": 1000,
        "urgency": 16,
        "priority": 16,
        "t_submit": 102.0,
        "ntasks": 6,
        "duration": 60.0,
        "annotations": {},
        "dependencies": [],
        "command": ["true"],
        "cores_asked": 12,
    }
    world.grant(1, r_of("0,2-3", "0-3", expiration_s=165.0))
    world.do("started", 1)
    (found,) = world.listing()
    assert found["state"] == "RUN"
    assert (found["nnodes"], found["ncores"], found["ranks"]) == (3, 12, "0,2-3")
    assert (found["nodelist"], found["expiration"], found["t_run"]) == ("node0,node2,node3", 165.0, 103.0)
    world.end(1, 256)
    (found,) = world.listing()
    assert (found["state"], found["status"], found["success"], found["result"]) == ("INACTIVE", 256, False, "FAILED")
    assert (found["name"], found["ntasks"], found["ranks"], found["ncores"]) == ("sim", 6, "0,2-3", 12)


def test_tasks_are_counted_over_nodes(world, spec):
    world.submit(1, spec(ntasks=4, nodes=2))
    assert world.job(1).ntasks == 4


@pytest.fixture
def busy(world, spec):
    for jobid in range(1, 6):
        world.submit(jobid, spec(name="odd" if jobid % 2 else "even"), urgency=0 if jobid == 5 else 16)
    for jobid in (1, 2):
        world.grant(jobid)
    world.end(1)
    world.do("cancel", 3, 0, "")
    return world


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (JobQuery(), [5, 4, 2, 3, 1]),
        (JobQuery(max_entries=2), [5, 4]),
        (JobQuery(ids=(1, 9, 4)), [1, 4]),
        (JobQuery(ids=(1, 4), states=state_mask(("inactive",))), [1]),
        (JobQuery(states=state_mask(("pending",))), [5, 4]),
        (JobQuery(states=state_mask(("running", "inactive"))), [2, 3, 1]),
        (parse_query(None, ("name", "even")), [4, 2]),
        (parse_query({}, ("queue", "batch")), []),
        (parse_query(None, ("userid", 7)), []),
        (parse_query(None, ("userid", 1000))._replace(states=state_mask(("inactive",)), since_s=110.0), [3]),
    ],
)
def test_queries(busy, wanted, ids):
    assert [found["id"] for found in busy.listing(wanted)] == ids


def test_a_long_listing_comes_in_pieces(world, spec):
    for jobid in range(1, 7):
        world.submit(jobid, spec())
    world.grant(2)
    world.do("started", 2)
    wanted = JobQuery(states=state_mask(("active", "inactive")), max_entries=5)
    pieces = list_jobs(world.manager.jobs, wanted, 2)
    listed = next(pieces)
    world.submit(7, spec())  # too late to be seen
    world.end(2)
    world.do("cancel", 4, 0, "")
    listed += [job for piece in pieces for job in piece]
    assert [(job["id"], job["state"]) for job in listed] == [
        (6, "SCHED"), (5, "SCHED"), (4, "INACTIVE"), (3, "SCHED"), (2, "INACTIVE"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "result", "errstr"),
    [(0, "COMPLETED", ""), (256, "FAILED", "exit code 1"), (9, "FAILED", "ended by signal 9")],
)
def test_results(world, status, result, errstr):
    world.run(1)
    assert world.result(1) is None
    world.end(1, status)
    expected = JobResult(1, status == 0, status, result, errstr, None, None, world.now_s)
    assert world.result(1) == expected


@pytest.mark.parametrize(
    ("type", "note", "result", "errstr"),
    [
        ("cancel", "", "CANCELED", "exception cancel"),
        ("timeout", "60s", "TIMEOUT", "exception timeout: 60s"),
        ("timelimit", "60s", "TIMEOUT", "exception timelimit: 60s"),
        ("oom", "node5", "FAILED", "exception oom: node5"),
    ],
)
def test_results_of_exceptions(world, type, note, result, errstr):
    world.submit(1)
    world.do("raise_exception", 1, type, 0, note, None)
    found = world.result(1)
    assert (found.success, found.status, found.result, found.errstr) == (False, -1, result, errstr)


def test_why(world, spec):

    def why(jobid):
        return world.why(jobid).reason

    world.submit(1)
    world.submit(2, spec(dependencies=[{"scheme": "afterok", "value": "1"}, {"scheme": "begin-time", "value": "900"}]))
    world.submit(3, urgency=0)
    assert why(1) == "the scheduler has not decided yet"
    assert why(2) == "waits for its dependencies: afterok=1, begin-time"
    assert why(3) == "it is held: its urgency is 0"
    world.grant(1)
    assert why(1) == "it runs on node1"
    world.end(1)
    assert why(1) == "it has ended: success"
    with pytest.raises(Refused, match="job ƒA is not known"):
        why(9)


def test_recent_events_are_kept_while_a_job_is_active(world):
    world.submit(1)
    assert world.manager.jobs.get(1).recent_events == ("submit", "validate", "depend", "priority")
    world.do("cancel", 1, 0, "")
    assert world.state(1) is State.INACTIVE
    assert type(world.manager.jobs.get(1)) is JobSummary


@pytest.mark.plain_only("a method is watched")
def test_a_short_list_looks_at_no_more_of_the_ended_jobs(world, monkeypatch):
    """It copied all of them first: with 100,000 each list of the last few blocked the instance for milliseconds."""
    for jobid in range(1, 2 * PIECE_JOBS + 1):
        world.submit(jobid)
        world.do("cancel", jobid, 0, "")
    jobs, looked = world.manager.jobs, []
    known = type(jobs).known
    monkeypatch.setattr(type(jobs), "known", lambda self, ids: looked.append(known(self, ids)) or looked[-1])
    (found,) = [some for some in list_jobs(jobs, EVERY_JOB._replace(max_entries=3)) if some]
    assert [job["id"] for job in found] == [256, 255, 254]
    assert sum(len(some) for some in looked) == PIECE_JOBS


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(range(5)))
def test_each_job_comes_once_whatever_ends_and_is_forgotten_meanwhile(world, seed, monkeypatch):
    chance, jobs = random.Random(seed), world.manager.jobs
    jobs.inactive_kept_max = 20
    news = itertools.count(1)

    def happens():
        for _ in range(chance.randrange(8)):
            if len(jobs.active) > chance.randrange(20):
                world.do("cancel", chance.choice(list(jobs.active)), 0, "")
            else:
                world.submit(next(news))

    for _ in range(10):
        happens()
        there, met = {*jobs.active, *jobs.inactive}, []
        for some in find(jobs, EVERY_JOB, 3):
            met += [job.id for job in some]
            happens()
        assert len(met) == len(set(met))
        assert set(met) <= there
        assert there & {*jobs.active, *jobs.inactive} <= set(met)


def test_why_names_some_of_many_dependencies(world, spec):
    for jobid in range(1, NAMES_TOLD + 3):
        world.submit(jobid)
    waits = [{"scheme": "afterok", "value": str(jobid)} for jobid in range(1, NAMES_TOLD + 3)]
    world.submit(99, spec(dependencies=waits))
    reason = world.why(99).reason
    assert (reason.count("afterok="), reason.endswith(" and 2 more")) == (NAMES_TOLD, True)


def test_why_has_a_rule_and_a_time_for_each_waiting_job(world, spec):
    world.submit(1, spec())
    world.submit(2, spec(dependencies=[{"scheme": "begin-time", "value": "900"}]))
    world.submit(3, spec(), urgency=0)
    world.submit(4, spec(dependencies=[{"scheme": "afterok", "value": "1"}, {"scheme": "begin-time", "value": "900"}]))
    depends = WaitKind.DEPENDENCIES
    rule = "a job is scheduled once all its dependencies are met"
    assert world.why(2)[1:] == (rule, "its begin time", 900.0, depends)
    assert world.why(3)[2:] == ("not while it is held", None, WaitKind.HELD)
    assert world.why(4)[2:] == ("not known: the jobs that it depends on come first", None, depends)


# Lists as Flux makes them: attributes, constraints, order, and the figures of queues.


USER = 1000


@pytest.fixture
def full(world, spec, r_of):
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


def _ids(world, constraint, count=100, since_s=0.0, step_jobs=100):
    query = parse_query(constraint)._replace(max_entries=count, since_s=since_s)
    return [job.id for job in _last(in_flux_order(world.manager.jobs, query, step_jobs))]


def _last(steps):
    *before, found = steps
    assert set(before) <= {None}
    return found


def test_waiting_jobs_by_rank_then_running_then_ended_from_the_latest(full):
    assert _ids(full, None) == [6, 5, 4, 3, 2, 1]
    assert _ids(full, {}, count=4) == [6, 5, 4, 3]
    assert _ids(full, {"states": [64]}, count=1) == [3]


def test_running_jobs_are_first_and_all_are_counted(full):
    def found(constraint, count=100, step_jobs=2):
        query = parse_query(constraint)._replace(max_entries=count)
        jobs, total = _last(running_first(full.manager.jobs, query, step_jobs))
        return [job.id for job in jobs], total

    assert found(None) == ([4, 6, 5, 3, 2, 1], 6)
    assert found(None, count=2) == ([4, 6], 6)
    assert found({"states": [64]}, count=1) == ([3], 3)
    assert [job.get("cores_asked") for job in full.listing(EVERY_JOB._replace(ids=(4, 5)))] == [None, 1]


def test_jobs_are_sorted_by_an_attribute_and_those_without_one_are_last(full):
    def found(order, descending=False, count=100, now_s=1e4):
        query = EVERY_JOB._replace(max_entries=count)
        listing = _last(sorted_by(full.manager.jobs, query, order, now_s, descending=descending, step_jobs=2))
        assert listing.total == 6
        return [job.id for job in listing.jobs]

    jobs = [full.manager.jobs.find(jobid) for jobid in range(1, 7)]
    assert found("id") == [1, 2, 3, 4, 5, 6]
    assert found("id", descending=True, count=2) == [6, 5]
    assert found("name") == [job.id for job in sorted(jobs, key=lambda job: (job.name, job.id))]
    states = [full.manager.jobs.find(jobid).state for jobid in found("state")]
    assert states == sorted(states)
    assert len(set(states)) == 3
    assert [found("runtime")[3:], found("runtime", descending=True)[3:]] == [[3, 5, 6], [6, 5, 3]]
    assert found("runtime", descending=True)[0] == 4, "it still runs"
    assert set(found("waited", descending=True)[:2]) == {5, 6}, "they still wait"
    for order in ORDERS:
        assert sorted(found(order)) == [1, 2, 3, 4, 5, 6]
    assert {"newest", "active", *ORDERS} == set(get_args(ListOrder))


def test_many_jobs_are_looked_at_in_steps(full):
    assert _ids(full, None, step_jobs=2) == [6, 5, 4, 3, 2, 1]
    assert _ids(full, None, count=1, step_jobs=2) == [6]
    assert _ids(full, {"states": [64]}, count=2, step_jobs=2) == [3, 2]
    steps = list(in_flux_order(full.manager.jobs, EVERY_JOB, 2))
    assert len(steps) == 6  # three over the active ids, ended ones among them; two over these; the result
    assert len(list(tally_jobs(full.manager.jobs, full.manager.queues, 2))) == 6
    assert len(list(newest_ids(full.manager.jobs, EVERY_JOB, 2))) == 6


def test_a_job_that_ends_while_others_are_looked_at_is_found_once(full):
    steps = in_flux_order(full.manager.jobs, EVERY_JOB, 1)
    tallying = tally_jobs(full.manager.jobs, full.manager.queues, 1)
    newest = newest_ids(full.manager.jobs, EVERY_JOB, 1)
    for _ in range(2):
        for looking in (steps, tallying, newest):
            next(looking)
    full.do("cancel", 5, USER, "")
    assert sorted(job.id for job in _last(steps)) == [1, 2, 3, 4, 5, 6]
    assert sum(_last(tallying)[None].states.values()) == 6
    assert _last(newest) == [6, 5, 4, 3, 2, 1]


def test_a_job_set_is_found_by_its_name_as_long_as_its_jobs_are_known(world, spec):
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
    assert flux_attributes(world.job(1), ["bank"]) == {"id": 1, "bank": "physics"}


def test_since_is_about_ended_jobs_alone(full):
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
def test_constraints_select(full, constraint, expected):
    assert _ids(full, constraint) == expected


def test_times_compare_as_they_say(full):
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
def test_what_is_wrong_with_a_constraint_is_named(constraint, part):
    with pytest.raises(InvalidValue) as raised:
        parse_query(constraint)
    assert part in str(raised.value)


def test_ids_alone_are_selected_active_ones_first_from_the_latest(full):
    steps = ([job.id for job in some] for some in find(full.manager.jobs, EVERY_JOB, 2))
    assert next(steps) == [6, 5]
    full.do("cancel", 4, USER, "")
    assert list(steps) == [[4], [], [3, 2], [1]], "one that ends meanwhile comes once"
    pending = parse_query({"and": [{"states": ["pending"]}, {"name": ["low", "good"]}]})
    assert [job.id for some in find(full.manager.jobs, pending) for job in some] == [5]


def test_an_array_is_known_by_its_first_job_also_after_a_restart(world, new_world, spec):
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


def test_a_constraint_is_bounded():
    deep = {"states": [64]}
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
def test_the_states_of_a_selection_leave_no_job_out(tree):
    selection = parse_query(tree)
    for state in State:
        for result in ("COMPLETED", "FAILED"):
            job = _job(state, result)
            assert not selection.matches(job) or job.state & selection.states or state is State.NEW


def _job(state, result):
    job = Job(1, JobQueue(QueueConfig()))
    job.name, job.state, job.status = "good", state, 0 if result == "COMPLETED" else 256
    return job


def test_attributes_of_a_job_that_ended(full):
    found = flux_attributes(full.manager.jobs.get(2), checked_attributes(["all"]))
    assert found["id"] == 2
    assert (found["state"], found["result"], found["success"]) == (64, 2, False)
    assert (found["waitstatus"], found["ranks"], found["nodelist"]) == (143 << 8, "1", "node1")
    assert (found["nnodes"], found["ncores"], found["ntasks"], found["cwd"]) == (1, 1, 1, "/home/u")
    assert found["t_submit"] == found["t_depend"] == found["t_sched"] <= found["t_run"] < found["t_cleanup"]
    assert found["exception_occurred"] is False
    assert not {"exception_type", "queue", "dependencies", "project", "bank"} & set(found)


def test_attributes_of_a_job_that_waits(full):
    found = flux_attributes(full.manager.jobs.get(6), checked_attributes(["all"]))
    assert (found["priority"], found["urgency"], found["duration"], found["ncores"]) == (20, 20, 60.0, 1)
    assert not {"t_run", "ranks", "result", "success", "waitstatus", "expiration", "nnodes"} & set(found)


def test_the_gravest_exception_is_shown(full):
    full.do("raise_exception", 4, "hint", 3, "first", USER)
    full.do("raise_exception", 4, "worse", 1, "second", USER)
    full.end(4, 0)
    found = flux_attributes(full.manager.jobs.get(4), checked_attributes(["all"]))
    shown = {key: found[f"exception_{key}"] for key in ("occurred", "type", "severity", "note")}
    assert shown == {"occurred": True, "type": "worse", "severity": 1, "note": "second"}


def test_unknown_attributes_are_named():
    with pytest.raises(InvalidValue, match="unknown job attributes a, b"):
        checked_attributes(["state", "a", "b"])


def test_a_job_with_dependencies_comes_into_line_later(world, spec):
    world.submit(1, spec())
    world.submit(2, spec(dependencies=({"scheme": "afterany", "value": "1"},)))
    names = checked_attributes(["t_depend", "t_sched", "priority", "dependencies"])
    waiting = flux_attributes(world.manager.jobs.get(2), names)
    assert set(waiting) == {"id", "t_depend", "dependencies"}
    world.do("cancel", 1, USER, "")
    found = flux_attributes(world.manager.jobs.get(2), names)
    assert found["t_sched"] > found["t_depend"]


def test_the_newest_jobs_of_a_user(full):
    for count, userid, expected in ((3, None, [6, 5, 4]), (9, USER, [6, 5, 4, 3, 2, 1]), (9, 7, [])):
        query = parse_query(None, ("userid", userid))._replace(max_entries=count)
        assert _last(newest_ids(full.manager.jobs, query)) == expected


def test_jobs_are_counted_by_state(full):
    expected = {"depend": 0, "priority": 0, "sched": 2, "run": 1, "cleanup": 0, "inactive": 3}
    tallied = _last(tally_jobs(full.manager.jobs, full.manager.queues))
    assert state_counts(total_tally(tallied)) == expected


def test_jobs_are_counted_by_queue(new_world, spec):
    world = new_world({name: QueueConfig(name) for name in ("batch", "debug")})
    world.submit(1, spec(queue="batch"))
    world.submit(2, spec(queue="debug"))
    world.do("cancel", 2, USER, "")
    found = _last(tally_jobs(world.manager.jobs, world.manager.queues))
    assert found["batch"].states == {"SCHED": 1}
    assert (found["debug"].states, found["debug"].results) == ({"INACTIVE": 1}, {"CANCELED": 1})


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (256, 256), (15, 143 << 8), (139, (128 + 11) << 8)])
def test_a_shell_passes_signals_on(status, expected):
    assert shell_status(status) == expected


# The jobs that hold resources: the largest first, those meant only, each step short.


def asked(world, **query):
    found = list(largest(world.manager.jobs, world.manager.grants.jobids(), RunningQuery(**query)))
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] is not None
    return found[-1]


def job_ids(found):
    return [job.id for job in found.jobs]


@pytest.fixture
def site(world, spec, r_of):
    """Jobs of 4 cores for 10 s, 1 core for 100 s, 1 core without a limit, one that waits and one that has ended."""
    for jobid in range(1, 6):
        world.submit(jobid, spec())
        world.job(jobid).userid = 1000 + jobid % 2
    for jobid, (ranks, cores, length_s) in {
        1: ("0", "0-3", 10.0), 2: ("1-2", "0", 100.0), 3: ("3", "0", 0.0), 5: ("4", "0-3", 1000.0)
    }.items():  # fmt: skip
        begin_s = 100.0
        R = r_of(ranks, cores, expiration_s=begin_s + length_s if length_s else 0.0)
        R["execution"]["starttime"] = begin_s
        world.grant(jobid, R)
    world.do("started", 5)
    world.end(5)
    return world


def test_the_largest_come_first(site):
    assert job_ids(asked(site)) == [3, 2, 1]
    assert asked(site).left_out == 0


def test_of_some_targets_of_one_user_and_so_many(site):
    assert job_ids(asked(site, targets=Idset.parse("0,2"))) == [2, 1]
    assert job_ids(asked(site, targets=Idset.parse("4"))) == []
    assert job_ids(asked(site, userid=1001)) == [3, 1]
    found = asked(site, max_entries=1)
    assert (job_ids(found), found.left_out) == ([3], 2)


def test_many_are_looked_at_in_steps(site):
    looking = largest(site.manager.jobs, site.manager.grants.jobids(), RunningQuery(), 1)
    assert next(looking) is None
    site.do("started", 2)
    site.end(2)
    *_, found = looking
    assert found is not None
    assert job_ids(found) == [3, 1]


# One declaration for each attribute: listings, messages and columns agree.


def test_the_listing_has_what_its_message_declares():
    listed = {name for name, one in JOB_ATTRIBUTES.items() if one.listed}
    assert {name for name, _ in LISTED} == listed == set(JobInfo.__struct_fields__)
    _, schemas = msgspec.json.schema_components([JobInfo])
    properties = schemas["JobInfo"]["properties"]
    for name in listed:
        found = properties[name]
        kinds = {str(one.get("type", "object")) for one in found.get("anyOf", [found])} - {"null"}
        kinds |= {"string"} if "enum" in found or any("enum" in one for one in found.get("anyOf", [])) else set()
        assert JOB_ATTRIBUTES[name].type in kinds, name


def test_each_attribute_is_in_some_listing_and_shown_only_if_it_is_listed():
    for name, one in JOB_ATTRIBUTES.items():
        assert one.listed or one.flux, name
        assert (name in FLUX_ATTRIBUTES) == one.flux, name
        if one.heading:
            assert one.listed, name
            assert FIELDS[name].heading == one.heading
    assert RESULT_BITS.keys() == {"COMPLETED", "FAILED", "CANCELED", "TIMEOUT"}
