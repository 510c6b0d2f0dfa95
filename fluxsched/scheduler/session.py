"""A scheduler's conversation with resource module and job manager (RFC 27, RFC 28 draft): messages in, effects out.

    start -> acquire each group -> first grow of each -> hello, running jobs -> ready -> requests, and passes between
    -> leave -> the history of accounts is saved

Law: the state table says what may happen when; a test walks every state with every event, and the diagram in
`rfc/allocation.md` is generated from it. A request that it does not list for the state is kept, in order, and so is a
change of resources while a pass is under way; a question overtakes what is kept. Nothing here knows bytes, JSON, a KVS,
a socket or a clock: the scheduler process, the Flux module and the simulator each perform the effects their way. An
error answer undoes what was asked of running jobs. Accounts are saved again only once the last time was answered, so
that a slow disk gathers nothing.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache, partial
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import GroupChange, ResourceSet, parse_rlite
from fluxsched.errors import FluxschedError, InvalidValue, Refused, RemoteProtocolError, RPCError
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.instance import (
    PlannedJob,
    PlanRequest,
    PlanResponse,
    ReasonEntry,
    ReasonsResponse,
    SchedReasonsRequest,
)
from fluxsched.protocol.messages.jobs import (
    AccountInfo,
    AccountsRequest,
    AccountsResponse,
    GrowRequest,
    RaiseRequest,
    SaveRequest,
    ShrinkRequest,
)
from fluxsched.protocol.sessions import AcquireClient, step
from fluxsched.sched import decisions
from fluxsched.sched.engine.scheduler import Scheduler, apply
from fluxsched.sched.engine.why import PLANNED_JOBS_MAX, Forecasts, PlannedStart
from fluxsched.sched.fair import account_state
from fluxsched.sched.fair.accounts import Accounts
from fluxsched.sched.fair.usage import AccountRow
from fluxsched.sched.pool.placement import Blocks, blocks_in

ACQUIRE: Final = "resource.acquire"
RELEASE: Final = "resource.release"
HELLO: Final = "job-manager.sched-hello"
READY: Final = "job-manager.sched-ready"
RAISE: Final = "job-manager.raise"
GROW: Final = "job-manager.sched-grow"
SHRINK: Final = "job-manager.sched-shrink"
SAVE: Final = "job-manager.sched-save"
"""The topics of our own requests."""


class OutgoingRequest(NamedTuple):
    """Send a request of ours and give its answers to `answered`. `message` None: no payload; `group`: of a stream."""

    topic: str
    message: Any = None
    streaming: bool = False
    group: str = ""


class Respond(NamedTuple):
    """Answer the request that came with `token`; an alloc request may get more answers, by job id (RFC 27)."""

    token: Any
    message: Any = None


class ErrorResponse(NamedTuple):
    """The request that came with `token` was wrong or is refused: answer it with this error if it wants an answer."""

    token: Any
    error: FluxschedError


class Fatal(NamedTuple):
    """Effect of a fault after which the scheduler cannot continue."""

    reason: str


class ReadyToExit(NamedTuple):
    """Effect after the last state is saved: the adapter may exit."""


class Log(NamedTuple):
    """A line for the log."""

    text: str
    is_error: bool = False


SessionEffect: TypeAlias = decisions.Effect | OutgoingRequest | Respond | ErrorResponse | Fatal | ReadyToExit | Log
"""The scheduler's `Release`, `Raise`, `Grown` and `Shrunk` come out as calls, its answers to alloc as they are."""

Effects: TypeAlias = Sequence[SessionEffect]


# ---- states of the session


class SessionState(Enum):
    """State of a scheduler's session."""

    IDLE = "not started"
    ACQUIRING = "a group has not grown yet"
    HELLO = "running jobs are taken over"
    READYING = "they all are, and sched-ready is sent"
    READY = "requests are handled"
    DECIDING = "a pass is under way"
    LEAVING = "it was asked to end, and saves its state"
    ENDED = "an error ended it, or its adapter did"


