"""A scheduler module's process: how it is started, what is known of it, and why it ended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fluxsched.errors import Refused
from fluxsched.jobs.queue.queues import QueueConfig
from fluxsched.runtime.config.values import Recovery
from fluxsched.runtime.loop.turns import Timer
from fluxsched.runtime.messaging.peers import Peer
from fluxsched.runtime.scheduler_process.exit_reason import why_ended
from fluxsched.runtime.system.exit_watch import ExitWatch
from fluxsched.runtime.system.private_files import private_file

STATUS_INIT, STATUS_RUNNING, STATUS_FINALIZING, STATUS_EXITED = 0, 1, 2, 3
"""Module status numbers as Flux's `module.list` has them."""


class Module:
    """One scheduler module: its process, its connection, and how it fared.

    `spec` is what was asked for; `specs` is what runs: complete with the policies of queues, or the fallback.
    """

    def __init__(
        self, name: str, spec: str, specs: str, groups: tuple[str, ...], recovery: Recovery, since_s: float
    ) -> None:
        self.name = name
        self.spec = spec
        self.specs = specs
        self.groups = groups
        self.recovery = recovery
        self.since_s = since_s
        self.process: subprocess.Popen[bytes] | None = None
        self.watch: ExitWatch | None = None
        self.peer: Peer | None = None
        self.status = STATUS_INIT
        self.error: str | None = None
        """How it ended; of one that was started again, how it ended last."""
        self.has_served = False
        """Whether it was ready once."""
        self.verdict: str | None = None
        """Why we killed it."""
        self.on_ready: list[Callable[[str | None], None]] = []
        self.on_exit: list[Callable[[], None]] = []
        self.killer: Timer | None = None
        self.silent_s = 0.0
        """For how long it has owed an answer to "are you there?"."""
        self.is_asked = False
        self.failures: list[float] = []
        """When it failed (monotonic seconds), as far back as that counts."""
        self.again: Timer | None = None
        """Set while it is down and will be started again."""
        self._log: Path | None = None
        self._log_begin = 0

    @property
    def is_live(self) -> bool:
        """Whether it runs, or will again by itself: its name and its groups are taken."""
        return self.status != STATUS_EXITED or self.again is not None

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not been asked to leave."""
        return self.status in (STATUS_INIT, STATUS_RUNNING)

    def spawn(
        self,
        uri: str,
        queues: Mapping[str, QueueConfig],
        directory: Path,
        ended: Callable[[], None],
        options: Sequence[str] = (),
    ) -> None:
        """Start the process; `ended` is called when it is over. Raises Refused when it cannot be started."""
        command = [sys.executable, "-P", "-m", "fluxsched.runtime.scheduler_process.main", "--uri", uri]
        command += ["--name", self.name, "--instance", str(os.getpid()), *options]
        command += [part for group in self.groups for part in ("--group", group)]
        serves = [f"{name}={queue.group}" for name, queue in queues.items() if queue.group in self.groups]
        command += [part for pair in serves for part in ("--queue", pair)]
        self.status, self.peer, self.verdict = STATUS_INIT, None, None
        self.silent_s, self.is_asked = 0.0, False
        try:
            self._start([*command, self.specs], directory / f"{self.name}.log", ended)
        except OSError as exc:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
            self.status = STATUS_EXITED
            raise Refused(f"cannot start module {self.name!r}: {exc}; fix this and load it again") from exc

    def _start(self, command: list[str], log: Path, ended: Callable[[], None]) -> None:
        self.process = None
        private_file(log)
        with log.open("ab") as output:
            self._log, self._log_begin = log, output.tell()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.watch = ExitWatch(asyncio.get_running_loop(), self.process.pid, ended)

    def ended(self) -> str:
        """Reap the process, which is over; why it is."""
        assert self.process is not None
        assert self._log is not None
        status = self.process.wait()
        self.status = STATUS_EXITED
        if self.killer is not None:
            self.killer.cancel()
        cut_off = self.peer.dropped if self.peer is not None else None
        when = "" if self.peer is not None else " while it was importing"
        return self.verdict or cut_off or why_ended(status, self._log, self._log_begin, when)

    def tell_ready(self, error: str | None) -> None:
        """Call those that wait until it serves its groups: None, or why it does not."""
        calls, self.on_ready = self.on_ready, []
        for call in calls:
            call(error)

    def tell_exit(self) -> None:
        """Call those that wait for its end."""
        calls, self.on_exit = self.on_exit, []
        for call in calls:
            call()
