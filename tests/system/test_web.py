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
from fluxsched.web.pages import ACTION_TOPICS, NAVIGATION


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

    def try_get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer, whatever it is."""
        try:
            with self._opener.open(self.base + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

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


REFUSED_TO_GUESTS = {"target?rank=0"}
"""A view of admins; `messages`, which is the owner's, begins empty and then ends."""
SECRETS = ("0nly-in-the-environment", "0nly-in-the-output")


def test_the_holder_of_a_guests_link_sees_what_guests_may(user: Any, daemon: Any, until: Any) -> None:
    here = daemon("--fake", "4x2", "--web")
    environment, output = SECRETS
    words = [
        "--env",
        f"A={environment}",
        "--job-name",
        "mine",
        "sh",
        "-c",
        "printf '0nly-in-%s\\n' the-output; sleep 600",
    ]
    jobid = here("submit", *words).out.strip()
    assert "guest's name 'a b' is not" in here("web", "--guest-link", "a b", status=2).err
    for words in (["--bind", "127.0.0.1:0"], ["--public"], ["--name", "login.example"]):
        assert "leave out --bind, --public and --name" in here("web", "--guest-link", *words, status=2).err
    link = here("web", "--guest-link", "--for", "1h")
    owner, guest = Browser(here("web", "--address").out.strip()), Browser(link.out.strip())
    until(lambda: output in json.dumps(owner.get(f"/data/job?id={urllib.parse.quote(jobid)}")))
    views = [*NAVIGATION, f"job?id={jobid}", "figures", "notices", "messages", *REFUSED_TO_GUESTS]
    said = {view: guest.try_get(f"/data/{view.replace(jobid, urllib.parse.quote(jobid))}") for view in views}
    assert {view for view, (status, _) in said.items() if status == 403} == REFUSED_TO_GUESTS
    assert {status for status, _ in said.values()} == {200, 403}
    assert jobid in json.dumps(said["jobs"], ensure_ascii=False)
    of_job = f"/jobs/{urllib.parse.quote(jobid)}"
    for path in [*(f"/{view}" for view in NAVIGATION), of_job, f"{of_job}/output", "/jobs.csv", "/when?nodes=1"]:
        said[path] = guest.try_get(path)
        assert said[path][0] == (403 if "output" in path or "when" in path else 200), path
    assert not any(secret in json.dumps(said, ensure_ascii=False) for secret in SECRETS)
    for name in ACTION_TOPICS:
        assert "changes nothing" in guest.act(name, targets="3", ids=jobid, urgency="0", type="x")
    assert here("jobs", "--no-header", "--format", "{state} {urgency}").out.split() == ["RUN", "16"]
    Path(link.err.split("rm ")[1].strip()).unlink()
    assert guest.try_get("/data/machine")[0] == 403
    assert owner.states() is not None


def test_the_page_says_when_its_instance_is_gone_and_finds_the_next(user: Any, daemon: Any, until: Any) -> None:
    here = daemon("--fake", "4x2")
    uri = here("uri").out.strip()
    assert f"the instance at {uri} serves no page" in here("web", "--address", status=1).err
    with user.popen("web", "--bind", "127.0.0.1:0") as process:
        browser = Browser(process.stdout.readline().strip())
        here("stop")
        until(lambda: browser.states() is None)
        daemon("--fake", "2x2")
        until(lambda: browser.states() == {"free": "0-1"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_page_that_is_served_here_has_a_guests_link_too(user: Any, daemon: Any, until: Any) -> None:
    daemon("--fake", "4x2")
    done = user("web", "--bind", "127.0.0.1:0", "--guest-link", "a b", status=2)
    assert (done.out, "guest's name 'a b' is not 1-32 letters" in done.err) == ("", True)
    with user.popen("web", "--bind", "127.0.0.1:0", "--guest-link", "ann") as process:
        owner, guest = [Browser(process.stdout.readline().strip().removeprefix("for guests: ")) for _ in range(2)]
        assert owner.states() == guest.states() == {"free": "0-3"}
        assert "changes nothing" in guest.act("drain", targets="3")
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
