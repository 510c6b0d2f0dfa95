"""Damage of the state that a dead instance has left: of copies, which the start's own check must refuse.

Law: a file that has changed on the disk is noticed, or nothing is lost by it. What the intact state and the damaged one
say is read here by SQLite alone, row by row.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fluxsched.errors import FluxschedError
from fluxsched.history import damaged_history
from fluxsched.instance.assembly import StateNotice, read_store
from fluxsched.services.scheduling import KINDS
from fluxsched.store.integrity import COLUMNS
from fluxsched.store.jobs import DamagedJob, read_events, read_job
from fluxsched.store.repair import fault_at_start, open_read_only
from fluxsched.store.schema import WRITER
from fluxsched.store.store import ImmediateWriter, Store
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import COMMIT_SUFFIX, DATABASE_NAME
from fluxsched.system.loop import Turns

LOG_NAME = f"{DATABASE_NAME}-wal"
INDEX_NAME = f"{DATABASE_NAME}-shm"
RECORD_NAME = f"{DATABASE_NAME}{COMMIT_SUFFIX}"
HEADER_BYTES, FRAME_BYTES = 32, 24 + 4096
"""Of a log."""
FLIPPED_MAX = 3
DATABASE_DAMAGED = 0.5
"""How often it is the database that is damaged, and not the log."""
COPIED = 0.8
"""How often all of the log is copied into it before."""
DATABASES = 12
"""Copies of a database that are damaged in different places."""
NEEDED = "saved", "journal", "process", "lease", "leased"
"""Tables of which a start reads all rows, and cannot do without one."""
NAMED = "sample", "run", "interval", "scheduler"
"""What is left out and named where it is damaged."""
SHOWN_MAX = 400
"""Characters of what is lost."""
Rows = dict[str, list[tuple[Any, ...]]]


def _lose(path: Path, chance: Random) -> str:
    path.unlink()
    return "was removed"


def _cut(path: Path, chance: Random) -> str:
    data = path.read_bytes()
    kept = chance.choice((0, 32, chance.randrange(len(data))))
    path.write_bytes(data[:kept])
    return f"was cut to {kept} of {len(data)} bytes"


def _flip(path: Path, chance: Random, begin: int = 0, end: int | None = None) -> str:
    data = bytearray(path.read_bytes())
    bits = range(8 * begin, 8 * (len(data) if end is None else end))
    places = [chance.choice(bits) for _ in range(chance.randint(1, FLIPPED_MAX))]
    return _flip_bits(path, data, places)


def _flip_bits(path: Path, data: bytearray, places: list[int]) -> str:
    for place in places:
        data[place >> 3] ^= 1 << (place & 7)
    path.write_bytes(data)
    return f"has other bits at {', '.join(map(str, sorted(places)))}"


def _overwrite(path: Path, chance: Random) -> str:
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    path.write_bytes(data)
    return f"has zeros from {at} on"


def _flip_earlier(path: Path, chance: Random) -> str:
    """Within transactions that another follows, and without the record of how many there were, as after a crash of the
    system: the log alone shows that they were complete.
    """
    data = path.read_bytes()
    salts, commits = data[16:24], list[int]()
    for end in range(HEADER_BYTES + FRAME_BYTES, len(data) + 1, FRAME_BYTES):
        frame = data[end - FRAME_BYTES : end]
        if frame[8:16] != salts:
            break
        if frame[4:8] != bytes(4):
            commits.append(end)
    if len(commits) < 2:
        return _lose(path, chance)
    path.with_name(RECORD_NAME).unlink(missing_ok=True)
    return _flip(path, chance, HEADER_BYTES, commits[-2])


DAMAGES: tuple[Callable[[Path, Random], str], ...] = (_lose, _cut, _flip, _overwrite, _flip_earlier, _flip_earlier)


def unnoticed_damage(state: Path, chance: Random) -> str:
    """Damage a copy of a state directory: what is lost by that and not noticed; empty if nothing."""
    if not (state / LOG_NAME).exists() or not (state / LOG_NAME).stat().st_size:
        return ""
    damaged, intact = (state.with_name(f"{state.name}-{name}") for name in ("damaged", "intact"))
    try:
        for copy in (damaged, intact):
            copy.mkdir(mode=0o700)
            for path in state.glob(f"{DATABASE_NAME}*"):
                if path.name != INDEX_NAME:
                    shutil.copy(path, copy / path.name)
        if chance.random() < DATABASE_DAMAGED:
            return _lost_of_database(intact / DATABASE_NAME, damaged / DATABASE_NAME, chance)
        what = chance.choice(DAMAGES)(damaged / LOG_NAME, chance)
        if fault_at_start(damaged / DATABASE_NAME, has_jobs=True) is not None:
            return ""
        lost = _differences(_rows(intact / DATABASE_NAME), _rows(damaged / DATABASE_NAME))
        return lost and f"the log {what}, and a start does not notice: {lost}"
    finally:
        for copy in (damaged, intact):
            shutil.rmtree(copy, ignore_errors=True)


def _lost_of_database(intact: Path, damaged: Path, chance: Random) -> str:
    """Flip bits of the database, mostly with all of the log in it: what a start then reads and takes for intact."""
    for path in (intact, damaged) if chance.random() < COPIED else ():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    files = {path: path.read_bytes() for path in damaged.parent.iterdir()}
    data = files[damaged]
    filled = [at for at, byte in enumerate(data) if byte]  # elsewhere there is mostly nothing
    before, jobs = _values(intact), _started(intact).jobs
    for _ in range(DATABASES):
        places = [8 * chance.choice(filled) + chance.randrange(8) for _ in range(chance.randint(1, FLIPPED_MAX))]
        what = _flip_bits(damaged, bytearray(data), places)
        lost = _lost_of_start(damaged, before, jobs)
        if lost:
            return f"the database {what}, and a start takes it for intact: {', '.join(lost)}"[:SHOWN_MAX]
        for path in damaged.parent.iterdir():
            path.unlink()
        for path, content in files.items():
            path.write_bytes(content)
    return ""


def _lost_of_start(path: Path, before: Rows, jobs: list[object]) -> list[str]:
    """What a start reads of a damaged database and neither refuses nor names."""
    if fault_at_start(path, has_jobs=True) is not None:
        return []
    after = _values(path)
    try:
        found = _started(path)
    except (FluxschedError, sqlite3.Error, ValueError, LookupError, TypeError, AttributeError):
        return []  # the start is refused
    return [
        *_unnamed("job", jobs, found.jobs, found.jobs_named),
        *_unnamed("row", _of(before, NEEDED), _of(after, NEEDED), 0),
        *_unnamed("row", _of(before, NAMED), _of(after, NAMED), found.rows_named),
    ]


class Started(NamedTuple):
    """What an instance reads, and says that it leaves out."""

    jobs: list[object]
    """As they are listed and looked up, without those that are refused."""
    jobs_named: int
    rows_named: int


def _started(path: Path) -> Started:
    """Raises what a start is refused with."""
    store, notice = Store(path, Turns(SystemClock()), ImmediateWriter()), StateNotice()
    try:
        stored, refused = read_store(store, notice), 0
        jobs: list[object] = [("active", jobid) for jobid, *_ in stored.jobs]
        jobs += [("ended", jobid) for some in stored.ended for jobid, *_ in some]
        for jobid in sorted({jobid for (jobid,) in store.read("SELECT jobid FROM job_log NOT INDEXED")}):
            try:
                jobs += (jobid, read_job(store.read, jobid)), (jobid, read_events(store.read, jobid))
            except DamagedJob:
                refused += 1
        notice.leave_out_rows(damaged_history(store.read))
    finally:
        store.close()
    text = notice.text or ""
    left_out, rows = (re.search(rf"(\d+) {what}", text) for what in ("ended job", "row"))
    named = int(left_out[1]) if left_out else 0
    # a refused job lacks two, and one that is left out of listings one
    return Started(jobs, 2 * refused + named, int(rows[1]) if rows else 0)


def _of(rows: Rows, tables: Iterable[str]) -> list[object]:
    return [(name, row) for name in tables for row in rows[name]]


def _unnamed(what: str, before: list[object], after: list[object], named: int) -> list[str]:
    """What is lost or made up, if that is more than what is named."""
    lost, made_up = [[one for one in these if one not in those] for these, those in ((before, after), (after, before))]
    if max(len(lost), len(made_up)) <= named:
        return []
    return [*(f"{what} {one} is lost" for one in lost), *(f"{what} {one} was never written" for one in made_up)]


def _rows(path: Path) -> Rows:
    """What SQLite reads after its own recovery."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(tables)}


def _values(path: Path) -> Rows:
    """Rows without their numbers and checksums, those that schedulers had saved by themselves, and without the one that
    a start writes before it reads.
    """
    with closing(open_read_only(path)) as connection:
        found = {
            name: connection.execute(f"SELECT {columns} FROM {name} NOT INDEXED").fetchall()
            for name, columns in COLUMNS.items()
        }
    found["scheduler"] = [row for row in found["saved"] if row[0] in KINDS]
    found["saved"] = [row for row in found["saved"] if row[0] not in KINDS and row[:2] != WRITER]
    return found


def _differences(intact: Rows, damaged: Rows) -> str:
    return ", ".join(
        f"{len(rows)} rows of {name}, and {len(damaged.get(name, []))} of them are left or others"
        for name, rows in intact.items()
        if damaged.get(name) != rows
    )
