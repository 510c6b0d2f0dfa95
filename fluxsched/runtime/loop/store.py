"""The store: one SQLite file, one writer thread, group commit (law 3: answer after store).

What a turn wants kept is appended with `add`; `after_commit` callbacks wait for the transaction that carries it and
run in a later turn. While one transaction is being written, the next one gathers: an idle store commits at once, a
busy one in large groups. What waited for a transaction is done before the next one begins, so a reader of the store
sees no more than has been announced. Readers use a connection of their own.

A transaction that the disk does not take (full, read-only, gone, failing) is tried again until it does; what comes
meanwhile gathers behind it, in order, and `fault` says why. What no retry can repair, such as a damaged file, calls
`failed`.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from fluxsched.errors import FluxschedError, LimitExceeded
from fluxsched.runtime.loop.checkpoints import Checkpoints
from fluxsched.runtime.loop.turns import Turns, Work
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.private_files import private_file

log = logger("store")

SCHEMA_VERSION = 1
INSERT_SIZES = (256, 64)
"""Rows in one INSERT, then one with the rest: few statements, for each asks for the interpreter's lock, and few
different ones, so that SQLite's cache has them all."""

RETRY_S = 1.0
"""How often a transaction that failed is tried again (seconds)."""
UNSTORED_ROWS_MAX = 200_000
"""Rows that may wait for the disk while it fails: the ends of 40,000 jobs, some 100 MB. With more the instance ends."""
PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
    }
)  # fmt: skip
"""SQLite's primary result codes of faults that pass once the surroundings of the file are repaired."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS saved (kind TEXT, key TEXT, value BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journal (seq INTEGER PRIMARY KEY, event BLOB);
CREATE TABLE IF NOT EXISTS job_log (
    seq INTEGER PRIMARY KEY, jobid INTEGER, ended INTEGER, events BLOB, jobspec BLOB, R BLOB);
CREATE INDEX IF NOT EXISTS job_log_jobid ON job_log (jobid);
CREATE INDEX IF NOT EXISTS job_log_ended ON job_log (jobid) WHERE ended;
CREATE TABLE IF NOT EXISTS process (jobid INTEGER PRIMARY KEY, value BLOB);
"""

INSERTS = {
    "saved": ("INSERT OR REPLACE INTO saved (kind, key, value) VALUES ", "(?,?,?)"),
    "journal": ("INSERT INTO journal (event) VALUES ", "(?)"),
    "job_log": (
        "INSERT INTO job_log (jobid, ended, events, jobspec, R) VALUES ",
        "(?,nullif(?,0),?,nullif(?,''),nullif(?,''))",
    ),
    "process": ("INSERT OR REPLACE INTO process (jobid, value) VALUES ", "(?,?)"),
}
"""The statement for a table's rows, and what stands in it for one of them. The interpreter takes a microsecond to hand
over a `None` or `bytes`, so a job's rows have 0 and "" for NULL, and bytearrays."""
DELETES = {
    "saved": "DELETE FROM saved WHERE kind = ? AND key = ?",
    "process": "DELETE FROM process WHERE jobid = ?",
    "journal": "DELETE FROM journal WHERE seq <= (SELECT max(seq) FROM journal) - ?",
}

Values = tuple[Any, ...]
RowGroup = tuple[str, list[Values]]
"""Rows of one table that come one after another; or, with a statement of DELETES, one deletion."""
Done = Callable[[], None]


class Moved(sqlite3.Error):
    """The file was removed or replaced under its name: what is written would be lost."""

    sqlite_errorcode = sqlite3.SQLITE_CANTOPEN


