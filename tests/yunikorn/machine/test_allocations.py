"""The interface since version 1.6: asks and what exists are Allocations, known by their keys and not by UUIDs."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.yunikorn.messages import (
    PLACEHOLDER_REPLACED,
    PREEMPTED_BY_SCHEDULER,
    STOPPED_BY_RM,
    TIMEOUT,
    NodeInfo,
    PreemptionPolicy,
)

from .rms import PREEMPTION, Client, one, resource


def test_an_allocation_without_a_node_is_an_ask(quiet: Client) -> None:
    quiet.allocation("a", 5, priority=3, allocationTags={"x": "y"}, taskGroupName="g")
    (item,) = quiet.new()
    assert (item.allocationKey, item.applicationID, item.priority) == ("a", "app", 3)
    assert (dict(item.allocationTags), item.taskGroupName, item.nodeID in ("n1", "n2")) == ({"x": "y"}, "g", True)
    assert item.resourcePerAlloc == resource(5)


def test_there_is_one_allocation_of_a_key(quiet: Client) -> None:
    quiet.allocation("a", 5).allocation("a", 5).allocation("a", 5)
    assert len(quiet.new()) == 1
    quiet.allocation("a", 5)
    assert quiet.allocation_items() == []
    quiet.allocation("big", 500).allocation("big", 50)
    assert [item.resourcePerAlloc.resources["vcore"].value for item in quiet.new()] == [50], "its size has changed"
    assert quiet.used() == {"vcore": 55}


def test_an_allocation_with_its_node_exists(quiet: Client) -> None:
    quiet.allocation("a", 150, nodeID="n1").allocation("b", 100, nodeID="n2", priority=1)
    assert quiet.allocation_items() == [("new", "a", "n1"), ("new", "b", "n2")]
    assert quiet.used() == {"vcore": 250}
    quiet.allocation("a", 150, nodeID="n1")
    assert quiet.allocation_items() == []
    assert ("updated", "app", "Running") in quiet.application_items()


def test_a_pending_ask_that_another_has_placed(quiet: Client) -> None:
    quiet.allocation("a", 500).allocation("a", 500, nodeID="n1")
    assert quiet.allocation_items() == [("new", "a", "n1")]
    assert (quiet.used(), quiet.dump()["applications"][0]["asks"]) == ({"vcore": 500}, [])
    quiet.release(allocationKey="a").run()
    assert quiet.used() == {}
    assert quiet.application_items()[-1] == ("updated", "app", "Completing")


def test_the_size_of_an_allocation_changes_where_it_is(quiet: Client) -> None:
    quiet.node("n2", action=NodeInfo.DECOMISSION).allocation("a", 60).allocation("b", 60)
    assert [item.allocationKey for item in quiet.new()] == ["a"]
    quiet.allocation("a", 30, nodeID="n1")
    assert [item.allocationKey for item in quiet.new()] == ["b"]
    quiet.allocation("b", 200).run()
    assert quiet.used() == {"vcore": 230}, "a fact, whatever the node has"
    quiet.release(allocationKey="b").allocation("c", 60)
    assert sorted(quiet.allocation_items()) == [("new", "c", "n1"), ("released", "u2", "STOPPED_BY_RM")]
    assert quiet.used() == {"vcore": 90}


def test_a_release_by_key_is_of_what_runs_and_of_what_waits(quiet: Client) -> None:
    quiet.allocation("a", 5).allocation("b", 500).allocation("c", 500).ask("old", 500).new()
    quiet.release(allocationKey="b")
    assert quiet.allocation_items() == []
    quiet.release(allocationKey="a")
    assert quiet.allocation_items() == [("released", "u1", "STOPPED_BY_RM")]
    assert [ask["allocationKey"] for ask in quiet.dump()["applications"][0]["asks"]] == ["c", "old"]
    quiet.release()
    quiet.run()
    assert [ask["allocationKey"] for ask in quiet.dump()["applications"][0]["asks"]] == ["old"]


def test_confirmations_name_the_key(quiet: Client) -> None:
    quiet.allocation("a", 5).new()
    for type in (TIMEOUT, PREEMPTED_BY_SCHEDULER):
        quiet.release(allocationKey="a", type=type)
        assert quiet.allocation_items() == []
        assert quiet.used() == {}


def test_what_other_schedulers_have_placed_occupies_its_node(quiet: Client) -> None:
    quiet.node("n2", action=NodeInfo.DECOMISSION)
    quiet.allocation("pod", 70, applicationID="", nodeID="n1", allocationTags={"foreign": "default"})
    quiet.node("n1", action=NodeInfo.UPDATE, occupiedResource=resource(10)).allocation("a", 21)
    assert quiet.allocation_items() == []
    assert quiet.used() == {}
    quiet.allocation("pod", 69, applicationID="", nodeID="n1", allocationTags={"foreign": "static"})
    assert [item.allocationKey for item in quiet.new()] == ["a"]
    quiet.allocation("b", 69)
    assert quiet.new() == []
    quiet.release(applicationID="", allocationKey="pod")
    assert [item.allocationKey for item in quiet.new()] == ["b"]


def test_what_is_foreign_goes_with_its_node(quiet: Client) -> None:
    foreign: dict[str, Any] = {"applicationID": "", "allocationTags": {"foreign": "default"}}
    quiet.allocation("pod", 70, nodeID="n1", **foreign).node("n1", action=NodeInfo.DECOMISSION).node("n1", 100).run()
    assert [node["foreign"] for node in quiet.dump()["nodes"]] == [{}, {}]
    quiet.allocation("pod", 1, nodeID="n2", **foreign).allocation("pod", 1, nodeID="n1", **foreign)
    assert "on node 'n2'" in one(quiet.allocation_items())[2]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no key": ({"key": ""}, "allocationKey"),
    "unknown partition": ({"partitionName": "gpu"}, "'gpu' is not known"),
    "unknown application": ({"applicationID": "other"}, "'other' is not known"),
    "unknown application of what exists": ({"applicationID": "other", "nodeID": "n1"}, "'other' is not known"),
    "unknown node": ({"nodeID": "n9"}, "'n9' is not known"),
    "nothing": ({"amounts": 0}, "nothing"),
    "nothing exists": ({"amounts": 0, "nodeID": "n1"}, "no quantity"),
    "negative": ({"amounts": -1, "nodeID": "n1"}, "quantity -1"),
    "tag": ({"allocationTags": {"creationTime": "noon"}, "nodeID": "n1"}, "creationTime"),
    "foreign without a node": ({"allocationTags": {"foreign": "default"}}, "node '' is not known"),
    "foreign and nothing": ({"allocationTags": {"foreign": "default"}, "nodeID": "n1", "amounts": 0}, "no quantity"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_allocation_is_told_as_such_and_nothing_done(quiet: Client, case: str) -> None:
    fields, words = REFUSED[case]
    before = quiet.dump()
    quiet.allocation(**fields)
    field, key, reason = one(quiet.allocation_items())
    assert (field, key) == ("rejectedAllocations", fields.get("key", "a"))
    assert words in reason
    assert quiet.dump() == before


def test_what_exists_of_an_application_that_was_refused() -> None:
    rm = Client(config="partitions: [{queues: [{name: only}]}]").node("n1", 10).application().run()
    rm.allocation("a", 2, nodeID="n1")
    assert rm.allocation_items() == [("new", "a", "n1")]
    assert rm.used("root.@recovery@") == {"vcore": 2}


def test_a_gang_is_replaced_by_keys() -> None:
    rm = (
        Client()
        .node("n1", 10)
        .application(placeholderAsk=resource(8), gangSchedulingStyle="Soft", executionTimeoutMilliSeconds=5000)
    )
    for key in ("p1", "p2", "p3"):
        rm.allocation(key, 4, taskGroupName="g", placeholder=True)
    assert [item.allocationKey for item in rm.new()] == ["p1", "p2"]
    rm.allocation("t", 3, taskGroupName="g").allocation("t", 3, taskGroupName="g")
    ((field, item),) = rm.items("allocations")
    assert (field, item.allocationKey, item.terminationType) == ("released", "p1", PLACEHOLDER_REPLACED)
    rm.allocation("t", 3, taskGroupName="g").release(allocationKey="p1", type=PLACEHOLDER_REPLACED)
    assert [item.allocationKey for item in rm.new()] == ["t"]
    rm.allocation("p2", 5, taskGroupName="g", placeholder=True)
    assert "placeholder" in one(rm.allocation_items())[2]
    told = [(field, item.allocationKey, item.UUID) for field, item in rm.run(6.0).items("allocations")]
    assert sorted(told) == [("released", "p2", "u2"), ("released", "p3", "")], "what waits has no UUID"
    rm.release(allocationKey="p2", type=TIMEOUT).release(allocationKey="p3", type=TIMEOUT)
    assert rm.allocation_items() == []
    assert rm.used() == {"vcore": 3}


def test_policies_of_what_exists_are_read_as_those_of_asks() -> None:
    rm = Client(config=PREEMPTION).node("n1", 100).application("old", "root.other").application("new", "root.one").run()
    kept: list[dict[str, Any]] = [
        {"preemptionPolicy": PreemptionPolicy(allowPreemptSelf=False)},
        {"allocationTags": {"yunikorn.apache.org/allowPreemption": "false"}},
        {"originator": True},
    ]
    rm.allocation("goes", 25, applicationID="old", nodeID="n1")
    for key, fields in enumerate(kept):
        rm.allocation(f"stays-{key}", 25, applicationID="old", nodeID="n1", **fields)
    rm.new()
    may = PreemptionPolicy(allowPreemptOther=True)
    rm.allocation("a", 25, applicationID="new", preemptionPolicy=may).run(2.0)
    assert rm.allocation_items() == [("released", "u1", "PREEMPTED_BY_SCHEDULER")]
    rm.allocation("goes", 5, applicationID="old")
    assert "release is demanded" in one(rm.allocation_items())[2]
    rm.release(applicationID="old", allocationKey="goes", type=PREEMPTED_BY_SCHEDULER)
    assert [item.allocationKey for item in rm.new()] == ["a"]
    rm.allocation("b", 25, applicationID="new", preemptionPolicy=may).run(2.0)
    assert rm.allocation_items() == [("released", "u4", "PREEMPTED_BY_SCHEDULER")], "before those that rather stay"


def test_a_node_may_begin_with_a_drain() -> None:
    rm = Client().node("n1", 10, NodeInfo.CREATE_DRAIN).application().ask()
    assert (rm.node_items(), rm.new()) == ([("accepted", "n1", "")], [])
    rm.node("n1", action=NodeInfo.DRAIN_TO_SCHEDULABLE)
    assert [item.nodeID for item in rm.new()] == ["n1"]


def test_the_echo_of_a_release_is_the_resource_managers(quiet: Client) -> None:
    quiet.allocation("a").new()
    quiet.release(allocationKey="a", type=STOPPED_BY_RM)
    ((_, item),) = quiet.items("allocations")
    assert (item.allocationKey, item.applicationID, item.terminationType) == ("a", "app", STOPPED_BY_RM)
