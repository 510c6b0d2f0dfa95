"""Integrity of what is on disk, and how a crash, which leaves half a transaction, is told from damage: checksums
of rows, SQLite's log (WAL) as bytes, and the number of the last transaction.

Laws of rows: a row that changed on the disk and can still be decoded is noticed when it is read: it is as it was
written, or not intact. The checksum is the CRC-32 of the row's columns as msgpack, as SQLite returns them. Table
`usage` has none: SQLite itself adds to its rows and sums them, which no function of ours could do as fast; what changes
there changes a number of a report and nothing else.

Laws of the log: a crash is no damage. SQLite ends a recovery at the first frame whose checksum is wrong, whether that
was being written when the system crashed, or was complete and has changed since. The two differ in what follows: a
transaction is begun only after the one before it was synced, so a frame that continues the checksums of a commit frame
shows that this commit was on disk. What a recovery leaves out must not have one. The last transaction of a log has
nothing behind it: whether it was complete is known by its number.

A copy of the database file alone has neither log nor number. The file itself says that they belong to it: it is marked
as in use, in its header, from a start to an end in good order, which copies all of the log.

The number is never ahead of what is on disk. Each transaction has its number in the database itself; when it is on
disk, the number is written to a file of its own, without a sync. Whatever kills the instance leaves that file as it was
written, and a crash of the system leaves this number or an earlier one. So a database whose number is lower than the
file's has lost transactions, and one whose number is equal or higher has lost none that the file knows of.

Format of the log: https://www.sqlite.org/walformat.html.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from fluxsched.system.files import COMMIT_SUFFIX, private_file
from fluxsched.system.log import logger

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


def checksummed(table: str, rows: Iterable[Row]) -> list[Any]:
    """Return the values of rows that are to be written, each row's with its checksum, as one list."""
    values: list[Any] = []
    if table == "job_log":  # the statement makes NULL of 0 and ""
        for row in rows:
            jobid, ended, events, text, part, files, resources = row
            read = jobid, ended or None, events, text or None, part or None, files or None, resources or None
            values += row
            values.append(crc32(_pack(read)))
        return values
    reals = _REALS.get(table)
    for row in rows:
        if reals is not None:
            row = (*row[: reals.start], *map(_real, row[reals]), *row[reals.stop :])
        values += (*row, crc32(_pack(row)))
    return values


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


# ---- wal

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
MAGIC: Final = 0x377F0682
"""Magic number of a log whose checksums take words in little-endian order; the next number means big-endian."""
PAGE_BYTES_USUAL: Final = 4096
_HEADER: Final = struct.Struct(">8I")
"""Magic, version of the format, page size, count of checkpoints, two salts, two checksums."""
_FRAME: Final = struct.Struct(">6I")
"""Page, size of the database in pages (0: no commit), two salts, two checksums."""
INDEX_FRAMES_AT: Final = 16
"""Offset of the number of frames in the index (`-shm`), which has the machine's byte order."""
_WORD: Final = 0xFFFFFFFF
_CHECKED_OF_HEADER: Final = 24
_CHECKED_OF_FRAME: Final = 8

Sums = tuple[int, int]


class WalState(NamedTuple):
    """Result of examining a log."""

    frames: int
    """Frames that a recovery finds: up to the last commit before the first frame that is not valid."""
    fault: str | None
    """Damage that hides later transactions, in words; None if there is none."""
    has_header: bool = True
    """True if the header is valid.

    A crash can tear it when the log is begun anew, once all of the old one is copied: a fault of a log without one is a
    loss only if transactions are missing in the database.
    """


def examine_wal(data: bytes | mmap, valid_frames: int | None = None) -> WalState:
    """Return how far a log is valid, and what is wrong if transactions are hidden behind damage.

    `valid_frames`: number of frames that SQLite's recovery found, if that is known; finding it here takes 0.1 to 0.2 ms
    a frame.
    """
    log = memoryview(data)
    header = _HEADER.unpack_from(log) if len(log) >= HEADER_BYTES else None
    if header is None or not _is_valid(header, log):
        later = _later_commit(log, PAGE_BYTES_USUAL, 0, None)
        return WalState(0, None if later is None else f"its header is damaged, and {_follows(later)}", has_header=False)
    size, salts = _page_bytes(header[2]), header[4:6]
    frames = _valid_frames(log, header) if valid_frames is None else valid_frames
    later = _later_commit(log, size, frames, salts, is_big=bool(header[0] & 1))
    if later is None:
        return WalState(frames, None)
    return WalState(frames, f"it cannot be read beyond frame {frames}, and {_follows(later)}")


def frames_in_index(data: bytes) -> int | None:
    """Return the number of frames that SQLite found when it made this index (`-shm`); None if it cannot be known."""
    at = INDEX_FRAMES_AT
    return int.from_bytes(data[at : at + 4], sys.byteorder) if len(data) >= at + 4 else None


def _follows(commit: int) -> str:
    return f"a transaction that was complete ends at frame {commit}"


