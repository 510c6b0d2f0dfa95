"""Request for resources of a job: the `resources` of a jobspec, in the graphs of RFC 25 (V1), and its counts.

Law: a graph is `slot > core`, `slot > (core, gpu)`, or either of them inside `node`; and a vertex of any other type,
which asks for an amount of a countable resource (RFC 14): inside the slot for each slot, inside the node for each node,
beside both for the job. Whatever else a jobspec asks for is refused with the path of the vertex, never ignored. No
recursion: the depth is the grammar's. A job of several parts has such a graph, of whole nodes, for each
(`core.jobspec`).

A `Count` is one number, a range (RFC 45) or a list (RFC 22); it is never expanded to be stored, compared or asked for
its largest value that fits, so `1-67108864` costs what `1` costs. A request of fixed size without a bound has no text,
for its size says it all; others read `1-4 nodes, elastic` or `lead:1 work:4-10 nodes, elastic`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.quantities import AMOUNT_KINDS_MAX, AMOUNT_MAX, Amounts, amount_text, check_kind, in_unit
from fluxsched.core.text import kind_of, named, shown
from fluxsched.errors import InvalidValue, LimitExceeded

COUNT_MAX = 1 << 26
"""Eight times the cores of the largest machine of today: a larger count is a slip of the finger, not a job."""

LISTED_MAX = 4096
"""Counts that a list may name one by one: what has no rule is written by hand, and what has one is a range."""

_KEYS: Final = frozenset(("min", "max", "operator", "operand"))
_RANGE = re.compile(r"(\[?)([1-9][0-9]{0,15})(?:(\+)|-([1-9][0-9]{0,15}))(?::([1-9][0-9]{0,15})(?::([+*^]))?)?(\]?)")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class Count:
    """`min`, then each value that `operator` and `operand` make of the one before, up to `max` (None: without end).

    With `listed` the acceptable counts are just these; `min` and `max` are its ends.
    """

    min: int
    max: int | None
    operand: int = 1
    operator: str = "+"
    listed: Idset | None = None

    @classmethod
    def fixed(cls, count: int) -> Count:
        """Return the count of exactly this number."""
        return cls(count, count)

    @classmethod
    def parse(cls, obj: object) -> Count:
        """From an integer, a dictionary with `min`, a range text such as `2-4` or `2+:2:*`, or an idset text.

        Raises InvalidValue for what RFC 14 does not allow, LimitExceeded above COUNT_MAX.
        """
        if type(obj) is int:
            number = _positive("count", obj)
            return cls(number, number)
        if isinstance(obj, str):
            return _parse_text(obj)
        if isinstance(obj, dict):
            return _parse_dict(obj)
        raise InvalidValue(f"count must be an integer, a range or an object with min, not {kind_of(obj)}")

    def to_json(self) -> int | str | dict[str, int | str]:
        """Return an integer where it is one, else the dictionary of RFC 14, or the idset of the listed counts."""
        if self.listed is not None:
            return str(self.listed)
        if self.min == self.max:
            return self.min
        obj: dict[str, int | str] = {"min": self.min}
        if self.max is not None:
            obj["max"] = self.max
        return {**obj, "operator": self.operator, "operand": self.operand}

    def __str__(self) -> str:
        """Return the shortest RFC 45 text, or the idset of the listed counts; `parse` gives the same Count back."""
        if self.listed is not None:
            return str(self.listed)
        if self.min == self.max:
            return str(self.min)
        text = f"{self.min}+" if self.max is None else f"{self.min}-{self.max}"
        if self.operator != "+":
            return f"{text}:{self.operand}:{self.operator}"
        return text if self.operand == 1 else f"{text}:{self.operand}"

    @property
    def is_fixed(self) -> bool:
        """Return whether only one number is allowed."""
        return self.min == self.max

    def values(self, limit: int) -> Sequence[int]:
        """Return the acceptable counts up to `limit`, ascending; a `range` where steps are equal, so it costs
        nothing.
        """
        last = limit if self.max is None else min(limit, self.max)
        if self.listed is not None:
            return [count for count in self.listed if count <= last]
        if self.operator == "+":
            return range(self.min, last + 1, self.operand)
        return _powers(self.min, last, self.operand, self.operator)

    def largest(self, limit: int) -> int | None:
        """Return the largest acceptable count up to `limit`, or None when even `min` is more."""
        found = self.values(limit)
        return found[-1] if found else None

    def after(self, count: int) -> int | None:
        """Return the least acceptable count above this one, or None when it is the largest."""
        if count < self.min:
            return self.min
        if self.max is not None and count >= self.max:
            return None
        if self.listed is not None:
            return next((value for value in self.listed if value > count), None)
        if self.operator == "+":
            value = count + self.operand - (count - self.min) % self.operand
            return value if self.max is None or value <= self.max else None
        limit = COUNT_MAX if self.max is None else self.max
        return next((value for value in _powers(self.min, limit, self.operand, self.operator) if value > count), None)

    def __contains__(self, count: int) -> bool:
        return self.largest(count) == count


ONE: Final = Count(1, 1)


def _positive(what: str, number: object) -> int:
    if type(number) is not int:
        raise InvalidValue(f"{what} must be an integer, not {kind_of(number)}")
    if number < 1:
        raise InvalidValue(f"{what} must be 1 or more, not {shown(number)}")
    if number > COUNT_MAX:
        raise LimitExceeded(f"{what} is above the limit of {COUNT_MAX}")
    return number


def _powers(first: int, last: int, operand: int, operator: str) -> list[int]:
    """Values of the operators that grow fast: there are at most some thirty below COUNT_MAX."""
    found = []
    value = first
    while value <= last:
        found.append(value)
        if operator == "*":
            value *= operand
        elif (value.bit_length() - 1) * operand > last.bit_length():
            break  # the next one is above `last`: do not compute what may have millions of digits
        else:
            value **= operand
    return found


def _make(first: int, last: int | None, operand: int, operator: str) -> Count:
    if last is not None and last < first:
        raise InvalidValue(f"max {last} is less than min {first}")
    if operator != "+" and operand < 2:
        raise InvalidValue(f"operand must be 2 or more with the operator {operator!r}, not {operand}")
    if operator == "^" and first < 2:
        raise InvalidValue(f"min must be 2 or more with the operator '^', not {first}")
    return Count(first, last) if first == last else Count(first, last, operand, operator)


def _parse_dict(obj: dict[object, object]) -> Count:
    unknown = sorted(map(str, obj.keys() - _KEYS))
    if unknown:
        raise InvalidValue(f"unknown {', '.join(unknown)[:80]}: a range has min, max, operator and operand")
    if "min" not in obj:
        raise InvalidValue("a range needs min")
    if ("operator" in obj) != ("operand" in obj):
        raise InvalidValue("operator and operand come together or not at all")
    operator = obj.get("operator", "+")
    if operator not in ("+", "*", "^") or not isinstance(operator, str):
        raise InvalidValue(f"operator must be '+', '*' or '^', not {shown(operator)}")
    last = _positive("max", obj["max"]) if "max" in obj else None
    return _make(_positive("min", obj["min"]), last, _positive("operand", obj.get("operand", 1)), operator)


def _parse_text(text: str) -> Count:
    if _NUMBER.fullmatch(text):
        return Count.parse(int(text))
    match = _RANGE.fullmatch(text)
    if match is not None and bool(match[1]) == bool(match[7]):
        last = _positive("max", int(match[4])) if match[4] else None
        operand = _positive("operand", int(match[5] or 1))
        return _make(_positive("min", int(match[2])), last, operand, match[6] or "+")
    if ":" in text or "+" in text:
        raise InvalidValue(f"count {shown(text)} is not a range such as '2-4', '2+' or '2-16:2:*' (RFC 45)")
    listed = Idset.parse(text)
    if not listed or 0 in listed:
        raise InvalidValue(f"count {shown(text)} must list numbers of 1 or more")
    first, last = listed.min(), listed.max()
    if last - first + 1 == len(listed):
        return Count(first, last)
    if len(listed) > LISTED_MAX:
        raise LimitExceeded(f"count lists {len(listed)} numbers: the limit is {LISTED_MAX}; give a range with a step")
    return Count(first, last, listed=listed)


# ---- requests

GROUPS: Final = ("node", "slot")

RESOURCE_TYPES: Final = ("node", "slot", "core", "gpu")
"""The types of RFC 25; any other name is that of a countable resource."""

AMOUNT_DIGITS: Final = len(str(AMOUNT_MAX))
"""A count given as text has at most so many digits: a longer one is above the limit and is not made a number."""

_VERTEX_KEYS: Final = frozenset(("type", "count", "unit", "with", "label", "exclusive"))


@dataclass(frozen=True, slots=True)
class Request:
    """Slots of cores and GPUs, on a number of nodes or wherever they fit; or amounts without cores, on one node.

    `slots` counts per node when `nodes` is given, else in all; `cores` and `gpus` count per slot. `exclusive` asks for
    whole nodes, of which the job then has everything. `amounts` of countable resources count per slot, `node_amounts`
    per node on top of that, and `shared` is what the job wants of those that the instance has once.

    At most `max_hops` are between any two nodes (None: no bound), of each part where there are several. With `elastic`
    the range of `nodes` stays open while the job runs. `parts` is empty unless the job has several (`of_parts`): each
    is a request of whole nodes, and has the `label` of its slot. `reservation` is the name of the one in which it is to
    run, empty for none.
    """

    nodes: Count | None = None
    slots: Count = ONE
    cores: int = 1
    gpus: int = 0
    exclusive: bool = False
    constraint: Constraint = EVERYTHING
    amounts: Amounts = ()
    node_amounts: Amounts = ()
    shared: Amounts = ()
    max_hops: int | None = None
    elastic: bool = False
    parts: tuple[Request, ...] = ()
    label: str = ""
    reservation: str = ""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    @classmethod
    def of_amounts(cls, amounts: Amounts, constraint: Constraint | None = None) -> Request:
        """Return a request for amounts on one node, without cores: for targets that have none."""
        return cls(cores=0, constraint=EVERYTHING if constraint is None else constraint, amounts=amounts)

    @classmethod
    def of_parts(cls, parts: Sequence[Request], shared: Amounts = ()) -> Request:
        """Several parts at once, each of whole nodes; `shared` is the job's, which has it once.

        As a request of its own it has the nodes of all parts, each with what the least of them asks for.
        """
        most = [part.nodes.max for part in parts if part.nodes is not None]
        nodes = Count(
            sum([part.nodes.min for part in parts if part.nodes is not None]),
            None if None in most else sum([n for n in most if n is not None]),
        )
        cores, gpus = min([part.cores for part in parts]), min([part.gpus for part in parts])
        return cls(nodes, ONE, cores, gpus, True, shared=shared, parts=tuple(parts))

    def bound(self, constraint: Constraint, max_hops: int | None, elastic: bool, reservation: str = "") -> Request:
        """Return the request with a job's constraint, bound on hops, elasticity and reservation, beside those of its
        parts.

        Raise InvalidValue for an elastic job whose number of nodes is fixed.
        """
        if elastic:
            self._check_elastic()
        parts = tuple([part.bound(constraint, max_hops, False, reservation) for part in self.parts])
        if elastic:
            parts = tuple([replace(part, elastic=True) for part in parts])
        both = _both(constraint, self.constraint)
        return replace(self, constraint=both, max_hops=max_hops, elastic=elastic, parts=parts, reservation=reservation)

    def _check_elastic(self) -> None:
        """Check that the number of nodes is a range, and that the resources of a node are known. Raise InvalidValue."""
        path = "attributes.system.fluxsched.elastic"
        if self.nodes is None:
            raise InvalidValue(f"{path}: the job asks for slots, not for nodes: give a range of nodes, such as 4-10")
        if self.nodes.is_fixed:
            asked = _counted(self.nodes, "node") + (" in parts of a fixed size" if self.parts else "")
            raise InvalidValue(f"{path}: the job asks for {asked}: give a range, such as 4-10")
        if not self.slots.is_fixed:
            raise InvalidValue(f"{path}: {self.slots} slots a node: give one number, only the nodes stay open")

    @property
    def is_fixed(self) -> bool:
        """Return whether the request is of one part without a range."""
        return not self.parts and self.slots.is_fixed and (self.nodes is None or self.nodes.is_fixed)

    @property
    def each_part(self) -> tuple[Request, ...]:
        """The parts; the request itself where there are not several."""
        return self.parts or (self,)

    @property
    def least_nodes(self) -> int:
        """Return the least number of nodes, if the request asks for nodes; else 1."""
        return 1 if self.nodes is None else self.nodes.min

    @property
    def least_slots(self) -> int:
        """Return the least number of slots in all."""
        return sum([part.least_nodes * part.slots.min for part in self.parts or (self,)])

    @property
    def least_cores(self) -> int:
        """Return the least number of cores of all slots."""
        return sum([part.least_nodes * part.slots.min * part.cores for part in self.parts or (self,)])

    @property
    def least_gpus(self) -> int:
        """Return the least number of GPUs of all slots."""
        return sum([part.least_nodes * part.slots.min * part.gpus for part in self.parts or (self,)])

    @property
    def is_of_amounts(self) -> bool:
        """Return whether the request is for no cores and no GPUs, as that of no jobspec is."""
        return not self.cores and not self.gpus

    def __hash__(self) -> int:
        """Worked out once: a request is looked up for each job that asks for it."""
        if not self._hash:
            what = self.nodes, self.slots, self.cores, self.gpus, self.exclusive, self.constraint
            counted = self.amounts, self.node_amounts, self.shared
            found = hash((*what, *counted, self.max_hops, self.elastic, self.parts, self.label, self.reservation))
            object.__setattr__(self, "_hash", found)
        return self._hash

    def __str__(self) -> str:
        """In a user's words: `2 nodes of 2 slots of 4 cores, 1 gpu, 8 GiB memory and 1 matlab`. One slot of a node goes
        without saying.

        Of several parts each is named: `lead: 1 exclusive node of ...; workers: 4-10 exclusive nodes of ...`.
        """
        shared = "".join([f" and {amount_text(*one)}" for one in self.shared])
        if self.parts:
            return "; ".join([f"{part.label}: {part}" for part in self.parts]) + shared
        each = [_counted(self.cores, "core")] if self.cores else []
        each += [_counted(self.gpus, "gpu")] if self.gpus else []
        each += [amount_text(*one) for one in self.amounts]
        slots, text = _counted(self.slots, "slot"), ", ".join(each)
        if self.nodes is None or slots != "1 slot" or not each:
            text = f"{slots} of {text or 'nothing'}"
        if self.nodes is not None:
            beside = "".join([f"{amount_text(*one)} and " for one in self.node_amounts])
            text = f"{_counted(self.nodes, 'exclusive node' if self.exclusive else 'node')} of {beside}{text}"
        text += shared
        if self.max_hops is not None:
            text += f" within {self.max_hops} hops"
        return text if self.constraint == EVERYTHING else f"{text} with {self.constraint}"


def parse_resources(obj: object, constraint: Constraint) -> tuple[Request, str]:
    """Return the request of a `resources` list and the label of its slot. Raises InvalidValue naming the path."""
    ((where, vertex),), shared = parse_groups(obj, "one vertex, a node or a slot", 1)
    request, label = parse_group(where, vertex)
    if shared or constraint is not EVERYTHING:
        request = replace(request, constraint=constraint, shared=shared)
    return request, label


def parse_groups(obj: object, what: str, most: int) -> tuple[list[tuple[str, Any]], Amounts]:
    """Return the nodes and slots of a `resources` list, each with its path, and the amounts that stand beside them."""
    return _parted(obj, "resources", GROUPS, what, most)


def parse_group(where: str, vertex: Any) -> tuple[Request, str]:
    """Parse a vertex of these types into a request and the label of its slot."""
    nodes, exclusive = None, False
    node_amounts: Amounts = ()
    if vertex["type"] == "node":
        nodes, exclusive = _count(vertex, where), vertex.get("exclusive", False)
        ((where, vertex),), node_amounts = _parted(vertex.get("with"), f"{where}.with", ("slot",), "one slot", 1)
    label = vertex.get("label")
    if not isinstance(label, str) or not label:
        raise InvalidValue(f"{where}.label: a slot needs a label, a string that is not empty, for tasks to refer to")
    slots = _count(vertex, where)
    leaves, amounts = _parted(vertex.get("with"), f"{where}.with", ("core", "gpu"), "core, and gpu if need be", 2)
    cores, gpus = _leaves(leaves, f"{where}.with")
    return Request(nodes, slots, cores, gpus, exclusive, EVERYTHING, amounts, node_amounts), label


def _parted(
    obj: object, path: str, expected: tuple[str, ...], what: str, most: int
) -> tuple[list[tuple[str, Any]], Amounts]:
    """Return the vertices of a list, each with its path: those of the expected types, and the amounts that the others
    ask for.

    There is at least one of the expected types, and at most so many.
    """
    if not isinstance(obj, list | tuple) or not obj or len(obj) > most + AMOUNT_KINDS_MAX:
        raise _not_a_list_of(obj, path, what)
    found: list[tuple[str, Any]] = []
    amounts: dict[str, int] = {}
    for at, vertex in enumerate(obj):
        where = f"{path}[{at}]"
        kind = _type_of(vertex, where, expected)
        if kind in RESOURCE_TYPES:
            found.append((where, vertex))
            continue
        if kind in amounts:
            raise InvalidValue(f"{where}.type: {kind} occurs twice here: give one count")
        amounts[kind] = _amount(vertex, where)
    if not found or len(found) > most:
        raise _not_a_list_of(obj, path, what)
    return found, tuple(sorted(amounts.items()))


def _leaves(below: list[tuple[str, Any]], path: str) -> tuple[int, int]:
    """Cores and GPUs of a slot."""
    found: dict[str, int] = {}
    for where, vertex in below:
        kind = vertex["type"]
        if "with" in vertex:
            raise InvalidValue(f"{where}.with: {kind} cannot contain anything")
        if kind in found:
            raise InvalidValue(f"{where}.type: {kind} occurs twice here: give one count")
        count = _count(vertex, where)
        if not count.is_fixed:
            raise InvalidValue(f"{where}.count: {count} must be one number: only nodes and slots can be ranges")
        found[kind] = count.min
    if "core" not in found:
        raise InvalidValue(f"{path}: a slot needs core (RFC 25)")
    return found["core"], found.get("gpu", 0)


def _amount(vertex: dict[str, Any], path: str) -> int:
    """Return the amount of a countable resource that a vertex asks for, in the kind's smallest unit."""
    for key in ("with", "label"):
        if key in vertex:
            raise InvalidValue(f"{path}.{key}: {vertex['type']} is counted, it has no {key}")
    count = vertex.get("count")
    if isinstance(count, str) and count.isascii() and count.isdigit() and len(count) <= AMOUNT_DIGITS:
        count = int(count)
    if type(count) is not int or count < 1:
        what = shown(count) if "count" in vertex else "none"
        raise InvalidValue(f"{path}.count: {vertex['type']} needs a count that is one number of 1 or more, not {what}")
    try:
        return in_unit(count, vertex.get("unit", ""))
    except InvalidValue as fault:
        raise named(path, fault) from None


