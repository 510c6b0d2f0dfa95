"""The instance's side of its keeper: a small process that ends the tasks when the instance is killed.

Law: no task outlives an instance that has no state directory by which the next could find it again. The keeper is there
before the first task runs, and one that ends is replaced. What it has to end it reads from the store, where the
processes of a job are before any of them runs; so a job costs the keeper nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from fluxsched.runtime.exec.cleanup import keeper_main
from fluxsched.runtime.exec.cleanup.leftovers import PROGRAM
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system import processes as procs
from fluxsched.runtime.system.exit_watch import ExitWatch
from fluxsched.runtime.system.log import logger

log = logger("keeper")

RESTART_S = 1.0
"""Time before a keeper that has ended is replaced (seconds): one that cannot run must not use up a processor."""
RecordProcesses = Callable[[int, object | None, Callable[[], None]], None]


class Keeper:
    """Starts the keeper of one run directory when the first process is put on record, and keeps it alive."""

    def __init__(self, turns: Turns, run_directory: Path, owner: int, grace_s: float) -> None:
        """`owner` is the descriptor that holds the lock on the run directory."""
        self._turns = turns
        self._owner = owner
        self._words = [sys.executable, "-I", "-S", keeper_main.__file__, str(run_directory), str(grace_s)]
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: ExitWatch | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The keeper's process id; None while there is none."""
        return None if self._process is None else self._process.pid

    def before(self, record: RecordProcesses) -> RecordProcesses:
        """`record`, with a keeper there before anything is put on it."""

        def kept(jobid: int, what: object | None, then: Callable[[], None]) -> None:
            self._start()
            record(jobid, what, then)

        return kept

    def keep(self, store: Store, pid: int) -> None:
        """Put the instance's initial program on record, too."""
        record = procs.identity(pid, procs.boot_id(), "")
        if record is not None:
            self._start()
            store.add("process", (PROGRAM, msgspec.json.encode(record)))
            self._turns.wake()

    def _start(self) -> None:
        if self._closed or self._process is not None:
            return
        try:
            self._process = process = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                cwd="/", pass_fds=[self._owner], start_new_session=True,
            )  # fmt: skip
            self._watch = ExitWatch(
                asyncio.get_running_loop(), process.pid, lambda: self._turns.post(self._ended)
            )
        except OSError as fault:
            log.error("no keeper can be started: if this instance is killed its tasks run on: %s", fault.strerror)
            self._turns.after(RESTART_S, self._start)

    def _ended(self) -> None:
        if self._process is not None and not self._closed:
            log.warning("the keeper (process %d) has ended, which it should not: another is started", self.pid)
            self._reap(self._process)
            self._process = None
            self._turns.after(RESTART_S, self._start)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def close(self) -> None:
        """Tasks have ended: stop the keeper silently."""
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)
            self._process = None

