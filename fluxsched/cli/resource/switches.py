"""`fluxsched resource list --topology`: the switches as a tree, and what is free under each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.cli.common.options import InstanceHandle, Output
from fluxsched.cli.common.table import Field, parse_format
from fluxsched.cli.resource.rows import LIST_FIELDS, ResourceRow
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.errors import Refused

NO_SWITCH = "no switch"
FORMAT = "{switch} {hops:>4} {nnodes:>6} {free:>6} {allocated:>9} {down:>5} {nodelist}"
STATES = ("free", "allocated", "down")


def _label(name: str) -> Any:
    return lambda row: row.labels.get(name)


SWITCH_FIELDS = {
    **LIST_FIELDS,
    "switch": Field("SWITCH", _label("switch")),
    "hops": Field("HOPS", _label("hops")),
    **{state: Field(state.upper(), _label(state)) for state in STATES},
}


def show_switches(handle: InstanceHandle, answer: Mapping[str, Any], wanted: Idset | None, output: Output) -> None:
    """`answer` is that of `resource.sched-status`; `wanted` are the ranks to show, all if None. Raises Refused."""
    topology = known_switches(ResourceSet.parse(handle.rpc("resource.status")["R"]))
    rows = _rows(topology, answer, wanted)
    usual = parse_format("{state:>10} {nnodes:>6}", SWITCH_FIELDS)
    layout = parse_format(FORMAT, SWITCH_FIELDS) if output.layout.names >= usual.names else output.layout
    output._replace(layout=layout).show({"topology": [_to_json(row) for row in rows]}, lambda shown: rows)


def known_switches(resources: ResourceSet) -> Topology:
    """The network's shape. Raises Refused if it is not known."""
    if not resources.topology:
        raise Refused("this instance knows no switches: describe them in [topology] of its configuration")
    return resources.topology


def _rows(topology: Topology, answer: Mapping[str, Any], wanted: Idset | None) -> list[ResourceRow]:
    """A row for each switch, those below it after it, then one for the targets under none; without empty ones."""
    source = ResourceSet.parse(answer["all"])
    down, allocated = (ResourceSet.parse(answer[name]).ranks for name in ("down", "allocated"))
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
    """The targets under each switch that has some."""
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
