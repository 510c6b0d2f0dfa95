"""`[topology]` of a configuration: the network's switches, in tables of ours or in Slurm's topology.conf.

Law: what a set of switches may be is decided by `core.topology`; here each fault gets its place, a key of the
configuration or a line of the other file. Whether the hosts exist is seen once the targets are known (`host_faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import EMPTY_TOPOLOGY, Switch, Topology, check_hosts, check_switches, switch_faults
from fluxsched.core.topology_conf import TOPOLOGY_BYTES_MAX, parse_topology_conf
from fluxsched.errors import InvalidParts, InvalidValue
from fluxsched.runtime.config.toml_lines import Path as Keys
from fluxsched.runtime.config.toml_reader import TomlFault, TomlTable
from fluxsched.runtime.system.files import read_text


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """The topology as configured. `place_of` has of each leaf the key of the configuration that has its hosts, and how
    that is called: `[[topology.switch]] hosts`, or `[topology] path: FILE:LINE: Nodes`.
    """

    topology: Topology = EMPTY_TOPOLOGY
    place_of: Mapping[str, tuple[Keys, str]] = field(default_factory=dict)

    def host_faults(self, resources: ResourceSet, line_of: Callable[[Keys], int]) -> Iterator[TomlFault]:
        """A fault for each leaf with hosts that no target is on; `line_of` knows the lines of the configuration."""
        if not self.topology:
            return
        known = set(resources.nodelist.hosts)
        for name, switch in self.topology.switches.items():
            if unknown := [host for host in switch.hosts.hosts if host not in known]:
                keys, place = self.place_of[name]
                said = f"no target is on {Hostlist(tuple(unknown))}, under switch {name}: take it out"
                yield TomlFault(line_of(keys), f"{place}: {said}, or add it to the resources", keys)


def read_topology(table: TomlTable, directory: Path) -> TopologySettings:
    """What a `[topology]` table says; nothing where it is wrong, which is noted in its document."""
    path, switches = table.text("path"), table.tables("switch")
    settings = TopologySettings()
    if path is not None and "switch" in table:
        table.fault("path", "give either path or [[topology.switch]], not both")
    elif path is not None:
        settings = _of_file(table, directory / Path(path).expanduser())
    elif "switch" in table:
        settings = _of_tables(table, switches)
    table.done()
    return settings


def _of_file(table: TomlTable, path: Path) -> TopologySettings:
    try:
        found = parse_topology_conf(read_text(path, "topology", TOPOLOGY_BYTES_MAX), str(path))
    except InvalidValue as fault:
        for text in str(fault).split("\n"):
            table.fault("path", text)
        return TopologySettings()
    keys = (*table.path, "path")
    places = {name: (keys, f"[topology] path: {path}:{at}: Nodes") for name, at in found.line_of.items()}
    return TopologySettings(found.topology, places)


def _of_tables(table: TomlTable, tables: list[TomlTable]) -> TopologySettings:
    switches: list[Switch] = []
    right = True
    try:
        check_switches(len(tables))
        for each in tables:
            switch = _switch(each)
            right = right and switch is not None
            switches.append(switch or Switch(""))
        check_hosts(sum([len(switch.hosts) for switch in switches]))
    except InvalidValue as fault:
        table.fault("switch", str(fault))
        return TopologySettings()
    faults = switch_faults(switches) if right else []
    for at, key, text in faults:
        tables[at].fault(key, text)
    if faults or not right:
        return TopologySettings()
    places = {
        switch.name: ((*each.path, "hosts"), "[[topology.switch]] hosts")
        for switch, each in zip(switches, tables, strict=True)
    }
    return TopologySettings(Topology(switches), places)


def _switch(table: TomlTable) -> Switch | None:
    """One switch; None for one that cannot be read, which is noted."""
    name, hosts, switches = table.text("name"), table.joined("hosts"), table.joined("switches")
    table.done()
    if name is None:
        if "name" not in table:
            table.fault(None, "has no name: give it one that no other switch has")
        return None
    try:
        return Switch.read(name, hosts, switches)
    except InvalidParts as wrong:
        for path, text in wrong.faults:
            table.fault_at(path, text)
    return None
