"""Which targets a job of several parts still lacks: part by part, that which fewest targets could ever suit first.

Law: a target helps if it suits any of the parts that lack most together, of several such sets the smallest: then all
the parts so far lack one less, and else they lack as many as before (Hall). So nothing goes that suits none that lacks,
and what suits few parts does not stay because others went before for parts that are easily had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fluxsched.sched.pool.choice import PartChoice
from fluxsched.sched.pool.parts.hall import Hall, by_suited
from fluxsched.sched.pool.parts.suited import offers, suited_ever, suited_now
from fluxsched.sched.pool.placement import FIRST_FIT
from fluxsched.sched.pool.pool import Pool


def scarcest_first(pool: Pool, choices: Sequence[PartChoice]) -> list[tuple[int, int]]:
    """The parts, by number, each with the mask of the usable targets that could suit it."""
    down = pool.down.mask
    able = [mask & ~down for mask in suited_ever(choices)]
    return sorted(enumerate(able), key=lambda each: each[1].bit_count())


class LackingParts:
    """What is lacking as targets come free; `needs` are the minima of the parts. No part counts before `next_part`."""

    __slots__ = ("_able", "_came", "_free", "_hall", "_lacking", "_needs", "_order", "_sure")

    def __init__(self, pool: Pool, choices: Sequence[PartChoice], needs: Sequence[int]) -> None:
        free = by_suited(suited_now([offers(choice, FIRST_FIT) for choice in choices]))
        self._needs = needs
        self._hall = Hall({some: mask.bit_count() for some, mask in free.items()}, [0] * len(needs))
        self._free = 0
        for mask in free.values():
            self._free |= mask
        self._able = scarcest_first(pool, choices)
        self._order = [part for part, _ in reversed(self._able)]
        self._lacking: tuple[int, ...] = ()
        self._came: dict[int, int] = {}  # free, and not counted yet: how many suit which parts
        self._sure = 0  # so many may come free before other parts could be those that lack most

    @property
    def lacks(self) -> bool:
        """Whether the parts that count cannot all be had yet."""
        return bool(self._lacking)

    def next_part(self) -> bool:
        """One more part counts; False if all do."""
        if not self._order:
            return False
        part = self._order.pop()
        self._hall.needs[part] = self._needs[part]
        self._look()
        return True

    def helps(self, ranks: Iterable[int]) -> bool:
        """Whether there is more to be had if these came free."""
        lacking = self._lacking
        return any(mask >> rank & 1 and part in lacking for rank in ranks for part, mask in self._able)

    def came_free(self, ranks: Iterable[int]) -> None:
        """Nothing is held on these any more."""
        for rank in ranks:
            if self._free >> rank & 1:
                continue
            self._free |= 1 << rank
            suited = sum([1 << part for part, mask in self._able if mask >> rank & 1])
            self._came[suited] = self._came.get(suited, 0) + 1
            self._sure -= 1
        if self._sure <= 0:
            self._look()

    def _look(self) -> None:
        for suited, count in self._came.items():
            self._hall.take(suited, -count)
        self._came.clear()
        short = self._hall.shortfall()
        self._lacking = () if short is None else short.parts
        self._sure = 0 if short is None else self._hall.lead(short)
