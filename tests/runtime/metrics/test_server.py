"""The page is served to what asks for it, at a bounded cost to all that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.runtime.metrics import server as module
from fluxsched.runtime.metrics.server import CONNECTIONS_MAX, HEAD_BYTES_MAX, MetricsServer
from fluxsched.runtime.system.http_address import PORT_MAX, parse_bind

PAGE = "fluxsched_up 1\n"
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


async def page() -> str:
    return PAGE


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    server = MetricsServer(page)
    yield server
    await server.close()


async def port_of(server: MetricsServer) -> int:
    url = await server.start("127.0.0.1", 0)
    return int(url.removeprefix("http://127.0.0.1:").removesuffix("/metrics"))


async def asked(port: int, request: bytes) -> tuple[int, bytes]:
    """Status and body of the answer, read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET /metrics HTTP/1.1", 200, PAGE),
        ("GET /metrics?x=1 HTTP/1.0", 200, PAGE),
        ("HEAD /metrics HTTP/1.1", 200, ""),
        ("GET / HTTP/1.1", 404, "there is only /metrics\n"),
        ("GET /metrics/../../etc/passwd HTTP/1.1", 404, "there is only /metrics\n"),
        ("POST /metrics HTTP/1.1", 405, "only GET and HEAD\n"),
        ("GET", 404, "there is only /metrics\n"),
        ("\xff\0", 405, "only GET and HEAD\n"),
        ("GET /metrics" + "x" * HEAD_BYTES_MAX, 431, f"a request has {HEAD_BYTES_MAX} bytes at most\n"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_requests(server: MetricsServer, request_line: str, status: int, body: str) -> None:
    port = await port_of(server)
    assert await asked(port, f"{request_line}\r\nHost: x\r\n\r\n".encode("latin-1")) == (status, body.encode())


async def test_connections_are_limited_and_places_come_free(server: MetricsServer, eventually: Eventually) -> None:
    port = await port_of(server)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
    status, body = await asked(port, b"")
    assert (status, body) == (503, f"{CONNECTIONS_MAX} connections are open, which is the limit\n".encode())
    assert server.refused == 1
    for _, writer in silent:
        writer.close()
    await eventually(lambda: server.open == 0)
    assert (await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 200


async def test_a_silent_client_loses_its_place(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.05)
    port = await port_of(server)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics")
    assert await reader.read() == b""
    writer.close()


async def test_a_port_in_use_is_said(server: MetricsServer) -> None:
    port = await port_of(server)
    with pytest.raises(FluxschedError, match=f"cannot serve metrics at 127.0.0.1:{port}: .*bind another port"):
        await MetricsServer(page).start("127.0.0.1", port)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("127.0.0.1:9400", ("127.0.0.1", 9400)),
        ("localhost:0", ("127.0.0.1", 0)),
        ("[::1]:9400", ("::1", 9400)),
        (f"127.9.9.9:{PORT_MAX}", ("127.9.9.9", PORT_MAX)),
    ],
)
def test_addresses(text: str, want: tuple[str, int]) -> None:
    assert parse_bind(text, public=False) == want


@pytest.mark.parametrize("text", ["", "9400", ":9400", "127.0.0.1", f"127.0.0.1:{PORT_MAX + 1}", "host:1", "::1:٣"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="address"):
        parse_bind(text, public=True)


@pytest.mark.parametrize("text", ["0.0.0.0:9400", "[::]:9400", "192.168.0.1:9400"])
def test_an_address_that_others_reach_must_be_allowed(text: str) -> None:
    with pytest.raises(Refused, match=r"can be reached from other hosts.*--public"):
        parse_bind(text, public=False)
    assert parse_bind(text, public=True)[1] == 9400
