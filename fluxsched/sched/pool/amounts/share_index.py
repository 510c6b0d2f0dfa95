"""The usable targets without cores by their free share, in 65 levels: the order in which they are tried.

Law: a target changes its level by one word of bits. Within a level the lowest rank is first.
"""

from __future__ import annotations

from fluxsched.sched.pool.amounts.target import STEPS
from fluxsched.sched.pool.bitset import Bits


class ShareIndex:
    """`levels` has the targets of each level; `used` is the mask of the levels that have any."""

    __slots__ = ("levels", "used")

    def __init__(self) -> None:
        self.levels = [Bits() for _ in range(STEPS + 1)]
        self.used = 0

    def put(self, level: int, at: int, bit: int) -> None:
        """A target is usable, with this share free."""
        self.used |= 1 << level
        self.levels[level].put(at, bit)

    def drop(self, level: int, at: int, bit: int) -> None:
        """A target of this level is not usable any more, or changes its level."""
        bits = self.levels[level]
        bits.drop(at, bit)
        if not bits.top:
            self.used ^= 1 << level
