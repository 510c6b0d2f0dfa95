"""The instance as stock Flux clients meet it: which services there are, those of Flux's broker and `resource`, and logs
and lists of jobs: `job-info` and `job-list` (RFC 18, RFC 24, RFC 43).

Law: nothing is made up. Targets appear as brokers; every state that an instance of ours can be asked in is `run`. What
each user may ask is in `protocol.topics`. Nothing is kept twice. The logs that Flux keeps beside a job's own, how it
was executed and what its tasks printed, are made from the job's log and its spool files when a client asks. Spool files
have no times: a piece of output has the time at which it was read, at the latest that of the job's end. A list is made
slice by slice, a turn each.

Jobs for stock Flux clients: `job-manager`, `job-ingest`, waits, and the services that Flux's shell would offer.

What is the same in both dialects (raise, kill, update, queue-list, queue-enable, queue-start) is not here. Law: nothing
is decided here; what is asked for is put to the job manager in its own words. The submitting user is the one that the
socket reports: a signed jobspec (RFC 15) that names another is refused, and so is a job for which Flux's shell would do
something that is not done here. Jobs submitted as waitable are waited for once, each by one, like processes; after a
restart they are ordinary jobs. Each job has a service of its own, named in its `shell.init` event, as long as its tasks
are sent input.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
import signal
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from math import inf, nextafter
from typing import Any

import msgspec

from fluxsched.core import jobspec as signed
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58, is_shared, parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import with_path
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, Refused
from fluxsched.executor.base import spool_directory
from fluxsched.executor.layout import JobTasks, Tags, TaskBlock, blocks, more_blocks
from fluxsched.jobs.job import JobSummary
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.query import (
    ALL_ATTRIBUTES,
    EVERY_JOB,
    FLUX_ATTRIBUTES,
    Tally,
    checked_attributes,
    find,
    flux_attributes,
    in_flux_order,
    newest_ids,
    parse_query,
    tally_jobs,
    total_tally,
)
from fluxsched.jobs.states import ACTIVE, RUNNING, Effect, Event
from fluxsched.jobs.table import JobResult, shell_status
from fluxsched.messaging.memo import JSON, JobspecMemo
from fluxsched.messaging.peers import Peer, RpcRequest, ping_answer
from fluxsched.messaging.router import Handler, Router, in_steps
from fluxsched.protocol.messages import flux as msg
from fluxsched.protocol.messages.common import FreeForm
from fluxsched.protocol.messages.flux import (
    ANY_JOB,
    IngestRequest,
    ReloadFromRequest,
    StdinRequest,
    WaitableRequest,
    WaitableResponse,
    WaitUpRequest,
)
from fluxsched.protocol.messages.jobs import OutputResponse, QueueStatusRequest
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.resource.module import ResourceModule
from fluxsched.services.instance import InstanceService
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.job_streams import (
    ENDED,
    STREAM_NAMES,
    Budget,
    JobInputs,
    JobStreams,
    OutputFollower,
    TaskOutput,
)
from fluxsched.services.jobs import LIST_ENTRIES_MAX, JobService, current_resources, stored_job, stored_result
from fluxsched.services.modules import ModuleService
from fluxsched.services.resource import ResourceService
from fluxsched.store.store import Store
from fluxsched.system.log import logger
from fluxsched.system.loop import Turns

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
        job = self._manager.jobs.find(jobid)
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


# ---- what serves Flux's clients, put together

Reload = Callable[[RpcRequest, ReloadRequest], None]
"""Reads the resources again, and answers the request. Raises Refused when that cannot be."""


def serve_instance(
    router: Router,
    resource: ResourceService,
    reload: Reload,
    instance: InstanceService,
    modules: ModuleService,
    turns: Turns,
    started_s: float,
) -> None:
    """Serve `broker`, `attr`, `groups`, `state-machine`, `module` and Flux's dialect of `resource`."""
    FluxResourceService(resource, reload, router, turns)
    FluxInstanceService(instance, resource.module, modules.load_request, lambda: turns.wall_s - started_s, router)


