"""The session's table, walked through every state with every event; order; what is kept; running jobs taken over."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, ClassVar

import pytest

from fluxsched.core.group_change import GroupChange
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidTransition, InvalidValue, RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages import alloc as msg
from fluxsched.protocol.messages.acquire import AcquireChange, AcquireFirst, Grow, Shrink, Update
from fluxsched.protocol.messages.jobs import RaiseRequest
from fluxsched.protocol.sessions.acquire_client import AcquireClient
from fluxsched.runtime.scheduler_process import session as module
from fluxsched.runtime.scheduler_process.effects import (
    ACQUIRE,
    HELLO,
    RAISE,
    READY,
    RELEASE,
    SAVE,
    Call,
    End,
    Fail,
    Log,
    Respond,
)
from fluxsched.runtime.scheduler_process.session import SchedulerSession
from fluxsched.runtime.scheduler_process.states import SESSION, SessionState
from fluxsched.sched.accounts.signal import Signal
from fluxsched.sched.effects import PREEMPT, Canceled, Denied, Granted, Raise
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.policy import PAUSE, Decision, Option, View
from tests.sched.accounts.conftest import cores

EVENTS = sorted({event for row in SESSION.values() for event in row})
NO_DATA = RPCError("no data", errno.ENODATA)


def R(ranks: str, cores: str = "0-1") -> dict[str, Any]:  # noqa: N802
    lite = [{"rank": ranks, "children": {"core": cores}}]
    hosts = [f"n[{ranks}]"]
    return {"version": 1, "execution": {"R_lite": lite, "starttime": 1.0, "expiration": 0.0, "nodelist": hosts}}


class Free:
    """A free, as the codec reads it."""

    def __init__(self, jobid: int, ranks: str, cores: str = "0-1") -> None:
        self.id, self.final = jobid, True
        self.R = self.execution = self
        self.R_lite = [{"rank": ranks, "children": {"core": cores}}]


class Paced:
    """Fifo with a pause before it decides."""

    name = "paced"
    OPTIONS: ClassVar[dict[str, Option]] = {}

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        yield PAUSE
        yield from Fifo().schedule(view, now_s)


class Peers:
    """The session's peers, in the hand of a test."""

    def __init__(self, *groups: str, plain: bool = False) -> None:
        names = groups or ("default",)
        streams = {name: AcquireClient(None if plain else name) for name in names}
        scheduler = Scheduler(Paced(), names)
        self.accounts = scheduler.account_tree = cores(100, Signal.DECAYED_USAGE)
        self.session = SchedulerSession(scheduler, streams, self.read)
        self.calls: dict[tuple[str, str], Call] = {}

    @staticmethod
    def read(given: Any) -> Jobspec:
        if not given:
            raise InvalidValue("no jobspec")
        return Jobspec.from_command(["true"], ntasks=given, duration_s=10.0)

    def heard(self, effects: Any) -> list[Any]:
        self.calls |= {(one.topic, one.group): one for one in effects if isinstance(one, Call)}
        return list(effects)

    def start(self) -> list[Any]:
        return self.heard(self.session.start())

    def answer(self, topic: str, answer: Any = None, error: RPCError | None = None, group: str = "") -> list[Any]:
        if topic == ACQUIRE and answer is not None and not isinstance(answer, GroupChange):
            answer = codec.pack(answer)
        return self.heard(self.session.answered(self.calls[topic, group], answer, error, 100.0))

    def grow(self, group: str = "default", ranks: str = "0-3") -> list[Any]:
        return self.answer(ACQUIRE, Grow(R(ranks), ranks, ""), group=group)

    def ready(self) -> Peers:
        self.start()
        self.grow()
        self.answer(HELLO, error=NO_DATA)
        self.answer(READY, msg.ReadyResponse(0))
        return self

    def ask(self, topic: str, message: Any = None) -> list[Any]:
        return self.heard(self.session.receive(topic, message, topic, 100.0))

    def alloc(self, jobid: int, ntasks: int = 1) -> list[Any]:
        return self.ask("sched.alloc", msg.AllocRequest(jobid, 16, 1, ntasks, 200.0 + jobid))  # type: ignore[arg-type]

    def work(self, limit: int = 100) -> list[Any]:
        return self.heard(self.session.work(limit))

    def use(self) -> None:
        """A job holds 10 cores from now on."""
        self.accounts.book(self.accounts.account(("physics", "ann")), (10,), 1, True, 100.0)

    def decide(self) -> list[Any]:
        found = list(self.session.decide(100.0))
        self.session.decided()
        return found