def _is_valid(header: tuple[int, ...], log: memoryview) -> bool:
    magic, _, size, *_, first, second = header
    if magic & ~1 != MAGIC or not 512 <= _page_bytes(size) <= 65536 or size & (size - 1):
        return False
    return _sums((0, 0), log[:_CHECKED_OF_HEADER], is_big=bool(magic & 1)) == (first, second)


def _page_bytes(size: int) -> int:
    return 65536 if size == 1 else size


def _valid_frames(log: memoryview, header: tuple[int, ...]) -> int:
    """Return the number of frames up to the last commit that a recovery accepts."""
    size, salts, is_big = _page_bytes(header[2]), header[4:6], bool(header[0] & 1)
    sums, found = header[6:8], 0
    for number, start in _starts(log, size, 0):
        page, commit, *rest = _FRAME.unpack_from(log, start)
        sums = _frame_sums((sums[0], sums[1]), log, start, size, is_big=is_big)
        if page == 0 or tuple(rest) != (*salts, *sums):
            break
        if commit:
            found = number
    return found


def _later_commit(
    log: memoryview, size: int, behind: int, salts: tuple[int, ...] | None, *, is_big: bool | None = None
) -> int | None:
    """Return the first commit frame behind a frame that another frame continues; None if there is none."""
    before: tuple[int, ...] | None = None
    for number, start in _starts(log, size, behind):
        frame = _FRAME.unpack_from(log, start)
        if before is not None and before[1] and before[2:4] == frame[2:4] and salts in (None, frame[2:4]):
            orders = (False, True) if is_big is None else (is_big,)
            sums = (before[4], before[5])
            if any(_frame_sums(sums, log, start, size, is_big=order) == frame[4:6] for order in orders):
                return number - 1
        before = frame
    return None


def _starts(log: memoryview, size: int, behind: int) -> Iterator[tuple[int, int]]:
    """Yield number (from 1) and offset of each complete frame behind the given one."""
    whole = FRAME_HEADER_BYTES + size
    for number in range(behind + 1, (len(log) - HEADER_BYTES) // whole + 1):
        yield number, HEADER_BYTES + (number - 1) * whole


def _frame_sums(sums: Sums, log: memoryview, start: int, size: int, *, is_big: bool) -> Sums:
    data = start + FRAME_HEADER_BYTES
    sums = _sums(sums, log[start : start + _CHECKED_OF_FRAME], is_big=is_big)
    return _sums(sums, log[data : data + size], is_big=is_big)


def _sums(sums: Sums, data: memoryview, *, is_big: bool) -> Sums:
    """Return the checksums of what precedes, continued by `data`."""
    words = array("I", bytes(data))
    if is_big != (sys.byteorder == "big"):
        words.byteswap()
    first, second = sums
    pairs = iter(words)
    for even, odd in zip(pairs, pairs, strict=True):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second


# ---- record of commits

log = logger("store")

COMMIT: Final = ("instance", "commit")
"""The row of `saved` that has the number of the transaction that wrote it."""
DIGITS: Final = 20
"""Number of digits of a number, which its checksum follows."""


class CommitRecord:
    """The file beside the database at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = record_path(path)
        private_file(self._path)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        self._failed = False

    def write(self, number: int) -> None:
        """Note that the transaction of this number is on disk. A number that cannot be written is logged, once."""
        try:
            os.pwrite(self._fd, _encode(number), 0)
        except OSError as fault:
            if not self._failed:
                log.warning("%s cannot be written: %s: a loss of the log might not be noticed", self._path, fault)
            self._failed = True

    def close(self) -> None:
        """Close the file of the record. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def record_path(path: Path) -> Path:
    """Return the path of the record of the database at `path`."""
    return path.with_name(path.name + COMMIT_SUFFIX)


def recorded_commit(path: Path) -> int | None:
    """Return the number that was recorded for the database at `path`; None if there is none that can be read."""
    with suppress(OSError, ValueError):
        text = record_path(path).read_bytes()
        number = int(text[:DIGITS])
        if text == _encode(number):
            return number
    return None


def stored_commit(connection: sqlite3.Connection) -> int:
    """Return the number of the last numbered transaction in a database; 0 if it has none."""
    try:
        row = connection.execute("SELECT value FROM saved WHERE kind = ? AND key = ?", COMMIT).fetchone()
        return 0 if row is None else int(row[0])
    except (sqlite3.Error, TypeError, ValueError):
        return 0


IN_USE: Final = 0x666C7878
"""`PRAGMA application_id` of a database that an instance uses; it is copied by no salvage and no restore."""


def mark_in_use(connection: sqlite3.Connection, in_use: bool) -> None:
    """Mark a database as one of which the last transactions may be in its log, or as one that is complete."""
    connection.execute(f"PRAGMA application_id = {IN_USE if in_use else 0}")


def is_in_use(connection: sqlite3.Connection) -> bool:
    """Return whether an instance has begun to use a database and has not ended in good order."""
    return bool(connection.execute("PRAGMA application_id").fetchone()[0] == IN_USE)


def _encode(number: int) -> bytes:
    digits = b"%0*d" % (DIGITS, number)
    return b"%s %08x\n" % (digits, zlib.crc32(digits))
