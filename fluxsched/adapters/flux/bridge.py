"""Our scheduler as Flux's: its session over Flux's messages, in JSON, with each R stored in the KVS.

Law: nothing here takes the broker down. What a peer got wrong is logged and answered, a policy that raises is logged
and called again when something changes, and what we cannot recover from ends the module without an error: Flux keeps
the jobs that wait, and the next module finds those that run.
"""

from __future__ import annotations

import errno
from math import inf
from typing import Any

import msgspec

from fluxsched.adapters.flux import texts
from fluxsched.adapters.flux.commits import Commits, PendingGrant
from fluxsched.adapters.flux.compat import CompatPolicy
from fluxsched.adapters.flux.handle import (
    LEVELS,
    LOG_DEBUG,
    LOG_ERR,
    LOG_INFO,
    BrokerHandle,
    BrokerReply,
    BrokerRequest,
)
from fluxsched.adapters.flux.history import KvsHistory
from fluxsched.adapters.flux.options import Options
from fluxsched.adapters.flux.running_jobs import RunningJobLookup
from fluxsched.adapters.flux.site import NO_CONFIG, SiteConfig
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import parse_entries
from fluxsched.errors import FluxschedError, InvalidValue, RPCError
from fluxsched.messaging.memo import SPEC_BYTES_MAX, SPECS_KEPT, PayloadMemo
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages import alloc as msg
from fluxsched.protocol.sessions.acquire_client import AcquireClient
from fluxsched.sched import decisions as effect
from fluxsched.sched.engine.policy_queue import WAIT
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.scheduler.host import ANSWERS, REQUESTS
from fluxsched.scheduler.session import (
    ACQUIRE,
    HELLO,
    RAISE,
    READY,
    SAVE,
    Call,
    Effects,
    End,
    Fail,
    Log,
    Respond,
    SchedulerSession,
)
from fluxsched.system.clock import Clock, local_text
from fluxsched.system.files import user_name

TOPICS = tuple(topic for topic in REQUESTS if topic != "sched.why")
"""The requests that the services `sched` and `feasibility` take, besides NAME.stats-get; Flux does not ask why."""

SLICE_S = 0.02
"""A pass that lasts longer is interrupted for the broker's messages, and continued in the next turn."""

REST = 1.0
"""After a turn we rest for so many times its length, so that a burst shares passes and messages get their half."""

ANSWERED = ("sched.accounts", "sched.expiration", "sched.permit", "sched.resource-status", "feasibility.check")
"""Requests whose sender waits for an answer, be it an error."""


