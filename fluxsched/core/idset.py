"""Sets of ids (RFC 22) as one Python int used as a bit mask: a frozen value whose algebra runs at memory speed.

A set of one id keeps the id alone: the ranks of most jobs are one, and a mask of one of 131,072 takes up to 17 KiB.

Law: text and mask are converted in time linear in text and bits, never runs x bits. A run of ids `first..last` is
`2**(last + 1) - 2**first`, so a whole set is *ends minus starts*: parsing collects the two, printing takes them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Final

from fluxsched.core.text import kind_of
from fluxsched.errors import InvalidValue, LimitExceeded

ID_MAX = 1 << 22
"""The largest id: 32 times the largest machine we aim at, and at most 512 KiB a set, however short its text is."""

CACHED_TEXT_CHARS: Final = 64
"""Texts up to this length are parsed once: core sets and small rank sets come again and again."""

CACHED_TEXTS_MAX = 256
"""Bounds the cache: at worst this many sets of ID_MAX bits, 128 MiB; in practice a few KiB."""

SHOWN_CHARS: Final = 40
"""Number of characters of an offending text that an error repeats."""

_NUMBER: Final = "(?:0|[1-9][0-9]{0,6})"
_RANGE = f"{_NUMBER}(?:-{_NUMBER})?"
_WHOLE: Final = re.compile(f"{_RANGE}(?:,{_RANGE})*", re.ASCII)
_ONE_RANGE: Final = re.compile(r"([0-9]+)(?:-([0-9]+))?", re.ASCII)
_NONZERO_BYTE: Final = re.compile(rb"[^\0]", re.DOTALL)
_BITS_OF_BYTE: Final = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


class Idset:
    """A set of ids 0..ID_MAX; bit `i` of `mask` is id `i`. Never changed, hashable, ordered by inclusion."""

    # no dataclass: its constructor costs half as much again, on the path of every operator
    __slots__ = ("_mask", "_only")

    def __init__(self, mask: int = 0, only: int = -1) -> None:
        """Make the set with these bits, or of the id `only`, for which see `one`.

        Raises InvalidValue for a negative mask, LimitExceeded for an id above ID_MAX.
        """
        if mask >> ID_MAX + 1:
            raise _bad_mask(mask)
        self._mask: Final = mask
        self._only: Final = only

    @property
    def mask(self) -> int:
        """Return the set as a bit mask."""
        return self._mask if self._only < 0 else 1 << self._only

    def __reduce__(self) -> tuple[type[Idset], tuple[int]]:
        return Idset, (self.mask,)

    @classmethod
    def parse(cls, text: object) -> Idset:
        """Return the set that an RFC 22 text names: ascending ids and ranges, brackets optional, `""` and `[]` are
        empty.

        Raises InvalidValue naming the part that is wrong, LimitExceeded for an id above ID_MAX.
        """
        if not isinstance(text, str):
            raise InvalidValue(f"idset must be a string such as '0-3,7', not {kind_of(text)}")
        return _parse_cached(text) if len(text) <= CACHED_TEXT_CHARS else _parse(text)

    @classmethod
    def one(cls, id: int) -> Idset:
        """Return the set of this id. Raises like `parse`."""
        if id < 0:
            raise _negative(id)
        if id > ID_MAX:
            raise _too_large(id)
        return Idset(0, id)

    @classmethod
    def of(cls, ids: Iterable[int]) -> Idset:
        """Return the set of these ids, in any order, repeats allowed. Raises like `parse`."""
        wanted = list(ids)
        if len(wanted) == 1:
            return Idset.one(wanted[0])
        if not wanted:
            return EMPTY
        if min(wanted) < 0:
            raise _negative(min(wanted))
        if max(wanted) > ID_MAX:
            raise _too_large(max(wanted))
        return Idset(_gather(wanted, max(wanted)))

    @classmethod
    def span(cls, first: int, last: int) -> Idset:
        """Return the ids `first` to `last`, both included. Raises InvalidValue when there are none, or like `parse`."""
        if first < 0 or last < first:
            raise InvalidValue(f"idset span {first}-{last} is empty or negative: give 0 <= first <= last")
        if last > ID_MAX:
            raise _too_large(last)
        return Idset((1 << last + 1 - first) - 1 << first)

    def __str__(self) -> str:
        """Return the canonical RFC 22 text: ranges compressed, no brackets, `""` when empty."""
        return ",".join([f"{first}-{last}" if last > first else str(first) for first, last in self.runs()])

    def __repr__(self) -> str:
        return f"Idset.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        # a third of what the dataclass makes, which builds two tuples first
        if not isinstance(other, Idset):
            return NotImplemented
        if self._only == other._only:
            return self._mask == other._mask
        return (self._only < 0 or other._only < 0) and self.mask == other.mask

    def __hash__(self) -> int:
        return hash(self.mask)

    def __len__(self) -> int:
        return self._mask.bit_count() if self._only < 0 else 1

    def __bool__(self) -> bool:
        return self._mask != 0 or self._only >= 0

    def __iter__(self) -> Iterator[int]:
        """Ascending ids, in time linear in their number plus an eighth of a byte scan of the mask."""
        if self._only >= 0:
            return iter((self._only,))
        run = self._single_run()
        return _bits(self._mask) if run is None else iter(range(run[0], run[1] + 1))

    def __contains__(self, id: int) -> bool:
        return id >= 0 and (id == self._only or bool(self._mask >> id & 1))

    def __or__(self, other: Idset) -> Idset:
        if self._only < 0 and other._only < 0:
            return Idset(self._mask | other._mask)
        return Idset(self.mask | other.mask)

    def __and__(self, other: Idset) -> Idset:
        if self._only >= 0:
            return self if self._only in other else EMPTY
        if other._only >= 0:
            return other if other._only in self else EMPTY
        return Idset(self._mask & other._mask)

    def __sub__(self, other: Idset) -> Idset:
        # five times faster than `x & ~y` at 10**6 ids: no negative number is ever made
        if self._only >= 0:
            return EMPTY if self._only in other else self
        common = self._mask & (other._mask if other._only < 0 else 1 << other._only)
        return Idset(self._mask ^ common) if common else self

    def __xor__(self, other: Idset) -> Idset:
        return Idset(self.mask ^ other.mask)

    def __le__(self, other: Idset) -> bool:
        """Return whether every id is in `other` too."""
        if self._only >= 0:
            return self._only in other
        return self._mask & other.mask == self._mask

    def __lt__(self, other: Idset) -> bool:
        """Return whether every id is in `other`, and `other` has more."""
        return self.mask != other.mask and self.mask & other.mask == self.mask

    def isdisjoint(self, other: Idset) -> bool:
        """Return whether no id is in both."""
        if self._only >= 0:
            return self._only not in other
        if other._only >= 0:
            return other._only not in self
        return not self._mask & other._mask

    def first(self, n: int) -> Idset:
        """Return the `n` lowest ids, or all of them if there are fewer."""
        mask = self.mask
        if n <= 0 or not mask:
            return EMPTY
        low = ((1 << n) - 1) << (mask & -mask).bit_length() - 1 if n <= ID_MAX else mask
        if low & mask == low:  # the usual case: they are one run
            return Idset(low)
        if n >= mask.bit_count():
            return self
        return Idset(mask & ((1 << _select(mask, n)) - 1))

    def min(self) -> int:
        """Return the lowest id. Raises ValueError if empty."""
        if self._only >= 0:
            return self._only
        if not self._mask:
            raise ValueError("an empty idset has no lowest id")
        return (self._mask & -self._mask).bit_length() - 1

    def max(self) -> int:
        """Return the highest id. Raises ValueError if empty."""
        if self._only >= 0:
            return self._only
        if not self._mask:
            raise ValueError("an empty idset has no highest id")
        return self._mask.bit_length() - 1

    def runs(self) -> Iterator[tuple[int, int]]:
        """Maximal runs of consecutive ids, ascending, as (first, last), both included."""
        run = self._single_run()
        if run is not None:
            return iter((run,))
        mask = self._mask
        if not mask:
            return iter(())
        shifted = mask << 1
        both = mask & shifted
        return ((first, end - 1) for first, end in zip(_bits(mask ^ both), _bits(shifted ^ both), strict=True))

    def single(self) -> int | None:
        """Return the id of a set of one, else None: ranks of most jobs, so it is asked often.

        At 16,384 targets this takes 0.2 us, counting the bits 0.7 and `mask & mask - 1` as much.
        """
        if self._only >= 0:
            return self._only
        mask = self._mask
        highest = mask.bit_length() - 1
        return highest if mask and mask == 1 << highest else None

    def _single_run(self) -> tuple[int, int] | None:
        """Return the whole set as one run, if it is one: by far the most frequent shape of cores and of ranks."""
        if self._only >= 0:
            return self._only, self._only
        mask = self._mask
        if not mask:
            return None
        first = (mask & -mask).bit_length() - 1
        from_first = mask >> first  # as short as the run, where it is one: counting all bits takes four times as long
        width = from_first.bit_length()
        return (first, first + width - 1) if from_first == (1 << width) - 1 else None

    def nth(self, k: int) -> int:
        """Return the id that has `k` lower ones in the set (0-based). Raises IndexError if there is none."""
        if not 0 <= k < self.mask.bit_count():
            raise IndexError(f"idset of {len(self)} ids has no id number {k}")
        return _select(self.mask, k)

    def index(self, id: int) -> int:
        """Return the number of ids lower than `id`, which need not be in the set."""
        return (self.mask & ((1 << min(id, ID_MAX + 1)) - 1)).bit_count() if id > 0 else 0


EMPTY: Final = Idset()


def _bad_mask(mask: int) -> InvalidValue:
    if mask < 0:
        return InvalidValue(f"idset mask {mask:#x} is negative: a set has finitely many ids")
    return _too_large(mask.bit_length() - 1)


def _negative(id: int) -> InvalidValue:
    return InvalidValue(f"id {id} is negative: ids start at 0")


def _too_large(id: int | str) -> LimitExceeded:
    return LimitExceeded(f"id {id} is above the limit of {ID_MAX}: ids are small numbers counted from 0")


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "...")


def _bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, ascending: empty bytes are skipped in C, the others looked up in a table."""
    data = mask.to_bytes((mask.bit_length() + 7) >> 3, "little")
    positions = [match.start() for match in _NONZERO_BYTE.finditer(data)]
    return chain.from_iterable([[at << 3 | bit for bit in _BITS_OF_BYTE[data[at]]] for at in positions])


