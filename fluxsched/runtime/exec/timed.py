"""The `test` executor: nothing runs, only time passes (jobspec `attributes.system.exec.test.run_duration`).

Time also passes while there is no instance: a job that is resumed has left what it had, less what has passed since.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.runtime.exec.base import JobLaunch, Reports, ResumedJob
from fluxsched.runtime.loop.turns import Timer, Turns

HARMLESS = frozenset({signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH})
"""Signals that do not end a job that only lets time pass."""


class TimedExecutor:
    """Reports a job started at once and finished after its run duration, with status 0."""

    def __init__(self, turns: Turns, reports: Reports) -> None:
        self._turns = turns
        self._reports = reports
        self._pass_by = self._has_passed  # one bound method for all jobs
        self._timers: dict[int, Timer] = {}

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """Let the time of the jobs pass on; those that had not begun begin."""
        now_s = self._turns.clock.wall_s()
        for job in jobs:
            launch = job.launch
            if job.begun_s is None:
                self.start(launch)
            else:
                self._pass(launch, now_s - job.begun_s)
                ends_s = job.begun_s + (launch.jobspec.test_run_duration_s or 0.0)
                if ends_s <= now_s and not 0.0 < launch.expiration_s < ends_s:  # it ended before its time was up
                    self._timers[launch.jobid].cancel()
                    self._end(launch.jobid, 0)
            if job.is_ending:
                self.kill(launch.jobid, signal.SIGTERM)
            if job.going:
                self.shrink(launch.jobid, job.going)
        settled()

    def start(self, job: JobLaunch) -> None:
        """Let the time begin to pass."""
        self._pass(job, 0.0)
        self._reports.started(job.jobid)

    def _pass(self, job: JobLaunch, passed_s: float) -> None:
        duration_s = job.jobspec.test_run_duration_s
        if duration_s is None:
            raise InvalidValue("the jobspec has no attributes.system.exec.test.run_duration")
        self._timers[job.jobid] = self._turns.after(duration_s - passed_s, partial(self._pass_by, job.jobid))

    def limit(self, jobid: int, expiration_s: float) -> None:
        """The instance looks at it."""

    def input_of(self, jobid: int) -> None:
        """No job reads any."""

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """A terminating signal ends the job at once, as it would end a process."""
        if signum not in HARMLESS and jobid in self._timers:
            self._timers[jobid].cancel()
            self._turns.post(lambda: self._end(jobid, signum))

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        """Time passes there, too."""

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """Nothing runs there that would have to end."""

        def release() -> None:
            if jobid in self._timers:
                self._reports.released(jobid, ranks)

        self._turns.post(release)

    def give_back(self, jobid: int, ranks: Idset) -> None:
        """No job is an instance."""

    def close(self) -> None:
        """Forget all jobs."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def leave(self, within_s: float) -> None:
        """Time passes by itself."""
        self.close()

    def _has_passed(self, jobid: int) -> None:
        self._end(jobid, 0)

    def _end(self, jobid: int, status: int) -> None:
        if self._timers.pop(jobid, None) is not None:
            self._reports.finished(jobid, status, None)
