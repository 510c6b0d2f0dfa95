"""`fluxsched config`: faults without an instance, what is in force, and a file that is read again while jobs run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SITE = """
[resource.groups]
lab = "3"

[policy.jobspec.defaults.system]
queue = "batch"

[queues.batch]
[queues.debug]
policy.limits.duration = "30m"

[[scheduler]]
policy = "easy"
groups = ["default", "lab"]
"""


@pytest.fixture
def path(user: Any) -> Path:
    path: Path = user.directory / "site.toml"
    path.write_text(SITE)
    return path


def test_a_reload_plans_and_calls_off_outages(daemon: Any, path: Path) -> None:
    path.write_text('[[outages]]\ntargets = "0"\nfrom = 100\nuntil = 4000000000\nname = "move"\n')
    here = daemon("--fake", "2x2", "--config", path)
    assert [each["name"] for each in here("outage", "list", "--json").json["outages"]] == ["move"]
    path.write_text('[[outages]]\ntargets = "1"\nfrom = 200\nuntil = 4000000000\nname = "power"\n')
    assert "needs a restart" not in here("config", "reload").out
    (outage,) = here("outage", "list", "--json").json["outages"]
    assert (outage["name"], outage["targets"], outage["on"]) == ("power", "1", True)
    assert here("resource", "drain", "-n", "-o", "{ranks} {reason}").out == "1 outage power\n"


def test_reload_applies_limits_and_queues_live_and_names_what_needs_a_restart(daemon: Any, path: Path) -> None:
    here = daemon("--fake", "4x2", "--config", path)
    assert tomllib.loads(here("config", "show").out) == here("config", "show", "--json").json == tomllib.loads(SITE)
    running = here.running("-q", "debug", "-t", "20m", "sleep", "100")
    waiting = here.submit("-q", "debug", "-t", "20m", "-N3", "--exclusive", "true")
    before = here("module", "list", "--json").json["mods"][-1]["pid"]
    path.write_text(SITE.replace("30m", "10m") + '[exec]\nkill-timeout = "7s"\n')
    assert here("config", "reload").out.splitlines() == [
        'queues.debug.policy.limits.duration: "30m" -> "10m"', 'exec.kill-timeout: not set -> "7s": needs a restart'
    ]  # fmt: skip
    refused = here("submit", "-q", "debug", "-t", "20m", "true", status=1)
    assert "limit of queue debug 10m" in refused.err
    assert (here.info(running)["state"], here.info(waiting)["state"]) == ("RUN", "SCHED")
    assert here("config", "reload").out == 'exec.kill-timeout: not set -> "7s": needs a restart\n'
    assert "kill-timeout" not in here("config", "show").out
    assert here("module", "list", "--json").json["mods"][-1]["pid"] == before
    path.write_text(SITE + '[queues.test]\ngroup = "lab"\n[queues.quick]\npolicy = "fifo"\n')
    answer = here("config", "reload", "--json").json
    assert [change["key"] for change in answer["changed"]] == [
        "queues.debug.policy.limits.duration", "queues.test.group", "queues.quick.policy"
    ]  # fmt: skip
    assert (answer["restart"], answer["modules"]) == ([], ["sched-easy-lab"])  # it has two groups, and a new policy
    in_lab = here.submit("-q", "test", "-t", "1m", "true")
    here("wait", in_lab)
    assert here.info(in_lab)["ranks"] == "3"
    assert here.info(running)["state"] == "RUN"
    here("cancel", running)
    here("wait", waiting)
    assert here("module", "list", "--json").json["mods"][-1]["path"] == "easy;quick=fifo"


def test_a_faulty_file_changes_nothing_and_tells_all_faults(daemon: Any, path: Path) -> None:
    here = daemon("--fake", "4x2", "--config", path)
    pending = here.submit("-q", "debug", "-t", "1m", "--urgency", "hold", "true")
    faulty = SITE.replace("30m", "10m").replace('lab = "3"', 'lab = "9"').replace("easy", "eazy") + "[queues.new]\n"
    path.write_text(faulty)
    for command in (["config", "reload"], ["resource", "reload"]):
        lines = here(*command, status=1).err.splitlines()
        assert [line.partition(f"{path}:")[2][:12] for line in lines] == ["3: [resource", "13: [[schedu"]
    path.write_text(SITE.replace("[queues.debug]", '[queues.debug]\ngroup = "lab"') + "[queues.new]\n")
    refused = here("config", "reload", status=1).err
    assert "queue debug has 1 active job: its groups can change once no job is in it, or at a restart" in refused
    assert here("queue", "list", "-n", "-o", "{queue} {limit}").out.split() == ["batch", "debug", "30m"]
    here("cancel", pending)
    here("config", "reload")
    assert here("queue", "list", "-n", "-o", "{queue} {group}").out.split() == [
        "batch", "default", "debug", "lab", "new", "default"
    ]  # fmt: skip


def test_check_tells_all_faults_without_an_instance(user: Any, path: Path) -> None:
    done = user("config", "check", "--fake", "4x2", "site.toml")
    assert done.out == "site.toml: no faults: 4 targets, 2 queues, 1 scheduler\n"
    (user.directory / "mine.py").write_text("1 / 0\n")
    path.write_text(
        SITE.replace('"easy"', '"mine.py"').replace('"3"', '"7"')
        + 'fallback = "none"\nlimits = 3\n[queues.x]\npolicy = "gone.py"\n'
    )
    found = user("config", "check", "--fake", "4x2", "site.toml", status=1)
    assert found.out == ""
    assert found.err.splitlines() == [
        "site.toml:3: [resource.groups] lab: unknown ranks 7: the ranks here are 0-3",
        "site.toml:13: [[scheduler]] policy: ZeroDivisionError: division by zero (mine.py:1)",
        "site.toml:16: [[scheduler]] unknown key 'limits'; known keys: fallback, groups, hung-after, name, "
        "plugins, policy, restart",
        f"site.toml:18: [queues.x] policy: there is no file {user.directory}/gone.py",
    ]
    answer = json.loads(user("config", "check", "--fake", "4x2", "site.toml", "--json", status=1).out)
    assert (answer["file"], len(answer["faults"])) == ("site.toml", 4)
    path.write_text("[queues\n")
    assert "site.toml:1: not TOML" in user("config", "check", "site.toml", status=1).err
    assert "cannot be read" in user("config", "check", "nosuch.toml", status=1).err


def test_banks_are_decided_at_submission_and_changed_by_a_reload(daemon: Any, user: Any) -> None:
    path = user.directory / "site.toml"
    path.write_text("[fair.banks]\nphysics = 3\noptics = 1\n")
    here = daemon("--fake", "1x2", "--config", path, "--scheduler", "fair")
    refused = here("submit", "true", status=1)
    assert "the job names no bank, and there is no default: name one of physics, optics" in refused.err
    refused = here("submit", "--bank", "chemistry", "true", status=1)
    assert "bank 'chemistry' does not exist: use one of physics, optics" in refused.err
    here("wait", here.submit("--bank", "optics", "true"))
    path.write_text("[policy.jobspec.defaults.system]\nbank = 'physics'\n[fair.banks]\nphysics = 2\n")
    assert here("config", "reload").out.splitlines() == [
        'policy.jobspec.defaults.system.bank: not set -> "physics"',
        "fair.banks.physics: 3 -> 2",
        "fair.banks.optics: 1 -> not set",
        "[fair] holds for sched-fair after: fluxsched module reload sched-fair",
    ]
    path.write_text(path.read_text().replace("= 2", "= 3") + "[[limits]]\nuser = '*'\nrunning = 9\n")
    assert here("config", "reload").out.splitlines() == [
        "fair.banks.physics: 2 -> 3",
        'limits: not set -> [{ user = "*", running = 9 }]',
        "module sched-fair is restarted to serve its queues; jobs continue",
    ]
    job = here.submit("true")
    here("wait", job)
    assert json.loads(here("job", "info", job, "jobspec").out)["attributes"]["system"]["bank"] == "physics"
    assert "does not exist" in here("submit", "--bank", "optics", "true", status=1).err


BROKEN = "import nothing_of_that_name\n"
EXITS = "raise SystemExit(3)\n"


def test_a_new_policy_that_does_not_load_is_refused_with_all_else_that_stands_against_the_file(
    daemon: Any, path: Path
) -> None:
    here = daemon("--fake", "4x2", "--config", path)
    running = here.running("-q", "debug", "-t", "20m", "-N3", "--exclusive", "sleep", "100")
    views = (["config", "show"], ["module", "list", "--json"], ["queue", "list"])
    shown = [here(*words).out for words in views]
    (path.parent / "broken.py").write_text(BROKEN)
    (path.parent / "exits.py").write_text(EXITS)
    new = '[queues.one]\npolicy = "./broken.py"\n[queues.two]\nplugins = ["./exits.py"]\n'
    path.write_text(
        SITE.replace('lab = "3"', 'lab = "2-3"').replace("[queues.debug]", '[queues.debug]\ngroup = "lab"') + new
    )
    for command in (["config", "reload"], ["resource", "reload"]):
        said = here(*command, status=1).err
        for part in (
            "[queues.one] policy: ", "nothing_of_that_name", "[queues.two] plugins: ", "with status 3",
            "queue debug has 1 active job", "cannot reload while jobs hold", "going to group 'lab'",
        ):  # fmt: skip
            assert part in said, said
    assert [here(*words).out for words in views] == shown
    here("cancel", running)
    here("wait", running, status=None)
    (path.parent / "broken.py").write_text((ROOT / "examples/policy_smallest.py").read_text())
    path.write_text(SITE + '[queues.one]\npolicy = "./broken.py"\n')
    assert here("config", "reload", "--json").json["modules"] == ["sched-easy-lab"]


def test_faults_of_every_section_are_told_at_once(daemon: Any, path: Path) -> None:
    here = daemon("--fake", "4x2", "--config", path)
    shown = here("config", "show").out
    faults = {
        "resource": 'heartbeat = "1ms"',
        "resource.groups": 'lab = "99"',
        "queues.batch": "nonsense = 1",
        "policy.limits": "duration = []",
        "fair": 'signal = "loud"',
        "exec": "kill-timeout = -1",
        "access": "allow-guest-user = 3",
        "log": 'format = "xml"',
        "metrics": 'bind = "0.0.0.0:1"',
    }
    tables = "".join(f"[{table}]\n{line}\n" for table, line in faults.items())
    path.write_text(tables + '[[scheduler]]\npolicy = "eazy"\n')
    said = here("config", "reload", status=1).err
    for table in [*faults, "[scheduler]"]:
        assert f"[{table}]" in said, said
    assert len(said.splitlines()) == len(faults) + 1
    assert here("config", "show").out == shown
