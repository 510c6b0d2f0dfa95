"""How long a connection may take, and which connections may be: a request that arrives slowly, a viewer that reads
nothing, strangers who would take the places of viewers.

Law: a client, whatever it sends or does not read, costs a bounded time and a bounded buffer; without the cookie it
costs no viewer its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

ADMITTED = "fluxsched.admitted"
"""The key of a scope whose value is to be called once its request had the cookie."""
STRANGERS_MAX = 400
"""Connections on which no request with the cookie has arrived; of more, the oldest is ended."""
ACCEPTED_MAX = STRANGERS_MAX // 4
"""Connections accepted in one turn of the loop: the request of a viewer among them is read before so many others have
come that it would be ended as a stranger."""

HEAD_S = 10.0
"""For how long a request may take to arrive up to the end of its headers, or a connection may be idle before its first
one (seconds)."""
UNREAD_S = 30.0
"""For how long a client may read nothing of what waits for it (seconds)."""
BUFFER_BYTES = 65_536
"""What waits for one client; more is not written before it has read."""


class Deadline:
    """Something that is done unless it is called off in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop, self._call = loop, call
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, delay_s: float) -> None:
        """Begin to wait, unless it has begun."""
        if self._timer is None:
            self._timer = self._loop.call_later(delay_s, self._call)

    def call_off(self) -> None:
        """Do not do it; it may begin again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Strangers:
    """Connections on which no request with the cookie has arrived, the oldest first."""

    def __init__(self) -> None:
        self._connections: dict[PageConnection, None] = {}

    def add(self, connection: PageConnection) -> None:
        """Take one more, and end the oldest where there are too many: viewers come in however many strangers wait."""
        self._connections[connection] = None
        if len(self._connections) > STRANGERS_MAX:
            oldest = next(iter(self._connections))
            self.discard(oldest)
            oldest.abort()

    def discard(self, connection: PageConnection) -> None:
        """Forget one that has ended, or is a viewer's."""
        self._connections.pop(connection, None)


class PageConnection(H11Protocol):
    """One connection; uvicorn makes one for each."""

    def __init__(self, *args: Any, strangers: Strangers, **more: Any) -> None:
        super().__init__(*args, **more)
        self._strangers = strangers
        self._site = self.app
        self.app = self._serve
        self._head = Deadline(self.loop, self.abort)
        self._reading = Deadline(self.loop, self.abort)

    def abort(self) -> None:
        """End it at once, whatever waits to be sent."""
        self.transport.abort()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ADMITTED] = self._admitted
        await self._site(scope, receive, send)

    def _admitted(self) -> None:
        self._strangers.discard(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._strangers.add(self)
        self._head.begin(HEAD_S)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._head.call_off()
        else:
            self._head.begin(HEAD_S)  # this was a part of the next request

    def on_response_complete(self) -> None:
        """From here until the first byte of the next request uvicorn's timeout of idle connections holds."""
        self._head.call_off()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self._reading.begin(UNREAD_S)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._reading.call_off()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._strangers.discard(self)
        self._head.call_off()
        self._reading.call_off()
        super().connection_lost(exc)
