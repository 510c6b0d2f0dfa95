"""When a request fits, if running jobs end by their limits and reservations are kept: target by target, without trying.

Law: exact where nothing but cores and GPUs is asked for. Who holds what of a target until when is learnt in one sweep
and then kept up job by job; for each kind of request the instants at which targets become of use stand in order, and
only those of targets where something has changed are worked out again. The pool is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby
from math import fsum, inf, nextafter, ulp
from operator import itemgetter

from fluxsched.core.jobspec import Request
from fluxsched.sched.bits import LOW_BITS, WORD_SHIFT
from fluxsched.sched.gather import Need, count, count_slots, need_of, slots_on
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.outcome import Blocks, Part, blocks_of, on_targets, parts_in
from fluxsched.sched.pool import Pool, Target

KINDS_MAX = 64
"""Requests whose gains are remembered: many more than jobs with a reservation; some 100 bytes a busy target each."""

Span = tuple[float, float, int, int]
"""(start_s, end_s, cores, gpus): what a reservation has of one target."""

Gain = tuple[float, int, int]
"""(when, how many more nodes, or slots, of a request fit, rank); less than 0 where a reservation begins."""


class _Kind:
    """A request, its gains in order, and the targets whose gains are no longer known."""

    __slots__ = ("gains", "need", "request", "stale")

    def __init__(self, request: Request, ranks: Iterator[int]) -> None:
        self.request = request
        self.need = need_of(request, request.slots.min)
        self.gains: list[Gain] = []
        self.stale = set(ranks)

    def units(self, target: Target, cores: int, gpus: int) -> int:
        """How many nodes, or slots, of the request fit on a target when these ids are free."""
        request = self.request
        if request.exclusive:
            return int((cores, gpus) == (target.all_cores, target.all_gpus) and _has(self.need, target))
        if request.nodes is None:
            return slots_on(request, cores.bit_count(), gpus.bit_count())
        return int(cores.bit_count() >= self.need.cores and gpus.bit_count() >= self.need.gpus)


class Outlook:
    """The targets of a pool where jobs hold something. `touched` are jobs that began, ended or changed since."""

    def __init__(self, pool: Pool, ledger: Ledger) -> None:
        self._pool = pool
        self._ledger = ledger
        self._on: dict[int, dict[int, tuple[float, int, int]]] = {}  # rank -> jobid -> end, cores, GPUs
        self._known: dict[int, Blocks] = {}
        self._kinds: dict[int, _Kind] = {}
        self.touched = {holding.jobid for holding in ledger}

    def earliest(
        self,
        request: Request,
        limit_s: float,
        now_s: float,
        good: Mapping[int, int],
        kept: Mapping[int, Sequence[Span]],
    ) -> tuple[float, Blocks]:
        """When the request fits first for so long (`inf`: never, as far as is known), and what is given back by then.

        `good` are the targets that may be used, `kept` is what others are to have of them. Of what is given back only
        that is told which is on targets that it makes a difference to.
        """
        kind = self._kind(request)
        plan = self._pool.plan(request.constraint)
        if request.nodes is None:
            missing = request.slots.min - count_slots(plan, request)
        else:
            missing = request.nodes.min - count(plan, kind.need)
        mine = {rank: spans for rank, spans in kept.items() if _is_in(rank, good)}
        changes: list[Gain] = []
        for rank, spans in mine.items():
            changes += self._changes(kind, rank, spans, limit_s, now_s)
        soon_s = nextafter(now_s, inf)
        gains = (
            (when_s if when_s > soon_s else soon_s, more, rank)
            for when_s, more, rank in kind.gains
            if rank not in mine and _is_in(rank, good)
        )
        start_s = now_s
        ranks = dict.fromkeys(mine)
        for when_s, same in groupby(merge(sorted(changes), gains, key=itemgetter(0)), itemgetter(0)):
            if when_s > now_s and missing <= 0:
                break
            start_s = when_s
            for _, more, rank in same:
                missing -= more
                ranks[rank] = None
        if missing > 0:
            return inf, ()
        return start_s, blocks_of(self._given(ranks, start_s))

    def _kind(self, request: Request) -> _Kind:
        self._catch_up()
        kind = self._kinds.get(id(request))  # the kind holds the request, so nobody else has its id
        if kind is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds[id(request)] = _Kind(request, iter(self._on))
        if stale := kind.stale:
            fresh = [gain for rank in stale for gain in self._gains(kind, rank)]
            kind.gains = sorted([*[gain for gain in kind.gains if gain[2] not in stale], *fresh])
            kind.stale = set()
        return kind

    def _catch_up(self) -> None:
        """Takes in what has happened to jobs, in time linear in the targets that they hold."""
        stale: set[int] = set()
        for jobid in self.touched:
            for rank, *_ in parts_in(on_targets(self._known.pop(jobid, ()))):
                del self._on[rank][jobid]
                stale.add(rank)
            holding = self._ledger.get(jobid)
            if holding is not None:
                self._known[jobid] = holding.blocks
                end_s = holding.expiration_s or inf
                for rank, cores, gpus, _ in parts_in(on_targets(holding.blocks)):
                    self._on.setdefault(rank, {})[jobid] = end_s, cores, gpus
                    stale.add(rank)
        self.touched.clear()
        for kind in self._kinds.values():
            kind.stale |= stale

    def _gains(self, kind: _Kind, rank: int) -> Iterator[Gain]:
        """When more of the request fits on a target, as jobs there end."""
        if rank not in self._pool:
            return
        target = self._pool[rank]
        cores, gpus = target.cores, target.gpus
        before = kind.units(target, cores, gpus)
        for end_s, some_cores, some_gpus in sorted(self._on[rank].values()):
            if end_s == inf:
                return
            cores |= some_cores
            gpus |= some_gpus
            units = kind.units(target, cores, gpus)
            if units > before:
                yield end_s, units - before, rank
                before = units

    def _changes(
        self, kind: _Kind, rank: int, spans: Sequence[Span], limit_s: float, now_s: float
    ) -> Iterator[Gain]:
        """When more or less of the request fits on a target for so long, as jobs there end and reservations come."""
        target, jobs = self._pool[rank], self._on.get(rank, {}).values()
        soon_s = nextafter(now_s, inf)
        ends = {max(end_s, soon_s) for end_s, *_ in jobs}
        turns = {turn_s for start_s, end_s, *_ in spans for turn_s in (_too_late(start_s, limit_s), end_s)}
        before = kind.units(target, target.cores, target.gpus)  # as the pool counts it
        for when_s in sorted({now_s} | ends | {turn_s for turn_s in turns if turn_s > now_s}):
            if when_s == inf:
                return
            cores, gpus = target.cores, target.gpus
            for end_s, some_cores, some_gpus in jobs:
                if max(end_s, soon_s) <= when_s:
                    cores |= some_cores
                    gpus |= some_gpus
            for start_s, end_s, some_cores, some_gpus in spans:
                if start_s < when_s + limit_s and end_s > when_s:
                    cores &= ~some_cores
                    gpus &= ~some_gpus
            units = kind.units(target, cores, gpus)
            if units != before:
                yield when_s, units - before, rank
                before = units

    def _given(self, ranks: Mapping[int, None], until_s: float) -> Iterator[Part]:
        """What jobs have given back on these targets by then."""
        for rank in ranks:
            cores = gpus = 0
            for end_s, some_cores, some_gpus in self._on.get(rank, {}).values():
                if end_s <= until_s:
                    cores |= some_cores
                    gpus |= some_gpus
            if cores or gpus:
                yield Part(rank, cores, gpus)


def _too_late(start_s: float, limit_s: float) -> float:
    """The first instant whose sum with the limit is after the start, as that sum is rounded."""
    at_s = fsum((start_s, ulp(start_s) / 2, -limit_s))
    return at_s if at_s + limit_s > start_s else nextafter(at_s, inf)


def _has(need: Need, target: Target) -> bool:
    """Whether a target has that much in all."""
    return target.all_cores.bit_count() >= need.cores and target.all_gpus.bit_count() >= need.gpus


def _is_in(rank: int, words: Mapping[int, int]) -> bool:
    return bool(words.get(rank >> WORD_SHIFT, 0) >> (rank & LOW_BITS) & 1)
