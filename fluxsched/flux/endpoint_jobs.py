"""Jobs for stock Flux clients: `job-manager`, `job-ingest`, waits, and the services that Flux's shell would offer.

What is the same in both dialects (raise, kill, update, queue-list, queue-enable, queue-start) is not here. Law: nothing
is decided here; what is asked for is put to the job manager in its own words. The submitting user is the one that the
socket reports: a signed jobspec (RFC 15) that names another is refused, and so is a job for which Flux's shell would do
something that is not done here. Jobs submitted as waitable are waited for once, each by one, like processes; after a
restart they are ordinary jobs. Each job has a service of its own, named in its `shell.init` event, as long as its tasks
are sent input.
"""

from __future__ import annotations

import binascii
import errno
import os
import re
import signal
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from fluxsched.core import jobspec as signed
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.jobs.effects import Effect
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.query import EVERY_JOB, find, newest_ids, parse_query
from fluxsched.jobs.states import ACTIVE, RUNNING
from fluxsched.jobs.table import JobResult, shell_status
from fluxsched.messaging.memo import JSON, JobspecMemo
from fluxsched.messaging.peers import Peer, RpcRequest
from fluxsched.messaging.router import Router, in_steps
from fluxsched.protocol.messages import flux as msg
from fluxsched.protocol.messages.flux import ANY_JOB, IngestRequest, StdinRequest, WaitableRequest, WaitableResponse
from fluxsched.protocol.messages.jobs import QueueStatusRequest
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.job_streams import ENDED, JobInputs, JobStreams
from fluxsched.services.jobs import JobService
from fluxsched.system.log import logger

log = logger("flux")

HISTORY_JOBS_MAX = 10_000
"""Job ids in one answer about the past."""
SLICE_JOBS = 100
"""Jobs that an exception or a signal for all of them reaches at a time (some 5 ms)."""
_SLICE = re.compile(r"\[(?:(-?[0-9]{1,9})|(-?[0-9]{1,9})?:(-?[0-9]{1,9})?(?::(-?[0-9]{1,9})?)?)\]")

UNSERVED = {
    "job-manager.purge": "an instance of fluxsched removes ended jobs by itself: its store keeps their record",
    "job-manager.purge-id": "an instance of fluxsched removes ended jobs by itself: its store keeps their record",
    "job-manager.events-journal": "an instance of fluxsched has no journal of all jobs in Flux's form: "
    "follow job-info.eventlog-watch, or ask its own job-manager.watch",
}
"""Topics that stock commands request and an instance of fluxsched does not have, with the reasons."""


