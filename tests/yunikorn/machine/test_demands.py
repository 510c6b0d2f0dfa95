"""What the scheduler demands: timeouts, preemption and replaced placeholders, sent until they are confirmed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.yunikorn import tables
from fluxsched.yunikorn.bookings import REPEAT_S
from fluxsched.yunikorn.messages import (
    PLACEHOLDER_REPLACED,
    PREEMPTED_BY_SCHEDULER,
    STOPPED_BY_RM,
    TIMEOUT,
    NodeInfo,
    PreemptionPolicy,
)

from .rms import PREEMPTION, Client, resource


def gang(style: str = "Soft", config: str = "", timeout_s: int = 100, **fields: Any) -> Client:
    """A node of 10 and an application that announces placeholders."""
    rm = Client(config=config).node("n1", 10)
    rm.application(
        gangSchedulingStyle=style,
        executionTimeoutMilliSeconds=timeout_s * 1000,
        placeholderAsk=resource(fields.pop("announced", 8)),
        **fields,
    )
    return rm


def placeholder(rm: Client, key: str, amount: int, repeats: int = 1) -> Client:
    return rm.ask(key, amount, repeats, taskGroupName="g", placeholder=True)


def states(rm: Client) -> list[str]:
    return [state for field, _, state in rm.application_items() if field == "updated"]


# ---- timeouts of asks


def test_an_execution_timeout_is_demanded_and_repeated_until_it_is_confirmed() -> None:
    rm = Client().node("n1", 10).application().ask("a", executionTimeoutMilliSeconds=5000)
    rm.new()
    assert rm.run(4.9).allocation_items() == []
    for wait_s in (0.2, REPEAT_S, REPEAT_S):
        assert rm.run(wait_s).allocation_items() == [("released", "u1", "TIMEOUT")]
        assert rm.used() == {"vcore": 1}
    rm.release("u1", TIMEOUT)
    assert rm.run(100).allocation_items() == []
    assert rm.used() == {}


def test_a_demand_that_is_answered_by_a_release_is_done() -> None:
    rm = Client().node("n1", 10).application().ask("a", executionTimeoutMilliSeconds=5000)
    rm.run(6).heard("allocations")
    rm.release("u1")
    assert rm.allocation_items() == [("released", "u1", "STOPPED_BY_RM")]
    assert rm.run(100).allocation_items() == []


def test_an_allocation_that_goes_before_its_timeout() -> None:
    rm = Client().node("n1", 10).application().ask("a", executionTimeoutMilliSeconds=5000)
    rm.new()
    rm.release("u1").heard("allocations")
    assert rm.run(100).allocation_items() == []


def test_timers_of_allocations_that_are_gone_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "OLD_TIMERS", 10)
    rm = Client().node("n1", 10).application()
    for _ in range(50):
        rm.ask("a", executionTimeoutMilliSeconds=86_400_000).run().release().run()
    rm.ask("a", executionTimeoutMilliSeconds=86_400_000).heard("allocations")
    assert len(rm.machine._rms["rm"].bookings.timers) <= 12
    assert rm.run(86_401).allocation_items() == [("released", "u51", "TIMEOUT")]


# ---- gangs


def test_a_placeholder_is_replaced() -> None:
    rm = placeholder(gang(), "p", 4, 2)
    assert [item.placeholder for item in rm.new()] == [True, True]
    rm.ask("a", 3, taskGroupName="g")
    assert rm.allocation_items() == [("released", "u1", "PLACEHOLDER_REPLACED")]
    assert rm.used() == {"vcore": 8}
    rm.release("u1", PLACEHOLDER_REPLACED)
    (item,) = rm.new()
    assert (item.allocationKey, item.nodeID, item.placeholder, item.taskGroupName) == ("a", "n1", False, "g")
    assert rm.used() == {"vcore": 7}
    assert states(rm) == ["Accepted", "Starting"]


def test_a_placeholder_that_is_gone_otherwise_leaves_the_ask_pending() -> None:
    rm = placeholder(gang(), "p", 4, 2)
    rm.new()
    rm.ask("a", 4, taskGroupName="g").heard("allocations")
    rm.release("u1", STOPPED_BY_RM)
    assert rm.allocation_items() == [("released", "u1", "STOPPED_BY_RM"), ("released", "u2", "PLACEHOLDER_REPLACED")]
    rm.release("u2", PLACEHOLDER_REPLACED)
    assert [item.allocationKey for item in rm.new()] == ["a"]
    assert rm.used() == {"vcore": 4}


def test_a_node_that_goes_with_its_placeholder_leaves_the_ask_pending() -> None:
    rm = placeholder(gang(), "p", 4, 2)
    rm.new()
    rm.ask("a", 4, taskGroupName="g").heard("allocations")
    rm.node("n1", action=NodeInfo.DECOMISSION).heard("allocations")
    rm.release("u1", PLACEHOLDER_REPLACED).node("n2", 10)
    assert [(item.allocationKey, item.nodeID) for item in rm.new()] == [("a", "n2")]


def test_an_ask_that_goes_while_its_placeholder_does() -> None:
    rm = placeholder(gang(), "p", 4, 2)
    rm.new()
    rm.ask("a", 4, taskGroupName="g").heard("allocations")
    rm.release_ask("a").release("u1", PLACEHOLDER_REPLACED)
    assert rm.allocation_items() == []
    assert rm.used() == {"vcore": 4}


def test_a_larger_ask_waits_as_any_and_its_placeholder_times_out() -> None:
    rm = placeholder(gang(), "p", 4, 2)
    rm.new()
    rm.ask("a", 5, taskGroupName="g")
    assert rm.allocation_items() == [("released", "u1", "TIMEOUT")]
    rm.release("u1", TIMEOUT)
    assert [item.allocationKey for item in rm.new()] == ["a"]
    assert rm.used() == {"vcore": 9}


def test_a_known_key_of_a_task_group_is_replaced() -> None:
    rm = placeholder(gang(), "p", 4, 2)
    rm.ask("a", 99, taskGroupName="h").new()
    rm.ask("a", 4, taskGroupName="g")
    assert rm.allocation_items() == [("released", "u1", "PLACEHOLDER_REPLACED")]
    assert states(rm) == ["Accepted", "Starting"]


def test_a_hard_gang_fails() -> None:
    """The vector: node 10; placeholders 4 and 8, Hard, 1 s."""
    rm = gang("Hard", timeout_s=1, announced=12)
    placeholder(placeholder(rm, "p4", 4), "p8", 8)
    assert [item.allocationKey for item in rm.new()] == ["p4"]
    assert sorted(rm.run(1.1).allocation_items()) == [("released", "u1", "TIMEOUT"), ("releasedAsks", "p8", "TIMEOUT")]
    assert states(rm) == ["Accepted", "Failing"]
    rm.release("u1", TIMEOUT)
    assert states(rm) == ["Failed"]
    assert rm.used() == {}
    assert rm.application().application_items() == [("accepted", "app", "")]


def test_a_soft_gang_goes_on() -> None:
    rm = gang("Soft", timeout_s=1, announced=12)
    placeholder(placeholder(rm, "p4", 4), "p8", 8).ask("a", 20, taskGroupName="other")
    rm.new()
    assert sorted(rm.run(1.1).allocation_items()) == [("released", "u1", "TIMEOUT"), ("releasedAsks", "p8", "TIMEOUT")]
    assert states(rm) == ["Accepted", "Resuming"]
    rm.release("u1", TIMEOUT)
    assert states(rm) == ["Accepted"]
    rm.node("n2", 20)
    assert [item.allocationKey for item in rm.new()] == ["a"]


def test_an_application_that_runs_for_too_long_fails() -> None:
    rm = Client().node("n1", 10).application(executionTimeoutMilliSeconds=2000)
    rm.ask("a", 1).ask("big", 99).new()
    assert sorted(rm.run(2.1).allocation_items()) == [("released", "u1", "TIMEOUT"), ("releasedAsks", "big", "TIMEOUT")]
    rm.release("u1", TIMEOUT)
    assert states(rm)[-2:] == ["Failing", "Failed"]


# ---- preemption


def preempting() -> Client:
    rm = Client(config=PREEMPTION).node("n1", 100)
    rm.application("app", "root.other").ask("low", 25, 4).run()
    rm.application("mine", "root.one").heard("allocations")
    policy = PreemptionPolicy(allowPreemptOther=True)
    return rm.ask("mine", 40, applicationID="mine", preemptionPolicy=policy)


GUIDE = """
partitions:
- name: default
  preemption: {enabled: true}
  queues:
  - name: root
    submitacl: "*"
    queues:
    - name: rt
      properties: {preemption.delay: 1s}
      resources: {max: {vcore: 16}}
      queues:
      - {name: one, resources: {guaranteed: {vcore: 3}, max: {vcore: 8}}}
      - {name: two, resources: {guaranteed: {vcore: 3}, max: {vcore: 8}}}
      - {name: three, resources: {guaranteed: {vcore: 3}, max: {vcore: 8}}}
