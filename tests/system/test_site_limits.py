"""Limits of a site in a real instance: they hold, are named, and change while jobs run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SITE = """
[[limits]]
user = "*"
running = {running}
waiting = 2

[[limits]]
bank = "default"
minutes = 120
"""


def test_a_limit_holds_back_is_named_and_changes_live(user: Any, daemon: Any, until: Any) -> None:
    site = Path(user.directory, "site.toml")
    site.write_text(SITE.format(running=1))
    here = daemon("--fake", "2x4", "--statedir", "state", "--config", "site.toml")
    first = here.running("-t", "60", "sleep", "1000")
    second, third = here.submit("-t", "60", "sleep", "1000"), here.submit("-t", "60", "true")
    told = "limit of each user: 1 + 1 running jobs exceed 1"
    until(lambda: told in here("job", "why", second).out)
    until(lambda: told in here("jobs").out)
    refused = here("submit", "-t", "60", "true", status=1).err
    assert refused.endswith("limit of each user: 2 jobs wait, 2 may: submit when some have started\n")
    here("cancel", third)
    assert "limit of bank default 2h: ask for at most 2h" in here("submit", "-t", "3h", "true", status=1).err
    site.write_text(SITE.format(running=2))
    assert "running = 2" in here("config", "reload").out
    here("job", "wait-event", second, "start")
    assert here.info(first)["state"] == "RUN", "the scheduler was started anew, and its jobs continue"
    fourth = here.submit("-t", "60", "true")
    until(lambda: "2 + 1 running jobs exceed 2" in here("job", "why", fourth).out)
    here("cancel", first)
    assert here("wait", fourth).status == 0
