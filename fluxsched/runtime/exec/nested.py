"""Jobs that are instances, and give targets back: only they know what of them runs there.

Law: a target that such a job is to give back is released when the instance in it says so. It has the grace time, and
some more, to end what it runs there; one that is not done then is ended as a whole, since its targets are promised.
"""

from __future__ import annotations

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import Refused
from fluxsched.runtime.exec.base import JobLaunch, Reports
from fluxsched.runtime.exec.tasks.program import is_instance
from fluxsched.runtime.loop.turns import Turns

MARGIN_S = 5.0
"""Time beyond the grace time (seconds), in which it hears of it, and kills what has not ended."""


class NestedJobs:
    """What jobs that are instances are to give back."""

    def __init__(self, turns: Turns, reports: Reports, kill_timeout_s: float) -> None:
        self._turns = turns
        self._reports = reports
        self._kill_timeout_s = kill_timeout_s
        self._going: dict[int, Idset] = {}

    def begin(self, job: JobLaunch) -> None:
        """A job runs: if it is an instance, it gives targets back by itself."""
        if job.jobspec.request.elastic and is_instance(job.jobspec):
            self._going.setdefault(job.jobid, EMPTY)

    def has(self, jobid: int) -> bool:
        """Whether it is one of them."""
        return jobid in self._going

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None) -> None:
        """It is to give these targets back; it hears that from the job manager."""
        self._going[jobid] |= ranks
        within_s = MARGIN_S + (self._kill_timeout_s if grace_s is None else grace_s)
        self._turns.after(within_s, lambda: self._overdue(jobid, ranks, within_s))

    def give_back(self, jobid: int, ranks: Idset) -> None:
        """It says that nothing of it is left there; again if it does not know that this was heard. Raises Refused."""
        if jobid not in self._going:
            raise Refused(f"job {format_f58(jobid)} is no elastic instance: its targets are released as tasks end")
        given = ranks & self._going[jobid]
        self._going[jobid] -= given
        if given:
            self._reports.released(jobid, given)

    def end(self, jobid: int) -> None:
        """It has ended."""
        self._going.pop(jobid, None)

    def _overdue(self, jobid: int, ranks: Idset, within_s: float) -> None:
        left = ranks & self._going.get(jobid, EMPTY)
        if left:
            self._going[jobid] -= left
            note = f"the instance in it did not give back ranks {left} within {within_s:g} s"
            self._reports.raised(jobid, "exec", note)
