"""The interface in process, with the text's own method names: what a scheduler has, and what a resource manager has.

Requests and responses are the messages of `messages`. A request belongs to the scheduler from the call on, a response
to the resource manager.
"""

from __future__ import annotations

from typing import Any, Protocol


class ResourceManagerCallback(Protocol):
    """What a resource manager implements. Three methods it must have, all called one at a time, from a turn:

    they may call the scheduler again. It may have besides: `Predicates(args)`, which refuses a node by raising, and
    `PreemptionPredicates(args)`, which returns a PreemptionPredicatesResponse, both asked within a decision, where they
    must not wait for another thread; `SendEvent(events)`; `UpdateContainerSchedulingState(request)`; `GetStateDump()`,
    which returns JSON.
    """

    def UpdateAllocation(self, response: Any) -> None:
        """An AllocationResponse."""

    def UpdateApplication(self, response: Any) -> None:
        """An ApplicationResponse."""

    def UpdateNode(self, response: Any) -> None:
        """A NodeResponse."""


class SchedulerAPI(Protocol):
    """What a scheduler implements. Each call checks rmID and shape, then queues: what it leads to comes by callbacks.

    Raises InvalidValue for what is wrong with a request, Refused where a resource manager has to register first.
    """

    def RegisterResourceManager(self, request: Any, callback: ResourceManagerCallback) -> Any:
        """Begins anew for the rmID of a RegisterResourceManagerRequest; returns a RegisterResourceManagerResponse."""

    def UpdateAllocation(self, request: Any) -> None:
        """An AllocationRequest."""

    def UpdateApplication(self, request: Any) -> None:
        """An ApplicationRequest."""

    def UpdateNode(self, request: Any) -> None:
        """A NodeRequest."""

    def UpdateConfiguration(self, request: Any) -> None:
        """An UpdateConfigurationRequest, done at once, for all resource managers of its policy group or for none."""
