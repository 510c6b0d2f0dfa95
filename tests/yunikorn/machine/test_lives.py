"""Applications through real messages: each row of their states, in the order in which managers see them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from fluxsched.yunikorn import requests
from fluxsched.yunikorn.messages import TIMEOUT, NodeInfo

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
    old = {"creationTime": "980"}
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


def test_a_removed_application_is_forgotten_at_once() -> None:
    rm = Client().node("n1", 10).application().ask("a", 1).ask("b", 99).run().remove()
    assert rm.allocation_items() == [("new", "a", "n1"), ("released", "u1", "STOPPED_BY_RM")]
    assert states(rm) == ["Accepted", "Starting", "Completed"]
    rm.ask("c", 1)
    assert rm.allocation_items() == [("rejected", "c", "application 'app' is not known in partition 'default'")]
    assert rm.application().application_items() == [("accepted", "app", "")]
    rm.ask("d", 1)
    assert rm.run(100.0).dump()["applications"][0]["state"] == "Starting", "no timer of the former one is left"
    assert [item.allocationKey for item in rm.new()] == ["d"]


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


def tags(**resources: str) -> dict[str, str]:
    return {"namespace": "x", **{f"namespace.{name}": text for name, text in resources.items()}}


def test_tags_of_a_later_application_change_a_made_queue() -> None:
    rm = Client(config=CREATING).node("n1", 10)
    rm.application(queue="", tags=tags(resourcequota='{"resources": {"vcore": {"value": 2}}}')).ask("a", 1, 6)
    assert len(rm.new()) == 2
    more = tags(
        resourcequota='{"resources": {"vcore": {"value": "3"}}}',
        resourceguaranteed='{"resources": {"vcore": {"value": "1"}}}',
        resourcemaxapps="2",
    )
    rm.application("two", queue="", tags=more)
    assert len(rm.new()) == 1, "asks that waited have more"
    (made,) = rm.dump()["queues"]["queues"][0]["queues"]
    assert (made["max"], made["guaranteed"]) == ({"vcore": 3}, {"vcore": 1})
    rm.application("three", queue="", tags=tags()).ask("b", 1, applicationID="three").run()
    assert made == rm.dump()["queues"]["queues"][0]["queues"][0] | {"applications": ["app", "two"]}
    rm.release("u1").run()
    assert rm.used("root.teams.x") == {"vcore": 3}


def test_tags_do_not_change_a_configured_queue() -> None:
    quota = '{"resources": {"vcore": {"value": 1}}}'
    rm = Client().node("n1", 10).application(tags={"namespace.resourcequota": quota}).ask("a", 1, 3)
    assert len(rm.new()) == 3


def test_a_tag_that_cannot_be_read_refuses_its_application() -> None:
    rm = Client(config=CREATING)
    for name, text in (("resourceguaranteed", "{"), ("resourcemaxapps", "-1"), ("resourcemaxapps", "many")):
        rm.application(queue="", tags=tags(**{name: text}))
        ((field, _, reason),) = rm.application_items()
        assert field == "rejected"
        assert f"namespace.{name}" in reason


def test_applications_are_in_the_order_of_their_creation() -> None:
    rm = Client().application("new").application("old", tags={"yunikorn.apache.org/creationTime": "10"})
    rm.ask("n", 1, applicationID="new").ask("o", 1, applicationID="old").run().node("n1", 1)
    assert [item.allocationKey for item in rm.new()] == ["o"]
    rm.application("bad", tags={"yunikorn.apache.org/creationTime": "noon"})
    assert "creationTime" in next(reason for field, _, reason in rm.application_items() if field == "rejected")


# ---- what runs already


CLOSED = """
partitions:
- name: default
  queues: [{name: root, submitacl: "bob", queues: [{name: default, resources: {max: {vcore: 1m}}}]}]
"""


def test_what_runs_of_a_refused_application_is_recovered_and_its_node_stays() -> None:
    rm = Client(config=CLOSED).application(ugi={"user": "ann"})
    assert rm.application_items()[0][0] == "rejected"
    rm.node("n1", 10, existingAllocations=[existing("x", 2), existing("y", 3)])
    assert rm.node_items() == [("accepted", "n1", "")]
    assert (rm.used(), rm.used("root.@recovery@")) == ({"vcore": 5}, {"vcore": 5})
    rm.application("other", ugi={"user": "bob"}).ask("a", 1, applicationID="other")
    assert [item.nodeID for item in rm.new()] == ["n1"], "others go on there"
    rm.release("x").release("y")
    assert rm.allocation_items() == [("released", "x", "STOPPED_BY_RM"), ("released", "y", "STOPPED_BY_RM")]
    assert [child["path"] for child in rm.run(31.0).dump()["queues"]["queues"]] == ["root.default"]


def test_what_runs_of_an_application_that_was_never_sent_refuses_its_node() -> None:
    rm = Client(config=CLOSED).application(ugi={"user": "ann"}).application("kept", ugi={"user": "bob"})
    rm.remove().remove("kept").run()
    for name in ("app", "kept", "never"):
        rm.node("n1", 10, existingAllocations=[existing("x", applicationID=name)])
        assert rm.node_items()[-1][0] == "rejected"


def test_an_application_that_is_created_by_force_has_the_recovery_queue() -> None:
    force = {"application.create.force": "true"}
    rm = Client(config=CLOSED).application(ugi={"user": "ann"}, tags=force)
    rm.application("fits", ugi={"user": "bob"}, tags=force)
    assert rm.application_items() == [("accepted", "app", ""), ("accepted", "fits", "")]
    assert [each["queue"] for each in rm.dump()["applications"]] == ["root.@recovery@", "root.default"]
    rm.application("no", ugi={"user": "ann"}, tags={"application.create.force": "false"})
    rm.application("named", queue="root.@recovery@", ugi={"user": "bob"})
    assert [field for field, _, _ in rm.application_items()] == ["rejected", "rejected"]


def test_refused_kept_max_bounds_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (requests.REFUSED_KEPT_MAX, requests.REFUSED_BYTES_MAX) == (10_000, 4096)
    monkeypatch.setattr(requests, "REFUSED_KEPT_MAX", 1)
    monkeypatch.setattr(requests, "REFUSED_BYTES_MAX", 200)
    rm = Client(config=CLOSED).application("one").application("two").application("long", tags={"x": "y" * 200})
    for name, field in (("one", "rejected"), ("long", "rejected"), ("two", "accepted")):
        rm.node(name, 1, existingAllocations=[existing(name, applicationID=name)])
        assert [each[:2] for each in rm.node_items()] == [(field, name)]


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
