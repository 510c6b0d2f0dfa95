"""The page at a real socket, before an instance that is made of a few dicts: what the server does with any."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.views.follower import Subscription, ViewMessage
from fluxsched.web.access import PageAddress, Secrets, bound
from fluxsched.web.guests import GuestLinks
from fluxsched.web.server import Guests, PageServer, PageSite, config_of

TOKEN = "t0ken-of-the-test"
INFO = {"instance": "there", "uri": "ipc:///run/x", "owner": 0, "role": "owner", "userid": 0}
MACHINE = {
    "R": {}, "states": {"free": "0-3"}, "busy": {}, "busy_gpus": {}, "drained": [], "outages": [], "groups": [],
    "made_up": "",
}  # fmt: skip
DRAINED = {
    "targets": "1-3", "hosts": "n[1-3]", "parts": "", "cores": "", "state": "drained", "timestamp": 90.0, "until": None,
    "user": "ops", "reason": "fan",
}  # fmt: skip
FIGURES = {
    "targets": {"free": 4}, "cores": {"free": 3, "allocated": 1, "down": 0}, "queues": [{"running": 1, "pending": 2}]
}  # fmt: skip


class FakeFollower:
    """Views of which a test says what they are, and questions that it answers."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = dict(INFO)
        self.wholes: dict[str, dict[str, Any]] = {
            "machine": dict(MACHINE), "figures": dict(FIGURES), "notices": {"notices": []}
        }  # fmt: skip
        self.open: dict[Subscription, str] = {}
        self.params: dict[str, Mapping[str, Any] | None] = {}
        """Those of the last subscription to each topic."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.streams: dict[str, list[dict[str, Any]]] = {}
        self.refusal: FluxschedError | None = None

    def subscribe(self, topic: str, params: Mapping[str, Any] | None = None) -> Subscription:
        if topic not in self.wholes:
            raise InvalidValue(f"there is no view {topic!r}")
        self.params[topic] = params
        viewer = Subscription(lambda viewer: self.open.pop(viewer, None) and None)
        self.open[viewer] = topic
        viewer.put(ViewMessage("instance", self.info))
        if self.info["instance"] == "there":
            viewer.put(ViewMessage("whole", self.wholes[topic]))
        return viewer

    def say(self, topic: str, body: dict[str, Any], kind: Any = "change") -> None:
        message = ViewMessage(kind, body)
        for viewer in [viewer for viewer, its in self.open.items() if its == topic]:
            viewer.put(message)

    async def ask(self, topic: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        self.asked.append((topic, payload or {}))
        if self.refusal is not None:
            raise self.refusal
        return self.answers.get(topic, {})

    async def stream(self, topic: str, payload: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.asked.append((topic, payload))
        if self.refusal is not None:
            raise self.refusal
        for answer in self.streams.get(topic, ()):
            yield answer


class Reply(NamedTuple):
    """An answer: status, headers in lower case (the last of each name), and body."""

    status: int
    headers: dict[str, str]
    body: str


class Page:
    """The page of a `FakeFollower`, with another for guests, and a client that writes its requests byte by byte."""

    def __init__(self, address: PageAddress, guests: Guests, follower: FakeFollower, site: PageSite,
                 server: PageServer) -> None:  # fmt: skip
        self.follower, self.site, self.server, self.secrets = follower, site, server, Secrets(TOKEN)
        self.links: GuestLinks = guests.links
        self.guests: Any = guests.follower
        self._address = address
        self.where: Any = address.socket.getsockname()
        self.host = "localhost" if isinstance(self.where, str) else f"127.0.0.1:{self.where[1]}"
        name = "fluxsched" if isinstance(self.where, str) else f"fluxsched-{self.where[1]}"
        self.cookie = {"Cookie": f"{name}={self.secrets.cookie}"}

    async def connect(self, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.where, str):
            return await asyncio.open_unix_connection(self.where, **more)
        return await asyncio.open_connection(*self.where[:2], **more)

    def head(self, line: str, headers: Mapping[str, str]) -> bytes:
        lines = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    async def ask(self, line: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        """One request, signed in unless `headers` has another cookie or host, and its answer."""
        given = {"Host": self.host, "Connection": "close", **self.cookie, **(headers or {})}
        reader, writer = await self.connect()
        writer.write(self.head(line, {name: value for name, value in given.items() if value}) + body)
        try:
            return reply(await asyncio.wait_for(reader.read(), 20), line.startswith("HEAD"))
        finally:
            writer.close()

    def guest_cookie(self, name: str = "ann", hold_s: float = 60.0) -> dict[str, str]:
        """The header of a new link's holder."""
        self.links.create(name, hold_s)
        link = self.links.find(name)
        assert link is not None
        return {"Cookie": f"{self.cookie['Cookie'].partition('=')[0]}-guest={self.secrets.guest_cookie(name, link)}"}

    async def post(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Reply:
        body = urlencode(fields).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
        return await self.ask(f"POST {path}", {**kind, **(headers or {})}, body)

    async def events(
        self, query: str = "view=machine", cookie: Mapping[str, str] | None = None, **more: Any
    ) -> tuple[asyncio.StreamReader, Any]:
        """An event stream, read up to the end of its headers."""
        reader, writer = await self.connect(**more)
        writer.write(self.head(f"GET /events?{query}", {"Host": self.host, **(cookie or self.cookie)}))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        return reader, writer


def reply(answer: bytes, is_head: bool = False) -> Reply:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked" and not is_head:
        body = dechunked(body)
    return Reply(int(lines[0].split(" ")[1]), headers, body.decode("utf-8", "replace"))


def dechunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return found


MakePage = Callable[..., Awaitable[Page]]


@pytest.fixture
async def make_page(tmp_path: Path) -> AsyncIterator[MakePage]:
    """Starts page servers; all end with the test."""
    async with AsyncExitStack() as stack:

        async def make(where: tuple[str, int] | Path = ("127.0.0.1", 0), names: tuple[str, ...] = ()) -> Page:
            follower, guests_follower = FakeFollower(), FakeFollower()
            guests_follower.info |= {"role": "guest", "userid": 0xFFFFFFFE}
            guests = Guests(guests_follower, GuestLinks(tmp_path / "guests"))  # type: ignore[arg-type]
            site = PageSite(follower, Secrets(TOKEN), guests, names)  # type: ignore[arg-type]
            server = PageServer(config_of(site), site)
            address = stack.enter_context(bound(where, None, TOKEN))
            task = asyncio.create_task(server.serve([address.socket]))

            async def end() -> None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                for connection in list(server.server_state.connections):
                    connection.transport.abort()
                for one in server.servers:
                    one.close()

            stack.push_async_callback(end)
            return Page(address, guests, follower, site, server)

        yield make


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait, bounded, until a condition holds."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.002)

    return wait


@pytest.fixture
async def page(make_page: MakePage) -> Page:
    """A page at a free port."""
    return await make_page()
