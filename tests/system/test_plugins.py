"""A plugin of a user's file in a real instance: reasons, permits, and a scheduler module that is killed meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

PLUGIN = """
from fluxsched.sched.hooks import PASS, Gate, Never, Option, Wait


class Door:
    name = "door"
    OPTIONS = {"log": Option("", help="a file")}
    READS = ("name", "user")

    def __init__(self, log):
        self.log = log

    def say(self, *words):
        with open(self.log, "a") as file:
            print(*words, file=file)

    def pre_enqueue(self, job):
        return Gate("is closed") if job.label("name") == "gated" else PASS

    def pre_filter(self, shape, group):
        return PASS if shape.label("user") == USER else Never("is for one user")

    def reserve(self, job, fit):
        self.say("reserve", job.label("name"))
        return PASS

    def unreserve(self, job, fit):
        self.say("unreserve", job.label("name"))

    def permit(self, job, fit, now_s):
        return Wait(100.0, "knock first") if job.label("name") == "knocks" else PASS

    def bind(self, job, fit):
        return {"opened": True}

    def post_bind(self, job, fit):
        self.say("adopted" if job.adopted else "bound", job.label("name"))

    def on_free(self, job, fit):
        self.say("free", job.label("name"))
"""


def test_a_plugin_of_a_user(user: Any, daemon: Any, until: Any, tmp_path: Path) -> None:
    (user.directory / "door.py").write_text(f"{PLUGIN}\nUSER = {os.getuid()}\n")
    log = tmp_path / "log"
    log.touch()
    (user.directory / "site.toml").write_text(
        f'[[scheduler]]\npolicy = "easy"\nplugins = ["door.py:log={log}"]\nrestart = 9\n'
    )
    here = daemon("--fake", "1x2", "--config", "site.toml")

    def said() -> list[str]:
        return log.read_text().splitlines()

    def pid() -> int:
        (found,) = [mod for mod in here("module", "list", "--json").json["mods"] if mod["name"].startswith("sched-")]
        return int(found["pid"] or 0)

    gated, runs = here.submit("--job-name", "gated", "true"), here.running("--job-name", "runs", "sleep", "1000")
    knocks = here.submit("--job-name", "knocks", "true")
    assert "plugin 'door': is closed" in here("job", "why", gated).out
    until(lambda: "plugin 'door': knock first" in here("job", "why", knocks).out)
    assert said() == ["reserve runs", "bound runs", "reserve knocks"]
    assert here.info(runs)["annotations"]["door"] == {"opened": True}
    assert here("module", "stats", "sched-easy").json["plugins"] == {"": ["door"]}
    logged = Path(here.uri.partition("//")[2]).with_name("sched-easy.log")
    until(lambda: "sched-easy is ready: policy easy|door, " in logged.read_text())

    before = pid()
    os.kill(before, signal.SIGKILL)
    until(lambda: pid() not in (0, before))
    until(lambda: said()[3:] == ["adopted runs", "reserve knocks"])  # it is queued again, and nothing of it was held
    until(lambda: "plugin 'door': knock first" in here("job", "why", knocks).out)

    with here.connect() as handle:
        asked = {"id": here.info(knocks)["id"], "plugin": "door"}
        handle.rpc("sched.permit", {**asked, "allow": False, "reason": "not now"})
        until(lambda: said()[5:] == ["unreserve knocks", "reserve knocks"])
        handle.rpc("sched.permit", {**asked, "allow": True})
    here("wait", knocks)
    here("cancel", runs)
    until(lambda: set(said()[7:]) == {"bound knocks", "free knocks", "free runs"})
    here("cancel", gated)
    assert "free" in here("resource", "list").out


def test_a_plugin_on_the_command_line(user: Any) -> None:
    (user.directory / "night.py").write_text(PLUGIN)
    refused = user("start", "--fake", "1x2", "--plugin", "nosuch", "--", "true", status=2).err
    assert "no plugin 'nosuch': there are quota" in refused
    refused = user("start", "--fake", "1x2", "--plugin", "./absent.py", "--", "true", status=2).err
    assert "there is no file ./absent.py" in refused
    refused = user("start", "--scheduler", "none", "--plugin", "night.py", "--", "true", status=2).err
    assert "--plugin belongs to --scheduler NAME" in refused