def serve_jobs(
    router: Router, effects: JobEffects, jobs: JobService, streams: JobStreams, inputs: JobInputs, store: Store
) -> None:
    """Serve `job-ingest`, `job-list`, `job-info`, Flux's dialect of `job-manager` and the services of its shells."""
    JobIngest(jobs, Waits(effects.manager, streams, router), router)
    JobList(effects.manager, streams, router, effects.turns)
    JobInfoService(effects, streams, store, router)
    TaskService(inputs, router)
    JobManagerService(effects, jobs, router)


# ---- the instance

_NO_KVS = "fluxsched has no KVS; of a job ask `fluxsched job info` or `flux job info`"
ABSENT = {
    "kvs": _NO_KVS,
    "content": _NO_KVS,
    "log": "fluxsched has no ring buffer of messages; its log is the file `log` of its run directory, and its stderr",
    "event": "fluxsched publishes no events; watch `fluxsched top`, or one job by `flux job eventlog -f`",
    "rexec": "fluxsched runs commands in jobs only: `flux run`, or `fluxsched run`",
    "shutdown": "end this instance with `fluxsched stop`",
    "overlay": "fluxsched has no network of brokers; see `flux resource list`, or `fluxsched resource status`",
    "cron": "fluxsched has no cron; submit with --begin-time",
}
"""Services of Flux that stock commands request, with the replacements in this instance."""


class FluxInstanceService:
    """Serves `broker`, `attr`, `groups`, `state-machine` and Flux's `module.load`, as far as we have what they ask."""

    def __init__(
        self,
        instance: InstanceService,
        module: ResourceModule,
        load: Handler,
        age_s: Callable[[], float],
        router: Router,
    ) -> None:
        self._instance = instance
        self._load_policy = load
        self._age_s = age_s
        self._groups: dict[str, Callable[[], Idset]] = {
            "broker.online": lambda: module.report.online,
            "broker.torpid": lambda: module.report.status()["torpid"],
        }
        router.serve_local(
            {
                "broker.ping": lambda request: request.respond(ping_answer(request)),
                "state-machine.get": self._state,
                "state-machine.wait": lambda request: instance.when_ready(request.respond),
                "attr.list": self._attributes,
                "groups.get": self._group,
            }
        )
        router.serve_local({"module.load": self._load})
        router.absent_local(ABSENT)

    def _state(self, request: RpcRequest) -> None:
        request.respond(msg.StateResponse("run", self._age_s()))

    def _attributes(self, request: RpcRequest) -> None:
        request.respond(msg.AttributesResponse(sorted(self._instance.attributes)))

    def _group(self, request: RpcRequest) -> None:
        name = request.payload(msg.GroupRequest).name
        if name not in self._groups:
            raise Refused(f"group {name!r} is unknown; known: {', '.join(sorted(self._groups))}", errno.ENOENT)
        request.respond(msg.GroupResponse(str(self._groups[name]())))

    def _load(self, request: RpcRequest) -> None:
        """Load a policy as for all clients; refuse the path of a broker module, which cannot run in this instance."""
        if "path" in request.payload(FreeForm):
            remedy = "load a scheduler with `fluxsched module load`"
            raise Refused(f"modules of Flux are not loaded here: {remedy}", errno.ENOSYS)
        self._load_policy(request)


# ---- resources


