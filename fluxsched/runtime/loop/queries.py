"""Queries of the store that may take long: run in no turn, one after another, on connections of their own.

Law: a query sees what one moment had on disk and holds up no request; the one who asked is called back in a turn, with
the answer or with what went wrong. No more than `QUERIES_WAITING_MAX` wait.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from fluxsched.errors import LimitExceeded, Refused
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.writer import Writer
from fluxsched.runtime.storage.jobs import Query

T = TypeVar("T")
QUERIES_WAITING_MAX = 16
"""Queries that wait for their turn, a second each at worst."""



class Queries:
    """Runs them where `background` runs its calls."""

    def __init__(self, store: Store, background: Writer) -> None:
        self._store = store
        self._background = background
        self.waiting = 0

    def run(
        self, query: Callable[[Query], T], done: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Have `query` run, then `done` with what it returns, or `failed`. Raises LimitExceeded if too many wait."""
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
