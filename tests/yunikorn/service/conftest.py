"""A service on a local socket, and a client of its three streams; both in the test's own loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc

from fluxsched.errors import InvalidValue
from fluxsched.yunikorn import config as reader
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.config import PartitionSettings
from fluxsched.yunikorn.machine import PASS_S, SIMachine
from fluxsched.yunikorn.messages import ALLOCATIONS, APPLICATIONS, NODES, Effect, SendResponse
from fluxsched.yunikorn.service import Service
from fluxsched.yunikorn.wire import EXTRA, SCHEDULER, Address, Method

WAIT_S = 30.0
"""Far above what anything here takes; a hang fails."""

RPCS = {
    ALLOCATIONS: SCHEDULER["UpdateAllocation"],
    APPLICATIONS: SCHEDULER["UpdateApplication"],
    NODES: SCHEDULER["UpdateNode"],
}


SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16))
"""What is unread soon fills the buffers of a connection."""


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Client:
    """A resource manager, or several: calls by name."""

    def __init__(self, address: Address) -> None:
        self.channel = grpc.aio.insecure_channel(str(address), SMALL_WINDOW)

    async def call(self, name: str, request: Any = None, data: bytes | None = None) -> Any:
        method = self.method(name)
        call = self.channel.unary_unary(method.path)
        data = request.SerializeToString() if data is None else data
        return method.response.FromString(await call(data, timeout=WAIT_S))

    @staticmethod
    def method(name: str) -> Method:
        return {**SCHEDULER, **EXTRA}[name]

    async def register(self, rm_id: str = "rm", **fields: Any) -> None:
        await self.call("RegisterResourceManager", messages.RegisterResourceManagerRequest(rmID=rm_id, **fields))

    def stream(self, kind: str) -> Stream:
        return Stream(self.channel, RPCS[kind])

    async def bound(self, kind: str, rm_id: str = "rm") -> Stream:
        """A stream that the service has bound to a resource manager."""
        stream = self.stream(kind)
        await stream.send(rmID=rm_id)
        await self.eventually(rm_id, lambda rm: kind in rm["streams"])
        return stream

    async def rm(self, rm_id: str = "rm") -> dict[str, Any]:
        dump = await self.call("StateDump", messages.StateDumpRequest(rmID=rm_id))
        (found,) = json.loads(dump.json)["rms"]
        return found

    async def eventually(self, rm_id: str, is_so: Any) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while not is_so(found := await self.rm(rm_id)):
                await asyncio.sleep(0.001)
        return found


class Stream:
    """One stream."""

    def __init__(self, channel: Any, method: Method) -> None:
        self.method = method
        self.call = channel.stream_stream(method.path)()

    async def send(self, data: bytes | None = None, **fields: Any) -> None:
        await self.call.write(self.method.request(**fields).SerializeToString() if data is None else data)

    async def read(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            data = await self.call.read()
        return data if data is grpc.aio.EOF else self.method.response.FromString(data)

    async def half_close(self) -> None:
        await self.call.done_writing()

    async def end(self) -> tuple[Any, str]:
        """How the service ends the stream."""
        async with asyncio.timeout(WAIT_S):
            return await self.call.code(), await self.call.details()


class Applying(SIMachine):
    """Counts the nodes that it has accepted."""

    answers = 0

    def turn(self, now_s: float, budget_s: float = PASS_S) -> Iterator[Effect]:
        for effect in super().turn(now_s, budget_s):
            if isinstance(effect, SendResponse) and effect.kind == NODES:
                self.answers += len(effect.response.accepted)
            yield effect


def read_config(text: str) -> tuple[PartitionSettings, ...]:
    if "bad" in text:
        raise InvalidValue("queues[0].name: bad")
    return reader.read_config("")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine() -> Applying:
    return Applying({}.get, lambda user: (), lambda: "uuid", read_config)


@pytest.fixture
async def address(machine: SIMachine, clock: Clock, tmp_path: Path) -> AsyncIterator[Address]:
    service = Service(machine, clock)
    address = await service.start(Address(path=tmp_path / "s"), None)
    running = asyncio.create_task(service.run())
    yield address
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


@pytest.fixture
async def client(address: Address) -> AsyncIterator[Client]:
    made = Client(address)
    yield made
    await made.channel.close()
