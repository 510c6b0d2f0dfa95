"""What is counted of jobs for monitoring, from the start of the instance on: a few additions a job."""

from __future__ import annotations

from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.result import RESULTS
from fluxsched.protocol.messages.metrics import JobMetrics
from fluxsched.runtime.history.samples import JobFlow
from fluxsched.runtime.loop.histogram import LONG_S, WAITS_S, Histogram


class JobCounts:
    """Jobs submitted, started and ended."""

    def __init__(self) -> None:
        self.submitted = 0
        self._started = 0
        self._ended: dict[str, int] = dict.fromkeys(RESULTS, 0)
        self._wait = Histogram(WAITS_S)

    def started(self, job: Job) -> None:
        """The job's shells are started. It has waited from its submit until it was allocated resources."""
        self._started += 1
        self._wait.observe(max(0.0, job.t_run - job.t_submit))

    def ended(self, name: str) -> None:
        """A job is inactive, and this is the name of its result."""
        self._ended[name] += 1

    def value(self) -> JobMetrics:
        """All counts until now, for monitoring."""
        return JobMetrics(self.submitted, self._started, self._ended_by_result(), self._wait.coarser(LONG_S))

    def for_history(self) -> JobFlow:
        """The same for samples."""
        return JobFlow(self.submitted, self._started, self._ended_by_result(), self._wait.counts())

    def _ended_by_result(self) -> dict[str, int]:
        return {name.lower(): count for name, count in self._ended.items()}
