"""Targets that are left out of a shape's choice for as long as a place is sought, since outages keep them.

    with LeftOut(pool, shape, pool.outages.barred(now_s, end_s)):
        fit = find_fit(pool, shape, placement)

and targets that come back: those that are down since an outage keeps them are usable once it is over (`Returned`).

Law: the choice of a job depends on when it would end, and that of its shape does not, so what is left out is put back.
Feasibility ignores it (`ever`). What is worked out for a shape and the same targets left out is kept for a generation
of the pool.
"""

from __future__ import annotations

from types import TracebackType

from fluxsched.core.idset import Idset
from fluxsched.sched.pool.allowed_targets import Narrowed, Prepared, Remaining
from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.pool.pool import Pool


class LeftOut:
    """Nothing is placed on the targets of the mask `barred` within the `with` block, for this shape; blocks nest."""

    __slots__ = ("_barred", "_kept", "_narrowed", "_pool", "_prepared", "_shape")

    def __init__(self, pool: Pool, shape: Shape, barred: int) -> None:
        self._pool = pool
        self._shape = shape
        self._barred = barred
        self._narrowed: Narrowed | None = None
        self._prepared: Prepared | None = None
        self._kept: Remaining | None = None

    def __enter__(self) -> LeftOut:
        if self._barred:
            pool, shape = self._pool, self._shape
            base = self._narrowed = pool.narrowed.get(shape.number)
            self._prepared = pool.prepared.pop(shape.number, None)
            kept = pool.remaining.get((shape.number, self._barred))
            if kept is None or kept.base is not base:
                kept = pool.keep_remaining(shape, self._barred, base)
            pool.narrowed[shape.number] = kept.narrowed
            if kept.prepared is not None:
                pool.prepared[shape.number] = kept.prepared
            self._kept = kept
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if self._kept is None:
            return
        pool, number = self._pool, self._shape.number
        self._kept.prepared = pool.prepared.pop(number, None)
        if self._prepared is not None:
            pool.prepared[number] = self._prepared
        if self._narrowed is None:
            del pool.narrowed[number]
        else:
            pool.narrowed[number] = self._narrowed


class Returned:
    """These targets of the pool, which are down, count as usable within the `with` block."""

    __slots__ = ("_pool", "_targets")

    def __init__(self, pool: Pool, targets: Idset) -> None:
        self._pool = pool
        self._targets = targets

    def __enter__(self) -> None:
        if self._targets:
            self._pool.set_up(self._targets)

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        if self._targets:
            self._pool.set_down(self._targets)
