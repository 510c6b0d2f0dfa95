"""`GET /events`: a view as server-sent events, at the pace of each viewer.

Law: what waits for a viewer that does not read is merged where it comes from (`views.subscription`); here only what is
being written to it is held. Viewers of the same thing share the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from fluxsched.errors import FluxschedError, LimitExceeded
from fluxsched.views.follower import Subscription
from fluxsched.web.wire import FIGURES, REFUSED, Wire, as_json

VIEWERS_MAX = 1000
"""Event streams at once. One holds 100 KB at most, and takes a share of the loop for each event."""
KEEP_ALIVE_S = 15.0
"""How often a viewer to whom nothing happens gets a comment, so that proxies see life and we see its end (seconds)."""
RETRY_MS = 2000
"""How soon a browser asks again after a loss."""
NOTHING = b"{}"
"""A change of figures that are not shown."""
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


def event(name: str, data: bytes, number: int) -> bytes:
    """One event, as HTML's specification of server-sent events has it; JSON has no line ends."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), data)


class TooManyViewers(LimitExceeded):
    """VIEWERS_MAX event streams are open."""


class Viewers:
    """The open event streams."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: set[EventStream] = set()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._open)

    def open(self, view: str, params: Mapping[str, str]) -> EventStream:
        """A new stream, which is an ASGI application. Raises FluxschedError for a filter that is none, and
        TooManyViewers.
        """
        if len(self._open) >= VIEWERS_MAX:
            raise TooManyViewers(f"{VIEWERS_MAX} viewers are connected, the limit: close a page or try again later")
        stream = EventStream(self._wire, view, params, self._open.discard)
        self._open.add(stream)
        return stream

    def close(self) -> None:
        """End them all."""
        for stream in tuple(self._open):
            stream.close()


class EventStream:
    """What one viewer gets."""

    def __init__(self, wire: Wire, view: str, params: Mapping[str, str], gone: Any) -> None:
        self._wire, self._view, self._gone = wire, view, gone
        self._subscriptions: dict[str, Subscription] = {}
        try:
            for each in dict.fromkeys((view, FIGURES)):
                self._subscriptions[each] = wire.subscribe(each, params if each == view else {})
        except FluxschedError:
            self.close()
            raise
        self._writing = asyncio.Lock()
        self._number = 0
        self._wrote = False

    def close(self) -> None:
        """End it."""
        for one in self._subscriptions.values():
            one.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI: until the viewer leaves or the subscriptions end."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": b"retry: %d\n\n" % RETRY_MS, "more_body": True})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            following = [asyncio.create_task(self._follow(*one, send)) for one in self._subscriptions.items()]
            leaving = asyncio.create_task(_left(receive))
            tasks = [leaving, *following, asyncio.create_task(self._keep_alive(send))]
            try:
                ended, _ = await asyncio.wait([leaving, *following], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in ended:
                task.result()  # a fault of ours is to be in the log
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.close()
            self._gone(self)

    async def _follow(self, view: str, subscription: Subscription, send: Send) -> None:
        try:
            async for message in subscription:
                data = self._wire.json(view, message)
                if view == self._view:
                    await self._write(message.kind, data, send)
                elif message.kind != "instance" and REFUSED not in message.body and data != NOTHING:
                    await self._write(view, data, send)  # of the instance the view tells
        except FluxschedError as fault:
            await self._write("refused", as_json({"error": str(fault)}), send)
            await asyncio.Event().wait()  # the browser would ask again for the same

    async def _write(self, name: str, data: bytes, send: Send) -> None:
        async with self._writing:  # one after the other: a send waits while the viewer does not read
            self._number += 1
            self._wrote = True
            await send({"type": "http.response.body", "body": event(name, data, self._number), "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        while True:
            self._wrote = False
            await asyncio.sleep(KEEP_ALIVE_S)
            if not self._wrote:
                async with self._writing:
                    await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})


async def _left(receive: Receive) -> None:
    """Until the viewer closes its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
