"""The earliest start of a request for `pool_plan`, if running jobs end by their limits and reservations are kept,
without trying.

Law: exact where nothing but cores and GPUs is asked for. Which job holds what of a target until when is collected once
and then kept up job by job. Without reservations, targets only become of more use: for each request the instants at
which they do are kept in order, and only those of targets where something has changed are worked out again. Those with
reservations are looked at together, step by step, as one number in which each target has a field of bits, so what is
asked of a step costs one operation for all targets at once. With a bound on hops, what becomes free is added up under
each switch until one has room. The pool is not changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from math import inf, nextafter
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.request import COUNT_MAX, ONE
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.pool.find_fit import room_for
from fluxsched.sched.pool.placement import (
    BITS,
    LOW_BITS,
    WORD_SHIFT,
    Block,
    Blocks,
    Part,
    Shape,
    blocks_of,
    ids_of,
    joined,
    on_targets,
    parts_in,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select_targets import count_nodes, count_slots, need_of, slots_on
from fluxsched.sched.pool.switches import Place

GAINS_MAX = 64
"""Requests whose gains are remembered: many more than jobs with a reservation; some 100 bytes a busy target each."""

Gain = tuple[float, int, int]
"""(when, how many more nodes, or slots, of a request fit, rank)."""


class EarliestStart(NamedTuple):
    """The first instant at which a request fits (`inf`: never, as far as is known), what is free for it then on targets
    with a reservation, and the others that become of use until then.
    """

    start_s: float
    free: int
    gained: tuple[int, ...]


NEVER: Final = EarliestStart(inf, 0, ())
WHOLE: Final = Shape(Request(nodes=ONE, cores=0, exclusive=True))
"""Shape of any one target, whole."""
NO_GAIN: Final[Gain] = (inf, 0, -1)
_NOTHING: Final[tuple[Blocks, float]] = ((), inf)


class _ShapeGains:
    """A request, its gains in order, and the targets whose gains are no longer known; also for others of other sizes.

    `each` is the least number of cores that a node, or slot, of it has.
    """

    __slots__ = ("_free", "_is_cores", "_layout", "_need", "_units", "each", "gains", "key", "most", "request", "stale")

    def __init__(self, pool: Pool, shape: Shape, ranks: Iterable[int]) -> None:
        request = self.request = shape.request
        self.gains: list[Gain] = []
        self.stale = set(ranks)
        self._layout: IdLayout | None = None
        self._free = self._units = 0
        self._need = need_of(request, request.slots.min)
        self.each = request.cores if request.nodes is None else self._need.cores
        if request.exclusive and request.nodes is not None:
            self.each = min([each.targets.cores for each in pool.choice_of(shape)], default=self.each)
        self._is_cores = request.nodes is None and request.cores == 1 and not request.gpus
        self.most = COUNT_MAX if request.nodes is None else 1
        """How many nodes, or slots, a target can have."""
        self.key = request.nodes is None, request.exclusive, request.cores, request.gpus, self._need, self.each
        """Requests with an equal one differ in how many nodes, or slots, they ask for, and where."""

    def units(self, pool: Pool, rank: int, cores: int, gpus: int) -> int:
        """Return the number of nodes, or slots, of the request that fit on a target when these ids are free."""
        request, need = self.request, self._need
        if request.nodes is None:
            return slots_on(request, cores.bit_count(), gpus.bit_count())
        if request.exclusive and (cores, gpus) != pool.all_ids(rank):
            return 0
        return int(cores.bit_count() >= need.cores and gpus.bit_count() >= need.gpus)

    def units_in(self, pool: Pool, layout: IdLayout, free: int) -> int:
        """Return the number of nodes, or slots, that fit on many targets when these ids are free.

        Only targets that have changed since the last call are looked at.
        """
        if self._is_cores:
            return (free & layout.cores).bit_count()
        if layout is not self._layout:
            self._layout, self._free, self._units = layout, 0, 0
        other = layout.whole(free ^ self._free)
        for rank, cores, gpus in layout.parts(free & other):
            self._units += self.units(pool, rank, cores, gpus)
        for rank, cores, gpus in layout.parts(self._free & other):
            self._units -= self.units(pool, rank, cores, gpus)
        self._free = free
        return self._units

    def missing(self, pool: Pool, shape: Shape) -> int:
        """Return the number of nodes, or slots, that would have to fit in addition to those that fit now."""
        request = shape.request
        choice = pool.choice_of(shape)
        if request.nodes is None:
            return request.slots.min - count_slots(choice, request)
        return request.nodes.min - count_nodes(choice, self._need)


class BusyTargets:
    """The targets of a pool where jobs hold something. `stamp` is another one when anything has happened.

    `returning` are the targets that are down in outages that are on; whoever plans on them knows when these end.
    """

    def __init__(self, pool: Pool, ledger: Ledger) -> None:
        self._pool = pool
        self._ledger = ledger
        self._on: dict[int, dict[int, tuple[float, int, int]]] = {}  # rank -> jobid -> end, cores, GPUs
        self._known: dict[int, tuple[Blocks, float]] = {}  # blocks, and their end if it is one
        self._by_shape: dict[int, _ShapeGains] = {}
        self._by_key: dict[tuple[object, ...], _ShapeGains] = {}
        self._widths: tuple[int, int] | None = None
        self._touched = {allocation.jobid for allocation in ledger}
        self.stamp = object()
        self.returning = EMPTY

    def look_ahead(self, now_s: float) -> None:
        """Find the targets that are down in outages that are on at `now_s`."""
        pool = self._pool
        returning = pool.outages.on(now_s) & pool.ranks & pool.down if pool.outages else EMPTY
        if returning != self.returning:
            self.returning, self.stamp = returning, object()

    def touch(self, *jobids: int) -> None:
        """Record that these jobs began, ended or changed, or targets did."""
        self._touched.update(jobids)
        self.stamp = object()

    def layout(self) -> IdLayout:
        """Return a layout for the targets of this pass; none has a field yet."""
        if self._widths is None:
            kinds = [entry.children for entry in self._pool.resources.entries]
            cores = max([kind.cores.mask.bit_length() for kind in kinds], default=0)
            self._widths = cores, max([kind.gpus.mask.bit_length() for kind in kinds], default=0)
        return IdLayout(*self._widths)

    def timeline(self, layout: IdLayout, now_s: float) -> Timeline:
        """Return a timeline of the ids that will be free from now on, of no target yet."""
        self._catch_up()
        return Timeline(layout, now_s, self.stamp, self._project)

    def _project(self, ranks: Iterable[int], soon_s: float) -> tuple[list[TargetIds], dict[float, list[TargetIds]]]:
        """Return the ids of these targets that are free now, and those that jobs free, by time; none of targets that
        are down.
        """
        pool, now = self._pool, list[TargetIds]()
        ends: dict[float, list[TargetIds]] = {}
        for rank in ranks:
            if not pool.is_up(rank) and rank not in self.returning:
                continue
            all_cores, all_gpus = pool.all_ids(rank)
            now.append((rank, *pool.free_ids(rank)))
            for end_s, cores, gpus in self._on.get(rank, {}).values():
                if end_s < inf:
                    when_s = end_s if end_s > soon_s else soon_s
                    ends.setdefault(when_s, []).append((rank, cores & all_cores, gpus & all_gpus))
        return now, ends

    def earliest(
        self,
        shape: Shape,
        limit_s: float,
        timeline: Timeline,
        good: Mapping[int, int],
        from_s: float,
        until_s: float,
    ) -> EarliestStart:
        """Return when the request first fits for `limit_s`, within a stretch of time; `good` are the usable targets.

        Only the begin of the stretch and of steps, and instants at which other targets become of use, are candidates;
        and only where enough cores are free, wherever they are, targets are looked at one by one.
        """
        known, layout, times = self._gains_of(shape), timeline.layout, timeline.times
        is_open = shape.request.constraint == EVERYTHING and shape.number not in self._pool.narrowed
        mask = -1 if is_open else layout.among(good)
        if shape.request.max_hops is not None:
            units = partial(known.units, self._pool)
            gains = self._gains_beside(known, timeline, good)
            found = earliest_within(self._pool, shape, units, gains, timeline, mask, limit_s, from_s, until_s)
            return NEVER if found is None else EarliestStart(*found)
        missing = known.missing(self._pool, shape) + known.units_in(self._pool, layout, timeline.now & mask)
        gains = self._gains_beside(known, timeline, good)
        step, when_s, gained = bisect_right(times, from_s) - 1, from_s, dict[int, None]()
        soon_s, more, rank = next(gains, NO_GAIN)
        while when_s <= until_s and when_s < inf:
            while soon_s <= when_s:
                missing -= more
                gained[rank] = None
                soon_s, more, rank = next(gains, NO_GAIN)
            free = timeline.free_for(step, when_s + limit_s, missing * known.each)
            if missing <= 0 or (free and known.units_in(self._pool, layout, free & mask) >= missing):
                return EarliestStart(when_s, timeline.between(when_s, when_s + limit_s), tuple(gained))
            next_s = times[step + 1] if step + 1 < len(times) else inf
            when_s = min(next_s, soon_s)
            step += when_s == next_s
        return NEVER

    def fits_beside(self, shape: Shape, taken: Iterable[TargetIds], good: Mapping[int, int]) -> bool:
        """Return whether the request fits now without the ids in `taken`."""
        known, pool, lost = self._gains_of(shape), self._pool, 0
        for rank, cores, gpus in taken:
            if _is_in(rank, good):
                free_cores, free_gpus = pool.free_ids(rank)
                lost += known.units(pool, rank, free_cores, free_gpus)
                lost -= known.units(pool, rank, free_cores & ~cores, free_gpus & ~gpus)
        return known.missing(pool, shape) + lost <= 0

    def idle_times(self) -> list[Gain]:
        """Return when each busy target becomes idle if jobs end by their limits, in ascending order."""
        self._catch_up()
        known = self._gains_of(WHOLE)
        self._work_out(known, known.stale)
        return known.gains

    def given(self, ranks: Collection[int], until_s: float) -> Blocks:
        """Return the ids that jobs will have freed on these targets by `until_s`; job by job where jobs are fewer than
        targets.
        """
        return self._given_by_jobs(ranks, until_s) if len(ranks) > len(self._known) else self._given(ranks, until_s)

    def _gains_of(self, shape: Shape) -> _ShapeGains:
        known = self._by_shape.get(shape.number)
        if known is None:
            if len(self._by_shape) >= GAINS_MAX:
                self._by_shape.clear()
                self._by_key.clear()
            known = _ShapeGains(self._pool, shape, self._on)
            known = self._by_shape[shape.number] = self._by_key.setdefault(known.key, known)
        return known

    def _gains_beside(self, known: _ShapeGains, timeline: Timeline, good: Mapping[int, int]) -> Iterator[Gain]:
        """Yield the gains on targets that the timeline does not cover; only those where something has changed are
        worked out.

        One after the other, since mostly the first few will do.
        """
        ranks = timeline.ranks
        if self._on.keys() <= ranks:
            return
        self._work_out(known, known.stale - ranks)
        soon_s = nextafter(timeline.times[0], inf)
        for when_s, more, rank in known.gains:
            if rank not in ranks and _is_in(rank, good):
                yield (when_s if when_s > soon_s else soon_s), more, rank

    def _work_out(self, known: _ShapeGains, stale: set[int]) -> None:
        """Work out the gains on these targets."""
        if stale:
            fresh = [gain for rank in stale for gain in self._gains(known, rank)]
            known.gains = sorted([*[gain for gain in known.gains if gain[2] not in stale], *fresh])
            known.stale = known.stale - stale

    def _catch_up(self) -> None:
        """Apply the changes of jobs, in time linear in the targets that they hold."""
        if not self._touched:
            return
        stale: set[int] = set()
        for jobid in self._touched:
            for rank, *_ in parts_in(on_targets(self._known.pop(jobid, _NOTHING)[0])):
                del self._on[rank][jobid]
                stale.add(rank)
            allocation = self._ledger.get(jobid)
            if allocation is not None:
                end_s, leaving = allocation.end_s, allocation.leaving
                self._known[jobid] = allocation.blocks, inf if leaving else end_s
                elastic = allocation.elastic
                gone_s = min(end_s, elastic.leave_by_s) if leaving and elastic is not None else end_s
                for rank, cores, gpus, _ in parts_in(on_targets(allocation.blocks)):
                    self._on.setdefault(rank, {})[jobid] = gone_s if rank in leaving else end_s, cores, gpus
                    stale.add(rank)
        self._touched.clear()
        for known in self._by_key.values():
            known.stale |= stale

    def _gains(self, known: _ShapeGains, rank: int) -> Iterator[Gain]:
        """Yield when more of the request fits on a target, as jobs there end."""
        pool = self._pool
        if rank not in pool:
            return
        cores, gpus = pool.free_ids(rank)
        all_cores, all_gpus = pool.all_ids(rank)  # a job may hold drained ones, which do not come back
        before = known.units(pool, rank, cores, gpus)
        if before >= known.most:
            return
        for end_s, some_cores, some_gpus in sorted(self._on[rank].values()):
            if end_s == inf:
                return
            cores |= some_cores & all_cores
            gpus |= some_gpus & all_gpus
            units = known.units(pool, rank, cores, gpus)
            if units > before:
                yield end_s, units - before, rank
                before = units
                if units >= known.most:
                    return

    def _given(self, ranks: Iterable[int], until_s: float) -> Blocks:
        given: list[Part] = []
        for rank in ranks:
            cores = gpus = 0
            for end_s, some_cores, some_gpus in self._on.get(rank, {}).values():
                if end_s <= until_s:
                    cores |= some_cores
                    gpus |= some_gpus
            if cores or gpus:
                given.append(Part(rank, cores, gpus))
        return blocks_of(given)

    def _given_by_jobs(self, ranks: Iterable[int], until_s: float) -> Blocks:
        """Word by word; targets of several jobs, and those of jobs that leave some, are looked at one by one."""
        wanted: dict[int, int] = {}
        for rank in ranks:
            wanted[rank >> WORD_SHIFT] = wanted.get(rank >> WORD_SHIFT, 0) | BITS[rank & LOW_BITS]
        ended: list[Block] = []
        seen, single = dict[int, int](), dict[int, int]()
        for blocks, end_s in self._known.values():
            for block in blocks:
                at = block.at
                word = block.word & wanted.get(at, 0)
                if word:
                    before = seen.get(at, 0)
                    seen[at] = before | word
                    single[at] = single.get(at, 0) & ~word | (word & ~before if end_s <= until_s else 0)
                    if end_s <= until_s:
                        ended.append(block)
        found = [Block(at, word & single[at], cores, gpus) for at, word, cores, gpus, _ in ended if word & single[at]]
        others = [at << WORD_SHIFT | bit for at, word in seen.items() for bit in ids_of(word & ~single[at])]
        return (*joined(found), *self._given(others, until_s))


def _is_in(rank: int, words: Mapping[int, int]) -> bool:
    return bool(words.get(rank >> WORD_SHIFT, 0) >> (rank & LOW_BITS) & 1)


# ---- one search within a bound on hops

Units: TypeAlias = Callable[[int, int, int], int]
"""Function that returns the number of nodes, or slots, of the request that fit on a target with these cores and GPUs
free.
"""


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
        """Add `more` nodes, or slots, that fit on a target."""
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
        """Return whether there is room with these free ids of reserved targets added; such room need not last."""
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
        """Return the targets among these that are where the room was found."""
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
    """Return the earliest start as `BusyTargets.earliest` does, for a request with a bound on hops.

    `gains` are those on targets without a reservation, `mask` are ids of others. None if the request does not fit in
    that stretch of time.
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
    """Return the targets without a reservation; None for all."""
    return (pool.ranks - Idset.of(timeline.ranks)).mask if timeline.ranks else None


