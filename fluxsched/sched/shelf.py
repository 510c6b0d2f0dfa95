"""Equal targets on one shelf: those that may be used stand in buckets by how many GPUs and cores are free on them.

Law: a target changes bucket in constant time, and the best bucket for a request is found by looking at one small mask
per GPU count, never at targets. Targets of one shelf have equal totals, and equal properties as far as those were told
apart, so that a constraint mostly takes a shelf whole or leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxsched.sched.bits import Bits, ids_of

BEST_FIT = "best-fit"
"""Fewest free GPUs first, then fewest free cores, then the lowest rank: gaps are filled, GPUs are kept for who asks."""

WORST_FIT = "worst-fit"
"""Most free cores first, then fewest free GPUs, then the lowest rank: load is spread."""

Key = tuple[int, int]
Walk = Callable[["Shelf", int, int], Iterator[tuple[Key, Bits]]]


class Shelf:
    """`cores` and `gpus` are each target's totals; `members` is the mask of all, usable or not."""

    __slots__ = ("_buckets", "_cores_at", "cores", "gpus", "members")

    def __init__(self, cores: int, gpus: int) -> None:
        self.cores = cores
        self.gpus = gpus
        self.members = 0
        self._buckets: dict[Key, Bits] = {}
        self._cores_at = [0] * (gpus + 1)  # per count of free GPUs: which counts of free cores occur

    def insert(self, rank: int, cores: int, gpus: int) -> None:
        """Stands a usable target with that many free cores and GPUs in its bucket."""
        bucket = self._buckets.get((gpus, cores))
        if bucket is None:
            bucket = self._buckets[gpus, cores] = Bits()
        if not bucket.count:
            self._cores_at[gpus] |= 1 << cores
        bucket.add(rank)

    def withdraw(self, rank: int, cores: int, gpus: int) -> None:
        """Takes a target out of the bucket in which it stands."""
        bucket = self._buckets[gpus, cores]
        bucket.remove(rank)
        if not bucket.count:
            self._cores_at[gpus] ^= 1 << cores

    def best(self, cores: int, gpus: int) -> Iterator[tuple[Key, Bits]]:
        """Buckets with at least that much free, in the order of BEST_FIT, each with its sort key."""
        for free_gpus in range(gpus, self.gpus + 1):
            for above in ids_of(self._cores_at[free_gpus] >> cores):
                key = (free_gpus, cores + above)
                yield key, self._buckets[key]

    def worst(self, cores: int, gpus: int) -> Iterator[tuple[Key, Bits]]:
        """Buckets with at least that much free, in the order of WORST_FIT, each with its sort key."""
        levels = range(gpus, self.gpus + 1)
        some = 0
        for free_gpus in levels:
            some |= self._cores_at[free_gpus]
        some >>= cores
        while some:
            top = some.bit_length() - 1
            some ^= 1 << top
            for free_gpus in levels:
                if self._cores_at[free_gpus] >> (cores + top) & 1:
                    yield (-cores - top, free_gpus), self._buckets[free_gpus, cores + top]

    def free_at(self, cores: int, gpus: int) -> Iterator[tuple[int, int, Bits]]:
        """Buckets with at least that much free, in any order: (free cores, free GPUs, bucket)."""
        return ((free_cores, free_gpus, bucket) for (free_gpus, free_cores), bucket in self.best(cores, gpus))

    def fits_ever(self, cores: int, gpus: int) -> bool:
        """Whether an idle target of this shelf has that much."""
        return cores <= self.cores and gpus <= self.gpus


WALKS: dict[str, Walk] = {BEST_FIT: Shelf.best, WORST_FIT: Shelf.worst}
"""Placement option -> the order in which a shelf offers its buckets."""
