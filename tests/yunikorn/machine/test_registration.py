"""Registration of resource managers, their states, what the end of their streams means, and other configurations."""

from __future__ import annotations

import errno
import json
from itertools import product
from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.errors import InvalidTransition, InvalidValue, Refused
from fluxsched.yunikorn import config as reader
from fluxsched.yunikorn import machine as limits
from fluxsched.yunikorn.config import PartitionSettings
from fluxsched.yunikorn.machine import (
    BACKLOG_ITEMS_MAX,
    BUILD_INFO_MAX,
    BUILD_TEXT_CHARS_MAX,
    MANAGERS_MAX,
    RM_ID_CHARS_MAX,
    UNREAD_ITEMS_MAX,
    SIMachine,
)
from fluxsched.yunikorn.messages import (
    ALLOCATIONS,
    APPLICATIONS,
    NODES,
    PAUSED_S_MAX,
    RM_TRANSITIONS,
    ApplicationRequest,
    EndStreams,
    NodeRequest,
    RegisterResourceManagerRequest,
    RMEvent,
    RMState,
    UpdateConfigurationRequest,
    next_state,
)

from .rms import Client, World, existing

TWO_PARTITIONS = """
partitions:
  - {name: default, queues: [{name: root, submitacl: "*", queues: [{name: default}, {name: spare}]}]}
  - {name: gpu, queues: [{name: root, submitacl: "*", queues: [{name: default}]}]}
"""
ONE_PARTITION = """
partitions:
  - {name: default, queues: [{name: root, submitacl: "*", queues: [{name: default}]}]}
"""


def read_config(text: str) -> tuple[PartitionSettings, ...]:
    if "bad" in text:
        raise InvalidValue(f"queues[0].name: {text}")
    return reader.read_config("")


@pytest.fixture
def machine() -> SIMachine:
    return SIMachine({"batch": "of a file"}.get, lambda user: (), lambda: "uuid", read_config)


def registered(machine: SIMachine, rm_id: str = "rm", **fields: str) -> SIMachine:
    machine.register(RegisterResourceManagerRequest(rmID=rm_id, **fields), 0.0)
    return machine


def state_of(machine: SIMachine, rm_id: str = "rm") -> str:
    (rm,) = machine.state_dump(rm_id)["rms"]
    return str(rm["state"])


@pytest.mark.parametrize(("state", "event"), list(product(RMState, RMEvent)))
def test_every_event_in_every_state(state: RMState, event: RMEvent) -> None:
    if (state, event) in RM_TRANSITIONS:
        after = next_state(state, event)
        assert after is not RMState.INIT
        assert (after is RMState.RUNNING) == (event in (RMEvent.REGISTERED, RMEvent.RESUMED))
    else:
        with pytest.raises(InvalidTransition, match=state.value):
            next_state(state, event)


@pytest.mark.parametrize(("rm_id", "config", "words"), [
    ("", "", ["0 characters", str(RM_ID_CHARS_MAX)]),
    ("x" * (RM_ID_CHARS_MAX + 1), "", ["257 characters"]),
    ("rm", "bad", ["queues[0].name"]),
    ("", "bad", ["0 characters", "queues[0].name"]),
])  # fmt: skip
def test_a_bad_registration_names_all_faults(machine: SIMachine, rm_id: str, config: str, words: list[str]) -> None:
    registered(machine, "rm", config="good")
    with pytest.raises(InvalidValue) as fault:
        registered(machine, rm_id, config=config)
    assert all(word in str(fault.value) for word in words)
    assert state_of(machine) == "Running"
    assert list(machine.turn(0.0)) == []


def test_the_longest_rm_id(machine: SIMachine) -> None:
    registered(machine, "x" * RM_ID_CHARS_MAX)
    assert machine.is_registered("x" * RM_ID_CHARS_MAX)


