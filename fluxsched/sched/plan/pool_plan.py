"""Plans on the real pool: constraints, GPUs, countables and partly used targets are what they are.

Law: a reservation has its place, and nothing else is placed there at that time. Time is gone through by giving back, in
a what-if, what ends on the way; the earliest instant at which the job finds a place that no other job is to have
meanwhile is its start. Reservations prefer what is busy now, so that what is free now stays of use to others. For
several parts the search begins at the first instant at which all could fit with nothing reserved, found by halving,
with Hall's theorem at each step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from math import inf, nextafter
from operator import itemgetter
from typing import Final

from fluxsched.core.jobspec import Request
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.ledger import JobAllocation
from fluxsched.sched.plan.counted_plan import Planner
from fluxsched.sched.plan.earliest import IdLayout, Timeline
from fluxsched.sched.plan.running_jobs import RunningJobs, touches
from fluxsched.sched.pool.find_fit import LeftOut, Returned, WhatIf, find_fit
from fluxsched.sched.pool.parts import Hall, by_suited, choices_of, nodes_of, offers, suited_ever, suited_now
from fluxsched.sched.pool.placement import BEST_FIT, FIRST_FIT, LOW_BITS, WORD_SHIFT, Bits, Block, Fits, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import PendingJob, Skips, cores_asked


class PoolPlan(Planner):
    """`Plan` with the placement of each reservation."""

    __slots__ = ("_ids", "_jobs", "_layout", "_moved", "_promised", "_timeline")

    def __init__(self, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        super().__init__(Skips(), pool, running, now_s, last_s)
        self.skips.by_limit = bool(pool.outages)
        running.busy_targets.look_ahead(now_s)
        self._jobs: dict[int, PendingJob] = {}
        self._moved = False  # something began since the reservation was placed: there may be a better place for it
        self._promised = False  # some are kept from the pass before: no other may be moved to where these were to be
        self._layout: IdLayout | None = None
        self._ids: dict[int, int] = {}  # what is kept for each job, in this layout
        self._timeline: Timeline | None = None

    def place(self, job: PendingJob, placement: str) -> Fits | None:
        pool, shape = self._pool, job.shape
        fit = find_fit(pool, shape, placement)
        if fit is None:
            self.skips.unfit.add(shape.number)  # with a shorter limit, too: no outage is to blame
            return None
        outages = pool.outages_for(shape.request)
        if not outages:
            return self._beside(job, placement, fit)
        end_s = self._now_s + self._limit_s(job)
        with LeftOut(pool, shape, outages.barred(self._now_s, end_s)):
            if pool.is_barred(shape.request, fit.blocks, self._now_s, end_s):
                fit = find_fit(pool, shape, placement)
            return self._beside(job, placement, fit)

    def _beside(self, job: PendingJob, placement: str, fit: Fits | None) -> Fits | None:
        """Return the placement, or another one, if it delays no reservation."""
        if fit is not None and self._kept:
            around = self._around if self._is_plain(job.request) else self._around_by_what_if
            fit = around(job, placement, fit)
            if fit is None and self._moved and not self._promised and len(self._kept) == 1:
                self._choose_again()
                fit = around(job, placement, None)
        if fit is None:
            self.skips.too_long(job, self._limit_s(job))
        return fit

    def reserve(self, job: PendingJob) -> Reservation:
        kept = self._kept.get(job.jobid)
        if kept is not None:
            return kept
        if self._is_plain(job.request):
            return self._enter(job, self._seek(job, self._now_s, inf))
        with self._returned():
            from_s = self._no_earlier(job)
        return self._enter(job, self._seek(job, from_s, inf))

    def foresees(self, job: PendingJob) -> bool:
        """Return whether the start of a job can be told without a placement."""
        return self._is_plain(job.request) and not self._pool.outages_for(job.request)

    def start_of(self, job: PendingJob) -> float:
        """Return the start that a reservation would have, of a job that the plan foresees."""
        running = self._running
        usable, view = running.usable_for(job.shape), self._view()
        return running.busy_targets.earliest(job.shape, self._limit_s(job), view, usable, self._now_s, inf).start_s

    def seat(self, job: PendingJob, placement: str) -> Fits | Reservation:
        return self._kept.get(job.jobid) or self.place(job, placement) or self.reserve(job)

    def keep(self, job: PendingJob, old: Reservation) -> bool:
        if job.jobid in self._kept:
            return True
        self._promised = True
        start_s = max(old.start_s, self._now_s)
        if old.fit is None or not self._is_plain(job.request):
            made = self._seek(job, start_s, start_s, old.fit)
        else:
            made = self._again(job, start_s, old.fit)
        return made.start_s < inf and bool(self._enter(job, made))

    def claim(self, job: PendingJob, old: Reservation, going: Iterable[int]) -> Reservation | None:
        if old.fit is None or not self.keep(job, self._not_now(old)):
            return None
        self._claimed.add(job.jobid)
        return self._kept[job.jobid]

    def as_kept(self, planned: Mapping[int, Reservation]) -> dict[int, Reservation]:
        """Return these reservations as they are now: some may have other placements, so that other jobs can start."""
        return {jobid: self._kept.get(jobid, made) for jobid, made in planned.items()}

    def waive(self, jobid: int) -> None:
        self._jobs.pop(jobid, None)
        self._claimed.discard(jobid)
        old, ids = self._kept.pop(jobid, None), self._ids.pop(jobid, 0)
        if old is not None and self._timeline is not None:
            self._timeline.give(old.start_s, old.end_s, ids)

    def began(self, job: PendingJob, fit: Fits) -> None:
        self.waive(job.jobid)
        self._moved = True

    def grew(self, job: PendingJob, fit: Fits) -> None:
        """Record that a running job has got more; `job` stands for that part."""
        self._moved = True

    def renew(self, now_s: float) -> bool:
        if not super().renew(now_s):
            return False
        self._running.busy_targets.look_ahead(now_s)
        self._timeline = None
        return not self._moved or self._plan_again()

    def _plan_again(self) -> bool:
        """Make all reservations anew; return False if one of the jobs can start instead."""
        self._moved = False
        jobs = list(self._jobs.values())
        for job in jobs:
            self.drop(job.jobid)
        return all(self.reserve(job).start_s > self._now_s for job in jobs)

    def _enter(self, job: PendingJob, made: Reservation) -> Reservation:
        jobid = job.jobid
        self._kept[jobid], self._jobs[jobid] = made, job
        ids = self._ids[jobid] = 0 if made.fit is None else self._own_layout.ids(made.fit.blocks)
        if self._timeline is not None:
            self._timeline.take(made.start_s, made.end_s, ids)
        return made

    def _is_plain(self, request: Request) -> bool:
        """Return whether the request is of one part and takes only cores and GPUs; whole targets have what is counted,
        too.
        """
        if request.parts or request.amounts or request.node_amounts or request.shared:
            return False
        return not (request.exclusive and any(each.targets.amounts for each in self._pool.choice(request.constraint)))

    # ---- by what will be free

    @property
    def _own_layout(self) -> IdLayout:
        """Return the layout of this plan's targets, with no more targets than it needs."""
        if self._layout is None:
            self._layout = self._running.busy_targets.layout()
        return self._layout

    def _view(self) -> Timeline:
        """Return the timeline of what is free from now on, with the reservations."""
        busy = self._running.busy_targets
        if not self._kept:
            return busy.timeline(self._own_layout, self._now_s)
        if self._timeline is None or self._timeline.stamp is not busy.stamp:
            self._timeline = busy.timeline(self._own_layout, self._now_s)
            for jobid, kept in self._kept.items():
                self._timeline.take(kept.start_s, kept.end_s, self._ids[jobid])
        return self._timeline

    def _around(self, job: PendingJob, placement: str, fit: Fits | None) -> Fits | None:
        """Return where the job may start now; `fit` is where it might if there were no reservations."""
        running, layout, taken = self._running, self._own_layout, 0
        end_s = self._now_s + self._limit_s(job)
        for jobid, kept in self._kept.items():
            if (kept.start_s < end_s or jobid in self._claimed) and jobid != job.jobid:
                taken |= self._ids[jobid]
        if fit is not None and not taken & layout.ids(fit.blocks):
            return fit
        if not running.busy_targets.fits_beside(job.shape, layout.parts(taken), running.usable_for(job.shape)):
            return None
        with WhatIf(self._pool) as what_if:
            what_if.keep(layout.blocks(taken))
            return what_if.find(job.shape, placement)

    def _seek(self, job: PendingJob, from_s: float, until_s: float, wanted: Fits | None = None) -> Reservation:
        """Find the first start of a job from one instant to another: where no outage that it would cross keeps
        targets.
        """
        outages, shape = self._pool.outages_for(job.request), job.shape
        if not outages:
            return self._seek_here(job, from_s, until_s, wanted)
        with self._returned():
            for begin_s, end_s, barred in outages.stretches(self._limit_s(job), from_s, until_s):
                with LeftOut(self._pool, shape, barred & self._pool.ranks.mask):
                    made = self._seek_here(job, begin_s, end_s, wanted)
                if made.start_s < inf:
                    return made
        return Reservation(job.jobid, inf, inf, cores_asked(job.request), None)

    def _seek_here(self, job: PendingJob, from_s: float, until_s: float, wanted: Fits | None) -> Reservation:
        if self._is_plain(job.request):
            return self._foresee(job, from_s, until_s)
        return self._sweep(job, from_s, until_s, wanted)

    def _returned(self) -> Returned:
        return Returned(self._pool, self._running.busy_targets.returning)

    def _foresee(self, job: PendingJob, from_s: float, until_s: float) -> Reservation:
        """Find the start of a job without trying; then free only what the job needs, to choose its placement."""
        limit, request, running = self._limit_s(job), job.request, self._running
        timeline, busy, asked = self._view(), running.busy_targets, cores_asked(request)
        layout = timeline.layout
        usable = running.usable_for(job.shape)
        start_s, free, gained = busy.earliest(job.shape, limit, timeline, usable, from_s, until_s)
        if start_s == inf:
            return Reservation(job.jobid, inf, inf, asked, None)
        given = timeline.given_by(start_s)
        with WhatIf(self._pool) as what_if:
            what_if.give(busy.given(gained, start_s))
            what_if.give(layout.blocks(free & ~timeline.now))
            what_if.take(layout.blocks(timeline.now & ~free))
            what_if.prefer(layout.blocks(given & ~free))
            fit = what_if.find(job.shape, BEST_FIT, prefer_given=True)
        if fit is None:
            raise LocalProtocolError(f"job {job.jobid} was planned to start at {start_s}, but does not fit then")
        return Reservation(job.jobid, start_s, start_s + limit, asked, fit)

    def _again(self, job: PendingJob, start_s: float, fit: Fits) -> Reservation:
        """Return the very same place, if it can be had."""
        limit, ids, timeline = self._limit_s(job), self._own_layout.ids(fit.blocks), self._view()
        timeline.look_at(ids)
        is_barred = self._pool.is_barred(job.request, fit.blocks, start_s, start_s + limit)
        if is_barred or not self._usable(job, fit) or ids & ~timeline.between(start_s, start_s + limit):
            return Reservation(job.jobid, inf, inf, cores_asked(job.request), None)
        return Reservation(job.jobid, start_s, start_s + limit, cores_asked(job.request), fit)

    def _choose_again(self) -> None:
        """Make the only reservation again at the same time, at other targets if that leaves more to others now."""
        self._moved = False
        (kept,) = self._kept.values()
        job = self._jobs[kept.jobid]
        self.drop(kept.jobid)
        again = self._seek(job, kept.start_s, kept.start_s)
        self._enter(job, again if again.start_s == kept.start_s else kept)

    # ---- by trying, where there is more than cores and GPUs

    def _no_earlier(self, job: PendingJob) -> float:
        """Return a time before which the job cannot start, from which on it is tried."""
        if not job.request.parts:
            return self._now_s
        running = self._running
        return soonest(self._pool, running.busy_targets.idle_times(), job.shape, self._now_s)

    def _around_by_what_if(self, job: PendingJob, placement: str, fit: Fits | None) -> Fits | None:
        others = self._others(job.jobid, self._now_s, self._now_s + self._limit_s(job))
        if fit is not None and not touches(fit.blocks, others):
            return fit
        with WhatIf(self._pool) as what_if:
            _set_aside(what_if, others)
            return what_if.find(job.shape, placement)

    def _others(self, jobid: int, start_s: float, end_s: float) -> list[Block]:
        """Return the blocks reserved for other jobs at some time from one instant to before another."""
        return [
            block
            for kept in self._kept.values()
            if kept.fit is not None and kept.jobid != jobid
            if (kept.start_s < end_s or kept.jobid in self._claimed) and kept.end_s > start_s
            for block in kept.fit.blocks
        ]

    def _sweep(self, job: PendingJob, from_s: float, until_s: float, wanted: Fits | None = None) -> Reservation:
        """Goes through time as running jobs and reservations end, and tries the job from one instant to another.

        At `wanted`, if that is given, else anywhere. What others have in the meantime is not touched.
        """
        limit, asked = self._limit_s(job), cores_asked(job.request)
        free, at_s = self._running.free, from_s
        ends = self._ends()
        next_s, allocation, weight = next(ends, _NEVER)
        with WhatIf(self._pool) as what_if:
            while at_s <= until_s and at_s < inf:
                while next_s <= at_s and next_s < inf:
                    if allocation is not None:
                        what_if.give(allocation.blocks)
                        free += weight
                    next_s, allocation, weight = next(ends, _NEVER)
                if free >= asked:  # fewer cores are free in truth, if reservations have begun
                    fit = self._try(what_if, job, wanted, self._others(job.jobid, at_s, at_s + limit))
                    if fit is not None:
                        return Reservation(job.jobid, at_s, at_s + limit, asked, fit)
                at_s = next_s
        return Reservation(job.jobid, inf, inf, asked, None)

    def _try(self, what_if: WhatIf, job: PendingJob, wanted: Fits | None, others: list[Block]) -> Fits | None:
        mark = what_if.mark()
        try:
            _set_aside(what_if, others)
            if wanted is not None:
                return wanted if self._usable(job, wanted) and self._holds(what_if, wanted) else None
            if what_if.find(job.shape, BEST_FIT) is None:
                return None
            return what_if.find(job.shape, BEST_FIT, prefer_given=True)
        finally:
            what_if.back(mark)

    def _holds(self, what_if: WhatIf, wanted: Fits) -> bool:
        """Return whether exactly this placement can be taken in the what-if."""
        try:
            what_if.take(wanted.blocks)
        except LocalProtocolError:
            return False
        return True

    def _usable(self, job: PendingJob, fit: Fits) -> bool:
        narrowed = self._pool.narrowed.get(job.shape.number)
        return self._running.usable(fit.blocks) and (narrowed is None or narrowed.allows(fit.blocks))

    def _ends(self) -> Iterator[tuple[float, JobAllocation | None, int]]:
        """Yield the ends of running jobs and reservations in order, with the usable cores that jobs free then."""
        soon_s = nextafter(self._now_s, inf)
        running = ((max(end_s, soon_s), allocation, weight) for end_s, allocation, weight in self._running.by_end())
        kept = sorted(kept.end_s for kept in self._kept.values() if kept.end_s < inf)
        return merge(running, ((end_s, None, 0) for end_s in kept), key=itemgetter(0))


