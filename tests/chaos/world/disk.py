"""The disk: real SQLite files in memory, written at virtual times, with faults.

Law: what was synced survives. A crash leaves the files as they were at the last sync; of a transaction that was being
written there is nothing, all, or some beginning with garbage behind it. Then the real recovery runs on them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from fluxsched.errors import FluxschedError
from fluxsched.store.repair import fault_at_start
from fluxsched.store.store import COPY, RowGroup, Store
from fluxsched.system.files import COMMIT_SUFFIX, DATABASE_NAME
from fluxsched.system.loop import OnFailure, Turns
from tests.chaos.world.damage import unnoticed_damage
from tests.chaos.world.processes import Process

WRITE_S = 0.0005, 0.004
"""How long a transaction takes (seconds)."""
LOG_NAME = f"{DATABASE_NAME}-wal"
RECORD_NAME = f"{DATABASE_NAME}{COMMIT_SUFFIX}"
GARBAGE_BYTES_MAX = 4096
DAMAGED = 0.3
"""How often what a crash leaves is damaged (a copy of it)."""
THE_END = "the world ends"
COPIES = 0.02
"""How often a transaction is followed by a copy of the log into the database."""


class SimWriter:
    """A `Writer` that runs each transaction at a virtual time."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def run(self, transaction: Callable[[], None], done: Callable[[], None]) -> None:
        """See `Writer.run`."""
        disk, process = self._disk, self._process
        process.effect()

        def write() -> None:
            if process.dies_next and disk.is_torn:
                disk.tear_at_crash()
                transaction()
            process.effect()  # before anything is written, unless it is torn
            transaction()
            disk.copy_log()
            process.effect()  # stored and not announced
            process.loop.call_later(disk.chance.uniform(*disk.write_s) / 2, done)

        process.loop.call_later(disk.chance.uniform(*disk.write_s) / 2, write)

    def close(self) -> None:
        """See `Writer.close`: nothing is under way, for a simulated process is killed or ends by itself."""


class Disk:
    """The state directory of the instance, whichever of its processes has it open."""

    def __init__(self, directory: Path, chance: Random) -> None:
        self.chance = chance
        self.write_s = WRITE_S
        self.is_full = False
        self.is_failing = False
        self.is_torn = False
        """Whether a crash in the midst of a write leaves some of it."""
        self.unnoticed = ""
        """What was lost by damage of a copy that no start would notice; a law is broken then."""
        self._directory = directory
        self._damage = Random()
        self._damage.setstate(chance.getstate())  # a stream of its own, so that no plan depends on damage
        self._number = 0
        self._store: Store | None = None
        self._synced: tuple[bytes, bytes] | None = None
        """The log as it was before a write that a crash tears, and the record of commits, which is written after it."""
        self.state.mkdir(mode=0o700)

    @property
    def state(self) -> Path:
        """The state directory as it is now."""
        return self._directory / str(self._number)

    def open(self, turns: Turns, process: Process, failed: OnFailure) -> Store:
        """The store of a process that has started. Raises FluxschedError if it is not sound."""
        fault = fault_at_start(self.state / DATABASE_NAME, has_jobs=False)
        if fault is not None:
            raise FluxschedError(f"a crash is taken for damage: {fault.text}")
        store = Store(self.state / DATABASE_NAME, turns, SimWriter(self, process), failed)
        self._store = store
        self._spoil(store)
        add, remove = store.add, store.remove

        def counted_add(table: str, values: tuple[object, ...]) -> None:
            process.effect()
            add(table, values)

        def counted_remove(table: str, key: tuple[object, ...]) -> None:
            process.effect()
            remove(table, key)

        store.add, store.remove = counted_add, counted_remove  # type: ignore[method-assign]
        process.on_end.append(self._crash)
        return store

    def shortage(self) -> str | None:
        """See `Surroundings.disk_shortage`."""
        return "only 0.0 MiB are free on the simulated disk: make room there" if self.is_full else None

    def _spoil(self, store: Store) -> None:
        """Have writes fail while faults say so."""
        database = store._database
        write = database.write

        def faulty(groups: list[RowGroup]) -> sqlite3.Error | None:
            if groups and (self.is_full or self.is_failing):
                fault = sqlite3.OperationalError("database or disk is full" if self.is_full else "disk I/O error")
                fault.sqlite_errorcode = sqlite3.SQLITE_FULL if self.is_full else sqlite3.SQLITE_IOERR
                return fault
            return write(groups)

        database.write = faulty  # type: ignore[method-assign]

    def recorded_hosts(self, jobid: int) -> frozenset[str]:
        """The hosts whose processes of a job are on record, also in what a dead instance has left."""
        if self._store is not None:
            return _hosts_of(self._store._database.reader, jobid)
        with tempfile.TemporaryDirectory(dir=self._directory) as copy:
            for name in (DATABASE_NAME, LOG_NAME):
                if (self.state / name).exists():
                    shutil.copyfile(self.state / name, Path(copy) / name)
            with contextlib.closing(sqlite3.connect(Path(copy) / DATABASE_NAME)) as connection:
                return _hosts_of(connection, jobid)

    def tear_at_crash(self) -> None:
        """The crash that comes now leaves some of what is written until then."""
        self._synced = _content(self.state / LOG_NAME), _content(self.state / RECORD_NAME)

    def copy_log(self) -> None:
        """Have the log copied into the database, now and then, after which it is written from its beginning."""
        if self._store is not None and self.chance.random() < COPIES:
            self._store._database.reader.execute(COPY)

    def _crash(self, reason: str) -> None:
        """Keep what a dead process has left, in a directory of its own: closing its files changes them."""
        before, store, is_whole = self.state, self._store, self._synced is None
        self._number += 1
        after = self.state
        after.mkdir(mode=0o700)
        for name in (DATABASE_NAME, LOG_NAME, RECORD_NAME):
            if (before / name).exists():
                shutil.copyfile(before / name, after / name)
                (after / name).chmod(0o600)
        if self._synced is not None:
            log, record = self._synced
            (after / LOG_NAME).write_bytes(self._torn(log, _content(after / LOG_NAME)))
            (after / RECORD_NAME).write_bytes(record)
            self._synced = None
        if store is not None:
            store._database.close()
            self._store = None
        shutil.rmtree(before)
        if is_whole and reason != THE_END and self._damage.random() < DAMAGED:
            self.unnoticed = self.unnoticed or unnoticed_damage(after, self._damage)

    def _torn(self, synced: bytes, written: bytes) -> bytes:
        """What a crash may leave of a file: its old content, with some of the new one and garbage behind that."""
        chance = self.chance
        pairs = enumerate(zip(synced, written, strict=False))
        same = next((at for at, (old, new) in pairs if old != new), min(len(synced), len(written)))
        kept = chance.randint(same, len(written))
        garbage = chance.randbytes(min(chance.randint(0, GARBAGE_BYTES_MAX), len(written) - kept))
        return written[:kept] + garbage + synced[kept + len(garbage) :]


def _hosts_of(connection: sqlite3.Connection, jobid: int) -> frozenset[str]:
    row = connection.execute("SELECT value FROM process WHERE jobid = ?", (jobid,)).fetchone()
    return frozenset(json.loads(row[0]).get("hosts", ())) if row else frozenset()


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
