"""The executor's side of the job manager: what it reports of the jobs that run.

The executor's promises: after StartShells it reports `started` at most once, then `finished` at most once, then
`released` until nothing is left; or `exec_failed` at any time once nothing of the job runs. After Kill it does the
same, sooner. Of the targets of ShrinkShells it reports `released`, not final, while the job runs on.
"""

from __future__ import annotations

from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidTransition, RemoteProtocolError
from fluxsched.jobs.effects import Effect
from fluxsched.jobs.job.attempts import RETURN
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.result import shell_status
from fluxsched.jobs.job.states import CLEANUP
from fluxsched.jobs.lifecycle.lifecycle import Lifecycle
from fluxsched.jobs.lifecycle.requests import NOTE_CHARS_MAX


class Execution:
    """The executor's side of the job manager."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._jobs = lifecycle.jobs

    def started(self, jobid: int, now_s: float) -> list[Effect]:
        """Record that the job's shells run."""
        job = self._executing(jobid, "start")
        if job.started:
            raise InvalidTransition(f"job {jobid}: started twice")
        self._lifecycle.begin(now_s)
        self._lifecycle.log(job, "start")
        if job.id in self._lifecycle.dependencies:
            self._lifecycle.settled.append(job)
        return self._lifecycle.end()

    def finished(
        self, jobid: int, status: int, now_s: float, *, release: bool = False, usage: dict[str, Any] | None = None
    ) -> list[Effect]:
        """All shells have exited; `status` is the largest wait status, `usage` (ours) what the tasks used if that was
        measured. With `release` everything is released too.
        """
        job = self._executing(jobid, "finish")
        if job.status is not None:
            raise InvalidTransition(f"job {jobid}: finished twice")
        self._lifecycle.begin(now_s)
        if job.fatal is not None and (cause := job.fatal.get("wait_status")) is not None:
            status = shell_status(cause)  # RFC 21: that of the root cause replaces the largest one
        self._lifecycle.log(job, "finish", {"status": status} if usage is None else {"status": status, "usage": usage})
        if release:
            self._lifecycle.release(job, None)
        return self._lifecycle.end()

    def released(self, jobid: int, ranks: Idset | None, final: bool, now_s: float) -> list[Effect]:
        """Nothing of the job runs on these ranks any more (None: on all that are left).

        Of a job that runs on these are some that it was shrunk by.

        Raises RemoteProtocolError for ranks that it does not hold, and for a `final` that leaves some.
        """
        job = self._executing(jobid, "release")
        given = job.held if ranks is None else ranks
        if not given or not given <= job.held:
            raise RemoteProtocolError(f"job {jobid}: release of ranks {given - job.held or 'none'}, held: {job.held}")
        if final and given != job.held:
            raise RemoteProtocolError(f"job {jobid}: a final release that leaves ranks {job.held - given}")
        if job.state is not CLEANUP and (final or not given <= job.going):
            raise InvalidTransition(f"job {jobid}: release in state {job.state.name}, before finish")
        self._lifecycle.begin(now_s)
        self._lifecycle.release(job, given)
        return self._lifecycle.end()

    def exec_failed(self, jobid: int, note: str, now_s: float) -> list[Effect]:
        """Nothing of the job runs (any more), and not as it should: a fatal `exec` exception, everything released."""
        job = self._executing(jobid, "failure")
        self._lifecycle.begin(now_s)
        self._lifecycle.log_exception(job, "exec", 0, note[:NOTE_CHARS_MAX])
        self._lifecycle.release(job, None)
        return self._lifecycle.end()

    def returned(self, jobid: int, note: str, now_s: float) -> list[Effect]:
        """The job was not begun, and will not be where it was to run: it is submitted again, at no cost of attempts."""
        job = self._executing(jobid, "return")
        if job.started:
            raise InvalidTransition(f"job {jobid}: returned after it was started")
        self._lifecycle.begin(now_s)
        self._lifecycle.log_exception(job, RETURN, 0, note[:NOTE_CHARS_MAX])
        self._lifecycle.release(job, None)
        return self._lifecycle.end()

    def _executing(self, jobid: int, event: str) -> Job:
        """The job that the executor reports. Raises InvalidTransition for one that it does not run."""
        found = self._jobs.active.get(jobid)
        if found is None or not found.executing:
            state = (found or self._jobs.get(jobid)).state.name
            raise InvalidTransition(f"job {jobid}: the executor reports {event}, but is not running it (state {state})")
        return found
