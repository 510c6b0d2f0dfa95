"""Answers to one resource manager, until they can be sent: in order, one message of a kind a turn.

Items are made of the tables' rows inside their message, which costs less than a copy. `Observations` are events and
container states, while the manager wants them.

Laws: nothing is lost or sent twice while the manager is known; a message has at most ITEMS_MAX items, and
RESPONSE_BYTES_MAX bytes unless a single item is larger. At most EVENTS_MAX events a turn are sent, and one that counts
the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from fluxsched.yunikorn.machine.applications import StateChanged
from fluxsched.yunikorn.machine.effects import ALLOCATIONS, APPLICATIONS, NODES, RESPONSE_LISTS, Observed, SendResponse
from fluxsched.yunikorn.machine.tables import AllocationEntry, AskEntry
from fluxsched.yunikorn.messages import (
    STOPPED_BY_RM,
    AllocationResponse,
    ApplicationResponse,
    EventRecord,
    NodeResponse,
    UpdateContainerSchedulingStateRequest,
)

ITEMS_MAX = 1000
"""Maximum number of items of a message."""

RESPONSE_BYTES_MAX = 1 << 20
"""Of a message; most implementations of gRPC refuse those above 4 MiB."""

KEPT_ITEMS_MAX = 100_000
"""Maximum number of answers kept for a paused manager, which is stopped beyond it; some hundred bytes each."""


class _Messages:
    """The messages of one kind, of which the last is being filled; `items` are in all."""

    __slots__ = ("_kind", "_last", "_make", "_waiting", "items", "room")

    def __init__(self, kind: str, make: Callable[[], Any]) -> None:
        self._kind = kind
        self._make = make
        self._waiting: deque[tuple[Any, int]] = deque()
        self._last = make()
        self.items = 0
        self.room = ITEMS_MAX

    def next(self) -> Any:
        """Return the message into which the caller puts one more item, now."""
        if not self.room:
            self._waiting.append((self._last, ITEMS_MAX))
            self._last = self._make()
            self.room = ITEMS_MAX
        self.room -= 1
        self.items += 1
        return self._last

    def taken(self) -> tuple[Any, int]:
        """Return the first message, and how many items it has; there is one."""
        if self._waiting:
            message, items = self._waiting.popleft()
        else:
            message, items = self._last, ITEMS_MAX - self.room
            self._last, self.room = self._make(), ITEMS_MAX
        while items > 1 and message.ByteSize() > RESPONSE_BYTES_MAX:
            rest = self._split(message, items // 2)
            self._waiting.appendleft((rest, items - items // 2))
            items //= 2
        self.items -= items
        return message, items

    def _split(self, message: Any, keep: int) -> Any:
        """Take all but the first items out of a message, into another one: nothing is released before it is new."""
        rest = self._make()
        for field in RESPONSE_LISTS[self._kind]:
            found = getattr(message, field)
            if len(found) > keep:
                getattr(rest, field).extend(found[keep:])
                del found[keep:]
            keep -= len(found)
        return rest


class Outgoing:
    """A caller adds each item to the `next()` message of its kind."""

    __slots__ = ("_rm_id", "allocations", "applications", "nodes")

    def __init__(self, rm_id: str) -> None:
        self._rm_id = rm_id
        self.applications = _Messages(APPLICATIONS, ApplicationResponse)
        self.nodes = _Messages(NODES, NodeResponse)
        self.allocations = _Messages(ALLOCATIONS, AllocationResponse)

    def __len__(self) -> int:
        """Return the number of items that wait."""
        return self.applications.items + self.nodes.items + self.allocations.items

    def waits(self, kinds: list[str]) -> bool:
        """Return whether an item of these kinds waits."""
        return any(self._of_kind(kind).items for kind in kinds)

    def messages(self, kinds: list[str]) -> Iterator[SendResponse]:
        """One message of each of these kinds of which there is something."""
        for kind in kinds:
            of_kind = self._of_kind(kind)
            if of_kind.items:
                message, _ = of_kind.taken()
                yield SendResponse(self._rm_id, kind, message)

    def _of_kind(self, kind: str) -> _Messages:
        if kind == ALLOCATIONS:
            return self.allocations
        return self.nodes if kind == NODES else self.applications


# ---- items of answers

REASON_CHARS_MAX = 1000
"""Of what is said of one item: longer texts are cut."""


def new_allocation(to: Outgoing, held: AllocationEntry) -> None:
    """Add an Allocation, with the tags, priority and resources of its ask."""
    ask = held.ask
    item = to.allocations.next().new.add()
    item.MergeFromString(ask.head)
    item.allocationKey = ask.key
    item.UUID = held.uuid
    item.nodeID = held.node.node_id
    if ask.priority:
        item.priority = ask.priority
    if ask.tags is not None:
        item.allocationTags.update(ask.tags)
    if ask.task_group:
        item.taskGroupName = ask.task_group
        item.placeholder = ask.is_placeholder


def released(to: Outgoing, held: AllocationEntry, type: int, message: str) -> None:
    """Add the AllocationRelease of an allocation."""
    application = held.ask.application
    to.allocations.next().released.add(
        partitionName=application.partition.name,
        applicationID=application.application_id,
        UUID=held.uuid,
        terminationType=type,
        message=message[:REASON_CHARS_MAX],
        allocationKey=held.ask.key,
    )


def not_held(to: Outgoing, partition: str, application_id: str, uuid: str, key: str) -> None:
    """Add the echo of a release of what is not held."""
    to.allocations.next().released.add(
        partitionName=partition,
        applicationID=application_id,
        UUID=uuid,
        terminationType=STOPPED_BY_RM,
        message="not held",
        allocationKey=key,
    )


def ask_released(to: Outgoing, ask: AskEntry, type: int, message: str) -> None:
    """Add the AllocationAskRelease of an ask; the AllocationRelease of one that was asked for as an Allocation."""
    response = to.allocations.next()
    items = response.released if ask.is_single else response.releasedAsks
    items.add(
        partitionName=ask.application.partition.name,
        applicationID=ask.application.application_id,
        allocationKey=ask.key,
        terminationType=type,
        message=message[:REASON_CHARS_MAX],
    )


def ask_rejected(to: Outgoing, key: str, application_id: str, reason: str, is_single: bool = False) -> None:
    """Add the RejectedAllocationAsk of an ask, or of a release; the RejectedAllocation of an Allocation."""
    response = to.allocations.next()
    items = response.rejectedAllocations if is_single else response.rejected
    items.add(allocationKey=key, applicationID=application_id, reason=reason[:REASON_CHARS_MAX])


def application_accepted(to: Outgoing, application_id: str) -> None:
    """Add an AcceptedApplication to the answers."""
    to.applications.next().accepted.add(applicationID=application_id)


def application_rejected(to: Outgoing, application_id: str, reason: str) -> None:
    """Add a RejectedApplication to the answers."""
    to.applications.next().rejected.add(applicationID=application_id, reason=reason[:REASON_CHARS_MAX])


def application_updated(to: Outgoing, application_id: str, change: StateChanged) -> None:
    """Add the UpdatedApplication of a state."""
    to.applications.next().updated.add(
        applicationID=application_id,
        state=change.state.value,
        stateTransitionTimestamp=change.t_ns,
        message=change.message,
    )


def node_accepted(to: Outgoing, node_id: str) -> None:
    """Add an AcceptedNode to the answers."""
    to.nodes.next().accepted.add(nodeID=node_id)


def node_rejected(to: Outgoing, node_id: str, reason: str) -> None:
    """Add a RejectedNode to the answers."""
    to.nodes.next().rejected.add(nodeID=node_id, reason=reason[:REASON_CHARS_MAX])


# ---- events and container states

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
        """Add the container state of an ask."""
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