_S = SessionState
_END = {"end": _S.ENDED, "leave": _S.ENDED}
SESSION: Mapping[SessionState, Mapping[str, SessionState]] = {
    _S.IDLE: {"start": _S.ACQUIRING, **_END},
    _S.ACQUIRING: {"acquired": _S.HELLO, **_END},
    _S.HELLO: {"job": _S.HELLO, "known": _S.READYING, **_END},
    _S.READYING: {"ready": _S.READY, **_END},
    _S.READY: {
        "change": _S.READY, "question": _S.READY, "request": _S.READY, "save": _S.READY, "saved": _S.READY,
        "decide": _S.DECIDING, "leave": _S.LEAVING, "end": _S.ENDED,
    },
    _S.DECIDING: {
        "question": _S.DECIDING, "decide": _S.DECIDING, "save": _S.DECIDING, "saved": _S.DECIDING,
        "decided": _S.READY, "leave": _S.LEAVING, "end": _S.ENDED,
    },
    _S.LEAVING: {"leave": _S.LEAVING, "saved": _S.ENDED, "end": _S.ENDED},
    _S.ENDED: _END,
}  # fmt: skip
"""Transitions allowed in each state.

Requests, questions and changes that a state does not list are kept, or discarded if nothing more will be handled.
"""


# ---- the session

FREES_CACHED_MAX: Final = 1024
"""Parts of one target whose blocks are cached; some hundred bytes each."""

RESTART = "scheduler-restart"
"""The type of the exception on a running job that cannot be taken over (RFC 27, Hello)."""


_READY: Final = SessionState.READY  # three times as fast to find
_DECIDING: Final = SessionState.DECIDING
_ENDED: Final = SessionState.ENDED
_SERVING, _OVER = (_READY, _DECIDING), (SessionState.LEAVING, _ENDED)

_NO_PASS: Final[Iterator[decisions.Effect]] = iter(())
_Handler: TypeAlias = Callable[[Any, Any, float], Effects]
_Report: TypeAlias = Callable[[Scheduler, Any, float], Any]


