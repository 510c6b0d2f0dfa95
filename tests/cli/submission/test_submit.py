"""submit, run and attach: from options to a jobspec, from a job's end to an exit status; `golden/submit.txt` has wrong
usage.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import click
import pytest

from fluxsched.cli import jobspec_options
from fluxsched.cli.attach import HINT_EVERY_S, OUTAGE_LOOKS_MAX, PENDING_HINT_S, outage_hint, pending_hints
from fluxsched.cli.jobspec_options import parse_begin_time, with_attribute
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, RPCError

DONE = {"id": 1, "status": 0, "success": True}


@pytest.fixture
def made(cli):
    """The jobspec that `fluxsched submit --dry-run ARGS` prints."""

    def dry_run(*args: str) -> dict:
        done = cli("submit", "--dry-run", *args)
        assert (done.code, done.err, done.calls) == (0, "", [])
        return json.loads(done.out)

    return dry_run


def test_plain_command(made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobspec_options.os, "environ", {"HOME": "/home/kim"})
    spec = made("sleep", "1", "--help", "-n9")
    assert spec["tasks"][0]["command"] == ["sleep", "1", "--help", "-n9"]
    system = spec["attributes"]["system"]
    assert (system["cwd"], system["environment"]) == (str(tmp_path), {"HOME": "/home/kim"})


def test_the_shape_of_a_job(made) -> None:
    request = Jobspec.parse(made("-N2", "-n4", "-c3", "-g1", "-x", "-t", "1.5m", "-q", "batch", "true"))
    assert str(request.request) == str(
        Jobspec.from_command(["true"], nodes=2, ntasks=4, cores_per_task=3, gpus_per_task=1, exclusive=True).request
    )
    assert (request.duration_s, request.queue, request.request.exclusive) == (90.0, "batch", True)


def test_how_the_user_is_told(made, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*words: str) -> object:
        return made(*words, "true")["attributes"]["system"].get("fluxsched", {}).get("notify")

    assert told() is None
    assert told("--notify-command", "echo $FLUXSCHED_NOTE") == {"command": "echo $FLUXSCHED_NOTE"}
    monkeypatch.setattr(jobspec_options.os, "isatty", lambda fd: False)
    assert told("--notify", "--notify-on=start,fail") == {"on": ["start", "fail"]}
    monkeypatch.setattr(jobspec_options.os, "isatty", lambda fd: fd == 1)
    monkeypatch.setattr(jobspec_options.os, "ttyname", lambda fd: "/dev/pts/7")
    assert told("--notify") == {"terminal": "/dev/pts/7", "host": jobspec_options.os.uname().nodename}


def test_what_is_counted(made) -> None:
    words = ("-N2", "-n4", "--request", "memory=4GiB,scratch=1TB/node", "--request", "matlab=2/job,memory=1GiB/node")
    assert str(Jobspec.parse(made(*words, "true")).request) == (
        "2 nodes of 1 GiB memory and 1000000000000 scratch and 2 slots of 1 core, 4 GiB memory and 2 matlab"
    )


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("--mem", "512m"), "1 node of 512 MiB memory and 1 core"),
        (("-n2", "--mem", "2G"), "1 node of 2 GiB memory and 2 slots of 1 core"),
        (("-N2", "-n4", "--mem", "2GiB"), "2 nodes of 2 GiB memory and 2 slots of 1 core"),
        (("-N2-4", "--mem=1GB", "--request", "disk=5/node"), "2-4 nodes of 5 disk and 1000000000 memory and 1 core"),
        (("--part", "a:2=x", "--mem", "1T"), "2 exclusive nodes of 1 TiB memory and 1 core"),
    ],
)
def test_memory_as_slurm_has_it(made, words: tuple[str, ...], asked: str) -> None:
    command = () if "--part" in words else ("true",)
    assert asked in str(Jobspec.parse(made(*words, *command)).request)


def test_what_else_a_job_says(made) -> None:
    spec = Jobspec.parse(
        made(
            "--job-name", "mine", "--output", "o.txt", "--error", "e.txt", "--cwd", "/", "--requires", "ssd & !gpu",
            "--dependency", "afterok:ƒ2", "--dependency", "afterany:7", "--env=-*", "--env", "A=b",
            "--setattr", "exec.test.run_duration=10ms", "--setattr", "user.note.n=3", "true",
        )
    )  # fmt: skip
    assert (spec.job_name, spec.output, spec.error, spec.cwd) == ("mine", "o.txt", "e.txt", "/")
    assert dict(spec.environment) == {"A": "b"}
    assert [dict(each) for each in spec.dependencies] == [
        {"scheme": "afterok", "value": "ƒ2"},
        {"scheme": "afterany", "value": "7"},
    ]
    assert spec.test_run_duration_s == pytest.approx(0.01)
    assert spec.to_json()["attributes"]["user"] == {"note": {"n": 3}}
    assert str(spec.request.constraint) == "ssd and not gpu"


def test_begin_times(made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobspec_options, "SystemClock", type("C", (), {"wall_s": staticmethod(lambda: 1000.0)}))
    assert parse_begin_time("+1m") == 1060.0
    assert parse_begin_time("77.5") == 77.5
    assert parse_begin_time("1970-01-01T01:00") == 3600.0
    want = [{"scheme": "begin-time", "value": "1060.0"}]
    for args in (("--begin-time", "+1m"), ("--dependency", "begin-time:+1m")):
        assert made(*args, "true")["attributes"]["system"]["dependencies"] == want


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("a.b=1.5", ("system", "a", "b"), 1.5),
        ("system.a=x y", ("system", "a"), "x y"),
        ("user.a={\"b\": []}", ("user", "a"), {"b": []}),
        (".c=null", ("c",), None),
        ("flag", ("system", "flag"), 1),
        ("a==", ("system", "a"), "="),
    ],
)  # fmt: skip
def test_setattr(setting: str, path: tuple[str, ...], value: object) -> None:
    found = with_attribute({"version": 1, "attributes": {"system": {"kept": 1}}}, setting)
    assert found["attributes"]["system"]["kept"] == 1
    for key in ("attributes", *path):
        found = found[key]
    assert found == value


def test_setattr_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"x": 1}')
    assert with_attribute({}, f"^a={tmp_path}/f.json") == {"attributes": {"system": {"a": {"x": 1}}}}
    with pytest.raises(InvalidValue, match="not a dotted key"):
        with_attribute({}, "a..b=1")


def test_submit_prints_the_id(cli) -> None:
    done = cli("submit", "true", answers={"submit_many": [1]})
    assert (done.out, done.err, done.code) == ("ƒ2\n", "", 0)
    [(topic, request)] = done.calls
    assert (topic, sorted(request), request["urgency"]) == ("job-manager.submit", ["jobspec", "urgency"], 16)
    assert "array" not in request["jobspec"]["attributes"]["system"]
    assert cli("submit", "--quiet", "true").out == ""
    assert cli("submit", "--json", "--urgency", "hold", "true").out == '{"ids": [1]}\n'


def test_flags_go_with_the_request(cli) -> None:
    done = cli("submit", "--flags", "waitable,debug", "--urgency=20", "true", answers={"job-manager.submit": {"id": 9}})
    [(topic, request)] = done.calls
    assert (topic, request["flags"], request["urgency"], done.out) == ("job-manager.submit", 6, 20, "ƒA\n")


def test_refused_submit(cli) -> None:
    done = cli("submit", "-n", "99", "true", answers={"submit_many": RPCError("needs 99 cores; there are 16", 22)})
    assert (done.code, done.out, done.err) == (1, "", "fluxsched: submit: needs 99 cores; there are 16\n")


def test_values_with_tags_are_filled_in_when_the_job_starts(made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "{{id}}")  # nobody asked for that to be read
    spec = Jobspec.parse(made("--env=A={{tmpdir}}/a", "--env=B={{mine}}", "--env=C=$A:{{ id }}", "true"))
    assert spec.templates == {"A": "{{tmpdir}}/a", "C": "{{tmpdir}}/a:{{ id }}"}
    assert (spec.environment["OURS"], spec.environment["B"], "A" in spec.environment) == ("{{id}}", "{{mine}}", False)


def test_an_unsupported_shell_option_is_reported_once(cli) -> None:
    options = ("-obogus", "-ooutput.limit=1G", "-opmi=off", "-ooutput.stdout.type=kvs")
    done = cli("submit", "--cc=1-3", *options, "--dry-run", "true")
    assert done.code == 0
    said = "ignoring unsupported shell options: bogus, output.limit; supported are "
    assert done.err == f"fluxsched: submit: {said}pmi, pty, input.stdin, output.stdout, output.stderr, env-expand\n"
    assert json.loads(done.out.splitlines()[2])["attributes"]["system"]["shell"]["options"]["bogus"] == 1


def test_parts_ranges_and_hops(made) -> None:
    asked = ("--part", "lead:1=./lead", "--part", "work:4-10:gpu & !old=./work 'a b'", "-c2", "--request=m=1/job")
    spec = Jobspec.parse(made(*asked, "--elastic", "--max-hops=4"))
    assert str(spec.request) == (
        "lead: 1 exclusive node of 2 cores within 4 hops; "
        "work: 4-10 exclusive nodes of 2 cores within 4 hops with gpu and not old and 1 m"
    )
    assert [(part.label, part.command, part.ntasks_per_slot) for part in spec.parts] == [
        ("lead", ("./lead",), 1),
        ("work", ("./work", "a b"), 1),
    ]
    assert spec.request.elastic
    assert str(Jobspec.parse(made("-N4-10:2", "true")).request) == "4-10:2 nodes of 1 core"


def test_copies_of_parts_have_their_ids(cli) -> None:
    done = cli("submit", "--cc=7-8", "--part", "a:1=ls {cc}", "--part", "b:1=ls", "--dry-run")
    assert [json.loads(line)["tasks"][0]["command"] for line in done.out.splitlines()] == [["ls", "7"], ["ls", "8"]]


def test_an_infinite_time_limit_is_none(made) -> None:
    assert Jobspec.parse(made("-t", "infinity", "true")).duration_s == 0


ONLY = {"id": 1, "follow": False}
"""What asks for the end of job 1, not of a later attempt."""


def piece(data: bytes, stream: str = "stdout", task: int = 0) -> dict:
    return {"stream": stream, "data": data, "task": task}


def test_run_shows_output_and_leaves_with_the_status(cli) -> None:
    answers = {
        "job-manager.output": [piece(b"a\nb"), piece(b"oh\xff\n", "stderr", 1), piece(b"c\n")],
        "job-manager.wait": {"id": 1, "status": 7 << 8, "success": False, "errstr": "task 0: exit code 7"},
    }
    done = cli("run", "-n2", "true", answers=answers)
    assert (done.code, done.bytes_out) == (7, b"a\nbc\n")
    assert done.err.endswith("fluxsched: run: ƒ2: task 0: exit code 7\n")
    assert done.calls[1:] == [("job-manager.output", {"id": 1, "follow": True}), ("job-manager.wait", ONLY)]


def test_labels(cli) -> None:
    output = [piece(b"a\nb"), piece(b"x", task=1), piece(b"c\n"), piece(b"y", task=1)]
    done = cli("run", "-l", "true", answers={"job-manager.output": output, "job-manager.wait": DONE})
    assert (done.code, done.out) == (0, "0: a\n0: bc\n1: xy\n")


def test_who_waits_is_told_why_and_again_when_the_reason_changes(fake, capsys: pytest.CaptureFixture[str]) -> None:
    reasons = ["no scheduler serves group default"] * 2 + ["needs 4 nodes; 2 are busy"]
    answers = [{"state": "SCHED", "reason": reason} for reason in reasons] + [{"state": "RUN", "reason": "it runs"}]
    handle = fake({"job-manager.why": lambda request: answers.pop(0)})
    with click.Context(click.Command("run"), click.Context(click.Group()), "run"):
        hints = pending_hints(handle, 1)
        assert (next(hints), handle.calls) == (PENDING_HINT_S, [])
        assert list(hints) == [HINT_EVERY_S] * 3
    assert capsys.readouterr() == (
        "", f"fluxsched: run: ƒ2: waiting: {reasons[0]}\nfluxsched: run: ƒ2: waiting: {reasons[2]}\n"
    )  # fmt: skip


def test_a_hint_that_cannot_be_had_is_none(fake, capsys: pytest.CaptureFixture[str]) -> None:
    handle = fake({"job-manager.why": RPCError("it is gone", 2)})
    with click.Context(click.Command("run"), click.Context(click.Group()), "run"):
        assert list(pending_hints(handle, 1)) == [PENDING_HINT_S]
    assert capsys.readouterr() == ("", "")


OUTAGE = "outage upd keeps n[1-2] from 18:00 to 18:10; the limit of 10m crosses it; it fits with --time-limit 3m"


@pytest.mark.parametrize(
    ("outages", "answers", "said"),
    [
        ([], [], ""),
        (["upd"], [("SCHED", "is the next to be looked at"), ("SCHED", OUTAGE)], f"waiting: {OUTAGE}\n"),
        (["upd"], [("SCHED", "is the next to be looked at"), ("RUN", "it runs")], ""),
        (["upd"], [("SCHED", "needs 4 nodes; 2 are busy")] * OUTAGE_LOOKS_MAX, ""),
    ],
    ids=["none", "crosses", "starts", "busy"],
)
def test_a_submit_says_that_an_outage_keeps_the_job_waiting(
    fake, capsys: pytest.CaptureFixture[str], outages: list[str], answers: list[tuple[str, str]], said: str
) -> None:
    left = [{"state": state, "reason": reason} for state, reason in answers]
    listed = {"outages": [{"name": name} for name in outages]}
    handle = fake({"resource.outage-list": listed, "job-manager.why": lambda request: left.pop(0)})
    with click.Context(click.Command("submit"), click.Context(click.Group()), "submit"):
        outage_hint(handle, 1)
    assert not left
    assert capsys.readouterr() == ("", f"fluxsched: submit: ƒ2: {said}" if said else "")


def test_without_a_terminal_no_hint_is_shown(cli) -> None:
    done = cli("run", "true", answers={"job-manager.output": [], "job-manager.wait": DONE})
    assert (done.err, [topic for topic, _ in done.calls[1:]]) == ("", ["job-manager.output", "job-manager.wait"])


def test_interrupting_run_cancels_and_attach_does_not(cli, made) -> None:
    answers = {
        "job-manager.output": [piece(b"a"), KeyboardInterrupt()],
        "job-manager.cancel": {},
        "job-manager.lookup": {"jobspec": made("true")},
    }
    done = cli("run", "true", answers=answers)
    assert (done.code, done.calls[-1]) == (130, ("job-manager.cancel", {"id": 1, "note": "interrupted by user"}))
    done = cli("job", "attach", "1", answers=answers)
    assert (done.code, "detached: ƒ2 continues" in done.err, len(done.calls)) == (130, True, 2)


def test_run_dry_run(cli) -> None:
    assert json.loads(cli("run", "--dry-run", "true").out)["tasks"][0]["command"] == ["true"]


def test_run_goes_on_with_the_next_attempt_of_a_preempted_job(cli) -> None:
    preempted = {"id": 1, "status": 15, "success": False, "exception_type": "preempt", "exception_note": "for ƒ9"}
    answers = {
        "job-manager.output": lambda request: [piece(b"%d\n" % request["id"])],
        "job-manager.wait": lambda request: preempted | {"requeued_as": 7} if request["id"] == 1 else DONE | {"id": 7},
    }
    done = cli("run", "true", answers=answers)
    assert (done.code, done.out) == (0, "1\n7\n")
    assert done.err == "fluxsched: run: ƒ2: exception preempt: for ƒ9; submitted again as ƒ8\n"


def test_attach_and_output(cli, made) -> None:
    answers = {
        "job-manager.output": [piece(b"a"), piece(b"b", "stderr"), piece(b"\xff\xfe\x00")],
        "job-manager.wait": {**DONE, "status": 15, "success": False},
        "job-manager.lookup": {"jobspec": made("true")},
    }
    done = cli("job", "attach", "ƒ2", answers=answers)
    assert (done.code, done.bytes_out) == (143, b"a\xff\xfe\x00")
    done = cli("job", "output", "ƒ2", answers=answers)
    assert (done.code, done.bytes_out, done.err) == (0, b"a\xff\xfe\x00", "b")
    assert done.calls[1][1] == {"id": 1, "follow": False}
    done = cli("job", "output", "--json", "-F", "ƒ2", answers=answers)
    printed = [json.loads(line) for line in done.out.splitlines()]
    assert printed[0] == {"stream": "stdout", "data": "YQ==", "task": 0}
    assert base64.b64decode(printed[2]["data"]) == b"\xff\xfe\x00"
