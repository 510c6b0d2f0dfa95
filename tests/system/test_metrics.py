"""`fluxsched metrics` and `[metrics] bind`: the page as Prometheus gets it, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_the_command_prints_once_or_serves_until_it_is_ended(daemon: Any) -> None:
    here = daemon("--fake", "4x2")
    assert 'fluxsched_targets{state="free"} 4\n' in here("metrics", "--once").out
    with here.popen("metrics", "--bind", "127.0.0.1:0") as process:
        assert "fluxsched_up 1\n" in page(process.stdout.readline().strip())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_one_of_the_configuration_is_started_again_and_ends_with_the_instance(
    daemon: Any, user: Any, until: Any, alive: Any, kill_hard: Any
) -> None:
    url = f"http://127.0.0.1:{free_port()}/metrics"
    path: Path = user.directory / "site.toml"
    path.write_text(
        f'[log]\nformat = "json"\n[metrics]\nbind = "{url.removeprefix("http://").removesuffix("/metrics")}"\n'
    )
    here = daemon("--fake", "4x2", "--config", path)
    pid = until(lambda: exporter_of(here.pid()))
    kill_hard(pid)
    again = until(lambda: exporter_of(here.pid()))
    assert again != pid

    def served() -> bool:
        try:
            return "fluxsched_up 1\n" in page(url)
        except OSError:
            return False

    until(served)
    with here.connect() as handle:
        log = Path(handle.rpc("instance.info")["rundir"]) / "log"
    said = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["level"] for line in said if line["logger"] == "fluxsched.metrics"] == ["error"]
    here("stop")
    until(lambda: not alive(again))


def exporter_of(instance: int) -> int | None:
    """The process that serves an instance's figures."""
    for child in Path(f"/proc/{instance}/task/{instance}/children").read_text().split():
        if b"\0metrics\0" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--bind", "0.0.0.0:9400"], 1, "can be reached from other hosts"),
        (["--bind", "nowhere"], 2, "is not HOST:PORT"),
    ],
)
def test_addresses_that_are_refused(user: Any, words: list[str], status: int, said: str) -> None:
    assert said in user("metrics", *words, status=status).err


def test_a_configuration_with_such_an_address_is_refused_with_its_line(user: Any) -> None:
    path: Path = user.directory / "site.toml"
    path.write_text('[log]\nformat = "xml"\nlevel = 3\n[metrics]\nbind = "0.0.0.0:1"\npublic = "no"\n')
    said = user("config", "check", path, "--fake", "1x1", status=1).err
    for where in ("2: [log] format", "3: [log] unknown key 'level'", "5: [metrics] bind", "6: [metrics] public"):
        assert f"site.toml:{where}" in said, said


def test_of_no_instance_the_figure_is_that_it_is_down(user: Any) -> None:
    assert os.environ.get("FLUXSCHED_URI") is None
    assert "fluxsched_up 0\n" in user("metrics", "--once").out
