"""`fluxsched doctor`: what it says of a sound machine, and of each thing that is not as it should be."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from fluxsched.doctor import homes
from fluxsched.errors import Disconnected
from fluxsched.system.files import INFO_NAME, PREFIX

GOLDEN = r"""
Installed
  ok    Python                    3\.\d+\.\d+\S*, .*
  ok    fluxsched                 \d+\.\d+\.\d+\S*, .*
  ok    click                     [\d.]+
  ok    msgspec                   [\d.]+
  ok    pyzmq                     [\d.]+
  ok    SQLite                    3\.[\d.]+
  (ok|-)    +matplotlib                .*
  (ok|-)    +msgpack                   .*
  (ok|-)    +starlette                 .*
  (ok|-)    +textual                   .*
  (ok|-)    +grpcio                    .*
  (ok|-)    +protobuf                  .*
  (ok|-)    +PyYAML                    .*
  (ok|-)    +hwloc                     .*
  (ok|-)    +MPI                       .*
  (ok|-)    +cgroup v2                 .*
  (ok|warn)    *open files                .*
Directories
  ok    run directories           HERE
  ok    space for run directories  \d+ MiB free
  ok    logs                      HERE/\.state/fluxsched/logs
  ok    clock                     set, and consistent with file times
Where schedulers run
  ok    an instance               started, ran a job and ended in \d+\.\d s
  -     inside Flux               no flux on PATH
  ok    the simulator             simulated 20 jobs
"""


@pytest.fixture
def without_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second, and one test of them is enough."""
    monkeypatch.setattr("fluxsched.doctor.homes.homes", lambda: iter(()))


def named(found: Any, name: str) -> tuple[str, str]:
    """State and words of one check."""
    [check] = [check for check in found.json["checks"] if check["name"] == name]
    assert check["remedy"] or check["state"] == "ok"
    return check["state"], f"{check['found']} -> {check['remedy']}"


