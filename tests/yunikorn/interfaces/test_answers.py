"""What each input is answered with, by both interfaces: the table of rfc/si.md, row by row.

Each row starts with a node `n1` that runs `held` (UUID u1) of the application `app` in root.default.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("grpc")

import grpc

from fluxsched.yunikorn.messages import ALLOCATIONS, APPLICATIONS, NODES, PREEMPTED_BY_SCHEDULER, STOPPED_BY_RM, TIMEOUT

from .drivers import RM, Answer, Fault

CONFIG = """
partitions:
- name: default
  placementrules: [{name: provided, create: false}]
  queues:
  - name: root
    queues:
    - {name: default, submitacl: "*"}
    - {name: parent, parent: true, submitacl: "*", queues: [{name: leaf}]}
    - {name: closed}
    - {name: small, submitacl: "*", resources: {max: {vcore: 5}}}
    - {name: evenly, submitacl: "*", properties: {application.sort.policy: fair}}
"""


def amounts(**kinds: int) -> dict[str, Any]:
    return {"resources": {kind: {"value": value} for kind, value in kinds.items()}}


def node(node_id: str, action: Any = "CREATE", **fields: Any) -> tuple[str, dict[str, Any]]:
    return NODES, {"nodes": [{"nodeID": node_id, "action": action, **fields}]}


def holding(node_id: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """A node on which something runs."""
    held = {"UUID": "u2", "allocationKey": "k2", "applicationID": "app", "nodeID": node_id}
    return node(node_id, existingAllocations=[{**held, "resourcePerAlloc": amounts(vcore=1), **fields}])


def application(application_id: str, queue: str = "root.default", **fields: Any) -> tuple[str, dict[str, Any]]:
    new = {"applicationID": application_id, "queueName": queue, "ugi": {"user": "no-such-user"}, **fields}
    return APPLICATIONS, {"new": [new]}


def ask(key: str = "ask", vcore: int = 1000, **fields: Any) -> tuple[str, dict[str, Any]]:
    whole = {"allocationKey": key, "applicationID": "app", "resourceAsk": amounts(vcore=vcore), "maxAllocations": 1}
    return ALLOCATIONS, {"asks": [{**whole, **fields}]}


def allocation(**fields: Any) -> tuple[str, dict[str, Any]]:
    """As since version 1.6."""
    whole = {"allocationKey": "pod", "applicationID": "app", "resourcePerAlloc": amounts(vcore=1000)}
    return ALLOCATIONS, {"allocations": [{**whole, **fields}]}


def release(**fields: Any) -> tuple[str, dict[str, Any]]:
    return ALLOCATIONS, {"releases": {"allocationsToRelease": [fields]}}


def release_ask(**fields: Any) -> tuple[str, dict[str, Any]]:
    return ALLOCATIONS, {"releases": {"allocationAsksToRelease": [fields]}}


class Row(NamedTuple):
    """What is sent, one after the other, and the answers: list, id, and a pattern of the reason or message."""

    sent: list[tuple[str, dict[str, Any]]]
    answers: list[tuple[str, ...]]


ROWS = {
    "CREATE": Row([node("n2")], [("accepted", "n2")]),
    "CREATE, a known node": Row([node("n1")], [("rejected", "n1", "known")]),
    "CREATE, an unknown partition": Row(
        [node("n2", attributes={"si/node-partition": "gpu"})], [("rejected", "n2", "gpu")]
    ),
    "CREATE, the partition by its long name": Row(
        [node("n2", attributes={"si/node-partition": "[rm]default"})], [("accepted", "n2")]
    ),
    "existing: an unknown application": Row(
        [holding("n2", applicationID="none"), node("n2", "UPDATE")],
        [("rejected", "n2", "none"), ("rejected", "n2", "not known")],
    ),
    "existing: no UUID": Row([holding("n2", UUID=""), node("n2")], [("rejected", "n2", "UUID"), ("accepted", "n2")]),
    "existing: a known UUID": Row(
        [holding("n2", UUID="u1"), node("n2")], [("rejected", "n2", "u1"), ("accepted", "n2")]
    ),
    "existing: another node": Row([holding("n2", nodeID="n1")], [("rejected", "n2", "n1")]),
    "existing: another partition": Row([holding("n2", partitionName="gpu")], [("rejected", "n2", "gpu")]),
    "existing: beyond capacity": Row([holding("n2", resourcePerAlloc=amounts(vcore=1 << 50))], [("accepted", "n2")]),
    "UPDATE of an unknown node": Row([node("n9", "UPDATE")], [("rejected", "n9", "not known")]),
    "DRAIN_NODE of an unknown node": Row([node("n9", "DRAIN_NODE")], [("rejected", "n9", "not known")]),
    "DRAIN_TO_SCHEDULABLE of an unknown node": Row(
        [node("n9", "DRAIN_TO_SCHEDULABLE")], [("rejected", "n9", "not known")]
    ),
    "DECOMISSION of an unknown node": Row([node("n9", "DECOMISSION")], [("rejected", "n9", "not known")]),
    "DRAIN_TO_SCHEDULABLE, not draining": Row(
        [node("n1", "DRAIN_TO_SCHEDULABLE")], [("rejected", "n1", "not draining")]
    ),
    "no action": Row([node("n1", "UNKNOWN_ACTION_FROM_RM")], [("rejected", "n1", "action")]),
    "an unknown action": Row([node("n1", 99)], [("rejected", "n1", "99")]),
    "a negative quantity": Row(
        [node("n1", "UPDATE", schedulableResource=amounts(vcore=-1))], [("rejected", "n1", "vcore.*-1")]
    ),
    "a quantity above the limit": Row(
        [node("n1", "UPDATE", schedulableResource=amounts(vcore=(1 << 60) + 1))], [("rejected", "n1", str(1 << 60))]
    ),
    "the largest quantity": Row([node("n2", schedulableResource=amounts(vcore=1 << 60))], [("accepted", "n2")]),
    "another si/node-partition": Row(
        [node("n1", "UPDATE", attributes={"si/node-partition": "gpu"})], [("rejected", "n1", "gpu")]
    ),
    "UPDATE is silent": Row([node("n1", "UPDATE", schedulableResource=amounts(vcore=20_000))], []),
    "DRAIN_NODE twice is silent": Row([node("n1", "DRAIN_NODE"), node("n1", "DRAIN_NODE")], []),
    "a drain and its end are silent": Row([node("n1", "DRAIN_NODE"), node("n1", "DRAIN_TO_SCHEDULABLE")], []),
    "DECOMISSION": Row([node("n1", "DECOMISSION")], [("released", "held", "node n1 removed")]),
    "application": Row([application("new")], [("accepted", "new")]),
    "application: no id": Row([application("")], [("rejected", "", "applicationID")]),
    "application: a known id": Row([application("app")], [("rejected", "app", "known")]),
    "application: an unknown partition": Row([application("new", partitionName="gpu")], [("rejected", "new", "gpu")]),
    "application: an unknown queue": Row([application("new", "root.none")], [("rejected", "new", r"root\.none")]),
    "application: a parent": Row([application("new", "root.parent")], [("rejected", "new", r"root\.parent")]),
    "application: a leaf below": Row([application("new", "root.parent.leaf")], [("accepted", "new")]),
    "application: closed to the user": Row([application("new", "root.closed")], [("rejected", "new", "no-such-user")]),
    "application: no style": Row([application("new", gangSchedulingStyle="Loose")], [("rejected", "new", "Hard")]),
    "application: a style": Row([application("new", gangSchedulingStyle="Soft")], [("accepted", "new")]),
    "placeholderAsk over a max": Row(
        [application("new", "root.small", placeholderAsk=amounts(vcore=6000))], [("rejected", "new", "5000")]
    ),
    "placeholderAsk in a fair leaf": Row(
        [application("new", "root.evenly", placeholderAsk=amounts(vcore=1000))], [("rejected", "new", "by share")]
    ),
    "RemoveApplication": Row(
        [(APPLICATIONS, {"remove": [{"applicationID": "app"}]})], [("released", "held", "")]
    ),
    "RemoveApplication, unknown": Row([(APPLICATIONS, {"remove": [{"applicationID": "none"}]})], []),
    "ask": Row([ask()], [("new", "ask")]),
    "ask: an unknown partition": Row([ask(partitionName="gpu")], [("rejected", "ask", "gpu")]),
    "ask: an unknown application": Row([ask(applicationID="none")], [("rejected", "ask", "none")]),
    "ask: all zero": Row([ask(vcore=0)], [("rejected", "ask", "nothing|zero")]),
    "ask: no resource": Row([ask(resourceAsk=None)], [("rejected", "ask", "nothing|zero")]),
    "ask: negative": Row([ask(vcore=-5)], [("rejected", "ask", "-5")]),
    "ask: maxAllocations 0": Row([ask(maxAllocations=0)], [("rejected", "ask", "maxAllocations")]),
    "ask: maxAllocations negative": Row([ask(maxAllocations=-1)], [("rejected", "ask", "maxAllocations")]),
    "ask: no key": Row([ask("")], [("rejected", "", "allocationKey")]),
    "ask: without an application": Row([ask(applicationID="")], [("new", "ask")]),
    "ask that no node can hold waits": Row([ask(vcore=1 << 40)], []),
    "ask whose required node is absent waits": Row([ask(tags={"yunikorn.apache.org/requiredNode": "n9"})], []),
    "ask: a constraint that is none": Row(
        [ask(tags={"fluxsched/constraint": "[1"})], [("rejected", "ask", "constraint")]
    ),
    "ask, a known key: how many more": Row([ask(), ask(maxAllocations=2)], [("new", "ask")] * 3),
    "ask, a known key: R leaves the old": Row(
        [ask(vcore=1 << 40), ask(maxAllocations=0), ask(vcore=1000)], [("rejected", "ask", "max"), ("new", "ask")]
    ),
    "allocation without a node": Row([allocation()], [("new", "pod")]),
    "allocation with its node": Row([allocation(nodeID="n1")], [("new", "pod")]),
    "allocation, a known key": Row([allocation(), allocation(), allocation(nodeID="n1")], [("new", "pod")]),
    "allocation, refused": Row([allocation(applicationID="none")], [("rejectedAllocations", "pod", "none")]),
    "allocation, an unknown node": Row([allocation(nodeID="n9")], [("rejectedAllocations", "pod", "n9")]),
    "allocation of another scheduler": Row(
        [allocation(nodeID="n1", applicationID="", allocationTags={"foreign": "static"})], []
    ),
    "release of an allocation by its key": Row(
        [allocation(), release(applicationID="app", allocationKey="pod")], [("new", "pod"), ("released", "pod", "")]
    ),
    "CREATE_DRAIN": Row([node("n2", "CREATE_DRAIN")], [("accepted", "n2")]),
    "existing: of an application that was refused": Row(
        [application("no", "root.none"), holding("n2", applicationID="no")],
        [("rejected", "no", ""), ("accepted", "n2")],
    ),
    "application: created by force": Row(
        [application("no", "root.none", tags={"application.create.force": "true"})], [("accepted", "no")]
    ),
    "release of an ask": Row([ask(vcore=1 << 40), release_ask(applicationID="app", allocationKey="ask")], []),
    "release of all asks": Row([ask(vcore=1 << 40), release_ask(applicationID="app")], []),
    "release of asks: neither": Row([release_ask()], [("rejected", "", "application|key")]),
    "release of asks: no partition": Row(
        [release_ask(applicationID="app", partitionName="gpu")], [("rejected", "", "gpu")]
    ),
    "release of an allocation": Row([release(applicationID="app", UUID="u1")], [("released", "held", "")]),
    "the same, type 1": Row(
        [release(applicationID="app", UUID="u1", terminationType=STOPPED_BY_RM)], [("released", "held", "")]
    ),
    "release of an unknown allocation": Row(
        [release(applicationID="app", UUID="none")], [("released", "", "not held")]
    ),
    "release of all of a key": Row([release(applicationID="app", allocationKey="held")], [("released", "held", "")]),
    "release of all of an application": Row([release(applicationID="app")], [("released", "held", "")]),
    "release, no UUID and no application": Row([release()], [("rejected", "", "application")]),
    "a confirmation has no echo": Row(
        [release(applicationID="app", UUID="u1", terminationType=TIMEOUT), release(applicationID="app", UUID="u1")],
        [("released", "", "not held")],
    ),
    "a confirmation of nothing": Row(
        [release(applicationID="app", UUID="none", terminationType=PREEMPTED_BY_SCHEDULER)], []
    ),
}  # fmt: skip


def prepared(rm: RM) -> RM:
    """A resource manager with the start of all rows."""
    rm.register(config=CONFIG)
    kind, fields = application("app")
    rm.send(kind, **fields)
    rm.wait(APPLICATIONS, "accepted")
    held = {"UUID": "u1", "allocationKey": "held", "applicationID": "app", "nodeID": "n1"}
    existing = [{**held, "resourcePerAlloc": amounts(vcore=1000)}]
    kind, fields = node("n1", schedulableResource=amounts(vcore=10_000), existingAllocations=existing)
    rm.send(kind, **fields)
    rm.wait(NODES, "accepted")
    return rm


def told(answer: Answer) -> str:
    return str(getattr(answer.item, "reason", "") or getattr(answer.item, "message", ""))


@pytest.mark.parametrize("name", ROWS)
def test_each_row(new_rm: Callable[[], RM], name: str) -> None:
    rm, row = prepared(new_rm()), ROWS[name]
    found = []
    for kind, fields in row.sent:
        rm.send(kind, **fields)
        found += rm.read(kind)
    found += rm.read(ALLOCATIONS)
    assert [(answer.part, answer.name) for answer in found] == [wanted[:2] for wanted in row.answers], found
    for answer, wanted in zip(found, row.answers, strict=True):
        assert re.search((*wanted, "")[2], told(answer)), told(answer)


BAD = [
    ("", INVALID := grpc.StatusCode.INVALID_ARGUMENT, "0 characters"),
    ("x" * 257, INVALID, "257 characters"),
]


@pytest.mark.parametrize(("rm_id", "code", "words"), BAD)
def test_an_rm_id_has_a_length(new_rm: Callable[[], RM], rm_id: str, code: grpc.StatusCode, words: str) -> None:
    rm = new_rm()
    rm.rm_id = rm_id
    with pytest.raises(Fault, match=words) as caught:
        rm.register()
    assert caught.value.code is code


def test_a_bad_config_is_refused_with_all_faults_and_changes_nothing(new_rm: Callable[[], RM]) -> None:
    rm = prepared(new_rm())
    before = rm.dump()
    bad = CONFIG.replace("vcore: 5", "vcore: -5").replace("name: closed", "nam: closed")
    with pytest.raises(Fault) as caught:
        rm.register(config=bad)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "max.vcore" in caught.value.text
    assert "nam" in caught.value.text
    with pytest.raises(Fault) as caught:
        rm.update_configuration(config=bad)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert rm.dump() == before


@pytest.mark.parametrize("kind", [NODES, APPLICATIONS, ALLOCATIONS])
def test_before_registration_nothing_is_taken(new_rm: Callable[[], RM], kind: str) -> None:
    rm = new_rm()
    with pytest.raises(Fault, match="register") as caught:  # noqa: PT012 - in process the first raises
        rm.send(kind)
        rm.read(kind)
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


def test_a_registration_again_starts_anew(new_rm: Callable[[], RM]) -> None:
    rm = prepared(new_rm())
    rm.register(config=CONFIG)
    kind, fields = node("n1")
    rm.send(kind, **fields)
    assert [(answer.part, answer.name) for answer in rm.read(kind)] == [("accepted", "n1")]
