"""The scheduler of rfc/own-scheduler.md, run against a real instance: it shares no code with ours."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "rfc" / "own-scheduler.md"
LINES_MAX = 100


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program that the page shows."""
    found = re.search(r"<!-- program: fcfs.py -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert sum(bool(line.strip()) for line in found[1].splitlines()) <= LINES_MAX
    program = tmp_path / "fcfs.py"
    program.write_text(found[1])
    return program


def start(program: Path, here: Any) -> subprocess.Popen[str]:
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, str(program)], env=here.environment, **out)


def test_it_serves_the_next_instance_when_its_own_is_gone(
    daemon: Any, until: Any, kill_hard: Any, program: Path
) -> None:
    options = ("--fake", "4x4", "--scheduler", "none", "--statedir", "state")
    here = daemon(*options)
    scheduler = start(program, here)
    try:
        until(lambda: here("run", "-n", "3", "true", status=None).status == 0)
        jobid = here.running("-n", "8", "sleep", "100")
        kill_hard(here.pid())
        daemon(*options)
        until(lambda: here("run", "-n", "8", "true", status=None).status == 0)
        waiting = here.submit("-n", "9", "true")
        until(lambda: here("job", "why", waiting).line == "SCHED: needs 9 cores; 8 are free")
        here("restart")
        here("cancel", jobid)
        here("wait", waiting)
        assert scheduler.poll() is None
    finally:
        scheduler.kill()
        said = scheduler.communicate()[0]
    assert said == ""


def test_the_scheduler_of_the_page_does_all_that_is_asked_of_one(daemon: Any, until: Any, program: Path) -> None:
    here = daemon("--fake", "4x4", "--scheduler", "none")

    def started() -> subprocess.Popen[str]:
        return start(program, here)

    def state(jobid: str) -> str:
        return str(here("jobs", "-a", "-n", "-o", "{status_abbrev}", jobid).word)

    scheduler = started()
    until(lambda: here("run", "-n", "3", "true", status=None).status == 0)
    assert "can never run: there are not as many cores" in here("run", "-n", "17", "true", status=1).err
    here("resource", "drain", "0", "bad")
    running = here.running("-n", "8", "sleep", "100")
    waiting = here.submit("-n", "8", "true")
    until(lambda: here("job", "why", waiting).line == "SCHED: needs 8 cores; 4 are free")
    urgent = here.submit("-n", "5", "--urgency", "17", "true")
    here("cancel", urgent)
    scheduler.send_signal(signal.SIGKILL)
    scheduler.communicate()
    scheduler = started()  # hello finds the job that runs
    until(lambda: here("job", "why", waiting).line == "SCHED: needs 8 cores; 4 are free")
    assert state(running) == "R"
    here("resource", "assign", "1", "spare")  # the job there ends, and its target is released
    here("wait", waiting)
    until(lambda: state(running) == "F")
    until(lambda: "spare" in here("resource", "groups").out)
    here("resource", "assign", "1", "default")
    here("resource", "undrain", "0")
    here("run", "-n", "16", "true")
    assert scheduler.poll() is None
    scheduler.kill()
    assert scheduler.communicate()[0] == ""
