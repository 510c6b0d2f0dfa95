"""Sets of ranks as words of 512 bits.

Law: adding to a set of ranks, removing and finding the lowest touch one word of `WORD_BITS` bits and one summary of
which words are not empty; a plain int used as a mask would be copied whole each time. Iteration is ascending.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

WORD_SHIFT: Final = 9

WORD_BITS: Final = 1 << WORD_SHIFT
"""512: copying 64 bytes costs no more than the interpreter step around it, and 131,072 ranks need 256 words."""

LOW_BITS: Final = WORD_BITS - 1
"""The part of a rank that says which bit of its word it is."""

BITS: Final = tuple(1 << id for id in range(WORD_BITS))
"""The words of one id: faster to look up than to make, and every job on one target needs one."""

_WORD_BYTES: Final = WORD_BITS >> 3

FEW: Final = 4
"""Up to so many lowest bits are found one by one, more by halving."""


class Bits:
    """A mutable set of ids >= 0. `words` has the words that are not empty, `top` is the mask of which those are."""

    __slots__ = ("count", "top", "words")

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.top = 0
        self.count = 0

    @classmethod
    def of(cls, mask: int) -> Bits:
        """Return the set whose members are the set bits of `mask`, in time linear in its words."""
        made = cls()
        for at, word in words_of(mask):
            made.words[at] = word
            made.top |= 1 << at
        made.count = mask.bit_count()
        return made

    def __contains__(self, id: int) -> bool:
        return bool(self.words.get(id >> WORD_SHIFT, 0) >> (id & LOW_BITS) & 1)

    def at(self, at: int) -> int:
        """Return the ids of a word that are in the set."""
        return self.words.get(at, 0)

    def put(self, at: int, word: int) -> None:
        """Put in ids of one word, none of which is there: a second time is a bug of the caller."""
        have = self.words.get(at)
        if have is None:
            self.words[at] = word
            self.top |= 1 << at
        else:
            assert not have & word, f"some ids of {word:#x} in word {at} are already in the set"
            self.words[at] = have | word
        self.count += word.bit_count()

    def drop(self, at: int, word: int) -> None:
        """Take out ids of one word, all of which are there: KeyError or assertion otherwise."""
        left = self.words[at] ^ word
        if left:
            assert not left & word, f"some ids of {word:#x} in word {at} are not in the set"
            self.words[at] = left
        else:
            del self.words[at]
            self.top ^= 1 << at
        self.count -= word.bit_count()

    def __iter__(self) -> Iterator[int]:
        words = self.words
        for at in ids_of(self.top):
            base = at << WORD_SHIFT
            for bit in ids_of(words[at]):
                yield base + bit

    def common(self, other: Bits) -> Bits:
        """Return the ids that are in both sets; only words that both have are looked at."""
        found = Bits()
        for at in ids_of(self.top & other.top):
            word = self.words[at] & other.words[at]
            if word:
                found.put(at, word)
        return found

    def count_common(self, other: Bits) -> int:
        """Return the number of ids in both sets; only words that both have are looked at."""
        words, others = self.words, other.words
        return sum([(words[at] & others[at]).bit_count() for at in ids_of(self.top & other.top)])

    def mask(self) -> int:
        """Return all ids as one mask, in time linear in its length."""
        return mask_of(self.words)


def words_of(mask: int) -> Iterator[tuple[int, int]]:
    """Yield the words of a mask that are not empty, ascending: (number of the word, its bits)."""
    data = mask.to_bytes((mask.bit_length() + 7) >> 3, "little")
    first = ((mask & -mask).bit_length() - 1) >> WORD_SHIFT if mask else 0
    for begin in range(first * _WORD_BYTES, len(data), _WORD_BYTES):
        word = int.from_bytes(data[begin : begin + _WORD_BYTES], "little")
        if word:
            yield begin // _WORD_BYTES, word


def mask_of(words: dict[int, int]) -> int:
    """Return the mask of these words."""
    if len(words) == 1:
        ((at, word),) = words.items()
        return word << (at << WORD_SHIFT)
    data = bytearray((max(words, default=-1) + 1) * _WORD_BYTES)
    for at, word in words.items():
        data[at * _WORD_BYTES : (at + 1) * _WORD_BYTES] = word.to_bytes(_WORD_BYTES, "little")
    return int.from_bytes(data, "little")


def ids_of(mask: int) -> Iterator[int]:
    """Positions of the set bits of a small mask (some hundred bits), ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int, n: int) -> int:
    """Return the `n` lowest set bits of `mask`, which has at least that many."""
    if n <= 0:
        return 0
    low = mask & -mask
    run = (low << n) - low
    if run & mask == run:  # the usual case: they are consecutive
        return run
    if n <= FEW:
        taken = low
        for _ in range(n - 1):
            mask ^= low
            low = mask & -mask
            taken |= low
        return taken
    return mask & ((1 << _end_of(mask, n)) - 1)


def _end_of(mask: int, n: int) -> int:
    """Return the position above the n-th set bit, found by halving."""
    base, width = 0, mask.bit_length()
    while width > 1:
        half = width >> 1
        count = (mask & ((1 << half) - 1)).bit_count()
        if count >= n:
            width = half
        else:
            mask, n, base, width = mask >> half, n - count, base + half, width - half
    return base + 1
