"""Event streams: differences only, bounded for viewers that read nothing, and limited in number."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.system.clock import SystemClock
from fluxsched.views.follower import TooManyFeeds
from fluxsched.web import access, server
from fluxsched.web.pages import PARAMS_MAX
from fluxsched.web.server import VIEWERS_MAX

BEGUN = 4
"""The first events of a stream, in any order: the instance, the whole, the figures, the notices."""
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


async def next_event(reader: asyncio.StreamReader) -> tuple[str, Any]:
    """The next event's name and body."""
    name = ""
    while True:
        line = (await asyncio.wait_for(reader.readline(), 5)).decode().strip()
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return name, json.loads(line.removeprefix("data: "))


async def test_a_viewer_gets_the_whole_then_differences_and_the_figures(page: Any) -> None:
    reader, writer = await page.events()
    first = dict([await next_event(reader) for _ in range(BEGUN)])
    assert first["whole"]["states"] == {"free": "0-3"}
    assert abs(first["whole"]["now"] - SystemClock.wall_s()) < 20
    assert first["figures"] == {"targets": {"free": 4}, "cores": 4, "cores_in_use": 1, "running": 1, "waiting": 2}
    assert first["instance"]["instance"] == "there"
    page.follower.say("machine", {"states": {"drained": "2"}})
    assert await next_event(reader) == ("change", {"states": {"drained": "2"}})
    page.follower.say("figures", {"cores": {"free": 5}})
    assert await next_event(reader) == ("figures", {"cores": 5, "cores_in_use": 0})
    writer.close()


async def test_notices_follow_whatever_the_view_is(page: Any) -> None:
    page.follower.wholes["notices"] = {"notices": [{"id": 1, "text": "<b>slow</b>"}]}
    reader, writer = await page.events()
    first = dict([await next_event(reader) for _ in range(BEGUN)])
    assert first["notices"]["notices"] == [{"id": 1, "text": "<b>slow</b>"}]
    page.follower.say("notices", {"notices": []})
    assert await next_event(reader) == ("notices", {"notices": []})
    writer.close()
    for path in ("/machine", "/when"):
        body = (await page.ask(f"GET {path}")).body
        assert re.search(r'role="status"[^>]*>\s*<p class="notice">&lt;b&gt;slow&lt;/b&gt;</p>', body), path
    page.follower.wholes["notices"] = {"refused": "unknown topic", "errnum": errno.ENOSYS}  # an older instance
    assert (await page.ask("GET /machine")).status == 200


async def test_an_instance_that_is_lost_and_comes_back_is_told_once(page: Any) -> None:
    reader, writer = await page.events()
    for _ in range(BEGUN):
        await next_event(reader)
    for topic in ("machine", "figures"):
        page.follower.say(topic, {"instance": "lost", "why": "gone"}, "instance")
    name, told = await next_event(reader)
    assert (name, told["instance"], told["why"]) == ("instance", "lost", "gone")
    page.follower.say("machine", {"states": {}}, "whole")
    assert (await next_event(reader))[0] == "whole"
    assert page.site.owners.wire.about.lost == "gone"
    writer.close()


async def test_a_page_without_its_instance_says_so_and_looks_for_it(page: Any) -> None:
    page.follower.info = {"instance": "lost", "why": "no instance is running"}
    shown = await page.ask("GET /machine")
    assert (shown.status, shown.headers["refresh"]) == (503, "3")
    assert "no instance is running" in shown.body
    assert (await page.ask("GET /data/machine", {"Accept": "application/json"})).status == 503


async def test_a_filter_that_is_none_and_a_view_that_there_is_not(page: Any) -> None:
    terms = "&".join(f"x{n}=1" for n in range(PARAMS_MAX + 1))
    for query, said in (("view=none", "no view"), (f"view=machine&{terms}", f"at most {PARAMS_MAX} terms")):
        refused = await page.ask(f"GET /events?{query}", {"Accept": "application/json"})
        assert refused.status == 400
        assert said in refused.body


