"""Allocations that exist, as resource managers report them: with a new node, or since version 1.6 one by one.

Since 1.6 the same message without a node is an ask for one allocation. Law: what exists is a fact, beyond quota and
capacity; each item is done whole or refused whole.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fluxsched.adapters.si.machine.answers.items import new_allocation
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.requests.applications import ApplicationReader
from fluxsched.adapters.si.machine.requests.asks import AskReader, ask_options
from fluxsched.adapters.si.machine.requests.tags import FOREIGN, AskTags, read_tags
from fluxsched.adapters.si.machine.tables.entries import ApplicationEntry, AskEntry, NodeEntry, Partition
from fluxsched.adapters.si.machine.tables.names import plain_partition
from fluxsched.adapters.si.machine.tables.quantities import KnownResource
from fluxsched.adapters.si.messages import AllocationAsk
from fluxsched.errors import InvalidValue

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
        """An allocation that was not known runs on its node; an ask of its key is no longer pending."""
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
