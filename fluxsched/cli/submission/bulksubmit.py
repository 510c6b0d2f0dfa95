"""`fluxsched bulksubmit`: a command line as a template, and a job for each combination of its inputs.

Law: options are templates too, so they are read twice: as texts, to tell them from the command, and for each job with
its inputs in them, exactly as `submit` reads them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from fluxsched.cli.common.base import Command, usage
from fluxsched.cli.common.options import connect, uri_option
from fluxsched.cli.submission import templates
from fluxsched.cli.submission.array import (
    REFUSALS_SHOWN_MAX,
    After,
    Template,
    after_options,
    check,
    copies_of,
    filled,
    paired,
)  # fmt: skip
from fluxsched.cli.submission.array import submit as submit_all
from fluxsched.cli.submission.feasibility import check_feasible
from fluxsched.cli.submission.submit import COMMAND_LAST, refuse_own_input
from fluxsched.cli.submission.submit import submit as submit_command
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.system.clock import Chance

INPUT_CHARS_MAX = 64 << 20
"""One file of inputs."""

_WORDS = "fluxsched.template-words"
_OWN = ("wait", "watch", "label_io", "progress", "jps", "quiet", "as_json", "uri", "dry_run")
"""What submit has that is about the command, not about a job."""


def _job_params() -> list[click.Parameter]:
    return [param for param in submit_command.params if param.name not in _OWN]


def _as_text(param: click.Parameter) -> click.Option:
    """An option that takes any text: it may hold `{}`."""
    assert isinstance(param, click.Option)
    assert param.name is not None
    kind: dict[str, Any] = {"is_flag": True} if param.is_flag else {"type": str, "multiple": True}
    return click.Option(
        [*param.opts, param.name], **kind, help=param.help, metavar=param.metavar, expose_value=False,
        shell_complete=param.shell_complete,
    )  # fmt: skip


class TemplateCommand(Command):
    """Notes the words of the options that are templates, in the order in which they were typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the words apart."""
        given, _, order = self.make_parser(ctx).parse_args(list(args))
        texts = {name: iter(values) for name, values in given.items() if isinstance(values, list)}
        names = {param.name for param in _job_params()}
        words: list[str] = []
        for param in order:
            if param.name in names and isinstance(param, click.Option):
                name = max(param.opts, key=len)
                words.append(name if param.is_flag else f"{name}={next(texts[param.name])}")
        ctx.meta[_WORDS] = words
        return super().parse_args(ctx, args)


class Reader:
    """Reads the words of one job as submit does."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx
        self._command = Command(
            "bulksubmit", params=_job_params(), context_settings=COMMAND_LAST, add_help_option=False
        )

    def read(self, words: Sequence[str], said: str) -> Template:
        """The template of these words. Raises click.UsageError."""
        with self._command.make_context("bulksubmit", list(words), parent=self._ctx) as ctx:
            options = dict(ctx.params)
        copies = copies_of(options.pop("cc"), options.pop("bcc"))
        refuse_own_input(options)
        options = options if copies.ids != (None,) else filled(options, "")
        return Template(options, copies, said)


def read_file(name: str) -> str:
    """The text of a file of inputs. Raises InvalidValue, LimitExceeded or OSError."""
    try:
        if name == "-":
            text = sys.stdin.read(INPUT_CHARS_MAX + 1)
        else:
            with Path(name).open(encoding="utf-8") as file:
                text = file.read(INPUT_CHARS_MAX + 1)
    except UnicodeDecodeError:
        raise InvalidValue(f"inputs: {'stdin' if name == '-' else name} is not UTF-8 text") from None
    if len(text) > INPUT_CHARS_MAX:
        raise LimitExceeded(f"inputs: {name} has more than {INPUT_CHARS_MAX} characters")
    return text


def _templates(
    words: Sequence[str], rows: Iterable[templates.InputRow], methods: templates.Methods, reader: Reader
) -> list[tuple[list[str], Template]]:
    """Each job's words, and what they say. Raises click.UsageError naming the inputs that make no job."""
    found, faults = [], []
    for row in rows:
        try:
            filled_words = [templates.fill(word, row, methods) for word in words]
            found.append((filled_words, reader.read(filled_words, str(row))))
        except (InvalidValue, click.UsageError) as fault:
            faults.append(f"{row}: {fault.format_message() if isinstance(fault, click.UsageError) else fault}")
    if faults:
        more = [f"and {len(faults) - REFUSALS_SHOWN_MAX} more"] if len(faults) > REFUSALS_SHOWN_MAX else []
        raise click.UsageError("\n".join(faults[:REFUSALS_SHOWN_MAX] + more))
    return found


@click.command("bulksubmit", cls=TemplateCommand, context_settings=COMMAND_LAST, params=[
    *(_as_text(param) for param in _job_params() if isinstance(param, click.Option)),
])  # fmt: skip
@click.option("--define", multiple=True, metavar="NAME=CODE",
              help="{.NAME} is the value of this Python expression of the input x.")  # fmt: skip
@click.option("--shuffle", is_flag=True, help="Submit the jobs in random order.")
@click.option("--sep", metavar="TEXT", default="\n", help="Separator of inputs in files; none: any blanks. "
              "[default: a newline]")  # fmt: skip
@click.option("-v", "--verbose", is_flag=True, help="Show each job on stderr.")
@click.option("--dry-run", is_flag=True, help="Show what would be submitted, and submit nothing.")
@after_options
@uri_option
@click.argument("words", metavar="COMMAND... [::: INPUT...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bulksubmit(ctx: click.Context, words: tuple[str, ...], define: tuple[str, ...], shuffle: bool, sep: str,
               verbose: bool, dry_run: bool, after: After, uri: str | None) -> int:  # fmt: skip
    """Submit a job for each input: {} in command and options is replaced by the input.

    \b
    ::: INPUT...    inputs; :::: FILE... reads them; without either, stdin
    ::: A ::: B     all combinations: {0} and {1}; :::+ B is linked to A
    {.%} {./} {./%} {.//}   without extension, directory, both; the directory
    {seq} {seq1} {cc}       the job's number from 0, from 1; the id of --cc
    """
    command, lists = templates.split_words(words)
    template_words = [*ctx.meta[_WORDS], "--", *(command or ("{}",))]
    if sep == "":
        raise click.BadParameter("a separator cannot be empty", param_hint="'--sep'")
    with usage():
        methods = templates.define(define)
        rows = templates.combine(templates.read_inputs(lists, sep, read_file))
    if shuffle:
        Chance().shuffle(rows)
    jobs = _templates(template_words, rows, methods, Reader(ctx))
    ready = paired([template for _, template in jobs], uri)
    jobspecs = check(ready)
    if verbose or dry_run:
        for made, _ in jobs:
            at = made.index("--")
            click.echo(f"bulksubmit: submit {shlex.join(made[:at] + made[at + 1 :])}", err=not dry_run)
    if dry_run:
        return 0
    with connect(uri) as handle:
        check_feasible(handle, jobspecs, [template.said for template in ready])
        return submit_all(handle, ready, after)
