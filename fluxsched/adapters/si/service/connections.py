"""Connection of a resource manager: a stream a kind, the responses to be written there, and its watchers.

Law: unwritten responses outlive a stream that breaks, and are sent on the next one of its kind; another registration
ends them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from fluxsched.adapters.si.machine.effects import KINDS, RESPONSE_LISTS, Observed
from fluxsched.adapters.si.service.status import DONE, CallEnd

WATCH_UNREAD_MAX = 10_000
"""Events and states that a watcher may leave unread; then its call ends, for nothing else may suffer from it."""


def items_in(kind: str, response: Any) -> int:
    """Return the number of items of a response."""
    return sum(len(getattr(response, name)) for name in RESPONSE_LISTS[kind])


class ResponseQueue:
    """Responses of one kind that are not written yet, oldest first."""

    __slots__ = ("_items", "_kind", "_responses", "empty", "filled")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._responses: deque[Any] = deque()
        self._items = 0
        self.filled = asyncio.Event()
        self.empty = asyncio.Event()
        self.empty.set()

    @property
    def items(self) -> int:
        """Return the number of items of all responses, also of the one that is being written."""
        return self._items

    def put(self, response: Any) -> None:
        """Add one more response to be written."""
        self._responses.append(response)
        self._items += items_in(self._kind, response)
        self.filled.set()
        self.empty.clear()

    @contextmanager
    def first(self) -> Iterator[Any]:
        """The oldest, for the time of its being written; it stays the first if that fails."""
        response = self._responses.popleft()
        try:
            yield response
        except BaseException:
            self._responses.appendleft(response)
            raise
        self._items -= items_in(self._kind, response)
        if not self._responses:
            self.filled.clear()
            self.empty.set()


class UpdateStream:
    """One stream, from its call to its end."""

    __slots__ = ("ending", "half_closed", "kind", "number", "queue", "rm_id", "writing")

    def __init__(self, kind: str, ending: asyncio.Future[CallEnd]) -> None:
        self.kind = kind
        self.ending = ending
        self.rm_id: str | None = None
        """To which it is bound by its first message."""
        self.number = 0
        self.half_closed = False
        self.queue: ResponseQueue | None = None
        self.writing: asyncio.Task[None] | None = None

    def end(self, how: CallEnd) -> None:
        """End the stream; the first reason counts."""
        if not self.ending.done():
            self.ending.set_result(how)


class Watcher:
    """A call that follows the events of a resource manager."""

    __slots__ = ("changed", "ending", "items", "observed")

    def __init__(self, ending: asyncio.Future[CallEnd]) -> None:
        self.ending = ending
        self.observed: deque[Observed] = deque()
        self.items = 0
        self.changed = asyncio.Event()

    def put(self, observed: Observed) -> None:
        """One more turn's; ends the call of a watcher that does not read."""
        self.items += len(observed.events) + len(observed.states)
        if self.items > WATCH_UNREAD_MAX:
            detail = f"{self.items} events and states are unread, limit {WATCH_UNREAD_MAX}: read faster, watch again"
            self.end(CallEnd(grpc.StatusCode.RESOURCE_EXHAUSTED, detail))
            return
        self.observed.append(observed)
        self.changed.set()

    def take(self) -> Observed:
        """Return and remove the oldest observations."""
        observed = self.observed.popleft()
        self.items -= len(observed.events) + len(observed.states)
        return observed

    def end(self, how: CallEnd) -> None:
        """End the watch; the first reason counts."""
        if not self.ending.done():
            self.ending.set_result(how)


class RMConnection:
    """All of one resource manager."""

    __slots__ = ("queues", "streams", "watchers")

    def __init__(self) -> None:
        self.streams: dict[str, UpdateStream] = {}
        self.queues = {kind: ResponseQueue(kind) for kind in KINDS}
        self.watchers: set[Watcher] = set()

    @property
    def unread_items(self) -> int:
        """Return the number of unread items of all kinds."""
        return sum(queue.items for queue in self.queues.values())

    def replace(self, stream: UpdateStream) -> UpdateStream | None:
        """The newest stream of its kind ends the one before, and that is returned."""
        before = self.streams.get(stream.kind)
        self.streams[stream.kind] = stream
        if before is not None:
            before.end(CallEnd(grpc.StatusCode.ABORTED, f"a newer stream of {stream.kind} has replaced this one"))
        return before

    @property
    def is_half_closed(self) -> bool:
        """Return whether the manager has half-closed all that it has open: it shuts down."""
        return all(stream.half_closed for stream in self.streams.values())

    def end_streams(self, how: CallEnd) -> None:
        """A registration ends, and what is unwritten with it; streams that the manager half-closed end in order."""
        for stream in self.streams.values():
            stream.end(DONE if stream.half_closed else how)
        self.streams = {}
        self.queues = {kind: ResponseQueue(kind) for kind in KINDS}
