"""A job's way through the states: the ordinary one, and every way of being stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidTransition, InvalidValue, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.jobs.effects import (
    Held,
    Kill,
    Persist,
    SchedAlloc,
    SchedCancel,
    SchedFree,
    SchedPrioritize,
    StartShells,
    Unheld,
)
from fluxsched.jobs.job.states import State
from fluxsched.jobs.lifecycle.requests import EXCEPTIONS_MAX, NOTE_CHARS_MAX

ids = Idset.parse


def test_one_job_is_four_rows(world: Any, r_of: Callable[..., Any], spec: Callable[..., Any]) -> None:
    jobspec = spec(environment={"HOME": "/"})
    effects = world.submit(7, jobspec, urgency=20, flags=1)
    assert [type(effect) for effect in effects] == [Persist, SchedAlloc]
    assert effects[0].jobspec is jobspec.raw
    assert [event["name"] for event in effects[0].events] == ["submit", "validate", "depend", "priority"]
    submitted = {"urgency": 20, "userid": 1000, "flags": 1, "version": 1}
    assert effects[0].events[0] == {"timestamp": 102.0, "name": "submit", "context": submitted}
    assert effects[1] == SchedAlloc("sched", 7, 20, 1000, 102.0, effects[1].jobspec)
    assert "environment" not in effects[1].jobspec["attributes"]["system"]
    assert effects[1].jobspec["resources"] == jobspec.raw["resources"]

    R = r_of("3", "0-1")  # noqa: N806
    effects = world.do("alloc_granted", "sched", 7, R, {"sched": {"resource_summary": "rank3/core[0-1]"}})
    context = {"annotations": {"sched": {"resource_summary": "rank3/core[0-1]"}}}
    assert effects == [
        Persist(7, [{"timestamp": 103.0, "name": "alloc", "context": context}], None, R),
        Held(7, ids("3")),
        StartShells(7, R),
    ]
    assert world.do("started", 7) == [Persist(7, [{"timestamp": 104.0, "name": "start"}])]

    effects = world.do("finished", 7, 256, release=True)
    assert [type(effect) for effect in effects] == [Persist, SchedFree, Unheld]
    assert [event["name"] for event in effects[0].events] == ["finish", "release", "free", "clean"]
    assert world.contexts(7, "release") == [{"ranks": "all", "final": True}]
    assert effects[1] == SchedFree("sched", 7, R, True)
    assert effects[2] == Unheld(7, ids("3"))
    assert world.state(7) is State.INACTIVE
    job = world.job(7)
    assert (job.t_submit, job.t_run, job.t_cleanup, job.t_inactive) == (102.0, 103.0, 105.0, 105.0)
    assert (job.jobspec, job.raw, job.R, job.recent_events) == (None, None, None, None)


def test_partial_release_frees_part_by_part(world: Any, r_of: Callable[..., Any]) -> None:
    world.run(1, r_of("0-3", "0-1"))
    world.do("finished", 1, 0)
    world.do("released", 1, ids("1-2"), False)
    (free,) = world.freed()
    assert free.final is False
    assert free.R["execution"]["R_lite"] == [{"rank": "1-2", "children": {"core": "0-1"}}]
    assert world.manager.holdings.ranks(1) == ids("0,3")
    assert world.state() is State.CLEANUP
    world.do("released", 1, ids("0,3"), True)
    (free,) = world.freed()
    assert free.final is True
    assert free.R["execution"]["R_lite"] == [{"rank": "0,3", "children": {"core": "0-1"}}]
    assert world.contexts(1, "release") == [{"ranks": "1-2", "final": False}, {"ranks": "0,3", "final": True}]
    assert world.names().count("free") == 1
    assert world.state() is State.INACTIVE


def test_the_release_of_the_last_target_is_final_whatever_is_said(world: Any) -> None:
    world.run()
    world.do("finished", 1, 0)
    world.do("released", 1, ids("1"), False)
    assert world.freed()[0].final is True


def test_the_executor_is_held_to_its_promises(world: Any, r_of: Callable[..., Any]) -> None:
    world.submit()
    with pytest.raises(InvalidTransition, match="executor reports start, but is not running it"):
        world.do("started", 1)
    world.grant(1, r_of("0-1"))
    with pytest.raises(InvalidTransition, match="release in state RUN"):
        world.do("released", 1, ids("1"), False)
    world.do("started", 1)
    with pytest.raises(InvalidTransition, match="started twice"):
        world.do("started", 1)
    world.do("finished", 1, 0)
    with pytest.raises(InvalidTransition, match="finished twice"):
        world.do("finished", 1, 0)
    with pytest.raises(RemoteProtocolError, match="release of ranks 2, held: 0-1"):
        world.do("released", 1, ids("1-2"), False)
    with pytest.raises(RemoteProtocolError, match="final release that leaves ranks 0"):
        world.do("released", 1, ids("1"), True)
    with pytest.raises(RemoteProtocolError, match="release of ranks none"):
        world.do("released", 1, ids(""), False)
    world.do("released", 1, None, True)
    with pytest.raises(InvalidTransition, match="state INACTIVE"):
        world.do("finished", 1, 0)
    with pytest.raises(Refused, match="job ƒA is not known"):
        world.do("started", 9)


def test_cancel_while_waiting_for_a_dependency(world: Any, spec: Callable[..., Any]) -> None:
    world.submit(1)
    world.submit(2, spec(dependencies=[{"scheme": "afterok", "value": "1"}]))
    world.do("cancel", 2, 1000, "changed my mind")
    assert world.names(2)[-2:] == ["exception", "clean"]
    assert world.contexts(2, "exception") == [
        {"type": "cancel", "severity": 0, "note": "changed my mind", "userid": 1000}
    ]
    assert world.state(2) is State.INACTIVE
    world.grant(1)
    world.end(1)
    assert world.state(2) is State.INACTIVE


def test_cancel_in_line_without_scheduler(alone: Any) -> None:
    alone.submit()
    alone.do("cancel", 1, 0, "")
    assert alone.state() is State.INACTIVE
    alone.scheduler()
    assert alone.sent() == []


def test_cancel_while_held(world: Any) -> None:
    world.submit(urgency=0)
    assert [type(effect) for effect in world.do("cancel", 1, 0, "")] == [Persist]
    assert world.state() is State.INACTIVE


def test_cancel_with_a_request_outstanding_and_the_grant_that_crossed_it(world: Any, r_of: Callable[..., Any]) -> None:
    world.submit()
    effects = world.do("cancel", 1, 0, "")
    assert [type(effect) for effect in effects] == [Persist, SchedCancel]
    assert world.state() is State.INACTIVE
    R = r_of("5")  # noqa: N806
    assert world.grant(1, R) == [SchedFree("sched", 1, R, True)]
    with pytest.raises(RemoteProtocolError, match="no request outstanding"):
        world.do("alloc_canceled", "sched", 1)


def test_cancel_with_a_request_outstanding_and_its_answer(world: Any) -> None:
    world.submit()
    world.do("cancel", 1, 0, "")
    assert world.do("alloc_canceled", "sched", 1) == []
    assert "alloc" not in world.names()


@pytest.mark.parametrize("started", [False, True])
def test_cancel_while_running(world: Any, started: bool) -> None:
    world.submit()
    world.grant()
    if started:
        world.do("started", 1)
    world.do("cancel", 1, 0, "stop")
    assert world.of(Kill) == [Kill(1, 15, "cancel: stop")]
    assert world.state() is State.CLEANUP
    if not started:
        world.do("started", 1)  # it crossed the kill
    world.end(1, 15)
    assert world.names()[-7:-4] == (["alloc", "start", "exception"] if started else ["alloc", "exception", "start"])
    assert world.result(1).result == "CANCELED"


def test_cancel_in_cleanup_is_logged_and_changes_nothing(world: Any) -> None:
    world.run()
    world.do("finished", 1, 0)
    assert [type(effect) for effect in world.do("cancel", 1, 0, "")] == [Persist]
    assert world.state() is State.CLEANUP
    world.do("released", 1, None, True)
    assert world.state() is State.INACTIVE


def test_nothing_can_be_raised_on_a_job_that_has_ended(world: Any) -> None:
    world.run()
    world.end()
    with pytest.raises(Refused, match="job ƒ2 has ended"):
        world.do("cancel", 1, 0, "")
    with pytest.raises(Refused, match="not known"):
        world.do("cancel", 2, 0, "")


def test_exceptions_that_are_not_fatal_are_only_logged(world: Any) -> None:
    world.run()
    world.do("raise_exception", 1, "warn", 3, "hot", None)
    assert world.state() is State.RUN
    assert world.contexts(1, "exception") == [{"type": "warn", "severity": 3, "note": "hot"}]
    world.end()
    assert world.result(1).success


def test_the_first_fatal_exception_is_the_root_cause(world: Any) -> None:
    world.run()
    world.do("raise_exception", 1, "exec", 0, "task 3 failed", None, wait_status=9)
    world.do("raise_exception", 1, "cancel", 0, "", 5)
    assert world.of(Kill) == []
    world.end(1, 2 << 8)
    found = world.result(1)
    assert (found.exception_type, found.exception_note, found.result) == ("exec", "task 3 failed", "FAILED")
    assert found.status == (128 + 9) << 8  # RFC 21: the wait status of the root cause, as a shell gives it
    assert world.job().exceptions is not None


def test_an_exit_code_given_with_the_root_cause(world: Any) -> None:
    world.run()
    world.do("raise_exception", 1, "exec", 0, "", None, wait_status=3 << 8)
    world.end(1, 9)
    assert world.result(1).status == 3 << 8


@pytest.mark.parametrize(
    ("type", "severity", "note", "match"),
    [
        ("x", 8, "", "severity 8"),
        ("x", -1, "", "severity -1"),
        ("", 0, "", "not a word"),
        ("two words", 0, "", "not a word"),
        ("y" * 33, 0, "", "not a word"),
        ("x", 0, "n" * (NOTE_CHARS_MAX + 1), "limit 1024"),
    ],
)
def test_bad_exceptions_are_refused(world: Any, type: str, severity: int, note: str, match: str) -> None:
    world.submit()
    with pytest.raises(InvalidValue, match=match):
        world.do("raise_exception", 1, type, severity, note, None)
    assert world.names()[-1] == "priority"


def test_exceptions_are_bounded_but_one_that_ends_the_job_passes(alone: Any) -> None:
    alone.submit()
    for _ in range(EXCEPTIONS_MAX):
        alone.manager.requests.raise_exception(1, "noise", 7, "", None, 5.0)
    with pytest.raises(LimitExceeded, match="256 exceptions already"):
        alone.manager.requests.raise_exception(1, "noise", 7, "", None, 5.0)
    alone.do("cancel", 1, 0, "")
    assert alone.state() is State.INACTIVE


@pytest.mark.parametrize("when", ["before start", "running", "after cancel"])
def test_a_failure_of_the_executor_ends_the_job(world: Any, when: str) -> None:
    world.submit()
    world.grant()
    if when == "running":
        world.do("started", 1)
    if when == "after cancel":
        world.do("cancel", 1, 0, "")
    world.do("exec_failed", 1, "no such file")
    assert world.of(Kill) == []
    assert world.names()[-4:] == ["exception", "release", "free", "clean"]
    assert len(world.freed()) == 1
    assert world.result(1).exception_type == ("cancel" if when == "after cancel" else "exec")


def test_a_denied_request_ends_the_job(world: Any) -> None:
    world.submit()
    world.do("annotate", "sched", 1, {"sched": {"reason_pending": "full"}})
    world.do("alloc_denied", "sched", 1, "more nodes than there are")
    assert world.contexts(1, "exception") == [{"type": "alloc", "severity": 0, "note": "more nodes than there are"}]
    assert world.state() is State.INACTIVE
    assert world.job().annotations is None  # RFC 27: discarded if the allocation fails


def test_kill_signals_without_an_exception(world: Any) -> None:
    world.submit()
    with pytest.raises(Refused, match="nothing runs"):
        world.do("kill", 1, 10)
    world.grant()
    assert world.do("kill", 1, 10) == [Kill(1, 10, "asked by a user")]
    with pytest.raises(InvalidValue, match="signal 0"):
        world.do("kill", 1, 0)
    assert world.names()[-1] == "alloc"


def test_hold_and_release(world: Any) -> None:
    world.submit(urgency=0)
    assert world.sent() == []
    assert world.contexts(1, "priority") == [{"priority": 0}]
    world.do("set_urgency", 1, 16, 5)
    assert world.sent() == [1]
    world.do("set_urgency", 1, 0, 5)
    assert world.of(SchedCancel) == [SchedCancel("sched", 1)]
    assert world.do("alloc_canceled", "sched", 1) == []
    world.do("set_urgency", 1, 31, 5)
    assert world.of(SchedAlloc)[0].priority == 4294967295
    assert world.contexts(1, "urgency")[-1] == {"urgency": 31, "userid": 5}


def test_a_release_that_crosses_the_cancellation_asks_again(world: Any) -> None:
    world.submit()
    world.do("set_urgency", 1, 0, 5)
    world.do("set_urgency", 1, 20, 5)
    assert world.sent() == []  # one request at most: the answer to the cancellation comes first
    world.do("alloc_canceled", "sched", 1)
    assert world.sent() == [1]
    assert world.of(SchedAlloc)[0].priority == 20


def test_a_grant_that_crosses_a_hold_is_taken(world: Any) -> None:
    world.submit()
    world.do("set_urgency", 1, 0, 5)
    world.grant()
    assert world.state() is State.RUN
    with pytest.raises(Refused, match="has its resources"):
        world.do("set_urgency", 1, 16, 5)


def test_a_new_priority_of_an_outstanding_request(world: Any) -> None:
    world.submit()
    effects = world.do("set_urgency", 1, 17, 5)
    assert effects[1:] == [SchedPrioritize("sched", [(1, 17)])]
    assert [type(effect) for effect in world.do("set_urgency", 1, 17, 5)] == [Persist]  # nothing new to tell


@pytest.mark.parametrize("urgency", [-1, 32])
def test_urgency_has_a_range(world: Any, urgency: int) -> None:
    with pytest.raises(InvalidValue, match=f"urgency {urgency} is not within 0"):
        world.submit(urgency=urgency)
    world.submit()
    with pytest.raises(InvalidValue, match=f"urgency {urgency} is not within 0"):
        world.do("set_urgency", 1, urgency, 5)


def test_job_ids_are_unique_and_jobs_are_bounded(new_world: Callable[..., Any]) -> None:
    world = new_world(active_max=2)
    world.submit(1)
    with pytest.raises(InvalidValue, match="job id 1 is taken"):
        world.submit(1)
    world.submit(2)
    with pytest.raises(Refused, match="2 jobs are active, the limit"):
        world.submit(3)
    world.do("cancel", 1, 0, "")
    world.submit(3)
