"""Targets by how much of each kind they have (free, or in all), in levels of magnitude: who may hold a need at all.

Law: a level holds amounts that differ by less than a quarter or so, so most jobs move no target, and a need is looked
up for thousands of targets at once: those on a higher level hold it, those on its own level may. Words are longer here
than elsewhere, since a look-up joins the words of many levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from fluxsched.core.amounts import Amounts
from fluxsched.sched.pool.amounts.countables import magnitude
from fluxsched.sched.pool.bitset import WORD_SHIFT, Bits, ids_of

LONG_SHIFT: Final = 13
"""Words of 8,192 ranks, 1 KiB: joining two takes a quarter of a microsecond."""

LOW_LONG_BITS: Final = (1 << LONG_SHIFT) - 1

LOW_WORDS: Final = (1 << LONG_SHIFT - WORD_SHIFT) - 1

LongWords: TypeAlias = dict[int, int]
"""A set of ranks by long words."""


class KindIndex:
    """For each kind, the targets that have some of it, by the magnitude of how much."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, dict[int, LongWords]] = {}

    def change(self, kind: str, before: int, after: int, rank: int) -> None:
        """A target has `after` of a kind instead of `before`; 0 or less is none."""
        old = magnitude(before) if before > 0 else 0
        new = magnitude(after) if after > 0 else 0
        if old == new:
            return
        at, bit = rank >> LONG_SHIFT, 1 << (rank & LOW_LONG_BITS)
        levels = self._kinds.get(kind)
        if levels is None:
            levels = self._kinds[kind] = {}
        if old:
            words = levels[old]
            left = words[at] ^ bit
            if left:
                words[at] = left
            else:
                del words[at]
                if not words:
                    del levels[old]
                    if not levels and not new:
                        del self._kinds[kind]
        if new:
            found = levels.get(new)
            if found is None:
                levels[new] = {at: bit}
            else:
                found[at] = found.get(at, 0) | bit

    def able(self, need: Amounts) -> LongWords | None:
        """The targets that may hold the need: all that do, and some that nearly do. None is all of them."""
        able: LongWords | None = None
        for kind, amount in need:
            found: LongWords = {}
            least = magnitude(amount)
            for level, words in self._kinds.get(kind, {}).items():
                if level >= least:
                    for at, word in words.items():
                        found[at] = found.get(at, 0) | word
            if able is not None:
                found = {at: word & able[at] for at, word in found.items() if at in able}
            able = found
        return able

    def ranks(self, need: Amounts, members: Bits) -> Iterator[int]:
        """The same of these members, ascending."""
        able = self.able(need)
        for at in ids_of(members.top):
            word = members.words[at]
            if able is not None:
                word &= cut(able, at)
            base = at << WORD_SHIFT
            for id in ids_of(word):
                yield base + id

    def check(self, amounts: Mapping[int, Mapping[str, int]]) -> None:
        """Asserts that it has these ranks with these amounts, and nothing else; linear."""
        other = KindIndex()
        for rank, mine in amounts.items():
            for kind, amount in mine.items():
                other.change(kind, 0, amount, rank)
        assert self._kinds == other._kinds, "a target is listed with another amount than it has"


def cut(words: LongWords, at: int) -> int:
    """Of long words what is in a word of 512 ranks, and perhaps above it."""
    return words.get(at >> LONG_SHIFT - WORD_SHIFT, 0) >> ((at & LOW_WORDS) << WORD_SHIFT)
