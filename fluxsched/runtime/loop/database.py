"""The store's file: its connections, and one transaction.

Nothing here waits, retries or knows of turns: `write` either has put all on disk or returns why not, and what failed
can be written again. It runs in whatever thread the store's writer uses; readers have a connection of their own.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from fluxsched.errors import FluxschedError
from fluxsched.runtime.loop.checkpoints import COPY_ALL, Checkpoints
from fluxsched.runtime.storage.commit_record import COMMIT, CommitRecord, stored_commit
from fluxsched.runtime.storage.compression import compressed
from fluxsched.runtime.storage.salvage import decode_text
from fluxsched.runtime.storage.schema import prepare
from fluxsched.runtime.storage.usage import ADD_USAGE, ADD_USAGE_UP, ALL_IS_COUNTED, FEWER_ARE_COUNTED
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.private_files import private_file

log = logger("store")

INSERT_SIZES = (256, 64)
"""Rows in one INSERT, then one with the rest: few statements, for each asks for the interpreter's lock, and few
different ones, so that SQLite's cache has them all."""

PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
    }
)  # fmt: skip
"""SQLite's primary result codes of faults that pass once the surroundings of the file are repaired."""

INSERTS: Mapping[str, tuple[str, ...]] = {
    "saved": ("INSERT OR REPLACE INTO saved (kind, key, value) VALUES ", "(?,?,?)"),
    "journal": ("INSERT INTO journal (event) VALUES ", "(?)"),
    "job_log": (
        "INSERT INTO job_log (jobid, ended, events, jobspec, environment, files, R) VALUES ",
        "(?,nullif(?,0),?,nullif(?,''),nullif(?,0),nullif(?,0),nullif(?,''))",
    ),
    "part": ("INSERT INTO part (id, digest, value) VALUES ", "(?,?,?)"),
    "process": ("INSERT OR REPLACE INTO process (jobid, value) VALUES ", "(?,?)"),
    "sample": (
        "INSERT OR REPLACE INTO sample (step, t, observed, allocated, free, drained, down, excluded, rest) VALUES ",
        "(?,?,?,?,?,?,?,?,?)",
    ),
    "run": ("INSERT OR REPLACE INTO run (began, seen) VALUES ", "(?,?)"),
    "interval": (
        "INSERT OR REPLACE INTO interval (id, targets, state, note, began, ended) VALUES ", "(?,?,?,?,?,?)"
    ),
    "usage": ADD_USAGE,
    "lease": ("INSERT OR REPLACE INTO lease (jobid, attempt, cluster, name, jobspec, state) VALUES ", "(?,?,?,?,?,?)"),
    "leased": ("INSERT OR REPLACE INTO leased (name, jobid) VALUES ", "(?,?)"),
}  # fmt: skip
"""The statement for a table's rows, what stands in it for one of them, and what comes after them. The interpreter takes
a microsecond to hand over a `None` or `bytes`, so a job's rows have 0 and "" for NULL, and bytearrays."""
DELETES = {
    "saved": "DELETE FROM saved WHERE kind = ? AND key = ?",
    "process": "DELETE FROM process WHERE jobid = ?",
    "journal": "DELETE FROM journal WHERE seq <= (SELECT max(seq) FROM journal) - ?",
    "job_log": "DELETE FROM job_log WHERE jobid = ?",
    "part": "DELETE FROM part WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM job_log WHERE environment = ?1) "
    "AND NOT EXISTS (SELECT 1 FROM job_log WHERE files = ?1)",
    "sample": "DELETE FROM sample WHERE step = ? AND t >= ? AND t < ?",
    "run": "DELETE FROM run WHERE seen < ?",
    "interval": "DELETE FROM interval WHERE ended < ? OR (id <= ? AND ended NOTNULL)",
    "usage": "DELETE FROM usage WHERE step = ? AND t >= ? AND t < ?",
    "lease": "DELETE FROM lease WHERE jobid = ?",
    "leased": "DELETE FROM leased WHERE name = ?",
}
STATEMENTS = {
    "add usage up": ADD_USAGE_UP,
    "all is counted": ALL_IS_COUNTED,
    "fewer are counted": FEWER_ARE_COUNTED,
    "lease is": "UPDATE lease SET state = ?2 WHERE jobid = ?1",
}
"""What changes rows by others."""

