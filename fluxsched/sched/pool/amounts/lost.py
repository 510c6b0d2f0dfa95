"""What the free remainder of a target weighs: cores, GPUs and countables as one number, for the placement `least-lost`.

Law: whole numbers, so equal remainders are equal. One object serves all target classes of a pool, which may be given
other weights at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fluxsched.core.amounts import Amounts

LOST_WEIGHTS: Final[Mapping[str, int]] = MappingProxyType({"core": 1 << 32, "gpu": 10 << 32, "memory": 1})
"""Those of `[fair]` where it says nothing (a core as 4 GiB, a GPU as 10 cores), a byte of memory weighing 1."""


class LostWeights:
    """Weights of a core, a GPU and a unit of each kind; kinds without a weight do not count."""

    __slots__ = ("core", "gpu", "kinds")

    def __init__(self) -> None:
        self.core = self.gpu = 0
        self.kinds: Mapping[str, int] = {}
        self.set(LOST_WEIGHTS)

    def set(self, weights: Mapping[str, int]) -> None:
        """From now on these weights count."""
        self.core, self.gpu = weights.get("core", 0), weights.get("gpu", 0)
        self.kinds = {kind: weight for kind, weight in weights.items() if weight and kind not in ("core", "gpu")}

    def of(self, cores: int, gpus: int, amounts: Amounts = ()) -> int:
        """The weight of so much."""
        found = cores * self.core + gpus * self.gpu
        for kind, amount in amounts:
            found += amount * self.kinds.get(kind, 0)
        return found
