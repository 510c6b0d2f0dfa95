"""Hypothetical changes of the real pool, what-ifs, which are undone with a log instead of a copy.

    with WhatIf(pool) as what_if:
        for blocks in ends:  # running jobs, the earliest end first
            what_if.give(blocks)

Law: leaving the block of a what-if undoes every change, last first, and only what was learnt remains. The ledger
refuses to commit while one is open, so a policy does not yield inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.find_fit import find_fit
from fluxsched.sched.pool.placement import Block, Blocks, Fits, Shape
from fluxsched.sched.pool.pool import Pool, free_of
from fluxsched.sched.pool.select_targets import Preferred


class WhatIf:
    """Changes of `pool` within a `with` block; one at a time."""

    __slots__ = ("_log", "_pool", "_preferred")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._log: list[tuple[bool, Blocks]] = []
        self._preferred = Preferred()

    def __enter__(self) -> WhatIf:
        if self._pool.what_if_open:
            raise LocalProtocolError("a what-if of this pool is open: end it before another begins")
        self._pool.what_if_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.back(0)
        self._pool.what_if_open = False

    # ---- changes

    def give(self, blocks: Blocks) -> None:
        """Give back blocks as if a job had freed them; those that the pool does not count (foreign, shrunk) are
        ignored.
        """
        self._pool.give(blocks)
        self._log.append((True, blocks))
        self._preferred.add(blocks)

    def prefer(self, blocks: Blocks) -> None:
        """Prefer blocks as if they had been freed and taken by another job: `prefer_given` prefers their targets, too.
        """
        self._preferred.add(blocks)

    def take(self, blocks: Blocks) -> None:
        """Take blocks as if a job had got them. Raise LocalProtocolError unless all are free."""
        if not self._pool.take(blocks):
            raise LocalProtocolError("what-if: some of what is to be taken is not free")
        self._log.append((False, blocks))

    def keep(self, blocks: Iterable[Block]) -> None:
        """Take the part of these blocks that is free now."""
        self.take(tuple(free_of(self._pool, tuple(blocks))))

    def mark(self) -> int:
        """Return a mark to which the what-if can be undone."""
        return len(self._log)

    def back(self, mark: int) -> None:
        """Undoes all changes since `mark`."""
        while len(self._log) > mark:
            gave, blocks = self._log.pop()
            if gave:
                self._pool.claim(blocks)
                self._preferred.undo(blocks)
            else:
                self._pool.give(blocks)

    # ---- questions

    def find(
        self, shape: Shape, placement: str, avoid: Sequence[Block] = (), prefer_given: bool = False
    ) -> Fits | None:
        """Return a placement of the shape on what is free in the what-if, or None: `place_now` without the reason.

        It gets nothing of `avoid` (the reservation of another job). With `prefer_given`, targets and ids that `give`
        freed are selected first, so that a reservation leaves what is free already to others.
        """
        mark = len(self._log)
        if avoid:
            self.keep(avoid)
        try:
            return find_fit(self._pool, shape, placement, self._preferred if prefer_given else None)
        finally:
            self.back(mark)
