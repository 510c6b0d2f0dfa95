"""Where a page for people or monitoring is served: loopback only, unless told otherwise."""

from __future__ import annotations

import errno
import ipaddress
from pathlib import Path

from fluxsched.errors import InvalidValue, Refused

PORT_MAX = 65_535
UNIX = "unix:"
OPEN = "where all could read everything"
UNENCRYPTED = (
    "where what is shown, and the token of the address, pass unencrypted: reach it by `ssh -L`, "
    "or through a proxy with TLS on this machine"
)


def parse_page_bind(text: str, *, public: bool) -> tuple[str, int] | Path:
    """Where the page for people is: host and port, or the path of `unix:PATH`. Raises as `parse_bind` does."""
    if not text.startswith(UNIX):
        return parse_bind(text, public=public, risk=UNENCRYPTED)
    path = text.removeprefix(UNIX)
    if not path or "\0" in path:
        raise InvalidValue(f"address {text!r} is not unix:PATH")
    return Path(path).absolute()


def parse_bind(text: str, *, public: bool, risk: str = OPEN) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9400` or `[::1]:9400`; port 0 is one that is free.

    Raises InvalidValue, or Refused for an address that other hosts reach, unless it may be `public`.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdecimal() and port.isascii() and int(port) <= PORT_MAX):
        raise InvalidValue(f"address {text!r} is not HOST:PORT, such as 127.0.0.1:9400")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise InvalidValue(f"address {text!r}: {host!r} is neither an IP address nor localhost") from None
    if not (address.is_loopback or public):
        raise Refused(
            f"address {text!r} can be reached from other hosts, {risk}: "
            "bind 127.0.0.1, or allow it with --public (`public = true` in the configuration)",
            errno.EPERM,
        )
    return host, int(port)
