"""Copies SQLite's log (WAL) into its file without delaying the writer.

A copy costs two syncs of the disk and scattered writes: tens of milliseconds that a commit, and every request waiting
for it, would take longer. So a separate thread copies while the writer continues. What was written in between is
little, and the writer copies it itself: the log is then empty, and SQLite starts it from the beginning.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading

ROWS = 20_000
"""Rows in the log from which on it is copied: some 5,000 jobs, 8 MiB."""
ROWS_MAX = 200_000
"""With so many the writer waits for the copy: a disk that cannot follow must not be filled."""
COPY = "PRAGMA wal_checkpoint(PASSIVE)"
COPY_ALL = "PRAGMA wal_checkpoint(TRUNCATE)"
"""At a start: a log that no life copies would grow over every kill, and have all of the state."""


class Checkpoints:
    """`written` is called after each transaction, in the writer's thread, with the writer's own connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._rows = 0
        self._wanted = threading.Semaphore(0)
        self._copied: threading.Event | None = None
        self._closing = False
        self._copier: threading.Thread | None = None

    def written(self, connection: sqlite3.Connection, rows: int) -> None:
        """So many rows were committed by `connection`. Raises sqlite3.Error if what is left cannot be copied."""
        self._rows += rows
        if self._copied is None:
            if self._rows >= ROWS:
                self._copied = threading.Event()
                self._want()
        elif self._copied.is_set() or self._rows >= ROWS_MAX:
            self._copied.wait()
            connection.execute(COPY)
            self._copied, self._rows = None, 0

    def close(self) -> None:
        """End the thread; SQLite copies what is left when the last connection is closed."""
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
