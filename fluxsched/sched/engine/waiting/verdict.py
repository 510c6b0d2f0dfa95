"""Whether a shape can ever fit, as of a generation of the pool."""

from __future__ import annotations


class FitVerdict:
    """Whether a shape can fit, as of a generation of the pool.

    `have` is how many nodes (or slots) could hold it, `had` the same when it last was feasible.
    """

    __slots__ = ("generation", "had", "have", "why")

    def __init__(self) -> None:
        self.generation = -1
        self.have: int | None = None
        self.had: int | None = None
        self.why: str | None = None
