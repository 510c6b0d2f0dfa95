"""Where a search may begin: a job cannot start before one that asked for no more, for no longer, could.

Law: true as long as less and less is free, as while jobs are planned one after the other. Answers are at most too early
(sizes are rounded to three binary digits), never too late. Both operations cost O(log n).
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf

CLASSES = 256
"""Sizes of three significant binary digits: more than any number of cores has."""


class Floors:
    """A Fenwick tree over the classes of size; a node keeps the limits at which the start becomes later."""

    def __init__(self) -> None:
        self._nodes: dict[int, tuple[list[float], list[float]]] = {}

    def of(self, cores: int, limit_s: float) -> float:
        """No start before this is possible for so many cores and so long; `-inf` if nothing is known."""
        at, found_s, nodes = _class(cores), -inf, self._nodes
        while at:
            node = nodes.get(at)
            if node is not None:
                step = bisect_right(node[0], limit_s)
                if step and node[1][step - 1] > found_s:
                    found_s = node[1][step - 1]
            at &= at - 1
        return found_s

    def learn(self, cores: int, limit_s: float, start_s: float) -> None:
        """Such a job cannot start before `start_s`."""
        at = _class(cores)
        if _least(at) < cores:
            at += 1
        while at < CLASSES:
            limits, starts = self._nodes.setdefault(at, ([], []))
            step = bisect_right(limits, limit_s)
            if not step or starts[step - 1] < start_s:
                until = bisect_right(starts, start_s, lo=step)
                if step and limits[step - 1] == limit_s:
                    step -= 1
                limits[step:until] = [limit_s]
                starts[step:until] = [start_s]
            at += at & -at

    def clear(self) -> None:
        """More is free than was."""
        self._nodes.clear()


def _class(cores: int) -> int:
    """Sizes below 8 for themselves, then four classes for each doubling."""
    digits = cores.bit_length()
    return cores if digits < 4 else 4 * (digits - 4) + 4 + (cores >> (digits - 3))


def _least(at: int) -> int:
    """The smallest size of a class."""
    return at if at < 8 else (at - 4) % 4 + 4 << (at - 8) // 4 + 1
