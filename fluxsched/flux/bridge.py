"""Scheduler of ours as Flux's: its session over Flux's messages, in JSON, with each R stored in the KVS.

Laws: nothing here takes the broker down. What a peer got wrong is logged and answered, a policy that raises is logged
and called again when something changes, and what we cannot recover from ends the module without an error: Flux keeps
the jobs that wait, and the next module finds those that run. Their R is in the KVS and not in hello's answers (RFC 27):
the KVS is asked for many jobs at once, in windows, and jobs are taken over in the order in which hello named them.
Where accounts are kept or there are plugins, it is asked for their jobspecs, too, with the updates in their eventlogs,
in which a plugin of Flux may have set the bank; a job whose jobspec cannot be read runs on, as if it had none.

Texts for Flux's users, tools and tests have Flux's form of denials and of the line that reports that we are ready; our
own reason is always in the text, after the words that people grep for under Flux. Our settings in the configuration of
a Flux instance (`[fair]`, and how long a preempted job has) are read once, when the module is loaded, and their faults
are reported then; only the parts that a policy asks for are read.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import msgspec

from fluxsched.config.reader import fair_settings, outage_settings
from fluxsched.config.values import OutageSettings
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import parse_duration
from fluxsched.core.resources import parse_rlite
from fluxsched.core.text import printable, with_path
from fluxsched.errors import FluxschedError, InvalidValue, RPCError
from fluxsched.flux.handle import (
    LEVELS,
    LOG_DEBUG,
    LOG_ERR,
    LOG_INFO,
    BrokerHandle,
    BrokerReply,
    BrokerRequest,
    Commits,
    CompatPolicy,
    KvsHistory,
    Options,
    PendingGrant,
    key_of,
)
from fluxsched.flux.outages import OutageDrains
from fluxsched.messaging.memo import SPEC_BYTES_MAX, SPECS_KEPT, PayloadMemo
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.jobs import HelloResponse, RaiseRequest
from fluxsched.protocol.sessions import AcquireClient
from fluxsched.sched.decisions import (
    PREEMPT,
    Annotated,
    Canceled,
    DecisionRefused,
    Denied,
    Granted,
    PluginFailed,
    Raise,
)
from fluxsched.sched.engine.policy_queue import WAIT
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S
from fluxsched.scheduler.host import ANSWERS, REQUESTS
from fluxsched.scheduler.session import (
    ACQUIRE,
    HELLO,
    RAISE,
    READY,
    SAVE,
    Effects,
    ErrorResponse,
    Fatal,
    Log,
    OutgoingRequest,
    Respond,
    SchedulerSession,
)
from fluxsched.system.clock import Clock, local_text
from fluxsched.system.files import user_name

NOT_AGAIN: Final = "; Flux does not submit it again"


def unsatisfiable(why: str) -> str:
    """Return the note of a denial that no change of availability lifts."""
    return f"unsatisfiable request: {why}"


def unreadable(jobspec: Mapping[str, Any], fault: InvalidValue) -> str:
    """Return the note of a denial: the jobspec cannot be read."""
    attributes = jobspec.get("attributes")
    if not isinstance(attributes, dict) or "system" not in attributes:
        return f"cannot parse jobspec: getting duration: Object item not found: system ({fault})"
    return f"cannot parse jobspec: {fault}"


def read(jobspec: Mapping[str, Any]) -> Jobspec:
    """Read the jobspec of an alloc request, which Flux has accepted. Raises InvalidValue, the denial's note."""
    try:
        found = Jobspec.for_scheduler(jobspec)
    except InvalidValue as fault:
        raise InvalidValue(unreadable(jobspec, fault)) from fault
    if name := found.request.reservation:  # it would wait for ever, and all others behind it
        raise InvalidValue(
            f"there is no reservation {printable(name)!r}: in Flux there are none; submit the job without"
        )
    return found


def preempted(wanted: RaiseRequest) -> RaiseRequest:
    """Return an exception of ours as Flux is asked for it: what a jobspec says of being submitted again is not done
    here.
    """
    if wanted.type != PREEMPT:
        return wanted
    return RaiseRequest(wanted.id, wanted.type, wanted.severity, f"{wanted.note}{NOT_AGAIN}")


def ready(depth: int | None, level: str, decides: str, resources: str) -> str:
    """Return the line that an admin looks for after loading a scheduler; `decides` names policy and plugins."""
    return f"ready: queue-depth={depth or 'unlimited'} log-level={level} {decides} Rv1 {resources}"


