"""The interface in process: what calls check, when callbacks come, virtual time and a thread, predicates."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.sched.hooks import PASS, Later
from fluxsched.system.clock import SystemClock
from fluxsched.yunikorn import in_process
from fluxsched.yunikorn.config import read_config
from fluxsched.yunikorn.in_process import InProcessScheduler
from fluxsched.yunikorn.machine import PASS_S, Predicates, SIMachine
from fluxsched.yunikorn.messages import (
    MESSAGE_BYTES_MAX,
    NODES,
    AllocationRequest,
    Effect,
    NodeRequest,
    PreemptionPredicatesResponse,
    RegisterResourceManagerRequest,
    SendResponse,
    UpdateConfigurationRequest,
)
from fluxsched.yunikorn.tables import REASON_CHARS_MAX

WAIT_S = 30.0


class Asking(SIMachine):
    """Asks predicates of each node that it accepts."""

    def turn(self, now_s: float, budget_s: float = PASS_S) -> Iterator[Effect]:
        for effect in super().turn(now_s, budget_s):
            if isinstance(effect, SendResponse) and effect.kind == NODES:
                rm = self._rms[effect.rm_id]
                for _ in effect.response.accepted:
                    if hasattr(rm.bookings.callback, "Predicates"):
                        rm.bookings.callback.Predicates(None)
            yield effect


class Recorder:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    def UpdateNode(self, response: Any) -> None:
        self.nodes += [node.nodeID for node in response.accepted]

    def UpdateApplication(self, response: Any) -> None: ...

    def UpdateAllocation(self, response: Any) -> None: ...


@pytest.fixture
def scheduler() -> InProcessScheduler:
    return InProcessScheduler(Asking({}.get, lambda user: (), lambda: "uuid", lambda text: read_config("")))


def register(scheduler: InProcessScheduler, callback: Any, rm_id: str = "rm") -> None:
    scheduler.RegisterResourceManager(RegisterResourceManagerRequest(rmID=rm_id), callback)


def node(name: str, rm_id: str = "rm") -> Any:
    return NodeRequest(nodes=[{"nodeID": name, "action": 1}], rmID=rm_id)


def test_calls_queue_and_callbacks_come_from_the_turn(scheduler: InProcessScheduler) -> None:
    recorder = Recorder()
    register(scheduler, recorder)
    scheduler.turns(1.0)
    assert scheduler.next_wake_s > 1e9
    scheduler.UpdateNode(node("n1"))
    assert recorder.nodes == []
    assert scheduler.next_wake_s < 0
    scheduler.turn(2.0)
    assert recorder.nodes == ["n1"]


def test_a_callback_may_call_back_in(scheduler: InProcessScheduler) -> None:
    class Asking(Recorder):
        within = 0

        def UpdateNode(self, response: Any) -> None:
            assert self.within == 0, "one at a time"
            self.within += 1
            super().UpdateNode(response)
            if len(self.nodes) < 3:
                scheduler.UpdateNode(node(f"n{len(self.nodes)}"))
            self.within -= 1

    asking = Asking()
    register(scheduler, asking)
    scheduler.UpdateNode(node("n0"))
    scheduler.turns(1.0)
    assert asking.nodes == ["n0", "n1", "n2"]


def test_a_callback_may_register_again_and_what_was_of_before_is_not_for_it(scheduler: InProcessScheduler) -> None:
    again = Recorder()

    class Restarting(Recorder):
        def UpdateNode(self, response: Any) -> None:
            super().UpdateNode(response)
            register(scheduler, again)

    first = Restarting()
    register(scheduler, first)
    scheduler.UpdateNode(node("n1"))
    scheduler.turns(1.0)
    assert (first.nodes, again.nodes) == (["n1"], [])
    scheduler.UpdateNode(node("n3"))
    scheduler.turns(1.0)
    assert again.nodes == ["n3"]


def test_what_a_callback_raises_is_logged_and_others_are_called(scheduler: InProcessScheduler, caplog: Any) -> None:
    class Broken(Recorder):
        def UpdateNode(self, response: Any) -> None:
            raise RuntimeError("a bug of the resource manager")

    recorder = Recorder()
    register(scheduler, Broken(), "broken")
    register(scheduler, recorder)
    scheduler.UpdateNode(node("n1", "broken"))
    scheduler.UpdateNode(node("n2"))
    scheduler.turns(1.0)
    assert recorder.nodes == ["n2"]
    assert "RuntimeError: a bug of the resource manager" in caplog.text


def test_events_are_for_callbacks_that_take_them(scheduler: InProcessScheduler) -> None:
    class Watching(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.events: list[str] = []

        def SendEvent(self, events: Any) -> None:
            self.events += [event.objectID for event in events]

    watching, recorder = Watching(), Recorder()
    register(scheduler, watching, "watching")
    register(scheduler, recorder)
    scheduler.UpdateNode(node("n1", "watching"))
    scheduler.UpdateNode(node("n2"))
    scheduler.turns(1.0)
    assert (watching.nodes, watching.events, recorder.nodes) == (["n1"], ["n1"], ["n2"])


def test_calls_check_their_rm_id_and_their_shape(scheduler: InProcessScheduler) -> None:
    with pytest.raises(Refused, match="resource manager 'rm' is not registered: register it first"):
        scheduler.UpdateNode(node("n1"))
    with pytest.raises(Refused, match="not registered"):
        scheduler.UpdateConfiguration(UpdateConfigurationRequest(rmID="rm"))
    register(scheduler, Recorder())
    with pytest.raises(InvalidValue, match=r"a NodeRequest is not a AllocationRequest of fluxsched\.yunikorn\."):
        scheduler.UpdateAllocation(node("n1"))
    with pytest.raises(InvalidValue, match="a str is not a NodeRequest"):
        scheduler.UpdateNode("n1")
    with pytest.raises(InvalidValue, match="a NoneType is not a RegisterResourceManagerRequest"):
        scheduler.RegisterResourceManager(None, Recorder())
    with pytest.raises(LimitExceeded, match=f"the limit is {MESSAGE_BYTES_MAX}: send several"):
        scheduler.UpdateAllocation(AllocationRequest(asks=[{"allocationKey": "x" * 1024}] * (16 << 10), rmID="rm"))


def test_calls_that_no_turn_takes_have_a_limit(scheduler: InProcessScheduler, monkeypatch: Any) -> None:
    monkeypatch.setattr(in_process, "CALLS_QUEUED_MAX", 3)
    register(scheduler, Recorder())
    for _ in range(3):
        scheduler.UpdateNode(node("n1"))
    with pytest.raises(Refused, match="3 calls wait for a turn, the limit"):
        scheduler.UpdateNode(node("n1"))
    scheduler.turn(1.0)
    scheduler.UpdateNode(node("n1"))


def test_who_has_shut_down_has_to_register(scheduler: InProcessScheduler) -> None:
    register(scheduler, Recorder())
    scheduler.shut_down("rm")
    scheduler.turns(1.0)
    with pytest.raises(Refused, match="register"):
        scheduler.UpdateNode(node("n1"))


@pytest.mark.parametrize(
    ("get", "shown"),
    [(lambda: '{"pods": 3}', {"pods": 3}), (lambda: "no JSON", "no JSON"), (lambda: 1 // 0, "ZeroDivisionError")],
)
def test_a_dump_has_what_a_callback_says_of_itself(scheduler: InProcessScheduler, get: Any, shown: Any) -> None:
    recorder = Recorder()
    recorder.GetStateDump = get  # type: ignore[attr-defined]
    register(scheduler, recorder)
    (rm,) = scheduler.state_dump()["rms"]
    assert rm["rm"] == shown or rm["rm"].startswith(shown)


def test_within_a_decision_calls_queue_and_a_registration_is_refused(scheduler: InProcessScheduler) -> None:
    refused = []

    class Deciding(Recorder):
        def Predicates(self, args: Any) -> None:
            if not self.nodes:
                scheduler.UpdateNode(node("n2"))
                with pytest.raises(Refused, match="cannot be called from Predicates") as caught:
                    register(scheduler, self)
                refused.append(caught.value)

    deciding = Deciding()
    register(scheduler, deciding)
    scheduler.UpdateNode(node("n1"))
    scheduler.turns(1.0)
    assert deciding.nodes == ["n1", "n2"]
    assert refused


def test_a_thread_drives_the_turns_and_calls_come_from_any(scheduler: InProcessScheduler) -> None:
    class Waking(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.all_there = threading.Event()

        def UpdateNode(self, response: Any) -> None:
            super().UpdateNode(response)
            if len(self.nodes) == 400:
                self.all_there.set()

    waking = Waking()
    with scheduler.driven(SystemClock.wall_s):
        register(scheduler, waking)
        callers = [
            threading.Thread(target=lambda at=at: [scheduler.UpdateNode(node(f"n{at}-{i}")) for i in range(100)])
            for at in range(4)
        ]
        for caller in callers:
            caller.start()
        assert waking.all_there.wait(WAIT_S)
        for caller in callers:
            caller.join()
    assert len(set(waking.nodes)) == 400
    for at in range(4):
        own = [name for name in waking.nodes if name.startswith(f"n{at}-")]
        assert own == [f"n{at}-{i}" for i in range(100)], "calls of one thread keep their order"


# ---- predicates


class Fussy:
    def __init__(self, answer: Any = None) -> None:
        self.asked: list[Any] = []
        self.answer = answer

    def Predicates(self, args: Any) -> None:
        self.asked.append((args.allocationKey, args.nodeID, args.allocate))
        if args.nodeID == "n1":
            raise ValueError("no room for its taint")
        if args.nodeID == "n2":
            raise KeyError

    def PreemptionPredicates(self, args: Any) -> Any:
        self.asked.append((args.allocationKey, args.nodeID, list(args.preemptAllocationKeys), args.startIndex))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def predicates(callback: Any) -> Predicates:
    return Predicates(callback, lambda jobid: f"ask-{jobid}", lambda rank: f"n{rank}")


class Job:
    jobid = 7


def test_predicates_refuse_by_raising() -> None:
    fussy = Fussy()
    plugin = predicates(fussy)
    job: Any = Job()
    assert plugin.look(job, 0) is PASS
    assert plugin.look(job, 1) == Later("no room for its taint")
    assert plugin.look(job, 2) == Later("KeyError")
    assert plugin.refusal(7, 1, is_allocation=False) == "no room for its taint"
    assert fussy.asked[-1] == ("ask-7", "n1", False)
    assert fussy.asked[0] == ("ask-7", "n0", True)
    assert predicates(object()).look(job, 1) is PASS


def test_the_words_of_a_refusal_have_a_limit() -> None:
    class Wordy:
        def Predicates(self, args: Any) -> None:
            raise ValueError("x" * 10 * REASON_CHARS_MAX)

    why = predicates(Wordy()).refusal(7, 1, is_allocation=True)
    assert why == "x" * REASON_CHARS_MAX


@pytest.mark.parametrize(
    ("answer", "last"),
    [
        (PreemptionPredicatesResponse(success=True, index=1), 1),
        (PreemptionPredicatesResponse(success=True, index=2), 2),
        (PreemptionPredicatesResponse(success=True, index=0), None),  # before what frees enough
        (PreemptionPredicatesResponse(success=True, index=3), None),  # there is none
        (PreemptionPredicatesResponse(success=False, index=1), None),
        (ValueError("no"), None),
    ],
)
def test_preemption_predicates_say_which_go(answer: Any, last: int | None) -> None:
    fussy = Fussy(answer)
    assert predicates(fussy).last_to_go(7, 1, ["a", "b", "c"], 1) == last
    assert fussy.asked == [("ask-7", "n1", ["a", "b", "c"], 1)]
    assert predicates(object()).last_to_go(7, 1, ["a", "b", "c"], 1) == 1
