"""A scheduler's conversation, without I/O."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from math import inf
from typing import ClassVar

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import GroupChange, ResourceSet
from fluxsched.errors import InvalidTransition, InvalidValue, RPCError
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.instance import REASONS_MAX
from fluxsched.protocol.messages.jobs import RaiseRequest
from fluxsched.protocol.messages.resource import AcquireChange, AcquireFirst, Grow, Shrink, Update
from fluxsched.protocol.messages.resource import Grow as GroupGrow
from fluxsched.protocol.sessions import AcquireClient
from fluxsched.sched.decisions import PREEMPT, Canceled, Denied, Granted, Raise
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import Signal
from fluxsched.sched.fair.usage import ROWS_MAX
from fluxsched.sched.policies.backfill import Easy, Fifo
from fluxsched.sched.policy import PAUSE, Option
from fluxsched.sched.pool.placement import blocks_in
from fluxsched.sched.registry import make
from fluxsched.scheduler import session as module
from fluxsched.scheduler.session import (
    ACQUIRE,
    FREES_CACHED_MAX,
    GROW,
    HELLO,
    RAISE,
    READY,
    RELEASE,
    SAVE,
    SAVE_EVERY_S,
    SESSION,
    SHRINK,
    SLICE_ACCOUNTS,
    ErrorResponse,
    Fatal,
    Log,
    OutgoingRequest,
    ReadyToExit,
    Respond,
    SchedulerSession,
    SessionState,
)
from fluxsched.system.files import user_name
from tests.sched.accounts.conftest import cores

# The session's table, walked through every state with every event; order; what is kept; running jobs taken over.


EVENTS = sorted({event for row in SESSION.values() for event in row})
NO_DATA = RPCError("no data", errno.ENODATA)


def R(ranks, cores="0-1"):
    lite = [{"rank": ranks, "children": {"core": cores}}]
    hosts = [f"n[{ranks}]"]
    return {"version": 1, "execution": {"R_lite": lite, "starttime": 1.0, "expiration": 0.0, "nodelist": hosts}}


class Free:
    """A free, as the codec reads it."""

    def __init__(self, jobid, ranks, cores="0-1"):
        self.id, self.final = jobid, True
        self.R = self.execution = self
        self.R_lite = [{"rank": ranks, "children": {"core": cores}}]


def test_frees_of_one_target_are_read_once():
    assert module._blocks_on_one.cache_parameters()["maxsize"] == FREES_CACHED_MAX
    for given in (R("0", "0"), R("700", "1-2"), R("3-4", "0"), R("0-1023")):
        rlite = given["execution"]["R_lite"]
        assert module._blocks_of(rlite) == module._blocks_of(rlite[0]) == blocks_in(ResourceSet.parse(given))
    (with_amount,) = module._blocks_of([{"rank": "1", "children": {"core": "0"}, "amounts": {"memory": 5}}])
    assert with_amount.amounts == (("memory", 5),)
    for wrong in ("01x", "²"):
        with pytest.raises(InvalidValue):
            module._blocks_of([{"rank": wrong, "children": {"core": "0"}}])


class Paced:
    """Fifo with a pause before it decides."""

    name = "paced"
    OPTIONS: ClassVar[dict[str, Option]] = {}

    def schedule(self, view, now_s):
        yield PAUSE
        yield from Fifo().schedule(view, now_s)


class Peers:
    """The session's peers, in the hand of a test."""

    def __init__(self, *groups, plain=False):
        names = groups or ("default",)
        streams = {name: AcquireClient(None if plain else name) for name in names}
        scheduler = Scheduler(Paced(), names)
        self.accounts = scheduler.account_tree = cores(100, Signal.DECAYED_USAGE)
        self.session = SchedulerSession(scheduler, streams, self.read)
        self.calls = {}

    @staticmethod
    def read(given):
        if not given:
            raise InvalidValue("no jobspec")
        return Jobspec.from_command(["true"], ntasks=given, duration_s=10.0)

    def heard(self, effects):
        self.calls |= {(one.topic, one.group): one for one in effects if isinstance(one, OutgoingRequest)}
        return list(effects)

    def start(self):
        return self.heard(self.session.start())

    def answer(self, topic, answer=None, error=None, group=""):
        if topic == ACQUIRE and answer is not None and not isinstance(answer, GroupChange):
            answer = framing.pack(answer)
        return self.heard(self.session.answered(self.calls[topic, group], answer, error, 100.0))

    def grow(self, group="default", ranks="0-3"):
        return self.answer(ACQUIRE, Grow(R(ranks), ranks, ""), group=group)

    def ready(self):
        self.start()
        self.grow()
        self.answer(HELLO, error=NO_DATA)
        self.answer(READY, msg.ReadyResponse(0))
        return self

    def ask(self, topic, message=None):
        return self.heard(self.session.receive(topic, message, topic, 100.0))

    def alloc(self, jobid, ntasks=1):
        return self.ask("sched.alloc", msg.AllocRequest(jobid, 16, 1, ntasks, 200.0 + jobid))  # type: ignore[arg-type]

    def work(self, limit=100):
        return self.heard(self.session.work(limit))

    def use(self):
        """A job holds 10 cores from now on."""
        self.accounts.book(self.accounts.account(("physics", "ann")), (10,), 1, True, 100.0)

    def decide(self):
        found = list(self.session.decide(100.0))
        self.session.decided()
        return found