def at(state: SessionState) -> Peers:
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
        peers.heard(peers.session.leave(100.0))
    if state is SessionState.ENDED:
        peers.session.end("enough")
    assert peers.session.state is state
    return peers


def expiration_s(peers: Peers) -> None:
    peers.answer(ACQUIRE, Update(expiration=500.0), group="default")
    peers.work()


DOES: dict[str, Callable[[Peers], object]] = {
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
    "leave": lambda peers: (peers.use(), peers.heard(peers.session.leave(100.0))),
    "end": lambda peers: peers.session.end("enough"),
}
"""How each event comes about."""

KEPT = {"change", "question", "request"}
"""Events that are kept where the table does not list them; others are refused, or nothing comes of them."""


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", SessionState)
def test_each_event_in_each_state(state: SessionState, event: str) -> None:
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


def test_a_shrink_before_hello_has_told_of_all_jobs_releases_nothing_that_they_hold() -> None:
    peers = at(SessionState.HELLO)
    peers.answer(ACQUIRE, GroupChange(shrink=Idset.parse("0")), group="default")
    assert peers.session.kept == 1
    peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0")))
    peers.answer(HELLO, error=NO_DATA)
    peers.answer(READY, msg.ReadyResponse(0))
    assert [one.topic for one in peers.work()] == [RAISE]


def test_nothing_is_asked_for_before_each_group_has_grown_and_running_jobs_are_known() -> None:
    peers = Peers("a", "b")
    assert [(one.topic, one.group, one.streaming) for one in peers.start()] == [
        (ACQUIRE, "a", True), (ACQUIRE, "b", True),
    ]  # fmt: skip
    assert peers.grow("b", "4-5") == []
    [hello] = peers.grow("a", "0-3")
    assert hello == Call(HELLO, msg.HelloRequest(True, ["a", "b"]), True)
    assert peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("4-5"))) == []
    [ready] = peers.answer(HELLO, error=NO_DATA)
    assert ready == Call(READY, msg.ReadyRequest("unlimited"))
    assert peers.session.scheduler.stats()["running"] == 1


def test_requests_and_questions_before_ready_wait_and_keep_their_order() -> None:
    peers = at(SessionState.HELLO)
    assert [peers.alloc(1), peers.ask("sched.resource-status"), peers.work()] == [[], [], []]
    peers.answer(HELLO, error=NO_DATA)
    peers.answer(READY, msg.ReadyResponse(1))
    assert peers.session.has_work
    assert peers.work(1) == []
    assert [type(one) for one in peers.work()] == [Respond]
    assert [type(one) for one in peers.decide() if isinstance(one, Granted)] == [Granted]


def test_while_a_pass_is_under_way_questions_are_answered_and_work_waits() -> None:
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


def test_a_pass_that_is_dropped_leaves_the_queue_to_the_next_one() -> None:
    peers = at(SessionState.DECIDING)
    assert not peers.session.drop()
    assert peers.session.state is SessionState.READY
    assert [type(one) for one in peers.decide() if not isinstance(one, type(PAUSE))][-1] is Granted


def test_a_job_that_cannot_be_taken_over_gets_an_exception_and_the_others_go_on() -> None:
    peers = at(SessionState.HELLO)
    assert peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0"))) == []
    for jobid, held in ((8, R("0")), (9, None), (10, {"version": 1})):
        log, call = peers.answer(HELLO, msg.HelloResponse(jobid, 16, 1, 1.0, None, held))
        assert isinstance(log, Log)
        assert log.is_error
        assert (call.topic, call.message.id, call.message.type) == (RAISE, jobid, module.RESTART)
    assert peers.answer(RAISE, error=RPCError("not active", errno.ENOENT))[0].is_error
    assert [type(one) for one in peers.answer(HELLO, error=NO_DATA)] == [Call]


