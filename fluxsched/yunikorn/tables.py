"""Tables of one resource manager: rows, amounts, timers, names of the interface, answers to be sent, and the dump.

Laws: an ask never changes but for what is pending of it: another with its key is another row, and allocations keep the
row for which they were made. A resource is read once for equal ones, which most asks have; a quantity is within 0 and
AMOUNT_MAX, and none of a kind is the same as not naming it. A timer is never taken back; one that no longer holds is
passed over when it is due, and once most do not hold they are all dropped. A dump has no text of a configuration, and
no tag.

Answers to one resource manager, until they can be sent: in order, one message of a kind a turn.

Items are made of the tables' rows inside their message, which costs less than a copy. `Observations` are events and
container states, while the manager wants them.

Laws: nothing is lost or sent twice while the manager is known; a message has at most ITEMS_MAX items, and
RESPONSE_BYTES_MAX bytes unless a single item is larger. At most EVENTS_MAX events a turn are sent, and one that counts
the rest.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Final, Generic, TypeVar

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.quantities import AMOUNT_MAX, Amounts, less, total
from fluxsched.core.request import Request
from fluxsched.core.resources import PROPERTY_ILLEGAL
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.yunikorn.applications import ApplicationProgress, ApplicationState, StateChanged
from fluxsched.yunikorn.config import PartitionSettings
from fluxsched.yunikorn.messages import (
    ALLOCATIONS,
    APPLICATIONS,
    NODES,
    RESPONSE_LISTS,
    STOPPED_BY_RM,
    Allocation,
    AllocationResponse,
    ApplicationResponse,
    EventRecord,
    NodeResponse,
    Observed,
    SendResponse,
    UpdateContainerSchedulingStateRequest,
)
from fluxsched.yunikorn.tree.policy import Tree
from fluxsched.yunikorn.tree.queues import ACCEPTED, COMPLETING, PLAIN, RUNNING, STARTING, Application, Queue, QueueTree

SI_KINDS_MAX: Final = 32
"""Maximum number of kinds of a Resource."""

KIND_CHARS_MAX: Final = 256
"""Of the name of a kind, as the longest that Kubernetes has."""

RESOURCES_KNOWN_MAX = 4096
"""Resources that are remembered as read; some hundred bytes each."""


class KnownResource:
    """A Resource as it was read. `fault` says what is wrong with it, else it is ""."""

    __slots__ = ("_requests", "amounts", "fault", "message", "text")

    def __init__(self, message: Any, text: bytes) -> None:
        self.message = message
        self.text = text
        self.amounts, self.fault = _read(message)
        self._requests: dict[Constraint, Request] = {}

    def request(self, constraint: Constraint = EVERYTHING) -> Request:
        """Return the request of so much on one node; the same object for the same constraint."""
        found = self._requests.get(constraint)
        if found is None:
            found = Request.of_amounts(self.amounts, constraint)
            if len(self._requests) < RESOURCES_KNOWN_MAX:
                self._requests[constraint] = found
        return found


class Quantities:
    """Resources read so far, by their bytes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, KnownResource] = {}

    def read(self, message: Any) -> KnownResource:
        """Return a Resource, an absent one as an empty one."""
        text = message.SerializeToString()
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= RESOURCES_KNOWN_MAX:
                self._known.clear()
            own = type(message)()
            own.CopyFrom(message)  # the original keeps the whole request in memory
            found = self._known[text] = KnownResource(own, text)
        return found


def _read(message: Any) -> tuple[Amounts, str]:
    quantities = message.resources
    if len(quantities) > SI_KINDS_MAX:
        return (), f"{len(quantities)} kinds of resources: the limit is {SI_KINDS_MAX}"
    found = []
    for kind in sorted(quantities):
        value = quantities[kind].value
        if not 0 < len(kind) <= KIND_CHARS_MAX:
            return (), f"a kind of resource has a name of {len(kind)} characters: 1 to {KIND_CHARS_MAX} are allowed"
        if not 0 <= value <= AMOUNT_MAX:
            return (), f"resource {kind!r} has the quantity {value}: 0 to {AMOUNT_MAX} are allowed"
        if value:
            found.append((kind, value))
    return tuple(found), ""


