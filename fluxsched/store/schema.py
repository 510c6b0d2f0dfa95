"""The tables of the store, their older forms and the migrations between them, and statements for history and leases.

Law: a file is either as it was or as this version has it, wherever a change of its form is interrupted, since `prepare`
has one transaction around all migrations; a file of a newer form is left as it is. What the history has of a time is in
one row of `sample`: coarser rows take the place of finer ones. All columns of the table of usage but the key are sums,
so rows are added to, and rows of some time together are one of a longer time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched import __version__
from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.leases import Lease, LeaseState
from fluxsched.store.integrity import DIFFERS, SELECTED, add_checksums, checksummed, is_intact
from fluxsched.store.jobs import JobspecRow, Parts, compressed, pack_events
from fluxsched.system.log import logger

log = logger("store")

SCHEMA_VERSION = 7

SCHEMA = """
CREATE TABLE saved (kind TEXT, key TEXT, value BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE journal (seq INTEGER PRIMARY KEY, event BLOB);
CREATE TABLE job_log (
    seq INTEGER PRIMARY KEY, jobid INTEGER, ended INTEGER, events BLOB, jobspec BLOB, R BLOB,
    environment INTEGER, files INTEGER);
CREATE INDEX job_log_jobid ON job_log (jobid);
CREATE INDEX job_log_ended ON job_log (ended, jobid) WHERE ended;
CREATE INDEX job_log_environment ON job_log (environment) WHERE environment;
CREATE INDEX job_log_files ON job_log (files) WHERE files;
CREATE TABLE part (id INTEGER PRIMARY KEY, digest BLOB, value BLOB);
CREATE TABLE process (jobid INTEGER PRIMARY KEY, value BLOB);
"""
"""`ended` is the time in seconds at which the job ended, in its last row.

`environment` and `files` are ids of parts that the jobspec of the same row lacks (`parts.py`). All tables but `usage`
have one column more, `crc` (`checksums.py`).
"""

WRITER = ("instance", "version")
"""The row of `saved` that has the version of fluxsched that used the file last."""


CONFIGURED = ("instance", "configured")
"""The row of `saved` that has the configuration and the policies of the schedulers in force."""


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Bring a file to this version's form, a new one or one of an older form. Raises FluxschedError for a newer one."""
    version = refuse_newer(connection, path)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            make_tables(connection, SCHEMA_VERSION)
        else:
            for older in range(max(version, 1), SCHEMA_VERSION):
                log.warning("%s is changed from format %d to %d, which may take a while", path, older, older + 1)
                MIGRATIONS[older](connection)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        values = checksummed("saved", [(*WRITER, msgspec.json.encode(__version__))])
        connection.execute("INSERT OR REPLACE INTO saved VALUES (?, ?, ?, ?)", values)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def make_tables(connection: sqlite3.Connection, version: int) -> None:
    """Give an empty database the tables that a file of this form has."""
    if version >= SCHEMA_VERSION:
        _execute(connection, SCHEMA)
        for statement in (*TABLES, *LEASE_TABLES):
            connection.execute(statement)
        add_checksums(connection)
    else:
        _execute(connection, FIRST_FORM)
        for older in range(1, version):
            MIGRATIONS[older](connection)


class StoreForm(NamedTuple):
    """Tables and indexes by name, as SQL without what differs between a file that was changed and a new one."""

    tables: dict[str, str]
    indexes: dict[str, str]


def form_of(connection: sqlite3.Connection) -> StoreForm:
    """Return the form that a file has."""
    found: dict[str, dict[str, str]] = {"table": {}, "index": {}}
    for kind, name, sql in connection.execute("SELECT type, name, sql FROM sqlite_master"):
        found.get(kind, {})[str(name)] = "".join(str(sql).replace('"', "").split())
    return StoreForm(found["table"], found["index"])


def known_form(version: int) -> StoreForm:
    """Return the form of this number; without tables if it is not known here."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        if version <= SCHEMA_VERSION:
            make_tables(connection, version)
        return form_of(connection)


def refuse_newer(connection: sqlite3.Connection, path: str) -> int:
    """Return the number of a file's form. Raises FluxschedError if this version does not know it."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise FluxschedError(
            f"state in {path} has format {version}{_written_by(connection)}; fluxsched {__version__} reads formats up "
            f"to {SCHEMA_VERSION}: start with the version that wrote it, or with another --statedir"
        )
    return version


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Like `executescript`, within the transaction that is open."""
    for statement in script.split(";\n"):
        connection.execute(statement)


def _written_by(connection: sqlite3.Connection) -> str:
    """Return the version that wrote the file, if the file still names it in this way."""
    try:
        row = connection.execute("SELECT value FROM saved WHERE kind = ? AND key = ?", WRITER).fetchone()
        return "" if row is None else f" of fluxsched {msgspec.json.decode(row[0], type=str)}"
    except (sqlite3.Error, msgspec.MsgspecError):
        return ""


# ---- tables of usage

WAITS: Final = 54
"""Ranges by which waits are counted: those of `histogram.WAITS_S`, and what is above."""
USAGE_KEY: Final = ("userid", "bank", "queue", "grp", "properties")
"""Columns that identify the owner of an account. `properties` are names in order, each in a line."""
RESULT_COLUMNS: Final = ("completed", "failed", "canceled", "timeout")
_FIRST_SUMS: Final = (
    *RESULT_COLUMNS, "core_s", "gpu_s", "cpu_s", "cpu_core_s", "wait_s", *(f"w{at}" for at in range(WAITS)),
)  # fmt: skip
"""Sums of forms before 7."""
_GPU_SUMS: Final = ("gpu_busy_s", "gpu_sampled_s")
SUMS: Final = (*_FIRST_SUMS, *_GPU_SUMS)
"""Jobs that ended by result; seconds of cores, of GPUs, of CPU time where it was measured, and of the cores for which
it was; seconds that jobs waited, and how many waited how long; seconds that GPUs were busy, and of those sampled.
"""

_ADDED: Final = f" ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in SUMS)}"
HOUR: Final = 3600
DAY: Final = 86_400
"""Steps: hours, and days, which may have an hour more or less."""

_COLUMNS: Final = ", ".join(("step", "t", *USAGE_KEY, *SUMS))

_TYPED: Final = ", ".join(name + (" REAL" if name.endswith("_s") else " INTEGER") for name in _FIRST_SUMS)
_FIRST_USAGE_TABLE: Final = (
    "CREATE TABLE usage (step INTEGER, t INTEGER, userid INTEGER, bank TEXT, queue TEXT, grp TEXT, properties TEXT, "
    f"{_TYPED}, PRIMARY KEY (step, t, {', '.join(USAGE_KEY)})) WITHOUT ROWID"
)
_ADD_GPU_SUMS: Final = tuple(f"ALTER TABLE usage ADD COLUMN {name} REAL DEFAULT 0" for name in _GPU_SUMS)
"""Earlier rows have none: which GPUs their jobs kept busy is in the records of these jobs at most."""
ADD_USAGE: Final = (
    f"INSERT INTO usage ({_COLUMNS}) VALUES ",
    f"({','.join('?' * (2 + len(USAGE_KEY) + len(SUMS)))})",
    _ADDED,
)
ADD_USAGE_UP: Final = (
    f"INSERT INTO usage ({_COLUMNS}) SELECT {DAY}, ?1, {', '.join((*USAGE_KEY, *SUMS))} "
    f"FROM usage WHERE step = {HOUR} AND t = ?2{_ADDED}"
)
"""Adds an hour to a day."""

COUNTED: Final = ("instance", "counted")
"""The row of `saved` that has the last row of jobs that `usage` knows of."""
ALL_IS_COUNTED: Final = (
    "INSERT OR REPLACE INTO saved (kind, key, value, crc) "
    "SELECT 'instance', 'counted', last, row_checksum('instance', 'counted', last) "
    "FROM (SELECT CAST(coalesce(max(seq), 0) AS TEXT) AS last FROM job_log)"
)
"""Notes that `usage` has all jobs whose ends are on disk."""
FEWER_ARE_COUNTED: Final = (
    "INSERT OR REPLACE INTO saved (kind, key, value, crc) "
    "SELECT kind, key, fewer, row_checksum(kind, key, fewer) FROM (SELECT kind, key, "
    "CAST(min(CAST(value AS INTEGER), (SELECT coalesce(max(seq), 0) FROM job_log)) AS TEXT) AS fewer "
    "FROM saved WHERE kind = 'instance' AND key = 'counted')"
)
"""Has the note be true after jobs were removed, whose numbers are given anew."""


# ---- tables of samples and intervals

_FIRST_TABLES: Final = (
    "CREATE TABLE sample (step INTEGER, t INTEGER, observed REAL, allocated REAL, free REAL, drained REAL, down REAL, "
    "excluded REAL, rest BLOB, PRIMARY KEY (step, t)) WITHOUT ROWID",
    "CREATE TABLE run (began REAL PRIMARY KEY, seen REAL) WITHOUT ROWID",
    "CREATE TABLE interval (id INTEGER PRIMARY KEY, targets TEXT, state TEXT, note TEXT, began REAL, ended REAL)",
    "CREATE INDEX interval_ended ON interval (ended)",
    _FIRST_USAGE_TABLE,
)
TABLES: Final = (*_FIRST_TABLES, *_ADD_GPU_SUMS)
"""`sample` has core-seconds by state and the rest as `samples.Sample.row` packs it.

