"""Checksums of rows: a row that changed on the disk and can still be decoded is noticed when it is read.

Law: a row is read as it was written, or it is not intact. The checksum is the CRC-32 of the row's columns as msgpack,
as SQLite returns them. Table `usage` has none: SQLite itself adds to its rows and sums them, which no function of ours
could do as fast; what changes there changes a number of a report and nothing else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

COLUMNS: Final[Mapping[str, str]] = {
    "saved": "kind, key, value",
    "journal": "event",
    "job_log": "jobid, ended, events, jobspec, environment, files, R",
    "part": "id, digest, value",
    "process": "jobid, value",
    "sample": "step, t, observed, allocated, free, drained, down, excluded, rest",
    "run": "began, seen",
    "interval": "id, targets, state, note, began, ended",
    "lease": "jobid, attempt, cluster, name, jobspec, state",
    "leased": "name, jobid",
}
"""Columns that the checksums of each table's rows cover.

Row numbers are not included: SQLite gives them later, and a check of the file finds them in order.
"""
SELECTED: Final[Mapping[str, str]] = {table: f"{columns}, crc" for table, columns in COLUMNS.items()}
"""Columns to be selected of a row for `is_intact`."""
DIFFERS: Final = "its checksum differs"

_REALS: Final[Mapping[str, slice]] = {"sample": slice(2, 8), "run": slice(0, 2), "interval": slice(4, 6)}
"""Columns of floating-point numbers, to which SQLite converts others."""
_pack = msgspec.msgpack.Encoder().encode

Row = Sequence[Any]


def is_intact(row: Row) -> bool:
    """Return whether a row, its checksum last, is unchanged since it was written."""
    return bool(crc32(_pack(row[:-1])) == row[-1])


def is_written(table: str, row: Row) -> bool:
    """Return whether all columns of a row, of a file of any form, are as written: older forms have no checksums."""
    return len(row) == COLUMNS[table].count(",") + 1 or is_intact(row)


def intact(rows: Iterable[Row]) -> Iterator[Row]:
    """Return the rows that are as they were written, without their checksums."""
    return (row[:-1] for row in rows if is_intact(row))


def checksummed(table: str, rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return rows that are to be written, with their checksums."""
    if table == "job_log":  # 0 and "" are NULL there, which costs the writer's thread less than the loop
        rows = [
            (jobid, ended or None, events, text or None, part or None, files or None, R or None)
            for jobid, ended, events, text, part, files, R in rows
        ]
    reals = _REALS.get(table)
    if reals is not None:
        rows = [(*row[: reals.start], *map(_real, row[reals]), *row[reals.stop :]) for row in rows]
    return [(*row, crc32(_pack(row))) for row in rows]


def add_function(connection: sqlite3.Connection) -> None:
    """Have SQL compute checksums, of rows that it changes itself: `row_checksum` of their columns."""
    connection.create_function("row_checksum", -1, lambda *row: crc32(_pack(row)), deterministic=True)


def add_checksums(connection: sqlite3.Connection) -> None:
    """Add checksums, as a column and its values, to tables that have none."""
    add_function(connection)
    for table, columns in COLUMNS.items():
        connection.execute(f"ALTER TABLE {table} ADD COLUMN crc INTEGER")
        connection.execute(f"UPDATE {table} SET crc = row_checksum({columns})")


def _real(value: float | None) -> float | None:
    """Return a number as SQLite returns it, which has no negative zero."""
    return None if value is None else value + 0.0
