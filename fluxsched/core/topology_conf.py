"""Slurm's topology.conf, as its tree plugin takes it: lines of `SwitchName=` with `Switches=` or `Nodes=`.

Law: what Slurm reads is read alike (case of keys, comments, lines that continue), and every fault has the line where
the switch begins. What says something of the network that we do not know is refused, not skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fluxsched.core.jsontext import shown
from fluxsched.core.topology import Switch, Topology, check_hosts, check_switches, switch_faults
from fluxsched.errors import InvalidParts, InvalidValue

TOPOLOGY_BYTES_MAX = 1 << 24
"""131,072 hosts under 65,536 switches, each on a line of its own, take 5 MiB."""

FAULTS_MAX = 20
"""More than these are not read; the first ones often cause the others."""

_NAME, _NODES, _SWITCHES, _SPEED = "switchname", "nodes", "switches", "linkspeed"
_PLAIN: Final = {_NAME: "SwitchName", _NODES: "Nodes", _SWITCHES: "Switches", _SPEED: "LinkSpeed"}
_KEY_OF: Final = {"name": "SwitchName", "hosts": "Nodes", "switches": "Switches"}
_COMMENT: Final = re.compile(r"(?<!\\)#.*")
_YAML: Final = re.compile(r"---|(- *)?[\w-]+:( |$)")
_PAIR: Final = re.compile(r'([^\s=]+)\s*=\s*(?:"([^"]*)"|([^\s"]*))(?:\s+|$)')


class ConfTopology(NamedTuple):
    """Topology of a file, and the line on which each of its switches begins."""

    topology: Topology
    line_of: dict[str, int]


def parse_topology_conf(text: str, name: str) -> ConfTopology:
    """The topology in a text; `name` is its file's. Raises InvalidValue with `name:line: what` for each fault."""
    faults: list[tuple[int, str]] = []
    switches: list[Switch] = []
    lines: list[int] = []
    hosts = 0
    for line, content in _logical_lines(text):
        if not lines and not faults and _YAML.match(content):
            raise InvalidValue(f"{name}:{line}: this is YAML, as in Slurm's topology.yaml: only topology.conf is read")
        try:
            switches.append(_switch(content))
            lines.append(line)
            hosts += len(switches[-1].hosts)
            check_switches(len(switches))
            check_hosts(hosts)
        except InvalidValue as fault:
            faults.append((line, str(fault)))
        if len(faults) > FAULTS_MAX:
            break
    if not faults:
        faults = [
            (lines[at], f"{_KEY_OF[key]}: {said}" if key else said) for at, key, said in switch_faults(switches)
        ]
    if not switches and not faults:
        faults = [(1, "names no switch: give lines such as SwitchName=leaf0 Nodes=node[0-31]")]
    if faults:
        told = [f"{name}:{line}: {said}" for line, said in sorted(faults)[:FAULTS_MAX]]
        if len(faults) > FAULTS_MAX:
            told.append(f"{name}: and more faults; fix these first")
        raise InvalidValue("\n".join(told))
    return ConfTopology(Topology(switches), {switch.name: at for switch, at in zip(switches, lines, strict=True)})


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Each line that says something, without its comment, joined with those that continue it; by its first number."""
    first = 0
    parts: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        content = _COMMENT.sub("", line).rstrip()
        first = first if parts else number
        parts.append(content.removesuffix("\\"))
        if not content.endswith("\\"):
            joined = " ".join(parts).strip()
            parts = []
            if joined:
                yield first, joined
    if joined := " ".join(parts).strip():
        yield first, joined


def _switch(content: str) -> Switch:
    values = _values(content)
    name = values.get(_NAME)
    if name is None:
        raise InvalidValue(f"SwitchName is missing: {_only(values)}")
    try:
        return Switch.read(name, values.get(_NODES, ""), values.get(_SWITCHES, ""))
    except InvalidParts as wrong:
        raise InvalidValue("; ".join([f"{_KEY_OF[path[0]]}: {text}" for path, text in wrong.faults])) from None


def _only(values: Sequence[str] | dict[str, str]) -> str:
    other = next(iter(values), "")
    return f"{other} alone has no effect" if other else "give lines such as SwitchName=leaf0 Nodes=node[0-31]"


def _values(content: str) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(content):
        match = _PAIR.match(content, at)
        if match is None:
            raise InvalidValue(
                f"{shown(content[at:])} is not KEY=VALUE: give lines such as SwitchName=leaf0 Nodes=node[0-31]"
            )
        key = match[1].lower()
        if key not in _PLAIN:
            known = ", ".join(_PLAIN.values())
            raise InvalidValue(f"unknown key {shown(match[1])}: a topology/tree has {known} (blocks are not supported)")
        if key in found:
            raise InvalidValue(f"{_PLAIN[key]} is given twice: put all in one list")
        found[key] = match[2] if match[2] is not None else match[3]
        at = match.end()
    return found