def at(state):
    """A session in this state."""
    peers = Peers()
    if state is SessionState.IDLE:
        return peers
    peers.start()
    if state is SessionState.ACQUIRING:
        return peers
    peers.grow()
    if state is SessionState.HELLO:
        return peers
    peers.answer(HELLO, error=NO_DATA)
    if state is SessionState.READYING:
        return peers
    peers.answer(READY, msg.ReadyResponse(0))
    if state is SessionState.DECIDING:
        peers.alloc(99)
        peers.work()
        next(peers.session.decide(100.0))
    if state is SessionState.LEAVING:
        peers.use()
        peers.heard(peers.session.stop(100.0))
    if state is SessionState.ENDED:
        peers.session.end("enough")
    assert peers.session.state is state
    return peers


def expiration_s(peers):
    peers.answer(ACQUIRE, Update(expiration=500.0), group="default")
    peers.work()


DOES = {
    "start": lambda peers: peers.session.start(),
    "change": expiration_s,
    "acquired": lambda peers: peers.grow(),
    "job": lambda peers: peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0"))),
    "known": lambda peers: peers.answer(HELLO, error=NO_DATA),
    "ready": lambda peers: peers.answer(READY, msg.ReadyResponse(0)),
    "question": lambda peers: peers.ask("sched.resource-status"),
    "request": lambda peers: (peers.alloc(1), peers.work()),
    "decide": lambda peers: peers.session.decide(100.0),
    "decided": lambda peers: peers.session.decided(),
    "save": lambda peers: peers.heard(peers.session.due(1000.0)),
    "saved": lambda peers: (peers.use(), peers.heard(peers.session.due(1000.0)), peers.answer(SAVE)),
    "leave": lambda peers: (peers.use(), peers.heard(peers.session.stop(100.0))),
    "end": lambda peers: peers.session.end("enough"),
}
"""How each event comes about."""

KEPT = {"change", "question", "request"}
"""Events that are kept where the table does not list them; others are refused, or nothing comes of them."""


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", SessionState)
def test_each_event_in_each_state(state, event):
    assert sorted(DOES) == EVENTS
    peers = at(state)
    session = peers.session
    allowed = SESSION[state].get(event)
    if state is SessionState.ACQUIRING and event == "change":
        peers = Peers("default", "other")  # of two groups one has not grown yet
        session = peers.session
        peers.start()
        peers.grow()
    try:
        DOES[event](peers)
    except (InvalidTransition, KeyError):  # KeyError: there is no call to answer yet
        assert allowed is None
    assert session.state is (allowed or state)
    over = state in (SessionState.LEAVING, SessionState.ENDED)
    if not over and event in KEPT and (state, event) != (SessionState.IDLE, "change"):
        assert session.kept == (allowed is None)


def test_a_shrink_before_hello_has_told_of_all_jobs_releases_nothing_that_they_hold():
    peers = at(SessionState.HELLO)
    peers.answer(ACQUIRE, GroupChange(shrink=Idset.parse("0")), group="default")
    assert peers.session.kept == 1
    peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0")))
    peers.answer(HELLO, error=NO_DATA)
    peers.answer(READY, msg.ReadyResponse(0))
    assert [one.topic for one in peers.work()] == [RAISE]


def test_nothing_is_asked_for_before_each_group_has_grown_and_running_jobs_are_known():
    peers = Peers("a", "b")
    assert [(one.topic, one.group, one.streaming) for one in peers.start()] == [
        (ACQUIRE, "a", True), (ACQUIRE, "b", True),
    ]  # fmt: skip
    assert peers.grow("b", "4-5") == []
    [hello] = peers.grow("a", "0-3")
    assert hello == OutgoingRequest(HELLO, msg.HelloRequest(True, ["a", "b"]), True)
    assert peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("4-5"))) == []
    [ready] = peers.answer(HELLO, error=NO_DATA)
    assert ready == OutgoingRequest(READY, msg.ReadyRequest("unlimited"))
    assert peers.session.scheduler.report.stats()["running"] == 1


def test_requests_and_questions_before_ready_wait_and_keep_their_order():
    peers = at(SessionState.HELLO)
    assert [peers.alloc(1), peers.ask("sched.resource-status"), peers.work()] == [[], [], []]
    peers.answer(HELLO, error=NO_DATA)
    peers.answer(READY, msg.ReadyResponse(1))
    assert peers.session.has_work
    assert peers.work(1) == []
    assert [type(one) for one in peers.work()] == [Respond]
    assert [type(one) for one in peers.decide() if isinstance(one, Granted)] == [Granted]


def test_while_a_pass_is_under_way_questions_are_answered_and_work_waits():
    peers = at(SessionState.DECIDING)
    assert peers.ask("sched.cancel", msg.SchedCancelRequest(99)) == []
    assert peers.answer(ACQUIRE, Shrink("0-3"), group="default") == []
    assert not peers.session.has_work
    assert isinstance(peers.ask("sched.resource-status")[0], Respond)
    [granted] = peers.decide()  # the pass goes on where it was left
    assert granted.jobid == 99
    raised, released = peers.work()  # the cancel came too late, the shrink ends the job
    assert (raised.message.id, released.message.targets) == (99, "1-3")
    assert peers.session.state is SessionState.READY


