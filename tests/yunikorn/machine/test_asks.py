"""What asks and releases are answered with: rows of the table of answers, one after the other."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.core.quantities import AMOUNT_MAX
from fluxsched.yunikorn import requests
from fluxsched.yunikorn.messages import PLACEHOLDER_REPLACED, PREEMPTED_BY_SCHEDULER, STOPPED_BY_RM, TIMEOUT, NodeInfo
from fluxsched.yunikorn.requests import (
    ALLOW_PREEMPTION,
    ASK_BYTES_MAX,
    CONSTRAINT,
    CREATION_TIME,
    REQUIRED_NODE,
    TAGS_MAX,
)
from fluxsched.yunikorn.tables import SI_KINDS_MAX

from .rms import FAIR_CONFIG, Client, existing, one, resource

UPDATE, REMOVE = NodeInfo.UPDATE, NodeInfo.DECOMISSION

# ---- asks

ASK_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown partition": ({"partitionName": "gpu"}, "'gpu' is not known"),
    "unknown application": ({"applicationID": "other"}, "'other' is not known"),
    "all zero": ({"amounts": {"vcore": 0, "memory": 0}}, "nothing"),
    "no resource": ({"amounts": {}}, "nothing"),
    "negative": ({"amounts": {"vcore": 1, "memory": -1}}, "quantity -1"),
    "2^63 - 1": ({"amounts": (1 << 63) - 1}, str(AMOUNT_MAX)),
    "too many kinds": ({"amounts": dict.fromkeys(map(str, range(SI_KINDS_MAX + 1)), 1)}, "33 kinds"),
    "maxAllocations 0": ({"maxAllocations": 0}, "maxAllocations is 0"),
    "maxAllocations -1": ({"maxAllocations": -1}, "maxAllocations is -1"),
    "no key": ({"key": ""}, "allocationKey"),
    "10,000 tags": ({"tags": dict.fromkeys(map(str, range(10_000)), "")}, "limit"),
    "tags": ({"tags": dict.fromkeys(map(str, range(TAGS_MAX + 1)), "")}, str(TAGS_MAX)),
    "too large": ({"tags": {"x": "y" * ASK_BYTES_MAX}}, str(ASK_BYTES_MAX)),
    "creation time": ({"tags": {CREATION_TIME: "noon"}}, CREATION_TIME),
    "allowPreemption": ({"tags": {ALLOW_PREEMPTION: "perhaps"}}, "true or false"),
    "infinite creation time": ({"tags": {CREATION_TIME: "inf"}}, CREATION_TIME),
    "constraint": ({"tags": {CONSTRAINT: '{"colour": ["red"]}'}}, "unknown operator"),
    "constraint that is no JSON": ({"tags": {CONSTRAINT: "{"}}, CONSTRAINT),
}


@pytest.mark.parametrize("case", ASK_FAULTS)
def test_an_ask_is_refused_and_an_earlier_one_of_its_key_stays(quiet: Client, case: str) -> None:
    fields, words = ASK_FAULTS[case]
    quiet.ask("a", 1000).run()
    before = quiet.dump()
    quiet.ask(**{"key": "a", **fields})
    field, key, reason = one(quiet.allocation_items())
    assert (field, key) == ("rejected", fields.get("key", "a"))
    assert words in reason
    assert quiet.dump() == before


def test_an_ask_to_a_failing_application(quiet: Client) -> None:
    fields = {"gangSchedulingStyle": "Hard", "executionTimeoutMilliSeconds": 1000, "placeholderAsk": resource(9)}
    rm = quiet.application("gang", **fields)
    rm.ask("p", 4, applicationID="gang", taskGroupName="g", placeholder=True).run(2)
    rm.allocation_items()
    rm.ask("late", applicationID="gang")
    field, key, reason = one(rm.allocation_items())
    assert (field, key) == ("rejected", "late")
    assert "Failing" in reason


def test_an_ask_that_nothing_can_hold_waits_with_the_reason() -> None:
    rm = Client(observed=True).node("n1", 10).application().ask("a", 11)
    assert rm.new() == []
    _, states = rm.observed()
    assert [(state.allocationKey, state.state) for state in states] == [("a", state.FAILED) for state in states]
    assert "11 vcore" in states[0].reason
    rm.node("n2", 11)
    assert [each.nodeID for each in rm.new()] == ["n2"]


def test_an_ask_that_its_queue_cannot_hold_waits_with_the_reason() -> None:
    rm = Client(config=FAIR_CONFIG, observed=True).node("n1", 5000).application().ask("a", 1001)
    assert rm.new() == []
    _, (state,) = rm.observed()
    assert state.state == state.SKIPPED
    assert "root.default" in state.reason


def test_an_ask_waits_for_its_required_node() -> None:
    rm = Client(observed=True).node("n1", 10).application().ask("a", tags={REQUIRED_NODE: "n2"})
    assert rm.new() == []
    _, (state,) = rm.observed()
    assert state.state == state.FAILED
    assert "n2" in state.reason
    rm.node("n2", 10)
    assert [each.nodeID for each in rm.new()] == ["n2"]


def test_an_ask_whose_required_node_goes_waits_for_it_again(quiet: Client) -> None:
    quiet.ask("a", 150, tags={REQUIRED_NODE: "n1"}).run()
    quiet.node("n1", action=REMOVE).run()
    quiet.node("n3", 200)  # has the rank that n1 had
    assert quiet.new() == []
    quiet.node("n1", 200)
    assert [each.nodeID for each in quiet.new()] == ["n1"]


def test_a_known_key_says_how_many_more(quiet: Client) -> None:
    quiet.ask("a", 10, repeats=2).new()
    quiet.ask("a", 10, repeats=3)
    assert len(quiet.new()) == 3
    quiet.ask("b", 1000, repeats=5).ask("b", 20, repeats=2)
    assert [item.resourcePerAlloc.resources["vcore"].value for item in quiet.new()] == [20, 20]
    assert quiet.dump()["applications"][0]["asks"] == []


def test_an_allocation_has_what_its_ask_had(quiet: Client) -> None:
    tags = {CONSTRAINT: '{"properties": ["zone=b"]}', "x": "y"}
    quiet.node("n2", action=UPDATE, attributes={"zone": "b"})
    quiet.ask("a", {"vcore": 5, "gpu/a100": 0}, priority=-7, tags=tags)
    (item,) = quiet.new()
    assert (item.allocationKey, item.UUID, item.nodeID, item.priority) == ("a", "u1", "n2", -7)
    assert (item.applicationID, item.partitionName, dict(item.allocationTags)) == ("app", "default", tags)
    assert item.resourcePerAlloc == resource({"vcore": 5, "gpu/a100": 0})


def test_asks_without_an_application_belong_to_root_default() -> None:
    rm = Client(config=FAIR_CONFIG).node("n1", 5000).ask("a", 600, repeats=2, applicationID="")
    assert [item.applicationID for item in rm.new()] == [""]
    assert rm.used("root.default") == {"vcore": 600}
    assert rm.application_items() == []


def test_what_is_refused_makes_no_application() -> None:
    rm = Client().ask("a", 0, applicationID="")
    rm.node("n1", 9, existingAllocations=[existing("e1", applicationID=""), existing("", applicationID="")])
    assert one(rm.allocation_items())[0] == one(rm.node_items())[0] == "rejected"
    assert rm.dump()["applications"] == []
    rm.node("n1", 9, existingAllocations=[existing("e1", applicationID="")]).run()
    assert rm.used("root.default") == {"vcore": 1}


def test_asks_without_an_application_have_root_default_made_for_them() -> None:
    config = "partitions: [{name: default, queues: [{name: root, queues: [{name: other}]}]}]"
    rm = Client(config=config).node("n1", 5).ask("a", applicationID="")
    assert [item.applicationID for item in rm.new()] == [""]
    assert rm.used("root.default") == {"vcore": 1}
    rm.release("u1", applicationID="").run(31.0)
    assert [queue["path"] for queue in rm.dump()["queues"]["queues"]] == ["root.other"]


@pytest.mark.parametrize("queues", [
    'submitacl: ann, queues: [{name: other}]', 'queues: [{name: default, queues: [{name: leaf}]}]'
])  # fmt: skip
def test_asks_without_an_application_where_root_default_cannot_be(queues: str) -> None:
    config = f"partitions: [{{name: default, queues: [{{name: root, {queues}}}]}}]"
    field, _, reason = one(Client(config=config).ask("a", applicationID="").allocation_items())
    assert field == "rejected"
    assert "root.default" in reason


def test_asks_are_in_the_order_of_their_creation() -> None:
    rm = Client().application().ask("new").ask("old", tags={"creationTime": "10"}).run().node("n1", 1)
    assert [item.allocationKey for item in rm.new()] == ["old"]


def test_no_priority_is_that_of_a_held_job() -> None:
    least, most = -(1 << 31), (1 << 31) - 1
    rm = Client().application().ask("low", priority=least).ask("high", priority=most).run().node("n1", 10)
    assert [(item.allocationKey, item.priority) for item in rm.new()] == [("high", most), ("low", least)]


# ---- releases of asks


@pytest.mark.parametrize(("fields", "left"), [
    ({"key": "a"}, ["b"]),
    ({"key": ""}, []),
    ({"key": "other"}, ["a", "b"]),
    ({"key": "a", "applicationID": "other"}, ["a", "b"]),
    ({"key": "a", "applicationID": ""}, ["b"]),
])  # fmt: skip
def test_release_of_asks(quiet: Client, fields: dict[str, str], left: list[str]) -> None:
    quiet.ask("a", 1000).ask("b", 1000).run()
    quiet.release_ask(**fields)
    assert quiet.allocation_items() == []
    assert [ask["allocationKey"] for ask in quiet.dump()["applications"][0]["asks"]] == left


@pytest.mark.parametrize(("fields", "words"), [
    ({"key": "", "applicationID": ""}, "allocationKey or an applicationID"),
    ({"key": "a", "partitionName": "gpu"}, "'gpu' is not known"),
])  # fmt: skip
def test_release_of_asks_refused(quiet: Client, fields: dict[str, str], words: str) -> None:
    quiet.ask("a", 1000).release_ask(**fields)
    field, _, reason = one(quiet.allocation_items())
    assert field == "rejected"
    assert words in reason
    assert len(quiet.dump()["applications"][0]["asks"]) == 1


# ---- releases of allocations


@pytest.mark.parametrize("type", [0, STOPPED_BY_RM])
def test_release_of_an_allocation_is_echoed(quiet: Client, type: int) -> None:
    quiet.ask("a", 10).new()
    quiet.release("u1", type, message="done")
    assert quiet.allocation_items() == [("released", "u1", "STOPPED_BY_RM")]
    assert quiet.used() == {}


@pytest.mark.parametrize("type", [0, STOPPED_BY_RM])
@pytest.mark.parametrize("fields", [
    {"uuid": "u9"}, {"uuid": "u1", "applicationID": "other"}, {"uuid": "u1", "partitionName": "gpu"}
])  # fmt: skip
def test_release_of_what_is_not_held_is_echoed(quiet: Client, type: int, fields: dict[str, str]) -> None:
    quiet.ask("a", 10).new()
    quiet.release(type=type, **fields)
    ((field, item),) = quiet.items("allocations")
    assert (field, item.UUID, item.terminationType, item.message) == (
        "released", fields["uuid"], STOPPED_BY_RM, "not held"
    )  # fmt: skip
    assert quiet.used() == {"vcore": 10}


@pytest.mark.parametrize(("fields", "released"), [
    ({"allocationKey": "a"}, ["u1", "u2"]),
    ({}, ["u1", "u2", "u3"]),
    ({"allocationKey": "c"}, []),
])  # fmt: skip
def test_release_without_a_uuid(quiet: Client, fields: dict[str, str], released: list[str]) -> None:
    quiet.ask("a", repeats=2).ask("b").new()
    quiet.release(**fields)
    assert quiet.allocation_items() == [("released", uuid, "STOPPED_BY_RM") for uuid in released]


@pytest.mark.parametrize("application_id", ["", "other"])
def test_release_without_a_uuid_and_an_application(quiet: Client, application_id: str) -> None:
    quiet.ask("a").new()
    quiet.release(applicationID=application_id)
    field, _, reason = one(quiet.allocation_items())
    assert field == "rejected"
    assert "application" in reason
    assert quiet.used() == {"vcore": 1}


@pytest.mark.parametrize("type", [TIMEOUT, PREEMPTED_BY_SCHEDULER, PLACEHOLDER_REPLACED])
def test_a_confirmation_frees_without_an_echo_and_again_does_nothing(quiet: Client, type: int) -> None:
    quiet.ask("a").new()
    for _ in range(2):
        quiet.release("u1", type)
        assert quiet.allocation_items() == []
        assert quiet.used() == {}


def test_limits_are_these() -> None:
    assert (requests.ASK_BYTES_MAX, requests.GROUPS_MAX) == (65_536, 4096)
