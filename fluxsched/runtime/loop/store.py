"""The store: one SQLite file, one writer, group commit (law 3: answer after store).

What a turn wants kept is appended with `add`; `after_commit` callbacks wait for the transaction that carries it and
run in a later turn. While one transaction is being written, the next one gathers: an idle store commits at once, a
busy one in large groups. What waited for a transaction is done before the next one begins, so a reader of the store
sees no more than has been announced. All of this is on the loop; `database` does the writing, where `writer` runs it.

A transaction that the disk does not take (full, read-only, gone, failing) is tried again until it does; what comes
meanwhile gathers behind it, in order, and `fault` says why. What no retry can repair, such as a damaged file, calls
`failed`.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from logging import DEBUG
from pathlib import Path
from typing import Any

from fluxsched.errors import FluxschedError, LimitExceeded, Refused
from fluxsched.protocol.messages.metrics import StoreMetrics
from fluxsched.runtime.loop.database import DELETES, STATEMENTS, Database, RowGroup, Values, code, count, passes
from fluxsched.runtime.loop.histogram import SHORT_S, Histogram
from fluxsched.runtime.loop.turns import Turns, Work
from fluxsched.runtime.loop.writer import ThreadedWriter, Writer
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.logs.format import Subject

log = logger("store")

RETRY_S = 1.0
"""How often a transaction that failed is tried again (seconds)."""
UNSTORED_ROWS_MAX = 200_000
"""Rows that may wait for the disk while it fails: the ends of 40,000 jobs, some 100 MB. With more the instance ends."""

Done = Callable[[], None]


class Transaction:
    """What is written at once, and how that went. Only the writer touches it between `run` and its `done`."""

    __slots__ = ("_database", "error", "groups", "works")

    def __init__(self, database: Database, groups: list[RowGroup], works: list[Work]) -> None:
        self._database = database
        self.groups = groups
        """Empty once they are on disk."""
        self.works = works
        self.error: sqlite3.Error | None = None

    def run(self) -> None:
        """Try to write it."""
        self.error = self._database.write(self.groups)
        if self.error is None:
            self.groups = []


class Store:
    """Group commit over SQLite, in the file `path`; `writer` runs the transactions."""

    def __init__(self, path: Path | str, turns: Turns, writer: Writer | None = None) -> None:
        self._turns = turns
        self._groups: list[RowGroup] = []
        self._works: list[Work] = []
        self._settled: list[tuple[Done, Callable[[Exception], None] | None]] = []
        self._settling: list[tuple[Done, Callable[[Exception], None] | None]] = []
        self._under_way: Transaction | None = None
        self.fault: str | None = None
        """Why nothing can be written at present, or None."""
        self.is_full = False
        """Whether that is for lack of room."""
        self.commits = 0
        self._commit_s = Histogram(SHORT_S)
        self._begun_s = 0.0
        self._debugs = log.isEnabledFor(DEBUG)
        self.failed: Callable[[BaseException], None] | None = None
        self._database = Database(path)
        self._writer = ThreadedWriter(turns) if writer is None else writer

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

    def change(self, statement: str, values: Values = ()) -> None:
        """Have a statement of `database.STATEMENTS` executed with the next transaction, in the same order."""
        self._groups.append((STATEMENTS[statement], [values]))

    def after_commit(self, done: Done) -> None:
        """Run `done` in a turn once everything added so far is on disk; at once if it already is."""
        if not self._groups and self._under_way is None:
            done()
            return
        self._works.append(self._call(done, self._turns.handling))

    def then(self, work: Work) -> None:
        """The same for long work, which is done in pieces."""
        if not self._groups and self._under_way is None:
            self._turns.spread(work)
        else:
            self._works.append(work)

    def when_settled(self, done: Done, failed: Callable[[Exception], None] | None = None) -> None:
        """Run `done` when exactly what is on disk has been announced: `read` and news then meet without gap or overlap.

        While the disk fails that is so all the time. What `done` raises later is given to `failed`.
        """
        if self.fault is not None or not (self._groups or self._works or self._under_way):
            done()
        else:
            self._settled.append((done, failed))

    def flush(self) -> None:
        """End-of-turn hook: hand what has gathered to the writer unless it is still busy."""
        if self._under_way is not None or not (self._groups or self._works or self._settled):
            return
        self._under_way = Transaction(self._database, self._groups, self._works)
        self._settling = self._settled
        self._groups, self._works, self._settled = [], [], []
        self._write(self._under_way)

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a point query; sees what has been committed. Raises Refused (EIO) if the file cannot be read."""
        try:
            return self._database.reader.execute(sql, parameters).fetchall()
        except sqlite3.DatabaseError as exc:
            raise Refused(
                f"the state in {self._database.path} cannot be read: {exc}: a restart checks it, and continues with "
                "what is sound",
                errno.EIO,
            ) from exc

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The same, row by row, for what is too much to have at once."""
        return self._database.reader.execute(sql, parameters)

    def connect(self) -> sqlite3.Connection:
        """A connection for reading in another thread. Raises sqlite3.Error."""
        return self._database.connect()

    def close(self) -> None:
        """Write what is left, then close; callbacks of the last transaction are not run. What the disk does not take
        now is lost, and logged.
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
        """Its figures for monitoring."""
        waiting = count(self._groups) + (0 if self._under_way is None else count(self._under_way.groups))
        return StoreMetrics(self._commit_s.value(), waiting, self.fault)

    def _write(self, transaction: Transaction) -> None:
        self._begun_s = self._turns.clock.monotonic_s()
        self._writer.run(transaction.run, lambda: self._written(transaction))

    def _written(self, transaction: Transaction) -> None:
        """The writer has tried it."""
        error = transaction.error
        if error is None:
            self._commit_s.observe(self._turns.clock.monotonic_s() - self._begun_s)
            if self.fault is not None:
                log.warning("the state in %s can be written again", self._database.path)
                self.fault = None
            self._turns.spread_first(self._committed(transaction.works))
        elif passes(error):
            self._failing(self._text(error), code(error) == sqlite3.SQLITE_FULL)
            self._turns.after(RETRY_S, lambda: self._write(transaction))
        else:
            self._ends(FluxschedError(f"cannot write the state in {self._database.path}: {error}"))

    def _committed(self, works: list[Work]) -> Work:
        self.commits += 1
        for work in works:
            yield from self._turns.isolated_work(work)
        self._settle()
        self._under_way = None

    def _settle(self) -> None:
        settling, self._settling = self._settling, []
        for done, failed in settling:
            self._turns.run_isolated(done, "a read of what is settled", failed)

    def _failing(self, text: str, is_full: bool) -> None:
        if text != self.fault:
            log.error("%s; running jobs continue, and nothing new is accepted until it can be", text)
        self.fault, self.is_full = text, is_full
        self._settling += self._settled
        self._settled = []
        self._settle()
        unstored = count(self._groups)
        if unstored > UNSTORED_ROWS_MAX:
            self._ends(LimitExceeded(f"{text}, and {unstored} rows wait for it; the limit is {UNSTORED_ROWS_MAX}"))

    def _call(self, done: Done, subject: Subject | None) -> Work:
        """`done`, as a part of what was handled when it was asked for."""
        self._turns.handling = subject
        try:
            if self._debugs:
                log.debug("stored by transaction %d", self.commits)
            done()
        finally:
            self._turns.handling = None
        yield

    def _ends(self, error: FluxschedError) -> None:
        if self.failed is not None:
            self.failed(error)

    def _text(self, error: sqlite3.Error) -> str:
        return f"the state in {self._database.path} cannot be written: {error}"

