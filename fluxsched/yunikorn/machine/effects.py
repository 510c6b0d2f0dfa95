"""Effects of the machine, and the table of a resource manager's states with its streams.

Effects are values that the shell carries out, so that a test compares lists; their messages are those of `messages`,
sent on the stream of their kind or passed to a callback.

Laws: an event that the table of states does not list for a state is a bug of ours, or is answered before it comes here.
A manager of which no stream is open is lost, unless it half-closed all that had been open together: then it shut down.
A manager in process has no streams; it is always connected.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from fluxsched.errors import InvalidTransition

APPLICATIONS: Final = "applications"
NODES: Final = "nodes"
ALLOCATIONS: Final = "allocations"

KINDS: Final = (APPLICATIONS, NODES, ALLOCATIONS)
"""The three streams of a resource manager, in the order in which a turn answers."""

UPDATES: Final = {APPLICATIONS: "UpdateApplication", NODES: "UpdateNode", ALLOCATIONS: "UpdateAllocation"}
"""The interface's name of each, as a stream, as a call and as a callback."""

RESPONSE_LISTS: Final = {
    APPLICATIONS: ("accepted", "rejected", "updated"),
    NODES: ("accepted", "rejected"),
    ALLOCATIONS: ("new", "released", "releasedAsks", "rejected", "rejectedAllocations"),
}
"""The lists of items in the responses of each kind, in the order in which one that is too large is split."""


class SendResponse(NamedTuple):
    """An ApplicationResponse, NodeResponse or AllocationResponse, by its kind, for one resource manager."""

    rm_id: str
    kind: str
    response: Any


class EndStreams(NamedTuple):
    """End all streams of a resource manager with ABORTED: it was stopped."""

    rm_id: str
    detail: str


class Observed(NamedTuple):
    """Events (EventRecord) and container states (UpdateContainerSchedulingStateRequest) of one turn."""

    rm_id: str
    events: tuple[Any, ...]
    states: tuple[Any, ...]


class Broke(NamedTuple):
    """A bug of ours has cost a resource manager its state: log it. It is not in the state dump any more."""

    rm_id: str
    fault: Exception


class PluginProblem(NamedTuple):
    """A plugin has raised or answered what it may not, about an ask of a resource manager, which waits: log it."""

    rm_id: str
    note: str


Effect: TypeAlias = SendResponse | EndStreams | Observed | Broke | PluginProblem


# ---- states of a resource manager

class RMState(Enum):
    """Init: never registered. Running. Paused: its connection was lost. Stopped: what was known of it is gone."""

    INIT = "Init"
    RUNNING = "Running"
    PAUSED = "Paused"
    STOPPED = "Stopped"


class RMEvent(Enum):
    """Event of a resource manager; `RESUMED` is a stream opened while paused, `OVERFLOWED` too many answers kept for
    it, `TIMED_OUT` the end of the time for which it is kept, `BROKEN` a bug of ours.
    """

    REGISTERED = "registered"
    LOST = "lost"
    RESUMED = "resumed"
    SHUT_DOWN = "shut down"
    TIMED_OUT = "timed out"
    OVERFLOWED = "overflowed"
    BROKEN = "broken"


RM_TRANSITIONS: Final[dict[tuple[RMState, RMEvent], RMState]] = {
    (RMState.INIT, RMEvent.REGISTERED): RMState.RUNNING,
    (RMState.RUNNING, RMEvent.REGISTERED): RMState.RUNNING,
    (RMState.RUNNING, RMEvent.LOST): RMState.PAUSED,
    (RMState.RUNNING, RMEvent.SHUT_DOWN): RMState.STOPPED,
    (RMState.RUNNING, RMEvent.BROKEN): RMState.STOPPED,
    (RMState.PAUSED, RMEvent.REGISTERED): RMState.RUNNING,
    (RMState.PAUSED, RMEvent.RESUMED): RMState.RUNNING,
    (RMState.PAUSED, RMEvent.SHUT_DOWN): RMState.STOPPED,
    (RMState.PAUSED, RMEvent.TIMED_OUT): RMState.STOPPED,
    (RMState.PAUSED, RMEvent.OVERFLOWED): RMState.STOPPED,
    (RMState.PAUSED, RMEvent.BROKEN): RMState.STOPPED,
    (RMState.STOPPED, RMEvent.REGISTERED): RMState.RUNNING,
}


def next_state(state: RMState, event: RMEvent) -> RMState:
    """Return the state after an event. Raises InvalidTransition."""
    after = RM_TRANSITIONS.get((state, event))
    if after is None:
        raise InvalidTransition(f"a resource manager that is {state.value} cannot be {event.value}")
    return after


# ---- streams of a resource manager

PAUSED_S_MAX = 60.0
"""Time for which a manager is kept that has lost its connection, or has registered and opens no stream (seconds)."""


class RMStreams:
    """`ends_s` is when its time without a stream is over (wall time, seconds; else inf)."""

    __slots__ = ("_open", "_orderly", "ends_s", "in_process")

    def __init__(self, in_process: bool, now_s: float) -> None:
        self.in_process = in_process
        self._open: dict[str, int] = {}  # kind -> number of its stream
        self._orderly = True
        self.ends_s = inf if in_process else now_s + PAUSED_S_MAX

    def carries(self, kind: str) -> bool:
        """Return whether an answer of this kind can be sent."""
        return self.in_process or kind in self._open

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of answers that can be sent, in their order."""
        return [kind for kind in KINDS if self.carries(kind)]

    def opened(self, kind: str, number: int) -> None:
        """Open a stream of a kind, instead of one that may have been there."""
        if not self._open:
            self._orderly = True
        self._open[kind] = number
        self.ends_s = inf

    def closed(self, kind: str, number: int, half_closed: bool) -> RMEvent | None:
        """Record that a stream has ended; return what that means, None if others are open or it had been replaced
        before.
        """
        if self._open.get(kind) != number:
            return None
        del self._open[kind]
        self._orderly = self._orderly and half_closed
        if self._open:
            return None
        return RMEvent.SHUT_DOWN if self._orderly else RMEvent.LOST

    def close_all(self, now_s: float) -> None:
        """Record that no stream is open any more."""
        self._open.clear()
        self._orderly = False
        self.ends_s = now_s + PAUSED_S_MAX
