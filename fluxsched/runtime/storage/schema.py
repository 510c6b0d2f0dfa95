"""The tables of the store, and how a file comes to have them.

Law: a file is either as it was or as this version has it, wherever a change of its form is interrupted; and one of a
newer form is left as it is.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import msgspec

from fluxsched import __version__
from fluxsched.errors import FluxschedError
from fluxsched.runtime.storage.history import TABLES
from fluxsched.runtime.storage.leases import LEASE_TABLES
from fluxsched.runtime.storage.migrations import FIRST_FORM, MIGRATIONS
from fluxsched.runtime.system.log import logger

log = logger("store")

SCHEMA_VERSION = 4

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
"""`ended` is the time in seconds at which the job ended, in its last row. `environment` and `files` are ids of parts
that the jobspec of the same row lacks (`parts.py`)."""

WRITER = ("instance", "version")
"""The row of `saved` that has the version of fluxsched that used the file last."""


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
        connection.execute("INSERT OR REPLACE INTO saved VALUES (?, ?, ?)", (*WRITER, msgspec.json.encode(__version__)))
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
    else:
        _execute(connection, FIRST_FORM)
        for older in range(1, version):
            MIGRATIONS[older](connection)


def tables_of_form(version: int) -> list[str]:
    """Return the names of the tables that a file of this form has; none for a form that is not known here."""
    if version > SCHEMA_VERSION:
        return []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        make_tables(connection, version)
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def refuse_newer(connection: sqlite3.Connection, path: str) -> int:
    """The number of a file's form. Raises FluxschedError if this version does not know it."""
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
    """Which version it was, if the file still says so in this way."""
    try:
        row = connection.execute("SELECT value FROM saved WHERE kind = ? AND key = ?", WRITER).fetchone()
        return "" if row is None else f" of fluxsched {msgspec.json.decode(row[0], type=str)}"
    except (sqlite3.Error, msgspec.MsgspecError):
        return ""
