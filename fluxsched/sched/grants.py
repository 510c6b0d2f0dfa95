"""From placements to R and back: the one place where core ids as masks meet RFC 20.

Law: the R of a grant is made once, at the end, out of the job's blocks; its cost follows the job, not the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from fluxsched.core.idset import Idset
from fluxsched.core.resources import Children, ResourceSet
from fluxsched.sched.bits import WORD_SHIFT, mask_of, words_of
from fluxsched.sched.outcome import Block, Blocks, Fits
from fluxsched.sched.shelf import Amounts

CHILDREN_CACHED_MAX = 4096
"""The same few sets of cores and GPUs come again and again; about 200 bytes each."""


@lru_cache(CHILDREN_CACHED_MAX)
def children(cores: int, gpus: int, amounts: Amounts = ()) -> Children:
    """What a job gets of one target as RFC 20 children."""
    return Children(Idset(cores), Idset(gpus))


def grouped(blocks: Iterable[Block]) -> list[tuple[Idset | int, Children]]:
    """Targets with equal children joined, as `ResourceSet.build` takes them."""
    by_ids: dict[tuple[int, int, Amounts], dict[int, int]] = {}
    for at, word, *ids in blocks:
        words = by_ids.setdefault(tuple(ids), {})  # type: ignore[arg-type]  # mypy does not follow the star
        words[at] = words.get(at, 0) | word
    return [(_ranks(words), children(*ids)) for ids, words in by_ids.items()]


def grant(fit: Fits, source: ResourceSet, starttime_s: float, expiration_s: float) -> ResourceSet:
    """The R of a grant (RFC 20): times in seconds since the epoch, expiration 0.0 for none."""
    return ResourceSet.build(grouped(fit.blocks), source, starttime_s, expiration_s, fit.nslots)


def blocks_in(resources: ResourceSet, without: Idset | None = None) -> Blocks:
    """What an R names; ranks in `without` are left out."""
    found: list[Block] = []
    for entry in resources.entries:
        ranks = entry.ranks if without is None else entry.ranks - without
        cores, gpus = entry.children.cores.mask, entry.children.gpus.mask
        found += [(at, word, cores, gpus, ()) for at, word in words_of(ranks.mask)]
    return tuple(found)


def _ranks(words: dict[int, int]) -> Idset | int:
    """One rank as an int, which `build` takes at less cost, or the set."""
    if len(words) == 1:
        ((at, word),) = words.items()
        if not word & (word - 1):
            return at << WORD_SHIFT | word.bit_length() - 1
    return Idset(mask_of(words))
