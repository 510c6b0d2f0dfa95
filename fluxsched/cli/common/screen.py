"""A screen that is drawn again and again: what `--watch` shows on a terminal.

Law: the terminal is left as it was found, however this ends; while it is suspended it is the shell's.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_ENTER, _LEAVE = b"\x1b[?1049h\x1b[?25l\x1b[?7l", b"\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def has_screen() -> bool:
    """Whether a person looks at a terminal, and can press a key."""
    return sys.stdout.isatty() and sys.stdin.isatty()


class PressedKeys:
    """What is typed while a screen is shown; `quit` once that is a q. `stale` if the screen must be drawn anew."""

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self.quit = False
        self.stale = False

    def look(self) -> None:
        """Read what was typed, if anything was."""
        if self.fd is None or not select.select([self.fd], [], [], 0)[0]:
            return
        data = os.read(self.fd, 1024)
        self.quit |= b"q" in data or b"Q" in data
        if not data:
            self.fd = None


@contextmanager
def terminal() -> Iterator[PressedKeys]:
    """A screen of our own, keys without Enter."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    keys = PressedKeys(fd)

    def enter() -> None:
        tty.setcbreak(fd)
        os.write(out, _ENTER)

    def leave() -> None:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        os.write(out, _LEAVE)

    def suspended(signum: int, frame: object) -> None:
        """Ctrl-Z: the shell gets its terminal, and we take ours when we go on."""
        leave()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        signal.signal(signum, suspended)
        enter()
        keys.stale = True

    out = sys.stdout.fileno()
    sys.stdout.flush()
    usual = signal.signal(signal.SIGTSTP, suspended)
    try:
        enter()
        yield keys
    finally:
        signal.signal(signal.SIGTSTP, usual)
        sys.stdout.flush()
        leave()


def draw(lines: Sequence[str], height: int) -> None:
    """Show these lines, as many as fit, in place of what was there."""
    sys.stdout.write(_HOME + "\n".join(line + _REST_OF_LINE for line in lines[:height]) + _REST_OF_SCREEN)
    sys.stdout.flush()