# ---- timers

T = TypeVar("T")

OLD_TIMERS: Final = 1000
"""Least number of timers that are searched for old ones, once they are twice as many as were left the last time."""


class Timers(Generic[T]):
    """Rows by the time at which they are due (wall time, seconds), equal times in the order in which they were set.

    `holds` says whether a row is still due at a time.
    """

    __slots__ = ("_count", "_heap", "_holds", "_look_at")

    def __init__(self, holds: Callable[[float, T], bool]) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._holds = holds
        self._count = 0
        self._look_at = OLD_TIMERS

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at_s: float, row: T) -> None:
        """Set the time at which a row is due."""
        self._count += 1
        heappush(self._heap, (at_s, self._count, row))
        if len(self._heap) > self._look_at:
            self._heap = [timer for timer in self._heap if self._holds(timer[0], timer[2])]
            heapify(self._heap)
            self._look_at = max(OLD_TIMERS, 2 * len(self._heap))

    def due(self, now_s: float) -> Iterator[T]:
        """Yield the rows that are due; those that are set meanwhile, too."""
        while self._heap and self._heap[0][0] <= now_s:
            at_s, _, row = heappop(self._heap)
            if self._holds(at_s, row):
                yield row

    @property
    def next_s(self) -> float:
        """Return the time of the next timer, inf if there is none."""
        return self._heap[0][0] if self._heap else inf


# ---- rows

PRIORITY_ZERO: Final = (1 << 31) + 1
"""Added to an ask's priority: a job's is not negative, and 0 would hold it."""

HEADS_MAX = 16
"""Sizes of allocations of which one application remembers the bytes."""

READY: Final = "ready"
"""The attribute of nodes that is `false` while nothing may be placed there."""

HOSTNAME: Final = "si/hostname"
NODE_PARTITION: Final = "si/node-partition"
NO_PROPERTIES: Final = frozenset((READY, HOSTNAME, "si/local-images"))
"""Attributes of nodes that are no properties."""

_NO_HOST: Final = re.compile(r"[^!-+\--Z\\^-~]")


class Partition:
    """A scheduler with its tree of queues.

    `asks` are those that are queued, by job id; by their required node `required` are those of them that have one, and
    `absent` those that wait for it to come. `is_cut` means that the last pass was not finished, or that another one is
    due.
    """

    __slots__ = (
        "absent", "applications", "asks", "is_cut", "name", "policy", "ranks", "required", "scheduler", "settings",
        "tree",
    )  # fmt: skip

    def __init__(self, settings: PartitionSettings, tree: QueueTree, policy: Tree, scheduler: Scheduler) -> None:
        self.name = settings.name
        self.settings = settings
        self.tree = tree
        self.policy = policy
        self.scheduler = scheduler
        self.applications: dict[str, ApplicationEntry] = {}
        self.asks: dict[int, AskEntry] = {}
        self.absent: dict[str, list[AskEntry]] = {}
        self.required: dict[str, dict[tuple[str, str], AskEntry]] = {}
        self.ranks: dict[int, NodeEntry] = {}
        self.is_cut = False

    def no_longer_requires(self, ask: AskEntry) -> None:
        """Record that an ask with a required node is not queued any more."""
        asks = self.required.get(ask.required_node, {})
        asks.pop((ask.key, ask.application.application_id), None)
        if not asks:
            self.required.pop(ask.required_node, None)


