"""Predicates of a resource manager in process: the last word about a node, and about what is preempted there."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.yunikorn.messages import PreemptionPolicy, PreemptionPredicatesResponse
from fluxsched.yunikorn.tree import preemption as tree_preemption
from fluxsched.yunikorn.tree.preemption import RESERVE_AFTER_S

from .rms import PREEMPTION, Client, existing


class Refusing:
    """Takes only one node, and notes what it was asked."""

    def __init__(self, only: str) -> None:
        self.only = only
        self.asked: list[tuple[str, str, bool]] = []

    def Predicates(self, args: Any) -> None:
        self.asked.append((args.allocationKey, args.nodeID, args.allocate))
        if args.nodeID != self.only:
            raise ValueError(f"the ports of {args.nodeID} are taken")


class Judging:
    """Has one more go than would be needed."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def PreemptionPredicates(self, args: Any) -> Any:
        self.asked.append(args)
        return PreemptionPredicatesResponse(success=True, index=args.startIndex + 1)


def test_a_node_that_predicates_refuse_is_passed_over() -> None:
    callback = Refusing("n2")
    rm = Client(callback=callback).node("n1", 100).node("n2", 10).application().ask("a")
    assert [item.nodeID for item in rm.new()] == ["n2"]
    assert callback.asked == [("a", "n1", True), ("a", "n2", True)]


def test_an_ask_that_predicates_refuse_everywhere_waits_with_their_words() -> None:
    rm = Client(callback=Refusing("n3"), observed=True).node("n1", 10).application().ask("a")
    assert rm.new() == []
    assert any("the ports of n1 are taken" in state.reason for state in rm.observed()[1])
    rm.node("n3", 10)
    assert [item.nodeID for item in rm.new()] == ["n3"]


def test_a_node_that_predicates_refuse_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    callback = Refusing("n2")
    rm = Client(callback=callback, observed=True).node("n2", 10).application().ask("a", 9).run()
    rm.node("n1", 10, existingAllocations=[existing("u9", 6)]).ask("b", 5).run(RESERVE_AFTER_S + 1)
    assert ("b", "n1", False) in callback.asked
    (kept,) = rm.machine._rms["rm"].bookings.partitions["default"].scheduler._groups["default"].reserved.by_job.values()
    assert kept == 0, "not n1, where less is lacking"
    callback.only, callback.asked = "none", []
    monkeypatch.setattr(tree_preemption, "REFUSALS_A_PASS", 1)
    rm.ask("c", 5).run(RESERVE_AFTER_S + 1)
    assert set(callback.asked) == {("c", "n1", False)}, "in each pass one refusal"


def test_preemption_predicates_say_which_is_the_last_to_go() -> None:
    callback = Judging()
    rm = Client(config=PREEMPTION, callback=callback).node("n1", 100)
    rm.application("app", "root.other").ask("low", 25, 4).run()
    rm.application("mine", "root.one").heard("allocations")
    rm.ask("mine", 20, applicationID="mine", preemptionPolicy=PreemptionPolicy(allowPreemptOther=True)).run(5)
    (args,) = callback.asked
    assert (args.allocationKey, args.nodeID, args.startIndex) == ("mine", "n1", 0)
    assert set(args.preemptAllocationKeys) == {"low"}
    assert len(rm.allocation_items()) == 2