class Store:
    """Group commit over SQLite, in the file `path`."""

    def __init__(self, path: Path | str, turns: Turns) -> None:
        self._path = str(path)
        self._turns = turns
        self._groups: list[RowGroup] = []
        self._works: list[Work] = []
        self._settled: list[Done] = []
        self._settling: list[Done] = []
        self._busy = False
        self._closing = threading.Event()
        self.fault: str | None = None
        """Why nothing can be written at present, or None."""
        self.is_full = False
        """Whether that is for lack of room."""
        self._queue: queue.SimpleQueue[tuple[list[RowGroup], list[Work]] | None] = queue.SimpleQueue()
        self.commits = 0
        self.failed: Callable[[BaseException], None] | None = None
        private_file(Path(path))  # SQLite gives its log and its index the same mode
        self._reader = self._open()
        self._prepare()
        self._inode = os.stat(self._path).st_ino
        connection, copying = self._open(), self._open()  # here: an error in the thread would go unnoticed
        self._checkpoints = Checkpoints(copying)
        self._writer = threading.Thread(target=self._write, args=(connection,), name="fluxsched-store", daemon=True)
        self._writer.start()

    def _prepare(self) -> None:
        try:
            self._reader.executescript(SCHEMA)
            version = self._reader.execute("PRAGMA user_version").fetchone()[0]
            if version in (0, SCHEMA_VERSION):
                self._reader.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                self._reader.commit()
        except sqlite3.Error as exc:
            raise FluxschedError(f"cannot open the state in {self._path}: {exc}") from exc
        if version not in (0, SCHEMA_VERSION):
            raise FluxschedError(
                f"state in {self._path} has format {version}, this fluxsched reads {SCHEMA_VERSION}: "
                "start with another --statedir, or with the version that wrote it"
            )

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # see checkpoints.py
        except sqlite3.Error as exc:
            raise FluxschedError(f"cannot open the state in {self._path}: {exc}") from exc
        return connection

    def add(self, table: str, values: Values) -> None:
        """Have one row written with the next transaction."""
        groups = self._groups
        if groups and groups[-1][0] == table:
            groups[-1][1].append(values)
        else:
            groups.append((table, [values]))

    def remove(self, table: str, key: Values) -> None:
        """Have the rows under `key` deleted with the next transaction, in order with what was added."""
        self._groups.append((DELETES[table], [key]))

    def after_commit(self, done: Done) -> None:
        """Run `done` in a turn once everything added so far is on disk; at once if it already is."""
        if not self._groups and not self._busy:
            done()
            return
        self._works.append(_call(done))

    def then(self, work: Work) -> None:
        """The same for long work, which is done in pieces."""
        if not self._groups and not self._busy:
            self._turns.spread(work)
        else:
            self._works.append(work)

    def when_settled(self, done: Done) -> None:
        """Run `done` when exactly what is on disk has been announced: `read` and news then meet without gap or overlap.

        While the disk fails that is so all the time.
        """
        if self.fault is not None or not (self._groups or self._works or self._busy):
            done()
        else:
            self._settled.append(done)

    def flush(self) -> None:
        """End-of-turn hook: hand what has gathered to the writer unless it is still busy."""
        if self._busy or not (self._groups or self._works or self._settled):
            return
        self._busy = True
        self._queue.put((self._groups, self._works))
        self._settling = self._settled
        self._groups, self._works, self._settled = [], [], []

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a point query; sees what has been committed."""
        return self._reader.execute(sql, parameters).fetchall()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The same, row by row, for what is too much to have at once."""
        return self._reader.execute(sql, parameters)

    def close(self) -> None:
        """Write what is left, then close; callbacks of the last transaction are not run. What the disk does not take
        now is lost, and logged.
        """
        self._closing.set()
        self._queue.put((self._groups, []))
        self._groups = []
        self._queue.put(None)
        self._writer.join()
        self._reader.close()

    def _committed(self, works: list[Work]) -> Work:
        self.commits += 1
        for work in works:
            yield from self._turns.isolated_work(work)
        self._settle()
        self._busy = False

    def _settle(self) -> None:
        settling, self._settling = self._settling, []
        for done in settling:
            self._turns.run_isolated(done, "a read of what is settled")

    # -- the writer's thread ------------------------------------------------------------------------------------

    def _write(self, connection: sqlite3.Connection) -> None:
        while (work := self._queue.get()) is not None:
            groups, works = work
            try:
                self._write_through(connection, groups)
            except sqlite3.Error as exc:
                self._post(self._ends, FluxschedError(f"cannot write the state in {self._path}: {exc}"))
                break
            announced = self._committed(works)
            self._turns.post_threadsafe(lambda announced=announced: self._turns.spread(announced))  # type: ignore[misc]
        self._checkpoints.close()
        connection.close()

    def _write_through(self, connection: sqlite3.Connection, groups: list[RowGroup]) -> None:
        """Write one transaction, however often it must be tried. Raises sqlite3.Error when no retry would help."""
        tries = 0
        while groups:
            try:
                self._transact(connection, groups)
                break
            except sqlite3.Error as exc:
                if not _passes(exc):
                    raise
                tries += 1
                text = f"the state in {self._path} cannot be written: {exc}"
                self._post(self._failing, text, _code(exc) == sqlite3.SQLITE_FULL)
                if self._closing.wait(RETRY_S) and tries > 1:
                    log.error("%s: the last %d rows are lost", text, _count(groups))
                    return
        if tries:
            self._post(self._recovered)
        if groups:
            self._copy(connection, groups)

    def _transact(self, connection: sqlite3.Connection, groups: list[RowGroup]) -> None:
        try:
            found = os.stat(self._path).st_ino
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

    def _copy(self, connection: sqlite3.Connection, groups: list[RowGroup]) -> None:
        """Have the log copied into the file; where that fails for a while, it grows until it does not."""
        try:
            self._checkpoints.written(connection, sum(len(rows) for _, rows in groups))
        except sqlite3.Error as exc:
            if not _passes(exc):
                raise
            log.warning("the log of %s cannot be copied into it: %s", self._path, exc)

    def _post(self, call: Callable[..., None], *args: object) -> None:
        self._turns.post_threadsafe(lambda: call(*args))

    # -- what it reports to the loop ---------------------------------------------------------------------------------

    def _ends(self, error: FluxschedError) -> None:
        if self.failed is not None:
            self.failed(error)

    def _failing(self, text: str, is_full: bool) -> None:
        if text != self.fault:
            log.error("%s; running jobs continue, and nothing new is accepted until it can be", text)
        self.fault, self.is_full = text, is_full
        self._settling += self._settled
        self._settled = []
        self._settle()
        unstored = _count(self._groups)
        if unstored > UNSTORED_ROWS_MAX:
            self._ends(LimitExceeded(f"{text}, and {unstored} rows wait for it; the limit is {UNSTORED_ROWS_MAX}"))

    def _recovered(self) -> None:
        log.warning("the state in %s can be written again", self._path)
        self.fault = None


def _passes(exc: sqlite3.Error) -> bool:
    return _code(exc) in PASSING


def _code(exc: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if it is not from SQLite."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def _count(groups: Sequence[RowGroup]) -> int:
    return sum(len(rows) for _, rows in groups)


def _call(done: Done) -> Work:
    done()
    yield


def _statements(table: str, rows: list[Values]) -> Iterator[tuple[str, Values]]:
    """Rows joined into multi-row INSERTs; deletions as they come."""
    if table not in INSERTS:
        yield from ((table, key) for key in rows)
        return
    done, left = 0, len(rows)
    while left:
        size = next((size for size in INSERT_SIZES if size <= left), left)
        yield _insert(table, size), tuple(chain.from_iterable(rows[done : done + size]))
        done, left = done + size, left - size


@cache
def _insert(table: str, size: int) -> str:
    sql, one = INSERTS[table]
    return sql + ",".join([one] * size)
