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
from fluxsched.sched.pool import place as placing
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT
from fluxsched.sched.pool.placement import Block, Blocks, Fits, Insufficient, Outcome, on_targets
from fluxsched.sched.pool.pool import Pool


class Given:
    """What was given back: `words` of targets, and on each of those the ids."""

    __slots__ = ("_blocks", "words")

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self._blocks: dict[int, list[tuple[int, int, int, int]]] = {}

    def add(self, blocks: Blocks) -> None:
        for at, word, cores, gpus, *_ in on_targets(blocks):
            before = self.words.get(at, 0)
            self.words[at] = before | word
            self._blocks.setdefault(at, []).append((word, cores, gpus, before))

    def take_back(self, blocks: Blocks) -> None:
        """Undoes the last `add`, which was of these blocks."""
        for at, *_ in reversed(on_targets(blocks)):
            self.words[at] = self._blocks[at].pop()[3]

    def ids(self, rank: int) -> tuple[int, int]:
        """The cores and GPUs that were given back on a target."""
        cores = gpus = 0
        for word, some_cores, some_gpus, _ in self._blocks[rank >> WORD_SHIFT]:
            if word >> (rank & LOW_BITS) & 1:
                cores |= some_cores
                gpus |= some_gpus
        return cores, gpus


class Trial:
    """Changes of `pool` within a `with` block; one at a time."""

    __slots__ = ("_given", "_log", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._log: list[tuple[bool, Blocks]] = []
        self._given = Given()

    def __enter__(self) -> Trial:
        if self._pool.trying:
            raise LocalProtocolError("a trial of this pool is open: end it before another begins")
        self._pool.trying = True
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.back(0)
        self._pool.trying = False

    # ---- changes

    def give(self, blocks: Blocks) -> None:
        """As if a job had given these back. What the pool does not count (foreign, shrunk) is passed over."""
        self._pool.give(blocks)
        self._log.append((True, blocks))
        self._given.add(blocks)

    def prefer(self, blocks: Blocks) -> None:
        """As if these had been given back and taken by somebody: `find` is to choose their targets first, too."""
        self._given.add(blocks)

    def take(self, blocks: Blocks) -> None:
        """As if a job had got these, all of which are free. Raises LocalProtocolError where they are not."""
        if not self._pool.take(blocks):
            raise LocalProtocolError("trial: some of what is to be taken is not free")
        self._log.append((False, blocks))

    def keep(self, blocks: Iterable[Block]) -> None:
        """Sets aside what of these is free now; the rest is not there to be had anyway."""
        self.take(tuple(self._pool.free_of(tuple(blocks))))

    def mark(self) -> int:
        """A point to go back to within the trial."""
        return len(self._log)

    def back(self, mark: int) -> None:
        """Undoes all changes since `mark`."""
        while len(self._log) > mark:
            gave, blocks = self._log.pop()
            if gave:
                self._pool.claim(blocks)
                self._given.take_back(blocks)
            else:
                self._pool.give(blocks)

    # ---- questions

    def find(
        self, request: Request, placement: str, avoid: Sequence[Block] = (), prefer_given: bool = False
    ) -> Fits | None:
        """Where the request fits on what is free in the trial, or None: `place` without the words.

        `avoid` is kept free of it, as far as it is free (the reservation of somebody else). With `prefer_given` targets
        and ids that `give` freed are chosen first, so that a reservation leaves to others what is free already.
        """
        mark = len(self._log)
        if avoid:
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
