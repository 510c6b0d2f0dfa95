"""Placements, and the three outcomes of placing a request: a closed set (law 9). Exceptions are for bugs.

`Fits` can be granted now, `Insufficient` may fit after a free or when targets come back, `Infeasible` never fits on
what the group owns, up or down (law 10). The last two say why, in words for the job's owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, ids_of, words_of
from fluxsched.sched.shape import Shape

BEST_FIT: Final = "best-fit"
"""Fewest free GPUs first, then fewest free cores, then the lowest rank: fills gaps and keeps GPUs for jobs that ask."""

WORST_FIT: Final = "worst-fit"
"""Most free cores first, then fewest free GPUs, then the lowest rank: spreads the load."""

FIRST_FIT: Final = "first-fit"
"""The lowest ranks that have enough free: keeps jobs at one end of the machine."""

LEAST_LOST: Final = "least-lost"
"""The free remainder that weighs least first, then the lowest rank: leaves large targets to jobs that need them.

Of several slots a target gets as many as fit on it. Of a whole target all counts that was not asked for: no other job
can have it. As BEST_FIT for targets without cores.
"""

FAIR: Final = "fair"
"""Of targets without cores, the largest free share first (in steps of 1/64), then the lowest rank; as WORST_FIT."""

BINPACKING: Final = "binpacking"
"""The smallest free share first, then the lowest rank; as BEST_FIT."""

LIKE: Final = {FAIR: WORST_FIT, BINPACKING: BEST_FIT}
"""What the placements of targets without cores mean for others."""

PLACEMENTS: Final = (WORST_FIT, BEST_FIT, FIRST_FIT, LEAST_LOST)


class Block(NamedTuple):
    """What a job has on some targets of a word, the same on each of them: core and GPU ids as masks, and amounts.

    The lowest bit of `word` is rank 512 * `at`. A job's blocks name each of its targets once.
    """

    at: int
    word: int
    cores: int
    gpus: int
    amounts: Amounts = ()


Blocks: TypeAlias = tuple[Block, ...]


class Holds(Protocol):
    """What holds something."""

    @property
    def blocks(self) -> Blocks:
        """What it holds."""
        ...


class HeldBlocks(NamedTuple):
    """A part of what a job holds."""

    blocks: Blocks


NO_TARGET: Final = -1
"""`at` of the block of no target, whose amounts are what a job has of the countables of the instance."""


class Part(NamedTuple):
    """What a job gets of one target: core and GPU ids as bit masks, amounts by kind."""

    rank: int
    cores: int
    gpus: int
    amounts: Amounts = ()


def parts_in(blocks: Iterable[Block]) -> Iterator[Part]:
    """Blocks target by target."""
    for at, word, cores, gpus, amounts in blocks:
        base = at << WORD_SHIFT
        for bit in ids_of(word):
            yield Part(base + bit, cores, gpus, amounts)


def blocks_of(parts: Iterable[Part]) -> Blocks:
    """Parts with equal contents joined word by word, in the order of their first."""
    return joined([Block(p.rank >> WORD_SHIFT, 1 << (p.rank & LOW_BITS), p.cores, p.gpus, p.amounts) for p in parts])


def instance_block(amounts: Amounts) -> Blocks:
    """The block of no target, none if there are no amounts."""
    return (Block(NO_TARGET, 0, 0, 0, amounts),) if amounts else ()


def instance_amounts(blocks: Blocks) -> Amounts:
    """What is in the block of no target, which is the last one if a job has it."""
    return blocks[-1].amounts if blocks and blocks[-1].at == NO_TARGET else ()


def ranks_in(blocks: Iterable[Block]) -> Idset:
    """The targets of these blocks."""
    mask = 0
    for at, word, *_ in blocks:
        if at != NO_TARGET:
            mask |= word << (at << WORD_SHIFT)
    return Idset(mask)


def on_targets(blocks: Iterable[Block]) -> list[Block]:
    """All but the block of no target."""
    return [block for block in blocks if block.at != NO_TARGET]


def cores_in(blocks: Iterable[Block]) -> int:
    """How many cores these are, over all targets."""
    return sum([block.word.bit_count() * block.cores.bit_count() for block in blocks])


def misplaced(at: int, word: int, cores: int, gpus: int, what: str) -> LocalProtocolError:
    """A bug: what is wrong with these ids on some of these targets."""
    ranks = Idset(word << (at << WORD_SHIFT))
    return LocalProtocolError(f"ranks {ranks}: some of {cores:#x} cores, {gpus:#x} gpus {what}")


def joined(blocks: Iterable[Block]) -> Blocks:
    """The same in as few blocks as possible."""
    words: dict[tuple[int, int, int, Amounts], int] = {}
    for at, word, cores, gpus, amounts in blocks:
        key = (at, cores, gpus, amounts)
        words[key] = words.get(key, 0) | word
    return tuple([Block(at, word, cores, gpus, amounts) for (at, cores, gpus, amounts), word in words.items()])


def blocks_in(resources: ResourceSet, without: Idset | None = None) -> Blocks:
    """The blocks of an R, without some ranks."""
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
        """What was asked for."""
        return self.shape.request

    @property
    def parts(self) -> tuple[Part, ...]:
        """One part a rank, ascending; for people and tests."""
        return tuple(sorted(parts_in(self.blocks)))


@dataclass(frozen=True, slots=True)
class Insufficient:
    """Not now: too much is busy or down."""

    why: str


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Never, on what the group owns."""

    why: str


Outcome = Fits | Insufficient | Infeasible