class JobManagerService:
    """Serves what is special of `job-manager`."""

    def __init__(self, effects: JobEffects, jobs: JobService, router: Router) -> None:
        self._effects = effects
        self._manager = effects.manager
        self._jobs = jobs
        self._drains: list[RpcRequest] = []
        self._idles: list[RpcRequest] = []
        router.serve_local(
            {
                "job-manager.urgency": self._urgency,
                "job-manager.raiseall": self._raise_all,
                "job-manager.killall": self._kill_all,
                "job-manager.alloc-query": self._alloc_query,
                "job-manager.history.get": self._history,
                "job-manager.drain": self._drain,
                "job-manager.idle": self._idle,
                "job-manager.stats-get": self._stats,
            }
            | dict.fromkeys(UNSERVED, _unserved)
        )
        router.serve_local({"job-manager.queue-status": self._queue_status})
        router.on_lost(lambda peer: self._forget(peer))
        effects.published.append(self._look)

    def _urgency(self, request: RpcRequest) -> None:
        self._jobs.answer(request, msg.OldUrgencyResponse(self._jobs.set_urgency(request)))

    def _queue_status(self, request: RpcRequest) -> None:
        found = self._jobs.queue_status(request.payload(QueueStatusRequest).name)
        request.respond(
            msg.FluxQueueStatus(
                name=found.name,
                enable=found.enable,
                disable_reason=found.enable_reason,
                start=found.start,
                stop_reason=found.start_reason,
                blocked=found.blocked,
            )
        )

    def _stats(self, request: RpcRequest) -> None:
        def answered(latest: list[int]) -> None:
            request.respond(
                msg.ManagerStats(
                    active_jobs=len(self._manager.jobs.active),
                    inactive_jobs=len(self._manager.jobs.inactive),
                    max_jobid=latest[0] if latest else 0,
                )
            )

        newest = newest_ids(self._manager.jobs, EVERY_JOB._replace(max_entries=1))
        in_steps(self._effects.turns, request, newest, answered)

    # -- many jobs at once --------------------------------------------------------------------------------------

    def _raise_all(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.RaiseAllRequest)

        def raised(jobid: int) -> list[Effect]:
            now_s, by = self._effects.now_s, request.userid
            return self._manager.requests.raise_exception(jobid, wanted.type, wanted.severity, wanted.note, by, now_s)

        self._to_all(request, wanted.userid, wanted.states, wanted.dry_run, raised)

    def _kill_all(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.KillAllRequest)

        def killed(jobid: int) -> list[Effect]:
            return self._manager.requests.kill(jobid, wanted.signum, self._effects.now_s)

        self._to_all(request, wanted.userid, RUNNING, wanted.dry_run, killed)

    def _to_all(
        self, request: RpcRequest, userid: int, states: int, dry_run: bool, do: Callable[[int], list[Effect]]
    ) -> None:
        """Do something to all active jobs of a user in these states, the latest first: else those that wait would
        start as others end.
        """
        count = errors = 0
        query = parse_query(None, ("userid", userid))
        meant = find(self._manager.jobs, query._replace(states=states & ACTIVE), SLICE_JOBS)

        def some() -> None:
            nonlocal count, errors
            jobs = next(meant, None)
            if jobs is None:
                self._jobs.answer(request, msg.CountResponse(count, errors))
                return
            for job in jobs:
                count += 1
                try:
                    self._effects.perform([] if dry_run else do(job.id))
                except FluxschedError as error:
                    log.info("%s: %s", request.topic, error)
                    errors += 1
            self._effects.turns.post(some)

        some()

    # -- how much there is to do --------------------------------------------------------------------------------

    def _alloc_query(self, request: RpcRequest) -> None:
        manager = self._manager
        request.respond(
            msg.AllocQueryResponse(
                queue_length=sum(len(queue.waiting) for queue in manager.queues),
                alloc_pending=sum(len(link.outstanding) for link in manager.links),
                running=self._running(),
            )
        )

    def _running(self) -> int:
        return sum(queue.running for queue in self._manager.queues)

    def _history(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.HistoryRequest)
        found = _SLICE.fullmatch(wanted.slice)
        if found is None:
            raise InvalidValue(f"slice {wanted.slice!r:.40} is not [INDEX] or [START:STOP:STEP] as Python has it")
        index, *bounds = (None if part is None else int(part) for part in found.groups())
        if bounds[2] == 0:
            raise InvalidValue(f"slice {wanted.slice!r:.40}: the step is 0")
        part = slice(*bounds) if index is None else slice(index, index + 1 or None)
        query = parse_query(None, ("userid", wanted.userid))._replace(max_entries=HISTORY_JOBS_MAX)
        newest = newest_ids(self._manager.jobs, query)
        turns = self._effects.turns
        in_steps(turns, request, newest, lambda jobids: request.respond(msg.HistoryResponse(jobids[part])))

    def _drain(self, request: RpcRequest) -> None:
        self._drains.append(request)
        self._effects.after_commit(self._look)

    def _idle(self, request: RpcRequest) -> None:
        self._idles.append(request)
        self._effects.after_commit(self._look)

    def _look(self) -> None:
        """Answer requests that wait for the end of all jobs, or of all running ones."""
        if self._drains and not self._manager.jobs.active:
            drains, self._drains = self._drains, []
            for request in drains:
                request.respond()
        if self._idles and not self._running():
            idles, self._idles = self._idles, []
            for request in idles:
                request.respond(msg.IdleResponse(pending=len(self._manager.jobs.active)))

    def _forget(self, peer: object) -> None:
        self._drains = [request for request in self._drains if request.peer is not peer]
        self._idles = [request for request in self._idles if request.peer is not peer]


def _unserved(request: RpcRequest) -> None:
    raise Refused(UNSERVED[request.topic], errno.ENOSYS)


# ---- `job-ingest`