def test_a_pass_that_is_dropped_leaves_the_queue_to_the_next_one():
    peers = at(SessionState.DECIDING)
    assert not peers.session.drop()
    assert peers.session.state is SessionState.READY
    assert [type(one) for one in peers.decide() if not isinstance(one, type(PAUSE))][-1] is Granted


def test_a_job_that_cannot_be_taken_over_gets_an_exception_and_the_others_go_on():
    peers = at(SessionState.HELLO)
    assert peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0"))) == []
    for jobid, held in ((8, R("0")), (9, None), (10, {"version": 1})):
        log, call = peers.answer(HELLO, msg.HelloResponse(jobid, 16, 1, 1.0, None, held))
        assert isinstance(log, Log)
        assert log.is_error
        assert (call.topic, call.message.id, call.message.type) == (RAISE, jobid, module.RESTART)
    assert peers.answer(RAISE, error=RPCError("not active", errno.ENOENT))[0].is_error
    assert [type(one) for one in peers.answer(HELLO, error=NO_DATA)] == [OutgoingRequest]


def test_in_the_plain_dialect_a_job_outside_of_what_was_acquired_is_refused():
    peers = Peers(plain=True)
    assert peers.start() == [OutgoingRequest(ACQUIRE, None, True, "default")]
    [hello] = peers.answer(ACQUIRE, AcquireFirst(R("0-3"), "0-3"), group="default")
    assert hello.message == msg.HelloRequest(True)
    assert peers.answer(HELLO, msg.HelloResponse(6, 16, 1, 1.0, "9", R("3,9"))) == []
    log, _ = peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("9")))
    assert "ranks 9" in log.text
    assert peers.answer(ACQUIRE, AcquireChange(shrink="3", down="3"), group="default") == [], "raises nothing"


def test_a_shrink_raises_and_releases_as_the_typed_dialect_asks():
    peers = Peers().ready()
    peers.alloc(1, 2)
    peers.work()
    peers.decide()
    peers.answer(ACQUIRE, Shrink("0,3"), group="default")
    raised, released = peers.work()
    assert (raised.topic, raised.message.id, raised.message.type) == (RAISE, 1, "node-failure")
    assert raised.message.ranks == "0", "the job may have left it before this arrives"
    assert (released.topic, released.message.targets) == (RELEASE, "3")
    peers.ask("sched.free", Free(1, "0"))
    [released] = peers.work()
    assert (released.topic, released.message.targets) == (RELEASE, "0")


def test_a_job_that_is_going_when_the_scheduler_comes_is_going():
    peers = at(SessionState.HELLO)
    peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0"), preempted=99.0))
    peers.answer(HELLO, msg.HelloResponse(8, 16, 1, 1.0, None, R("1")))
    assert peers.session.scheduler._preemptions.going == {7: 0}


def test_a_preemption_that_is_refused_is_said_and_told_to_the_scheduler():
    peers = Peers().ready()
    [call] = peers.session.outgoing([Raise(7, "for job 8", PREEMPT)])
    assert (call.topic, call.message) == (RAISE, RaiseRequest(7, "preempt", 0, "for job 8"))
    [log] = peers.session.answered(call, None, RPCError("not active", errno.ENOENT), 100.0)
    assert log == Log(f"{RAISE} of type preempt on ƒ8: not active", is_error=True)
    assert peers.session.answered(call, None, None, 100.0) == ()


def test_what_is_wrong_with_a_request_is_its_sender_s_answer():
    peers = Peers().ready()
    with pytest.raises(RPCError) as unknown:
        peers.ask("sched.nonsense")
    assert unknown.value.errnum == errno.ENOSYS
    peers.alloc(1, 0)
    [denied] = peers.work()
    assert denied == Respond("sched.alloc", msg.AllocResponse(1, msg.DENY, note="no jobspec"))
    peers.alloc(2, 99)
    assert [type(one) for one in peers.work()] == [Denied]
    peers.alloc(3)
    peers.alloc(3)
    [failed] = peers.work()
    assert isinstance(failed, ErrorResponse)
    assert failed.token == "sched.alloc"
    peers.ask("sched.cancel", msg.SchedCancelRequest(3))
    assert peers.work() == [Canceled(3)]
    [failed] = peers.ask("feasibility.check", msg.FeasibilityRequest(99))  # type: ignore[arg-type]
    assert failed.error.errnum == errno.EOVERFLOW


@pytest.mark.parametrize("topic", [ACQUIRE, HELLO, READY])
def test_an_error_answer_ends_the_session_once(topic):
    states = {ACQUIRE: SessionState.ACQUIRING, HELLO: SessionState.HELLO, READY: SessionState.READYING}
    peers = at(states[topic])
    group = "default" if topic == ACQUIRE else ""
    [ended] = peers.answer(topic, error=RPCError("taken", errno.EBUSY), group=group)
    assert isinstance(ended, Fatal)
    assert ended.reason.startswith(topic)
    assert peers.session.state is SessionState.ENDED
    assert peers.answer(topic, error=RPCError("taken", errno.EBUSY), group=group) == []
    assert peers.alloc(1) == peers.work() == peers.decide() == []
    assert peers.session.next_notice_s == inf


def test_a_stream_that_breaks_the_protocol_ends_the_session():
    peers = Peers().ready()
    peers.answer(ACQUIRE, Shrink("9"), group="default")
    [ended] = peers.work()
    assert isinstance(ended, Fatal)
    assert "9" in ended.reason


