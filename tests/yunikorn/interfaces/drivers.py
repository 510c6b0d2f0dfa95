"""The same resource manager by either interface: in process on virtual time, or over gRPC on a real socket.

A test registers, sends, and reads what came; what a call raises in process and how a stream ends over gRPC are both a
`Fault` with a gRPC code.
"""

from __future__ import annotations

import asyncio
import errno
import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc

from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.in_process import InProcessScheduler
from fluxsched.yunikorn.messages import ALLOCATIONS, APPLICATIONS, NODES
from fluxsched.yunikorn.service import Service, make_machine, wall_clock
from fluxsched.yunikorn.wire import EXTRA, SCHEDULER, Address

WAIT_S = 30.0
"""Far above what anything here takes; a hang fails."""

METHODS = {ALLOCATIONS: "UpdateAllocation", APPLICATIONS: "UpdateApplication", NODES: "UpdateNode"}

MARKS: dict[str, dict[str, Any]] = {
    APPLICATIONS: {"new": [{"applicationID": "mark", "partitionName": "no such partition"}]},
    NODES: {"nodes": [{"nodeID": "mark", "action": "UPDATE"}]},
    ALLOCATIONS: {"asks": [{"allocationKey": "mark", "partitionName": "no such partition"}]},
}
"""What is rejected for certain: its rejection comes after all answers to what was sent before."""


class Fault(Exception):
    """A call or a stream that ended, by its gRPC code."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class Answer(NamedTuple):
    """One item of a response: in which list, of which id or key, and the message itself."""

    kind: str
    part: str
    name: str
    item: Any

    @property
    def reason(self) -> str:
        return str(self.item.reason)


def answers_in(kind: str, response: Any) -> Iterator[Answer]:
    for field, items in response.ListFields():
        for item in items:
            name = {APPLICATIONS: "applicationID", NODES: "nodeID", ALLOCATIONS: "allocationKey"}[kind]
            yield Answer(kind, field.name, getattr(item, name), item)


class RM(Protocol):
    """One resource manager."""

    rm_id: str

    def register(self, **fields: Any) -> None: ...
    def update_configuration(self, **fields: Any) -> None: ...
    def send(self, kind: str, data: bytes | None = None, **fields: Any) -> None: ...
    def read(self, *kinds: str) -> list[Answer]:
        """All answers, but of state changes, to what was sent on the streams of these kinds."""
        ...

    def wait(self, kind: str, part: str, count: int = 1) -> list[Answer]:
        """So many answers of a list, and those before."""
        ...

    def watch(self) -> None:
        """Events and container states are kept from now on."""
        ...

    def observed(self, is_wanted: Callable[[Any], bool]) -> Any:
        """The first such event or state."""
        ...

    def dump(self) -> dict[str, Any]: ...


# ---- in process

_CODES = {
    errno.EPERM: grpc.StatusCode.PERMISSION_DENIED,
    errno.ENOENT: grpc.StatusCode.FAILED_PRECONDITION,
    errno.EAGAIN: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@contextmanager
def raised_as_fault() -> Iterator[None]:
    try:
        yield
    except InvalidValue as fault:
        raise Fault(grpc.StatusCode.INVALID_ARGUMENT, str(fault)) from fault
    except FluxschedError as fault:
        raise Fault(_CODES[fault.errnum], str(fault)) from fault


class LocalRM:
    """A resource manager in process; turns come when it reads."""

    def __init__(self, scheduler: InProcessScheduler, rm_id: str) -> None:
        self.rm_id = rm_id
        self._scheduler = scheduler
        self._answers: list[Answer] = []
        self._observed: list[Any] = []
        self._now_s = 1e9

    def later(self, delay_s: float) -> None:
        """Virtual time passes."""
        self._now_s += delay_s

    def UpdateApplication(self, response: Any) -> None:
        self._answers += answers_in(APPLICATIONS, response)

    def UpdateNode(self, response: Any) -> None:
        self._answers += answers_in(NODES, response)

    def UpdateAllocation(self, response: Any) -> None:
        self._answers += answers_in(ALLOCATIONS, response)

    def SendEvent(self, events: Any) -> None:
        self._observed += events

    def UpdateContainerSchedulingState(self, request: Any) -> None:
        self._observed.append(request)

    def watch(self) -> None: ...

    def observed(self, is_wanted: Callable[[Any], bool]) -> Any:
        self._scheduler.turns(self._now_s)
        return next(each for each in self._observed if is_wanted(each))

    def register(self, **fields: Any) -> None:
        with raised_as_fault():
            request = messages.RegisterResourceManagerRequest(rmID=self.rm_id, **fields)
            self._scheduler.RegisterResourceManager(request, self)

    def update_configuration(self, **fields: Any) -> None:
        with raised_as_fault():
            request = messages.UpdateConfigurationRequest(rmID=self.rm_id, **fields)
            self._scheduler.UpdateConfiguration(request)

    def send(self, kind: str, data: bytes | None = None, **fields: Any) -> None:
        shape = SCHEDULER[METHODS[kind]].request
        with raised_as_fault():
            request = shape(**{"rmID": self.rm_id, **fields}) if data is None else shape.FromString(data)
            getattr(self._scheduler, METHODS[kind])(request)

    def read(self, *kinds: str) -> list[Answer]:
        self._scheduler.turns(self._now_s)
        found, self._answers = self._answers, []
        return [answer for answer in found if answer.part != "updated"]

    def wait(self, kind: str, part: str, count: int = 1) -> list[Answer]:
        found = self.read()
        assert sum((answer.kind, answer.part) == (kind, part) for answer in found) >= count, found
        return found

    def dump(self) -> dict[str, Any]:
        self._scheduler.turns(self._now_s)
        (found,) = self._scheduler.state_dump(self.rm_id)["rms"]
        return dict(found)


# ---- over gRPC


class Stream:
    """One stream of a resource manager; a thread of gRPC's reads it only when it is asked to."""

    def __init__(self, channel: grpc.Channel, kind: str) -> None:
        method = SCHEDULER[METHODS[kind]]
        self.kind = kind
        self.request = method.request
        self._response = method.response
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = channel.stream_stream(method.path)(iter(self._requests.get, None), timeout=WAIT_S)

    def send(self, data: bytes) -> None:
        self._requests.put(data)

    def half_close(self) -> None:
        self._requests.put(None)

    def next(self) -> list[Answer]:
        """The answers of the next response."""
        try:
            return list(answers_in(self.kind, self._response.FromString(next(self.call))))
        except grpc.RpcError as fault:
            raise Fault(fault.code(), fault.details()) from None
        except StopIteration:
            raise Fault(grpc.StatusCode.OK, "") from None


