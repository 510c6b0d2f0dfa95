"""The only place where time and chance enter fluxsched (law 4 of the design).

Wall time is for what people and R see, monotonic time for delays. Everything else takes `now_s` as an argument, so
the simulator can put virtual time in its place.
"""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks, both injected."""

    def wall_s(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never run backwards; comparable only with itself."""
        ...


class SystemClock:
    """The machine's own clocks."""

    wall_s = staticmethod(time.time)
    monotonic_s = staticmethod(time.monotonic)
    cpu_s = staticmethod(time.process_time)
    """Seconds that this process has computed: for measuring on a machine that others use, too."""


def sleep(delay_s: float) -> None:
    """Block this thread; for command line tools, never for the instance's loop."""
    time.sleep(delay_s)


def generator_id(seed: int | None = None) -> int:
    """A FLUID generator id (RFC 19: 14 bits); random unless seeded."""
    return random.Random(seed).getrandbits(14)


Chance = random.Random
"""A source of chance: the type of what `seeded` gives."""


def seeded(seed: int) -> Chance:
    """A source of chance that gives the same numbers for the same seed."""
    return Chance(seed)