def _type_of(vertex: Any, path: str, expected: tuple[str, ...]) -> str:
    """Return the type of a vertex that is one of those that can stand here or countable, and has only keys of a
    vertex.
    """
    if not isinstance(vertex, dict):
        raise InvalidValue(f"{path} must be an object with type and count, not {kind_of(vertex)}")
    if not vertex.keys() <= _VERTEX_KEYS:
        unknown = ", ".join(sorted(map(str, vertex.keys() - _VERTEX_KEYS)))
        raise InvalidValue(f"{path}: unknown {unknown[:80]}: a vertex has {', '.join(sorted(_VERTEX_KEYS))}")
    kind = vertex.get("type")
    if kind not in expected:
        if kind in RESOURCE_TYPES:
            raise InvalidValue(f"{path}.type: {kind} cannot occur here, only {' or '.join(expected)} (RFC 25)")
        try:
            check_kind(kind)
        except InvalidValue as fault:
            known = ", ".join(RESOURCE_TYPES)
            raise InvalidValue(f"{path}.type: {fault}, nor a type of RFC 25: {known}") from None
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


def _not_a_list_of(obj: object, path: str, what: str) -> InvalidValue:
    found = f"a list of {len(obj)}" if isinstance(obj, list | tuple) else kind_of(obj)
    groups = [one for one in obj if is_group(one)] if isinstance(obj, list | tuple) and path == "resources" else ()
    if len(groups) > 1:
        remedy = "set version to 999 for several (RFC 14)"
        return InvalidValue(f"resources has {len(groups)} parts, version 1 has one: {remedy}")
    if isinstance(obj, list | tuple) and len(obj) == 1:
        found = f"{obj[0]['type']} alone"
    return InvalidValue(f"{path} must be a list of {what} (RFC 25), and of countable resources, not {found}")


def is_group(vertex: object) -> bool:
    """Return whether a vertex is a node or a slot, of which there is just one in version 1."""
    return isinstance(vertex, dict) and vertex.get("type") in GROUPS


def _both(one: Constraint, other: Constraint) -> Constraint:
    if EVERYTHING in (one, other):
        return one if other == EVERYTHING else other
    return Constraint("and", (one, other))


def _counted(count: Count | int, noun: str) -> str:
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"


# ---- requests as text


def asked_text(request: Request) -> str:
    """One line; empty if the size is fixed and hops are not bounded."""
    if request.is_fixed and request.max_hops is None:
        return ""
    words = [_counts(request)]
    if request.elastic:
        words.append("elastic")
    if request.max_hops is not None:
        words.append(f"at most {request.max_hops} hops")
    return ", ".join(words)


def _counts(request: Request) -> str:
    if request.parts:
        return " ".join([f"{part.label}:{part.nodes}" for part in request.parts]) + " nodes"
    if request.nodes is None:
        return _counted(request.slots, "slot")
    nodes = _counted(request.nodes, "node")
    return nodes if request.slots.is_fixed else f"{nodes} with {_counted(request.slots, 'slot')} each"
