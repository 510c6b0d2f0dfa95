"""Holders of guests' links: they see another follower's views, change nothing, and get in while their link holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.web import guests, server
from fluxsched.web.guests import GUEST_NAME_CHARS_MAX, LINK_BYTES_MAX, LINKS_MAX, GuestLinks, parse_hold
from fluxsched.web.pages import ACTION_TOPICS
from fluxsched.web.server import GUEST_CONNECTIONS_MAX, GUEST_VIEWERS_MAX


async def test_a_link_is_changed_for_a_cookie_that_shows_what_guests_see(page: Any) -> None:
    page.guests.wholes["machine"]["states"] = {"free": "7-9"}
    token = page.links.create("ann", 60.0)
    entered = await page.ask(f"GET /machine?token={token}", {"Cookie": ""})
    assert (entered.status, entered.headers["location"]) == (303, "/machine")
    cookie = entered.headers["set-cookie"]
    assert token.partition(".")[2] not in cookie
    assert "HttpOnly" in cookie
    shown = await page.ask("GET /machine", {"Cookie": cookie.partition(";")[0]})
    assert shown.status == 200
    assert "7-9" in shown.body
    assert "0-3" not in shown.body
    assert not any(secret in shown.body for secret in (page.secrets.csrf, page.secrets.cookie, "/actions/"))
    assert page.follower.open == {}


async def test_an_owner_who_opens_a_guests_link_stays_the_owner(page: Any) -> None:
    both = {"Cookie": f"{page.guest_cookie()['Cookie']}; {page.cookie['Cookie']}"}
    assert page.secrets.csrf in (await page.ask("GET /machine", both)).body


async def test_no_route_shows_a_guest_the_views_of_the_owner(page: Any) -> None:
    """Each route with each method; what is not for guests is refused by the instance, which the guests' views ask."""
    cookie, methods = page.guest_cookie(), ("GET", "HEAD", "POST", "PUT", "DELETE")
    page.follower.wholes = page.follower.answers = None  # nobody may ask
    paths = [route.path.format(id="f1", view="machine", name="cancel") for route in page.site.guests.routes]
    assert [route.path for route in page.site.owners.routes] == [route.path for route in page.site.guests.routes]
    for method, path in [(method, path) for path in paths if path != "/events" for method in methods]:
        answer = await page.ask(f"{method} {path}", {**cookie, "Content-Length": "0"})
        assert answer.status != 500, (method, path)
        assert method in ("GET", "HEAD") or answer.status in (307, 403, 405), (method, path)
    reader, stream = await page.events(cookie=cookie)
    assert b"0-3" in await reader.readuntil(b"event: whole\ndata: " + b"") + await reader.readline()
    stream.close()
    assert {topic for topic, _ in page.guests.asked} <= {"job-manager.output"}


@pytest.mark.parametrize("name", ACTION_TOPICS)
async def test_a_guest_changes_nothing(page: Any, name: str) -> None:
    """Not even with the anti-forgery token of the owner."""
    fields = {"csrf": page.secrets.csrf, "confirmed": "yes", "targets": "0", "ids": "1", "urgency": "0", "type": "x"}
    for csrf in (page.secrets.csrf, ""):
        refused = await page.post(f"/actions/{name}", {**fields, "csrf": csrf}, page.guest_cookie(f"ann{len(csrf)}"))
        assert refused.status == 403
        assert "changes nothing" in refused.body
    assert page.follower.asked == page.guests.asked == []


@pytest.mark.parametrize("cookie", ["ann.0", "ann.", ".", "ann", "bob.0", "../ann.0", "ann.\xff"])
async def test_a_cookie_that_is_none_opens_nothing(page: Any, cookie: str) -> None:
    page.links.create("ann", 60.0)
    name = page.cookie["Cookie"].partition("=")[0]
    assert (await page.ask("GET /machine", {"Cookie": f"{name}-guest={cookie}"})).status == 403
    assert (await page.ask("GET /machine?token=ann.0", {"Cookie": ""})).status == 403


@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "over"])
async def test_a_link_that_has_ended_opens_nothing_and_ends_its_streams(
    page: Any, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.02)
    cookie, file = page.guest_cookie(), page.links.directory / "ann"
    reader, stream = await page.events(cookie=cookie)
    link = page.links.find("ann")
    if is_removed:
        file.unlink()
    else:
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(link, until=1.0)))
    await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 20)  # the end of the answer
    stream.close()
    assert (await page.ask("GET /machine", cookie)).status == 403
    again = page.guest_cookie()  # the name is free, and the cookie of before opens nothing
    assert (await page.ask("GET /machine", again)).status == 200
    assert (await page.ask("GET /machine", cookie)).status == 403


async def test_guests_take_no_place_of_another_viewer(page: Any) -> None:
    kept = page.server.config.http.keywords["guests"]
    assert kept.most == GUEST_CONNECTIONS_MAX == 400
    assert GUEST_VIEWERS_MAX == 200
    kept.most = 2
    cookie = page.guest_cookie()
    events, mine = await page.events()
    streams = [await page.events(cookie=cookie) for _ in range(4)]
    for reader, _ in streams[:2]:
        await asyncio.wait_for(reader.read(), 20)  # the oldest are ended
    page.follower.say("machine", {"busy": {"0": "1"}})
    while b"busy" not in await asyncio.wait_for(events.readline(), 20):
        pass
    for writer in [mine, *(writer for _, writer in streams)]:
        writer.close()


def test_what_is_no_link_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = GuestLinks(tmp_path / "guests")
    for name in ("", "a/b", ".a", "x" * (GUEST_NAME_CHARS_MAX + 1), "a.b"):
        with pytest.raises(InvalidValue, match="guest's name"):
            links.create(name, 60.0)
    links.create("ann", 60.0)
    with pytest.raises(Refused, match=r"link ann holds until .*: give another name, or end it: rm .*/guests/ann"):
        links.create("ann", 60.0)
    links.create("over", -1.0)
    assert links.find("over") is None
    links.create("over", 60.0)
    assert links.find("over") is not None
    (tmp_path / "guests" / "long").write_text(" " * LINK_BYTES_MAX + (tmp_path / "guests" / "ann").read_text())
    assert links.find("long") is None
    links.create("another-over", -1.0)
    (links.directory / "of-a-person").mkdir()
    monkeypatch.setattr(guests, "LINKS_MAX", 5)
    links.create("bob", 60.0)  # in place of the link that is over
    assert {each.name for each in links.directory.iterdir()} == {"ann", "over", "bob", "of-a-person", "long"}
    with pytest.raises(LimitExceeded, match="holds 5 links, the limit"):
        links.create("eve", 60.0)
    assert LINKS_MAX == 1000
    for wrong in ("0", "367d", "infinity"):
        with pytest.raises(LimitExceeded, match="at most 366d"):
            parse_hold(wrong)
    assert parse_hold("2d") == 2 * 86_400
