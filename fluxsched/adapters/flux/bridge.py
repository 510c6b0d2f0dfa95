"""Our `sched.Scheduler` as Flux's scheduler: RFC 28 in its plain dialect, RFC 27 as Flux's job manager speaks it.

    acquire -> first grow -> hello, each R out of the KVS -> ready -> alloc, free, ... and a pass after each burst

Law: nothing here takes the broker down. What a peer got wrong is logged and answered, a policy that raises is logged
and asked again when something changes, and what we cannot go on with ends the module quietly: Flux keeps the jobs that
wait, and the next module finds those that run. Requests that come before we are ready wait until we are.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
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
from fluxsched.adapters.flux.options import Options
from fluxsched.adapters.flux.running_jobs import RunningJobLookup
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import parse_entries
from fluxsched.errors import FluxschedError, InvalidValue, RemoteProtocolError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.lite import FREE
from fluxsched.protocol.messages import alloc as msg
from fluxsched.protocol.sessions.acquire_client import AcquireClient
from fluxsched.runtime.system.clock import Clock, local_text
from fluxsched.sched import effects as effect
from fluxsched.sched.engine.group_changes import apply
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.sched.engine.set_aside import WAIT

TOPICS = ("sched.alloc", "sched.free", "sched.cancel", "sched.prioritize", "sched.expiration",
          "sched.resource-status", "feasibility.check")  # fmt: skip
"""The requests that the services `sched` and `feasibility` take; NAME.stats-get comes on top."""

SLICE_S = 0.02
"""A pass that lasts longer is dropped between two decisions, for the broker's messages; the next one goes on."""

REST = 1.0
"""After a pass we rest so many times its length, so that a burst shares passes and messages get their half."""

SPECS_KEPT = 256
"""Jobspecs kept by their bytes: whoever submits ten thousand equal jobs has one of them read."""

ANSWERED = ("sched.expiration", "sched.resource-status", "feasibility.check")
"""Requests whose sender waits for an answer, be it an error."""

ALLOC = codec.with_raw(msg.AllocRequest, "jobspec")


