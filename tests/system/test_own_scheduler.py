"""The scheduler of rfc/own-scheduler.md, run against a real instance: it shares no code with ours."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "rfc" / "own-scheduler.md"
LINES_MAX = 100


def test_the_scheduler_of_the_page_does_all_that_is_asked_of_one(daemon: Any, until: Any, tmp_path: Path) -> None:
    found = re.search(r"<!-- program: fcfs.py -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    program = tmp_path / "fcfs.py"
    program.write_text(found[1])
    assert sum(bool(line.strip()) for line in found[1].splitlines()) <= LINES_MAX
    here = daemon("--fake", "4x4", "--scheduler", "none")

    def started() -> subprocess.Popen[str]:
        words = [sys.executable, str(program)]
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(words, env=here.environment, **out)

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
