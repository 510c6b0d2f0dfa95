"""Slurm's topology.conf: what it may look like, and the line of all that is wrong."""

from __future__ import annotations

import pytest

from fluxsched.core import topology
from fluxsched.core.topology import FAULTS_MAX, parse_topology_conf
from fluxsched.errors import InvalidValue

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