class FluxResourceService:
    """Serves what is special of `resource`."""

    def __init__(self, resource: ResourceService, reload: Reload, router: Router, turns: Turns) -> None:
        self._resource = resource
        self._reload_from = reload
        self._waiting: dict[RpcRequest, int] = {}
        router.serve_local(
            {
                "resource.reload": self._reload,
                "resource.acquire-mute": self._mute,
                "resource.monitor-waitup": self._wait_up,
            }
        )
        router.serve_local({"sched.resource-status": resource.sched_status})
        router.on_lost(self._forget)
        turns.at_end(self._look)

    def _reload(self, request: RpcRequest) -> None:
        wanted = request.payload(ReloadFromRequest)
        if wanted.xml:
            raise InvalidValue(f"{wanted.path}: hwloc's XML is not read here, give an R file (flux R encode --xml)")
        self._reload_from(request, ReloadRequest(path=wanted.path, force=wanted.force))

    def _mute(self, request: RpcRequest) -> None:
        self._resource.mute()
        request.respond()

    def _wait_up(self, request: RpcRequest) -> None:
        wanted, size = request.payload(WaitUpRequest).up, len(self._resource.module.resources)
        if wanted > size:
            raise InvalidValue(f"{wanted} targets cannot be online: there are {size}")
        self._waiting[request] = wanted

    def _look(self) -> None:
        if self._waiting:
            online = len(self._resource.module.report.online)
            for request in [one for one, wanted in self._waiting.items() if wanted == online]:
                del self._waiting[request]
                request.respond()

    def _forget(self, peer: Peer) -> None:
        for request in [one for one in self._waiting if one.peer is peer]:
            del self._waiting[request]


# ---- `job-info`: logs and records of jobs

INITIAL_SENTINEL = 2
"""The flag that asks for an empty response where history ends."""
JSON_DECODE, CURRENT = 1, 2
"""Flags of a lookup request."""
LOOKUP_OUTPUT_BYTES_MAX = 1 << 20
"""Output in one lookup; more is followed. It is read and made into events in one go."""
OUTPUT_BYTES = 8 * 1024
"""Output made into events at a time: if every line is short, more than a thousand."""
PIECE_EVENTS = 64
"""Events that count like one more piece of output: a turn has room for some 2,000 (20 ms)."""

_encode = msgspec.json.encode


def line(event: Event) -> str:
    """Return an event in the form of a log."""
    return _encode(event).decode() + "\n"


def text_of(events: Iterable[Event]) -> str:
    """Return a log in the form of a record."""
    return "".join(map(line, events))


class _EventSender:
    """Sends events one by one, and marks the end of history once if that is wanted."""

    def __init__(self, request: RpcRequest, flags: int) -> None:
        self._request = request
        self._sentinel = bool(flags & INITIAL_SENTINEL)

    def send(self, events: Iterable[Event]) -> int:
        """Send the events; return their number."""
        count = 0
        for event in events:
            self._request.respond(msg.EventlogWatchResponse(line(event)))
            count += 1
        return count

    def end_history(self) -> None:
        if self._sentinel:
            self._sentinel = False
            self._request.respond()


class _FluxFollower(OutputFollower):
    """Follows a job's output as RFC 24 writes it."""

    def __init__(self, request: RpcRequest, jobid: int, log: OutputLog, flags: int) -> None:
        super().__init__(request, jobid, follow=True, chunk_bytes=OUTPUT_BYTES)
        self._log = log
        self._sender = _EventSender(request, flags)

    def begin_stream(self) -> None:
        self._sender.send(self._log.begin())

    def send(self, piece: OutputResponse) -> int:
        return self._sender.send(self._log.data(piece)) // PIECE_EVENTS

    def caught_up(self) -> None:
        self._sender.end_history()

    def end_stream(self) -> None:
        self._sender.send(self._log.end())
        self._sender.end_history()
        super().end_stream()