def test_a_simulation_gives_changes_as_values():
    peers = Peers()
    peers.start()
    grow = GroupChange(ResourceSet.parse(R("0-3")), offline=Idset.parse("0-3"))
    assert [one.topic for one in peers.answer(ACQUIRE, grow, group="default")] == [HELLO]


def test_jobs_are_considered_when_the_first_pass_after_them_has_ended():
    peers = Peers().ready()
    peers.alloc(1)
    peers.session.receive("sched.alloc", msg.AllocRequest(2, 16, 1, 1, 99.0), "old", 100.0)  # type: ignore[arg-type]
    peers.work()
    next(peers.session.decide(100.0))
    peers.alloc(3)
    peers.work()
    assert peers.session.considered_s == []
    peers.decide()
    assert peers.session.considered_s == [201.0], "the one submitted before ready is not counted"
    peers.work()
    peers.session.decide(100.0)
    peers.session.drop()
    assert peers.session.considered_s == []
    peers.decide()
    assert peers.session.considered_s == [203.0]
    peers.decide()
    assert peers.session.considered_s == []


# Grow and shrink in a session: what is asked of the job manager, its answers and errors, and a lost connection.


ELASTIC, WAITING = 1, 2
GONE = RPCError("job is inactive", errno.EINVAL)


class Resizing:
    """A session on four nodes, whose job manager is the test; an elastic job of 2-4 nodes is `ELASTIC`."""

    def __init__(self):
        self.scheduler = Scheduler(Easy(), notify=False)
        self.session = SchedulerSession(self.scheduler, {"default": AcquireClient("default")}, self.read)
        self.now_s = 100.0

    @staticmethod
    def read(given):
        if given == "elastic":
            return Jobspec.from_command(["x"], nodes="2-4", exclusive=True, elastic=True)
        return Jobspec.from_command(["x"], nodes=given, exclusive=True)

    def ready(self, *running):
        (acquire,) = self.session.start()
        self.answer(acquire, framing.pack(GroupGrow(R("0-3"), "0-3", "")))
        for job in running:
            assert self.answer(OutgoingRequest(HELLO, msg.HelloRequest(True), True), job) == []
        self.answer(OutgoingRequest(HELLO, msg.HelloRequest(True), True), None, NO_DATA)
        self.answer(OutgoingRequest(READY, None), msg.ReadyResponse(0))
        return self

    def answer(self, call, answer=None, error=None):
        return [*self.session.answered(call, answer, error, self.now_s), *self.session.work(100)]

    def alloc(self, jobid, what):
        self.session.receive("sched.alloc", msg.AllocRequest(jobid, 16, 1, what, 1.0 + jobid), "token", self.now_s)
        return self.passed()

    def free(self, jobid, ranks, final):
        given = Free(jobid, ranks)
        given.final = final
        self.session.receive("sched.free", given, "token", self.now_s)
        return self.passed()

    def passed(self):
        """What a turn sends."""
        found = [*self.session.work(100), *self.session.decide(self.now_s)]
        self.session.decided()
        sent = self.session.outgoing(found)
        self.scheduler.check()
        return [one for one in sent if isinstance(one, OutgoingRequest | Granted | Log)]

    def grows(self):
        """The elastic job has two nodes, and is to get the other two."""
        self.alloc(WAITING, 2)
        assert [one.jobid for one in self.alloc(ELASTIC, "elastic")] == [ELASTIC]
        (call,) = self.free(WAITING, "0-1", final=True)
        assert (call.topic, call.message.id) == (GROW, ELASTIC)
        assert ranks_of(call) == "0-1"
        return call

    def busy(self):
        return str(self.scheduler.report.resource_status()[2].ranks)


def ranks_of(call):
    (entry,) = call.message.R["execution"]["R_lite"]
    return str(entry["rank"])


@pytest.fixture
def site():
    made = Resizing().ready()
    yield made
    made.scheduler.check()


def test_a_grow_that_is_stored_is_not_taken_back_and_can_be_shrunk(site):
    call = site.grows()
    assert site.alloc(3, 2) == []  # what is not stored is no extra yet
    assert site.answer(call) == []
    (shrink,) = site.passed()
    note = "left to job ƒ4: it is the first that waits"
    assert shrink == OutgoingRequest(SHRINK, msg.ShrinkRequest(ELASTIC, "0-1", note))
    assert site.answer(shrink) == []
    assert [one.jobid for one in site.free(ELASTIC, "0-1", final=False)] == [3]
    assert site.busy() == "0-3"


def test_a_grow_that_is_refused_is_logged_and_its_nodes_are_free_for_others(site):
    call = site.grows()
    (log,) = site.answer(call, None, GONE)
    assert log == Log(f"{GROW} on ƒ2: job is inactive", is_error=True)
    assert site.busy() == "2-3"
    assert [one.jobid for one in site.alloc(3, 2)] == [3]


def test_a_job_that_ends_before_its_grow_is_answered_leaves_nothing_behind(site):
    call = site.grows()
    assert site.free(ELASTIC, "2-3", final=True) == []
    assert site.busy() == "0-1"
    assert isinstance(site.answer(call, None, GONE)[0], Log)
    assert site.busy() == ""


