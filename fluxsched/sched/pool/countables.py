"""Countable resources of the targets of one shelf that have no ids (memory in bytes, licences): how much is left where.

Law: an amount is fungible, so it is counted, never named. Targets of which nothing is taken cost nothing here; the
others stand in levels by how much is left (its order of magnitude and two more binary digits), so that whoever asks for
an amount passes over whole words of targets that have too little, and looks closely only at those near the limit.
"""

from __future__ import annotations

from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, Bits, ids_of


class Stock:
    """One kind: `total` is what each target of the shelf has."""

    __slots__ = ("_left", "_levels", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._left: dict[int, int] = {}
        self._levels: dict[int, Bits] = {}

    def left(self, rank: int) -> int:
        """How much of it is free on a target."""
        return self._left.get(rank, self.total)

    def set_left(self, rank: int, amount: int) -> None:
        """From now on so much is free on a target."""
        at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
        before = self._left.pop(rank, None)
        if before is not None:
            level = self._levels[_level(before)]
            level.drop(at, bit)
            if not level.count:
                del self._levels[_level(before)]
        if amount != self.total:
            self._left[rank] = amount
            self._levels.setdefault(_level(amount), Bits()).put(at, bit)

    def forget(self, rank: int) -> None:
        """The target is no longer on the shelf."""
        self.set_left(rank, self.total)

    def enough(self, at: int, word: int, need: int) -> int:
        """Those targets of a word on which at least `need` is free."""
        if need > self.total:
            return 0
        limit = _level(need)
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


def _level(amount: int) -> int:
    """Grows with the amount; equal for amounts that differ by less than a quarter or so."""
    length = amount.bit_length()
    return amount if length < 3 else length << 2 | (amount >> (length - 3) & 3)
