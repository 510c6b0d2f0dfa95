"""`fluxsched web` and `start --web`: the page of a real instance, from the printed address to a restart."""

from __future__ import annotations

import http.cookiejar
import json
import signal
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fluxsched.cli import instance


class Browser:
    """Keeps cookies."""

    def __init__(self, address: str) -> None:
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        self.base = address.partition("/?")[0]
        self.first = self._opener.open(address, timeout=30).read().decode()

    def get(self, path: str, data: dict[str, str] | None = None) -> Any:
        body = None if data is None else urllib.parse.urlencode(data).encode()
        request = urllib.request.Request(self.base + path, body, {"Accept": "application/json"})
        with self._opener.open(request, timeout=30) as answer:
            return json.loads(answer.read())

    def act(self, name: str, **fields: str) -> str:
        csrf = self.first.partition('name="csrf" content="')[2].partition('"')[0]
        try:
            return str(self.get(f"/actions/{name}", {"csrf": csrf, "confirmed": "yes", **fields})["said"])
        except urllib.error.HTTPError as refused:
            return str(json.loads(refused.read())["error"])

    def states(self) -> Any:
        try:
            return self.get("/data/machine")["states"]
        except (OSError, urllib.error.HTTPError):
            return None


def test_a_page_served_along_is_used_and_outlives_a_restart(user: Any, daemon: Any, until: Any) -> None:
    here = daemon("--fake", "4x2", "--web", "--statedir", user.directory / "state")
    address = here("web", "--address").out.strip()
    browser = Browser(address)
    assert browser.states() == {"free": "0-3"}
    jobid = here("submit", "sleep", "60").out.strip()
    until(lambda: "allocated" in browser.states())
    assert browser.act("drain", targets="3", reason="<b>fan</b>") == "drained 3"
    assert "fan" in here("resource", "drain").out
    assert browser.act("drain", targets="9") == "unknown ranks 9: the ranks here are 0-3"
    assert browser.act("cancel", ids=jobid) == f"canceled {jobid}"
    here("wait", jobid, status=143)
    assert "(on the page)" not in here("job", "eventlog", jobid).out
    assert 'note="on the page"' in here("job", "eventlog", jobid).out
    here("restart")
    assert here("web", "--address").out.strip() == address
    until(lambda: browser.states() == {"free": "0-2", "drained": "3"})  # with the cookie of before


def test_a_page_keeps_its_address_and_its_viewers_over_kill_9(
    user: Any, daemon: Any, until: Any, kill_hard: Any
) -> None:
    options = ("--fake", "4x2", "--web", "--statedir", user.directory / "state")
    here = daemon(*options)
    address = here("web", "--address").out.strip()
    browser = Browser(address)
    assert browser.act("drain", targets="3") == "drained 3"
    kill_hard(here.pid())
    here = daemon(*options)
    assert here("web", "--address").out.strip() == address
    until(lambda: browser.states() == {"free": "0-2", "drained": "3"})  # with the cookie of before
    assert browser.act("undrain", targets="3") == "3 back in service"


def test_the_page_says_when_its_instance_is_gone_and_finds_the_next(user: Any, daemon: Any, until: Any) -> None:
    here = daemon("--fake", "4x2")
    with user.popen("web", "--bind", "127.0.0.1:0") as process:
        browser = Browser(process.stdout.readline().strip())
        here("stop")
        until(lambda: browser.states() is None)
        daemon("--fake", "2x2")
        until(lambda: browser.states() == {"free": "0-1"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--bind", "0.0.0.0:9480"], 1, "unencrypted"),
        (["--bind", "nowhere"], 2, "is not HOST:PORT"),
        (["--address"], 1, "no fluxsched instance found"),
        (["--bind", "127.0.0.1:0"], 1, "no fluxsched instance found"),
        (["--bind", "127.0.0.1:0", "--uri", "ipc:///nope"], 1, "nothing listens at ipc:///nope"),
    ],
)
def test_what_is_refused(user: Any, words: list[str], status: int, said: str) -> None:
    assert said in user("web", *words, status=status).err


def test_a_configured_page_needs_a_sound_address(user: Any) -> None:
    path: Path = user.directory / "site.toml"
    path.write_text('[web]\nbind = "0.0.0.0:80"\n')
    assert "site.toml:2: [web] bind" in user("config", "check", path, status=1).err


def test_without_the_extra_it_is_said_what_to_install(user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "find_spec", lambda name: None if name == "uvicorn" else name)
    for words in (["web"], ["start", "--web", "--fake", "1x1", "true"]):
        assert "needs uvicorn: pip install 'fluxsched[web]'" in user(*words, status=1).err
