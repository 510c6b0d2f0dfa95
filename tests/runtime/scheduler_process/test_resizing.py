"""Grow and shrink in a session: what is asked of the job manager, its answers and errors, and a lost connection."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages import alloc as msg
from fluxsched.protocol.messages.acquire import Grow as GroupGrow
from fluxsched.protocol.sessions.acquire_client import AcquireClient
from fluxsched.runtime.scheduler_process.effects import GROW, HELLO, READY, SHRINK, Call, Log
from fluxsched.runtime.scheduler_process.session import SchedulerSession
from fluxsched.sched.effects import Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.policies.easy import Easy
from tests.runtime.scheduler_process.test_session import NO_DATA, Free, R

ELASTIC, WAITING = 1, 2
GONE = RPCError("job is inactive", errno.EINVAL)


class Resizing:
    """A session on four nodes, whose job manager is the test; an elastic job of 2-4 nodes is `ELASTIC`."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(Easy(), notify=False)
        self.session = SchedulerSession(self.scheduler, {"default": AcquireClient("default")}, self.read)
        self.now_s = 100.0

    @staticmethod
    def read(given: Any) -> Jobspec:
        if given == "elastic":
            return Jobspec.from_command(["x"], nodes="2-4", exclusive=True, elastic=True)
        return Jobspec.from_command(["x"], nodes=given, exclusive=True)

    def ready(self, *running: msg.HelloResponse) -> Resizing:
        (acquire,) = self.session.start()
        self.answer(acquire, codec.pack(GroupGrow(R("0-3"), "0-3", "")))
        for job in running:
            assert self.answer(Call(HELLO, msg.HelloRequest(True), True), job) == []
        self.answer(Call(HELLO, msg.HelloRequest(True), True), None, NO_DATA)
        self.answer(Call(READY, None), msg.ReadyResponse(0))
        return self

    def answer(self, call: Any, answer: Any = None, error: RPCError | None = None) -> list[Any]:
        return [*self.session.answered(call, answer, error, self.now_s), *self.session.work(100)]

    def alloc(self, jobid: int, what: Any) -> list[Any]:
        self.session.receive("sched.alloc", msg.AllocRequest(jobid, 16, 1, what, 1.0 + jobid), "token", self.now_s)
        return self.passed()

    def free(self, jobid: int, ranks: str, final: bool) -> list[Any]:
        given = Free(jobid, ranks)
        given.final = final
        self.session.receive("sched.free", given, "token", self.now_s)
        return self.passed()

    def passed(self) -> list[Any]:
        """What a turn sends."""
        found = [*self.session.work(100), *self.session.decide(self.now_s)]
        self.session.decided()
        sent = self.session.outgoing(found)
        self.scheduler.check()
        return [one for one in sent if isinstance(one, Call | Granted | Log)]

    def grows(self) -> Call:
        """The elastic job has two nodes, and is to get the other two."""
        self.alloc(WAITING, 2)
        assert [one.jobid for one in self.alloc(ELASTIC, "elastic")] == [ELASTIC]
        (call,) = self.free(WAITING, "0-1", final=True)
        assert (call.topic, call.message.id) == (GROW, ELASTIC)
        assert ranks_of(call) == "0-1"
        return call

    def busy(self) -> str:
        return str(self.scheduler.resource_status()[2].ranks)


def ranks_of(call: Call) -> str:
    (entry,) = call.message.R["execution"]["R_lite"]
    return str(entry["rank"])


@pytest.fixture
def site() -> Iterator[Resizing]:
    made = Resizing().ready()
    yield made
    made.scheduler.check()


def test_a_grow_that_is_stored_is_not_taken_back_and_can_be_shrunk(site: Resizing) -> None:
    call = site.grows()
    assert site.alloc(3, 2) == []  # what is not stored is no extra yet
    assert site.answer(call) == []
    (shrink,) = site.passed()
    assert shrink == Call(SHRINK, msg.ShrinkRequest(ELASTIC, "0-1", "left to job ƒ4: it is the first that waits"))
    assert site.answer(shrink) == []
    assert [one.jobid for one in site.free(ELASTIC, "0-1", final=False)] == [3]
    assert site.busy() == "0-3"


def test_a_grow_that_is_refused_is_logged_and_its_nodes_are_free_for_others(site: Resizing) -> None:
    call = site.grows()
    (log,) = site.answer(call, None, GONE)
    assert log == Log(f"{GROW} on ƒ2: job is inactive", is_error=True)
    assert site.busy() == "2-3"
    assert [one.jobid for one in site.alloc(3, 2)] == [3]


def test_a_job_that_ends_before_its_grow_is_answered_leaves_nothing_behind(site: Resizing) -> None:
    call = site.grows()
    assert site.free(ELASTIC, "2-3", final=True) == []
    assert site.busy() == "0-1"
    assert isinstance(site.answer(call, None, GONE)[0], Log)
    assert site.busy() == ""


def test_a_shrink_that_is_refused_is_logged_and_the_job_keeps_its_nodes(site: Resizing) -> None:
    site.answer(site.grows())
    (shrink,) = site.alloc(3, 2)
    (log,) = site.answer(shrink, None, RPCError("no", errno.EPROTO))
    assert log == Log(f"{SHRINK} on ƒ2: no", is_error=True)
    assert site.busy() == "0-3"
    assert site.passed() == []  # it is left alone for a while
    site.now_s += 61.0
    site.scheduler.group("default").invalidate_pass()
    assert [one.topic for one in site.passed()] == [SHRINK]


def test_an_answer_waits_for_the_pass_that_is_under_way(site: Resizing) -> None:
    call = site.grows()
    site.session.decide(site.now_s)
    assert site.session.answered(call, None, GONE, site.now_s) == ()
    assert site.session.work(100) == []
    assert site.session.drop()
    assert isinstance(site.session.work(100)[0], Log)


@pytest.mark.parametrize("is_stored", [True, False])
def test_after_a_connection_was_lost_the_next_session_finds_what_the_job_manager_has_stored(is_stored: bool) -> None:
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


def test_after_a_connection_was_lost_what_a_job_was_to_leave_is_awaited(site: Resizing) -> None:
    held = R("0-3")
    job = msg.HelloResponse(ELASTIC, 16, 1, 1.0, None, held, jobspec="elastic", going="1", grown="0-1")  # type: ignore[arg-type]
    site = Resizing().ready(job)
    elastic = site.scheduler._ledger.elastic.by_id[ELASTIC].elastic
    assert elastic is not None
    assert elastic.leaving == Idset.parse("1")
    assert [one.topic for one in site.alloc(3, 2)] == [SHRINK]
    assert site.free(ELASTIC, "1", final=False) == []
    assert [one.jobid for one in site.free(ELASTIC, "0", final=False)] == [3]
