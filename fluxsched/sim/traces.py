"""Traces of jobs: their times and requests, the machine, and files in the Standard Workload Format and in JSON lines.

Source: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html (Feitelson and others, Parallel Workloads Archive).

The first line may be a header, `{"trace": 1, "name": ..., "machine": {"targets": 16, "cores": 64, "gpus": 4}}`. Every
other line is a job (`KEYS` names its keys, rfc/simulator.md explains them). Law: as in SWF, an absent or null value is
unknown, and a line that cannot be used is counted and shown. An unknown key makes a line bad: a constraint that was
mistyped must not be dropped in silence.

Law: what a part may be is for the jobspec to say (`core.jobspec`); here only keys are checked. What a trace leaves out
stays unknown (None), never a guess; every line that is not simulated is counted, and the first ones are kept with the
reason, so that an incomplete trace is not taken for a complete one. -1 is unknown and nothing else is; a number may be
written as a float anywhere; a line that cannot be read is counted and shown, and the others are read all the same. The
columns are named once, in `COLUMNS`. A file whose first character that is not a space is `{` is our own JSON-lines
trace, any other one is SWF.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite
from operator import attrgetter
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final, NamedTuple

from fluxsched.core.constraint import Constraint
from fluxsched.core.jobfields import REQUEUE_MAX, check_name
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.request import Count
from fluxsched.errors import InvalidValue, LimitExceeded

PART_KEYS: Final = ("label", "nodes", "cores", "gpus", "constraint")

PARTS_KEPT: Final = 1024
"""Texts of parts that were found right: a trace has a handful."""


def parts_jobspec(text: str) -> dict[str, Any]:
    """Return the jobspec of parts that are given as JSON text. Raises InvalidValue for unknown keys."""
    resources, tasks = [], []
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidValue(f"parts {text[:40]!r} is not JSON") from None
    for number, part in enumerate(parts, 1):
        if not isinstance(part, dict):
            raise InvalidValue(f"part {number} is not an object")
        if unknown := sorted(part.keys() - set(PART_KEYS)):
            raise InvalidValue(f"part {number} has unknown key {unknown[0][:40]!r}: a part has {', '.join(PART_KEYS)}")
        label = str(part.get("label", f"part{number}"))
        needs: list[dict[str, Any]] = [{"type": "core", "count": part.get("cores", 1)}]
        if part.get("gpus"):
            needs.append({"type": "gpu", "count": part["gpus"]})
        slot = {"type": "slot", "count": 1, "label": label, "with": needs}
        nodes = part.get("nodes", 1)
        count = Count.parse(nodes).to_json() if isinstance(nodes, str) else nodes
        node = {"type": "node", "count": count, "exclusive": True, "with": [slot]}
        if part.get("constraint") is not None:
            node["constraints"] = part["constraint"]
        resources.append(node)
        tasks.append({"command": ["simulated"], "slot": label, "count": {"per_slot": 1}})
    return {"version": 999, "resources": resources, "tasks": tasks, "attributes": {"system": {"duration": 0}}}


@lru_cache(PARTS_KEPT)
def check_parts(text: str) -> None:
    """Raise InvalidValue for parts that no jobspec can have."""
    Jobspec.parse(parts_jobspec(text))


@lru_cache(PARTS_KEPT)
def check_nodes(text: str) -> None:
    """Raise InvalidValue for a text that is no count of nodes."""
    Count.parse(text)


# ---- traces

JOBS_MAX = 20_000_000
"""Jobs in one trace: ten times the longest of the public archives; some 600 bytes each."""

TIME_MAX_S = 1e12
"""The longest and the last time in a trace, 30,000 years: a slip of the pen that would make tables unreadable."""

URGENCY_MAX = 31
"""Largest urgency of RFC 14, for jobs."""

BANKS = ("user", "group", "queue")
"""Attributes of a job that may stand for the bank that its trace does not name."""

FAULTS_KEPT_MAX = 100
"""Lines that were not used, kept with their reason; the rest are counted."""

FAULT_CHARS_MAX = 60
"""Number of characters of a faulty line that are repeated."""


RESULTS: Final = {"COMPLETED": 1, "FAILED": 0, "TIMEOUT": 0, "CANCELED": 5}
"""Ends of jobs, with their status in SWF."""


class Ask(NamedTuple):
    """Request of a job: `nslots` slots of `cores` and `gpus`, over `nodes` if given, a number or a range (`4-10`).

    `constraint` is the RFC 31 object as JSON text; `jobspec`, also JSON text, replaces all other fields. `parts`, the
    same, replace those before it. An `elastic` job may change its number of nodes, within the range, while it runs; at
    most `max_hops` are between any two of them.
    """

    nslots: int = 1
    cores: int = 1
    gpus: int = 0
    nodes: int | str | None = None
    exclusive: bool = False
    constraint: str | None = None
    jobspec: str | None = None
    elastic: bool = False
    max_hops: int | None = None
    parts: str | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether the job gets just `nslots` times `cores`."""
        return self.nodes is None and not self.exclusive and self.jobspec is None and self.parts is None


