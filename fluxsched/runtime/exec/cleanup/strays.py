"""Processes that left their job's process group (setsid, daemons, what a nested instance ran): found and killed too.

Law: this process is the reaper of its orphaned descendants, so that whatever outlives its parents becomes a child of
ours; the job path in its environment says which job it belongs to. Only processes that clear that from their
environment escape. Children that other parts of this process wait for are left to them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Container

from fluxsched.runtime.system import processes as procs
from fluxsched.runtime.system.clock import Clock

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2); since Linux 3.4."""
UNCLAIMED_S = 10.0
"""A dead child that has not been reaped for so long (seconds) is an orphan: a parent that waits reaps at once."""


class Other:
    """A child of this process that no executor spawned."""

    __slots__ = ("dead", "due_s", "path")

    def __init__(self, path: str | None, due_s: float) -> None:
        self.path = path
        self.due_s = due_s
        self.dead = False


class Strays:
    """The children of this process that it did not spawn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._others: dict[int, Other] = {}

    def kill(self, path: str, spawned: Container[int]) -> bool:
        """Kill what belongs to the job of this path, except children that were `spawned`; False if none is alive.

        What the killed leave behind in turn is found by calling again, until the answer is False.
        """
        others = [pid for pid in procs.children_of(os.getpid()) if pid not in spawned]
        now_s = self._clock.monotonic_s()
        self._others = {
            pid: self._others.get(pid) or Other(procs.path_of(pid), now_s + UNCLAIMED_S) for pid in others
        }
        alive = False
        for pid, other in self._others.items():
            if procs.is_within(other.path, path):
                alive |= _kill(pid)
            elif now_s >= other.due_s:
                _reap_unclaimed(pid, other, now_s)
        return alive


    def members(self, path: str, spawned: Container[int]) -> list[int]:
        """The children of this process that belong to the job of this path, except those that were `spawned`."""
        others = (pid for pid in procs.children_of(os.getpid()) if pid not in spawned)
        return [pid for pid in others if procs.is_within(procs.path_of(pid), path)]


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
