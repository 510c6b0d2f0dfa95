"""Links to other instances: one of ours by `lease.*` and `resource.watch`, or a real Flux by what its broker serves.

Flux has no submit that is done once by name: what there is is listed before anything is sent. Law: a callback is called
once for each answer that comes, and for none after `close`; the opener of the connection learns once that it is lost,
whatever the other side sends or does not.
"""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from fluxsched.client.calls import InstanceCalls
from fluxsched.client.find import key_for
from fluxsched.core import jobspec as signed
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.core.text import with_path
from fluxsched.errors import FluxschedError, RemoteProtocolError, RPCError
from fluxsched.leases import Lease, LeaseEvent, SeenJob, holder_of
from fluxsched.protocol import framing
from fluxsched.protocol.framing import Message, encode, pack_bundles
from fluxsched.protocol.messages import jobs
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.common import Empty
from fluxsched.protocol.messages.instance import MachineChange
from fluxsched.protocol.sessions import Answer
from fluxsched.system.loop import Turns
from fluxsched.transport.base import Client
from fluxsched.transport.local import connect_local
from fluxsched.transport.zeromq import ZmqClient

TakeOutput = Callable[[str, bytes, int], None]
"""Takes a piece of output: its stream, the data, the task."""


class LinkEvents(Protocol):
    """Events of a link, delivered in turns."""

    def listed(self, jobs: Sequence[SeenJob]) -> None:
        """Take the complete list of our jobs there."""
        ...

    def changed(self, jobs: Sequence[SeenJob]) -> None:
        """Take the jobs that have changed."""
        ...

    def refused(self, name: str, note: str, *, passes: bool) -> None:
        """Report that a job is refused; `passes`: only at present."""
        ...

    def closed(self, why: str) -> None:
        """Why it accepts or starts no jobs of ours at present; empty if it does."""
        ...

    def displaced(self) -> None:
        """Report that another instance holds our leases there."""
        ...

    def turned_away(self, name: str, note: str) -> None:
        """Report that a job is refused since none is accepted at present."""
        ...

    def absent(self, name: str) -> None:
        """Report that there is no job of this name, and none under way."""
        ...

    def machine(
        self,
        R: Mapping[str, Any] | None,  # noqa: N803 - RFC 20's name
        states: Mapping[str, str] | None,
        groups: Mapping[str, str] | None,
    ) -> None:
        """Take the changes of the other instance's targets."""
        ...

    def reaches(self, groups: tuple[str, ...] | None) -> None:
        """Take the groups whose targets jobs of ours can have there (None: all)."""
        ...


class ClusterLink(Protocol):
    """Speaks with one instance over one connection. What it asks for and gets no answer to, it tells nothing of."""

    def begin(self) -> None:
        """Ask which jobs and targets there are, and follow them."""
        ...

    def submit(self, lease: Lease) -> None:
        """Submit the lease, once by its name."""
        ...

    def withdraw(self, name: str, jobid: int) -> None:
        """Cancel a job unless it was begun."""
        ...

    def cancel(self, name: str, jobid: int, note: str) -> None:
        """Cancel a job of the other instance."""
        ...

    def signal(self, jobid: int, signum: int) -> None:
        """Signal the tasks of a job."""
        ...

    def limit(self, jobid: int, duration_s: float) -> None:
        """Give a job another time limit, counted from its start."""
        ...

    def settle(self, names: Sequence[str]) -> None:
        """Have the other instance forget these names."""
        ...

    def output(self, jobid: int, take: TakeOutput, ended: Callable[[str | None], None]) -> None:
        """Follow the output of a job's tasks; `ended` is called once all was taken, or with the reason why there is no
        more.
        """
        ...


def why_closed(
    title: str, is_enabled: bool, why_disabled: str | None, is_started: bool, why_stopped: str | None
) -> str:
    """Why a queue accepts no jobs, or starts none; empty if it does both."""
    if not is_enabled:
        return f"{title} accepts none: {why_disabled or 'it is disabled'}"
    return "" if is_started else f"{title} is stopped: {why_stopped or 'no reason is given'}"


# ---- links to instances of ours

CLOSED_S = 0.2
"""Interval of checking a queue that does not start jobs, as while the other instance starts, for which jobs wait
(seconds).
"""

PASSING = frozenset((errno.EAGAIN, errno.ESHUTDOWN, errno.ENOSPC, errno.EIO, errno.EBUSY, errno.ETIMEDOUT))
"""Errors of a submit that pass: it is tried again."""