def test_requests_before_registration(machine: SIMachine) -> None:
    for call, request in [
        (machine.update_node, NodeRequest(rmID="rm")),
        (machine.update_application, ApplicationRequest(rmID="rm")),
        (machine.update_configuration, UpdateConfigurationRequest(rmID="rm")),
    ]:
        with pytest.raises(Refused, match="register") as refusal:
            call(request, 0.0)
        assert refusal.value.errnum == errno.ENOENT


def test_a_request_of_another_kind(machine: SIMachine) -> None:
    registered(machine)
    with pytest.raises(InvalidValue, match="NodeRequest is not a"):
        machine.update_application(NodeRequest(rmID="rm"), 0.0)


def test_a_second_registration_begins_anew(machine: SIMachine) -> None:
    registered(machine)
    number = machine.stream_opened("rm", NODES, 0.0)
    machine.update_node(NodeRequest(rmID="rm"), 0.0)
    registered(machine)
    assert machine.backlog("rm") == 0
    assert list(machine.turn(0.0)) == []
    machine.stream_closed("rm", NODES, number, True, 1.0)
    assert state_of(machine) == "Running"


def test_a_second_registration_of_another_identity(machine: SIMachine) -> None:
    machine.register(RegisterResourceManagerRequest(rmID="rm"), 0.0, identity="one")
    with pytest.raises(Refused, match="certificate") as refusal:
        machine.register(RegisterResourceManagerRequest(rmID="rm"), 0.0, identity="other")
    assert refusal.value.errnum == errno.EPERM
    assert list(machine.turn(0.0)) == []


def test_managers_of_a_policy_group_have_equal_configurations(machine: SIMachine) -> None:
    registered(machine, "one", policyGroup="batch")
    registered(machine, "two", policyGroup="batch", config="of a file")
    with pytest.raises(InvalidValue, match="differs"):
        registered(machine, "three", policyGroup="batch", config="other")
    registered(machine, "four", policyGroup="web", config="other")


def test_the_only_manager_of_a_policy_group_may_register_with_another_configuration(machine: SIMachine) -> None:
    registered(machine, "one", policyGroup="batch")
    registered(machine, "one", policyGroup="batch", config="other")
    registered(machine, "two", policyGroup="batch", config="other")
    with pytest.raises(InvalidValue, match="'batch'"):
        registered(machine, "three", policyGroup="batch")