def test_in_the_plain_dialect_a_job_outside_of_what_was_acquired_is_refused() -> None:
    peers = Peers(plain=True)
    assert peers.start() == [Call(ACQUIRE, None, True, "default")]
    [hello] = peers.answer(ACQUIRE, AcquireFirst(R("0-3"), "0-3"), group="default")
    assert hello.message == msg.HelloRequest(True)
    assert peers.answer(HELLO, msg.HelloResponse(6, 16, 1, 1.0, "9", R("3,9"))) == []
    log, _ = peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("9")))
    assert "ranks 9" in log.text
    assert peers.answer(ACQUIRE, AcquireChange(shrink="3", down="3"), group="default") == [], "raises nothing"


def test_a_shrink_raises_and_releases_as_the_typed_dialect_asks() -> None:
    peers = Peers().ready()
    peers.alloc(1, 2)
    peers.work()
    peers.decide()
    peers.answer(ACQUIRE, Shrink("0,3"), group="default")
    raised, released = peers.work()
    assert (raised.topic, raised.message.id, raised.message.type) == (RAISE, 1, "exec")
    assert (released.topic, released.message.targets) == (RELEASE, "3")
    peers.ask("sched.free", Free(1, "0"))
    [released] = peers.work()
    assert (released.topic, released.message.targets) == (RELEASE, "0")


def test_a_job_that_is_going_when_the_scheduler_comes_is_going() -> None:
    peers = at(SessionState.HELLO)
    peers.answer(HELLO, msg.HelloResponse(7, 16, 1, 1.0, None, R("0"), preempted=99.0))
    peers.answer(HELLO, msg.HelloResponse(8, 16, 1, 1.0, None, R("1")))
    assert peers.session.scheduler._preemptions.going == {7: 0}


def test_a_preemption_that_is_refused_is_said_and_told_to_the_scheduler() -> None:
    peers = Peers().ready()
    [call] = peers.session.outgoing([Raise(7, "for job 8", PREEMPT)])
    assert (call.topic, call.message) == (RAISE, RaiseRequest(7, "preempt", 0, "for job 8"))
    [log] = peers.session.answered(call, None, RPCError("not active", errno.ENOENT), 100.0)
    assert log == Log(f"{RAISE} of type preempt on ƒ8: not active", is_error=True)
    assert peers.session.answered(call, None, None, 100.0) == ()


def test_what_is_wrong_with_a_request_is_its_sender_s_answer() -> None:
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
    assert isinstance(failed, Fail)
    assert failed.token == "sched.alloc"
    peers.ask("sched.cancel", msg.SchedCancelRequest(3))
    assert peers.work() == [Canceled(3)]
    [failed] = peers.ask("feasibility.check", msg.FeasibilityRequest(99))  # type: ignore[arg-type]
    assert failed.error.errnum == errno.EOVERFLOW


@pytest.mark.parametrize("topic", [ACQUIRE, HELLO, READY])
def test_an_error_answer_ends_the_session_once(topic: str) -> None:
    states = {ACQUIRE: SessionState.ACQUIRING, HELLO: SessionState.HELLO, READY: SessionState.READYING}
    peers = at(states[topic])
    group = "default" if topic == ACQUIRE else ""
    [ended] = peers.answer(topic, error=RPCError("taken", errno.EBUSY), group=group)
    assert isinstance(ended, End)
    assert ended.reason.startswith(topic)
    assert peers.session.state is SessionState.ENDED
    assert peers.answer(topic, error=RPCError("taken", errno.EBUSY), group=group) == []
    assert peers.alloc(1) == peers.work() == peers.decide() == []
    assert peers.session.next_notice_s == inf


def test_a_stream_that_breaks_the_protocol_ends_the_session() -> None:
    peers = Peers().ready()
    peers.answer(ACQUIRE, Shrink("9"), group="default")
    [ended] = peers.work()
    assert isinstance(ended, End)
    assert "9" in ended.reason


def test_a_simulation_gives_changes_as_values() -> None:
    peers = Peers()
    peers.start()
    grow = GroupChange(ResourceSet.parse(R("0-3")), offline=Idset.parse("0-3"))
    assert [one.topic for one in peers.answer(ACQUIRE, grow, group="default")] == [HELLO]


def test_jobs_are_considered_when_the_first_pass_after_them_has_ended() -> None:
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
