"""Reads what can be read of a damaged file into a new one.

Law: the damaged file is only read. Each table is read from its beginning and from its end up to where that fails; a job
of which rows are missing is left out, since its log would be a false one. What is known to be lost is named.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError
from fluxsched.jobs.lifecycle import restore
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig
from fluxsched.runtime.storage.jobs import read_job
from fluxsched.runtime.storage.schema import prepare
from fluxsched.runtime.storage.usage import KEY as USAGE_KEY

LOG_SUFFIX: Final = "-wal"
"""Of the name of SQLite's log beside a file; one that was closed has none."""
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
        return f"{found}; lost: {', '.join(self.lost)}" if self.lost else f"{found}, which is all"


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
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)


def is_filled(path: Path) -> bool:
    """Whether there is such a file, with something in it."""
    return path.exists() and path.stat().st_size > 0


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, found: Salvaged) -> None:
    """Tables, then rows, then indexes."""
    try:
        schema = old.execute("SELECT type, name, sql FROM sqlite_master WHERE sql NOTNULL ORDER BY rowid").fetchall()
        version = old.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as fault:
        found.lost.append(f"everything ({fault})")
        return
    if not schema:
        found.lost.append("everything (it has no tables)")
    new.execute("BEGIN")
    for _, name, sql in schema:
        if name in KEYS:
            new.execute(sql)
            _copy_table(old, new, name, found)
    for kind, _, sql in schema:
        if kind == "index":
            new.execute(sql)
    new.execute(f"PRAGMA user_version = {version}")
    new.execute("COMMIT")


def _copy_table(old: sqlite3.Connection, new: sqlite3.Connection, name: str, found: Salvaged) -> None:
    fault = _copy_rows(new, name, _rows(old, name, ""))
    if fault is not None:
        _copy_rows(new, name, _rows(old, name, " DESC"))
        found.lost.append(f"rows of {name} ({fault})")


def _rows(old: sqlite3.Connection, name: str, order: str) -> Iterator[tuple[Any, ...]]:
    keys = ", ".join(key + order for key in KEYS[name].split(", "))
    yield from old.execute(f"SELECT * FROM {name} NOT INDEXED ORDER BY {keys}")


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
