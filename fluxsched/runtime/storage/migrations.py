"""How files of older forms come to have the next one. `schema.prepare` has a transaction around them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from fluxsched.runtime.storage.compression import compressed
from fluxsched.runtime.storage.events import pack_events
from fluxsched.runtime.storage.history import TABLES
from fluxsched.runtime.storage.leases import LEASE_TABLES
from fluxsched.runtime.storage.parts import JobspecRow, Parts

FIRST_FORM: Final = """
CREATE TABLE saved (kind TEXT, key TEXT, value BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE journal (seq INTEGER PRIMARY KEY, event BLOB);
CREATE TABLE job_log (
    seq INTEGER PRIMARY KEY, jobid INTEGER, ended INTEGER, events BLOB, jobspec BLOB, R BLOB);
CREATE TABLE process (jobid INTEGER PRIMARY KEY, value BLOB);
"""
"""Tables of form 1."""
CHUNK_ROWS: Final = 256
"""Rows read at a time: a history does not fit into memory."""


def _second(connection: sqlite3.Connection) -> None:
    """From 1 (0.1.0) to 2: events are packed, equal parts of jobspecs are kept once, ends have their time."""
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
    """From 2 to 3 (0.2.0): there is a history. What earlier jobs used is counted by the instance, as after a kill."""
    for statement in TABLES:
        connection.execute(statement)


def _fourth(connection: sqlite3.Connection) -> None:
    """From 3 to 4 (0.2.0): there are leases."""
    for statement in LEASE_TABLES:
        connection.execute(statement)


MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = MappingProxyType({1: _second, 2: _third, 3: _fourth})
"""What makes a file of each older form one of the next."""
