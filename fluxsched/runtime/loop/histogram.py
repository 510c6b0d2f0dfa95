"""How often a value was in which range: what monitoring makes quantiles of. Counting one takes 0.2 us."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from fluxsched.protocol.messages.metrics import HistogramValue

SHORT_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bounds for what a program does: a transaction, a pass (seconds)."""
CONSIDERED_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0
)  # fmt: skip
"""Bounds for how soon a scheduler looks at a job (seconds); it is later where jobs wait for others first."""
LONG_S: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
"""Bounds for how long jobs wait, up to a week (seconds), as monitoring has them."""
WAITS_S: Final = (
    0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0,
    60.0, 90.0, 120.0, 180.0, 300.0, 450.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0, 5400.0, 7200.0, 10_800.0, 14_400.0, 21_600.0, 28_800.0, 43_200.0, 64_800.0,
    86_400.0, 129_600.0, 172_800.0, 259_200.0, 432_000.0, 604_800.0, 864_000.0, 1_209_600.0,
    1_814_400.0, 2_592_000.0,
)  # fmt: skip
"""The same for the history, up to 30 days: all of LONG_S, and so many between that each is at most 1.67 times the one
before. Files have counts by these ranges: a change of them is a change of the form of the store."""


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

    def counts(self) -> tuple[int, ...]:
        """The counts alone."""
        return tuple(self._counts)

    def coarser(self, bounds: tuple[float, ...]) -> HistogramValue:
        """All counts until now by some of the bounds."""
        ends = [bisect_left(self._bounds, bound) + 1 for bound in bounds]
        parts = [sum(self._counts[begin:end]) for begin, end in pairwise([0, *ends, len(self._counts)])]
        return HistogramValue(bounds, tuple(parts), self._sum)


def quantile(bounds: Sequence[float], counts: Sequence[float], part: float) -> float | None:
    """The value below which this part of what was counted is, as if it were spread evenly over each range; None if
    nothing was. Of values above the last bound no more is known.
    """
    wanted, before, low = part * sum(counts), 0.0, 0.0
    if not wanted:
        return None
    for high, count in zip(bounds, counts, strict=False):
        if count and before + count >= wanted:
            return low + (high - low) * (wanted - before) / count
        before, low = before + count, high
    return low
