"""`fluxsched web`: the application behind the guard, `GET /events`, and the server that runs them until it is ended.

Holders of guests' links see another follower's views, and change nothing (`web.guests`).

Law: messages for a viewer that does not read are merged where they come from (`views.follower`); here only those being
written to it are held. Viewers of the same thing share the bytes. The token stands nowhere but in the printed address,
and in a file of the owner's alone if one is asked for.

`POST /actions/NAME`: changes from the page, confirmed first, then sent to the instance.

The instance decides whether it may be, and records who did it: the user of this process, by whose connection it comes,
with a note that it was done on the page where there is room for one.

Law: an action is done only with our own anti-forgery token, and once it was confirmed. A body that is longer, slower or
anything else than a form is refused before it is read to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from fluxsched.core.constraint import split_targets
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.text import some_of
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded
from fluxsched.system import log
from fluxsched.system.clock import secret_token
from fluxsched.system.files import GUESTS_NAME, parse_page_bind
from fluxsched.system.processes import die_with
from fluxsched.views.follower import Follower, Subscription
from fluxsched.web.access import (
    ACCEPTED_MAX,
    BACKLOG,
    GUEST_CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    HOLDS,
    NOT_DONE,
    STRANGERS_MAX,
    BoundedConnections,
    Guard,
    PageAddress,
    PageConnection,
    Secrets,
    bound,
    read_address,
    refusal,
    wants_json,
    write_address,
)
from fluxsched.web.guests import GuestLinks
from fluxsched.web.pages import ACTION_TOPICS, FIGURES, NOTICES, REFUSED, Data, Pages, Wire, as_json

BODY_BYTES_MAX = 65_536
"""Of a form: a thousand job ids."""
BODY_S = 10.0
"""For how long a form may take to arrive (seconds)."""
FIELDS_MAX = 256
"""Of a form: those of a page of jobs, each with a box."""
TOGETHER = "ids"
"""The field whose values of one form are one list."""
_KIND = "application/x-www-form-urlencoded"


class TooSlow(InvalidValue):
    """A form that did not arrive within BODY_S."""


async def fields_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, the last of each name but TOGETHER. Raises InvalidValue."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND:
        raise InvalidValue(f"the body is {kind or 'of no type'}, not {_KIND}")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES_MAX:
                    raise LimitExceeded(f"a form has {BODY_BYTES_MAX} bytes at most")
    except TimeoutError:
        raise TooSlow(f"the form did not arrive within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise InvalidValue("the form did not arrive to its end") from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except UnicodeDecodeError:
        raise InvalidValue("the form is not UTF-8 text") from None
    except ValueError:
        raise LimitExceeded(f"a form has {FIELDS_MAX} fields at most") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        found[name] = f"{found[name]} {value}" if name == TOGETHER and name in found else value
    return found


# ---- actions

IDS_MAX = 1000
"""Jobs of one action; `fluxsched cancel` selects more."""
URGENCY_MAX = 31
"""RFC 30 has the job before all others then."""
URGENCY_DONE = {0: "held ", 16: "released "}
"""Words for the urgencies that have a button of their own."""
FAULTS_MAX = 10
"""Refusals that one answer names."""
NOTE = "on the page"
"""Note in the event log that names the page as the place where a job was canceled."""

Fields = Mapping[str, str]


Deed = Callable[[Wire], Awaitable[str]]
"""Asks the instance, and returns what was done in words."""


class Action(NamedTuple):
    """Something that the page can do: its words, its fields, and what it does with them.

    `prepare` raises InvalidValue for fields that are wrong in themselves.
    """

    title: str
    question: str
    fields: tuple[str, ...]
    prepare: Callable[[Fields], Deed]


def _of_targets(name: str, done: str) -> Callable[[Fields], Deed]:
    """Drain, and the reverse; `done` are the words for it."""

    def prepare(fields: Fields) -> Deed:
        targets = _targets(fields)
        given = {field: fields[field] for field in ("reason", "mode") if fields.get(field)}

        async def do(wire: Wire) -> str:
            await wire.ask(ACTION_TOPICS[name], {"targets": targets, **given})
            return done.replace("{}", targets)

        return do

    return prepare


def _cancel(fields: Fields) -> Deed:
    note = f"{fields['note']} ({NOTE})" if fields.get("note") else NOTE
    return _of_jobs("cancel", fields, {"note": note}, "canceled {}")


def _raise(fields: Fields) -> Deed:
    kind = fields.get("type", "").strip()
    if not kind or not kind.isprintable() or " " in kind:
        raise InvalidValue(f"type {kind[:20]!r} is not one word, such as `checkpoint`")
    more = {"type": kind, "severity": 0, "note": fields.get("note") or NOTE}
    return _of_jobs("raise", fields, more, f"exception {kind} raised on " + "{}")


def _urgency(fields: Fields) -> Deed:
    text = fields.get("urgency", "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 2 and int(text) <= URGENCY_MAX):
        raise InvalidValue(f"urgency {text[:20]!r} is not a number from 0 (hold) to {URGENCY_MAX} (expedite)")
    done = URGENCY_DONE.get(int(text), f"urgency {int(text)} for ")
    return _of_jobs("urgency", fields, {"urgency": int(text)}, done + "{}")


ACTIONS: Mapping[str, Action] = {
    "drain": Action("Drain targets", "Running jobs continue; no new ones start there.",
                    ("targets", "reason", "mode"), _of_targets("drain", "drained {}")),
    "undrain": Action("Return targets to service", "Jobs may start there again.",
                      ("targets", "reason", "mode"), _of_targets("undrain", "{} back in service")),
    "cancel": Action("Cancel jobs", "What runs is ended, what waits never starts.", ("ids", "note"), _cancel),
    "raise": Action("Raise an exception", "It ends the jobs.", ("ids", "type", "note"), _raise),
    "urgency": Action("Change the urgency", "0 holds a job, 31 puts it before all others.",
                      ("ids", "urgency"), _urgency),
}  # fmt: skip


class Actions:
    """The handler of all of them."""

    def __init__(self, wire: Wire, pages: Pages, secrets: Secrets) -> None:
        self._wire, self._pages, self._secrets = wire, pages, secrets

    async def handle(self, request: Request) -> Response:
        """Ask, or do it, and say what was done."""
        name, headers = request.path_params["name"], request.headers
        action = ACTIONS.get(name)
        if action is None:
            return self._pages.error(headers, "No such action", f"there are {', '.join(ACTIONS)}", 404)
        try:
            given = await fields_of(request)
        except InvalidValue as fault:
            status = 408 if isinstance(fault, TooSlow) else 413 if isinstance(fault, LimitExceeded) else 400
            return self._pages.error(headers, "Not done", str(fault), status)
        if not self._secrets.is_csrf(given.get("csrf") or headers.get("x-csrf", "")):
            words = "The form has no valid anti-forgery token, so nothing was done. Go back and reload the page."
            return refusal(headers, words, NOT_DONE)
        fields = {field: given[field] for field in action.fields if given.get(field)}
        back = _back(fields)
        try:
            do = action.prepare(fields)
            if given.get("confirmed") != "yes":
                await _check_known(self._wire, fields)
        except FluxschedError as fault:
            return self._pages.fault(headers, fault, back, NOT_DONE)
        if given.get("confirmed") != "yes":
            if wants_json(headers):
                return JSONResponse({"error": "not confirmed: send confirmed=yes"}, 400)
            return self._pages.render(
                "confirm.html", "confirm", action.title, action=name, question=action.question,
                fields=list(fields.items()), back=back,
            )  # fmt: skip
        try:
            said = await do(self._wire)
        except FluxschedError as fault:
            return self._pages.fault(headers, fault, back, NOT_DONE)
        return JSONResponse({"said": said}) if wants_json(headers) else RedirectResponse(back, 303)


def _targets(fields: Fields) -> str:
    targets = fields.get("targets", "").strip()
    if not targets:
        raise InvalidValue("name targets: ranks (0-3,7), hosts (node[0-3]) or both")
    split_targets(targets)
    return targets


def _jobids(fields: Fields) -> list[int]:
    texts = fields.get("ids", "").replace(",", " ").split()
    if not texts:
        raise InvalidValue("name jobs: ids, with commas or spaces between them")
    if len(texts) > IDS_MAX:
        raise LimitExceeded(f"{len(texts)} jobs, the limit is {IDS_MAX}: select them with `fluxsched cancel`")
    return list(dict.fromkeys([parse_jobid(text) for text in texts]))


async def _check_known(wire: Wire, fields: Fields) -> None:
    """Check that such targets and jobs exist: who is asked to confirm should know before that it will be refused."""
    if "targets" in fields:
        await wire.ask("job-manager.running", {"targets": fields["targets"], "max_entries": 1})
    if "ids" in fields:
        wanted = _jobids(fields)
        found = (await wire.ask("job-manager.list", {"ids": wanted, "max_entries": len(wanted)}))["jobs"]
        if unknown := set(wanted) - {job["id"] for job in found}:
            raise InvalidValue(f"no such job: {some_of([format_f58(jobid) for jobid in sorted(unknown)])}")


def _of_jobs(name: str, fields: Fields, more: dict[str, Any], done: str) -> Deed:
    """Ask for all; it raises one error with the words of all refusals."""
    jobids = _jobids(fields)

    async def do(wire: Wire) -> str:
        faults = []
        for jobid in jobids:
            try:
                await wire.ask(ACTION_TOPICS[name], {"id": jobid, **more})
            except FluxschedError as fault:
                shown, text = format_f58(jobid), str(fault)
                faults.append(text if shown in text or len(jobids) == 1 else f"{shown}: {text}")
        if faults:
            left = len(faults) - FAULTS_MAX
            raise InvalidValue("; ".join(faults[:FAULTS_MAX]) + (f"; and {left} more" if left > 0 else ""))
        return done.replace("{}", format_f58(jobids[0]) if len(jobids) == 1 else f"{len(jobids)} jobs")

    return do


def _back(fields: Fields) -> str:
    """Return the page from which a form without script was sent."""
    ids = fields.get("ids", "")
    if not ids:
        return "/machine"
    return f"/jobs/{format_f58(parse_jobid(ids))}" if _is_jobid(ids) else "/jobs"


def _is_jobid(text: str) -> bool:
    try:
        parse_jobid(text)
    except InvalidValue:
        return False
    return True


# ---- server

VIEWERS_MAX = 1000
"""Event streams at once. One holds 100 KB at most, and takes a share of the loop for each event."""
GUEST_VIEWERS_MAX = 200
"""Event streams of guests at once, beside these."""
KEEP_ALIVE_S = 15.0
"""Interval at which an idle viewer gets a comment, so that proxies see life and we see its end, and at which streams
of guests' links that have ended are ended (seconds).
"""
RETRY_MS = 2000
"""Time until a browser connects again after a loss (milliseconds)."""
NOTHING = b"{}"
"""A change of figures that are not shown."""
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no")]


def event(name: str, data: bytes, number: int) -> bytes:
    """One event, as HTML's specification of server-sent events has it; JSON has no line ends."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), data)


