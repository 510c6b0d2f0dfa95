"""The store: one SQLite file, one writer, group commit: an answer follows the store.

What a turn wants kept is appended with `add`; `after_commit` callbacks wait for the transaction that carries it and run
in a later turn. While one transaction is being written, the next one gathers: an idle store commits at once, a busy one
in large groups. What waited for a transaction is done before the next one begins, so a reader of the store sees no more
than has been announced. `Store` is on the loop; `Database` does the writing, in whatever thread the writer uses, and
`Checkpoints` copies SQLite's log (WAL) into the file in a thread of its own, since a copy costs two syncs that a commit
would have to wait for. Long queries run in no turn, one after another, on connections of their own, and see what one
moment had on disk.

A transaction that the disk does not take (full, read-only, gone, failing) is tried again until it does; what comes
meanwhile gathers behind it, in order, and `fault` says why. What no retry can repair, such as a damaged file, calls
`failed`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import chain
from logging import DEBUG
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fluxsched.errors import FluxschedError, LimitExceeded, Refused
from fluxsched.protocol.messages.instance import StoreMetrics
from fluxsched.store.integrity import (
    COLUMNS,
    COMMIT,
    CommitRecord,
    add_function,
    checksummed,
    mark_in_use,
    stored_commit,
)
from fluxsched.store.jobs import Query, compressed
from fluxsched.store.repair import decode_text
from fluxsched.store.schema import ADD_USAGE, ADD_USAGE_UP, ALL_IS_COUNTED, FEWER_ARE_COUNTED, prepare
from fluxsched.system.files import private_file
from fluxsched.system.log import Subject, logger
from fluxsched.system.loop import SHORT_S, Histogram, OnFailure, Turns, Work

log = logger("store")


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of a store, and times of its retries."""

    retry_s: float = 1.0
    """Interval of retrying a failed transaction (seconds)."""
    unstored_rows_max: int = 200_000
    """Rows that may wait for the disk while it fails: the ends of 40,000 jobs, some 100 MB. With more the instance
    ends.
    """
    log_rows: int = 20_000
    """Rows in the log from which on it is copied: some 5,000 jobs, 8 MiB."""
    log_rows_max: int = 200_000
    """Number of rows at which the writer waits for the copy: a disk that is too slow must not be filled."""


LIMITS = StoreLimits()
Done = Callable[[], None]


class Transaction:
    """Rows that are written at once, and the result. Only the writer touches it between `run` and its `done`."""

    __slots__ = ("_database", "error", "groups", "works")

    def __init__(self, database: Database, groups: list[RowGroup], works: list[Work]) -> None:
        self._database = database
        self.groups = groups
        """Empty once they are on disk."""
        self.works = works
        self.error: sqlite3.Error | None = None

    def run(self) -> None:
        """Try to write the rows."""
        self.error = self._database.write(self.groups)
        if self.error is None:
            self.groups = []


