"""Scheduler service of `si serve`: a machine behind gRPC on one address, from its start to its end by a signal.

The machine has what this host has: configurations in files, the user database, a clock, and UUIDs of allocations,
version 4 in form (RFC 9562), made of a random part for each process and a count. Requests arrive as bytes and are
decoded here, so that what cannot be decoded is its sender's fault and in no log.

Laws: nothing is stored; a service that ends, in order or not, leaves resource managers to register with the next one.
The first message binds a stream to its rmID; what a manager sends is handed over in the order in which it is read, and
what is written to it is taken from its queues, so that a stream that breaks loses nothing unwritten. The directory of a
local socket is the owner's alone (0700): what exists is never changed, and a directory that is open to others is
refused.

Turns of a scheduler service: what has arrived is applied, the machine decides, its effects go to the streams.

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
import contextlib
import errno
import gc
import hashlib
import json
import logging
import os
import re
import signal
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError

from fluxsched.core.text import shown
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.sched.hooks import Plugin
from fluxsched.sched.registry import make_plugin
from fluxsched.system.clock import Clock, RandomSource, SystemClock
from fluxsched.system.files import DIRECTORY_MODE, OTHERS, make_private, remove_dead_socket, user_name
from fluxsched.system.log import exception_text, logger, set_up_logging
from fluxsched.system.processes import GC_THRESHOLDS, settle
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.config import PartitionSettings, read_config
from fluxsched.yunikorn.machine import SIMachine
from fluxsched.yunikorn.messages import (
    ALLOCATIONS,
    APPLICATIONS,
    KINDS,
    MESSAGE_BYTES_MAX,
    NODES,
    RESPONSE_LISTS,
    UPDATES,
    Broke,
    Effect,
    EndStreams,
    Observed,
    PluginProblem,
    SendResponse,
    log_text,
)
from fluxsched.yunikorn.placement import UserGroups
from fluxsched.yunikorn.wire import EXTRA, SCHEDULER, Address, Method, ServerCertificates


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


# ---- unique ids


class UuidMaker:
    """Makes one UUID a call; two with a chance of their own never make the same."""

    __slots__ = ("_count", "_start")

    def __init__(self, chance: RandomSource) -> None:
        text = f"{chance.getrandbits(60):015x}"
        variant = "89ab"[chance.getrandbits(2)]
        self._start = f"{text[:8]}-{text[8:12]}-4{text[12:]}-{variant}"
        self._count = 0

    def __call__(self) -> str:
        self._count += 1
        text = f"{self._count:015x}"
        return f"{self._start}{text[:3]}-{text[3:]}"


# ---- the machine with what this host has

CONFIGS_KEPT_MAX = 16
"""Texts of configurations, and what was read of them, that are kept at a time."""

_POLICY_GROUP: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def make_machine(groups: Path | None = None, plugins: Sequence[str] = ()) -> SIMachine:
    """Return a machine for this host; configurations of policy groups are files of the directory `groups`.

    Each partition has `plugins` of its own. Raises InvalidValue for one that is not known, or not for asks.
    """
    elapsed_s = SystemClock().monotonic_s
    users = UserGroups(elapsed_s)
    make_plugins = partial(_make_plugins, tuple(plugins))
    make_plugins()
    return SIMachine(PolicyGroups(groups), users, UuidMaker(RandomSource()), ConfigReader(), elapsed_s, make_plugins)


def _make_plugins(specs: Sequence[str]) -> list[Plugin]:
    """Plugins as they are named: none that asks have nothing for. Raises InvalidValue."""
    found = [make_plugin(spec) for spec in specs]
    for plugin in found:
        reads = ", ".join(getattr(plugin, "READS", ()))
        if reads:
            raise InvalidValue(f"plugin {plugin.name!r} reads {reads}, which asks of resource managers do not have")
        if callable(getattr(plugin, "queue_sort", None)):
            raise InvalidValue(f"plugin {plugin.name!r} has queue_sort: the queues of a resource manager order asks")
    return found


def wall_clock(clock: Clock | None = None) -> Callable[[], float]:
    """Return the wall time (seconds) as it was at the start, going on evenly: a step of the system's clock moves no
    timer.
    """
    clock = clock or SystemClock()
    elapsed_s = clock.monotonic_s
    started_s = clock.wall_s() - elapsed_s()
    return lambda: started_s + elapsed_s()


class ConfigReader:
    """Reads configurations and keeps the last ones: a long one takes a while, and may have been read in a thread."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[PartitionSettings, ...] | InvalidValue] = {}

    def __call__(self, text: str) -> tuple[PartitionSettings, ...]:
        """Raise InvalidValue with all faults."""
        found = self._kept.get(text)
        if found is None:
            found = self._read(text)
            if len(self._kept) >= CONFIGS_KEPT_MAX:
                self._kept.clear()
            self._kept[text] = found
        if isinstance(found, InvalidValue):
            raise found.with_traceback(None)
        return found

    @staticmethod
    def _read(text: str) -> tuple[PartitionSettings, ...] | InvalidValue:
        try:
            return read_config(text)
        except InvalidValue as fault:
            return fault