# ---- the timeline of reservations

TargetIds: TypeAlias = tuple[int, int, int]
"""Ids of a target: its rank, cores and GPUs."""

_PIECE: Final = 64
"""Fields that are gone through in a number of their own, where a number has more than `_SHORT`: a multiple of eight."""

_SHORT: Final = 512


class IdLayout:
    """Layout of the ids of targets as bits of a number: a target is assigned a field on first use, and keeps it.

    A field has `most_cores` bits and `most_gpus` above them; `cores` are the bits of cores, of all fields. Numbers of
    many targets are put together from groups of eight fields, which fill whole bytes whatever their width, so that the
    time is linear in their length.
    """

    __slots__ = (
        "_core_bits", "_field_bits", "_known", "_ones", "_places", "_ranks", "_shift", "_width", "cores",
    )  # fmt: skip

    def __init__(self, most_cores: int, most_gpus: int) -> None:
        self._shift = most_cores
        self._width = most_cores + most_gpus
        self._core_bits = (1 << self._shift) - 1
        self._field_bits = (1 << self._width) - 1
        self._places: dict[int, int] = {}
        self._ranks: list[int] = []
        self._known: dict[int, int] = {}  # the targets that have a field, word by word
        self._ones = 0  # the lowest bit of each field
        self.cores = 0

    def among(self, words: Mapping[int, int]) -> int:
        """Return the fields of those targets that are in these words."""
        groups: dict[int, int] = {}
        for at, word in self._known.items():
            for bit in ids_of(word & words.get(at, 0)):
                self._put(groups, self._places[at << WORD_SHIFT | bit], self._field_bits)
        return self._joined(groups)

    def ids(self, blocks: Iterable[Block]) -> int:
        """Return these blocks, as far as they are of targets."""
        first, fresh, groups = len(self._ranks), list[tuple[int, int]](), dict[int, int]()
        for at, word, cores, gpus, _ in on_targets(blocks):
            field = self._field(cores, gpus)
            known = self._known.get(at, 0)
            if word & ~known:
                n = self._enter(at, word & ~known)
                fresh.append((field * self._repeated(n), n * self._width))
            for bit in ids_of(word & known):
                self._put(groups, self._places[at << WORD_SHIFT | bit], field)
        if not fresh:
            return self._joined(groups)
        ones = self._repeated(len(self._ranks) - first) << first * self._width
        self._ones |= ones
        self.cores |= (ones << self._shift) - ones
        return self._joined(groups) | _in_a_row(fresh) << first * self._width

    def ids_of(self, parts: list[TargetIds]) -> int:
        """Return these ids of targets that have fields."""
        if len(parts) == 1:
            ((rank, cores, gpus),) = parts
            return self._field(cores, gpus) << self._places[rank] * self._width
        groups: dict[int, int] = {}
        for rank, cores, gpus in parts:
            self._put(groups, self._places[rank], self._field(cores, gpus))
        return self._joined(groups)

    def whole(self, ids: int) -> int:
        """Return all bits of the fields that contain one of these."""
        if not ids:
            return 0
        ones, top = self._ones, self._width - 1
        below = (ones << top) - ones  # all bits of each field but the highest, to which a carry from these goes
        found = ((ids & below) + below | ids) >> top & ones
        return (found << self._width) - found

    def parts(self, ids: int) -> Iterator[TargetIds]:
        """Target by target, which cores and GPUs are among these ids; targets without any are skipped."""
        width, field_bits = self._width, self._field_bits
        for first, fields in _pieces(ids, width) if ids.bit_length() > _SHORT * width else ((0, ids),):
            while fields:
                number = ((fields & -fields).bit_length() - 1) // width
                field = fields >> number * width & field_bits
                fields ^= field << number * width
                yield self._ranks[first + number], field & self._core_bits, field >> self._shift

    def blocks(self, ids: int) -> Blocks:
        """Return the ids as blocks, as a pool takes and gives them."""
        words: dict[tuple[int, int, int], int] = {}
        for rank, cores, gpus in self.parts(ids):
            key = rank >> WORD_SHIFT, cores, gpus
            words[key] = words.get(key, 0) | BITS[rank & LOW_BITS]
        return tuple([Block(at, word, cores, gpus) for (at, cores, gpus), word in words.items()])

    # ---- within

    def _field(self, cores: int, gpus: int) -> int:
        return cores & self._core_bits | (gpus << self._shift & self._field_bits)

    def _enter(self, at: int, word: int) -> int:
        """Give consecutive fields to these targets, none of which has one, and return their number."""
        first, base = len(self._ranks), at << WORD_SHIFT
        self._ranks += [base + bit for bit, digit in enumerate(f"{word:b}"[::-1]) if digit == "1"]
        last = len(self._ranks)
        self._places.update(zip(self._ranks[first:], range(first, last), strict=True))
        self._known[at] = self._known.get(at, 0) | word
        return last - first

    def _put(self, groups: dict[int, int], place: int, field: int) -> None:
        group = place >> 3
        groups[group] = groups.get(group, 0) | field << (place & 7) * self._width

    def _joined(self, groups: dict[int, int]) -> int:
        """Return the number of these groups of fields."""
        width = self._width
        if len(groups) <= 1:
            return sum([fields << group * 8 * width for group, fields in groups.items()])
        data = bytearray((max(groups) + 1) * width)
        for group, fields in groups.items():
            data[group * width : (group + 1) * width] = fields.to_bytes(width, "little")
        return int.from_bytes(data, "little")

    def _repeated(self, n: int) -> int:
        """Return the lowest bits of `n` fields in a row."""
        if n == 1 or not self._width:
            return 1
        group = sum([1 << each * self._width for each in range(8)]).to_bytes(self._width, "little")
        return int.from_bytes(group * (n + 7 >> 3), "little") & (1 << n * self._width) - 1


