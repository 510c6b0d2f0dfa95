"""When a request fits, if running jobs end by their limits and reservations are kept: target by target, without trying.

Law: exact where nothing but cores and GPUs is asked for. Which job holds what of a target until when is collected once
and then kept up job by job. Without reservations, targets only become of more use: for each request the instants at
which they do are kept in order, and only those of targets where something has changed are worked out again. Those with
reservations are looked at together, step by step (`timeline`). The pool is not changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from math import inf, nextafter
from typing import Final, NamedTuple

from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.count import ONE
from fluxsched.core.jobspec import Request
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.timeline import IdLayout, TargetIds, Timeline
from fluxsched.sched.plan.within import earliest_within
from fluxsched.sched.pool.bitset import BITS, LOW_BITS, WORD_SHIFT, ids_of
from fluxsched.sched.pool.choice import need_of, slots_on
from fluxsched.sched.pool.placement import Block, Blocks, Part, blocks_of, joined, on_targets, parts_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select import count_nodes, count_slots
from fluxsched.sched.shape import Shape

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
"""Any target, whole."""
NO_GAIN: Final[Gain] = (inf, 0, -1)
_NOTHING: Final[tuple[Blocks, float]] = ((), inf)


class _ShapeGains:
    """A request, its gains in order, and the targets whose gains are no longer known.

    `each` is the least number of cores that a node, or slot, of it has.
    """

    __slots__ = ("_free", "_is_cores", "_layout", "_need", "_units", "each", "gains", "request", "stale")

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

    def units(self, pool: Pool, rank: int, cores: int, gpus: int) -> int:
        """How many nodes, or slots, of the request fit on a target when these ids are free."""
        request, need = self.request, self._need
        if request.nodes is None:
            return slots_on(request, cores.bit_count(), gpus.bit_count())
        if request.exclusive and (cores, gpus) != pool.all_ids(rank):
            return 0
        return int(cores.bit_count() >= need.cores and gpus.bit_count() >= need.gpus)

    def units_in(self, pool: Pool, layout: IdLayout, free: int) -> int:
        """The same for many targets; only those are looked at where it is not as it was when this was last asked."""
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
        """How many more would have to fit now."""
        request = self.request
        choice = pool.choice_of(shape)
        if request.nodes is None:
            return request.slots.min - count_slots(choice, request)
        return request.nodes.min - count_nodes(choice, self._need)


class BusyTargets:
    """The targets of a pool where jobs hold something. `stamp` is another one when anything has happened."""

    def __init__(self, pool: Pool, ledger: Ledger) -> None:
        self._pool = pool
        self._ledger = ledger
        self._on: dict[int, dict[int, tuple[float, int, int]]] = {}  # rank -> jobid -> end, cores, GPUs
        self._known: dict[int, tuple[Blocks, float]] = {}  # blocks, and their end if it is one
        self._by_shape: dict[int, _ShapeGains] = {}
        self._widths: tuple[int, int] | None = None
        self._touched = {holding.jobid for holding in ledger}
        self.stamp = object()

    def touch(self, *jobids: int) -> None:
        """These jobs began, ended or changed, or targets did."""
        self._touched.update(jobids)
        self.stamp = object()

    def layout(self) -> IdLayout:
        """For the targets of this pool; none has one yet."""
        if self._widths is None:
            kinds = [entry.children for entry in self._pool.resources.entries]
            cores = max([kind.cores.mask.bit_length() for kind in kinds], default=0)
            self._widths = cores, max([kind.gpus.mask.bit_length() for kind in kinds], default=0)
        return IdLayout(*self._widths)

    def timeline(self, layout: IdLayout, now_s: float) -> Timeline:
        """What will be free from now on, of no target yet."""
        self._catch_up()
        return Timeline(layout, now_s, self.stamp, self._project)

    def _project(
        self, ranks: Iterable[int], soon_s: float
    ) -> tuple[list[TargetIds], dict[float, list[TargetIds]]]:
        """What of these targets is free now, and what their jobs free when; of those that are down nothing."""
        pool, now = self._pool, list[TargetIds]()
        ends: dict[float, list[TargetIds]] = {}
        for rank in ranks:
            if not pool.is_up(rank):
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
        """When the request fits first for so long, in a stretch of time; `good` are the targets that may be used.

        Only the begin of the stretch and of steps, and instants at which other targets become of use, come into
        question; and only where there are enough cores, wherever they are, targets are looked at one by one.
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
        """Whether the request fits now, if these ids are not to be had."""
        known, pool, lost = self._gains_of(shape), self._pool, 0
        for rank, cores, gpus in taken:
            if _is_in(rank, good):
                free_cores, free_gpus = pool.free_ids(rank)
                lost += known.units(pool, rank, free_cores, free_gpus)
                lost -= known.units(pool, rank, free_cores & ~cores, free_gpus & ~gpus)
        return known.missing(pool, shape) + lost <= 0

    def idle_times(self) -> list[Gain]:
        """When each busy target has nothing taken of it any more, if jobs end by their limits; the earliest first."""
        self._catch_up()
        known = self._gains_of(WHOLE)
        self._work_out(known, known.stale)
        return known.gains

    def given(self, ranks: Collection[int], until_s: float) -> Blocks:
        """What jobs have freed on these targets by then; job by job where there are fewer jobs than targets."""
        return self._given_by_jobs(ranks, until_s) if len(ranks) > len(self._known) else self._given(ranks, until_s)

    def _gains_of(self, shape: Shape) -> _ShapeGains:
        known = self._by_shape.get(shape.number)
        if known is None:
            if len(self._by_shape) >= GAINS_MAX:
                self._by_shape.clear()
            known = self._by_shape[shape.number] = _ShapeGains(self._pool, shape, self._on)
        return known

    def _gains_beside(self, known: _ShapeGains, timeline: Timeline, good: Mapping[int, int]) -> Iterator[Gain]:
        """The gains on targets that the timeline does not cover; only those where something has changed are worked out.

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
        """The gains on these targets."""
        if stale:
            fresh = [gain for rank in stale for gain in self._gains(known, rank)]
            known.gains = sorted([*[gain for gain in known.gains if gain[2] not in stale], *fresh])
            known.stale = known.stale - stale

    def _catch_up(self) -> None:
        """Takes in what has happened to jobs, in time linear in the targets that they hold."""
        if not self._touched:
            return
        stale: set[int] = set()
        for jobid in self._touched:
            for rank, *_ in parts_in(on_targets(self._known.pop(jobid, _NOTHING)[0])):
                del self._on[rank][jobid]
                stale.add(rank)
            holding = self._ledger.get(jobid)
            if holding is not None:
                end_s, leaving = holding.end_s, holding.leaving
                self._known[jobid] = holding.blocks, inf if leaving else end_s
                gone_s = min(end_s, holding.elastic.leave_by_s) if leaving and holding.elastic is not None else end_s
                for rank, cores, gpus, _ in parts_in(on_targets(holding.blocks)):
                    self._on.setdefault(rank, {})[jobid] = gone_s if rank in leaving else end_s, cores, gpus
                    stale.add(rank)
        self._touched.clear()
        for known in self._by_shape.values():
            known.stale |= stale

    def _gains(self, known: _ShapeGains, rank: int) -> Iterator[Gain]:
        """When more of the request fits on a target, as jobs there end."""
        pool = self._pool
        if rank not in pool:
            return
        cores, gpus = pool.free_ids(rank)
        before = known.units(pool, rank, cores, gpus)
        for end_s, some_cores, some_gpus in sorted(self._on[rank].values()):
            if end_s == inf:
                return
            cores |= some_cores
            gpus |= some_gpus
            units = known.units(pool, rank, cores, gpus)
            if units > before:
                yield end_s, units - before, rank
                before = units

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
