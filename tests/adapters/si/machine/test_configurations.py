"""Other configurations for resource managers that run: for all of a policy group, or for none."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.adapters.si.messages import UpdateConfigurationRequest
from fluxsched.errors import InvalidValue

from .rms import Client, World

TWO_PARTITIONS = """
partitions:
  - {name: default, queues: [{name: root, submitacl: "*", queues: [{name: default}, {name: spare}]}]}
  - {name: gpu, queues: [{name: root, submitacl: "*", queues: [{name: default}]}]}
"""
ONE_PARTITION = """
partitions:
  - {name: default, queues: [{name: root, submitacl: "*", queues: [{name: default}]}]}
"""


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
    with pytest.raises(InvalidValue, match="cannot go"):
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


def test_dumps_have_no_text_of_a_configuration() -> None:
    rm = Client(config=TWO_PARTITIONS + "# secret").node("n1", 1).application(tags={"token": "secret"})
    rm.ask("a", tags={"token": "secret"}).run()
    assert "secret" not in repr(rm.machine.state_dump())