def test_a_shrink_that_is_refused_is_logged_and_the_job_keeps_its_nodes(site):
    site.answer(site.grows())
    (shrink,) = site.alloc(3, 2)
    (log,) = site.answer(shrink, None, RPCError("no", errno.EPROTO))
    assert log == Log(f"{SHRINK} on ƒ2: no", is_error=True)
    assert site.busy() == "0-3"
    assert site.passed() == []  # it is left alone for a while
    site.now_s += 61.0
    site.scheduler.group("default").invalidate_pass()
    assert [one.topic for one in site.passed()] == [SHRINK]


def test_an_answer_waits_for_the_pass_that_is_under_way(site):
    call = site.grows()
    site.session.decide(site.now_s)
    assert site.session.answered(call, None, GONE, site.now_s) == ()
    assert site.session.work(100) == []
    assert site.session.drop()
    assert isinstance(site.session.work(100)[0], Log)


@pytest.mark.parametrize("is_stored", [True, False])
def test_after_a_connection_was_lost_the_next_session_finds_what_the_job_manager_has_stored(is_stored):
    lost = Resizing().ready()
    call = lost.grows()
    lost.session.end("the instance is gone")
    assert lost.answer(call) == []  # too late: nothing comes of it
    held, grown = ("0-3", "0-1") if is_stored else ("2-3", None)
    job = msg.HelloResponse(ELASTIC, 16, 1, 1.0, None, R(held), jobspec="elastic", grown=grown)  # type: ignore[arg-type]
    site = Resizing().ready(job)
    assert site.busy() == held
    if is_stored:
        (shrink,) = site.alloc(3, 2)
        assert (shrink.topic, shrink.message.ranks) == (SHRINK, "0-1")
    else:
        assert [one.jobid for one in site.alloc(3, 2)] == [3]


def test_after_a_connection_was_lost_what_a_job_was_to_leave_is_awaited(site):
    held = R("0-3")
    job = msg.HelloResponse(ELASTIC, 16, 1, 1.0, None, held, jobspec="elastic", going="1", grown="0-1")  # type: ignore[arg-type]
    site = Resizing().ready(job)
    elastic = site.scheduler._ledger.elastic.by_id[ELASTIC].elastic
    assert elastic is not None
    assert elastic.leaving == Idset.parse("1")
    assert [one.topic for one in site.alloc(3, 2)] == [SHRINK]
    assert site.free(ELASTIC, "1", final=False) == []
    assert [one.jobid for one in site.free(ELASTIC, "0", final=False)] == [3]


# A session saves the history of accounts while it changes, restores it when it begins, and leaves once stored.


ANN = ("physics", "ann")
BEGIN_S = 100.0


def remembered():
    """A history in which ann was at 50."""
    accounts = [[[], 50.0, 50.0], [["physics"], 50.0, 50.0], [["physics", "ann"], 50.0, 50.0]]
    known = {"version": 1, "saved": 0.0, "signal": "decayed-usage", "half-life": 600.0, "accounts": accounts}
    return json.dumps(known, separators=(",", ":"))


def ready(saved):
    """A session that finds this when it is ready, and what it says of it."""
    peers = at(SessionState.READYING)
    return peers, peers.answer(READY, msg.ReadyResponse(0, saved))


def saves(effects):
    return [one.message for one in effects if isinstance(one, OutgoingRequest) and one.topic == SAVE]


def test_while_nothing_is_held_and_nothing_happens_nothing_is_saved():
    peers, said = ready(None)
    assert said == []
    assert peers.session.next_notice_s == inf
    assert not peers.session.due(BEGIN_S + 1e9)


def test_what_has_changed_is_saved_within_the_time_and_not_again_before_it_is_stored():
    peers, _ = ready(None)
    peers.use()
    session = peers.session
    assert session.next_notice_s == BEGIN_S + SAVE_EVERY_S
    assert not session.due(BEGIN_S + SAVE_EVERY_S - 0.001)
    [first] = saves(peers.heard(session.due(BEGIN_S + SAVE_EVERY_S)))
    assert json.loads(first.state)["saved"] == BEGIN_S + SAVE_EVERY_S
    assert not first.set_aside
    assert session.next_notice_s == inf
    assert not session.due(BEGIN_S + 100 * SAVE_EVERY_S)
    assert peers.answer(SAVE) == []
    assert session.next_notice_s == BEGIN_S + 2 * SAVE_EVERY_S, "signals of what is held change with time alone"


def test_what_ended_is_saved_once():
    peers, _ = ready(None)
    peers.use()
    peers.accounts.book(peers.accounts.account(ANN), (10,), -1, True, 105.0)
    assert len(saves(peers.heard(peers.session.due(110.0)))) == 1
    peers.answer(SAVE)
    assert peers.session.next_notice_s == inf


def test_many_accounts_are_written_in_slices_between_which_jobs_start():
    assert SLICE_ACCOUNTS == 1024
    peers, _ = ready(None)
    for number in range(SLICE_ACCOUNTS):
        peers.accounts.book(peers.accounts.account(("physics", f"user{number}")), (10,), 1, True, 105.0)
    assert peers.session.due(110.0) == ()
    assert peers.session.next_notice_s < 110.0, "the next slice is due at once"
    peers.use()
    [request] = saves(peers.heard(peers.session.due(110.1)))
    known = json.loads(request.state)
    assert (known["saved"], len(known["accounts"])) == (110.1, SLICE_ACCOUNTS + 2)
    assert [path for path, *_ in known["accounts"][:2]] == [[], ["physics"]]
    assert peers.session.next_notice_s == inf


