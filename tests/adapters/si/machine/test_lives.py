"""Applications through real messages: each row of their states, in the order in which managers see them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.adapters.si.messages import TIMEOUT, NodeInfo

from .rms import Client, existing, resource

ONE_AT_A_TIME = """
partitions:
- name: default
  queues: [{name: root, submitacl: "*", queues: [{name: default, maxapplications: 1}]}]
"""


def states(rm: Client, application_id: str = "app") -> list[str]:
    items = rm.application_items()
    return [state for field, each, state in items if field == "updated" and each == application_id]


def test_an_application_as_any() -> None:
    rm = Client().node("n1", 10).application()
    assert states(rm) == []
    assert states(rm.ask("a", 1, 3)) == ["Accepted", "Starting", "Running"]
    assert states(rm.release("u1").release("u2")) == []
    assert states(rm.release("u3")) == ["Completing"]
    assert states(rm.run(29.0)) == []
    assert states(rm.ask("b", 1)) == ["Running"]
    assert states(rm.release("u4").run(31.0)) == ["Completing", "Completed"]
    assert rm.application().application_items() == [("accepted", "app", "")]


def test_an_update_says_when_and_why() -> None:
    rm = Client().node("n1", 10).application().ask("a", 1)
    (accepted, starting) = [item for field, item in rm.items("applications") if field == "updated"]
    assert (accepted.message, accepted.stateTransitionTimestamp) == ("runApplication", 1_000_000_000_000)
    rm.run(300.0)
    (running,) = [item for field, item in rm.items("applications")]
    assert (running.state, running.stateTransitionTimestamp) == ("Running", 1_300_000_000_000)
    assert starting.state == "Starting"


def test_it_is_running_at_once_where_its_tag_says_so() -> None:
    rm = Client().node("n1", 10).application(tags={"application.stateaware.disable": "true"}).ask("a", 1)
    assert states(rm) == ["Accepted", "Starting", "Running"]


def test_it_stays_accepted_over_maxapplications() -> None:
    rm = Client(config=ONE_AT_A_TIME).node("n1", 10).application("one").application("two")
    rm.ask("a", 1, 2, applicationID="one").ask("b", 1, applicationID="two")
    assert [item.applicationID for item in rm.new()] == ["one", "one"]
    assert states(rm, "two") == ["Accepted"]
    rm.release("u1", applicationID="one").release("u2", applicationID="one")
    assert ("new", "b", "n1") in rm.allocation_items()


def test_recovered_allocations_are_facts_of_a_running_application() -> None:
    rm = Client().application()
    rm.node("n1", 1, existingAllocations=[existing("x", 2), existing("y", 2)])
    assert states(rm) == ["Accepted", "Starting", "Running"]
    assert rm.used() == {"vcore": 4}


def recovered(uuid: str, amount: int, **fields: Any) -> Any:
    return existing(uuid, amount, taskGroupName="g", placeholder=True, **fields)


def test_a_recovered_gang_goes_on_where_it_was() -> None:
    rm = Client().application(
        placeholderAsk=resource(8), gangSchedulingStyle="Hard", executionTimeoutMilliSeconds=60_000
    )
    old = {"yunikorn.apache.org/creationTime": "980"}
    rm.node("n1", 10, existingAllocations=[recovered("p1", 4, allocationTags=old), recovered("p2", 4)])
    assert states(rm) == ["Accepted", "Starting"]
    rm.ask("t", 4, taskGroupName="g")
    assert rm.allocation_items() == [("released", "p1", "PLACEHOLDER_REPLACED")]
    rm.release("p1", 4)
    assert [item.allocationKey for item in rm.new()] == ["t"]
    assert rm.run(39.0).allocation_items() == []
    assert rm.run(2.0).allocation_items() == [("released", "p2", "TIMEOUT")]
    rm.release("p2", TIMEOUT).run()
    assert rm.used() == {"vcore": 4}
    assert states(rm) == []


def test_placeholders_that_never_fit_wait_without_a_timeout() -> None:
    rm = Client().node("n1", 10).application(placeholderAsk=resource(12), executionTimeoutMilliSeconds=1000)
    rm.ask("p", 12, taskGroupName="g", placeholder=True)
    assert states(rm.run(100.0)) == ["Accepted"]
    assert rm.node("n2", 12).new()[0].placeholder


def test_a_placeholder_without_a_task_group_is_a_real_ask() -> None:
    rm = Client().node("n1", 10).application().ask("a", 1, placeholder=True)
    assert [item.placeholder for item in rm.new()] == [False]


def test_a_removed_application_is_completing_and_its_id_free_later() -> None:
    rm = Client().node("n1", 10).application().ask("a", 1).ask("b", 99).run().remove()
    assert rm.allocation_items() == [("new", "a", "n1"), ("released", "u1", "STOPPED_BY_RM")]
    assert states(rm) == ["Accepted", "Starting", "Completing"]
    assert rm.application().application_items()[0][0] == "rejected"
    rm.run(31.0).heard("applications")
    assert rm.application().application_items() == [("accepted", "app", "")]


CREATING = """
partitions:
- name: default
  placementrules: [{name: tag, value: namespace, create: true, parent: {name: fixed, value: teams}}, {name: user}]
  queues:
  - name: root
    submitacl: "ann"
    queues:
    - {name: teams, parent: true, childtemplate: {resources: {max: {vcore: 4m}}}}
    - {name: bob, submitacl: bob}
