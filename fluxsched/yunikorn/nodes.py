"""Reader of node updates, and of allocations that exist: with a new node, or since version 1.6 one by one.

A node is a target of its partition's scheduler, by the lowest rank that is free in its resource manager. New nodes that
come together join together, which costs each of them less. Since 1.6 the message of an allocation without a node is an
ask for one.

Law: each item is done whole or refused whole; an allocation that exists is a fact, beyond quota and capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import Amounts
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import Children, Entry
from fluxsched.core.text import counted
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP
from fluxsched.yunikorn.bookings import Bookings
from fluxsched.yunikorn.messages import (
    STOPPED_BY_RM,
    AllocationAsk,
    NodeInfo,
)
from fluxsched.yunikorn.requests import (
    FOREIGN,
    ApplicationReader,
    AskReader,
    AskTags,
    ask_options,
    check_id,
    check_tags,
    read_tags,
)
from fluxsched.yunikorn.tables import (
    ADD,
    NODE,
    NODE_PARTITION,
    NONE,
    REMOVE,
    SET,
    ApplicationEntry,
    AskEntry,
    KnownResource,
    NodeEntry,
    Partition,
    new_allocation,
    node_accepted,
    node_rejected,
    plain_partition,
    released,
)

_SAME_FIELDS: Final = (
    "allocationKey", "applicationID", "partitionName", "priority", "taskGroupName", "placeholder",
)  # fmt: skip
"""Fields that an AllocationAsk has in common with an Allocation."""


class Recovered(NamedTuple):
    """An allocation reported with its node, as the ask that it was made for."""

    uuid: str
    ask: AskEntry


class AllocationReader:
    """Reads the `allocations` of one resource manager."""

    def __init__(self, bookings: Bookings, applications: ApplicationReader, asks: AskReader) -> None:
        self._bookings = bookings
        self._applications = applications
        self._asks = asks

    def read(self, message: Any, now_s: float) -> None:
        """Read an Allocation: of another scheduler, one of ours that exists already, or an ask for one."""
        key, application_id = message.allocationKey, message.applicationID
        try:
            if not key:
                raise InvalidValue("an allocation needs an allocationKey")
            partition = self._bookings.partition(message.partitionName)
            application = partition.applications.get(application_id)
            held = None if application is None else application.by_key.get(key)
            if FOREIGN in message.allocationTags:
                self._occupy(message, partition, now_s)
            elif held is not None:
                self._bookings.resize(held, _amounts(self._bookings, message), now_s)
            elif message.nodeID:
                self._recover(message, partition, now_s)
            else:
                self._asks.read(_as_ask(message), now_s, is_single=True)
        except InvalidValue as fault:
            self._asks.reject(key, application_id, str(fault), is_single=True)

    def _occupy(self, message: Any, partition: Partition, now_s: float) -> None:
        """Occupy a node with an allocation of another scheduler; the same key again is another size of it."""
        key, bookings = message.allocationKey, self._bookings
        node = self._node(message, partition)
        resource = _amounts(bookings, message)
        before = bookings.foreign.get(key)
        if before is not None and before is not node:
            raise InvalidValue(f"it is on node {before.node_id!r}: release it there first")
        bookings.occupy(node, key, resource.amounts, now_s)

    def _recover(self, message: Any, partition: Partition, now_s: float) -> None:
        """Record that an allocation that was not known runs on its node; an ask of its key is no longer pending."""
        bookings, application_id = self._bookings, message.applicationID
        resource = _amounts(bookings, message)
        said = read_tags(message.allocationTags, now_s)
        node = self._node(message, partition)
        self._applications.check_existing(partition, application_id)
        application = self._applications.of_existing(partition, application_id, now_s)
        pending = application.asks.get(message.allocationKey)
        ask = _ask(application, message, resource, said, now_s)
        ask.is_single = True
        held = bookings.recover(ask, node, bookings.make_uuid(), now_s)
        if pending is not None:  # last, so that its application does not seem empty in between
            self._asks.release(pending, now_s)
        new_allocation(bookings.outgoing, held)

    def _node(self, message: Any, partition: Partition) -> NodeEntry:
        """Return the node of an allocation. Raises InvalidValue."""
        node = self._bookings.nodes.get(message.nodeID)
        if node is None or node.partition is not partition:
            raise InvalidValue(
                f"node {message.nodeID[:256]!r} is not known in partition {partition.name!r}: send CREATE first"
            )
        return node


def check_recovered(
    bookings: Bookings, applications: ApplicationReader, node: Any, partition: Partition, now_s: float
) -> list[Recovered]:
    """All allocations of a new node, of which none is booked yet. Raises InvalidValue naming the first wrong one."""
    checked: dict[str, tuple[Any, KnownResource, AskTags]] = {}
    for message in node.existingAllocations:
        uuid = message.UUID
        try:
            if not uuid or uuid in bookings.held or uuid in checked:
                raise InvalidValue("its UUID is known already" if uuid else "it has no UUID")
            if message.nodeID and message.nodeID != node.nodeID:
                raise InvalidValue(f"it is on node {message.nodeID[:256]!r}")
            if plain_partition(message.partitionName) != partition.name:
                raise InvalidValue(f"it is in partition {message.partitionName[:256]!r}")
            applications.check_existing(partition, message.applicationID)
            resource = _amounts(bookings, message)
            checked[uuid] = message, resource, read_tags(message.allocationTags, now_s)
        except InvalidValue as fault:
            raise InvalidValue(f"existing allocation {uuid[:256]!r}: {fault}") from None
    return [
        Recovered(
            uuid,
            _ask(applications.of_existing(partition, message.applicationID, now_s), message, resource, said, now_s),
        )
        for uuid, (message, resource, said) in checked.items()
    ]


def _amounts(bookings: Bookings, message: Any) -> KnownResource:
    """Return what an allocation holds. Raises InvalidValue where that is nothing."""
    resource = bookings.quantities.read(message.resourcePerAlloc)
    if not resource.amounts:
        raise InvalidValue(resource.fault or "it has no quantity above 0")
    return resource


def _ask(application: ApplicationEntry, message: Any, resource: KnownResource, said: AskTags, now_s: float) -> AskEntry:
    ask = AskEntry(application, message.allocationKey, resource, resource.request(), said.created_s or now_s)
    ask.tags, ask.created_s = dict(message.allocationTags) or None, said.created_s
    ask.priority = message.priority
    ask.task_group = message.taskGroupName
    ask.is_placeholder = bool(ask.task_group) and message.placeholder
    ask.options = ask_options(message, message.originator, said.may_be_preempted)
    return ask


def _as_ask(message: Any) -> Any:
    """Return an Allocation without a node as the AllocationAsk that earlier versions have for it."""
    ask = AllocationAsk(
        maxAllocations=1, Originator=message.originator, tags=message.allocationTags,
        **{field: getattr(message, field) for field in _SAME_FIELDS},
    )  # fmt: skip
    if message.HasField("resourcePerAlloc"):
        ask.resourceAsk.CopyFrom(message.resourcePerAlloc)
    if message.HasField("preemptionPolicy"):
        ask.preemptionPolicy.CopyFrom(message.preemptionPolicy)
    return ask


# ---- nodes

NODES_MAX = 1 << 17
"""Nodes of one resource manager: as many targets as an instance has."""


class NodeReader:
    """Reads the nodes of one resource manager."""

    def __init__(self, bookings: Bookings, applications: ApplicationReader) -> None:
        self._bookings = bookings
        self._applications = applications
        self._free_ranks: list[int] = []
        self._next_rank = 0
        self._joining: list[NodeEntry] = []

    def read(self, message: Any, now_s: float) -> None:
        """Read and apply a NodeInfo."""
        node_id = message.nodeID
        bookings = self._bookings
        action = _ACTIONS.get(message.action)
        try:
            check_id(node_id, "nodeID")
            if action is None:
                raise InvalidValue(f"action {message.action} is none of {', '.join(_NAMES.values())}")
            if len(message.attributes):
                check_tags(message.attributes, "attributes")
            if message.action not in _CREATING:
                self.join(now_s)
            action(self, message, now_s)
        except InvalidValue as fault:
            node_rejected(bookings.outgoing, node_id, str(fault))
            partition = message.attributes.get(NODE_PARTITION, "")
            bookings.observed.event(NODE, node_id, plain_partition(partition), "Rejected", NONE, str(fault))

    def join(self, now_s: float) -> None:
        """Nodes that were created become targets; called before anything else happens to them, and before passes."""
        if not self._joining:
            return
        joining, self._joining = self._joining, []
        for partition in {node.partition.name: node.partition for node in joining}.values():
            nodes = [node for node in joining if node.partition is partition]
            up = Idset.of([node.rank for node in nodes if node.is_up])
            targets = _targets(nodes)
            partition.scheduler.grown(DEFAULT_GROUP, targets, up, targets.ranks - up, now_s)

    # ---- actions

    def _create(self, message: Any, now_s: float) -> None:
        bookings = self._bookings
        node_id = message.nodeID
        if node_id in bookings.nodes:
            raise InvalidValue(f"node {node_id!r} is known: send UPDATE, or DECOMISSION first")
        if len(bookings.nodes) >= NODES_MAX:
            raise LimitExceeded(f"{len(bookings.nodes)} nodes are known: the limit is {NODES_MAX}")
        attributes = dict(message.attributes)
        partition = bookings.partition(attributes.get(NODE_PARTITION, ""))
        schedulable = self._amounts(message.schedulableResource, "schedulableResource")
        occupied = self._amounts(message.occupiedResource, "occupiedResource")
        found: list[Recovered] = []
        if len(message.existingAllocations):
            found = check_recovered(bookings, self._applications, message, partition, now_s)
        rank = heappop(self._free_ranks) if self._free_ranks else self._next_rank
        self._next_rank += rank == self._next_rank
        node = NodeEntry(node_id, rank, partition)
        node.attributes, node.schedulable, node.occupied = attributes, schedulable, occupied
        node.is_draining = message.action == _CREATE_DRAIN
        bookings.nodes[node_id] = partition.ranks[rank] = node
        self._joining.append(node)
        if occupied or found or partition.absent:
            self.join(now_s)
        if occupied:
            partition.scheduler.resized(rank, schedulable, now_s, occupied)
        node_accepted(bookings.outgoing, node_id)
        bookings.observed.event(NODE, node_id, partition.name, "Accepted", ADD, f"as rank {rank}")
        for each in found:
            bookings.recover(each.ask, node, each.uuid, now_s)
        if partition.absent:
            bookings.node_has_come(node, now_s)

    def _update(self, message: Any, now_s: float) -> None:
        node = self._known(message)
        schedulable, occupied = node.schedulable, node.occupied
        if message.HasField("schedulableResource"):
            schedulable = self._amounts(message.schedulableResource, "schedulableResource")
        if message.HasField("occupiedResource"):
            occupied = self._amounts(message.occupiedResource, "occupiedResource")
        attributes = {**node.attributes, **message.attributes}
        attributes = {key: value for key, value in attributes.items() if value or key not in message.attributes}
        check_tags(attributes, "attributes")
        has_changed = (schedulable, occupied) != (node.schedulable, node.occupied)
        was_up, properties = node.is_up, node.properties
        node.schedulable, node.occupied, node.attributes = schedulable, occupied, attributes
        scheduler = node.partition.scheduler
        if has_changed:
            scheduler.resized(node.rank, schedulable, now_s, node.others_use)
        if node.properties != properties:
            ranks = Idset.of([node.rank])
            added = dict.fromkeys(node.properties - properties, ranks)
            removed = dict.fromkeys(properties - node.properties, ranks)
            scheduler.updated(DEFAULT_GROUP, None, added, removed, now_s)
        self._set_availability(node, was_up, now_s)
        self._changed(node, "Updated", "its resources or attributes have changed")

    def _drain(self, message: Any, now_s: float) -> None:
        node = self._known(message)
        was_up, node.is_draining = node.is_up, True
        self._set_availability(node, was_up, now_s)
        self._changed(node, "Draining", "nothing new is placed on it")

    def _undrain(self, message: Any, now_s: float) -> None:
        node = self._known(message)
        if not node.is_draining:
            raise InvalidValue(f"node {node.node_id!r} is not draining")
        was_up, node.is_draining = node.is_up, False
        self._set_availability(node, was_up, now_s)
        self._changed(node, "Schedulable", "its drain has ended")

    def _remove(self, message: Any, now_s: float) -> None:
        node = self._known(message)
        bookings, partition = self._bookings, node.partition
        was_up, node.is_draining = node.is_up, True
        self._set_availability(node, was_up, now_s)  # so that nothing that follows is placed here
        bookings.node_goes(node)
        allocations = list(node.held.values())
        for held in allocations:
            if bookings.held.get(held.uuid) is held:
                released(bookings.outgoing, held, STOPPED_BY_RM, f"node {node.node_id} removed")
                bookings.free(held, "Released", now_s)
        partition.scheduler.shrunk(DEFAULT_GROUP, Idset.of([node.rank]), False, now_s)
        for key in node.foreign:
            del bookings.foreign[key]
        del bookings.nodes[node.node_id], partition.ranks[node.rank]
        heappush(self._free_ranks, node.rank)
        what = f"with {counted(len(allocations), 'allocation')}"
        bookings.observed.event(NODE, node.node_id, partition.name, "Removed", REMOVE, what)

    # ---- within

    def _changed(self, node: NodeEntry, reason: str, what: str) -> None:
        self._bookings.observed.event(NODE, node.node_id, node.partition.name, reason, SET, what)

    def _known(self, message: Any) -> NodeEntry:
        """Raise InvalidValue for a node that is not known, or in another partition than the message says."""
        node = self._bookings.nodes.get(message.nodeID)
        if node is None:
            raise InvalidValue(f"node {message.nodeID!r} is not known: send CREATE first")
        if NODE_PARTITION in message.attributes:
            name = plain_partition(message.attributes[NODE_PARTITION])
            if name != node.partition.name:
                raise InvalidValue(
                    f"{NODE_PARTITION} is {name[:256]!r}, but node {node.node_id!r} is in {node.partition.name!r}: "
                    "remove it there first"
                )
        return node

    def _set_availability(self, node: NodeEntry, was_up: bool, now_s: float) -> None:
        if node.is_up != was_up:
            scheduler = node.partition.scheduler
            change = scheduler.went_online if node.is_up else scheduler.went_offline
            change(Idset.of([node.rank]), now_s)

    def _amounts(self, message: Any, what: str) -> Amounts:
        found = self._bookings.quantities.read(message)
        if found.fault:
            raise InvalidValue(f"{what}: {found.fault}")
        return found.amounts


_Action = Callable[[NodeReader, Any, float], None]

_ACTIONS: Final[Mapping[int, _Action]] = {
    NodeInfo.CREATE: NodeReader._create,
    NodeInfo.CREATE_DRAIN: NodeReader._create,
    NodeInfo.UPDATE: NodeReader._update,
    NodeInfo.DRAIN_NODE: NodeReader._drain,
    NodeInfo.DRAIN_TO_SCHEDULABLE: NodeReader._undrain,
    NodeInfo.DECOMISSION: NodeReader._remove,
}

_CREATE_DRAIN: Final[int] = NodeInfo.CREATE_DRAIN
_CREATING: Final = (NodeInfo.CREATE, _CREATE_DRAIN)

_NAMES: Final = {
    NodeInfo.CREATE: "CREATE",
    NodeInfo.CREATE_DRAIN: "CREATE_DRAIN",
    NodeInfo.UPDATE: "UPDATE",
    NodeInfo.DRAIN_NODE: "DRAIN_NODE",
    NodeInfo.DRAIN_TO_SCHEDULABLE: "DRAIN_TO_SCHEDULABLE",
    NodeInfo.DECOMISSION: "DECOMISSION",
}


def _targets(nodes: list[NodeEntry]) -> ResourceSet:
    """Nodes as targets, equal ones in one entry."""
    nodes.sort(key=_rank)
    ranks_of: dict[Amounts, list[int]] = {}
    properties: dict[str, list[int]] = {}
    for node in nodes:
        ranks_of.setdefault(node.schedulable, []).append(node.rank)
        for name in node.properties:
            properties.setdefault(name, []).append(node.rank)
    return ResourceSet(
        tuple([Entry(Idset.of(ranks), Children(EMPTY, EMPTY, (), amounts)) for amounts, ranks in ranks_of.items()]),
        Hostlist(tuple([node.host for node in nodes])),
        {name: Idset.of(ranks) for name, ranks in properties.items()},
    )


def _rank(node: NodeEntry) -> int:
    return node.rank