class TraceJob(NamedTuple):
    """One job. Times are seconds since the trace began; `run_s` is how long it would run, `limit_s` what it asked for.

    `job` is its name in the trace, `wait_s` how long it waited where the trace was recorded. With feedback it is
    submitted `think_s` after the end of the job named `preceding`. Without a `bank` it is charged to the default one;
    it may be preempted once it has run for `preemptible_after_s` (None: never), and is then submitted again, `requeue`
    times at most. With `work`, in core seconds, it runs until it has had them instead, whatever its size. `result` is
    one of RESULTS, how it ended where the trace was recorded; a simulation does not look at it. Its limit does not end
    it within `least_s`, in which it had its targets there: an epilog may come after the limit.
    """

    job: int | str
    submit_s: float
    run_s: float
    limit_s: float | None
    ask: Ask
    user: int | str | None = None
    queue: int | str | None = None
    group: int | str | None = None
    wait_s: float | None = None
    urgency: int = 16
    preceding: int | str | None = None
    think_s: float | None = None
    bank: str | None = None
    preemptible_after_s: float | None = None
    requeue: int = 0
    work: float | None = None
    result: str | None = None
    least_s: float = 0.0


class UnusedLine(NamedTuple):
    """A line that was not used: `line` counts from 1, `is_bad` tells what cannot be read from what lacks something."""

    line: int
    why: str
    text: str
    is_bad: bool


class Machine(NamedTuple):
    """Machine of equal targets, by their size."""

    targets: int
    cores: int = 1
    gpus: int = 0


