"""The Standard Workload Format, version 2.2: one job per line, 18 numbers, -1 for unknown values.

Law: -1 is unknown and nothing else is; a number may be written as a float anywhere; a line that cannot be read is
counted and shown, and the others are read all the same. The columns are named once, in `COLUMNS`.

Source: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html (Feitelson and others, Parallel Workloads Archive).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite

from fluxsched.sim.traces.trace import Ask, Collector, Machine, Trace, TraceJob

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
    """A trace out of the lines of a file. Raises LimitExceeded for too many jobs, and for nothing else."""
    found = Collector(name)
    requests: dict[int, Ask] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith(";"):
            _header(found, text)
        elif text:
            record = parse_line(text)
            if isinstance(record, str):
                found.fault(number, record, text, is_bad=True)
                continue
            job = _job(record, requests)
            if isinstance(job, str):
                found.fault(number, job, text, is_bad=False)
            else:
                found.add(job)
    found.machine = _machine(found.header)
    return found.trace()


def parse_line(text: str) -> SwfRecord | str:
    """The 18 fields with None for unknown, or what is wrong with the line."""
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
    """The lines of a file, without newlines; what SWF has no word for (slots of several cores, GPUs) is summed up."""
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
            job.limit_s, None, None, user, group, None, queue, None, preceding, job.think_s,
        )  # fmt: skip
        yield " ".join(["-1" if value is None else number_text(value) for value in row])


def number_text(value: float) -> str:
    """The shortest text that reads back as the same number: whole ones without a point."""
    return str(int(value)) if value == int(value) else repr(value)


def _job(record: SwfRecord, requests: dict[int, Ask]) -> TraceJob | str:
    """The job of a record, or what it lacks to be simulated."""
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
        preceding=_whole(preceding), think_s=think_s,
    )  # fmt: skip


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _header(found: Collector, text: str) -> None:
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
