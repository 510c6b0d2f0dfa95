"""Jobs by their time: time limits, the `test` executor, and nested instances.

Law: a job has one timer at most; 0 is no limit. Time also passes while there is no instance. Under the `test` executor
nothing runs, only time passes (jobspec `attributes.system.exec.test.run_duration`). A target that a nested instance is
to give back is released when that instance says so: it has the grace time, and some more, to end what it runs there;
one that is not done then is ended as a whole, since its targets are promised.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import InvalidValue, Refused
from fluxsched.executor.base import JobLaunch, Measured, Reports, ResumedJob
from fluxsched.executor.layout import is_instance
from fluxsched.system.loop import Timer, Turns

# ---- time limits


class TimeLimits:
    """Calls `reached` with a job whose time is up."""

    def __init__(self, turns: Turns, reached: Callable[[int], None]) -> None:
        self._turns = turns
        self._reached = reached
        self._end = self._is_up  # one bound method for all jobs
        self._timers: dict[int, Timer] = {}

    def arm(self, jobid: int, expiration_s: float) -> None:
        """Set the wall time at which the job expires."""
        self.disarm(jobid)
        if expiration_s > 0.0:
            delay_s = expiration_s - self._turns.clock.wall_s()
            self._timers[jobid] = self._turns.after(delay_s, self._end, jobid)

    def disarm(self, jobid: int) -> None:
        """Remove the limit of a job that has none any more, or has ended."""
        if jobid in self._timers:
            self._timers.pop(jobid).cancel()

    def _is_up(self, jobid: int) -> None:
        self._timers.pop(jobid, None)
        self._reached(jobid)


# ---- jobs of a given run time

HARMLESS = frozenset({signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH})
"""Signals that do not end a job that only lets time pass."""


class TimedExecutor:
    """Reports a job started at once and finished after its run duration, with status 0."""

    def __init__(self, turns: Turns, reports: Reports) -> None:
        self._turns = turns
        self._reports = reports
        self._pass_by = partial(self._end, status=0)  # one callable for all jobs
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
        self._timers[job.jobid] = self._turns.after(duration_s - passed_s, self._pass_by, job.jobid)

    def limit(self, jobid: int, expiration_s: float) -> None:
        """Do nothing: the instance enforces the limit."""

    def measure(self, jobid: int, measured: Measured) -> None:
        """Say that nothing is known, since nothing runs."""
        measured(None)

    def input_of(self, jobid: int) -> None:
        """Return None, since no job of this executor reads input."""

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """End the job at once for a terminating signal, as a process would end."""
        if signum not in HARMLESS and jobid in self._timers:
            self._timers[jobid].cancel()
            self._turns.post(lambda: self._end(jobid, signum))

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        """Do nothing, since only time passes on the new targets."""

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """Release the targets at once, since nothing runs there that would have to end."""

        def release() -> None:
            if jobid in self._timers:
                self._reports.released(jobid, ranks)

        self._turns.post(release)

    def give_back(self, jobid: int, ranks: Idset) -> None:
        """Do nothing, since no job of this executor is an instance."""

    def close(self) -> None:
        """Cancel the timers of all jobs."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def detach(self, within_s: float) -> None:
        """Cancel all timers; the next instance computes the remaining times itself."""
        self.close()

    def _end(self, jobid: int, status: int) -> None:
        if self._timers.pop(jobid, None) is not None:
            self._reports.finished(jobid, status, None)


# ---- jobs that are an instance

MARGIN_S = 5.0
"""Time beyond the grace time for an instance to be told, and to kill its jobs that have not ended (seconds)."""


class NestedJobs:
    """Targets that jobs which are instances are to give back."""

    def __init__(self, turns: Turns, reports: Reports, kill_timeout_s: float, margin_s: float = MARGIN_S) -> None:
        self._turns = turns
        self._reports = reports
        self._kill_timeout_s = kill_timeout_s
        self._margin_s = margin_s
        self._going: dict[int, Idset] = {}

    def add_job(self, job: JobLaunch) -> None:
        """Add a job that runs, if it is an instance: it gives targets back by itself."""
        if job.jobspec.request.elastic and is_instance(job.jobspec):
            self._going.setdefault(job.jobid, EMPTY)

    def has(self, jobid: int) -> bool:
        """Return whether the job is one of the instances."""
        return jobid in self._going

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None) -> None:
        """Record that the job is to give these targets back; the job manager informs the job."""
        self._going[jobid] |= ranks
        within_s = self._margin_s + (self._kill_timeout_s if grace_s is None else grace_s)
        self._turns.after(within_s, lambda: self._overdue(jobid, ranks, within_s))

    def give_back(self, jobid: int, ranks: Idset) -> None:
        """Release targets on which the job reports no remaining use; a job that missed the response reports again.

        Raises Refused.
        """
        if jobid not in self._going:
            raise Refused(f"job {format_f58(jobid)} is not an elastic instance: its targets are released as tasks end")
        given = ranks & self._going[jobid]
        self._going[jobid] -= given
        if given:
            self._reports.released(jobid, given)

    def remove_job(self, jobid: int) -> None:
        """Remove a job that has ended."""
        self._going.pop(jobid, None)

    def _overdue(self, jobid: int, ranks: Idset, within_s: float) -> None:
        left = ranks & self._going.get(jobid, EMPTY)
        if left:
            self._going[jobid] -= left
            note = f"the instance in it did not give back ranks {left} within {within_s:g} s"
            self._reports.raised(jobid, "exec", note)
