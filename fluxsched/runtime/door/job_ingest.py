"""`job-ingest` of the local door: a stock `flux submit` hands in its signed jobspec (RFC 15).

Law: who submits is whom the socket says; a J that names somebody else is refused.
"""

from __future__ import annotations

import errno
from typing import Any

from fluxsched.errors import Refused
from fluxsched.protocol import codec, signed
from fluxsched.protocol.messages.flux_jobs import IngestRequest
from fluxsched.runtime.door.waits import WAITABLE, Waits
from fluxsched.runtime.peers import Request
from fluxsched.runtime.router import Router
from fluxsched.runtime.services.jobs import JobService
from fluxsched.runtime.specs import Specs


class JobIngest:
    """Serves `job-ingest`."""

    def __init__(self, jobs: JobService, waits: Waits, router: Router) -> None:
        self._jobs = jobs
        self._waits = waits
        self._specs = Specs(lambda data: codec.from_json(data, dict[str, Any]))
        router.serve_local({"job-ingest.submit": self._submit})

    def _submit(self, request: Request) -> None:
        wanted = request.payload(IngestRequest)
        jobspec, userid = signed.unwrap(wanted.J)
        if userid not in (None, request.userid):
            raise Refused(f"J is signed by user {userid}, and sent by user {request.userid}", errno.EPERM)
        jobid = self._jobs.submit(request, self._specs.read(jobspec), wanted.urgency, wanted.flags)
        if wanted.flags & WAITABLE:
            self._waits.add(jobid)
