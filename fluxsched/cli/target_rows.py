"""Rows of resource tables: ranks that share labels, merged if the shown columns are equal; and the tree of switches.

Hosts are compressed, and a format that shows fewer labels gets fewer lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fluxsched.cli.options import InstanceHandle, Output
from fluxsched.cli.output import DIM, GREEN, RED, YELLOW, Field, parse_format, tick, user_name
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import amounts_setting
from fluxsched.core.resources import Children, ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.errors import Refused

STATUS_STATES = (
    "avail", "exclude", "draining", "drained", "torpid", "lost", "spare", "withheld", "drain", "online", "offline",
    "all",
)  # fmt: skip
MADE_UP = "made-up"
CLUSTER = "cluster"
CLUSTER_MARK = ":"
"""Behind the name of its cluster in that of a host of another instance (rfc/clusters.md)."""
"""Name of the place of targets outside the machine of the instance (MADE_UP, CLUSTER)."""
LIST_STATES = ("free", "allocated", "down", "spare", "withheld", "up", "all")


class ResourceRow(NamedTuple):
    """Some ranks of a resource set and what is said of them."""

    labels: Mapping[str, object]
    ranks: Idset
    source: ResourceSet


def _label(name: str) -> Any:
    return lambda row: row.labels.get(name)


def _count(kind: str) -> Any:
    return lambda row: row.source.restrict(row.ranks).count(kind)


def _amounts(row: ResourceRow) -> str:
    """Return the amounts counted on these ranks, and those that the instance has once, on no rank."""
    part = row.source.restrict(row.ranks)
    return amounts_setting(part.with_shared(row.source.shared).counted())


def _nodelist(row: ResourceRow) -> str:
    return str(row.source.hosts(row.ranks).unique()) if row.source.nodelist else ""


def _state_colour(value: object) -> str | None:
    text = str(value).rstrip("*")
    return {"down": RED, "offline": RED, "lost": RED, "drained": YELLOW, "draining": YELLOW,
            "torpid": YELLOW, "exclude": DIM, "spare": DIM, "withheld": DIM}.get(text)  # fmt: skip


def _up_colour(value: object) -> str:
    return GREEN if value in ("✔", "y") else RED


SHARED_FIELDS = {
    "properties": Field("PROPERTIES", _label("properties")),
    "nnodes": Field("NNODES", lambda row: len(row.ranks)),
    "ncores": Field("NCORES", _count("core")),
    "ngpus": Field("NGPUS", _count("gpu")),
    "amounts": Field("AMOUNTS", _amounts),
    "ranks": Field("RANKS", lambda row: str(row.ranks)),
    "nodelist": Field("NODELIST", _nodelist),
    "where": Field("WHERE", _label("where")),
    "replaces": Field("REPLACES", _label("replaces")),
    "rlist": Field("LIST", lambda row: row.source.restrict(row.ranks).summary()),
}
LIST_FIELDS = {"state": Field("STATE", _label("state"), _state_colour), **SHARED_FIELDS}
STATUS_FIELDS = {
    **LIST_FIELDS,
    "up": Field("UP", _label("up"), _up_colour),
    "group": Field("GROUP", _label("group")),
    "reason": Field("REASON", _label("reason")),
    "user": Field("USER", _label("user")),
    "timestamp": Field("TIMESTAMP", _label("timestamp")),
    "parts": Field("PARTS", _label("parts")),
}


def merged(rows: Iterable[ResourceRow], shown: frozenset[str]) -> list[ResourceRow]:
    """Join rows whose shown labels are equal; the first keeps its place. Properties and groups split rows if shown."""
    together: dict[tuple[object, ...], ResourceRow] = {}
    for row in rows:
        key = tuple(value for name, value in row.labels.items() if name in shown)
        if (same := together.get(key)) is not None:
            source = same.source if same.source is row.source else same.source | row.source
            row = ResourceRow(row.labels, same.ranks | row.ranks, source)
        together[key] = row
    return list(together.values())


def split(rows: Iterable[ResourceRow], label: str, parts: Mapping[str, Idset]) -> list[ResourceRow]:
    """Cut each row so that all its ranks are in the same `parts`; their names, comma separated, become the label."""
    done = []
    for row in rows:
        pieces: list[tuple[tuple[str, ...], Idset]] = [((), row.ranks)]
        for name, ranks in parts.items():
            pieces = [
                (had, piece)
                for names, whole in pieces
                for had, piece in (((*names, name), whole & ranks), (names, whole - ranks))
                if piece
            ]
        pieces = pieces or [((), row.ranks)]
        done += [ResourceRow({**row.labels, label: ",".join(names)}, ranks, row.source) for names, ranks in pieces]
    return done


def list_rows(answer: Mapping[str, Any], states: Iterable[str], shown: frozenset[str]) -> list[ResourceRow]:
    """Rows of `resource list` out of a resource.sched-status answer."""
    rows = [
        ResourceRow({"state": state}, held.ranks, held) for state in states for held in [scheduler_view(answer, state)]
    ]
    rows = [row for row in rows if row.ranks or row.labels["state"] not in ("spare", "withheld")]
    if "properties" in shown:
        rows = [piece for row in rows for piece in split([row], "properties", _public(row.source))]
    return merged(_replacing(_somewhere(rows, answer), answer), shown)


def _replacing(rows: Iterable[ResourceRow], answer: Mapping[str, Any]) -> list[ResourceRow]:
    """Return the rows with spares in service apart, with the label `replaces`; not those of withheld cores."""
    replaced, rows = answer.get("replaced", ()), list(rows)
    if not replaced:
        return rows
    hosts = {info["replaces_host"]: Idset.one(info["target"]) for info in replaced}
    return [
        piece
        for row in rows
        for piece in (split([row], "replaces", hosts) if row.labels["state"] != "withheld" else [row])
    ]


def _somewhere(rows: Iterable[ResourceRow], answer: Mapping[str, Any]) -> list[ResourceRow]:
    """Rows with the label `where`: made-up, in a cluster, or (where some are) here.

    It is empty if all targets are this machine.
    """
    rows, made_up = list(rows), Idset.parse(answer.get("made_up", ""))
    away = _in_clusters(rows)
    if not (made_up or away):
        return rows
    found: list[ResourceRow] = []
    for row in rows:
        if not row.ranks:
            found.append(row)
        for where, ranks in (
            ("here", row.ranks - made_up - away), (MADE_UP, row.ranks & made_up), (CLUSTER, row.ranks & away)
        ):  # fmt: skip
            if ranks:
                found.append(ResourceRow({**row.labels, "where": where}, ranks, row.source))
    return found


def _in_clusters(rows: list[ResourceRow]) -> Idset:
    """Return the targets among these that are another instance's."""
    sources = {id(row.source): row.source for row in rows}
    return Idset.of(rank for source in sources.values() for rank in _mirrored(source))


