"""The link to a real Flux, over its local socket: jobs by name with job-list, targets by resource.sched-status, those
of the queue by what config.get says that it requires.

Flux has no submit that is done once by name: what there is is listed before anything is submitted, and a second job of
a name is cancelled when it is seen. Looks are taken every POLL_S, since one look tells of all jobs.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jsontext import with_path
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import FluxschedError, RemoteProtocolError, RPCError
from fluxsched.leases.lease import Lease, SeenJob, holder_of
from fluxsched.leases.states import LeaseEvent
from fluxsched.protocol.framing import signed
from fluxsched.runtime.clusters.connection import ClusterConnection
from fluxsched.runtime.clusters.link import LinkEvents, TakeOutput, why_closed

POLL_S = 0.2
"""How often jobs are looked at while there are leases (seconds)."""
TARGETS_S = 2.0
"""How often targets are (seconds)."""
SETTLE_S = 0.5
"""How long after a connection is made jobs are listed first: job-list hears of a submit a little later (seconds)."""
OUTPUT_KEY = "guest.output"
QUEUE = "queue"
"""The group of the targets that jobs of the queue there can get."""
SCHED, CLEANUP, INACTIVE = 8, 32, 64
"""Bits of RFC 21's states."""
ATTRS = ["name", "state", "t_run", "nodelist", "waitstatus", "exception_occurred", "exception_type", "exception_note"]

Json = dict[str, Any]


class FluxJob(msgspec.Struct, frozen=True):
    """What job-list tells of a job."""

    id: int
    name: str = ""
    state: int = 0
    t_run: float = 0.0
    nodelist: str = ""
    waitstatus: int = -1
    exception_type: str = ""
    exception_note: str = ""


class FluxJobs(msgspec.Struct, frozen=True):
    """The answer of `job-list.list`."""

    jobs: list[FluxJob]


class FluxQueue(msgspec.Struct, frozen=True):
    """The answer of `job-manager.queue-status`."""

    enable: bool = True
    start: bool = True
    disable_reason: str | None = None
    stop_reason: str | None = None


class FluxLink:
    """A `ClusterLink` to a real Flux."""

    def __init__(
        self,
        connection: ClusterConnection,
        events: LinkEvents,
        holder: str,
        names: Callable[[], Iterable[str]],
        queue: str | None,
    ) -> None:
        self._connection = connection
        self._events = events
        self._holder = holder
        self._names = names
        self._queue = queue
        self._is_listed = False
        self._known: dict[int, FluxJob] = {}
        self._outputs: dict[int, tuple[TakeOutput, Callable[[str | None], None]]] = {}

    def begin(self) -> None:
        """See `ClusterLink`."""
        self._events.reaches(None)
        self._connection.later(SETTLE_S, self._look)
        self._look_at_targets()

    # -- looking

    def _look(self) -> None:
        names = [*self._names(), *(job.name for job in self._known.values() if job.id in self._outputs)]
        if self._is_listed and not names:
            self._connection.later(POLL_S, self._look)
            return
        active: list[Json] = [] if self._is_listed else [{"states": ["PENDING", "RUNNING"]}]
        constraint: Json = {"or": [*active, *([{"name": sorted(set(names))}] if names else [])]}
        request = {"max_entries": 0, "attrs": ATTRS, "constraint": constraint}
        self._connection.ask("job-list.list", request, self._jobs)

    def _jobs(self, payload: bytes | None, error: RPCError | None) -> None:
        if error is not None:
            self._connection.lose(f"job-list.list: {error}")
            return
        ours = [job for job in _read(payload, FluxJobs).jobs if holder_of(job.name) == self._holder]
        changed = [job for job in ours if self._known.get(job.id) != job]
        self._known = {job.id: job for job in ours}
        seen = [_seen(job) for job in sorted(changed, key=lambda job: job.id)]
        if self._is_listed:
            self._events.changed(seen)
        else:
            self._is_listed = True
            self._events.listed(seen)
        for job in changed:
            if job.state == INACTIVE and job.id in self._outputs:
                self._fetch(job.id)
        self._connection.later(POLL_S, self._look)

    def _look_at_targets(self) -> None:
        queue = {} if self._queue is None else {"name": self._queue}
        self._connection.ask("job-manager.queue-status", queue, self._queue_status)
        self._connection.ask("config.get", {}, self._configured)

    def _configured(self, payload: bytes | None, error: RPCError | None) -> None:
        if error is not None:
            self._connection.lose(f"config.get: {error}")
            return
        required = required_of(_read(payload, dict[str, Any]), self._queue)
        self._connection.ask("resource.sched-status", {}, partial(self._targets, required))

    def _targets(self, required: Sequence[str], payload: bytes | None, error: RPCError | None) -> None:
        if error is not None:
            self._connection.lose(f"resource.sched-status: {error}")
            return
        parts = _read(payload, dict[str, Any])
        everything = _resources(parts, "all")
        whole, down, allocated = everything.ranks, _resources(parts, "down").ranks, _resources(parts, "allocated").ranks
        states = {"free": str(whole - down - allocated), "allocated": str(allocated - down), "offline": str(down)}
        for name in required:
            whole &= everything.properties.get(name, EMPTY)
        self._events.reaches((QUEUE,) if required else None)
        self._events.machine(parts.get("all"), states, {QUEUE: str(whole)})
        self._connection.later(TARGETS_S, self._look_at_targets)

    def _queue_status(self, payload: bytes | None, error: RPCError | None) -> None:
        """An error says that there is no default queue: then it is unknown which one will get a job."""
        why = ""
        if error is None:
            queue = _read(payload, FluxQueue)
            why = why_closed("its queue", queue.enable, queue.disable_reason, queue.start, queue.stop_reason)
        self._events.closed(why)

    # -- what is asked

    def submit(self, lease: Lease) -> None:
        """See `ClusterLink`. The job's name is the lease's."""
        jobspec = with_path(lease.jobspec, "attributes.system.job.name", lease.name)
        jobspec["attributes"]["system"].pop("fluxsched", None)
        name = lease.name

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is None:
                job = _read(payload, FluxJob)
                self._events.changed([SeenJob(name, job.id, LeaseEvent.WAITING)])
            else:
                self._events.refused(name, str(error), passes=False)

        text = signed.wrap(msgspec.json.encode(jobspec), os.geteuid())
        self._connection.ask("job-ingest.submit", {"J": text, "urgency": lease.urgency, "flags": 0}, answered)

    def withdraw(self, name: str, jobid: int) -> None:
        """See `ClusterLink`: held first, which is refused once it has its resources, then cancelled."""

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is None:
                self.cancel(name, jobid, "its lease was withdrawn")

        if jobid:
            self._connection.ask("job-manager.urgency", {"id": jobid, "urgency": 0}, answered)

    def cancel(self, name: str, jobid: int, note: str) -> None:
        """See `ClusterLink`."""
        if jobid:
            request = {"id": jobid, "type": "cancel", "severity": 0, "note": note}
            self._connection.ask("job-manager.raise", request, _ignored)

    def signal(self, jobid: int, signum: int) -> None:
        """See `ClusterLink`."""
        self._connection.ask("job-manager.kill", {"id": jobid, "signum": signum}, _ignored)

    def limit(self, jobid: int, duration_s: float) -> None:
        """See `ClusterLink`."""
        updates = {"attributes.system.duration": duration_s}
        self._connection.ask("job-manager.update", {"id": jobid, "updates": updates}, _ignored)

    def settle(self, names: Sequence[str]) -> None:
        """See `ClusterLink`: job-list keeps them as long as all others."""

    def output(self, jobid: int, take: TakeOutput, ended: Callable[[str | None], None]) -> None:
        """See `ClusterLink`: once the job has ended."""
        self._outputs[jobid] = take, ended
        known = self._known.get(jobid)
        if known is not None and known.state == INACTIVE:
            self._fetch(jobid)

    def _fetch(self, jobid: int) -> None:
        take, ended = self._outputs.pop(jobid)

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is None:
                for line in str(_read(payload, dict[str, Any]).get(OUTPUT_KEY, "")).splitlines():
                    _take(line, take)
            ended(None)

        request = {"id": jobid, "keys": [OUTPUT_KEY], "flags": 0}
        self._connection.ask("job-info.lookup", request, answered)