class SchedulerSession:
    """Joins one scheduler to the peers of its adapter.

    `streams` are the acquire streams by group, one per group; `read` makes a Jobspec of what an alloc request carries
    (raises InvalidValue: the job is denied). `queue_depth` is that of sched-ready, None for unlimited. Times are wall
    time in seconds.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        streams: Mapping[str, AcquireClient],
        read: Callable[[Any], Jobspec],
        *,
        partial_ok: bool = True,
        queue_depth: int | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.state = SessionState.IDLE
        self._streams = streams
        self._typed = all(stream.typed for stream in streams.values())
        self._read = read
        self._partial_ok = partial_ok
        self._queue_depth = queue_depth
        self._no_grow = set(streams)
        self._kept: deque[tuple[_Handler, Any, Any, float]] = deque()
        self._pass: Iterator[decisions.Effect] = _NO_PASS
        self._ready_s = inf
        self._arrived_s: list[float] = []
        self.considered_s: list[float] = []
        """Submit times of the jobs that the last pass was the first to consider, without those before ready."""
        accounts = scheduler.account_tree
        self._saving = None if accounts is None else Saving(accounts)
        self._handlers: dict[str, _Handler] = {
            "sched.alloc": self._alloc,
            "sched.free": self._free,
            "sched.cancel": self._cancel,
            "sched.prioritize": self._prioritize,
            "sched.expiration": self._expiration,
            "sched.permit": self._permit,
        }
        self._questions: dict[str, _Handler] = {
            "sched.why": self._why,
            "sched.when": self._when,
            "sched.accounts": partial(self._report, accounts_of),
            "sched.plan": partial(self._report, plan_of),
            "sched.reasons": partial(self._report, reasons_of),
            "sched.resource-status": self._resource_status,
            "feasibility.check": self._feasibility,
        }

    # ---- requests

    def receive(self, topic: str, message: Any, token: Any, now_s: float) -> Effects:
        """Take a request: a question is answered at once, everything else is kept for `work`.

        Before ready, questions are kept, too. Raises RPCError (ENOSYS) for a topic that is not of this protocol.
        """
        handler = self._handlers.get(topic)
        if handler is None:
            handler = self._questions.get(topic)
            if handler is None:
                raise RPCError(f"Unknown service method '{topic}'", errno.ENOSYS)
            if "question" in SESSION[self.state]:
                try:
                    return handler(message, token, now_s)
                except FluxschedError as fault:
                    return [ErrorResponse(token, fault)]
        if self.state not in _OVER:
            self._kept.append((handler, message, token, now_s))
        return ()

    @property
    def kept(self) -> int:
        """Return the number of messages that were received and are not handled yet."""
        return len(self._kept)

    @property
    def has_work(self) -> bool:
        """Return whether `work` would handle a message now."""
        return bool(self._kept) and self.state is _READY

    def work(self, limit: int) -> Effects:
        """Handle at most `limit` of the kept messages, in order; none before ready or while a pass is under way."""
        found: list[SessionEffect] = []
        kept = self._kept
        while kept and limit and self.state is _READY:
            limit -= 1
            handler, message, token, now_s = kept.popleft()
            try:
                found += handler(message, token, now_s)
            except FluxschedError as fault:
                found.append(ErrorResponse(token, fault))
        return found

    # ---- our own requests

    def start(self) -> Effects:
        """Begin the session: acquire every group."""
        self._step("start")
        return [OutgoingRequest(ACQUIRE, stream.request(), True, group) for group, stream in self._streams.items()]

    def answered(self, call: OutgoingRequest, answer: Any, error: RPCError | None, now_s: float) -> Effects:
        """Take an answer or an error: of an acquire stream the payload, or a GroupChange; of others the message.

        A hello answer needs its `R`; see `refuse_job` for one whose R the adapter cannot get.
        """
        if self.state in _OVER and not (call.topic == SAVE and self.state is SessionState.LEAVING):
            return ()
        if call.topic == RAISE:
            return () if error is None else self._asked(error, call, now_s)
        if call.topic in RESIZING:  # what was freed before comes before
            self._kept.append((self._asked, error, call, now_s))
            return ()
        if call.topic == SAVE:
            return self._saved(error)
        if call.topic == ACQUIRE and error is None:
            if call.group not in self._no_grow:  # until hello has told of its jobs, a shrunk target looks free
                self._kept.append((self._change, answer, call, now_s))
                return ()
            return self._change(answer, call, now_s)
        if call.topic == HELLO and error is not None and error.errnum == errno.ENODATA:
            self._step("known")
            depth = self._queue_depth
            ready = msg.ReadyRequest("unlimited") if depth is None else msg.ReadyRequest("limited", depth)
            return [OutgoingRequest(READY, ready)]
        if error is not None:
            group = f" of group {call.group!r}" if call.topic == ACQUIRE and self._typed else ""
            return self.end(f"{call.topic}{group}: {error}")
        if call.topic == HELLO:
            return self._take_over(answer, now_s)
        if call.topic == READY:
            self._step("ready")
            self._ready_s = now_s
            return self._restore(answer, now_s)
        return ()

    def _change(self, answer: Any, call: OutgoingRequest, now_s: float) -> Effects:
        """Apply a message of a stream; a fault in it ends the session, since the session's resources might no longer be
        correct.
        """
        group, stream, found = call.group, self._streams[call.group], list[SessionEffect]()
        try:
            if isinstance(answer, GroupChange):
                stream.accept(answer)
            change = answer if isinstance(answer, GroupChange) else stream.receive(answer)
            if change.expiration_s is not None:
                found.append(Log(f"resource expiration updated to {change.expiration_s:.2f}"))
            found += self.outgoing(apply(self.scheduler, group, change, typed=stream.typed, now_s=now_s))
        except FluxschedError as fault:
            return self.end(str(fault))
        if group in self._no_grow:
            self._no_grow.discard(group)
            if not self._no_grow:
                self._step("acquired")
                groups = list(self._streams) if self._typed else None
                found.append(OutgoingRequest(HELLO, msg.HelloRequest(self._partial_ok, groups), True))
        return found

    def _take_over(self, job: Any, now_s: float) -> Effects:
        """Take over a running job; `job` is a HelloResponse whose jobspec has the form that `read` accepts."""
        self._step("job")
        found: list[SessionEffect] = []
        jobspec = None
        try:
            jobspec = None if job.jobspec is None else self._read(job.jobspec)
        except FluxschedError as fault:
            found.append(Log(f"hello: {format_f58(job.id)} counts as if it had no jobspec: {fault}", is_error=True))
        try:
            if job.R is None:
                raise RemoteProtocolError(f"hello of job {job.id} carries no R")
            resources, free = ResourceSet.parse(job.R), Idset.parse(job.free or "")
            if not self._typed and (unknown := resources.ranks - free - self._acquired()):
                raise RemoteProtocolError(f"ranks {unknown} are not among the acquired ones")
            found += self.scheduler.hello(
                job.id, job.priority, job.userid, job.t_submit, resources, free, jobspec, now_s,
                job.preempted, Idset.parse(job.going or ""), Idset.parse(job.grown or ""), job.shrunk,
            )  # fmt: skip
        except FluxschedError as fault:
            found += self.refuse_job(job.id, fault)
        return found

    def refuse_job(self, jobid: int, fault: FluxschedError) -> Effects:
        """Return the effects for a running job that cannot be taken over: RFC 27 requires a fatal exception, as its
        resources may be granted to others.
        """
        note = f"failed to reallocate R for running job: {fault}"
        what = f"hello: cannot take over {format_f58(jobid)}, raising a fatal exception on it: {fault}"
        ended = RaiseRequest(id=jobid, type=RESTART, severity=0, note=note)
        return [Log(what, is_error=True), OutgoingRequest(RAISE, ended)]

    def _asked(self, error: RPCError | None, call: OutgoingRequest, now_s: float) -> Effects:
        return self.outgoing(answered(self.scheduler, call, error, now_s))

    def _acquired(self) -> Idset:
        found = EMPTY
        for stream in self._streams.values():
            found |= stream.acquired
        return found

    # ---- handlers

    def _alloc(self, job: Any, token: Any, now_s: float) -> Effects:
        try:
            jobspec = self._read(job.jobspec)
        except InvalidValue as fault:
            return [Respond(token, msg.AllocResponse(job.id, msg.DENY, note=str(fault)))]
        t_submit_s = job.t_submit or 0.0
        if t_submit_s >= self._ready_s:
            self._arrived_s.append(t_submit_s)
        return self.scheduler.alloc(job.id, job.priority, job.userid, t_submit_s, jobspec, now_s, job.unjudged)

    def _free(self, job: Any, token: Any, now_s: float) -> Effects:
        effects = self.scheduler.free_blocks(job.id, _blocks_of(job.R.execution.R_lite), job.final, now_s)
        return self.outgoing(effects) if effects else effects

    def _cancel(self, job: msg.SchedCancelRequest, token: Any, now_s: float) -> Effects:
        return self.scheduler.cancel(job.id)

    def _prioritize(self, wanted: msg.PrioritizeRequest, token: Any, now_s: float) -> Effects:
        return self.scheduler.prioritize(wanted.jobs)

    def _expiration(self, wanted: msg.ExpirationRequest, token: Any, now_s: float) -> Effects:
        return [*self.scheduler.expiration(wanted.id, float(wanted.expiration)), Respond(token)]

    def _permit(self, wanted: msg.PermitRequest, token: Any, now_s: float) -> Effects:
        effects = self.scheduler.permit(wanted.id, wanted.plugin, wanted.allow, wanted.reason, now_s)
        return [*self.outgoing(effects), Respond(token)]

    def _why(self, wanted: msg.SchedWhyRequest, token: Any, now_s: float) -> Effects:
        found = self.scheduler.why(wanted.id, now_s)
        reason, rule, when, earliest_s, kind = found
        answer = msg.SchedWhyResponse(wanted.id, str(reason), earliest_s, rule or None, when or None, kind.value)
        return [Respond(token, answer)]

    def _when(self, wanted: msg.SchedWhenRequest, token: Any, now_s: float) -> Effects:
        jobspecs = [Jobspec.parse(jobspec) for jobspec in wanted.jobspecs]
        found = self.scheduler.when(jobspecs, wanted.userid, wanted.priority, now_s)
        return [Respond(token, msg.WhenResponse([_estimate(*each) for each in found]))]

    def _report(self, report: _Report, wanted: Any, token: Any, now_s: float) -> Effects:
        return [Respond(token, report(self.scheduler, wanted, now_s))]

    def _resource_status(self, wanted: Any, token: Any, now_s: float) -> Effects:
        parts = zip(("all", "down", "allocated"), self.scheduler.report.resource_status(), strict=True)
        return [Respond(token, {name: part.to_json() for name, part in parts})]

    def _feasibility(self, wanted: Any, token: Any, now_s: float) -> Effects:
        why = self.scheduler.feasible(self._read(wanted.jobspec), wanted.userid)
        if why is not None:
            raise RPCError(why, errno.EOVERFLOW)
        return [Respond(token)]

    # ---- passes

    def decide(self, now_s: float) -> Iterator[decisions.Effect]:
        """Return the effects of a pass, one by one. A caller that stops early calls it again, which continues the pass.

        After the last one, or after an exception, call `decided`; to drop the rest, `drop`. Empty before ready.
        """
        if self.state is _READY:  # as the table has it; looking there takes longer than a small pass
            self.state = _DECIDING
            self._pass = self.scheduler.schedule(now_s)
        return self._pass

    def decided(self) -> bool:
        """End the pass. Returns `has_work`."""
        if self.state is _DECIDING:
            self.state = _READY
            self._pass = _NO_PASS
            if self._arrived_s or self.considered_s:
                self.considered_s, self._arrived_s = self._arrived_s, []
        return self.state is _READY if self._kept else False

    def drop(self) -> bool:
        """Drop the pass between two decisions: those that were made stand. Returns `has_work`."""
        close = getattr(self._pass, "close", None)
        if close is not None:  # a compiled generator is not closed by being forgotten
            close()
        arrived_s, self._arrived_s = self._arrived_s, []  # the next pass considers these
        has_work = self.decided()
        self._arrived_s = arrived_s
        return has_work

    @property
    def may_decide(self) -> bool:
        """Return whether a pass can begin or continue."""
        return self.state in _SERVING

    @property
    def next_notice_s(self) -> float:
        """Return the time at which a pass is due even without an event; inf if never (see
        `Scheduler.next_notice_s`).
        """
        if self.state is not _READY:
            return inf
        next_s = self.scheduler.next_notice_s
        return next_s if self._saving is None else min(next_s, self._saving.next_s)

    # ---- the history of accounts

    def due(self, now_s: float) -> Effects:
        """Return the requests to save state that are due; to be called once a turn."""
        if self._saving is None or self.state not in _SERVING:
            return ()
        request = self._saving.due(now_s)
        return () if request is None else [OutgoingRequest(SAVE, request)]

    def stop(self, now_s: float) -> Effects:
        """Stop in good order: nothing is handled or decided from now on, and after `ReadyToExit` all is saved."""
        request = None if self._saving is None or self.state not in _SERVING else self._saving.last(now_s)
        self.drop()
        self._step("leave")
        self._kept.clear()
        if self.state is _ENDED:
            return [ReadyToExit()]
        if request is not None:
            return [OutgoingRequest(SAVE, request)]
        return () if self._saving is not None and self._saving.is_asked else self._left()

    def _restore(self, answer: msg.ReadyResponse | None, now_s: float) -> Effects:
        saved = None if answer is None else answer.state
        complaint = None if self._saving is None else self._saving.restore(saved, now_s)
        return () if complaint is None else [Log(complaint, is_error=True)]

    def _saved(self, error: RPCError | None) -> Effects:
        assert self._saving is not None
        complaint = self._saving.answered(error)
        found = [] if complaint is None else [Log(complaint, is_error=True)]
        return [*found, *self._left()] if self.state is SessionState.LEAVING and not self._saving.is_asked else found

    def _left(self) -> Effects:
        self._step("saved")
        return [ReadyToExit()]

    # ---- within

    def outgoing(self, effects: Sequence[decisions.Effect | Log]) -> Effects:
        """Return the scheduler's effects, releases and requests for running jobs as calls."""
        return [self._outgoing(effect) for effect in effects]

    def _outgoing(self, effect: decisions.Effect | Log) -> SessionEffect:
        match effect:
            case decisions.Release(group, targets):
                return OutgoingRequest(RELEASE, self._streams[group].release(targets))
            case decisions.Raise() | decisions.Grown() | decisions.Shrunk():
                return call_for(effect)
        return effect

    def end(self, reason: str) -> Effects:
        """Stop: nothing is handled or decided from now on. The reason is an effect once."""
        if self.state is _ENDED:
            return ()
        self._step("end")
        self._kept.clear()
        self._pass = _NO_PASS
        return [Fatal(reason)]

    def _step(self, event: str) -> None:
        self.state = step(SESSION, self.state, event)


