"""A progress line on the terminal: fraction done, rate, time left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import IO

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
        """So many jobs of so many are over."""
        wall_s = self._monotonic_s()
        if wall_s - self._shown_s < SHOWN_EVERY_S:
            return
        self._shown_s = wall_s
        self._draw(line_text(self._title, done, total, wall_s - self._begun_s))

    def clear(self) -> None:
        """Take the line away."""
        if self._width:
            self._file.write(f"\r{' ' * self._width}\r")
            self._file.flush()

    def _draw(self, text: str) -> None:
        self._file.write(f"\r{text.ljust(self._width)}")
        self._file.flush()
        self._width = len(text)


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
