"""Guard of a keeper on a host of an engine: its parent process, which does nothing but end what a killed keeper left.

Law: there are no tasks without a keeper. The guard is the reaper of all that descends from its keeper: when the keeper
is killed it kills them, waits until none is left, and only then starts another one. When the guard is killed the kernel
asks the keeper to end, which ends the tasks. A keeper that ends in good order ends the guard. SIGTERM ends all; the end
of standard input, and the other signals by which terminals end programs, do not.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluxsched.core.job_text import signal_name
from fluxsched.executor.cleanup import adopt_orphans, remove_dead, scratch_directory
from fluxsched.system.clock import Clock, SystemClock
from fluxsched.system.log import exception_text, logger
from fluxsched.system.processes import children_of, die_with, living

log = logger("keeper")

IGNORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
"""Signals by which a terminal, or an engine's program on it, would end or stop the keeper."""
AWAITED: Final = frozenset((signal.SIGTERM, signal.SIGCHLD))
SPOOL_NAME, TEMPORARY_NAME = "spool", "tmp"
"""Directories in the scratch directory: of what tasks print, and of the jobs' temporary directories."""


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """Limits of starting keepers again."""

    steady_s: float = 10.0
    """A keeper that has lived so long has not failed to start (seconds)."""
    starts_max: int = 8
    """Keepers in a row that fail to start before the guard gives up, after some two minutes."""
    pause_max_s: float = 60.0
    """Maximum time before the next start (seconds), which doubles with each that fails, from 1 s."""
    look_s: float = 0.005
    """Interval of checking whether killed processes are gone (seconds)."""
    again_s: float = 1.0
    """Time within which further SIGTERMs ask for the same (seconds): an engine's program may pass on what the engine
    itself sends to all processes.
    """
    complain_s: float = 10.0
    """Interval of naming processes that do not end although they were killed (seconds)."""


class KeeperGuard:
    """Starts keepers, one after the other."""

    def __init__(
        self, serve: Callable[[Path], int], host: str, limits: GuardLimits | None = None, clock: Clock | None = None
    ) -> None:
        """`serve` is the keeper of `host`, to be called in a process of its own with the scratch directory; returns the
        exit status, 0 if there is to be no further keeper. It unblocks AWAITED when it is ready to be ended by SIGTERM.
        """
        self._serve = serve
        self._host = host
        self._limits = GuardLimits() if limits is None else limits
        self._clock: Clock = SystemClock() if clock is None else clock
        self._scratch, self._owner = scratch_directory()
        self._keeper = 0
        self._asked_s: float | None = None
        """When the guard was asked to end."""

    def run(self) -> int:
        """Guard one keeper after the other; return the exit status: 1 if they fail to start again and again."""
        for signum in IGNORED:
            signal.signal(signum, signal.SIG_IGN)
        adopt_orphans()
        remove_dead(self._clock)
        signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        try:
            return self._guard()
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
            os.close(self._owner)

    def _guard(self) -> int:
        limits, failures = self._limits, 0
        while True:
            began_s = self._clock.monotonic_s()
            status = self._run_one()
            self._end_descendants()
            if self._asked_s is not None or status == 0:
                return 0
            how = f"by {signal_name(-status)}" if status < 0 else f"with status {status}"
            log.error("host %s: the keeper ended %s; its tasks were killed", self._host, how)
            failures = 1 if self._clock.monotonic_s() - began_s >= limits.steady_s else failures + 1
            if failures >= limits.starts_max:
                log.critical("host %s: %d keepers in a row have failed: there will be no other", self._host, failures)
                return 1
            if failures > 1 and self._pause(min(2.0 ** (failures - 2), limits.pause_max_s)):
                return 0

    def _run_one(self) -> int:
        """Run a keeper; return its exit status, negative for a signal."""
        guard = os.getpid()
        try:
            self._keeper = os.fork()
        except OSError as fault:
            log.error("host %s: no keeper can be started: %s", self._host, fault.strerror)
            return 1
        if self._keeper:
            return self._wait()
        status = 1
        try:
            os.setpgid(0, 0)  # an engine that kills the group of what it started leaves someone who ends the tasks
            die_with(guard, signal.SIGTERM)
            for name in (SPOOL_NAME, TEMPORARY_NAME):
                shutil.rmtree(self._scratch / name, ignore_errors=True)
                (self._scratch / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._serve(self._scratch)
        except Exception as exc:  # last resort of a process without a caller: the log has the reason
            log.critical("host %s: the keeper ends: %s", self._host, exception_text(exc), exc_info=exc)
        finally:
            os._exit(status)

    def _wait(self) -> int:
        """Wait for the end of the keeper; return its exit status, negative for a signal."""
        while True:
            status = self._reap()
            if status is not None:
                return status
            if signal.sigwaitinfo(AWAITED).si_signo == signal.SIGTERM:
                now_s = self._clock.monotonic_s()
                if self._asked_s is None:
                    self._asked_s = now_s
                    os.kill(self._keeper, signal.SIGTERM)
                elif now_s >= self._asked_s + self._limits.again_s:
                    os.kill(self._keeper, signal.SIGKILL)

    def _reap(self) -> int | None:
        """Reap what has ended; return the exit status of the keeper if that has."""
        found: int | None = None
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._keeper:
                    found = os.waitstatus_to_exitcode(ended[1])
        return found

    def _pause(self, pause_s: float) -> bool:
        """Wait before the next start; return whether the guard was asked to end."""
        ends_s = self._clock.monotonic_s() + pause_s
        while (left_s := ends_s - self._clock.monotonic_s()) > 0.0:
            found = signal.sigtimedwait(AWAITED, left_s)
            if found is not None and found.si_signo == signal.SIGTERM:
                return True
        return False

    def _end_descendants(self) -> None:
        """Kill what the keeper has left until none of it is there.

        Children alone are killed, whose orphans become children in turn: to look for these takes so little time that no
        process escapes by forking.
        """
        complain_s = self._clock.monotonic_s() + self._limits.complain_s
        while _has_children():
            pids = _children()
            for pid in pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if self._clock.monotonic_s() >= complain_s:
                complain_s += self._limits.complain_s
                log.error("host %s: processes %s do not end although they were killed", self._host, pids)
            found = signal.sigtimedwait(AWAITED, self._limits.look_s)
            if found is not None and found.si_signo == signal.SIGTERM:
                self._asked_s = self._clock.monotonic_s()


def _has_children() -> bool:
    """Return whether this process has children, dead ones that are not reaped included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    """Return the living children of this process, also where the kernel does not list them."""
    own = os.getpid()
    return children_of(own) or [pid for pid, stat in living() if stat.ppid == own]
