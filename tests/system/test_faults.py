"""kill -9 of the instance and its keeper with jobs running: what they left is dead before its cores count as free."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest


def processes(pattern: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split() if int(pid) != os.getpid()]


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """A word that only processes of this test have in their command line."""
    return f"k2-{os.getpid()}-{time.monotonic_ns()}"


def test_jobs_of_a_killed_instance_are_dead_before_their_targets_are_free(
    user: Any, daemon: Any, kill_hard: Any, alive: Any, until: Any, mark: str, keeper_of: Any
) -> None:
    options = ("--fake", "2x2", "--statedir", "state")
    here = daemon(*options)
    stubborn = f"trap '' TERM HUP; (exec -a {mark} sleep 321) & exec -a {mark} sleep 321"
    running = [here.submit("bash", "-c", stubborn) for _ in range(2)]
    timed = here.submit("--setattr", "system.exec.test.run_duration=100s", "true")
    queued = here.submit("-n4", "true")
    done = here.submit("--urgency", "expedite", "true")
    until(lambda: len(processes(mark)) >= 4)
    here("wait", done)
    here("resource", "drain", "1", "flaky")
    left = processes(mark)
    module = next(mod["pid"] for mod in here("module", "list", "--json").json["mods"] if mod["name"] == "sched-fifo")
    keeper = keeper_of(here.pid())
    kill_hard(here.pid())
    until(lambda: not alive(module))
    kill_hard(keeper)
    assert all(alive(pid) for pid in left)
    again = daemon(*options)
    assert not [pid for pid in left if alive(pid)]
    for jobid in running:
        info = again.info(jobid)
        assert (info["state"], info["result"], info["exception"]["type"]) == ("INACTIVE", "FAILED", "exec")
        assert "the instance was restarted; " in info["exception"]["note"]
        assert "of the job outlived it and had to be killed" in info["exception"]["note"]
        assert again("wait", jobid, status=None).status != 0
    assert again.info(timed)["state"] == "RUN", "time passes without processes"
    again("cancel", timed)
    assert again.info(done)["result"] == "COMPLETED"
    until(lambda: again("job", "why", queued).line.startswith("SCHED: needs 4 slots of 1 core; "))
    assert again("resource", "drain", "-n", "-o", "{ranks} {state} {reason}").word == "1 drained flaky"
    again("resource", "undrain", "1")
    again("wait", queued)
    names = [event["name"] for event in again("job", "info", running[0], "eventlog", "--json").json]
    assert "flux-restart" in names
    assert names[-1] == "clean"


def test_a_job_behind_its_gate_never_runs_when_the_instance_dies(daemon: Any, kill_hard: Any, until: Any) -> None:
    """Submits stop at every point when the instance is killed; what was answered is there after the restart."""
    options = ("--fake", "8x8", "--statedir", "state")
    here = daemon(*options)
    with here.popen("submit", "--cc", "0-199", "sh", "-c", "echo x >> ran-$FLUX_JOB_CC") as submit:
        first = submit.stdout.readline().strip()
        kill_hard(here.pid())
        out, err = submit.stdout.read(), submit.stderr.read()  # communicate() would miss what came with the first line
        submit.wait(timeout=60)
    answered = [first, *out.split()]
    assert submit.returncode == (0 if len(answered) == 200 else 1), err
    again = daemon(*options)
    with again.connect() as handle:
        for job in handle.rpc("job-manager.list", {"states": ["active"]})["jobs"]:
            handle.wait(job["id"], timeout_s=20)
        jobs = handle.rpc("job-manager.list", {"max_entries": 0})["jobs"]
    assert len(jobs) >= len(answered)
    assert {job["state"] for job in jobs} == {"INACTIVE"}
    runs = [len(path.read_text().split()) for path in here.directory.glob("ran-*")]
    assert set(runs) <= {1}
    assert len(runs) >= sum(job["result"] == "COMPLETED" for job in jobs)


def test_a_restart_on_other_resources_keeps_what_it_can(daemon: Any, kill_hard: Any, until: Any) -> None:
    here = daemon("--fake", "4x2", "--statedir", "state")
    waiting = here.submit("-N4", "--urgency", "hold", "true")
    here("resource", "drain", "3", "fan")
    kill_hard(here.pid())
    again = daemon("--fake", "2x2", "--statedir", "state")
    again("urgency", waiting, "16")
    until(lambda: "the group has only 2 such nodes, at least since " in again("job", "why", waiting).out)


def test_a_client_sees_the_death_of_its_instance(daemon: Any, kill_hard: Any, mark: str) -> None:
    here = daemon("--fake", "1x1")
    with here.popen("run", "bash", "-c", f"echo up; exec -a {mark} sleep 600") as run:
        assert run.stdout.readline() == "up\n"
        kill_hard(here.pid())
        _, err = run.communicate(timeout=60)
    assert run.returncode == 1
    jobid = err.split()[-1]
    assert f"closed the connection; {jobid} may go on: fluxsched job attach {jobid}\n" in err
    found = here("jobs", status=1)
    assert found.err.startswith(f"fluxsched: jobs: nothing listens at {here.uri}")
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)


def test_one_state_directory_whose_database_is_not_ours(user: Any, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "state.sqlite").write_bytes(b"this is no database" * 100)
    found = user.process("start", "--fake", "1x1", "--statedir", "state", "--", "true", status=1)
    assert found.err.startswith("fluxsched: start: state/state.sqlite is damaged: file is not a database. 0 jobs and ")
    assert "lost: everything (file is not a database). Nothing was changed: restore a backup" in found.err
