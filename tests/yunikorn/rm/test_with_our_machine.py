"""An instance as a resource manager of our own machine: gangs, gangs that hold half each, moves, another service."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the scheduler interface is an extra: fluxsched[si]")
pytest.importorskip("yaml")

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.yunikorn.rm import AGAIN_S, GANG_S
from tests.yunikorn.rm.peer import Joined


@pytest.fixture
def joined() -> Joined:
    execution: dict[str, Any] = {"R_lite": [{"rank": "0-2", "children": {"core": "0-3"}}], "starttime": 0.0}
    execution |= {"expiration": 0.0, "nodelist": ["n[0-2]"], "properties": {"ssd": "2"}}
    return Joined(ResourceSet.parse({"version": 1, "execution": execution}))


def test_jobs_run_and_leave_nothing_behind(joined: Joined) -> None:
    ours = joined.connect_ours()
    joined.submit(1, nodes=3, cores_per_task=2)
    joined.submit(2, constraint={"properties": ["ssd"]})
    joined.settle()
    assert sorted(joined.started[1]) == [0, 1, 2]
    assert list(joined.started[2]) == [2]
    assert len(ours.held) == 4
    joined.submit(3, ntasks=12)
    joined.settle()
    assert 3 not in joined.started
    joined.free(1, 2)
    joined.settle()
    assert {rank: cores.bit_count() for rank, (cores, _) in joined.started[3].items()} == {0: 4, 1: 4, 2: 4}
    joined.free(3)
    joined.settle()
    assert ours.held == []


def test_two_gangs_that_hold_half_each_do_not_wait_for_ever(joined: Joined) -> None:
    """Each asks for all three nodes whole; whatever they get of them, in the end one after the other has all."""
    ours = joined.connect_ours()
    joined.submit(1, nodes=3, exclusive=True)
    joined.submit(2, nodes=3, exclusive=True)
    for _ in range(20):
        joined.settle()
        if joined.started:
            break
        joined.now_s += GANG_S / 2
    assert len(joined.started) == 1
    (one,) = joined.started
    joined.free(one)
    for _ in range(20):
        joined.settle()
        if len(joined.started) == 2:
            break
        joined.now_s += AGAIN_S
    assert len(joined.started) == 2
    joined.free(3 - one)
    joined.settle()
    assert ours.held == []


def test_a_shrink_under_a_job_and_the_target_comes_back(joined: Joined) -> None:
    ours = joined.connect_ours()
    joined.submit(1, nodes=3, exclusive=True)
    joined.settle()
    joined.shrink("1")
    joined.settle()
    assert ours.nodes["n1/1"]["draining"] is True
    assert [each.jobid for each in joined.raised] == [1]
    joined.free(1)
    joined.settle()
    assert sorted(ours.nodes) == ["n0/0", "n2/2"]
    assert ours.held == []
    assert joined.released == Idset.parse("1")


def test_a_service_that_begins_anew_is_told_all(joined: Joined) -> None:
    joined.connect_ours()
    joined.submit(1, nodes=2, cores_per_task=4)
    joined.submit(2, cores_per_task=4)
    joined.submit(3, cores_per_task=4)
    joined.settle()
    started = set(joined.started)
    ours = joined.connect_ours()
    joined.settle()
    assert set(joined.started) == started
    assert len(ours.held) == 3
    joined.free(*started)
    joined.settle()
    assert set(joined.started) == {1, 2, 3}
