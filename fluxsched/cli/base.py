"""Base of all commands: lazily imported groups, errors as text and exit status, standard streams, ending signals.

Exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted, 141 reader gone, or the job's own (`run`,
`wait`, `job attach`; a signal n ends as 128+n, as in a shell). Every text of the command line is UTF-8, but for the
names of files; that is checked here, once for all commands.

Law: descriptors 0 to 2 are never given to anything else, output that cannot be written is an error of its own and never
a traceback, and a stderr that takes nothing changes no exit status. A signal that the caller has us ignore (nohup)
stays ignored. Within `hold` the first one waits until the answer that says what there is to undo is here; a second one
does not wait.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType, MappingProxyType
from typing import IO, Any, NamedTuple, NoReturn, Self, TextIO

import click

from fluxsched.core.text import is_text, printable, printable_lines
from fluxsched.errors import FluxschedError, InvalidValue, LocalProtocolError, RPCError

_PLACEHOLDERS = ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))
"""Modes in which closed streams are replaced by /dev/null: nothing can be written to a stdout that is not there, as if
it were closed; what goes to stderr is lost.
"""


def prepare() -> None:
    """Make the standard streams of this process usable: call it before anything else is opened."""
    for fd, flags in _PLACEHOLDERS:
        try:
            os.fstat(fd)
        except OSError:
            if os.open(os.devnull, flags) == fd:
                os.set_inheritable(fd, True)
    if sys.stdout is sys.__stdout__:  # not replaced by a program that embeds the commands
        sys.stdout = _writer(sys.stdout)
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace")


class OutputFault(OSError):
    """Failure to write the output: stdout is closed or full."""


class _Stdout(io.FileIO):
    """Descriptor 1; its faults are distinguishable from those of other files."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        """Raise OutputFault, or BrokenPipeError where the reader has left."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as fault:
            raise OutputFault(fault.errno, fault.strerror) from None


def say(text: str) -> None:
    """Write a line to stderr, if that takes any."""
    with contextlib.suppress(OSError):
        click.echo(printable_lines(text), err=True)


def discard_unwritten() -> None:
    """Discard buffered output that cannot be written, so that it does not fail again when Python exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(null, fd)
    os.close(null)


def _writer(stdout: TextIO | None) -> TextIO:
    """Like Python's own; but a job may be called what the encoding cannot say."""
    encoding = "utf-8" if stdout is None else stdout.encoding
    raw = _Stdout(1, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=raw.isatty()
    )


# ---- commands and groups

INTERRUPTED = 130
PATH_MAX = 4096
"""The longest path that Linux takes; a longer one need not be repeated whole."""
SHOWN_CHARS = 80
"""Number of characters of a wrong text that an error repeats."""
READER_GONE = 141
INTERRUPT_AGAIN_S = 0.01
"""Delay before an interrupt that was lost in a destructor is sent again (seconds)."""
TYPED_ORDER = "fluxsched.typed-order"
"""Key of the context's `meta`: options that may be repeated, as (name, text) in the order in which they were typed."""


class EndedBySignal(KeyboardInterrupt):
    """A signal that ends the command in order; Ctrl-C is the one that Python itself makes a KeyboardInterrupt."""

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


class CommandFailed(click.ClickException):
    """A command that was understood and could not be done: one line on stderr, exit status 1."""

    exit_code = 1

    def __init__(self, ctx: click.Context, text: str) -> None:
        super().__init__(text)
        self.command = command_name(ctx)

    def show(self, file: IO[Any] | None = None) -> None:
        """Write `fluxsched: COMMAND: text` to stderr."""
        where = f"fluxsched: {self.command}" if self.command else "fluxsched"
        click.echo(f"{where}: {self.message}", file=file, err=file is None)


def warn(text: str) -> None:
    """Write `fluxsched: COMMAND: text` to stderr, for what does not end the command."""
    say(f"fluxsched: {command_name(click.get_current_context())}: {printable(text)}")


