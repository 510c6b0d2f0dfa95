"""Turns of a scheduler service: what has arrived is applied, the machine decides, its effects go to the streams.

A `Connection` is one resource manager: a stream a kind, the responses to be written there, and its watchers. Our errors
are mapped to gRPC statuses here.

Laws: only a turn performs effects; calls hand requests over and wait for a turn where they must. A bug of ours ends the
service, and resource managers send all again to the next. Unwritten responses outlive a stream that breaks, and are
sent on the next one of its kind; another registration ends them. The interpreter's own full collections of garbage are
off (`processes.settle`), since each looks through all that is alive; the tables of a resource manager refer to each
other in circles, so one is made after registrations have ended: when nothing is to be done, or before too much has
gathered.
"""

from __future__ import annotations

import asyncio
import errno
import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import grpc

from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.system.log import exception_text, logger
from fluxsched.system.processes import GC_THRESHOLDS
from fluxsched.yunikorn.machine.effects import (
    KINDS,
    RESPONSE_LISTS,
    Broke,
    Effect,
    EndStreams,
    Observed,
    PluginProblem,
    SendResponse,
)
from fluxsched.yunikorn.machine.machine import SIMachine


class CallEnd(NamedTuple):
    """End of a call: a status and a text."""

    code: grpc.StatusCode
    detail: str = ""


DONE: Final = CallEnd(grpc.StatusCode.OK)

