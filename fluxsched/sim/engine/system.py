"""Production parts joined in memory on virtual time: resource module, scheduler session, scheduler; and jobspecs of
traces.

Law: queues and banks decide as in an instance (`jobs.queues`): defaults, requirements and limits are theirs; a job that
they would refuse is refused here with their words. No rule is written here. What would travel as a message passes as
the value that it carries, and what follows from it is done before anything else, in order. The resource module learns
what jobs hold only if a site file moves targets.
"""

from __future__ import annotations

import errno
import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from fluxsched.core.documents import with_path
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobfields import parse_sharing
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, Refused, RPCError
from fluxsched.jobs.queues import ANY_BANK, Banks, QueueConfig, Queues
from fluxsched.protocol.messages.sched import HelloResponse
from fluxsched.protocol.sessions import AcquireClient, AcquireServer
from fluxsched.resource import journal
from fluxsched.resource.inventory import Inventory
from fluxsched.resource.module import ResourceModule
from fluxsched.sched.decisions import Canceled, DecisionRefused, Denied, Granted, Grown, PluginFailed, Raise, Shrunk
from fluxsched.sched.engine.policy_queue import WAIT
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.policy import Policy
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S
from fluxsched.scheduler.session import (
    ACQUIRE,
    HELLO,
    RAISE,
    RELEASE,
    SHRINK,
    Effects,
    ErrorResponse,
    Fatal,
    OutgoingRequest,
    SchedulerSession,
    SessionEffect,
)
from fluxsched.sim.traces import Ask, TraceJob, parts_jobspec

JobspecKey: TypeAlias = tuple[Ask, float | None, int | str | None, str | None, float | None, int]

COMMAND: Final = ("simulated",)


class TraceJobspecs:
    """Jobspecs by what decides them: needs, limit, queue, and how they share the machine."""

    def __init__(
        self, queues: Mapping[str | None, QueueConfig], default_queue: str | None, banks: Banks = ANY_BANK
    ) -> None:
        self._banks = banks
        self._queues = Queues(queues, default_queue) if queues else None
        self._asked: dict[Ask, Jobspec] = {}
        self._made: dict[JobspecKey, Jobspec | str] = {}

    def of(self, job: TraceJob) -> Jobspec | str:
        """The jobspec, or why an instance would not take the job."""
        key = (job.ask, job.limit_s, job.queue, job.bank, job.preemptible_after_s, job.requeue)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = self._make_or_refuse(job)
        return known

    def _make_or_refuse(self, job: TraceJob) -> Jobspec | str:
        try:
            return self._make(job)
        except (InvalidValue, Refused) as fault:
            return str(fault)

    def _make(self, job: TraceJob) -> Jobspec:
        base = self._asked.get(job.ask)
        if base is None:
            base = self._asked[job.ask] = _jobspec(job.ask)
        if job.limit_s:
            base = replace(base, duration_s=job.limit_s, raw=with_system(base, "duration", job.limit_s))
        base = _sharing(base, job)
        bank = self._banks.missing_in(base)
        if bank is not None:
            base = _sharing(base, job._replace(bank=bank))
        if self._queues is None:
            return base
        name = None if job.queue is None else str(job.queue)
        if name is not None and name in self._queues.names():
            base = replace(base, queue=name, raw=with_system(base, "queue", name))
        return self._queues.for_submit(base.queue).admit(base)


def _sharing(base: Jobspec, job: TraceJob) -> Jobspec:
    """With what the trace says of how the job shares the machine; it is not repeated in a whole jobspec."""
    said = {
        "bank": job.bank, "preemptible-after": job.preemptible_after_s, "fluxsched.requeue": job.requeue or None,
    }  # fmt: skip
    for key, value in said.items():
        if value is not None:
            base = replace(base, raw=with_system(base, key, value))
    if any(value is not None for value in said.values()):
        base = replace(base, sharing=parse_sharing(base.raw["attributes"]["system"]))
    return base


def _jobspec(ask: Ask) -> Jobspec:
    if ask.jobspec is not None:
        return Jobspec.parse(ask.jobspec)
    if ask.parts is not None:
        return _of_parts(ask, ask.parts)
    return Jobspec.from_command(
        COMMAND,
        ntasks=None if isinstance(ask.nodes, str) and ask.nslots == 1 else ask.nslots,  # one a node of a range
        cores_per_task=ask.cores,
        gpus_per_task=ask.gpus,
        nodes=ask.nodes,
        exclusive=ask.exclusive,
        constraint=None if ask.constraint is None else json.loads(ask.constraint),
        elastic=ask.elastic,
        max_hops=ask.max_hops,
    )


