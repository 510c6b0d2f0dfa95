"""Where the page is served: its socket, and the address that people open.

Law: a unix socket is its owner's alone, in a directory that is its owner's alone.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import stat
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from fluxsched.errors import FluxschedError, Refused
from fluxsched.runtime.system.private_files import FILE_MODE, private_directory, replace_private_text
from fluxsched.web.access.secrets import TOKEN_PARAM

BACKLOG = 1024
"""Connections that wait to be accepted."""

Where = tuple[str, int] | Path
"""Host and port, or the path of a unix socket."""


class KnownAddress(NamedTuple):
    """What a file says of the page that was served before."""

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
        """What is printed."""
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
    _remove_left(path)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.bind(str(path))
        path.chmod(FILE_MODE)  # until here the directory keeps others out
        found.listen(BACKLOG)
    except OSError as fault:
        found.close()
        raise FluxschedError(f"cannot serve the page at {path}: {fault.strerror or fault}", fault.errno) from None
    return found


def _remove_left(path: Path) -> None:
    """Remove the socket of a page that is gone. Raises Refused for one that is there, and for what is no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Refused(f"{path} is there already, and no socket: name another path", errno.EEXIST)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise Refused(f"a page is served at {path} already: name another path", errno.EADDRINUSE)
    path.unlink(missing_ok=True)


def read_address(file: Path) -> KnownAddress | None:
    """What `write_address` wrote; None if there is nothing to be read."""
    try:
        url = file.read_text().strip()
        parts = urlsplit(url)
        return KnownAddress(url, parse_qs(parts.query)[TOKEN_PARAM][0], parts.port)
    except (OSError, ValueError, KeyError):
        return None


def write_address(file: Path, url: str) -> None:
    """Keep the address for the owner alone; the file is replaced atomically."""
    replace_private_text(file, f"{url}\n")