`run` has from when until when (at least) instances ran. An interval that lasts has no `ended`.
"""


# ---- leases

LEASE_TABLES: Final = (
    "CREATE TABLE lease "
    "(jobid INTEGER PRIMARY KEY, attempt INTEGER, cluster TEXT, name TEXT, jobspec BLOB, state TEXT)",
    "CREATE TABLE leased (name TEXT PRIMARY KEY, jobid INTEGER) WITHOUT ROWID",
)

LeaseQuery = Callable[[str, Sequence[Any]], Iterator[Any]]


def read_leases(rows: LeaseQuery, damaged: Callable[[InvalidValue], None]) -> Iterator[Lease]:
    """Yield all stored leases (`Lease.row`), in order of job id; `damaged` is called for each that cannot be read."""
    for row in rows(f"SELECT {SELECTED['lease']} FROM lease ORDER BY jobid", ()):
        try:
            yield decode_lease(row)
        except InvalidValue as fault:
            damaged(fault)


def decode_lease(row: Sequence[Any]) -> Lease:
    """Return the lease of a row with its checksum. Raises InvalidValue naming its job if it has none."""
    jobid, attempt, cluster, name, text, state, _ = row
    if not is_intact(row):
        raise InvalidValue(f"lease of job {jobid} cannot be read: {DIFFERS}")
    try:
        fields = msgspec.convert((jobid, attempt, cluster, name), tuple[int, int, str, str])
        return Lease(*fields, msgspec.json.decode(text, type=dict[str, Any]), LeaseState(state))
    except (ValueError, TypeError) as fault:
        raise InvalidValue(f"lease of job {jobid} cannot be read: {type(fault).__name__}: {fault}") from fault


def read_leased(rows: LeaseQuery, damaged: Callable[[InvalidValue], None]) -> Iterator[tuple[str, int]]:
    """Yield the names of jobs run for others, except those whose job is unknown."""
    for row in rows(f"SELECT {SELECTED['leased']} FROM leased WHERE jobid IN (SELECT jobid FROM job_log)", ()):
        name, jobid, _ = row
        if is_intact(row):
            yield name, jobid
        else:
            damaged(InvalidValue(f"leased {printable(str(name))} cannot be read: {DIFFERS}"))


# ---- migrations

FIRST_FORM: Final = """
CREATE TABLE saved (kind TEXT, key TEXT, value BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE journal (seq INTEGER PRIMARY KEY, event BLOB);
CREATE TABLE job_log (
    seq INTEGER PRIMARY KEY, jobid INTEGER, ended INTEGER, events BLOB, jobspec BLOB, R BLOB);
CREATE TABLE process (jobid INTEGER PRIMARY KEY, value BLOB);
"""
"""SQL of the tables of form 1."""
CHUNK_ROWS: Final = 256
"""Rows read at a time: a history does not fit into memory."""


def _second(connection: sqlite3.Connection) -> None:
    """Convert form 1 (0.1.0) to 2: events are packed, equal parts of jobspecs are kept once, ends have their time."""
    connection.execute(
        "CREATE TABLE packed (seq INTEGER PRIMARY KEY, jobid INTEGER, ended INTEGER, events BLOB, jobspec BLOB, "
        "R BLOB, environment INTEGER, files INTEGER)"
    )
    connection.execute("CREATE TABLE part (id INTEGER PRIMARY KEY, digest BLOB, value BLOB)")

    def add(part: tuple[int, bytes, bytes]) -> None:
        number, digest, text = part
        connection.execute("INSERT INTO part VALUES (?, ?, ?)", (number, digest, compressed(text)))

    parts = Parts(add)
    for seq, jobid, ended, text, jobspec, resources in _rows(connection):
        events = msgspec.json.decode(text)
        row = JobspecRow(b"") if jobspec is None else parts.split(msgspec.json.decode(jobspec))
        ended_s = max(1, int(events[-1]["timestamp"])) if ended else None
        values = (seq, jobid, ended_s, pack_events(events), row.text, resources, row.environment, row.files)
        connection.execute(
            "INSERT INTO packed VALUES (?, ?, ?, ?, nullif(?, x''), ?, nullif(?, 0), nullif(?, 0))", values
        )
    for statement in (
        "DROP TABLE job_log",
        "ALTER TABLE packed RENAME TO job_log",
        "CREATE INDEX job_log_jobid ON job_log (jobid)",
        "CREATE INDEX job_log_ended ON job_log (ended, jobid) WHERE ended",
        "CREATE INDEX job_log_environment ON job_log (environment) WHERE environment",
        "CREATE INDEX job_log_files ON job_log (files) WHERE files",
    ):
        connection.execute(statement)


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    seq = -1
    while rows := connection.execute(
        "SELECT seq, jobid, ended, events, jobspec, R FROM job_log WHERE seq > ? ORDER BY seq LIMIT ?",
        (seq, CHUNK_ROWS),
    ).fetchall():
        yield from rows
        seq = rows[-1][0]


def _third(connection: sqlite3.Connection) -> None:
    """Convert form 2 to 3 (0.2.0): there is a history.

    The usage of earlier jobs is counted by the instance, as after a kill.
    """
    for statement in _FIRST_TABLES:
        connection.execute(statement)


def _fourth(connection: sqlite3.Connection) -> None:
    """Convert form 3 to 4 (0.2.0): there are leases."""
    for statement in LEASE_TABLES:
        connection.execute(statement)


def _seventh(connection: sqlite3.Connection) -> None:
    """Convert form 6 to 7 (0.2.0): the usage has how busy GPUs were."""
    for statement in _ADD_GPU_SUMS:
        connection.execute(statement)


MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = MappingProxyType(
    {1: _second, 2: _third, 3: _fourth, 4: add_checksums, 5: lambda connection: None, 6: _seventh}
    # from 4 to 5 (0.2.0): rows have checksums; from 5 to 6 (0.2.0): rows may have abbreviations
)
"""Functions that convert a file of each older form to the next one."""
