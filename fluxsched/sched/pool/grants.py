"""From placements to R and back: the one place where core ids as masks meet RFC 20.

Law: the R of a grant is made once, at the end, out of the job's blocks; its cost follows the job, not the group.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import Idset
from fluxsched.core.resources import Children, ResourceSet
from fluxsched.sched.pool.bitset import WORD_SHIFT, mask_of, words_of
from fluxsched.sched.pool.placement import SHARED, Block, Blocks, Fits, shared_block

CHILDREN_CACHED_MAX = 4096
"""The same few sets of cores and GPUs come again and again; about 200 bytes each."""


@lru_cache(CHILDREN_CACHED_MAX)
def children(cores: int, gpus: int, amounts: Amounts = ()) -> Children:
    """What a job gets of one target as RFC 20 children, and amounts."""
    return Children(Idset(cores), Idset(gpus), (), amounts)


def grouped(blocks: Iterable[Block]) -> list[tuple[Idset | int, Children]]:
    """Targets with equal children joined, as `ResourceSet.build` takes them."""
    by_ids: dict[tuple[int, int, Amounts], dict[int, int]] = {}
    for at, word, cores, gpus, amounts in blocks:
        if at != SHARED:
            words = by_ids.setdefault((cores, gpus, amounts), {})
            words[at] = words.get(at, 0) | word
    return [(_ranks(words), children(*ids)) for ids, words in by_ids.items()]


def grant(fit: Fits, source: ResourceSet, starttime_s: float, expiration_s: float) -> ResourceSet:
    """The R of a grant (RFC 20): times in seconds since the epoch, expiration 0.0 for none."""
    shared = fit.request.shared
    return ResourceSet.build(grouped(fit.blocks), source, starttime_s, expiration_s, fit.nslots, shared)


def blocks_in(resources: ResourceSet, without: Idset | None = None) -> Blocks:
    """What an R names; ranks in `without` are left out."""
    found: list[Block] = []
    for entry in resources.entries:
        ranks = entry.ranks if without is None else entry.ranks - without
        cores, gpus = entry.children.cores.mask, entry.children.gpus.mask
        amounts = entry.children.amounts
        found += [(at, word, cores, gpus, amounts) for at, word in words_of(ranks.mask)]
    return (*found, *shared_block(resources.shared))


def _ranks(words: dict[int, int]) -> Idset | int:
    """One rank as an int, which `build` takes at less cost, or the set."""
    if len(words) == 1:
        ((at, word),) = words.items()
        if not word & (word - 1):
            return at << WORD_SHIFT | word.bit_length() - 1
    return Idset(mask_of(words))
