"""JSON traces: one object per line, for what SWF cannot express (nodes, slots, GPUs, constraints, jobspecs).

The first line may be a header, `{"trace": 1, "name": ..., "machine": {"targets": 16, "cores": 64, "gpus": 4}}`. Every
other line is a job (`KEYS` names its keys, rfc/simulator.md explains them). Law: as in SWF, an absent or null value is
unknown, and a line that cannot be used is counted and shown. An unknown key makes a line bad: a constraint that was
mistyped must not be dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from reprlib import repr as shortened
from typing import Any

from fluxsched.core.constraint import Constraint
from fluxsched.errors import InvalidValue
from fluxsched.sim.traces.parts import check_nodes, check_parts
from fluxsched.sim.traces.trace import URGENCY_MAX, Ask, Collector, Machine, Trace, TraceJob, check_job

VERSION = 1

CONSTRAINTS_KEPT = 1024
"""Constraints that were found right: a trace has a handful."""

CONSTRAINT_CHARS = 80
"""How much of a wrong one is repeated."""

KEYS = (
    "job", "submit", "run", "duration", "nslots", "cores", "gpus", "nodes", "exclusive", "constraint", "jobspec",
    "user", "queue", "group", "wait", "urgency", "preceding", "think", "bank", "preemptible-after", "requeue",
    "work", "elastic", "max-hops", "parts",
)  # fmt: skip

_COUNTS = {"nslots": 1, "cores": 1, "gpus": 0, "urgency": 16, "requeue": 0}
_NEEDS = ("nslots", "cores", "gpus", "nodes", "exclusive", "constraint", "elastic", "max-hops", "parts")
_REPLACED = ("nslots", "cores", "gpus", "nodes", "exclusive")
"""What a job of several parts says of each part."""


def read_lines(lines: Iterable[str], name: str) -> Trace:
    """A trace out of the lines of a file. Raises InvalidValue for a header of another version."""
    found = Collector(name)
    asks: dict[Ask, Ask] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            obj = _object(text)
            if "trace" in obj:
                _header(found, obj)
                continue
            job = parse_job(obj, number)
        except InvalidValue as fault:
            if '"trace"' in text[:20]:
                raise InvalidValue(f"{name}:{number}: {fault}") from None
            found.fault(number, str(fault), text, is_bad=True)
            continue
        if job is None:
            found.fault(number, "submit or run not known", text, is_bad=False)
        else:
            found.add(job._replace(ask=asks.setdefault(job.ask, job.ask)))
    return found.trace()


def parse_job(obj: dict[str, Any], number: int) -> TraceJob | None:
    """One job, called by its line where it has no name; None when it lacks what a simulation needs."""
    unknown = sorted(obj.keys() - set(KEYS))
    if unknown:
        raise InvalidValue(f"unknown key {', '.join(unknown)[:40]}: a job has {', '.join(KEYS)}")
    work = _number(obj, "work")
    if work is not None and obj.get("run") is not None:
        raise InvalidValue("run and work cannot both be given: a job ends after a time, or when it has had its work")
    if obj.get("submit") is None or (obj.get("run") is None and work is None):
        return None
    _check_urgency(obj.get("urgency"))
    counts = {key: _count(obj, key, default) for key, default in _COUNTS.items()}
    both = [key for key in _NEEDS if obj.get(key) is not None] if obj.get("jobspec") is not None else []
    if both:
        raise InvalidValue(f"{', '.join(both)} cannot be combined with jobspec")
    parts = _parts(obj)
    ask = Ask(
        counts["nslots"], counts["cores"], counts["gpus"], _nodes(obj),
        bool(obj.get("exclusive")), _text_of(obj, "constraint"), _text_of(obj, "jobspec"),
        _is(obj, "elastic"), None if obj.get("max-hops") is None else _count(obj, "max-hops", 0), parts,
    )  # fmt: skip
    run_s, limit_s = _number(obj, "run") or 0.0, _number(obj, "duration")
    name, bank = _name(obj, "job"), _name(obj, "bank")
    job = TraceJob(
        number if name is None else name, _number(obj, "submit") or 0.0, run_s, limit_s or None, ask,
        _name(obj, "user"), _name(obj, "queue"), _name(obj, "group"), _number(obj, "wait"), counts["urgency"],
        _name(obj, "preceding"), _number(obj, "think"), None if bank is None else str(bank),
        _number(obj, "preemptible-after"), counts["requeue"], work,
    )  # fmt: skip
    check_job(job)
    if ask.constraint is not None:
        _check_constraint(ask.constraint)
    return job


def print_lines(trace: Trace) -> Iterator[str]:
    """The lines of a file, without newlines; `read_lines` gives the same jobs back."""
    header: dict[str, Any] = {"trace": VERSION, "name": trace.name}
    if trace.machine is not None:
        header["machine"] = trace.machine._asdict()
    yield json.dumps(header)
    for job in trace.jobs:
        ask = job.ask
        row = {
            "job": job.job, "submit": job.submit_s, "run": job.run_s if job.work is None else None, "work": job.work,
            "duration": job.limit_s, "user": job.user,
            "queue": job.queue, "group": job.group, "wait": job.wait_s, "preceding": job.preceding,
            "think": job.think_s, "bank": job.bank, "preemptible-after": job.preemptible_after_s,
            "constraint": None if ask.constraint is None else json.loads(ask.constraint),
            "jobspec": None if ask.jobspec is None else json.loads(ask.jobspec),
        }  # fmt: skip
        counts = {
            "nslots": ask.nslots, "cores": ask.cores, "gpus": ask.gpus, "urgency": job.urgency, "requeue": job.requeue
        }  # fmt: skip
        row |= {key: value for key, value in counts.items() if value != _COUNTS[key]}
        row |= {"nodes": ask.nodes, "exclusive": ask.exclusive or None, "elastic": ask.elastic or None}
        row |= {"max-hops": ask.max_hops, "parts": None if ask.parts is None else json.loads(ask.parts)}
        yield json.dumps({key: value for key, value in row.items() if value is not None})


def _check_urgency(value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= URGENCY_MAX):
        allowed = f"0 (held) to {URGENCY_MAX} (expedited)"
        raise InvalidValue(f"urgency {shortened(value)} is not {allowed}: leave it out for {_COUNTS['urgency']}")


@lru_cache(CONSTRAINTS_KEPT)
def _check_constraint(text: str) -> None:
    try:
        Constraint.parse(json.loads(text))
    except InvalidValue as fault:
        raise InvalidValue(f"constraint {text[:CONSTRAINT_CHARS]}: {fault} (RFC 31)") from None


def _object(text: str) -> dict[str, Any]:
    try:
        obj = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidValue("not JSON") from None
    if not isinstance(obj, dict):
        raise InvalidValue("not a JSON object")
    return obj


def _header(found: Collector, obj: dict[str, Any]) -> None:
    if obj["trace"] != VERSION:
        raise InvalidValue(f"version {obj['trace']} of a trace is not supported, only {VERSION}")
    machine = obj.get("machine")
    if machine is not None:
        if not isinstance(machine, dict) or not {"targets"} <= machine.keys() <= set(Machine._fields):
            raise InvalidValue(f"machine needs targets, and may have {', '.join(Machine._fields[1:])}")
        counts = {key: _count(machine, key, 0) for key in machine}
        found.machine = Machine(**counts)
    found.header |= {key: str(value) for key, value in obj.items() if key not in ("trace", "machine")}


def _count(obj: dict[str, Any], key: str, default: int) -> int:
    value = obj.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidValue(f"{key} is {str(value)[:20]!r}, not a count")
    return value


def _is(obj: dict[str, Any], key: str) -> bool:
    value = obj.get(key, False)
    if value is not None and not isinstance(value, bool):
        raise InvalidValue(f"{key} is {shortened(value)}, neither true nor false")
    return bool(value)


def _nodes(obj: dict[str, Any]) -> int | str | None:
    """How many nodes: a number, or a range as text."""
    value = obj.get("nodes")
    if not isinstance(value, str):
        return _count(obj, "nodes", 0) or None
    check_nodes(value)
    return value


def _parts(obj: dict[str, Any]) -> str | None:
    """The parts as canonical text."""
    value = obj.get("parts")
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise InvalidValue("parts is not a list of parts")
    if both := [key for key in _REPLACED if obj.get(key) is not None]:
        raise InvalidValue(f"{', '.join(both)} cannot be combined with parts, each of which says so itself")
    text = json.dumps(value, sort_keys=True)
    check_parts(text)
    return text


def _number(obj: dict[str, Any], key: str) -> float | None:
    value = obj.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InvalidValue(f"{key} is {str(value)[:20]!r}, not a number of seconds")
    try:
        return None if value is None else float(value)
    except OverflowError:
        raise InvalidValue(f"{key} is {str(value)[:20]}..., beyond the range of a double") from None


def _name(obj: dict[str, Any], key: str) -> int | str | None:
    value = obj.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise InvalidValue(f"{key} is {str(value)[:20]!r}, neither a number nor a text")
    return value


def _text_of(obj: dict[str, Any], key: str) -> str | None:
    """An object as canonical text, so that equal ones are equal."""
    value = obj.get(key)
    if value is not None and not isinstance(value, dict):
        raise InvalidValue(f"{key} is not an object")
    return None if value is None else json.dumps(value, sort_keys=True)