def hello(name: str, job: HelloResponse) -> str:
    """Return the debug line of one job that runs already."""
    return f"hello: id={name} priority={job.priority} userid={job.userid} t_submit={job.t_submit:.1f}"


def free(name: str, resources: str, final: bool) -> str:
    """Return the debug line of what a job frees."""
    return f"free: {name}: {resources}{' (final)' if final else ''}"


# ---- settings in Flux's configuration


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """`fair` is None unless the policy asks for accounts. A job has `preempt_timeout_s` from SIGTERM to SIGKILL."""

    fair: FairSettings | None = None
    preempt_timeout_s: float = PREEMPT_TIMEOUT_S
    outages: tuple[OutageSettings, ...] = ()


NO_CONFIG: Final = SiteConfig()


def read_site(config: Mapping[str, Any], *, reads_fair: bool = True) -> SiteConfig:
    """Return the answer to `config.get`. Raises InvalidValue with all that is wrong with `[fair]`, or `[[outages]]`."""
    fair, outages = fair_settings(config) if reads_fair else None, outage_settings(config)
    for each in outages:
        if each.queue or each.ends_jobs:
            key = "queue" if each.queue else "end-jobs"
            raise InvalidValue(f"[[outages]] {each.name}: {key} is for instances of fluxsched, not for Flux: remove it")
    return SiteConfig(fair, _kill_timeout_s(config), outages)


def _kill_timeout_s(config: Mapping[str, Any]) -> float:
    """Flux's `exec.kill-timeout`; what is wrong with it is for Flux to say."""
    table = config.get("exec")
    given = table.get("kill-timeout") if isinstance(table, Mapping) else None
    try:
        return parse_duration(given) if isinstance(given, str) else PREEMPT_TIMEOUT_S
    except InvalidValue:
        return PREEMPT_TIMEOUT_S


# ---- running jobs, taken over with their R

LOOKUPS_MAX = 256
"""Lookups in flight: the KVS answers them in one round trip, and no queue of the broker grows without bound."""

R, JOBSPEC, EVENTLOG = "R", "jobspec", "eventlog"
"""Keys of a job that are looked up (RFC 16, job schema)."""

Perform = Callable[[Effects], None]
JobLookups = dict[str, BrokerReply]


class RunningJobLookup:
    """Stands between hello's answers and the session, and adds each job's R."""

    def __init__(
        self, handle: BrokerHandle, session: SchedulerSession, now_s: Callable[[], float], *, jobspecs: bool
    ) -> None:
        self._handle = handle
        self._session = session
        self._now_s = now_s
        self._keys = (R, JOBSPEC, EVENTLOG) if jobspecs else (R,)
        self._last: RPCError | None = None
        self._named: deque[HelloResponse] = deque()
        self._asked: deque[tuple[HelloResponse, JobLookups]] = deque()

    def answered(
        self, call: OutgoingRequest, job: HelloResponse | None, error: RPCError | None, perform: Perform
    ) -> None:
        """Take one answer of hello; ENODATA, or any other error, is its last."""
        self._last = error
        if job is not None:
            self._named.append(job)
        self._continue(call, perform)

    def _continue(self, call: OutgoingRequest, perform: Perform) -> None:
        while self._asked and len(self._asked[0][1]) == len(self._keys):
            self._take_over(call, *self._asked.popleft(), perform)
        while self._named and (len(self._asked) + 1) * len(self._keys) <= LOOKUPS_MAX:
            job, found = self._named.popleft(), JobLookups()
            self._asked.append((job, found))
            for key in self._keys:

                def answered(reply: BrokerReply, found: JobLookups = found, key: str = key) -> None:
                    found[key] = reply
                    self._continue(call, perform)

                self._handle.lookup(key_of(job.id, key), answered)
        if self._last is not None and not self._asked:
            error, self._last = self._last, None
            perform(self._session.answered(call, None, error, self._now_s()))

    def _take_over(self, call: OutgoingRequest, job: HelloResponse, found: JobLookups, perform: Perform) -> None:
        reply = found[R]
        self._handle.log(LOG_DEBUG, hello(format_f58(job.id, ascii=self._handle.ascii), job))
        try:
            if reply.errnum:
                raise RPCError(f"its R cannot be read: {reply.text}", reply.errnum)
            resources = framing.from_json(reply.payload, dict)
        except FluxschedError as fault:
            perform(self._session.refuse_job(job.id, fault))
            return
        known = job.id, job.priority, job.userid, job.t_submit, job.free, resources
        log = found[EVENTLOG].payload if EVENTLOG in found else None
        full = HelloResponse(*known, self._jobspec(job.id, found), preempted_s(log or b""))
        perform(self._session.answered(call, full, None, self._now_s()))

    def _jobspec(self, jobid: int, found: JobLookups) -> Any:
        """As bytes, which the session reads like those of an alloc request; None if there is none."""
        if JOBSPEC not in found:
            return None
        for reply in (found[JOBSPEC], found[EVENTLOG]):
            if reply.errnum:
                name = format_f58(jobid, ascii=self._handle.ascii)
                self._handle.log(LOG_ERR, f"hello: {name} counts as if it had no jobspec: {reply.text}")
                return None
        return updated(found[JOBSPEC].payload or b"", found[EVENTLOG].payload or b"")


