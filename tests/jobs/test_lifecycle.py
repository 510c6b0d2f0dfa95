"""A job's way through the states: cancelled, killed, held, raised, ended, changed (RFC 21)."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidTransition, InvalidValue, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.jobs.job import NO_REQUEST, JobSummary, sched_jobspec
from fluxsched.jobs.manager import JobManager, read
from fluxsched.jobs.queues import JobQueue, QueueConfig
from fluxsched.jobs.requests import EXCEPTIONS_MAX, JOBS_ACTIVE_MAX, NAME_CHARS_MAX, NOTE_CHARS_MAX, check_submitted
from fluxsched.jobs.states import (
    KEYS_MAX,
    MEMO_CHARS_MAX,
    Kill,
    Persist,
    StartShells,
    State,
    TargetsFreed,
    TargetsGranted,
    ToScheduler,
    UpdateDone,
)
from fluxsched.protocol.messages.jobs import (
    AllocRequest,
    ExpirationRequest,
    FreeRequest,
    PrioritizeRequest,
    SchedCancelRequest,
)

# A job's way through the states: the ordinary one, and every way of being stopped.


ids = Idset.parse


def test_one_job_is_four_rows(world, r_of, spec):
    jobspec = spec(environment={"HOME": "/"})
    effects = world.submit(7, jobspec, urgency=20, flags=1)
    assert [type(effect) for effect in effects] == [Persist, ToScheduler]
    assert effects[0].jobspec is jobspec.raw
    assert [event["name"] for event in effects[0].events] == ["submit", "validate", "depend", "priority"]
    submitted = {"urgency": 20, "userid": 1000, "flags": 1, "version": 1}
    assert effects[0].events[0] == {"timestamp": 102.0, "name": "submit", "context": submitted}
    assert effects[1] == ToScheduler("sched", AllocRequest(7, 20, 1000, effects[1].message.jobspec, 102.0))
    assert "environment" not in effects[1].message.jobspec["attributes"]["system"]
    assert effects[1].message.jobspec["resources"] == jobspec.raw["resources"]

    R = r_of("3", "0-1")
    effects = world.do("alloc_granted", "sched", 7, R, {"sched": {"resource_summary": "rank3/core[0-1]"}})
    context = {"annotations": {"sched": {"resource_summary": "rank3/core[0-1]"}}}
    assert effects == [
        Persist(7, [{"timestamp": 103.0, "name": "alloc", "context": context}], None, R),
        TargetsGranted(7, ids("3")),
        StartShells(7, R),
    ]
    assert world.do("started", 7) == [Persist(7, [{"timestamp": 104.0, "name": "start"}])]

    effects = world.do("finished", 7, 256, release=True)
    assert [type(effect) for effect in effects] == [Persist, ToScheduler, TargetsFreed]
    assert [event["name"] for event in effects[0].events] == ["finish", "release", "free", "clean"]
    assert world.contexts(7, "release") == [{"ranks": "all", "final": True}]
    assert effects[1] == ToScheduler("sched", FreeRequest(7, R, True))
    assert effects[2] == TargetsFreed(7, ids("3"))
    assert world.state(7) is State.INACTIVE
    job = world.job(7)
    assert (job.t_submit, job.t_run, job.t_cleanup, job.t_inactive) == (102.0, 103.0, 105.0, 105.0)
    assert (job.jobspec, job.dependencies, job.request) == (None, None, NO_REQUEST)
    assert type(job) is JobSummary


def test_what_jobs_log_alike_in_one_turn_is_one_object(world, spec):
    """It is made, and packed, once; a job of another user, with another status or at another time has its own."""
    requests, execution = world.manager.requests, world.manager.execution

    def submitted(jobid, userid=1):
        return requests.submit(jobid, spec(), userid=userid, now_s=200.0)[0].events

    first, second, other = submitted(1), submitted(2), submitted(3, userid=2)
    assert (first is second, first == other) == (True, False)
    world.now_s = 200.0
    for jobid in (1, 2, 3):
        world.grant(jobid)
    now_s = 300.0
    started = [execution.started(jobid, now_s)[0].events[0] for jobid in (1, 2)]
    started.append(execution.started(3, now_s + 1.0)[0].events[0])
    assert (started[0] is started[1], started[2]) == (True, {"timestamp": now_s + 1.0, "name": "start"})
    ended = [
        execution.finished(jobid, status, 400.0, release=True)[0].events for jobid, status in ((1, 0), (2, 9), (3, 0))
    ]
    assert ended[0] is ended[2]
    assert [events[0]["context"] for events in ended] == [{"status": 0}, {"status": 9}, {"status": 0}]
    assert ended[0][1:] == ended[1][1:]


def test_partial_release_frees_part_by_part(world, r_of):
    world.run(1, r_of("0-3", "0-1"))
    world.do("finished", 1, 0)
    world.do("released", 1, ids("1-2"), False)
    (free,) = world.freed()
    assert free.final is False
    assert free.R["execution"]["R_lite"] == [{"rank": "1-2", "children": {"core": "0-1"}}]
    assert world.manager.grants.ranks(1) == ids("0,3")
    assert world.state() is State.CLEANUP
    world.do("released", 1, ids("0,3"), True)
    (free,) = world.freed()
    assert free.final is True
    assert free.R["execution"]["R_lite"] == [{"rank": "0,3", "children": {"core": "0-1"}}]
    assert world.contexts(1, "release") == [{"ranks": "1-2", "final": False}, {"ranks": "0,3", "final": True}]
    assert world.names().count("free") == 1
    assert world.state() is State.INACTIVE


def test_the_release_of_the_last_target_is_final_whatever_is_said(world):
    world.run()
    world.do("finished", 1, 0)
    world.do("released", 1, ids("1"), False)
    assert world.freed()[0].final is True


def test_the_executor_is_held_to_its_promises(world, r_of):
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


def test_cancel_while_waiting_for_a_dependency(world, spec):
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


def test_cancel_in_line_without_scheduler(alone):
    alone.submit()
    alone.do("cancel", 1, 0, "")
    assert alone.state() is State.INACTIVE
    alone.scheduler()
    assert alone.sent() == []


def test_cancel_while_held(world):
    world.submit(urgency=0)
    assert [type(effect) for effect in world.do("cancel", 1, 0, "")] == [Persist]
    assert world.state() is State.INACTIVE


def test_cancel_with_a_request_outstanding_and_the_grant_that_crossed_it(world, r_of):
    world.submit()
    effects = world.do("cancel", 1, 0, "")
    assert [type(effect) for effect in effects] == [Persist, ToScheduler]
    assert world.state() is State.INACTIVE
    R = r_of("5")
    assert world.grant(1, R) == [ToScheduler("sched", FreeRequest(1, R, True))]
    with pytest.raises(RemoteProtocolError, match="no request outstanding"):
        world.do("alloc_canceled", "sched", 1)


@pytest.mark.parametrize("started", [False, True])
def test_cancel_while_running(world, started):
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


def test_cancel_in_cleanup_is_logged_and_changes_nothing(world):
    world.run()
    world.do("finished", 1, 0)
    assert [type(effect) for effect in world.do("cancel", 1, 0, "")] == [Persist]
    assert world.state() is State.CLEANUP
    world.do("released", 1, None, True)
    assert world.state() is State.INACTIVE


def test_nothing_can_be_raised_on_a_job_that_has_ended(world):
    world.run()
    world.end()
    with pytest.raises(Refused, match="job ƒ2 has ended"):
        world.do("cancel", 1, 0, "")
    with pytest.raises(Refused, match="not known"):
        world.do("cancel", 2, 0, "")


def test_exceptions_that_are_not_fatal_are_only_logged(world):
    world.run()
    world.do("raise_exception", 1, "warn", 3, "hot", None)
    assert world.state() is State.RUN
    assert world.contexts(1, "exception") == [{"type": "warn", "severity": 3, "note": "hot"}]
    world.end()
    assert world.result(1).success


def test_the_first_fatal_exception_is_the_root_cause(world):
    world.run()
    world.do("raise_exception", 1, "exec", 0, "task 3 failed", None)
    world.do("raise_exception", 1, "cancel", 0, "", 5)
    assert world.of(Kill) == []
    world.end(1, 2 << 8)
    found = world.result(1)
    assert (found.exception_type, found.exception_note, found.result) == ("exec", "task 3 failed", "FAILED")
    assert found.status == 2 << 8
    assert world.job().exceptions is not None


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
def test_bad_exceptions_are_refused(world, type, severity, note, match):
    world.submit()
    with pytest.raises(InvalidValue, match=match):
        world.do("raise_exception", 1, type, severity, note, None)
    assert world.names()[-1] == "priority"


def test_exceptions_are_bounded_but_one_that_ends_the_job_passes(alone):
    alone.submit()
    for _ in range(EXCEPTIONS_MAX):
        alone.manager.requests.raise_exception(1, "noise", 7, "", None, 5.0)
    with pytest.raises(LimitExceeded, match="256 exceptions already"):
        alone.manager.requests.raise_exception(1, "noise", 7, "", None, 5.0)
    alone.do("cancel", 1, 0, "")
    assert alone.state() is State.INACTIVE


@pytest.mark.parametrize("when", ["before start", "running", "after cancel"])
def test_a_failure_of_the_executor_ends_the_job(world, when):
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


def test_a_denied_request_ends_the_job(world):
    world.submit()
    world.do("annotate", "sched", 1, {"sched": {"reason_pending": "full"}})
    world.do("alloc_denied", "sched", 1, "more nodes than there are")
    assert world.contexts(1, "exception") == [{"type": "alloc", "severity": 0, "note": "more nodes than there are"}]
    assert world.state() is State.INACTIVE
    assert world.job().annotations is None  # RFC 27: discarded if the allocation fails


def test_kill_signals_without_an_exception(world):
    world.submit()
    with pytest.raises(Refused, match="no running tasks"):
        world.do("kill", 1, 10)
    world.grant()
    assert world.do("kill", 1, 10) == [Kill(1, 10, "asked by a user")]
    with pytest.raises(InvalidValue, match="signal 0"):
        world.do("kill", 1, 0)
    assert world.names()[-1] == "alloc"


def test_hold_and_release(world):
    world.submit(urgency=0)
    assert world.sent() == []
    assert world.contexts(1, "priority") == [{"priority": 0}]
    world.do("set_urgency", 1, 16, 5)
    assert world.sent() == [1]
    world.do("set_urgency", 1, 0, 5)
    assert world.requests(SchedCancelRequest) == [SchedCancelRequest(1)]
    assert world.do("alloc_canceled", "sched", 1) == []
    world.do("set_urgency", 1, 31, 5)
    assert world.requests(AllocRequest)[0].priority == 4294967295
    assert world.contexts(1, "urgency")[-1] == {"urgency": 31, "userid": 5}


HELD, STOPPED = ("set_urgency", 1, 0, 5), ("start", None, False)


@pytest.mark.parametrize(
    ("withdrawn", "again", "priority"), [(HELD, ("set_urgency", 1, 20, 5), 20), (STOPPED, ("start", None, True), 16)]
)
def test_a_release_that_crosses_the_cancellation_asks_again(world, withdrawn, again, priority):
    world.submit()
    world.do(*withdrawn)
    world.do(*again)
    assert world.sent() == []  # one request at most: the answer to the cancellation comes first
    world.do("alloc_canceled", "sched", 1)
    assert [(one.id, one.priority) for one in world.requests(AllocRequest)] == [(1, priority)]


@pytest.mark.parametrize("withdrawn", [HELD, STOPPED])
def test_a_grant_that_crosses_a_withdrawal_is_taken(world, withdrawn):
    world.submit()
    world.do(*withdrawn)
    world.grant()
    assert world.state() is State.RUN
    with pytest.raises(Refused, match="has its resources"):
        world.do("set_urgency", 1, 16, 5)


def test_a_new_priority_of_an_outstanding_request(world):
    world.submit()
    effects = world.do("set_urgency", 1, 17, 5)
    assert effects[1:] == [ToScheduler("sched", PrioritizeRequest([(1, 17)]))]
    assert [type(effect) for effect in world.do("set_urgency", 1, 17, 5)] == [Persist]  # nothing new to tell


@pytest.mark.parametrize("urgency", [-1, 32])
def test_urgency_has_a_range(world, urgency):
    with pytest.raises(InvalidValue, match=f"urgency {urgency} is not within 0"):
        world.submit(urgency=urgency)
    world.submit()
    with pytest.raises(InvalidValue, match=f"urgency {urgency} is not within 0"):
        world.do("set_urgency", 1, urgency, 5)


def test_job_ids_are_unique_and_jobs_are_bounded(new_world):
    assert JobManager(int).requests.active_max == JOBS_ACTIVE_MAX
    world = new_world(active_max=2)
    world.submit(1)
    with pytest.raises(InvalidValue, match="job id 1 is taken"):
        world.submit(1)
    world.submit(2)
    with pytest.raises(Refused, match="2 jobs are active, the limit") as raised:
        world.submit(3)
    assert raised.value.errnum == errno.EAGAIN
    world.do("cancel", 1, 0, "")
    world.submit(3)


# Changes of a job's duration: before it runs at once, while it runs when its scheduler agrees, afterwards never.


def test_a_pending_jobs_duration_changes_at_once(world):
    world.submit()
    world.do("update", 1, {"attributes.system.duration": 60})
    assert [type(effect).__name__ for effect in world.last] == ["Persist", "ToScheduler", "UpdateDone"]
    world.do("alloc_canceled", "sched", 1)
    assert world.requests(AllocRequest)[0].jobspec["attributes"]["system"]["duration"] == 60.0
    assert world.job().jobspec.raw["attributes"]["system"]["duration"] == 0.0  # what was submitted stays
    assert sched_jobspec(world.job())["attributes"]["system"]["duration"] == 60.0


def test_a_running_jobs_expiration_changes_when_the_scheduler_agrees(world, r_of):
    R = r_of("0", starttime_s=100.0, expiration_s=160.0)
    world.run(1, R)
    proposed = ToScheduler("sched", ExpirationRequest(1, 220.0))
    assert world.do("update", 1, {"attributes.system.duration": 120}) == [proposed]
    with pytest.raises(Refused, match="not answered yet"):
        world.do("update", 1, {"attributes.system.duration": 130})
    world.do("expiration_answered", 1, "no")
    assert world.last == [UpdateDone(1, "no")]
    world.do("update", 1, {"attributes.system.duration": 0})
    world.do("expiration_answered", 1, None)
    assert world.contexts(1, "resource-update") == [{"expiration": 0.0}]
    assert world.job().R["execution"]["expiration"] == 0.0
    assert R["execution"]["expiration"] == 160.0
    assert world.listing()[0]["duration"] == 0.0
    world.do("update", 1, {"attributes.system.duration": 500})
    world.do("expiration_answered", 1, None)
    assert world.listing()[0]["duration"] == 500.0
    with pytest.raises(Refused, match="cancel it instead"):
        world.do("update", 1, {"attributes.system.duration": 1})


def test_a_jobs_end_is_moved_for_an_outage_although_no_scheduler_is_there(world, r_of):
    world.run(1, r_of("0", starttime_s=100.0, expiration_s=160.0))
    assert world.do("move_end", 1, 130.0, "upd") == [ToScheduler("sched", ExpirationRequest(1, 130.0))]
    assert world.do("move_end", 1, 130.0, "upd") == [], "it is asked already"
    world.do("scheduler_lost", "sched")
    world.do("move_end", 1, 130.0, "upd")
    assert world.contexts(1, "resource-update") == [{"expiration": 130.0, "outage": "upd", "before": 160.0}]
    (taken_over,) = world.manager.allocation.hello("next")
    assert taken_over.R["execution"]["expiration"] == 130.0
    assert world.do("move_end", 1, 140.0, "upd") == [], "it has heard of another end, and takes over the jobs"
    world.do("ready", "next", None)
    assert world.do("move_end", 1, 140.0, "upd") == [ToScheduler("next", ExpirationRequest(1, 140.0))]


@pytest.mark.parametrize(
    ("expiration_s", "duration_s", "is_allowed"),
    [(160.0, 59, True), (160.0, 60, True), (160.0, 61, False), (160.0, 0, False), (0.0, 60, True), (0.0, 0, True)],
)
def test_who_may_not_prolong_a_running_job_may_shorten_it(world, r_of, expiration_s, duration_s, is_allowed):
    world.run(1, r_of("0", starttime_s=100.0, expiration_s=expiration_s))
    updates = {"attributes.system.duration": duration_s}
    if is_allowed:
        asked_s = 100.0 + duration_s if duration_s else 0.0
        proposed = ToScheduler("sched", ExpirationRequest(1, asked_s))
        assert world.do("update", 1, updates, may_prolong=False) == [proposed]
    else:
        with pytest.raises(Refused, match=r"at most 1m, which it has, not .*: ask an admin") as caught:
            world.do("update", 1, updates, may_prolong=False)
        assert caught.value.errnum == errno.EPERM
        assert world.do("update", 1, updates), "who may prolong it still can"


def test_a_waiting_job_may_be_prolonged_by_its_user(world):
    world.submit()
    world.do("update", 1, {"attributes.system.duration": 1e6}, may_prolong=False)
    assert world.of(UpdateDone) == [UpdateDone(1, None)]


def test_updates_that_come_too_late(world):
    world.run()
    world.do("update", 1, {"attributes.system.duration": 1000})
    world.do("finished", 1, 0)
    world.do("expiration_answered", 1, None)
    assert world.last == [UpdateDone(1, "job ƒ2 is no longer running")]
    assert world.do("expiration_answered", 1, None) == []
    assert world.do("expiration_answered", 2, None) == [UpdateDone(2, "job ƒ3 is no longer running")]
    with pytest.raises(Refused, match="job ƒ2 is ending"):
        world.do("update", 1, {"attributes.system.duration": 1000})


def test_the_loss_of_the_scheduler_answers_an_update(world):
    world.run()
    world.do("update", 1, {"attributes.system.duration": 1000})
    world.do("scheduler_lost", "sched")
    assert [effect.jobid for effect in world.last] == [1]
    assert "scheduler was lost" in world.last[0].error
    with pytest.raises(Refused, match="no scheduler serves group default"):
        world.do("update", 1, {"attributes.system.duration": 1000})


@pytest.mark.parametrize(
    ("updates", "match"),
    [
        ({}, "cannot update nothing"),
        ({"tasks": 1, "x.y": 2}, "cannot update tasks, x.y"),
        ({"attributes.system.duration": "long"}, "not a number"),
        ({"attributes.system.duration": True}, "not a number"),
        ({"attributes.system.duration": -1}, "not a number"),
        ({"attributes.system.duration": 1e300}, "300 is not a number of seconds within 0 and 100000000000"),
        ({"attributes.system.duration": float("inf")}, "not a number"),
    ],
)
def test_bad_updates_are_refused(world, updates, match):
    world.submit()
    with pytest.raises((Refused, InvalidValue), match=match):
        world.do("update", 1, updates)


# What is refused of a job when it is submitted, and is no fault of one that is stored.


def test_a_name_longer_than_the_limit_is_refused_where_a_job_is_submitted():
    check_submitted(Jobspec.from_command(["true"], name="x" * NAME_CHARS_MAX))
    long = Jobspec.from_command(["true"], name="x" * (NAME_CHARS_MAX + 1))  # a stored one is still read
    with pytest.raises(LimitExceeded, match="the job's name has 1025 characters, limit 1024: shorten it"):
        check_submitted(long)


def test_an_attribute_of_ours_that_means_nothing_is_refused_where_a_job_is_submitted():
    raw = Jobspec.from_command(["true"], nodes="1-2", elastic=True, max_hops=2).to_json()
    check_submitted(Jobspec.parse(raw))
    raw["attributes"]["system"]["fluxsched"]["max_hops"] = 2
    stored = Jobspec.parse(raw)
    told = "attributes.system.fluxsched.max_hops: unknown; known: deadline, elastic, max-hops, notify, requeue"
    with pytest.raises(InvalidValue, match=told):
        check_submitted(stored)


# Memos (RFC 21): what users and nested instances say of a job.


def test_a_memo_is_an_event_below_user_and_null_takes_it_back(alone):
    alone.scheduler()
    alone.run(1)
    alone.do("memo", 1, {"uri": "ssh://host/path", "note": "mine"})
    alone.do("memo", 1, {"note": None})
    assert alone.job(1).annotations["user"] == {"uri": "ssh://host/path"}
    assert alone.contexts(1, "memo") == [{"uri": "ssh://host/path", "note": "mine"}, {"note": None}]
    [row] = alone.rows()
    assert read(row, JobQueue(QueueConfig()))[0].annotations == alone.job(1).annotations


def test_a_volatile_memo_is_in_no_log(alone):
    alone.submit(1)
    alone.do("memo", 1, {"note": "mine"}, volatile=True)
    assert alone.job(1).annotations["user"] == {"note": "mine"}
    assert "memo" not in alone.names(1)


def test_a_memo_outlives_the_scheduler_whose_own_words_do_not(alone):
    alone.scheduler()
    alone.submit(1)
    alone.do("memo", 1, {"note": "mine"})
    alone.do("annotate", "sched", 1, {"sched": {"reason_pending": "no cores"}})
    alone.do("scheduler_lost", "sched")
    assert alone.job(1).annotations == {"user": {"note": "mine"}}


@pytest.mark.parametrize(
    ("memo", "kind", "error"),
    [
        ({}, InvalidValue, "an empty memo"),
        ({"x": "y" * MEMO_CHARS_MAX}, LimitExceeded, f"above the limit of {MEMO_CHARS_MAX}"),
        ({str(at): at for at in range(KEYS_MAX + 1)}, LimitExceeded, "annotations would have"),
    ],
)
def test_a_wrong_memo_changes_nothing(alone, memo, kind, error):
    alone.submit(1)
    with pytest.raises(kind, match=error):
        alone.manager.requests.memo(1, memo, 200.0)
    assert "memo" not in alone.names(1)
    assert alone.job(1).annotations is None


def test_a_job_that_has_ended_takes_no_memo(alone):
    alone.scheduler()
    alone.run(1)
    alone.end(1)
    with pytest.raises(Refused, match="has ended"):
        alone.manager.requests.memo(1, {"x": 1}, 200.0)


def test_a_job_submitted_while_no_scheduler_is_ready_is_sent_as_unjudged_once(world):
    def sent_again() -> list[bool]:
        world.do("scheduler_lost", "sched")
        if not world.manager.jobs.active:
            world.submit(1)
        _, _, effects = world.scheduler()
        return [each.message.unjudged for each in effects if isinstance(each, ToScheduler)]

    assert sent_again() == [True]
    assert sent_again() == [False], "the first one has judged it"
    world.do("scheduler_lost", "sched")
    world.submit(2)
    world.do("cancel", 2, 1000, "")
    assert world.manager.allocation._lifecycle.links.unjudged == set()
