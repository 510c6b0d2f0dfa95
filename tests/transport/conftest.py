"""Drivers of the transport tests: each end on the test's own loop, every wait bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fluxsched.transport.base import Arrived, Lost
from fluxsched.transport.memory import MemoryServer
from fluxsched.transport.zeromq import ZmqClient, ZmqServer

WAIT_S = 5.0
BATCH = 64


class Driver:
    """Receives whenever it is woken, unless paused; `until` waits for what has come."""

    def __init__(self, end: Any) -> None:
        self.end = end
        self.items: list[Any] = []
        self.paused = False
        self.on_item: Callable[[Any], None] | None = None
        self._woken = asyncio.Event()
        end.start(asyncio.get_running_loop(), self.wake)

    def wake(self) -> None:
        if self.paused:
            return
        for item in self.end.receive(BATCH):
            self.items.append(item)
            if self.on_item is not None:
                self.on_item(item)
        self._woken.set()

    def resume(self) -> None:
        self.paused = False
        self.wake()

    async def until(self, ready: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not ready():
                self._woken.clear()
                await self._woken.wait()

    @property
    def arrived(self) -> list[Arrived]:
        return [item for item in self.items if isinstance(item, Arrived)]

    @property
    def lost(self) -> list[Lost]:
        return [item for item in self.items if isinstance(item, Lost)]

    def send(self, *args: Any) -> None:
        self.end.send(*args)


class Net:
    """Servers and clients of one kind; all are closed after the test."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self._ends: list[Any] = []

    def _keep(self, end: Any) -> Any:
        self._ends.append(end)
        return end

    def server(self, **options: int) -> Driver:
        if self.kind == "memory":
            return Driver(self._keep(MemoryServer(**options)))
        endpoint = f"ipc://{self._directory}/s" if self.kind == "ipc" else "tcp://127.0.0.1:*"
        return Driver(self._keep(ZmqServer(endpoint, **options)))

    def client(self, server: Driver, **options: int) -> Driver:
        if self.kind == "memory":
            return Driver(self._keep(server.end.connect(**options)))
        return Driver(self._keep(ZmqClient(server.end.endpoint, **options)))

    async def pair(self, **options: int) -> tuple[Driver, Driver, bytes]:
        """A server, a client and the name by which the server knows it."""
        server = self.server(**options)
        client, peer = await self.known(server)
        return server, client, peer

    async def known(self, server: Driver) -> tuple[Driver, bytes]:
        """One more client, which has said hello."""
        client = self.client(server)
        count = len(server.items)
        client.send([b"hello"])
        await server.until(lambda: len(server.items) > count)
        return client, server.items.pop().peer

    def close(self) -> None:
        for end in reversed(self._ends):
            end.close()


@pytest.fixture(params=["ipc", "tcp", "memory"])
async def net(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Net]:
    made = Net(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
async def ipc(tmp_path: Path) -> AsyncIterator[Net]:
    made = Net("ipc", tmp_path)
    yield made
    made.close()


@pytest.fixture
def driver() -> type[Driver]:
    return Driver
