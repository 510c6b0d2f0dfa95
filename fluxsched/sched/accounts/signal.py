"""Usage remembered: two signals that fall by half in each half-life, as sums of a constant and a falling part.

    flow(t)          = U + max(F - U, 0) * 0.5 ** (dt / half_life)
    decayed usage(t) = U + (D - U)       * 0.5 ** (dt / half_life)

Between two changes of the usage U, either is `U + excess * scale(t)` with one scale for all accounts: no account
is touched while time passes, and it is known beforehand when two of them change places.
"""

from __future__ import annotations

from enum import Enum
from math import exp2, isfinite

from fluxsched.errors import InvalidValue

HALF_LIFE_MIN_S = 1.0
"""A shorter half-life remembers nothing between two passes."""

REBASE_HALF_LIVES = 128.0
"""After so many half-lives excesses are scaled anew: far from where a float's exponent ends."""


class Signal(Enum):
    """What an account is ordered by, beside what it uses now."""

    FLOW = "flow"
    DECAYED_USAGE = "decayed-usage"


class Decay:
    """The scale of falling parts over time; 1.0 at its origin, and never rising again."""

    __slots__ = ("_now_s", "half_life_s", "origin_s", "scale")

    def __init__(self, half_life_s: float, now_s: float) -> None:
        if not (isfinite(half_life_s) and half_life_s >= HALF_LIFE_MIN_S):
            raise InvalidValue(f"half-life of {half_life_s!r} s must be a number of at least {HALF_LIFE_MIN_S:g} s")
        self.half_life_s = half_life_s
        self.origin_s = self._now_s = now_s
        self.scale = 1.0

    def advance(self, now_s: float) -> float:
        """Go on to `now_s`; a clock that steps back leaves time where it was.

        Returns by what all excesses must be multiplied: 1.0, unless the origin moved.
        """
        if now_s <= self._now_s:
            return 1.0
        self._now_s = now_s
        age = (now_s - self.origin_s) / self.half_life_s
        if age <= REBASE_HALF_LIVES:
            self.scale = exp2(-age)
            return 1.0
        self.origin_s = now_s
        self.scale = 1.0
        return exp2(-age)


class UsageMeter:
    """Amounts held, their usage U (also in whole units), and the falling part of one signal over it."""

    __slots__ = ("excess", "held", "is_flow", "units", "usage")

    def __init__(self, resources: int, signal: Signal) -> None:
        self.held = [0] * resources
        self.units = 0
        self.usage = 0.0
        self.excess = 0.0
        self.is_flow = signal is Signal.FLOW

    def level(self, scale: float) -> float:
        """The signal at this scale."""
        return self.usage + self.excess * scale

    def set_usage(self, usage: float, scale: float) -> None:
        """Change the usage: the signal itself does not jump, but a flow is never below the usage."""
        excess = self.excess + (self.usage - usage) / scale
        self.excess = 0.0 if excess < 0.0 and self.is_flow else excess
        self.usage = usage

    def set_level(self, level: float, usage: float, scale: float) -> None:
        """Put usage and signal at values of this moment."""
        self.usage, self.excess = level, 0.0
        self.set_usage(usage, scale)
