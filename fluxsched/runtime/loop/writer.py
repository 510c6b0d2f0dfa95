"""Threads for calls that wait, so that no turn does: for the disk, such as the store's transactions, or the network."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from fluxsched.runtime.loop.turns import Turns


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
        """See `Writer.run`."""
        self._queue.put((transaction, done))

    def close(self) -> None:
        """See `Writer.close`."""
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
        """See `Writer.run`."""

        def serve() -> None:
            transaction()
            self._turns.post_threadsafe(done)

        threading.Thread(target=serve, name=self._name, daemon=True).start()

    def close(self) -> None:
        """Does not wait for calls under way, unlike `Writer.close`."""


class ImmediateWriter:
    """A `Writer` that runs everything at once, in the caller's turn: where nothing waits for a disk."""

    def run(self, transaction: Callable[[], None], done: Callable[[], None]) -> None:
        """See `Writer.run`."""
        transaction()
        done()

    def close(self) -> None:
        """See `Writer.close`."""
