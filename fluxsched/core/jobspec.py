"""Specification of a job (RFC 14 in the shape of RFC 25, V1, or of several parts, version 999) as a frozen value.

Law: what came is kept untouched in `raw` and printed as it came; everything that fluxsched acts on is checked once,
here, and every error names the path of the part (`tasks[0].command[2]`). Unknown keys of `attributes.system` are let
through, as RFC 14 asks; unknown keys elsewhere are refused.

Each part of a job of several is a node vertex with one slot, and an entry of `tasks`. A part has whole nodes, so no
target is of two parts; its slots a node are one number, so what it has follows from its nodes. `resources` of a single
vertex are read as in version 1, but for the node's own `constraints`.

A submission may be signed: `unwrap` takes a J of the one mechanism that needs no secret, `none` (RFC 15), apart; the
caller compares the userid in it with that of the sender. An unsigned jobspec (plain JSON) is accepted too and has no
userid.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Final, NamedTuple

from fluxsched.core import jobfields
from fluxsched.core.batch import parse_archive
from fluxsched.core.constraint import EVERYTHING, Constraint, parse_constraint_text
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import (
    PARTS_VERSION,
    USUAL,
    Sharing,
    TaskCount,
    check_name,
    parse_sharing,
    parse_task,
    sharing_given,
)
from fluxsched.core.quantities import MEMORY, parse_time_limit
from fluxsched.core.request import Count, Request, is_group, parse_group, parse_groups, parse_resources
from fluxsched.core.text import check_shape, load_object, named, shown, there_are
from fluxsched.errors import InvalidValue, LimitExceeded

__all__ = [
    "Count",
    "JobPart",
    "Jobspec",
    "Request",
]

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
    """Return a number of nodes or a range on a command line, as a jobspec has it. Raises InvalidValue."""
    try:
        return Count.parse(text).to_json()
    except LimitExceeded:
        raise
    except InvalidValue:
        raise InvalidValue(f"{shown(text)} is neither a number of nodes, 1 or more, nor a range such as 4-10") from None


AskedSize = tuple[Any, float | None]
"""A number of nodes or a range, and a time limit (seconds) if it is another."""


def parse_sizes(text: str) -> list[AskedSize]:
    """Read `NODES[:LIMIT],...`. Raises InvalidValue."""
    found: list[AskedSize] = []
    for part in text.split(","):
        nodes, colon, limit = part.partition(":")
        found.append((parse_nodes(nodes), parse_time_limit(limit) if colon else None))
    return found


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
    """Return a jobspec of several parts, from one whose only node has what each node of a part has."""
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
    """Return the request of a `resources` list of version 999 and the label of its first slot.

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
    """Parse the tasks of each part: the one entry of `tasks` that names its slot. Raise InvalidValue naming the
    path.
    """
    if not isinstance(obj, list | tuple) or not all(isinstance(task, dict) for task in obj):
        raise InvalidValue("tasks must be a list of objects, one for each slot (RFC 14)")
    by_label = {part.label: part for part in request.parts}
    found: dict[str, JobPart] = {}
    for at, task in enumerate(obj):
        label = task.get("slot")
        part = by_label.get(label) if isinstance(label, str) else None
        if part is None:
            known = there_are([shown(one) for one in by_label])
            raise InvalidValue(f"tasks[{at}].slot: {shown(label)} is not the label of a slot: {known}")
        if label in found:
            raise InvalidValue(f"tasks[{at}].slot: {shown(label)} has an entry already: give one for each slot")
        command, count = parse_task(task, f"tasks[{at}]", part.label, part.gpus)
        found[part.label] = JobPart(part.label, part, command, *count)
    for label in by_label:
        if label not in found:
            raise InvalidValue(f"tasks has no entry for the slot {shown(label)}: give one for each slot")
    return tuple([found[label] for label in by_label])


def _own_constraints(obj: object) -> dict[str, Constraint]:
    """Return the constraints of single nodes, by path."""
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
    """Return a vertex as version 1 has it."""
    if not isinstance(vertex, dict) or vertex.get("type") != "node":
        return vertex
    return {key: value for key, value in vertex.items() if key != OWN_CONSTRAINT}


# ---- the jobspec

DEPTH_MAX = 32
"""Nesting of a jobspec: RFC 25 needs ten levels, shell options and file archives (RFC 37) some more."""

