"""An instance under a service manager: it says when it is ready, and systemd takes the unit in examples/."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

UNIT = Path(__file__).parents[2] / "examples" / "fluxsched.service"


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_the_instance_is_ready_and_when_it_ends(user: Any, tmp_path: Path, abstract: bool) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.settimeout(20)
        name = f"@fluxsched-test-{tmp_path.name}-{id(told)}" if abstract else str(tmp_path / "notify")
        told.bind(name.replace("@", "\0"))
        user.environ["NOTIFY_SOCKET"] = name
        with user.popen("start", "--stays", "--fake", "3x1", "--statedir", "state") as instance:
            uri = user("uri").word if (said := told.recv(4096).decode()) else ""
            assert said == f"READY=1\nSTATUS=3 targets, at {uri}"
            user.environ.clear()
            assert user("run", "sh", "-c", "echo ${NOTIFY_SOCKET-unset}").word == "unset"
            instance.terminate()
            assert told.recv(4096) == b"STOPPING=1"
            assert instance.wait(20) == 0


def test_a_service_manager_that_is_gone_is_no_fault(user: Any) -> None:
    user.environ["NOTIFY_SOCKET"] = str(user.directory / "nobody")
    assert user.shell("true", "--fake", "1x1").err == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_valid(user: Any, tmp_path: Path) -> None:
    unit = tmp_path / "fluxsched.service"
    text = UNIT.read_text()
    unit.write_text(text.replace("%h/.local/bin/fluxsched", str(shutil.which("true"))))
    words = ["systemd-analyze", "--user", "verify", str(unit)]
    found = subprocess.run(words, capture_output=True, text=True, env=user.environment | {"HOME": str(tmp_path)})
    if "Failed to" in found.stderr and "fluxsched.service" not in found.stderr:
        pytest.skip(f"systemd cannot verify units here: {found.stderr.strip()}")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_the_command_of_the_unit_starts_an_instance(user: Any) -> None:
    [line] = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    program, *words = line.removeprefix("ExecStart=").replace("%h", str(user.directory)).split()
    assert program.endswith("/fluxsched")
    with user.popen(*words, "--fake", "1x1") as instance:
        while user("uri", status=None).status:
            assert instance.poll() is None
        user("run", "true")
        user("stop")
        assert instance.wait(20) == 0
    assert (user.directory / ".local/state/fluxsched/instance/state.sqlite").exists()