def _mirrored(source: ResourceSet) -> Idset:
    """Return the ranks of one set that are mirrored from other instances."""
    if CLUSTER_MARK not in str(source.nodelist):
        return Idset()
    hosts = zip(source.ranks, source.nodelist, strict=True)
    return Idset.of(rank for rank, host in hosts if CLUSTER_MARK in host)


def where_of(ranks: Idset, source: ResourceSet, made_up: Idset) -> str:
    """Return the place of the ranks in one word, for a row that is not to be cut, such as that of a group, whose
    targets are of `source`.
    """
    away = _mirrored(source)
    if not ranks or not (made_up or away):
        return ""
    if ranks <= away:
        return CLUSTER
    return MADE_UP if ranks <= made_up else "both" if ranks & made_up else "here"


def scheduler_view(answer: Mapping[str, Any], state: str) -> ResourceSet:
    """Return the resources in one of LIST_STATES."""
    total, down = ResourceSet.parse(answer["all"]), ResourceSet.parse(answer["down"])
    if state in ("all", "up"):
        return total if state == "all" else total - down
    allocated = ResourceSet.parse(answer["allocated"])
    if state == "free":
        return _with_cores(total - down - allocated, total)
    if state in ("spare", "withheld"):
        return ResourceSet.parse(answer[state]) if answer.get(state) else ResourceSet()
    return {"down": down, "allocated": allocated}.get(state, ResourceSet())


def _with_cores(left: ResourceSet, total: ResourceSet) -> ResourceSet:
    """Return the remaining resources of targets with a free core, or that have no cores: memory alone runs no job."""
    full = [rank for rank in left.ranks if not left.children(rank).count("core") and total.children(rank).count("core")]
    return left.without(Idset.of(full)).with_shared(left.shared)


