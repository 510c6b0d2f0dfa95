"""A site with banks, as administrators and users meet it: shares, standby jobs that give way, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SITE = """
[[scheduler]]
policy = "fair:backfill=easy"

[policy.jobspec.defaults.system]
duration = "1h"

[fair]
weights = { core = 1 }

[fair.banks]
physics = 3
chemistry = 1
standby = 0.01
"""
STANDBY = ("--bank", "standby", "--preemptible-after", "0s")


@pytest.fixture
def site(user: Any, daemon: Any) -> Any:
    """Eight cores; what the instance says is relative to the file."""
    path: Path = user.directory / "site.toml"
    path.write_text(SITE)
    return daemon("--fake", "2x4", "--config", path)


def accounts(here: Any, *words: str) -> dict[str, dict[str, Any]]:
    """The banks by name."""
    found = here("fair", "--json", *words).json["accounts"]
    return {each["path"][-1]: each for each in found if not each["user"]}


def test_standby_jobs_fill_the_machine_and_give_way(site: Any, until: Any) -> None:
    again = [site.running(*STANDBY, "--requeue", "2", "sleep", "100") for _ in range(7)]
    once = site.running(*STANDBY, "sleep", "100")  # the last that began
    assert accounts(site)["standby"]["usage"] == 8.0
    job = site.running("--bank", "physics", "-n", "2", "sleep", "100")
    assert (site.info(job)["bank"], site.info(job)["ncores"]) == ("physics", 2)
    gone = site.info(once)
    assert (gone["result"], gone["exception"]["type"]) == ("FAILED", "preempt")
    assert f"so that job {job} can start" in gone["exception"]["note"]
    until(lambda: accounts(site)["standby"]["waiting"] == 1)  # one of the two is submitted again
    found = accounts(site)
    assert (found["standby"]["preempted"], found["standby"]["usage"]) == (2, 6.0)
    assert (found["physics"]["running"], found["physics"]["held"]) == (1, {"core": 2})
    assert not found["chemistry"]["active"]
    site("cancel", job)
    until(lambda: accounts(site)["standby"]["running"] == 7)
    assert sum("requeued_as" in site.info(each) for each in again) == 1


def test_a_reload_of_the_module_takes_new_weights(site: Any, user: Any, until: Any) -> None:
    site.running("--bank", "physics", "sleep", "100")
    path = user.directory / "site.toml"
    path.write_text(SITE.replace("physics = 3", "physics = 9").replace("[fair]", "[fair]\ncap = 2.0"))
    site("config", "reload")
    assert (accounts(site)["physics"]["weight"], accounts(site)["physics"]["cap"]) == (3.0, None)
    site("module", "reload", "sched-fair")
    found = accounts(site, "--bank", "physics")
    assert found.keys() == {"physics"}
    assert (found["physics"]["weight"], found["physics"]["cap"], found["physics"]["usage"]) == (9.0, 16.0, 1.0)
    site.submit("--bank", "chemistry", "-n8", "sleep", "100")
    until(lambda: accounts(site)["chemistry"]["waiting"] == 1)  # a question overtakes the request for the job
    lines = site("fair", "-o", "{account:<12} {share:>6} {used:>6} {waiting:>5} {running:>5}").out.splitlines()
    assert [line.split() for line in lines if not line.startswith("  ")] == [
        ["ACCOUNT", "SHARE%", "USED%", "WAIT", "RUN"],
        ["chemistry", "10", "0", "1", "0"],
        ["physics", "90", "12.5", "0", "1"],
        ["standby", "-", "0", "0", "0"],
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--bank", "biology"), "bank 'biology' does not exist: use one of physics, chemistry, standby"),
        ((), "the job names no bank, and there is no default: name one of physics, chemistry, standby"),
        (("--bank", "physics\x1b[2J"), r"'physics\x1b[2J' is not a name"),
        (("--bank", "physics", "--setattr", "preemptible-after=soon"), "preemptible-after must be a number of seconds"),
        (("--bank", "physics", "--setattr", "fluxsched.requeue=101"), "requeue: 101 is not a number within 0-100"),
    ],
)
def test_what_a_job_may_not_say_is_refused(site: Any, words: tuple[str, ...], told: str) -> None:
    refused = site("submit", *words, "true", status=1)
    assert (told in refused.err, refused.out) == (True, "")
    assert refused.err.replace("\n", "").isprintable()
