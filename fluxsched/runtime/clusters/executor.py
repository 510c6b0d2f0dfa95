"""The `lease` executor: the jobs of clusters run in other instances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.errors import FluxschedError, Refused
from fluxsched.leases.jobspec import size_is_settled
from fluxsched.leases.lease import Lease
from fluxsched.leases.states import LeaseState
from fluxsched.runtime.clusters.loop import ClusterLoop
from fluxsched.runtime.exec.base import TERMINATING, JobLaunch, Reports, ResumedJob

START_KEY = "starttime"


class LeaseExecutor:
    """Passes on what is asked to the loop of the job's cluster; what is reported comes from there."""

    def __init__(
        self, reports: Reports, loop_of: Callable[[int], ClusterLoop | None], take: Callable[[int], Lease]
    ) -> None:
        self._reports = reports
        self._loop_of = loop_of
        self._take = take
        """The lease of a job that is to start, which is in the store. Raises FluxschedError."""

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """Whether a lease was sent is not known exactly: so it counts as sent."""
        for job in jobs:
            try:
                lease = self._take(job.launch.jobid)
            except FluxschedError as fault:
                self._reports.failed(job.launch.jobid, str(fault))
                continue
            lease.state = LeaseState.SENT if job.begun_s is None else LeaseState.RUNNING
            self._want(lease, job.launch)
            if job.is_ending:
                self.kill(lease.jobid, 15)
        settled()

    def start(self, job: JobLaunch) -> None:
        """The lease is on disk: it may be sent."""
        self._want(self._take(job.jobid), job)

    def _want(self, lease: Lease, job: JobLaunch) -> None:
        lease.since_s = _granted_s(job.R)
        loop = self._loop_of(lease.jobid)
        if loop is not None:
            loop.want(lease)

    def limit(self, jobid: int, expiration_s: float) -> None:
        """The time limit is kept here, and passed on."""
        loop = self._loop_of(jobid)
        lease = None if loop is None else loop.table.of_job(jobid)
        if loop is not None and lease is not None:
            loop.limit(jobid, max(0.0, expiration_s - lease.since_s) if expiration_s else 0.0)

    def input_of(self, jobid: int) -> None:
        """Raises Refused: input is not passed on."""
        loop = self._loop_of(jobid)
        if loop is not None:
            raise Refused(f"the job runs in cluster {loop.name}: its tasks are sent no input from here")

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """A terminating signal ends the job there, with the grace time that holds there."""
        loop = self._loop_of(jobid)
        if loop is None:
            return
        if signum in TERMINATING:
            loop.kill(jobid)
        else:
            loop.signal(jobid, signum)

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        """The size of a job there was settled when it was sent, so the job manager refuses it before."""

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """As `grow`: it keeps there what it has, and here the targets count as given back."""
        self._reports.released(jobid, ranks)

    def give_back(self, jobid: int, ranks: Idset) -> None:
        """Raises Refused: jobs there do not change their size."""
        raise size_is_settled(jobid)

    def close(self) -> None:
        """The loops are closed with the instance."""

    def leave(self, within_s: float) -> None:
        """The jobs go on by themselves."""


def _granted_s(R: Mapping[str, Any]) -> float:  # noqa: N803 - RFC 20's name
    return float(R["execution"].get(START_KEY, 0.0))