class Store:
    """Group commit over SQLite, in the file `path`; `writer` runs the transactions."""

    def __init__(
        self, path: Path | str, turns: Turns, writer: Writer | None = None, failed: OnFailure | None = None,
        limits: StoreLimits = LIMITS,
    ) -> None:  # fmt: skip
        """Open the file. `failed` is called with an error that no further attempt to write would mend."""
        self._turns = turns
        self._limits = limits
        self._groups: list[RowGroup] = []
        self._works: list[Work] = []
        self._idle_calls: list[tuple[Done, Callable[[Exception], None] | None]] = []
        self._due_idle_calls: list[tuple[Done, Callable[[Exception], None] | None]] = []
        self._under_way: Transaction | None = None
        self.fault: str | None = None
        """Why nothing can be written at present, or None."""
        self.is_full = False
        """True if the fault is a lack of room."""
        self.commits = 0
        self._commit_s = Histogram(SHORT_S)
        self._begun_s = 0.0
        self._debugs = log.isEnabledFor(DEBUG)
        self._failed = failed
        self._database = Database(path, limits)
        self._writer = ThreadedWriter(turns) if writer is None else writer

    def add(self, table: str, values: Values) -> None:
        """Have one row written with the next transaction."""
        groups = self._groups
        if groups and groups[-1][0] == table:
            groups[-1][1].append(values)
        else:
            groups.append((table, [values]))

    def remove(self, table: str, key: Values) -> None:
        """Delete the rows under `key` with the next transaction, in order with added ones."""
        self._groups.append((DELETES[table], [key]))

    def change(self, statement: str, values: Values = ()) -> None:
        """Have a statement of `database.STATEMENTS` executed with the next transaction, in the same order."""
        self._groups.append((STATEMENTS[statement], [values]))

    def after_commit(self, done: Done) -> None:
        """Run `done` in a turn once everything added so far is on disk; at once if it already is."""
        if not self._groups and self._under_way is None:
            done()
            return
        self._works.append(self._call(done, self._turns.handling))

    def spread_after_commit(self, work: Work) -> None:
        """Do long work in pieces once all rows so far are on disk."""
        if not self._groups and self._under_way is None:
            self._turns.spread(work)
        else:
            self._works.append(work)

    def when_idle(self, done: Done, failed: Callable[[Exception], None] | None = None) -> None:
        """Run `done` when exactly the rows on disk have been announced: `read` and news then meet without gap or
        overlap. While the disk fails that is always so. Exceptions of a later `done` are passed to `failed`.
        """
        if self.fault is not None or not (self._groups or self._works or self._under_way):
            done()
        else:
            self._idle_calls.append((done, failed))

    def flush(self) -> None:
        """Pass the collected rows to the writer at the end of a turn, unless it is still busy."""
        if self._under_way is not None or not (self._groups or self._works or self._idle_calls):
            return
        self._under_way = Transaction(self._database, self._groups, self._works)
        self._due_idle_calls = self._idle_calls
        self._groups, self._works, self._idle_calls = [], [], []
        self._write(self._under_way)

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a point query, which reads committed data.

        Raises Refused (EIO) if the file cannot be read.
        """
        try:
            return self._database.reader.execute(sql, parameters).fetchall()
        except sqlite3.DatabaseError as exc:
            raise Refused(
                f"the state in {self._database.path} cannot be read: {exc}: a restart checks it, and continues with "
                "what is sound",
                errno.EIO,
            ) from exc

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one, for results too large to have at once."""
        return self._database.reader.execute(sql, parameters)

    def connect(self) -> sqlite3.Connection:
        """Return a connection for reading in another thread. Raises sqlite3.Error."""
        return self._database.connect()

    def close(self) -> None:
        """Write the remaining rows, then close; callbacks of the last transaction are not run.

        Rows that the disk does not accept now are lost, and logged.
        """
        self._writer.close()
        under_way = self._under_way
        left = self._groups if under_way is None else [*under_way.groups, *self._groups]
        is_damaged = under_way is not None and under_way.error is not None and not passes(under_way.error)
        if left and not is_damaged:
            error = self._database.write(left)
            if error is not None:
                log.error("%s: the last %d rows are lost", self._text(error), count(left))
        self._groups, self._under_way = [], None
        self._database.close()

    def metrics(self) -> StoreMetrics:
        """Return the store's metrics for monitoring."""
        waiting = count(self._groups) + (0 if self._under_way is None else count(self._under_way.groups))
        return StoreMetrics(self._commit_s.value(), waiting, self.fault)

    def _write(self, transaction: Transaction) -> None:
        self._begun_s = self._turns.clock.monotonic_s()
        self._writer.run(transaction.run, lambda: self._written(transaction))

    def _written(self, transaction: Transaction) -> None:
        """Handle the result of a transaction that the writer has tried."""
        error = transaction.error
        if error is None:
            self._commit_s.observe(self._turns.clock.monotonic_s() - self._begun_s)
            if self.fault is not None:
                log.warning("the state in %s can be written again", self._database.path)
                self.fault = None
            self._turns.spread_first(self._committed(transaction.works))
        elif passes(error):
            self._failing(self._text(error), code(error) == sqlite3.SQLITE_FULL)
            self._turns.after(self._limits.retry_s, lambda: self._write(transaction))
        else:
            self._ends(FluxschedError(f"cannot write the state in {self._database.path}: {error}"))

    def _committed(self, works: list[Work]) -> Work:
        self.commits += 1
        for work in works:
            yield from self._turns.isolated_work(work)
        self._run_idle_calls()
        self._under_way = None

    def _run_idle_calls(self) -> None:
        settling, self._due_idle_calls = self._due_idle_calls, []
        for done, failed in settling:
            self._turns.run_isolated(done, "a read of what is settled", failed)

    def _failing(self, text: str, is_full: bool) -> None:
        if text != self.fault:
            log.error("%s; running jobs continue, and nothing new is accepted until it can be", text)
        self.fault, self.is_full = text, is_full
        self._due_idle_calls += self._idle_calls
        self._idle_calls = []
        self._run_idle_calls()
        unstored, limit = count(self._groups), self._limits.unstored_rows_max
        if unstored > limit:
            self._ends(LimitExceeded(f"{text}, and {unstored} rows wait for it; the limit is {limit}"))

    def _call(self, done: Done, subject: Subject | None) -> Work:
        """Run `done` in the context of the subject that was handled when it was registered."""
        self._turns.handling = subject
        try:
            if self._debugs:
                log.debug("stored by transaction %d", self.commits)
            done()
        finally:
            self._turns.handling = None
        yield

    def _ends(self, error: FluxschedError) -> None:
        if self._failed is not None:
            self._failed(error)

    def _text(self, error: sqlite3.Error) -> str:
        return f"the state in {self._database.path} cannot be written: {error}"


