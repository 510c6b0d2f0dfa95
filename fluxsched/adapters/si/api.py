"""The interface in process, with the text's own method names: what a scheduler has, and what a resource manager has.

Requests and responses are the messages of `messages`. A request belongs to the scheduler from the call on, a response
to the resource manager.
"""

from __future__ import annotations

from typing import Any, Protocol


class ResourceManagerCallback(Protocol):
    """Callback of a resource manager. Three methods it must have, all called one at a time, from a turn:

    they may call the scheduler again. It may have besides: `Predicates(args)`, which refuses a node by raising, and
    `PreemptionPredicates(args)`, which returns a PreemptionPredicatesResponse, both asked within a decision, where they
    must not wait for another thread; `SendEvent(events)`; `UpdateContainerSchedulingState(request)`; `GetStateDump()`,
    which returns JSON.
    """

    def UpdateAllocation(self, response: Any) -> None:
        """Receive an AllocationResponse of the scheduler."""

    def UpdateApplication(self, response: Any) -> None:
        """Receive an ApplicationResponse of the scheduler."""

    def UpdateNode(self, response: Any) -> None:
        """Receive a NodeResponse of the scheduler."""


class SchedulerAPI(Protocol):
    """Methods of a scheduler.

    Each call checks rmID and shape, then queues; results are sent by callbacks. Raises InvalidValue for a fault of a
    request, Refused where a resource manager has to register first.
    """

    def RegisterResourceManager(self, request: Any, callback: ResourceManagerCallback) -> Any:
        """Begins anew for the rmID of a RegisterResourceManagerRequest; returns a RegisterResourceManagerResponse."""

    def UpdateAllocation(self, request: Any) -> None:
        """Queue an AllocationRequest of a resource manager."""

    def UpdateApplication(self, request: Any) -> None:
        """Queue an ApplicationRequest of a resource manager."""

    def UpdateNode(self, request: Any) -> None:
        """Queue a NodeRequest of a resource manager."""

    def UpdateConfiguration(self, request: Any) -> None:
        """An UpdateConfigurationRequest, done at once, for all resource managers of its policy group or for none."""
