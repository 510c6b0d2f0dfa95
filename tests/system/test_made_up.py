"""Targets that are not this machine are called made-up wherever they are shown; the others are not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

HOST = os.uname().nodename
ROOT = Path(__file__).parents[2]


def test_fake_targets_are_called_made_up(user: Any) -> None:
    found = user.process("start", "--daemon", "--fake", "4x2")
    here = user.at(found.word)
    assert "fluxsched: start: its targets are made up: tasks on them run on this machine\n" in found.err
    assert here("resource", "list").line.split() == ["STATE", "NNODES", "NCORES", "NGPUS", "WHERE", "NODELIST"]
    assert here("resource", "list").out.splitlines()[1].split() == ["free", "4", "8", "0", "made-up", "fake[0-3]"]
    assert here("resource", "status", "-n").out.split() == ["avail", "✔", "4", "made-up", "fake[0-3]"]
    assert here("resource", "info").out == "4 Nodes, 8 Cores, 0 GPUs, all made-up\n"
    assert here("resource", "info", "--json").json["made_up"] == "0-3"
    assert here("resource", "status", "--json").json["made_up"] == "0-3"
    assert here("resource", "list", "--json").json["made_up"] == "0-3"
    here("resource", "drain", "3", "fan")
    assert here("resource", "drain", "-n").out.split()[-3:] == ["fan", "made-up", "fake3"]
    here("resource", "property", "add", "0-1", "fast")
    assert here("resource", "property", "list", "-n").out.split() == ["fast", "2", "made-up", "0-1", "fake[0-1]"]
    rows = [line.split() for line in here("resource", "groups", "-n").out.splitlines()]
    assert rows == [["default", "4", "typed", "made-up", "0-3", "fake[0-3]"], ["exclude", "0", "no"]]
    here("resource", "undrain", "3")
    assert here("run", "-N2", "hostname").out == f"{HOST}\n" * 2
    here("stop")


def test_agents_of_other_hosts_are_told_that_their_targets_are_made_up(user: Any, daemon: Any, until: Any) -> None:
    (user.directory / "site.toml").write_text(
        f"[[resource.config]]\nhosts = '{HOST}'\ncores = '0'\n[[resource.config]]\nhosts = 'n[0-2]'\ncores = '0'\n"
    )
    here = daemon("--config", "site.toml")
    assert here("resource", "info").out == "4 Nodes, 4 Cores, 0 GPUs, 3 made-up\n"
    with here.popen("agent", "--host", "n1") as agent:
        assert agent.stderr.readline() == "agent of n1: reports targets 2\n"
        assert agent.stderr.readline() == f"agent of n1: they are made up: tasks on them run on {HOST}\n"
        rows = [line.split() for line in here("resource", "list", "-n").out.splitlines()]
        assert ["free", "1", "1", "0", "here", HOST] in rows
        assert ["free", "1", "1", "0", "made-up", "n1"] in rows
        agent.kill()


def test_the_targets_of_this_machine_are_not_made_up(user: Any, daemon: Any) -> None:
    found = user.process("start", "--daemon", "--test-size", "2")
    here = user.at(found.word)
    assert "made up" not in found.err
    assert here("resource", "list").line.split() == ["STATE", "NNODES", "NCORES", "NGPUS", "NODELIST"]
    assert here("resource", "status").line.split() == ["STATE", "UP", "NNODES", "NODELIST"]
    assert "made" not in here("resource", "info").out
    assert "made_up" not in here("resource", "status", "--json").json
    here("stop")


def test_a_reload_makes_targets_up(user: Any, daemon: Any) -> None:
    here = daemon("--test-size", "1")
    assert "made_up" not in here("resource", "info", "--json").json
    other = user.shell("fluxsched resource R", "--fake", "2x1").out
    (user.directory / "R.json").write_text(other)
    here("resource", "reload", "R.json")
    assert here("resource", "info").out == "2 Nodes, 2 Cores, 0 GPUs, all made-up\n"


@pytest.mark.parametrize("page", ["README.md", "rfc/config.md"])
def test_the_pages_say_where_an_instance_runs_tasks(page: str) -> None:
    text = (ROOT / page).read_text()
    said = text.index("runs tasks on ")
    assert said < 2000 or page != "README.md"
    assert "made-up" in text[said:]
    assert "Flux" in text[said : said + 800]


def test_the_help_of_agents_says_so(user: Any) -> None:
    assert "runs all tasks on its own machine" in " ".join(user("agent", "--help").out.split())