def status_rows(answer: Mapping[str, Any], states: Iterable[str], shown: frozenset[str]) -> list[ResourceRow]:
    """Rows of `resource status` out of a resource.status answer."""
    source = ResourceSet.parse(answer["R"])
    offline = _gone(answer)
    parts = list(drain_rows(answer, source))
    left = source.ranks - Idset.parse(answer.get("exclude", ""))
    named = [("exclude", source.ranks - left)]
    for row in parts:
        left -= row.ranks
    idle = answer.get("groups", {}).get("spares", "") if answer.get("spares") else ""
    for name, text in (("lost", answer.get("lost", "")), ("torpid", answer.get("torpid", "")), ("spare", idle)):
        ranks = Idset.parse(text) & left
        left -= ranks
        named.append((name, ranks))
    rows = [ResourceRow(_labels(state), ranks, source) for state, ranks in [("avail", left), *named] if ranks] + parts
    rows += part_rows(answer.get("parts", ()), source) + part_rows(answer.get("withheld", ()), source)
    rows = [_with_availability(row, ranks, is_up) for row in rows
            for ranks, is_up in ((row.ranks - offline, True), (row.ranks & offline, False)) if ranks]  # fmt: skip
    rows = [row for row in rows if _wanted(row, frozenset(states))]
    if "properties" in shown:
        rows = split(rows, "properties", _public(source))
    if "group" in shown:
        rows = split(rows, "group", {name: Idset.parse(ids) for name, ids in answer.get("groups", {}).items()})
    return merged(_replacing(_somewhere(rows, answer), answer), shown)


def drain_rows(answer: Mapping[str, Any], source: ResourceSet) -> list[ResourceRow]:
    """Return the rows of drained targets in a resource.status answer: one row a reason, time, user and state."""
    return [
        ResourceRow(
            _labels(info.get("state") or "drained", info["reason"], _user(info.get("user")), info["timestamp"]),
            Idset.parse(ranks) & source.ranks,
            source,
        )
        for ranks, info in sorted(answer.get("drain", {}).items(), key=lambda item: (item[1]["timestamp"], item[0]))
    ]


def part_rows(lines: Iterable[Mapping[str, Any]], source: ResourceSet) -> list[ResourceRow]:
    """Return the rows of targets of which parts are drained or withheld: one row a reason, time, user and state."""
    found: list[ResourceRow] = []
    for info in sorted(lines, key=lambda info: (info["timestamp"], info["targets"])):
        labels = _labels(info["state"], info["reason"], _user(info.get("user")), info["timestamp"])
        parts = Children(Idset.parse(info.get("cores", "")), Idset.parse(info.get("gpus", "")))
        found.append(ResourceRow(labels | {"parts": str(parts)}, Idset.parse(info["targets"]) & source.ranks, source))
    return found


def drain_list(answer: Mapping[str, Any], shown: frozenset[str]) -> list[ResourceRow]:
    """Rows of `resource drain` without arguments; `*` marks what is offline as well."""
    source, offline = ResourceSet.parse(answer["R"]), _gone(answer)
    rows = [
        ResourceRow({**row.labels, "state": f"{row.labels['state']}{mark}"}, ranks, source)
        for row in [*drain_rows(answer, source), *part_rows(answer.get("parts", ()), source)]
        for ranks, mark in ((row.ranks - offline, ""), (row.ranks & offline, "*"))
        if ranks
    ]
    return merged(_somewhere(rows, answer), shown)


def property_rows(answer: Mapping[str, Any], shown: frozenset[str]) -> list[ResourceRow]:
    """Return the rows of properties, one each."""
    source = ResourceSet.parse(answer["R"])
    rows = [
        ResourceRow({"property": name}, ranks & source.ranks, source)
        for name, ranks in sorted(source.properties.items())
    ]
    return merged(_somewhere(rows, answer), shown)


def _public(source: ResourceSet) -> Mapping[str, Idset]:
    """Return the properties that jobs can ask for: those with a leading `+` are the instance's own, such as a queue's
    mark.
    """
    return {name: ranks for name, ranks in source.properties.items() if not name.startswith("+")}


def _gone(answer: Mapping[str, Any]) -> Idset:
    """Offline; what is lost is in no other set of a resource.status answer, and not up either."""
    return Idset.parse(answer.get("offline", "")) | Idset.parse(answer.get("lost", ""))


def _labels(state: str, reason: str = "", user: str = "", timestamp: object = None) -> dict[str, object]:
    return {"state": state, "reason": reason, "user": user, "timestamp": timestamp, "parts": ""}


def _user(user: object) -> str:
    return user_name(user) if isinstance(user, int) else str(user or "")


def _with_availability(row: ResourceRow, ranks: Idset, is_up: bool) -> ResourceRow:
    state = f"{row.labels['state']}{'' if is_up else '*'}"
    return ResourceRow({**row.labels, "state": state, "up": tick(is_up), "is_up": is_up}, ranks, row.source)