class NodeEntry:
    """`held` are its allocations by job id; `foreign` is what other schedulers have placed there, by key, which counts
    beside what the node itself is said to have `occupied`.
    """

    __slots__ = (
        "attributes", "foreign", "held", "is_draining", "node_id", "occupied", "partition", "rank", "schedulable",
    )  # fmt: skip

    def __init__(self, node_id: str, rank: int, partition: Partition) -> None:
        self.node_id = node_id
        self.rank = rank
        self.partition = partition
        self.schedulable: Amounts = ()
        self.occupied: Amounts = ()
        self.foreign: dict[str, Amounts] = {}
        self.attributes: dict[str, str] = {}
        self.is_draining = False
        self.held: dict[int, AllocationEntry] = {}

    @property
    def is_up(self) -> bool:
        """Return whether anything may be placed on the node."""
        return not self.is_draining and self.attributes.get(READY) != "false"

    @property
    def host(self) -> str:
        """The name of its host, as a list of hosts can have it."""
        return _NO_HOST.sub("-", self.attributes.get(HOSTNAME) or self.node_id)

    @property
    def properties(self) -> frozenset[str]:
        """`KEY=VALUE` of its attributes but for those that mean something else, and texts that no property can be."""
        pairs = [f"{key}={value}" for key, value in self.attributes.items() if key not in NO_PROPERTIES]
        return frozenset([pair for pair in pairs if PROPERTY_ILLEGAL.isdisjoint(pair)])

    @property
    def others_use(self) -> Amounts:
        """Return the amounts of the node that others than this scheduler use."""
        found = self.occupied
        for amounts in self.foreign.values():
            found = total(found, amounts)
        return found

    @property
    def capacity(self) -> Amounts:
        """Return the amounts for allocations, held or free."""
        return less(self.schedulable, self.others_use)


class ApplicationEntry:
    """`account` is where its usage is booked, `progress` its state; `asks` are those of which something is pending or
    being replaced, by key, `held` its allocations by UUID, `by_key` those that were asked for, or reported, as an
    Allocation each. It has a timer at `wake_s`, if that is not 0.0.
    """

    __slots__ = ("_heads", "account", "application_id", "asks", "by_key", "held", "partition", "progress", "wake_s")

    def __init__(
        self, application_id: str, partition: Partition, account: Application, progress: ApplicationProgress
    ) -> None:
        self.application_id = application_id
        self.partition = partition
        self.account = account
        self.progress = progress
        self.asks: dict[str, AskEntry] = {}
        self.held: dict[str, AllocationEntry] = {}
        self.by_key: dict[str, AllocationEntry] = {}
        self.wake_s = 0.0
        self._heads: dict[bytes, bytes] = {}

    def head(self, resource: KnownResource) -> bytes:
        """Return the common part of all allocations of so much to the application, as the bytes of an Allocation."""
        found = self._heads.get(resource.text)
        if found is None:
            common = Allocation(
                resourcePerAlloc=resource.message, applicationID=self.application_id, partitionName=self.partition.name
            )
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            found = self._heads[resource.text] = common.SerializeToString()
        return found


class AskEntry:
    """`left` repeats are pending, of which `queued` are for the queue: the next waits there, and those before it for
    which nodes are kept, as `jobids`. The others wait for placeholders. `replacing` placeholders are being replaced by
    it. `t_s` orders it, `created_s` is what its resource manager says, 0.0 if nothing. `tags` is None without any;
    `told` the container state that was told last, `told_s` when; `head` are the first bytes of its allocations. One
    that `is_single` was asked for as an Allocation: at most one has its key.
    """

    __slots__ = (
        "application", "created_s", "head", "is_placeholder", "is_single", "jobids", "key", "left", "options",
        "priority", "queued", "replacing", "request", "required_node", "resource", "t_s", "tags", "task_group",
        "timeout_s", "told", "told_s",
    )  # fmt: skip

    def __init__(
        self, application: ApplicationEntry, key: str, resource: KnownResource, request: Request, t_s: float
    ) -> None:
        self.application = application
        self.key = key
        self.resource = resource
        self.request = request
        self.t_s = t_s
        self.head = application.head(resource)
        self.created_s = 0.0
        self.priority = 0
        self.tags: dict[str, str] | None = None
        self.task_group = ""
        self.is_placeholder = False
        self.is_single = False
        self.required_node = ""
        self.timeout_s = 0.0
        self.options = PLAIN
        self.left = 0
        self.queued = 0
        self.replacing = 0
        self.jobids: tuple[int, ...] = ()
        self.told = 0, ""
        self.told_s = 0.0

    def of_size(self, resource: KnownResource) -> AskEntry:
        """Return the same ask for another size, in a row of its own."""
        found = copy(self)
        found.resource, found.head = resource, self.application.head(resource)
        found.request = resource.request(self.request.constraint)
        return found


