"""The life of jobs by commands: submit, wait, jobs, cancel, urgency, kill, update, job info and why, dependencies."""

from __future__ import annotations

import json
import signal
import time
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


def state(site: Any, jobid: str) -> str:
    found: str = site.info(jobid)["state"]
    return found


def why(site: Any, jobid: str) -> str:
    found: str = site("job", "why", jobid).line
    return found


def test_submit_prints_an_id_that_every_command_takes(site: Any) -> None:
    jobid = site.submit("--job-name", "hello", "sh", "-c", "exit 5")
    decimal, plain = site("job", "id", jobid).word, site("job", "id", "--to", "f58plain", jobid).word
    for text in (jobid, decimal, plain):
        found = site("wait", text, status=5)
        assert found.err == f"fluxsched: wait: {jobid}: exit code 5\n"
    assert site("jobs", "-n", "-o", "{id.f58} {name} {status} {ntasks}", jobid).word == f"{jobid} hello FAILED 1"
    assert why(site, jobid) == "INACTIVE: it has ended: exit code 5"
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
    assert "1234" not in site("jobs", "-a").out
    assert site("jobs", "1234", status=1).err == "fluxsched: jobs: no such job: 1234\n"


def test_cancel_says_so_and_names_all_that_it_could_not(site: Any, full: str) -> None:
    site("cancel", "-m", "enough of it", full)
    found = site("wait", full, status=128 + signal.SIGTERM)
    assert found.err == f"fluxsched: wait: {full}: exception cancel: enough of it\n"
    found = site("cancel", full, "1234", status=1)
    assert found.err == (
        f"fluxsched: cancel: job {full} has ended: it cannot be changed any more; "
        "job ƒNH is not known: it never existed, or it ended so long ago that only its record is left\n"
    )


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
    jobid = site.submit("-t", "4s", "sleep", "5")
    site("update", jobid, "duration=+1m")
    site("wait", jobid)
    assert site.info(jobid)["duration"] == pytest.approx(64.0)
    other = site.submit("-t", "1m", "sleep", "100")
    site("update", other, "duration=1.5s")  # it may have run for a while on a busy machine
    assert site("wait", other, status=None).err.endswith("its time limit was 1.5s\n")


def test_kill_sends_any_signal(site: Any) -> None:
    with site.popen("run", "sh", "-c", "trap 'echo usr1' USR1; echo up; while :; do sleep .05; done") as run:
        assert run.stdout.readline() == "up\n"
        jobid = site("jobs", "-n", "-o", "{id.f58}").word
        site("kill", "-s", "USR1", jobid)
        assert run.stdout.readline() == "usr1\n"
        site("kill", "-s", "9", jobid)
        run.communicate(timeout=60)
    assert run.returncode == 137
    found = site("kill", jobid, status=1)
    assert found.err == f"fluxsched: kill: job {jobid} has ended: it cannot be changed any more\n"
    assert site("kill", "-s", "NOPE", jobid, status=2).err.endswith(
        "'NOPE' is not a signal: give a name such as TERM or a number 1..64\n"
    )


def test_urgency_orders_holds_and_expedites(site: Any, full: str) -> None:
    low, high, held = site.submit("-N4", "true"), site.submit("-N4", "true"), site.submit("--urgency", "hold", "true")
    assert why(site, low) == "SCHED: needs 4 nodes of 1 slot of 1 core; none is free, 4 nodes are busy"
    assert why(site, high) == "SCHED: waits its turn; 1 ahead of it in the queue"
    assert why(site, held) == "SCHED: it is held: its urgency is 0"
    assert site("urgency", "-v", high, "expedite").out == "old urgency: 16\n"
    site("urgency", low, "hold")
    assert site("jobs", "-n", "-o", "{id.f58} {urgency} {contextual_info}", low).word == f"{low} 0 held"
    site("cancel", full)
    site("wait", high)
    assert [state(site, low), state(site, held)] == ["SCHED", "SCHED"]
    site("urgency", low, "default")
    site("urgency", held, "1")
    site("wait", low, held)
    assert site("urgency", low, "32", status=2).err.endswith("urgency '32' is not 0..31, hold, default, expedite\n")
    assert site("urgency", low, "3", status=1).err.endswith("has ended: it cannot be changed any more\n")


def test_dependencies(site: Any) -> None:
    gate = site.submit("--urgency", "hold", "false")
    ok = site.submit("--dependency", f"afterok:{gate}", "true")
    anyhow = site.submit("--dependency", f"afterany:{gate}", "true")
    later = site.submit("--dependency", f"after:{gate}", "true")
    assert why(site, ok) == f"DEPEND: waits for its dependencies: afterok={gate}"
    assert site("jobs", "-n", "-o", "{contextual_info}", later).word == f"depends:after={gate}"
    site("urgency", gate, "16")
    site("wait", anyhow, later)
    assert site("wait", ok, status=1).err.endswith(f"exception depend: afterok={gate}: job {gate} did not succeed\n")
    found = site("submit", "--dependency", "afterok:1234", "true", status=1)
    assert found.err == "fluxsched: submit: dependency afterok=1234: no such job is known\n"
    assert site("submit", "--dependency", "sometime", "true", status=2).err.endswith(
        "dependency 'sometime' is neither SCHEME:VALUE, such as afterok:JOBID, nor singleton\n"
    )
    assert "'string' is not known" in site("submit", "--dependency", "string:x", "true", status=1).err


def test_begin_time(site: Any) -> None:
    begin_s = time.time()
    jobid = site.submit("--begin-time", "+600ms", "true")
    assert why(site, jobid).startswith("DEPEND: waits for its dependencies: begin-time=")
    site("wait", jobid)
    assert site.info(jobid)["t_run"] >= begin_s + 0.6


def test_queue_stop_nosuch_is_refused_and_the_queue_is_stopped_and_disabled(site: Any) -> None:
    for verb, words in (("stop", ["nosuch"]), ("start", ["nosuch"]), ("enable", ["-q", "nosuch"]), ("disable", [""]),
                        ("show", ["nosuch"])):  # fmt: skip
        refused = site("queue", "status" if verb == "show" else verb, *words, status=1).err
        assert f"cannot {verb} queue {words[-1]!r}, which does not exist: this instance has one queue" in refused
    assert site("queue", "status").out.startswith("Job submission is enabled\nScheduling is started\n")
    site("queue", "stop", "--all", "for", "lunch")
    assert site("queue", "status").out.splitlines()[1] == "Scheduling is stopped: for lunch"
    jobid = site.submit("true")
    assert why(site, jobid) == "SCHED: the queue is stopped: for lunch"
    site("queue", "disable", "-m", "closed for today")
    assert site("submit", "true", status=1).err == "fluxsched: submit: the queue accepts no jobs: closed for today\n"
    assert site("queue", "list", "-n", "-o", "{enabled} {started} {reason}").word == "✗ ✗ closed for today; for lunch"
    site("queue", "enable")
    site("queue", "start")
    site("wait", jobid)
    assert site("submit", "-q", "x", "true", status=1).err.startswith("fluxsched: submit: queue 'x' does not exist")