"""
"""Of YuniKorn's guide to preemption, on nodes that have room for more."""


def test_a_maximum_preempts_as_yunikorns_guide_has_it() -> None:
    rm = Client(config=GUIDE)
    for name in ("n1", "n2", "n3"):
        rm.node(name, 16_000)
    for name, allows in (("one", "true"), ("two", "false"), ("three", "true")):
        rm.application(name, f"root.rt.{name}").ask(
            name, 1000, 8, applicationID=name, tags={"yunikorn.apache.org/allowPreemption": allows},
            preemptionPolicy=PreemptionPolicy(allowPreemptSelf=True, allowPreemptOther=True),
        ).run()  # fmt: skip
    for _ in range(20):
        for field, item in rm.run(1.0).items("allocations"):
            assert item.applicationID in ("one", "two", "three")
            if field == "released":
                assert item.terminationType == PREEMPTED_BY_SCHEDULER
                rm.release(item.UUID, PREEMPTED_BY_SCHEDULER, applicationID=item.applicationID)
    assert [rm.used(f"root.rt.{name}") for name in ("one", "two", "three")] == [
        {"vcore": 5000}, {"vcore": 8000}, {"vcore": 3000}
    ]  # fmt: skip


def test_preempted_allocations_are_demanded_and_their_node_is_used_once_they_are_gone() -> None:
    rm = preempting().run(5)
    found = list(rm.items("allocations"))
    assert {item.message for _, item in found} == {
        "preempted so that ask 'mine' of application 'mine' can start: root.one takes back its guarantee"
    }
    assert [(field, item.terminationType, item.UUID) for field, item in found] == [
        ("released", PREEMPTED_BY_SCHEDULER, "u4"),
        ("released", PREEMPTED_BY_SCHEDULER, "u3"),
    ]
    for _, item in found:
        assert rm.new() == []
        rm.release(item.UUID, PREEMPTED_BY_SCHEDULER)
    assert [item.allocationKey for item in rm.new()] == ["mine"]
    assert rm.used("root.one") == {"vcore": 40}
    assert rm.used("root.other") == {"vcore": 50}
