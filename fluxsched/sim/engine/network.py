"""The switches of a simulated machine: those of a file, or made-up ones.

Law: files are read by the instance's own readers; hosts in them that the machine does not have are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from fluxsched.config.reader import load_config
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import SWITCH_LEVELS_MAX, SWITCHES_MAX, Switch, Topology
from fluxsched.core.topology_conf import TOPOLOGY_BYTES_MAX, parse_topology_conf
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.system.files import read_text

_MADE_UP: Final = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*")


def with_switches(resources: ResourceSet, source: str) -> ResourceSet:
    """The machine under the switches of a file (Slurm's topology.conf, or `[topology]` of a `.toml`), or made-up ones:
    `16x8` are leaves of 16 targets, 8 of them under a switch, and all under one root. Raises InvalidValue.
    """
    if _MADE_UP.fullmatch(source):
        return resources.with_topology(_made_up(resources, [int(part) for part in source.split("x")]))
    path = Path(source)
    if path.suffix == ".toml":
        topology = load_config(path).network.topology
    else:
        topology = parse_topology_conf(read_text(path, "topology", TOPOLOGY_BYTES_MAX), source).topology
    there = topology.restrict(resources.nodelist.hosts)
    if not there:
        raise InvalidValue(f"{source}: none of its hosts is a target here: these are {resources.nodelist}"[:400])
    return resources.with_topology(there)


def _made_up(resources: ResourceSet, widths: list[int]) -> Topology:
    if len(widths) >= SWITCH_LEVELS_MAX:
        raise LimitExceeded(f"{len(widths)} levels of switches and a root are more than {SWITCH_LEVELS_MAX} levels")
    hosts, width = resources.nodelist.hosts, widths[0]
    count = -(-len(hosts) // width)
    if 2 * count > SWITCHES_MAX:
        raise LimitExceeded(f"leaves of {width} targets are {count} for {len(hosts)}: above {SWITCHES_MAX // 2}")
    found = [Switch(f"leaf{at}", Hostlist(hosts[at * width : (at + 1) * width])) for at in range(count)]
    level = [switch.name for switch in found]
    for height, width in enumerate([*widths[1:], len(hosts)], 1):
        if len(level) == 1:
            break
        above = [level[at : at + width] for at in range(0, len(level), width)]
        root = len(above) == 1
        names = ["root"] if root else [f"level{height}-{at}" for at in range(len(above))]
        made = [Switch(name, switches=tuple(below)) for name, below in zip(names, above, strict=True)]
        found += made
        level = [switch.name for switch in made]
    return Topology(found)
