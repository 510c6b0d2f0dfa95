"""Reads what can be read of a damaged file into a new one.

Law: the damaged file is only read. Each table is read from its beginning and from its end up to where that fails; a job
of which rows are missing is left out, since its log would be a false one. What is known to be lost is named.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.jobs.lifecycle import restore
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig
from fluxsched.runtime.storage.jobs import read_job
from fluxsched.runtime.storage.leases import decode_lease
from fluxsched.runtime.storage.saved import decode_saved
from fluxsched.runtime.storage.schema import SCHEMA_VERSION, make_tables, prepare
from fluxsched.runtime.storage.usage import KEY as USAGE_KEY

LOG_SUFFIX: Final = "-wal"
"""Of the name of SQLite's log beside a file; one that was closed has none."""
LOST_NAMED_MAX: Final = 20
"""Losses that a text names; it says how many more there are."""
KEYS: Final = {
    "saved": "kind, key", "journal": "seq", "job_log": "seq", "part": "id", "process": "jobid",
    "sample": "step, t", "run": "began", "interval": "id", "usage": ", ".join(("step", "t", *USAGE_KEY)),
    "lease": "jobid", "leased": "name",
}  # fmt: skip
"""The tables that an instance has, of whatever form, and the order in which their rows are kept."""


@dataclass(slots=True)
class Salvaged:
    """What was read, and what is known to be lost, in words."""

    jobs: int = 0
    saved: int = 0
    """Drains, groups, states of queues and the like."""
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = f"{self.jobs} jobs and {self.saved} settings (drains, groups, queues) were read"
        if not self.lost:
            return f"{found}, which is all"
        more = len(self.lost) - LOST_NAMED_MAX
        return f"{found}; lost: {', '.join(self.lost[:LOST_NAMED_MAX])}{f', and {more} more' if more > 0 else ''}"


def salvage(damaged: Path, target: Path) -> Salvaged:
    """Make `target`, of this version's form, from what can be read. Raises sqlite3.Error if that cannot be written."""
    found = Salvaged()
    with closing(sqlite3.connect(target, isolation_level=None)) as new:
        new.execute("PRAGMA synchronous = OFF")  # the caller syncs it once
        with closing(open_read_only(damaged)) as old:
            _copy(old, new, found)
        try:
            prepare(new, str(target))
        except (FluxschedError, sqlite3.Error, ValueError, LookupError, TypeError) as fault:
            found.lost.append(f"everything, for it cannot be brought to the present form ({fault})")
            _clear(new)
            prepare(new, str(target))
        _drop_unreadable(new, found)
        _drop_incomplete(new, found)
        found.saved = _count(new, "SELECT count(*) FROM saved WHERE kind <> 'instance'")
        found.jobs = _count(new, "SELECT count(DISTINCT jobid) FROM job_log")
    return found


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that leaves the file and its log as they are. Without a log no file is made beside it: there is no
    one who could write to it. Raises sqlite3.Error.
    """
    has_log = is_filled(path.with_name(path.name + LOG_SUFFIX))
    how = "mode=ro" if has_log else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)
    connection.text_factory = decode_text
    return connection


def decode_text(data: bytes) -> str | bytes:
    """Return a text, or the bytes of a damaged one, which is judged with its row: it must not end a query of many."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def is_filled(path: Path) -> bool:
    """Whether there is such a file, with something in it."""
    return path.exists() and path.stat().st_size > 0


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, found: Salvaged) -> None:
    """Rows of the tables and columns that a file of this form has: nothing else that is in the file comes along."""
    try:
        version = old.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as fault:
        found.lost.append(f"everything ({fault})")
        return
    if tables.isdisjoint(KEYS):
        found.lost.append("everything (it has no table of an instance)")
        return
    if version > SCHEMA_VERSION:
        found.lost.append(f"everything (its format {version} is not known)")
        return
    new.execute("BEGIN")
    make_tables(new, version)
    for name in _tables(new):
        if name in tables:
            _copy_table(old, new, name, found)
        else:
            found.lost.append(f"table {name}")
    new.execute(f"PRAGMA user_version = {version}")
    new.execute("COMMIT")


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]


