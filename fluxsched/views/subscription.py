"""One viewer of one topic: what it has not taken yet, as one message however much has happened.

Law: nothing is queued. What comes while a message waits is merged into it by the rule of `changes.py`, so what waits
is at most about as large as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal

import msgspec

from fluxsched.views.changes import Body, after, joined

MessageKind = Literal["whole", "change", "instance"]
_ENCODER = msgspec.json.Encoder()


class ViewMessage:
    """`kind, body = message`. `json` is the body's text, made once for all viewers that get this message."""

    __slots__ = ("_json", "body", "kind")

    def __init__(self, kind: MessageKind, body: Body) -> None:
        self.kind = kind
        self.body = body
        self._json: bytes | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.kind, self.body))

    def __repr__(self) -> str:
        return f"<ViewMessage {self.kind} {dict(self.body)!r}>"

    @property
    def json(self) -> bytes:
        """The body as JSON."""
        if self._json is None:
            self._json = _ENCODER.encode(self.body)
        return self._json


class Subscription:
    """`async with` it, or `close` it; `async for` gives messages until it is closed, and raises what its feed did."""

    def __init__(self, closed: Callable[[Subscription], None]) -> None:
        self._closed = closed
        self._instance: ViewMessage | None = None
        self._data: ViewMessage | None = None
        self._fault: BaseException | None = None
        self._is_over = False
        self._arrived = asyncio.Event()

    def put(self, message: ViewMessage) -> None:
        """What the viewer is to get next."""
        if message.kind == "instance":
            self._instance = message
        elif message.kind == "whole" or self._data is None:
            self._data = message
        else:
            merge = after if self._data.kind == "whole" else joined
            self._data = ViewMessage(self._data.kind, merge(self._data.body, message.body))
        self._arrived.set()

    def fail(self, fault: BaseException) -> None:
        """Our own fault: the viewer's loop raises it."""
        self._fault = fault
        self._arrived.set()

    def close(self) -> None:
        """End the viewer's loop; what is asked for it alone is not asked any more."""
        if not self._is_over:
            self._is_over = True
            self._arrived.set()
            self._closed(self)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> ViewMessage:
        while True:
            if self._is_over:
                raise StopAsyncIteration
            if self._fault is not None:
                raise self._fault
            if self._instance is not None:
                message, self._instance = self._instance, None
                return message
            if self._data is not None:
                message, self._data = self._data, None
                return message
            self._arrived.clear()
            await self._arrived.wait()

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
