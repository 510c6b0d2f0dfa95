"""Fields of a jobspec around its resources (RFC 14, 25, 26): tasks, and the system attributes that we read.

Among them is how a job shares the machine: its bank, when it may be preempted, when it is submitted again, its job set.

Law: a function takes JSON and gives the checked value, or raises InvalidValue that begins with the path of the part.

Limits of a site on users, banks and queues: whom each is about, and how much they may have at once.

Law: a limit counts the jobs of one holder. Its holder is the user, bank and queue that it names together; `*` makes a
holder of each user, bank or queue. The job manager refuses submits by `waiting`, and jobs that are too large or too
long in themselves; schedulers hold back starts by the other bounds, under every policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import JOBID_MAX
from fluxsched.core.quantities import format_duration, parse_amount, parse_duration
from fluxsched.core.reasons import Cause, WaitKind, cause
from fluxsched.core.request import COUNT_MAX, Count, Request
from fluxsched.core.text import counted, kind_of, named, shown
from fluxsched.errors import InvalidValue, LimitExceeded

DEPENDENCIES_MAX = 1024
"""Dependencies of one job: each is an entry in the table of dependencies."""

ANTECEDENTS_MAX = 256
"""Dependencies that an instance takes of a job: each is an event in its log and an entry in an index."""

HOPS_MAX = 1 << 16
"""No tree of switches is so deep: a larger number bounds nothing."""

SECONDS_MAX = 1e11
"""Three thousand years: a longer limit is in the wrong unit, and no limit is written as 0."""

PARTS_VERSION: Final = 999
"""The version of the examples of RFC 14, which has not settled one."""

TASK_SLOT: Final = "task"
"""The slot label of the jobspecs that the command line makes, as Flux's own commands label it."""

_TASK_KEYS: Final = frozenset(("command", "slot", "count", "attributes", "distribution"))
_STRING_OR_NULL: Final = frozenset((str, type(None)))
_OURS: Final = ("deadline", "elastic", "max-hops", "notify", "requeue", "reservation", "retry-on", "retry-pause")
_COUNT_KEYS: Final = ("per_slot", "total", "per_resource")

TaskCount = tuple[int | None, int | None, tuple[str, int] | None]
"""Tasks a slot, in all, or for each core or gpu: just one of them is set."""


def check_top(raw: Mapping[str, Any]) -> None:
    """Check the four keys that every jobspec has, and the version that is read here."""
    for key in ("version", "resources", "tasks", "attributes"):
        if key not in raw:
            raise InvalidValue(f"jobspec has no {key}, which RFC 25 requires")
    version = raw["version"]
    if type(version) is not int or version not in (1, PARTS_VERSION):
        several = f"{PARTS_VERSION} for several parts (RFC 14)"
        raise InvalidValue(f"version must be 1 (RFC 25), or {several}, not {shown(version)}")


def system_of(attributes: object) -> dict[str, Any]:
    """`attributes.system`, empty if there is none."""
    if attributes is None:
        return {}
    if not isinstance(attributes, dict):
        raise InvalidValue(f"attributes must be an object, not {kind_of(attributes)}")
    unknown = attributes.keys() - {"system", "user"}
    if unknown:
        raise InvalidValue(f"attributes: unknown {', '.join(sorted(map(str, unknown)))[:80]}: it has system and user")
    for key, value in attributes.items():
        if not isinstance(value, dict):
            raise InvalidValue(f"attributes.{key} must be an object, not {kind_of(value)}")
    system: dict[str, Any] = attributes.get("system", {})
    return system


def system_given(attributes: object) -> Mapping[str, Any]:
    """Return `attributes.system`, whatever is beside it; empty if there is none."""
    system = attributes.get("system") if isinstance(attributes, dict) else None
    if system is None:
        return _NOTHING
    if not isinstance(system, dict):
        raise InvalidValue(f"attributes.system must be an object, not {kind_of(system)}")
    return system


def name_given(system: Mapping[str, Any], *keys: str) -> str | None:
    """Return what stands under these keys if it is a string that is not empty, else None."""
    found: object = system
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) and found else None


def parse_tasks(obj: object, label: str, gpus: int) -> tuple[tuple[str, ...], TaskCount]:
    """Return the command and the task count of the one task, which refers to the one slot by its label."""
    if not isinstance(obj, list | tuple) or len(obj) != 1 or not isinstance(obj[0], dict):
        raise InvalidValue("tasks must be a list of one object (RFC 25)")
    return parse_task(obj[0], "tasks[0]", label, gpus)


def parse_task(task: dict[str, Any], where: str, label: str, gpus: int) -> tuple[tuple[str, ...], TaskCount]:
    """Parse one entry of `tasks`, for the slot with this label and number of GPUs."""
    if not task.keys() <= _TASK_KEYS:
        unknown = ", ".join(sorted(map(str, task.keys() - _TASK_KEYS)))
        raise InvalidValue(f"{where}: unknown {unknown[:80]}: a task has {', '.join(sorted(_TASK_KEYS))}")
    if task.get("slot") != label:
        raise InvalidValue(f"{where}.slot: {shown(task.get('slot'))} is not the label of the slot, {shown(label)}")
    return _command(task.get("command"), where), _task_count(task.get("count"), gpus, where)


def _command(obj: object, where: str) -> tuple[str, ...]:
    path = f"{where}.command"
    words = [obj] if isinstance(obj, str) else obj
    if not isinstance(words, list | tuple) or not words:
        raise InvalidValue(f"{path} must be a list of strings that is not empty")
    for at, word in enumerate(words):
        if type(word) is not str or "\0" in word:
            raise InvalidValue(f"{path}[{at}] must be a string without NUL")
    if not words[0]:
        raise InvalidValue(f"{path}[0] is empty: it must name a program")
    return tuple(words)


def _task_count(obj: object, gpus: int, where: str) -> TaskCount:
    path = f"{where}.count"
    if not isinstance(obj, dict) or len(obj) != 1 or (key := next(iter(obj))) not in _COUNT_KEYS:
        raise InvalidValue(f"{path} must be an object with one of {', '.join(_COUNT_KEYS)}")
    value = obj[key]
    if key != "per_resource":
        number = _number(value, f"{path}.{key}")
        return (number, None, None) if key == "per_slot" else (None, number, None)
    if not isinstance(value, dict) or value.keys() != {"type", "count"}:
        raise InvalidValue(f"{path}.per_resource must be an object with type and count")
    if value["type"] not in (("core", "gpu") if gpus else ("core",)):
        raise InvalidValue(f"{path}.per_resource.type: {shown(value['type'])} is not in the slot")
    return None, None, (value["type"], _number(value["count"], f"{path}.per_resource.count"))


def _number(value: object, path: str) -> int:
    if type(value) is not int or value < 1:
        raise InvalidValue(f"{path} must be an integer of 1 or more")
    if value > COUNT_MAX:
        raise LimitExceeded(f"{path} is above the limit of {COUNT_MAX}")
    return value


def seconds(obj: object, key: str, zero: str = "0 sets no limit") -> float:
    """Return a time span of `attributes.system`, 0.0 if absent; `zero` says what 0 means, for errors."""
    if obj is None:
        return 0.0
    if isinstance(obj, bool) or not isinstance(obj, int | float) or not 0 <= obj <= SECONDS_MAX:
        limits = f"within 0 and {SECONDS_MAX:.0f}"
        raise InvalidValue(f"attributes.system.{key} must be a number of seconds {limits}, not {shown(obj)}; {zero}")
    return float(obj)


def array_of(system: Mapping[str, Any]) -> int | None:
    """Return the array that the job was submitted with: the id of its first job, 0 for the first job itself; else
    None.
    """
    obj = system.get("array")
    if obj is not None and (type(obj) is not int or not 0 <= obj <= JOBID_MAX):
        raise InvalidValue(f"attributes.system.array: {shown(obj)} is not the id of the array's first job, or 0")
    return obj


