"""Drivers of the transport tests: each end on the test's own loop, every wait bounded."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fluxsched.executor.relay import LIMITS, RelayLimits
from fluxsched.transport.base import Arrived, Lost, ServerKeys, Waker, check_outgoing
from fluxsched.transport.local import LocalServer
from fluxsched.transport.sockets import make_key_pair
from fluxsched.transport.zeromq import ZmqClient, ZmqServer
from tests.transport.memory import MemoryServer
from tests.transport.relayed import RelayedServer

WAIT_S = 60.0
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


class LocalClient:
    """A `Client` for the local socket, by hand: it shares no framing with the server. Sends wait for the kernel."""

    def __init__(self, endpoint: str, *, message_limit_bytes: int = 1 << 30) -> None:
        self.lost: str | None = None
        self.ended = False
        self._limit_bytes = message_limit_bytes
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(endpoint.removeprefix("local://"))
        self._unsent = b""
        self._came = b""
        self._admitted = self._closing = False

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._waker = Waker(loop, wake)
        self._socket.setblocking(False)
        loop.add_reader(self._socket, self._waker.soon)

    def send(self, frames: list[bytes]) -> None:
        check_outgoing(frames, self._limit_bytes)
        sized = [bytes([len(part)]) + part if len(part) < 255 else b"\xff" + struct.pack(">I", len(part)) + part
                 for part in frames]  # fmt: skip
        body = b"".join(sized)
        if self.lost is not None or self._closing:
            return
        self._unsent += bytes.fromhex("1200eeff") + struct.pack(">I", len(body)) + body
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._flush)
            return
        except OSError:
            self._unsent = b""
        self._loop.remove_writer(self._socket)
        if self._closing:
            self._socket.close()

    def receive(self, limit: int) -> list[list[bytes]]:
        while not self.ended:
            try:
                data = self._socket.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._came += data
            if not data:
                self.ended = True
                self._loop.remove_reader(self._socket)
        if not self._admitted and self._came:
            assert self._came[0] == 0
            self._came, self._admitted = self._came[1:], True
        return self._messages(limit)

    def _messages(self, limit: int) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        at = 0
        while len(found) < limit and len(self._came) >= at + 8:
            size = int.from_bytes(self._came[at + 4 : at + 8], "big")
            if len(self._came) < at + 8 + size:
                break
            assert self._came[at : at + 4].hex() == "1200eeff"
            found.append(parts_of(self._came[at + 8 : at + 8 + size]))
            at += 8 + size
        self._came = self._came[at:]
        if len(found) == limit:
            self._waker.soon()
        elif self.ended:
            self.lost = "connection closed"
        return found

    def close(self) -> None:
        """What was sent leaves first, on the test's loop."""
        if not self._closing:
            self._waker.stop()
            self._loop.remove_reader(self._socket)
            self._closing = True
            self._flush()
            self.lost = "closed"


def parts_of(body: bytes) -> list[bytes]:
    """The parts of a frame's body."""
    parts = []
    while body:
        size, rest = body[0], body[1:]
        if size == 255:
            size, rest = int.from_bytes(rest[:4], "big"), rest[4:]
        parts.append(rest[:size])
        body = rest[size:]
    return parts


class Net:
    """Servers and clients of one kind; all are closed after the test."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.userid = os.getuid() if kind == "local" else None
        self.keys = make_key_pair() if kind == "curve" else None
        self.admitted = {self.keys.public} if self.keys is not None else set()
        self._directory = directory
        self._ends: list[Any] = []

    def _keep(self, end: Any) -> Any:
        self._ends.append(end)
        return end

    def server(self, **options: int) -> Driver:
        if self.kind == "memory":
            return Driver(self._keep(MemoryServer(**options)))
        if self.kind.startswith("relayed"):
            limits = RelayLimits(
                unsent_bytes=options.get("unsent_limit_bytes", LIMITS.unsent_bytes),
                message_bytes=options.get("message_limit_bytes", LIMITS.message_bytes),
            )
            return Driver(self._keep(RelayedServer(self._directory, json=self.kind == "relayed local", limits=limits)))
        if self.kind == "local":
            return Driver(self._keep(LocalServer(f"local://{self._directory}/local-0", **options)))
        endpoint = f"ipc://{self._directory}/s" if self.kind == "ipc" else "tcp://127.0.0.1:*"
        keys = None
        if self.keys is not None:
            keys = ServerKeys(make_key_pair(), lambda key, address: key in self.admitted)
        return Driver(self._keep(ZmqServer(endpoint, insecure_tcp=self.kind == "tcp", keys=keys, **options)))

    def client(self, server: Driver, **options: int) -> Driver:
        if self.kind == "memory":
            return Driver(self._keep(server.end.connect(**options)))
        if self.kind.endswith("local"):
            return Driver(self._keep(LocalClient(server.end.endpoint, **options)))
        return Driver(self._keep(ZmqClient(server.end.endpoint, keys=self.keys, **options)))

    def arrived(self, peer: bytes, frames: list[bytes]) -> Arrived:
        """A message as the server hands it over, with what its transport knows of the sender."""
        return Arrived(peer, frames, self.userid, None if self.keys is None else self.keys.public)

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


@pytest.fixture(params=["ipc", "tcp", "curve", "memory", "local", "relayed ipc", "relayed local"])
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
async def curve(tmp_path: Path) -> AsyncIterator[Net]:
    made = Net("curve", tmp_path)
    yield made
    made.close()


@pytest.fixture
def driver() -> type[Driver]:
    return Driver
