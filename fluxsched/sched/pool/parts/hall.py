"""Whether several parts can all have as many targets as they need, each target for one of them.

Law: exact, by Hall's theorem: they can if, for each set of parts, the targets that suit any of them are as many as the
set needs. Sets of parts are numbers, bit `i` for part `i`; there are 2^8 at most. Targets are counted by the set of
parts that they suit, so nothing here grows with the machine. Who takes targets while the others can still have theirs
may take them in any order, and gets all that is to be had (the takeable sets are those of a matroid).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


def by_suited(masks: Sequence[int]) -> dict[int, int]:
    """Targets by the set of parts that they suit, as masks, from the mask of those that suit each part."""
    found: dict[int, int] = {}
    for part, mask in enumerate(masks):
        split: dict[int, int] = {}
        rest = mask
        for suited, some in found.items():
            if both := some & mask:
                split[suited | 1 << part] = both
                rest ^= both
            if some != both:
                split[suited] = some ^ both
        if rest:
            split[1 << part] = rest
        found = split
    return found


class Shortfall(NamedTuple):
    """Some parts, by number, that need so many targets, of which there are fewer that suit any of them."""

    parts: tuple[int, ...]
    needed: int
    there: int


class Hall:
    """Targets that may be taken, counted by the set of parts that they suit, and how many each part needs."""

    __slots__ = ("_all", "_there", "needs")

    def __init__(self, counts: Mapping[int, int], needs: Sequence[int]) -> None:
        self.needs = list(needs)
        self._all = (1 << len(needs)) - 1
        within = [0] * (self._all + 1)  # first what suits just these parts, then what suits no others
        for suited, count in counts.items():
            within[suited] = count
        for part in range(len(needs)):
            for some in range(self._all + 1):
                if some >> part & 1:
                    within[some] += within[some ^ 1 << part]
        total = within[self._all]
        self._there = [total - within[self._all ^ some] for some in range(self._all + 1)]

    def copy(self) -> Hall:
        """The same, to be changed on its own."""
        made = Hall({}, self.needs)
        made._there = list(self._there)
        return made

    def shortfall(self) -> Shortfall | None:
        """The parts that lack most together, of several such sets the smallest, then the first; None if all fit."""
        needed = self._needed()
        short = [some for some in range(1, self._all + 1) if self._there[some] < needed[some]]
        if not short:
            return None
        some = min(short, key=lambda some: (self._there[some] - needed[some], some.bit_count(), self._parts(some)))
        return Shortfall(self._parts(some), needed[some], self._there[some])

    def lead(self, short: Shortfall) -> int:
        """How many more these parts lack, together, than any set without one of them."""
        needed, there, mine = self._needed(), self._there, sum([1 << part for part in short.parts])
        others = [needed[some] - there[some] for some in range(self._all + 1) if some & mine != mine]
        return short.needed - short.there - max(others)

    def most(self, part: int) -> int:
        """How many one part could have, with what the others need left to them."""
        needed, bit = self._needed(), 1 << part
        return min([self._there[some] - needed[some ^ bit] for some in range(self._all + 1) if some & bit])

    def takeable(self, suited: int, others: int) -> int:
        """How many targets that suit these parts may be taken without a loss to a set of others."""
        needed, there = self._needed(), self._there
        least = there[self._all]
        some = others
        while some:  # its subsets
            if some & suited and there[some] - needed[some] < least:
                least = there[some] - needed[some]
            some = (some - 1) & others
        return least

    def take(self, suited: int, count: int) -> None:
        """So many targets that suit these parts are gone."""
        there = self._there
        for some in range(1, self._all + 1):
            if some & suited:
                there[some] -= count

    def _needed(self) -> list[int]:
        """What each set of parts needs."""
        found = [0] * (self._all + 1)
        for part, count in enumerate(self.needs):
            for some in range(1 << part):
                found[some | 1 << part] = found[some] + count
        return found

    def _parts(self, some: int) -> tuple[int, ...]:
        return tuple([part for part in range(len(self.needs)) if some >> part & 1])
