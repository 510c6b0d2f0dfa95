"""What placing a request can come to: a closed set of three (law 9). Exceptions are for bugs.

`Fits` can be granted now, `Insufficient` may fit after a free or when targets come back, `Infeasible` never fits on
what the group owns, whatever the weather (law 10). The last two say why, in words for the person who waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fluxsched.core.jobspec import Request
from fluxsched.sched.bits import WORD_SHIFT, ids_of

Block: TypeAlias = tuple[int, int, int, int]
"""(at, word, cores, gpus): the same core and GPU ids, as masks, of each target in `word`, whose lowest bit is rank
512 * at. A tuple without a name, since one is made for every allocation; whoever is not in a hurry uses `parts_in`."""


class Part(NamedTuple):
    """What a job gets of one target: core and GPU ids as bit masks."""

    rank: int
    cores: int
    gpus: int


def parts_in(blocks: Iterable[Block]) -> Iterator[Part]:
    """The same, target by target."""
    for at, word, cores, gpus in blocks:
        base = at << WORD_SHIFT
        for bit in ids_of(word):
            yield Part(base + bit, cores, gpus)


def blocks_of(parts: Iterable[tuple[int, int, int]]) -> tuple[Block, ...]:
    """Parts with equal ids joined word by word, in the order in which they first come."""
    words: dict[tuple[int, int, int], int] = {}
    for rank, cores, gpus in parts:
        key = (rank >> WORD_SHIFT, cores, gpus)
        words[key] = words.get(key, 0) | 1 << (rank & ((1 << WORD_SHIFT) - 1))
    return tuple([(at, word, cores, gpus) for (at, cores, gpus), word in words.items()])


@dataclass(frozen=True, slots=True)
class Fits:
    """A placement for `request`: one part a rank, `nslots` slots in all."""

    request: Request
    parts: tuple[Part, ...]
    nslots: int

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The parts, word by word: what trials take."""
        return blocks_of(self.parts)


@dataclass(frozen=True, slots=True)
class Insufficient:
    """Not now: too much is busy or down."""

    why: str


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Never, on what the group owns."""

    why: str


Outcome = Fits | Insufficient | Infeasible
