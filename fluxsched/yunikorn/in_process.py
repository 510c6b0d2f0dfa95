"""Scheduler Interface in process, with the text's own method names: calls check and queue, turns call back.

`SchedulerAPI` is the interface of a scheduler, `ResourceManagerCallback` that of a resource manager; requests and
responses are the messages of `messages`. A request belongs to the scheduler from the call on, a response to the
resource manager.

Law: only `turn` touches the machine's tables and calls back, in one thread and one callback at a time; calls from any
thread queue. Time is an argument of turns: virtual, or that of a thread (`driven`).
"""

from __future__ import annotations

import errno
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol

from fluxsched.errors import Refused
from fluxsched.system.log import exception_text, logger
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.machine import SIMachine
from fluxsched.yunikorn.messages import (
    ALLOCATIONS,
    APPLICATIONS,
    NODES,
    UPDATES,
    Broke,
    Effect,
    EndStreams,
    PluginProblem,
    SendResponse,
)


class ResourceManagerCallback(Protocol):
    """Callback of a resource manager.

    It must have three methods, all called one at a time, from a turn: they may call the scheduler again. It may have
    besides: `Predicates(args)`, which refuses a node by raising, and `PreemptionPredicates(args)`, which returns a
    PreemptionPredicatesResponse, both asked within a decision, where they must not wait for another thread;
    `SendEvent(events)`; `UpdateContainerSchedulingState(request)`; `GetStateDump()`, which returns JSON.
    """

    def UpdateAllocation(self, response: Any) -> None:
        """Receive an AllocationResponse of the scheduler."""

    def UpdateApplication(self, response: Any) -> None:
        """Receive an ApplicationResponse of the scheduler."""

    def UpdateNode(self, response: Any) -> None:
        """Receive a NodeResponse of the scheduler."""


class SchedulerAPI(Protocol):
    """Methods of a scheduler.

    Each call checks rmID and shape, then queues; results are sent by callbacks. Raises InvalidValue for a fault of a
    request, Refused where a resource manager has to register first.
    """

    def RegisterResourceManager(self, request: Any, callback: ResourceManagerCallback) -> Any:
        """Begins anew for the rmID of a RegisterResourceManagerRequest; returns a RegisterResourceManagerResponse."""

    def UpdateAllocation(self, request: Any) -> None:
        """Queue an AllocationRequest of a resource manager."""

    def UpdateApplication(self, request: Any) -> None:
        """Queue an ApplicationRequest of a resource manager."""

    def UpdateNode(self, request: Any) -> None:
        """Queue a NodeRequest of a resource manager."""

    def UpdateConfiguration(self, request: Any) -> None:
        """Perform an UpdateConfigurationRequest, at once, for all resource managers of its policy group or for none."""


# ---- the scheduler

log = logger("si")

CALLS_QUEUED_MAX = 100_000
"""Calls between two turns; beyond it they are refused, as nothing drives the turns, or not fast enough."""


