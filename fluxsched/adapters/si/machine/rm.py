"""One resource manager: its state, its streams, what it asked for and was not read yet, and its answers.

Law: what it sends is read in the order of arrival, whatever the stream; while it is paused nothing is read or decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from fluxsched.adapters.si.machine.states import RMEvent, RMState, next_state
from fluxsched.adapters.si.machine.streams import RMStreams

UNREAD_ITEMS_MAX = 10_000
"""A manager that leaves so many items of answers unread gets no decisions until it reads."""

BACKLOG_ITEMS_MAX = 1_000_000
"""Items of requests that wait to be read; some hundred bytes each. Beyond it requests are refused."""


class RM:
    """`identity` is of the certificate with which it registered, `predicates` its callback in process."""

    __slots__ = (
        "backlog", "backlog_items", "config", "connection", "identity", "policy_group", "predicates", "rm_id", "state",
        "unread_items",
    )  # fmt: skip

    def __init__(self, rm_id: str, policy_group: str, config: str, connection: RMStreams) -> None:
        self.rm_id = rm_id
        self.policy_group = policy_group
        self.config = config
        self.connection = connection
        self.identity: str | None = None
        self.predicates: Any = None
        self.state = next_state(RMState.INIT, RMEvent.REGISTERED)
        self.backlog: deque[tuple[str, Any]] = deque()  # kind, request
        self.backlog_items = 0
        self.unread_items = 0

    def queue(self, kind: str, request: Any, items: int) -> None:
        """A request to be read in a turn."""
        self.backlog.append((kind, request))
        self.backlog_items += items

    @property
    def is_decided_for(self) -> bool:
        """Whether decisions are made for it."""
        return self.state is RMState.RUNNING and self.unread_items < UNREAD_ITEMS_MAX

    def dump(self) -> dict[str, Any]:
        """For people; no secrets."""
        return {
            "rmID": self.rm_id,
            "policyGroup": self.policy_group,
            "state": self.state.value,
            "streams": self.connection.kinds,
            "unread": self.unread_items,
            "backlog": self.backlog_items,
        }


def items_of(parts: Sequence[Any]) -> int:
    """How many items a request has, at least one."""
    return sum([len(part) for part in parts]) or 1
