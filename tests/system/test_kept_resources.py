"""A reloaded R and a new expiration survive a kill and a start, until the source of R changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet

STATE = ("--statedir", "state")
LATE_S = 4e9
FAKE = {"fake0": 0, "fake1": 1}


def r_text(hosts: str, count: int, expiration_s: float = 0.0, **execution: Any) -> str:
    rlite = [{"rank": f"0-{count - 1}", "children": {"core": "0-3"}}]
    execution |= {"R_lite": rlite, "nodelist": [hosts], "starttime": 0.0, "expiration": expiration_s}
    return json.dumps({"version": 1, "execution": execution})


def now(site: Any) -> tuple[dict[str, int], float]:
    """Return the ranks of the hosts that are not lost, and when R ends."""
    with site.connect() as handle:
        status = handle.rpc("resource.status")
    found, lost = ResourceSet.parse(status["R"]), Idset.parse(status.get("lost", ""))
    return {found.host(rank): rank for rank in found.ranks - lost}, found.expiration_s


def log_of(site: Any) -> str:
    with site.connect() as handle:
        return (Path(handle.rpc("instance.info")["rundir"]) / "log").read_text()


@pytest.fixture
def again(daemon: Any, kill_hard: Any) -> Callable[..., Any]:
    """Kill an instance, and start one on its state with other options, those of the first one if none are given."""

    def start(site: Any, *options: str) -> Any:
        kill_hard(site.pid())
        return daemon(*STATE, *options)

    return start


def test_an_acknowledged_reload_and_expiration_survive_kill_9(user: Any, daemon: Any, again: Any) -> None:
    (user.directory / "R").write_text(r_text("other[0-2]", 3))
    site = daemon(*STATE, "--fake", "2x2")
    with site.connect() as handle:
        handle.rpc("resource.expiration-update", {"expiration": LATE_S})
    site = again(site, "--fake", "2x2")
    assert now(site) == (FAKE, LATE_S)
    assert "because of the resource.expiration-update at " in log_of(site)
    site("resource", "drain", "1")
    site("resource", "reload", "R")
    hosts, end_s = now(site)
    assert (sorted(hosts), end_s) == (["other0", "other1", "other2"], 0.0)
    assert min(hosts.values()) > 1, "running jobs hold targets by rank"
    with site.connect() as handle:
        handle.rpc("resource.expiration-update", {"expiration": LATE_S + 1})
    (user.directory / "R").write_text(r_text("later", 1))  # what was acknowledged is what the file had then
    for _ in range(2):
        site = again(site, "--fake", "2x2")
        assert now(site) == (hosts, LATE_S + 1)
    assert f"R is that of the resource.reload of {user.directory}/R at " in log_of(site)
    site("resource", "reload")
    site = again(site, "--fake", "2x2")
    assert now(site) == (FAKE, 0.0)
    assert site("resource", "drain", "-n", "-o", "{ranks}").word == "1"


def test_another_source_wins_and_the_log_says_so(user: Any, daemon: Any, again: Any) -> None:
    file, other = user.directory / "R", user.directory / "other"
    file.write_text(r_text("n[0-1]", 2))
    other.write_text(r_text("m[0-2]", 3, LATE_S))
    site = daemon(*STATE, "--R", "R")
    site("resource", "reload", "other")
    file.write_text(" " + r_text("n[0-1]", 2))  # the same R
    before = now(site)
    site = again(site, "--R", "R")
    assert (now(site), before[1]) == (before, LATE_S)
    site = again(site, "--fake", "2x2")
    assert now(site) == (FAKE, 0.0)
    said = f"the resource.reload of {other} at [^\n]* is dropped: what this start names has changed since"
    assert re.search(said, log_of(site))
    site = again(site, "--R", "R")
    assert now(site) == ({"n0": 0, "n1": 1}, 0.0), "what was dropped came back"
    site("resource", "reload", "other")
    file.write_text(r_text("n[0-2]", 3))
    site = again(site, "--R", "R")
    assert now(site) == ({"n0": 0, "n1": 1, "n2": 2}, 0.0)
    assert re.search(said, log_of(site))


def test_groups_may_change_beside_a_reloaded_r(user: Any, daemon: Any, again: Any) -> None:
    config = user.directory / "site.toml"
    config.write_text('[[resource.config]]\nhosts = "n[0-1]"\ncores = "0-3"\n')
    (user.directory / "R").write_text(r_text("n[0-3]", 4))
    site = daemon(*STATE, "--config", "site.toml")
    site("resource", "reload", "R")
    config.write_text(config.read_text() + '[resource.groups]\ndebug = "n3"\n')
    site = again(site, "--config", "site.toml")
    with site.connect() as handle:
        status = handle.rpc("resource.status")
    assert status["groups"] == {"default": "0-2", "debug": "3", "exclude": ""}
    site("restart")
    config.write_text(config.read_text().replace("n3", "n7"))
    assert "n7" in site("restart", status=1).err
    refused = r"n7[^\n]*\\nR may be that of the resource.reload of [^\n]*: correct the configuration, or"
    with pytest.raises(AssertionError, match=refused):
        again(site, "--config", "site.toml")


def test_an_expiration_that_has_passed_is_dropped(daemon: Any, again: Any) -> None:
    site = daemon(*STATE, "--fake", "2x2")
    with site.connect() as handle:
        handle.rpc("resource.expiration-update", {"expiration": handle.rpc("instance.info")["starttime"] + 0.001})
    site = again(site, "--fake", "2x2")
    assert now(site) == (FAKE, 0.0)
    assert "is dropped: it expired at " in log_of(site)


def test_hosts_keep_their_ranks_over_a_start_while_jobs_hold_some(
    user: Any, daemon: Any, again: Any, until: Any
) -> None:
    """A reload or a changed source numbers hosts otherwise; a job continues on its own host, and groups mean theirs."""
    config = user.directory / "site.toml"
    options = ("--config", "site.toml")

    def write(hosts: str, debug: int) -> None:
        entry = f'[[resource.config]]\nhosts = "{hosts}"\ncores = "0-3"\n'
        config.write_text(f'{entry}[resource.groups]\ndebug = "{debug}"\n')

    write("n[0-2]", 0)
    site = daemon(*STATE, *options)
    with site.popen("agent", "--host", "n2") as agent:
        jobid = site.running("--requires", "host:n2", "sleep", "100")
        write("n[0,2-3]", 0)
        site("resource", "reload")
        numbered = {"n0": 0, "n2": 2, "n3": 3}
        assert now(site)[0] == numbered
        site = again(site, *options)
        assert now(site)[0] == numbered
        assert "targets keep the ranks that they had, since jobs hold some" in log_of(site)
        write("n[2-4]", 1)
        site = again(site, *options)
        assert now(site)[0] == {"n2": 2, "n3": 3, "n4": 4}
        with site.connect() as handle:
            assert handle.rpc("resource.status")["groups"]["debug"] == "3"
        assert (site.info(jobid)["state"], site.info(jobid)["ranks"]) == ("RUN", "2")
        agent.kill()
    site("cancel", jobid)
    site("wait", jobid, status=None)
    site = again(site, *options)
    assert now(site)[0] == {"n2": 0, "n3": 1, "n4": 2}
