"""How the process of a scheduler module is started; the instance knows it as a `ModuleProcess` only."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fluxsched.runtime.scheduler_process.exit_reason import why_ended
from fluxsched.runtime.system.exit_watch import ExitWatch
from fluxsched.runtime.system.private_files import private_file


@dataclass(frozen=True, slots=True)
class ModuleStart:
    """What a scheduler's process is told."""

    uri: str
    name: str
    specs: str
    groups: tuple[str, ...]
    queues: Sequence[tuple[str, str]]
    """The queues that it serves, each with its group, once for each of several."""
    unsatisfiable: str
    preempt_timeout_s: float


class ModuleProcess(Protocol):
    """A process that was started and not reaped yet."""

    pid: int

    def terminate(self) -> None:
        """Ask it to leave."""

    def kill(self) -> None:
        """End it now."""

    def why_ended(self, when: str) -> str:
        """Reap it, which has ended; why it did. `when` is appended to what it did not say itself."""
        ...

    def forget(self) -> None:
        """Do not tell of its end."""

    def finish(self, timeout_s: float) -> None:
        """Wait until it has ended, and kill it if that takes longer."""


StartModule = Callable[[ModuleStart, Callable[[], None]], ModuleProcess]
"""Starts a process, and calls back once when it has ended. Raises OSError."""


class ModuleProcesses:
    """Starts real processes; their output goes to `directory`. An instance is a `StartModule` by `start`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(self, wanted: ModuleStart, ended: Callable[[], None]) -> ModuleProcess:
        """See `StartModule`."""
        command = [sys.executable, "-P", "-m", "fluxsched.runtime.scheduler_process.main", "--uri", wanted.uri]
        command += ["--name", wanted.name, "--instance", str(os.getpid())]
        command += ["--unsatisfiable", wanted.unsatisfiable, "--preempt-timeout", str(wanted.preempt_timeout_s)]
        command += [part for group in wanted.groups for part in ("--group", group)]
        command += [part for name, group in wanted.queues for part in ("--queue", f"{name}={group}")]
        return ChildProcess([*command, wanted.specs], self._directory / f"{wanted.name}.log", ended)


class ChildProcess:
    """A `ModuleProcess` that is a child of this one."""

    def __init__(self, command: list[str], log: Path, ended: Callable[[], None]) -> None:
        private_file(log)
        with log.open("ab") as output:
            self._log, self._log_begin = log, output.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self._process.pid
        try:
            self._watch = ExitWatch(asyncio.get_running_loop(), self.pid, ended)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

    def terminate(self) -> None:
        """See `ModuleProcess.terminate`."""
        self._process.terminate()

    def kill(self) -> None:
        """See `ModuleProcess.kill`."""
        self._process.kill()

    def why_ended(self, when: str) -> str:
        """See `ModuleProcess.why_ended`."""
        return why_ended(self._process.wait(), self._log, self._log_begin, when)

    def forget(self) -> None:
        """See `ModuleProcess.forget`."""
        self._watch.close()

    def finish(self, timeout_s: float) -> None:
        """See `ModuleProcess.finish`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
