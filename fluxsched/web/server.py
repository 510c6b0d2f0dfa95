"""`fluxsched web`: the application behind the guard, `GET /events`, and the server that runs them until it is ended.

Law: messages for a viewer that does not read are merged where they come from (`views.follower`); here only those being
written to it are held. Viewers of the same thing share the bytes. The token stands nowhere but in the printed address,
and in a file of the owner's alone if one is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from fluxsched.errors import FluxschedError, LimitExceeded
from fluxsched.system import log
from fluxsched.system.clock import secret_token
from fluxsched.system.files import parse_page_bind
from fluxsched.system.processes import die_with
from fluxsched.views.follower import Follower, Subscription
from fluxsched.web.access import (
    ACCEPTED_MAX,
    BACKLOG,
    HEAD_BYTES_MAX,
    STRANGERS_MAX,
    Guard,
    PageAddress,
    PageConnection,
    Secrets,
    Strangers,
    bound,
    read_address,
    write_address,
)
from fluxsched.web.actions import Actions
from fluxsched.web.pages import FIGURES, REFUSED, Data, Pages, Wire, as_json

VIEWERS_MAX = 1000
"""Event streams at once. One holds 100 KB at most, and takes a share of the loop for each event."""
KEEP_ALIVE_S = 15.0
"""Interval at which an idle viewer gets a comment, so that proxies see life and we see its end (seconds)."""
RETRY_MS = 2000
"""Time until a browser connects again after a loss (milliseconds)."""
NOTHING = b"{}"
"""A change of figures that are not shown."""
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


def event(name: str, data: bytes, number: int) -> bytes:
    """One event, as HTML's specification of server-sent events has it; JSON has no line ends."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), data)


class TooManyViewers(LimitExceeded):
    """VIEWERS_MAX event streams are open."""


class Viewers:
    """Viewers by their open event streams."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._open: set[EventStream] = set()

    @property
    def count(self) -> int:
        """Return the number of viewers."""
        return len(self._open)

    def open(self, view: str, params: Mapping[str, str]) -> EventStream:
        """Return a new stream, which is an ASGI application.

        Raises FluxschedError for a filter that is none, and TooManyViewers.
        """
        if len(self._open) >= VIEWERS_MAX:
            raise TooManyViewers(f"{VIEWERS_MAX} viewers are connected, the limit: close a page or try again later")
        stream = EventStream(self._wire, view, params, self._open.discard)
        self._open.add(stream)
        return stream

    def close(self) -> None:
        """End the streams of all viewers."""
        for stream in tuple(self._open):
            stream.close()


class EventStream:
    """Stream of events for one viewer."""

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
        """End the subscriptions of the stream."""
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


# ---- routes

STATIC = Path(__file__).parent / "static"
TITLES = {404: "There is no such page", 405: "Method not allowed"}


class Files(StaticFiles):
    """Files that are asked for anew each time, and sent when they have changed: Starlette gives each an ETag."""

    def file_response(self, *args: object, **more: object) -> Response:
        response = super().file_response(*args, **more)  # type: ignore[arg-type]
        response.headers["cache-control"] = "no-cache"
        return response


class PageSite:
    """All that one page server has: `app` is what uvicorn serves."""

    def __init__(self, follower: Follower, secrets: Secrets, names: Sequence[str] = ()) -> None:
        self.wire = Wire(follower)
        self.viewers = Viewers(self.wire)
        self._pages = pages = Pages(self.wire, secrets)
        routes = [
            *pages.routes(),
            Route("/events", self._events),
            Route("/data/{view}", Data(self.wire, pages).handle),
            Route("/actions/{name}", Actions(self.wire, pages, secrets).handle, methods=["POST"]),
            Mount("/static", Files(directory=STATIC)),
        ]
        inner = Starlette(routes=routes, exception_handlers={HTTPException: self._wrong})
        self.app: ASGIApp = Guard(inner, secrets, names)

    async def _events(self, request: Request) -> ASGIApp:
        params = dict(request.query_params)
        try:
            return self.viewers.open(params.pop("view", "machine"), params)
        except TooManyViewers as fault:
            return self._pages.error(request.headers, "Too many viewers", str(fault), 503)
        except FluxschedError as fault:
            return self._pages.fault(request.headers, fault)

    async def _wrong(self, request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        words = f"{request.method} {request.url.path}"
        title = TITLES.get(fault.status_code, fault.detail)
        response = self._pages.error(request.headers, title, words, fault.status_code, "/machine")
        response.headers.update(fault.headers or {})
        return response


# ---- the process

CONNECTIONS_MAX = VIEWERS_MAX + 500 + STRANGERS_MAX
"""Viewers, what they ask for besides, and those who have not shown the cookie yet; more are answered 503."""
DESCRIPTORS = CONNECTIONS_MAX + 100
"""Open files of the process."""
IDLE_S = 20
"""For how long a connection is kept for the next request (seconds)."""
END_S = 1
"""Time that answers being sent may take when the process is to end (seconds)."""


class ServeOptions(NamedTuple):
    """Options of the command `fluxsched web`."""

    uri: str | None
    bind: str
    public: bool = False
    names: Sequence[str] = ()
    """Hosts as which the page may be asked for, besides localhost and IP addresses."""
    instance: int | None = None
    """The process to end with."""
    address_file: Path | None = None
    """File to which the address is written; token and port of one that is there are taken again, for viewers that know
    it.
    """


class PageServer(uvicorn.Server):
    """Ends by SIGINT and SIGTERM, with what never ends by itself."""

    def __init__(self, config: uvicorn.Config, site: PageSite) -> None:
        super().__init__(config)
        self._site = site

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See uvicorn: it would raise the signal again, and exit by it."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self.end)
        try:
            yield
        finally:
            for signum in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(signum)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn: its `backlog` is how many asyncio accepts at a time; more may wait for that."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)

    def end(self) -> None:
        """Take no more requests, and end the event streams."""
        self.should_exit = True
        self._site.viewers.close()


def check_bind(bind: str, *, public: bool) -> None:
    """Raise InvalidValue or Refused for an address that is wrong."""
    parse_page_bind(bind, public=public)


def serve(options: ServeOptions, told: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `told` gets the address with its token, once it can be opened.

    Raises InvalidValue or Refused for an address that is wrong, FluxschedError for one that cannot be had.
    """
    where = parse_page_bind(options.bind, public=options.public)
    log.set_up_logging(None, 0)
    if options.instance is not None:
        die_with(options.instance)
    _raise_descriptors()
    kept = None if options.address_file is None else read_address(options.address_file)
    token = secret_token() if kept is None else kept.token
    asyncio.run(_serve(options, bound(where, kept, token), told))


async def _serve(options: ServeOptions, address: PageAddress, told: Callable[[str], None]) -> None:
    with address:
        if options.address_file is not None:
            write_address(options.address_file, address.url)
        async with Follower(options.uri) as follower:
            site = PageSite(follower, Secrets(address.token), options.names)
            server = PageServer(config_of(site), site)
            told(address.said)
            await server.serve([address.socket])


def config_of(site: PageSite) -> uvicorn.Config:
    """Return the configuration of uvicorn for the site."""
    return uvicorn.Config(
        site.app,
        http=partial(PageConnection, strangers=Strangers()),  # type: ignore[arg-type]
        backlog=ACCEPTED_MAX,
        loop="asyncio",
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=END_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )


def _raise_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