"""


def test_a_queue_is_made_from_the_template_and_goes_with_its_last_application() -> None:
    rm = Client(config=CREATING).node("n1", 10).application(queue="", tags={"namespace": "x"})
    rm.ask("a", 1, 6)
    assert len(rm.new()) == 4
    (teams, _) = rm.dump()["queues"]["queues"]
    (made,) = teams["queues"]
    assert (made["path"], made["max"]) == ("root.teams.x", {"vcore": 4})
    rm.remove().run(31.0)
    assert rm.dump()["queues"]["queues"][0]["queues"] == []


def test_a_quota_of_the_namespace_is_the_maximum() -> None:
    quota = '{"resources": {"vcore": {"value": 2}}}'
    rm = Client(config=CREATING).node("n1", 10)
    rm.application(queue="", tags={"namespace": "x", "namespace.resourcequota": quota}).ask("a", 1, 6)
    assert len(rm.new()) == 2


def test_access_lists_and_rules_refuse_in_words() -> None:
    rm = Client(config=CREATING).application(queue="", ugi={"user": "eve"}, tags={"namespace": "x"})
    ((field, _, reason),) = rm.application_items()
    assert field == "rejected"
    assert "queue 'root.teams' is closed to user 'eve'" in reason
    assert "there is no queue 'root.eve'" in reason
    rm.application(queue="", ugi={"user": "bob"})
    assert rm.application_items() == [("accepted", "app", "")]


LIMITED = """
partitions:
- name: default
  limits:
  - {users: [ann], maxresources: {vcore: 3m}}
  - {groups: [staff], maxresources: {vcore: 4m}}
  - {users: ["*"], maxresources: {vcore: 1m}}
  queues: [{name: default}]
"""


@pytest.mark.parametrize(
    ("user", "groups", "placed"), [("ann", ["staff"], 3), ("bob", ["staff"], 4), ("eve", ["x"], 1)]
)
def test_the_first_limit_that_names_the_user_holds(user: str, groups: list[str], placed: int) -> None:
    rm = Client(config=LIMITED).node("n1", 100).application(ugi={"user": user, "groups": groups}).ask("a", 1, 10)
    assert len(rm.new()) == placed


def test_a_maximum_of_nothing_allows_nothing() -> None:
    config = "partitions: [{queues: [{name: default, resources: {max: {gpu: 0}}}]}]"
    rm = Client(config=config).node("n1", {"gpu": 4, "vcore": 4}).application().ask("a", {"gpu": 1}).ask("b", 1)
    assert [item.allocationKey for item in rm.new()] == ["b"]


def test_a_placeholder_on_a_draining_node_is_replaced_there() -> None:
    rm = Client().node("n1", 10).application(placeholderAsk=resource(4), gangSchedulingStyle="Soft")
    rm.ask("p", 4, taskGroupName="g", placeholder=True).new()
    rm.node("n1", action=NodeInfo.DRAIN_NODE).ask("t", 4, taskGroupName="g")
    assert rm.allocation_items() == [("released", "u1", "PLACEHOLDER_REPLACED")]
    rm.release("u1", 4)
    assert [(item.allocationKey, item.nodeID) for item in rm.new()] == [("t", "n1")]


def test_real_asks_that_came_before_their_placeholders_wait_for_them() -> None:
    rm = Client().application(placeholderAsk=resource(4), gangSchedulingStyle="Hard")
    rm.ask("t", 3, 2, taskGroupName="g").ask("big", 9, taskGroupName="g").run()
    rm.ask("p", 4, taskGroupName="g", placeholder=True).node("n1", 4)
    assert rm.allocation_items() == [("new", "p", "n1"), ("released", "u1", "PLACEHOLDER_REPLACED")]
    rm.release("u1", 4).run()
    assert rm.used() == {"vcore": 3}
    rm.node("n2", 9)
    assert [item.allocationKey for item in rm.new()][-1:] == ["t"]
    assert states(rm) == ["Accepted", "Starting", "Running"]