def _of_parts(ask: Ask, parts: str) -> Jobspec:
    raw = parts_jobspec(parts)
    system = raw["attributes"]["system"]
    if ask.constraint is not None:
        system["constraints"] = json.loads(ask.constraint)
    settled: dict[str, object] = {"elastic": ask.elastic or None, "max-hops": ask.max_hops}
    system["fluxsched"] = {key: value for key, value in settled.items() if value is not None}
    return Jobspec.parse(raw)


def with_system(jobspec: Jobspec, key: str, value: object) -> dict[str, Any]:
    """The raw jobspec with one key of `attributes.system` set."""
    return with_path(jobspec.raw, f"attributes.system.{key}", value)


# ---- the simulated system

ACQUIRER: Final = "scheduler"
"""The one peer of the resource module; it acquires every group."""


def virtual_text(time_s: float) -> str:
    """A time of the simulation: `3600 s`."""
    return f"{time_s:.15g} s"


class JobOwner(Protocol):
    """In place of a job manager: what becomes of its jobs."""

    def began(self, granted: Granted) -> None:
        """A job got its resources."""

    def left(self, jobid: int, note: str) -> None:
        """A waiting job was denied or canceled."""

    def raised(self, jobid: int, type: str, for_jobid: int | None) -> None:
        """A running job gets a fatal exception: its targets left the group, or it is preempted for another job."""

    def grew(self, grown: Grown) -> None:
        """A running job got more."""

    def shrank(self, shrunk: Shrunk) -> None:
        """A running job is to leave targets."""


class SharedBy(NamedTuple):
    """Settings of fair shares and preemption, where a policy asks for them (see `Scheduler`)."""

    fair: FairSettings | None = None
    user_name: Callable[[int], str] = str
    preempt_timeout_s: float = PREEMPT_TIMEOUT_S


SHARED: Final = SharedBy()


