"""Jobs of several parts (RFC 14, version 999): each part is a node vertex with one slot, and an entry of `tasks`.

Law: a part has whole nodes, so no target is of two parts; its slots a node are one number, so what it has follows from
its nodes. `resources` of a single vertex are read as in version 1, but for the node's own `constraints`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from fluxsched.core.constraint import EVERYTHING, Constraint, parse_constraint_text
from fluxsched.core.count import Count
from fluxsched.core.jobfields import PARTS_VERSION, TaskCount, parse_task
from fluxsched.core.jsontext import named, shown
from fluxsched.core.request import Request, is_group, parse_group, parse_groups, parse_resources
from fluxsched.core.sharing import check_name
from fluxsched.errors import InvalidValue, LimitExceeded

PARTS_MAX = 8
"""Parts of one job: whether all can be had at once is a question of each set of them."""

OWN_CONSTRAINT: Final = "constraints"
"""The key of a node for what only its part asks for, as `attributes.system.constraints` (RFC 31) is for the job."""


@dataclass(frozen=True, slots=True)
class JobPart:
    """One part: whole nodes and the program that runs on them. A job that has no parts is one itself.

    Of the three `ntasks_...` just one is set, as in Jobspec.
    """

    label: str
    request: Request
    command: tuple[str, ...]
    ntasks_per_slot: int | None
    ntasks_total: int | None
    ntasks_per_resource: tuple[str, int] | None

    def ntasks(self, nslots: int) -> int:
        """Return the number of tasks on `nslots` slots of this part."""
        count = self.ntasks_per_slot, self.ntasks_total, self.ntasks_per_resource
        return tasks_on(count, self.request, nslots)


class PartAsked(NamedTuple):
    """One of several parts as a command line names it: `nodes` is any count of RFC 14."""

    label: str
    nodes: int | str
    command: Sequence[str]
    constraint: Constraint = EVERYTHING


def parse_nodes(text: str) -> Any:
    """A number of nodes or a range on a command line, as a jobspec has it. Raises InvalidValue."""
    try:
        return Count.parse(text).to_json()
    except LimitExceeded:
        raise
    except InvalidValue:
        raise InvalidValue(f"{shown(text)} is neither a number of nodes, 1 or more, nor a range such as 4-10") from None


def parse_part(text: str) -> PartAsked:
    """`LABEL:NODES[:CONSTRAINT]=COMMAND`, where the command has the quotes of a shell. Raises InvalidValue."""
    what, equals, command = text.partition("=")
    label, _, rest = what.partition(":")
    nodes, _, constraint = rest.partition(":")
    if not label or not nodes or not equals:
        raise InvalidValue(f"{shown(text)} is not LABEL:NODES=COMMAND or LABEL:NODES:CONSTRAINT=COMMAND")
    try:
        words = shlex.split(command)
        own = parse_constraint_text(constraint) if constraint else EVERYTHING
        parse_nodes(nodes)
    except InvalidValue as fault:
        raise named(f"part {shown(label)}", fault) from None
    except ValueError as fault:
        raise InvalidValue(f"part {shown(label)}: {shown(command)} is not a shell command: {fault}") from None
    if not words:
        raise InvalidValue(f"part {shown(label)} has no command: write LABEL:NODES=COMMAND")
    return PartAsked(label, nodes, words, own)


def with_parts(jobspec: Mapping[str, Any], parts: Sequence[PartAsked]) -> dict[str, Any]:
    """A jobspec of several parts, from one whose only node has what each node of a part has."""
    node, *shared = jobspec["resources"]
    slot, *beside = node["with"]
    resources = []
    for label, nodes, _, constraint in parts:
        vertex = {"type": "node", "count": Count.parse(nodes).to_json(), "exclusive": True}
        own = {} if constraint == EVERYTHING else {OWN_CONSTRAINT: constraint.to_json()}
        resources.append({**vertex, **own, "with": [{**slot, "label": label}, *beside]})
    tasks = [{"command": list(part.command), "slot": part.label, "count": {"per_slot": 1}} for part in parts]
    return {**jobspec, "version": PARTS_VERSION, "resources": [*resources, *shared], "tasks": tasks}


def tasks_on(count: TaskCount, request: Request, nslots: int) -> int:
    """Return the number of tasks on `nslots` slots of a request."""
    per_slot, total, per_resource = count
    if total is not None:
        return total
    if per_slot is not None:
        return per_slot * nslots
    assert per_resource is not None
    kind, each = per_resource
    return each * nslots * (request.cores if kind == "core" else request.gpus)


def parse_parts(obj: object) -> tuple[Request, str]:
    """The request of a `resources` list of version 999 and the label of its first slot.

    Raises InvalidValue naming the path, LimitExceeded above PARTS_MAX.
    """
    count = len([one for one in obj if is_group(one)]) if isinstance(obj, list | tuple) else 0
    if count > PARTS_MAX:
        remedy = "join parts that ask for the same, or submit several jobs"
        raise LimitExceeded(f"resources has {count} parts, the limit is {PARTS_MAX}: {remedy}")
    own = _own_constraints(obj)
    plain = [_plain(vertex) for vertex in obj] if own and isinstance(obj, list | tuple) else obj
    if count <= 1:
        request, label = parse_resources(plain, EVERYTHING)
        for constraint in own.values():
            request = replace(request, constraint=constraint)
        return request, label
    groups, shared = parse_groups(plain, "nodes", PARTS_MAX)
    parts: list[Request] = []
    for where, vertex in groups:
        part, label = parse_group(where, vertex)
        _check_part(where, part, label, [other.label for other in parts])
        parts.append(replace(part, label=label, constraint=own.get(where, EVERYTHING)))
    return Request.of_parts(parts, shared), parts[0].label


def _check_part(where: str, part: Request, label: str, others: Sequence[str]) -> None:
    if part.nodes is None:
        raise InvalidValue(f"{where}.type: a slot cannot be one of several parts: put it into a node")
    if not part.exclusive:
        raise InvalidValue(f"{where}.exclusive: each of several parts has whole nodes: set it to true")
    if not part.slots.is_fixed:
        raise InvalidValue(f"{where}.with[0].count: {part.slots} must be one number: only the nodes can be a range")
    check_name(label, f"{where}.with[0].label")
    if label in others:
        raise InvalidValue(f"{where}.with[0].label: {shown(label)} is that of another slot: give each its own")


def parse_tasks(obj: object, request: Request) -> tuple[JobPart, ...]:
    """Parse the tasks of each part: the one entry of `tasks` that names its slot. Raise InvalidValue naming the path.
    """
    if not isinstance(obj, list | tuple) or not all(isinstance(task, dict) for task in obj):
        raise InvalidValue("tasks must be a list of objects, one for each slot (RFC 14)")
    by_label = {part.label: part for part in request.parts}
    found: dict[str, JobPart] = {}
    for at, task in enumerate(obj):
        label = task.get("slot")
        part = by_label.get(label) if isinstance(label, str) else None
        if part is None:
            known = ", ".join([shown(one) for one in by_label])
            raise InvalidValue(f"tasks[{at}].slot: {shown(label)} is not the label of a slot: there are {known}")
        if label in found:
            raise InvalidValue(f"tasks[{at}].slot: {shown(label)} has an entry already: give one for each slot")
        command, count = parse_task(task, f"tasks[{at}]", part.label, part.gpus)
        found[part.label] = JobPart(part.label, part, command, *count)
    for label in by_label:
        if label not in found:
            raise InvalidValue(f"tasks has no entry for the slot {shown(label)}: give one for each slot")
    return tuple([found[label] for label in by_label])


def _own_constraints(obj: object) -> dict[str, Constraint]:
    """The constraints of single nodes, by path."""
    found: dict[str, Constraint] = {}
    for at, vertex in enumerate(obj if isinstance(obj, list | tuple) else ()):
        if isinstance(vertex, dict) and vertex.get("type") == "node" and OWN_CONSTRAINT in vertex:
            where = f"resources[{at}]"
            try:
                found[where] = Constraint.parse(vertex[OWN_CONSTRAINT])
            except InvalidValue as fault:
                raise named(f"{where}.{OWN_CONSTRAINT}", fault) from None
    return found


def _plain(vertex: Any) -> Any:
    """A vertex as version 1 has it."""
    if not isinstance(vertex, dict) or vertex.get("type") != "node":
        return vertex
    return {key: value for key, value in vertex.items() if key != OWN_CONSTRAINT}