def test_leaving_does_not_wait_for_slices():
    peers, _ = ready(None)
    for number in range(3 * SLICE_ACCOUNTS):
        peers.accounts.book(peers.accounts.account(("physics", f"user{number}")), (10,), 1, True, 105.0)
    peers.session.due(110.0)
    [request] = saves(peers.session.stop(110.0))
    assert len(json.loads(request.state)["accounts"]) == 3 * SLICE_ACCOUNTS + 2


def test_a_clock_that_steps_back_delays_nothing():
    peers, _ = ready(None)
    peers.use()
    assert len(saves(peers.session.due(BEGIN_S - 3600.0))) == 1


@pytest.mark.parametrize("now_s", [0.0, 600.0])
def test_history_goes_on_from_where_it_was_saved(now_s):
    peers = at(SessionState.READYING)
    [call] = [one for (topic, _), one in peers.calls.items() if topic == READY]
    assert peers.session.answered(call, msg.ReadyResponse(0, remembered()), None, now_s) == ()
    assert peers.accounts.levels(now_s)[ANN][0] == 50.0 * 0.5 ** (now_s / 600.0)
    assert peers.session.next_notice_s == inf, "it is what is stored already"


@pytest.mark.parametrize(
    ("saved", "what"),
    [
        ("nonsense", "damaged: JSON is malformed"),
        ({}, "damaged: an object is not a text"),
        (remembered().replace('"version":1', '"version":9'), "of version 9"),
        (remembered().replace('"saved":0.0', '"saved":1e9'), "from the future: saved 999999900 s after now"),
        (remembered().replace("decayed-usage", "flow"), "of signal 'flow'"),
        (remembered().replace('"half-life":600.0', '"half-life":60.0'), "of half-life 60 s"),
    ],
)
def test_what_is_of_no_use_is_said_in_a_line_and_set_aside_at_once(saved, what):
    peers, said = ready(saved)
    [log] = said
    assert log.is_error
    assert log.text.startswith(f"the saved history of accounts is {what}")
    assert log.text.endswith("; it is set aside, and history begins anew")
    assert peers.session.state is SessionState.READY
    assert peers.session.next_notice_s == BEGIN_S
    [request] = saves(peers.heard(peers.session.due(BEGIN_S)))
    assert request.set_aside
    peers.answer(SAVE)
    peers.use()
    [request] = saves(peers.session.due(BEGIN_S + SAVE_EVERY_S))
    assert not request.set_aside


def test_a_store_that_refuses_is_named_once_and_asked_again():
    peers, _ = ready("nonsense")
    for time in range(1, 4):
        [request] = saves(peers.heard(peers.session.due(BEGIN_S + time * SAVE_EVERY_S)))
        assert request.set_aside, "until it is stored"
        said = peers.answer(SAVE, error=RPCError("no room", errno.ENOSPC))
        assert [type(one) for one in said] == ([Log] if time == 1 else [])
    assert peers.session.state is SessionState.READY


def test_leaving_waits_for_the_last_state_to_be_stored():
    peers, _ = ready(None)
    peers.use()
    peers.heard(peers.session.due(110.0))
    first = peers.calls[SAVE, ""]
    peers.alloc(1)
    [call] = peers.session.stop(111.0)
    assert json.loads(call.message.state)["saved"] == 111.0
    assert peers.session.state is SessionState.LEAVING
    assert not peers.session.has_work
    assert peers.session.stop(112.0) == (), "asked twice"
    assert peers.session.answered(first, None, None, 112.0) == [], "that was the one before"
    assert peers.session.answered(call, None, None, 112.0) == [ReadyToExit()]
    assert peers.session.state is SessionState.ENDED


def test_with_nothing_to_save_it_leaves_at_once():
    peers, _ = ready(None)
    assert peers.session.stop(101.0) == [ReadyToExit()]
    for early in (SessionState.IDLE, SessionState.ACQUIRING, SessionState.HELLO, SessionState.READYING):
        assert at(early).session.stop(101.0) == [ReadyToExit()]


def test_a_last_state_that_is_refused_delays_nothing():
    peers = at(SessionState.LEAVING)
    log, left = peers.answer(SAVE, error=RPCError("no room", errno.ENOSPC))
    assert "no room" in log.text
    assert left == ReadyToExit()


def test_a_pass_under_way_is_no_hindrance():
    peers = at(SessionState.DECIDING)
    peers.use()
    assert len(saves(peers.session.due(110.0))) == 1
    assert len(saves(peers.session.stop(111.0))) == 1


def test_a_scheduler_without_accounts_leaves_what_is_kept_alone():
    peers = Peers()
    peers.start()
    peers.session._saving = None  # as it is where no policy asks
    peers.grow()
    peers.answer(HELLO, error=NO_DATA)
    assert peers.answer(READY, msg.ReadyResponse(0, "nonsense")) == []
    assert peers.session.due(1e9) == ()
    assert peers.session.stop(1e9) == [ReadyToExit()]


def fair_peers():
    """A session whose policy keeps accounts, at hello."""
    peers = Peers()
    scheduler = Scheduler(make("fair", {}))
    peers.session = SchedulerSession(scheduler, {"default": AcquireClient("default")}, peers.read)
    peers.start()
    peers.grow()
    return peers