class AllocationEntry:
    """`demand` is the TerminationType with which its release is demanded, 0 while it is not; so is said again at
    `repeat_s`, with `message`.
    """

    __slots__ = ("ask", "demand", "jobid", "message", "node", "repeat_s", "uuid")

    def __init__(self, uuid: str, jobid: int, ask: AskEntry, node: NodeEntry) -> None:
        self.uuid = uuid
        self.jobid = jobid
        self.ask = ask
        self.node = node
        self.demand = 0
        self.message = ""
        self.repeat_s = 0.0


# ---- names of the interface

DEFAULT_PARTITION: Final = "default"

PARTITION_CHARS: Final = 256
"""Of a partition's name that are shown."""

STAGES: Final = {
    ApplicationState.NEW: ACCEPTED,
    ApplicationState.ACCEPTED: ACCEPTED,
    ApplicationState.RESUMING: ACCEPTED,
    ApplicationState.STARTING: STARTING,
    ApplicationState.RUNNING: RUNNING,
    ApplicationState.FAILING: COMPLETING,
    ApplicationState.COMPLETING: COMPLETING,
    ApplicationState.COMPLETED: COMPLETING,
    ApplicationState.FAILED: COMPLETING,
}
"""Stages in the tree of queues, by the state of an application."""


def plain_partition(name: str) -> str:
    """`default` for the empty name, and without the rmID in brackets that may come first."""
    if name.startswith("["):
        name = name.partition("]")[2]
    return name or DEFAULT_PARTITION


# ---- the dump


def dump_partition(partition: Partition) -> dict[str, Any]:
    """Return all tables of the partition."""
    return {
        "name": partition.name,
        "nodes": [_node(node) for node in partition.ranks.values()],
        "queues": _queue(partition.tree.root),
        "applications": [_application(each) for each in partition.applications.values()],
        "scheduler": partition.scheduler.report.stats(),
    }


def _node(node: NodeEntry) -> dict[str, Any]:
    return {
        "nodeID": node.node_id,
        "rank": node.rank,
        "schedulable": dict(node.schedulable),
        "occupied": dict(node.occupied),
        "foreign": {key: dict(amounts) for key, amounts in node.foreign.items()},
        "attributes": node.attributes,
        "draining": node.is_draining,
        "up": node.is_up,
        "allocations": [held.uuid for held in node.held.values()],
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {
        "path": queue.path,
        "leaf": queue.is_leaf,
        "guaranteed": dict(queue.settings.guaranteed),
        "max": dict(queue.bounds),
        "used": dict(queue.usage),
        "draining": queue.draining,
        "applications": list(queue.applications),
        "queues": [_queue(child) for child in queue.children.values()],
    }


def _application(application: ApplicationEntry) -> dict[str, Any]:
    return {
        "applicationID": application.application_id,
        "state": application.progress.state.value,
        "queue": application.account.queue.path,
        "user": application.account.user,
        "used": dict(application.account.usage),
        "asks": [_ask(ask) for ask in application.asks.values()],
        "allocations": [_allocation(held) for held in application.held.values()],
    }


def _ask(ask: AskEntry) -> dict[str, Any]:
    return {
        "allocationKey": ask.key,
        "resource": dict(ask.resource.amounts),
        "priority": ask.priority,
        "pending": ask.left,
        "replacing": ask.replacing,
        "placeholder": ask.is_placeholder,
    }


def _allocation(held: AllocationEntry) -> dict[str, Any]:
    return {
        "UUID": held.uuid,
        "allocationKey": held.ask.key,
        "nodeID": held.node.node_id,
        "resource": dict(held.ask.resource.amounts),
        "placeholder": held.ask.is_placeholder,
        "demanded": held.demand,
    }


# ---- answers

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
