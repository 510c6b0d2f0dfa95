"""Events and container states of one resource manager, while they are wanted.

Law: at most EVENTS_MAX events a turn are told, and one that counts the rest.
"""

from __future__ import annotations

from typing import Final

from fluxsched.adapters.si.machine.effects import Observed
from fluxsched.adapters.si.messages import EventRecord, UpdateContainerSchedulingStateRequest

EVENTS_MAX = 1000
"""Events told in one turn."""

REQUEST: Final[int] = EventRecord.REQUEST
APP: Final[int] = EventRecord.APP
NODE: Final[int] = EventRecord.NODE
QUEUE: Final[int] = EventRecord.QUEUE
NONE: Final[int] = EventRecord.NONE
SET: Final[int] = EventRecord.SET
ADD: Final[int] = EventRecord.ADD
REMOVE: Final[int] = EventRecord.REMOVE

SKIPPED: Final[int] = UpdateContainerSchedulingStateRequest.SKIPPED
SCHEDULED: Final[int] = UpdateContainerSchedulingStateRequest.SCHEDULED
RESERVED: Final[int] = UpdateContainerSchedulingStateRequest.RESERVED
FAILED: Final[int] = UpdateContainerSchedulingStateRequest.FAILED


class Observations:
    """Nothing is kept while `on` is false; callers on hot paths ask that first."""

    __slots__ = ("_events", "_rest", "_rm_id", "_states", "on")

    def __init__(self, rm_id: str) -> None:
        self._rm_id = rm_id
        self.on = False
        self._events: list[tuple[int, str, str, str, str, int]] = []
        self._rest = 0
        self._states: list[tuple[str, str, int, str]] = []

    def event(self, type: int, object_id: str, group_id: str, reason: str, change: int, message: str = "") -> None:
        """Something has happened to an object; `reason` names it.

        Its group is the application of an ask, the queue of an application, the partition of a node.
        """
        if not self.on:
            return
        if len(self._events) < EVENTS_MAX:
            self._events.append((type, object_id, group_id, reason, message, change))
        else:
            self._rest += 1

    def queue_event(self, path: str, partition: str, reason: str, change: int, message: str) -> None:
        """Record an event of a queue: its group is the queue above it, that of the root its partition."""
        self.event(QUEUE, path, path.rpartition(".")[0] or partition, reason, change, message)

    def state(self, application_id: str, key: str, state: int, reason: str) -> None:
        """The container state of an ask."""
        if self.on:
            self._states.append((application_id, key, state, reason))

    def taken(self, now_s: float) -> Observed | None:
        """Return the observations since the last call; None if there are none."""
        if not self._events and not self._states:
            return None
        events = [
            EventRecord(
                type=type, objectID=object_id, groupID=group_id, reason=reason, message=message,
                timestampNano=int(now_s * 1e9), eventChangeType=change,
            )
            for type, object_id, group_id, reason, message, change in self._events
        ]  # fmt: skip
        if self._rest:
            message = f"{self._rest} more events in this turn: the limit is {EVENTS_MAX}"
            events.append(EventRecord(reason="EventsLeftOut", message=message, timestampNano=int(now_s * 1e9)))
        states = [
            UpdateContainerSchedulingStateRequest(
                applicartionID=application_id, allocationKey=key, state=state, reason=reason
            )
            for application_id, key, state, reason in self._states
        ]
        self._events, self._states, self._rest = [], [], 0
        return Observed(self._rm_id, tuple(events), tuple(states))