def test_there_are_so_many_managers(machine: SIMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MANAGERS_MAX", 2)
    registered(machine, "one")
    registered(machine, "two")
    registered(machine, "one")
    with pytest.raises(Refused, match="limit"):
        registered(machine, "three")
    assert MANAGERS_MAX == 256


def test_so_many_items_wait_to_be_read(machine: SIMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKLOG_ITEMS_MAX", 2)
    registered(machine)
    for _ in range(2):
        machine.update_node(NodeRequest(rmID="rm"), 0.0)
    with pytest.raises(Refused, match="more slowly"):
        machine.update_node(NodeRequest(rmID="rm"), 0.0)
    assert BACKLOG_ITEMS_MAX == 1_000_000


def test_lost_and_back_in_time(machine: SIMachine) -> None:
    registered(machine)
    number = machine.stream_opened("rm", NODES, 0.0)
    machine.stream_closed("rm", NODES, number, False, 10.0)
    assert state_of(machine) == "Paused"
    assert machine.next_wake_s == 10.0 + PAUSED_S_MAX
    assert list(machine.turn(10.0 + PAUSED_S_MAX - 1)) == []
    machine.stream_opened("rm", NODES, 60.0)
    assert state_of(machine) == "Running"
    assert list(machine.turn(1000.0)) == []


def test_lost_for_too_long(machine: SIMachine) -> None:
    registered(machine)
    number = machine.stream_opened("rm", NODES, 0.0)
    machine.stream_closed("rm", NODES, number, False, 10.0)
    (effect,) = machine.turn(10.0 + PAUSED_S_MAX)
    assert isinstance(effect, EndStreams)
    with pytest.raises(Refused, match="register"):
        machine.stream_opened("rm", NODES, 80.0)
    registered(machine)
    assert state_of(machine) == "Running"


def test_a_manager_without_streams_is_lost(machine: SIMachine) -> None:
    registered(machine)
    list(machine.turn(PAUSED_S_MAX))
    assert state_of(machine) == "Paused"
    list(machine.turn(2 * PAUSED_S_MAX))
    assert machine.state_dump() == {"rms": []}


def test_a_manager_in_process_needs_no_streams(machine: SIMachine) -> None:
    machine.register(RegisterResourceManagerRequest(rmID="rm"), 0.0, in_process=True)
    list(machine.turn(1e6))
    assert state_of(machine) == "Running"


@pytest.mark.parametrize(("ends", "state"), [
    ([True, True, True], None),
    ([False, True, True], "Paused"),
    ([True, True, False], "Paused"),
    ([False, False, False], "Paused"),
])  # fmt: skip
def test_streams_end(machine: SIMachine, ends: list[bool], state: str | None) -> None:
    registered(machine)
    kinds = (NODES, APPLICATIONS, ALLOCATIONS)
    numbers = [machine.stream_opened("rm", kind, 0.0) for kind in kinds]
    for kind, number, half_closed in zip(kinds, numbers, ends, strict=True):
        assert state_of(machine) == "Running"
        machine.stream_closed("rm", kind, number, half_closed, 0.0)
    if state is None:
        assert machine.state_dump() == {"rms": []}
    else:
        assert state_of(machine) == state


def test_a_stream_that_was_replaced_ends(machine: SIMachine) -> None:
    registered(machine)
    first = machine.stream_opened("rm", NODES, 0.0)
    second = machine.stream_opened("rm", NODES, 0.0)
    machine.stream_closed("rm", NODES, first, False, 0.0)
    assert state_of(machine) == "Running"
    machine.stream_closed("rm", NODES, second, True, 0.0)
    assert machine.state_dump() == {"rms": []}


def test_a_manager_that_reads_nothing_gets_no_decisions(machine: SIMachine) -> None:
    registered(machine)
    rm = machine._rms["rm"]
    machine.unread("rm", UNREAD_ITEMS_MAX - 1)
    assert rm.is_decided_for
    machine.unread("rm", UNREAD_ITEMS_MAX)
    assert not rm.is_decided_for


# ---- other configurations for managers that run


def update(rm: Client, config: str, group: str = "") -> None:
    request = UpdateConfigurationRequest(rmID=rm.rm_id, config=config, policyGroup=group)
    rm.machine.update_configuration(request, rm.world.now_s)


def queues(rm: Client) -> list[str]:
    return [queue["path"] for queue in rm.dump()["queues"]["queues"]]


def test_a_removed_queue_drains_and_goes_with_its_last_application() -> None:
    rm = Client(config=TWO_PARTITIONS).application("app", "root.spare").application("kept").run()
    update(rm, ONE_PARTITION)
    assert queues(rm) == ["root.default", "root.spare"]
    rm.application("late", "root.spare")
    assert rm.application_items()[-1][:2] == ("rejected", "late")
    rm.remove().run(31)
    assert queues(rm) == ["root.default"]


@pytest.mark.parametrize("what", ["node", "application"])
def test_a_partition_in_use_cannot_go(what: str) -> None:
    rm = Client(config=TWO_PARTITIONS)
    if what == "node":
        rm.node("n1", 1, attributes={"si/node-partition": "gpu"}).run()
    else:
        rm.application(partitionName="gpu").run()
    with pytest.raises(InvalidValue, match="cannot be removed"):
        update(rm, ONE_PARTITION)
    rm.dump("gpu")


def test_all_managers_of_a_group_are_changed_or_none() -> None:
    world = World()
    one, two = (Client(world, name, TWO_PARTITIONS, "group") for name in ("one", "two"))
    alone = Client(world, "alone", TWO_PARTITIONS)
    two.node("n1", 1, attributes={"si/node-partition": "gpu"}).run()
    with pytest.raises(InvalidValue, match="'two'"):
        update(one, ONE_PARTITION)
    assert queues(one) == ["root.default", "root.spare"]
    two.node("n1", action=4).run()
    update(one, ONE_PARTITION, "group")
    assert queues(one) == queues(two) == ["root.default"]
    assert queues(alone) == ["root.default", "root.spare"]
    Client(world, "three", ONE_PARTITION, "group")


@pytest.mark.parametrize(("config", "words"), [("partitions: []", "partitions"), ("partitions: [{", "line")])
def test_a_configuration_with_faults_changes_nothing(config: str, words: str) -> None:
    rm = Client(config=TWO_PARTITIONS)
    with pytest.raises(InvalidValue, match=words):
        update(rm, config)
    assert queues(rm) == ["root.default", "root.spare"]


def test_a_manager_is_of_one_policy_group() -> None:
    with pytest.raises(InvalidValue, match="policyGroup"):
        update(Client(group="one"), ONE_PARTITION, "other")


def test_a_configuration_may_be_updated_from_within_a_turn() -> None:
    rm = Client(config=TWO_PARTITIONS).node("n1", 1)
    for _ in rm.machine.turn(rm.world.now_s):
        update(rm, ONE_PARTITION)
        assert queues(rm) == ["root.default", "root.spare"]
    rm.run()
    assert queues(rm) == ["root.default"]


def test_a_configuration_that_is_not_possible_any_more_is_an_event() -> None:
    rm = Client(config=TWO_PARTITIONS, observed=True).node("n1", 1)
    turn = rm.machine.turn(rm.world.now_s)
    next(turn)
    update(rm, ONE_PARTITION)
    rm.node("n2", 1, attributes={"si/node-partition": "gpu"})
    rm.machine._rms["rm"]._read(float, 1.0)  # in the rest of the turn
    turn.close()
    events, _ = rm.observed()
    assert "ConfigurationIgnored" in [event.reason for event in events]
    assert queues(rm) == ["root.default", "root.spare"]


def test_dumps_have_no_text_of_a_configuration() -> None:
    rm = Client(config=TWO_PARTITIONS + "# secret").node("n1", 1).application(tags={"token": "secret"})
    rm.ask("a", tags={"token": "secret"}).run()
    assert "secret" not in repr(rm.machine.state_dump())


def test_dumps_show_what_a_manager_is() -> None:
    world = World()
    request = RegisterResourceManagerRequest(rmID="rm", version="v" * 999, buildInfo={"arch": "amd64", "k" * 999: "x"})
    request.buildInfo.update({f"z{number}": "y" for number in range(BUILD_INFO_MAX)})
    world.machine.register(request, world.now_s)
    (rm,) = world.machine.state_dump("rm")["rms"]
    assert rm["version"] == "v" * BUILD_TEXT_CHARS_MAX
    assert len(rm["buildInfo"]) == BUILD_INFO_MAX
    assert rm["buildInfo"].items() >= {"arch": "amd64", "k" * BUILD_TEXT_CHARS_MAX: "x"}.items()


def ordered(**policy: Any) -> str:
    first = "{name: default, "
    return ONE_PARTITION.replace(first, f"{first}nodesortpolicy: {json.dumps(policy)}, ", 1)


def test_the_order_of_nodes_follows_the_configuration_and_its_updates() -> None:
    """More of the memory is free on n1, more of the cores on n2."""
    rm = Client(config=ordered(type="fair", resourceweights={"memory": 1, "vcore": 0})).application().run()
    for node, used in (("n1", {"vcore": 8, "memory": 2}), ("n2", {"vcore": 2, "memory": 8})):
        rm.node(node, {"vcore": 10, "memory": 10}, existingAllocations=[existing(node, used)])
    placed = []
    for policy in (
        {}, {"type": "fair", "resourceweights": {"vcore": 1}}, {"type": "binpacking", "resourceweights": {"vcore": 1}}
    ):  # fmt: skip
        if policy:
            update(rm, ordered(**policy))
        (item,) = rm.ask(f"a{len(placed)}").new()
        placed.append(item.nodeID)
        rm.release(item.UUID).heard(ALLOCATIONS)
    assert placed == ["n1", "n2", "n1"]
