"""Who comes first, without trying: from when on a request fits, if running jobs end by their limits.

Law: exact where nothing is reserved and nothing but cores and GPUs is asked for. Running jobs are gone through by their
ends, and only the targets that they give back are looked at, by counting what is free there: the pool is not changed.
"""

from __future__ import annotations

from math import inf, nextafter

from fluxsched.core.jobspec import Request
from fluxsched.sched.bits import WORD_SHIFT, ids_of
from fluxsched.sched.gather import count, count_slots, need_of, slots_on
from fluxsched.sched.outcome import Blocks, Part, blocks_of
from fluxsched.sched.pool import Pool, Target
from fluxsched.sched.running import RunningJobs


class _Spot:
    """One target as jobs on it end: what is free there, what of that was given back, and what it is good for."""

    __slots__ = ("cores", "exclusive", "given", "gpus", "need_cores", "need_gpus", "request", "units")

    def __init__(self, target: Target, request: Request) -> None:
        self.cores, self.gpus = target.cores, target.gpus
        self.given = (0, 0)
        self.request = request
        self.exclusive = (target.all_cores, target.all_gpus) if request.exclusive else None
        need = need_of(request, request.slots.min)
        self.need_cores, self.need_gpus = need.cores, need.gpus
        self.units = self._units()

    def give(self, cores: int, gpus: int) -> int:
        """Takes back what a job had here; returns how many more nodes, or slots, of the request fit."""
        self.cores |= cores
        self.gpus |= gpus
        self.given = self.given[0] | cores, self.given[1] | gpus
        before = self.units
        self.units = self._units()
        return self.units - before

    def _units(self) -> int:
        if self.exclusive is not None:
            return int((self.cores, self.gpus) == self.exclusive)
        cores, gpus = self.cores.bit_count(), self.gpus.bit_count()
        if self.request.nodes is None:
            return slots_on(self.request, cores, gpus)
        return int(cores >= self.need_cores and gpus >= self.need_gpus)


def ahead(pool: Pool, running: RunningJobs, request: Request, now_s: float) -> tuple[float, Blocks]:
    """When the request fits first (`inf`: never, as far as is known), and what is given back by then that it needs."""
    plan = pool.plan(request.constraint)
    if request.nodes is None:
        missing = request.slots.min - count_slots(plan, request)
    else:
        missing = request.nodes.min - count(plan, need_of(request, request.slots.min))
    spots: dict[int, _Spot] = {}
    gained: dict[int, None] = {}
    good = running.good_for(request)
    end_s = now_s
    for next_s, holding in running.by_end() if missing > 0 else ():
        if missing <= 0 and next_s > end_s:
            break
        end_s = max(next_s, nextafter(now_s, inf))
        for at, word, cores, gpus, *_ in holding.blocks:
            base = at << WORD_SHIFT
            for bit in ids_of(word & good.get(at, 0)):
                spot = spots.get(base + bit)
                if spot is None:
                    spot = spots[base + bit] = _Spot(pool[base + bit], request)
                gain = spot.give(cores, gpus)
                if gain:
                    missing -= gain
                    gained[base + bit] = None
    if missing > 0:
        return inf, ()
    return end_s, blocks_of(Part(rank, *spots[rank].given) for rank in gained)
