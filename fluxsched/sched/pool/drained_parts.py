"""Targets of a pool of which parts are drained: they are in the pool without these, so nothing is placed on them.

Law: a job that holds a drained part keeps it. As the pool does not count the ids, it ignores them when the job frees
them, like those of targets that it does not have. Feasibility counts them: it is judged by the targets as they were
(`whole`). A target of which no core is left is not cut: it is kept down, `usable` or not, until that changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.parts import NO_PARTS, PartsByRank
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import Children, RlitePart, merge


class DrainedParts:
    """Parts that are drained, by target, `of` this pool or not; `emptied` are those of it that have no core left."""

    def __init__(self) -> None:
        self.parts: PartsByRank = NO_PARTS
        self.emptied = EMPTY
        self._usable = EMPTY  # of these
        self._full: dict[int, Children] = {}  # of the targets that were cut

    def __bool__(self) -> bool:
        """Return whether some target of the pool was cut."""
        return bool(self._full)

    def cut(self, resources: ResourceSet) -> ResourceSet:
        """Return targets that join the pool without their drained parts."""
        found: list[RlitePart] = []
        for rank in [rank for rank in self.parts.of if rank in resources.ranks]:
            children = resources.children(rank)
            left = children - self.parts.of[rank]
            if left.cores:
                self._full[rank] = children
                found.append((rank, left))
            elif children.cores:
                self.emptied |= Idset.one(rank)
        return _replaced(resources, found) if found else resources

    def whole(self, resources: ResourceSet) -> ResourceSet:
        """Return resources of the pool with their drained parts."""
        return _replaced(resources, [(rank, full) for rank, full in self._full.items() if rank in resources.ranks])

    def forget(self, ranks: Idset) -> None:
        """Forget targets that leave the pool."""
        for rank in [rank for rank in self._full if rank in ranks]:
            del self._full[rank]
        self.emptied -= ranks
        self._usable -= ranks

    def keep_down(self, ranks: Idset) -> Idset:
        """Note that targets are usable; return those of them that are, with what is left of them."""
        self._usable |= ranks & self.emptied
        return ranks - self.emptied

    def went_down(self, ranks: Idset) -> None:
        """Note that targets are not usable."""
        self._usable -= ranks

    def usable(self, ranks: Idset) -> Idset:
        """Return the targets of these that are down only since nothing of them is left."""
        return self._usable & ranks


def _replaced(resources: ResourceSet, parts: Iterable[RlitePart]) -> ResourceSet:
    """Return the resources with other children on some of their targets."""
    other = merge(parts)
    kept = resources.without(other.ranks)
    both = merge([(ranks, children) for ranks, children in (*kept.entries, *other.entries)])
    return dataclasses.replace(resources, entries=both.entries)
