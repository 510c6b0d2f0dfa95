"""Amounts of resources as one number, in units of weight.

Law: amounts are whole numbers in a fixed order of resources, so that what is added can be taken away without a rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from fluxsched.errors import InvalidValue

RESOURCES_MAX = 32
"""Kinds of resources that count in one tree."""

Vector = tuple[int, ...]
"""How much of each resource, in the order of the tree's resources."""


class Measure:
    """How amounts become one number: their weighted sum, or the dominant share of the capacity.

    `weights` maps a resource's name to the weight of one unit; resources without a weight do not count.
    """

    __slots__ = ("_unit_weights", "_weights", "capacity", "dominant", "resources", "total", "unit")

    def __init__(self, weights: Mapping[str, float], dominant: bool = False) -> None:
        if len(weights) > RESOURCES_MAX:
            raise InvalidValue(f"{len(weights)} resources have weights, the limit is {RESOURCES_MAX}: remove some")
        for name, weight in weights.items():
            if not (isfinite(weight) and weight >= 0):
                raise InvalidValue(f"weight {weight!r} of resource {name!r} must be a number of at least 0")
        self.resources = tuple(weights)
        self._weights = tuple(weights.values())
        ratios = [float(weight).as_integer_ratio() for weight in self._weights]
        parts = max([denominator for _, denominator in ratios], default=1)  # all are powers of 2
        self._unit_weights = tuple([numerator * (parts // denominator) for numerator, denominator in ratios])
        self.unit = 1.0 / parts
        self.dominant = dominant
        self.capacity: Vector = (0,) * len(weights)
        self.total = 0.0

    @property
    def unit_weights(self) -> dict[str, int]:
        """The weights in `unit`s, which are whole numbers."""
        return dict(zip(self.resources, self._unit_weights, strict=True))

    def amounts(self, named: Mapping[str, int]) -> Vector:
        """The amounts that count, by resource name."""
        return tuple([named.get(name, 0) for name in self.resources])

    def set_capacity(self, capacity: Vector) -> None:
        """All that there is; `total` is its weighted sum (C in the formulas)."""
        self.capacity = capacity
        self.total = self.weighted(capacity)

    def weighted(self, amounts: Sequence[int]) -> float:
        """Sum of weight times amount."""
        total = 0.0
        for weight, amount in zip(self._weights, amounts, strict=True):
            total += weight * amount
        return total

    def usage(self, amounts: Sequence[int]) -> float:
        """What these amounts count as: their weighted sum, or `total` times the largest part of a resource."""
        if not self.dominant:
            return self.weighted(amounts)
        largest = 0.0
        for amount, capacity in zip(amounts, self.capacity, strict=True):
            if amount:
                largest = max(largest, amount / capacity if capacity else 1.0)
        return self.total * largest

    def units(self, amounts: Sequence[int]) -> int:
        """The weighted sum in whole `unit`s, of which every weight is a multiple: no order of changes leaves a rest."""
        total = 0
        for weight, amount in zip(self._unit_weights, amounts, strict=True):
            total += weight * amount
        return total
