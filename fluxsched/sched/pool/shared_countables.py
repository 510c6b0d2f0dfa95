"""Countable resources that the instance has once (licences, bandwidth to a file system): how much of each is left.

Law: one account for all groups of a scheduler, since a job takes the same licence wherever it runs. Jobs found running
at hello may hold more than there is; then nothing is left until they end.
"""

from __future__ import annotations

from fluxsched.core.amounts import Amounts, total
from fluxsched.errors import LocalProtocolError


class Shared:
    """`totals` is what was granted to us."""

    __slots__ = ("_used", "totals")

    def __init__(self) -> None:
        self.totals: Amounts = ()
        self._used: dict[str, int] = {}

    def add(self, amounts: Amounts) -> None:
        """More has come with a grow."""
        self.totals = total(self.totals, amounts)

    def left(self, kind: str) -> int:
        """How much is free; below nothing if jobs hold more than there is."""
        return dict(self.totals).get(kind, 0) - self._used.get(kind, 0)

    def lacking(self, amounts: Amounts, *, ever: bool = False) -> Amounts:
        """Of each kind of which there is less than this (with `ever`: in all), how much there is."""
        if not amounts:
            return ()
        there = dict(self.totals) if ever else {kind: max(self.left(kind), 0) for kind, _ in amounts}
        return tuple([(kind, there.get(kind, 0)) for kind, amount in amounts if there.get(kind, 0) < amount])

    def claim(self, amounts: Amounts) -> None:
        """A job has this, come what may."""
        for kind, amount in amounts:
            self._used[kind] = self._used.get(kind, 0) + amount

    def give(self, amounts: Amounts) -> None:
        """A job no longer has this. Raises LocalProtocolError if nobody had it."""
        for kind, amount in amounts:
            left = self._used.get(kind, 0) - amount
            if left < 0:
                raise LocalProtocolError(f"{amount} {kind} given back, of which only {left + amount} is taken")
            self._used[kind] = left

    def used(self) -> Amounts:
        """What jobs have."""
        return tuple(sorted((kind, amount) for kind, amount in self._used.items() if amount))
