"""Fewer faults and actions that still break the law: delta debugging over what a plan consists of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], fails: Callable[[list[T]], bool], runs_max: int) -> list[T]:
    """A part of `items` that still fails, and of which (if `runs_max` runs suffice) no single one can be left out.

    `fails` is not asked of all items: they do.
    """
    kept, pieces, runs = list(items), 2, 0
    while kept and runs < runs_max:
        size = max(1, len(kept) // pieces)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            runs += 1
            if fails(rest):
                kept, pieces = rest, max(2, pieces - 1)
                break
            if runs >= runs_max:
                break
        else:
            if size == 1:
                break
            pieces = min(len(kept), pieces * 2)
    return kept
