"""From placements to R and back: the one place where core ids as masks meet RFC 20.

Law: the R of a grant is made once, at the end, out of the job's parts; its cost follows the job, not the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from fluxsched.core.idset import Idset
from fluxsched.core.resources import Children, ResourceSet
from fluxsched.sched.outcome import Fits, Part

CHILDREN_CACHED_MAX = 4096
"""The same few sets of cores and GPUs come again and again; about 200 bytes each."""


@lru_cache(CHILDREN_CACHED_MAX)
def children(cores: int, gpus: int) -> Children:
    """The cores and GPUs of one target as RFC 20 children."""
    return Children(Idset(cores), Idset(gpus))


def grouped(parts: Iterable[Part]) -> list[tuple[Idset | int, Children]]:
    """Parts with equal children joined, as `ResourceSet.build` takes them."""
    by_ids: dict[tuple[int, int], list[int]] = {}
    for rank, cores, gpus in parts:
        by_ids.setdefault((cores, gpus), []).append(rank)
    return [
        (ranks[0] if len(ranks) == 1 else Idset.of(ranks), children(*ids)) for ids, ranks in by_ids.items()
    ]


def grant(fit: Fits, source: ResourceSet, starttime_s: float, expiration_s: float) -> ResourceSet:
    """The R of a grant (RFC 20): times in seconds since the epoch, expiration 0.0 for none."""
    parts = fit.parts
    if len(parts) == 1:
        rank, cores, gpus = parts[0]
        return ResourceSet.build(((rank, children(cores, gpus)),), source, starttime_s, expiration_s, fit.nslots)
    return ResourceSet.build(grouped(parts), source, starttime_s, expiration_s, fit.nslots)


def parts_of(resources: ResourceSet, without: Idset | None = None) -> Sequence[Part]:
    """What an R names, one part a rank; ranks in `without` are left out."""
    found = []
    for entry in resources.entries:
        ranks = entry.ranks if without is None else entry.ranks - without
        cores, gpus = entry.children.cores.mask, entry.children.gpus.mask
        found += [Part(rank, cores, gpus) for rank in ranks]
    return found
