"""Switches over hosts: distances, parts of them, and all that can be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core import topology
from fluxsched.core.hostlist import HOSTS_MAX, Hostlist
from fluxsched.core.topology import SWITCH_LEVELS_MAX, SWITCHES_MAX, Switch, Topology
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
