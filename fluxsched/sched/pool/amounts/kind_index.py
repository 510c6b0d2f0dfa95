"""Targets by how much of each kind they have (free, or in all), in levels of magnitude: who may hold a need at all.

Law: a level holds amounts that differ by less than a quarter or so, so most jobs move no target, and a need is looked
up in words of 512 targets: those on a higher level hold it, those on its own level may.
"""

from __future__ import annotations

from fluxsched.core.amounts import Amounts
from fluxsched.sched.pool.amounts.countables import magnitude
from fluxsched.sched.pool.bitset import Bits


class KindIndex:
    """For each kind, the targets that have some of it, by the magnitude of how much."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, dict[int, Bits]] = {}

    def change(self, kind: str, before: int, after: int, at: int, bit: int) -> None:
        """A target has `after` of a kind instead of `before`; 0 or less is none."""
        old = magnitude(before) if before > 0 else 0
        new = magnitude(after) if after > 0 else 0
        if old == new:
            return
        levels = self._kinds.get(kind)
        if levels is None:
            levels = self._kinds[kind] = {}
        if old:
            bits = levels[old]
            bits.drop(at, bit)
            if not bits.top:
                del levels[old]
        if new:
            found = levels.get(new)
            if found is None:
                found = levels[new] = Bits()
            found.put(at, bit)

    def able(self, need: Amounts, only: Bits | None) -> Bits | None:
        """Those of `only` that may hold the need: all that do, and some that nearly do. None is all of them."""
        able = only
        for kind, amount in need:
            found = Bits()
            least, words = magnitude(amount), found.words
            for level, bits in self._kinds.get(kind, {}).items():
                if level >= least:
                    common = bits.top if able is None else bits.top & able.top
                    while common:
                        low = common & -common
                        common ^= low
                        at = low.bit_length() - 1
                        words[at] = words.get(at, 0) | bits.words[at]
            if able is not None:
                for at in list(words):
                    words[at] &= able.words[at]
                    if not words[at]:
                        del words[at]
            for at in words:
                found.top |= 1 << at
            able = found
        return able