def preempted_s(eventlog: bytes) -> float | None:
    """Since when a job is going that holds something still (wall time, seconds); None if it is not.

    An eventlog that cannot be read says nothing.
    """
    try:
        for event in _events(eventlog, "exception"):
            if (event["context"]["type"], event["context"]["severity"]) == (PREEMPT, 0):
                return float(event["timestamp"])
    except (FluxschedError, TypeError, ValueError, KeyError):
        pass
    return None


def _events(eventlog: bytes, name: str) -> Iterator[dict[str, Any]]:
    """Yield the events with this name. Raises RemoteProtocolError or KeyError for an event that is none."""
    having = f'"{name}"'.encode()
    for line in eventlog.splitlines() if having in eventlog else ():  # mostly there is no such event
        if having in line:
            event = framing.from_json(line, dict[str, Any])
            if event["name"] == name:
                yield event


def updated(jobspec: bytes, eventlog: bytes) -> bytes:
    """Return a jobspec with the updates that were logged since it was submitted (RFC 21); what cannot be read says
    nothing.
    """
    try:
        updates = [event["context"] for event in _events(eventlog, "jobspec-update")]
        if not updates:
            return jobspec
        tree = framing.from_json(jobspec, dict)
        for path, value in (pair for update in updates for pair in update.items()):
            tree = with_path(tree, path, value)
    except (FluxschedError, AttributeError, KeyError):
        return jobspec
    return framing.to_json(tree)