class PolicyGroups:
    """The configuration of policy group NAME is NAME.yaml, read whenever it is asked for."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def __call__(self, name: str) -> str | None:
        """Return the text; None if there is no such file. Raises InvalidValue for what cannot be the name of one, or
        read.
        """
        if not name or self._directory is None:
            return None
        if _POLICY_GROUP.fullmatch(name) is None:
            raise InvalidValue(f"policyGroup {shown(name)} names a file: use 1 to 64 letters, digits and `_.-`")
        try:
            return (self._directory / f"{name}.yaml").read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8"
            raise InvalidValue(f"policyGroup {name}: {name}.yaml cannot be read: {why}") from None


# ---- calls


def decode(shape: Any, data: bytes) -> Any:
    """Return a message of a class. Raises InvalidValue; what the bytes were is not repeated, it may be a secret."""
    try:
        request = shape.FromString(data)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", log_text(request))
        return request
    except DecodeError:
        raise InvalidValue(f"{len(data)} bytes are no {shape.DESCRIPTOR.full_name}: send a whole message") from None


def identity_of(context: Any) -> str | None:
    """Return a digest of the certificate that the other side has shown, or None."""
    certificates = context.auth_context().get("x509_pem_cert")
    return hashlib.sha256(certificates[0]).hexdigest() if certificates else None


def check_identity(turns: TurnLoop, rm_id: str, context: Any) -> None:
    """Raise Refused: not registered (ENOENT), or with another certificate (EPERM)."""
    if turns.machine.identity_of(rm_id) != identity_of(context):
        raise Refused(f"resource manager {rm_id!r} was registered with another certificate", errno.EPERM)


class ServiceCalls:
    """Handlers of unary calls, and of Watch."""

    def __init__(self, turns: TurnLoop) -> None:
        self._turns = turns

    def handlers(self) -> dict[str, Any]:
        """By the path of the RPC."""
        unary = {
            SCHEDULER["RegisterResourceManager"]: self._register,
            EXTRA["UpdateConfiguration"]: self._update_configuration,
            EXTRA["StateDump"]: self._state_dump,
        }
        made = {method.path: grpc.unary_unary_rpc_method_handler(_unary(method, do)) for method, do in unary.items()}
        return made | {EXTRA["Watch"].path: grpc.unary_stream_rpc_method_handler(self._watch)}

    async def _register(self, request: Any, context: Any) -> Any:
        await asyncio.to_thread(self._turns.machine.read_ahead, request)
        self._turns.machine.register(request, self._turns.clock_s(), identity_of(context))
        self._turns.begin_anew(request.rmID)
        log.info("resource manager %r registered, policy group %r", request.rmID, request.policyGroup)
        await self._turns.turned()  # only then may new streams come: the end of the old ones is behind us
        return messages.RegisterResourceManagerResponse()

    async def _update_configuration(self, request: Any, context: Any) -> Any:
        check_identity(self._turns, request.rmID, context)
        await asyncio.to_thread(self._turns.machine.read_ahead, request)
        self._turns.machine.update_configuration(request, self._turns.clock_s())
        log.info("resource manager %r gave policy group %r another configuration", request.rmID, request.policyGroup)
        await self._turns.turned()
        return messages.UpdateConfigurationResponse()

    async def _state_dump(self, request: Any, context: Any) -> Any:
        await self._turns.turned()
        return messages.StateDumpResponse(json=json.dumps(self._turns.machine.state_dump(request.rmID or None)))

    async def _watch(self, data: bytes, context: Any) -> None:
        try:
            request = decode(EXTRA["Watch"].request, data)
            check_identity(self._turns, request.rmID, context)
        except FluxschedError as fault:
            await context.abort(*end_of(fault))
        watcher = Watcher(asyncio.get_running_loop().create_future())
        watchers = self._turns.connection(request.rmID).watchers
        watchers.add(watcher)
        self._turns.machine.observe(request.rmID, True)
        await context.send_initial_metadata(())  # from here on it sees all
        writing = asyncio.create_task(_write_observed(watcher, context))
        try:
            end = await watcher.ending
        finally:
            writing.cancel()
            watchers.discard(watcher)
            if not watchers and self._turns.machine.is_registered(request.rmID):
                self._turns.machine.observe(request.rmID, False)
        await context.abort(*end)


def _unary(method: Method, do: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handle(data: bytes, context: Any) -> bytes:
        try:
            response = await do(decode(method.request, data), context)
        except FluxschedError as fault:
            await context.abort(*end_of(fault))
        return bytes(response.SerializeToString())

    return handle


async def _write_observed(watcher: Watcher, context: Any) -> None:
    while True:
        while watcher.observed:
            observed = watcher.take()
            response = messages.WatchResponse(events=observed.events, states=observed.states)
            await context.write(response.SerializeToString())
        watcher.changed.clear()
        await watcher.changed.wait()


# ---- streams of a resource manager

FLUSH_S: Final = 5.0
"""Time that writing the rest may take at the end of a stream that ends in order (seconds)."""

CANCEL_S = 1.0
"""A call that was canceled, or whose connection broke, may look half-closed until that is known (seconds).

