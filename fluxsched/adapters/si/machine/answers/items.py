"""Items of answers, made of the tables' rows inside their messages."""

from __future__ import annotations

from fluxsched.adapters.si.machine.answers.outgoing import Outgoing
from fluxsched.adapters.si.machine.applications import StateChanged
from fluxsched.adapters.si.machine.tables.entries import AskEntry, HeldAllocation
from fluxsched.adapters.si.messages import STOPPED_BY_RM

REASON_CHARS_MAX = 1000
"""Of what is said of one item: longer texts are cut."""


def new_allocation(to: Outgoing, held: HeldAllocation) -> None:
    """An Allocation, with the tags, priority and resources of its ask."""
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


def released(to: Outgoing, held: HeldAllocation, type: int, message: str) -> None:
    """The AllocationRelease of an allocation."""
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
    """The echo of a release of what is not held."""
    to.allocations.next().released.add(
        partitionName=partition,
        applicationID=application_id,
        UUID=uuid,
        terminationType=STOPPED_BY_RM,
        message="not held",
        allocationKey=key,
    )


def ask_released(to: Outgoing, ask: AskEntry, type: int, message: str) -> None:
    """The AllocationAskRelease of an ask; the AllocationRelease of one that was asked for as an Allocation."""
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
    """The RejectedAllocationAsk of an ask, or of a release; the RejectedAllocation of an Allocation."""
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
    """The UpdatedApplication of a state."""
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
