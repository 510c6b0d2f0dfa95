"""The `test` executor: nothing runs, only time passes (jobspec `attributes.system.exec.test.run_duration`)."""

from __future__ import annotations

import signal
from functools import partial

from fluxsched.errors import InvalidValue
from fluxsched.runtime.exec.base import JobLaunch, Reports
from fluxsched.runtime.loop.turns import Timer, Turns

HARMLESS = frozenset({signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH})
"""Signals that do not end a job that only lets time pass."""


class TimedExecutor:
    """Reports a job started at once and finished after its run duration, with status 0."""

    def __init__(self, turns: Turns, reports: Reports) -> None:
        self._turns = turns
        self._reports = reports
        self._timers: dict[int, Timer] = {}

    def start(self, job: JobLaunch) -> None:
        """Let the time begin to pass."""
        duration_s = job.jobspec.test_run_duration_s
        if duration_s is None:
            raise InvalidValue("the jobspec has no attributes.system.exec.test.run_duration")
        jobid = job.jobid
        self._timers[jobid] = self._turns.after(duration_s, partial(self._end, jobid, 0))
        self._reports.started(jobid)

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """A terminating signal ends the job at once, as it would end a process."""
        if signum not in HARMLESS and jobid in self._timers:
            self._timers[jobid].cancel()
            self._turns.post(lambda: self._end(jobid, signum))

    def close(self) -> None:
        """Forget all jobs."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _end(self, jobid: int, status: int) -> None:
        if self._timers.pop(jobid, None) is not None:
            self._reports.finished(jobid, status, None)
