"""Access of browsers to the page: secrets, socket and address, limits of connections, and the guard of requests.

Law: secrets are compared in constant time, and nothing but the printed address has the token itself: the cookie and the
anti-forgery token are derived from it, one way. Without the right cookie nothing is answered but how to get the
address; every answer carries the headers. A client, whatever it sends or does not read, costs a bounded time and a
bounded buffer; without the cookie it costs no viewer its place. A unix socket is its owner's alone, in a directory that
is its owner's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fluxsched.errors import FluxschedError
from fluxsched.system.files import FILE_MODE, private_directory, remove_dead_socket, replace_private_text
from fluxsched.web.guests import GuestLink, GuestLinks

TOKEN_PARAM = "token"
"""The part of the printed address that has the token."""
COOKIE_PREFIX = "fluxsched"
SECRET_CHARS_MAX = 128
"""Of a token or cookie that is compared at all."""


class Secrets:
    """The token of a page, its cookie and its anti-forgery token."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.cookie = self._derived("cookie")
        self.csrf = self._derived("csrf")

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()

    def guest_cookie(self, name: str, link: GuestLink) -> str:
        """Return the cookie for which the token of a guest's link is exchanged."""
        return f"{name}.{self._derived(f'guest {link.digest}')}"

    def is_token(self, text: str) -> bool:
        """Return whether this is the token of the printed address."""
        return _equal(text, self.token)

    def is_cookie(self, text: str) -> bool:
        """Return whether this is the cookie that the page has set."""
        return _equal(text, self.cookie)

    def is_csrf(self, text: str) -> bool:
        """Return whether this is the anti-forgery token of our own forms."""
        return _equal(text, self.csrf)


def _equal(text: str, secret: str) -> bool:
    return len(text) <= SECRET_CHARS_MAX and hmac.compare_digest(text.encode(), secret.encode())


def split_host(host: str) -> tuple[str, str]:
    """Name and port of a Host header, in lower case and without brackets; the port may be empty."""
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host, ""
    return name.removeprefix("[").removesuffix("]").rstrip(".").lower(), port