def run_duration(system: Mapping[str, Any]) -> float | None:
    """Return how long a job of the `test` execution pretends to run (an RFC 23 duration, seconds), or None for a real
    run.
    """
    obj = inner(system, "exec", "test").get("run_duration")
    if obj is None:
        return None
    try:
        return parse_duration(obj)
    except InvalidValue as fault:
        raise named("attributes.system.exec.test.run_duration", fault) from None


def text(obj: Mapping[str, Any], key: str, within: str = "") -> str | None:
    """Return a string without NUL and not empty, or None if absent."""
    value = obj.get(key)
    if value is not None and (type(value) is not str or not value or "\0" in value):
        raise InvalidValue(f"attributes.system.{within}{key} must be a string that is not empty, without NUL")
    return value


def parse_environment(obj: object, within: str = "environment") -> dict[str, str | None]:
    """Variables to set, or to unset where the value is None; such as an exec would take them."""
    if obj is None:
        return {}
    path = f"attributes.system.{within}"
    if not isinstance(obj, dict):
        raise InvalidValue(f"{path} must be an object, not {kind_of(obj)}")
    if not (set(map(type, obj)) <= {str} and set(map(type, obj.values())) <= _STRING_OR_NULL):
        wrong = [str(k)[:40] for k, v in obj.items() if type(k) is not str or type(v) not in _STRING_OR_NULL]
        raise InvalidValue(f"{path}: {', '.join(wrong[:20])} must be a string (to set) or null (to unset)")
    names = "".join(obj)
    if "" in obj or "=" in names or "\0" in names or "\0" in "".join(filter(None, obj.values())):
        wrong = [k[:40] for k, v in obj.items() if not k or "=" in k or "\0" in k or (v and "\0" in v)]
        raise InvalidValue(f"{path}: {', '.join(map(repr, wrong[:20]))} cannot be set: an empty name, a '=' or a NUL")
    return obj


def parse_dependencies(obj: object) -> tuple[Mapping[str, Any], ...]:
    """Return the dependencies of RFC 26, each with scheme and value, others keys as they are."""
    if obj is None:
        return ()
    path = "attributes.system.dependencies"
    if not isinstance(obj, list | tuple):
        raise InvalidValue(f"{path} must be a list, not {kind_of(obj)}")
    if len(obj) > DEPENDENCIES_MAX:
        raise LimitExceeded(f"{path} has {len(obj)} members: the limit is {DEPENDENCIES_MAX}")
    for at, dependency in enumerate(obj):
        if not isinstance(dependency, dict):
            raise InvalidValue(f"{path}[{at}] must be an object with scheme and value (RFC 26)")
        for key in ("scheme", "value"):
            if type(dependency.get(key)) is not str:
                raise InvalidValue(f"{path}[{at}].{key} must be a string (RFC 26)")
    return tuple(obj)


def check_ours(system: Mapping[str, Any]) -> None:
    """Raise InvalidValue for unknown keys of `fluxsched`: a misspelled one would have no effect."""
    if unknown := [key for key in inner(system, "fluxsched") if key not in _OURS]:
        raise InvalidValue(f"attributes.system.fluxsched.{shown(unknown[0])[1:-1]}: unknown; known: {', '.join(_OURS)}")


NOTIFY_START, NOTIFY_END, NOTIFY_FAIL = "start", "end", "fail"
NOTIFY_EVENTS: Final = (NOTIFY_START, NOTIFY_END, NOTIFY_FAIL)
"""Events of a job that its user may be told of; a failure is an end that is no success."""
NOTIFY_COMMAND_CHARS_MAX = 4096
"""Characters of the command that tells of them; what is longer belongs in a script."""
_NOTIFY_KEYS: Final = ("command", "host", "on", "terminal")


class UserNotify(NamedTuple):
    """Events that the user of a job is to be told of, some of NOTIFY_EVENTS: by a command of a shell; if it is empty,
    by a line on a terminal of a host, and by mail if that is gone.
    """

    on: tuple[str, ...]
    command: str = ""
    terminal: str = ""
    host: str = ""