Long: a lost manager that is taken for one that shuts down loses all that it has, and 0.1 was too short on a busy
machine.
"""


class UpdateStreams:
    """All streams of all resource managers."""

    def __init__(self, turns: TurnLoop) -> None:
        self._turns = turns
        self._take: dict[str, Callable[[Any, float], None]] = {
            ALLOCATIONS: turns.machine.update_allocation,
            APPLICATIONS: turns.machine.update_application,
            NODES: turns.machine.update_node,
        }
        self._open: set[UpdateStream] = set()

    def handlers(self) -> dict[str, Any]:
        """By the path of the RPC."""
        return {
            SCHEDULER[name].path: grpc.stream_stream_rpc_method_handler(self._handler(kind))
            for kind, name in UPDATES.items()
        }

    def end_all(self, how: CallEnd) -> None:
        """End all streams when the service ends."""
        for stream in self._open:
            stream.end(how)

    def _handler(self, kind: str) -> Callable[[Any, Any], Awaitable[None]]:
        async def handle(_: Any, context: Any) -> None:
            await self._serve(kind, context)

        return handle

    async def _serve(self, kind: str, context: Any) -> None:
        """One stream, until it ends."""
        stream = UpdateStream(kind, asyncio.get_running_loop().create_future())
        self._open.add(stream)
        reading = asyncio.create_task(self._read(stream, context))
        try:
            end = await stream.ending
            if end == DONE and stream.queue is not None:
                async with asyncio.timeout(FLUSH_S):
                    await stream.queue.empty.wait()
        except TimeoutError:
            end = CallEnd(grpc.StatusCode.DEADLINE_EXCEEDED, f"answers are unread after {FLUSH_S:g} s")
        finally:
            self._open.discard(stream)
            tasks = [task for task in (reading, stream.writing) if task is not None]
            for task in tasks:
                task.cancel()
            self._turns.forget(stream)
            self._tell_closed(stream)
        await asyncio.wait(tasks)
        if end != DONE:
            await context.abort(*end)

    def _tell_closed(self, stream: UpdateStream) -> None:
        if stream.rm_id is not None:
            now_s = self._turns.clock_s()
            self._turns.machine.stream_closed(stream.rm_id, stream.kind, stream.number, stream.half_closed, now_s)
            self._turns.wake()

    # ---- in

    async def _read(self, stream: UpdateStream, context: Any) -> None:
        shape, take = SCHEDULER[UPDATES[stream.kind]].request, self._take[stream.kind]
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                if stream.ending.done():
                    return
                request = decode(shape, data)
                if stream.rm_id is None:
                    await self._bind(stream, request.rmID, context)
                elif request.rmID != stream.rm_id:
                    text = f"this stream is bound to rmID {stream.rm_id!r}, not to {request.rmID!r}: open one for each"
                    raise InvalidValue(text)
                take(request, self._turns.clock_s())
                self._turns.wake()
                await self._turns.applied(request.rmID, BACKLOG_HIGH_ITEMS)
        except FluxschedError as fault:
            stream.end(end_of(fault))
        else:
            await self._half_closed(stream)

    async def _bind(self, stream: UpdateStream, rm_id: str, context: Any) -> None:
        check_identity(self._turns, rm_id, context)
        stream.rm_id = rm_id
        stream.number = self._turns.machine.stream_opened(rm_id, stream.kind, self._turns.clock_s())
        connection = self._turns.connection(rm_id)
        before = connection.replace(stream)
        if before is not None:
            await canceled(before.writing)  # what it has not written is ours to write
        stream.queue = connection.queues[stream.kind]
        stream.writing = asyncio.create_task(self._write(rm_id, stream.queue, context))

    async def _half_closed(self, stream: UpdateStream) -> None:
        """Shut down a manager that half-closes all of its streams, after what it has sent before is applied."""
        if stream.rm_id is None:
            stream.end(DONE)
            return
        await asyncio.sleep(CANCEL_S)
        await self._turns.turned()
        await self._turns.applied(stream.rm_id, 0)
        stream.half_closed = True
        connection = self._turns.connection(stream.rm_id)
        if connection.is_half_closed:
            log.info("resource manager %r shuts down", stream.rm_id)
            for each in connection.streams.values():
                self._tell_closed(each)

    # ---- out

    async def _write(self, rm_id: str, queue: ResponseQueue, context: Any) -> None:
        while True:
            await queue.filled.wait()
            with queue.first() as response:
                await context.write(response.SerializeToString())
            self._turns.read(rm_id)


async def canceled(task: asyncio.Task[None] | None) -> None:
    """Return when a task has come to its end."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


