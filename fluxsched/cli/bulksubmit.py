"""`fluxsched bulksubmit`: a command line as a template, and a job for each combination of its inputs.

Law: text in, text out. Only the forms of PLACEHOLDER are replaced; any other brace, `{{id}}` of an output file among
them, stays as it is. `{cc}` is left for the pass that makes copies. Options are templates too, so they are read twice:
as texts, to tell them from the command, and for each job with its inputs in them, exactly as `submit` reads them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import click

from fluxsched.cli.base import COMMAND_LAST, Command, usage
from fluxsched.cli.options import connect, uri_option
from fluxsched.cli.submit import (  # fmt: skip
    CC,
    After,
    Template,
    after_options,
    alike,
    check,
    check_feasible,
    copies_of,
    each_once,
    filled,
    paired,
    refuse_own_input,
)
from fluxsched.cli.submit import submit as submit_command
from fluxsched.cli.submit import submit_array as submit_all
from fluxsched.core.text import counted, printable
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.system.clock import RandomSource

INPUTS_MAX = 100_000
"""Inputs of one list, and combinations of all lists: as many jobs as one command submits."""

VALUES_MAX = 1_000_000
"""Inputs of all jobs in all: ten for each of the most jobs."""

WIDTH_MAX = 1024
"""Characters that a placeholder may be padded to, as in `{:>8}`."""

LINKED, FROM_FILES = "+", "::::"
DELIMITERS = (":::", ":::+", "::::", "::::+")

PLACEHOLDER = re.compile(
    r"(?<!\{)\{(?:(?P<seq>seq1?)|(?P<index>\d{0,4})(?:\.(?P<method>[%/]{1,3}|\w+))?)(?::(?P<spec>[^{}]{0,20}))?\}(?!\})"
)

METHODS: Mapping[str, Callable[[str], object]] = {
    "%": lambda text: os.path.splitext(text)[0],
    "/": os.path.basename,
    "/%": lambda text: os.path.splitext(os.path.basename(text))[0],
    "//": os.path.dirname,
}
"""Methods by the text behind the dot: without extension, without directory, without both, the directory."""

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}

Methods = Mapping[str, Callable[[str], object]]


class Inputs(NamedTuple):
    """One list of inputs; a linked one goes along with the list before it."""

    values: tuple[str, ...]
    linked: bool = False


class InputRow(NamedTuple):
    """The inputs of one job, and its number from 0."""

    seq: int
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"input {self.seq + 1} ({', '.join(map(_quoted, self.values))})"


def _quoted(value: str) -> str:
    return f"'{printable(value)}'"


def split_words(words: Sequence[str]) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
    """Return the command, and the lists behind it: each delimiter with what follows it."""
    at = [place for place, word in enumerate(words) if word in DELIMITERS]
    ends = [*at, len(words)]
    lists = [(words[begin], tuple(words[begin + 1 : end])) for begin, end in pairwise(ends)]
    return tuple(words[: ends[0]]), lists


def read_inputs(
    lists: Iterable[tuple[str, tuple[str, ...]]], separator: str, read: Callable[[str], str]
) -> list[Inputs]:
    """Return the lists of inputs. `read` gives the text of a file, `-` being stdin, which is read if there is no list;
    `separator` may be written as `\\n`, `\\t` or `\\0`.

    Raises InvalidValue for a list that is empty or linked to none, LimitExceeded above INPUTS_MAX.
    """
    separator = _ESCAPES.get(separator, separator)
    found: list[Inputs] = []
    for delimiter, words in list(lists) or [(FROM_FILES, ("-",))]:
        linked = delimiter.endswith(LINKED)
        if linked and not found:
            raise InvalidValue(f"{delimiter} links inputs to preceding ones, but there are none")
        values = words
        if delimiter.startswith(FROM_FILES):
            if not words:
                raise InvalidValue(f"{delimiter} is not followed by a file")
            values = tuple(value for name in words for value in _values(read(name), separator))
        if not values:
            named = ["stdin" if name == "-" else name for name in words]
            of = f" of {', '.join(named)}" if delimiter.startswith(FROM_FILES) and words else ""
            raise InvalidValue(f"the inputs{of} are empty: there is nothing to submit")
        if len(values) > INPUTS_MAX:
            raise LimitExceeded(f"{len(values)} inputs in one list exceed the limit of {INPUTS_MAX}")
        found.append(Inputs(values, linked))
    return found


def _values(text: str, separator: str) -> list[str]:
    if separator.lower() == "none":
        return text.split()
    parts = text.removesuffix("\n").split(separator)
    return parts[:-1] if parts[-1] == "" else parts


def combine(lists: Sequence[Inputs]) -> list[InputRow]:
    """All combinations, the last list changing first; a linked list is gone through, again and again, beside its own.

    Raises LimitExceeded above INPUTS_MAX or VALUES_MAX.
    """
    count = prod(len(inputs.values) for inputs in lists if not inputs.linked)
    if count > INPUTS_MAX:
        raise LimitExceeded(f"the inputs have more than {INPUTS_MAX} combinations: submit them in parts")
    if count * len(lists) > VALUES_MAX:
        what = f"{count} combinations of {len(lists)} inputs each"
        raise LimitExceeded(f"{what} are more than {VALUES_MAX} in all: submit them in parts")
    groups: list[list[list[str]]] = []
    for inputs in lists:
        if not inputs.linked:
            groups.append([[value] for value in inputs.values])
            continue
        for at, row in enumerate(groups[-1]):
            row.append(inputs.values[at % len(inputs.values)])
    rows = product(*groups)
    return [InputRow(seq, tuple(value for part in row for value in part)) for seq, row in enumerate(rows)]


def defined_methods(settings: Iterable[str]) -> Methods:
    """METHODS, and those of `--define NAME=CODE`: an expression of Python over the input `x`.

    Raises InvalidValue for what is no name or no expression.
    """
    made = dict(METHODS)
    for setting in settings:
        name, equals, code = setting.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidValue(f"{setting!r} is not NAME=CODE, such as p2='2**int(x)'")
        try:
            compiled = compile(code, f"--define {name}", "eval")
        except (SyntaxError, ValueError) as error:
            raise InvalidValue(f"{setting!r}: {error}") from None
        made[name] = lambda x, compiled=compiled: eval(compiled, {"x": x})  # type: ignore[misc]
    return made


def fill(word: str, row: InputRow, methods: Methods) -> str:
    """Return the word with its placeholders replaced. Raises InvalidValue naming the placeholder that cannot be."""
    count = iter(range(len(row.values) + 1))

    def replaced(match: re.Match[str]) -> str:
        try:
            spec = match["spec"] or ""
            if any(int(number) > WIDTH_MAX for number in re.findall("[0-9]+", spec)):
                raise InvalidValue(f"it would be more than {WIDTH_MAX} characters wide")
            return format(_value(match, row, methods, count), spec)
        except InvalidValue as fault:
            raise InvalidValue(f"{match[0]} in {word!r}: {fault}") from None
        except KeyboardInterrupt:
            raise
        except BaseException as fault:
            # the user's own expression may raise anything, SystemExit too
            raise InvalidValue(f"{match[0]} in {word!r}: {type(fault).__name__}: {fault}") from fault

    return PLACEHOLDER.sub(replaced, word)


def _value(match: re.Match[str], row: InputRow, methods: Methods, count: Iterator[int]) -> object:
    if match["seq"]:
        return row.seq + (match["seq"] == "seq1")
    index = int(match["index"]) if match["index"] else 0 if match["method"] or len(row.values) == 1 else next(count)
    if index >= len(row.values):
        raise InvalidValue(f"a job has {counted(len(row.values), 'input')}, counted from 0")
    value = row.values[index]
    if match["method"] is None:
        return value
    method = methods.get(match["method"])
    if method is None:
        raise InvalidValue(
            f"no method {match['method']!r}: the methods are {', '.join(methods)}, and those of --define"
        )
    return method(value)


# ---- `bulksubmit`

INPUT_CHARS_MAX = 64 << 20
"""Maximum number of characters of one file of inputs."""

_WORDS = "fluxsched.template-words"
_OWN = ("wait", "watch", "label_io", "progress", "jps", "quiet", "as_json", "uri", "dry_run")
"""Options of submit that are about the command, not about a job."""


def _job_params() -> list[click.Parameter]:
    return [param for param in submit_command.params if param.name not in _OWN]


def _as_text(param: click.Parameter) -> click.Option:
    """Return an option that takes any text: it may hold `{}`."""
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
        """Split the words into template, inputs and options."""
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
        """Return the template of these words. Raises click.UsageError."""
        with self._command.make_context("bulksubmit", list(words), parent=self._ctx) as ctx:
            options = dict(ctx.params)
        copies = copies_of(options.pop("cc"), options.pop("bcc"))
        refuse_own_input(options)
        options = options if copies.ids != (None,) else filled(options, "")
        return Template(options, copies, said)

    def read_common(self, words: Sequence[str]) -> Template | None:
        """Return the template of jobs that differ in their commands only; None where they differ in options, or where
        these are wrong, which each job says for itself.
        """
        at = words.index("--")
        if any(map(PLACEHOLDER.search, words[:at])):
            return None
        try:
            return self.read(words, "")
        except (InvalidValue, click.UsageError):
            return None


def read_file(name: str) -> str:
    """Return the text of a file of inputs. Raises InvalidValue, LimitExceeded or OSError."""
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
    words: Sequence[str], rows: Iterable[InputRow], methods: Methods, reader: Reader
) -> list[tuple[list[str], Template]]:
    """Each job's words, and what they say. Raises click.UsageError naming the inputs that make no job."""
    found: list[tuple[list[str], Template]] = []
    faults: list[tuple[str, str]] = []
    common, at = reader.read_common(words), words.index("--") + 1
    for row in rows:
        try:
            filled_words = [fill(word, row, methods) for word in words]
            if common is None:
                template = reader.read(filled_words, str(row))
            else:
                own = [word if common.is_copied else word.replace(CC, "") for word in filled_words[at:]]
                template = common._replace(said=str(row), own_command=own)
            found.append((filled_words, template))
        except (InvalidValue, click.UsageError) as fault:
            faults.append((str(row), fault.format_message() if isinstance(fault, click.UsageError) else str(fault)))
    if faults:
        raise click.UsageError("\n".join(each_once(faults)))
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
    command, lists = split_words(words)
    template_words = [*ctx.meta[_WORDS], "--", *(command or ("{}",))]
    if sep == "":
        raise click.BadParameter("a separator cannot be empty", param_hint="'--sep'")
    with usage():
        methods = defined_methods(define)
        rows = combine(read_inputs(lists, sep, read_file))
    if shuffle:
        RandomSource().shuffle(rows)
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
        check_feasible(handle, jobspecs, [group[0].said for group in alike(ready)])
        return submit_all(handle, ready, after, [template.options for _, template in jobs])