def notify_of(system: Mapping[str, Any]) -> UserNotify | None:
    """Return what the user is to be told; None for nothing."""
    ours = inner(system, "fluxsched")
    if ours.get("notify") is None:
        return None
    path, notify = "attributes.system.fluxsched.notify", inner(system, "fluxsched", "notify")
    if unknown := [key for key in notify if key not in _NOTIFY_KEYS]:
        raise InvalidValue(f"{path}.{shown(unknown[0])[1:-1]}: unknown; known: {', '.join(_NOTIFY_KEYS)}")
    on = notify.get("on", [NOTIFY_END])
    if not isinstance(on, list | tuple) or not on or [each for each in on if each not in NOTIFY_EVENTS]:
        raise InvalidValue(f"{path}.on: {shown(on)} is no list of some of {', '.join(NOTIFY_EVENTS)}")
    command, terminal, host = [text(notify, key, "fluxsched.notify.") or "" for key in ("command", "terminal", "host")]
    if len(command) > NOTIFY_COMMAND_CHARS_MAX:
        what = f"{len(command)} characters, the limit is {NOTIFY_COMMAND_CHARS_MAX}"
        raise LimitExceeded(f"{path}.command: {what}: write them into a script")
    if terminal and not terminal.startswith("/dev/"):
        raise InvalidValue(f"{path}.terminal: {shown(terminal)} is not below /dev")
    return UserNotify(tuple(on), command, terminal, host)


def max_hops_of(system: Mapping[str, Any]) -> int | None:
    """Return the most hops between two nodes of a job, or of a part of it; None for no bound."""
    hops = inner(system, "fluxsched").get("max-hops")
    if hops is None:
        return None
    return checked_max_hops(hops, "attributes.system.fluxsched.max-hops")


def checked_max_hops(hops: object, path: str) -> int:
    """Return a bound on hops. Raises InvalidValue, for `path`, if no two nodes can be so far apart."""
    if type(hops) is not int or hops % 2 or not 2 <= hops <= HOPS_MAX:
        what = f"is not an even number within 2-{HOPS_MAX}: 2 is under one switch, 4 under the next level"
        raise InvalidValue(f"{path}: {shown(hops)} {what}")
    return hops


def elastic_of(system: Mapping[str, Any]) -> bool:
    """Return whether the number of a job's nodes may change while it runs."""
    elastic = inner(system, "fluxsched").get("elastic", False)
    if type(elastic) is not bool:
        raise InvalidValue(f"attributes.system.fluxsched.elastic: {shown(elastic)} is not true or false")
    return elastic


def reservation_of(system: Mapping[str, Any]) -> str:
    """Return the name of the reservation in which a job is to run; empty for none."""
    name = inner(system, "fluxsched").get("reservation")
    path = "attributes.system.fluxsched.reservation"
    if name is not None and not isinstance(name, str):
        raise InvalidValue(f"{path}: {shown(name)} is not the name of a reservation")
    return check_name(name, path) or ""


def deadline_of(system: Mapping[str, Any]) -> float | None:
    """Return the time by which a job is to be over (seconds since the epoch); None for any."""
    at_s = inner(system, "fluxsched").get("deadline")
    if at_s is not None and (type(at_s) not in (int, float) or not 0 <= at_s < inf):
        raise InvalidValue(
            f"attributes.system.fluxsched.deadline: {shown(at_s)} is not a time in seconds since the epoch"
        )
    return at_s


