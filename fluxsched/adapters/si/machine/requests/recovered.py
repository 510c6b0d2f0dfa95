"""Allocations that a resource manager reports with a node: facts, beyond quota and capacity."""

from __future__ import annotations

from typing import Any, NamedTuple

from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.requests.applications import ApplicationReader
from fluxsched.adapters.si.machine.requests.tags import AskTags, read_tags
from fluxsched.adapters.si.machine.tables.entries import ApplicationEntry, AskEntry, Partition
from fluxsched.adapters.si.machine.tables.names import plain_partition
from fluxsched.adapters.si.machine.tables.quantities import KnownResource
from fluxsched.errors import InvalidValue


class Recovered(NamedTuple):
    """One of them, as the ask that it was made for."""

    uuid: str
    ask: AskEntry


def check_recovered(
    bookings: Bookings, applications: ApplicationReader, node: Any, partition: Partition, now_s: float
) -> list[Recovered]:
    """All of them, of which none is booked yet. Raises InvalidValue naming the first that is wrong."""
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
            if message.applicationID and message.applicationID not in partition.applications:
                raise InvalidValue(f"application {message.applicationID[:256]!r} is not known: send that first")
            resource = bookings.quantities.read(message.resourcePerAlloc)
            if not resource.amounts:
                raise InvalidValue(resource.fault or "it has no quantity above 0")
            checked[uuid] = message, resource, read_tags(message.allocationTags, now_s)
        except InvalidValue as fault:
            raise InvalidValue(f"existing allocation {uuid[:256]!r}: {fault}") from None
    found = []
    for uuid, (message, resource, said) in checked.items():
        application = partition.applications.get(message.applicationID)
        if application is None:
            application = applications.independent(partition, now_s)
        found.append(Recovered(uuid, _ask(application, message, resource, said, now_s)))
    return found


def _ask(application: ApplicationEntry, message: Any, resource: KnownResource, said: AskTags, now_s: float) -> AskEntry:
    ask = AskEntry(application, message.allocationKey, resource, resource.request(), said.created_s or now_s)
    ask.tags, ask.created_s = dict(message.allocationTags) or None, said.created_s
    ask.priority = message.priority
    ask.task_group = message.taskGroupName
    ask.is_placeholder = bool(ask.task_group) and message.placeholder
    return ask