_NEVER: Final[tuple[float, JobAllocation | None, int]] = (inf, None, 0)


def _set_aside(what_if: WhatIf, blocks: Iterable[Block]) -> None:
    """Keep blocks one by one, since targets reserved for several jobs in sequence can be kept only once."""
    for block in blocks:
        what_if.keep((block,))


# ---- starts of several parts


def soonest(pool: Pool, idle_times: Sequence[tuple[float, int, int]], shape: Shape, now_s: float) -> float:
    """Return when all parts can have their minima; `inf` if not before jobs without an end have ended.

    `idle_times` are triples of an instant, 1, and the rank of a target that is whole from then on, ascending.
    """
    needs = [count.min for count in nodes_of(shape.request)]
    choices = choices_of(pool, shape.request, pool.narrowed.get(shape.number))
    now = Counter(_counts(suited_now([offers(choice, FIRST_FIT) for choice in choices])))

    def fits(later: Counter[int]) -> bool:
        return Hall(now + later, needs).shortfall() is None

    if fits(Counter()):
        return now_s
    up = ~pool.down.mask
    ever = [Bits.of(mask & up) for mask in suited_ever(choices)]
    suited = [_parts_at(ever, rank) for _, _, rank in idle_times]
    if not fits(_some(suited)):
        return inf
    first, last = 0, len(suited)  # too few by the first, enough by the last
    while last - first > 1:
        middle = (first + last) >> 1
        if fits(_some(suited[:middle])):
            last = middle
        else:
            first = middle
    return max(idle_times[last - 1][0], nextafter(now_s, inf))


def _counts(masks: Sequence[int]) -> Mapping[int, int]:
    return {some: mask.bit_count() for some, mask in by_suited(masks).items()}


def _some(suited: Sequence[int]) -> Counter[int]:
    """Return the number of targets by the set of parts they suit, without those that suit none."""
    found = Counter(suited)
    found.pop(0, None)
    return found


def _parts_at(masks: Sequence[Bits], rank: int) -> int:
    """Return the parts that a target suits, as a mask."""
    at, id, found = rank >> WORD_SHIFT, rank & LOW_BITS, 0
    for part, mask in enumerate(masks):
        found |= (mask.words.get(at, 0) >> id & 1) << part
    return found
