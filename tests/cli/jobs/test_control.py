"""Commands on jobs that options select, and waiting for many: cancel, kill, urgency, wait."""

from __future__ import annotations

import json
import os

import pytest

from fluxsched.errors import Refused

ACTIVE = {"states": ["CLEANUP", "DEPEND", "NEW", "PRIORITY", "RUN", "SCHED"]}


def chosen(*ids: int, found=None) -> dict:
    return {"job-manager.select": [{"ids": list(ids)}], "job-manager.list": {"jobs": found or []}}


@pytest.mark.parametrize(
    ("args", "said", "constraint", "sent"),
    [
        ("cancel --all", "canceled 2 jobs", [ACTIVE], ("cancel", {})),
        ("cancel --name x -m enough", "canceled 2 jobs", [{"name": ["x"]}, ACTIVE], ("cancel", {"note": "enough"})),
        ("cancel --all -s pending", "canceled 2 jobs",
         [{"states": ["DEPEND", "NEW", "PRIORITY", "SCHED"]}, ACTIVE], ("cancel", {})),
        ("cancel 1..ƒ3", "canceled 2 jobs", [{"id": ["1..2"]}, ACTIVE], ("cancel", {})),
        ("kill -s 9 -u 7 -q batch", "signaled 2 jobs",
         [{"userid": [7]}, {"queue": ["batch"]}, {"states": ["CLEANUP", "RUN"]}], ("kill", {"signum": 9})),
        ("urgency --array 1 hold", "changed the urgency of 2 jobs",
         [{"array": [1]}, {"states": ["DEPEND", "NEW", "PRIORITY", "SCHED"]}], ("urgency", {"urgency": 0})),
        ("cancel --set s7", "canceled 2 jobs",
         [{"and": [{"set": ["s7"]}, {"userid": [os.getuid()]}]}, ACTIVE], ("cancel", {})),
        ("urgency --set a,b --set c -u 7 hold", "changed the urgency of 2 jobs",
         [{"userid": [7]}, {"set": ["a,b", "c"]}, {"states": ["DEPEND", "NEW", "PRIORITY", "SCHED"]}],
         ("urgency", {"urgency": 0})),
    ],
)  # fmt: skip
def test_what_selected_jobs_are_sent(cli, args: str, said: str, constraint: list, sent: tuple) -> None:
    topic = f"job-manager.{sent[0]}"
    done = cli(*args.split(), answers=chosen(2, 1) | {topic: {}})
    assert (done.code, done.out, done.err) == (0, f"{said}\n", "")
    assert done.calls == [
        ("job-manager.select", {"constraint": {"and": constraint}}),
        (topic, {"id": 2, **sent[1]}),
        (topic, {"id": 1, **sent[1]}),
    ]


def test_an_empty_name_of_a_set_selects_nothing(cli) -> None:
    done = cli("cancel", "--set", "", answers=chosen(1))
    assert (done.code, done.calls) == (2, [])
    assert "the name of a set is empty" in done.err


def test_a_selected_job_that_has_ended_meanwhile_is_no_error(cli, job) -> None:
    def cancel(request: dict) -> dict | Exception:
        return {1: Refused("job ƒ2 has ended"), 3: Refused("no")}.get(request["id"], {})

    answers = chosen(1, 2, 3, found=[job(id=3)]) | {"job-manager.cancel": cancel}
    done = cli("cancel", "--name", "x", answers=answers)
    assert (done.code, done.out, done.err) == (1, "canceled 1 job\n", "fluxsched: cancel: ƒ4: no\n")
    asked = {"ids": [1, 3], "constraint": ACTIVE, "max_entries": 10_000}
    assert done.calls[-1] == ("job-manager.list", asked)
    answers["job-manager.list"] = {"jobs": []}
    done = cli("cancel", "--name", "x", answers=answers)
    assert (done.code, done.out, done.err) == (0, "canceled 1 job\n", "")


def test_a_selection_that_nothing_matches_is_refused_and_all_of_nothing_is_done(cli) -> None:
    done = cli("cancel", "--name", "x", "--user", "root", answers=chosen())
    assert (done.code, done.err) == (1, "fluxsched: cancel: no active job matches --user, --name\n")
    assert cli("kill", "1..5", answers=chosen()).err == "fluxsched: kill: no running job matches ƒ2..ƒ6\n"
    assert cli("wait", "--queue", "q", answers=chosen()).err == "fluxsched: wait: no job matches --queue\n"

    def ended_only(request: dict) -> list[dict]:
        return [{"ids": [] if request["constraint"] == {"and": [{"queue": ["q"]}, ACTIVE]} else [1]}]

    done = cli("wait", "--queue", "q", answers={"job-manager.select": ended_only})
    assert (done.code, done.out, done.err) == (0, "", "")
    done = cli("cancel", "--all", answers=chosen())
    assert (done.code, done.out) == (0, "canceled 0 jobs\n")