def _pieces(ids: int, width: int) -> Iterator[tuple[int, int]]:
    """Pieces of a number in which there is something, ascending, each with the number of its first field."""
    size = _PIECE * width >> 3
    data, zeros = ids.to_bytes((ids.bit_length() + 7) >> 3, "little"), bytes(size)
    for begin in range(0, len(data), size):
        piece = data[begin : begin + size]
        if piece != zeros:
            yield begin // size * _PIECE, int.from_bytes(piece, "little")


def _in_a_row(numbers: list[tuple[int, int]]) -> int:
    """Join numbers of given widths in bits, the lowest first; pairwise, so that none is copied often."""
    while len(numbers) > 1:
        pairs = zip(numbers[::2], numbers[1::2], strict=False)
        odd = numbers[-1:] if len(numbers) & 1 else []
        numbers = [(low | high << bits, bits + more) for (low, bits), (high, more) in pairs] + odd
    return numbers[0][0] if numbers else 0


Projection: TypeAlias = Callable[[Iterable[int], float], tuple[list[TargetIds], dict[float, list[TargetIds]]]]
"""Function that returns the free ids of targets, and those that jobs free, by time; overdue ones at the given time."""

KEPT_BYTES_MAX = 1 << 25
"""Memory for known results of `given_by`, of which two are kept in any case: all of 10,000 jobs on 400 targets fit."""


