"""The life of jobs by commands: submit, wait, jobs, cancel, urgency, kill, update, job info and why, dependencies."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _leave_nothing_behind(site: Any) -> Any:
    yield
    site("cancel", "--all")
    with site.connect() as handle:
        for job in handle.rpc("job-manager.list", {"states": ["active"]})["jobs"]:
            handle.wait(job["id"], timeout_s=20)


@pytest.fixture
def full(site: Any) -> str:
    """A job that holds the whole machine."""
    jobid: str = site.running("-N4", "-x", "sleep", "100")
    return jobid


def test_submit_prints_an_id_that_every_command_takes(site: Any) -> None:
    jobid = site.submit("--job-name", "hello", "sh", "-c", "exit 5")
    decimal, plain = site("job", "id", jobid).word, site("job", "id", "--to", "f58plain", jobid).word
    for text in (jobid, decimal, plain):
        assert site("wait", text, status=5).err == f"fluxsched: wait: {jobid}: exit code 5\n"
    found = site("wait", "--json", jobid, status=5).json
    assert (found["id"], found["success"], found["status"]) == (int(decimal), False, 5 << 8)


def test_copies_and_waiting_for_them(site: Any) -> None:
    found = site("submit", "--cc", "0-3", "--wait", "sh", "-c", "exit {cc}", status=3)
    assert len(found.out.split()) == 4
    ends = sorted(line.rsplit(": ", 1)[1] for line in found.err.splitlines())  # they are told as they end
    assert ends == [f"exit code {n}" for n in (1, 2, 3)]
    site("wait", "--all")


def test_eventlog_info_and_every_json(site: Any) -> None:
    jobid = site.submit("-N2", "-n2", "true")
    site("wait", jobid)
    names = [line.split()[1] for line in site("job", "eventlog", jobid).out.splitlines()]
    assert names == ["submit", "validate", "depend", "priority", "alloc", "start", "finish", "release", "free", "clean"]
    assert [json.loads(line)["name"] for line in site("job", "eventlog", "--json", jobid).out.splitlines()] == names
    assert site("job", "wait-event", jobid, "alloc").out.split()[1] == "alloc"
    resources = site("job", "info", jobid, "R").json
    assert resources["execution"]["R_lite"] == [{"rank": "0-1", "children": {"core": "0"}}]
    assert site("job", "info", jobid, "jobspec").json["tasks"][0]["command"] == ["true"]
    assert "nodelist: fake[0-1]" in site("job", "info", jobid).out.splitlines()
    assert site("jobs", "--json", jobid).json["jobs"][0]["result"] == "COMPLETED"
    assert site("job", "why", "--json", jobid).json["state"] == "INACTIVE"
    assert site("queue", "status", "--json").json["queues"][0]["enable"] is True
    assert {mod["name"] for mod in site("module", "list", "--json").json["mods"]} >= {"resource", "sched-fifo"}
    assert site("module", "stats", "sched-fifo").json["policy"] == "fifo"
    assert site("ping", "-c1", "--json", "sched-fifo").json["route"] == "sched-fifo"
    assert site("submit", "--json", "true").json["ids"]
    assert site("resource", "status", "--json").json["online"] == "0-3"


def test_jobs_shows_pending_running_and_ended(site: Any, full: str, until: Any) -> None:
    waiting = site.submit("-n", "2", "true")
    listed = site("jobs", "-n", "-o", "{id.f58} {status_abbrev}").out.splitlines()
    assert [line.split() for line in listed] == [[waiting, "S"], [full, "R"]]  # a later id may be a character longer
    until(lambda: "needs 2 slots" in site("jobs").out)  # the scheduler says why a moment after the submit is answered
    table = site("jobs").out.splitlines()
    assert table[0].split() == ["JOBID", "USER", "NAME", "ST", "NTASKS", "NNODES", "TIME", "INFO"]
    assert table[1].endswith("needs 2 slots of 1 core; none is free")
    assert table[2].endswith("fake[0-3]")
    assert site("jobs", "-n", "-f", "running", "-o", "{id.f58}").word == full
    site("cancel", full)
    site("wait", waiting)
    done = site("jobs", "-n", "-f", "completed", "-o", "{id.f58}", "-c", "1").word
    assert done == waiting


def test_cancel_of_a_job_that_ignores_sigterm(user: Any, daemon: Any, tmp_path: Any) -> None:
    """SIGTERM, then SIGKILL to the whole process group after the kill timeout."""
    config = tmp_path / "site.toml"
    config.write_text('[exec]\nkill-timeout = "2s"\n')
    here = daemon("--config", config, "--fake", "1x1")
    with here.popen("run", "sh", "-c", "trap 'echo told' TERM; (trap '' TERM; sleep 600) & echo up; wait; wait") as run:
        assert run.stdout.readline() == "up\n"
        jobid = here("jobs", "-n", "-o", "{id.f58}").word
        here("cancel", jobid)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGKILL or run.returncode == 128 + signal.SIGTERM
    assert out == "told\n"
    assert err.endswith(f"{jobid}: exception cancel\n")


def test_a_time_limit_ends_the_job(site: Any) -> None:
    found = site("run", "-t", "2s", "sh", "-c", "trap 'echo term; exit 0' TERM; sleep 97 & wait", status=1)
    assert found.out == "term\n"
    assert found.err.endswith("exception timeout: resource allocation expired: its time limit was 2s\n")
    newest = site("jobs", "-a", "-c1", "-n", "-o", "{result} {status_abbrev}").word
    assert newest == "TIMEOUT TO"


def test_a_duration_is_changed_while_the_job_runs(site: Any) -> None:
    jobid = site.submit("-t", "1m", "sleep", "100")
    site("update", jobid, "duration=+1m")
    assert site.info(jobid)["duration"] == pytest.approx(120.0)
    site("update", jobid, "duration=1.5s")  # it may have run for a while on a busy machine
    assert site("wait", jobid, status=None).err.endswith("its time limit was 1.5s\n")


def test_kill_sends_any_signal(site: Any) -> None:
    with site.popen("run", "sh", "-c", "trap 'echo usr1' USR1; echo up; while :; do sleep .05; done") as run:
        assert run.stdout.readline() == "up\n"
        jobid = site("jobs", "-n", "-o", "{id.f58}").word
        site("kill", "-s", "USR1", jobid)
        assert run.stdout.readline() == "usr1\n"
        site("kill", "-s", "9", jobid)
        run.communicate(timeout=60)
    assert run.returncode == 137