class Bridge:
    """Joins one scheduler to one Flux instance."""

    def __init__(self, handle: BrokerHandle, options: Options, clock: Clock) -> None:
        self._compat = CompatPolicy(handle, options.policy, options.forecast, lambda: self.scheduler.planned())
        self.scheduler = Scheduler(self._compat, unsatisfiable=options.unsatisfiable, time_text=local_text)
        self.policy = options.policy
        self.passes = self.policy_errors = 0
        self.waiting: dict[int, BrokerRequest] = {}
        self._handle = handle
        self._options = options
        self._clock = clock
        self._acquire = AcquireClient(None, decode=codec.from_json)
        self._commits = Commits(handle, self._stored, self._not_stored)
        self._read = lru_cache(SPECS_KEPT)(_read)
        self._notes: dict[int, dict[str, Any]] = {}
        self._early: list[BrokerRequest] | None = []
        self._armed = self._ended = False
        self._rest_until_s = 0.0
        self._complaint = ""
        self._handlers: dict[str, Callable[[BrokerRequest], None]] = {
            "sched.alloc": self._alloc,
            "sched.free": self._free,
            "sched.cancel": self._cancel,
            "sched.prioritize": self._prioritize,
            "sched.expiration": self._expiration,
            "sched.resource-status": self._resource_status,
            "feasibility.check": self._feasibility,
            f"{handle.name}.stats-get": self._stats,
        }

    # ---- the conversation

    def start(self) -> None:
        """Acquire; the rest follows."""
        request = self._acquire.request()
        assert request is None, "the plain dialect has no payload"
        self._handle.rpc("resource.acquire", None, self._acquired, streaming=True)

    def _acquired(self, reply: BrokerReply) -> None:
        if reply.errnum:
            self._end(f"resource.acquire: {reply.text or errno.errorcode.get(reply.errnum, reply.errnum)}")
            return
        first, now_s = not self._acquire.acquired, self._since_s()
        change = self._acquire.receive(reply.payload)
        if change.expiration_s is not None:
            self._log(LOG_INFO, f"resource expiration updated to {change.expiration_s:.2f}")
        self._perform(apply(self.scheduler, DEFAULT_GROUP, change, typed=False, now_s=now_s))
        if change.grow is not None:
            RunningJobLookup(self._handle, self._adopt, self._greeted).start(self._options.partial_ok)
        if not first:
            self._changed()

    def _since_s(self) -> float:
        """When resources change; of no matter to whom nobody waits for."""
        return self._clock.wall_s() if self._options.unsatisfiable == WAIT else 0.0

    def _adopt(self, job: msg.HelloResponse, resources: ResourceSet, free: Idset) -> None:
        if unknown := resources.ranks - free - self._acquire.acquired:
            raise RemoteProtocolError(f"ranks {unknown} are not among the acquired ones")
        self._perform(self.scheduler.hello(job.id, job.priority, job.userid, job.t_submit, resources, free))

    def _greeted(self, fault: FluxschedError | None) -> None:
        if fault is not None:
            self._end(str(fault))
            return
        depth = self._options.queue_depth
        mode = msg.ReadyRequest("unlimited") if depth is None else msg.ReadyRequest("limited", depth)
        self._handle.rpc("job-manager.sched-ready", codec.to_json(mode), self._became_ready)

    def _became_ready(self, reply: BrokerReply) -> None:
        if reply.errnum:
            self._end(f"job-manager.sched-ready: {reply.text}")
            return
        level = next(name for name, level in LEVELS.items() if level == self._options.log_level)
        total = self.scheduler.resource_status()[0].summary()
        self._log(LOG_INFO, texts.ready(self._options.queue_depth, level, self.policy.name, total))
        early, self._early = self._early or [], None
        for request in early:
            self.receive(request)
        self._changed()

    # ---- requests

    def receive(self, request: BrokerRequest) -> None:
        """Take one request. What is wrong with it is answered, or logged where no answer is expected."""
        if self._early is not None:
            self._early.append(request)
            return
        try:
            self._handlers[request.topic](request)
        except FluxschedError as fault:
            if request.topic in ANSWERED:
                self._handle.fail(request, fault.errnum, str(fault))
            else:
                self._log(LOG_ERR, f"{request.topic}: {fault}")

    def _alloc(self, request: BrokerRequest) -> None:
        job = codec.from_json(request.payload, ALLOC)
        if job.id in self.waiting:
            raise RemoteProtocolError(f"alloc of job {job.id}: it waits already")
        try:
            self._compat.check_alloc()
            jobspec = self._read(bytes(job.jobspec))
        except InvalidValue as fault:
            self._handle.respond(request, codec.to_json(msg.AllocResponse(job.id, msg.DENY, note=str(fault))))
            return
        effects = self.scheduler.alloc(job.id, job.priority, job.userid, job.t_submit or 0.0, jobspec)
        self.waiting[job.id] = request
        self._perform(effects)
        self._changed()

    def _free(self, request: BrokerRequest) -> None:
        job = codec.from_json(request.payload, FREE)
        given = ResourceSet(parse_entries(job.R.execution.R_lite).entries)  # hosts and times are of no matter
        self._perform(self.scheduler.free(job.id, given, job.final))
        if self._options.log_level >= LOG_DEBUG:  # to write it takes longer than to free it
            self._log(LOG_DEBUG, texts.free(format_f58(job.id, ascii=self._handle.ascii), given.summary(), job.final))
        self._changed()

    def _cancel(self, request: BrokerRequest) -> None:
        self._perform(self.scheduler.cancel(codec.from_json(request.payload, msg.SchedCancelRequest).id))
        self._changed()

    def _prioritize(self, request: BrokerRequest) -> None:
        self._perform(self.scheduler.prioritize(codec.from_json(request.payload, msg.PrioritizeRequest).jobs))
        self._changed()

    def _expiration(self, request: BrokerRequest) -> None:
        wanted = codec.from_json(request.payload, msg.ExpirationRequest)
        self._compat.check_expiration()
        self._perform(self.scheduler.expiration(wanted.id, float(wanted.expiration)))
        self._handle.respond(request, None)
        self._changed()

    def _feasibility(self, request: BrokerRequest) -> None:
        jobspec = texts.read(codec.from_json(request.payload, msg.FeasibilityRequest).jobspec)
        why = self.scheduler.feasible(jobspec)
        if why is None:
            self._handle.respond(request, None)
        else:
            self._handle.fail(request, errno.EOVERFLOW, texts.unsatisfiable(why))

    def _resource_status(self, request: BrokerRequest) -> None:
        parts = zip(("all", "down", "allocated"), self.scheduler.resource_status(), strict=True)
        self._handle.respond(request, codec.to_json({name: part.to_json() for name, part in parts}))

    def _stats(self, request: BrokerRequest) -> None:
        stats = self.scheduler.stats() | {
            "policy": self.policy.name,
            "sched_passes": self.passes,
            "pending_jobs": len(self.waiting),
            "policy_errors": self.policy_errors,
            "commits": self._commits.stats(),
        }
        self._handle.respond(request, codec.to_json(stats))

    # ---- the pass

    def _changed(self) -> None:
        """Something may be decided: have a turn, soon after the last one if that was short."""
        if not self._armed and not self._ended:
            self._armed = True
            self._handle.after(max(0.0, self._rest_until_s - self._clock.monotonic_s()))

    def turn(self) -> None:
        """Run one pass over all that has come since the last, and send what it granted."""
        self._armed = False
        if self._early is not None or self._ended:
            return
        begun_s, now_s = self._clock.monotonic_s(), self._clock.wall_s()
        cut = self._pass(now_s, begun_s + SLICE_S)
        self._annotate()
        self._commits.flush()
        self.passes += 1
        ended_s = self._clock.monotonic_s()
        self._rest_until_s = ended_s + REST * (ended_s - begun_s)
        if cut:
            self._changed()
        elif not self._complaint and (next_notice_s := self.scheduler.next_notice_s) < inf:
            self._handle.after(max(0.0, next_notice_s - now_s))  # a turn for whatever happens sooner replaces this one

    def _pass(self, now_s: float, until_s: float) -> bool:
        """Whether the pass was dropped because its time was up; each decision of it stands."""
        decided = self.scheduler.schedule(now_s)
        try:
            for one in decided:
                self._perform((one,))
                if self._clock.monotonic_s() >= until_s:
                    if isinstance(decided, Generator):
                        decided.close()
                    return True
            self._complaint = ""
        except Exception as fault:
            self.policy_errors += 1
            complaint = f"policy {self.policy.name!r} raised {type(fault).__name__}: {fault}"
            if complaint != self._complaint:
                self._log(LOG_ERR, f"{complaint}; it is asked again when something changes")
            self._complaint = complaint
        return False

    def _annotate(self) -> None:
        """Tell those who still wait what the pass had to say, in one message each."""
        told, self._notes = self._notes, {}
        for jobid, sched in told.items():
            self._compat.told(jobid, sched)
        for jobid, sched in list(self._compat.notes()):
            told.setdefault(jobid, {}).update(sched)
            self._compat.told(jobid, sched)
        for jobid, sched in told.items():
            if jobid in self.waiting:
                self._answer(msg.AllocResponse(jobid, msg.ANNOTATE, annotations={"sched": sched}))
            else:
                self._compat.forget(jobid)

    # ---- effects

    def _perform(self, effects: Iterable[Any]) -> None:
        for one in effects:
            match one:
                case effect.Granted():
                    self._grant(one)
                case effect.Annotated():
                    self._notes.setdefault(one.jobid, {}).update(one.annotations["sched"])
                case effect.Denied():
                    note = texts.unsatisfiable(one.note)
                    self._answer(msg.AllocResponse(one.jobid, msg.DENY, note=note), last=True)
                case effect.Canceled():
                    self._answer(msg.AllocResponse(one.jobid, msg.CANCEL), last=True)

    def _forget(self, jobid: int) -> None:
        self._notes.pop(jobid, None)
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
        self._end(f"the KVS did not take R: {reply.text}")

    def _answer(self, answer: msg.AllocResponse, last: bool = False) -> None:
        request = self.waiting.pop(answer.id) if last else self.waiting[answer.id]
        if last:
            self._forget(answer.id)
        self._handle.respond(request, codec.to_json(answer))

    def _log(self, level: int, text: str) -> None:
        self._handle.log(level, text)

    def _end(self, reason: str) -> None:
        """Leave: without us jobs wait, and the next module finds those that run."""
        if not self._ended:
            self._ended = True
            self._log(LOG_ERR, f"the scheduler ends: {reason}")
            self._handle.stop()


def _read(data: bytes) -> Jobspec:
    return texts.read(codec.from_json(data, dict))