# ---- the bridge

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
        self._compat = CompatPolicy(
            handle,
            options.policy,
            options.forecast,
            lambda: self.scheduler.report.planned(),
            lambda jobid: self.scheduler.report.overtaken(jobid),
        )
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
            {DEFAULT_GROUP: AcquireClient(None, decode=framing.from_json)},
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
        self._outages = OutageDrains(handle, site.outages)

    # ---- messages

    def start(self) -> None:
        """Acquire the resources; further requests follow the answer."""
        self._perform(self.session.start())

    def receive(self, request: BrokerRequest) -> None:
        """Take one request. What is wrong with it is answered, or logged where no answer is expected."""
        topic = request.topic
        try:
            if topic not in TOPICS:
                self._handle.respond(request, framing.to_json(self._stats()))
                return
            read = framing.from_json(request.payload, REQUESTS[topic])
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
                self._handle.respond(request, framing.to_json(denied))
                return True
            self.waiting.setdefault(read.id, request)
        elif request.topic == "sched.expiration":
            self._compat.check_expiration()
        elif request.topic == "sched.free" and self._options.log_level >= LOG_DEBUG:  # it takes longer than to free it
            given = parse_rlite(read.R.execution.R_lite)
            name = format_f58(read.id, ascii=self._handle.ascii)
            self._log(LOG_DEBUG, free(name, given.summary(), read.final))
        return False

    def _work(self) -> None:
        """Have the session handle what it keeps; then something may be decided."""
        if self.session.has_work:
            self._perform(self.session.work(self.session.kept))
            self._changed()

    def _call(self, call: OutgoingRequest) -> None:
        if call.topic == SAVE:
            self._history.save(call.message, lambda reply: self._answered(call, reply))
            return
        message = preempted(call.message) if call.topic == RAISE else call.message
        payload = None if message is None else framing.to_json(message)
        self._handle.rpc(call.topic, payload, lambda reply: self._answered(call, reply), streaming=call.streaming)

    def _answered(self, call: OutgoingRequest, reply: BrokerReply) -> None:
        error = None
        if reply.errnum:
            error = RPCError(reply.text or errno.errorcode.get(reply.errnum, str(reply.errnum)), reply.errnum)
        kind = ANSWERS.get(call.topic)
        answer: Any = reply.payload if kind is None or error is not None else framing.from_json(reply.payload, kind)
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
        if (group := self.scheduler.group(DEFAULT_GROUP)).grown:
            outages = self._outages.plan(group.pool.resources)
            if outages is not None:
                self.scheduler.updated(DEFAULT_GROUP, now_s=now_s, outages=outages)
        self._work()

    def _is_ready(self, call: OutgoingRequest, answer: msg.ReadyResponse) -> None:
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
        total = self.scheduler.report.resource_status()[0].summary()
        self._log(LOG_INFO, ready(self._options.queue_depth, level, self._options.decides, total))

    def _stats(self) -> dict[str, Any]:
        return self.scheduler.report.stats() | {
            "policy": self.policy.name,
            "sched_passes": self.passes,
            "pending_jobs": len(self.waiting),
            "policy_errors": self.policy_errors,
            "commits": self._commits.stats(),
        }

    def leave(self) -> None:
        """Save what is to be saved, since the module is unloaded."""
        self._perform(self.session.stop(self._now_s()))

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
        self._outages.advance(now_s)
        self._annotate()
        self._commits.flush()
        self.passes += 1
        ended_s = self._clock.monotonic_s()
        self._rest_until_s = ended_s + REST * (ended_s - begun_s)
        if cut:
            self._changed()
        self._work()
        next_s = min(inf if self._complaint else self.session.next_notice_s, self._outages.next_s)
        if not self._armed and next_s < inf:
            self._handle.after(max(0.0, next_s - now_s))  # a turn for whatever happens sooner replaces this one

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
                case Granted():
                    self._grant(one)
                case Annotated():
                    self._annotations.setdefault(one.jobid, {}).update(one.annotations["sched"])
                case Denied():
                    note = unsatisfiable(one.note)
                    self._answer(msg.AllocResponse(one.jobid, msg.DENY, note=note), last=True)
                case Canceled():
                    self._answer(msg.AllocResponse(one.jobid, msg.CANCEL), last=True)
                case OutgoingRequest():
                    self._call(one)
                case Respond(request, answer):
                    self._not_waiting(request)
                    self._handle.respond(request, None if answer is None else framing.to_json(answer))
                case ErrorResponse(request, error):
                    self._fail(request, error)
                case Raise():
                    self._perform(self.session.outgoing((one,)))
                case PluginFailed(note) | DecisionRefused(note):
                    self._log(LOG_ERR, note)
                case Log(text, is_error):
                    self._log(LOG_ERR if is_error else LOG_INFO, text)
                case Fatal(reason):
                    self._log(LOG_ERR, f"the scheduler ends: {reason}")
                    self._handle.stop()

    def _fail(self, request: BrokerRequest, fault: FluxschedError) -> None:
        self._not_waiting(request)
        if request.topic not in ANSWERED:
            self._log(LOG_ERR, f"{request.topic}: {fault}")
            return
        text = unsatisfiable(str(fault)) if fault.errnum == errno.EOVERFLOW else str(fault)
        self._handle.fail(request, fault.errnum, text)

    def _not_waiting(self, request: BrokerRequest) -> None:
        """Record that an alloc request was refused as such; rare, so it may be searched for."""
        if request.topic == "sched.alloc":
            self.waiting = {jobid: kept for jobid, kept in self.waiting.items() if kept is not request}

    def _forget(self, jobid: int) -> None:
        self._annotations.pop(jobid, None)
        self._compat.forget(jobid)

    def _grant(self, one: Granted) -> None:
        R = framing.to_json(one.R)  # noqa: N806
        annotations = self._compat.granted(one.jobid, one.annotations)
        self._forget(one.jobid)
        answer = {"id": one.jobid, "type": msg.SUCCESS, "R": msgspec.Raw(R), "annotations": annotations}
        self._commits.add(PendingGrant(one.jobid, R, framing.to_json(answer)))

    def _stored(self, grant: PendingGrant) -> None:
        self._handle.respond(self.waiting.pop(grant.jobid), grant.answer)

    def _not_stored(self, reply: BrokerReply) -> None:
        self._perform(self.session.end(f"the KVS did not take R: {reply.text}"))

    def _answer(self, answer: msg.AllocResponse, last: bool = False) -> None:
        request = self.waiting.pop(answer.id) if last else self.waiting[answer.id]
        if last:
            self._forget(answer.id)
        self._handle.respond(request, framing.to_json(answer))

    def _log(self, level: int, text: str) -> None:
        self._handle.log(level, text)


def _read(data: bytes) -> Jobspec:
    return read(framing.from_json(data, dict))
