"""Network of the machine: switches as a tree over host names, and how far apart two hosts are.

Law: a host is under one leaf, a switch under one other at most, and nothing is in a circle; `restrict` and `|` keep
that. Several roots are right: hosts under different ones, and hosts under none, are not connected as far as is known.
Cost is linear in the hosts and switches named; nothing is expanded before its size is known.

Slurm's topology.conf is read as its tree plugin takes it, lines of `SwitchName=` with `Switches=` or `Nodes=`: what
Slurm reads is read alike (case of keys, comments, lines that continue), every fault has the line where the switch
begins, and what says something of the network that we do not know is refused, not skipped. Our content of R's
`scheduling` (RFC 20), the ranks of each part and the switches above the hosts, is marked by its `writer`; that of any
other scheduler is carried along untouched and never read. A key is absent where there is nothing to say. Ranks that an
R no longer has may still be named: readers leave them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fluxsched.core.hostlist import HOSTS_MAX, Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.text import kind_of, named, shown, some_of
from fluxsched.errors import InvalidParts, InvalidValue, LimitExceeded

SWITCHES_MAX = 1 << 16
"""Leaves of two hosts each for 131,072 hosts: what has more is no network of switches."""

SWITCH_LEVELS_MAX = 8
"""A fat tree for 131,072 hosts has three levels, one of switches with four ports each has eight."""

_NO_HOSTS: Final = Hostlist()


@dataclass(frozen=True, slots=True)
class Switch:
    """A leaf, which has hosts, or a switch that has other switches below."""

    name: str
    hosts: Hostlist = _NO_HOSTS
    switches: tuple[str, ...] = ()

    @property
    def is_leaf(self) -> bool:
        """Return whether hosts are connected to the switch."""
        return not self.switches

    @classmethod
    def read(cls, name: str, hosts: object, switches: object) -> Switch:
        """From texts: hostlists of hosts and switches, one of them empty. Raises InvalidParts with the wrong keys."""
        faults: list[tuple[tuple[str, ...], str]] = []
        if not _is_host(name):
            remedy = "describe each switch by itself"
            faults.append((("name",), f"{shown(name)} must be one word without commas and brackets: {remedy}"))
        found = []
        for key, text in (("hosts", hosts), ("switches", switches)):
            try:
                found.append(Hostlist.parse(text))
            except InvalidValue as fault:
                faults.append(((key,), str(fault)))
        if faults:
            raise InvalidParts("; ".join([f"{path[0]}: {text}" for path, text in faults]), faults)
        return cls(name, found[0], found[1].hosts)

    def to_json(self) -> dict[str, Any]:
        """As R carries it: hosts and switches are hostlists."""
        if self.switches:
            return {"name": self.name, "switches": str(Hostlist(self.switches))}
        return {"name": self.name, "hosts": str(self.hosts)}


def _is_host(name: str) -> bool:
    try:
        return bool(Hostlist.of((name,)))
    except InvalidValue:
        return False


class SwitchFault(NamedTuple):
    """Fault of the switch at a position of a sequence, in one of its keys (None: in all of it)."""

    at: int
    key: str | None
    text: str


class Topology:
    """Switches by name, in the order in which they were given; it is never changed."""

    __slots__ = ("_chains", "_heights", "_leaf_of", "_parent_of", "switches")

    def __init__(self, switches: Iterable[Switch] = ()) -> None:
        """Trusts its switches; `of` and `parse` check them."""
        self.switches: Mapping[str, Switch] = {switch.name: switch for switch in switches}
        self._leaf_of: dict[str, str] | None = None
        self._parent_of: dict[str, str] | None = None
        self._chains: dict[str, tuple[str, ...]] = {}
        self._heights: dict[str, int] | None = None

    @classmethod
    def of(cls, switches: Sequence[Switch]) -> Topology:
        """Return a topology of these switches. Raises InvalidValue with all that is wrong with them, as
        `switch_faults`.
        """
        if faults := switch_faults(switches):
            raise InvalidValue("; ".join(_told(switches, fault) for fault in faults))
        return cls(switches)

    @classmethod
    def parse(cls, obj: object) -> Topology:
        """From the form of `to_json`. Raises InvalidValue naming the switch that is wrong."""
        if not isinstance(obj, list | tuple):
            raise InvalidValue(f"topology must be an array of switches, not {kind_of(obj)}")
        check_switches(len(obj))
        switches = []
        hosts = 0
        for at, each in enumerate(obj):
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise InvalidValue(f"topology[{at}] must be an object with the name of a switch, not {kind_of(each)}")
            try:
                switches.append(Switch.read(each["name"], each.get("hosts", ""), each.get("switches", "")))
            except InvalidValue as fault:
                raise InvalidValue(f"topology[{at}] {fault}") from None
            hosts += len(switches[-1].hosts)
            check_hosts(hosts)
        return cls.of(switches)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the switches as R carries them (RFC 20's `scheduling`)."""
        return [switch.to_json() for switch in self.switches.values()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.switches == other.switches

    def __hash__(self) -> int:
        return hash(tuple(self.switches))

    def __repr__(self) -> str:
        return f"<Topology of {len(self.switches)} switches>"

    def __bool__(self) -> bool:
        return bool(self.switches)

    # ---- looking up

    @property
    def leaf_of(self) -> Mapping[str, str]:
        """The leaf of each host."""
        if self._leaf_of is None:
            self._leaf_of = {host: each.name for each in self.switches.values() for host in each.hosts.hosts}
        return self._leaf_of

    @property
    def parent_of(self) -> Mapping[str, str]:
        """The switch above each switch that has one."""
        if self._parent_of is None:
            self._parent_of = {below: each.name for each in self.switches.values() for below in each.switches}
        return self._parent_of

    def chain(self, switch: str) -> tuple[str, ...]:
        """Return a switch and those above it, up to the root."""
        found = self._chains.get(switch)
        if found is None:
            above = self.parent_of.get(switch)
            found = self._chains[switch] = (switch,) if above is None else (switch, *self.chain(above))
        return found

    def heights(self) -> Mapping[str, int]:
        """Return the greatest number of links from each switch down to a host; 1 for a leaf."""
        if self._heights is None:
            heights: dict[str, int] = {}
            for leaf in self.switches.values():
                if leaf.is_leaf:
                    for links, name in enumerate(self.chain(leaf.name), 1):
                        heights[name] = max(links, heights.get(name, 0))
            self._heights = heights
        return self._heights

    def hops(self, one: str, other: str) -> int | None:
        """Return the links between two hosts: 0 for the same, 2 under one leaf, 4 at the next level; None: not
        connected.

        Below a switch whose hosts are not equally deep the longer side counts twice, so that it is always even.
        """
        if one == other:
            return 0
        leaves = self.leaf_of.get(one), self.leaf_of.get(other)
        if leaves[0] is None or leaves[1] is None:
            return None
        mine, theirs = self.chain(leaves[0]), self.chain(leaves[1])
        common = next((switch for switch in mine if switch in theirs), None)
        return None if common is None else 2 * (max(mine.index(common), theirs.index(common)) + 1)

    def lowest_common(self, hosts: Iterable[str]) -> str | None:
        """Return the lowest switch above all of these hosts; None where there is none."""
        leaves = {self.leaf_of.get(host) for host in hosts}
        common: tuple[str, ...] | None = None
        for leaf in leaves:
            chain = () if leaf is None else self.chain(leaf)
            common = chain if common is None else tuple([switch for switch in common if switch in chain])
        return common[0] if common else None

    # ---- algebra

    def restrict(self, hosts: Iterable[str]) -> Topology:
        """Only these hosts, and the switches above them; hosts that are under no switch are ignored."""
        kept: dict[str, list[str]] = {}
        leaf_of = self.leaf_of
        for host in dict.fromkeys(hosts):
            leaf = leaf_of.get(host)
            if leaf is not None:
                kept.setdefault(leaf, []).append(host)
        names = {name for leaf in kept for name in self.chain(leaf)}
        if len(names) == len(self.switches) and sum(map(len, kept.values())) == len(leaf_of):
            return self
        return Topology([self._cut(switch, kept, names) for switch in self._in_order(names)])

    def _in_order(self, names: set[str]) -> list[Switch]:
        """Return these switches, leaves and others as they were given; cheap for a few of many."""
        if len(names) * 8 > len(self.switches):
            return [switch for name, switch in self.switches.items() if name in names]
        return [self.switches[name] for name in sorted(names, key=lambda name: (len(self.chain(name)), name))]

    def _cut(self, switch: Switch, kept: Mapping[str, list[str]], names: set[str]) -> Switch:
        if switch.is_leaf:
            hosts = kept[switch.name]
            return switch if len(hosts) == len(switch.hosts) else Switch(switch.name, Hostlist(tuple(hosts)))
        below = tuple([name for name in switch.switches if name in names])
        return switch if len(below) == len(switch.switches) else Switch(switch.name, _NO_HOSTS, below)

    def __or__(self, other: Topology) -> Topology:
        """Return the switches of both; where they contradict each other, this one is right."""
        if not other.switches or self is other:
            return self
        if not self.switches:
            return other
        joined = dict(self.switches)
        for name, switch in other.switches.items():
            mine = joined.get(name)
            if mine is None:
                mine = Switch(name)
            elif mine == switch or mine.is_leaf != switch.is_leaf:
                continue
            hosts = tuple([host for host in switch.hosts.hosts if host not in self.leaf_of])
            below = tuple([name for name in switch.switches if name not in self.parent_of])
            if hosts or below:
                joined[name] = Switch(name, Hostlist(mine.hosts.hosts + hosts), mine.switches + below)
        return Topology(joined.values())


EMPTY_TOPOLOGY: Final = Topology()


# ---- what is wrong with switches


def check_switches(count: int) -> None:
    """Check a number of switches. Raise LimitExceeded above SWITCHES_MAX."""
    if count > SWITCHES_MAX:
        raise LimitExceeded(f"{count} switches are above the limit of {SWITCHES_MAX}: leave out those without hosts")


def check_hosts(count: int) -> None:
    """Raise LimitExceeded above HOSTS_MAX hosts in all."""
    if count > HOSTS_MAX:
        raise LimitExceeded(f"{count} hosts under switches are above the limit of {HOSTS_MAX}: name fewer hosts")


def switch_faults(switches: Sequence[Switch]) -> list[SwitchFault]:
    """All that is wrong with switches that were each read for itself."""
    faults = [
        *_doubled_names(switches),
        *_contents(switches),
        *_doubled_hosts(switches),
        *_doubled_switches(switches),
    ]
    return faults or _depths(switches)


def _told(switches: Sequence[Switch], fault: SwitchFault) -> str:
    return f"switch {switches[fault.at].name}: {fault.text}"


def _doubled_names(switches: Sequence[Switch]) -> list[SwitchFault]:
    faults = []
    seen: set[str] = set()
    for at, switch in enumerate(switches):
        if switch.name in seen:
            text = f"there is another switch of the name {switch.name}: rename one of them, or describe it once"
            faults.append(SwitchFault(at, "name", text))
        seen.add(switch.name)
    return faults


def _contents(switches: Sequence[Switch]) -> list[SwitchFault]:
    faults = []
    known = {switch.name for switch in switches}
    for at, switch in enumerate(switches):
        if switch.hosts.hosts and switch.switches:
            text = "has both hosts and switches: put the hosts under a leaf of their own below it"
            faults.append(SwitchFault(at, None, f"switch {switch.name} {text}"))
        elif not switch.hosts.hosts and not switch.switches:
            faults.append(SwitchFault(at, None, f"switch {switch.name} has neither hosts nor switches: leave it out"))
        if unknown := [name for name in switch.switches if name not in known]:
            text = f"no switch of the name {some_of(unknown)}: describe it, or leave it out"
            faults.append(SwitchFault(at, "switches", text))
    return faults


def _doubled_hosts(switches: Sequence[Switch]) -> list[SwitchFault]:
    faults = []
    leaf_of: dict[str, str] = {}
    for at, switch in enumerate(switches):
        doubled: dict[str, list[str]] = {}
        for host in switch.hosts.hosts:
            other = leaf_of.setdefault(host, switch.name)
            if other != switch.name:
                doubled.setdefault(other, []).append(host)
        for other, hosts in doubled.items():
            text = f"{_hosts(hosts)} under switch {other} too: a host is under one leaf"
            faults.append(SwitchFault(at, "hosts", text))
        if len(set(switch.hosts.hosts)) != len(switch.hosts) and not doubled:
            faults.append(SwitchFault(at, "hosts", "names a host twice: name each once"))
    return faults


def _hosts(hosts: Sequence[str]) -> str:
    return f"host {hosts[0]} is" if len(hosts) == 1 else f"hosts {Hostlist(tuple(hosts))} are"


def _doubled_switches(switches: Sequence[Switch]) -> list[SwitchFault]:
    faults = []
    above_of: dict[str, str] = {}
    for at, switch in enumerate(switches):
        if len(set(switch.switches)) != len(switch.switches):
            faults.append(SwitchFault(at, "switches", "names a switch twice: name each once"))
        for below in dict.fromkeys(switch.switches):
            other = above_of.setdefault(below, switch.name)
            if other != switch.name:
                text = f"switch {below} is under switch {other} too: a switch is under one other"
                faults.append(SwitchFault(at, "switches", text))
    return faults


def _depths(switches: Sequence[Switch]) -> list[SwitchFault]:
    """Circles, and what is too deep, in a set of switches where each is under one other at most."""
    above_of = {below: switch.name for switch in switches for below in switch.switches}
    rooted: set[str] = set()
    faults: list[SwitchFault] = []
    circling: set[str] = set()
    for at, switch in enumerate(switches):
        chain = [switch.name]
        walked = {switch.name}
        while chain[-1] not in rooted and (above := above_of.get(chain[-1])) is not None and above not in walked:
            chain.append(above)
            walked.add(above)
        if chain[-1] in rooted or chain[-1] not in above_of:
            rooted |= walked
        elif circling.isdisjoint(walked):
            circling |= walked
            circle = [*chain[chain.index(above_of[chain[-1]]) :], above_of[chain[-1]]]
            text = f"circle of switches: {some_of(circle)} (each under the next): take one out of the other's switches"
            faults.append(SwitchFault(at, "switches" if switch.switches else None, text))
    return faults or _too_deep(switches, above_of)


def _too_deep(switches: Sequence[Switch], above_of: Mapping[str, str]) -> list[SwitchFault]:
    depth_of: dict[str, int] = {}
    for switch in switches:
        chain = [switch.name]
        while chain[-1] not in depth_of and chain[-1] in above_of:
            chain.append(above_of[chain[-1]])
        depth = depth_of.get(chain[-1], 0) or 1
        for below, name in enumerate(reversed(chain)):
            depth_of[name] = depth + below
    deepest = max(depth_of.values(), default=0)
    if deepest <= SWITCH_LEVELS_MAX:
        return []
    at = next(at for at, switch in enumerate(switches) if depth_of[switch.name] > SWITCH_LEVELS_MAX)
    text = f"is at level {SWITCH_LEVELS_MAX + 1} below its root, of {deepest}: {SWITCH_LEVELS_MAX} levels are the limit"
    return [SwitchFault(at, None, f"switch {switches[at].name} {text}: leave out levels in between")]


# ---- Slurm's topology.conf

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
    """Return the topology in a text; `name` is its file's. Raises InvalidValue with `name:line: what` for each
    fault.
    """
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
        faults = [(lines[at], f"{_KEY_OF[key]}: {said}" if key else said) for at, key, said in switch_faults(switches)]
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


# ---- our content of R's `scheduling`

WRITER: Final = "fluxsched"

_PARTS: Final = "parts"
_TOPOLOGY: Final = "topology"


def is_foreign(scheduling: object) -> bool:
    """Return whether another scheduler has written this."""
    return scheduling is not None and not (isinstance(scheduling, dict) and scheduling.get("writer") == WRITER)


def parts_of(scheduling: object, ranks: Idset) -> dict[str, Idset]:
    """Return the ranks of each part among these, by label in the order of the parts; empty unless there are several.

    Raise InvalidValue for content that is marked as ours and cannot be read.
    """
    if scheduling is None or is_foreign(scheduling):
        return {}
    assert isinstance(scheduling, dict)
    obj = scheduling.get(_PARTS)
    if obj is None:
        return {}
    if not isinstance(obj, dict):
        raise InvalidValue(f"scheduling.{_PARTS} must be an object of label: idset, not {kind_of(obj)}")
    found: dict[str, Idset] = {}
    seen = EMPTY
    for label, text in obj.items():
        path = f"scheduling.{_PARTS}[{shown(label)}]"
        try:
            own = Idset.parse(text)
        except InvalidValue as fault:
            raise named(path, fault) from None
        if twice := own & seen:
            raise InvalidValue(f"{path}: ranks {twice} also belong to another part")
        seen |= own
        found[label] = own & ranks
    return found


def part_texts(scheduling: object, ranks: Idset) -> dict[str, str] | None:
    """Return the ranks of each part as texts; None unless there are several."""
    return {label: str(own) for label, own in parts_of(scheduling, ranks).items()} or None


def split_topology(scheduling: dict[str, Any] | None) -> tuple[object, Topology]:
    """Return the content without the topology, and the topology; a foreign one stays as it is, and has none.

    Raise InvalidValue for content that is marked as ours and cannot be read.
    """
    if scheduling is None or is_foreign(scheduling) or _TOPOLOGY not in scheduling:
        return scheduling, EMPTY_TOPOLOGY
    try:
        topology = Topology.parse(scheduling[_TOPOLOGY])
    except InvalidValue as fault:
        raise named("scheduling", fault) from None
    return _written(scheduling, _TOPOLOGY, None), topology


def switch_above(topology: Topology, hosts: Iterable[str]) -> str:
    """Return the lowest switch above all of these hosts, empty if there is none or it is not known."""
    return (topology.lowest_common(hosts) if topology else None) or ""


def put_topology(scheduling: object, topology: Topology) -> object:
    """Return the content with these switches; a foreign one stays as it is."""
    return scheduling if is_foreign(scheduling) else _written(scheduling, _TOPOLOGY, topology.to_json())


def put_parts(scheduling: object, parts: Mapping[str, Idset]) -> object:
    """Return the content with these parts; a foreign one stays as it is."""
    if is_foreign(scheduling):
        return scheduling
    return _written(scheduling, _PARTS, {label: str(ranks) for label, ranks in parts.items()})


def join_scheduling(one: object, other: object) -> object:
    """Of an R that gets what another one has: its own if that is foreign, else what both say."""
    if one is None or is_foreign(one):
        return other if one is None else one
    if other is None or is_foreign(other):
        return one
    assert isinstance(one, dict)
    assert isinstance(other, dict)
    both = {**other, **one}
    mine, theirs = one.get(_PARTS), other.get(_PARTS)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        labels = [*mine, *[label for label in theirs if label not in mine]]
        both[_PARTS] = {label: _union(mine.get(label), theirs.get(label)) for label in labels}
    return both


def _union(one: object, other: object) -> object:
    if one is None or other is None:
        return other if one is None else one
    try:
        return str(Idset.parse(one) | Idset.parse(other))
    except InvalidValue:
        return one  # it is carried along; who reads it is told what is wrong


def _written(scheduling: object, key: str, value: Any) -> dict[str, Any] | None:
    """Ours with one key changed, which is left out where its value is empty; None if nothing is left to say."""
    before = scheduling if isinstance(scheduling, dict) else {}
    kept = {name: said for name, said in before.items() if name not in (key, "writer")}
    if value:
        kept[key] = value
    return {"writer": WRITER, **kept} if kept else None
