"""Output for people: aligned tables by Flux's formats, times, JSON, eventlogs, progress. Text adapts to the terminal.

A Python format string names the columns. Beyond Python: `?:` before a field drops the column when it is empty in every
line, a trailing `+` marks a text that was cut, a trailing `h` shows nothing (or 0) as `-`, a trailing `*` cuts only
what the terminal has no room for, and nothing where stdout is none; the conversions `!F` (FSD), `!d` and `!D` (date and
time, `!d:%b%d %R::<12`) and `!H` (hours:minutes:seconds) print seconds. A column without a precision grows to its
widest cell, so lines stay aligned; the prefix `+:` that asks Flux for that is accepted.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import IO, Any, NamedTuple, NoReturn, TypeVar

import click

from fluxsched.core.text import UNPRINTABLE, printable
from fluxsched.core.text import plural as plural
from fluxsched.errors import InvalidValue, Refused
from fluxsched.views.words import context_text as context_text
from fluxsched.views.words import duration_text as duration_text
from fluxsched.views.words import rounded as rounded
from fluxsched.views.words import time_text as time_text
from fluxsched.views.words import user_name as user_name

GREEN, RED, YELLOW, DIM = "green", "red", "yellow", "bright_black"


def colourful() -> bool:
    """Return whether stdout is to be coloured (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def interactive() -> bool:
    """Return whether a person can answer a question at the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def unicode_ok() -> bool:
    """Return whether stdout can carry more than ASCII."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "").startswith("utf")


def tick(is_up: bool) -> str:
    """Return the mark for the UP column."""
    if unicode_ok():
        return "✔" if is_up else "✗"
    return "y" if is_up else "n"


def jobid_text(jobid: int) -> str:
    """Return a job id as people see it: f58 (RFC 19)."""
    from fluxsched.core.jobid import format_f58

    return format_f58(jobid, ascii=not unicode_ok())


def print_json(obj: object) -> None:
    """One line of JSON; bytes are base64, as in the schemas of `rfc/`."""
    import json

    text = json.dumps(obj, ensure_ascii=not unicode_ok(), default=_plain)
    click.echo(UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))  # the same string to who reads JSON


def print_stream(answers: Iterable[object]) -> None:
    """One JSON a line, each as soon as it arrives, also into a pipe."""
    for answer in answers:
        print_json(answer)
        sys.stdout.flush()


def print_line(text: str) -> None:
    """Print one line: newlines, terminal escapes and the like in it are shown as `\\n`, `\\x1b`, ..."""
    click.echo(printable(text))


def print_flushed(text: str) -> None:
    """Print a line that must not wait in a buffer."""
    print_line(text)
    sys.stdout.flush()


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        from base64 import b64encode

        return b64encode(value).decode()
    return str(value)


# ---- tables

_SPEC = re.compile(
    r"(?:(?P<fill>.)?(?P<align>[<>^]))?(?P<width>[0-9]{1,9})?(?:\.(?P<precision>[0-9]{1,9}))?(?P<kind>[defgx%s])?(?P<marks>[+h*]*)"
)
_PREFIX = re.compile(r"([?+]{1,2}):$")
_TIMED = "dDFH"
_DATE = "%Y-%m-%dT%H:%M:%S"

RowType = TypeVar("RowType")

LIST_ROOM_MIN = 16
"""Characters that a terminal must have left for a list that goes on below itself."""

COLUMN_WIDTH_MAX = 1000
"""A width or precision beyond any terminal is a typing mistake, and could eat the memory."""


class Field(NamedTuple):
    """Field that a command can show in a column: its heading, how it is read off a row, and its colour."""

    heading: str
    value: Callable[[Any], object]
    colour: Callable[[object], str | None] = lambda value: None
    zero_is_empty: bool = True
    """`?:` drops a column of zeros, as in Flux; not one where 0 means that nothing is left."""


