"""Sets of ranks that change one rank at a time, in a time that does not grow with the machine.

Law: adding, removing and finding the lowest rank touch one word of `WORD_BITS` bits and one summary of which words are
not empty; a plain int used as a mask would be copied whole each time. Iteration is ascending, linear in what is there.
"""

from __future__ import annotations

from collections.abc import Iterator

WORD_SHIFT = 9
WORD_BITS = 1 << WORD_SHIFT
"""512: a copy of 64 bytes costs no more than the interpreter's step around it, and 131,072 ranks need 256 words."""

_LOW = WORD_BITS - 1
_WORD_BYTES = WORD_BITS >> 3


class Bits:
    """A mutable set of ids >= 0; `count` is its size."""

    __slots__ = ("_top", "_words", "count")

    def __init__(self) -> None:
        self._words: dict[int, int] = {}
        self._top = 0
        self.count = 0

    @classmethod
    def of(cls, mask: int) -> Bits:
        """The set whose members are the set bits of `mask`, in time linear in its words."""
        made = cls()
        data = mask.to_bytes((mask.bit_length() + 7) >> 3, "little")
        for at in range(0, len(data), _WORD_BYTES):
            word = int.from_bytes(data[at : at + _WORD_BYTES], "little")
            if word:
                made._words[at // _WORD_BYTES] = word
                made._top |= 1 << at // _WORD_BYTES
        made.count = mask.bit_count()
        return made

    def __len__(self) -> int:
        return self.count

    def __contains__(self, id: int) -> bool:
        return bool(self._words.get(id >> WORD_SHIFT, 0) >> (id & _LOW) & 1)

    def add(self, id: int) -> None:
        """Puts in an id that is not there: putting it in twice is a bug of the caller."""
        at, bit = id >> WORD_SHIFT, 1 << (id & _LOW)
        word = self._words.get(at, 0)
        assert not word & bit, f"id {id} is already in the set"
        if not word:
            self._top |= 1 << at
        self._words[at] = word | bit
        self.count += 1

    def remove(self, id: int) -> None:
        """Takes out an id that is there: KeyError or assertion otherwise, for that is a bug of the caller."""
        at, bit = id >> WORD_SHIFT, 1 << (id & _LOW)
        word = self._words[at]
        assert word & bit, f"id {id} is not in the set"
        if word == bit:
            del self._words[at]
            self._top ^= 1 << at
        else:
            self._words[at] = word ^ bit
        self.count -= 1

    def __iter__(self) -> Iterator[int]:
        return _walk(self._top, self._words)

    def common(self, other: Bits) -> Iterator[int]:
        """Ascending ids that are in both sets; only words that both have are looked at."""
        words, others = self._words, other._words
        for at in ids_of(self._top & other._top):
            word = words[at] & others[at]
            base = at << WORD_SHIFT
            while word:
                low = word & -word
                yield base + low.bit_length() - 1
                word ^= low

    def count_common(self, other: Bits) -> int:
        """How many ids are in both sets."""
        words, others = self._words, other._words
        return sum((words[at] & others[at]).bit_count() for at in ids_of(self._top & other._top))


def _walk(top: int, words: dict[int, int]) -> Iterator[int]:
    for at in ids_of(top):
        word = words[at]
        base = at << WORD_SHIFT
        while word:
            low = word & -word
            yield base + low.bit_length() - 1
            word ^= low


def ids_of(mask: int) -> Iterator[int]:
    """Positions of the set bits of a small mask (some hundred bits), ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int, n: int) -> int:
    """The `n` lowest set bits of `mask`, which has at least that many."""
    low = mask & -mask
    run = (low << n) - low
    if run & mask == run:  # the usual case: they are consecutive
        return run
    taken = 0
    for _ in range(n):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken
