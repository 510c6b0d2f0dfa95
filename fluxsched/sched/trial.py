"""What if: changes of the real pool that are undone, with a log instead of a copy.

Law: nothing leaves a trial but what was learnt in it. Leaving the block undoes every change, last first; the ledger
refuses to commit while one is open, so a policy does not yield inside. Costs follow what is changed.

    with Trial(pool) as trial:
        for blocks in ends:                     # running jobs, the earliest end first
            trial.give(blocks)
            fit = trial.find(request, placement, prefer_given=True)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from fluxsched.core.jobspec import Request
from fluxsched.errors import LocalProtocolError
from fluxsched.sched import placing
from fluxsched.sched.outcome import Block, Fits, Insufficient, Outcome, Part, parts_in
from fluxsched.sched.pool import Pool


class Trial:
    """Changes of `pool` within a `with` block; one at a time."""

    __slots__ = ("_given", "_log", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._log: list[tuple[bool, Part]] = []
        self._given: dict[int, tuple[int, int]] = {}

    def __enter__(self) -> Trial:
        if self._pool.trying:
            raise LocalProtocolError("a trial of this pool is open: end it before another begins")
        self._pool.trying = True
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.back(0)
        self._pool.trying = False

    # ---- changes

    def give(self, blocks: Iterable[Block]) -> None:
        """As if a job had given these back. What the pool does not count (foreign, shrunk) is passed over."""
        pool, log, given = self._pool, self._log, self._given
        for rank, cores, gpus in parts_in(blocks):
            target = pool.targets.get(rank)
            if target is not None:
                part = Part(rank, cores & target.all_cores, gpus & target.all_gpus)
                pool.give(*part)
                log.append((True, part))
                cores_before, gpus_before = given.get(rank, (0, 0))
                given[rank] = (cores_before | part.cores, gpus_before | part.gpus)

    def take(self, blocks: Iterable[Block]) -> None:
        """As if a job had got these, all of which are free. Raises LocalProtocolError where they are not."""
        for part in parts_in(blocks):
            self._pool.take(*part)
            self._log.append((False, part))

    def keep(self, blocks: Iterable[Block]) -> None:
        """Sets aside what of these is free now; the rest is not there to be had anyway."""
        targets = self._pool.targets
        for rank, cores, gpus in parts_in(blocks):
            target = targets.get(rank)
            if target is not None and (cores & target.cores or gpus & target.gpus):
                part = Part(rank, cores & target.cores, gpus & target.gpus)
                self._pool.take(*part)
                self._log.append((False, part))

    def mark(self) -> int:
        """A point to go back to within the trial."""
        return len(self._log)

    def back(self, mark: int) -> None:
        """Undoes all changes since `mark`."""
        pool, log, given = self._pool, self._log, self._given
        while len(log) > mark:
            gave, part = log.pop()
            if not gave:
                pool.give(*part)
                continue
            pool.take(*part)
            rank, cores, gpus = part
            cores_before, gpus_before = given[rank]
            given[rank] = (cores_before ^ cores, gpus_before ^ gpus)
            if given[rank] == (0, 0):
                del given[rank]

    # ---- questions

    def find(
        self, request: Request, placement: str, avoid: Sequence[Block] = (), prefer_given: bool = False
    ) -> Fits | None:
        """Where the request fits on what is free in the trial, or None: `place` without the words.

        `avoid` is kept free of it, as far as it is free (the reservation of somebody else). With `prefer_given` targets
        and ids that `give` freed are chosen first, so that a reservation leaves to others what is free already.
        """
        mark = len(self._log)
        self.keep(avoid)
        try:
            return placing.find(self._pool, request, placement, self._given if prefer_given else None)
        finally:
            self.back(mark)

    def place(
        self, request: Request, placement: str, avoid: Sequence[Block] = (), prefer_given: bool = False
    ) -> Outcome:
        """Like `find`, with the reason where the request does not fit."""
        fit = self.find(request, placement, avoid, prefer_given)
        if fit is not None:
            return fit
        mark = len(self._log)
        self.keep(avoid)
        outcome = placing.place(self._pool, request, placement)
        self.back(mark)
        assert not isinstance(outcome, Fits)
        if avoid and isinstance(outcome, Insufficient):
            return Insufficient(f"{outcome.why}; some is reserved for a job ahead of it")
        return outcome