def _wanted(row: ResourceRow, states: frozenset[str]) -> bool:
    state = str(row.labels["state"]).rstrip("*")
    also = "drain" if state in ("drained", "draining") else state
    available = "online" if row.labels["is_up"] else "offline"
    return not states.isdisjoint((state, also, available, "all"))


# ---- rows of switches

NO_SWITCH = "no switch"
FORMAT = "{switch} {hops:>4} {nnodes:>6} {free:>6} {allocated:>9} {down:>5} {nodelist}"
STATES = ("free", "allocated", "down")


def _switch_label(name: str) -> Any:
    return lambda row: row.labels.get(name)


SWITCH_FIELDS = {
    **LIST_FIELDS,
    "switch": Field("SWITCH", _switch_label("switch")),
    "hops": Field("HOPS", _switch_label("hops")),
    **{state: Field(state.upper(), _switch_label(state)) for state in STATES},
}


def show_switches(handle: InstanceHandle, answer: Mapping[str, Any], wanted: Idset | None, output: Output) -> None:
    """`answer` is that of `resource.sched-status`; `wanted` are the ranks to show, all if None. Raises Refused."""
    topology = known_switches(ResourceSet.parse(handle.rpc("resource.status")["R"]))
    rows = _rows(topology, answer, wanted)
    usual = parse_format("{state:>10} {nnodes:>6}", SWITCH_FIELDS)
    layout = parse_format(FORMAT, SWITCH_FIELDS) if output.layout.names >= usual.names else output.layout
    output._replace(layout=layout).show({"topology": [_to_json(row) for row in rows]}, lambda shown: rows)


def known_switches(resources: ResourceSet) -> Topology:
    """Return the network's shape. Raises Refused if it is not known."""
    if not resources.topology:
        raise Refused("this instance has no switches: describe them in [topology] of its configuration")
    return resources.topology


def _rows(topology: Topology, answer: Mapping[str, Any], wanted: Idset | None) -> list[ResourceRow]:
    """Return a row for each switch, those below it after it, then one for the targets under none; without empty
    ones.
    """
    source, allocated = ResourceSet.parse(answer["all"]), ResourceSet.parse(answer["allocated"]).ranks
    down = source.ranks - (source - ResourceSet.parse(answer["down"])).ranks
    ranks = source.ranks if wanted is None else source.ranks & wanted
    sets = {"free": ranks - down - allocated, "allocated": ranks & allocated - down, "down": ranks & down}
    under = ranks_under(topology, source, ranks)
    heights, parent_of = topology.heights(), topology.parent_of
    rows: list[ResourceRow] = []
    left = ranks
    todo = [(name, 0) for name in reversed([*topology.switches]) if name not in parent_of]
    while todo:
        name, depth = todo.pop()
        own = under.get(name, EMPTY)
        if own:
            labels = {"switch": "  " * depth + name, "name": name, "above": parent_of.get(name)}
            rows.append(_row(labels, 2 * heights[name], own, sets, source))
        left -= own
        todo += [(below, depth + 1) for below in reversed(topology.switches[name].switches)]
    if left:
        rows.append(_row({"switch": NO_SWITCH, "name": None, "above": None}, None, left, sets, source))
    return rows


def _row(
    labels: Mapping[str, object], hops: int | None, own: Idset, sets: Mapping[str, Idset], source: ResourceSet
) -> ResourceRow:
    counts = {state: len(own & ranks) for state, ranks in sets.items()}
    return ResourceRow({**labels, "hops": hops, **counts}, own, source)


def ranks_under(topology: Topology, source: ResourceSet, ranks: Idset) -> dict[str, Idset]:
    """Return the targets under each switch that has some."""
    of_leaf: dict[str, list[int]] = {}
    for rank, host in zip(ranks, source.hosts(ranks).hosts, strict=False):
        leaf = topology.leaf_of.get(host)
        if leaf is not None:
            of_leaf.setdefault(leaf, []).append(rank)
    found: dict[str, Idset] = {}
    for leaf, own in of_leaf.items():
        for name in topology.chain(leaf):
            found[name] = found.get(name, EMPTY) | Idset.of(own)
    return found


def _to_json(row: ResourceRow) -> dict[str, object]:
    shown = {name: value for name, value in row.labels.items() if name != "switch"}
    return {**shown, "ranks": str(row.ranks), "nodelist": str(row.source.hosts(row.ranks).unique())}
