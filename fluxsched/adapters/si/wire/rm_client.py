"""The resource manager's side of the interface over gRPC: it registers, opens three streams, sends and is answered.

Law: what is sent on one stream is written in its order and never waited for by the sender; the first stream that ends,
for whatever reason, is the end of the connection, and says why.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc

from fluxsched.adapters.si.machine.effects import KINDS, UPDATES
from fluxsched.adapters.si.wire.address import Address
from fluxsched.adapters.si.wire.certificates import ClientCertificates
from fluxsched.adapters.si.wire.client import CALL_S, OPTIONS, refusal
from fluxsched.adapters.si.wire.methods import SCHEDULER
from fluxsched.errors import Refused

LEAVE_S: Final = 5.0
"""Time within which the service has to end streams that we have half-closed (seconds)."""

Take = Callable[[str, Any], None]
"""Function that is called for each response, with its kind."""


class RMClient:
    """One resource manager at one service. After `register`, `open` begins the streams; `ended` says how they ended."""

    def __init__(self, address: Address, certificates: ClientCertificates | None = None) -> None:
        self._address = address
        credentials = None if certificates is None else certificates.credentials()
        self._channel: Any = (
            grpc.aio.insecure_channel(str(address), OPTIONS)
            if credentials is None
            else grpc.aio.secure_channel(str(address), credentials, OPTIONS)
        )
        self._outboxes: dict[str, _Outbox] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: list[Any] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def register(self, request: Any) -> None:
        """Raises Refused with what the service said, or that there is none."""
        method = SCHEDULER["RegisterResourceManager"]
        stub = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            await stub(request, timeout=CALL_S)
        except grpc.RpcError as fault:
            raise Refused(refusal(self._address, fault), errno.ECONNREFUSED) from None

    def open(self, take: Take) -> None:
        """Open all three streams; a service binds each to us with the first message on it."""
        for kind in KINDS:
            method = SCHEDULER[UPDATES[kind]]
            call = self._channel.stream_stream(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )()
            self._calls.append(call)
            outbox = self._outboxes[kind] = _Outbox()
            self._tasks += [
                asyncio.create_task(self._write(call, outbox)),
                asyncio.create_task(self._read(call, kind, take)),
            ]

    def send(self, kind: str, request: Any) -> None:
        """Send a message on the stream of its kind; without a stream it is forgotten."""
        outbox = self._outboxes.get(kind)
        if outbox is not None:
            outbox.put(request)

    async def leave(self) -> None:
        """Half-close all streams, which ends our registration in order, and close the channel."""
        for outbox in self._outboxes.values():
            outbox.put(None)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LEAVE_S)
        await self.close()

    async def close(self) -> None:
        """Drop all without a word: to the service it is the loss of the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._channel.close()

    async def _write(self, call: Any, outbox: _Outbox) -> None:
        try:
            while (request := await outbox.get()) is not None:
                await call.write(request)
            await call.done_writing()
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the reader of the stream says why

    async def _read(self, call: Any, kind: str, take: Take) -> None:
        try:
            async for response in call:
                take(kind, response)
            self._end(f"the service has ended the stream of {kind}")
        except grpc.RpcError as fault:
            self._end(refusal(self._address, fault))

    def _end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)


class _Outbox:
    """Messages to be written, in order; None is the end."""

    def __init__(self) -> None:
        self._kept: deque[Any] = deque()
        self._changed = asyncio.Event()

    def put(self, request: Any) -> None:
        self._kept.append(request)
        self._changed.set()

    async def get(self) -> Any:
        while not self._kept:
            self._changed.clear()
            await self._changed.wait()
        return self._kept.popleft()
