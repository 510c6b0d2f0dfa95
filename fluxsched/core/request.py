"""What must be placed for a job: the `resources` of a jobspec, in the graphs that RFC 25 (V1) knows.

Law: `slot > core`, `slot > (core, gpu)`, and either of them inside `node`: whatever else a jobspec asks for is refused
with the path of the vertex and what could stand there, never ignored. No recursion: the depth is the grammar's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.count import ONE, Count
from fluxsched.core.jsontext import named, shown
from fluxsched.errors import InvalidValue

RESOURCE_TYPES = ("node", "slot", "core", "gpu")

_VERTEX_KEYS = frozenset(("type", "count", "unit", "with", "label", "exclusive"))


@dataclass(frozen=True, slots=True)
class Request:
    """Slots of cores and GPUs, on a number of nodes or wherever they fit.

    `slots` counts per node when `nodes` is given, else in all; `cores` and `gpus` count per slot. `exclusive` asks for
    whole nodes, of which the job then has everything.
    """

    nodes: Count | None = None
    slots: Count = ONE
    cores: int = 1
    gpus: int = 0
    exclusive: bool = False
    constraint: Constraint = EVERYTHING

    def __str__(self) -> str:
        """In a user's words: `2 nodes of 2 slots of 4 cores, 1 gpu`."""
        text = f"{_many(self.slots, 'slot')} of {_many(self.cores, 'core')}"
        if self.gpus:
            text += f", {_many(self.gpus, 'gpu')}"
        if self.nodes is not None:
            text = f"{_many(self.nodes, 'exclusive node' if self.exclusive else 'node')} of {text}"
        return text if self.constraint == EVERYTHING else f"{text} with {self.constraint}"


def parse_resources(obj: object, constraint: Constraint) -> tuple[Request, str]:
    """The request of a `resources` list and the label of its slot. Raises InvalidValue naming the path."""
    if not isinstance(obj, list | tuple) or len(obj) != 1:
        found = f"a list of {len(obj)}" if isinstance(obj, list | tuple) else type(obj).__name__
        raise InvalidValue(f"resources must be a list of one vertex, a node or a slot (RFC 25), not {found}")
    vertex, path = obj[0], "resources[0]"
    nodes, exclusive = None, False
    if _type_of(vertex, path, ("node", "slot")) == "node":
        nodes, exclusive = _count(vertex, path), vertex.get("exclusive", False)
        below = _with(vertex, path, 1, "one slot")
        vertex, path = below[0], "resources[0].with[0]"
        _type_of(vertex, path, ("slot",))
    label = vertex.get("label")
    if not isinstance(label, str) or not label:
        raise InvalidValue(f"{path}.label: a slot needs a label, a string that is not empty, for tasks to refer to")
    slots = _count(vertex, path)
    cores, gpus = _leaves(_with(vertex, path, 2, "core, and gpu if need be"), path)
    return Request(nodes, slots, cores, gpus, exclusive, constraint), label


def _leaves(below: list[Any], path: str) -> tuple[int, int]:
    """Cores and GPUs of a slot."""
    found: dict[str, int] = {}
    for at, vertex in enumerate(below):
        where = f"{path}.with[{at}]"
        kind = _type_of(vertex, where, ("core", "gpu"))
        if "with" in vertex:
            raise InvalidValue(f"{where}.with: nothing can stand inside {kind}")
        if kind in found:
            raise InvalidValue(f"{where}.type: {kind} stands here a second time: give one count")
        count = _count(vertex, where)
        if not count.is_fixed:
            raise InvalidValue(f"{where}.count: {count} must be one number: only nodes and slots can be ranges")
        found[kind] = count.min
    if "core" not in found:
        raise InvalidValue(f"{path}.with: a slot needs core (RFC 25)")
    return found["core"], found.get("gpu", 0)


def _type_of(vertex: Any, path: str, expected: tuple[str, ...]) -> str:
    """The type of a vertex that is one of those that can stand here, and has only keys of a vertex."""
    if not isinstance(vertex, dict):
        raise InvalidValue(f"{path} must be an object with type and count, not {type(vertex).__name__}")
    if not vertex.keys() <= _VERTEX_KEYS:
        unknown = ", ".join(sorted(map(str, vertex.keys() - _VERTEX_KEYS)))
        raise InvalidValue(f"{path}: unknown {unknown[:80]}: a vertex has {', '.join(sorted(_VERTEX_KEYS))}")
    kind = vertex.get("type")
    if kind not in RESOURCE_TYPES:
        raise InvalidValue(f"{path}.type: {shown(kind)} is not a resource type of RFC 25: node, slot, core or gpu")
    if kind not in expected:
        raise InvalidValue(f"{path}.type: {kind} cannot stand here, only {' or '.join(expected)} (RFC 25)")
    if type(vertex.get("exclusive", False)) is not bool:
        raise InvalidValue(f"{path}.exclusive must be true or false")
    if type(vertex.get("unit", "")) is not str:
        raise InvalidValue(f"{path}.unit must be a string")
    return str(kind)


def _count(vertex: dict[str, Any], path: str) -> Count:
    if "count" not in vertex:
        raise InvalidValue(f"{path} has no count")
    try:
        return Count.parse(vertex["count"])
    except InvalidValue as fault:
        raise named(f"{path}.count", fault) from None


def _with(vertex: dict[str, Any], path: str, most: int, what: str) -> list[Any]:
    below = vertex.get("with")
    if not isinstance(below, list | tuple) or not 1 <= len(below) <= most:
        found = f"a list of {len(below)}" if isinstance(below, list | tuple) else type(below).__name__
        raise InvalidValue(f"{path}.with must be a list of {what} (RFC 25), not {found}")
    return list(below)


def _many(count: Count | int, noun: str) -> str:
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"