@dataclass(slots=True, repr=False)
class Trace:
    """Jobs in order of submission, those of one instant in the order of the file. `header` has the file's own keys."""

    name: str
    jobs: Sequence[TraceJob]
    header: dict[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    faults: tuple[UnusedLine, ...] = ()
    bad: int = 0
    left_out: int = 0

    def __repr__(self) -> str:
        """In a line: there may be a million jobs."""
        return f"<Trace {self.name}: {len(self.jobs)} jobs>"

    @classmethod
    def of(cls, jobs: Iterable[TraceJob], name: str = "jobs", machine: Machine | None = None) -> Trace:
        """Return a trace out of jobs in any order. Raises InvalidValue for a job that cannot be simulated."""
        found, asks = list(jobs), dict[Ask, Ask]()
        for at, job in enumerate(found):
            if not isinstance(job, TraceJob):
                raise InvalidValue(f"{shortened(job)} is not a TraceJob")
            check_job(job)
            ask = asks.setdefault(job.ask, job.ask)
            if ask is not job.ask:
                found[at] = job._replace(ask=ask)  # equal ones are one object: what it takes is worked out once
        return cls(name, in_order(found), machine=machine)


def machine_of(
    procs: int | None,
    nodes: int | None,
    cores: int | None = None,
    gpus: int | None = None,
    r_path: object = None,
) -> Machine | None:
    """`procs` one-core targets, or `nodes` of `cores` (1) and `gpus` (0); None if neither is given.

    Raises InvalidValue for counts that are none, and when several of `procs`, `nodes` and `r_path` are given.
    """
    given = [name for name, value in (("procs", procs), ("nodes", nodes), ("R", r_path)) if value is not None]
    if len(given) > 1:
        raise InvalidValue(f"{' and '.join(given)} are mutually exclusive: each defines the machine")
    if nodes is None and (cores, gpus) != (None, None):
        raise InvalidValue("cores and gpus are per node: give the number of nodes")
    for name, value, least in (("procs", procs, 1), ("nodes", nodes, 1), ("cores", cores, 1), ("gpus", gpus, 0)):
        if value is not None:
            check_count(name, value, least)
    if nodes is not None:
        return Machine(nodes, 1 if cores is None else cores, gpus or 0)
    return None if procs is None else Machine(procs)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise InvalidValue for what is no whole number, or a smaller one."""
    if not isinstance(value, int) or value < least:
        raise InvalidValue(f"{name} {value!r} is not a count of at least {least}")


class Collector:
    """Gathers jobs and faults while a file is read."""

    def __init__(self, name: str, limit: int = JOBS_MAX) -> None:
        self.jobs: list[TraceJob] = []
        self.header: dict[str, str] = {}
        self.machine: Machine | None = None
        self._name = name
        self._limit = limit
        self._faults: list[UnusedLine] = []
        self._counts = {True: 0, False: 0}

    def add(self, job: TraceJob) -> None:
        """Raise LimitExceeded when there are too many."""
        if len(self.jobs) >= self._limit:
            raise LimitExceeded(f"{self._name} has more than {self._limit} jobs: the limit of one trace")
        self.jobs.append(job)

    def fault(self, line: int, why: str, text: str, is_bad: bool) -> None:
        """Count a line that is not used."""
        self._counts[is_bad] += 1
        if len(self._faults) < FAULTS_KEPT_MAX:
            shown = " ".join(text[: 4 * FAULT_CHARS_MAX].split())[:FAULT_CHARS_MAX]
            self._faults.append(UnusedLine(line, why, shown, is_bad))

    def trace(self) -> Trace:
        """Return the trace that was gathered."""
        return Trace(
            self._name, in_order(self.jobs), self.header, self.machine, tuple(self._faults), self._counts[True],
            self._counts[False],
        )  # fmt: skip


def in_order(jobs: list[TraceJob]) -> list[TraceJob]:
    """By time of submission; a stable sort, so the file's order decides among equals."""
    jobs.sort(key=attrgetter("submit_s"))
    return jobs


def check_job(job: TraceJob) -> None:
    """Raise InvalidValue, naming the job, for times that are negative or too long, for a job that needs nothing, and
    for an urgency, a bank or a number of times that is none.
    """
    for what, value in (("submit", job.submit_s), ("run", job.run_s), ("limit", job.limit_s),
                        ("think", job.think_s), ("preemptible-after", job.preemptible_after_s),
                        ("work", job.work)):  # fmt: skip
        if value is not None and not 0 <= value <= TIME_MAX_S:
            most = f"{TIME_MAX_S:,.0f}"
            raise InvalidValue(f"job {job.job}: {what} time {value} is not a number of seconds of 0 or more, to {most}")
    if min(job.ask.nslots, job.ask.cores) < 1 or job.ask.gpus < 0:
        raise InvalidValue(f"job {job.job}: {job.ask.nslots} slots of {job.ask.cores} cores: it needs at least one")
    if job.work is not None and job.run_s:
        raise InvalidValue(f"job {job.job}: it has a run time and work: leave out one of them")
    if job.ask.parts is not None:
        check_parts(job.ask.parts)
    if not 0 <= job.urgency <= URGENCY_MAX:
        allowed = f"0 (held) to {URGENCY_MAX} (expedited)"
        raise InvalidValue(f"job {job.job}: urgency {job.urgency} is not {allowed}: leave it out for 16")
    if job.bank is not None:
        check_name(job.bank, f"job {job.job}: bank")
    if job.result is not None and job.result not in RESULTS:
        raise InvalidValue(f"job {job.job}: result {job.result!r} is not one of {', '.join(RESULTS)}")
    if not 0 <= job.requeue <= REQUEUE_MAX:
        raise InvalidValue(f"job {job.job}: requeue {job.requeue} is not a number within 0-{REQUEUE_MAX}")


def with_banks(trace: Trace, by: str) -> Trace:
    """Return the trace with the `user`, `group` or `queue` (one of BANKS) of each job as its bank, where it names none
    itself.

    Jobs whose name is unknown stay without one. Raises InvalidValue for a name that cannot be a bank's.
    """
    if by not in BANKS:
        raise InvalidValue(f"bank {by!r} is not one of {', '.join(BANKS)}")
    names = {getattr(job, by) for job in trace.jobs}
    banks = {name: None if name is None else check_name(str(name), f"{by} as bank") for name in names}
    jobs = [job if job.bank is not None else job._replace(bank=banks[getattr(job, by)]) for job in trace.jobs]
    return replace(trace, jobs=jobs)


def followers(jobs: Sequence[TraceJob]) -> dict[int, list[int]]:
    """Return the places of the jobs that follow each job, by its place."""
    places: dict[int | str, int] = {}
    found: dict[int, list[int]] = {}
    for at, job in enumerate(jobs):
        before = None if job.preceding is None else places.get(job.preceding)
        if before is not None:
            found.setdefault(before, []).append(at)
        places[job.job] = at
    return found


# ---- SWF

COLUMNS = (
    "job", "submit_s", "wait_s", "run_s", "procs", "cpu_s", "memory_kib", "procs_requested", "limit_s",
    "memory_requested_kib", "status", "user", "group", "executable", "queue", "partition", "preceding", "think_s",
)  # fmt: skip
"""The 18 fields of a line, in order; times in seconds, memory per processor."""

PARTIAL = (2.0, 3.0, 4.0)
"""Values of `status` for part of a checkpointed job: another line has the whole."""

UNKNOWN = -1.0

LINE_CHARS_MAX = 4096
"""Eighteen numbers take some hundred characters."""

SwfRecord = tuple[float | None, ...]


def read_swf(lines: Iterable[str], name: str) -> Trace:
    """Return a trace out of the lines of a file. Raises LimitExceeded for too many jobs, and for nothing else."""
    found = Collector(name)
    requests: dict[int, Ask] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(";"):
            _swf_header(found, text)
        elif text:
            record = parse_line(text)
            if isinstance(record, str):
                found.fault(number, record, text, is_bad=True)
                continue
            job = _read_job(record, requests)
            if isinstance(job, str):
                found.fault(number, job, text, is_bad=False)
            else:
                found.add(job)
    found.machine = _machine(found.header)
    return found.trace()


def parse_line(text: str) -> SwfRecord | str:
    """Return the 18 fields with None for unknown, or what is wrong with the line."""
    fields = text.split() if len(text) <= LINE_CHARS_MAX else []
    if len(fields) != len(COLUMNS):
        return f"{len(fields) or 'too many'} fields, not {len(COLUMNS)}"
    try:
        values = [float(field) for field in fields]
    except ValueError:
        wrong = next(at for at, field in enumerate(fields) if not _is_number(field))
        return f"field {wrong + 1} ({COLUMNS[wrong]}) is not a number"
    if min(values) < 0 or not isfinite(sum(values)):
        for at, value in enumerate(values):
            if not isfinite(value) or (value < 0 and value != UNKNOWN):
                return f"field {at + 1} ({COLUMNS[at]}) is {fields[at][:20]}: only -1 is unknown"
        return tuple([None if value == UNKNOWN else value for value in values])
    return tuple(values)


def print_swf(trace: Trace) -> Iterator[str]:
    """Yield the lines of a file, without newlines; what SWF has no word for (slots of several cores, GPUs) is summed
    up.
    """
    header = {"Version": "2.2", **trace.header}
    if trace.machine is not None:
        header |= {"MaxNodes": str(trace.machine.targets), "MaxProcs": str(trace.machine.targets * trace.machine.cores)}
    yield from (f"; {key}: {value}" for key, value in header.items())
    for at, job in enumerate(trace.jobs, 1):
        procs = job.ask.nslots * job.ask.cores
        numbered = (job.user, job.group, job.queue, job.preceding)
        user, group, queue, preceding = [value if isinstance(value, int) else None for value in numbered]
        row = (
            job.job if isinstance(job.job, int) else at, job.submit_s, job.wait_s, job.run_s, procs, None, None, procs,
            job.limit_s, None, None if job.result is None else RESULTS[job.result], user, group, None, queue, None,
            preceding, job.think_s,
        )  # fmt: skip
        yield " ".join(["-1" if value is None else number_text(value) for value in row])


def number_text(value: float) -> str:
    """Return the shortest text that reads back as the same number: whole ones without a point."""
    return str(int(value)) if value == int(value) else repr(value)


def _read_job(record: SwfRecord, requests: dict[int, Ask]) -> TraceJob | str:
    """Return the job of a record, or what it lacks to be simulated."""
    job, submit_s, wait_s, run_s, used, _, _, requested, limit_s, _, status, user, group, _, queue, *_ = record
    preceding, think_s = record[-2:]
    procs = requested or used
    if status in PARTIAL:
        return "part of a checkpointed job"
    if job is None or submit_s is None or run_s is None or procs is None:
        known = {"job": job, "submit": submit_s, "run": run_s, "procs": procs}
        return f"{' and '.join([what for what, value in known.items() if value is None])} not known"
    count = int(procs)
    if count != procs or not count:
        return f"{number_text(procs)} processors"
    ask = requests.get(count)
    if ask is None:
        ask = requests[count] = Ask(count)
    return TraceJob(
        int(job), submit_s, run_s, limit_s or None, ask, _whole(user), _whole(queue), _whole(group), wait_s,
        preceding=_whole(preceding), think_s=think_s, result=_RESULT_OF.get(status),
    )  # fmt: skip


_RESULT_OF: Final[dict[float | None, str]] = {1: "COMPLETED", 0: "FAILED", 5: "CANCELED"}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _swf_header(found: Collector, text: str) -> None:
    key, colon, value = text.lstrip("; ").partition(":")
    if colon and key.strip() and key.strip() not in found.header:
        found.header[key.strip()] = value.strip()


def _machine(header: dict[str, str]) -> Machine | None:
    """As many one-core targets as the header names processors, else nodes."""
    for key in ("MaxProcs", "MaxNodes"):
        text = header.get(key, "")
        if text.isascii() and text.isdigit() and int(text):
            return Machine(int(text))
    return None


# ---- JSON lines

VERSION = 1

CONSTRAINTS_KEPT = 1024
"""Constraints that were found right: a trace has a handful."""

CONSTRAINT_CHARS = 80
"""Number of characters of a wrong constraint that are repeated."""

KEYS = (
    "job", "submit", "run", "duration", "nslots", "cores", "gpus", "nodes", "exclusive", "constraint", "jobspec",
    "user", "queue", "group", "wait", "urgency", "preceding", "think", "bank", "preemptible-after", "requeue",
    "work", "elastic", "max-hops", "parts", "result",
)  # fmt: skip

_COUNTS = {"nslots": 1, "cores": 1, "gpus": 0, "urgency": 16, "requeue": 0}
_NEEDS = ("nslots", "cores", "gpus", "nodes", "exclusive", "constraint", "elastic", "max-hops", "parts")
_REPLACED = ("nslots", "cores", "gpus", "nodes", "exclusive")
"""Fields that a job of several parts has in each part."""


def read_lines(lines: Iterable[str], name: str) -> Trace:
    """Return a trace out of the lines of a file. Raises InvalidValue for a header of another version."""
    found = Collector(name)
    asks: dict[Ask, Ask] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            obj = _object(text)
            if "trace" in obj:
                _json_header(found, obj)
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
        _number(obj, "preemptible-after"), counts["requeue"], work, _result(obj),
    )  # fmt: skip
    check_job(job)
    if ask.constraint is not None:
        _check_constraint(ask.constraint)
    return job


