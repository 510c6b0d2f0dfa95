"""The three standard streams, which the caller may have closed, filled up or abandoned.

Law: descriptors 0 to 2 are never given to anything else, output that cannot be written is an error of its own and
never a traceback, and a stderr that takes nothing changes no exit status.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, TextIO

import click

from fluxsched.core.text import printable_lines

_PLACEHOLDERS = ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))
"""What a closed stream becomes of /dev/null: nothing can be written to a stdout that is not there, as if it were
closed; what goes to stderr is lost.
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
    """What is printed cannot be written: stdout is closed or full."""


class _Stdout(io.FileIO):
    """Descriptor 1; its faults are distinguishable from those of other files."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        """Raises OutputFault, or BrokenPipeError where the reader has left."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as fault:
            raise OutputFault(fault.errno, fault.strerror) from None


def say(text: str) -> None:
    """A line for stderr, if that takes any."""
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
