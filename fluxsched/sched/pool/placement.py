"""Values of placing: shapes of equal requests, orders of placement, the blocks that a job gets, and outcomes.

Outcomes are a closed set: `Fits` can be granted now, `Insufficient` may fit after a free or when targets come
back, `Infeasible` never fits on what the group owns, up or down. The last two say why, in words for the job's
owner. Exceptions are for bugs.

Law: equal requests get one shape for as long as it is remembered, and no number of a shape is given twice in a process,
so a table by number keeps no object alive.

Sets of ranks as words of 512 bits.

Law: adding to a set of ranks, removing and finding the lowest touch one word of `WORD_BITS` bits and one summary of
which words are not empty; a plain int used as a mask would be copied whole each time. Iteration is ascending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LocalProtocolError

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


# ---- shapes of requests

SHAPES_MAX = 4096
"""Shapes that are remembered; some hundred bytes each. Beyond that, equal requests may get more than one."""

_numbers = count(1)


Labels: TypeAlias = tuple[tuple[str, Any], ...]
"""Names and values of what plugins read of a job; the values are hashable."""


class Shape:
    """A request, and the number by which tables know it and all its equals.

    `scope` says which plugins are asked about it: those of the queue of this name, empty for all queues that have none
    of their own; None where there are no plugins.
    """

    __slots__ = ("labels", "number", "request", "scope")

    def __init__(self, request: Request, labels: Labels = (), scope: str | None = None) -> None:
        self.request = request
        self.labels = labels
        self.scope = scope
        self.number = next(_numbers)

    def label(self, name: str) -> Any:
        """Return the value of a label; None if there is none."""
        for known, value in self.labels:
            if known == name:
                return value
        return None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Shape)
            and self.scope == other.scope
            and self.labels == other.labels
            and self.request == other.request
        )

    def __hash__(self) -> int:
        return hash(self.request)

    def __repr__(self) -> str:
        return f"Shape({self.number}, {self.request}{f', {self.labels}' if self.labels else ''})"


class Shapes:
    """The shapes that a scheduler remembers.

    Unless it `resizes` jobs, the number of an elastic one's nodes is settled at its start, like that of any other.
    """

    __slots__ = ("_known", "_labelled", "_resizes")

    def __init__(self, *, resizes: bool = True) -> None:
        self._resizes = resizes
        self._known: dict[Request, Shape] = {}
        self._labelled: dict[tuple[Request, Labels, str], Shape] = {}

    def of(self, request: Request, labels: Labels = (), scope: str | None = None) -> Shape:
        """Return the shape of a request; of one with these labels, where the plugins of a `scope` are asked."""
        if scope is not None:
            return self._of_labelled(request, labels, scope)
        shape = self._known.get(request)
        if shape is None:
            if len(self._known) >= SHAPES_MAX:
                self._known.clear()
            shape = self._known[request] = self._made(request, (), None)
        return shape

    def _of_labelled(self, request: Request, labels: Labels, scope: str) -> Shape:
        key = (request, labels, scope)
        shape = self._labelled.get(key)
        if shape is None:
            if len(self._labelled) >= SHAPES_MAX:
                self._labelled.clear()
            shape = self._labelled[key] = self._made(request, labels, scope)
        return shape

    def _made(self, request: Request, labels: Labels, scope: str | None) -> Shape:
        return Shape(request if self._resizes else settled(request), labels, scope)


def settled(request: Request) -> Request:
    """Return the request of a job whose size is settled when it starts."""
    if not request.elastic:
        return request
    return replace(request, elastic=False, parts=tuple([settled(part) for part in request.parts]))


# ---- blocks and outcomes

BEST_FIT: Final = "best-fit"
"""Fewest free GPUs first, then fewest free cores, then the lowest rank: fills gaps and keeps GPUs for jobs that ask."""

WORST_FIT: Final = "worst-fit"
"""Placement by most free cores, then fewest free GPUs, then the lowest rank: spreads the load."""

FIRST_FIT: Final = "first-fit"
"""The lowest ranks that have enough free: keeps jobs at one end of the machine."""

LEAST_LOST: Final = "least-lost"
"""The free remainder that weighs least first, then the lowest rank: leaves large targets to jobs that need them.

Of several slots a target gets as many as fit on it. Of a whole target all counts that was not asked for: no other job
can have it. As BEST_FIT for targets without cores.
"""

FAIR: Final = "fair"
"""Placement of targets without cores by the largest free share (in steps of 1/64), then the lowest rank; as WORST_FIT.
"""

BINPACKING: Final = "binpacking"
"""The smallest free share first, then the lowest rank; as BEST_FIT."""

LIKE: Final = {FAIR: WORST_FIT, BINPACKING: BEST_FIT}
"""Placements of targets without cores, mapped to their equivalents for other targets."""

PLACEMENTS: Final = (WORST_FIT, BEST_FIT, FIRST_FIT, LEAST_LOST)


class Block(NamedTuple):
    """Resources of a job on some targets of a word, the same on each: core and GPU ids as masks, and amounts.

    The lowest bit of `word` is rank 512 * `at`. A job's blocks name each of its targets once.
    """

    at: int
    word: int
    cores: int
    gpus: int
    amounts: Amounts = ()


Blocks: TypeAlias = tuple[Block, ...]


class Holds(Protocol):
    """Holder of resources, such as a job, of which only these are asked."""

    @property
    def blocks(self) -> Blocks: ...


class HeldBlocks(NamedTuple):
    """A part of what a job holds."""

    blocks: Blocks


NO_TARGET: Final = -1
"""Value of `at` in the block of no target, whose amounts are those that a job has of the instance's countables."""