REFUSED = {
    errno.ENOSYS: "it takes no leases: its fluxsched is too old",
    errno.EPERM: "only its owner has leases there: connect as its user, or by tcp with a key of the role owner",
    errno.ESTALE: "a later start of this state has used it: stop the other instance that has a copy of it; where "
    "there is none, the clock here was behind at this start: set it right and restart, or restart the cluster",
}
"""Texts for refusals of `lease.watch`, by errno."""


class OwnLink:
    """A `ClusterLink` to an instance of ours."""

    def __init__(
        self,
        connection: ClusterConnection,
        events: LinkEvents,
        holder: str,
        session: int,
        queue: str | None,
        pace: ClusterPace,
    ) -> None:
        self._pace = pace
        self._connection = connection
        self._events = events
        self._holder = holder
        self._session = session
        self._queue = queue
        self._listed: list[SeenJob] | None = []

    def begin(self) -> None:
        """Begin as in `ClusterLink`. The queue is requested first, since it determines which targets count."""
        self._ask_queue(self._begin_queue)
        watch = msg.LeaseWatchRequest(self._holder, self._session)
        self._connection.ask("lease.watch", watch, self._leases, streaming=True)

    def _ask_queue(self, take: Callable[[jobs.QueueStatus | None], None]) -> None:
        """Call `take` with the status of the queue that gets our jobs; None if there is no default queue there."""

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is not None and self._queue is not None:
                self._connection.lose(f"queue {self._queue!r} there: {error}")
            else:
                take(None if error is not None else read(payload, jobs.QueueStatus))

        self._connection.ask("job-manager.queue-status", jobs.QueueStatusRequest(self._queue), answered)

    def _begin_queue(self, status: jobs.QueueStatus | None) -> None:
        self._events.reaches(None if status is None else tuple(status.groups or (status.group,)))
        self._connection.ask("resource.watch", Empty(), self._machine, streaming=True)
        self._look_at(status)

    def _look(self) -> None:
        self._ask_queue(self._look_at)

    def _look_at(self, status: jobs.QueueStatus | None) -> None:
        why = "" if status is None else _why_closed(status)
        self._events.closed(why)
        self._connection.later(CLOSED_S if why else self._pace.queue_s, self._look)

    def _machine(self, payload: bytes | None, error: RPCError | None) -> None:
        if error is not None:
            self._connection.lose(f"resource.watch: {error}")
            return
        change = read(payload, MachineChange)
        groups = None if change.groups is None else {group.name: group.targets for group in change.groups}
        self._events.machine(change.R, change.states, groups)

    def _leases(self, payload: bytes | None, error: RPCError | None) -> None:
        if error is not None and error.errnum == errno.ESTALE and self._listed is None:
            self._events.displaced()
            return
        if error is not None:
            self._connection.lose(REFUSED.get(error.errnum, str(error)))
            return
        answer = read(payload, msg.LeaseWatchResponse)
        seen = [_seen_lease(one) for one in answer.leases]
        if self._listed is None:
            self._events.changed(seen)
            return
        self._listed += seen
        if answer.whole:
            listed, self._listed = self._listed, None
            self._events.listed(listed)

    def submit(self, lease: Lease) -> None:
        name = lease.name

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is None:
                jobid = read(payload, msg.LeaseSubmitResponse).id
                self._events.changed([SeenJob(name, jobid, LeaseEvent.WAITING)])
            elif error.errnum in PASSING:
                self._events.refused(name, str(error), passes=True)
            elif error.errnum != errno.ESTALE:  # else a later session has begun, which will list what there is
                self._ask_queue(lambda status: self._refused(name, str(error), status))

        request = msg.LeaseSubmitRequest(name, self._session, lease.jobspec, lease.urgency)
        self._connection.ask("lease.submit", request, answered)

    def _refused(self, name: str, note: str, status: jobs.QueueStatus | None) -> None:
        """Report the refusal of a job; that of a queue that accepts no jobs at all is not about this one."""
        if status is not None and not status.enable:
            self._events.closed(_why_closed(status))
            self._events.turned_away(name, note)
        else:
            self._events.refused(name, note, passes=False)

    def withdraw(self, name: str, jobid: int) -> None:
        """See `ClusterLink`: in one step there, so it either was begun or never will be."""

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is not None and error.errnum == errno.ENOENT:
                self._events.absent(name)

        self._connection.ask("lease.withdraw", msg.LeaseWithdrawRequest(name, self._session), answered)

    def cancel(self, name: str, jobid: int, note: str) -> None:
        """See `ClusterLink`. Where the id is not known yet it is withdrawn, and cancelled when it is."""
        if jobid:
            self._connection.ask("job-manager.cancel", jobs.JobCancelRequest(jobid, note), _ignored)
        else:
            self.withdraw(name, jobid)

    def signal(self, jobid: int, signum: int) -> None:
        self._connection.ask("job-manager.kill", jobs.KillRequest(jobid, signum), _ignored)

    def limit(self, jobid: int, duration_s: float) -> None:
        updates: dict[str, Any] = {"attributes.system.duration": duration_s}
        self._connection.ask("job-manager.update", jobs.UpdateRequest(jobid, updates), _ignored)

    def settle(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), msg.LEASE_NAMES_MAX):
            some = list(names[start : start + msg.LEASE_NAMES_MAX])
            self._connection.ask("lease.settle", msg.LeaseSettleRequest(some), _ignored)

    def output(self, jobid: int, take: TakeOutput, ended: Callable[[str | None], None]) -> None:
        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is None:
                piece = read(payload, jobs.OutputResponse)
                take(piece.stream, piece.data, piece.task or 0)
            else:
                ended(None if error.errnum == errno.ENODATA else str(error))

        self._connection.ask("job-manager.output", jobs.OutputRequest(jobid, True), answered, streaming=True)