class JobInfoService:
    """Service of the `job-info` topics."""

    def __init__(self, effects: JobEffects, streams: JobStreams, store: Store, router: Router) -> None:
        self._effects = effects
        self._streams = streams
        self._store = store
        self._watches: dict[str, Callable[[RpcRequest, msg.EventlogWatchRequest], None]] = {
            "eventlog": self._watch_log,
            "guest.exec.eventlog": self._watch_exec,
            "guest.output": self._watch_output,
        }
        self._parts: dict[str, Callable[[int, Mapping[str, Any], int], object]] = {
            "eventlog": lambda jobid, record, flags: text_of(own_events(record["eventlog"])),
            "jobspec": _jobspec,
            "J": lambda jobid, record, flags: signed.wrap(_encode(record["jobspec"]), _userid(record)),
            "R": _resources,
            "guest.exec.eventlog": lambda jobid, record, flags: text_of(_executed(jobid, record)),
            "guest.output": self._output,
        }
        router.serve_local(
            {
                "job-info.lookup": self._lookup,
                "job-info.eventlog-watch": self._watch,
            }
        )

    # -- watching -----------------------------------------------------------------------------------------------

    def _watch(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.EventlogWatchRequest)
        watch = self._watches.get(wanted.path)
        if watch is None:
            raise Refused(f"a job has no log {wanted.path!r}; it has {', '.join(self._watches)}", errno.ENOENT)
        watch(request, wanted)

    def _watch_log(self, request: RpcRequest, wanted: msg.EventlogWatchRequest) -> None:
        self._follow(request, wanted, own_events)

    def _watch_exec(self, request: RpcRequest, wanted: msg.EventlogWatchRequest) -> None:
        def record() -> Mapping[str, Any]:
            return self._record(wanted.id)

        self._follow(request, wanted, lambda events: exec_events(wanted.id, events, record))

    def _follow(
        self,
        request: RpcRequest,
        wanted: msg.EventlogWatchRequest,
        translated: Callable[[list[Event]], Iterable[Event]],
    ) -> None:
        sender = _EventSender(request, wanted.flags)

        def send(events: list[Event]) -> None:
            sender.send(translated(events))
            sender.end_history()

        self._streams.follow_log(request, wanted.id, True, send)

    def _watch_output(self, request: RpcRequest, wanted: msg.EventlogWatchRequest) -> None:
        def begin(record: Mapping[str, Any]) -> None:
            log = OutputLog(wanted.id, record, lambda: self._time_s(wanted.id))
            self._streams.follow_output(_FluxFollower(request, wanted.id, log, wanted.flags))

        self._with_record(request, wanted.id, begin)

    def _time_s(self, jobid: int) -> float:
        """Return the latest time at which the data read now was written: the record of an ended job may have been
        stored only just now.
        """
        job = self._effects.manager.jobs.find(jobid)
        if job is not None:
            return job.t_cleanup or self._effects.now_s
        ended = stored_result(self._store, jobid)
        return self._effects.now_s if ended is None else ended.t_inactive

    # -- looking up ---------------------------------------------------------------------------------------------

    def _lookup(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.InfoLookupRequest)
        unknown = [key for key in wanted.keys if key not in self._parts]
        if unknown:
            raise Refused(f"{', '.join(unknown)}: key not found; a job has {', '.join(self._parts)}", errno.ENOENT)

        def answer(record: Mapping[str, Any]) -> None:
            parts = {key: self._parts[key](wanted.id, record, wanted.flags) for key in wanted.keys}
            request.respond({"id": wanted.id, **parts})

        self._with_record(request, wanted.id, answer)

    def _with_record(self, request: RpcRequest, jobid: int, use: Callable[[Mapping[str, Any]], None]) -> None:
        """Use the job's record once all decisions about it are on disk; a refusal is the request's error."""

        def ready() -> None:
            try:
                use(self._record(jobid))
            except FluxschedError as error:
                request.error(error.errnum, str(error))

        self._effects.after_commit(ready)

    def _record(self, jobid: int) -> Mapping[str, Any]:
        record = stored_job(self._store, jobid)
        if record is None:
            raise Refused(f"invalid job id: {format_f58(jobid)} is unknown", errno.ENOENT)
        return record

    def _output(self, jobid: int, record: Mapping[str, Any], flags: int) -> str:
        """Return all output so far as one text. Raises Refused or LimitExceeded."""
        if not any(event["name"] == "start" for event in record["eventlog"]):
            raise Refused(f"guest.output: key not found: job {format_f58(jobid)} has not started", errno.ENOENT)
        last_s = record["eventlog"][-1]["timestamp"]
        log = OutputLog(jobid, record, lambda: float(last_s))
        ended = record["eventlog"][-1]["name"] == "clean"
        data = (log.data(piece) for piece in self._pieces(jobid))
        return text_of(chain(log.begin(), chain.from_iterable(data), log.end() if ended else ()))

    def _pieces(self, jobid: int) -> Iterator[OutputResponse]:
        output = TaskOutput(spool_directory(self._effects.settings.spool, jobid))
        size = 0
        while not output.is_complete:
            for piece in output.bite(Budget(), ended=True):
                size += len(piece.data)
                if size > LOOKUP_OUTPUT_BYTES_MAX:
                    raise LimitExceeded(
                        f"guest.output: more than {LOOKUP_OUTPUT_BYTES_MAX} bytes: follow it (flux job attach)"
                    )
                yield piece


def _userid(record: Mapping[str, Any]) -> int:
    return int(record["eventlog"][0]["context"]["userid"])


def _executed(jobid: int, record: Mapping[str, Any]) -> Iterator[Event]:
    return exec_events(jobid, record["eventlog"], lambda: record)


def _jobspec(jobid: int, record: Mapping[str, Any], flags: int) -> object:
    """Return the jobspec without its environment, as Flux keeps it (the submitted one is in J)."""
    tree: dict[str, Any] = record["jobspec"]
    system = tree.get("attributes", {}).get("system", {})
    if "environment" in system:
        bare = {key: value for key, value in system.items() if key != "environment"}
        tree = with_path(tree, "attributes.system", bare)
    return _object(_updated(tree, record) if flags & CURRENT else tree, flags)


def _resources(jobid: int, record: Mapping[str, Any], flags: int) -> object:
    if record["R"] is None:
        raise Refused(f"R: key not found: job {format_f58(jobid)} has no resources yet", errno.ENOENT)
    tree = current_resources(jobid, record) if flags & CURRENT else record["R"]
    assert tree is not None, "a job that has its R has one after all changes"
    return _object(tree, flags)


def _updated(tree: dict[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a jobspec after all updates of it in the job's log."""
    for event in record["eventlog"]:
        if event["name"] == "jobspec-update":
            for path, value in event["context"].items():
                tree = with_path(tree, path, value)
    return tree


def _object(tree: dict[str, Any], flags: int) -> object:
    return tree if flags & JSON_DECODE else _encode(tree).decode()


# ---- eventlogs made of ours

VERSION = 1
"""Version of RFC 24's output log and of RFC 34's map of tasks."""
NUL = b"\0"


def event(timestamp: float, name: str, context: Mapping[str, Any] | None = None) -> Event:
    """Return an event in the form of RFC 18."""
    found: Event = {"timestamp": timestamp, "name": name}
    return found if context is None else {**found, "context": dict(context)}


def own_events(events: Iterable[Event]) -> Iterator[Event]:
    """Yield a job's own events in Flux's form: there a shell forwards the tasks' results."""
    for one in events:
        if one["name"] == "finish":
            one = event(one["timestamp"], "finish", {"status": shell_status(one["context"]["status"])})
        yield one


def task_counts(record: Mapping[str, Any]) -> list[int]:
    """Return the tasks of each target, in the order of their numbers; all in one where the job has no targets (yet)."""
    jobspec = Jobspec.parse(record["jobspec"])
    return [block.ntasks for block in _placed(jobspec, record)] or [jobspec.least_ntasks]


def all_tasks(record: Mapping[str, Any]) -> int:
    """Return the number of tasks that the job has had so far, including those of targets added later."""
    jobspec = Jobspec.parse(record["jobspec"])
    tasks = JobTasks(_placed(jobspec, record), by_target=True)
    for one in record["eventlog"] if tasks.blocks else ():
        with suppress(FluxschedError):  # they were too many, and not started
            if one["name"] == "grow":
                tasks.blocks += more_blocks(jobspec, ResourceSet.parse(one["context"]["R"]), tasks)
            elif one["name"] == "release" and one["context"]["ranks"] != "all":
                tasks.remove(Idset.parse(one["context"]["ranks"]))
    return tasks.next or jobspec.least_ntasks


def _placed(jobspec: Jobspec, record: Mapping[str, Any]) -> list[TaskBlock]:
    """Return the places of the job's tasks; empty if it never ran in this instance, or could not."""
    try:
        return blocks(jobspec, ResourceSet.parse(record["R"] or {}))
    except FluxschedError:
        return []


def taskmap(counts: Iterable[int]) -> list[list[int]]:
    """Return the map from tasks to targets as in RFC 34: runs of [first target, targets, tasks each, repeats]."""
    found, first = [], 0
    for count, run in groupby(counts):
        length = sum(1 for _ in run)
        found.append([first, length, count, 1])
        first += length
    return found


def exec_events(jobid: int, events: Iterable[Event], record: Callable[[], Mapping[str, Any]]) -> Iterator[Event]:
    """Yield the execution log for these events of a job; `record` is called once it has started."""
    service = task_service(jobid)
    for one in own_events(events):
        at_s, name = one["timestamp"], one["name"]
        if name == "alloc":
            yield event(at_s, "init")
            yield event(at_s, "starting")
        elif name == "start":
            counts = task_counts(record())
            yield event(at_s, "shell.init", {"service": service, "leader-rank": 0, "size": len(counts)})
            yield event(at_s, "shell.start", {"taskmap": {"version": VERSION, "map": taskmap(counts)}})
        elif name == "finish":
            yield event(at_s, "complete", {"status": one["context"]["status"]})
            yield event(at_s, "done")


class OutputLog:
    """Makes the events of one job's output."""

    def __init__(self, jobid: int, record: Mapping[str, Any], now_s: Callable[[], float]) -> None:
        self._tasks = all_tasks(record)
        self._files = redirected(jobid, record)
        self._now_s = now_s

    def begin(self) -> Iterator[Event]:
        """Yield the header, and an event for each stream that is sent to files of the user's choice."""
        now_s = self._now_s()
        count = dict.fromkeys(STREAM_NAMES, self._tasks)
        encoding = dict.fromkeys(STREAM_NAMES, "UTF-8")
        yield event(now_s, "header", {"version": VERSION, "encoding": encoding, "count": count, "options": {}})
        for stream, paths in self._files.items():
            for path, run in groupby(range(self._tasks), partial(_path_of, paths)):
                yield event(now_s, "redirect", {"stream": stream, "rank": str(Idset.of(run)), "path": path})

    def data(self, piece: OutputResponse) -> Iterator[Event]:
        """Yield a piece of output, a line an event: clients that label output label each event."""
        now_s, rank = self._now_s(), str(piece.task or 0)
        for line in _lines(piece.data):
            yield event(now_s, "data", {"stream": piece.stream, "rank": rank, **_encoded(line)})

    def end(self) -> Iterator[Event]:
        """Yield the ends of all tasks' streams."""
        now_s = self._now_s()
        for task in range(self._tasks):
            for stream in STREAM_NAMES:
                if stream not in self._files:
                    yield event(now_s, "data", {"stream": stream, "rank": str(task), "eof": True})


def redirected(jobid: int, record: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the files of the user's choice: one for all tasks, or one for each; that of stdout takes stderr too,
    unless that has its own.
    """
    jobspec = Jobspec.parse(record["jobspec"])
    placed = _placed(jobspec, record)
    tags = Tags(jobid, jobspec, placed, record["R"] or {})
    error = jobspec.output if jobspec.error is None else jobspec.error
    found = {}
    for stream, template in (("stdout", jobspec.output), ("stderr", error)):
        if template is not None:
            ntasks = 1 if is_shared(template) else sum(block.ntasks for block in placed) or jobspec.least_ntasks
            found[stream] = [tags.fill(template, task) for task in range(ntasks)]
    return found


def _path_of(paths: list[str], task: int) -> str:
    return paths[min(task, len(paths) - 1)]


def _lines(data: bytes) -> list[bytes]:
    """Return the lines, which end in newlines only: a carriage return within one is the program's own business."""
    *whole, rest = data.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest] if rest else lines


def _encoded(data: bytes) -> dict[str, str]:
    """Text as text, anything else in base64 (to clients in C a NUL is not text)."""
    if NUL not in data:
        try:
            return {"data": data.decode()}
        except UnicodeDecodeError:
            pass
    return {"encoding": "base64", "data": base64.b64encode(data).decode()}


# ---- `job-list`

PROTOCOL = 1
"""The version of the streaming list."""
LISTED_SLICE_JOBS = 200
"""Jobs described in one turn (some 2 ms), and sent in one response."""


class JobList:
    """Service of the `job-list` topics."""

    def __init__(self, manager: JobManager, streams: JobStreams, router: Router, turns: Turns) -> None:
        self._manager = manager
        self._streams = streams
        self._turns = turns
        self._router = router
        router.serve_local(
            {
                "job-list.list": self._list,
                "job-list.list-id": self._list_id,
                "job-list.list-attrs": self._list_attributes,
                "job-list.job-stats": self._stats,
            }
        )

    def _list(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.JobListRequest)
        names = checked_attributes(wanted.attrs)
        count = min(wanted.max_entries or LIST_ENTRIES_MAX, LIST_ENTRIES_MAX)
        since_s = nextafter(wanted.since, inf)  # Flux means those that ended later, we those that did not end earlier
        only = ("userid", self._router.permissions.sees_only(request))
        query = parse_query(wanted.constraint, only)._replace(max_entries=count, since_s=since_s)
        looking = in_flux_order(self._manager.jobs, query)
        if request.streaming:
            request.open_stream(lambda: None)
            in_steps(self._turns, request, looking, lambda found: self._send(request, deque(found), names, PROTOCOL))
        else:
            in_steps(self._turns, request, looking, lambda found: request.respond(_described(found, names)))

    def _send(self, request: RpcRequest, jobs: deque[JobSummary], names: tuple[str, ...], version: int | None) -> None:
        if not request.is_open:
            return
        some = [jobs.popleft() for _ in range(min(LISTED_SLICE_JOBS, len(jobs)))]
        if some:
            request.respond(_described(some, names, version))
        if jobs:
            self._turns.post(lambda: self._send(request, jobs, names, None))
        else:
            request.finish()

    def _list_id(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.JobListIdRequest)
        names = checked_attributes(wanted.attrs)
        try:
            job = self._manager.jobs.get(wanted.id)
        except FluxschedError:
            request.error(errno.ENOENT)  # without a text, by which `flux jobs` knows an unknown id
            return

        def look(_: object) -> None:
            if job.state >= wanted.state:
                request.respond(msg.JobListIdResponse(flux_attributes(job, names)))
                self._streams.unsubscribe(job.id, request)

        if job.state >= wanted.state:
            look(None)
        else:
            self._streams.subscribe(job.id, request, look)

    def _list_attributes(self, request: RpcRequest) -> None:
        request.respond(msg.JobAttributesResponse([*FLUX_ATTRIBUTES, ALL_ATTRIBUTES]))

    def _stats(self, request: RpcRequest) -> None:
        tally = tally_jobs(self._manager.jobs, self._manager.queues)
        in_steps(self._turns, request, tally, lambda found: request.respond(_stats_of(found)))


def _described(jobs: Iterable[JobSummary], names: tuple[str, ...], version: int | None = None) -> msg.JobListResponse:
    return msg.JobListResponse([flux_attributes(job, names) for job in jobs], version)


def _stats_of(queues: dict[str | None, Tally]) -> msg.JobStatsResponse:
    named = [msg.QueueJobs(name=name, **_figures(found)) for name, found in queues.items() if name is not None]
    return msg.JobStatsResponse(queues=named, **_figures(total_tally(queues)))


def _figures(found: Tally) -> dict[str, Any]:
    """Return a tally in the words of `job-list.job-stats`."""
    names = [name for name in msg.JobStates.__struct_fields__ if name != "total"]
    states = {name: found.states[name.upper()] for name in names}
    return {
        "job_states": msg.JobStates(**states, total=sum(states.values())),
        "successful": found.results["COMPLETED"],
        "failed": found.results["FAILED"],
        "canceled": found.results["CANCELED"],
        "timeout": found.results["TIMEOUT"],
    }
