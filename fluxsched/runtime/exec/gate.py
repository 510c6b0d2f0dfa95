"""Tasks that exist but do not run yet: a small shell each, waiting at one pipe until the gate opens.

Law: nothing of the user's runs before `open`. The instance holds the only writing end, so that its death, by
whatever means, is end-of-file for the waiting shells, and they leave unrun. All tasks are one process group, whose
number is the first task's process id. What the shell cannot pass on, variables whose names are no shell names, is
handed over by env(1).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence

from fluxsched.runtime.exec.environment import system_bytes
from fluxsched.runtime.exec.output import Streams

SHELL = b"/bin/sh"
RUN = (
    b'case $1 in */*) ;; *) command -v -- "$1" >/dev/null || '
    b'{ echo "fluxsched: $1: command not found" >&2; exit 127; } ;; esac; exec "$@" </dev/null'
)
"""A command without a slash is looked for first, so that its absence is said in words of ours."""
WAIT = b"read -r go || exit 125; " + RUN
"""Standard input is the gate; a command that is not found or cannot be run ends as shells do: 127 or 126."""
WAIT_THERE = b'read -r go || exit 125; cd -- "$1" || exit 126; shift; ' + RUN
NAME = b"fluxsched"
"""What the shell's own messages begin with."""
ENV = b"/usr/bin/env"
SHELL_NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
SHELL_OWN = frozenset((b"IFS", b"LINENO", b"OPTIND", b"PPID"))
"""Variables that a shell sets for itself instead of passing them on."""
DEFAULTED = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
"""Signals that this process or its parent may ignore (Python does SIGPIPE); for a task all act as usual."""


class Gate:
    """The waiting tasks of one job. Owns the streams it is given; `close` is idempotent."""

    def __init__(self, command: Sequence[bytes], cwd: str | None, streams: Streams) -> None:
        self.pids: list[int] = []
        self._streams = streams
        self._read = self._write = -1
        self._command = command
        self._begin = [SHELL, b"-c", WAIT, NAME]
        if cwd is not None:
            self._begin = [SHELL, b"-c", WAIT_THERE, NAME, system_bytes(cwd)]
        self._read, self._write = os.pipe()

    @property
    def pgid(self) -> int:
        """The job's process group; 0 before there is a task."""
        return self.pids[0] if self.pids else 0

    def spawn(self, environment: Mapping[bytes, bytes], odd: Sequence[bytes]) -> int:
        """One more waiting task; its process id. `odd` is what `odd_names` says of its environment."""
        stdout, stderr = self._streams.of(len(self.pids))
        handed = [ENV, b"--", *[name + b"=" + environment[name] for name in odd]] if odd else []
        pid = os.posix_spawn(
            SHELL,
            [*self._begin, *handed, *self._command],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, self._read, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ],
            setpgroup=self.pgid,
            setsigmask=(),
            setsigdef=DEFAULTED,
        )
        self.pids.append(pid)
        return pid

    def say(self, text: str) -> None:
        """A line of ours in the job's stderr."""
        self._streams.say(text)

    def complete(self) -> None:
        """All tasks have been spawned: keep only the writing end of the gate."""
        self._streams.close()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1

    def open(self) -> None:
        """Let every task run; those that were killed while they waited are of no matter."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, b"\n" * len(self.pids))
        self.close()

    def close(self) -> None:
        """Give up all descriptors: tasks that still wait leave unrun."""
        self.complete()
        if self._write >= 0:
            os.close(self._write)
            self._write = -1


def seal_descriptors() -> None:
    """Keep from tasks what this process inherited itself; what Python opens is never passed on."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # closed meanwhile
                os.set_inheritable(int(name), False)


def odd_names(environment: Mapping[bytes, bytes]) -> list[bytes]:
    """The variables that a shell would not pass on."""
    return [name for name in environment if name in SHELL_OWN or not SHELL_NAME.fullmatch(name)]