def _why_closed(status: jobs.QueueStatus) -> str:
    title = "its queue" if status.name is None else f"its queue {status.name}"
    return why_closed(title, status.enable, status.enable_reason, status.start, status.start_reason)


def _seen_lease(one: msg.LeaseInfo) -> SeenJob:
    if one.state == "waiting":
        return SeenJob(one.name, one.id, LeaseEvent.WAITING)
    if one.state == "running":
        return SeenJob(one.name, one.id, LeaseEvent.BEGUN, nodelist=one.nodelist or "")
    what = LeaseEvent.FINISHED if one.began else LeaseEvent.REFUSED
    usage = None if one.usage is None else msgspec.to_builtins(one.usage)
    status = -1 if one.status is None else one.status
    return SeenJob(one.name, one.id, what, status, one.exception or "", one.note, usage, one.nodelist or "")


# ---- links to Flux

POLL_S = 0.2
"""Interval of checking jobs while there are leases (seconds)."""
TARGETS_S = 2.0
"""Interval of checking targets (seconds)."""
SETTLE_S = 0.5
"""Delay between making a connection and the first list of jobs (seconds): job-list learns of a submit a little later.
"""
OUTPUT_KEY = "guest.output"
QUEUE = "queue"
"""The group of the targets that jobs of the queue there can get."""
SCHED, CLEANUP, INACTIVE = 8, 32, 64
"""Bits of RFC 21's states."""
ATTRS = ["name", "state", "t_run", "nodelist", "waitstatus", "exception_occurred", "exception_type", "exception_note"]

Json = dict[str, Any]


class FluxJob(msgspec.Struct, frozen=True):
    """Job as reported by job-list."""

    id: int
    name: str = ""
    state: int = 0
    t_run: float = 0.0
    nodelist: str = ""
    waitstatus: int = -1
    exception_type: str = ""
    exception_note: str = ""


class FluxJobs(msgspec.Struct, frozen=True):
    """Response of `job-list.list`, with the jobs."""

    jobs: list[FluxJob]


class FluxQueue(msgspec.Struct, frozen=True):
    """Response of `job-manager.queue-status` for a queue."""

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
        seen = [_seen_flux_job(job) for job in sorted(changed, key=lambda job: job.id)]
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
        whole, allocated = everything.ranks, _resources(parts, "allocated").ranks
        down = whole - (everything - _resources(parts, "down")).ranks
        states = {"free": str(whole - down - allocated), "allocated": str(allocated - down), "offline": str(down)}
        for name in required:
            whole &= everything.properties.get(name, EMPTY)
        self._events.reaches((QUEUE,) if required else None)
        self._events.machine(parts.get("all"), states, {QUEUE: str(whole)})
        self._connection.later(TARGETS_S, self._look_at_targets)

    def _queue_status(self, payload: bytes | None, error: RPCError | None) -> None:
        """Take the status of the default queue; an error means that there is none: then it is unknown which one will
        get a job.
        """
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
        if jobid:
            request = {"id": jobid, "type": "cancel", "severity": 0, "note": note}
            self._connection.ask("job-manager.raise", request, _ignored)

    def signal(self, jobid: int, signum: int) -> None:
        self._connection.ask("job-manager.kill", {"id": jobid, "signum": signum}, _ignored)

    def limit(self, jobid: int, duration_s: float) -> None:
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