def is_known_host(host: str, names: Iterable[str]) -> bool:
    """Return whether a Host header names this page: an IP address, localhost or one of `names`.

    Another site's name that resolves to this machine (DNS rebinding) is none of these: its script would be of the same
    origin as the page.
    """
    name, port = split_host(host)
    if port and not (port.isascii() and port.isdecimal()):
        return False
    if name == "localhost" or name in {each.rstrip(".").lower() for each in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def cookie_name(host: str) -> str:
    """One for each port: browsers send a host's cookies to all of its ports, where other pages may be."""
    port = split_host(host)[1]
    return f"{COOKIE_PREFIX}-{port}" if port else COOKIE_PREFIX


def guest_cookie_name(host: str) -> str:
    """Another than the owner's, who stays the owner when opening a guests' link."""
    return f"{cookie_name(host)}-guest"


def cookie_of(header: str, name: str) -> str:
    """Return the cookie of that name in a Cookie header; empty if there is none."""
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def is_same_origin(host: str, origin: str | None, fetch_site: str | None) -> bool:
    """Return whether a request that changes something is from a page of ours, as far as the browser reports it.

    A client that is no browser reports nothing: it needs the anti-forgery token all the same.
    """
    if fetch_site is not None and fetch_site != "same-origin":
        return False
    return origin is None or origin.partition("://")[2].lower() == host.lower()


# ---- the address of the page

BACKLOG = 1024
"""Connections that wait to be accepted."""

Where = tuple[str, int] | Path
"""Host and port, or the path of a unix socket."""


class KnownAddress(NamedTuple):
    """Contents of a file about the page that was served before."""

    url: str
    token: str
    port: int | None


class PageAddress:
    """A socket that listens; close it."""

    def __init__(self, bound: socket.socket, where: Where, token: str) -> None:
        self.socket, self.token = bound, token
        self._path = where if isinstance(where, Path) else None
        if isinstance(where, Path):
            self.url = f"http://localhost/?{TOKEN_PARAM}={token}"
        else:
            host = f"[{where[0]}]" if ":" in where[0] else where[0]
            self.url = f"http://{host}:{bound.getsockname()[1]}/?{TOKEN_PARAM}={token}"

    @property
    def said(self) -> str:
        """Return the address as it is printed."""
        if self._path is None:
            return self.url
        forwarded = self.url.replace("localhost", "localhost:9480", 1)
        return f"{forwarded} after: ssh -N -L 9480:{self._path} {socket.gethostname()}"

    def __enter__(self) -> PageAddress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def bound(where: Where, known: KnownAddress | None, token: str) -> PageAddress:
    """Listen there; at a free port, if any will do, at the one that is known. Raises FluxschedError."""
    if isinstance(where, Path):
        return PageAddress(_unix(where), where, token)
    if where[1] == 0 and known is not None and known.port is not None:
        with contextlib.suppress(FluxschedError):
            return PageAddress(_tcp(where[0], known.port), where, token)
    return PageAddress(_tcp(*where), where, token)


def _tcp(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError as fault:
        found.close()
        why = fault.strerror or str(fault)
        raise FluxschedError(f"cannot serve the page at {host}:{port}: {why}; bind another port", fault.errno) from None
    return found


def _unix(path: Path) -> socket.socket:
    private_directory(path.parent, "directory of the page's socket", lambda directory: False)
    remove_dead_socket(path, f"a page is already served at {path}: name another path")
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(str(path))
        path.chmod(FILE_MODE)  # until here the directory keeps others out
        found.listen(BACKLOG)
    except OSError as fault:
        found.close()
        raise FluxschedError(f"cannot serve the page at {path}: {fault.strerror or fault}", fault.errno) from None
    return found


def read_address(file: Path) -> KnownAddress | None:
    """Return the address that `write_address` wrote; None if none can be read."""
    try:
        url = file.read_text().strip()
        parts = urlsplit(url)
        return KnownAddress(url, parse_qs(parts.query)[TOKEN_PARAM][0], parts.port)
    except (OSError, ValueError, KeyError):
        return None


def write_address(file: Path, url: str) -> None:
    """Keep the address for the owner alone; the file is replaced atomically."""
    replace_private_text(file, f"{url}\n")


# ---- limits of connections

ADMITTED = "fluxsched.admitted"
"""The key of a scope whose value is to be called once its request had a cookie, with whether it is a guest's."""
HOLDS = "fluxsched.holds"
"""The key of a scope whose value says whether the cookie of its request still opens the page."""
STRANGERS_MAX = 400
"""Connections on which no request with the cookie has arrived; of more, the oldest is ended."""
GUEST_CONNECTIONS_MAX = 400
"""Connections of guests; of more, the oldest is ended."""
ACCEPTED_MAX = STRANGERS_MAX // 4
"""Connections accepted in one turn of the loop: the request of a viewer among them is read before so many others have
come that it would be ended as a stranger.
"""

HEAD_S = 10.0
"""For how long a request may take to arrive up to the end of its headers, or a connection may be idle before its first
one (seconds).
"""
UNREAD_S = 30.0
"""For how long a client may read nothing of what waits for it (seconds)."""
BUFFER_BYTES = 65_536
"""Number of bytes that wait for one client; more is not written before it has read."""


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


class BoundedConnections:
    """Connections of strangers, or of guests: with more than `most`, the oldest one is ended."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._connections: dict[PageConnection, None] = {}

    def add(self, connection: PageConnection) -> None:
        """Take one more, and end the oldest where there are too many: viewers come in however many strangers wait."""
        self._connections[connection] = None
        if len(self._connections) > self.most:
            oldest = next(iter(self._connections))
            self.discard(oldest)
            oldest.abort()

    def discard(self, connection: PageConnection) -> None:
        """Forget one that has ended, or is of another kind."""
        self._connections.pop(connection, None)


class PageConnection(H11Protocol):
    """One connection; uvicorn makes one for each."""

    def __init__(self, *args: Any, strangers: BoundedConnections, guests: BoundedConnections, **more: Any) -> None:
        super().__init__(*args, **more)
        self._strangers, self._guests = strangers, guests
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

    def _admitted(self, is_guest: bool) -> None:
        self._strangers.discard(self)
        if is_guest:
            self._guests.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._strangers.add(self)
        self._head.begin(HEAD_S)

    def data_received(self, data: bytes) -> None:
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
        super().pause_writing()
        self._reading.begin(UNREAD_S)

    def resume_writing(self) -> None:
        self._reading.call_off()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._strangers.discard(self)
        self._guests.discard(self)
        self._head.call_off()
        self._reading.call_off()
        super().connection_lost(exc)


# ---- the guard of requests

HEADERS_MAX = 64
"""Headers of a request; browsers send some twenty."""
HEAD_BYTES_MAX = 16_384
"""Maximum number of bytes of all headers."""
QUERY_BYTES_MAX = 4096
"""Of an address after its question mark."""
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send `Origin: null` with our own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
SAFE = ("GET", "HEAD")
"""Methods of HTTP that change nothing."""
_FORBIDDEN = (
    "<!doctype html><html lang=en><meta charset=utf-8><meta name=color-scheme content='light dark'>"
    "<title>fluxsched: {title}</title>"
    "<h1>{title}</h1><p>{words}{remedy}</html>"
)
NOT_SIGNED_IN, NOT_DONE, REFUSED = "Not signed in", "Not done", "Request refused"
_SIGN_IN = (
    "<p>Open the address that <code>fluxsched web</code> printed, with its token. <code>fluxsched web --address</code> "
    "prints the one of a page that <code>fluxsched start --web</code> serves."
)
_ENTER = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>fluxsched</title>"
    '<meta http-equiv=refresh content="0; url={path}"><a href="{path}">Continue</a></html>'
)


class Guard:
    """Stands before the application `app`, and that for the holders of guests' links."""

    def __init__(
        self, app: ASGIApp, guest_app: ASGIApp, secrets: Secrets, links: GuestLinks, names: Sequence[str]
    ) -> None:
        """`names`: hosts other than localhost and IP addresses as which the page may be asked for."""
        self._app, self._guest_app, self._secrets, self._links, self._names = app, guest_app, secrets, links, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._chosen(scope)(scope, receive, send_guarded)

    def _chosen(self, scope: Scope) -> ASGIApp:
        """Return the application for whom the cookie names, or the response to a request that is answered at once."""
        headers, query = Headers(scope=scope), bytes(scope["query_string"])
        size = sum([len(name) + len(value) for name, value in headers.raw])
        if len(headers) > HEADERS_MAX or size > HEAD_BYTES_MAX or len(query) > QUERY_BYTES_MAX:
            limits = f"{HEADERS_MAX} headers of {HEAD_BYTES_MAX} bytes, {QUERY_BYTES_MAX} bytes after the question mark"
            return refusal(headers, f"A request has at most {limits}.", REFUSED, 431)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_known_host(hosts[0], self._names):
            words = "The page does not go by this name. Use an IP address or localhost, or start it with --name NAME."
            return refusal(headers, words, REFUSED)
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in pairs if name == TOKEN_PARAM]
        if tokens and scope["method"] in SAFE:
            if (entry := self._entry(hosts[0], tokens[0])) is None:
                words = "The token of this address is wrong, of a guest's link that has ended, or of another page."
                return refusal(headers, words, NOT_SIGNED_IN)
            left = urlencode([(name, value) for name, value in pairs if name != TOKEN_PARAM])
            return _enter(headers, _local_path(scope) + (f"?{left}" if left else ""), *entry)
        cookies = headers.get("cookie", "")
        is_owner = self._secrets.is_cookie(cookie_of(cookies, cookie_name(hosts[0])))
        shown = cookie_of(cookies, guest_cookie_name(hosts[0]))
        if not is_owner and not self._is_guest(shown):
            return refusal(headers, "The page shows its instance only to those who have its address.", NOT_SIGNED_IN)
        scope[HOLDS] = lambda: is_owner or self._is_guest(shown)
        scope[ADMITTED](not is_owner)
        if scope["method"] not in SAFE and not is_same_origin(
            hosts[0], headers.get("origin"), headers.get("sec-fetch-site")
        ):
            return refusal(headers, "This change was asked for by another site, so nothing was done.", NOT_DONE)
        return self._app if is_owner else self._guest_app

    def _entry(self, host: str, token: str) -> tuple[str, str] | None:
        """Return name and value of the cookie for a token; None if it opens nothing."""
        if self._secrets.is_token(token):
            return cookie_name(host), self._secrets.cookie
        name, _, secret = token.partition(".")
        link = self._links.find(name)
        if link is None or not link.is_opened_by(secret):
            return None
        return guest_cookie_name(host), self._secrets.guest_cookie(name, link)

    def _is_guest(self, cookie: str) -> bool:
        """Return whether a cookie is that of a guest's link that holds."""
        name = cookie.partition(".")[0]
        link = self._links.find(name)
        return link is not None and _equal(cookie, self._secrets.guest_cookie(name, link))


def _enter(headers: Headers, path: str, name: str, cookie: str) -> Response:
    """Set the cookie and go on to the address without the token."""
    response: Response = RedirectResponse(path, 303)
    if headers.get("sec-fetch-site") == "cross-site":  # after a redirect the cookie would count as another site's
        response = HTMLResponse(_ENTER.format(path=path.replace("&", "&amp;")))
    response.set_cookie(name, cookie, httponly=True, samesite="strict")
    return response


def _local_path(scope: Scope) -> str:
    """Return the path as it was sent, of this host for certain: `//other.example` would be another one."""
    path = bytes(scope.get("raw_path") or b"/").decode("latin-1")
    safe = path.isascii() and path.isprintable() and not set(path) & set("\"'<>\\ ")
    return "/" + path.lstrip("/") if safe else "/"


def refusal(headers: Headers, words: str, title: str, status: int = 403) -> Response:
    """Return a page, or JSON for a script, that says why and shows nothing else."""
    if wants_json(headers):
        return JSONResponse({"error": words}, status)
    remedy = _SIGN_IN if title == NOT_SIGNED_IN else ""
    return HTMLResponse(_FORBIDDEN.format(title=title, words=words, remedy=remedy), status)


def wants_json(headers: Headers) -> bool:
    """Return whether the client is a script, not a person."""
    accept = headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept
