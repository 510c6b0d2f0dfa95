"""Answers to one resource manager, until they can be sent: in order, one message of a kind a turn.

Law: nothing is lost or sent twice while the manager is known; a message has at most ITEMS_MAX items, and
RESPONSE_BYTES_MAX bytes unless a single item is larger. Items are made inside their message, which costs less than a
copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from fluxsched.adapters.si.machine.effects import ALLOCATIONS, APPLICATIONS, NODES, RESPONSE_LISTS, SendResponse
from fluxsched.adapters.si.messages import AllocationResponse, ApplicationResponse, NodeResponse

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
        """The message into which the caller puts one more item, now."""
        if not self.room:
            self._waiting.append((self._last, ITEMS_MAX))
            self._last = self._make()
            self.room = ITEMS_MAX
        self.room -= 1
        self.items += 1
        return self._last

    def taken(self) -> tuple[Any, int]:
        """The first message, and how many items it has; there is one."""
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
        """Takes all but the first items out of a message, into another one: nothing is released before it is new."""
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