def test_a_sound_machine(user: Any) -> None:
    user.environ["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    found = user("doctor")
    lines = [line for line in found.out.splitlines() if not line.lstrip().startswith("->")]
    golden = GOLDEN.strip().replace("HERE", re.escape(str(user.directory))).splitlines()
    assert len(lines) == len(golden), found.out
    for line, pattern in zip(lines, golden, strict=True):
        assert re.fullmatch(pattern, line), (pattern, line)
    assert not [path for path in user.directory.iterdir() if path.name != ".state"], "it leaves nothing"


@pytest.mark.usefixtures("without_homes")
def test_what_is_not_installed_comes_with_the_way_to_get_it(user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def version_or_none(name: str) -> str:
        if name in ("matplotlib", "PyYAML"):
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", version_or_none)
    user.environ["PATH"] = str(user.directory)
    found = user("doctor", "--json")
    assert found.json["ok"] is True
    assert named(found, "matplotlib") == (
        "none", "not installed; `fluxsched sim --plot` needs it -> pip install 'fluxsched[plots]'"
    )  # fmt: skip
    assert named(found, "PyYAML")[1] == "not installed; `fluxsched si` needs it -> pip install 'fluxsched[si]'"
    assert named(found, "hwloc")[0] == named(found, "MPI")[0] == "none"


@pytest.mark.usefixtures("without_homes")
def test_a_dependency_that_is_missing_is_named_without_a_traceback(user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fluxsched.doctor.homes", None)
    found = user("doctor", "--json", status=1)
    assert named(found, "all")[0] == "fail"


@pytest.mark.usefixtures("without_homes")
def test_a_state_directory_is_looked_at(user: Any, daemon: Any) -> None:
    state = user.directory / "state"
    found = user("doctor", "--json", "--statedir", "state")
    assert named(found, "state directory")[0] == "none"
    here = daemon("--fake", "2x1", "--statedir", "state")
    here("run", "true")
    found = user("doctor", "--json", "--statedir", "state")
    assert named(found, "state directory") == ("ok", "state, in use -> ")
    assert named(found, f"process {here.pid()}")[1].startswith(f"{here.uri}, targets: 2, state in ")
    here("stop")
    assert named(user("doctor", "--json", "--statedir", "state"), "stored state")[1].startswith("1 jobs, ")
    state.chmod(0o755)
    state_of = named(user("doctor", "--json", "--statedir", "state"), "state directory")
    assert state_of == ("warn", "state has mode 0755: others may access jobs and their output -> chmod 700 state")
    (state / "state.sqlite").write_bytes(b"no database" * 1000)
    found = user("doctor", "--json", "--statedir", "state", status=1)
    assert named(found, "stored state")[0] == "fail"
    assert "file is not a database" in named(found, "stored state")[1]


@pytest.mark.usefixtures("without_homes")
def test_instances_that_are_silent_or_were_killed_are_named(
    user: Any, daemon: Any, kill_hard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fluxsched.doctor.homes.ANSWER_S", 0.3)
    killed, silent = daemon("--fake", "1x1", "--statedir", "state"), daemon("--fake", "1x1")
    kill_hard(killed.pid())
    pid = silent.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        found = user("doctor", "--json", status=1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert named(found, f"process {pid}")[0] == "fail"
    assert "does not answer" in named(found, f"process {pid}")[1]
    assert named(found, "left behind")[1].startswith(
        f"1 run directories of killed instances: {Path(killed.uri.removeprefix('ipc://')).parent}"
    )
    assert named(found, "last end")[1].startswith("the last instance ended unexpectedly after ")


@pytest.mark.usefixtures("without_homes")
def test_an_instance_that_ends_while_it_is_asked_is_no_fault(
    user: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = daemon("--fake", "1x1")
    pid = here.pid()

    def ended(*_: object) -> None:
        os.kill(pid, signal.SIGTERM)
        raise Disconnected("the instance closed the connection")

    monkeypatch.setattr("fluxsched.doctor.homes.Handle", ended)
    assert not [check for check in user("doctor", "--json").json["checks"] if check["section"] == homes.INSTANCES]


@pytest.mark.usefixtures("without_homes")
def test_the_directory_of_a_hosts_keeper_is_no_instance(user: Any) -> None:
    user.environ["XDG_RUNTIME_DIR"] = str(user.directory)
    keeper = user.directory / f"{PREFIX}{os.getuid()}-keeper"
    keeper.mkdir()
    keeper.joinpath(INFO_NAME).write_text(json.dumps({"pid": os.getpid()}))
    assert not [check for check in user("doctor", "--json").json["checks"] if check["section"] == homes.INSTANCES]


@pytest.mark.usefixtures("without_homes")
def test_a_run_directory_that_cannot_be_used(user: Any) -> None:
    long = user.directory / ("x" * 100)
    long.mkdir()
    user.environ["XDG_RUNTIME_DIR"] = str(long)
    found = user("doctor", "--json", status=1)
    said = named(found, "run directories")[1]
    assert "is too long for a socket in it (limit 107 bytes) -> set XDG_RUNTIME_DIR" in said
    user.environ |= {"XDG_RUNTIME_DIR": str(user.directory / "gone"), "FLUXSCHED_TMPDIR": str(user.directory)}
    assert named(user("doctor", "--json"), "run directories")[0] == "warn"


def test_a_flux_that_cannot_load_us_is_a_fault_and_no_flux_is_none(user: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    flux = user.directory / "flux"
    flux.write_text("#!/bin/sh\necho libflux-core: 0.50.0\n")
    flux.chmod(0o755)
    monkeypatch.setenv("PATH", f"{user.directory}:/usr/bin:/bin")
    check = homes._flux()
    assert (check.state, check.found) == (
        "fail", f"{flux} is flux-core 0.50: the module needs 0.88 or later"
    )  # fmt: skip
    monkeypatch.setenv("PATH", "/nowhere")
    assert homes._flux().state == "none"


def test_an_instance_that_runs_no_job_is_a_fault_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    check = homes._own_instance()
    assert (check.state, check.found) == ("fail", "ran no job: exit status 1")
