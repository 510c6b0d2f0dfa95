"""Topology: switches and hops, as they are configured, and in R."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core import topology
from fluxsched.core.hostlist import HOSTS_MAX, Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import (
    Children,
    Entry,
    GroupState,
    ResourceSet,
    difference,
    grown,
    shrunk,
    with_own_topology,
)
from fluxsched.core.topology import (
    EMPTY_TOPOLOGY,
    FAULTS_MAX,
    SWITCH_LEVELS_MAX,
    SWITCHES_MAX,
    Switch,
    Topology,
    parse_topology_conf,
)
from fluxsched.errors import InvalidValue, LimitExceeded

TWO_LEAVES = [
    {"name": "leaf0", "hosts": "node[0-3]"},
    {"name": "leaf1", "hosts": "node[4-7]"},
    {"name": "spine", "switches": "leaf[0-1]"},
]


def of(*switches: dict[str, Any]) -> Topology:
    return Topology.parse([*switches])


@st.composite
def topologies(draw: st.DrawFn, hosts_max: int = 24, levels_max: int = 3) -> Topology:
    """Trees of which not all leaves are equally deep; there may be several roots."""
    below: list[Switch] = []
    first = 0
    for at in range(draw(st.integers(1, 6))):
        n = draw(st.integers(1, 4))
        below.append(Switch(f"l{at}", Hostlist(tuple(f"n{host}" for host in range(first, min(first + n, hosts_max))))))
        first += n + draw(st.integers(0, 1))
    made = [leaf for leaf in below if leaf.hosts]
    below = list(made)
    for level in range(draw(st.integers(0, levels_max - 1))):
        taken = draw(st.lists(st.sampled_from(below), unique=True, min_size=1, max_size=4))
        above = Switch(f"s{level}", switches=tuple(switch.name for switch in taken))
        made.append(above)
        below = [switch for switch in below if switch not in taken] + [above]
    return Topology.of(made)


def test_the_same_leaf_is_2_hops_away_and_the_next_level_4() -> None:
    found = of(*TWO_LEAVES)
    assert [found.hops("node0", other) for other in ("node0", "node3", "node4", "node7")] == [0, 2, 4, 4]
    assert found.chain("leaf1") == ("leaf1", "spine")
    assert found.leaf_of["node4"] == "leaf1"
    assert found.lowest_common(["node0", "node1"]) == "leaf0"
    assert found.lowest_common(["node0", "node5"]) == "spine"


def test_hosts_of_other_roots_and_of_none_are_not_connected() -> None:
    found = of({"name": "a", "hosts": "x[0-1]"}, {"name": "b", "hosts": "y"})
    assert found.hops("x0", "x1") == 2
    assert found.hops("x0", "y") is None
    assert found.hops("x0", "elsewhere") is None
    assert found.lowest_common(["x0", "y"]) is None
    assert found.lowest_common(["x0", "elsewhere"]) is None


def test_the_longer_side_counts_where_hosts_are_not_equally_deep() -> None:
    found = of(
        {"name": "a", "hosts": "x"},
        {"name": "b", "hosts": "y"},
        {"name": "c", "hosts": "z"},
        {"name": "mid", "switches": "c"},
        {"name": "core", "switches": "a,b,mid"},
    )
    assert (found.hops("x", "y"), found.hops("x", "z"), found.hops("z", "x")) == (4, 6, 6)
    assert found.heights() == {"a": 1, "b": 1, "c": 1, "mid": 2, "core": 3}


def test_a_part_has_the_switches_of_its_hosts() -> None:
    found = of(*TWO_LEAVES)
    assert found.restrict(["node1", "node2", "other"]).to_json() == [
        {"name": "leaf0", "hosts": "node[1-2]"},
        {"name": "spine", "switches": "leaf0"},
    ]
    assert found.restrict([f"node{host}" for host in range(8)]) is found
    assert not found.restrict(["other"])


@settings(max_examples=30)
@given(topologies(), st.data())
def test_parts_keep_distances_and_make_the_whole_again(whole: Topology, data: st.DataObject) -> None:
    hosts = list(whole.leaf_of)
    assert Topology.parse(whole.to_json()) == whole
    some = data.draw(st.lists(st.sampled_from(hosts), unique=True))
    part, rest = whole.restrict(some), whole.restrict([host for host in hosts if host not in some])
    assert set(part.leaf_of) == set(some)
    assert Topology.parse(part.to_json()) == part
    joined = part | rest
    for one in hosts:
        for other in hosts:
            assert joined.hops(one, other) == whole.hops(one, other)
            if one in some and other in some:
                assert part.hops(one, other) == whole.hops(one, other)
    assert (whole | part) == whole


def test_what_two_say_differently_is_as_the_first_says() -> None:
    found = of({"name": "a", "hosts": "x"}) | of({"name": "b", "hosts": "x,y"}, {"name": "a", "switches": "b"})
    assert found.leaf_of == {"x": "a", "y": "b"}


@pytest.mark.parametrize(
    ("switches", "told"),
    [
        (
            [{"name": "a", "hosts": "x[0-3]"}, {"name": "b", "hosts": "x[2-4]"}],
            "switch b: hosts x[2-3] are under switch a too: a host is under one leaf",
        ),
        (
            [{"name": "a", "switches": "b"}, {"name": "b", "switches": "c"}, {"name": "c", "switches": "a"}],
            "switch a: circle of switches: a, c, b, a (each under the next): take one out of the other's switches",
        ),
        ([{"name": "a", "switches": "a"}], "switch a: circle of switches: a, a"),
        (
            [{"name": "a", "hosts": "x"}, {"name": "b", "hosts": "y", "switches": "a"}],
            "switch b has both hosts and switches: put the hosts under a leaf of their own below it",
        ),
        ([{"name": "a"}], "switch a has neither hosts nor switches: leave it out"),
        ([{"name": "a", "hosts": "x"}, {"name": "a", "hosts": "y"}], "another switch of the name a: rename one"),
        ([{"name": "a", "switches": "b,c"}], "no switch of the name b, c: describe it, or leave it out"),
        (
            [{"name": "a", "hosts": "x"}, {"name": "b", "switches": "a"}, {"name": "c", "switches": "a"}],
            "switch c: switch a is under switch b too: a switch is under one other",
        ),
        ([{"name": "a", "hosts": "x,x"}], "names a host twice"),
        ([{"name": "a b", "hosts": "x"}], "topology[0] name: 'a b' must be one word"),
        ([{"name": "a", "hosts": "x["}], "topology[0] hosts: hostlist"),
        ([{"name": "a", "hosts": 3}], "topology[0] hosts: hostlist must be a string such as"),
        ([{"hosts": "x"}], "topology[0] must be an object with the name of a switch"),
    ],
)
def test_what_is_wrong_is_named(switches: list[dict[str, Any]], told: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        of(*switches)
    assert told in str(caught.value)


def test_switches_that_are_no_array_are_refused() -> None:
    with pytest.raises(InvalidValue, match="topology must be an array of switches, not an object"):
        Topology.parse({})


def _deep(levels: int) -> list[dict[str, str]]:
    upper = [{"name": f"s{level}", "switches": f"s{level - 1}"} for level in range(1, levels)]
    return [{"name": "s0", "hosts": "x"}, *upper]


def test_so_many_levels_are_the_limit() -> None:
    assert of(*_deep(SWITCH_LEVELS_MAX)).heights()["s7"] == SWITCH_LEVELS_MAX
    with pytest.raises(InvalidValue, match=r"switch s0 is at level 9 below its root, of 9: 8 levels are the limit"):
        of(*_deep(SWITCH_LEVELS_MAX + 1))


def test_so_many_switches_and_hosts_are_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SWITCHES_MAX == 65_536
    with pytest.raises(LimitExceeded, match="65537 switches are above the limit of 65536"):
        Topology.parse([{}] * (SWITCHES_MAX + 1))
    many = f"x[1-{HOSTS_MAX}]"
    with pytest.raises(LimitExceeded, match="hosts under switches are above the limit"):
        of({"name": "a", "hosts": many}, {"name": "b", "hosts": "y"})
    assert topology.SWITCHES_MAX == SWITCHES_MAX


# Slurm's topology.conf: what it may look like, and the line of all that is wrong.


AS_SLURM_SHOWS_IT = """\
##################################################################
# Slurm's network topology configuration file for use with the
# topology/tree plugin
##################################################################
SwitchName=s0 Nodes=tux[0-5]  # the first
switchname=s1 nodes=tux[6-11] LinkSpeed=10
SwitchName=s2 \\
    Nodes="tux[12-17]"
