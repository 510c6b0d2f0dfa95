"""Effects that the machine asks its shell to carry out: values, so that a test compares lists.

Messages are those of `messages`; the shell sends them on the stream of their kind, or passes them to a callback.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

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
