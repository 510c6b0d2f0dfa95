"""Processes that left their job's process group (setsid, daemons, what a nested instance ran): found and killed too.

Law: this process is the reaper of its orphaned descendants, so that whatever outlives its parents becomes a child of
ours; the job path in its environment says which job it belongs to. One that has cleared its environment belongs to one
of the jobs that ran when it started: to the one into whose output it writes, else, where that is none, to the last of
them that ends. (Only in a keeper, whose children are all of jobs.) So with several jobs at once such a process may
outlive its own, but never all of them. Children that other parts of this process wait for are left to them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Container
from typing import NamedTuple

from fluxsched.runtime.system import processes as procs
from fluxsched.runtime.system.clock import Clock

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2); since Linux 3.4."""
UNCLAIMED_S = 10.0
"""A dead child that has not been reaped for so long (seconds) is an orphan: a parent that waits reaps at once."""


class Other:
    """A child of this process that no executor spawned."""

    __slots__ = ("dead", "due_s", "owners", "path")

    def __init__(self, path: str | None, due_s: float, owners: set[str]) -> None:
        self.path = path
        self.due_s = due_s
        self.dead = False
        self.owners = owners
        """Paths of the jobs that it may belong to, if it does not say."""

    def is_of(self, path: str) -> bool:
        """Whether it belongs to the job of this path, beyond doubt."""
        return procs.is_within(self.path, path) or self.owners == {path}


class RunningJob(NamedTuple):
    """What tells the processes of a job without an environment from others."""

    start_ticks: int
    spool: str


class Strays:
    """The children of this process that it did not spawn."""

    def __init__(self, clock: Clock, *, alone: bool = False) -> None:
        """`alone`: all children of this process are tasks, or descend from them."""
        self._clock = clock
        self._alone = alone
        self._others: dict[int, Other] = {}
        self._jobs: dict[str, RunningJob] = {}

    def begin(self, path: str, start_ticks: int, spool: str) -> None:
        """The job of this path has its first task; its tasks write into files below `spool`."""
        self._jobs[path] = RunningJob(start_ticks, spool)

    def end(self, path: str) -> None:
        """No process of the job is left that is known to be its own."""
        self._jobs.pop(path, None)
        for other in self._others.values():
            other.owners.discard(path)

    def kill(self, path: str, spawned: Container[int]) -> bool:
        """Kill what belongs to the job of this path, except children that were `spawned`; False if none is alive.

        What the killed leave behind in turn is found by calling again, until the answer is False.
        """
        others = [pid for pid in procs.children_of(os.getpid()) if pid not in spawned]
        now_s = self._clock.monotonic_s()
        self._others = {pid: self._others.get(pid) or self._new(pid, now_s) for pid in others}
        alive = False
        for pid, other in self._others.items():
            if other.is_of(path):
                alive |= _kill(pid)
            elif now_s >= other.due_s:
                _reap_unclaimed(pid, other, now_s)
        return alive

    def _new(self, pid: int, now_s: float) -> Other:
        path = procs.path_of(pid)
        owners = self._owners(pid) if self._alone and path is None else set()
        return Other(path, now_s + UNCLAIMED_S, owners)

    def _owners(self, pid: int) -> set[str]:
        stat = procs.stat_of(pid)
        if stat is None:
            return set()
        found = {path for path, job in self._jobs.items() if job.start_ticks <= stat.start_ticks}
        written = [path for path in found if _writes_below(pid, self._jobs[path].spool)] if len(found) > 1 else []
        return set(written) if len(written) == 1 else found

    def members(self, path: str, spawned: Container[int]) -> list[int]:
        """The children of this process that belong to the job of this path, except those that were `spawned`."""
        others = (pid for pid in procs.children_of(os.getpid()) if pid not in spawned)
        return [pid for pid in others if procs.is_within(procs.path_of(pid), path)]

    def kill_all(self) -> None:
        """Kill every child of a process that is alone."""
        if self._alone:
            for pid in procs.children_of(os.getpid()):
                _kill(pid)


def _writes_below(pid: int, directory: str) -> bool:
    """Whether the standard output or standard error of a process is a file below this directory."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(f"{directory}/"):
                return True
    return False


def adopt_orphans() -> None:
    """Become the reaper of orphaned descendants; where the kernel refuses, strays stay unfound."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited: wait statuses would be lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def reap_group(pgid: int) -> None:
    """Reap the dead members of a process group that have become children of ours."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-pgid, os.WNOHANG)[0]:
            pass


def _kill(pid: int) -> bool:
    """Kill a child, or reap it if it is dead; whether it was alive."""
    stat = procs.stat_of(pid)
    if stat is not None and stat.alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        return True
    _reap(pid)
    return False


def _reap_unclaimed(pid: int, other: Other, now_s: float) -> None:
    stat = procs.stat_of(pid)
    dead = stat is not None and not stat.alive
    if dead and other.dead:
        _reap(pid)
    other.dead, other.due_s = dead, now_s + UNCLAIMED_S


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