class Reserved(NamedTuple):
    """Ids reserved from one instant to another, and the number of their cores that are free at its begin."""

    start_s: float
    end_s: float
    ids: int
    cores: int


class Timeline:
    """Steps from `now_s` on: `times` is when each begins.

    `now` is what is free now, `ranks` are the targets that are looked at, and `stamp` is the number of the
    change after which all this was true.

    What jobs free is kept by time and target, and joined into a number when `given_by` is asked for it. `_most` is an
    upper bound of the free cores of each step, so that most steps need no number.
    """

    __slots__ = (
        "_ends", "_ends_s", "_given", "_given_by_s", "_most", "_of_others", "_others", "_project", "_reserved", "_seen",
        "_starts_s", "layout", "now", "ranks", "stamp", "times",
    )  # fmt: skip

    def __init__(self, layout: IdLayout, now_s: float, stamp: object, project: Projection) -> None:
        self.layout = layout
        self._project = project
        self._ends: dict[float, list[TargetIds]] = {}
        self._given_by_s = [-inf]  # the times of the known results
        self._given = [0]
        self._most = [0]
        self._reserved: list[Reserved] = []  # by start
        self._starts_s: list[float] = []  # of these
        self._ends_s: list[float] = []
        self._others = -1  # all ids but those that `between` found reserved last
        self._of_others: tuple[int, int] | None = None  # how many reservations had begun, and were over, then
        self._seen = 0  # the fields of the targets that are looked at
        self.times = [now_s]
        self.now = 0
        self.ranks: set[int] = set()
        self.stamp = stamp

    def look_at(self, ids: int) -> None:
        """Take in the targets of these ids."""
        ids &= ~self._seen
        if not ids:
            return
        self._seen |= self.layout.whole(ids)
        ranks = [rank for rank, *_ in self.layout.parts(ids)]
        self.ranks.update(ranks)
        now, ends = self._project(ranks, nextafter(self.times[0], inf))
        self.now |= self.layout.ids_of(now)
        for end_s in ends:
            self._step_at(end_s)
        most = _cores_of(now)
        for step, time_s in enumerate(self.times):
            if time_s in ends:
                most += _cores_of(ends[time_s])
            self._most[step] += most
        self._give_besides(ends)
        for end_s, parts in ends.items():
            self._ends[end_s] = self._ends.get(end_s, []) + parts

    def take(self, start_s: float, end_s: float, ids: int) -> None:
        """Reserves these ids from one instant to another."""
        if not ids:
            return
        self.look_at(ids)
        cores = (ids & self.layout.cores & (self.now | self.given_by(start_s))).bit_count()
        self._change_most(start_s, end_s, -cores)
        insort(self._reserved, Reserved(start_s, end_s, ids, cores))
        insort(self._starts_s, start_s)
        insort(self._ends_s, end_s)
        self._of_others = None

    def give(self, start_s: float, end_s: float, ids: int) -> None:
        """Give back ids that were taken for the same time."""
        if not ids:
            return
        at = next(at for at, each in enumerate(self._reserved) if each[:3] == (start_s, end_s, ids))
        self._change_most(start_s, end_s, self._reserved.pop(at).cores)
        del self._starts_s[at], self._ends_s[bisect_left(self._ends_s, end_s)]
        self._of_others = None

    def between(self, start_s: float, end_s: float) -> int:
        """Return the ids that are free all the time from one instant to before another."""
        begun, over = bisect_left(self._starts_s, end_s), bisect_right(self._ends_s, start_s)
        if (begun, over) != self._of_others:  # mostly the same ones as a step before
            taken = 0
            for _, last_s, ids, _ in self._reserved[:begun]:
                if last_s > start_s:
                    taken |= ids
            self._others, self._of_others = ~taken, (begun, over)
        return (self.now | self.given_by(start_s)) & self._others

    def free_for(self, first: int, end_s: float, cores: int) -> int:
        """Return the ids that are free from the begin of a step to before an instant; 0 if they have fewer than
        `cores`.
        """
        if self._most[first] < cores:
            return 0
        free = self.between(self.times[first], end_s)
        return free if (free & self.layout.cores).bit_count() >= cores else 0

    def given_by(self, when_s: float) -> int:
        """Return the ids that jobs have freed by `when_s`."""
        known_s, times = self._given_by_s, self.times
        first, last = bisect_right(known_s, when_s) - 1, bisect_right(times, when_s)
        given, begin = self._given[first], bisect_right(times, known_s[first])
        if begin == last:
            return given
        ends = self._ends
        parts = [part for time_s in times[begin:last] for part in ends.get(time_s, ())]
        if not parts:
            return given
        given |= self.layout.ids_of(parts)
        known_s.insert(first + 1, times[last - 1])
        self._given.insert(first + 1, given)
        if len(known_s) > 2 and len(known_s) * (given.bit_length() >> 3) > KEPT_BYTES_MAX:
            del known_s[1::2], self._given[1::2]
        return given

    def _give_besides(self, ends: Mapping[float, list[TargetIds]]) -> None:
        """Add the ids that further targets free to the known results."""
        given, times = 0, sorted(ends)
        done = 0
        for at, known_s in enumerate(self._given_by_s):
            until = bisect_right(times, known_s)
            if until > done:
                given |= self.layout.ids_of([part for time_s in times[done:until] for part in ends[time_s]])
                done = until
            self._given[at] |= given

    def _change_most(self, start_s: float, end_s: float, more: int) -> None:
        most, first = self._most, self._step_at(start_s)
        last = self._step_at(end_s)
        most[first:last] = [cores + more for cores in most[first:last]]

    def _step_at(self, time_s: float) -> int:
        """Return the step that begins at this time, which is made if there is none."""
        step = bisect_left(self.times, time_s)
        if time_s < inf and (step == len(self.times) or self.times[step] != time_s):
            self.times.insert(step, time_s)
            self._most.insert(step, self._most[step - 1])
        return step


def _cores_of(parts: Iterable[TargetIds]) -> int:
    return sum([cores.bit_count() for _, cores, _ in parts])
