"""Words that are no text, at every command and every place; and what may be printed."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from fluxsched.cli.base import Command
from fluxsched.errors import RPCError

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


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_no_command_shows_a_traceback_for_a_word_that_is_not_utf8(
    cli, path: tuple[str, ...], command: click.Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert isinstance(command, Command)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fluxsched.runtime.launch.start", refuse)
    for line in places(command):
        done = cli(*path, *line, refusing=RPCError("refused"))
        if (path, line[0]) == (("policy", "new"), "--directory"):
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