class RemoteRM:
    """A resource manager over gRPC; its streams are opened as they are needed."""

    def __init__(self, address: Address, rm_id: str) -> None:
        self.rm_id = rm_id
        self.channel = grpc.insecure_channel(str(address))
        self.streams: dict[str, Stream] = {}

    def close(self) -> None:
        self.channel.close()

    def call(self, method: Any, **fields: Any) -> Any:
        try:
            request = method.request(**{"rmID": self.rm_id, **fields})
        except ValueError as fault:  # in process the same
            raise Fault(grpc.StatusCode.INVALID_ARGUMENT, str(fault)) from fault
        try:
            data = self.channel.unary_unary(method.path)(request.SerializeToString(), timeout=WAIT_S)
        except grpc.RpcError as fault:
            raise Fault(fault.code(), fault.details()) from None
        return method.response.FromString(data)

    def register(self, **fields: Any) -> None:
        self.call(SCHEDULER["RegisterResourceManager"], **fields)
        self.streams = {}  # those of before have ended

    def update_configuration(self, **fields: Any) -> None:
        self.call(EXTRA["UpdateConfiguration"], **fields)

    def stream(self, kind: str) -> Stream:
        return self.streams.setdefault(kind, Stream(self.channel, kind))

    def send(self, kind: str, data: bytes | None = None, **fields: Any) -> None:
        stream = self.stream(kind)
        fields = {"rmID": self.rm_id, **fields}
        stream.send(stream.request(**fields).SerializeToString() if data is None else data)

    def read(self, *kinds: str) -> list[Answer]:
        found: list[Answer] = []
        for kind in kinds or tuple(self.streams):
            self.send(kind, **MARKS[kind])
            while not any(answer.name == "mark" for answer in found if answer.kind == kind):
                found += self._next(kind)
        return [answer for answer in found if answer.part != "updated" and answer.name != "mark"]

    def wait(self, kind: str, part: str, count: int = 1) -> list[Answer]:
        found: list[Answer] = []
        while sum((answer.kind, answer.part) == (kind, part) for answer in found) < count:
            found += self._next(kind)
        return found

    def watch(self) -> None:
        request = EXTRA["Watch"].request(rmID=self.rm_id).SerializeToString()
        self._watching = self.channel.unary_stream(EXTRA["Watch"].path)(request, timeout=WAIT_S)
        assert self._watching.initial_metadata() is not None

    def observed(self, is_wanted: Callable[[Any], bool]) -> Any:
        for data in self._watching:
            response = EXTRA["Watch"].response.FromString(data)
            for each in (*response.events, *response.states):
                if is_wanted(each):
                    return each
        raise AssertionError("the watch has ended")

    def _next(self, kind: str) -> list[Answer]:
        try:
            return self.streams[kind].next()
        except Fault:
            del self.streams[kind]
            raise

    def dump(self) -> dict[str, Any]:
        (found,) = json.loads(self.call(EXTRA["StateDump"]).json)["rms"]
        return dict(found)


class ServiceThread:
    """A service on a local socket, in a thread with a loop of its own."""

    def __init__(self, directory: Path) -> None:
        self._ready: queue.SimpleQueue[Address] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._path = directory / "s"
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        self.address = self._ready.get(timeout=WAIT_S)

    async def _run(self) -> None:
        service = Service(make_machine(), wall_clock())
        self._ready.put(await service.start(Address(path=self._path), None))
        self._running = asyncio.create_task(service.run())
        await asyncio.wait([self._running])

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._running.cancel())
        self._thread.join()
        self._loop.close()
        assert self._running.cancelled(), "a turn has raised"