class System:
    """One scheduler over all groups of a site, at time `now_s`; `running` are the jobs that it takes over."""

    def __init__(
        self,
        owner: JobOwner,
        resources: ResourceSet,
        policy: Policy,
        groups: Mapping[str, Idset],
        acquired: Sequence[str],
        queues: Mapping[str, str | tuple[str, ...]],
        now_s: float = 0.0,
        policies: Mapping[str, Policy] | None = None,
        unsatisfiable: str = WAIT,
        running: Sequence[HelloResponse] = (),
        sharing: SharedBy = SHARED,
        plugins: Mapping[str, Sequence[Plugin]] | None = None,
    ) -> None:
        self.module = ResourceModule(
            Inventory(resources, "configuration"), groups, now_s=now_s, online=resources.ranks
        )
        self.scheduler = Scheduler(
            policy, acquired, queues, policies, notify=False, unsatisfiable=unsatisfiable, time_text=virtual_text,
            fair=sharing.fair, user_name=sharing.user_name, preempt_timeout_s=sharing.preempt_timeout_s,
            plugins=plugins,
        )  # fmt: skip
        self.now_s = now_s
        self.refusal = ""  # what was wrong with the first grow or shrink that was refused
        self._session = SchedulerSession(self.scheduler, {group: AcquireClient(group) for group in acquired}, _read)
        self._owner = owner
        self._running = running
        self._pending: deque[SessionEffect] = deque()
        self._busy = False
        self._streams: dict[str, tuple[OutgoingRequest, AcquireServer]] = {}
        self.tell(self.module.start(now_s))
        self.perform(self._session.start())

    # ---- what happens

    def tell(self, effects: Iterable[journal.ResourceEffect]) -> None:
        """Pass on the resource module's changes to their acquirer, and perform what follows."""
        for one in effects:
            if isinstance(one, journal.ToAcquirer):
                self._streams[one.group][1].add(one.change)
        for call, server in list(self._streams.values()):
            for change in server.take():
                self.perform(self._session.answered(call, change, None, self.now_s))
        if self._session.has_work:
            self.perform(())

    def submit(self, jobid: int, priority: int, userid: int, t_submit_s: float, jobspec: Jobspec) -> None:
        """A job asks for resources, between passes."""
        effects = self.scheduler.alloc(jobid, priority, userid, t_submit_s, jobspec, self.now_s)
        if effects:
            self.perform(effects)

    def free(self, jobid: int) -> None:
        """A job frees all that it holds, between passes."""
        effects = self.scheduler.free_all(jobid, self.now_s)
        if effects:
            self.perform(self._session.outgoing(effects))

    def free_part(self, jobid: int, resources: ResourceSet) -> None:
        """A job that goes on frees a part of what it holds, between passes."""
        effects = self.scheduler.free(jobid, resources, False, self.now_s)
        if effects:
            self.perform(self._session.outgoing(effects))

    def send(self, topic: str, message: Any) -> None:
        """Any other request to the scheduler. Raises what would be answered with an error."""
        self.perform(self._session.receive(topic, message, None, self.now_s))

    def run_pass(self, grants_max: int | None = None) -> bool:
        """One pass; it is dropped after `grants_max` grants. False if its policy cannot have asked for another."""
        session, began, may_wake = self._session, self._owner.began, False
        for effect in session.decide(self.now_s):
            if isinstance(effect, Granted):
                began(effect)
                if grants_max is not None:
                    grants_max -= 1
                    if not grants_max:
                        session.drop()
                        break
            elif isinstance(effect, Raise):
                self._owner.raised(effect.jobid, effect.type, effect.for_jobid)
            elif isinstance(effect, Grown | Shrunk):
                self._resize(effect)
            else:
                may_wake = True
                self.perform((effect,))
        if session.decided():
            self.perform(())
        return may_wake

    def _resize(self, effect: Grown | Shrunk) -> None:
        """Carry out a resize, as the job manager would store it."""
        if isinstance(effect, Shrunk):
            self._owner.shrank(effect)
            return
        self._owner.grew(effect)
        further = self.scheduler.grow_stored(effect.jobid, self.now_s)
        if further:
            self.perform(self._session.outgoing(further))

    def perform(self, effects: Effects) -> None:
        """Do what the session asks for, and all that follows, in order."""
        pending, session = self._pending, self._session
        pending.extend(effects)
        if self._busy:
            return  # the loop that is running continues with these
        self._busy = True
        try:
            while pending or session.has_work:
                if pending:
                    self._perform(pending.popleft())
                else:
                    pending.extend(session.work(1))
        finally:
            self._busy = False

    def _perform(self, one: SessionEffect) -> None:
        match one:
            case Granted():
                self._owner.began(one)
            case Denied(jobid, note):
                self._owner.left(jobid, note)
            case Canceled(jobid):
                self._owner.left(jobid, "canceled")
            case OutgoingRequest():
                self._call(one)
            case ErrorResponse(_, error):
                raise error
            case DecisionRefused(note):
                self.refusal = self.refusal or note
            case PluginFailed(note):  # what is simulated without it is of no use, as with a policy that raises
                raise InvalidValue(note)
            case Fatal(reason):
                raise AssertionError(f"the scheduler ends: {reason}")

    def _call(self, call: OutgoingRequest) -> None:
        """A request of the scheduler reaches the module that answers it."""
        message = call.message
        if call.topic == ACQUIRE:
            self._streams[call.group] = call, AcquireServer(message.typed, message.accept_update)
            self.tell(self.module.acquire(ACQUIRER, message.group, message.typed))
        elif call.topic == RELEASE:
            self.tell(self.module.release(ACQUIRER, message.group, Idset.parse(message.targets), self.now_s))
        elif call.topic == RAISE:
            self._owner.raised(message.id, message.type, None)
        elif call.topic == SHRINK:
            self._owner.shrank(Shrunk(message.id, Idset.parse(message.ranks), message.note))
            self.perform(self._session.answered(call, None, None, self.now_s))
        elif call.topic == HELLO:
            for job in self._running:
                self.perform(self._session.answered(call, job, None, self.now_s))
            self.perform(self._session.answered(call, None, RPCError("", errno.ENODATA), self.now_s))
        else:
            self.perform(self._session.answered(call, None, None, self.now_s))

    # ---- questions

    def usable(self) -> Idset:
        """The targets that the scheduler may use now."""
        usable = EMPTY
        for group in self._streams:
            usable |= self.module.usable(group)
        return usable

    def usable_cores(self) -> int:
        """Return the number of cores of usable targets."""
        return self.module.resources.restrict(self.usable()).count("core")

    def check(self) -> None:
        """Assert that nothing is held twice."""
        self.module.check()
        self.scheduler.check()


def _read(jobspec: Any) -> Jobspec:
    """Jobs enter with parsed jobspecs; what is told of jobs that run already is as in messages."""
    return jobspec if isinstance(jobspec, Jobspec) else Jobspec.parse(jobspec)
