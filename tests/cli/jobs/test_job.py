"""`fluxsched job`: one job looked into."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.cli import attach
from fluxsched.cli.attach import Forwarder, OutputWriter
from fluxsched.cli.job import _value_text
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import RPCError

EVENTS = [
    {"timestamp": 1700000000.25, "name": "submit", "context": {"userid": 0, "urgency": 16}},
    {"timestamp": 1700000001.0, "name": "alloc"},
    {"timestamp": 1700000002.0, "name": "finish", "context": {"status": 0}},
    {"timestamp": 1700000003.0, "name": "clean"},
]
INFO = """\
id: ƒ6
state: RUN
name: sleep
userid: 0
urgency: 16
t_submit: 2023-11-14T22:13:20
ntasks: 4
duration: 1m
nnodes: 2
t_run: 2023-11-14T22:13:30
nodelist: node[0-1]
ranks: 0-1
command: ["sleep", "60"]
"""


def test_info(cli, job) -> None:
    answers = {"job-manager.list": {"jobs": [job(expiration=0.0, annotations={})]}}
    assert cli("job", "info", "5", answers=answers).out == INFO
    assert json.loads(cli("job", "info", "--json", "5", answers=answers).out)["id"] == 5
    done = cli("job", "info", "5", answers={"job-manager.list": {"jobs": []}})
    assert (done.code, done.err) == (1, "fluxsched: job info: no such job: 5\n")


def test_info_says_which_ranks_are_whose_part(cli, job) -> None:
    info = job(parts={"lead": "0", "work": "1-6"})
    assert "\nparts: lead:0 work:1-6\n" in cli("job", "info", "5", answers={"job-manager.list": {"jobs": [info]}}).out
    shown = cli("jobs", "-o", "{id.f58} {parts}", "-n", answers={"job-manager.list": {"jobs": [info]}})
    assert shown.out == "ƒ6 lead:0 work:1-6\n"


def test_info_of_one_part(cli) -> None:
    def lookup(request: dict) -> dict:
        return {"id": 5} | {key: {"R": {"version": 1}, "eventlog": EVENTS[:2]}.get(key) for key in request["keys"]}

    answers = {"job-manager.lookup": lookup}
    assert cli("job", "info", "5", "R", answers=answers).out == '{"version": 1}\n'
    assert cli("job", "info", "5", "eventlog", answers=answers).out == "".join(f"{json.dumps(e)}\n" for e in EVENTS[:2])
    assert json.loads(cli("job", "info", "5", "eventlog", "--json", answers=answers).out) == EVENTS[:2]
    done = cli("job", "info", "5", "jobspec", answers=answers)
    assert (done.code, done.err) == (1, "fluxsched: job info: ƒ6 has no jobspec (yet)\n")
    assert cli("job", "info", "5", "secrets").code == 2


def test_eventlog(cli) -> None:
    answers = {"job-manager.eventlog": [{"events": EVENTS[:1]}, {"events": EVENTS[1:2]}]}
    done = cli("job", "eventlog", "5", answers=answers)
    assert done.out == "1700000000.250000 submit userid=0 urgency=16\n1700000001.000000 alloc\n"
    assert done.calls == [("job-manager.eventlog", {"id": 5, "follow": False})]
    done = cli("job", "eventlog", "-F", "-f", "json", "5", answers=answers)
    assert [json.loads(line) for line in done.out.splitlines()] == EVENTS[:2]


@pytest.mark.parametrize(
    ("args", "code", "out"),
    [
        ("5 alloc", 0, "1700000001.000000 alloc\n"),
        ("-v -T offset 5 alloc", 0, "0.000000 submit userid=0 urgency=16\n0.750000 alloc\n"),
        ("-q 5 clean", 0, ""),
        ("-c 2 5 alloc", 1, ""),
        ("-t 1h 5 alloc", 0, "1700000001.000000 alloc\n"),
        ("5 nope", 1, ""),
    ],
)
def test_wait_event(cli, args: str, code: int, out: str) -> None:
    done = cli("job", "wait-event", *args.split(), answers={"job-manager.eventlog": [{"events": EVENTS}]})
    assert (done.code, done.out) == (code, out)
    assert done.err == (f"fluxsched: job wait-event: ƒ6 has ended without {args.split()[-1]!r}\n" if code else "")


def test_wait_event_gives_up_in_time(cli) -> None:
    def endless(request: dict):
        while True:
            yield {"events": []}

    done = cli("job", "wait-event", "-t", "5ms", "5", "never", answers={"job-manager.eventlog": endless})
    assert (done.code, done.err) == (1, "fluxsched: job wait-event: no such event within 5ms\n")


@pytest.mark.parametrize(
    ("lease", "text"),
    [
        ({}, "cluster east"),
        ({"id": 8}, "cluster east, as ƒ9 there"),
        ({"id": 8, "nodelist": "node7"}, "cluster east, as ƒ9 there on node7"),
    ],
)
def test_the_lease_of_a_job_is_told_as_far_as_it_is_known(lease, text) -> None:
    assert _value_text("lease", {"cluster": "east", **lease}) == text


def test_why(cli) -> None:
    answer = {"id": 5, "state": "SCHED", "reason": "needs 4 nodes; 2 are drained", "earliest": 1700000000.0}
    done = cli("job", "why", "5", answers={"job-manager.why": answer})
    assert done.out == "SCHED: needs 4 nodes; 2 are drained\nearliest start: 2023-11-14T22:13:20\n"
    told = {**answer, "rule": "first in line under easy: one reservation.", "when": "as it is planned"}
    assert cli("job", "why", "5", answers={"job-manager.why": told}).out.splitlines() == [
        "SCHED: needs 4 nodes; 2 are drained",
        "rule: first in line under easy: one reservation.",
        "earliest start: 2023-11-14T22:13:20, as it is planned",
    ]
    soon = {**told, "earliest": time.time() + 7200.5}
    assert ", in 2h, as it is planned\n" in cli("job", "why", "5", answers={"job-manager.why": soon}).out
    never = {**told, "earliest": None, "when": "not while it is held"}
    done = cli("job", "why", "5", answers={"job-manager.why": never})
    assert done.out.endswith("earliest start: not while it is held\n")
    told = "group big: none is free, 4 nodes are busy; group small: it has 2; cluster east is silent since noon: gone"
    assert cli("job", "why", "5", answers={"job-manager.why": {**answer, "reason": told}}).out.splitlines()[:4] == [
        "SCHED:",
        "  group big: none is free, 4 nodes are busy",
        "  group small: it has 2",
        "  cluster east is silent since noon: gone",
    ]
    assert json.loads(cli("job", "why", "--json", "5", answers={"job-manager.why": answer}).out) == answer
    done = cli("job", "why", "5", answers={"job-manager.why": RPCError("no such job: ƒ6", 2)})
    assert (done.code, done.err) == (1, "fluxsched: job why: no such job: ƒ6\n")


def test_raise(cli) -> None:
    done = cli("job", "raise", "-t", "odd", "-s", "3", "-m", "hm", "5", "6", answers={"job-manager.raise": {}})
    want = {"type": "odd", "severity": 3, "note": "hm"}
    assert done.calls == [("job-manager.raise", {"id": jobid, **want}) for jobid in (5, 6)]
    assert cli("job", "raise", "-s", "8", "5").code == 2


@pytest.mark.parametrize(
    ("form", "want"),
    [("dec", "5"), ("hex", "0x5"), ("dothex", "0000.0000.0000.0005"), ("f58", "ƒ6"), ("f58plain", "f6")],
)
def test_id(cli, form: str, want: str) -> None:
    assert cli("job", "id", "--to", form, "5", "f6").out == f"{want}\n{want}\n"  # a line a text


@pytest.mark.parametrize("command", ["cancel", "kill", "urgency", "update", "wait"])
def test_the_top_level_commands_are_below_job_as_well(cli, command: str) -> None:
    assert cli("job", command, "--help").out.startswith(f"Usage: fluxsched job {command} ")


def test_submit_a_jobspec(cli) -> None:
    jobspec = Jobspec.from_command(["true"], cwd="/", environment={}).to_json()
    done = cli("job", "submit", "--urgency", "3", stdin=json.dumps(jobspec))
    assert (done.out, done.calls) == ("ƒ2\n", [("submit_many", ([jobspec], 3))])
    done = cli("job", "submit", stdin='{"version": 1}')
    assert (done.code, done.calls) == (1, [])
    assert done.err.startswith("fluxsched: job submit: ")


def test_what_is_printed_again_after_a_lost_connection_is_passed_over(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    writer = OutputWriter(labelled=True)
    pieces = [{"stream": "stdout", "task": 1, "data": b"one\ntw"}, {"stream": "stdout", "task": 0, "data": b"zero\n"}]
    for piece in pieces:
        writer.write(piece)
    writer.begin_again()
    for data in (b"o", b"ne\nt", b"wo\nthr"):
        writer.write({"stream": "stdout", "task": 1, "data": data})
    writer.begin_again()
    writer.write({"stream": "stdout", "task": 1, "data": b"one\ntwo\nthree\n"})
    writer.write({"stream": "stderr", "task": 1, "data": b"new\n"})
    assert capfdbinary.readouterr() == (b"1: one\n0: zero\n1: two\n1: three\n", b"1: new\n")


def test_input_that_was_under_way_when_the_instance_went_away_is_not_sent_twice(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = []
    said: list[str] = []
    monkeypatch.setattr(attach, "warn", said.append)
    handle: Any = SimpleNamespace(post=lambda topic, request, answered: answers.append(answered))
    source, sink = os.pipe()
    os.write(sink, b"12345")
    forwarder = Forwarder(handle, 1, source)
    forwarder.look()
    forwarder.say_what_is_unsure()
    assert said == ["ƒ2: the last 5 bytes of input may be lost"]
    answers[0](SimpleNamespace(error=None))
    forwarder.say_what_is_unsure()
    assert len(said) == 1
    os.close(source)
    os.close(sink)
