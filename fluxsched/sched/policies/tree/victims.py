"""Which running jobs of one node go so that an ask fits there: as few as will do.

Law: those that rather stay go only where the others do not suffice, and so do those that began their application. Of
the sets of candidates that then free what is lacking and leave each queue its guarantee, a smallest goes; of these the
one whose last in the order of victims comes first in it, then the last but one, and so on. Where that takes more than
STEPS_MAX trials, it is what is left of the first in order when each is spared without which it will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from fluxsched.core.amounts import Amounts

STEPS_MAX = 2_000
"""Trials for one node: a millisecond or two. Nodes with jobs of few sizes take about as many as victims."""

VictimKind: TypeAlias = tuple[bool, bool]
"""(whether it rather stays, whether it began its application)."""

Order: TypeAlias = tuple[bool, bool, int, float, int]
"""(whether it rather stays, whether it began its application, priority, -start, -id): the least goes first."""

Above: TypeAlias = dict[str, int]
"""How much a queue may lose of each kind of which it is guaranteed some."""


class Candidate(NamedTuple):
    """A running job that may go; `queues` are those that lose the `amounts` it holds, and `order` is its place.

    `frees` is what comes free of what is lacking, on the node or under a maximum, by key.
    """

    order: Order
    jobid: int
    amounts: Amounts
    frees: Amounts
    queues: tuple[Above, ...]

    @property
    def kind(self) -> VictimKind:
        """Those of a lesser kind go first, however many they are."""
        return self.order[:2]

    @property
    def allows(self) -> bool:
        """Whether the queues can lose it."""
        return can_lose(self.queues, self.amounts)

    def goes(self, sign: int) -> None:
        """Its queues lose it (1), or have it back (-1)."""
        for above in self.queues:
            for kind, amount in self.amounts:
                if kind in above:
                    above[kind] -= sign * amount


def can_lose(queues: Sequence[Above], amounts: Amounts) -> bool:
    """Return whether none of the queues falls below its guarantee when it loses this."""
    for above in queues:
        for kind, amount in amounts:
            if above.get(kind, amount) < amount:
                return False
    return True


def fewest(
    candidates: Sequence[Candidate], lacking: Mapping[str, int], known: tuple[VictimKind, int] | None = None
) -> list[Candidate] | None:
    """Those that go, in order, of candidates in order; None if they do not suffice.

    Where so many of a kind are `known` to do elsewhere, only what is as good is looked for.
    """
    found = [each for each in candidates if each.allows]
    for kind in sorted({each.kind for each in found}):
        if known is not None and kind > known[0]:
            break
        search = _Search([each for each in found if each.kind <= kind], lacking)
        most = len(search.candidates) if known is None or kind < known[0] else min(known[1], len(search.candidates))
        chosen = search.run(most) if search.sizes_suffice(most) else None
        if chosen is not None:
            return chosen
    return None


def more(candidates: Sequence[Candidate], chosen: Sequence[Candidate]) -> list[Candidate]:
    """Those that may go on top of the chosen, in order, should what is chosen not do for another reason."""
    gone = {each.jobid for each in chosen}
    found: list[Candidate] = []
    for each in chosen:
        each.goes(1)
    for each in candidates:
        if each.jobid not in gone and each.allows:
            each.goes(1)
            found.append(each)
    for each in (*chosen, *found):
        each.goes(-1)
    return found


class _Search:
    """`left` is what is lacking yet, `above` are changed with each candidate that is taken, and back."""

    __slots__ = ("_chosen", "_left", "_most", "_sizes", "_steps", "_sums", "candidates")

    def __init__(self, candidates: list[Candidate], lacking: Mapping[str, int]) -> None:
        kinds = list(lacking)
        found = [(each, _sizes(each.frees, kinds)) for each in candidates]
        found = [(each, sizes) for each, sizes in found if any(sizes)]
        self.candidates = [each for each, _ in found]
        self._sizes = [sizes for _, sizes in found]
        self._left = [lacking[kind] for kind in kinds]
        self._most: list[list[int]] = []  # the largest of each kind among the first so many
        most = [0] * len(kinds)
        for sizes in self._sizes:
            self._most.append(most)
            most = [max(one, other) for one, other in zip(most, sizes, strict=True)]
        self._most.append(most)
        self._sums = [  # of so many of the largest
            list(accumulate(sorted([sizes[at] for sizes in self._sizes], reverse=True), initial=0))
            for at in range(len(kinds))
        ]
        self._steps = 0
        self._chosen: list[int] = []

    def sizes_suffice(self, count: int) -> bool:
        """Whether so many of the largest would do, were there no guarantees."""
        return all(sums[count] >= lacking for lacking, sums in zip(self._left, self._sums, strict=True))

    def run(self, most: int) -> list[Candidate] | None:
        """The fewest, if they are so many at most; queues are left as they were."""
        found = self._fewest(most)
        for at in self._chosen:
            self.candidates[at].goes(-1)
        return found

    def _fewest(self, most: int) -> list[Candidate] | None:
        for count in range(1, most + 1):
            if not self.sizes_suffice(count):
                continue
            if self._take(count, len(self.candidates)):
                return [self.candidates[at] for at in sorted(self._chosen)]
            if self._steps > STEPS_MAX:
                return self._in_order()
        return None

    def _take(self, count: int, before: int) -> bool:
        """Takes so many of the first `before`; whether they will do."""
        if not count:
            return all(lacking <= 0 for lacking in self._left)
        for last in range(count - 1, before):
            if self._steps > STEPS_MAX:
                return False
            self._steps += 1
            most, sizes = self._most[last], self._sizes[last]
            if any(
                lacking > size + (count - 1) * largest
                for lacking, size, largest in zip(self._left, sizes, most, strict=True)
            ):
                continue
            if self._add(last):
                if self._take(count - 1, last):
                    return True
                self._drop(last)
        return False

    def _in_order(self) -> list[Candidate] | None:
        """The first that will do, less those that are not needed: the last of them is spared first."""
        for at in range(len(self.candidates)):
            if any(lacking > 0 and size for lacking, size in zip(self._left, self._sizes[at], strict=True)):
                self._add(at)
        if any(lacking > 0 for lacking in self._left):
            return None
        for at in reversed(list(self._chosen)):
            if all(lacking + size <= 0 for lacking, size in zip(self._left, self._sizes[at], strict=True)):
                self._drop(at)
        return [self.candidates[index] for index in sorted(self._chosen)]

    def _add(self, at: int) -> bool:
        """Takes a candidate, if its queues can still lose it."""
        candidate = self.candidates[at]
        if not candidate.allows:
            return False
        self._chosen.append(at)
        self._count(at, 1)
        return True

    def _drop(self, at: int) -> None:
        self._chosen.remove(at)
        self._count(at, -1)

    def _count(self, at: int, sign: int) -> None:
        for kind, size in enumerate(self._sizes[at]):
            self._left[kind] -= sign * size
        self.candidates[at].goes(sign)


def _sizes(frees: Amounts, kinds: Sequence[str]) -> tuple[int, ...]:
    have = dict(frees)
    return tuple([have.get(kind, 0) for kind in kinds])
