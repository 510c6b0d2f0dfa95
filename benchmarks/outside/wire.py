"""A client of an instance that shares no code with it: pyzmq, msgpack, and the twenty bytes of RFC 3's header.

wire = Wire(uri)
answer = await wire.call("job-manager.submit", {"jobspec": ...})     # Failure: the instance refused
async for answer in wire.stream("job-manager.watch", {}): ...
wire.close()                                                          # what is under way ends with Lost
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import zmq

HEADER = struct.Struct(">BBBBIIII")
MAGIC, VERSION, REQUEST, RESPONSE = 0x8E, 1, 1, 2
TOPIC, PAYLOAD, NORESPONSE, ROUTE, STREAMING = 0x01, 0x02, 0x04, 0x08, 0x40
ANY = 0xFFFFFFFF
ENODATA = 61


class Failure(Exception):
    """The instance refused: its errno, and its text."""

    def __init__(self, errnum: int, text: str) -> None:
        super().__init__(f"{errnum}: {text}")
        self.errnum = errnum


class Lost(Exception):
    """The connection is gone: whether the request was carried out is unknown."""


def frames(topic: str, payload: object, matchtag: int, flags: int = 0) -> list[bytes]:
    """One request as the parts of a message."""
    flags |= TOPIC | ROUTE | (0 if payload is None else PAYLOAD)
    body = [] if payload is None else [msgpack.packb(payload)]
    return [b"", topic.encode(), *body, HEADER.pack(MAGIC, VERSION, REQUEST, flags, ANY, 0, ANY, matchtag)]


class Wire:
    """One connection; answers are handed to who waits for their matchtag. Many may share a `context`."""

    def __init__(self, uri: str, context: zmq.Context[zmq.Socket[bytes]] | None = None) -> None:
        self._own = None if context is not None else zmq.Context()
        shared = context if context is not None else self._own
        assert shared is not None
        self._socket = shared.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = self._socket.rcvhwm = 0
        self._socket.connect(uri)
        self._tag = 0
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, asyncio.Queue[Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._read)

    def _send(self, topic: str, payload: object, flags: int = 0) -> int:
        if self._socket.closed:
            raise Lost
        self._tag += 1
        self._socket.send_multipart(frames(topic, payload, self._tag, flags))
        self._loop.call_soon(self._read)  # a send takes the event of what arrived meanwhile
        return self._tag

    async def call(self, topic: str, payload: object = None) -> Any:
        """The payload of the answer. Raises Failure or Lost."""
        return await self.post(topic, payload)

    def post(self, topic: str, payload: object = None) -> asyncio.Future[Any]:
        """Sent at once; the answer comes in the future."""
        tag = self._send(topic, payload)
        future = self._calls[tag] = asyncio.get_running_loop().create_future()
        return future

    async def stream(self, topic: str, payload: object = None) -> AsyncIterator[Any]:
        """The payloads of a streaming request up to its end. Raises Failure or Lost."""
        tag = self._send(topic, payload, STREAMING)
        queue = self._streams[tag] = asyncio.Queue()
        while True:
            found = await queue.get()
            if isinstance(found, Failure) and found.errnum == ENODATA:
                return
            if isinstance(found, Exception):
                raise found
            yield found

    def _read(self) -> None:
        """All that has arrived."""
        while not self._socket.closed:
            try:
                *parts, header = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(parts, header)

    def _take(self, parts: list[bytes], header: bytes) -> None:
        _, _, kind, flags, _, _, errnum, tag = HEADER.unpack(header)
        if kind != RESPONSE:
            return
        body = parts[-1] if flags & PAYLOAD else b""
        found: Any
        if errnum:
            found = Failure(errnum, body.decode(errors="replace"))
        else:
            found = msgpack.unpackb(body, strict_map_key=False) if body else {}
        if tag in self._streams:
            self._streams[tag].put_nowait(found)
            if errnum:
                del self._streams[tag]
        elif (future := self._calls.pop(tag, None)) is not None and not future.done():
            future.set_exception(found) if errnum else future.set_result(found)

    def close(self) -> None:
        """Leave without a word."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._socket.fileno())
        for future in self._calls.values():
            if not future.done():
                future.set_exception(Lost())
                future.exception()  # not everyone waits
        for queue in self._streams.values():
            queue.put_nowait(Lost())
        self._calls.clear()
        self._socket.close(0)
        if self._own is not None:
            self._own.term()
