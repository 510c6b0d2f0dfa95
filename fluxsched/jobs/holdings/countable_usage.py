"""Amounts of countable resources that jobs hold, on each target and of those that the instance has once.

Law: an amount is fungible, so only sums over all holders are kept; what is not held is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fluxsched.core.amounts import Amounts, amount_text, less, total
from fluxsched.core.resources import ResourceSet

INSTANCE: Final = -1
"""In place of a rank, for what the instance has once."""


class CountableUsage:
    """Amounts by rank; equal when they are the same everywhere."""

    __slots__ = ("_on",)

    def __init__(self) -> None:
        self._on: dict[int, Amounts] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountableUsage) and self._on == other._on

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, ranks: Iterable[int], amounts: Amounts) -> None:
        """Count amounts as held on each of these ranks."""
        for rank in ranks if amounts else ():
            self._on[rank] = total(self._on.get(rank, ()), amounts)

    def give(self, ranks: Iterable[int], amounts: Amounts) -> None:
        """Count amounts as released on each of these ranks."""
        for rank in ranks:
            left = less(self._on.pop(rank, ()), amounts)
            if left:
                self._on[rank] = left

    def on(self, rank: int) -> Amounts:
        """Return the amounts held on a rank."""
        return self._on.get(rank, ())

    def ranks(self) -> Iterator[int]:
        """The ranks on which something is held."""
        return (rank for rank in self._on if rank != INSTANCE)

    def lacking(
        self, asked: Iterable[tuple[Iterable[int], Amounts]], shared: Amounts, there: ResourceSet
    ) -> list[str]:
        """Return the amounts of a grant that exceed what is free of `there`, in words; nothing is free on an unknown
        rank.
        """
        found = []
        for ranks, amounts in asked:
            for rank in ranks:
                has = there.children(rank).amounts if rank in there.ranks else ()
                found += [f"{text} of rank {rank}" for text in _more(amounts, less(has, self.on(rank)))]
        return found + [f"{text} of the instance" for text in _more(shared, less(there.shared, self.on(INSTANCE)))]


def _more(asked: Amounts, free: Amounts) -> list[str]:
    left = dict(free)
    return [
        f"{amount_text(kind, amount)} where {amount_text(kind, left.get(kind, 0))} is free"
        for kind, amount in asked if amount > left.get(kind, 0)
    ]  # fmt: skip
