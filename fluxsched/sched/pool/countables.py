"""Countable resources, which have no ids (memory in bytes, licences): how much is left on each target, and in all.

Law: an amount is fungible, so it is counted, never named. Targets of which nothing is taken cost nothing here; the
others are in levels by how much is left (its order of magnitude and two more binary digits), so that a search for an
amount skips whole words of targets that have too little, and looks closely only at those near the limit. What the free
remainder of a target weighs, for the placement `least-lost`, is a whole number, so equal remainders are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fluxsched.core.quantities import Amounts, total
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, Bits, ids_of


class Countable:
    """One kind, on the targets of a class, each of which has `total`."""

    __slots__ = ("_left", "_levels", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._left: dict[int, int] = {}
        self._levels: dict[int, Bits] = {}

    def left(self, rank: int) -> int:
        """Return the amount that is free on a target."""
        return self._left.get(rank, self.total)

    def set_left(self, rank: int, amount: int) -> None:
        """Set how much is free on a target."""
        at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
        before = self._left.pop(rank, None)
        if before is not None:
            level = self._levels[magnitude(before)]
            level.drop(at, bit)
            if not level.count:
                del self._levels[magnitude(before)]
        if amount != self.total:
            self._left[rank] = amount
            self._levels.setdefault(magnitude(amount), Bits()).put(at, bit)

    def taken_at(self, at: int) -> int:
        """Return the targets of a word on which not all of it is free."""
        found = 0
        for bits in self._levels.values():
            found |= bits.words.get(at, 0)
        return found

    def forget(self, rank: int) -> None:
        """Record that the target has left the class."""
        self.set_left(rank, self.total)

    def enough(self, at: int, word: int, need: int) -> int:
        """Return the targets of a word on which at least `need` is free."""
        if need > self.total:
            return 0
        limit = magnitude(need)
        for level, bits in self._levels.items():
            some = bits.words.get(at, 0) & word if level <= limit else 0
            if some and level < limit:
                word ^= some
            elif some:
                base = at << WORD_SHIFT
                for id in ids_of(some):
                    if self._left[base + id] < need:
                        word ^= 1 << id
        return word


class InstanceCountables:
    """Countables that the instance has once (licences, bandwidth to a file system); `totals` is what was granted to us.

    One account for all groups of a scheduler, since a job takes the same licence wherever it runs. Jobs found running
    at hello may hold more than there is; then nothing is left until they end.
    """

    __slots__ = ("_used", "totals")

    def __init__(self) -> None:
        self.totals: Amounts = ()
        self._used: dict[str, int] = {}

    def add(self, amounts: Amounts) -> None:
        """Add the amounts of a grow."""
        self.totals = total(self.totals, amounts)

    def left(self, kind: str) -> int:
        """Return the free amount of a kind; negative if jobs hold more than there is."""
        return dict(self.totals).get(kind, 0) - self._used.get(kind, 0)

    def lacking(self, amounts: Amounts, *, ever: bool = False) -> Amounts:
        """Return how much is free (with `ever`: exists) of each kind of which there is less than these amounts."""
        if not amounts:
            return ()
        there = dict(self.totals) if ever else {kind: max(self.left(kind), 0) for kind, _ in amounts}
        return tuple([(kind, there.get(kind, 0)) for kind, amount in amounts if there.get(kind, 0) < amount])

    def take(self, amounts: Amounts) -> bool:
        """Take the amounts for a job, if all of them are free; else return False."""
        if self.lacking(amounts):
            return False
        self.claim(amounts)
        return True

    def claim(self, amounts: Amounts) -> None:
        """Take the amounts of a job, whether they are free or not."""
        for kind, amount in amounts:
            self._used[kind] = self._used.get(kind, 0) + amount

    def give(self, amounts: Amounts) -> None:
        """Give back the amounts of a job. Raise LocalProtocolError for more than is taken."""
        for kind, amount in amounts:
            left = self._used.get(kind, 0) - amount
            if left < 0:
                raise LocalProtocolError(f"{amount} {kind} freed, of which only {left + amount} is allocated")
            self._used[kind] = left

    def used(self) -> Amounts:
        """Return the amounts that jobs hold, by kind."""
        return tuple(sorted((kind, amount) for kind, amount in self._used.items() if amount))


def magnitude(amount: int) -> int:
    """Grows with the amount; equal for amounts that differ by less than a quarter or so."""
    length = amount.bit_length()
    return amount if length < 3 else length << 2 | (amount >> (length - 3) & 3)


# ---- lost

LOST_WEIGHTS: Final[Mapping[str, int]] = MappingProxyType({"core": 1 << 32, "gpu": 10 << 32, "memory": 1})
"""Default weights of `[fair]` (a core as 4 GiB, a GPU as 10 cores), in which a byte of memory weighs 1."""


class LostWeights:
    """Weights of a core, a GPU and a unit of each kind; kinds without a weight do not count."""

    __slots__ = ("core", "gpu", "kinds")

    def __init__(self) -> None:
        self.core = self.gpu = 0
        self.kinds: Mapping[str, int] = {}
        self.set(LOST_WEIGHTS)

    def set(self, weights: Mapping[str, int]) -> None:
        self.core, self.gpu = weights.get("core", 0), weights.get("gpu", 0)
        self.kinds = {kind: weight for kind, weight in weights.items() if weight and kind not in ("core", "gpu")}

    def of(self, cores: int, gpus: int, amounts: Amounts = ()) -> int:
        """Return the weight of cores, GPUs and amounts."""
        found = cores * self.core + gpus * self.gpu
        for kind, amount in amounts:
            found += amount * self.kinds.get(kind, 0)
        return found
