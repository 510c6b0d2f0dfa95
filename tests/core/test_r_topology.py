"""Switches in R: they travel by names of hosts, through text, renumbering and the R of jobs."""

from __future__ import annotations

import pytest

from fluxsched.core.group_change import GroupState, difference, grown, shrunk, with_own_topology
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import Children, Entry, ResourceSet
from fluxsched.core.topology import EMPTY_TOPOLOGY, Topology
from fluxsched.errors import InvalidValue

SWITCHES = [
    {"name": "l0", "hosts": "n[0-1]"},
    {"name": "l1", "hosts": "n[2-3]"},
    {"name": "s", "switches": "l[0-1]"},
]
TOPOLOGY = Topology.parse(SWITCHES)
CORES = Children(Idset.span(0, 3))
R = ResourceSet((Entry(Idset.parse("0-3"), CORES),), Hostlist.parse("n[0-3]"), topology=TOPOLOGY)
FOREIGN = {"writer": "fluxion", "graph": {"nodes": []}}


def test_r_carries_the_switches_by_names_of_hosts() -> None:
    text = R.to_json()
    assert text["scheduling"] == {"writer": "fluxsched", "topology": SWITCHES}
    assert ResourceSet.parse(text) == R
    assert ResourceSet.parse(text).scheduling is None
    assert ResourceSet.parse({**text, "scheduling": FOREIGN}).topology == EMPTY_TOPOLOGY


def test_parts_and_switches_stand_side_by_side() -> None:
    obj = {**R.to_json(), "scheduling": {"writer": "fluxsched", "parts": {"a": "0"}, "topology": SWITCHES}}
    found = ResourceSet.parse(obj)
    assert (found.parts, found.topology) == ({"a": Idset(1)}, TOPOLOGY)
    assert found.to_json()["scheduling"] == obj["scheduling"]


def test_a_foreign_scheduling_is_left_alone() -> None:
    foreign = ResourceSet.parse({**R.to_json(), "scheduling": FOREIGN})
    assert foreign.with_topology(TOPOLOGY).to_json()["scheduling"] == FOREIGN


def test_the_r_of_a_job_has_the_switches_of_its_hosts() -> None:
    def job(ranks: str) -> ResourceSet:
        return ResourceSet.build([(Idset.parse(ranks), CORES)], R, 0.0, 0.0, 1)

    assert "scheduling" not in job("2").to_json()
    assert job("1-2").topology.to_json() == [
        {"name": "l0", "hosts": "n1"},
        {"name": "l1", "hosts": "n2"},
        {"name": "s", "switches": "l[0-1]"},
    ]
    assert job("2-3").topology.to_json() == [{"name": "l1", "hosts": "n[2-3]"}, {"name": "s", "switches": "l1"}]
    whole = R.with_topology(EMPTY_TOPOLOGY)
    assert "scheduling" not in ResourceSet.build([(Idset.parse("0-3"), CORES)], whole, 0.0, 0.0, 1).to_json()


@pytest.mark.parametrize(("left", "leaves"), [("0-2", {"l0", "l1"}), ("0-1", {"l0"}), ("3", {"l1"})])
def test_the_r_of_a_job_that_shrinks_loses_the_switches_of_what_it_leaves(left: str, leaves: set[str]) -> None:
    found = shrunk(R, R.ranks - Idset.parse(left))
    assert (str(found.ranks), set(found.topology.leaf_of)) == (left, set(found.nodelist.hosts))
    assert set(found.topology.leaf_of.values()) == leaves
    assert grown(found, with_own_topology(R.without(found.ranks))).topology.leaf_of == TOPOLOGY.leaf_of


def test_renumbering_keeps_switches_and_drops_what_is_opaque() -> None:
    moved = ResourceSet.parse({**R.to_json(), "scheduling": FOREIGN}).rerank(4)
    assert moved.scheduling is None
    inside = R.restrict(Idset.parse("2-3")).rerank()
    assert (str(inside.ranks), inside.topology.hops("n2", "n3")) == ("0-1", 2)


def test_what_two_know_is_joined() -> None:
    left, right = (with_own_topology(R.restrict(Idset.parse(ranks))) for ranks in ("0-1", "2-3"))
    assert left.topology.leaf_of == {"n0": "l0", "n1": "l0"}
    assert (left | right) == R


def test_a_difference_tells_other_switches_and_a_grow_its_own() -> None:
    other = Topology.parse([{"name": "x", "hosts": "n[0-2]"}])
    all_of = GroupState(R, R.ranks, EMPTY)
    change = difference(all_of, all_of._replace(resources=R.with_topology(other)))
    assert change is not None
    assert (change.topology, change.is_update) == (other, True)
    gone = difference(all_of, all_of._replace(resources=R.with_topology(EMPTY_TOPOLOGY)))
    assert gone is not None
    assert gone.topology == EMPTY_TOPOLOGY
    same = R.with_topology(Topology.parse([*SWITCHES, {"name": "z", "hosts": "far"}]))
    assert difference(all_of, all_of._replace(resources=same)) is None
    grown = difference(GroupState(R, Idset(3), EMPTY), all_of)
    assert grown is not None
    assert grown.grow is not None
    assert grown.grow.topology.leaf_of == {"n2": "l1", "n3": "l1"}


def test_what_is_ours_and_wrong_is_named() -> None:
    obj = {**R.to_json(), "scheduling": {"writer": "fluxsched", "topology": [{"name": "a", "hosts": "x["}]}}
    with pytest.raises(InvalidValue, match=r"scheduling: topology\[0\] hosts: hostlist"):
        ResourceSet.parse(obj)