async def test_a_filter_above_a_limit_is_not_taken_for_a_viewer_too_many(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(topic: str, params: Any = None) -> Any:
        raise LimitExceeded("view jobs: max_entries 900 is above the limit of 200")

    monkeypatch.setattr(page.follower, "subscribe", refuse)
    refused = await page.ask("GET /events?view=jobs&max_entries=900", {"Accept": "application/json"})
    assert (refused.status, json.loads(refused.body)["error"][:9]) == (400, "view jobs")


@pytest.mark.parametrize(("errnum", "status"), [(errno.ENOENT, 404), (errno.EPERM, 403), (errno.EINVAL, 400)])
async def test_what_is_not_there_or_not_for_this_user_has_its_status(page: Any, errnum: int, status: int) -> None:
    page.follower.wholes["job"] = {"refused": "no such job: ƒ2", "errnum": errnum}
    for path in ("/jobs/%C6%922", "/data/job?id=%C6%922"):
        refused = await page.ask(f"GET {path}")
        assert refused.status == status
        assert "no such job: ƒ2" in refused.body


async def test_a_view_too_many_is_to_be_asked_for_later(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise TooManyFeeds("500 different views are followed, the limit")

    monkeypatch.setattr(page.follower, "subscribe", refuse)
    for path in ("/jobs", "/data/jobs", "/events?view=jobs"):
        assert (await page.ask(f"GET {path}")).status == 503


async def test_a_fault_of_a_view_is_told_and_not_asked_for_again(page: Any) -> None:
    reader, writer = await page.events()
    for _ in range(BEGUN):
        await next_event(reader)
    viewer = next(viewer for viewer, topic in page.follower.open.items() if topic == "machine")
    viewer.fail(InvalidValue("no"))
    assert await next_event(reader) == ("refused", {"error": "no"})
    writer.close()


async def test_a_viewer_that_leaves_is_forgotten(page: Any, eventually: Eventually) -> None:
    _, writer = await page.events()
    assert page.site.owners.viewers.count == 1
    writer.close()
    await eventually(lambda: page.site.owners.viewers.count == 0 and not page.follower.open)


async def test_a_viewer_of_figures_alone_leaves_nothing_behind(page: Any, eventually: Eventually) -> None:
    _, writer = await page.events("view=figures")
    assert list(page.follower.open.values()) == ["figures", "notices"]
    writer.close()
    await eventually(lambda: page.site.owners.viewers.count == 0 and not page.follower.open)


async def test_a_fault_of_ours_in_a_view_ends_its_streams_and_is_logged(
    page: Any, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await page.events()
    viewer = next(viewer for viewer, topic in page.follower.open.items() if topic == "machine")
    viewer.fail(ZeroDivisionError("a bug"))
    await asyncio.wait_for(reader.read(), 20)
    await eventually(lambda: page.site.owners.viewers.count == 0 and not page.follower.open)
    assert "a bug" in caplog.text
    writer.close()


async def test_silence_is_filled(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.02)
    reader, writer = await page.events()
    await asyncio.wait_for(reader.readuntil(b":\n\n"), 20)
    writer.close()


async def test_viewers_are_limited_and_the_next_is_told(page: Any, eventually: Eventually) -> None:
    assert page.site.owners.viewers.most == VIEWERS_MAX == 1000
    page.site.owners.viewers.most = 5
    viewers = [await page.events() for _ in range(5)]
    refused = await page.ask("GET /events?view=machine", {"Accept": "application/json"})
    assert (refused.status, json.loads(refused.body)["error"][:9]) == (503, "5 viewers")
    assert (await page.ask("GET /machine")).status == 200
    viewers.pop()[1].close()
    await eventually(lambda: page.site.owners.viewers.count == 4)
    viewers.append(await page.events())
    for _, writer in viewers:
        writer.close()


@pytest.mark.slow
async def test_a_thousand_viewers_share_the_bytes(page: Any, eventually: Eventually) -> None:
    viewers = [socket.create_connection(page.where) for _ in range(VIEWERS_MAX)]
    for viewer in viewers:
        viewer.sendall(page.head("GET /events?view=machine", {"Host": page.host, **page.cookie}))
    await eventually(lambda: page.site.owners.viewers.count == VIEWERS_MAX)
    assert (await page.ask("GET /events?view=machine")).status == 503
    page.follower.say("machine", {"states": {"drained": "2"}})
    await eventually(lambda: all(b'drained":"2"' in viewer.recv(65_536, socket.MSG_PEEK) for viewer in viewers[-9:]))
    for viewer in viewers:
        viewer.close()
    await eventually(lambda: page.site.owners.viewers.count == 0)


async def test_a_viewer_that_reads_nothing_costs_one_merged_message_and_is_dropped(
    page: Any, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(access, "UNREAD_S", 0.2)
    silent = socket.socket()
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    silent.connect(page.where)
    silent.sendall(page.head("GET /events?view=machine", {"Host": page.host, **page.cookie}))
    await eventually(lambda: page.site.owners.viewers.count == 1)
    for number in range(200):
        page.follower.say("machine", {"drained": [{"reason": f"{number} " + "x" * 50_000}]})
        await asyncio.sleep(0)
        sizes = [connection.transport.get_write_buffer_size() for connection in page.server.server_state.connections]
        assert max(sizes, default=0) < 2 * access.BUFFER_BYTES + 60_000
    await eventually(lambda: page.site.owners.viewers.count == 0)
    silent.close()


async def test_a_request_that_arrives_slowly_is_ended(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "HEAD_S", 0.1)
    for beginning in (b"", b"GET /mach"):
        reader, writer = await page.connect()
        writer.write(beginning)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
    reader, writer = await page.connect()
    writer.write(page.head("GET /machine", {"Host": page.host, **page.cookie}))  # a whole one, then part of the next
    await reader.readuntil(b"</html>")
    writer.write(b"GET /")
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


async def test_the_end_of_the_server_ends_the_streams(page: Any) -> None:
    reader, writer = await page.events()
    page.server.end()
    await asyncio.wait_for(reader.read(), 20)
    writer.close()


async def test_head_of_an_event_stream_has_no_body(page: Any) -> None:
    answer = await page.ask("HEAD /events?view=machine")
    assert (answer.status, answer.body) == (200, "")


async def test_what_the_instance_refuses_is_said(page: Any) -> None:
    page.follower.wholes["figures"] = {"refused": "Request requires admin credentials"}
    assert (await page.ask("GET /machine")).status == 200
    page.follower.wholes["machine"] = {"refused": "not for <b>guests</b>"}
    shown = await page.ask("GET /machine")
    assert shown.status == 400
    assert "not for &lt;b&gt;guests" in shown.body