SwitchName = s3 Switches=s[0-2]
"""


def test_a_file_of_slurm_is_read() -> None:
    found, lines = parse_topology_conf(AS_SLURM_SHOWS_IT, "topology.conf")
    assert found.to_json() == [
        {"name": "s0", "hosts": "tux[0-5]"},
        {"name": "s1", "hosts": "tux[6-11]"},
        {"name": "s2", "hosts": "tux[12-17]"},
        {"name": "s3", "switches": "s[0-2]"},
    ]
    assert lines == {"s0": 5, "s1": 6, "s2": 7, "s3": 9}
    assert found.hops("tux0", "tux17") == 4


def test_line_ends_of_other_systems_and_a_last_line_that_continues_are_read() -> None:
    assert parse_topology_conf("SwitchName=a Nodes=x\r\nSwitchName=b Nodes=y \\", "x").topology.leaf_of == {
        "x": "a",
        "y": "b",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SwitchName=a Nodes=x\nSwitchName=b Nodes=x", "t.conf:2: Nodes: host x is under switch a too: a host is"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "t.conf:1: Switches: circle of switches: a, b, a"),
        ("SwitchName=a Nodes=x\nSwitchName=b Nodes=y Switches=a", "t.conf:2: switch b has both hosts and switches"),
        ("SwitchName=a Nodes=x\n\nSwitchName=a Nodes=y", "t.conf:3: SwitchName: there is another switch of the name a"),
        ("SwitchName=a", "t.conf:1: switch a has neither hosts nor switches"),
        ("SwitchName=a Nodes=x[", "t.conf:1: Nodes: hostlist"),
        ("SwitchName=a,b Nodes=x", "t.conf:1: SwitchName: 'a,b' must be one word"),
        ("SwitchName=a Nodes=x Nodes=y", "t.conf:1: Nodes is given twice: put all in one list"),
        ("# of 25.05\n---\n- topology: t\n  tree:\n", "t.conf:2: this is YAML, as in Slurm's topology.yaml"),
        ("- topology: t", "t.conf:1: this is YAML"),
        ("SwitchName=s[0-1] Nodes=x", "t.conf:1: SwitchName: 's[0-1]' must be one word without commas"),
        ("BlockName=b0 Nodes=x", "t.conf:1: unknown key 'BlockName': a topology/tree has SwitchName, Nodes, Switches,"),
        ("Nodes=x", "t.conf:1: SwitchName is missing: nodes alone has no effect"),
        ("SwitchName=a \\\n Nodes x", "t.conf:1: 'Nodes x' is not KEY=VALUE"),
        ("# nothing", "t.conf:1: names no switch: give lines such as SwitchName=leaf0 Nodes=node[0-31]"),
    ],
)
def test_a_fault_has_its_line(text: str, told: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_topology_conf(text, "t.conf")
    assert str(caught.value).startswith(told)


def test_all_faults_are_told_up_to_a_limit() -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_topology_conf("x\n" * (FAULTS_MAX + 5), "t.conf")
    lines = str(caught.value).split("\n")
    assert len(lines) == FAULTS_MAX + 1
    assert lines[-1] == "t.conf: and more faults; fix these first"


def test_too_many_switches_are_refused_where_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "SWITCHES_MAX", 50)
    text = "".join(f"SwitchName=s{at} Nodes=n{at}\n" for at in range(51))
    with pytest.raises(InvalidValue, match=r"t.conf:51: 51 switches are above the limit of 50"):
        parse_topology_conf(text, "t.conf")


# Switches in R: they travel by names of hosts, through text, renumbering and the R of jobs.


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
