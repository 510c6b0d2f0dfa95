"""An R that grows by pieces of other ranks, one after the other: they are joined when it is read.

Law: adding a piece costs that piece; joining n of them costs about as much as making the whole, log n times.
"""

from __future__ import annotations

from fluxsched.core.idset import Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet


class GrowingResources:
    """`whole` is the union of all pieces; `ranks` are those that it names."""

    __slots__ = ("_pieces", "ranks")

    def __init__(self) -> None:
        self._pieces: list[ResourceSet] = [EMPTY_R]
        self.ranks = EMPTY_R.ranks

    @property
    def whole(self) -> ResourceSet:
        """All pieces as one R."""
        pieces = self._pieces
        while len(pieces) > 1:
            pairs = [pieces[at] | pieces[at + 1] for at in range(0, len(pieces) - 1, 2)]
            pieces = pairs + pieces[2 * len(pairs) :]
        self._pieces = pieces
        return pieces[0]

    def replace(self, whole: ResourceSet) -> None:
        """Takes this instead of all pieces."""
        self._pieces, self.ranks = [whole], whole.ranks

    def add(self, piece: ResourceSet, kept: Idset) -> None:
        """Adds a piece of ranks that are not in `kept`; of the ranks before it only those in `kept` are valid."""
        if not piece.ranks.isdisjoint(self.ranks) or len(self.ranks) > 2 * len(kept):
            self.replace(self.whole.restrict(kept))
        if piece.entries:
            self._pieces.append(piece)
            self.ranks |= piece.ranks
