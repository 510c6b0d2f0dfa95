"""Our content of R's `scheduling` (RFC 20): the ranks of each part, and the switches above the hosts.

Law: ours is marked by its `writer`; that of any other scheduler is carried along untouched and never read. A key is
absent where there is nothing to say. Ranks that an R no longer has may still be named: readers leave them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jsontext import named, shown
from fluxsched.core.text import kind_of
from fluxsched.core.topology import EMPTY_TOPOLOGY, Topology
from fluxsched.errors import InvalidValue

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


def split(scheduling: dict[str, Any] | None) -> tuple[object, Topology]:
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
    """The lowest switch above all of these hosts, empty if there is none or it is not known."""
    return (topology.lowest_common(hosts) if topology else None) or ""


def with_topology(scheduling: object, topology: Topology) -> object:
    """Return the content with these switches; a foreign one stays as it is."""
    return scheduling if is_foreign(scheduling) else _written(scheduling, _TOPOLOGY, topology.to_json())


def with_parts(scheduling: object, parts: Mapping[str, Idset]) -> object:
    """Return the content with these parts; a foreign one stays as it is."""
    if is_foreign(scheduling):
        return scheduling
    return _written(scheduling, _PARTS, {label: str(ranks) for label, ranks in parts.items()})


def joined(one: object, other: object) -> object:
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