class Column(NamedTuple):
    """One `{field!conversion:spec}` of a format, and the text before it."""

    before: str
    name: str
    conversion: str | None = None
    date: str = _DATE
    align: str = "<"
    fill: str = " "
    width: int = 0
    precision: int | None = None
    kind: str = ""
    marks: str = ""
    droppable: bool = False

    def cell(self, value: object) -> str:
        """Return the text of one value, cut but not yet aligned."""
        text = self._text(value)
        if "h" in self.marks and (not value or not text):
            return "-"
        return self.cut(text)

    def cut(self, text: str) -> str:
        """Cut a text to at most `precision` characters."""
        if self.precision is None or self.kind in tuple("efg%") or len(text) <= self.precision:
            return text
        return text[: self.precision - 1] + "+" if "+" in self.marks else text[: self.precision]

    def aligned(self, text: str, width: int) -> str:
        """Fill a text up to `width`, aligned."""
        return f"{text:{self.fill}{self.align}{width}}"

    def _text(self, value: object) -> str:
        if value is None or value == "":
            return ""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if self.conversion in tuple(_TIMED) and is_number:
            return _TIMES[self.conversion or ""](float(value), self.date)  # type: ignore[arg-type]
        if self.kind in tuple("efg%") and is_number:
            return format(value, f".{6 if self.precision is None else self.precision}{self.kind}")
        if self.kind == "x" and isinstance(value, int):
            return format(value, "x")
        return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))


class Format(NamedTuple):
    """A parsed format: its columns and the text after the last."""

    columns: tuple[Column, ...]
    after: str

    @property
    def names(self) -> frozenset[str]:
        """The fields that are shown; only these need to be worked out."""
        return frozenset(column.name for column in self.columns)


def parse_format(text: str, fields: Iterable[str]) -> Format:
    """Take a format apart. Raises InvalidValue for a wrong spec, and naming all fields that are unknown."""
    from string import Formatter

    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise InvalidValue(f"format {text!r}: {error}") from None
    columns: list[Column] = []
    before = ""  # a doubled brace ends a literal early: what it leaves belongs to the next column
    for literal, name, spec, conversion in parts:
        before += literal
        if name is not None:
            columns.append(_column(before, name, spec or "", conversion))
            before = ""
    unknown = sorted({column.name for column in columns} - set(fields))
    if unknown or not columns:
        problem = f"unknown field {', '.join(unknown)}" if unknown else "it names no {field}"
        raise InvalidValue(f"format {text!r}: {problem}; the fields are {', '.join(sorted(fields))}")
    return Format(tuple(columns), before)


class SortKey(NamedTuple):
    """One field to sort by."""

    name: str
    reverse: bool = False


