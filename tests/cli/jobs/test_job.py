"""`fluxsched job`: one job looked into; `golden/jobs.txt` has what is shown."""

from __future__ import annotations

import json
import os
import pty
import select
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from fluxsched.cli import attach
from fluxsched.cli.attach import Forwarder, OutputWriter, TerminalForwarder
from fluxsched.cli.job import _value_text
from fluxsched.core.jobspec import Jobspec


def test_eventlog_follows_where_that_is_asked_for(cli) -> None:
    for words, follows in (((), False), (("-F",), True)):
        done = cli("job", "eventlog", *words, "5", answers={"job-manager.eventlog": []})
        assert done.calls == [("job-manager.eventlog", {"id": 5, "follow": follows})]


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


def test_raise(cli) -> None:
    done = cli("job", "raise", "-t", "odd", "-s", "3", "-m", "hm", "5", "6", answers={"job-manager.raise": {}})
    want = {"type": "odd", "severity": 3, "note": "hm"}
    assert done.calls == [("job-manager.raise", {"id": jobid, **want}) for jobid in (5, 6)]


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


def test_a_terminal_that_could_be_written_to_is_not_looked_at_again_and_again() -> None:
    screen, source = pty.openpty()
    with closing(TerminalForwarder(SimpleNamespace(), 1, source)) as forwarder:  # type: ignore[arg-type]
        assert select.select([forwarder.fd], [], [], 0) == ([], [], [])
        os.write(screen, b"key\n")
        assert select.select([forwarder.fd], [], [], 60)[0] == [forwarder.fd]
    os.close(source)
    os.close(screen)


def test_input_that_was_under_way_when_the_instance_went_away_is_not_sent_twice(
    monkeypatch: pytest.MonkeyPatch,
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
