"""The store: one SQLite file, one writer thread, group commit (law 3: answer after store).

What a turn wants kept is appended with `add`; `after_commit` callbacks wait for the transaction that carries it and
run in a later turn. While one transaction is being written, the next one gathers: an idle store commits at once, a
busy one in large groups. What waited for a transaction is done before the next one begins, so a reader of the store
sees no more than has been told. Readers use a connection of their own.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from fluxsched.errors import FluxschedError
from fluxsched.runtime.checkpoints import Checkpoints
from fluxsched.runtime.turns import Turns, Work

SCHEMA_VERSION = 1
INSERT_SIZES = (256, 64)
"""Rows in one INSERT, then one with the rest: few statements, for each asks for the interpreter's lock, and few
different ones, so that SQLite's cache has them all."""

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
Run = tuple[str, list[Values]]
"""Rows of one table that come one after another; or, with a statement of DELETES, one deletion."""
Done = Callable[[], None]


class Store:
    """Group commit over SQLite, in the file `path`."""

    def __init__(self, path: Path | str, turns: Turns) -> None:
        self._path = str(path)
        self._turns = turns
        self._runs: list[Run] = []
        self._works: list[Work] = []
        self._settled: list[Done] = []
        self._busy = False
        self._queue: queue.SimpleQueue[tuple[list[Run], list[Work]] | None] = queue.SimpleQueue()
        self.commits = 0
        self.failed: Callable[[BaseException], None] | None = None
        self._reader = self._open()
        self._reader.executescript(SCHEMA)
        version = self._reader.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            raise FluxschedError(
                f"state in {self._path} has format {version}, this fluxsched reads {SCHEMA_VERSION}: "
                "start with another --statedir, or with the version that wrote it"
            )
        self._reader.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._reader.commit()
        connection, copying = self._open(), self._open()  # here: nobody would hear that a thread could not
        self._checkpoints = Checkpoints(copying)
        self._thread = threading.Thread(target=self._write, args=(connection,), name="fluxsched-store", daemon=True)
        self._thread.start()

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
        runs = self._runs
        if runs and runs[-1][0] == table:
            runs[-1][1].append(values)
        else:
            runs.append((table, [values]))

    def remove(self, table: str, key: Values) -> None:
        """Have the rows under `key` deleted with the next transaction, in order with what was added."""
        self._runs.append((DELETES[table], [key]))

    def after_commit(self, done: Done) -> None:
        """Run `done` in a turn once everything added so far is on disk; at once if it already is."""
        if not self._runs and not self._busy:
            done()
            return
        self._works.append(_call(done))

    def then(self, work: Work) -> None:
        """The same for long work, which is done in pieces."""
        if not self._runs and not self._busy:
            self._turns.spread(work)
        else:
            self._works.append(work)

    def when_settled(self, done: Done) -> None:
        """Run `done` when all that is on disk has been told, and nothing else is: `read` and news then meet exactly."""
        if not self._runs and not self._busy:
            done()
        else:
            self._settled.append(done)

    def flush(self) -> None:
        """End-of-turn hook: hand what has gathered to the writer unless it is still busy."""
        if self._busy or not (self._runs or self._works or self._settled):
            return
        self._busy = True
        works = [*self._works, *map(_call, self._settled)]
        self._queue.put((self._runs, works))
        self._runs, self._works, self._settled = [], [], []

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a point query; sees what has been committed."""
        return self._reader.execute(sql, parameters).fetchall()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The same, row by row, for what is too much to have at once."""
        return self._reader.execute(sql, parameters)

    def close(self) -> None:
        """Write what is left, then close; callbacks of the last transaction are not run."""
        self._queue.put((self._runs, []))
        self._runs = []
        self._queue.put(None)
        self._thread.join()
        self._reader.close()

    def _committed(self, works: list[Work]) -> Work:
        self.commits += 1
        for work in works:
            yield from work
        self._busy = False

    def _write(self, connection: sqlite3.Connection) -> None:
        while (work := self._queue.get()) is not None:
            runs, works = work
            try:
                if runs:
                    connection.execute("BEGIN IMMEDIATE")
                    for run in runs:
                        for sql, values in _statements(*run):
                            connection.execute(sql, values)
                    connection.execute("COMMIT")
                    self._checkpoints.written(connection, sum(len(rows) for _, rows in runs))
            except sqlite3.Error as exc:
                error = FluxschedError(f"cannot write the state in {self._path}: {exc}")
                if self.failed is not None:
                    self._turns.post_threadsafe(lambda error=error: self.failed(error))  # type: ignore[misc]
                break
            told = self._committed(works)
            self._turns.post_threadsafe(lambda told=told: self._turns.spread(told))  # type: ignore[misc]
        self._checkpoints.close()
        connection.close()


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