def _seen(job: FluxJob) -> SeenJob:
    if job.state != INACTIVE:
        begun = LeaseEvent.BEGUN if job.t_run else LeaseEvent.WAITING
        return SeenJob(job.name, job.id, begun, nodelist=job.nodelist)
    what = LeaseEvent.FINISHED if job.t_run else LeaseEvent.REFUSED
    why = job.exception_type, job.exception_note
    return SeenJob(job.name, job.id, what, job.waitstatus, *why, nodelist=job.nodelist)


def _take(line: str, take: TakeOutput) -> None:
    """One event of a job's output (RFC 24)."""
    event = _read(line.encode(), dict[str, Any])
    context = event.get("context", {})
    if event.get("name") != "data" or not context.get("data"):
        return
    text = context["data"]
    data = base64.b64decode(text) if context.get("encoding") == "base64" else text.encode()
    ranks = Idset.parse(str(context.get("rank", "0")))
    for rank in ranks:
        take(context["stream"], data * int(context.get("repeat", 1)), rank)


def required_of(config: Mapping[str, Any], queue: str | None) -> Sequence[str]:
    """Return the properties that all targets of a queue have by Flux's configuration (flux-config-queues(5)).

    Without a queue it is that of the default queue, if there is one.
    """
    name = queue if queue is not None else _at(config, "policy", "jobspec", "defaults", "system", "queue")
    required = _at(config, "queues", name, "requires") if isinstance(name, str) else None
    return tuple([each for each in required if isinstance(each, str)]) if isinstance(required, list) else ()


def _at(table: object, *keys: str) -> object:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def _resources(parts: Mapping[str, Any], name: str) -> ResourceSet:
    found = parts.get(name)
    return ResourceSet.parse(found) if isinstance(found, Mapping) and found.get("execution") else EMPTY_R


def _read(payload: bytes | None, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode((payload or b"{}").rstrip(b"\0"), type=kind)
    except msgspec.MsgspecError as fault:
        raise RemoteProtocolError(f"an answer of Flux: {fault}") from None


def _ignored(payload: bytes | None, error: FluxschedError | None) -> None:
    """What follows is seen at the next look."""
