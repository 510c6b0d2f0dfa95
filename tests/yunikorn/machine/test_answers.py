"""What nodes and applications are answered with: rows of the table of answers, one after the other."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.core.quantities import AMOUNT_MAX
from fluxsched.yunikorn import nodes
from fluxsched.yunikorn.messages import STOPPED_BY_RM, NodeInfo, UserGroupInformation
from fluxsched.yunikorn.nodes import NODES_MAX
from fluxsched.yunikorn.requests import GROUPS_MAX, ID_CHARS_MAX, TAGS_MAX
from fluxsched.yunikorn.tables import KIND_CHARS_MAX, REASON_CHARS_MAX, SI_KINDS_MAX

from .rms import FAIR_CONFIG, Client, existing, one, resource

CREATE, UPDATE, DRAIN, UNDRAIN, REMOVE = (
    NodeInfo.CREATE, NodeInfo.UPDATE, NodeInfo.DRAIN_NODE, NodeInfo.DRAIN_TO_SCHEDULABLE, NodeInfo.DECOMISSION,
)  # fmt: skip

# ---- nodes


def test_create_is_accepted() -> None:
    rm = Client().node("n1", 100)
    assert rm.node_items() == [("accepted", "n1", "")]
    assert [node["rank"] for node in rm.dump()["nodes"]] == [0]


def test_a_rank_is_the_lowest_that_is_free(quiet: Client) -> None:
    quiet.node("n3", 1).node("n1", action=REMOVE).node("n4", 1).node("n5", 1).run()
    assert [(node["nodeID"], node["rank"]) for node in quiet.dump()["nodes"]] == [
        ("n2", 1), ("n3", 2), ("n4", 0), ("n5", 3)
    ]  # fmt: skip


NODE_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "known": ({"node_id": "n1", "amounts": 1}, "is known"),
    "unknown partition": ({"node_id": "n3", "attributes": {"si/node-partition": "gpu"}}, "'gpu' is not known"),
    "no id": ({"node_id": ""}, "nodeID is empty"),
    "NUL": ({"node_id": "n\0"}, "NUL"),
    "too long": ({"node_id": "n" * (ID_CHARS_MAX + 1)}, str(ID_CHARS_MAX)),
    "UPDATE of an unknown node": ({"node_id": "n3", "action": UPDATE}, "is not known"),
    "DRAIN_NODE of an unknown node": ({"node_id": "n3", "action": DRAIN}, "is not known"),
    "DRAIN_TO_SCHEDULABLE of an unknown node": ({"node_id": "n3", "action": UNDRAIN}, "is not known"),
    "DECOMISSION of an unknown node": ({"node_id": "n3", "action": REMOVE}, "is not known"),
    "not draining": ({"node_id": "n1", "action": UNDRAIN}, "is not draining"),
    "no action": ({"node_id": "n1", "action": 0}, "action 0"),
    "unknown action": ({"node_id": "n1", "action": 9}, "action 9"),
    "negative": ({"node_id": "n3", "amounts": -1}, "quantity -1"),
    "negative UPDATE": ({"node_id": "n1", "action": UPDATE, "amounts": -1}, "quantity -1"),
    "negative occupied": ({"node_id": "n3", "occupiedResource": resource(-5)}, "occupiedResource"),
    "too much": ({"node_id": "n3", "amounts": AMOUNT_MAX + 1}, str(AMOUNT_MAX)),
    "2^63 - 1": ({"node_id": "n3", "amounts": (1 << 63) - 1}, str(AMOUNT_MAX)),
    "too many kinds": ({"node_id": "n3", "amounts": dict.fromkeys(map(str, range(SI_KINDS_MAX + 1)), 1)}, "33 kinds"),
    "a long kind": ({"node_id": "n3", "amounts": {"k" * (KIND_CHARS_MAX + 1): 1}}, "257 characters"),
    "too many attributes": (
        {"node_id": "n3", "attributes": dict.fromkeys(map(str, range(TAGS_MAX + 1)), "x")}, str(TAGS_MAX)
    ),
    "another partition": (
        {"node_id": "n1", "action": UPDATE, "attributes": {"si/node-partition": "gpu"}}, "is in 'default'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NODE_FAULTS)
def test_a_node_is_refused_and_nothing_done(quiet: Client, case: str) -> None:
    fields, words = NODE_FAULTS[case]
    before = quiet.dump()
    quiet.node(**fields)
    field, node_id, reason = one(quiet.node_items())
    assert (field, node_id) == ("rejected", fields["node_id"])
    assert words in reason
    assert quiet.dump() == before


def test_there_are_so_many_nodes(quiet: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "NODES_MAX", 2)
    assert "limit is 2" in one(quiet.node("n3", 1).node_items())[2]
    assert NODES_MAX == 1 << 17


def test_the_bracket_and_the_empty_name_are_the_default_partition(quiet: Client) -> None:
    quiet.node("n3", 1, attributes={"si/node-partition": "[rm]default"})
    assert one(quiet.node_items())[0] == "accepted"
    quiet.application("other", partitionName="[rm]default").ask(applicationID="other", partitionName="[rm]default")
    assert [each.partitionName for each in quiet.new()] == ["default"]


def test_what_others_occupy_is_not_free_and_nobodys(quiet: Client) -> None:
    quiet.node("n1", action=UPDATE, occupiedResource=resource(95)).node("n2", action=REMOVE).ask("a", 10)
    assert quiet.new() == []
    assert quiet.used() == {}
    quiet.node("n1", action=UPDATE, occupiedResource=resource(90))
    assert [each.nodeID for each in quiet.new()] == ["n1"]


def test_update_keeps_an_absent_resource_and_replaces_all_kinds_of_a_present_one(quiet: Client) -> None:
    quiet.node("n1", {"vcore": 7, "gpu": 1}, UPDATE).node("n1", action=UPDATE, attributes={"zone": "a"}).run()
    assert quiet.dump()["nodes"][0]["schedulable"] == {"vcore": 7, "gpu": 1}
    quiet.node("n1", {"memory": 5}, UPDATE).run()
    assert quiet.dump()["nodes"][0]["schedulable"] == {"memory": 5}
    quiet.node("n1", {}, UPDATE).run()
    assert quiet.dump()["nodes"][0]["schedulable"] == {}
    assert quiet.node_items() == []


def test_update_replaces_the_attributes_that_it_names_and_removes_empty_ones(quiet: Client) -> None:
    quiet.node("n1", action=UPDATE, attributes={"zone": "a", "disk": "ssd"})
    quiet.node("n1", action=UPDATE, attributes={"zone": "b", "disk": ""}).run()
    assert quiet.dump()["nodes"][0]["attributes"] == {"zone": "b"}


def test_a_node_that_shrinks_below_what_is_held_gets_nothing_new(quiet: Client) -> None:
    quiet.node("n2", action=REMOVE).ask("a", 50)
    assert len(quiet.new()) == 1
    quiet.node("n1", 20, UPDATE).ask("b", 10)
    assert quiet.new() == []
    quiet.node("n1", 60, UPDATE)
    assert len(quiet.new()) == 1


@pytest.mark.parametrize("attributes", [{"ready": "false"}])
def test_a_node_that_is_not_ready_gets_nothing(quiet: Client, attributes: dict[str, str]) -> None:
    quiet.node("n2", action=REMOVE).node("n1", action=UPDATE, attributes=attributes).ask()
    assert quiet.new() == []
    quiet.node("n1", action=UPDATE, attributes={"ready": "true"})
    assert len(quiet.new()) == 1


def test_a_draining_node_gets_nothing_and_draining_twice_is_silent(quiet: Client) -> None:
    quiet.node("n2", action=REMOVE).node("n1", action=DRAIN).node("n1", action=DRAIN).ask()
    assert quiet.new() == []
    quiet.node("n1", action=UNDRAIN)
    assert len(quiet.new()) == 1
    assert quiet.node_items() == []


def test_a_node_that_goes_releases_its_allocations(quiet: Client) -> None:
    quiet.node("n2", action=REMOVE).ask("a", repeats=2).new()
    quiet.node("n1", action=REMOVE)
    releases = [item for _, item in quiet.items("allocations")]
    assert [(each.UUID, each.terminationType, each.message) for each in releases] == [
        ("u1", STOPPED_BY_RM, "node n1 removed"), ("u2", STOPPED_BY_RM, "node n1 removed")
    ]  # fmt: skip
    assert quiet.dump()["nodes"] == []
    assert quiet.used() == {}


EXISTING_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown application": ({"applicationID": "other"}, "'other' is not known"),
    "no UUID": ({"uuid": ""}, "no UUID"),
    "known UUID": ({"uuid": "u1"}, "known already"),
    "another node": ({"nodeID": "n1"}, "on node 'n1'"),
    "another partition": ({"partitionName": "gpu"}, "in partition 'gpu'"),
    "nothing": ({"amounts": 0}, "no quantity"),
    "negative": ({"amounts": -3}, "quantity -3"),
}


@pytest.mark.parametrize("case", EXISTING_FAULTS)
def test_a_node_with_a_wrong_allocation_is_refused_whole(quiet: Client, case: str) -> None:
    fields, words = EXISTING_FAULTS[case]
    quiet.ask().new()
    before = quiet.dump()
    quiet.node("n3", 10, existingAllocations=[existing("e1"), existing(**{"uuid": "e2", **fields})])
    field, _, reason = one(quiet.node_items())
    assert field == "rejected"
    assert words in reason
    assert quiet.dump() == before


def test_the_same_uuid_twice_in_one_node(quiet: Client) -> None:
    quiet.node("n3", 10, existingAllocations=[existing("e1"), existing("e1")])
    assert "known already" in one(quiet.node_items())[2]


def test_existing_allocations_are_facts_beyond_capacity(quiet: Client) -> None:
    quiet.node("n3", 10, existingAllocations=[existing("e1", 70), existing("e2", 5, nodeID="n3")])
    assert one(quiet.node_items())[:2] == ("accepted", "n3")
    assert quiet.used() == {"vcore": 75}
    assert quiet.application_items()[0] == ("updated", "app", "Accepted")
    assert quiet.new() == []


# ---- applications

APPLICATION_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "empty id": ({"application_id": ""}, "applicationID is empty"),
    "known id": ({"application_id": "app"}, "is known"),
    "long id": ({"application_id": "x" * (ID_CHARS_MAX + 1)}, str(ID_CHARS_MAX)),
    "unknown partition": ({"partitionName": "gpu"}, "'gpu' is not known"),
    "unknown queue": ({"queue": "root.nothing"}, "root.nothing"),
    "parent": ({"queue": "root.parent"}, "parent"),
    "closed": ({"queue": "root.closed"}, "closed to user"),
    "style": ({"gangSchedulingStyle": "Firm"}, "Hard or Soft"),
    "placeholderAsk over a max": ({"placeholderAsk": resource(1001)}, "at most 1000 vcore"),
    "placeholderAsk in a fair leaf": ({"queue": "root.fair", "placeholderAsk": resource(1)}, "by share"),
    "negative placeholderAsk": ({"placeholderAsk": resource(-1)}, "quantity -1"),
    "tags": ({"tags": dict.fromkeys(map(str, range(TAGS_MAX + 1)), "x")}, str(TAGS_MAX)),
    "groups": ({"ugi": UserGroupInformation(groups=["g"] * (GROUPS_MAX + 1))}, str(GROUPS_MAX)),
}


@pytest.mark.parametrize("case", APPLICATION_FAULTS)
def test_an_application_is_refused(case: str) -> None:
    fields, words = APPLICATION_FAULTS[case]
    rm = Client(config=FAIR_CONFIG).application()
    assert rm.application_items() == [("accepted", "app", "")]
    before = rm.dump()
    rm.application(**{"application_id": "other", **fields})
    field, _, reason = one(rm.application_items())
    assert field == "rejected"
    assert words in reason
    assert rm.dump() == before


def test_a_reason_is_cut(quiet: Client) -> None:
    quiet.application("other", queue="root." + "x" * 60 + ".y" * 2000)
    (item,) = [item for _, item in quiet.items("applications")]
    assert len(item.reason) <= REASON_CHARS_MAX


def test_an_application_is_removed_with_all_that_it_has(quiet: Client) -> None:
    quiet.ask("a", 10, repeats=2).ask("big", 1000).new()
    quiet.application_items()
    quiet.remove()
    assert quiet.allocation_items() == [("released", "u1", "STOPPED_BY_RM"), ("released", "u2", "STOPPED_BY_RM")]
    assert quiet.application_items() == [("updated", "app", "Completed")]
    assert quiet.used() == {}
    quiet.application()
    assert quiet.application_items() == [("accepted", "app", "")]


def test_removal_of_an_unknown_application_is_an_event() -> None:
    rm = Client(observed=True).remove("other").remove("other", partitionName="gpu")
    events, _ = rm.observed()
    assert [(event.objectID, event.reason) for event in events] == [("other", "RemoveIgnored")] * 2
    assert rm.application_items() == []
