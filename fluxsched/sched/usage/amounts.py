"""How much there is of each resource that weighs: in what jobs hold, in what they ask for, and in targets.

Law: amounts are whole numbers in the smallest unit of their kind, in the order of the resources that have weights, so
what is added can be taken away without a rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.accounts.measure import Vector
from fluxsched.sched.pool.placement import NO_TARGET, Block


class AmountCounter:
    """Counts cores, GPUs and countables, each by its place among the resources; others are left out."""

    __slots__ = ("_core", "_gpu", "_kinds", "_size")

    def __init__(self, resources: Sequence[str]) -> None:
        self._size = len(resources)
        places = {name: at for at, name in enumerate(resources)}
        self._core = places.pop("core", -1)
        self._gpu = places.pop("gpu", -1)
        self._kinds = places

    def of_blocks(self, blocks: Iterable[Block]) -> Vector:
        """What a job holds there."""
        found = [0] * self._size
        core, gpu, kinds = self._core, self._gpu, self._kinds
        for at, word, cores, gpus, amounts in blocks:
            targets = word.bit_count()
            if core >= 0:
                found[core] += targets * cores.bit_count()
            if gpu >= 0 and gpus:
                found[gpu] += targets * gpus.bit_count()
            if amounts and kinds:
                self._add(found, amounts, 1 if at == NO_TARGET else targets)
        return tuple(found)

    def of_request(self, request: Request) -> Vector:
        """The least that a request takes, over all its nodes; a whole node counts as what is asked of it."""
        found = [0] * self._size
        for part in request.each_part:
            nodes = part.least_nodes
            slots = nodes * part.slots.min
            if self._core >= 0:
                found[self._core] += slots * part.cores
            if self._gpu >= 0:
                found[self._gpu] += slots * part.gpus
            self._add(found, part.amounts, slots)
            self._add(found, part.node_amounts, nodes)
        self._add(found, request.shared, 1)
        return tuple(found)

    def of_targets(self, resources: ResourceSet, ranks: Idset) -> Vector:
        """All that these targets have."""
        found = [0] * self._size
        for entry in resources.entries:
            targets = len(entry.ranks & ranks)
            if self._core >= 0:
                found[self._core] += targets * len(entry.children.cores)
            if self._gpu >= 0:
                found[self._gpu] += targets * len(entry.children.gpus)
            self._add(found, entry.children.amounts, targets)
        return tuple(found)

    def of_amounts(self, amounts: Amounts) -> Vector:
        """Countables that no target has."""
        found = [0] * self._size
        self._add(found, amounts, 1)
        return tuple(found)

    def _add(self, found: list[int], amounts: Amounts, times: int) -> None:
        for kind, amount in amounts:
            at = self._kinds.get(kind, -1)
            if at >= 0:
                found[at] += times * amount


def summed(vectors: Iterable[Vector], size: int) -> Vector:
    """All of them together."""
    found = [0] * size
    for vector in vectors:
        for at, amount in enumerate(vector):
            found[at] += amount
    return tuple(found)
