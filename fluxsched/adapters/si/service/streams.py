"""The three streams of a resource manager.

Law: the first message binds a stream to its rmID; what a manager sends is handed over in the order in which it is read,
and what is written to it is taken from its queues, so that a stream that breaks loses nothing unwritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from fluxsched.adapters.si.machine.effects import ALLOCATIONS, APPLICATIONS, NODES, UPDATES
from fluxsched.adapters.si.service.calls import check_identity, decode
from fluxsched.adapters.si.service.connections import ResponseQueue, UpdateStream
from fluxsched.adapters.si.service.status import DONE, CallEnd, end_of
from fluxsched.adapters.si.service.turns import BACKLOG_HIGH_ITEMS, TurnLoop, log
from fluxsched.adapters.si.wire.methods import SCHEDULER
from fluxsched.errors import FluxschedError, InvalidValue

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
        """A manager that half-closes all of its streams shuts down, after what it has sent before is applied."""
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
    """Returns when a task has come to its end."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
