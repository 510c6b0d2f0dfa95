"""`job-manager.wait` as Flux means it: jobs submitted as waitable are waited for once, each by one, like processes.

Law: only jobs that came through this endpoint with the flag can be waited for without an id; after a restart of the
instance they are ordinary jobs, which can be waited for by id.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import OrderedDict

from fluxsched.core.jobid import format_f58
from fluxsched.errors import Refused
from fluxsched.jobs.job.result import JobResult, shell_status
from fluxsched.jobs.manager import JobManager
from fluxsched.protocol.messages.flux_jobs import ANY_JOB, WaitableRequest, WaitableResponse
from fluxsched.runtime.messaging.peers import Peer, RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.streams import JobStreams

WAITABLE = 4
"""The submit flag of a job that will be waited for (FLUX_JOB_WAITABLE)."""
ENDED_MAX = 100_000
"""Ended jobs kept until they are waited for, and as many that were waited for; the oldest are forgotten."""
SIGNALED = 128
"""Shells add this to the signal that ended their program."""


class Waits:
    """The waitable jobs: those that have not ended, those that have, and their waiters."""

    def __init__(self, manager: JobManager, streams: JobStreams, router: Router) -> None:
        self._manager = manager
        self._streams = streams
        self._active: set[int] = set()
        self._by_id: dict[int, RpcRequest] = {}
        self._ended: OrderedDict[int, JobResult] = OrderedDict()
        self._any: dict[RpcRequest, None] = {}
        self._done: OrderedDict[int, None] = OrderedDict()
        router.serve_local({"job-manager.wait": self._wait})
        router.on_lost(self._forget)

    def add(self, jobid: int) -> None:
        """A waitable job was submitted."""
        self._active.add(jobid)
        self._streams.when_inactive(jobid, None, self._end)

    def _end(self, result: JobResult) -> None:
        self._active.remove(result.jobid)
        request = self._by_id.pop(result.jobid, None)
        if request is None and self._any:
            request = next(iter(self._any))
            del self._any[request]
        if request is not None:
            self._answer(request, result)
        else:
            self._ended[result.jobid] = result
            if len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
        self._check()

    def _answer(self, request: RpcRequest, result: JobResult) -> None:
        """A job is waited for once."""
        request.respond(WaitableResponse(id=result.jobid, success=result.success, errstr=error_text(result)))
        self._done[result.jobid] = None
        if len(self._done) > ENDED_MAX:
            self._done.popitem(last=False)

    def _wait(self, request: RpcRequest) -> None:
        jobid = request.payload(WaitableRequest).id
        if jobid in ANY_JOB:
            self._wait_any(request)
        elif jobid in self._ended:
            self._answer(request, self._ended.pop(jobid))
        elif jobid in self._active:
            if jobid in self._by_id:
                raise Refused(f"job {format_f58(jobid)} already has a waiter", errno.ECHILD)
            self._by_id[jobid] = request
            self._check()
        else:
            self._wait_other(request, jobid)

    def _wait_any(self, request: RpcRequest) -> None:
        if self._ended:
            self._answer(request, self._ended.popitem(last=False)[1])
            return
        self._any[request] = None
        self._check()

    def _wait_other(self, request: RpcRequest, jobid: int) -> None:
        """A job that did not come through this endpoint, or did before the instance was restarted."""
        job = self._manager.jobs.active.get(jobid) or self._manager.jobs.inactive.get(jobid)
        if job is None or not job.flags & WAITABLE or jobid in self._done:
            unfit = "is unknown, was not submitted as waitable, or was waited for already"
            raise Refused(f"job {format_f58(jobid)} {unfit}", errno.ECHILD)
        self._streams.when_inactive(jobid, request, lambda result: self._answer(request, result))

    def _check(self) -> None:
        """There are never more waiters than jobs: the last one gets ECHILD."""
        while len(self._any) > len(self._active) - len(self._by_id):
            self._any.popitem()[0].error(errno.ECHILD, "there are no more waitable jobs")

    def _forget(self, peer: Peer) -> None:
        for request in [request for request in self._any if request.peer is peer]:
            del self._any[request]
        for jobid in [jobid for jobid, request in self._by_id.items() if request.peer is peer]:
            del self._by_id[jobid]


def error_text(result: JobResult) -> str:
    """How the job ended, in the words of stock commands; empty if well."""
    if result.exception_type is not None:
        return f"Fatal exception type={result.exception_type} {result.exception_note}"
    code = os.waitstatus_to_exitcode(shell_status(max(0, result.status)))
    signum = code - SIGNALED
    name = signal.strsignal(signum) if 0 < signum < signal.NSIG else None
    if name is not None:
        return f"task(s) {name}"
    return f"task(s) exited with exit code {code}" if code else ""
