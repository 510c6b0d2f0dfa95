"""`job-manager.running`: the jobs that hold resources, the largest first (rfc/live.md)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fluxsched.core.idset import Idset
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.sizes import listed_sizes
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.query.listing import PIECE_JOBS
from fluxsched.jobs.query.running import RUNNING_JOBS_MAX, Largest, RunningQuery, largest
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.live.running import RunningEntry, RunningRequest
from fluxsched.runtime.loop.turns import Turns, Work
from fluxsched.runtime.messaging.incremental import in_steps
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router


class RunningService:
    """Serves `job-manager.running`; `targets` reads an idset or a hostlist."""

    def __init__(self, manager: JobManager, router: Router, turns: Turns, targets: Callable[[str], Idset]) -> None:
        self._manager = manager
        self._router = router
        self._turns = turns
        self._targets = targets
        router.serve({"job-manager.running": self._running})

    def _running(self, request: RpcRequest) -> None:
        wanted = request.payload(RunningRequest)
        query = RunningQuery(
            None if wanted.targets is None else self._targets(wanted.targets),
            self._router.permissions.sees_only(request),
            min(wanted.max_entries or RUNNING_JOBS_MAX, RUNNING_JOBS_MAX),
        )

        def found(jobs: Largest) -> None:
            self._turns.spread(_answer(request, jobs), request.failed)

        in_steps(self._turns, request, largest(self._manager.jobs, self._manager.holdings.jobids(), query), found)


def _answer(request: RpcRequest, found: Largest) -> Work:
    """Word the jobs in pieces; one that has ended since is left out."""
    jobs = [job for job in found.jobs if job.held]
    worded: list[msgspec.Raw] = []
    for start in range(0, len(jobs), PIECE_JOBS):
        worded += [msgspec.Raw(codec.pack(_entry(job))) for job in jobs[start : start + PIECE_JOBS]]
        yield
    request.respond({"jobs": worded, "left_out": found.left_out})


def _entry(job: Job) -> RunningEntry:
    queue, sizes = job.queue.name or "", listed_sizes(job)
    return job.id, str(job.held), job.t_run, job.expiration_s, job.ncores, job.userid, queue, job.name, sizes