class TooManyViewers(LimitExceeded):
    """As many event streams are open as may be."""


class Viewers:
    """Viewers by their open event streams."""

    def __init__(self, wire: Wire, most: int) -> None:
        self._wire, self.most = wire, most
        self._open: set[EventStream] = set()

    @property
    def count(self) -> int:
        """Return the number of viewers."""
        return len(self._open)

    def open(self, view: str, params: Mapping[str, str]) -> EventStream:
        """Return a new stream, which is an ASGI application.

        Raises FluxschedError for a filter that is none, and TooManyViewers.
        """
        if len(self._open) >= self.most:
            raise TooManyViewers(f"{self.most} viewers are connected, the limit: close a page or try again later")
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
            for each in dict.fromkeys((view, FIGURES, NOTICES)):
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
            tasks = [leaving, *following, asyncio.create_task(self._keep_alive(scope[HOLDS], send))]
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

    async def _keep_alive(self, holds: Callable[[], bool], send: Send) -> None:
        while True:
            self._wrote = False
            await asyncio.sleep(KEEP_ALIVE_S)
            if not holds():
                return self.close()
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
    """Files that are asked for anew each time, and sent when they have changed: Starlette gives each an ETag.

    They are small and read at once: in pieces, one stays open whose viewer leaves while it is opened or closed.
    """

    def file_response(self, *args: object, **more: object) -> Response:
        found = super().file_response(*args, **more)  # type: ignore[arg-type]
        found.headers["cache-control"] = "no-cache"
        if not isinstance(found, FileResponse):
            return found
        return Response(Path(found.path).read_bytes(), found.status_code, found.headers, found.media_type)


