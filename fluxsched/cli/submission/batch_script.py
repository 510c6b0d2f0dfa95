"""The script of `batch`: its source, and the options in it (RFC 36).

Law: directives are read as if they stood on the command line before what was typed, so that what was typed wins; one
that is wrong is refused with the script's name and the line.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

from fluxsched.cli.common.base import Command, CommandFailed, warn
from fluxsched.core.directives import SCRIPT_BYTES_MAX, Directive, check_script, parse_directives
from fluxsched.errors import InvalidValue

STDIN = "stdin"
SHELL = "#!/bin/sh\n"
_SCRIPT = "fluxsched.batch-script"
_FOREIGN = re.compile(r"^#(SBATCH|PBS|BSUB)\s", re.MULTILINE)
"""Options for Slurm, PBS, LSF."""


class Script(NamedTuple):
    """A script, and what it is called where it is at fault."""

    text: str
    name: str


class BatchCommand(Command):
    """A command whose argument `command` is a script with its arguments, or with `--wrap` a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the script, and parse its directives and what was typed as one command line."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        typed = list(args)
        super().parse_args(ctx, list(args))  # --help, and every fault of the command line itself, come first
        words, wrap = ctx.params["command"], ctx.params["wrap"]
        try:
            script, directives = _read(words, wrap)
        except InvalidValue as fault:
            raise click.UsageError(str(fault), ctx) from None
        except OSError as fault:
            raise CommandFailed(ctx, f"{fault.filename or STDIN}: {fault.strerror}") from None
        for line, options in directives:
            self._check(ctx, script, line, options)
        again = [word for _, options in directives for word in options] + typed
        ctx.params.clear()
        rest = super().parse_args(ctx, again)
        ctx.meta[_SCRIPT] = script
        return rest

    def _check(self, ctx: click.Context, script: Script, line: int, options: Sequence[str]) -> None:
        parsed = click.Context(self, ctx.parent, ctx.info_name)
        parsed.allow_interspersed_args = False
        try:
            if not {"-h", "--help"}.isdisjoint(options):
                raise click.UsageError("--help is only for the command line")
            super().parse_args(parsed, list(options))
            if parsed.params["command"]:
                raise click.UsageError(f"{parsed.params['command'][0]!r} is not an option")
        except click.UsageError as fault:
            raise click.UsageError(f"{script.name}: line {line}: {fault.format_message()}", ctx) from None


def script_of(ctx: click.Context) -> Script:
    """The script that a BatchCommand has read."""
    script: Script = ctx.meta[_SCRIPT]
    return script


def _read(words: Sequence[str], wrap: bool) -> tuple[Script, list[Directive]]:
    """The script, and its directives."""
    if wrap and words:
        # one word is text for the shell; several are a command, whose words stay what they are
        text = words[0] if len(words) == 1 else shlex.join(words)
        script = Script(f"{SHELL}{text}\n", words[0])
        check_script(*script)
        return script, []
    name = words[0] if words else STDIN
    text = _text(name, from_stdin=not words)
    try:
        found = parse_directives(text)
    except InvalidValue as fault:
        raise InvalidValue(f"{name}: {fault}") from None
    if foreign := _FOREIGN.findall(text):
        lines = f"{len(foreign)} #{foreign[0]} line{'' if len(foreign) == 1 else 's'}"
        warn(f"{name}: {lines} ignored: options are written here as in `#flux: -N2 -n8 --time-limit=1h --output=x.out`")
    script = Script(SHELL + text if wrap else text, name)
    check_script(*script)
    return script, found


def _text(name: str, *, from_stdin: bool) -> str:
    if from_stdin:
        if sys.stdin.isatty():
            raise InvalidValue("give a SCRIPT, or --wrap and a command; a script may also be piped in")
        data = sys.stdin.buffer.read(SCRIPT_BYTES_MAX + 1)
    else:
        with open(name, "rb") as file:
            data = file.read(SCRIPT_BYTES_MAX + 1)
    try:
        if b"\0" in data:
            raise InvalidValue(f"{name} is a program, not a script: use --wrap {os.path.basename(name)}")
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidValue(f"{name} is not a script: it is not UTF-8 text") from None
