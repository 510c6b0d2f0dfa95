"""Words that are not text, at every command and every place; and what may be printed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from fluxsched.cli.base import Command
from fluxsched.cli.options import FILE_BYTES_MAX
from fluxsched.core.text import load_object
from fluxsched.errors import InvalidValue, RPCError
from fluxsched.protocol import framing

from .test_program import every_command

LATIN = os.fsdecode(b"caf\xe9")
LEAVES = [(path, command) for path, command in every_command() if not isinstance(command, click.Group)]


def refuse(options: object) -> None:
    raise RPCError("refused")


def places(command: click.Command) -> list[list[str]]:
    """Command lines that have the odd word as each operand and as the value of each option in turn."""
    lines = [["x"] * count + [LATIN] for count in range(4)]
    for param in command.params:
        if isinstance(param, click.Option) and not param.is_flag and not param.count:
            lines += [[param.opts[-1], LATIN, "x"], [param.opts[-1], "x", LATIN]]
    return [*lines, [f"--{LATIN}"], ["--uri", LATIN, "1"]]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_no_command_shows_a_traceback_for_a_word_that_is_not_utf8(
    cli, path: tuple[str, ...], command: click.Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert isinstance(command, Command)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fluxsched.instance.launch.start", refuse)
    for line in places(command):
        done = cli(*path, *line, refusing=RPCError("refused"))
        if path in (("policy", "new"), ("plugin", "new"), ("keygen",)) and line[0] == "--directory":
            continue  # the name of a directory may be any bytes
        assert done.code in (1, 2), (path, line, done.err)
        assert "Error: " in done.err or done.err.startswith("fluxsched: "), (path, line, done.err)
        done.err.encode()


def test_an_operand_an_option_and_a_name_are_called_by_their_names(cli) -> None:
    for words, named in (
        (("run", "true", LATIN), "'COMMAND...': 'caf\\xe9' is not UTF-8 text"),
        (("submit", "--job-name", LATIN, "true"), "'--job-name': 'caf\\xe9' is not UTF-8 text"),
        (("submit", f"--env=A={LATIN}", "true"), "'--env': 'A=caf\\xe9' is not UTF-8 text"),
        (("resource", "drain", "0", LATIN), "'[REASON...]': 'caf\\xe9' is not UTF-8 text"),
        (("resource", "assign", "0", LATIN), "'caf\\xe9' is not UTF-8 text"),
        (("cancel", LATIN), "'[JOBID...]': 'caf\\xe9' is not UTF-8 text"),
        (("jobs", "--uri", LATIN), "'--uri': 'caf\\xe9' is not UTF-8 text"),
    ):
        done = cli(*words)
        assert (done.code, named in done.err) == (2, True), done.err


NASTY = "a\nb\x1b[31m\x9b2J\u202ec"
SHOWN = "a\\nb\\x1b[31m\\x9b2J\\u202ec"


def test_what_users_wrote_stays_on_its_line_and_is_exact_in_json(cli, job, status) -> None:
    listed = {"jobs": [job(name=NASTY, nodelist=NASTY)]}
    done = cli("jobs", "-n", "-o", "{name}|{nodelist}", answers={"job-manager.list": listed})
    assert done.out == f"{SHOWN}|{SHOWN}\n"
    done = cli("jobs", "--json", answers={"job-manager.list": listed})
    assert json.loads(done.out)["jobs"][0]["name"] == NASTY
    assert done.out.isprintable() or done.out.rstrip("\n").isprintable()
    done = cli("job", "info", "5", answers={"job-manager.list": listed})
    assert f"name: {SHOWN}\n" in done.out
    status["drain"]["1"]["reason"] = NASTY
    done = cli("resource", "drain", answers={"resource.status": status})
    assert SHOWN in done.out
    assert len(done.out.splitlines()) == 3
    why = {"state": "SCHED", "reason": NASTY}
    assert cli("job", "why", "5", answers={"job-manager.why": why}).out == f"SCHED: {SHOWN}\n"
    event = {"timestamp": 1.0, "name": "drain", "context": {"reason": NASTY}}
    done = cli("job", "eventlog", "5", answers={"job-manager.eventlog": [{"events": [event]}]})
    assert (len(done.out.splitlines()), "\x1b" in done.out, "\x9b" in done.out) == (1, False, False)
    queue = {"enable": False, "enable_reason": NASTY, "start": True}
    answers = {"job-manager.queue-list": {"queues": []}, "job-manager.queue-status": queue}
    assert f"disabled: {SHOWN}\n" in cli("queue", "status", answers=answers).out
    end = {"id": 5, "status": 0, "success": False, "exception_type": "cancel", "exception_note": NASTY}
    done = cli("wait", "5", answers={"job-manager.wait-all": [end]})
    assert done.err.endswith(f"exception cancel: {SHOWN}\n")
    assert len(done.err.splitlines()) == 1


def test_errors_of_the_instance_are_shown_without_escapes(cli) -> None:
    done = cli("cancel", "5", refusing=RPCError("no\x1b]0;title\x07 such job"))
    assert (done.code, done.err) == (1, "fluxsched: cancel: ƒ6: no\\x1b]0;title\\x07 such job\n")


def test_times_that_no_calendar_has(cli, job) -> None:
    listed = {"jobs": [job(expiration=1e18, t_submit=-1e18)]}
    done = cli("job", "info", "5", answers={"job-manager.list": listed})
    assert (done.code, "expiration: 1000000000000000000\n" in done.out) == (0, True)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xfe{}", "jobspec is not UTF-8 text: look at byte 0"),
        (b'{"version": "\\ud800"}', "jobspec.version is not Unicode text: '\\ud800' has half a pair"),
        (b'{"a": ["x", "y\\udc9b"]}', "jobspec.a[1] is not Unicode text: 'y\\x9b' has half a pair"),
        (b'{"\\udfff": 1}', "is not Unicode text: '\\udfff' has half a pair"),
        (b"[" * 100_000, "jobspec is nested too deeply to be read"),
        (b"[1]", "jobspec must be a JSON object, not an array"),
        (b"null", "jobspec must be a JSON object"),
        (b"{", "jobspec is not JSON"),
        (b"", "jobspec is not JSON"),
        (b'{"version": NaN}', "NaN is not JSON"),
        (b'{"version": 1' + b"0" * 5000 + b"}", "jobspec"),
    ],
)
def test_a_jobspec_on_stdin_that_is_none_is_one_sentence(cli, data: bytes, text: str) -> None:
    done = cli("job", "submit", stdin=data, refusing=RPCError("sent"))
    assert (done.code, text in done.err, len(done.err.splitlines())) == (1, True, 1), done.err
    assert not any(word in done.err for word in ("set_int_max", "codec", "Traceback", "sent"))


def test_pairs_of_surrogates_are_text() -> None:
    assert load_object('{"a": "\\ud83e\\udd80"}', "x") == {"a": "🦀"}


def test_what_cannot_be_packed_is_the_callers_fault() -> None:
    for value, text in (({"a": LATIN}, "'caf\\xe9' is not UTF-8 text"), ({"a": 1 << 80}, "beyond 64 bits")):
        with pytest.raises(InvalidValue) as caught:
            framing.pack(value)
        assert text in str(caught.value)


@pytest.mark.parametrize(
    "words",
    ["submit --urgency DIGITS true", "kill -s DIGITS 5", "urgency 5 DIGITS", "jobs -o {id:DIGITS}",
     "jobs -o {id:>5.DIGITS}", "submit -N DIGITS true", "submit --request memory=DIGITS true", "cancel DIGITS",
     "submit --begin-time nan true", "submit --begin-time DIGITS true"],
)  # fmt: skip
def test_numbers_of_thousands_of_digits(cli, words: str) -> None:
    done = cli(*words.replace("DIGITS", "9" * 5000).split(), refusing=RPCError("sent"))
    assert done.code in (1, 2)
    assert "set_int_max_str_digits" not in done.err
    assert len(done.err) < 800


@pytest.mark.parametrize("words", ["--env-file=/dev/zero", "--env=^/dev/zero", "--setattr=^a=/dev/zero"])
def test_a_device_named_by_mistake_is_not_read_for_ever(cli, words: str) -> None:
    done = cli("submit", "--dry-run", words, "true")
    assert (done.code, f"larger than {FILE_BYTES_MAX} bytes" in done.err) == (1, True)


def test_an_option_for_words_repeats_few_of_the_wrong_ones(cli) -> None:
    done = cli("resource", "list", "-s", ",".join(f"w{at}" for at in range(5000)))
    assert (done.code, "'w15' are not among free" in done.err, len(done.err) < 500) == (2, True, True)


def test_the_time_that_a_job_waits_for_is_a_date(cli, job) -> None:
    listed = {"jobs": [job(state="DEPEND", dependencies=["begin-time=1700000000.25", "after-ok=5"])]}
    done = cli("jobs", "-n", "-o", "{contextual_info}", answers={"job-manager.list": listed})
    assert done.out == "depends:begin-time=2023-11-14T22:13:20, after-ok=5\n"