SHELL_ONLY: Mapping[tuple[str, ...], str] = {
    ("shell", "options", "signal"): "signal before the time is over (--signal)",
}
"""Attributes under `attributes.system` of functions that Flux's shell performs for a job."""


class JobIngest:
    """Service of the `job-ingest` topics."""

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

        def accepted(jobid: int) -> None:
            if wanted.flags & WAITABLE:
                self._waits.add(jobid)

        self._jobs.submit(request, job, wanted.urgency, wanted.flags, accepted)


def _check(jobspec: Jobspec) -> None:
    for path, what in SHELL_ONLY.items():
        part: Any = jobspec.raw.get("attributes", {}).get("system", {})
        for key in path:
            part = part.get(key) if isinstance(part, dict) else None
        if part:
            raise Refused(f"an instance of fluxsched has no {what}: submit without", errno.ENOSYS)


# ---- waiting for ends of jobs

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
        """Add a waitable job that was submitted."""
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
        """Respond with the result of a job; each job is waited for once."""
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
        """Wait for a job that was not submitted through this endpoint, or was before the instance was restarted."""
        job = self._manager.jobs.active.get(jobid) or self._manager.jobs.inactive.get(jobid)
        if job is None or not job.flags & WAITABLE or jobid in self._done:
            unfit = "is unknown, was not submitted as waitable, or was waited for already"
            raise Refused(f"job {format_f58(jobid)} {unfit}", errno.ECHILD)
        self._streams.when_inactive(jobid, request, lambda result: self._answer(request, result))

    def _check(self) -> None:
        """End waits with ECHILD, the last one first, while there are more waiters than jobs."""
        while len(self._any) > len(self._active) - len(self._by_id):
            self._any.popitem()[0].error(errno.ECHILD, "there are no more waitable jobs")

    def _forget(self, peer: Peer) -> None:
        for request in [request for request in self._any if request.peer is peer]:
            del self._any[request]
        for jobid in [jobid for jobid, request in self._by_id.items() if request.peer is peer]:
            del self._by_id[jobid]


def error_text(result: JobResult) -> str:
    """Return the failure of the job in the words of stock commands; empty if it succeeded."""
    if result.exception_type is not None:
        return f"Fatal exception type={result.exception_type} {result.exception_note}"
    code = os.waitstatus_to_exitcode(shell_status(max(0, result.status)))
    signum = code - SIGNALED
    name = signal.strsignal(signum) if 0 < signum < signal.NSIG else None
    if name is not None:
        return f"task(s) {name}"
    return f"task(s) exited with exit code {code}" if code else ""


# ---- requests for job shells

ALL_TASKS = "all"


def task_service(jobid: int) -> str:
    """Return the name of a job's own service."""
    return f"shell-{format_f58(jobid, ascii=True)}"


class TaskService:
    """Serves `stdin` of every job, and refuses `proctable`."""

    def __init__(self, inputs: JobInputs, router: Router) -> None:
        self._inputs = inputs
        router.serve_local({"shell-*.stdin": self._stdin, "shell-*.proctable": _no_processes})

    def _stdin(self, request: RpcRequest) -> None:
        wanted = request.payload(StdinRequest)
        jobid = parse_jobid(request.topic.partition("-")[2].rpartition(".")[0])
        tasks = None if wanted.rank == ALL_TASKS else Idset.parse(wanted.rank)
        try:
            self._inputs.send(request, jobid, _decoded(wanted), tasks, eof=wanted.eof)
        except Refused as error:
            if error.errnum in (ENDED, errno.ENOENT):
                raise Refused(str(error), errno.ENOSYS) from error
            raise


def _decoded(wanted: StdinRequest) -> bytes:
    if wanted.encoding != "base64":
        return wanted.data.encode()
    try:
        return binascii.a2b_base64(wanted.data, strict_mode=True)
    except ValueError as exc:  # binascii.Error is one, and so is what it says of text that is not ASCII
        raise InvalidValue(f"data is not base64: {exc}") from exc


def _no_processes(request: RpcRequest) -> None:
    remedy = "`fluxsched job info` has its hosts, `fluxsched kill` signals its tasks"
    raise Refused(f"an instance of fluxsched does not serve the processes of a job: {remedy}", errno.ENOSYS)