def command_name(ctx: click.Context) -> str:
    """Return the command as typed, without the program's own name: `resource drain`."""
    names = []
    while ctx.parent is not None:
        names.append(ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(reversed(names))


@contextmanager
def usage() -> Iterator[None]:
    """Turn an InvalidValue within into wrong usage, exit status 2: its value is in the words of the command line
    themselves.
    """
    try:
        yield
    except InvalidValue as fault:
        raise click.UsageError(str(fault)) from None


COMMAND_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": False}
"""Context settings of a command whose options end where the command to run begins."""


class Command(click.Command):
    """A command whose handler may raise any error of ours or of the system, and may return its exit status."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the whole first sentence: a list of commands has room for it."""
        return super().get_short_help_str(sys.maxsize)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the words apart; what is no text and has to be is refused, and the order of options is kept."""
        given, _, order = self.make_parser(ctx).parse_args(list(args))
        texts = {name: iter(values) for name, values in given.items() if isinstance(values, list)}
        ctx.meta[TYPED_ORDER] = [
            (param.name, next(texts[param.name])) for param in order if param.name in texts and param.name is not None
        ]
        for param in self.get_params(ctx):
            if param.name in given and not self.takes_bytes(param):
                _check_text(ctx, param, given[param.name])
        return super().parse_args(ctx, args)

    def takes_bytes(self, param: click.Parameter) -> bool:
        """Return whether a parameter may be any bytes: the system's names of files may, and never leave this
        machine.
        """
        return isinstance(param.type, click.Path | click.File)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the handler; output is flushed here, so that a reader who left is noticed here."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except LocalProtocolError:
            raise
        except FluxschedError as error:
            raise CommandFailed(ctx, _failure_text(error)) from error
        except EndedBySignal as end:
            ctx.exit(128 + end.signum)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailed(ctx, _os_text(error)) from error
        return status


_NOT_SERVED = re.compile(r"Unknown service method '(?!sched\.)[^']*(?<!\.ping)(?<!\.stats-get)'")
"""Answer of an instance to a request that it lacks: not of a service that the user names, nor of a site's scheduler."""
TOO_OLD = "the instance is too old for this command; `fluxsched restart` upgrades it"


def _failure_text(error: FluxschedError) -> str:
    """Return the text of an error that ends a command, with a remedy where the instance is older than the command."""
    text = str(error) or os.strerror(error.errnum)
    return f"{text}: {TOO_OLD}" if isinstance(error, RPCError) and _NOT_SERVED.match(text) else text


class CommandGroup(click.Group):
    """A group whose commands are ours."""

    command_class = Command


class Lazy(NamedTuple):
    """One line of a lazy group's table: where the command is defined, and its text in `--help`."""

    target: str  # "package.module:attribute"
    help: str


class LazyGroup(CommandGroup):
    """A group with only the names and help texts of its commands; a command's module is imported when it is used.

    Listing, suggesting and completing work on placeholders, so `fluxsched --help` imports no command at all.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, Lazy]], **more: Any) -> None:
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
        """Put the command itself in the placeholder's place as soon as it is to be run or completed."""
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

    def __init__(
        self,
        *args: Any,
        elsewhere: Mapping[str, str] = MappingProxyType({}),
        options_elsewhere: Mapping[str, str] = MappingProxyType({}),
        **more: Any,
    ) -> None:
        """`elsewhere`: our commands, by the names that other programs give to theirs; `options_elsewhere`: our options
        likewise, as `naming_ours` reads them.
        """
        super().__init__(*args, **more)
        self.elsewhere = elsewhere
        self.options_elsewhere = options_elsewhere

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Understand `help COMMAND`, and name our command to those who type another program's."""
        if args[0] == "help":
            group = self.load(args[1]) if args[1:] and args[1] in self.entries else None
            args = [*(args[1:] if isinstance(group, click.Group) else args[1:2]), "--help"]  # not words of a job
        if args[0] in self.elsewhere and not ctx.resilient_parsing:
            ours = " or ".join(f"`fluxsched {name}`" for name in self.elsewhere[args[0]].split(", "))
            raise click.UsageError(f"No such command {args[0]!r}: use {ours}.", ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Make the context; the reader of printed help may be gone, too."""
        with _reader_may_go():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; the reader of its output may be gone."""
        with _reader_may_go():
            return super().invoke(ctx)

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
        prepare()
        if sys.unraisablehook is sys.__unraisablehook__:  # not replaced by a program that embeds the commands
            sys.unraisablehook = _raise_lost_interrupt
        try:
            extra["windows_expand_args"] = windows_expand_args
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            shown = io.StringIO()
            naming_ours(error).show(shown)
            text = shown.getvalue().rstrip("\n")
            say(_LONG.sub(_shortened, text) if isinstance(error, click.UsageError) else text)
            status = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            status = INTERRUPTED
        except OSError as error:
            say(f"fluxsched: {_os_text(error)}")
            status = 1
        discard_unwritten()
        sys.exit(status if isinstance(status, int) else 0)


def naming_ours(error: click.ClickException) -> click.ClickException:
    """Return the error with our option or command in place of click's guess, if it is about another program's
    option.
    """
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    program, known = error.ctx.find_root().command, {name for param in error.ctx.command.params for name in param.opts}
    if not isinstance(program, Program) or known.isdisjoint(("--job-name", "--filter")):
        return error  # no command of jobs
    for ours in filter(None, program.options_elsewhere.get(error.option_name, "").split(", ")):
        if not ours.startswith("-") or ours.split()[0] in known:
            name = ours if ours.startswith("-") else f"`fluxsched {ours}`"
            return click.UsageError(f"No such option {error.option_name!r}: use {name}.", error.ctx)
    return error


def _raise_lost_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """Send a signal again whose exception was lost in a destructor, such as that of a frame of pyzmq."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    from threading import Timer, main_thread

    signum = getattr(lost.exc_value, "signum", signal.SIGINT)
    while True:
        try:
            again = Timer(INTERRUPT_AGAIN_S, signal.pthread_kill, (main_thread().ident, signum))
            again.daemon = True
            again.start()
            return
        except KeyboardInterrupt:  # on a busy machine it comes before this hook has ended, where it would be lost, too
            pass


@contextmanager
def _reader_may_go() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        discard_unwritten()
        raise click.exceptions.Exit(READER_GONE) from None


_LONG = re.compile(r"\S{300,}")
"""A word that some option cannot be: an error need not repeat it all."""


def _shortened(found: re.Match[str]) -> str:
    return f"{found[0][:SHOWN_CHARS]}..."


def _os_text(error: OSError) -> str:
    """Return the system's reason, and its object: a file, or the output."""
    text = error.strerror or str(error)
    if isinstance(error, OutputFault):
        return f"cannot write the output: {text}"
    return f"{os.fsdecode(error.filename)[:PATH_MAX]}: {text}" if isinstance(error.filename, str | bytes) else text


def _check_text(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Refuse an option or operand that is not UTF-8: Python has put lone surrogates for its bytes."""
    for text in value if isinstance(value, list | tuple) else [value]:
        if isinstance(text, str) and not is_text(text):
            shown = text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."
            raise click.BadParameter(f"'{printable(shown)}' is not UTF-8 text", ctx, param)


# ---- signals

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_USUAL = (signal.SIG_DFL, signal.default_int_handler)


class EndingSignals:
    """While it is entered, SIGINT, SIGTERM and SIGHUP raise EndedBySignal in the main thread."""

    def __init__(self) -> None:
        self._before: dict[int, Callable[..., Any] | int | None] = {}
        self._is_held = False
        self._came: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in _ENDING:
                if signal.getsignal(signum) in _USUAL:
                    self._before[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(self, *exc: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def hold(self) -> None:
        """Hold back signals until `release`; an error on the way ends the command without it."""
        self._is_held = True

    def release(self) -> None:
        """Raise EndedBySignal if a signal came while they were held, and as soon as one comes from now on."""
        self._is_held = False
        if self._came is not None:
            raise EndedBySignal(self._came)

    def _take(self, signum: int, frame: FrameType | None) -> None:
        if self._is_held and self._came is None:
            self._came = signum
            return
        raise EndedBySignal(signum)
