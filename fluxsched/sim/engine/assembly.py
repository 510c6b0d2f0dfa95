"""The simulated system: production parts (resource module, scheduler session, scheduler) joined in memory.

Law: what would travel as a message passes as the value that it carries, and what follows from it is done before
anything else, in order; time is an argument. The resource module learns what jobs hold only if a site file moves
targets.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, RPCError
from fluxsched.protocol.messages.sched import HelloResponse
from fluxsched.protocol.sessions import AcquireClient, AcquireServer
from fluxsched.resource.effects import ResourceEffect, ToAcquirer
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

ACQUIRER: Final = "scheduler"
"""The one peer of the resource module; it acquires every group."""


def virtual_text(time_s: float) -> str:
    """Return a time of the simulation: `3600 s`."""
    return f"{time_s:.15g} s"


class JobOwner(Protocol):
    """In place of a job manager: what becomes of its jobs."""

    def began(self, granted: Granted) -> None:
        """Record that a job got its resources."""

    def left(self, jobid: int, note: str) -> None:
        """Record that a waiting job was denied or canceled."""

    def raised(self, jobid: int, type: str, for_jobid: int | None) -> None:
        """Record that a running job gets a fatal exception: its targets left the group, or it is preempted for another
        job.
        """

    def grew(self, grown: Grown) -> None:
        """Record that a running job got more."""

    def shrank(self, shrunk: Shrunk) -> None:
        """Record that a running job is to leave targets."""


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
        self.pass_on(self.module.start(now_s))
        self.perform(self._session.start())

    # ---- what happens

    def pass_on(self, effects: Iterable[ResourceEffect]) -> None:
        """Pass on the resource module's changes to their acquirer, and perform what follows."""
        for one in effects:
            if isinstance(one, ToAcquirer):
                self._streams[one.group][1].add(one.change)
        for call, server in list(self._streams.values()):
            for change in server.take():
                self.perform(self._session.answered(call, change, None, self.now_s))
        if self._session.has_work:
            self.perform(())

    def submit(self, jobid: int, priority: int, userid: int, t_submit_s: float, jobspec: Jobspec) -> None:
        """Ask for resources for a job, between passes."""
        effects = self.scheduler.alloc(jobid, priority, userid, t_submit_s, jobspec, self.now_s)
        if effects:
            self.perform(effects)

    def free(self, jobid: int) -> None:
        """Free all that a job holds, between passes."""
        effects = self.scheduler.free_all(jobid, self.now_s)
        if effects:
            self.perform(self._session.outgoing(effects))

    def free_part(self, jobid: int, resources: ResourceSet) -> None:
        """Free a part of what a job holds, which goes on, between passes."""
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
        """Pass a request of the scheduler on to the module that answers it."""
        message = call.message
        if call.topic == ACQUIRE:
            self._streams[call.group] = call, AcquireServer(message.typed, message.accept_update)
            self.pass_on(self.module.acquire(ACQUIRER, message.group, message.typed))
        elif call.topic == RELEASE:
            self.pass_on(self.module.release(ACQUIRER, message.group, Idset.parse(message.targets), self.now_s))
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
        """Return the targets that the scheduler may use now."""
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