class Guests(NamedTuple):
    """Views that a page shows to the holders of guests' links, and the links."""

    follower: Follower
    links: GuestLinks


class Audience:
    """The application for all who see an instance through one follower: `app`.

    Without `secrets` its viewers change nothing.
    """

    def __init__(self, follower: Follower, secrets: Secrets | None, viewers_max: int) -> None:
        self.wire = Wire(follower)
        self.viewers = Viewers(self.wire, viewers_max)
        self._pages = pages = Pages(self.wire, "" if secrets is None else secrets.csrf)
        act = _refuse if secrets is None else Actions(self.wire, pages, secrets).handle
        self.routes = [
            *pages.routes(),
            Route("/events", self._events),
            Route("/data/{view}", Data(self.wire, pages).handle),
            Route("/actions/{name}", act, methods=["POST"]),
            Mount("/static", Files(directory=STATIC)),
        ]
        self.app: ASGIApp = Starlette(routes=self.routes, exception_handlers={HTTPException: self._wrong})

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


async def _refuse(request: Request) -> Response:
    return refusal(request.headers, "A guest's link is for looking: it changes nothing.", NOT_DONE)


class PageSite:
    """All that one page server has: `app` is what uvicorn serves."""

    def __init__(self, follower: Follower, secrets: Secrets, guests: Guests, names: Sequence[str] = ()) -> None:
        self.owners = Audience(follower, secrets, VIEWERS_MAX)
        self.guests = Audience(guests.follower, None, GUEST_VIEWERS_MAX)
        self.app: ASGIApp = Guard(self.owners.app, self.guests.app, secrets, guests.links, names)

    def close(self) -> None:
        """End the streams of all viewers."""
        self.owners.viewers.close()
        self.guests.viewers.close()