# ---- running jobs

RESIZING = (GROW, SHRINK)
"""The topics of requests that change the size of a job."""


def call_for(effect: decisions.Grown | decisions.Shrunk | decisions.Raise) -> OutgoingRequest:
    """Return the request of an effect."""
    match effect:
        case decisions.Grown(jobid):
            return OutgoingRequest(GROW, GrowRequest(jobid, effect.R))
        case decisions.Shrunk(jobid, ranks, note):
            return OutgoingRequest(SHRINK, ShrinkRequest(jobid, str(ranks), note))
    left = None if effect.targets is None else str(effect.targets)
    raised = RaiseRequest(id=effect.jobid, type=effect.type, severity=0, note=effect.note, ranks=left)
    return OutgoingRequest(RAISE, raised)


def answered(
    scheduler: Scheduler, call: OutgoingRequest, error: RPCError | None, now_s: float
) -> list[decisions.Effect | Log]:
    """Return the effects of a response: of a grow that was stored, or of an error."""
    wanted = call.message
    if error is None:
        return [*scheduler.grow_stored(wanted.id, now_s)] if call.topic == GROW else []
    is_settled = error.errnum == errno.EOPNOTSUPP
    what = f"{call.topic} of type {wanted.type}" if call.topic == RAISE else call.topic
    found: list[decisions.Effect | Log] = [Log(f"{what} on {format_f58(wanted.id)}: {error}", is_error=True)]
    if call.topic == GROW:
        found += scheduler.grow_failed(wanted.id, _ranks(wanted.R), now_s, is_settled)
    elif call.topic == SHRINK:
        scheduler.shrink_failed(wanted.id, Idset.parse(wanted.ranks), now_s, is_settled)
    elif wanted.type == decisions.PREEMPT:
        scheduler.preempt_failed(wanted.id)
    return found