def inner(system: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """Return an object inside `attributes.system`, empty if it or one around it is absent."""
    found: Mapping[str, Any] = system
    for at, key in enumerate(keys):
        below = found.get(key)
        if below is None:
            return _NOTHING
        if not isinstance(below, dict):
            raise InvalidValue(f"attributes.system.{'.'.join(keys[: at + 1])} must be an object")
        found = below
    return found


_NOTHING: Final[Mapping[str, Any]] = {}
_NO_TEMPLATES: Final[Mapping[str, str]] = {}
_PMI = {"simple": True, "off": False, "none": False}


def file_of(system: Mapping[str, Any], direction: str, stream: str) -> str | None:
    """Return the file of a stream (shell option `input.STREAM` or `output.STREAM` of type `file`), None if it has
    none.
    """
    obj = inner(system, "shell", "options", direction).get(stream)
    if obj is None:
        return None
    within = f"shell.options.{direction}.{stream}"
    if not isinstance(obj, dict):
        raise InvalidValue(f"attributes.system.{within} must be an object")
    if obj.get("type") != "file":
        return None
    path = text(obj, "path", f"{within}.")
    if path is None:
        raise InvalidValue(f"attributes.system.{within}.path is missing: the type is file")
    return path


def pmi_of(system: Mapping[str, Any]) -> bool | None:
    """Return whether the tasks are offered PMI (shell option `pmi`); None if the jobspec leaves it open."""
    wanted = inner(system, "shell", "options").get("pmi")
    if wanted is None:
        return None
    if type(wanted) is not str or wanted not in _PMI:
        raise InvalidValue(f"attributes.system.shell.options.pmi: {shown(wanted)} is not simple, off or none")
    return _PMI[wanted]


class Pty(NamedTuple):
    """A pseudo-terminal for the only task of a job, by the size of its window."""

    rows: int = 24
    columns: int = 80


def pty_of(system: Mapping[str, Any]) -> Pty | None:
    """Return the pseudo-terminal that the task is to have (shell option `pty`); None if it is to have none."""
    wanted = inner(system, "shell", "options").get("pty")
    if wanted is None:
        return None
    where = "attributes.system.shell.options.pty"
    if wanted != 1 and not isinstance(wanted, dict):
        raise InvalidValue(f"{where}: {shown(wanted)} is neither 1 nor an object such as {{'interactive': 1}}")
    streams = ("input", "stdin"), ("output", "stdout"), ("output", "stderr")
    if any(file_of(system, *stream) is not None for stream in streams):
        raise InvalidValue(f"{where}: the terminal is the task's input and output: give no files for these")
    size = dict(Pty()._asdict())
    for name in size:
        number = wanted.get(name, size[name]) if isinstance(wanted, dict) else size[name]
        if type(number) is not int or not 1 <= number <= WINDOW_MAX:
            raise InvalidValue(f"{where}.{name}: {shown(number)} is not a number from 1 to {WINDOW_MAX}")
        size[name] = number
    return Pty(size["rows"], size["columns"])


WINDOW_MAX: Final = 65_535
"""Rows or columns of a terminal's window: what the kernel can say."""


def templates_of(system: Mapping[str, Any]) -> Mapping[str, str]:
    """Variables whose values have tags that are filled in when the job starts (shell option `env-expand`)."""
    found = inner(system, "shell", "options").get(ENV_EXPAND)
    if found is None:
        return _NO_TEMPLATES
    read = parse_environment(found, f"shell.options.{ENV_EXPAND}")
    return {name: value for name, value in read.items() if value is not None}


ENV_EXPAND: Final = "env-expand"
"""Flux's shell option for variables with tags."""


def file_options(input: str | None, output: str | None, error: str | None) -> dict[str, Any] | None:
    """Return the shell options that `file_of` reads, or None if no stream has a file."""
    streams = {"input": {"stdin": input}, "output": {"stdout": output, "stderr": error}}
    options = {}
    for direction, paths in streams.items():
        files = {stream: {"type": "file", "path": path} for stream, path in paths.items() if path is not None}
        if files:
            options[direction] = files
    return {"options": options} if options else None


def layout(
    ntasks: int | None, cores: int, gpus: int, nodes: int | str | Mapping[str, Any] | None, exclusive: bool
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the `resources` of a slot a task, on `nodes` (any RFC 14 count) or anywhere, and the task count to go with
    it.
    """
    leaves = [{"type": "core", "count": cores}] + ([{"type": "gpu", "count": gpus}] if gpus else [])
    slot: dict[str, Any] = {"type": "slot", "count": ntasks or 1, "with": leaves, "label": TASK_SLOT}
    if ntasks is not None and ntasks < 1:
        raise InvalidValue(f"number of tasks must be 1 or more, not {ntasks}")
    if nodes is None:
        if exclusive:
            raise InvalidValue("exclusive requests whole nodes: give their number")
        return [slot], {"per_slot": 1}
    count = Count.parse(dict(nodes) if isinstance(nodes, Mapping) else nodes)
    node: dict[str, Any] = {"type": "node", "count": count.to_json(), "with": [slot]}
    if exclusive:
        node["exclusive"] = True
    if ntasks is None:
        return [node], {"per_slot": 1}
    if ntasks < count.min:
        tasks = counted(ntasks, "task")
        raise InvalidValue(f"{tasks} cannot be spread over {count} nodes: ask for fewer nodes or more tasks")
    slot["count"] = -(-ntasks // count.min)
    even = count.is_fixed and ntasks % count.min == 0
    return [node], {"per_slot": 1} if even else {"total": ntasks}


def add_amounts(
    resources: list[dict[str, Any]],
    per_slot: Mapping[str, int | str],
    per_node: Mapping[str, int | str],
    shared: Mapping[str, int | str],
) -> None:
    """Countable resources for each slot of a `layout`, for each of its nodes, and those that the job wants once."""
    top = resources[0]
    if per_node and top["type"] != "node":
        raise InvalidValue(f"{', '.join(per_node)} for each node: give the number of nodes")
    slot = top if top["type"] == "slot" else top["with"][0]
    for place, amounts in ((slot["with"], per_slot), (top["with"], per_node), (resources, shared)):
        place += [{"type": kind, "count": parse_amount(amount)} for kind, amount in amounts.items()]


# ---- bank, preemption, further attempts, job set

DEFAULT_BANK: Final = "default"
"""The bank of jobs that name none."""

NAME_CHARS_MAX = 255
"""Of a bank or a job set: both are shown in tables and kept for each account."""

WHEN_MAX = 32
"""Jobs of one question when they would start: rows of a small table."""

REQUEUE_MAX = 100
"""Maximum number of times that a job may ask to be submitted again."""

RETRY_PAUSE_S: Final = 10.0
"""Pause before a first retry where the job names none (seconds)."""

RETRY_PAUSE_MAX_S: Final = 86400.0
"""A pause no longer doubles beyond this (seconds): who repairs something looks once a day."""

RETRY_ON_CHARS_MAX: Final = 255
"""Of the ends after which a job is tried again, which name some exit codes and signals."""

SIGNAL_BASE: Final = 128
"""The exit code of a shell whose program was ended by signal n is this and n."""

_RETRY_KINDS: Final = MappingProxyType({"exit": (1, 255, 0), "signal": (1, 64, SIGNAL_BASE)})
"""By the word before the colon the least and the largest number behind it, and its distance to the shell's code."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """`preemptible_after_s`: the run time (seconds) after which a job may be preempted, None for never.

    `requeue`: how often it is submitted again after that, the loss of a node, or an end in `retry_on`: exit codes as a
    shell has them. `retry_pause_s`: the first pause before a retry. `bank` is None where the jobspec names none.
    """

    bank: str | None = None
    preemptible_after_s: float | None = None
    requeue: int = 0
    job_set: str | None = None
    retry_on: Idset = EMPTY
    retry_pause_s: float = RETRY_PAUSE_S


USUAL: Final = Sharing()
"""Sharing of a job without such attributes."""


def parse_sharing(system: Mapping[str, Any]) -> Sharing:
    """Raise InvalidValue naming the path of the part that is wrong, LimitExceeded above a named limit."""
    bank = check_name(text(system, "bank"), "attributes.system.bank")
    job_set = check_name(text(inner(system, "job"), "set", "job."), "attributes.system.job.set")
    after = system.get("preemptible-after")
    after_s = None if after is None else seconds(after, "preemptible-after", "0 means at once")
    ours = inner(system, "fluxsched")
    requeue = _requeue(ours.get("requeue"))
    retry_on, pause = text(ours, "retry-on", "fluxsched."), ours.get("retry-pause")
    for key, value in (("retry-on", retry_on), ("retry-pause", pause)):
        if value is not None and not requeue:
            raise InvalidValue(f"attributes.system.fluxsched.{key} is of use with requeue alone: say how often, as 3")
    if bank is None and after_s is None and not requeue and job_set is None:
        return USUAL
    pause_s = RETRY_PAUSE_S if pause is None else seconds(pause, "fluxsched.retry-pause", "0 means none")
    return Sharing(bank, after_s, requeue, job_set, EMPTY if retry_on is None else parse_retry_on(retry_on), pause_s)


def parse_retry_on(given: str) -> Idset:
    """Return the exit codes, as a shell has them, of the ends in a text such as `exit:75,signal:9`. Raises InvalidValue
    or LimitExceeded.
    """
    path = "attributes.system.fluxsched.retry-on"
    if len(given) > RETRY_ON_CHARS_MAX:
        raise LimitExceeded(f"{path}: {len(given)} characters, the limit is {RETRY_ON_CHARS_MAX}: use ranges, as 1-9")
    found = EMPTY
    for word in given.split(","):
        kind, _, ids = word.partition(":")
        if kind not in _RETRY_KINDS:
            raise InvalidValue(f"{path}: {shown(word)} names no end: use exit:CODE or signal:NUMBER, as in exit:1-9")
        least, most, base = _RETRY_KINDS[kind]
        try:
            numbers = Idset.parse(ids)
        except InvalidValue as fault:
            raise InvalidValue(f"{path}: {shown(word)}: {fault}") from None
        if not numbers or numbers.min() < least or numbers.max() > most:
            raise InvalidValue(f"{path}: {shown(word)}: the numbers of {kind} are {least}-{most}")
        found |= Idset.of(number + base for number in numbers)
    return found


def sharing_given(system: Mapping[str, Any]) -> Sharing:
    """Return what is said of sharing as it should be; `requeue` counts where jobs are submitted again, not here."""
    bank, job_set = (_name_or_none(name_given(system, *keys)) for keys in (("bank",), ("job", "set")))
    try:
        after = system.get("preemptible-after")
        after_s = None if after is None else seconds(after, "preemptible-after")
    except InvalidValue:
        after_s = None
    return USUAL if bank is None and after_s is None and job_set is None else Sharing(bank, after_s, 0, job_set)


def _name_or_none(name: str | None) -> str | None:
    try:
        return check_name(name)
    except InvalidValue:
        return None


def check_name(name: str | None, path: str = "") -> str | None:
    """Return the name of a bank, user or job set, which people see in tables. Raises InvalidValue or LimitExceeded."""
    if name is None:
        return None
    at = f"{path}: " if path else ""
    if len(name) > NAME_CHARS_MAX:
        raise LimitExceeded(f"{at}{len(name)} characters, the limit is {NAME_CHARS_MAX}: choose a shorter name")
    if not name or not name.isprintable():
        raise InvalidValue(f"{at}{shown(name)} is not a name: it needs printable characters, at least one")
    return name


def _requeue(times: object) -> int:
    if times is None:
        return 0
    if type(times) is not int or not 0 <= times <= REQUEUE_MAX:
        path = "attributes.system.fluxsched.requeue"
        raise InvalidValue(f"{path}: {shown(times)} is not a number within 0-{REQUEUE_MAX}")
    return times


# ---- limits

EACH: Final = "*"
"""Stands for each user, bank or queue by itself."""

LIMITS_MAX = 256
"""Limits of a site: each is looked at for each user, bank and queue of jobs."""

HOLDERS_MAX = 65_536
"""Combinations of user, bank and queue whose holders are known; some 300 bytes each."""

SIZES: Final = ("running jobs", "nodes", "cores", "gpus")
"""Words for what running jobs have that a limit may bound."""

BoundedAmounts = tuple[int, ...]
"""As many of each of SIZES."""

Holder = tuple[str, ...]
"""Values of what a limit names, by which its jobs are counted together."""

HolderKey = tuple[int, Holder]
"""A holder of the limit at this place."""


class SiteLimit(NamedTuple):
    """One limit. A user is a user id or EACH, and what is None is not looked at; a bound that is None is none.

    `running`, `nodes`, `cores` and `gpus` count what the holder's jobs have at once, `waiting` those that wait;
    `minutes` is the longest time limit of one. `user_name` is the user for people.
    """

    user: int | str | None = None
    bank: str | None = None
    queue: str | None = None
    running: int | None = None
    waiting: int | None = None
    nodes: int | None = None
    cores: int | None = None
    gpus: int | None = None
    minutes: float | None = None
    user_name: str = ""

    @property
    def title(self) -> str:
        """Return whom the limit is about: `each user in bank physics`."""
        names = (("user", self.user_name or None), ("bank", self.bank), ("queue", self.queue))
        said = [f"each {kind}" if name == EACH else f"{kind} {name}" for kind, name in names if name is not None]
        return f"limit of {' in '.join(said)}"

    def holder(self, userid: int, bank: str | None, queue: str | None) -> Holder | None:
        """Return the holder with whose jobs such a job counts; None if the limit is not about it."""
        found: list[str] = []
        if self.user is not None:
            if self.user != EACH and self.user != userid:
                return None
            found.append(str(userid))
        for wanted, own in ((self.bank, bank or DEFAULT_BANK), (self.queue, queue)):
            if wanted is not None:
                if own is None or wanted not in (EACH, own):
                    return None
                found.append(own)
        return tuple(found)

    @property
    def sizes(self) -> tuple[int | None, ...]:
        """Return the bounds of what running jobs have, in the order of SIZES."""
        return (self.running, self.nodes, self.cores, self.gpus)

    def exceeded(self, held: BoundedAmounts, more: BoundedAmounts) -> Cause | None:
        """Return the bound that amounts exceed together, in words; None if there is none. Its kind is that of the first
        holder.
        """
        for at, most in enumerate(self.sizes):
            if most is not None and held[at] + more[at] > most:
                of_bank = WaitKind.LIMIT_OF_QUEUE if self.bank is None else WaitKind.LIMIT_OF_BANK
                kind = of_bank if self.user is None else WaitKind.LIMIT_OF_USER
                return cause(f"{self.title}: {held[at]} + {more[at]} {SIZES[at]} exceed {most}", kind)
        return None

    def too_long(self, duration_s: float) -> str | None:
        """Return the fault of a time limit (seconds, 0: none) above `minutes`, in words; None if there is none."""
        if self.minutes is None or 0 < duration_s <= self.minutes * 60:
            return None
        asked = format_duration(duration_s) if duration_s else "infinity (none was asked for)"
        most = format_duration(self.minutes * 60)
        return f"duration {asked}, {self.title} {most}: ask for at most {most}"


class Holders:
    """Holders of limits with whom a job counts, found once for each user, bank and queue: most limits are about
    others.
    """

    def __init__(self, limits: Sequence[SiteLimit], known_max: int = HOLDERS_MAX) -> None:
        self.limits = tuple(limits)
        self._known_max = known_max
        self._known: dict[tuple[int, str | None, str | None], tuple[HolderKey, ...]] = {}

    def of(self, userid: int, bank: str | None, queue: str | None) -> tuple[HolderKey, ...]:
        """Return a holder of each limit that is about such a job, in the order of the limits."""
        job = userid, bank, queue
        found = self._known.get(job)
        if found is None:
            if len(self._known) >= self._known_max:
                self._known.clear()
            keys: list[HolderKey] = []
            for at, limit in enumerate(self.limits):
                holder = limit.holder(userid, bank, queue)
                if holder is not None:
                    keys.append((at, holder))
            found = self._known[job] = tuple(keys)
        return found


def least_amounts(request: Request) -> BoundedAmounts:
    """Return the least that a job has of each of SIZES."""
    return (1, request.least_nodes, request.least_cores, request.least_gpus)


NOTHING: Final[BoundedAmounts] = (0, 0, 0, 0)
"""Amounts of a holder without running jobs."""