def _seen_flux_job(job: FluxJob) -> SeenJob:
    if job.state != INACTIVE:
        begun = LeaseEvent.BEGUN if job.t_run else LeaseEvent.WAITING
        return SeenJob(job.name, job.id, begun, nodelist=job.nodelist)
    what = LeaseEvent.FINISHED if job.t_run else LeaseEvent.REFUSED
    why = job.exception_type, job.exception_note
    return SeenJob(job.name, job.id, what, job.waitstatus, *why, nodelist=job.nodelist)


def _take(line: str, take: TakeOutput) -> None:
    """Take one event of a job's output (RFC 24)."""
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
    """Discard a response: the watch, or the next poll, shows its effect."""


# ---- connections with pauses between attempts

RECEIVE_MAX = 256
"""Messages handled in one go: a millisecond or two of a turn."""

TakeAnswer = Callable[[bytes | None, RPCError | None], None]
"""Takes the payload of an answer, or its error."""


class ClusterPace(NamedTuple):
    """Intervals of looking for other instances and of requests to them (seconds); tests use shorter ones."""

    reconnect_s: float = 1.0
    """Delay after a loss before the client looks for the other instance again."""
    resubmit_s: float = 1.0
    """Delay after a temporary refusal before a lease is submitted again."""
    listen_s: float = 5.0
    """Interval of checking that a message has arrived from the other instance, which is sent a request every two
    seconds. A broken network is noticed sooner; this check detects an instance that is stopped or hangs.
    """
    queue_s: float = 2.0
    """Interval of checking whether the other instance's queue accepts and starts jobs."""
    occupied_s: float = 1.0
    """Time for which targets must be in use by others before they are offline in this instance."""


class ClusterConnection(InstanceCalls):
    """Requests to the other instance, and their answers."""

    def __init__(self, client: Client, turns: Turns, lost: Callable[[str], None], *, json: bool = False) -> None:
        super().__init__()
        self._json = json
        """True if the other side accepts single messages with JSON, as Flux does."""
        self._client = client
        self._turns = turns
        self._lost: Callable[[str], None] | None = lost
        self._outbox: list[Message] = []
        self.received = 0
        turns.attach(client.start)

    def ask(self, topic: str, payload: object, answered: TakeAnswer, *, streaming: bool = False) -> int:
        """Send a request; its matchtag. Every answer is given to `answered`."""

        def take(answer: Answer) -> None:
            answered(answer.payload, answer.error)

        if self._json:
            text = msgspec.json.encode({} if payload is None else payload) + b"\0"
            message = self.calls.start(topic, text, streaming, take)
        else:
            message = self.start(topic, payload, take, streaming=streaming)
        if not self._outbox:
            self._turns.post(self._flush)
        self._outbox.append(message)
        return message.matchtag

    def take(self) -> bool:
        """Handle the messages that have arrived; return whether there may be more.

        A message that cannot be understood ends the connection.
        """
        if self._lost is None:
            return False
        frames = self._client.receive(RECEIVE_MAX)
        try:
            for one in frames:
                self.received += 1
                self.receive(one)
                if self._lost is None:
                    return False
        except FluxschedError as fault:
            self.lose(f"its messages cannot be decoded: {fault}")
            return False
        if self._client.lost is not None:
            self.lose(self._client.lost)
        return len(frames) == RECEIVE_MAX

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run `call` after a delay, unless the connection is lost by then."""
        self._turns.after(delay_s, lambda: call() if self._lost is not None else None)

    def lose(self, reason: str) -> None:
        """Close the connection and report it as lost, with the reason."""
        lost = self._lost
        self.close()
        if lost is not None:
            lost(reason)

    def close(self) -> None:
        """End the connection; nothing is called any more."""
        if self._lost is not None:
            self._flush()
            self._lost = None
            self.calls.abandon()
            self._client.close()

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if self._lost is None or not messages:
            return
        try:
            for frames in map(encode, messages) if self._json else pack_bundles(messages):
                self._client.send(frames)
        except FluxschedError as fault:
            self.lose(str(fault))


def read(payload: bytes | None, kind: type[Any]) -> Any:
    """Return a decoded payload of the other instance. Raises RemoteProtocolError."""
    return framing.unpack(payload, kind)


# ---- the other instance

LOST_AFTER_MS = 3_000
"""Time without any message, heartbeats included, after which a connection over tcp counts as lost (milliseconds)."""


def connect_peer(uri: str, key: str | None) -> Client:
    """Connect to an instance, with the key in a file where its address names the key of a server.

    Raises FluxschedError if nothing listens there, or there is no such key.
    """
    if uri.startswith("local://"):
        return connect_local(uri)
    return ZmqClient(uri, keys=key_for(uri, key), lost_after_ms=LOST_AFTER_MS)
