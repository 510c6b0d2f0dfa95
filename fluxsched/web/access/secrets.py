"""Who may see the page: the secret of its address, what is derived from it, and the names that it goes by.

Law: secrets are compared in constant time, and nothing but the printed address has the token itself: the cookie and the
anti-forgery token are derived from it, one way. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

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

    def is_token(self, text: str) -> bool:
        """Whether this is what the printed address has."""
        return _equal(text, self.token)

    def is_cookie(self, text: str) -> bool:
        """Whether this is what the page has set."""
        return _equal(text, self.cookie)

    def is_csrf(self, text: str) -> bool:
        """Whether this is what our own forms have."""
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
    """Whether a Host header names this page: an IP address, localhost or one of `names`.

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


def cookie_of(header: str, name: str) -> str:
    """The cookie of that name in a Cookie header; empty if there is none."""
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def is_same_origin(host: str, origin: str | None, fetch_site: str | None) -> bool:
    """Whether a request that changes something comes from a page of ours, as far as the browser says.

    A client that is no browser says nothing: it needs the anti-forgery token all the same.
    """
    if fetch_site is not None and fetch_site != "same-origin":
        return False
    return origin is None or origin.partition("://")[2].lower() == host.lower()
