"""A process group: the tasks of a job that are signaled together.

Law: the tasks are reaped once, the first one last, since its process id is the number of their group until then. A job
has one group; an elastic job has one for each target, since what a target's tasks leave behind must end with them when
it is given back.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from typing import NamedTuple

from fluxsched.runtime.system.exit_watch import ExitWatch, ended_status


class EndedTask(NamedTuple):
    """What wait4(2) says of a task."""

    task: int
    pid: int
    status: int
    used: resource.struct_rusage
    counts: bool
    """Whether its status is the job's, too: not if it was asked to end because the job was to shrink."""


class ProcessGroup:
    """The processes of some tasks, whose numbers follow each other from `first` on."""

    __slots__ = ("_counted", "first", "going", "path", "pgid", "pids", "rank", "reaped", "watch", "watched")

    def __init__(self, rank: int | None, first: int, path: str) -> None:
        """`rank` is the target that they end with, None if that is the job; `path` is in their environment."""
        self.rank = rank
        self.first = first
        self.path = path
        self.pgid = 0
        """The number of the group; 0 before it has a task."""
        self.pids: list[int] = []
        self.watched = 0
        """Tasks that are known to have ended."""
        self.watch: ExitWatch | None = None
        self.going = False
        self.reaped = False
        self._counted: set[int] = set()

    def add(self, pid: int) -> None:
        """One more task."""
        self.pgid = self.pgid or pid
        self.pids.append(pid)

    def signal(self, signum: int) -> None:
        """Send a signal to the whole group; only while its first task is not reaped."""
        if self.pids and not self.reaped:
            # a process that is gone or not ours to signal is no error: the check for survivors decides
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pgid, signum)

    def look(self) -> int | None:
        """The first task that has not ended, None if all have."""
        while self.watched < len(self.pids):
            if not _has_ended(self.pids[self.watched]):
                return self.pids[self.watched]
            self.watched += 1
        return None

    def go(self) -> None:
        """Its target is to be given back: how tasks end from now on is no matter of the job's."""
        self.going = True
        self._counted = {pid for pid in self.pids if _has_ended(pid)}

    def ended_statuses(self) -> Iterator[int]:
        """Return the wait statuses of tasks that have ended, and are not reaped, for reasons of their own."""
        for pid in self.pids if not self.reaped else ():
            status = ended_status(pid)
            if status is not None and (not self.going or pid in self._counted):
                yield status

    def stop_watching(self) -> None:
        """Watch no more. Idempotent."""
        if self.watch is not None:
            self.watch.close()
            self.watch = None

    def reap(self, options: int = 0) -> Iterator[EndedTask]:
        """Take the tasks' wait statuses and what they used, the first task's last; nothing the second time."""
        if self.reaped:
            return
        self.reaped = True
        for at in reversed(range(len(self.pids))):
            pid = self.pids[at]
            _, status, used = os.wait4(pid, options)
            yield EndedTask(self.first + at, pid, status, used, not self.going or pid in self._counted)


def kill(groups: list[ProcessGroup]) -> None:
    """End all that is left of these groups."""
    for group in groups:
        group.signal(signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    return ended_status(pid) is not None