def test_dry_run_names_whom_it_would_hit_and_how_many(cli, job) -> None:
    found = [job(id=1, name="solver"), job(id=2, state="SCHED")]
    done = cli("cancel", "--all", "-n", answers=chosen(found=found))
    assert done.out == "would cancel ƒ2 solver (RUN, root)\nwould cancel ƒ3 sleep (SCHED, root)\nwould cancel 2 jobs\n"
    many = [job(id=jobid) for jobid in range(1, 101)]
    done = cli("kill", "--name", "x", "--dry-run", answers=chosen(*range(1, 1235), found=many))
    assert done.out.splitlines()[-1] == "would signal 1,234 jobs, 1,134 of them not shown"
    assert {topic for topic, _ in done.calls} == {"job-manager.list", "job-manager.select"}
    done = cli("cancel", "-n", "1", "2", answers=chosen(found=found))
    assert done.out.splitlines()[-1] == "would cancel 2 jobs"
    assert done.calls == [("job-manager.list", {"ids": [1, 2], "constraint": {"and": [ACTIVE]}, "max_entries": 100})]
    done = cli("urgency", "--name", "x", "-n", "hold", answers=chosen())
    assert (done.code, done.err) == (1, "fluxsched: urgency: no pending job matches --name\n")
    done = cli("cancel", "-n", "5", answers=chosen())
    assert (done.code, done.err) == (1, "fluxsched: cancel: none of these jobs is active\n")


def test_a_message_names_a_hundred_jobs_and_says_how_many_more(cli) -> None:
    ids = [str(jobid) for jobid in range(1, 104)]
    done = cli("cancel", *ids, answers={"job-manager.cancel": Refused("no")})
    assert done.err.endswith(": no; and 3 jobs more\n")


def result(jobid: int, status: int = 0, **more: object) -> dict:
    return {"id": jobid, "status": status, "success": status == 0 and not more, **more}


@pytest.mark.parametrize(
    ("status", "more", "code", "err"),
    [
        (0, {}, 0, ""),
        (3 << 8, {"errstr": "exit code 3"}, 3, "exit code 3"),
        (3 << 8, {}, 3, "exit status 3"),
        (15, {"errstr": "Terminated"}, 143, "Terminated"),
        (143 << 8, {"exception_type": "cancel", "exception_note": "by kim"}, 143, "exception cancel: by kim"),
        (-1, {"exception_type": "alloc"}, 1, "exception alloc"),
        (0, {"exception_type": "timeout"}, 1, "exception timeout"),
        (0x7F, {}, 1, "exit status 1"),
    ],
)
def test_wait_leaves_with_the_job_s_status(cli, status: int, more: dict, code: int, err: str) -> None:
    done = cli("wait", "1", answers={"job-manager.wait-all": [result(1, status, **more)]})
    assert (done.code, done.out, done.err) == (code, "", f"fluxsched: wait: ƒ2: {err}\n" if err else "")


def test_wait_for_several_with_one_stream(cli) -> None:
    def ended(request: dict) -> list[dict]:
        return [result(jobid, {1: 0, 2: 2 << 8}.get(jobid, 1 << 8)) for jobid in reversed(request["ids"])]

    answers = {"job-manager.wait-all": ended}
    done = cli("wait", "-v", "1", "2", "3", answers=answers)
    assert (done.code, done.out) == (2, "ƒ2: completed\n")
    assert done.err == "fluxsched: wait: ƒ4: exit status 1\nfluxsched: wait: ƒ3: exit status 2\n"
    assert done.calls == [("job-manager.wait-all", {"ids": [1, 2, 3]})]
    assert cli("wait", "--all", answers=answers | chosen(1)).code == 0
    assert cli("wait", "--all", answers=chosen()).code == 0
    lines = cli("wait", "--json", "1", "2", "ƒ2", answers=answers).out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [2, 1]


