"""When a request with a bound on hops fits: not how many targets are free counts, but how many under one switch.

Law: as exact as the search without a bound, which it takes the place of. Under each switch what becomes free is added
up, gain by gain, until one has room; what is reserved is counted anew where it has changed. The pool is not changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import TypeAlias

from fluxsched.core.idset import Idset
from fluxsched.sched.plan.timeline import Timeline
from fluxsched.sched.pool.hops.network import Place
from fluxsched.sched.pool.place import room_for
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.shape import Shape

Units: TypeAlias = Callable[[int, int, int], int]
"""How many nodes, or slots, of the request fit on a target when these cores and GPUs are free there."""


class Within:
    """A search for one request. `place` is where there is room once `found`; None if that is one target, `alone`."""

    __slots__ = (
        "_bound", "_counts", "_covered", "_covered_of", "_least", "_network", "_on_one", "_pool", "_room", "_units",
        "alone", "found", "place",
    )  # fmt: skip

    def __init__(self, pool: Pool, shape: Shape, timeline: Timeline, units: Units) -> None:
        request = shape.request
        assert request.max_hops is not None
        self._pool = pool
        self._network = pool.rooms.network
        self._units = units
        self._least = request.slots.min if request.nodes is None else request.nodes.min
        levels = self._network.switches.levels
        self._bound = len([level for level in levels if level.hops <= request.max_hops])
        self._room, largest = room_for(pool, shape, _others(pool, timeline))
        self._counts: dict[Place, int] = {}
        self._on_one: dict[int, int] = {}
        self._covered: dict[Place, int] = {}
        self._covered_of = 0
        self.place = self._room.lowest(self._least, request.max_hops)
        self.alone = -1
        self.found = self.place is not None or largest >= self._least

    def gain(self, rank: int, more: int) -> None:
        """So much more fits on a target."""
        least = self._least
        places = self._network.places_of(rank)
        if not places:
            have = self._on_one.get(rank)
            fits = (self._units(rank, *self._pool.free_ids(rank)) if have is None else have) + more
            self._on_one[rank] = fits
            if fits >= least and not self.found:
                self.found, self.alone = True, rank
            return
        for place in places:
            if place.level >= self._bound:
                return
            have = self._counts.get(place)
            have = (self._room.of(place) if have is None else have) + more
            self._counts[place] = have
            if have >= least and not self.found:
                self.found, self.place = True, place

    def cover(self, timeline: Timeline, free: int) -> bool:
        """Whether there is room with these ids of reserved targets free, too; what is found so need not last."""
        if free != self._covered_of:
            self._covered_of = free
            self._covered.clear()
            for rank, cores, gpus in timeline.layout.parts(free):
                more = self._units(rank, cores, gpus)
                if more >= self._least:
                    self.place, self.alone = None, rank
                    return True
                for place in self._network.places_of(rank) if more else ():
                    if place.level < self._bound:
                        self._covered[place] = self._covered.get(place, 0) + more
        for place, more in self._covered.items():
            have = self._counts.get(place)
            if (self._room.of(place) if have is None else have) + more >= self._least:
                self.place, self.alone = place, -1
                return True
        return False

    def of_use(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Those of these targets that are where there is room."""
        if self.place is None:
            return tuple([rank for rank in ranks if rank == self.alone])
        under = self._network.under(self.place)
        return tuple([rank for rank in ranks if rank in under])


def earliest_within(
    pool: Pool,
    shape: Shape,
    units: Units,
    gains: Iterator[tuple[float, int, int]],
    timeline: Timeline,
    mask: int,
    limit_s: float,
    from_s: float,
    until_s: float,
) -> tuple[float, int, tuple[int, ...]] | None:
    """What `BusyTargets.earliest` tells; `gains` are those on targets without a reservation, `mask` are ids of others.

    None if it does not fit in that stretch of time.
    """
    search, times, gained = Within(pool, shape, timeline, units), timeline.times, dict[int, None]()
    step, when_s = bisect_right(times, from_s) - 1, from_s
    never = (inf, 0, -1)
    soon_s, more, rank = next(gains, never)
    while when_s <= until_s and when_s < inf:
        while soon_s <= when_s:
            search.gain(rank, more)
            gained[rank] = None
            soon_s, more, rank = next(gains, never)
        if search.found or (timeline.ranks and _covers(search, timeline, when_s, limit_s, mask)):
            return when_s, timeline.between(when_s, when_s + limit_s), search.of_use(gained)
        next_s = times[step + 1] if step + 1 < len(times) else inf
        when_s = min(next_s, soon_s)
        step += when_s == next_s
    return None


def _covers(search: Within, timeline: Timeline, when_s: float, limit_s: float, mask: int) -> bool:
    return search.cover(timeline, timeline.between(when_s, when_s + limit_s) & mask)


def _others(pool: Pool, timeline: Timeline) -> int | None:
    """The targets without a reservation; None for all."""
    return (pool.ranks - Idset.of(timeline.ranks)).mask if timeline.ranks else None
