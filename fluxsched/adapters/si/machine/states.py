"""The states of a resource manager, as a table.

Law: an event that the table does not list for a state is a bug of ours, or is answered before it comes here.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from fluxsched.errors import InvalidTransition


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
    """The state after an event. Raises InvalidTransition."""
    after = RM_TRANSITIONS.get((state, event))
    if after is None:
        raise InvalidTransition(f"a resource manager that is {state.value} cannot be {event.value}")
    return after