def print_lines(trace: Trace) -> Iterator[str]:
    """Yield the lines of a file, without newlines; `read_lines` gives the same jobs back."""
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
            "think": job.think_s, "result": job.result, "bank": job.bank, "preemptible-after": job.preemptible_after_s,
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


def _result(obj: dict[str, Any]) -> str | None:
    value = obj.get("result")
    if value is not None and value not in RESULTS:
        raise InvalidValue(f"result {shortened(value)} is not one of {', '.join(RESULTS)}: leave it out if unknown")
    return value


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


def _json_header(found: Collector, obj: dict[str, Any]) -> None:
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
    """Return the number of nodes: a number, or a range as text; None if it is missing."""
    value = obj.get("nodes")
    if not isinstance(value, str):
        return _count(obj, "nodes", 0) or None
    check_nodes(value)
    return value


def _parts(obj: dict[str, Any]) -> str | None:
    """Return the parts as canonical text."""
    value = obj.get("parts")
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise InvalidValue("parts is not a list of parts")
    if both := [key for key in _REPLACED if obj.get(key) is not None]:
        raise InvalidValue(f"{', '.join(both)} cannot be combined with parts, each of which has its own")
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
    """Return an object as canonical text, so that equal ones are equal."""
    value = obj.get(key)
    if value is not None and not isinstance(value, dict):
        raise InvalidValue(f"{key} is not an object")
    return None if value is None else json.dumps(value, sort_keys=True)


