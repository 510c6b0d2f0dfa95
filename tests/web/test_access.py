"""Who gets in, and what is shown to who does not."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.system.files import parse_page_bind
from fluxsched.web import access
from fluxsched.web.access import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    QUERY_BYTES_MAX,
    SECRET_CHARS_MAX,
    SECURITY_HEADERS,
    Secrets,
    bound,
    is_same_origin,
    read_address,
    write_address,
)
from fluxsched.web.server import CONNECTIONS_MAX

TOKEN = "t0ken-of-the-test"


async def test_the_token_is_changed_for_a_cookie_and_the_page_is_shown(page: Any) -> None:
    entered = await page.ask(f"GET /jobs?token={TOKEN}&user=ann", {"Cookie": ""})
    assert (entered.status, entered.headers["location"]) == (303, "/jobs?user=ann")
    cookie = entered.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    shown = await page.ask("GET /machine", {"Cookie": cookie.partition(";")[0]})
    assert shown.status == 200
    assert "0-3" in shown.body


async def test_coming_from_another_site_the_page_itself_goes_on(page: Any) -> None:
    entered = await page.ask(f"GET /machine?token={TOKEN}", {"Cookie": "", "Sec-Fetch-Site": "cross-site"})
    assert (entered.status, "location" in entered.headers) == (200, False)
    assert 'content="0; url=/machine"' in entered.body


@pytest.mark.parametrize(
    ("line", "cookie"),
    [
        ("GET /machine", ""),
        ("GET /machine?token=wrong", ""),
        (f"GET /machine?token={'x' * (SECRET_CHARS_MAX + 1)}", ""),
        ("GET /machine?token=%00%ff", ""),
        ("GET /data/machine", f"fluxsched={TOKEN}"),
        ("GET /events?view=machine", "fluxsched=0"),
        ("GET /static/page.js", "\xff=;;="),
        ("GET /no/such/page", ""),
        ("POST /actions/drain", ""),
    ],
)
async def test_without_them_nothing_is_shown_but_how_to_get_the_address(page: Any, line: str, cookie: str) -> None:
    refused = await page.ask(line, {"Cookie": cookie})
    assert refused.status == 403
    assert "fluxsched web" in refused.body
    assert not any(word in refused.body for word in ("0-3", "ipc://", TOKEN, page.secrets.cookie, page.secrets.csrf))
    asked_by_script = await page.ask(line, {"Cookie": cookie, "Accept": "application/json"})
    assert (asked_by_script.status, asked_by_script.headers["content-type"]) == (403, "application/json")
    assert page.follower.open == {}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.com", "x:y"])
async def test_under_the_name_of_another_site_there_is_no_page(page: Any, host: str) -> None:
    """DNS rebinding: a browser takes evil.example, which is 127.0.0.1 by now, for one site."""
    assert (await page.ask(f"GET /machine?token={TOKEN}", {"Host": host})).status == 403
    cookie = page.cookie["Cookie"].partition("=")[2]
    both = {"Host": host, "Cookie": f"fluxsched={cookie}; fluxsched-80={cookie}"}
    assert (await page.ask("GET /machine", both)).status == 403


async def test_names_that_are_allowed(make_page: Any) -> None:
    page = await make_page(names=("cluster.example",))
    cookie = page.cookie["Cookie"].partition("=")[2]
    for host in ("cluster.example", "CLUSTER.example.", "localhost", "[::1]", "10.0.0.7"):
        assert (await page.ask("GET /machine", {"Host": host, "Cookie": f"fluxsched={cookie}"})).status == 200
    assert (await page.ask("GET /machine", {"Host": ""})).status == 400  # HTTP/1.1 wants one


async def test_every_answer_has_the_headers(page: Any) -> None:
    for line in ("/machine", "/nothing", "/static/page.js", "/data/machine", "/actions/drain", "/data/none"):
        answer = await page.ask(f"GET {line}")
        assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert answer.headers["cache-control"] == ("no-cache" if "static" in line else "no-store")
        assert "server" not in answer.headers
        assert "unsafe" not in answer.headers["content-security-policy"]


async def test_a_request_is_limited(page: Any) -> None:
    many = {f"X-{n}": "x" for n in range(HEADERS_MAX)}
    assert (await page.ask("GET /machine", many)).status == 431
    assert (await page.ask(f"GET /machine?{'x' * (QUERY_BYTES_MAX + 1)}")).status == 431
    assert (await page.ask("GET /machine", {"X": "x" * HEAD_BYTES_MAX})).status in (400, 431)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/%00",
        "/static/base", "//evil.example/", "/static/....//app.py", "/templates/base.html", "/static/\\..\\app.py",
    ],
)  # fmt: skip
async def test_path_tricks_lead_nowhere(page: Any, path: str) -> None:
    answer = await page.ask(f"GET {path}")
    assert answer.status in (307, 400, 404)
    assert "Site" not in answer.body
    entered = await page.ask(f"GET {path}?token={TOKEN}", {"Cookie": ""})
    assert entered.headers.get("location", "/x")[:1] == "/"
    assert entered.headers.get("location", "/x")[:2] != "//"


def test_an_origin_is_ours_or_unknown() -> None:
    host = "127.0.0.1:9480"
    assert is_same_origin(host, None, None)
    assert is_same_origin(host, f"http://{host}", "same-origin")
    assert not is_same_origin(host, "null", None)
    assert not is_same_origin(host, "http://127.0.0.1:80", None)
    assert not is_same_origin(host, None, "same-site")
    assert not is_same_origin(host, f"http://{host}", "cross-site")


def test_secrets_are_of_no_use_for_one_another() -> None:
    secrets = Secrets(TOKEN)
    assert len({secrets.token, secrets.cookie, secrets.csrf}) == 3
    assert not secrets.is_cookie(secrets.csrf)
    assert not secrets.is_csrf("")


async def test_a_unix_socket_is_its_owners_alone(make_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "private" / "page.sock"
    page = await make_page(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (await page.ask("GET /machine")).status == 200
    with pytest.raises(Refused, match=r"is already served at"):
        bound(path, None, TOKEN)


def test_a_unix_socket_of_a_page_that_is_gone_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "d" / "page.sock"
    path.parent.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with bound(path, None, TOKEN) as address:
        assert address.url == f"http://localhost/?token={TOKEN}"
        assert f"ssh -N -L 9480:{path}" in address.said
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(Refused, match="not a socket"):
        bound(path, None, TOKEN)


def test_a_directory_that_others_may_enter_is_no_place_for_a_socket(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "open" / "file").touch()
    with pytest.raises(Refused, match="open to others"):
        bound(tmp_path / "open" / "page.sock", None, TOKEN)


def test_a_port_in_use_is_said() -> None:
    with bound(("127.0.0.1", 0), None, TOKEN) as first:
        port = first.socket.getsockname()[1]
        with pytest.raises(FluxschedError, match=rf"127.0.0.1:{port}: Address already in use; bind another port"):
            bound(("127.0.0.1", port), None, TOKEN)


def test_an_address_is_taken_again_after_an_end(tmp_path: Path) -> None:
    file = tmp_path / "web.address"
    assert read_address(file) is None
    with bound(("127.0.0.1", 0), None, TOKEN) as first:
        write_address(file, first.url)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    known = read_address(file)
    assert known is not None
    with bound(("127.0.0.1", 0), known, known.token) as second:
        assert second.url == first.url
        with bound(("127.0.0.1", 0), known, known.token) as third:
            assert third.url != first.url
    file.write_text("nonsense")
    assert read_address(file) is None


def test_where_a_page_may_be() -> None:
    assert parse_page_bind("unix:/a/b", public=False) == Path("/a/b")
    assert parse_page_bind("127.0.0.1:1", public=False) == ("127.0.0.1", 1)
    with pytest.raises(Refused, match=r"unencrypted.*ssh -L.*--public"):
        parse_page_bind("0.0.0.0:1", public=False)
    assert parse_page_bind("0.0.0.0:1", public=True) == ("0.0.0.0", 1)
    for wrong in ("unix:", "unix:\0", "nowhere"):
        with pytest.raises(InvalidValue, match="address"):
            parse_page_bind(wrong, public=True)


async def test_connections_beyond_the_limit_are_answered_503(page: Any) -> None:
    assert page.server.config.limit_concurrency == CONNECTIONS_MAX == 2300
    page.server.config.limit_concurrency = 3
    idle = [await page.connect() for _ in range(3)]
    while len(page.server.server_state.connections) < len(idle):
        await asyncio.sleep(0.001)
    refused = await page.ask("GET /machine")
    assert refused.status == 503
    assert "0-3" not in refused.body
    for _, writer in idle:
        writer.close()
    while page.server.server_state.connections:
        await asyncio.sleep(0.001)
    assert (await page.ask("GET /machine")).status == 200


async def test_strangers_take_no_place_of_a_viewer(page: Any) -> None:
    """Idle connections without the cookie, for which a viewer was answered 503."""
    assert page.server.config.backlog == access.ACCEPTED_MAX <= access.STRANGERS_MAX / 4 < CONNECTIONS_MAX
    page.server.config.http.keywords["strangers"].most = 20
    page.server.config.limit_concurrency = 30
    events, stream = await page.events()
    idle = [await page.connect() for _ in range(60)]
    refused = [await page.connect() for _ in range(60)]
    for _, writer in refused:  # these have been answered 403, and are kept for a next request
        writer.write(page.head("GET /machine", {"Host": page.host}))
    for line in ("GET /machine", f"GET /machine?token={TOKEN}"):
        assert (await page.ask(line)).status in (200, 303)
    reader, writer = await page.connect()
    for _ in range(2):  # one that has shown the cookie is kept beside any number of strangers
        writer.write(page.head("GET /data/machine", {"Host": page.host, **page.cookie}))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        idle += [await page.connect() for _ in range(60)]
    assert len(page.server.server_state.connections) <= 22
    page.follower.say("machine", {"busy": {"0": "1"}})
    while b"busy" not in await asyncio.wait_for(events.readline(), 20):
        pass
    assert await asyncio.wait_for(idle[0][0].read(), 20) == b"", "the oldest stranger was ended"
    for one in [writer, stream, *(writer for _, writer in idle + refused)]:
        one.close()
