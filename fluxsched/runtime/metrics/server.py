"""HTTP for one page: `GET /metrics`.

Law: a client, whatever it sends or does not read, holds one of CONNECTIONS_MAX places for REQUEST_S at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from fluxsched.errors import FluxschedError
from fluxsched.runtime.metrics.text import CONTENT_TYPE

CONNECTIONS_MAX = 64
"""Connections at once: Prometheus has one. More are answered 503."""
HEAD_BYTES_MAX = 8192
"""Of a request; what is longer is answered 431."""
REQUEST_S = 5.0
"""For how long a connection may last (seconds)."""

Text = Callable[[], Awaitable[str]]
_STATUS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
           503: "Service Unavailable"}  # fmt: skip


class MetricsServer:
    """Serves `text()` at an address."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self.open = 0
        """Connections at present."""
        self._server: asyncio.Server | None = None
        self.refused = 0
        """Connections that were one too many."""

    async def start(self, host: str, port: int) -> str:
        """Listen; the page's URL. Raises FluxschedError for an address that cannot be had."""
        try:
            self._server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES_MAX)
        except OSError as exc:
            reason = exc.strerror or str(exc)
            raise FluxschedError(f"cannot serve metrics at {host}:{port}: {reason}; bind another port") from exc
        where = self._server.sockets[0].getsockname()
        return f"http://{f'[{host}]' if ':' in host else host}:{where[1]}/metrics"

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            if self.open > CONNECTIONS_MAX:
                self.refused += 1
                writer.write(_page(503, f"{CONNECTIONS_MAX} connections are open, which is the limit\n"))
            else:
                async with asyncio.timeout(REQUEST_S):
                    writer.write(await self._answer(reader))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self.open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), REQUEST_S)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _page(431, f"a request has {HEAD_BYTES_MAX} bytes at most\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        method, path = words[0], words[1].partition("?")[0] if len(words) > 1 else ""
        if method not in ("GET", "HEAD"):
            return _page(405, "only GET and HEAD\n")
        if path != "/metrics":
            return _page(404, "there is only /metrics\n")
        page = _page(200, await self._text())
        return page if method == "GET" else page.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _page(status: int, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
