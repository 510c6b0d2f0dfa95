"""The scheduler module as a process: its session over one connection to the instance, in turns.

Law: an error answer to acquire, release, hello or ready is logged and ends the module; so does an exception of the
policy. The instance reports it, and a new module continues from hello. The host knows bytes, messages and turns; what
is said when is the session's business, and what is scheduled where is that of the `sched` package. What is expensive to
read is left as it came: a jobspec as its bytes, which are looked up among those read before, and of the R in a free
only what names resources.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from fluxsched.errors import FluxschedError, RPCError
from fluxsched.messaging.memo import JobspecMemo
from fluxsched.protocol import framing
from fluxsched.protocol.framing import (
    NORESPONSE,
    REQUEST,
    RESPONSE,
    Message,
    decode,
    make_error,
    make_response,
    pack_bundles,
    unpack_bundle,
)
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.instance import PlanRequest, SchedReasonsRequest
from fluxsched.protocol.messages.jobs import AccountsRequest
from fluxsched.protocol.sessions import AcquireClient, Calls
from fluxsched.sched.decisions import (
    Annotated,
    Canceled,
    DecisionRefused,
    Denied,
    Granted,
    Grown,
    PluginFailed,
    Raise,
    Shrunk,
)
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.loading import join_plugins, policy_line
from fluxsched.sched.registry import join_queues
from fluxsched.scheduler.session import (
    HELLO,
    READY,
    Effects,
    ErrorResponse,
    Fatal,
    Log,
    OutgoingRequest,
    ReadyToExit,
    Respond,
    SchedulerSession,
)
from fluxsched.system.log import exception_text, left, logger
from fluxsched.system.loop import CONSIDERED_S, SHORT_S, Histogram, Timer, Turns
from fluxsched.transport.base import Client

log = logger("sched")

RECEIVE_MAX = 4
"""Frames taken from the socket at a time; each may be a bundle of hundreds of messages."""
READ_MAX = 4096
"""Messages read in one turn: within 12 ms."""
KEPT_MAX = 200_000
"""Messages kept with which no more are read. Questions behind a backlog of jobs are found and answered at once; the
jobs themselves would be kept as well once they are handled.
"""
HANDLED_MIN = 512
"""Messages handled in a turn whose time went into reading as many as it may: 10 ms, or a burst would starve them."""
SLICE_MESSAGES = 16
"""Messages handled between two looks at the clock."""
LEAVE_S = 3.0
"""Maximum time for storing the last state (seconds): less than the instance waits before it kills this process."""
PASS_SLICE_S = 0.005
"""Time for which a pass decides before requests are answered (seconds), which takes less than 20 ms."""


class SchedulerHost:
    """Joins one `Scheduler` to an instance over one connection."""

    def __init__(
        self,
        client: Client,
        scheduler: Scheduler,
        groups: tuple[str, ...],
        turns: Turns,
        name: str,
        on_end: Callable[[str | None], None],
    ) -> None:
        """`on_end` is called once: with None when the host has left in good order, else with the reason."""
        self.scheduler = scheduler
        self.name = name
        self.is_over = False
        self._on_end = on_end
        streams = {group: AcquireClient(group) for group in groups}
        self.session = SchedulerSession(scheduler, streams, JobspecMemo().read)
        self._groups = groups
        self._client = client
        self._turns = turns
        self._calls = Calls()
        self._outbox: list[Message] = []
        self._own: dict[str, Callable[[Message], None]] = {f"{name}.stats-get": self._stats, f"{name}.ping": self._ping}
        self._readers: dict[str, Callable[[bytes | None], Any]] = {}
        """Readers of requests by topic, made when a request comes."""
        self._pass_s = Histogram(SHORT_S)
        self._considered_s = Histogram(CONSIDERED_S)
        self._slices_s = 0.0
        """Time that the slices of the pass under way have taken."""
        self._notice: Timer | None = None
        self._next_notice_s = inf
        turns.source(self._take)
        turns.at_end(self._schedule)
        turns.at_end(self._flush)

    def start(self) -> None:
        """Begin the conversation: register the module's own service name, then acquire."""
        self._send(self._calls.start("service.add", framing.pack({"service": self.name})))
        self._perform(self.session.start())

    # ---- effects

    def _perform(self, effects: Effects) -> None:
        for one in effects:
            match one:
                case Granted():
                    self._respond_alloc(msg.AllocResponse(one.jobid, msg.SUCCESS, one.R, one.annotations))
                case Annotated():
                    self._respond_alloc(msg.AllocResponse(one.jobid, msg.ANNOTATE, annotations=dict(one.annotations)))
                case Denied():
                    self._respond_alloc(msg.AllocResponse(one.jobid, msg.DENY, note=one.note))
                case Canceled():
                    self._respond_alloc(msg.AllocResponse(one.jobid, msg.CANCEL))
                case OutgoingRequest(topic, payload, streaming):
                    data = None if payload is None else framing.pack(payload)
                    self._send(self._calls.start(topic, data, streaming=streaming, token=one))
                case Respond(request, payload):
                    self._send(make_response(request, None if payload is None else framing.pack(payload)))
                case ErrorResponse(request, error):
                    self._fail(request, error)
                case Raise() | Grown() | Shrunk():
                    self._perform(self.session.outgoing((one,)))
                case PluginFailed(note):
                    log.error("%s", note)
                case DecisionRefused(note):
                    log.warning("%s", note)
                case Log(text, is_error):
                    (log.error if is_error else log.info)("%s", text)
                case ReadyToExit():
                    self._ended(None)
                case Fatal(reason):
                    log.error("%s", reason)
                    self._ended(reason)

    def _respond_alloc(self, answer: msg.AllocResponse) -> None:
        self._send(Message(RESPONSE, "sched.alloc", framing.pack(answer), aux1=0))

    def _fail(self, request: Message, error: FluxschedError) -> None:
        log.warning("%s: %s", request.topic, error)
        if request.matchtag and not request.flags & NORESPONSE:
            self._send(make_error(request, error.errnum, str(error)))

    # ---- passes

    def _schedule(self) -> None:
        """Run one pass for all that has arrived, in slices, as a hook at the end of a turn; changes that arrive
        meanwhile wait.
        """
        session, clock = self.session, self._turns.clock
        begun_s, cut = clock.monotonic_s(), False
        until_s = begun_s + PASS_SLICE_S
        try:
            for one in session.decide(self._turns.wall_s):
                self._perform((one,))
                if clock.monotonic_s() >= until_s:
                    cut = True
                    break
            else:
                session.decided()
            self._note_pass(clock.monotonic_s() - begun_s, is_over=not cut)
            if not cut and session.considered_s:
                self._note_considered(session.considered_s)
        except SystemExit as exc:
            self.end(f"{left(exc, policy_line(exc))}: policy {self.scheduler.policy.name!r} ended the process")
        except Exception as exc:
            log.exception("policy %s failed", self.scheduler.policy.name)
            self.end(f"policy {self.scheduler.policy.name!r} raised {exception_text(exc, policy_line(exc))}")
        self._perform(session.due(self._turns.wall_s))
        if cut or session.has_work:
            self._turns.wake()
        else:
            self._await_notice()

    def _note_pass(self, slice_s: float, *, is_over: bool) -> None:
        self._slices_s += slice_s
        if is_over:
            self._pass_s.observe(self._slices_s)
            self._slices_s = 0.0

    def _note_considered(self, submitted_s: list[float]) -> None:
        """Count jobs that were considered for the first time; a clock that was set back counts as no time."""
        now_s, observe = self._turns.clock.wall_s(), self._considered_s.observe
        for t_submit_s in submitted_s:
            observe(max(0.0, now_s - t_submit_s))

    def _await_notice(self) -> None:
        """Set one timer for a turn in which the scheduler has notices due even without an event; it may expire
        early.
        """
        at_s = self.session.next_notice_s
        if at_s < self._next_notice_s:
            if self._notice is not None:
                self._notice.cancel()
            self._next_notice_s = at_s
            self._notice = self._turns.after(at_s - self._turns.wall_s, self._notice_due)

    def _notice_due(self) -> None:
        """Clear the time of the next notice: the pass at the end of this turn sends the notices that are due, and then
        sets the timer for the others.
        """
        self._next_notice_s = inf

    # ---- messages

    def _send(self, message: Message) -> None:
        if not self._outbox:
            self._turns.wake()
        self._outbox.append(message)

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if messages and self._client.lost is None:
            for frames in pack_bundles(messages):
                self._client.send(frames)

    def _take(self, until_s: float) -> bool:
        """Pass received messages to the session, which answers questions; then have it handle the rest in order."""
        session, monotonic_s = self.session, self._turns.clock.monotonic_s
        most = min(KEPT_MAX, session.kept + READ_MAX)
        while session.kept < most and (arrivals := self._client.receive(RECEIVE_MAX)):
            for frames in arrivals:
                for message in unpack_bundle(decode(frames)):
                    self._receive(message)
        is_more = session.kept >= most
        least = HANDLED_MIN if is_more else 0
        while session.has_work:
            self._perform(session.work(SLICE_MESSAGES))
            least -= SLICE_MESSAGES
            if least <= 0 and monotonic_s() >= until_s:
                return session.has_work or is_more
        if self._client.lost is not None:
            self.end(f"the instance is gone: {self._client.lost}")
        return is_more

    def _receive(self, message: Message) -> None:
        if message.type == REQUEST:
            topic = message.topic
            try:
                read = self._readers.get(topic)
                if read is None and topic in REQUESTS:
                    read = self._readers[topic] = framing.reader(REQUESTS[topic])
                if read is not None:
                    effects = self.session.receive(topic, read(message.payload), message, self._turns.wall_s)
                    if effects:
                        self._perform(effects)
                elif topic in self._own:
                    self._own[topic](message)
                else:
                    raise RPCError(f"Unknown service method '{topic}'", errno.ENOSYS)
            except FluxschedError as exc:
                self._fail(message, exc)
        elif message.type == RESPONSE:
            self._answered(message)

    def _answered(self, message: Message) -> None:
        try:
            call, payload, error, _ = self._calls.receive(message)
            if call is None:  # that of service.add
                return
            kind = ANSWERS.get(call.topic)
            answer: Any = payload if kind is None or error is not None else framing.unpack(payload, kind)
            effects = self.session.answered(call, answer, error, self._turns.wall_s)
        except FluxschedError as exc:
            log.error("%s", exc)
            self.end(str(exc))
            return
        if call.topic == READY and error is None:
            ours = self.name, self._policy_text(), ", ".join(self._groups), answer.count
            log.info("%s is ready: policy %s, groups %s, %d jobs waiting", *ours)
        self._perform(effects)

    def _policy_text(self) -> str:
        """Return the policy with the names of the plugins, in the form in which a user names them."""
        own = dict(self.scheduler.report.plugins)
        general = join_plugins(self.scheduler.policy.name, own.pop("", []))
        return join_queues(general, {queue: join_plugins("", names) for queue, names in own.items()})

    def _stats(self, message: Message) -> None:
        figures = {"passes": self._pass_s.value(), "considered": self._considered_s.value()}
        self._send(make_response(message, framing.pack({**self.scheduler.report.stats(), **figures})))

    def _ping(self, message: Message) -> None:
        if message.payload is None:  # the instance only checks that this process answers
            self._send(make_response(message, None))
            return
        answer = framing.unpack(message.payload, dict[str, Any])
        answer.update(route=self.name, rank=0, userid=message.userid, rolemask=message.rolemask)
        self._send(make_response(message, framing.pack(answer)))

    def raise_exception(self, jobid: int, type: str, note: str) -> None:
        """Raise a fatal exception on a running job, for parts that decide beside the policy."""
        self._perform(self.session.outgoing((Raise(jobid, note, type),)))

    def leave(self) -> None:
        """Stop in good order: `on_end` is called with None once all is saved, or it has taken LEAVE_S."""
        self._turns.after(LEAVE_S, lambda: self._ended(None))
        self._perform(self.session.stop(self._turns.clock.wall_s()))

    def end(self, reason: str) -> None:
        """Stop; `on_end` is called with the reason."""
        self.session.end(reason)
        self._ended(reason)

    def _ended(self, reason: str | None) -> None:
        if not self.is_over:
            self.is_over = True
            self._on_end(reason)