# ---- the connection

INSERT_SIZES = (256, 64)
"""Rows in one INSERT, then one with the rest: few statements, for each asks for the interpreter's lock, and few
different ones, so that SQLite's cache has them all.
"""

PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
    }
)  # fmt: skip
"""SQLite's primary result codes of faults that pass once the surroundings of the file are repaired."""


def _into(table: str, verb: str = "INSERT OR REPLACE") -> tuple[str, str]:
    columns = COLUMNS[table]
    return f"{verb} INTO {table} ({columns}, crc) VALUES ", f"({'?,' * len(columns.split(','))}?)"


INSERTS: Mapping[str, tuple[str, ...]] = {
    "saved": _into("saved"),
    "journal": _into("journal", "INSERT"),
    "job_log": (
        _into("job_log", "INSERT")[0],
        "(?,nullif(?,0),?,nullif(?,''),nullif(?,0),nullif(?,0),nullif(?,''),?)",
    ),
    "part": _into("part", "INSERT"),
    "process": _into("process"),
    "sample": _into("sample"),
    "run": _into("run"),
    "interval": _into("interval"),
    "usage": ADD_USAGE,
    "lease": _into("lease"),
    "leased": _into("leased"),
}  # fmt: skip
"""Statements for each table's rows: the beginning, the values of one row, and the end.

Python's sqlite3 takes a third of a microsecond to pass a `None` or `bytes`, so a job's rows have bytearrays, and 0 and
"", of which the statement makes NULL.
"""
DELETES = {
    "saved": "DELETE FROM saved WHERE kind = ? AND key = ?",
    "process": "DELETE FROM process WHERE jobid = ?",
    "journal": "DELETE FROM journal WHERE seq <= (SELECT max(seq) FROM journal) - ?",
    "job_log": "DELETE FROM job_log WHERE jobid IN (SELECT value FROM json_each(?))",
    "part": "DELETE FROM part WHERE id IN (SELECT value FROM json_each(?)) "
    "AND NOT EXISTS (SELECT 1 FROM job_log WHERE environment = part.id AND environment) "
    "AND NOT EXISTS (SELECT 1 FROM job_log WHERE files = part.id AND files)",
    "sample": "DELETE FROM sample WHERE step = ? AND t >= ? AND t < ?",
    "run": "DELETE FROM run WHERE seen < ?",
    "interval": "DELETE FROM interval WHERE ended < ? OR (id <= ? AND ended NOTNULL)",
    "usage": "DELETE FROM usage WHERE step = ? AND t >= ? AND t < ?",
    "lease": "DELETE FROM lease WHERE jobid = ?",
    "leased": "DELETE FROM leased WHERE name = ?",
}
"""Statements that delete rows by their key, those of many jobs and parts (a JSON list of ids) at once, since each
statement asks for the interpreter's lock.
"""
STATEMENTS = {
    "add usage up": ADD_USAGE_UP,
    "all is counted": ALL_IS_COUNTED,
    "fewer are counted": FEWER_ARE_COUNTED,
    "lease is": "UPDATE lease SET state = ?2, crc = row_checksum(jobid, attempt, cluster, name, jobspec, ?2) "
    "WHERE jobid = ?1",
}
"""Statements that change rows by the values of others."""

Values = tuple[Any, ...]
RowGroup = tuple[str, list[Values]]
"""Rows of one table that come one after another; or a statement of DELETES or STATEMENTS with its values."""


