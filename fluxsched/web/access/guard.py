"""What every request passes before it reaches the page: the host's name, the token or cookie, the origin of changes.

Law: without the right cookie nothing is answered but how to get the address; every answer carries the headers.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fluxsched.web.access.connections import ADMITTED
from fluxsched.web.access.secrets import TOKEN_PARAM, Secrets, cookie_name, cookie_of, is_known_host, is_same_origin

HEADERS_MAX = 64
"""Headers of a request; browsers send some twenty."""
HEAD_BYTES_MAX = 16_384
"""Of all headers."""
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
"""Methods that change nothing."""
_FORBIDDEN = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>fluxsched: {title}</title>"
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
    """Stands before the application `app`."""

    def __init__(self, app: ASGIApp, secrets: Secrets, names: Sequence[str]) -> None:
        """`names`: hosts other than localhost and IP addresses as which the page may be asked for."""
        self._app, self._secrets, self._names = app, secrets, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
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

        answer = self._checked(scope)
        await (self._app if answer is None else answer)(scope, receive, send_guarded)

    def _checked(self, scope: Scope) -> Response | None:
        """What is answered at once; None for a request that may pass."""
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
            if not self._secrets.is_token(tokens[0]):
                words = "The token of this address is wrong, or of a page that was served before."
                return refusal(headers, words, NOT_SIGNED_IN)
            left = urlencode([(name, value) for name, value in pairs if name != TOKEN_PARAM])
            return self._enter(headers, hosts[0], _local_path(scope) + (f"?{left}" if left else ""))
        if not self._secrets.is_cookie(cookie_of(headers.get("cookie", ""), cookie_name(hosts[0]))):
            return refusal(headers, "The page shows its instance only to those who have its address.", NOT_SIGNED_IN)
        scope[ADMITTED]()
        if scope["method"] not in SAFE and not is_same_origin(
            hosts[0], headers.get("origin"), headers.get("sec-fetch-site")
        ):
            return refusal(headers, "This change was asked for by another site, so nothing was done.", NOT_DONE)
        return None

    def _enter(self, headers: Headers, host: str, path: str) -> Response:
        """Set the cookie and go on to the address without the token."""
        response: Response = RedirectResponse(path, 303)
        if headers.get("sec-fetch-site") == "cross-site":  # after a redirect the cookie would count as another site's
            response = HTMLResponse(_ENTER.format(path=path.replace("&", "&amp;")))
        response.set_cookie(cookie_name(host), self._secrets.cookie, httponly=True, samesite="strict")
        return response


def _local_path(scope: Scope) -> str:
    """The path as it was sent, of this host for certain: `//other.example` would be another one."""
    path = bytes(scope.get("raw_path") or b"/").decode("latin-1")
    safe = path.isascii() and path.isprintable() and not set(path) & set("\"'<>\\ ")
    return "/" + path.lstrip("/") if safe else "/"


def refusal(headers: Headers, words: str, title: str, status: int = 403) -> Response:
    """A page, or JSON for a script, that says why and shows nothing else."""
    if wants_json(headers):
        return JSONResponse({"error": words}, status)
    remedy = _SIGN_IN if title == NOT_SIGNED_IN else ""
    return HTMLResponse(_FORBIDDEN.format(title=title, words=words, remedy=remedy), status)


def wants_json(headers: Headers) -> bool:
    """Whether a script asks, and not a person."""
    accept = headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept
