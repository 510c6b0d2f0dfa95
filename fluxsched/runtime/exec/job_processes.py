"""One job's processes, from the first one until the last is dead: what the executor keeps of a job.

Law: the tasks are reaped once, the first one last, since its process id is the number of their group until then.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Callable, Iterator

from fluxsched.runtime.exec.tasks.gate import TaskGate
from fluxsched.runtime.exec.tasks.input import JobInput
from fluxsched.runtime.exec.tasks.pmi import JobPmi
from fluxsched.runtime.exec.tasks.temporary_directory import remove
from fluxsched.runtime.exec.usage.meter import Meter
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.system.exit_watch import ExitWatch

LOOK_S = 0.005
"""How soon the death of killed processes is looked for (seconds), at first."""


class JobProcesses:
    """A job's processes and all that is open for them. Owns its gate, input, PMI and meter."""

    __slots__ = (
        "ended",
        "gate",
        "grace",
        "grace_ends_s",
        "input",
        "jobid",
        "limit_bytes",
        "look_s",
        "meter",
        "open",
        "path",
        "pmi",
        "reaped",
        "spool",
        "status",
        "tmpdir",
        "todo",
        "watch",
        "watched",
    )

    def __init__(
        self,
        jobid: int,
        path: str,
        gate: TaskGate,
        todo: Iterator[None],
        meter: Meter,
        pmi: JobPmi | None,
        tmpdir: str | None,
        limit_bytes: int | None,
        spool: str,
    ) -> None:
        self.spool = spool
        self.limit_bytes = limit_bytes
        self.tmpdir = tmpdir
        self.jobid = jobid
        self.path = path
        self.gate = gate
        self.meter = meter
        self.pmi = pmi
        self.todo: Iterator[None] | None = todo
        self.watched = 0
        self.watch: ExitWatch | None = None
        self.grace: Timer | None = None
        self.grace_ends_s = math.inf
        self.input: JobInput | None = None
        self.open = False
        self.ended = False
        self.reaped = False
        self.status = 0
        self.look_s = LOOK_S

    def opened(self) -> None:
        """The tasks run from now on."""
        self.open = True
        self.meter.opened(self.gate.pids)
        if self.pmi is not None:
            self.pmi.opened(self.gate.pids)

    def signal(self, signum: int) -> None:
        """Send a signal to the whole group; only while its first task is not reaped."""
        if self.gate.pids and not self.reaped:
            # a process that is gone or not ours to signal is no error: the check for survivors decides
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.gate.pgid, signum)

    def kill_after(self, turns: Turns, delay_s: float, kill: Callable[[], None]) -> None:
        """Have the job killed when this time has passed, unless it is to be killed sooner."""
        ends_s = turns.clock.monotonic_s() + delay_s
        if ends_s < self.grace_ends_s:
            if self.grace is not None:
                self.grace.cancel()
            self.grace, self.grace_ends_s = turns.after(delay_s, kill), ends_s

    def settle(self) -> None:
        """Stop watching, timing and sending."""
        if self.input is not None:
            self.input.close()
        if self.watch is not None:
            self.watch.close()
        if self.grace is not None:
            self.grace.cancel()
        if self.pmi is not None:
            self.pmi.close()
        self.meter.close()
        self.watch = self.grace = None

    def reap(self, options: int = 0) -> None:
        """Take the tasks' wait statuses and what they used, the first task's last; `status` becomes the highest."""
        if not self.reaped:
            self.reaped = True
            pids = self.gate.pids
            for task in reversed(range(len(pids))):
                _, status, used = os.wait4(pids[task], options)
                self.status = max(self.status, status)
                self.meter.reaped(task, status, used)

    def tidy(self, *, at_once: bool = False) -> None:
        """Remove the job's temporary directory once no process of the job is left. Large contents are removed in the
        background, or `at_once` where this process is about to end.
        """
        if self.tmpdir is not None:
            if at_once:
                shutil.rmtree(self.tmpdir, ignore_errors=True)
            else:
                remove(self.tmpdir)
