"""A kinetic tournament: the least of many keys that change over time, found again without looking at all of them.

A key is a pair of straight lines, `base + slope * scale`, at a scale that falls from one question to the next; ties go
by name. Each match knows until which scale its winner is certain, so a question replays only matches that have become
uncertain: O(log n) for each contender that changed or was overtaken (Basch, Guibas, Hershberger 1997).
"""

from __future__ import annotations

from math import inf
from typing import Final

SLACK: Final = 1e-12
"""Crossings this close (relative) to the present are replayed at each question, since rounding may put them behind."""

REBUILT_PART: Final = 4
"""Once this part of all contenders has changed, all matches are played anew: each once, and not once for each."""


class Contender:
    """Who takes part: a name, two keys, and its slot, below 0 while it does not take part."""

    __slots__ = ("base", "changed", "name", "second_base", "second_slope", "slope", "slot")

    def __init__(self, name: str) -> None:
        self.name = name
        self.slot = -1
        self.changed = False
        self.base = 0.0
        self.slope = 0.0
        self.second_base = 0.0
        self.second_slope = 0.0

    def refresh(self, scale: float) -> float:
        """Bring the keys up to date; from which scale on they must be read again, -inf: not before they change."""
        raise NotImplementedError


class Tournament:
    """Contenders in slots, the leaves of a complete binary tree whose inner places are matches.

    At `certain[i]` or below it, match i must be replayed for itself or one before it; `own[i]` is of itself alone.
    """

    __slots__ = ("_certain", "_changed", "_free", "_leaves", "_own", "_winner")

    def __init__(self) -> None:
        self._leaves = 1
        self._free: list[int] = [0]
        self._winner: list[Contender | None] = [None, None]
        self._own = [-inf, -inf]
        self._certain = [-inf, -inf]
        self._changed: list[int] = []

    def enter(self, contender: Contender) -> None:
        """One more takes part."""
        if not self._free:
            self._double()
        contender.slot = self._free.pop()
        self._winner[self._leaves + contender.slot] = contender
        contender.changed = False
        self.changed(contender)

    def leave(self, contender: Contender) -> None:
        """One no longer takes part."""
        slot, contender.slot = contender.slot, -1
        self._winner[self._leaves + slot] = None
        self._free.append(slot)
        self._changed.append(slot)

    def changed(self, contender: Contender) -> None:
        """The keys of one that takes part are to be read again."""
        if not contender.changed:
            contender.changed = True
            self._changed.append(contender.slot)

    def first(self, scale: float) -> Contender | None:
        """Who has the least key at a scale, which is not above that of the question before."""
        if self._changed:
            if len(self._changed) * REBUILT_PART > self._leaves:
                self.replay()
            elif self._certain[1] != inf:
                for slot in self._changed:
                    self._replay_above(self._leaves + slot, scale)
            self._changed.clear()
        if self._certain[1] >= scale:
            self._play(1, scale)
        return self._winner[1]

    @property
    def size(self) -> int:
        """How many take part."""
        return self._leaves - len(self._free)

    @property
    def certain(self) -> float:
        """From which scale on the answer of the last question may be another."""
        return self._certain[1]

    def replay(self) -> None:
        """Read all keys again: the scale begins anew."""
        self._certain = [inf] * len(self._certain)

    # ---- matches

    def _replay_above(self, at: int, scale: float) -> None:
        """Read the keys of one contender again, and play what they can have changed."""
        winner, own, certain = self._winner, self._own, self._certain
        contender = winner[at]
        certain[at] = self._refresh(contender, scale)
        other = True  # whether another one goes up from here than before, or the same with other keys
        while at > 1:
            until, beside = certain[at], certain[at ^ 1]
            if beside > until:  # comparisons, since a call of max() costs as much as a match
                until = beside
            at >>= 1
            if other:
                before = winner[at]
                self._match(at, scale)
                best = winner[at]
                other = best is not before or best is contender
            if own[at] > until:
                until = own[at]
            if not other and until == certain[at]:
                return
            certain[at] = until

    def _play(self, at: int, scale: float) -> None:
        """Replay a match that is no longer certain."""
        certain = self._certain
        if at >= self._leaves:
            certain[at] = self._refresh(self._winner[at], scale)
            return
        left = 2 * at
        right = left + 1
        if certain[left] >= scale:
            self._play(left, scale)
        if certain[right] >= scale:
            self._play(right, scale)
        self._match(at, scale)
        certain[at] = max(certain[left], certain[right], self._own[at])

    @staticmethod
    def _refresh(contender: Contender | None, scale: float) -> float:
        if contender is None:
            return -inf
        contender.changed = False
        return contender.refresh(scale)

    def _match(self, at: int, scale: float) -> None:
        """Who of two is first, and from which scale on that is uncertain.

        Both come from the same differences of the lines, so that rounding cannot set them at odds.
        """
        one, other = self._winner[2 * at], self._winner[2 * at + 1]
        if one is None or other is None:
            self._winner[at] = other if one is None else one
            self._own[at] = -inf
            return
        ahead, gains = other.base - one.base, other.slope - one.slope
        lead = ahead + gains * scale
        if lead == 0.0 and gains == 0.0:
            ahead, gains = other.second_base - one.second_base, other.second_slope - one.second_slope
            lead = ahead + gains * scale
        elif lead == 0.0:
            lead = (other.second_base - one.second_base) + (other.second_slope - one.second_slope) * scale
        if lead == 0.0:
            lead = 1.0 if one.name < other.name else -1.0
        self._winner[at] = one if lead > 0.0 else other
        crossing = -ahead / gains if gains != 0.0 else -inf
        if crossing > scale:
            crossing = scale if crossing <= scale * (1.0 + SLACK) else -inf
        self._own[at] = crossing

    def _double(self) -> None:
        leaves = self._leaves
        contenders = self._winner[leaves:]
        self._leaves = 2 * leaves
        self._free = list(range(2 * leaves - 1, leaves - 1, -1))
        self._winner = [None] * (2 * leaves) + contenders + [None] * leaves
        self._own = [-inf] * (4 * leaves)
        self._certain = [inf] * (4 * leaves)
