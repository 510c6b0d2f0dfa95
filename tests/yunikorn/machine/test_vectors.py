"""Given situations and what follows from them."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf")
pytest.importorskip("yaml")

from .rms import Client, existing

TWO_LEAVES = """
partitions: [{name: default, queues: [{name: root, submitacl: "*", queues: [{name: a}, {name: b}]}]}]
"""
MAX_150 = """
partitions:
  - name: default
    queues:
      - {name: root, submitacl: "*", queues: [{name: a, resources: {max: {memory: 150}}}]}
"""
BY_SHARE = """
partitions:
  - name: default
    queues:
      - name: root
        submitacl: "*"
        properties: {application.sort.priority: disabled}
        queues:
          - {name: q1, resources: {guaranteed: {memory: 100}}}
          - {name: q2, resources: {guaranteed: {memory: 100}}}
          - {name: q3, resources: {guaranteed: {memory: 100}}}
          - {name: q4, resources: {guaranteed: {memory: 100}}}
"""


def test_a_maximum_holds_where_nodes_have_room() -> None:
    rm = Client(config=MAX_150).node("n1", {"memory": 100}).node("n2", {"memory": 100}).application(queue="root.a")
    rm.ask("small", {"memory": 10}, 2).run()
    assert rm.used("root.a") == {"memory": 20}
    rm.ask("middle", {"memory": 50}, 2).ask("large", {"memory": 100}, 2).run()
    assert rm.used("root.a") == {"memory": 120}
    (application,) = rm.dump()["applications"]
    assert sum(ask["pending"] * ask["resource"]["memory"] for ask in application["asks"]) == 200


def test_two_leaves_get_the_same() -> None:
    rm = Client(config=TWO_LEAVES)
    for leaf in "ab":
        rm.application(leaf, f"root.{leaf}").ask(leaf, {"memory": 10}, 20, applicationID=leaf)
    rm.node("n1", {"memory": 100}).node("n2", {"memory": 100}).run()
    assert [len(each["allocations"]) for each in rm.dump()["applications"]] == [10, 10]


def test_queues_by_share_before_priority() -> None:
    rm = Client(config=BY_SHARE)
    for name, used in (("q1", 60), ("q2", 67), ("q3", 50), ("q4", 50)):
        rm.application(name, f"root.{name}").run()
        rm.node(
            f"of-{name}", {"memory": used}, existingAllocations=[existing(name, {"memory": used}, applicationID=name)]
        )
        priority = 5 if name == "q4" else 0
        rm.ask(name, {"memory": 30}, applicationID=name, priority=priority).run()
    order = []
    for n in range(4):
        rm.node(f"n{n}", {"memory": 30})
        order += [item.applicationID for item in rm.new()]
    assert order == ["q4", "q3", "q1", "q2"]


def test_after_a_kill_usage_and_uuids_are_the_same() -> None:
    rm = Client(config=TWO_LEAVES).node("n1", 100).application(queue="root.a").ask("a", 7, 3)
    had = rm.new()
    again = Client(config=TWO_LEAVES).application(queue="root.a").run()
    again.node("n1", 100, existingAllocations=had)
    assert again.new() == []
    assert again.used("root.a") == rm.used("root.a") == {"vcore": 21}
    assert again.dump()["nodes"][0]["allocations"] == [item.UUID for item in had]
    (application,) = again.dump()["applications"]
    assert [each["allocationKey"] for each in application["allocations"]] == ["a"] * 3
