"""A kinetic tournament: the least of many keys that fall over time, found again without looking at all of them.

A key is a pair, each `max(floor, base + slope * scale)` at a scale that falls from one question to the next; ties go by
name. Each match of the tournament knows until which scale its winner is certain, so a question replays only matches
that have become uncertain: O(log n) for each contender that changed or was overtaken (Basch, Guibas, Hershberger 1997).
"""

from __future__ import annotations

from math import inf
from typing import Protocol

SLACK = 1e-12
"""Crossings this close (relative) to the present are replayed at each question, since rounding may put them behind."""


class Key:
    """max(floor, base + slope * scale)."""

    __slots__ = ("base", "floor", "slope")

    def __init__(self, floor: float = -inf, base: float = 0.0, slope: float = 0.0) -> None:
        self.floor = floor
        self.base = base
        self.slope = slope

    def at(self, scale: float) -> float:
        """The key's value."""
        return max(self.floor, self.base + self.slope * scale)


class Contender(Protocol):
    """Who takes part: a name, two keys, and how long (down to which scale) they are certain once refreshed."""

    name: str
    first: Key
    second: Key

    def refresh(self, scale: float) -> float:
        """Bring the keys up to date; down to which scale they are certain, -inf: until further notice."""
        ...


class Tournament:
    """Contenders in slots of a complete binary tree; `certain[i]` is the scale below which match i must be replayed."""

    def __init__(self) -> None:
        self._leaves = 1
        self._free: list[int] = [0]
        self._winner: list[Contender | None] = [None, None]
        self._certain = [-inf, -inf]

    def enter(self, contender: Contender) -> int:
        """A new contender; its slot."""
        if not self._free:
            self._double()
        slot = self._free.pop()
        self._winner[self._leaves + slot] = contender
        self.changed(slot)
        return slot

    def leave(self, slot: int) -> None:
        """The contender of a slot leaves."""
        self._winner[self._leaves + slot] = None
        self.changed(slot)
        self._free.append(slot)

    def changed(self, slot: int) -> None:
        """The keys of a slot's contender are to be read again."""
        at = self._leaves + slot
        while at and self._certain[at] != inf:
            self._certain[at] = inf
            at >>= 1

    def first(self, scale: float) -> Contender | None:
        """Who has the least key at a scale, which is not above that of the question before."""
        self._play(1, scale)
        return self._winner[1]

    @property
    def size(self) -> int:
        """How many take part."""
        return self._leaves - len(self._free)

    @property
    def certain(self) -> float:
        """Below which scale `first` may be another; inf: something has changed."""
        return self._certain[1]

    def replay(self) -> None:
        """Read all keys again: the scale begins anew."""
        self._certain = [inf] * len(self._certain)

    def _play(self, at: int, scale: float) -> None:
        if self._certain[at] < scale:
            return
        if at >= self._leaves:
            contender = self._winner[at]
            self._certain[at] = -inf if contender is None else contender.refresh(scale)
            return
        left, right = 2 * at, 2 * at + 1
        self._play(left, scale)
        self._play(right, scale)
        one, other = self._winner[left], self._winner[right]
        certain = max(self._certain[left], self._certain[right])
        if one is None or other is None:
            self._winner[at] = one or other
        else:
            self._winner[at] = one if _before(one, other, scale) else other
            certain = max(certain, _crossing(one.first, other.first, scale), _crossing(one.second, other.second, scale))
        self._certain[at] = certain

    def _double(self) -> None:
        leaves = self._leaves
        contenders = self._winner[leaves:]
        self._leaves = 2 * leaves
        self._free = list(range(2 * leaves - 1, leaves - 1, -1))
        self._winner = [None] * (2 * leaves) + contenders + [None] * leaves
        self._certain = [inf] * (4 * leaves)


def _before(one: Contender, other: Contender, scale: float) -> bool:
    mine, theirs = one.first.at(scale), other.first.at(scale)
    if mine != theirs:
        return mine < theirs
    mine, theirs = one.second.at(scale), other.second.at(scale)
    if mine != theirs:
        return mine < theirs
    return one.name < other.name


def _crossing(one: Key, other: Key, scale: float) -> float:
    """The next scale, going down, at which either key may catch up with the other; -inf if there is none."""
    next_scale = -inf
    limit = scale * (1 + SLACK)
    for base, slope in (
        (one.base - other.base, one.slope - other.slope),
        (one.base - other.floor, one.slope),
        (other.base - one.floor, other.slope),
    ):
        if slope:
            crossing = -base / slope
            if next_scale < crossing <= limit:
                next_scale = min(crossing, scale)
    return next_scale