class Bridge:
    """Joins one scheduler to one Flux instance."""

    def __init__(self, handle: BrokerHandle, options: Options, clock: Clock, site: SiteConfig = NO_CONFIG) -> None:
        self._compat = CompatPolicy(handle, options.policy, options.forecast, lambda: self.scheduler.planned())
        self.scheduler = Scheduler(
            self._compat,
            policies=options.policies,
            unsatisfiable=options.unsatisfiable,
            time_text=local_text,
            fair=site.fair,
            user_name=user_name,
            preempt_timeout_s=site.preempt_timeout_s,
            plugins={"": options.plugins},
            resizes=False,  # in Flux no job changes its size
        )
        self._keeps_accounts = self.scheduler.account_tree is not None
        self._history = KvsHistory(handle)
        self.session = SchedulerSession(
            self.scheduler,
            {DEFAULT_GROUP: AcquireClient(None, decode=codec.from_json)},
            PayloadMemo(_read, SPECS_KEPT, SPEC_BYTES_MAX).read,
            partial_ok=options.partial_ok,
            queue_depth=options.queue_depth,
        )
        self.policy = options.policy
        self.passes = self.policy_errors = 0
        self.waiting: dict[int, BrokerRequest] = {}
        self._handle = handle
        self._options = options
        self._clock = clock
        self._commits = Commits(handle, self._stored, self._not_stored)
        self._knows_jobs = self._keeps_accounts or bool(options.plugins)
        self._running = RunningJobLookup(handle, self.session, self._now_s, jobspecs=self._knows_jobs)
        self._annotations: dict[int, dict[str, Any]] = {}
        self._armed = False
        self._rest_until_s = 0.0
        self._complaint = ""

    # ---- messages

    def start(self) -> None:
        """Acquire the resources; further requests follow the answer."""
        self._perform(self.session.start())

    def receive(self, request: BrokerRequest) -> None:
        """Take one request. What is wrong with it is answered, or logged where no answer is expected."""
        topic = request.topic
        try:
            if topic not in TOPICS:
                self._handle.respond(request, codec.to_json(self._stats()))
                return
            read = codec.from_json(request.payload, REQUESTS[topic])
            if not self._compat_answers(request, read):
                self._perform(self.session.receive(topic, read, request, self._now_s()))
        except FluxschedError as fault:
            self._fail(request, fault)
        self._work()

    def _compat_answers(self, request: BrokerRequest, read: Any) -> bool:
        """Answer as Flux's tools expect beyond the protocol; return True if a debug bit has led to an answer.

        Writes lines of the log.
        """
        if request.topic == "sched.alloc":
            try:
                self._compat.check_alloc()
            except InvalidValue as fault:
                denied = msg.AllocResponse(read.id, msg.DENY, note=str(fault))
                self._handle.respond(request, codec.to_json(denied))
                return True
            self.waiting.setdefault(read.id, request)
        elif request.topic == "sched.expiration":
            self._compat.check_expiration()
        elif request.topic == "sched.free" and self._options.log_level >= LOG_DEBUG:  # it takes longer than to free it
            given = ResourceSet(parse_entries(read.R.execution.R_lite).entries)
            name = format_f58(read.id, ascii=self._handle.ascii)
            self._log(LOG_DEBUG, texts.free(name, given.summary(), read.final))
        return False

    def _work(self) -> None:
        """Have the session handle what it keeps; then something may be decided."""
        if self.session.has_work:
            self._perform(self.session.work(self.session.kept))
            self._changed()

    def _call(self, call: Call) -> None:
        if call.topic == SAVE:
            self._history.save(call.message, lambda reply: self._answered(call, reply))
            return
        message = texts.preempted(call.message) if call.topic == RAISE else call.message
        payload = None if message is None else codec.to_json(message)
        self._handle.rpc(call.topic, payload, lambda reply: self._answered(call, reply), streaming=call.streaming)

    def _answered(self, call: Call, reply: BrokerReply) -> None:
        error = None
        if reply.errnum:
            error = RPCError(reply.text or errno.errorcode.get(reply.errnum, str(reply.errnum)), reply.errnum)
        kind = ANSWERS.get(call.topic)
        answer: Any = reply.payload if kind is None or error is not None else codec.from_json(reply.payload, kind)
        if call.topic == HELLO:
            self._running.answered(call, answer, error, self._perform)
            return
        if call.topic == READY and error is None and self._keeps_accounts:
            self._history.add(answer, lambda ready: self._is_ready(call, ready))
            return
        if call.topic == READY and error is None:
            self._is_ready(call, answer)
            return
        now_s = self._change_s() if call.topic == ACQUIRE else self._now_s()
        self._perform(self.session.answered(call, answer, error, now_s))
        self._work()

    def _is_ready(self, call: Call, answer: msg.ReadyResponse) -> None:
        self._perform(self.session.answered(call, answer, None, self._now_s()))
        self._log_ready()
        self._changed()
        self._work()

    def _change_s(self) -> float:
        """Return the time of a change of resources; it matters where jobs wait for resources to return, in accounts and
        to plugins.
        """
        return self._clock.wall_s() if self._options.unsatisfiable == WAIT else self._now_s()

    def _now_s(self) -> float:
        """Return the time of an event; it matters only in accounts and to plugins."""
        return self._clock.wall_s() if self._knows_jobs else 0.0

    def _log_ready(self) -> None:
        level = next(name for name, level in LEVELS.items() if level == self._options.log_level)
        total = self.scheduler.resource_status()[0].summary()
        self._log(LOG_INFO, texts.ready(self._options.queue_depth, level, self._options.decides, total))

    def _stats(self) -> dict[str, Any]:
        return self.scheduler.stats() | {
            "policy": self.policy.name,
            "sched_passes": self.passes,
            "pending_jobs": len(self.waiting),
            "policy_errors": self.policy_errors,
            "commits": self._commits.stats(),
        }

    def leave(self) -> None:
        """The module is unloaded: save what is to be saved."""
        self._perform(self.session.leave(self._now_s()))

    # ---- the pass

    def _changed(self) -> None:
        """Something may be decided: have a turn, soon after the last one if that was short."""
        if not self._armed:
            self._armed = True
            self._handle.after(max(0.0, self._rest_until_s - self._clock.monotonic_s()))

    def turn(self) -> None:
        """Run or continue one pass over all that has come since the last, and send what it granted."""
        self._armed = False
        if not self.session.may_decide:
            return
        begun_s, now_s = self._clock.monotonic_s(), self._clock.wall_s()
        cut = self._pass(now_s, begun_s + SLICE_S)
        self._perform(self.session.due(now_s))
        self._annotate()
        self._commits.flush()
        self.passes += 1
        ended_s = self._clock.monotonic_s()
        self._rest_until_s = ended_s + REST * (ended_s - begun_s)
        if cut:
            self._changed()
        self._work()
        if not self._armed and not self._complaint and (next_notice_s := self.session.next_notice_s) < inf:
            self._handle.after(max(0.0, next_notice_s - now_s))  # a turn for whatever happens sooner replaces this one

    def _pass(self, now_s: float, until_s: float) -> bool:
        """Run a pass; return whether it was interrupted because its time was up."""
        try:
            for one in self.session.decide(now_s):
                self._perform((one,))
                if self._clock.monotonic_s() >= until_s:
                    return True
            self._complaint = ""
        except Exception as fault:
            self.policy_errors += 1
            complaint = f"policy {self.policy.name!r} raised {type(fault).__name__}: {fault}"
            if complaint != self._complaint:
                self._log(LOG_ERR, f"{complaint}; it is called again when something changes")
            self._complaint = complaint
        self.session.decided()
        return False

    def _annotate(self) -> None:
        """Send the annotations of waiting jobs that the pass made, in one message per job."""
        made, self._annotations = self._annotations, {}
        for jobid, sched in made.items():
            self._compat.annotated(jobid, sched)
        for jobid, sched in list(self._compat.more_annotations()):
            made.setdefault(jobid, {}).update(sched)
            self._compat.annotated(jobid, sched)
        for jobid, sched in made.items():
            if jobid in self.waiting:
                self._answer(msg.AllocResponse(jobid, msg.ANNOTATE, annotations={"sched": sched}))
            else:
                self._compat.forget(jobid)

    # ---- effects

    def _perform(self, effects: Effects) -> None:
        for one in effects:
            match one:
                case effect.Granted():
                    self._grant(one)
                case effect.Annotated():
                    self._annotations.setdefault(one.jobid, {}).update(one.annotations["sched"])
                case effect.Denied():
                    note = texts.unsatisfiable(one.note)
                    self._answer(msg.AllocResponse(one.jobid, msg.DENY, note=note), last=True)
                case effect.Canceled():
                    self._answer(msg.AllocResponse(one.jobid, msg.CANCEL), last=True)
                case Call():
                    self._call(one)
                case Respond(request, answer):
                    self._not_waiting(request)
                    self._handle.respond(request, None if answer is None else codec.to_json(answer))
                case Fail(request, error):
                    self._fail(request, error)
                case effect.Raise():
                    self._perform(self.session.outgoing((one,)))
                case effect.PluginFailed(note) | effect.DecisionRefused(note):
                    self._log(LOG_ERR, note)
                case Log(text, is_error):
                    self._log(LOG_ERR if is_error else LOG_INFO, text)
                case End(reason):
                    self._log(LOG_ERR, f"the scheduler ends: {reason}")
                    self._handle.stop()

    def _fail(self, request: BrokerRequest, fault: FluxschedError) -> None:
        self._not_waiting(request)
        if request.topic not in ANSWERED:
            self._log(LOG_ERR, f"{request.topic}: {fault}")
            return
        text = texts.unsatisfiable(str(fault)) if fault.errnum == errno.EOVERFLOW else str(fault)
        self._handle.fail(request, fault.errnum, text)

    def _not_waiting(self, request: BrokerRequest) -> None:
        """An alloc request was refused as such; rare, so it may be searched for."""
        if request.topic == "sched.alloc":
            self.waiting = {jobid: kept for jobid, kept in self.waiting.items() if kept is not request}

    def _forget(self, jobid: int) -> None:
        self._annotations.pop(jobid, None)
        self._compat.forget(jobid)

    def _grant(self, one: effect.Granted) -> None:
        R = codec.to_json(one.R)  # noqa: N806
        annotations = self._compat.granted(one.jobid, one.annotations)
        self._forget(one.jobid)
        answer = {"id": one.jobid, "type": msg.SUCCESS, "R": msgspec.Raw(R), "annotations": annotations}
        self._commits.add(PendingGrant(one.jobid, R, codec.to_json(answer)))

    def _stored(self, grant: PendingGrant) -> None:
        self._handle.respond(self.waiting.pop(grant.jobid), grant.answer)

    def _not_stored(self, reply: BrokerReply) -> None:
        self._perform(self.session.end(f"the KVS did not take R: {reply.text}"))

    def _answer(self, answer: msg.AllocResponse, last: bool = False) -> None:
        request = self.waiting.pop(answer.id) if last else self.waiting[answer.id]
        if last:
            self._forget(answer.id)
        self._handle.respond(request, codec.to_json(answer))

    def _log(self, level: int, text: str) -> None:
        self._handle.log(level, text)


def _read(data: bytes) -> Jobspec:
    return texts.read(codec.from_json(data, dict))
