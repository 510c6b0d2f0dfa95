"""Preempted jobs that are submitted again: how often, in whose place in line, and what else moves with them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.sharing import REQUEUE_MAX
from fluxsched.errors import Refused
from fluxsched.jobs.effects import Kill, Persist, SchedAlloc
from fluxsched.jobs.job.states import State
from fluxsched.jobs.query.why import history

NEXT = 1001
"""The id of the first job that is submitted again."""

SIGKILL = 9
NOTE = "for job ƒX of default/ann: U 0 of S 8"


def requeued(spec: Callable[..., Jobspec], times: int = 1, **options: Any) -> Jobspec:
    raw = spec(**options).to_json()
    raw["attributes"]["system"]["fluxsched"] = {"requeue": times}
    return Jobspec.parse(raw)


@pytest.fixture
def preempted(world: Any, spec: Callable[..., Jobspec]) -> Callable[..., Any]:
    """Submit a job, run it, preempt it and let it end."""

    def run(jobid: int = 1, times: int = 1, status: int = 15, **options: Any) -> Any:
        world.run(jobid, spec=requeued(spec, times, **options))
        world.do("raise_exception", jobid, "preempt", 0, NOTE, 0)
        world.end(jobid, status)
        return world

    return run


def test_a_preempted_job_is_asked_to_end_with_a_grace_time_of_its_own(world: Any) -> None:
    world.run(1)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    assert world.of(Kill) == [Kill(1, 15, f"preempt: {NOTE}", True)]
    assert world.state(1) is State.CLEANUP
    world.end(1, 15)
    found = world.result(1)
    assert (found.result, found.exception_type, found.exception_note) == ("FAILED", "preempt", NOTE)
    assert found.errstr == f"exception preempt: {NOTE}"
    assert NOTE in world.why(1).reason


def test_a_scheduler_that_comes_later_is_told_that_a_job_is_going(world: Any) -> None:
    for jobid in (1, 2, 3):
        world.run(jobid)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    since_s = world.now_s
    world.do("raise_exception", 2, "timeout", 0, "", 0)
    world.do("scheduler_lost", "sched")
    hello = world.manager.allocation.hello("sched")
    assert [(item.jobid, item.preempted_s) for item in hello] == [(1, since_s), (2, 0.0), (3, 0.0)]


def test_it_is_submitted_again_in_the_transaction_of_its_end(preempted: Callable[..., Any]) -> None:
    world = preempted()
    old, new = world.of(Persist)
    assert [event["name"] for event in old.events] == ["finish", "release", "free", "clean"]
    assert [event["name"] for event in new.events] == ["submit", "validate", "depend", "priority"]
    assert (old.jobid, new.jobid, new.jobspec) == (1, NEXT, world.stored[1]["jobspec"])
    assert old.events[-1]["context"] == {"requeue": {"as": NEXT}}
    t_first = world.stored[1]["events"][0]["timestamp"]
    assert new.events[0]["context"]["requeue"] == {"of": 1, "attempt": 1, "t_first": t_first}
    assert world.sent() == [NEXT]
    assert world.result(1).next_id == NEXT
    assert world.why(1).reason.endswith("it was submitted again as job ƒJG")
    assert history(world.manager.jobs, world.job(1)) is None
    assert history(world.manager.jobs, world.job(NEXT)) == f"attempt 1 of 1; ƒ2 ended with exception preempt: {NOTE}"
    world.manager.jobs.inactive.pop(1)
    assert history(world.manager.jobs, world.job(NEXT)) == "attempt 1 of 1; ƒ2 ended with exception preempt"


def test_it_is_submitted_no_more_often_than_it_asked_for(preempted: Callable[..., Any]) -> None:
    world = preempted(times=2)
    for attempt in (NEXT, NEXT + 1):
        world.grant(attempt)
        world.do("started", attempt)
        world.do("raise_exception", attempt, "preempt", 0, NOTE, 0)
        world.end(attempt, 15)
    assert [world.job(jobid).attempt for jobid in (1, NEXT)] == [None, (1, 1, world.job(1).t_submit)]
    assert world.job(NEXT + 1).attempt == (NEXT, 2, world.job(1).t_submit)
    assert world.job(NEXT + 1).next_id == 0
    assert world.manager.jobs.last(1) is world.job(NEXT + 1)
    assert not world.manager.jobs.active


def test_the_limit_of_attempts_is_reached(world: Any, spec: Callable[..., Jobspec]) -> None:
    jobid = 1
    world.submit(1, requeued(spec, REQUEUE_MAX))
    for _ in range(REQUEUE_MAX + 1):
        world.grant(jobid, world_r(1))
        world.do("raise_exception", jobid, "preempt", 0, "", 0)
        world.end(jobid, 15)
        jobid = world.job(jobid).next_id or jobid
    assert world.job(jobid).attempt.number == REQUEUE_MAX
    assert not world.manager.jobs.active


def world_r(rank: int) -> dict[str, Any]:
    entry = {"rank": str(rank), "children": {"core": "0"}}
    execution = {"R_lite": [entry], "nodelist": [f"node{rank}"], "starttime": 1.0, "expiration": 0.0}
    return {"version": 1, "execution": execution}


def test_it_stands_in_line_by_its_first_submission(preempted: Callable[..., Any], new_world: Any) -> None:
    world = preempted()
    first_s = world.job(1).t_submit
    (asked,) = world.of(SchedAlloc)
    assert (asked.jobid, asked.t_submit) == (NEXT, first_s)
    assert world.job(NEXT).t_submit > first_s
    world.do("scheduler_lost", "sched")
    world.submit(2)
    again = new_world()
    again.stored, again.now_s = world.stored, world.now_s + 10
    again.perform(again.manager.restore(world.rows(), again.now_s).effects)
    again.scheduler(limit=1)
    assert again.sent() == [NEXT], "before job 2, which was submitted before it was preempted"
    assert again.of(SchedAlloc)[0].t_submit == first_s
    again.grant(NEXT)
    again.do("scheduler_lost", "sched")
    (item,) = again.manager.allocation.hello("sched")
    assert (item.jobid, item.t_submit) == (NEXT, first_s)


@pytest.mark.parametrize("status", [0, 15, 1 << 8])
def test_a_job_that_ended_well_has_done_its_work(preempted: Callable[..., Any], status: int) -> None:
    world = preempted(status=status)
    found = world.result(1)
    assert found.success == (status == 0)
    assert found.result == ("FAILED" if status else "COMPLETED")
    assert found.exception_type == ("preempt" if status else None), "what did not end it is not told as its end"
    assert bool(found.next_id) == (status != 0)


@pytest.mark.parametrize(("kind", "again"), [("cancel", False), ("timeout", True), ("exec", True), ("memory", True)])
def test_only_its_user_can_end_a_job_for_good_once_it_is_preempted(
    world: Any, spec: Callable[..., Jobspec], kind: str, again: bool
) -> None:
    world.run(1, spec=requeued(spec))
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.do("raise_exception", 1, kind, 0, "", 0)
    assert world.of(Kill) == [Kill(1, 15, kind)], "with the usual grace time, which may be shorter"
    world.end(1, 15)
    assert bool(world.job(1).next_id) == again


@pytest.mark.parametrize("kind", ["cancel", "timeout", "exec", "preemption"])
def test_nothing_but_preemption_submits_a_job_again(world: Any, spec: Callable[..., Jobspec], kind: str) -> None:
    world.run(1, spec=requeued(spec))
    world.do("raise_exception", 1, kind, 0, "", 0)
    world.end(1, 15)
    assert not world.manager.jobs.active


def test_a_job_that_asked_for_nothing_is_not_submitted_again(world: Any) -> None:
    world.run(1)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.end(1, 15)
    assert not world.manager.jobs.active
    assert "context" not in world.stored[1]["events"][-1]


def test_only_a_running_job_can_be_preempted(world: Any, spec: Callable[..., Jobspec]) -> None:
    world.submit(1, requeued(spec))
    with pytest.raises(Refused, match="job ƒ2 is in state SCHED: only a running job can be preempted") as raised:
        world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    assert raised.value.errnum == errno.EINVAL
    world.grant(1)
    world.do("finished", 1, 1 << 8)
    with pytest.raises(Refused, match="is in state CLEANUP"):
        world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.do("released", 1, None, True)
    assert not world.manager.jobs.active
    assert world.do("submit", 2, requeued(spec), userid=5)
    world.do("raise_exception", 2, "preempt", 1, "a mere remark", 0)
    assert world.state(2) is State.SCHED


def test_it_is_submitted_with_what_it_asked_for_at_last(
    world: Any, spec: Callable[..., Jobspec], r_of: Callable[..., Any]
) -> None:
    raw = requeued(spec, duration_s=60.0).to_json()
    raw["attributes"]["system"]["array"] = 0
    world.submit(1, Jobspec.parse(raw), urgency=20, flags=4)
    world.do("set_urgency", 1, 21, 5)
    world.grant(1, r_of("1", starttime_s=100.0, expiration_s=160.0))
    world.do("update", 1, {"attributes.system.duration": 90})
    world.do("expiration_answered", 1, None)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.end(1, 15)
    job, system = world.job(NEXT), world.stored[NEXT]["jobspec"]["attributes"]["system"]
    assert (job.duration_s, system["duration"], system["array"]) == (90.0, 90.0, 1)
    assert (job.urgency, job.priority, job.flags, job.userid, job.array) == (21, 21, 4, world.job(1).userid, 1)


@pytest.mark.parametrize(("scheme", "end"), [("afterok", 0), ("afterany", 1 << 8), ("afternotok", 1 << 8)])
def test_what_depends_on_a_job_waits_for_its_last_attempt(
    world: Any, spec: Callable[..., Jobspec], scheme: str, end: int
) -> None:
    world.submit(1, requeued(spec))
    world.submit(2, spec(dependencies=[{"scheme": scheme, "value": "1"}, {"scheme": scheme, "value": "ƒ2"}]))
    world.grant(1)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.end(1, 15)
    assert list(world.job(2).dependencies) == [f"{scheme}=ƒJG"]
    names = world.names(2)
    assert names[-3:] == ["dependency-remove", "dependency-add", "dependency-remove"]
    world.submit(3, spec(dependencies=[{"scheme": scheme, "value": "1"}]))
    assert list(world.job(3).dependencies) == [f"{scheme}=ƒJG"], "one that comes later waits for the same"
    world.grant(NEXT)
    world.end(NEXT, end)
    assert [world.state(jobid) for jobid in (2, 3)] == [State.SCHED] * 2


def test_a_start_that_was_waited_for_has_been(world: Any, spec: Callable[..., Jobspec]) -> None:
    world.submit(1, requeued(spec))
    world.submit(2, spec(dependencies=[{"scheme": "after", "value": "1"}]))
    world.grant(1)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.end(1, 15)
    assert list(world.job(2).dependencies) == ["after=ƒJG"], "it was preempted before it started"
    world.grant(NEXT)
    world.do("started", NEXT)
    assert world.state(2) is State.SCHED
    world.run(4, spec=requeued(spec))
    world.do("raise_exception", 4, "preempt", 0, NOTE, 0)
    world.end(4, 15)
    world.submit(5, spec(dependencies=[{"scheme": "after", "value": "4"}]))
    assert world.state(5) is State.SCHED


def test_a_held_remainder_is_released_before_the_next_attempt(
    world: Any, spec: Callable[..., Jobspec], r_of: Callable[..., Any]
) -> None:
    world.run(1, r_of("2-3"), spec=requeued(spec))
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.do("finished", 1, SIGKILL)
    world.do("released", 1, Idset.parse("2"), False)
    assert world.sent() == []
    world.do("released", 1, Idset.parse("3"), True)
    assert [free.final for free in world.freed()] == [True]
    assert world.sent() == [NEXT]
