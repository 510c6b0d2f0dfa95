"""Formatting of values for people: times, names, JSON. Text adapts to the terminal: no colour without one or with
NO_COLOR, no florin sign or tick where the encoding has none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

from fluxsched.core.text import UNPRINTABLE, printable
from fluxsched.views.words import context_text as context_text
from fluxsched.views.words import duration_text as duration_text
from fluxsched.views.words import plural as plural
from fluxsched.views.words import rounded as rounded
from fluxsched.views.words import time_text as time_text
from fluxsched.views.words import user_name as user_name

GREEN, RED, YELLOW, DIM = "green", "red", "yellow", "bright_black"


def colourful() -> bool:
    """Whether stdout wants colour (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def interactive() -> bool:
    """Whether a person sits in front who can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def unicode_ok() -> bool:
    """Whether stdout can carry more than ASCII."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "").startswith("utf")


def tick(is_up: bool) -> str:
    """The UP column."""
    if unicode_ok():
        return "✔" if is_up else "✗"
    return "y" if is_up else "n"


def jobid_text(jobid: int) -> str:
    """A job id as people see it: f58 (RFC 19)."""
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


def line(text: str) -> None:
    """Print one line: newlines, terminal escapes and the like in it are shown as `\\n`, `\\x1b`, ..."""
    click.echo(printable(text))


def flushed(text: str) -> None:
    """Print a `line` that must not wait in a buffer."""
    line(text)
    sys.stdout.flush()


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        from base64 import b64encode

        return b64encode(value).decode()
    return str(value)
