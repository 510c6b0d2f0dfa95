"""An instance as a resource manager: what the service is told, who starts where, what follows when things change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the scheduler interface is an extra: fluxsched[si]")

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.rm import AGAIN_S, ASKED, MOVES_MAX, NO_SERVICE, PRIORITY_MAX, SHARE, WHOLE
from tests.yunikorn.rm.peer import Joined, Node, amounts


@pytest.fixture
def resources() -> Callable[..., ResourceSet]:
    def build(ranks: str = "0-2", cores: int = 4, gpus: int = 0, **properties: str) -> ResourceSet:
        children = {"core": f"0-{cores - 1}"} | ({"gpu": "0"} if gpus else {})
        execution: dict[str, Any] = {"R_lite": [{"rank": ranks, "children": children}], "starttime": 0.0}
        execution |= {"expiration": 0.0, "nodelist": [f"n[{ranks}]"], "properties": properties}
        return ResourceSet.parse({"version": 1, "execution": execution})

    return build


@pytest.fixture
def joined(resources: Callable[..., ResourceSet]) -> Joined:
    return Joined(resources())


def test_targets_are_nodes_with_all_that_they_have(resources: Callable[..., ResourceSet]) -> None:
    joined = Joined(resources("3-4", cores=2, gpus=1, ssd="4"), offline=Idset.parse("3"))
    peer = joined.connect()
    joined.settle()
    assert sorted(peer.nodes) == ["n3/3", "n4/4"]
    assert amounts(peer.nodes["n3/3"].schedulableResource) == {"vcore": 2000, "gpu": 1, SHARE: WHOLE}
    assert peer.attributes["n3/3"] == {"si/hostname": "n3", "fluxsched.org/rank": "3", "ready": "false"}
    assert peer.attributes["n4/4"]["ssd"] == "true"


def test_a_job_starts_where_the_service_says_on_cores_that_we_choose(joined: Joined) -> None:
    peer = joined.connect()
    joined.submit(1, cores_per_task=3)
    joined.submit(2, cores_per_task=2)
    joined.submit(3, cores_per_task=1)
    joined.settle()
    assert joined.started == {1: {0: (0b0111, 0)}, 2: {1: (0b0011, 0)}, 3: {0: (0b1000, 0)}}
    assert {each.nodeID for each in peer.held.values()} == {"n0/0", "n1/1"}
    joined.free(1, 2, 3)
    joined.settle()
    assert (peer.held, peer.applications, peer.pending) == ({}, {}, [])


def test_what_does_not_fit_waits_for_the_service_and_cancel_withdraws_it(joined: Joined) -> None:
    peer = joined.connect()
    for jobid in range(4):
        joined.submit(jobid, cores_per_task=4)
    joined.settle()
    assert len(joined.started) == 3
    assert len(peer.pending) == 1
    joined.scheduler.cancel(3)
    joined.settle()
    assert (len(peer.pending), len(peer.applications)) == (0, 3)


def test_several_nodes_are_a_gang_on_different_ones_though_the_service_packs(joined: Joined) -> None:
    peer = joined.connect()
    joined.submit(1, nodes=3, cores_per_task=1)
    joined.settle()
    assert joined.started == {1: {0: (1, 0), 1: (1, 0), 2: (1, 0)}}
    assert [each.placeholder for each in peer.held.values()] == [False] * 3
    assert {each.nodeID for each in peer.held.values()} == {"n0/0", "n1/1", "n2/2"}
    (application,) = peer.applications.values()
    assert amounts(application.placeholderAsk)["vcore"] == 3000
    joined.free(1)
    joined.settle()
    assert peer.held == {}


def test_slots_anywhere_are_on_one_node_if_one_can_have_them(joined: Joined) -> None:
    joined.connect()
    joined.submit(1, ntasks=4)
    joined.submit(2, ntasks=6)
    joined.settle()
    assert joined.started == {1: {0: (0b1111, 0)}, 2: {1: (0b1111, 0), 2: (0b0011, 0)}}


def test_an_exclusive_job_has_nodes_to_itself(joined: Joined) -> None:
    peer = joined.connect()
    joined.submit(1)
    joined.submit(2, nodes=2, exclusive=True)
    joined.submit(3)
    joined.settle()
    assert joined.started == {1: {0: (1, 0)}, 2: {1: (15, 0), 2: (15, 0)}, 3: {0: (2, 0)}}
    assert peer.free["n1/1"][SHARE] == 0


def test_constraints_are_over_attributes_of_nodes(resources: Callable[..., ResourceSet]) -> None:
    joined = Joined(resources("0-3", ssd="2-3"))
    joined.connect()
    joined.submit(1, constraint={"properties": ["ssd"]})
    joined.submit(2, constraint={"properties": ["^ssd"]})
    joined.settle()
    assert [list(where) for where in joined.started.values()] == [[2], [0]]


def test_grow_offline_and_shrink_without_jobs(joined: Joined, resources: Callable[..., ResourceSet]) -> None:
    peer = joined.connect()
    joined.settle()
    more = resources("3")
    joined.scheduler.grown("default", more, more.ranks, Idset(), 0.0)
    joined.scheduler.went_offline(Idset.parse("1"))
    joined.settle()
    assert peer.attributes["n1/1"]["ready"] == "false"
    joined.scheduler.went_online(Idset.parse("1"))
    joined.shrink("0,2")
    joined.settle()
    assert {name: each["ready"] for name, each in peer.attributes.items()} == {"n1/1": "true", "n3/3": "true"}
    assert joined.released == Idset.parse("0,2")


def test_a_shrink_drains_ends_jobs_and_decommissions_when_they_are_gone(joined: Joined) -> None:
    peer = joined.connect()
    joined.submit(1, cores_per_task=4)
    joined.settle()
    joined.shrink("0-1")
    joined.settle()
    assert [(each.jobid, each.type) for each in joined.raised] == [(1, "node-failure")]
    assert peer.attributes["n0/0"]["draining"] == "true"
    assert "n1/1" not in peer.nodes
    assert joined.released == Idset.parse("1")
    joined.free(1)
    joined.settle()
    assert list(peer.nodes) == ["n2/2"]
    assert joined.released == Idset.parse("0-1")
    actions = [action for name, action in peer.actions if name == "n0/0"]
    assert actions == [Node.CREATE, Node.DRAIN_NODE, Node.DECOMISSION]


def test_a_target_that_comes_back_at_once_is_as_it_is_now(
    joined: Joined, resources: Callable[..., ResourceSet]
) -> None:
    peer = joined.connect()
    joined.settle()
    joined.shrink("0")
    back = resources("0", cores=8)
    joined.scheduler.grown("default", back, back.ranks, Idset(), 0.0)
    joined.settle()
    assert amounts(peer.nodes["n0/0"].schedulableResource)["vcore"] == 8000


def test_without_the_service_jobs_run_on_and_a_new_one_is_told_all_again(joined: Joined) -> None:
    old = joined.connect()
    joined.submit(1, cores_per_task=2)
    joined.submit(2, nodes=2, cores_per_task=2)
    joined.settle()
    uuids = sorted(old.held)
    joined.peer = None
    joined.rm.disconnected()
    joined.submit(3)
    joined.settle()
    assert 3 not in joined.started
    joined.free(1)
    new = joined.connect()
    joined.settle()
    assert set(joined.started) == {1, 2, 3}
    assert {uuid for uuid, each in new.held.items() if each.applicationID == "ƒ3"} <= set(uuids)
    assert sum(amounts(each.resourcePerAlloc)["vcore"] for each in new.held.values()) == 5000
    joined.free(2, 3)
    joined.settle()
    assert (new.held, new.applications) == ({}, {})


def test_jobs_from_before_us_are_told_as_running(joined: Joined, resources: Callable[..., ResourceSet]) -> None:
    joined.scheduler.hello(7, 16, 1, 0.0, resources("1", cores=3))
    peer = joined.connect()
    joined.settle()
    assert {name: free["vcore"] for name, free in peer.free.items()} == {"n0/0": 4000, "n1/1": 1000, "n2/2": 4000}
    joined.free(7)
    joined.settle()
    assert (peer.held, peer.free["n1/1"]["vcore"]) == ({}, 4000)


def test_what_the_service_refuses_to_know_is_occupied(joined: Joined, resources: Callable[..., ResourceSet]) -> None:
    joined.scheduler.hello(7, 16, 1, 0.0, resources("1", cores=3))
    peer = joined.connect()
    peer.refuses = "no such queue"
    joined.settle()
    assert peer.free["n1/1"]["vcore"] == 1000
    assert peer.held == {}


def test_owners_are_told_what_their_jobs_wait_for(joined: Joined) -> None:
    joined.submit(1, cores_per_task=4, nodes=3)
    joined.submit(2)
    joined.settle()
    assert (joined.why(1), joined.why(2)) == (NO_SERVICE, NO_SERVICE)
    joined.connect()
    joined.settle()
    assert joined.why(2) == ASKED


def test_a_refused_job_waits_with_the_reason_and_is_tried_again(joined: Joined) -> None:
    peer = joined.connect()
    peer.refuses = "the queue is full"
    joined.submit(1)
    joined.settle()
    assert joined.started == {}
    assert joined.why(1) == "the scheduler service refuses it: the queue is full"
    peer.refuses = ""
    joined.settle()
    assert joined.started == {}
    assert joined.rm.next_s == joined.now_s + AGAIN_S
    joined.now_s += AGAIN_S
    joined.settle()
    assert list(joined.started) == [1]


def test_what_the_service_preempts_ends_by_an_exception_and_is_confirmed(joined: Joined) -> None:
    peer = joined.connect()
    joined.submit(1)
    joined.settle()
    (uuid,) = peer.held
    back = messages.AllocationResponse()
    for _ in range(2):  # it is repeated until it is confirmed
        back.released.add(
            UUID=uuid, applicationID="ƒ2", terminationType=messages.PREEMPTED_BY_SCHEDULER, message="for a better one"
        )
    (application,) = peer.applications
    for each in back.released:
        each.applicationID = application
    joined.rm.receive("allocations", back, joined.now_s)
    joined.settle()
    assert [(each.jobid, each.type, each.note) for each in joined.raised] == [(1, "preempt", "for a better one")]
    assert peer.confirmed == []
    joined.free(1)
    joined.settle()
    assert peer.confirmed == [(uuid, messages.PREEMPTED_BY_SCHEDULER)]


def test_a_gang_that_is_not_found_in_time_gives_up_and_is_asked_for_anew(joined: Joined) -> None:
    peer = joined.connect()
    joined.submit(1, cores_per_task=4)
    joined.settle()
    joined.submit(2, nodes=3)
    joined.settle()
    assert len(peer.held) == 3
    back = messages.AllocationResponse()
    for uuid, each in peer.held.items():
        if each.placeholder:
            back.released.add(UUID=uuid, applicationID=each.applicationID, terminationType=messages.TIMEOUT)
    joined.rm.receive("allocations", back, joined.now_s)
    joined.settle()
    assert len(peer.held) == 1
    joined.free(1)
    joined.now_s += AGAIN_S
    joined.settle()
    assert sorted(joined.started[2]) == [0, 1, 2]
    assert all(each.endswith(".2") for each in peer.applications)


def test_a_service_that_gives_the_same_node_again_and_again_is_asked_anew_later(joined: Joined) -> None:
    peer = joined.connect()
    peer.heeds_constraints = False
    joined.submit(1, nodes=2)
    joined.settle()
    assert joined.started == {}
    assert peer.held == {}
    assert sum(1 for _, why in peer.confirmed if why == messages.STOPPED_BY_RM) == MOVES_MAX + 1
    peer.heeds_constraints = True
    joined.now_s += AGAIN_S
    joined.settle()
    assert sorted(joined.started[1]) == [0, 1]


def test_a_new_priority_is_told_as_far_as_the_interface_goes(joined: Joined) -> None:
    peer = joined.connect()
    joined.submit(1, cores_per_task=4, nodes=3)
    joined.submit(2)
    joined.settle()
    joined.scheduler.prioritize([(2, PRIORITY_MAX + 1)])
    joined.settle()
    ((ask, left),) = peer.pending
    assert (ask.priority, left) == (PRIORITY_MAX, 1)
