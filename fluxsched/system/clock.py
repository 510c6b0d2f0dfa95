"""The only place where time and chance enter fluxsched.

Wall time is for what people and R see, monotonic time for delays. Everything else takes `now_s` as an argument, so
the simulator can put virtual time in its place.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    """Wall clock and monotonic clock, both injected."""

    def wall_s(self) -> float:
        """Return the seconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return the seconds of a clock that never runs backwards; comparable only with itself."""
        ...


class SystemClock:
    """Clock of the machine itself."""

    wall_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)
    cpu_s = staticmethod(time.process_time)
    """Seconds that this process has computed: for measuring on a machine that others use, too."""
    sleep = staticmethod(time.sleep)
    """Block this thread; for command line tools, never for the instance's loop."""


def local_text(time_s: float) -> str:
    """Return a wall time in local time for people: `Nov22 12:03`."""
    return time.strftime("%b%d %H:%M", time.localtime(time_s))


def local_moment(time_s: float) -> str:
    """Return a wall time that may be long past or far away: `2025-11-22 12:03:00 CET`."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):
        return f"{time_s:.0f} s since the epoch"


def local_hour(time_s: float) -> int:
    """Return the beginning of the hour in local time (seconds since the epoch)."""
    offset_s = time.localtime(time_s).tm_gmtoff
    return int((time_s + offset_s) // 3600 * 3600 - offset_s)


def local_day(time_s: float) -> int:
    """Return the beginning of the day in local time (seconds since the epoch); the day may have 23 or 25 hours."""
    day = time.localtime(time_s)
    return int(time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1)))


@contextmanager
def interrupted(limit_s: float, fault: BaseException) -> Iterator[None]:
    """Raise `fault` within a block that takes longer than the limit (seconds); for the main thread alone.

    The wall clock is used: a timer of CPU time makes `cpu_s` as coarse as itself.
    """

    def ring(signum: int, frame: object) -> None:
        raise fault

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def generator_id(seed: int | None = None) -> int:
    """Return a FLUID generator id (RFC 19: 14 bits); random unless seeded."""
    return random.Random(seed).getrandbits(14)


def matchtag_before() -> int:
    """Return the number before a client's first matchtag: random, so that two clients hardly ever have equal ones."""
    return random.getrandbits(31)


def secret_token() -> str:
    """256 bits that cannot be guessed, as text for an address."""
    return os.urandom(32).hex()


RandomSource = random.Random
"""Source of random numbers, handed to each part that needs one."""


def seeded(seed: int) -> RandomSource:
    """Return a random source that yields equal numbers for equal seeds."""
    return RandomSource(seed)