def _gather(positions: Iterable[int], highest: int) -> int:
    """Return the mask with these bits set; one byte is touched a position."""
    data = bytearray((highest >> 3) + 1)
    for at in positions:
        data[at >> 3] |= 1 << (at & 7)
    return int.from_bytes(data, "little")


def _select(mask: int, k: int) -> int:
    """Return the position of the set bit above exactly `k` others: halving, so linear in the bits all in all."""
    base, width = 0, mask.bit_length()
    while width > 1:
        half = width >> 1
        low = mask & ((1 << half) - 1)
        count = low.bit_count()
        if k < count:
            mask, width = low, half
        else:
            mask, width, base, k = mask >> half, width - half, base + half, k - count
    return base


def _parse(text: str) -> Idset:
    body = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not body:
        return EMPTY
    if _WHOLE.fullmatch(body) is None:
        raise _first_fault(body, text)
    starts, ends, last = [], [], -1
    for part in body.split(","):
        low, dash, high = part.partition("-")
        first = int(low)
        if first <= last:
            raise InvalidValue(f"idset {_shown(text)}: {part!r} does not come after {last}: ids must ascend, once each")
        last = int(high) if dash else first
        if dash and last <= first:
            raise InvalidValue(f"idset {_shown(text)}: range {part!r} does not ascend")
        if last > ID_MAX:
            raise _too_large(last)
        starts.append(first)
        ends.append(last + 1)
    if len(starts) == 1:  # by far the most frequent, and a quarter of the time
        return Idset.one(last) if starts[0] == last else Idset.span(starts[0], last)
    return Idset(_gather(ends, last + 1) - _gather(starts, last))


_parse_cached = lru_cache(CACHED_TEXTS_MAX)(_parse)


def _first_fault(body: str, text: str) -> InvalidValue:
    """Says which part of a text outside the grammar is wrong, and how."""
    for part in body.split(","):
        match = _ONE_RANGE.fullmatch(part)
        if match is None:
            what = f"{_shown(part)} is neither an id nor a range such as 0-3" if part else "an id is missing at a comma"
            return InvalidValue(f"idset {_shown(text)}: {what}")
        for number in filter(None, match.groups()):
            if len(number) > 1 and number[0] == "0":
                return InvalidValue(f"idset {_shown(text)}: {_shown(number)} has leading zeros")
            if len(number) > len(str(ID_MAX)):
                return _too_large(_shown(number).strip("'"))
    return InvalidValue(f"idset {_shown(text)} is not a list of ids and ranges such as 0-3,7")