MEMBERS_MAX = 1 << 17
"""Members of one jobspec in all: environment and arguments that an exec takes have some ten thousand at most."""


@dataclass(slots=True)
class Attributes:
    """Parsed `attributes` of a jobspec, which jobs that are submitted together mostly share.

    `bare` is their JSON without what only the tasks need (`without_bulk`).
    """

    bare: Any
    constraint: Constraint
    duration_s: float
    queue: str | None
    cwd: str | None
    environment: Mapping[str, str | None]
    dependencies: tuple[Mapping[str, Any], ...]
    test_run_duration_s: float | None
    input: str | None
    output: str | None
    error: str | None
    job_name: str | None
    array: int | None
    files: Any
    pmi: bool | None
    pty: jobfields.Pty | None
    templates: Mapping[str, str]
    sharing: Sharing
    max_hops: int | None
    elastic: bool
    reservation: str
    deadline_s: float | None
    notify: jobfields.UserNotify | None


_UNBOUND: Final = (EVERYTHING, None, False, "")


def read_attributes(obj: object) -> Attributes:
    """Raise InvalidValue naming the path of the part that is wrong, LimitExceeded above a named limit."""
    system = jobfields.system_of(obj)
    return Attributes(
        _bare(obj),
        _constraint(system),
        jobfields.seconds(system.get("duration"), "duration"),
        jobfields.text(system, "queue"),
        jobfields.text(system, "cwd"),
        jobfields.parse_environment(system.get("environment")),
        jobfields.parse_dependencies(system.get("dependencies")),
        jobfields.run_duration(system),
        jobfields.file_of(system, "input", "stdin"),
        jobfields.file_of(system, "output", "stdout"),
        jobfields.file_of(system, "output", "stderr"),
        jobfields.text(jobfields.inner(system, "job"), "name", "job."),
        jobfields.array_of(system),
        _files(system),
        jobfields.pmi_of(system),
        jobfields.pty_of(system),
        jobfields.templates_of(system),
        parse_sharing(system),
        jobfields.max_hops_of(system),
        jobfields.elastic_of(system),
        jobfields.reservation_of(system),
        jobfields.deadline_of(system),
        jobfields.notify_of(system),
    )


@dataclass(slots=True)
class Jobspec:
    """One program and what it needs, or several. Durations are seconds; `duration_s` is 0.0 where there is no limit.

    Where there are several `parts`, the command is that of the first, and the tasks are those of all at their smallest.

    Of the three `ntasks_...` just one is set. `environment` gives None for a variable to be unset (RFC 14);
    `templates` are variables whose values have tags (`core.jobid`).
    `ntasks_per_resource` is a type (`core`, `gpu`) and the tasks for each of them. `array` is the id of the first job
    of those that were submitted together, 0 in that job itself. `files` is an archive (RFC 37) that `parse_archive`
    reads, None if there is none. `bare` is the jobspec without its environment, as RFC 27 allows it for the scheduler,
    and without its files. Nothing of it must be changed; that is not enforced, since enforcing it would double the cost
    of making one, and one is made for each job.
    """

    raw: dict[str, Any]
    bare: dict[str, Any] = field(compare=False, repr=False)
    request: Request
    command: tuple[str, ...] = ()
    ntasks_per_slot: int | None = None
    ntasks_total: int | None = None
    ntasks_per_resource: tuple[str, int] | None = None
    duration_s: float = 0.0
    queue: str | None = None
    cwd: str | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    dependencies: tuple[Mapping[str, Any], ...] = ()
    test_run_duration_s: float | None = None
    input: str | None = None
    output: str | None = None
    error: str | None = None
    job_name: str | None = None
    array: int | None = None
    files: Any = None
    pmi: bool | None = None
    pty: jobfields.Pty | None = None
    templates: Mapping[str, str] = field(default_factory=dict)
    sharing: Sharing = USUAL
    deadline_s: float | None = None
    notify: jobfields.UserNotify | None = None
    _several: tuple[JobPart, ...] = ()
    _least_ntasks: int | None = field(default=None, init=False, compare=False, repr=False)

    @classmethod
    def parse(cls, obj: Mapping[str, Any] | str | bytes) -> Jobspec:
        """Return a jobspec of version 1, or of 999 with several parts, from JSON text or object.

        Raises InvalidValue naming the path of the part that is wrong, LimitExceeded above a named limit.
        """
        raw = load_object(obj, "jobspec")
        check_shape(raw, "jobspec", depth_limit=DEPTH_MAX, items_limit=MEMBERS_MAX)
        jobfields.check_top(raw)
        attributes = read_attributes(raw["attributes"])
        if raw["version"] == jobfields.PARTS_VERSION:
            return cls.of_read(raw, parse_parts(raw["resources"]), attributes)
        return cls.of_read(raw, parse_resources(raw["resources"], EVERYTHING), attributes)

    @classmethod
    def of_read(cls, raw: dict[str, Any], resources: tuple[Request, str], attributes: Attributes) -> Jobspec:
        """Return the jobspec that `raw` is, all read but its tasks. Raises InvalidValue for these."""
        request, label = resources
        bounds = attributes.constraint, attributes.max_hops, attributes.elastic, attributes.reservation
        if bounds != _UNBOUND:
            request = request.bound(*bounds)
        several: tuple[JobPart, ...] = ()
        if request.parts:
            several = parse_tasks(raw["tasks"], request)
            command, per_slot, per_resource = several[0].command, None, None
            total: int | None = sum([part.ntasks(part.request.least_slots) for part in several])
        else:
            command, (per_slot, total, per_resource) = jobfields.parse_tasks(raw["tasks"], label, request.gpus)
        bare = attributes.bare
        made = cls(
            raw,
            raw if bare is raw["attributes"] else {**raw, "attributes": bare},
            request,
            command,
            per_slot,
            total,
            per_resource,
            attributes.duration_s,
            attributes.queue,
            attributes.cwd,
            attributes.environment,
            attributes.dependencies,
            attributes.test_run_duration_s,
            attributes.input,
            attributes.output,
            attributes.error,
            attributes.job_name,
            attributes.array,
            attributes.files,
            attributes.pmi,
            attributes.pty,
            attributes.templates,
            attributes.sharing,
            attributes.deadline_s,
            attributes.notify,
            several,
        )
        if attributes.pty is not None:
            made.check_pty(made.least_ntasks if total is None else total)
        return made

    def check_pty(self, ntasks: int) -> None:
        """Raise InvalidValue for a pseudo-terminal if this number of tasks, or what it may become, is not one."""
        if self.pty is not None and (ntasks != 1 or self.request.elastic):
            what = "can get more" if ntasks == 1 else f"has {ntasks}"
            raise InvalidValue(f"a pseudo-terminal is for one task, and the job {what}: use -n1, or no terminal")

    @classmethod
    def for_scheduler(cls, obj: Mapping[str, Any] | str | bytes) -> Jobspec:
        """Read only what a scheduler decides by, of a jobspec that the job manager of another system has accepted.

        Tasks, files, dependencies and the like are left in `raw`, unread: that system has other rules for them. What
        is neither a name of a queue, bank, job or job set nor a time to be preempted after counts as not given.
        Raises InvalidValue or LimitExceeded for resources, constraint, duration and attributes of ours.
        """
        raw = load_object(obj, "jobspec")
        check_shape(raw, "jobspec", depth_limit=DEPTH_MAX, items_limit=MEMBERS_MAX)
        jobfields.check_top(raw)
        system = jobfields.system_given(raw["attributes"])
        parse = parse_parts if raw["version"] == jobfields.PARTS_VERSION else _parse_one
        request, _ = parse(raw["resources"])
        hops, elastic = jobfields.max_hops_of(system), jobfields.elastic_of(system)
        bounds = _constraint(system), hops, elastic, jobfields.reservation_of(system)
        if bounds != _UNBOUND:
            request = request.bound(*bounds)
        bare = _bare(raw["attributes"])
        return cls(
            raw,
            raw if bare is raw["attributes"] else {**raw, "attributes": bare},
            request,
            duration_s=jobfields.seconds(system.get("duration"), "duration"),
            queue=jobfields.name_given(system, "queue"),
            job_name=jobfields.name_given(system, "job", "name"),
            sharing=sharing_given(system),
        )

    @property
    def parts(self) -> tuple[JobPart, ...]:
        """Its parts, in order; the job itself as one where there are not several."""
        if self._several:
            return self._several
        count = self.ntasks_per_slot, self.ntasks_total, self.ntasks_per_resource
        return (JobPart(self.raw["tasks"][0]["slot"], self.request, self.command, *count),)

    def to_json(self) -> dict[str, Any]:
        """Return the jobspec as it came; not a copy."""
        return self.raw

    @property
    def least_ntasks(self) -> int:
        """Return the least number of tasks that is asked for."""
        if self._least_ntasks is None:
            self._least_ntasks = self.ntasks(self.request.least_slots)
        return self._least_ntasks

    def ntasks(self, nslots: int) -> int:
        """Return the number of tasks on an allocation of `nslots` slots; of several parts ask each
        (`JobPart.ntasks`).
        """
        count = self.ntasks_per_slot, self.ntasks_total, self.ntasks_per_resource
        return tasks_on(count, self.request, nslots)

    def ntasks_on(self, nnodes: int, ncores: int, nslots: object, by_part: Mapping[str, str] | None) -> int:
        """Return the number of tasks on the granted resources.

        `nslots` is as R has it, and ignored if it is not a number from 1 to `ncores`; `by_part` has the ranks of each
        of several parts.
        """
        if self._several:
            ranks = [Idset.parse((by_part or {}).get(part.label, "")) for part in self._several]
            several = zip(self._several, ranks, strict=True)
            return sum([part.ntasks(len(own) * part.request.slots.min) for part, own in several])
        if isinstance(nslots, int) and 0 < nslots <= ncores:
            return self.ntasks(nslots)
        request = self.request
        return self.ntasks(request.least_slots if request.nodes is None else nnodes * request.slots.min)

    @classmethod
    def from_command(
        cls,
        command: Sequence[str],
        *,
        ntasks: int | None = None,
        cores_per_task: int = 1,
        gpus_per_task: int = 0,
        amounts_per_task: Mapping[str, int | str] | None = None,
        amounts_per_node: Mapping[str, int | str] | None = None,
        shared: Mapping[str, int | str] | None = None,
        nodes: int | str | Mapping[str, Any] | None = None,
        exclusive: bool = False,
        duration_s: float = 0.0,
        queue: str | None = None,
        cwd: str | None = None,
        environment: Mapping[str, str | None] | None = None,
        constraint: Constraint | Mapping[str, Any] | None = None,
        dependencies: Sequence[Mapping[str, Any]] = (),
        test_run_duration_s: float | None = None,
        input: str | None = None,
        output: str | None = None,
        error: str | None = None,
        name: str | None = None,
        bank: str | None = None,
        preemptible_after_s: float | None = None,
        requeue: int = 0,
        retry_on: str | None = None,
        retry_pause_s: float | None = None,
        job_set: str | None = None,
        elastic: bool = False,
        max_hops: int | None = None,
        reservation: str | None = None,
        deadline_s: float | None = None,
        parts: Sequence[PartAsked] = (),
    ) -> Jobspec:
        """Make the jobspec of a command line: a slot a task, spread evenly over `nodes` if given (a count as in RFC
        14).

        Without `ntasks` it is one task, or one a node. With `parts` it is one a node of each, and command, nodes and
        tasks are theirs. Amounts of countable resources are numbers or texts such as `8GiB`. Without a file for `input`
        the tasks read what is sent to the job. `preemptible_after_s` None is never. Raises InvalidValue like `parse`,
        which it goes through.
        """
        system: dict[str, Any] = {
            "duration": duration_s,
            "queue": queue,
            "cwd": cwd,
            "environment": None if environment is None else dict(environment),
            "constraints": (constraint.to_json() if isinstance(constraint, Constraint) else constraint) or None,
            "dependencies": [dict(dependency) for dependency in dependencies] or None,
            "exec": None if test_run_duration_s is None else {"test": {"run_duration": _fsd(test_run_duration_s)}},
            "shell": jobfields.file_options(input, output, error),
            "job": _without_none({"name": name, "set": job_set}),
            "bank": bank,
            "preemptible-after": preemptible_after_s,
            "fluxsched": _without_none(
                {
                    "requeue": requeue or None,
                    "retry-on": retry_on,
                    "retry-pause": retry_pause_s,
                    "elastic": elastic or None,
                    "max-hops": max_hops,
                    "reservation": reservation,
                    "deadline": deadline_s,
                }
            ),
        }
        resources, count = jobfields.layout(ntasks, cores_per_task, gpus_per_task, 1 if parts else nodes, exclusive)
        jobfields.add_amounts(resources, amounts_per_task or {}, amounts_per_node or {}, shared or {})
        tasks = [{"command": list(command), "slot": jobfields.TASK_SLOT, "count": count}]
        attributes = {"system": _without_none(system) or {}}
        raw = {"version": 1, "resources": resources, "tasks": tasks, "attributes": attributes}
        return cls.parse(with_parts(raw, parts) if parts else raw)


def asks_for_memory(jobspec: Jobspec) -> bool:
    """Return whether a job has asked for memory, and is limited to it."""
    for request in jobspec.request.each_part:
        asked = request.amounts + request.node_amounts + request.shared
        if asked and any(kind == MEMORY for kind, _ in asked):
            return True
    return False


def _parse_one(obj: object) -> tuple[Request, str]:
    return parse_resources(obj, EVERYTHING)


def _constraint(system: Mapping[str, Any]) -> Constraint:
    obj = system.get("constraints")
    if obj is None:
        return EVERYTHING
    try:
        return Constraint.parse(obj)
    except InvalidValue as fault:
        raise named("attributes.system.constraints", fault) from None


def _without_none(keys: Mapping[str, Any]) -> dict[str, Any] | None:
    """Without those that are None; None if all are."""
    return {key: value for key, value in keys.items() if value is not None} or None


def _fsd(duration_s: float) -> str | float:
    """Return a duration as RFC 23 text: repr keeps every digit."""
    return f"{duration_s!r}s" if isfinite(duration_s) else duration_s


def _files(system: Mapping[str, Any]) -> Any:
    found = system.get("files")
    if found is not None:
        parse_archive(found)
    return found


_BULK: Final = frozenset(("environment", "files"))


def without_bulk(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a jobspec's JSON without what only its tasks need: the environment and the files, which may be
    megabytes.
    """
    attributes = raw.get("attributes")
    bare = _bare(attributes)
    return raw if bare is attributes else {**raw, "attributes": bare}


def _bare(attributes: Any) -> Any:
    system = (attributes or {}).get("system") or {}
    if _BULK.isdisjoint(system):
        return attributes
    return {**attributes, "system": {key: value for key, value in system.items() if key not in _BULK}}


# ---- jobs submitted together

ARRAY_JOBS_MAX = 512
"""Jobs of one request, which are accepted in one turn: some 30 ms, in which nobody else is served."""

ARRAY_TEXTS_MAX = 32
"""Texts in which the jobs of one request differ, each of which is replaced in each job."""

TextPath = Sequence[str | int]


class JobspecTemplate:
    """Jobspec of many jobs that differ in the texts at `paths`, such as `tasks`, 0, `command`, 1.

    Law: a job is accepted, and reads, as if its jobspec had come alone; what all have in common is read once.
    """

    def __init__(self, raw: dict[str, Any], paths: Sequence[TextPath]) -> None:
        """Read the jobspec. Raises InvalidValue for a path to what is no text of tasks or attributes, or as
        `Jobspec.parse` does.
        """
        if len(paths) > ARRAY_TEXTS_MAX:
            what = f"jobs of one request differ in {len(paths)} texts, the limit is {ARRAY_TEXTS_MAX}"
            raise LimitExceeded(f"{what}: submit them one by one")
        Jobspec.parse(raw)
        for path in paths:
            _check_path(raw, path)
        self._raw = raw
        self._paths = paths
        parse = parse_parts if raw["version"] == PARTS_VERSION else _parse_one
        self._resources = parse(raw["resources"])
        self._array: int | None = None
        self._attributes: dict[str, Any] = {}
        self._read = read_attributes(raw["attributes"])

    def job(self, texts: Sequence[str], array: int) -> Jobspec:
        """Return the jobspec with these texts, of a job of an array (0: its first job). Raises InvalidValue."""
        if len(texts) != len(self._paths):
            raise InvalidValue(f"a job has {len(texts)} texts for {len(self._paths)} paths: give one for each")
        self._set_array(array)
        raw: dict[str, Any] = {**self._raw, "attributes": self._attributes}
        for path, text in zip(self._paths, texts, strict=True):
            raw = _with_text(raw, path, 0, text)
        attributes = raw["attributes"]
        return Jobspec.of_read(
            raw, self._resources, self._read if attributes is self._attributes else read_attributes(attributes)
        )

    def _set_array(self, array: int) -> None:
        if array == self._array:
            return
        attributes = self._raw["attributes"]
        self._attributes = {**attributes, "system": {**(attributes.get("system") or {}), "array": array}}
        self._read = read_attributes(self._attributes)
        self._array = array


def _check_path(raw: dict[str, Any], path: TextPath) -> None:
    """Raise InvalidValue unless there is a text at this path."""
    found: Any = raw if path and path[0] in ("tasks", "attributes") else None
    for key in path:
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and isinstance(key, int) and 0 <= key < len(found):
            found = found[key]
        else:
            found = None
    if not isinstance(found, str):
        name = shown(".".join([str(key) for key in path]))
        raise InvalidValue(f"{name} is no text in the tasks or attributes of the jobspec, so jobs cannot differ in it")


def _with_text(tree: Any, path: TextPath, at: int, text: str) -> Any:
    """Return the tree with another text at the path from its key `at` on; only what is on the path is copied."""
    if at == len(path):
        return text
    key, made = path[at], tree.copy()
    made[key] = _with_text(tree[key], path, at + 1, text)
    return made


# ---- signed

MECHANISM: Final = "none"
VERSION: Final = 1
_INTEGER: Final = re.compile(r"i[0-9]{1,10}")
_REMEDY: Final = "sign with mechanism none (RFC 15), or send the jobspec unsigned"


class Unwrapped(NamedTuple):
    """Content of a J: the jobspec's bytes (JSON), and the userid that signed it (None: unsigned)."""

    jobspec: bytes
    userid: int | None


def unwrap(text: str) -> Unwrapped:
    """Return the jobspec in `HEADER.PAYLOAD.none` or in plain JSON. Raises InvalidValue naming the part that is
    wrong.
    """
    if text.lstrip()[:1] == "{":
        return Unwrapped(text.encode(), None)
    parts = text.split(".")
    if len(parts) != 3:
        raise InvalidValue(f"J has {len(parts)} parts, HEADER.PAYLOAD.SIGNATURE has three: {_REMEDY}")
    header = _header(_decoded("header", parts[0]))
    mechanism = _text(header, "mechanism")
    if mechanism != MECHANISM or parts[2] != MECHANISM:
        raise InvalidValue(f"J is signed by mechanism {mechanism!r}, which is not supported here: {_REMEDY}")
    if _number(header, "version") != VERSION:
        raise InvalidValue(f"J has version {_number(header, 'version')}, known is {VERSION}: {_REMEDY}")
    return Unwrapped(_decoded("payload", parts[1]).rstrip(b"\0"), _number(header, "userid"))


def wrap(jobspec: bytes, userid: int) -> str:
    """Return a J of mechanism `none`."""
    fields = ("version", f"i{VERSION}", "userid", f"i{userid}", "mechanism", f"s{MECHANISM}")
    header = "".join(f"{field}\0" for field in fields).encode()
    return ".".join((base64.b64encode(header).decode(), base64.b64encode(jobspec).decode(), MECHANISM))


def _decoded(part: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as exc:
        raise InvalidValue(f"the {part} of J is not base64 ({exc}): {_REMEDY}") from None


def _header(data: bytes) -> dict[str, str]:
    """Keys and values, each ended by a NUL."""
    words = data.decode("ascii", "replace").split("\0")
    if len(words) % 2 != 1 or words[-1]:
        raise InvalidValue(f"the header of J is not made of pairs that end in NULs: {_REMEDY}")
    return dict(zip(words[:-1:2], words[1::2], strict=True))


def _text(header: dict[str, str], key: str) -> str:
    value = header.get(key, "")
    if value[:1] != "s":
        raise InvalidValue(f"the header of J has no text {key!r}: {_REMEDY}")
    return value[1:]


def _number(header: dict[str, str], key: str) -> int:
    value = header.get(key, "")
    if not _INTEGER.fullmatch(value):
        raise InvalidValue(f"the header of J has no integer {key!r}: {_REMEDY}")
    return int(value[1:])