class InProcessScheduler:
    """A `SchedulerAPI`, whose owner calls `turn(now_s)` when `next_wake_s` has come or something was called."""

    def __init__(self, machine: SIMachine, now_s: float = 0.0) -> None:
        self._machine = machine
        self._now_s = now_s
        self._callbacks: dict[str, ResourceManagerCallback] = {}
        self._calls: deque[tuple[str, Any]] = deque()
        self._turning = threading.RLock()
        self._called = threading.Event()
        self._take: dict[str, Callable[[Any, float], None]] = {
            ALLOCATIONS: machine.update_allocation,
            APPLICATIONS: machine.update_application,
            NODES: machine.update_node,
        }
        self._is_deciding = False

    # ---- the interface

    def RegisterResourceManager(self, request: Any, callback: ResourceManagerCallback) -> Any:
        """As the text has it; raises InvalidValue and Refused."""
        messages.check(request, messages.RegisterResourceManagerRequest)
        with self._alone():
            self._queue_calls()  # of before
            self._machine.register(request, self._now_s, predicates=callback, in_process=True)
            self._callbacks[request.rmID] = callback
            if hasattr(callback, "SendEvent") or hasattr(callback, "UpdateContainerSchedulingState"):
                self._machine.observe(request.rmID, True)
        self._called.set()
        return messages.RegisterResourceManagerResponse()

    def UpdateAllocation(self, request: Any) -> None:
        """As the text has it; raises InvalidValue and Refused."""
        self._queue(ALLOCATIONS, request, messages.AllocationRequest)

    def UpdateApplication(self, request: Any) -> None:
        """As the text has it; raises InvalidValue and Refused."""
        self._queue(APPLICATIONS, request, messages.ApplicationRequest)

    def UpdateNode(self, request: Any) -> None:
        """As the text has it; raises InvalidValue and Refused."""
        self._queue(NODES, request, messages.NodeRequest)

    def UpdateConfiguration(self, request: Any) -> None:
        """As the text has it; raises InvalidValue and Refused."""
        messages.check(request, messages.UpdateConfigurationRequest)
        with self._alone():
            self._machine.update_configuration(request, self._now_s)
        self._called.set()

    # ---- beside it

    def shut_down(self, rm_id: str) -> None:
        """Forget what is known of a resource manager that leaves."""
        with self._alone():
            self._queue_calls()
            self._machine.shut_down(rm_id, self._now_s)
            self._callbacks.pop(rm_id, None)

    def state_dump(self, rm_id: str | None = None) -> dict[str, Any]:
        """Return the state of one resource manager or of all; what a callback says of itself is under `rm`."""
        with self._alone():
            dump = self._machine.state_dump(rm_id)
            callbacks = dict(self._callbacks)
        for each in dump["rms"]:
            get = getattr(callbacks.get(each["rmID"]), "GetStateDump", None)
            if get is not None:
                each["rm"] = _own_dump(get)
        return dump

    # ---- turns

    @property
    def next_wake_s(self) -> float:
        """Return the time of the next turn (seconds, of the clock of the turns); in the past if it is due now, inf if
        never.
        """
        return -inf if self._calls else self._machine.next_wake_s

    def turn(self, now_s: float) -> None:
        """Apply the queued calls, let the machine decide, and call back with the effects."""
        with self._alone():
            self._now_s = max(now_s, self._now_s)
            self._queue_calls()
            self._is_deciding = True
            try:
                effects = list(self._machine.turn(self._now_s))
            finally:
                self._is_deciding = False
            registered = dict(self._callbacks)
        for effect in effects:
            if isinstance(effect, Broke):
                log.error("resource manager %r: a bug in fluxsched: %s", effect.rm_id, exception_text(effect.fault))
                continue
            if isinstance(effect, PluginProblem):
                log.error("resource manager %r: %s", effect.rm_id, effect.note)
                continue
            callback = self._callbacks.get(effect.rm_id)
            if callback is not None and callback is registered.get(effect.rm_id):
                self._call_back(callback, effect)

    def turns(self, now_s: float) -> None:
        """Take turns until nothing more is due at that time."""
        self.turn(now_s)
        while self.next_wake_s <= now_s:
            self.turn(now_s)

    @contextmanager
    def driven(self, clock_s: Callable[[], float]) -> Iterator[InProcessScheduler]:
        """Drive the turns by a clock (wall time, seconds) in a thread that ends with the context."""
        ended = threading.Event()
        thread = threading.Thread(target=self._drive, args=(clock_s, ended), name="fluxsched-si", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            self._called.set()
            thread.join()

    def _drive(self, clock_s: Callable[[], float], ended: threading.Event) -> None:
        while not ended.is_set():
            self._called.clear()
            self.turn(clock_s())
            delay_s = self.next_wake_s - clock_s()
            if delay_s > 0:
                self._called.wait(min(delay_s, threading.TIMEOUT_MAX))

    # ---- within

    def _queue(self, kind: str, request: Any, shape: Any) -> None:
        messages.check(request, shape)
        self._machine.check(request, shape)
        if len(self._calls) >= CALLS_QUEUED_MAX:
            raise Refused(f"{CALLS_QUEUED_MAX} calls wait for a turn, the limit: call more slowly", errno.EAGAIN)
        self._calls.append((kind, request))
        self._called.set()

    def _queue_calls(self) -> None:
        for _ in range(len(self._calls)):
            kind, request = self._calls.popleft()
            with suppress(Refused):  # the resource manager has left since
                self._take[kind](request, self._now_s)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._turning:
            if self._is_deciding:
                raise Refused("this cannot be called from Predicates: call it afterwards", errno.EBUSY)
            yield

    def _call_back(self, callback: ResourceManagerCallback, effect: Effect) -> None:
        """Log a bug of a resource manager's, which is its own, and call the others."""
        try:
            match effect:
                case SendResponse(_, kind, response):
                    getattr(callback, UPDATES[kind])(response)
                case EndStreams(rm_id, detail):
                    log.info("resource manager %r: %s", rm_id, detail)
                    if not self._machine.is_registered(rm_id):
                        self._callbacks.pop(rm_id, None)
                case _:
                    _tell(callback, effect)
        except Exception as fault:
            log.error("callback of resource manager %r: %s", effect.rm_id, exception_text(fault))


def _tell(callback: Any, observed: Any) -> None:
    """Events and container states, to what wants them."""
    if observed.events and hasattr(callback, "SendEvent"):
        callback.SendEvent(observed.events)
    if hasattr(callback, "UpdateContainerSchedulingState"):
        for state in observed.states:
            callback.UpdateContainerSchedulingState(state)


def _own_dump(get: Callable[[], str]) -> Any:
    """JSON as an object; what is none, as a text; what was raised, in words."""
    try:
        text = get()
    except Exception as fault:
        return exception_text(fault)
    try:
        return json.loads(text)
    except ValueError:
        return text