def parse_sort(text: str, fields: Iterable[str]) -> tuple[SortKey, ...]:
    """`[-]FIELD,...`. Raises InvalidValue naming all fields that are unknown."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    keys = tuple(SortKey(word.removeprefix("-"), word.startswith("-")) for word in words)
    unknown = [key.name for key in keys if key.name not in set(fields)]
    if unknown or not keys:
        problem = f"unknown field {', '.join(unknown)}" if unknown else "it names no field"
        raise InvalidValue(f"sort {text!r}: {problem}; the fields are {', '.join(sorted(fields))}")
    return keys


def sort_rows(rows: Iterable[RowType], keys: Sequence[SortKey], fields: Mapping[str, Field]) -> list[RowType]:
    """Rows by the first key, equal ones by the next; what has no value comes last, or first in reverse order."""
    found = list(rows)
    for key in reversed(keys):
        value = fields[key.name].value

        def place(row: RowType, value: Callable[[Any], object] = value) -> tuple[bool, bool, Any]:
            found = value(row)
            is_number = isinstance(found, int | float)
            return (found in (None, ""), not is_number, found if is_number else str(found))

        found.sort(key=place, reverse=key.reverse)
    return found


def render(rows: Sequence[Any], layout: Format, fields: Mapping[str, Field], *, header: bool = True) -> list[str]:
    """Return the lines of a table."""
    in_colour, found = colourful(), dict[int, list[str]]()
    last = -1 if layout.after else len(layout.columns) - 1
    for at, column in sorted(enumerate(layout.columns), key=lambda each: "*" in each[1].marks):
        fitted = _fitted(column, list(found.values())) if "*" in column.marks else column
        lines = _draw(rows, fitted, fields[column.name], header=header, colourful=in_colour, is_last=at == last)
        if lines is not None:
            found[at] = lines
    finished = [lines for _, lines in sorted(found.items())]
    if last not in found or not sys.stdout.isatty():
        return [("".join(cells) + layout.after).rstrip() for cells in zip(*finished, strict=True)]
    columns = shutil.get_terminal_size().columns
    return [line.rstrip() for cells in zip(*finished, strict=True) for line in _lines(cells, columns)]


def _lines(cells: Sequence[str], columns: int) -> Iterator[str]:
    """Yield a row; a list in its last cell goes on below itself where the terminal ends, and breaks at commas."""
    *before, last = cells
    line = "".join(before) + last[: len(last) - len(last.lstrip())]
    indent = len(click.unstyle(line))
    used = indent
    for part in re.split("(?<=,)(?=.)", last.lstrip()):
        if used + len(part) > columns and used > indent and columns - indent >= LIST_ROOM_MIN:
            yield line
            line, used = " " * indent, indent
        line, used = line + part, used + len(part)
    yield line


def _fitted(column: Column, others: Sequence[Sequence[str]]) -> Column:
    """Return the column with a precision that leaves the other ones room on the terminal; None if stdout is no
    terminal.
    """
    if not sys.stdout.isatty():
        return column._replace(precision=None)
    taken = max([len(click.unstyle("".join(cells))) for cells in zip(*others, strict=True)], default=0)
    left = shutil.get_terminal_size().columns - taken - len(column.before)
    return column._replace(precision=max(column.precision or 0, left))


def print_table(rows: Sequence[Any], layout: Format, fields: Mapping[str, Field], *, header: bool = True) -> None:
    """Render the table and print its lines."""
    for line in render(rows, layout, fields, header=header):
        click.echo(line)


def _draw(
    rows: Sequence[Any], column: Column, field: Field, *, header: bool, colourful: bool, is_last: bool
) -> list[str] | None:
    values = [field.value(row) for row in rows]
    cells = [column.cell(value) for value in values]
    if column.droppable and all(cell in ("", "-") or (cell == "0" and field.zero_is_empty) for cell in cells):
        return None
    heading = [column.cut(field.heading)] if header else []
    fits = max(map(len, heading + cells), default=0)
    width = 0 if is_last and column.align == "<" else max(column.width, fits)
    lines = [column.aligned(cell, width) for cell in heading + cells]
    if colourful:
        lines[len(heading) :] = [
            click.style(line, fg=colour) if (colour := field.colour(value)) else line
            for value, line in zip(values, lines[len(heading) :], strict=True)
        ]
    return [column.before + line for line in lines]


def _column(before: str, name: str, spec: str, conversion: str | None) -> Column:
    date = _DATE
    if conversion in ("d", "D") and "%" in spec:
        date, _, spec = spec.partition("::")
        spec = spec if spec[:1] in "<>^" else f">{spec}"
    match = _SPEC.fullmatch(spec)
    if match is None or (conversion and conversion not in tuple(_TIMED + "sr")):
        typed = f"{name}{f'!{conversion}' if conversion else ''}:{spec}"
        raise InvalidValue(f"format: {{{typed}}} is not a column; such as {{{name}:>8.8}} is")
    prefix = _PREFIX.search(before)
    width = int(match["width"] or 0)
    precision = int(match["precision"]) if match["precision"] else None
    if max(width, precision or 0) > COLUMN_WIDTH_MAX:
        raise InvalidValue(f"format: {{{name}:{spec}}} is wider than the limit of {COLUMN_WIDTH_MAX}")
    return Column(
        before=before[: prefix.start()] if prefix else before,
        name=name,
        conversion=conversion,
        date=date,
        align=match["align"] or "<",
        fill=match["fill"] or " ",
        width=width,
        precision=precision,
        kind=match["kind"] or "",
        marks=match["marks"],
        droppable=bool(prefix and "?" in prefix[1]),
    )


def _clock_text(duration_s: float, date: str) -> str:
    minutes, seconds = divmod(int(duration_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


_TIMES: Mapping[str, Callable[[float, str], str]] = {
    "F": lambda value_s, date: duration_text(value_s),
    "H": _clock_text,
    "d": lambda value_s, date: time_text(value_s, date),
    "D": lambda value_s, date: time_text(value_s, date) if value_s else "",
}


# ---- events

STYLES = ("raw", "iso", "offset", "human")


class EventPrinter:
    """Prints one event a line, flushed, so that a pipe sees it when it happens."""

    def __init__(self, as_json: bool, style: str) -> None:
        self.as_json = as_json
        self.style = style
        self.first_s: float | None = None

    def show(self, event: Mapping[str, Any]) -> None:
        """Print one event of the eventlog."""
        if self.as_json:
            print_stream([event])
        else:
            context = context_text(event.get("context") or {})
            print_flushed(f"{self._time(event['timestamp'])} {event['name']}{context}")

    def _time(self, timestamp_s: float) -> str:
        if self.first_s is None:
            self.first_s = timestamp_s
        if self.style == "iso":
            return time_text(timestamp_s)
        if self.style == "human":
            return f"[{time_text(timestamp_s, '%b%d %H:%M:%S')}]"
        return f"{timestamp_s - self.first_s if self.style == 'offset' else timestamp_s:.6f}"

    @staticmethod
    @contextmanager
    def deadline(limit_s: float | None) -> Iterator[None]:
        """Raise Refused (ETIMEDOUT) in the body after `limit_s`; None is for ever. Main thread only: it is SIGALRM."""

        def fail(signum: int, frame: object) -> NoReturn:
            raise Refused(f"no such event within {duration_text(limit_s or 0)}", errno.ETIMEDOUT)

        if limit_s is None or limit_s == float("inf"):
            yield
            return
        before = signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, max(limit_s, 1e-6))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def event_options(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-f`, `-T`, `-H` and `--json`; the handler gets an EventPrinter as `printer`."""

    @wraps(handler)
    def run(*args: Any, layout: str, style: str, human: bool, as_json: bool, **arguments: Any) -> Any:
        printer = EventPrinter(as_json or layout == "json", "human" if human else style)
        return handler(*args, printer=printer, **arguments)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="The same as -f json."),
        click.option("-H", "--human", is_flag=True, help="The same as -T human."),
        click.option("-T", "--time-format", "style", type=click.Choice(STYLES), default="raw", show_default=True),
        click.option("-f", "--format", "layout", type=click.Choice(("text", "json")), default="text"),
    ):
        run = option(run)
    return run


