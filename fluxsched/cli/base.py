"""What every command stands in: groups that import a command's module only when it runs, and the one place where
errors become text and an exit status.

Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted, 141 reader gone, or the job's own (`run`,
`wait`, `job attach`; a signal n ends as 128+n, as in a shell).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, NamedTuple, NoReturn

import click

from fluxsched.errors import FluxschedError, InvalidValue, LocalProtocolError

INTERRUPTED = 130
READER_GONE = 141


class Failed(click.ClickException):
    """A command that was understood and could not be done: one line on stderr, exit status 1."""

    exit_code = 1

    def __init__(self, ctx: click.Context, text: str) -> None:
        super().__init__(text)
        self.command = command_name(ctx)

    def show(self, file: IO[Any] | None = None) -> None:
        """Write `fluxsched: COMMAND: text` to stderr."""
        click.echo(f"fluxsched: {self.command}: {self.message}", file=file, err=file is None)


def command_name(ctx: click.Context) -> str:
    """The command as typed, without the program's own name: `resource drain`."""
    names = []
    while ctx.parent is not None:
        names.append(ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(reversed(names))


@contextmanager
def usage() -> Iterator[None]:
    """What is invalid within are the words of the command line themselves: wrong usage, exit status 2."""
    try:
        yield
    except InvalidValue as fault:
        raise click.UsageError(str(fault)) from None


class Command(click.Command):
    """A command whose handler may raise any error of ours or of the system, and may return its exit status."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """The whole first sentence: a list of commands has lines enough for it, and `...` helps nobody."""
        return super().get_short_help_str(sys.maxsize)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the handler; output is flushed here, so that a reader who left is noticed here."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except LocalProtocolError:
            raise
        except FluxschedError as error:
            raise Failed(ctx, str(error) or os.strerror(error.errnum)) from error
        except BrokenPipeError:
            _discard_stdout()
            ctx.exit(READER_GONE)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise Failed(ctx, where + (error.strerror or str(error))) from error
        return status


class Group(click.Group):
    """A group whose commands are ours."""

    command_class = Command


class Entry(NamedTuple):
    """One line of a lazy group's table: where the command lives and what `--help` says of it."""

    target: str  # "package.module:attribute"
    help: str


class LazyGroup(Group):
    """A group that knows its commands by name and help text only; a command's module is imported when it is named.

    Listing, suggesting and completing work on placeholders, so `fluxsched --help` imports no command at all.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Entry]], **more: Any) -> None:
        super().__init__(*args, **more)
        self.sections = sections
        self.entries = {name: entry for section in sections.values() for name, entry in section.items()}
        self.commands = {name: click.Command(name, help=entry.help) for name, entry in self.entries.items()}

    def load(self, name: str) -> click.Command:
        """Import the command called `name`."""
        module, _, attribute = self.entries[name].target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the table's order: what belongs together stands together."""
        return list(self.entries)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The placeholder's place is taken by the command itself as soon as it is to be run or completed."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else self.load(name), rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One block of `--help` a section, names aligned over all of them."""
        width = max(map(len, self.entries))
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.help) for name, entry in section.items()])


class Program(LazyGroup):
    """The outermost group: turns whatever happened into an exit status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "fluxsched",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run one command line and leave the process with its status."""
        try:
            extra["windows_expand_args"] = windows_expand_args
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as error:
            error.show()
            status = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            status = INTERRUPTED
        sys.exit(status if isinstance(status, int) else 0)


def _discard_stdout() -> None:
    """Nobody reads any more: what is still buffered must not fail once more when Python leaves."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
