"""Jobs that go again in real instances, which are killed: the next one submits them again, once, in their old place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

NOTE = "for job ƒX of default/ann"
OPTIONS = ("--fake", "1x1", "--statedir", "state")
REQUEUE = ("--setattr", "system.fluxsched.requeue=3")
STUBBORN = "trap '' TERM; echo $FLUX_JOB_ID >> ran; while [ ! -e end ]; do sleep 0.02; done"


def events(here: Any, jobid: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = here("job", "info", jobid, "eventlog", "--json").json
    return found


def continued(here: Any, jobid: str) -> dict[str, Any]:
    """The job that continues another, the only one."""
    info = here.info(jobid)
    found = [job for job in here("jobs", "-a", "--json").json["jobs"] if job.get("requeue_of") == info["id"]]
    assert [job["id"] for job in found] == [info["requeued_as"]]
    return found[0]


def test_a_job_is_submitted_again_once_wherever_its_instance_is_killed(
    user: Any, daemon: Any, kill_hard: Any, until: Any
) -> None:
    (user.directory / "site.toml").write_text('[exec]\npreempt-timeout = "1h"\n')
    options = (*OPTIONS, "--config", "site.toml")
    here = daemon(*options)
    ran = Path(here.directory, "ran")
    first = here.running(*REQUEUE, "bash", "-c", STUBBORN)
    until(ran.exists)
    later = here.submit("true")
    then = here.submit("--dependency", f"afterok:{first}", "true")
    here("job", "raise", "-t", "preempt", "-m", NOTE, first)
    assert here.info(first)["state"] == "CLEANUP", "it does not want to end"
    kill_hard(here.pid())  # the exception is stored, and the job still runs
    here = daemon(*options)
    assert here.info(first)["state"] == "CLEANUP", "and has an hour to end"
    here("job", "kill", "--signal", "KILL", first)
    here("job", "wait-event", first, "clean")
    second = continued(here, first)
    assert here.info(first)["exception"] == {"type": "preempt", "severity": 0, "note": NOTE, "userid": second["userid"]}
    until(lambda: len(ran.read_text().split()) == 2)
    assert here.info(later)["state"] == "SCHED", "the job that was preempted stands before it"
    assert here.info(then)["dependencies"] == [f"afterok={here('job', 'id', '--to', 'f58', second['id']).word}"]
    kill_hard(here.pid())  # the second attempt runs and nobody has preempted it
    here = daemon(*options)
    assert here.info(str(second["id"]))["state"] == "RUN"
    (here.directory / "end").touch()
    for job in (first, then, later):
        here("wait", job)
    assert len(ran.read_text().split()) == 2


def test_an_attempt_that_waits_outlives_its_instance(user: Any, daemon: Any, kill_hard: Any, until: Any) -> None:
    here = daemon(*OPTIONS)
    first = here.running(*REQUEUE, "sh", "-c", "while [ ! -e end ]; do sleep 0.02; done")
    urgent = here.submit("--urgency", "expedite", "sleep", "1000")
    here("job", "raise", "-t", "preempt", "-m", NOTE, first)
    here("job", "wait-event", urgent, "start")
    second = continued(here, first)
    assert (second["state"], second["attempt"]) == ("SCHED", 1)
    kill_hard(here.pid())
    here = daemon(*OPTIONS)
    assert continued(here, first)["id"] == second["id"]
    here("cancel", urgent)
    (here.directory / "end").touch()
    assert here("wait", first).status == 0
    assert [event["name"] for event in events(here, first)][-1] == "clean"
    assert here.info(str(second["id"]))["result"] == "COMPLETED"


def test_a_job_on_its_way_is_canceled_in_the_usual_time_and_for_good(user: Any, daemon: Any, until: Any) -> None:
    (user.directory / "site.toml").write_text('[exec]\nkill-timeout = "100ms"\npreempt-timeout = "1h"\n')
    here = daemon(*OPTIONS, "--config", "site.toml")
    first = here.running(*REQUEUE, "bash", "-c", STUBBORN)
    until(Path(here.directory, "ran").exists)
    here("job", "raise", "-t", "preempt", "-m", NOTE, first)
    here("cancel", first)
    assert here("wait", first, status=137).err == f"fluxsched: wait: {first}: exception preempt: {NOTE}\n"
    assert "requeued_as" not in here.info(first)
    assert here("jobs", "--json").json == {"jobs": []}


def test_an_instance_that_is_stopped_keeps_what_it_has_preempted(user: Any, daemon: Any, until: Any) -> None:
    (user.directory / "site.toml").write_text('[exec]\nkill-timeout = "100ms"\npreempt-timeout = "1h"\n')
    options = (*OPTIONS, "--config", "site.toml")
    here = daemon(*options)
    first = here.running(*REQUEUE, "bash", "-c", STUBBORN)
    until(Path(here.directory, "ran").exists)
    here("job", "raise", "-t", "preempt", "-m", NOTE, first)
    here("stop")
    here = daemon(*options)
    assert continued(here, first)["attempt"] == 1
    until(lambda: len(Path(here.directory, "ran").read_text().split()) == 2)
    (here.directory / "end").touch()
    here("wait", first)


def test_a_retry_in_its_pause_outlives_its_instance(user: Any, daemon: Any, kill_hard: Any) -> None:
    here = daemon(*OPTIONS)
    script = "echo $FLUX_JOB_ID >> ran; test -e end || exit 75"
    options = ("--requeue", "3", "--retry-on", "exit:75", "--retry-pause", "3s")
    first = here.submit(*options, "sh", "-c", script)
    here("job", "wait-event", first, "clean")
    second = continued(here, first)
    assert (second["state"], second["attempt"]) == ("DEPEND", 1)
    kill_hard(here.pid())
    (here.directory / "end").touch()
    here = daemon(*OPTIONS)
    assert continued(here, first)["id"] == second["id"]
    here("wait", first)
    assert len(Path(here.directory, "ran").read_text().split()) == 2
    info = here("job", "info", str(second["id"])).out
    assert f"attempt before: {first}: exited 75 on fake0, " in info
    assert "used by all attempts: " in info


def test_a_running_job_waits_again_when_its_user_says_so(user: Any, daemon: Any) -> None:
    here = daemon(*OPTIONS)
    first = here.running("sleep", "1000")
    waiting = here.submit("true")
    refused = here("requeue", waiting, status=1).err
    assert "is in state SCHED: it waits already, only a running job is requeued" in refused
    here("requeue", "-m", "try elsewhere", first)
    here("job", "wait-event", first, "clean")
    second = continued(here, first)
    here("job", "wait-event", str(second["id"]), "start")
    assert here("job", "why", first).out.startswith("INACTIVE: it has ended: exception requeue: try elsewhere; ")
    here("requeue", first)  # which means the attempt that runs
    here("job", "wait-event", str(second["id"]), "clean")
    third = continued(here, str(second["id"]))
    here("cancel", first)
    here("wait", waiting)
    refused = here("requeue", str(third["id"]), status=1).err
    command = re.search("has ended, only a running job is requeued: submit it again by `fluxsched (.*)`\n", refused)[1]
    info, submit = (words.split() for words in command.split(" | fluxsched "))
    jobspec = here.directory / "jobspec"
    jobspec.write_text(here(*info).out)
    again = here(*submit, jobspec).line
    assert again not in here(*info[:-1]).out
    here("cancel", again)