def _copy_table(old: sqlite3.Connection, new: sqlite3.Connection, name: str, found: Salvaged) -> None:
    columns = _columns(new, name)
    try:
        missing = [column for column in columns if column not in _columns(old, name)]
        if missing:
            raise sqlite3.DatabaseError(f"no column {', '.join(missing)}")
    except sqlite3.Error as exc:
        found.lost.append(f"table {name} ({exc})")
        return
    fault = _copy_rows(new, name, _rows(old, name, columns, ""))
    if fault is not None:
        _copy_rows(new, name, _rows(old, name, columns, " DESC"))
        found.lost.append(f"rows of {name} ({fault})")


def _columns(connection: sqlite3.Connection, name: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]


def _rows(old: sqlite3.Connection, name: str, columns: Iterable[str], order: str) -> Iterator[tuple[Any, ...]]:
    keys = ", ".join(key + order for key in KEYS[name].split(", "))
    yield from old.execute(f"SELECT {', '.join(columns)} FROM {name} NOT INDEXED ORDER BY {keys}")


def _copy_rows(new: sqlite3.Connection, name: str, rows: Iterator[tuple[Any, ...]]) -> sqlite3.Error | None:
    """Copy rows up to the end, or to the fault in reading them that is returned."""
    while True:
        try:
            row = next(rows, None)
        except sqlite3.Error as fault:
            return fault
        if row is None:
            return None
        new.execute(f"INSERT OR IGNORE INTO {name} VALUES ({', '.join('?' * len(row))})", row)


def _drop_unreadable(new: sqlite3.Connection, found: Salvaged) -> None:
    """Remove the rows outside of jobs whose values cannot be read, and name them."""
    for table, kind, key, where in (
        ("saved", "kind", "key", "kind = ? AND key = ?"),
        ("journal", "'journal'", "seq", "? = 'journal' AND seq = ?"),
        ("process", "'process'", "jobid", "? = 'process' AND jobid = ?"),
    ):
        column = "event" if table == "journal" else "value"
        value = f"CASE WHEN {kind} LIKE 'scheduler%' THEN 'null' ELSE {column} END"  # only schedulers read theirs
        for row in new.execute(f"SELECT {kind}, {key}, {value} FROM {table}").fetchall():
            try:
                decode_saved(*row)
            except InvalidValue as fault:
                new.execute(f"DELETE FROM {table} WHERE {where}", row[:2])
                found.lost.append(str(fault))
    for row in new.execute("SELECT * FROM lease").fetchall():
        try:
            decode_lease(row)
        except InvalidValue as fault:
            new.execute("DELETE FROM lease WHERE jobid = ?", row[:1])
            found.lost.append(str(fault))


def _drop_incomplete(new: sqlite3.Connection, found: Salvaged) -> None:
    queue, dropped = JobQueue(QueueConfig()), 0
    for (jobid,) in new.execute("SELECT DISTINCT jobid FROM job_log").fetchall():
        try:
            job = read_job(new.execute, jobid)
            assert job is not None, "it has rows"
            jobspec = None if job["jobspec"] is None else Jobspec.parse(job["jobspec"])
            restore.read((jobid, job["eventlog"], jobspec, job["R"]), queue)
        except (FluxschedError, ValueError, LookupError, TypeError):
            new.execute("DELETE FROM job_log WHERE jobid = ?", (jobid,))
            dropped += 1
    if dropped:
        found.lost.append(f"{dropped} jobs of which parts are missing")


def _clear(new: sqlite3.Connection) -> None:
    if new.in_transaction:
        new.execute("ROLLBACK")
    for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        new.execute(f"DROP TABLE {name}")
    new.execute("PRAGMA user_version = 0")


def _count(connection: sqlite3.Connection, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])