def hello(peers, jobspec):
    return peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0"), jobspec))


def test_a_running_job_of_which_hello_says_nothing_counts_as_firm_in_the_default_bank():
    peers = fair_peers()
    assert hello(peers, None) == []
    tree = peers.session.scheduler.account_tree
    assert tree is not None
    user = tree.account((DEFAULT_BANK, "1"))
    assert (user.all_jobs.usage, user.firm.usage) == (2.0, 2.0)


def test_one_whose_jobspec_cannot_be_read_is_taken_over_all_the_same_and_said():
    peers = fair_peers()
    [log] = hello(peers, 0)
    assert log.is_error
    assert log.text == "hello: ƒ8 counts as if it had no jobspec: no jobspec"
    assert peers.session.scheduler.report.stats()["running"] == 1


def test_one_counts_where_its_jobspec_says_with_what_may_be_preempted_apart():
    peers = fair_peers()
    jobspec = Jobspec.from_command(["true"]).to_json()
    jobspec["attributes"]["system"] |= {"bank": "physics", "preemptible-after": 0}
    peers.session._read = Jobspec.parse
    assert hello(peers, jobspec) == []
    tree = peers.session.scheduler.account_tree
    assert tree is not None
    user = tree.account(("physics", "1"))
    assert (user.all_jobs.usage, user.firm.usage) == (2.0, 0.0)


# `sched.accounts` of a real scheduler: what jobs use is seen at once, and those who keep none say so.


ME = user_name(os.getuid())
SITE = """
[fair]
weights = { core = 2 }
cap = 1.5
[fair.banks]
physics = 3
optics = { parent = "physics" }
standby = 1
"""


async def test_accounts_say_what_jobs_use_and_what_is_settled(world, timed):
    instance = await world.instance(config=SITE, schedulers=("fair:backfill=easy,budget=60",), fake="2x4")
    client, asker = await world.client(instance), world.second(instance)
    running = await client.submit(timed("1h", ntasks=6, bank="optics", preemptible_after_s=60))
    await client.submit(timed("1h", ntasks=3, bank="standby"))
    async for _ in client.stream("job-manager.watch", {"names": ["start"], "history": True}):
        break
    for _ in range(1000):  # a question overtakes the request for the second job
        found = await asker.ok("sched.accounts", {})
        accounts = {tuple(each["path"]): each for each in found.pop("accounts")}
        if accounts["standby",]["waiting"]:
            break
    assert found == {
        "signal": "decayed-usage", "half_life": 604800.0, "weights": {"core": 2.0}, "shares": "active",
        "capacity": 16.0, "budget": 60.0, "rate": 60, "next": None,
    }  # fmt: skip
    assert list(accounts) == [
        ("physics",), ("physics", "optics"), ("standby",), ("physics", "optics", ME), ("standby", ME)
    ]  # fmt: skip
    mine = accounts["physics", "optics", ME]
    assert (mine["user"], mine["active"], mine["share"], mine["fair_usage"], mine["cap"]) == (True, True, 0.75, 12, 18)
    assert (mine["usage"], mine["held"], mine["running"], mine["budget_left"]) == (12.0, {"core": 6}, 1, 60.0)
    assert 0 <= mine["signal"] < 12
    standby = accounts["standby",]
    assert (standby["user"], standby["waiting"], standby["usage"]) == (False, 1, 0.0)
    await client.rpc("job-manager.cancel", {"id": running})
    assert (await asker.ok("sched.accounts", {"start": 4}))["accounts"][0]["path"] == ["standby", ME]


async def test_who_keeps_none_says_so(world):
    asker = world.second(await world.instance(schedulers=("easy",)))
    errnum, text = await asker.refused("sched.accounts", {})
    assert (errnum, text) == (
        errno.EOPNOTSUPP, "this scheduler keeps no accounts: use a policy that does, such as fair:backfill=easy"
    )  # fmt: skip
    errnum, text = await asker.refused("sched.accounts", {"group": "lab"})
    assert (errnum, "no scheduler serves group 'lab'" in text) == (errno.ENOSYS, True)
    assert (await asker.refused("sched.accounts", {"start": -1}))[0] == errno.EPROTO


async def test_the_only_scheduler_answers_where_none_serves_the_default_group(world):
    groups = '[resource.groups]\nlab = "0-3"\n[queues.lab]\ngroup = "lab"\n'
    site = f'{groups}[[scheduler]]\npolicy = "fair"\ngroups = ["lab"]\n'
    asker = world.second(await world.instance(config=site, fake="4x4"))
    assert (await asker.ok("sched.accounts", {}))["capacity"] == 16.0
    assert (await asker.refused("sched.accounts", {"group": "other"}))[0] == errno.ENOSYS


async def test_an_answer_has_a_limit(world):
    banks = "".join(f"b{at} = 1\n" for at in range(ROWS_MAX + 1))
    asker = world.second(await world.instance(config=f"[fair.banks]\n{banks}", schedulers=("fair",), fake="1x1"))
    first = await asker.ok("sched.accounts", {})
    assert (len(first["accounts"]), first["next"]) == (ROWS_MAX, ROWS_MAX)
    rest = await asker.ok("sched.accounts", {"start": first["next"]})
    assert ([each["path"] for each in rest["accounts"]], rest["next"]) == ([[f"b{ROWS_MAX}"]], None)