# ---- progress

SHOWN_EVERY_S = 0.1
"""Ten times a second is as fast as people read, and free."""

BAR_CHARS = 30


class ProgressLine:
    """One line on stderr, drawn again and again; `monotonic_s` is the clock."""

    def __init__(self, title: str, monotonic_s: Callable[[], float], file: IO[str] | None = None) -> None:
        self._title = title
        self._monotonic_s = monotonic_s
        self._file = sys.stderr if file is None else file
        self._begun_s = monotonic_s()
        self._shown_s = self._begun_s
        self._width = 0

    def __call__(self, done: int, total: int, now_s: float) -> None:
        """Draw the line for so many of so many jobs that are over."""
        wall_s = self._monotonic_s()
        if wall_s - self._shown_s < SHOWN_EVERY_S:
            return
        self._shown_s = wall_s
        self._draw(line_text(self._title, done, total, wall_s - self._begun_s))

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._width:
            self._file.write(f"\r{' ' * self._width}\r")
            self._file.flush()

    def _draw(self, text: str) -> None:
        self._file.write(f"\r{text.ljust(self._width)}")
        self._file.flush()
        self._width = len(text)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show on a terminal what is being done, and remove the text at the end."""
    if not sys.stderr.isatty():
        yield
        return
    line = f"{printable(text)} ..."
    print(line, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


def line_text(title: str, done: int, total: int, took_s: float) -> str:
    """`easy [#####.....]  50% 14,240/28,481 jobs, 52,310 jobs/s, ETA 0:12`."""
    part = done / total if total else 1.0
    bar = ("#" * int(part * BAR_CHARS)).ljust(BAR_CHARS, ".")
    rate = done / took_s if took_s > 0 else 0.0
    left_s = int((total - done) / rate) if rate else 0
    eta = f"{left_s // 3600}:{left_s // 60 % 60:02}:{left_s % 60:02}" if left_s >= 3600 else _minutes(left_s)
    return f"{title} [{bar}] {100 * part:3.0f}% {done:,}/{total:,} jobs, {rate:,.0f} jobs/s, ETA {eta if rate else '-'}"


def _minutes(seconds: int) -> str:
    return f"{seconds // 60}:{seconds % 60:02}"