Values = tuple[Any, ...]
RowGroup = tuple[str, list[Values]]
"""Rows of one table that come one after another; or a statement of DELETES or STATEMENTS with its values."""


class Moved(sqlite3.Error):
    """The file was removed or replaced under its name: what is written would be lost."""

    sqlite_errorcode = sqlite3.SQLITE_CANTOPEN


class Database:
    """The file `path`. Raises FluxschedError if it cannot be opened."""

    def __init__(self, path: Path | str) -> None:
        self.path = str(path)
        private_file(Path(path))  # SQLite gives its log and its index the same mode
        self.reader = self._open()
        self._commit = self._prepare()
        self._inode = os.stat(self.path).st_ino
        self._connection = self._open()
        self._checkpoints = Checkpoints(self._open())
        self._record = CommitRecord(Path(path))
        self._record.write(self._commit)

    def _prepare(self) -> int:
        """Return the number of the last transaction of a file that has this version's form and all of its log now."""
        try:
            prepare(self.reader, self.path)
            number = stored_commit(self.reader)
        except (sqlite3.Error, ValueError, LookupError, TypeError) as exc:
            raise FluxschedError(f"cannot open the state in {self.path}: {exc}") from exc
        self._copying(lambda: self.reader.execute(COPY_ALL))
        return number

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            connection.text_factory = decode_text
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # see checkpoints.py
        except sqlite3.Error as exc:
            raise FluxschedError(f"cannot open the state in {self.path}: {exc}") from exc
        return connection

    def write(self, groups: list[RowGroup]) -> sqlite3.Error | None:
        """One transaction; None, or why nothing of it was written."""
        try:
            if groups:
                number = self._commit + 1
                self._transact(self._connection, [*groups, ("saved", [(*COMMIT, b"%d" % number)])])
                self._commit = number
                self._record.write(number)
                self._copying(lambda: self._checkpoints.written(self._connection, count(groups)))
        except sqlite3.Error as exc:
            return exc
        return None

    def connect(self) -> sqlite3.Connection:
        """Another connection, which only reads. Raises sqlite3.Error."""
        return sqlite3.connect(f"{Path(self.path).absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)

    def close(self) -> None:
        """Close all connections; SQLite copies its log into the file. Idempotent."""
        self._checkpoints.close()
        self._connection.close()
        self.reader.close()
        self._record.close()

    def _transact(self, connection: sqlite3.Connection, groups: list[RowGroup]) -> None:
        try:
            found = os.stat(self.path).st_ino
        except OSError as exc:
            raise Moved(f"the file is gone ({exc.strerror}): put it back, or start anew") from exc
        if found != self._inode:
            raise Moved("another file has taken its place: put it back, or start anew")
        try:
            connection.execute("BEGIN IMMEDIATE")
            for group in groups:
                for sql, values in _statements(*group):
                    connection.execute(sql, values)
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _copying(self, copy: Callable[[], object]) -> None:
        """Have the log copied into the file; where that fails for a while, it grows until it does not."""
        try:
            copy()
        except sqlite3.Error as exc:
            if not passes(exc):
                raise
            log.warning("the log of %s cannot be copied into it: %s", self.path, exc)


def passes(exc: sqlite3.Error) -> bool:
    """Whether it may succeed later, when the surroundings of the file are repaired."""
    return code(exc) in PASSING


def code(exc: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if it is not from SQLite."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def count(groups: Sequence[RowGroup]) -> int:
    """Rows in all groups."""
    return sum(len(rows) for _, rows in groups)


def _statements(table: str, rows: list[Values]) -> Iterator[tuple[str, Values]]:
    """Rows joined into multi-row INSERTs, parts compressed: this is not the loop's thread. Deletions as they come."""
    if table not in INSERTS:
        yield from ((table, key) for key in rows)
        return
    if table == "part":
        rows = [(number, digest, compressed(text)) for number, digest, text in rows]
    done, left = 0, len(rows)
    while left:
        size = next((size for size in INSERT_SIZES if size <= left), left)
        yield _insert(table, size), tuple(chain.from_iterable(rows[done : done + size]))
        done, left = done + size, left - size


@cache
def _insert(table: str, size: int) -> str:
    sql, one, *after = INSERTS[table]
    return sql + ",".join([one] * size) + "".join(after)