class Part(NamedTuple):
    """Resources of a job on one target: core and GPU ids as bit masks, amounts by kind."""

    rank: int
    cores: int
    gpus: int
    amounts: Amounts = ()


def parts_in(blocks: Iterable[Block]) -> Iterator[Part]:
    """Yield blocks target by target."""
    for at, word, cores, gpus, amounts in blocks:
        base = at << WORD_SHIFT
        for bit in ids_of(word):
            yield Part(base + bit, cores, gpus, amounts)


def blocks_of(parts: Iterable[Part]) -> Blocks:
    """Parts with equal contents joined word by word, in the order of their first."""
    return joined([Block(p.rank >> WORD_SHIFT, 1 << (p.rank & LOW_BITS), p.cores, p.gpus, p.amounts) for p in parts])


def instance_block(amounts: Amounts) -> Blocks:
    """Return the block of no target, none if there are no amounts."""
    return (Block(NO_TARGET, 0, 0, 0, amounts),) if amounts else ()


def instance_amounts(blocks: Blocks) -> Amounts:
    """Return the amounts in the block of no target, which is the last one if a job has it."""
    return blocks[-1].amounts if blocks and blocks[-1].at == NO_TARGET else ()


def ranks_in(blocks: Iterable[Block]) -> Idset:
    """Return the targets of these blocks."""
    mask = 0
    for at, word, *_ in blocks:
        if at != NO_TARGET:
            mask |= word << (at << WORD_SHIFT)
    return Idset(mask)


def on_targets(blocks: Iterable[Block]) -> list[Block]:
    """Return all blocks but that of no target."""
    return [block for block in blocks if block.at != NO_TARGET]


def cores_in(blocks: Iterable[Block]) -> int:
    """Return the number of cores over all targets."""
    return sum([block.word.bit_count() * block.cores.bit_count() for block in blocks])


def misplaced(at: int, word: int, cores: int, gpus: int, what: str) -> LocalProtocolError:
    """Return an error for a bug: what is wrong with these ids on some of these targets."""
    ranks = Idset(word << (at << WORD_SHIFT))
    return LocalProtocolError(f"ranks {ranks}: some of {cores:#x} cores, {gpus:#x} gpus {what}")


def joined(blocks: Iterable[Block]) -> Blocks:
    """Return the resources of the blocks in as few blocks as possible."""
    words: dict[tuple[int, int, int, Amounts], int] = {}
    for at, word, cores, gpus, amounts in blocks:
        key = (at, cores, gpus, amounts)
        words[key] = words.get(key, 0) | word
    return tuple([Block(at, word, cores, gpus, amounts) for (at, cores, gpus, amounts), word in words.items()])


def blocks_in(resources: ResourceSet, without: Idset | None = None) -> Blocks:
    """Return the blocks of an R, without some ranks."""
    found: list[Block] = []
    for entry in resources.entries:
        ranks = entry.ranks if without is None else entry.ranks - without
        cores, gpus = entry.children.cores.mask, entry.children.gpus.mask
        amounts = entry.children.amounts
        mask = ranks.mask
        if mask & (mask - 1):
            found += [Block(at, word, cores, gpus, amounts) for at, word in words_of(mask)]
        elif mask:  # one rank, as of most jobs
            at = (mask.bit_length() - 1) >> WORD_SHIFT
            found.append(Block(at, mask >> (at << WORD_SHIFT), cores, gpus, amounts))
    return (*found, *instance_block(resources.shared)) if resources.shared else tuple(found)


class UsualGrant(NamedTuple):
    """R without times of a grant of one block, as JSON, and its summary."""

    R: dict[str, Any]
    summary: str


class Fits(NamedTuple):
    """A placement for a request of this shape: its blocks, and `nslots` slots in all.

    `by_part` are the ranks of each of several parts, in their order; empty where there is one part.
    """

    shape: Shape
    blocks: Blocks
    nslots: int
    by_part: tuple[Idset, ...] = ()

    @property
    def request(self) -> Request:
        """Return the request that was placed."""
        return self.shape.request

    @property
    def parts(self) -> tuple[Part, ...]:
        """One part a rank, ascending; for people and tests."""
        return tuple(sorted(parts_in(self.blocks)))


@dataclass(frozen=True, slots=True)
class Insufficient:
    """Outcome that the request does not fit now: too much is busy or down."""

    why: str


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Never, on what the group owns."""

    why: str


Outcome = Fits | Insufficient | Infeasible
