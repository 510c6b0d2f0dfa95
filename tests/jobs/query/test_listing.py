"""Listings, results, reasons."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.errors import Refused
from fluxsched.jobs.job.result import JobResult
from fluxsched.jobs.job.states import State, state_mask
from fluxsched.jobs.query import listing
from fluxsched.jobs.query.job_query import EVERY_JOB, JobQuery, find, parse_query
from tests.generated.share import first


def test_info_of_a_job_on_its_way(world: Any, spec: Callable[..., Any], r_of: Callable[..., Any]) -> None:
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


def test_tasks_are_counted_over_nodes(world: Any, spec: Callable[..., Any]) -> None:
    world.submit(1, spec(ntasks=4, nodes=2))
    assert world.job(1).ntasks == 4


@pytest.fixture
def busy(world: Any, spec: Callable[..., Any]) -> Any:
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
def test_queries(busy: Any, wanted: JobQuery, ids: list[int]) -> None:
    assert [found["id"] for found in busy.listing(wanted)] == ids


def test_a_long_listing_comes_in_pieces(
    world: Any, spec: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PIECE_JOBS", 2)
    for jobid in range(1, 7):
        world.submit(jobid, spec())
    world.grant(2)
    world.do("started", 2)
    wanted = JobQuery(states=state_mask(("active", "inactive")), max_entries=5)
    pieces = listing.list_jobs(world.manager.jobs, wanted)
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
def test_results(world: Any, status: int, result: str, errstr: str) -> None:
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
def test_results_of_exceptions(world: Any, type: str, note: str, result: str, errstr: str) -> None:
    world.submit(1)
    world.do("raise_exception", 1, type, 0, note, None)
    found = world.result(1)
    assert (found.success, found.status, found.result, found.errstr) == (False, -1, result, errstr)


def test_why(world: Any, spec: Callable[..., Any]) -> None:

    def why(jobid: int) -> str:
        reason: str = world.why(jobid).reason
        return reason

    world.submit(1)
    world.submit(2, spec(dependencies=[{"scheme": "afterok", "value": "1"}, {"scheme": "begin-time", "value": "900"}]))
    world.submit(3, urgency=0)
    assert why(1) == "the scheduler has not decided yet"
    assert why(2) == "waits for its dependencies: afterok=1, begin-time=900"
    assert why(3) == "it is held: its urgency is 0"
    world.grant(1)
    assert why(1) == "it runs on node1"
    world.end(1)
    assert why(1) == "it has ended: success"
    with pytest.raises(Refused, match="job ƒA is not known"):
        why(9)


def test_recent_events_are_kept_while_a_job_is_active(world: Any) -> None:
    world.submit(1)
    recent = world.manager.jobs.get(1).recent_events
    assert [event["name"] for event in recent] == ["submit", "validate", "depend", "priority"]
    world.do("cancel", 1, 0, "")
    assert world.manager.jobs.get(1).recent_events is None
    assert world.state(1) is State.INACTIVE


def test_a_job_costs_little(world: Any, spec: Callable[..., Any], r_of: Callable[..., Any]) -> None:
    """No quadratic anything: 1,000 jobs at once are through in well under a second."""
    manager, jobspec = world.manager, spec()
    for jobid in range(1, 1001):
        manager.requests.submit(jobid, jobspec, userid=1, now_s=5.0)
    for jobid in range(1, 1001):
        manager.allocation.alloc_granted("sched", jobid, r_of(str(jobid)), None, 6.0)
        manager.execution.started(jobid, 7.0)
        manager.execution.finished(jobid, 0, 8.0, release=True)
    assert len(manager.jobs.inactive) == 1000


@pytest.mark.plain_only("a method is watched")
def test_a_short_list_looks_at_no_more_of_the_ended_jobs(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It copied all of them first: with 100,000 each list of the last few blocked the instance for milliseconds."""
    for jobid in range(1, 2 * listing.PIECE_JOBS + 1):
        world.submit(jobid)
        world.do("cancel", jobid, 0, "")
    jobs, looked = world.manager.jobs, []
    known = type(jobs).known
    monkeypatch.setattr(type(jobs), "known", lambda self, ids: looked.append(known(self, ids)) or looked[-1])
    (found,) = [some for some in listing.list_jobs(jobs, EVERY_JOB._replace(max_entries=3)) if some]
    assert [job["id"] for job in found] == [256, 255, 254]
    assert sum(len(some) for some in looked) == listing.PIECE_JOBS


@pytest.mark.parametrize("seed", first(range(5)))
def test_each_job_comes_once_whatever_ends_and_is_forgotten_meanwhile(
    world: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, jobs = random.Random(seed), world.manager.jobs
    jobs.inactive_kept_max = 20
    news = itertools.count(1)

    def happens() -> None:
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


def test_why_has_a_rule_and_a_time_for_each_waiting_job(world: Any, spec: Callable[..., Any]) -> None:
    world.submit(1, spec())
    world.submit(2, spec(dependencies=[{"scheme": "begin-time", "value": "900"}]))
    world.submit(3, spec(), urgency=0)
    world.submit(4, spec(dependencies=[{"scheme": "afterok", "value": "1"}, {"scheme": "begin-time", "value": "900"}]))
    assert world.why(2)[1:] == ("a job is scheduled once all its dependencies are met", "its begin time", 900.0)
    assert world.why(3)[2:] == ("not while it is held", None)
    assert world.why(4)[2:] == ("not known: the jobs that it depends on come first", None)
