"""Jobs in the store: rows of `job_log` with the parts that they refer to.

Removal of old jobs, reports, salvage and migrations have statements of their own.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec.json import decode, encode

from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError, Refused
from fluxsched.jobs.effects import Event
from fluxsched.runtime.storage.compression import expanded
from fluxsched.runtime.storage.events import unpack_events
from fluxsched.runtime.storage.parts import PARTS_KNOWN_MAX, JobspecRow

ALIKE_MAX = 64
"""Stretches of events that are kept read, some hundred bytes each: a restart logs the same for all jobs that wait."""
PARTS_READ_MAX = 64
"""Parts that are kept while jobs are read one after another: environments of so many users."""

PART_COLUMNS = ("environment", "files")
"""Of `job_log`, with ids of parts."""

Query = Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]]
"""A query on the store."""


class JobRecord(NamedTuple):
    """A job as it is on disk; the jobspec as JSON, R decoded, where there is one."""

    jobid: int
    events: list[Event]
    jobspec: bytes | None
    R: dict[str, Any] | None


class DamagedJob(Refused):
    """A job whose rows cannot be read (EIO)."""

    def __init__(self, jobid: int, why: Exception) -> None:
        super().__init__(
            f"job {format_f58(jobid)} cannot be read from the state, which is damaged there: {why}: restore a backup "
            "(fluxsched restore), or start with --salvage to continue without it",
            errno.EIO,
        )


def read_job(read: Query, jobid: int) -> dict[str, Any] | None:
    """A job's log, jobspec and R; None when the store does not know it."""
    row = next(_rows(read, "SELECT ? AS jobid", (jobid,), lambda row, ended: row.whole(_part(read))), None)
    if row is None:
        return None
    jobspec = None if row.jobspec is None else decode(row.jobspec)
    return {"eventlog": row.events, "jobspec": jobspec, "R": row.R}


def read_events(read: Query, jobid: int) -> list[Event] | None:
    """A job's log alone; None when the store does not know it."""
    found: list[Event] = []
    for (events,) in read("SELECT events FROM job_log WHERE jobid = ? ORDER BY seq", (jobid,)):
        try:
            found += unpack_events(events)
        except (ValueError, LookupError, TypeError) as exc:
            raise DamagedJob(jobid, exc) from exc
    return found or None


def read_active(read: Query) -> Iterator[JobRecord]:
    """All active jobs, in order of job id."""
    part = _part(read)
    wanted = "SELECT jobid FROM job_log EXCEPT SELECT jobid FROM job_log WHERE ended"
    return _rows(read, wanted, (), lambda row, ended: row.whole(part))


def ended_last(read: Query, ended_max: int) -> list[int]:
    """The ids of the jobs that ended last, the latest first."""
    return [jobid for (jobid,) in read(
        "SELECT jobid FROM job_log WHERE ended ORDER BY ended DESC, seq DESC LIMIT ?", (ended_max,)
    )]  # fmt: skip


def read_ended(
    read: Query, jobids: Sequence[int], damaged: Callable[[DamagedJob], None]
) -> Iterator[JobRecord]:
    """These jobs, as far as they are still there and can be read; `damaged` is called for each that cannot. Their
    jobspecs lack the large parts.
    """
    wanted = "SELECT value AS jobid FROM json_each(?)"
    return _rows(read, wanted, (encode(jobids),), lambda row, ended: row.bare(), damaged)


def ended_count(read: Query) -> int:
    """How many jobs have ended."""
    ((count,),) = read("SELECT count(*) FROM job_log WHERE ended", ())
    return int(count)


def oldest_ended(read: Query, count_max: int) -> list[tuple[int, int]]:
    """Ids and ends (seconds) of the jobs that ended first."""
    return [*read("SELECT jobid, ended FROM job_log WHERE ended ORDER BY ended, jobid LIMIT ?", (count_max,))]


def last_jobid(read: Query) -> int:
    """The highest id; 0 without jobs."""
    ((jobid,),) = read("SELECT coalesce(max(jobid), 0) FROM job_log", ())
    return int(jobid)


def parts_of_only(read: Query, jobids: Sequence[int]) -> list[int]:
    """The parts to which these jobs refer and no others."""
    several = f"({', '.join(map(str, jobids))})"
    parts = f"SELECT {{0}} AS part FROM job_log WHERE jobid IN {several} AND {{0}}"
    others = f"SELECT 1 FROM job_log WHERE {{0}} = part AND {{0}} AND jobid NOT IN {several}"
    unshared = " AND ".join(f"NOT EXISTS ({others.format(column)})" for column in PART_COLUMNS)
    union = " UNION ".join(parts.format(column) for column in PART_COLUMNS)
    return [part for (part,) in read(f"SELECT part FROM ({union}) WHERE {unshared}", ())]


def known_parts(read: Query) -> tuple[list[tuple[int, bytes]], int]:
    """Ids and digests of the parts that were added last, in order, and the highest id."""
    rows = list(read("SELECT id, digest FROM part ORDER BY id DESC LIMIT ?", (PARTS_KNOWN_MAX,)))
    return [(number, digest) for number, digest in reversed(rows)], rows[0][0] if rows else 0


def _rows(
    read: Query,
    wanted: str,
    parameters: tuple[Any, ...],
    text_of: Callable[[JobspecRow, bool], bytes],
    damaged: Callable[[DamagedJob], None] | None = None,
) -> Iterator[JobRecord]:
    """The jobs whose ids the query `wanted` gives. A row is as old as its `seq`.

    A job that cannot be read is left out if `damaged` is there to be called, else DamagedJob is raised.
    """
    rows = read(
        f"""
        WITH wanted AS ({wanted})
        SELECT job_log.jobid, ended, events, jobspec, environment, files, R
        FROM wanted CROSS JOIN job_log ON job_log.jobid = wanted.jobid ORDER BY wanted.jobid, seq
        """,
        parameters,
    )
    alike: dict[bytes, list[Event]] = {}
    for jobid, stretch in groupby(rows, key=itemgetter(0)):
        try:
            yield _record(jobid, stretch, alike, text_of)
        except (FluxschedError, ValueError, LookupError, TypeError) as exc:
            fault = DamagedJob(jobid, exc)
            if damaged is None:
                raise fault from exc
            damaged(fault)


def _record(
    jobid: int,
    stretch: Iterable[tuple[Any, ...]],
    alike: dict[bytes, list[Event]],
    text_of: Callable[[JobspecRow, bool], bytes],
) -> JobRecord:
    """One job, from its rows; `alike` has stretches of events that were read before."""
    events: list[Event] = []
    jobspec = resources = None
    has_ended = False
    for _, ended, some, text, environment, files, resources_text in stretch:
        has_ended |= bool(ended)
        known = alike.get(some)
        if known is None:
            if len(alike) >= ALIKE_MAX:
                alike.clear()
            known = alike[some] = unpack_events(some)
        events += known
        jobspec = JobspecRow(text, environment or 0, files or 0) if text is not None else jobspec
        resources = decode(resources_text) if resources_text is not None else resources
    return JobRecord(jobid, events, None if jobspec is None else text_of(jobspec, has_ended), resources)


def _part(read: Query) -> Callable[[int], bytes]:
    """Reads parts by id, and keeps the last ones."""
    known: OrderedDict[int, bytes] = OrderedDict()

    def part(number: int) -> bytes:
        text = known.get(number)
        if text is None:
            ((value,),) = read("SELECT value FROM part WHERE id = ?", (number,))
            text = known[number] = expanded(bytes(value))
            if len(known) > PARTS_READ_MAX:
                known.popitem(last=False)
        return text

    return part
