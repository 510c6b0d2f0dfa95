"""Scheduler service of `si serve`: a machine behind gRPC on one address, from its start to its end by a signal.

The machine has what this host has: configurations in files, the user database, a clock, and UUIDs of allocations,
version 4 in form (RFC 9562), made of a random part for each process and a count. Requests arrive as bytes and are
decoded here, so that what cannot be decoded is its sender's fault and in no log.

Laws: nothing is stored; a service that ends, in order or not, leaves resource managers to register with the next one.
The first message binds a stream to its rmID; what a manager sends is handed over in the order in which it is read, and
what is written to it is taken from its queues, so that a stream that breaks loses nothing unwritten. The directory of a
local socket is the owner's alone (0700): what exists is never changed, and a directory that is open to others is
refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import signal
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from fluxsched.core.text import shown
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.registry import make_plugin
from fluxsched.system.clock import Clock, RandomSource, SystemClock
from fluxsched.system.files import DIRECTORY_MODE, OTHERS, make_private, remove_dead_socket, user_name
from fluxsched.system.log import set_up_logging
from fluxsched.system.processes import settle
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.config.queues import PartitionSettings
from fluxsched.yunikorn.config.reader import read_config
from fluxsched.yunikorn.machine.effects import ALLOCATIONS, APPLICATIONS, NODES, UPDATES
from fluxsched.yunikorn.machine.machine import SIMachine
from fluxsched.yunikorn.messages import MESSAGE_BYTES_MAX, log_text
from fluxsched.yunikorn.turns import (
    BACKLOG_HIGH_ITEMS,
    DONE,
    CallEnd,
    ResponseQueue,
    TurnLoop,
    UpdateStream,
    Watcher,
    end_of,
    log,
)
from fluxsched.yunikorn.user_groups import UserGroups
from fluxsched.yunikorn.wire import EXTRA, SCHEDULER, Address, Method, ServerCertificates


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


def make_machine(
    groups: Path | None = None,
    chance: RandomSource | None = None,
    clock: Clock | None = None,
    plugins: Sequence[str] = (),
) -> SIMachine:
    """Return a machine for this host; configurations of policy groups are files of the directory `groups`.

    Each partition has `plugins` of its own. Raises InvalidValue for one that is not known, or not for asks.
    """
    elapsed_s = (clock or SystemClock()).monotonic_s
    users = UserGroups(elapsed_s)
    make_plugins = partial(_make_plugins, tuple(plugins))
    make_plugins()
    return SIMachine(
        PolicyGroups(groups), users, UuidMaker(chance or RandomSource()), ConfigReader(), elapsed_s, make_plugins
    )


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