# ---- files of traces

_GZIP = b"\x1f\x8b"


def read_trace(path: Path | str) -> Trace:
    """Return the trace in a file. Raises InvalidValue when it cannot be read, or has no job that can be simulated."""
    path = Path(path)
    name = path.name.removesuffix(".gz")
    try:
        with path.open("rb") as file:  # once: a pipe can be read only once
            packed = file.peek(2)[:2] == _GZIP
            with io.TextIOWrapper(gzip.GzipFile(fileobj=file) if packed else file, "utf-8", "replace") as lines:
                trace = _read(lines, name)
    except (OSError, EOFError, zlib.error) as fault:
        raise InvalidValue(f"trace {path} cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault
    if not trace.jobs:
        first = f": line {trace.faults[0].line}: {trace.faults[0].why}" if trace.faults else ""
        raise InvalidValue(f"trace {path} has no job that can be simulated{first}")
    return trace


def is_swf(path: Path) -> bool:
    """Return whether a file is SWF, by its name."""
    return path.name.removesuffix(".gz").endswith(".swf")


def write_trace(trace: Trace, path: Path) -> None:
    """SWF if the name says so (`.swf`, `.swf.gz`), else JSON lines; gzipped if it ends in `.gz`."""
    lines = print_swf(trace) if is_swf(path) else print_lines(trace)
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.name.endswith(".gz") else text)


def _read(lines: Iterable[str], name: str) -> Trace:
    source = iter(lines)
    skipped: list[str] = []
    for line in source:
        skipped.append(line)
        if line.strip():
            break
    is_json = bool(skipped) and skipped[-1].lstrip().startswith("{")
    return (read_lines if is_json else read_swf)(_chained(skipped, source), name)


def _chained(first: list[str], rest: Iterator[str]) -> Iterator[str]:
    yield from first
    yield from rest
