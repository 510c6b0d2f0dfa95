"""The scheduler module as a process: acquires its groups, says hello, and drives `sched.Scheduler`.

    acquire every group -> first grow of each -> hello (running jobs) -> ready -> alloc, free, ... in turns

Nothing is judged before the first grow (RFC 28). An error answer to acquire, release, hello or ready is logged and
ends the module; so does an exception of the policy. The instance reports it, and a new module goes on from hello.
The host knows messages and turns; what is scheduled where is the `sched` package's business.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any

import msgspec

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import parse_entries
from fluxsched.errors import FluxschedError, RemoteProtocolError, RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.bundle import pack_bundles, unpack_bundle
from fluxsched.protocol.framing.header import NORESPONSE, REQUEST, RESPONSE, Message, decode, make_error, make_response
from fluxsched.protocol.framing.lite import FREE
from fluxsched.protocol.messages import alloc as msg
from fluxsched.protocol.messages.jobs import RaiseRequest
from fluxsched.protocol.sessions.acquire_client import AcquireClient
from fluxsched.protocol.sessions.rpc import Answer, Calls
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.messaging.payload_memo import JobspecMemo
from fluxsched.runtime.system.log import blamed, left, logger
from fluxsched.sched import effects as effect
from fluxsched.sched.engine.group_changes import apply
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.registry import policy_line
from fluxsched.transport.base import Client

log = logger("sched")

RECEIVE_MAX = 4
"""Frames taken from the socket at a time; each may be a bundle of hundreds of messages."""
DEFERRED_MAX = 4096
"""Messages in hand with which no more are read: enough to find the questions among them, read within 6 ms."""
SLICE_MESSAGES = 16
"""Messages handled between two looks at the clock."""
PASS_SLICE_S = 0.005
"""How long a pass decides before questions are answered (seconds); nobody waits 20 ms for an answer."""
Handler = Callable[[Message], None]
ALLOC = codec.with_raw(msg.AllocRequest, "jobspec")


class SchedulerHost:
    """Joins one `Scheduler` to an instance over one connection."""

    def __init__(self, client: Client, scheduler: Scheduler, groups: tuple[str, ...], turns: Turns, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.ended: str | None = None
        self.on_end: Callable[[str], None] | None = None
        self._client = client
        self._turns = turns
        self._calls = Calls()
        self._specs = JobspecMemo()
        self._outbox: list[Message] = []
        self._acquires = {group: AcquireClient(group) for group in groups}
        self._waiting = set(groups)
        self._ready = False
        self._handlers: dict[str, Handler] = {
            "sched.alloc": self._alloc,
            "sched.free": self._free,
            "sched.cancel": self._cancel,
            "sched.prioritize": self._prioritize,
            "sched.expiration": self._expiration,
            "sched.why": self._why,
            "feasibility.check": self._feasibility,
            f"{name}.stats-get": self._stats,
            f"{name}.ping": self._ping,
        }
        self._questions = frozenset({"sched.why", "feasibility.check", f"{name}.stats-get", f"{name}.ping"})
        self._pass: Iterator[Any] | None = None
        self._deferred: deque[Message] = deque()
        self._retell: Timer | None = None
        self._next_notice_s = inf
        turns.source(self._take)
        turns.at_end(self._schedule)
        turns.at_end(self._flush)

    def start(self) -> None:
        """Begin the conversation: register the module's own service name, then acquire."""
        self._rpc("service.add", {"service": self.name}, lambda answer: None)
        for group, session in self._acquires.items():
            self._rpc(
                "resource.acquire",
                session.request(),
                lambda answer, group=group: self._acquired(group, answer),  # type: ignore[misc]
                streaming=True,
            )
        self._turns.wake()

    # -- the conversation ---------------------------------------------------------------------------------------

    def _acquired(self, group: str, answer: Answer) -> None:
        if answer.error is not None:
            raise FluxschedError(f"resource.acquire of group {group!r}: {answer.error}", answer.error.errnum)
        now_s = self._turns.wall_s
        change = self._acquires[group].receive(answer.payload or b"")
        self._perform(apply(self.scheduler, group, change, typed=True, now_s=now_s))
        if group in self._waiting:
            self._waiting.discard(group)
            if not self._waiting:
                hello = msg.HelloRequest(partial_ok=True, groups=list(self._acquires))
                self._rpc("job-manager.sched-hello", hello, self._hello, streaming=True)

    def _hello(self, answer: Answer) -> None:
        if answer.error is not None and answer.error.errnum == errno.ENODATA:
            self._rpc("job-manager.sched-ready", msg.ReadyRequest(mode="unlimited"), self._became_ready)
            return
        if answer.error is not None:
            raise FluxschedError(f"job-manager.sched-hello: {answer.error}", answer.error.errnum)
        job = codec.unpack(answer.payload, msg.HelloResponse)
        if job.R is None:
            raise RemoteProtocolError(f"hello of job {job.id} carries no R")
        resources, free = ResourceSet.parse(job.R), Idset.parse(job.free or "")
        self._perform(self.scheduler.hello(job.id, job.priority, job.userid, job.t_submit, resources, free))

    def _became_ready(self, answer: Answer) -> None:
        if answer.error is not None:
            raise FluxschedError(f"job-manager.sched-ready: {answer.error}", answer.error.errnum)
        self._ready = True
        log.info(
            "%s is ready: policy %s, groups %s, %d jobs waiting",
            self.name,
            self.scheduler.policy.name,
            ", ".join(self._acquires),
            codec.unpack(answer.payload, msg.ReadyResponse).count,
        )

    # -- requests of the instance -------------------------------------------------------------------------------

    def _alloc(self, message: Message) -> None:
        job = codec.unpack(message.payload, ALLOC)
        try:
            jobspec = self._specs.read(job.jobspec)
        except FluxschedError as exc:
            self._respond_alloc(msg.AllocResponse(job.id, msg.DENY, note=str(exc)))
            return
        self._perform(self.scheduler.alloc(job.id, job.priority, job.userid, job.t_submit or 0.0, jobspec))

    def _free(self, message: Message) -> None:
        job = codec.unpack(message.payload, FREE)
        given = ResourceSet(parse_entries(job.R.execution.R_lite).entries)  # whose hosts and times are of no matter
        self._perform(self.scheduler.free(job.id, given, job.final))

    def _cancel(self, message: Message) -> None:
        self._perform(self.scheduler.cancel(codec.unpack(message.payload, msg.SchedCancelRequest).id))

    def _prioritize(self, message: Message) -> None:
        self._perform(self.scheduler.prioritize(codec.unpack(message.payload, msg.PrioritizeRequest).jobs))

    def _expiration(self, message: Message) -> None:
        wanted = codec.unpack(message.payload, msg.ExpirationRequest)
        self._perform(self.scheduler.expiration(wanted.id, float(wanted.expiration)))
        self._send(make_response(message, None))

    def _why(self, message: Message) -> None:
        wanted = codec.unpack(message.payload, msg.SchedWhyRequest)
        found = self.scheduler.why(wanted.id, self._turns.wall_s)
        answer = msg.SchedWhyResponse(wanted.id, found.reason, found.earliest_s, found.rule or None, found.when or None)
        self._send(make_response(message, codec.pack(answer)))

    def _feasibility(self, message: Message) -> None:
        wanted = codec.unpack(message.payload, msg.FeasibilityRequest)
        note = self.scheduler.feasible(Jobspec.parse(wanted.jobspec))
        if note is not None:
            raise FluxschedError(note, errno.EOVERFLOW)
        self._send(make_response(message, None))

    def _stats(self, message: Message) -> None:
        self._send(make_response(message, codec.pack(self.scheduler.stats())))

    def _ping(self, message: Message) -> None:
        if message.payload is None:  # the instance only wants to know whether we are there
            self._send(make_response(message, None))
            return
        answer = codec.unpack(message.payload, dict[str, Any])
        answer.update(route=self.name, rank=0, userid=message.userid, rolemask=message.rolemask)
        self._send(make_response(message, codec.pack(answer)))

    # -- effects ------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Any]) -> None:
        for one in effects:
            match one:
                case effect.Granted():
                    self._respond_alloc(msg.AllocResponse(one.jobid, msg.SUCCESS, one.R, dict(one.annotations)))
                case effect.Annotated():
                    self._respond_alloc(
                        msg.AllocResponse(one.jobid, msg.ANNOTATE, annotations=dict(one.annotations))
                    )
                case effect.Denied():
                    self._respond_alloc(msg.AllocResponse(one.jobid, msg.DENY, note=one.note))
                case effect.Canceled():
                    self._respond_alloc(msg.AllocResponse(one.jobid, msg.CANCEL))
                case effect.Release():
                    self._rpc("resource.release", self._acquires[one.group].release(one.targets), self._released)
                case effect.Raise():
                    raised = RaiseRequest(id=one.jobid, type="exec", severity=0, note=one.note)
                    self._rpc("job-manager.raise", raised, self._raised)

    def _released(self, answer: Answer) -> None:
        if answer.error is not None:
            raise FluxschedError(f"resource.release: {answer.error}", answer.error.errnum)

    def _raised(self, answer: Answer) -> None:
        if answer.error is not None:
            log.info("job-manager.raise: %s", answer.error)

    def _respond_alloc(self, answer: msg.AllocResponse) -> None:
        self._send(Message(RESPONSE, "sched.alloc", codec.pack(answer), aux1=0))

    def _schedule(self) -> None:
        """End-of-turn hook: one pass for all that arrived, in slices; what comes meanwhile to change things waits."""
        if not self._ready or self.ended is not None:
            return
        clock, until_s = self._turns.clock, self._turns.clock.monotonic_s() + PASS_SLICE_S
        running = self._pass if self._pass is not None else iter(self.scheduler.schedule(self._turns.wall_s))
        self._pass = None
        try:
            for one in running:
                self._perform([one])
                if clock.monotonic_s() >= until_s:
                    self._pass = running
                    break
        except SystemExit as exc:
            self.end(f"{left(exc, policy_line(exc))}: policy {self.scheduler.policy.name!r} ended the process")
            return
        except Exception as exc:
            log.exception("policy %s failed", self.scheduler.policy.name)
            self.end(f"policy {self.scheduler.policy.name!r} raised {blamed(exc, policy_line(exc))}")
            return
        if self._pass is not None or self._deferred:
            self._turns.wake()
        else:
            self._await_retelling()

    def _await_retelling(self) -> None:
        """One timer, for a turn when the scheduler has something to tell though nothing happens; it may come early."""
        at_s = self.scheduler.next_notice_s
        if at_s < self._next_notice_s:
            if self._retell is not None:
                self._retell.cancel()
            self._next_notice_s = at_s
            self._retell = self._turns.after(at_s - self._turns.wall_s, self._retelling)

    def _retelling(self) -> None:
        """This turn ends with a pass, which tells what is due, and then sets the timer for what is not."""
        self._next_notice_s = inf

    # -- messages -----------------------------------------------------------------------------------------------

    def _rpc(self, topic: str, payload: Any, done: Callable[[Answer], None], *, streaming: bool = False) -> None:
        data = None if payload is None else codec.pack(payload)
        self._send(self._calls.start(topic, data, streaming=streaming, token=done))

    def _send(self, message: Message) -> None:
        self._outbox.append(message)
        self._turns.wake()

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if messages and self._client.lost is None:
            for frames in pack_bundles(messages):
                self._client.send(frames)

    def _take(self, until_s: float) -> bool:
        """Answer the questions among what has arrived; then, between two passes, handle the rest in its order."""
        self._read()
        deferred, monotonic_s = self._deferred, self._turns.clock.monotonic_s
        while deferred and self._pass is None and self.ended is None:
            for _ in range(min(SLICE_MESSAGES, len(deferred))):
                self._receive(deferred.popleft())
            if monotonic_s() >= until_s:
                return True
        if self._client.lost is not None and self.ended is None:
            self.end(f"the instance is gone: {self._client.lost}")
        return False

    def _read(self) -> None:
        while len(self._deferred) < DEFERRED_MAX and (arrivals := self._client.receive(RECEIVE_MAX)):
            for frames in arrivals:
                for one in unpack_bundle(decode(frames)):
                    if one.topic in self._questions:
                        self._receive(one)
                    else:
                        self._deferred.append(one)

    def _receive(self, message: Message) -> None:
        if message.type == RESPONSE:
            answer = self._calls.receive(message)
            try:
                answer.token(answer)
            except (FluxschedError, msgspec.MsgspecError) as exc:
                log.error("%s", exc)
                self.end(str(exc))
        elif message.type == REQUEST:
            try:
                handler = self._handlers.get(message.topic)
                if handler is None:
                    raise RPCError(f"Unknown service method '{message.topic}'", errno.ENOSYS)
                handler(message)
            except FluxschedError as exc:
                log.warning("%s: %s", message.topic, exc)
                if message.matchtag and not message.flags & NORESPONSE:
                    self._send(make_error(message, exc.errnum, str(exc)))

    def end(self, reason: str) -> None:
        """Stop; `on_end` tells whoever runs the host."""
        if self.ended is None:
            self.ended = reason
            if self.on_end is not None:
                self.on_end(reason)

