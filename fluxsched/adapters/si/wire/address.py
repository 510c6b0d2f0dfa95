"""Address on which a service listens: `unix:PATH`, or `HOST:PORT`."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from fluxsched.core.jsontext import shown
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.system.files import base_directory

SOCKET_PATH_BYTES_MAX: Final = 107
"""Maximum length of the path of a socket on Linux (sun_path, less the final NUL)."""

PORT_MAX: Final = 65535
_UNIX: Final = "unix:"
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/\s\0]+):([0-9]{1,5})")


class Address(NamedTuple):
    """A socket's path, or a host and a port; port 0 lets the system choose one."""

    path: Path | None = None
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        """As people write it, and as gRPC reads it."""
        return f"{self.host}:{self.port}" if self.path is None else f"{_UNIX}{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Return whether only processes of this machine can reach the address over TCP."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


def default_address() -> Address:
    """A socket in a directory of this user's own."""
    return Address(path=base_directory() / f"fluxsched_si_{os.getuid()}" / "socket")


def parse_address(text: str | None) -> Address:
    """The address that `text` is, or the default one. Raises InvalidValue."""
    if text is None:
        return default_address()
    if text.startswith(_UNIX):
        return Address(path=_socket_path(text.removeprefix(_UNIX)))
    found = _HOST_PORT.fullmatch(text)
    if found is None:
        raise InvalidValue(f"{shown(text)} is not an address: write unix:PATH or HOST:PORT")
    if int(found[2]) > PORT_MAX:
        raise LimitExceeded(f"port {found[2]} is above the limit of {PORT_MAX}")
    return Address(host=found[1], port=int(found[2]))


def _socket_path(text: str) -> Path:
    if not text or "\0" in text:
        raise InvalidValue(f"unix:{shown(text)} has no file path: write unix:PATH")
    path = Path(os.path.abspath(text))
    size = len(bytes(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise LimitExceeded(
            f"the socket's path {path} has {size} bytes, the limit of the system is {SOCKET_PATH_BYTES_MAX}: "
            "name a shorter one"
        )
    return path