# ---- the process

CONNECTIONS_MAX = VIEWERS_MAX + 500 + STRANGERS_MAX + GUEST_CONNECTIONS_MAX
"""Viewers, what they ask for besides, those who have not shown the cookie yet, and guests; more are answered 503."""
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
    guest: tuple[str, float] | None = None
    """Name of a guest's link that is made at the start, and for how long it holds (seconds)."""


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
        self._site.close()


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
    file = options.address_file
    with address, _links_beside(file) as links:
        guest_token = None if options.guest is None else links.create(*options.guest)
        if file is not None:
            write_address(file, address.url)
        async with Follower(options.uri) as follower, Follower(options.uri, as_guest=True) as guests:
            site = PageSite(follower, Secrets(address.token), Guests(guests, links), options.names)
            server = PageServer(config_of(site), site)
            told(address.said)
            if guest_token is not None:
                told(f"for guests: {address.said.replace(address.token, guest_token)}")
            await server.serve([address.socket])


@contextlib.contextmanager
def _links_beside(file: Path | None) -> Iterator[GuestLinks]:
    """Give the links beside the file with the page's address; without one they end with the page."""
    if file is not None:
        yield GuestLinks(file.parent / GUESTS_NAME)
        return
    with TemporaryDirectory(prefix="fluxsched-guests-") as own:
        yield GuestLinks(Path(own))


def config_of(site: PageSite) -> uvicorn.Config:
    """Return the configuration of uvicorn for the site."""
    return uvicorn.Config(
        site.app,
        http=partial(
            PageConnection,  # type: ignore[arg-type]
            strangers=BoundedConnections(STRANGERS_MAX),
            guests=BoundedConnections(GUEST_CONNECTIONS_MAX),
        ),
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