# ---- messages

FREE: Final = framing.retyped(msg.FreeRequest, "R", msg.LiteR)
"""FreeRequest whose `R` is a LiteR."""

REQUESTS: Mapping[str, Any] = {
    "sched.alloc": framing.with_raw(msg.AllocRequest, "jobspec"),
    "sched.free": FREE,
    "sched.cancel": msg.SchedCancelRequest,
    "sched.prioritize": msg.PrioritizeRequest,
    "sched.expiration": msg.ExpirationRequest,
    "sched.permit": msg.PermitRequest,
    "sched.why": msg.SchedWhyRequest,
    "sched.when": msg.SchedWhenRequest,
    "sched.accounts": AccountsRequest,
    "sched.plan": PlanRequest,
    "sched.reasons": SchedReasonsRequest,
    "sched.resource-status": dict[str, Any],
    "feasibility.check": framing.with_raw(msg.FeasibilityRequest, "jobspec"),
}
"""Types of the requests that `SchedulerSession.receive` accepts."""

ANSWERS: Mapping[str, Any] = {
    HELLO: framing.with_raw(msg.HelloResponse, "jobspec"),
    READY: msg.ReadyResponse,
}
"""Types of the responses that `SchedulerSession.answered` takes decoded; acquire streams decode their own."""
