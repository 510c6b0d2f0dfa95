"""Jobs outlive their instance where it has a state directory: kill -9 under running jobs, and all of them is there."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import pid_in

SAY = "echo $$ > .$0; mv .$0 $0"  # a file that appears with its text in it
STATE = ("--fake", "1x8", "--statedir", "state")


@pytest.fixture
def site(daemon: Any) -> Any:
    """An instance with a state directory."""
    return daemon(*STATE)


@pytest.fixture
def again(site: Any, daemon: Any, kill_hard: Any) -> Callable[[], Any]:
    """Kill the instance with SIGKILL, and start the next one."""

    def start() -> Any:
        kill_hard(site.pid())
        return daemon(*STATE)

    return start


def wait_for(name: str) -> str:
    """What a script does until the test has made a file."""
    return f"while [ ! -e {name} ]; do sleep .02; done"


def test_output_status_and_usage_are_complete(site: Any, again: Any, until: Any) -> None:
    job = site.running("-n2", "sh", "-c", f"echo begin; {wait_for('go')}; echo end; exit $FLUX_TASK_RANK")
    killed = site.running("sh", "-c", f"{wait_for('go')}; kill -7 $$")
    here = again()
    assert here.info(job)["state"] == "RUN"
    (site.directory / "go").touch()
    assert here("wait", job, status=None).status == 1
    assert sorted(here("job", "attach", job, status=1).out.split()) == ["begin", "begin", "end", "end"]
    here("wait", killed, status=None)
    assert (here.info(job)["returncode"], here.info(killed)["returncode"]) == (1, -7)
    events = here("job", "info", job, "eventlog", "--json").json
    assert [event["name"] for event in events].count("start") == 1
    [usage] = [event["context"]["usage"] for event in events if event["name"] == "finish"]
    assert len(usage["tasks"]) == 2
    assert usage["wall_s"] > 0


def test_jobs_that_ended_while_there_was_no_instance_are_accounted(
    site: Any, daemon: Any, kill_hard: Any, alive: Any, until: Any
) -> None:
    ended = site.running("sh", "-c", f"{SAY}; {wait_for('go')}; echo late; exit 5", "ended")
    limited = site.running("-t", "2s", "sh", "-c", f"{SAY}; exec sleep 300", "limited")
    timed = site.running("--setattr", "system.exec.test.run_duration=10ms", "true")
    pids = [pid_in(site.directory / name, until) for name in ("ended", "limited")]
    kill_hard(site.pid())
    (site.directory / "go").touch()
    until(lambda: not any(alive(pid) for pid in pids))
    here = daemon(*STATE)
    assert here("job", "attach", ended, status=5).out == "late\n"
    assert here.info(limited)["exception"]["type"] == "timeout"
    assert here.info(timed)["result"] == "COMPLETED"


@pytest.mark.slow
def test_a_job_that_ended_before_its_limit_is_no_timeout_when_it_is_found_after_it(
    site: Any, daemon: Any, kill_hard: Any, until: Any
) -> None:
    job = site.running("-t", "3s", "sh", "-c", wait_for("go"))
    ends_s = site.info(job)["expiration"]
    kill_hard(site.pid())
    (site.directory / "go").touch()
    until(lambda: time.time() > ends_s)
    here = daemon(*STATE)
    assert here("wait", job).status == 0
    assert here.info(job)["result"] == "COMPLETED"


def test_ends_moved_for_outages_are_kept_and_given_back(site: Any, again: Any, until: Any) -> None:
    job = site.running("-t", "10h", "sleep", "600")
    own_s = site.info(job)["expiration"]
    for name, begin in (("late", "+5h"), ("soon", "+2h")):
        site("outage", "add", "all", "--from", begin, "--for", "1h", "--name", name, "--end-jobs")
    until(lambda: site.info(job)["expiration"] < own_s - 7 * 3600)
    soon_s = site.info(job)["expiration"]
    here = again()
    assert here.info(job)["expiration"] == soon_s
    here("outage", "remove", "soon")
    until(lambda: here.info(job)["expiration"] > soon_s + 2 * 3600)
    assert here.info(job)["expiration"] < own_s  # the other one ends it
    here("outage", "update", "late", "--leave-jobs")
    until(lambda: here.info(job)["expiration"] == own_s)
    here("cancel", job)


def test_input_signals_and_streams_go_on(site: Any, again: Any, until: Any) -> None:
    reads = site.running("sh", "-c", "read a; echo got $a; read b; echo got $b")
    with site.real().popen("job", "attach", reads, stdin=subprocess.PIPE) as process:
        process.stdin.write("one\n")
        process.stdin.flush()
        assert process.stdout.readline() == "got one\n"
        process.kill()  # else it would find the next instance, and pass on the end of its input
        stubborn = site.running("sh", "-c", f"trap '' TERM; {SAY}; while :; do sleep .1; done", "stubborn")
        pid_in(site.directory / "stubborn", until)
        here = again()
        process.communicate()
    with here.popen("job", "attach", reads, stdin=subprocess.PIPE) as process:
        assert process.communicate("two\n", timeout=60)[0] == "got one\ngot two\n"
    here("job", "kill", "--signal", "KILL", stubborn)
    here("wait", stubborn, status=None)
    assert here.info(stubborn)["returncode"] == -9


def test_kills_of_the_instance_one_after_the_other(site: Any, daemon: Any, kill_hard: Any, keeper_of: Any) -> None:
    """And a job that was submitted by the second runs at the keeper of the first."""
    here, jobs = site, []
    for number in range(3):
        jobs.append(here.running("sh", "-c", f"echo x >> ran-{number}; {wait_for('go')}"))
        kill_hard(here.pid())
        here = daemon(*STATE)
    (site.directory / "go").touch()
    for number, jobid in enumerate(jobs):
        here("wait", jobid)
        assert (site.directory / f"ran-{number}").read_text() == "x\n"


def test_a_keeper_that_was_killed_takes_its_jobs_along_and_says_so(
    site: Any, alive: Any, until: Any, keeper_of: Any, kill_hard: Any
) -> None:
    jobid = site.submit("sh", "-c", f"trap '' TERM HUP; {SAY}; exec sleep 300", "task")
    task, first = pid_in(site.directory / "task", until), keeper_of(site.pid())
    kill_hard(first)
    assert site("wait", jobid, status=None).status != 0
    assert not alive(task)
    note = site.info(jobid)["exception"]["note"]
    assert note.startswith("the keeper of its tasks was killed; process")
    assert site("run", "echo", "on").out == "on\n"
    assert keeper_of(site.pid()) not in (None, first)


def test_what_both_left_is_ended_by_the_next_start(
    site: Any, alive: Any, until: Any, keeper_of: Any, kill_hard: Any, daemon: Any
) -> None:
    done = site.running("sh", "-c", f"{SAY}; exec sleep 300", "task")
    task, keeper = pid_in(site.directory / "task", until), keeper_of(site.pid())
    kill_hard(site.pid())
    kill_hard(keeper)
    assert alive(task)
    here = daemon(*STATE)
    assert not alive(task)
    assert here.info(done)["exception"]["note"].startswith("the instance was restarted; process")


def test_what_wiped_its_environment_ends_with_its_job(site: Any, alive: Any, until: Any) -> None:
    (site.directory / "task.sh").write_text(f"{SAY.replace('$0', '$1')}; exec sleep 300")
    other = site.running("sleep", "300")
    site("run", "sh", "-c", "env -i setsid sh task.sh writes & while [ ! -e writes ]; do sleep .02; done")
    assert not alive(pid_in(site.directory / "writes", until))
    silent = "env -i setsid sh task.sh silent > /dev/null 2>&1 < /dev/null &"
    site("run", "sh", "-c", f"{silent} while [ ! -e silent ]; do sleep .02; done")
    pid = pid_in(site.directory / "silent", until)
    assert alive(pid), "it may be of the other job that runs"
    site("cancel", other)
    site("wait", other, status=None)
    assert not alive(pid)


def test_a_restart_in_place_keeps_jobs_process_and_address(site: Any, alive: Any, until: Any, keeper_of: Any) -> None:
    job = site.running("sh", "-c", f"{wait_for('go')}; fluxsched uri; exit 3")
    waiting = site.submit("-n8", "true")
    pid, keeper = site.pid(), keeper_of(site.pid())
    assert site("restart").out == f"restarted {site.uri}\n"
    assert (site.pid(), keeper_of(pid)) == (pid, keeper)
    (site.directory / "go").touch()
    assert site("job", "attach", job, status=3).out == f"{site.uri}\n"
    site("wait", waiting)
    site("stop")
    assert not alive(pid)
    assert not alive(keeper)


def test_a_restart_keeps_the_initial_program_without_a_state_directory(user: Any) -> None:
    script = """
        job=$(fluxsched submit sh -c "while [ ! -e go ]; do sleep .02; done; echo done")
        fluxsched job wait-event $job start > /dev/null
        fluxsched restart > /dev/null
        touch go
        fluxsched job attach $job
        exit 7
    """
    assert user.shell(script, "--fake", "1x4", status=7).out == "done\n"
    assert [path.name for path in user.directory.iterdir() if path.name.startswith("fluxsched-")] == []


def test_a_restart_that_would_fail_is_refused_and_changes_nothing(user: Any, daemon: Any) -> None:
    config = user.directory / "site.toml"
    config.write_text('[exec]\nkill-timeout = "1s"\n')
    here = daemon("--fake", "1x1", "--config", "site.toml")
    config.write_text('[exec]\nkill-timeout = "soon"\n')
    assert "kill-timeout" in here("restart", status=1).err
    assert here("run", "echo", "on").out == "on\n"