# `sched.plan` of a real scheduler.


LOOK_S = 0.05


@pytest.mark.parametrize(("policy", "is_promised"), [("conservative", True), ("fifo", False)])
async def test_what_is_planned_is_told(world, timed, policy, is_promised):
    site = await world.instance(fake="2x4", schedulers=(policy,))
    client = await world.client(site)
    await client.submit(timed("1h", nodes=2, exclusive=True, duration_s=600.0))
    second = await client.submit(timed("1h", nodes=1, exclusive=True, duration_s=60.0))
    third = await client.submit(timed("1h", nodes=2, exclusive=True))
    found = {"jobs": []}
    while len(found["jobs"]) < 2:  # an answer with forecasts serves for seconds
        found = await client.plan()
        await asyncio.sleep(LOOK_S)
    one, other = found["jobs"]
    assert found["left_out"] == 0
    assert (one[0], one[2] - one[1], one[4], one[6]) == (second, 60.0, 1, is_promised)
    assert (other[0], other[4], other[5]) == (third, 2, 8 if is_promised else other[5])
    assert (await client.plan(max_entries=1))["left_out"] == 1


async def test_who_plans_nothing_and_who_is_not_there(world):
    asker = world.second(await world.instance())
    assert await asker.ok("sched.plan") == {"jobs": [], "left_out": 0}
    errnum, text = await asker.refused("sched.plan", {"group": "lab"})
    assert (errnum, "no scheduler serves group 'lab'" in text) == (errno.ENOSYS, True)
    assert (await asker.refused("sched.plan", {"max_entries": -1}))[0] == errno.EPROTO


BATCH = "[queues.batch]\n[queues.batch.policy.limits.job-size.max]\nnnodes = 5\n"


async def test_when_jobs_would_start_that_are_not_submitted(world, timed):
    """A real instance, with its queue's limits: what would be refused is, and nothing of it is stored."""
    site = await world.instance(fake="4x4", schedulers=("easy",), config=BATCH)
    client, asker = await world.client(site), world.second(site)
    runs = await client.submit(timed("1h", nodes=2, exclusive=True, duration_s=600.0))
    await client.submit(timed("1h", nodes=4, exclusive=True, duration_s=3600.0))

    def job(nodes: int, limit_s: float) -> Jobspec:
        return Jobspec.from_command(["true"], nodes=nodes, exclusive=True, duration_s=limit_s)

    async def waits() -> bool:
        found = (await client.plan())["jobs"]
        return len(found) == 1

    while not await waits():
        await asyncio.sleep(LOOK_S)
    found = (await client.when([job(2, 60.0), job(4, 60.0), job(5, 60.0), job(6, 60.0)]))["estimates"]
    assert [one["refused"] for one in found] == [False, False, True, True]
    assert (found[0]["when"], found[1]["when"]) == ("it fits now", "behind 1 job, if all use up their limits")
    assert 3600 + 500 < found[1]["start"] - found[0]["start"] <= 3600 + 600
    assert found[2]["when"].startswith("can never run: needs 5 exclusive nodes")
    assert found[3]["when"] == "6 nodes, limit of queue batch 5: ask for fewer"
    listed = (await asker.ok("job-manager.list", {"max_entries": 9}))["jobs"]
    assert len(listed) == 2
    assert runs in {each["id"] for each in listed}
    held = (await client.when([job(1, 60.0)], 0))["estimates"][0]
    assert (held["start"], held["when"]) == (None, "not known: a job on hold is skipped; give it an urgency above 0")
    await asker.ok("job-manager.queue-start", {"name": "batch", "start": False, "reason": "feast", "all": False})
    assert (await client.when([job(1, 60.0)]))["estimates"][0]["when"] == "not known: queue batch is stopped: feast"
    errnum, text = await asker.refused("job-manager.when", {"jobspecs": []})
    assert (errnum, text) == (errno.EINVAL, "no jobspecs: ask about at least one job, and 32 at most")
    errnum, text = await asker.refused("job-manager.when", {"jobspecs": [{}] * 33})
    assert (errnum, "length <= 32" in text) == (errno.EPROTO, True)


async def test_why_many_jobs_wait(world, timed):
    site = await world.instance(fake="2x4", schedulers=("easy",))
    client, asker = await world.client(site), world.second(site)
    runs = await client.submit(timed("1h", nodes=2, exclusive=True, duration_s=600.0))
    waits = [await client.submit(timed("1h", nodes=2, exclusive=True, duration_s=60.0)) for _ in range(3)]
    held = await client.submit(timed("1h"), 0)
    found = {}
    while not {*waits, held} <= found.keys() or found[waits[0]][2] is False:
        found = {jobid: rest for jobid, *rest in (await client.reasons([runs, *waits, held, 7]))["jobs"]}
        await asyncio.sleep(LOOK_S)
    assert (runs in found, 7 in found) == (False, False)
    assert all(reason and earliest for reason, earliest, _ in (found[jobid] for jobid in waits))
    assert [found[jobid][2] for jobid in waits] == [True, False, False]
    assert (await client.reasons([]))["jobs"] == []
    assert (await asker.refused("job-manager.reasons", {"ids": [1] * (REASONS_MAX + 1)}))[0] == errno.EPROTO
