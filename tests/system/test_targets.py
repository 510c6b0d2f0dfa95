"""Targets under running jobs: drained while a job runs, moved away with and without grace, and what the jobs notice."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest


@pytest.fixture
def here(daemon: Any) -> Any:
    return daemon("--fake", "4x2")


def drained(here: Any) -> str:
    found: str = here("resource", "drain", "-n", "-o", "{state} {ranks} {reason}").word
    return found


def test_drain_while_a_job_runs(here: Any, until: Any) -> None:
    """draining while it holds the target, drained when it has ended; nothing new starts there."""
    jobid = here.submit("-N1", "-x", "sleep", "100")
    until(lambda: here.info(jobid)["state"] == "RUN")
    here("resource", "drain", "fake0", "bad", "disk")
    assert drained(here) == "draining 0 bad disk"
    assert here.info(jobid)["state"] == "RUN"
    others = [here.submit("-N1", "-x", "sleep", "100") for _ in range(3)]
    until(lambda: [here.info(other)["state"] for other in others] == ["RUN"] * 3)
    assert sorted(here.info(other)["ranks"] for other in others) == ["1", "2", "3"]
    waiting = here.submit("-N1", "-x", "true")
    here("cancel", jobid)
    until(lambda: drained(here) == "drained 0 bad disk")
    assert here.info(waiting)["state"] == "SCHED"
    here("resource", "undrain", "0")
    here("wait", waiting)
    assert drained(here) == ""


def test_a_move_ends_the_jobs_there_and_only_those(here: Any, until: Any) -> None:
    one, other = (here.submit("-N2", "-x", "sleep", "100") for _ in range(2))
    until(lambda: here.info(other)["state"] == "RUN")
    assert here.info(one)["ranks"] == "0-1"
    found = here("resource", "assign", "1", "lab")
    assert found.out == f"leaving 1: moves once released\nending 1 job there (elastic jobs shrink): {one}\n"
    found = here("wait", one, status=128 + signal.SIGTERM)
    assert "exception node-failure: " in found.err
    assert "1" in found.err
    assert here.info(other)["state"] == "RUN"
    assert here("resource", "groups", "--json").json["groups"]
    here("module", "load", "fifo", "--group", "lab")
    until(lambda: here.submit("true") and True)
    assert "only 3 such nodes" in here("submit", "-N4", "true", status=1).err


def test_a_move_with_grace_waits_for_the_jobs(here: Any, until: Any) -> None:
    jobid = here.submit("-N4", "-x", "sleep", "100")
    until(lambda: here.info(jobid)["state"] == "RUN")
    here("resource", "assign", "--graceful", "2-3", "lab")

    def groups() -> dict[str, str]:
        return {one["name"]: one["targets"] for one in here("resource", "groups", "--json").json["groups"]}

    assert "2-3" not in groups().get("lab", "")
    assert here.info(jobid)["state"] == "RUN"
    here("cancel", jobid)
    until(lambda: groups().get("lab") == "2-3")


def test_exclude_under_a_running_job_ends_it_and_include_gives_the_target_back(here: Any, until: Any) -> None:
    jobid = here.submit("-N4", "-x", "sleep", "100")
    waiting = here.submit("-N4", "true")
    until(lambda: here.info(jobid)["state"] == "RUN")
    here("resource", "exclude", "3")
    found = here("wait", jobid, status=None)
    assert "exception node-failure: " in found.err
    short = "needs 4 nodes of 1 core; the group has only 3 such nodes; it had 4 until "
    until(lambda: short in here("jobs", "-n", waiting).out)
    assert here("job", "why", waiting).line.startswith(f"SCHED: {short}")
    until(lambda: here("resource", "groups", "-n", "-o", "{name} {ranks}").out.splitlines()[-1] == "exclude 3")
    here("resource", "include", "3")
    here("wait", waiting)


def test_a_plugin_developer_sees_what_a_scheduler_sees(daemon: Any) -> None:
    here = daemon("--fake", "4x2", "--scheduler", "none")
    with here.popen("resource", "acquire") as stream:
        first = json.loads(stream.stdout.readline())
        assert (first["type"], first["online"], first["offline"]) == ("grow", "0-3", "")
        here("resource", "drain", "1-2", "x")
        assert json.loads(stream.stdout.readline()) == {"type": "offline", "targets": "1-2"}
        here("resource", "undrain", "1")
        assert json.loads(stream.stdout.readline()) == {"type": "online", "targets": "1"}
        busy = here("resource", "acquire", status=1)
        assert "default" in busy.err
        stream.send_signal(signal.SIGINT)
        stream.communicate(timeout=60)
    assert stream.returncode == 130