class Moved(sqlite3.Error):
    """The file was removed or replaced under its name: what is written would be lost."""

    sqlite_errorcode = sqlite3.SQLITE_CANTOPEN


class Database:
    """The file `path`. Raises FluxschedError if it cannot be opened."""

    def __init__(self, path: Path | str, limits: StoreLimits = LIMITS) -> None:
        self.path = str(path)
        private_file(Path(path))  # SQLite gives its log and its index the same mode
        self.reader = self._open()
        self._commit = self._prepare()
        self._inode = os.stat(self.path).st_ino
        self._connection = self._open()
        add_function(self._connection)
        self._checkpoints = Checkpoints(self._open(), limits)
        self._record = CommitRecord(Path(path))
        self._record.write(self._commit)

    def _prepare(self) -> int:
        """Return the number of the last transaction of a file that has this version's form and all of its log now."""
        try:
            prepare(self.reader, self.path)
            number = stored_commit(self.reader)
            self._copying(lambda: mark_in_use(self.reader, True))
        except (sqlite3.Error, ValueError, LookupError, TypeError) as exc:
            raise FluxschedError(
                f"cannot open the state in {self.path}: {exc}: restore a backup into a new directory (fluxsched "
                "restore), or start with --salvage to continue with what can be read"
            ) from exc
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
        """Write one transaction; return None, or the error for which nothing of it was written."""
        try:
            if groups:
                number, changes = self._commit + 1, self._connection.total_changes
                self._transact(self._connection, [*groups, ("saved", [(*COMMIT, b"%d" % number)])])
                self._commit = number
                self._record.write(number)
                rows = self._connection.total_changes - changes
                self._copying(lambda: self._checkpoints.written(self._connection, rows))
        except sqlite3.Error as exc:
            return exc
        return None

    def connect(self) -> sqlite3.Connection:
        """Return another connection, which only reads. Raises sqlite3.Error."""
        return sqlite3.connect(f"{Path(self.path).absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)

    def close(self) -> None:
        """Close all connections; SQLite copies its log into the file. Idempotent."""
        self._checkpoints.close()
        with contextlib.suppress(sqlite3.Error):  # the log stays then, which is checked at the next start
            mark_in_use(self._connection, False)
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
        except (sqlite3.Error, TypeError, OverflowError) as fault:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(fault, sqlite3.Error):
                raise
            raise sqlite3.DataError(f"a value cannot be stored: {fault}") from fault

    def _copying(self, copy: Callable[[], object]) -> None:
        """Copy the log into the file; while that fails, the log grows."""
        try:
            copy()
        except sqlite3.Error as exc:
            if not passes(exc):
                raise
            log.warning("the log of %s cannot be copied into it: %s", self.path, exc)


def passes(exc: sqlite3.Error) -> bool:
    """Return whether the statement may succeed later, when the surroundings of the file are repaired."""
    return code(exc) in PASSING


def code(exc: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if it is not from SQLite."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def count(groups: Sequence[RowGroup]) -> int:
    """Return the number of rows in all groups."""
    return sum(len(rows) for _, rows in groups)


def _statements(table: str, rows: list[Values]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield rows joined into multi-row INSERTs, with their checksums, and parts compressed: this is not the loop's
    thread. Deletions are yielded as they are.
    """
    if table not in INSERTS:
        yield from ((table, key) for key in rows)
        return
    if table == "part":
        rows = [(number, digest, compressed(text)) for number, digest, text in rows]
    values = checksummed(table, rows) if table in COLUMNS else list(chain.from_iterable(rows))
    width, done, left = len(values) // len(rows), 0, len(rows)
    while left:
        size = next((size for size in INSERT_SIZES if size <= left), left)
        yield _insert(table, size), values[done * width : (done + size) * width]
        done, left = done + size, left - size


@cache
def _insert(table: str, size: int) -> str:
    sql, one, *after = INSERTS[table]
    return sql + ",".join([one] * size) + "".join(after)


# ---- checkpoints

COPY = "PRAGMA wal_checkpoint(PASSIVE)"
COPY_ALL = "PRAGMA wal_checkpoint(TRUNCATE)"
"""Statement that copies the whole log at a start: a log that is never copied would grow over every kill, and contain
all of the state.
"""


class Checkpoints:
    """`written` is called after each transaction, in the writer's thread, with the writer's own connection."""

    def __init__(self, connection: sqlite3.Connection, limits: StoreLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._rows = 0
        self._wanted = threading.Semaphore(0)
        self._copied: threading.Event | None = None
        self._closing = False
        self._copier: threading.Thread | None = None

    def written(self, connection: sqlite3.Connection, rows: int) -> None:
        """Count rows that were committed by `connection`. Raises sqlite3.Error if the rest of the log cannot be
        copied.
        """
        self._rows += rows
        if self._copied is None:
            if self._rows >= self._limits.log_rows:
                self._copied = threading.Event()
                self._want()
        elif self._copied.is_set() or self._rows >= self._limits.log_rows_max:
            self._copied.wait()
            connection.execute(COPY)
            self._copied, self._rows = None, 0

    def close(self) -> None:
        """End the thread; SQLite copies the rest when the last connection is closed."""
        self._closing = True
        if self._copier is not None:
            self._wanted.release()
            self._copier.join()
        self._connection.close()

    def _want(self) -> None:
        """Have the thread copy; an instance that never writes so much needs none."""
        if self._copier is None:
            self._copier = threading.Thread(target=self._copy, name="fluxsched-checkpoints", daemon=True)
            self._copier.start()
        self._wanted.release()

    def _copy(self) -> None:
        while self._wanted.acquire() and not self._closing:
            with contextlib.suppress(sqlite3.Error):  # the writer tries again, and reports what it meets
                self._connection.execute(COPY)
            copied = self._copied
            if copied is not None:
                copied.set()


# ---- the writer's thread


class Writer(Protocol):
    """Runs calls that may wait for the disk, one after another, in order."""

    def run(self, transaction: Callable[[], None], done: Callable[[], None]) -> None:
        """Run `transaction` in no turn, then `done` in one."""

    def close(self) -> None:
        """Return when every transaction has been run; `done` is not called any more. Idempotent."""


class ThreadedWriter:
    """A `Writer` with a thread."""

    def __init__(self, turns: Turns, name: str = "fluxsched-store") -> None:
        self._turns = turns
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, transaction: Callable[[], None], done: Callable[[], None]) -> None:
        self._queue.put((transaction, done))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            transaction, done = work
            transaction()
            self._turns.post_threadsafe(done)


class ThreadPerCallWriter:
    """A `Writer` for calls that may wait seconds for the network: each has a thread of its own and delays no other one,
    nor a close.
    """

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns = turns
        self._name = name

    def run(self, transaction: Callable[[], None], done: Callable[[], None]) -> None:
        def serve() -> None:
            transaction()
            self._turns.post_threadsafe(done)

        threading.Thread(target=serve, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Return without waiting for calls under way, unlike `Writer.close`."""


class ImmediateWriter:
    """A `Writer` that runs everything at once, in the caller's turn: where nothing waits for a disk."""

    def run(self, transaction: Callable[[], None], done: Callable[[], None]) -> None:
        transaction()
        done()

    def close(self) -> None:
        """See `Writer.close`."""


# ---- reads of history

T = TypeVar("T")
QUERIES_WAITING_MAX = 16
"""Queries that wait for their turn, a second each at worst."""


class Queries:
    """Runs them where `background` runs its calls."""

    def __init__(self, store: Store, background: Writer) -> None:
        self._store = store
        self._background = background
        self.waiting = 0

    def run(self, query: Callable[[Query], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Run `query`, then `done` with its result, or `failed`. Raises LimitExceeded if too many wait."""
        if self.waiting >= QUERIES_WAITING_MAX:
            limit = f"the limit is {QUERIES_WAITING_MAX}"
            raise LimitExceeded(f"{self.waiting} queries of the history wait, {limit}: ask again later")
        self.waiting += 1
        found: list[T] = []
        faults: list[Exception] = []

        def ask() -> None:
            try:
                with closing(self._store.connect()) as connection:
                    found.append(query(lambda sql, values: connection.execute(sql, values).fetchall()))
            except sqlite3.Error as fault:
                faults.append(Refused(f"the history cannot be read: {fault}", errno.EIO))
            except Exception as fault:  # whatever it is, it is reported in a turn
                faults.append(fault)

        def told() -> None:
            self.waiting -= 1
            if faults:
                failed(faults[0])
            else:
                done(found[0])

        self._background.run(ask, told)
