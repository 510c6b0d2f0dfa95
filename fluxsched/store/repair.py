"""Checks of the store's file when an instance starts, and what is done if it is damaged.

A file is sound if SQLite finds nothing wrong with it, it has all tables and indexes, no transaction of its log (WAL) is
hidden behind damage, and it has the last transaction that is on record.

Law: a damaged file is only read: never written to, removed or silently emptied. What it has is read into a new one,
each table from its beginning and from its end up to where that fails; a job of which rows are missing is left out,
since its log would be a false one, and what is known to be lost is named. If nothing is, the new file takes the place
of the damaged one, else only if the user has said so (`start --salvage`). A file that shall take the place of another
is complete on disk under the name `.next` before the damaged one is renamed, so that an interrupted change is completed
by the next start. A value that is returned can be restored; a kind that is not known here is only JSON.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import Outage
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import counted, printable
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.jobs import manager
from fluxsched.jobs.queues import JobQueue, QueueConfig
from fluxsched.protocol.messages.instance import Notice
from fluxsched.resource.drain import reasons_from_row
from fluxsched.resource.parts import PartDrain
from fluxsched.store.integrity import (
    DIFFERS,
    SELECTED,
    examine_wal,
    frames_in_index,
    is_in_use,
    is_intact,
    record_path,
    recorded_commit,
    stored_commit,
)
from fluxsched.store.jobs import read_job
from fluxsched.store.schema import (
    SCHEMA_VERSION,
    USAGE_KEY,
    decode_lease,
    form_of,
    known_form,
    make_tables,
    prepare,
)
from fluxsched.system.files import COMMIT_SUFFIX, private_file

CHECKED_BYTES: Final = 256 << 20
"""Up to this size a file is checked at every start (1 s, a million jobs' logs take more); a larger one if the last
instance on it did not end in good order.
"""
INDEX_SUFFIX: Final = "-shm"
NEXT_SUFFIX: Final = ".next"
"""Suffix of a complete file that is to replace a damaged one."""


def make_sound(path: Path, has_jobs: bool, *, accept_loss: bool = False) -> str | None:
    """Ensure that the file can be used; return the notice for the user, None if there is none.

    `has_jobs`: jobs have run on this state. Raises FluxschedError for a damaged file with losses, unless `accept_loss`.
    """
    following = _named(path, NEXT_SUFFIX)
    if following.exists():
        return _take_place(following, path)
    has_log = is_filled(_named(path, LOG_SUFFIX))
    if (has_jobs or has_log) and not path.exists():
        missing = f"{path} is missing, though jobs have run on this state"
        if not accept_loss:
            raise FluxschedError(
                f"{missing}. Nothing was changed: put the file back, restore a backup into a new directory (fluxsched "
                "restore), or start with --salvage to continue without any jobs, drains and groups"
            )
        aside = _set_aside(path, path.parent.stat().st_mtime)  # else this would be asked again after a kill
        kept = f"; its log is kept as {_named(aside, LOG_SUFFIX)}" if has_log else ""
        return f"{missing}: it has no jobs, drains or groups any more{kept}"
    if path.is_dir():
        raise FluxschedError(f"{path} is a directory, where the state was to be a file: move it away")
    fault = fault_at_start(path, has_jobs)
    if fault is None:
        if not accept_loss or not is_filled(path):
            return None
        fault = StateFault("some of its rows cannot be read")  # to be seen by reading all
        rows_only = True
    else:
        rows_only = False
    draft = _named(path, ".draft")
    draft.unlink(missing_ok=True)
    private_file(draft)
    try:
        found = salvage(path, draft)
    except sqlite3.Error as exc:
        raise FluxschedError(f"{path} is damaged ({fault.text}), and what it has cannot be copied: {exc}") from exc
    if fault.lost is not None:
        found.lost.append(fault.lost)
    if rows_only and not found.lost:
        draft.unlink()
        return None
    if found.lost and not accept_loss:
        draft.unlink()
        raise FluxschedError(
            f"{path} is damaged: {fault.text}. {found}. Nothing was changed: restore a backup into a new directory "
            "(fluxsched restore), or start with --salvage to continue with what was read; the damaged file is kept"
        )
    sync(draft)
    draft.rename(following)
    sync(path.parent)
    return f"{_take_place(following, path)}: {fault.text}. {found}"


class StateFault(NamedTuple):
    """Fault of a file, and losses of which the file itself has no record; in words."""

    text: str
    lost: str | None = None


_RUN_AGAIN: Final = "so that jobs that ended in them run again"


def fault_at_start(path: Path, has_jobs: bool) -> StateFault | None:
    """Return what is wrong with the file that an instance is about to use; None if it is sound. Nothing is changed."""
    is_unclean = is_filled(_named(path, LOG_SUFFIX))
    recorded = recorded_commit(path)
    if not is_filled(path) and not is_unclean:
        if not path.exists():
            return None
        return StateFault("it is empty, but jobs have run on this state") if has_jobs else None
    text = fault_of(path) if is_unclean or path.stat().st_size <= CHECKED_BYTES else None
    if text is None:
        text = _fault_of_form(path, has_jobs)
    if text is not None:
        return StateFault(text)
    with closing(open_read_only(path)) as connection:
        missing = (recorded or 0) - stored_commit(connection)
        has_lost_both = is_in_use(connection) and not (_named(path, LOG_SUFFIX).exists() or record_path(path).exists())
    if has_lost_both:
        text = f"its log ({path.name}{LOG_SUFFIX}) and the record of its transactions ({record_path(path).name}) are"
        return StateFault(f"{text} missing", f"the last transactions, {_RUN_AGAIN}")
    log_fault = _log_fault(path, recorded) if is_unclean else None
    if missing <= 0 and log_fault is None:
        return None
    text = log_fault or f"its log ({path.name}{LOG_SUFFIX}) {'ends too early' if is_unclean else 'is missing'}"
    lost = "transaction" if missing == 1 else f"{missing} transactions" if missing > 0 else "transactions"
    return StateFault(text, f"the last {lost}, {_RUN_AGAIN}")


def fault_of(path: Path) -> str | None:
    """Return the fault that SQLite finds in an existing file, read without changing it; None if it is sound."""
    try:
        with closing(open_read_only(path)) as connection:
            found = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except UNREADABLE as fault:
        return str(fault)
    return None if found == "ok" else " ".join(found.split()).removeprefix("*** in database main *** ")


def _fault_of_form(path: Path, has_jobs: bool) -> str | None:
    """Return which tables a file lacks, or has otherwise; one that was made and never used has none."""
    with closing(open_read_only(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        found = form_of(connection)
    wanted = known_form(version)
    missing = [name for name in wanted.tables if name not in found.tables]
    if not found.tables and not has_jobs:
        return None
    if missing and len(missing) == len(wanted.tables):
        return f"it has no table of an instance{', though jobs have run on this state' if has_jobs else ''}"
    if missing:
        return f"it has no table {', '.join(missing)}"
    if version < SCHEMA_VERSION:
        return None  # earlier versions may have written the same in other words
    others = [
        f"{kind} {name}"
        for kind, these, those in zip(("table", "index"), wanted, found, strict=True)
        for name, sql in these.items()
        if those.get(name) != sql
    ]
    return f"it has another {', '.join(others)} than an instance makes" if others else None


def _log_fault(path: Path, recorded: int | None) -> str | None:
    """Return how the log hides transactions that were complete; None if it does not."""
    index = _named(path, INDEX_SUFFIX)
    frames = frames_in_index(index.read_bytes()) if index.exists() else None  # by the connection that looked before
    with _named(path, LOG_SUFFIX).open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        state = examine_wal(data, frames)
    if state.fault is None or (recorded is not None and not state.has_header):
        return None
    return f"its log ({path.name}{LOG_SUFFIX}) is damaged: {state.fault}"


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _take_place(following: Path, path: Path) -> str:
    """Have the next file take the place of the damaged one, which is kept; return the notice of that."""
    aside = _set_aside(path, following.stat().st_mtime)
    following.rename(path)
    sync(path.parent)
    return f"the state was damaged and is kept as {aside}"


def _set_aside(path: Path, at_s: float) -> Path:
    """Rename what is there of a damaged file, its log and the record of its commits; return the file's new name."""
    aside = _named(path, f".damaged-{datetime.fromtimestamp(at_s):%Y%m%d-%H%M%S}")
    for suffix in (COMMIT_SUFFIX, LOG_SUFFIX, ""):
        with suppress(FileNotFoundError):
            _named(path, suffix).rename(_named(aside, suffix))
    _named(path, INDEX_SUFFIX).unlink(missing_ok=True)
    sync(path.parent)
    return aside


def _named(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


# ---- salvage of damaged tables

LOG_SUFFIX: Final = "-wal"
"""Suffix of SQLite's log beside a file; a closed file has none."""
UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
"""Raised for a damaged file; the second where SQLite says why in words that have damaged ones."""
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
    """Numbers of rows read, and known losses in words."""

    jobs: int = 0
    saved: int = 0
    """Drains, groups, states of queues and the like."""
    lost: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = f"{counted(self.jobs, 'job')} and {counted(self.saved, 'setting')} (drains, groups, queues) were read"
        if not self.lost:
            return f"{found}, which is all"
        return f"{found}; lost: {listed_losses(self.lost)}"


def listed_losses(lost: Sequence[str]) -> str:
    """Name the first of them, and say how many more there are."""
    more = len(lost) - LOST_NAMED_MAX
    return f"{'; '.join(lost[:LOST_NAMED_MAX])}{f'; and {more} more' if more > 0 else ''}"


def salvage(damaged: Path, target: Path) -> Salvaged:
    """Make `target`, of this version's form, from the readable part of a damaged file.

    Raises sqlite3.Error if it cannot be written.
    """
    found = Salvaged()
    with closing(sqlite3.connect(target, isolation_level=None)) as new:
        new.execute("PRAGMA synchronous = OFF")  # the caller syncs it once
        with closing(open_read_only(damaged)) as old:
            _copy(old, new, found)
            _drop_partial(old, new, found)
        try:
            prepare(new, str(target))
        except (FluxschedError, sqlite3.Error, ValueError, LookupError, TypeError) as fault:
            found.lost.append(f"everything, for it cannot be brought to the present form ({fault})")
            _clear(new)
            prepare(new, str(target))
        _drop_damaged(new, found)
        _drop_unreadable(new, found)
        _drop_incomplete(new, found)
        found.saved = _count(new, "SELECT count(*) FROM saved WHERE kind <> 'instance'")
        found.jobs = _count(new, "SELECT count(DISTINCT jobid) FROM job_log")
    return found


def open_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that leaves the file and its log as they are.

    Without a log no file is made beside it: there is no one who could write to it. Raises sqlite3.Error.
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
    """Return whether the file exists and is not empty."""
    return path.exists() and path.stat().st_size > 0


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, found: Salvaged) -> None:
    """Copy the rows of the tables and columns that a file of this form has, and nothing else."""
    try:
        version = old.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in old.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except UNREADABLE as fault:
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


def _drop_partial(old: sqlite3.Connection, new: sqlite3.Connection, found: Salvaged) -> None:
    """Remove jobs with rows that could not be copied, or not as they were written, if the index names their jobs.

    A job without its last row would appear not to have ended.
    """
    if "crc" not in _columns(new, "job_log"):
        return
    rows = new.execute(f"SELECT seq, {SELECTED['job_log']} FROM job_log")
    damaged = {seq: jobid for seq, jobid, *row in rows if not is_intact((jobid, *row))}
    jobids = set(damaged.values())
    if damaged or found.lost:
        known = {seq for (seq,) in new.execute("SELECT seq FROM job_log")} - damaged.keys()
        with suppress(sqlite3.Error):  # as far as the index can be read
            for seq, jobid in old.execute("SELECT seq, jobid FROM job_log INDEXED BY job_log_jobid"):
                if seq not in known:
                    jobids.add(jobid)
    for jobid in sorted(jobids):
        _drop_job(new, jobid, found)


def _drop_damaged(new: sqlite3.Connection, found: Salvaged) -> None:
    """Remove the rows outside of jobs that are not as they were written, and name them."""
    for table, columns in SELECTED.items():
        keys = KEYS[table].split(", ")
        rows = new.execute(f"SELECT {KEYS[table]}, {columns} FROM {table}") if table != "job_log" else ()
        for key in [row[: len(keys)] for row in rows if not is_intact(row[len(keys) :])]:
            new.execute(f"DELETE FROM {table} WHERE {' AND '.join(f'{name} IS ?' for name in keys)}", key)
            name = " ".join(map(str, key if table == "saved" else (table, *key)))
            found.lost.append(f"{printable(name)} cannot be read: {DIFFERS}")


def _drop_unreadable(new: sqlite3.Connection, found: Salvaged) -> None:
    """Remove the rows outside of jobs whose values cannot be read, and name them."""
    for table, kind, key, where in (
        ("saved", "kind", "key", "kind = ? AND key = ?"),
        ("journal", "'journal'", "seq", "? = 'journal' AND seq = ?"),
        ("process", "'process'", "jobid", "? = 'process' AND jobid = ?"),
    ):
        column = "event" if table == "journal" else "value"
        value = f"CASE WHEN {kind} LIKE 'scheduler%' THEN 'null' ELSE {column} END"  # only schedulers read theirs
        for *name, stored in new.execute(f"SELECT {kind}, {key}, {value} FROM {table}").fetchall():
            try:
                decode_saved(name[0], name[1], stored, True)
            except InvalidValue as fault:
                new.execute(f"DELETE FROM {table} WHERE {where}", name)
                found.lost.append(str(fault))
    for row in new.execute(f"SELECT {SELECTED['lease']} FROM lease").fetchall():
        try:
            decode_lease(row)
        except InvalidValue as fault:
            new.execute("DELETE FROM lease WHERE jobid = ?", row[:1])
            found.lost.append(str(fault))


def _drop_incomplete(new: sqlite3.Connection, found: Salvaged) -> None:
    """Remove the jobs whose logs are invalid, since rows of them are missing."""
    queue = JobQueue(QueueConfig())
    for (jobid,) in new.execute("SELECT DISTINCT jobid FROM job_log").fetchall():
        try:
            job = read_job(new.execute, jobid)
            assert job is not None, "it has rows"
            jobspec = None if job["jobspec"] is None else Jobspec.parse(job["jobspec"])
            manager.read((jobid, job["eventlog"], jobspec, job["R"]), queue)
        except (FluxschedError, ValueError, LookupError, TypeError):
            _drop_job(new, jobid, found)


def _drop_job(new: sqlite3.Connection, jobid: int, found: Salvaged) -> None:
    new.execute("DELETE FROM job_log WHERE jobid = ?", (jobid,))
    found.lost.append(f"job {format_f58(jobid)}, of which parts are missing")


def _clear(new: sqlite3.Connection) -> None:
    if new.in_transaction:
        new.execute("ROLLBACK")
    for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        new.execute(f"DROP TABLE {name}")
    new.execute("PRAGMA user_version = 0")


def _count(connection: sqlite3.Connection, sql: str) -> int:
    return int(connection.execute(sql).fetchone()[0])


# ---- what is saved


def _check_property(row: Any) -> None:
    for names in (row.get("add", ()), row.get("remove", ())):
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a name of a property is no text")


def _check_parts(row: Any) -> None:
    for each in row["drains"]:
        PartDrain.from_row(each)


def _check_outage(row: Any) -> None:
    Outage.parse({**row, "name": "outage", "targets": ""})
    for key in row["keys"]:
        str.lower(key)


def _check_event(row: Any) -> None:
    float(row["timestamp"])
    str.lower(row["name"])


def _check_cluster(row: Any) -> None:
    if isinstance(row, dict):
        ResourceSet.parse(row)


def _check_source(row: Any) -> None:
    str.lower(row["source"])
    float(row["timestamp"])
    if "expiration" in row:
        float(row["expiration"])
    else:
        ResourceSet.parse(row["R"])


_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "drain": reasons_from_row,
    "assign": lambda row: str.lower(row["group"]),
    "outage": _check_outage,
    "parts": _check_parts,
    "leaving": lambda row: str.lower(row["from"]),
    "group": lambda row: row.keys(),
    "queue": lambda row: row.keys(),
    "property": _check_property,
    "journal": _check_event,
    "notice": lambda row: msgspec.convert(row, Notice),
    "process": lambda row: row.keys(),
    "cluster": _check_cluster,
    "source": _check_source,
}
_NUMBERS: Final = frozenset({("instance", "epoch_ms"), ("instance", "counted"), ("instance", "commit")})


def decode_saved(kind: str, key: object, value: Any, is_intact: bool) -> Any:
    """Return what a row has. Raises InvalidValue naming it if that is not what was written, or its kind needs."""
    name = printable(f"{kind} {key}")
    if not is_intact:
        raise InvalidValue(f"{name} cannot be read: {DIFFERS}")
    try:
        found = json.loads(value)
        if (kind, key) in _NUMBERS:
            int(found)
        elif kind in _CHECKS:
            _CHECKS[kind](found)
    except (FluxschedError, ValueError, LookupError, TypeError, AttributeError) as fault:
        raise InvalidValue(f"{name} cannot be read: {type(fault).__name__}: {fault}") from fault
    return found
