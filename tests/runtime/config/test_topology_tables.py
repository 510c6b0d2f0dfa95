"""`[topology]`: both forms, and each fault at its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxsched.core.topology import Topology
from fluxsched.core.topology_conf import TOPOLOGY_BYTES_MAX
from fluxsched.errors import InvalidValue
from fluxsched.runtime.config.changes import changes
from fluxsched.runtime.config.reader import load_config, parse_config
from fluxsched.runtime.config.tables import topology as tables
from fluxsched.runtime.instance.parts.reloading import rewired
from fluxsched.runtime.inventory.discovery import MachineTopology
from fluxsched.runtime.inventory.sources import build_inventory

HERE = MachineTopology("me", (), (), "affinity")
TWO_LEAVES = """
[[topology.switch]]
name = "leaf0"
hosts = "fake[0-3]"
[[topology.switch]]
name = "leaf1"
hosts = ["fake[4-5]", "fake6,fake7"]
[[topology.switch]]
name = "spine"
switches = "leaf[0-1]"
"""


def test_switches_are_read() -> None:
    topology = parse_config(TWO_LEAVES, "site.toml").network.topology
    assert topology.hops("fake0", "fake7") == 4
    assert [switch.name for switch in topology.switches.values()] == ["leaf0", "leaf1", "spine"]


def test_slurms_file_is_read_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[topology]\npath = "topology.conf"\n')
    (tmp_path / "topology.conf").write_text("SwitchName=a Nodes=fake[0-1]\n")
    assert load_config(tmp_path / "site.toml").network.topology.leaf_of == {"fake0": "a", "fake1": "a"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            TWO_LEAVES.replace("fake6", "fake3"),
            "site.toml:7: [[topology.switch]] hosts: host fake3 is under switch leaf0 too: a host is under one leaf",
        ),
        (
            '[[topology.switch]]\nname = "a"\nswitches = "b"\n[[topology.switch]]\nname = "b"\nswitches = "a"\n',
            "site.toml:3: [[topology.switch]] switches: circle of switches: a, b, a (each under the next)",
        ),
        (
            TWO_LEAVES + 'hosts = "fake9"\n',
            "site.toml:8: [[topology.switch]] switch spine has both hosts and switches",
        ),
        (
            TWO_LEAVES.replace("leaf1", "leaf0", 1),
            "site.toml:6: [[topology.switch]] name: there is another switch of the name leaf0: rename one of them",
        ),
        (
            TWO_LEAVES.replace("leaf[0-1]", "leaf[0-2]"),
            "site.toml:10: [[topology.switch]] switches: no switch of the name leaf2: describe it, or leave it out",
        ),
        ('[[topology.switch]]\nhosts = "x"\n', "site.toml:1: [[topology.switch]] has no name: give it one"),
        ('[[topology.switch]]\nname = "a"\n', "site.toml:1: [[topology.switch]] switch a has neither hosts nor"),
        ('[[topology.switch]]\nname = 3\n', "site.toml:2: [[topology.switch]] name: must be a string, not an integer"),
        ('[[topology.switch]]\nname = "a"\nhosts = "x["\n', "site.toml:3: [[topology.switch]] hosts: hostlist"),
        ('[[topology.switch]]\nname = "a,b"\nhosts = "x"\n', "site.toml:2: [[topology.switch]] name: 'a,b' must be"),
        ('[topology]\nswitches = 3\n', "site.toml:2: [topology] unknown key 'switches'; known keys: path, switch, did"),
        ('[topology]\npath = "x"\nswitch = []\n', "site.toml:2: [topology] path: give either path or [[topology."),
        ('[topology]\npath = "absent"\n', "site.toml:2: [topology] path: topology absent cannot be read: No such file"),
    ],
)  # fmt: skip
def test_a_fault_has_its_table_and_line(text: str, told: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "site.toml")
    assert told in str(caught.value)


def test_faults_of_slurms_file_have_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.conf").write_text("SwitchName=a Nodes=x\nSwitchName=b Nodes=x\nSwitchName=b Nodes=y\n")
    name = str(tmp_path / "site.toml")
    with pytest.raises(InvalidValue) as caught:
        parse_config('[topology]\npath = "t.conf"\n', name)
    place = f"{name}:2: [topology] path: {tmp_path}/t.conf"
    assert str(caught.value).split("\n") == [
        f"{place}:2: Nodes: host x is under switch a too: a host is under one leaf",
        f"{place}:3: SwitchName: there is another switch of the name b: "
        "rename one of them, or describe it once",
    ]
    assert TOPOLOGY_BYTES_MAX == 1 << 24
    monkeypatch.setattr(tables, "TOPOLOGY_BYTES_MAX", 10)
    with pytest.raises(InvalidValue, match=r"t\.conf is longer than the limit of 10 bytes"):
        parse_config('[topology]\npath = "t.conf"\n', name)


def test_hosts_that_no_target_is_on_are_named_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue) as caught:
        build_inventory(parse_config(TWO_LEAVES, "site.toml"), fake="6x4", topology=lambda: HERE)
    assert str(caught.value) == (
        "site.toml:7: [[topology.switch]] hosts: no target is on fake[6-7], under switch leaf1: "
        "take it out, or add it to the resources"
    )
    (tmp_path / "t.conf").write_text("SwitchName=a Nodes=fake0,far\n")
    config = parse_config('[topology]\npath = "t.conf"\n', str(tmp_path / "site.toml"))
    with pytest.raises(InvalidValue, match=r":2: \[topology\] path: .*/t.conf:1: Nodes: no target is on far"):
        build_inventory(config, fake="6x4", topology=lambda: HERE)


def test_hosts_that_may_yet_be_discovered_are_taken() -> None:
    config = parse_config(TWO_LEAVES, "site.toml")
    assert build_inventory(config, topology=lambda: MachineTopology("me", HERE.cores, (), "x")).inventory.dynamic


def test_a_reload_tells_that_the_file_has_other_switches() -> None:
    before, after = Topology([]), parse_config(TWO_LEAVES, "site.toml").network.topology
    (told,) = rewired(before, after, [])
    assert (told.key, told.old, told.new) == ("topology", "0 switches", "3 switches, read anew")
    assert rewired(after, after, []) == []
    assert rewired(before, after, changes({}, {"topology": {"path": "x"}})) == []