_BY_ERRNO: Final = {
    errno.EPERM: grpc.StatusCode.PERMISSION_DENIED,
    errno.ENOENT: grpc.StatusCode.FAILED_PRECONDITION,
    errno.EAGAIN: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


DETAIL_BYTES_MAX: Final = 4000
"""A status travels in the trailers of HTTP/2, of which clients take 8 KiB, and what is not ASCII there triples."""


def end_of(fault: FluxschedError) -> CallEnd:
    """Return the end of a call for an error: its value is invalid, or a state stands against the request."""
    detail = _shortened(str(fault))
    if isinstance(fault, InvalidValue):
        return CallEnd(grpc.StatusCode.INVALID_ARGUMENT, detail)
    code = _BY_ERRNO.get(fault.errnum) if isinstance(fault, Refused) else None
    return CallEnd(code or grpc.StatusCode.FAILED_PRECONDITION, detail)


def _shortened(text: str) -> str:
    size = len(quote(text))
    if size <= DETAIL_BYTES_MAX:
        return text
    kept = text
    while len(quote(kept)) > DETAIL_BYTES_MAX:
        kept = kept[: len(kept) * 3 // 4]
    return f"{kept} ... ({len(text) - len(kept)} more characters)"


# ---- garbage of ended registrations

IDLE_S: Final = 1.0
"""Without a turn for so long (seconds), nothing is to be done."""

GARBAGE_OBJECTS_MAX = 4_000_000
"""Objects made since the last collection, some hundred bytes each, of which some may be garbage."""


class Garbage:
    """Of registrations that have ended."""

    def __init__(self) -> None:
        self._is_there = False

    def add(self) -> None:
        """Take note that a registration has ended."""
        self._is_there = True

    @property
    def is_there(self) -> bool:
        """Return whether there is some garbage."""
        return self._is_there

    @property
    def is_much(self) -> bool:
        """Return whether there may be too much garbage to wait."""
        return self._is_there and gc.get_count()[1] * GC_THRESHOLDS[0] >= GARBAGE_OBJECTS_MAX

    def collect(self) -> None:
        """Take as long as all that is alive is large: 50,000 allocations take 0.1 s."""
        self._is_there = False
        gc.collect()


# ---- connections

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
        """Take the oldest, for the time of its being written; it stays the first if that fails."""
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
        """Open the newest stream of its kind, and return the one before, which it ends."""
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
        """Record that a registration ends, and what is unwritten with it; streams that the manager half-closed end in
        order.
        """
        for stream in self.streams.values():
            stream.end(DONE if stream.half_closed else how)
        self.streams = {}
        self.queues = {kind: ResponseQueue(kind) for kind in KINDS}


# ---- turns

log = logger("si")

BACKLOG_HIGH_ITEMS: Final = 10_000
"""A stream is read no further while so many items of its resource manager wait to be applied."""


STEPS_BETWEEN: Final = 16
"""Steps of the loop between two turns, from the last message that came in them: a message takes some to be read, and an
answer to be written.
"""

BETWEEN_S: Final = 0.005
"""All of them together; else a manager that sends its items one by one would have a few of them read a turn, while
turns are long because of another.
"""


class TurnLoop:
    """The machine, and the connections of its resource managers; `clock_s` gives the wall time (seconds)."""

    def __init__(self, machine: SIMachine, clock_s: Callable[[], float]) -> None:
        self.machine = machine
        self.clock_s = clock_s
        self.connections: dict[str, RMConnection] = {}
        self._garbage = Garbage()
        self._wakes = 0
        self._due = asyncio.Event()
        self._turned = asyncio.Event()

    # ---- from calls

    def wake(self) -> None:
        """Something has arrived: a turn is due."""
        self._wakes += 1
        self._due.set()

    async def turned(self) -> None:
        """Return when what had arrived has been through a turn."""
        self._due.set()
        await self._turned.wait()

    async def applied(self, rm_id: str, left_items: int) -> None:
        """Return when at most `left_items` of what a resource manager has sent are not applied."""
        while self.machine.backlog(rm_id) > left_items:
            await self._turned.wait()

    def connection(self, rm_id: str) -> RMConnection:
        """Return the connection of a resource manager, also of one that is not registered."""
        return self.connections.setdefault(rm_id, RMConnection())

    def begin_anew(self, rm_id: str) -> None:
        """Record that a registration was accepted: the streams of the one before end."""
        if rm_id in self.connections:
            self._garbage.add()
        found = self.connection(rm_id)
        found.end_streams(CallEnd(grpc.StatusCode.ABORTED, "another registration of this rmID has replaced this one"))
        self.machine.unread(rm_id, found.unread_items)
        if found.watchers:
            self.machine.observe(rm_id, True)

    def forget(self, stream: UpdateStream) -> None:
        """Record that a stream has ended; another may have replaced it."""
        found = self.connections.get(stream.rm_id or "")
        if found is not None and found.streams.get(stream.kind) is stream:
            del found.streams[stream.kind]

    def read(self, rm_id: str) -> None:
        """Record that a resource manager has read a response."""
        found = self.connections.get(rm_id)
        if found is not None:
            self.machine.unread(rm_id, found.unread_items)
            self._due.set()

    # ---- turns

    async def run(self) -> None:
        """Run turns until the task is canceled."""
        while True:
            await self._until_due()
            self._due.clear()
            turned, self._turned = self._turned, asyncio.Event()
            for effect in self.machine.turn(self.clock_s()):
                self._perform(effect)
            turned.set()
            await self._take_in()

    async def _take_in(self) -> None:
        """Lets calls read what has come, and write."""
        loop, quiet = asyncio.get_running_loop(), 0
        end_s = loop.time() + BETWEEN_S
        while quiet < STEPS_BETWEEN and loop.time() < end_s:
            before = self._wakes
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._wakes == before else 0

    async def _until_due(self) -> None:
        if self._garbage.is_much:
            self._garbage.collect()
        while (delay_s := self.machine.next_wake_s - self.clock_s()) > 0 and not self._due.is_set():
            is_idle = self._garbage.is_there and delay_s > IDLE_S
            try:
                async with asyncio.timeout(IDLE_S if is_idle else None if delay_s == inf else delay_s):
                    await self._due.wait()
            except TimeoutError:
                if is_idle:
                    self._garbage.collect()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Broke):
            log.error("resource manager %r: a bug in fluxsched: %s", effect.rm_id, exception_text(effect.fault))
            return
        if isinstance(effect, PluginProblem):
            log.error("resource manager %r: %s", effect.rm_id, effect.note)
            return
        found = self.connections.get(effect.rm_id)
        if found is None:
            return
        match effect:
            case SendResponse(rm_id, kind, response):
                found.queues[kind].put(response)
                self.machine.unread(rm_id, found.unread_items)
            case EndStreams(rm_id, detail):
                self._garbage.add()
                found.end_streams(CallEnd(grpc.StatusCode.ABORTED, detail))
                self._forget_if_stopped(rm_id, found, detail)
            case Observed():
                for watcher in found.watchers:
                    watcher.put(effect)

    def _forget_if_stopped(self, rm_id: str, found: RMConnection, detail: str) -> None:
        if not self.machine.is_registered(rm_id):
            log.info("resource manager %r is gone: %s", rm_id, detail)
            for watcher in found.watchers:
                watcher.end(CallEnd(grpc.StatusCode.ABORTED, detail))
            del self.connections[rm_id]
