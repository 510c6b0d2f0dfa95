"""What will be free on the reserved targets, step by step from now on: all their ids as one number.

Law: in that number each target has a field of bits, its cores below its GPUs, so what is asked of a step of time costs
one operation for all targets at once. A step lasts until the next one begins; what is free for some time is what its
steps have in common. Jobs end by their limits, and nothing is taken twice: the pool is not changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, nextafter
from typing import TypeAlias

from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT
from fluxsched.sched.pool.placement import Block, Blocks, on_targets, parts_in

TargetIds: TypeAlias = tuple[int, int, int]
"""Of a target: its rank, cores and GPUs."""


class IdLayout:
    """Which bits of a number are whose: a target gets its field when it is first asked for, and keeps it.

    A field has `most_cores` bits and `most_gpus` above them; `cores` are the bits of cores, of all fields.
    """

    __slots__ = ("_core_bits", "_field_bits", "_places", "_ranks", "_shift", "_width", "cores")

    def __init__(self, most_cores: int, most_gpus: int) -> None:
        self._shift = most_cores
        self._width = most_cores + most_gpus
        self._core_bits = (1 << self._shift) - 1
        self._field_bits = (1 << self._width) - 1
        self._places: dict[int, int] = {}
        self._ranks: list[int] = []
        self.cores = 0

    def ids_on(self, rank: int, cores: int, gpus: int) -> int:
        """These ids of a target."""
        place = self._places.get(rank)
        if place is None:
            place = self._places[rank] = len(self._ranks) * self._width
            self._ranks.append(rank)
            self.cores |= self._core_bits << place
        return (cores & self._core_bits | (gpus << self._shift & self._field_bits)) << place

    def among(self, words: Mapping[int, int]) -> int:
        """The fields of those targets that are in these words."""
        return sum(
            [
                self._field_bits << place
                for rank, place in self._places.items()
                if words.get(rank >> WORD_SHIFT, 0) >> (rank & LOW_BITS) & 1
            ]
        )

    def ids(self, blocks: Iterable[Block]) -> int:
        """These blocks, as far as they are of targets."""
        ids = 0
        for rank, cores, gpus, _ in parts_in(on_targets(blocks)):
            ids |= self.ids_on(rank, cores, gpus)
        return ids

    def whole(self, ids: int) -> int:
        """All bits of the fields in which there is one of these."""
        width, found = self._width, 0
        while ids:
            place = ((ids & -ids).bit_length() - 1) // width * width
            found |= self._field_bits << place
            ids = ids >> place + width << place + width
        return found

    def parts(self, ids: int) -> Iterator[TargetIds]:
        """Target by target, which cores and GPUs are among these ids; targets without any are skipped."""
        width, field_bits = self._width, self._field_bits
        while ids:
            number = ((ids & -ids).bit_length() - 1) // width
            field = ids >> number * width & field_bits
            ids ^= field << number * width
            yield self._ranks[number], field & self._core_bits, field >> self._shift

    def blocks(self, ids: int) -> Blocks:
        """The same, as a pool takes and gives it."""
        parts = self.parts(ids)
        return tuple([Block(rank >> WORD_SHIFT, 1 << (rank & LOW_BITS), cores, gpus) for rank, cores, gpus in parts])


Projection: TypeAlias = Callable[[IdLayout, Iterable[int], float], tuple[int, Mapping[float, int]]]
"""Of targets, what is free now, and what is freed when; what is overdue, at the time named."""


class Timeline:
    """Steps from `now_s` on: `times` is when each begins, `_free` is what is free then, and `_given` what jobs that run
    have freed by then. `now` is what is free now, `ranks` are the targets that are looked at, and `stamp` says as
    of which change all that is.
    """

    __slots__ = ("_free", "_given", "_project", "_seen", "layout", "now", "ranks", "stamp", "times")

    def __init__(self, layout: IdLayout, now_s: float, stamp: object, project: Projection) -> None:
        self.layout = layout
        self._project = project
        self._free = [0]
        self._given = [0]
        self._seen = 0  # the fields of the targets that are looked at
        self.times = [now_s]
        self.now = 0
        self.ranks: set[int] = set()
        self.stamp = stamp

    def look_at(self, ids: int) -> None:
        """Takes in the targets of these ids."""
        ids &= ~self._seen
        if not ids:
            return
        self._seen |= self.layout.whole(ids)
        ranks = [rank for rank, *_ in self.layout.parts(ids)]
        self.ranks.update(ranks)
        now, ends = self._project(self.layout, ranks, nextafter(self.times[0], inf))
        self.now |= now
        for end_s in ends:
            self._step_at(end_s)
        given = 0
        for step, time_s in enumerate(self.times):
            given |= ends.get(time_s, 0)
            self._given[step] |= given
            self._free[step] |= given | now

    def take(self, start_s: float, end_s: float, ids: int) -> None:
        """Reserves these ids from one instant to another."""
        self.look_at(ids)
        free, first = self._free, self._step_at(start_s)
        for step in range(first, self._step_at(end_s)):
            free[step] &= ~ids

    def give(self, start_s: float, end_s: float, ids: int) -> None:
        """Frees what was taken so."""
        free, first = self._free, self._step_at(start_s)
        for step in range(first, self._step_at(end_s)):
            free[step] |= ids

    def between(self, start_s: float, end_s: float) -> int:
        """What is free all the time from one instant to before another."""
        first = bisect_right(self.times, start_s) - 1
        free = self._free[first]
        for step_free in self._free[first + 1 : bisect_left(self.times, end_s)]:
            free &= step_free
        return free

    def free_for(self, first: int, end_s: float, cores: int) -> int:
        """What is free all the time from the begin of a step to before an instant; 0 if not so many cores are."""
        free, times, mask = self._free[first], self.times, self.layout.cores
        for step in range(first + 1, bisect_left(times, end_s)):
            if (free & mask).bit_count() < cores:
                return 0
            free &= self._free[step]
        return free if (free & mask).bit_count() >= cores else 0

    def given_by(self, when_s: float) -> int:
        """What jobs have freed by then."""
        return self._given[bisect_right(self.times, when_s) - 1]

    def _step_at(self, time_s: float) -> int:
        """The step that begins at this time, which is made if there is none."""
        step = bisect_left(self.times, time_s)
        if time_s < inf and (step == len(self.times) or self.times[step] != time_s):
            self.times.insert(step, time_s)
            self._free.insert(step, self._free[step - 1])
            self._given.insert(step, self._given[step - 1])
        return step
