"""`job-ingest` of the endpoint for Flux clients: a stock `flux submit` hands in its signed jobspec (RFC 15).

Law: the submitting user is the one that the socket reports; a J that names another is refused, and so is a job for
which Flux's shell would do something that is not done here.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused
from fluxsched.protocol.framing import signed
from fluxsched.protocol.messages.flux_jobs import IngestRequest
from fluxsched.runtime.flux_compat.waits import WAITABLE, Waits
from fluxsched.runtime.messaging.payload_memo import JSON, JobspecMemo
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.service import JobService

SHELL_ONLY: Mapping[tuple[str, ...], str] = {
    ("shell", "options", "signal"): "signal before the time is over (--signal)",
}
"""What Flux's shell does for a job that asks for it under `attributes.system`."""


class JobIngest:
    """Serves `job-ingest`."""

    def __init__(self, jobs: JobService, waits: Waits, router: Router) -> None:
        self._jobs = jobs
        self._waits = waits
        self._specs = JobspecMemo(JSON)
        router.serve_local({"job-ingest.submit": self._submit})

    def _submit(self, request: RpcRequest) -> None:
        wanted = request.payload(IngestRequest)
        jobspec, userid = signed.unwrap(wanted.J)
        if userid not in (None, request.userid):
            raise Refused(f"J is signed by user {userid}, and sent by user {request.userid}", errno.EPERM)
        job = self._specs.read(jobspec)
        _check(job)
        jobid = self._jobs.submit(request, job, wanted.urgency, wanted.flags)
        if wanted.flags & WAITABLE:
            self._waits.add(jobid)


def _check(jobspec: Jobspec) -> None:
    for path, what in SHELL_ONLY.items():
        part: Any = jobspec.raw.get("attributes", {}).get("system", {})
        for key in path:
            part = part.get(key) if isinstance(part, dict) else None
        if part:
            raise Refused(f"an instance of fluxsched has no {what}: submit without", errno.ENOSYS)