def _blocks_of(rlite: Any) -> Blocks:
    """Return the blocks of R_lite. Raises InvalidValue."""
    if type(rlite) is list and len(rlite) == 1 and "amounts" not in rlite[0] and rlite[0]["rank"].isdigit():
        return _blocks_on_one(rlite[0]["rank"], *rlite[0]["children"].items())
    return blocks_in(parse_rlite(rlite))


@lru_cache(FREES_CACHED_MAX)
def _blocks_on_one(rank: str, *children: tuple[str, str]) -> Blocks:
    """Return the blocks of one target: short jobs have the same few again and again."""
    return blocks_in(parse_rlite([{"rank": rank, "children": dict(children)}]))


def _ranks(R: dict[str, Any]) -> Idset:  # noqa: N803 - RFC 20's name
    return parse_rlite(R["execution"]["R_lite"]).ranks


# ---- saving of account history

SAVE_EVERY_S: Final = 10.0
"""Maximum period of history that a SIGKILL may lose (seconds)."""

SLICE_ACCOUNTS: Final = 1024
"""Accounts written at a time, within some milliseconds: then questions are answered."""


class Saving:
    """Saves and restores one tree. Times are wall time in seconds."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._saved_s = -inf
        self._bookings = accounts.bookings  # as they were saved
        self._asked: deque[int] = deque()  # those of requests that are not answered: at the end there may be two
        self._writing: account_state.Writing | None = None  # what is written, in slices, for the request that is due
        self._set_aside = False
        self._complaint = ""

    def restore(self, saved: object, now_s: float) -> str | None:
        """Restore the saved state, None if there is none; return the line of the log if the state is unusable."""
        self._saved_s, self._bookings = now_s, self._accounts.bookings
        if saved is None:
            return None
        what = account_state.restore(self._accounts, saved, now_s)
        if what is None:
            return None
        self._set_aside = True
        return f"the saved history of accounts is {what}; it is set aside, and history begins anew"

    @property
    def is_asked(self) -> bool:
        """Return whether a request is not answered yet."""
        return bool(self._asked)

    @property
    def next_s(self) -> float:
        """Return the time at which the next request is due; inf while there is nothing to save, -inf while one is being
        written.
        """
        if self._writing is not None:
            return -inf
        if self._asked or not self._is_changed:
            return inf
        return self._saved_s if self._set_aside else self._saved_s + SAVE_EVERY_S

    def due(self, now_s: float) -> SaveRequest | None:
        """Return the request that is due by now, once it is written; None if there is none.

        After a clock was set back, it is due at once.
        """
        if self._writing is None:
            if self._saved_s <= now_s < self.next_s or self.next_s == inf:
                return None
            self._writing = account_state.Writing(self._accounts)
        is_whole = self._writing.go_on(SLICE_ACCOUNTS, now_s)
        return self._request(self._writing.text(now_s), now_s) if is_whole else None

    def last(self, now_s: float) -> SaveRequest | None:
        """Return a request to save all changes, whenever they occurred; None if there are none."""
        if not self._is_changed:
            return None
        return self._request(account_state.saved(self._accounts, now_s), now_s)

    def _request(self, text: str, now_s: float) -> SaveRequest:
        self._writing, self._saved_s = None, now_s
        self._asked.append(self._accounts.bookings)
        return SaveRequest(text, self._set_aside)

    def answered(self, error: RPCError | None) -> str | None:
        """Take the response to the oldest request; return a line for the log."""
        asked = self._asked.popleft()
        if error is None:
            self._bookings = asked
            self._set_aside, self._complaint = False, ""
            return None
        said, self._complaint = self._complaint, str(error)
        if said == self._complaint:
            return None
        return f"the history of accounts is not saved: {error}; it is tried again in {SAVE_EVERY_S:g} s"

    @property
    def _is_changed(self) -> bool:
        """Return whether there are changes to save; signals of accounts that hold resources change with time alone."""
        accounts = self._accounts
        held = accounts.root.all_jobs.usage > 0.0
        return held or self._set_aside or accounts.bookings != self._bookings


# ---- answers about accounts


def accounts_of(scheduler: Scheduler, wanted: AccountsRequest, now_s: float) -> AccountsResponse:
    """Return the response. Raises Refused (EOPNOTSUPP) if no policy uses accounts."""
    found = scheduler.accounts_report(now_s, wanted.start)
    if found is None:
        text = "this scheduler keeps no accounts: use a policy that does, such as fair:backfill=easy"
        raise Refused(text, errno.EOPNOTSUPP)
    settings = found.settings
    return AccountsResponse(
        signal=settings.signal.value,
        half_life=settings.half_life_s,
        weights=dict(settings.weights),
        shares="all" if settings.shares_of_all else "active",
        capacity=found.capacity,
        budget=settings.budget_min,
        rate=settings.rate,
        accounts=[_info(row) for row in found.rows],
        next=found.next_start,
    )


def _info(row: AccountRow) -> AccountInfo:
    return AccountInfo(
        path=list(row.path),
        user=row.is_user,
        active=row.is_active,
        weight=row.weight,
        share=row.share,
        fair_usage=row.fair_usage,
        usage=row.usage,
        signal=row.level,
        firm_usage=row.firm_usage,
        firm_signal=row.firm_level,
        cap=row.cap_usage,
        budget_left=row.budget_left_min,
        held=row.held,
        waiting=row.waiting,
        running=row.running,
        preempted=row.preempted,
    )


# ---- answers about plans


def plan_of(scheduler: Scheduler, wanted: PlanRequest, now_s: float) -> PlanResponse:
    """Return the response. Raises RemoteProtocolError for a group that the scheduler does not serve."""
    starts = scheduler.report.plan(scheduler.group(wanted.group), now_s)
    jobs = [_planned(start) for start in starts[: wanted.max_entries or PLANNED_JOBS_MAX]]
    return PlanResponse(jobs, scheduler.group(wanted.group).waiting - len(jobs))


def reasons_of(scheduler: Scheduler, wanted: SchedReasonsRequest, now_s: float) -> ReasonsResponse:
    """Return the response; jobs that do not wait in this scheduler are left out."""
    forecasts: Forecasts = {}
    promised = {kept.jobid for kept in scheduler.report.planned() if kept.start_s < inf}
    found, kinds = list[ReasonEntry](), list[str]()
    for jobid in wanted.ids:
        try:
            why = scheduler.why(jobid, now_s, forecasts)
        except Refused:  # it has gone meanwhile
            continue
        if why.rule or why.when:  # else it holds resources
            found.append((jobid, str(why.reason), why.earliest_s, jobid in promised))
            kinds.append(why.kind.value)
    return ReasonsResponse(found, tuple(kinds))


def _estimate(start_s: float | None, when: str, short_s: float, never: bool) -> msg.WhenEntry:
    return msg.WhenEntry(when, start_s, short_s or None, never)


def _planned(start: PlannedStart) -> PlannedJob:
    end_s = 0.0 if start.end_s == inf else start.end_s
    ranks = None if start.ranks is None else str(start.ranks)
    return start.jobid, start.start_s, end_s, ranks, start.nnodes, start.ncores, start.is_promised