# ---- the local socket


@contextlib.contextmanager
def local_socket(path: Path) -> Iterator[None]:
    """Make the directory if it is missing, and remove what it made. Raises Refused where others could get in."""
    directory = path.parent
    is_new = not directory.exists()
    if is_new:
        make_private(directory)
    _check_directory(directory)
    remove_dead_socket(path, f"another service listens at unix:{path}: stop it, or name another path")
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        if is_new:
            with contextlib.suppress(OSError):  # others use it meanwhile
                directory.rmdir()


def _check_directory(directory: Path) -> None:
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise Refused(f"{directory} belongs to {user_name(found.st_uid)}: name a directory of your own", errno.EPERM)
    if found.st_mode & OTHERS:
        raise Refused(
            f"{directory} is open to others (mode {stat.S_IMODE(found.st_mode):04o}), who could reach a socket in it: "
            f"name one that does not exist yet, or one with mode {DIRECTORY_MODE:04o}",
            errno.EPERM,
        )


# ---- the server

CALLS_MAX = 2048
"""Calls at a time: the streams of all resource managers, and twice as many others."""

STOP_S: Final = 2.0
"""Time within which calls have to end when the service does (seconds)."""

OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),  # the state of a large service is one message
    ("grpc.so_reuseport", 0),  # two services on one port would share it in silence
    ("grpc.keepalive_time_ms", 20_000),  # the loss of a machine is noticed, not only that of a process
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

STOPPING: Final = CallEnd(grpc.StatusCode.UNAVAILABLE, "the scheduler service is stopping: register with the next one")


class Service:
    """A scheduler service, started and stopped; `clock_s` gives the wall time (seconds)."""

    def __init__(self, machine: SIMachine, clock_s: Callable[[], float]) -> None:
        self._turns = TurnLoop(machine, clock_s)
        self._calls = ServiceCalls(self._turns)
        self._streams = UpdateStreams(self._turns)
        self._server: Any = None

    async def start(self, address: Address, certificates: ServerCertificates | None) -> Address:
        """Return the address with the port that the system chose. Raises Refused."""
        server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=CALLS_MAX)
        server.add_generic_rpc_handlers((_Handlers(self._calls.handlers() | self._streams.handlers()),))
        try:
            if certificates is None:
                port = server.add_insecure_port(str(address))
            else:
                port = server.add_secure_port(str(address), certificates.credentials())
        except RuntimeError:
            raise Refused(f"cannot listen at {address}: it is in use, or not an address of this machine") from None
        await server.start()
        self._server = server
        return address if address.path is not None else address._replace(port=port)

    async def run(self) -> None:
        """Take turns until canceled, then end all calls."""
        try:
            await self._turns.run()
        finally:
            self._streams.end_all(STOPPING)
            await self._server.stop(STOP_S)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The methods of both services, by their paths."""

    def __init__(self, by_path: dict[str, Any]) -> None:
        self._by_path = by_path

    def service(self, handler_call_details: Any) -> Any:
        return self._by_path.get(handler_call_details.method)


# ---- `si serve`


def machine_of(groups: Path | None, plugins: Sequence[str]) -> SIMachine:
    """Return a machine for this host, with these plugins. Raises InvalidValue for one that cannot be used."""
    return make_machine(groups, plugins=plugins)


async def serve(
    machine: SIMachine,
    address: Address,
    certificates: ServerCertificates | None,
    verbose: int,
    ready: Callable[[Address], None],
) -> None:
    """Serve until a signal; `ready` is given the address as soon as it is served. Raises Refused."""
    set_up_logging(None, verbose)
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    service = Service(machine, wall_clock())
    with contextlib.nullcontext() if address.path is None else local_socket(address.path):
        bound = await service.start(address, certificates)
        settle()
        ready(bound)
        if bound.path is None and certificates is None:
            log.warning("any process of this machine can reach %s and schedule there", bound)
        running = asyncio.create_task(service.run())
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running  # raises what ended it, if that was no signal
