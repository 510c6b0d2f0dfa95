"""What was used is known after the instance was killed."""

from __future__ import annotations

import os
import signal
from typing import Any


def test_a_report_has_the_jobs_of_an_instance_that_was_killed(user: Any, daemon: Any, until: Any, alive: Any) -> None:
    here = daemon("--fake", "2x2", "--statedir", "state")
    here("wait", *(here.submit("--setattr=system.exec.test.run_duration=10ms", "true") for _ in range(3)))
    assert here("report", "--json").json["total"]["jobs"] == 3, "accounts are written before they are told"
    here("wait", here.submit("-n2", "--setattr=system.exec.test.run_duration=10ms", "true"))
    pid = here.pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    again = daemon("--fake", "2x2", "--statedir", "state")
    total = again("report", "--json", "--by", "queue").json["total"]
    assert (total["jobs"], total["waits"]) == (4, 4)
    assert "lost to drains" not in again("report").out