def test_several_attempts_of_a_job_have_one_end(cli) -> None:
    def ended(request: dict) -> list[dict]:
        return [result(jobid, 1 << 8) | ({"last": 2} if jobid == 1 else {}) for jobid in request["ids"]]

    done = cli("wait", "1", "2", answers={"job-manager.wait-all": ended})
    assert (done.code, done.err) == (1, "fluxsched: wait: ƒ2 (submitted again as ƒ3): exit status 1\n")
    assert len(cli("wait", "--json", "1", "2", answers={"job-manager.wait-all": ended}).out.splitlines()) == 2


def test_the_attempts_before_a_job_are_listed_up_to_a_limit(cli, job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.cli.job.ATTEMPTS_MAX", 2)
    usage = {"wall_s": 1.0, "user_s": 0.5, "system_s": 0.25, "max_rss_bytes": 1 << 20}

    def listed(request: dict) -> dict:
        (jobid,) = request["ids"]
        return {"jobs": [job(id=jobid, requeue_of=jobid - 1, state="INACTIVE", ended="exited 75", nodelist="node0",
                             **({} if jobid == 9 else {"usage": usage}))]}  # fmt: skip

    done = cli("job", "info", "9", answers={"job-manager.list": listed})
    line = "exited 75 on node0, 1s wall, 0.75s CPU (0.5s user, 0.25s system), 1M peak memory"
    assert done.out.splitlines()[-3:-1] == [f"attempt before: ƒ8: {line}", f"attempt before: ƒ9: {line}"]
    assert done.out.splitlines()[-1].startswith("used by all attempts: 2s wall, 1.5s CPU (1s user, 0.5s system), 1")


def test_requeue_is_an_exception_of_running_jobs(cli) -> None:
    done = cli("requeue", "--name", "x", "-m", "why", answers=chosen(2, 1) | {"job-manager.raise": {}})
    assert (done.code, done.out) == (0, "requeued 2 jobs\n")
    assert done.calls[0][1] == {"constraint": {"and": [{"name": ["x"]}, {"states": ["RUN"]}]}}
    sent = {"type": "requeue", "severity": 0, "note": "why"}
    assert done.calls[1:] == [("job-manager.raise", {"id": jobid, **sent}) for jobid in (2, 1)]


def test_cancel_tells_which_attempt_it_hit(cli) -> None:
    done = cli("cancel", "1", answers={"job-manager.cancel": {"last": 2}})
    assert (done.code, done.out) == (0, "")
    assert done.err == "fluxsched: cancel: ƒ2 was submitted again as ƒ3, which was canceled\n"


@pytest.mark.parametrize(
    ("args", "constraint"),
    [
        ("--name x", [{"name": ["x"]}, ACTIVE]),
        ("--array 1", [{"array": [1]}]),
        ("1..5", [{"id": ["1..5"]}]),
        ("--name x -f failed", [{"name": ["x"]}, {"results": ["FAILED"]}]),
    ],
)
def test_wait_means_ended_jobs_too_where_it_means_certain_jobs(cli, args: str, constraint: list) -> None:
    done = cli("wait", *args.split(), answers=chosen(1) | {"job-manager.wait-all": [result(1, 3 << 8)]})
    assert (done.code, done.calls[0][1]) == (3, {"constraint": {"and": constraint}})


def test_refused_jobs_are_looked_up_so_many_at_a_time(cli, job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.cli.job.ASKED_MAX", 2)
    answers = chosen(1, 2, 3, found=[]) | {"job-manager.cancel": Refused("it has ended")}
    done = cli("cancel", "--all", answers=answers)
    assert (done.code, done.out) == (0, "canceled 0 jobs\n")
    assert [request["ids"] for topic, request in done.calls if topic == "job-manager.list"] == [[1, 2], [3]]


@pytest.mark.parametrize("command", ["cancel", "kill"])
def test_all_jobs_are_asked_for_on_a_terminal(cli, request: pytest.FixtureRequest, command: str) -> None:
    topic = f"job-manager.{command}"
    answers = {"job-manager.select": [{"ids": [3, 2]}], topic: {}}
    assert cli(command, "--all", answers=answers).err == "", "a script goes ahead"
    request.getfixturevalue("at_terminal")
    done = cli(command, "--all", stdin="n\n", answers=answers)
    assert (done.code, topic in dict(done.calls)) == (1, False)
    assert " 2 jobs? [y/N]: n\n" in done.err
    assert "no job was " in done.err
    assert topic in dict(cli(command, "--all", stdin="y\n", answers=answers).calls)
    assert cli(command, "--all", "--yes", answers=answers).err == ""
    assert cli(command, "--name", "x", answers=answers).err == "", "what was selected is meant"
