"""Reservations of one pass, which job is to start when (EASY's shadow time), worked out by counting free cores; and
`Plan`, the interface of this and of `pool_plan`.

Law: a reservation is kept by what is placed: a job placed now touches nothing that another job is to get before its
limit ends. There are two ways to know that, which with one reservation give the same answers:

- by counting (here), where targets are equal, every request and every running job takes them whole, or there is one
  target (`RunningJobs.need`): a job that is to start finds free units, whichever they are. Costs O(log n) a question. A
  single reservation is asked of the index of running jobs; more of them make a profile, whose steps are kept in chunks
  with their extremes.
  Beside outages there is one reservation at most: which free targets it may have is known by counting those that the
  outages keep from it.
- on the real pool (`plan.pool_plan`), with constraints, GPUs and partly used targets: what-if changes. There each
  reservation has its place, so that several of them may leave less room than their numbers would.

Time is seconds of wall time; a job that runs past its end is taken to end at any time from now on.

Targets of amounts that are kept for jobs that fit nowhere: one job a target, one target a job.

Law: a target that is kept is withheld from the pool's indexes, so that only its job is placed there. It is offered
again when its job starts or leaves, when it leaves or goes down itself, and after RESERVED_MAX_S.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from math import fsum, inf, nextafter, ulp
from operator import itemgetter
from sys import float_info
from typing import Final, Protocol

from fluxsched.core.idset import Idset
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.plan.running_jobs import JobRelease, ReleaseIndex, RunningJobs
from fluxsched.sched.pool.find_fit import LeftOut, find_fit
from fluxsched.sched.pool.placement import BEST_FIT, NO_TARGET, WORD_SHIFT, Fits, cores_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import PendingJob, Skips

RESERVED_MAX_S = 300.0
"""Time after which a reserved target is released (seconds), since no end is known of what runs there.

Others may then use the target, and the job may reserve again.
"""


class ReservedNodes:
    """`by_job` maps jobs to ranks, in the order in which they got them; `changed` is called when one is offered."""

    __slots__ = ("_by_rank", "_changed", "_pool", "_since_s", "by_job")

    def __init__(self, pool: Pool, changed: Callable[[], None]) -> None:
        self._pool = pool
        self._changed = changed
        self.by_job: dict[int, int] = {}
        self._by_rank: dict[int, int] = {}
        self._since_s: dict[int, float] = {}

    def reserve(self, jobid: int, rank: int, now_s: float) -> bool:
        """Keep a target from now on, unless the job has another one, or another has it."""
        if self.by_job.get(jobid) == rank:
            return True
        target = self._pool.amount_targets.by_rank.get(rank)
        if target is None or jobid in self.by_job or rank in self._by_rank:
            return False
        self._pool.withhold(rank)
        self.by_job[jobid] = rank
        self._by_rank[rank] = jobid
        self._since_s[jobid] = now_s
        return True

    def clear(self, jobid: int, rank: int) -> None:
        """Release the job's reservation of another target, and another job's reservation of this one."""
        if self.by_job.get(jobid, rank) != rank:
            self.release(jobid)
        holder = self._by_rank.get(rank, jobid)
        if holder != jobid:
            self.release(holder)

    def holder(self, rank: int) -> int | None:
        """Return the job for which a target is reserved, or None."""
        return self._by_rank.get(rank)

    def release(self, jobid: int) -> None:
        """Release the reservation of a job that has started or was removed."""
        rank = self.by_job.pop(jobid, None)
        if rank is not None:
            del self._by_rank[rank], self._since_s[jobid]
            if rank in self._pool.amount_targets.by_rank:
                self._pool.offer(rank)
            self._changed()

    def release_on(self, ranks: Idset) -> None:
        """Release reservations of targets that have left or went down."""
        for rank in [rank for rank in self._by_rank if rank in ranks]:
            self.release(self._by_rank[rank])

    def lapse(self, now_s: float) -> None:
        """Release reservations that have lasted for too long."""
        for jobid, since_s in list(self._since_s.items()):
            if since_s + RESERVED_MAX_S > now_s:
                return  # they are in the order of their beginning
            self.release(jobid)

    @property
    def next_s(self) -> float:
        """Return when the next reservation ends (wall time, seconds; inf if there is none)."""
        return next(iter(self._since_s.values()), inf) + RESERVED_MAX_S

    def may_reserve(self, rank: int) -> bool:
        """Return whether a target is usable and reserved for no job."""
        target = self._pool.amount_targets.by_rank.get(rank)
        return target is not None and target.usable

    @property
    def all_taken(self) -> bool:
        """Return whether each target is reserved for a job."""
        return len(self.by_job) >= len(self._pool.amount_targets.by_rank)

    def best_first(self, job: PendingJob) -> list[int]:
        """Return the usable targets that could hold the job if they were empty and are kept for none, the best first.

        That is the one that lacks least: what is lacking is measured by the request, kind by kind, and the largest part
        of it counts; then the lowest rank. Linear in the targets.
        """
        need = job.request.amounts
        allowed = self._pool.amount_targets.allowed(job.request.constraint)
        narrowed = self._pool.narrowed.get(job.shape.number)  # what plugins leave
        found: list[tuple[float, int]] = []
        for rank, target in self._pool.amount_targets.by_rank.items():
            if not target.usable or not target.could_hold(need) or (allowed is not None and rank not in allowed):
                continue
            if narrowed is not None and not narrowed.ranks >> rank & 1:
                continue
            free = target.free
            lacks = max([(amount - free.get(kind, 0)) / amount for kind, amount in need], default=0.0)
            found.append((lacks, rank))
        found.sort()
        return [rank for _, rank in found]

    def check(self) -> None:
        """Assert that both tables say the same."""
        assert {rank: jobid for jobid, rank in self.by_job.items()} == self._by_rank
        assert self._since_s.keys() == self.by_job.keys()


# ---- the interface of plans


class Plan(Protocol):
    """Reservations of one pass as a policy uses them (`view.plan`), also those of the group's other queues.

    `seat` is for jobs that are to have a reservation if they cannot start, `place` for those that backfill. The owner
    of a job, and the other queues, know of a reservation once the policy yields it (`Reserve`). `skips` names jobs
    that need not be tried again in this pass.
    """

    skips: Skips

    def seat(self, job: PendingJob, placement: str) -> Fits | Reservation:
        """Return a placement if the job may start now, else its reservation at the earliest time that delays no other.

        A job that has a reservation in this pass keeps it, even if it could start now: `drop` that first.
        """
        ...

    def place(self, job: PendingJob, placement: str) -> Fits | None:
        """Return a placement for the job now that delays no reservation but its own; None if there is none.

        No reservation is made.
        """
        ...

    def placeable(self, jobs: Iterable[PendingJob | None], placement: str) -> Iterator[tuple[PendingJob, Fits] | None]:
        """Yield the jobs that `place` finds a placement for, each with it: yield a Start for each before the next.

        None, which `view.candidates` yields now and then, is passed on: yield PAUSE for it.
        """
        ...

    def reserve(self, job: PendingJob) -> Reservation:
        """Return the reservation of the job, made at the earliest time that delays no other if it has none."""
        ...

    def has(self, jobid: int) -> bool:
        """Return whether the job has a reservation."""
        ...

    def keep(self, job: PendingJob, old: Reservation) -> bool:
        """Reserve for the job when it was planned before (`view.planned`); return False, with nothing reserved, if
        another reservation is in its way now.
        """
        ...

    def claim(self, job: PendingJob, old: Reservation, going: Iterable[int]) -> Reservation | None:
        """Reserve the very targets that were planned before, as far as they are free or become free.

        `going` are the running jobs that are about to end. Return None if the reservation is no longer possible.
        """
        ...

    def drop(self, jobid: int) -> None:
        """Cancel a reservation; a claim stands."""
        ...

    def waive(self, jobid: int) -> None:
        """Cancel a reservation, even a claim."""
        ...


class Planner:
    """Common part of both kinds of plan; `last_s` is when the resources end."""

    __slots__ = ("_claimed", "_kept", "_last_s", "_left_s", "_now_s", "_pool", "_running", "skips")

    def __init__(self, skips: Skips, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        self.skips = skips
        self._pool = pool
        self._running = running
        self._now_s = now_s
        self._last_s = last_s
        self._left_s = last_s - now_s
        self._kept: dict[int, Reservation] = {}
        self._claimed: set[int] = set()  # of these

    def place(self, job: PendingJob, placement: str) -> Fits | None:
        raise NotImplementedError

    def placeable(self, jobs: Iterable[PendingJob | None], placement: str) -> Iterator[tuple[PendingJob, Fits] | None]:
        place, running = self.place, self._running
        if not running.free:
            return  # every job takes at least one core
        for job in jobs:
            if job is None:
                yield None
                continue
            fit = place(job, placement)
            if fit is not None:
                yield job, fit
                if not running.free:
                    return

    def waive(self, jobid: int) -> None:
        raise NotImplementedError

    def drop(self, jobid: int) -> None:
        if jobid not in self._claimed:
            self.waive(jobid)

    def has(self, jobid: int) -> bool:
        return jobid in self._kept

    def rules_out(self, job: PendingJob, now_s: float) -> bool:
        """Return whether the job, which arrives at `now_s`, cannot start until something is freed."""
        return find_fit(self._pool, job.shape, BEST_FIT) is None and not self._is_due(now_s)

    def _is_due(self, now_s: float) -> bool:
        """Return whether the start of a reservation is due."""
        for kept in self._kept.values():  # noqa: SIM110 - a generator costs more, with each arrival
            if kept.start_s <= now_s:
                return True
        return False

    def renew(self, now_s: float) -> bool:
        if self._claimed or self._is_due(now_s):
            return False
        self._now_s = now_s
        self._left_s = self._last_s - now_s
        return True

    def settle(self, job: PendingJob, old: Reservation) -> bool:
        """Plan the job again if its reservation equals that of the last pass; called by the engine."""
        return False

    def _not_now(self, old: Reservation) -> Reservation:
        """Return the reservation with a start later than now: resources not released when expected may be at any
        time.
        """
        soon_s = nextafter(self._now_s, inf)
        return old if old.start_s >= soon_s else old._replace(start_s=soon_s)

    def _limit_s(self, job: PendingJob) -> float:
        """Return the time limit of the job if it starts now, bounded by the end of the resources (seconds)."""
        limit_s = job.duration_s or inf
        return limit_s if limit_s < self._left_s else self._left_s


def least_beyond(until_s: float, part_s: float) -> float:
    """Return the least that, added to `part_s`, gives more than `until_s`, as doubles add.

    A plan and what becomes of it have to agree on which jobs end by then, and that is known as begin + limit, rounded.
    The difference of two times is rounded otherwise: for times of the present day the two disagree once in a hundred
    where limits have decimals.
    """
    rest_s = fsum((until_s, ulp(until_s) / 2, -part_s))
    return rest_s if rest_s + part_s > until_s else nextafter(rest_s, inf)


# ---- plans that count cores

LONGEST_S: Final = float_info.max
"""The limit of a job that has none: less only than `inf`, which no limit reaches."""

UNKNOWN: Final = -1.0
"""A limit that was not worked out."""


class Shadow(Skips):
    """Free cores as of now: `extra` cores for ever, the others until `shadow_s`, when the only reservation begins.

    Both are named as in the literature on EASY. By them it is known at once which requests in a stretch of the queue
    cannot start, or not for `short_s` or longer.
    """

    __slots__ = ("_now_s", "_running", "_short_s", "extra", "shadow_s")

    def __init__(self, running: RunningJobs) -> None:
        super().__init__()
        self._running = running
        self._now_s = 0.0
        self.extra: float = inf
        self.shadow_s: float = inf
        self._short_s: float = inf

    def clear(self) -> None:
        """Begin a pass: there is no reservation, and no request was tried."""
        self.unfit.clear()
        self.long.clear()
        self.extra = self.shadow_s = self._short_s = inf

    def lift(self) -> None:
        """Clear the shadow: there is no reservation, or more than one."""
        self.extra = self.shadow_s = self._short_s = inf

    def set(self, shadow_s: float, extra: int, now_s: float) -> None:
        """Set the shadow to the begin of the only reservation, at which `extra` cores are still free."""
        self.extra = float(extra)
        self.shadow_s = shadow_s
        self._now_s, self._short_s = now_s, UNKNOWN

    def advance(self, now_s: float) -> None:
        """Set the time to `now_s`."""
        self._now_s, self._short_s = now_s, UNKNOWN

    @property
    def short_s(self) -> float:
        """The shortest limit with which a job that starts now is not over by then; worked out when it matters."""
        if self._short_s < 0:
            self._short_s = least_beyond(self.shadow_s, self._now_s)
        return self._short_s

    def began(self, release: JobRelease) -> None:
        """Subtract the cores of a started job from `extra` unless it ends before the shadow."""
        if release.end_s > self.shadow_s:
            self.extra -= release.weight

    def see_shapes(self, numbers: Iterable[int]) -> None:
        running, extra, short_s = self._running, self.extra, self._short_s
        needs, free, unfit, long = running.needs, running.free, self.unfit, self.long
        try:
            for number in numbers:
                cores = needs[number]
                if cores > free:
                    unfit.add(number)
                elif cores > extra:
                    if short_s < 0:
                        short_s = self.short_s
                    long[number] = short_s
        except KeyError:
            return  # a need was forgotten: then it is asked for job by job


class CountedPlan(Planner):
    """A `Plan` of numbers. The first reservation casts a shadow; from the second on there is a profile instead."""

    __slots__ = ("_barred", "_going", "_held", "_profile", "_shadow", "_short_s_of", "_spare")

    def __init__(self, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        self._shadow = Shadow(running)
        super().__init__(self._shadow, pool, running, now_s, last_s)
        self._profile: Profile | None = None
        self._short_s_of: dict[int, float] = {}  # the shortest limit that is too long for so many cores from now on
        self._going = 0  # cores that are about to come free for those with a claim
        self._held = 0  # cores that are free, and are kept for those from now on
        self._barred = 0  # the targets that outages keep from the only reservation
        self._spare = 0  # cores beside these that are free at its start, and not its own
        self.skips.by_limit = bool(pool.outages)

    def anew(self, now_s: float, last_s: float) -> CountedPlan:
        """Reset the plan for the next pass, which costs less than making a new one."""
        self._now_s, self._last_s, self._left_s = now_s, last_s, last_s - now_s
        self._kept.clear()
        self._claimed.clear()
        self._held = 0
        self._profile = None
        self._short_s_of.clear()
        self._shadow.clear()
        self._barred = self._spare = 0
        self.skips.by_limit = bool(self._pool.outages)
        return self

    def place(self, job: PendingJob, placement: str) -> Fits | None:
        shape, running = job.shape, self._running
        known = running.needs.get(shape.number)
        cores = known if known is not None else running.need(shape)
        if cores <= running.free:
            short_s = self._short_s(cores)
            if short_s <= (job.duration_s or LONGEST_S):
                self.skips.too_long(job, short_s)
                return None
            if self._pool.outages:
                return self._place_beside(job, placement)
            fit = find_fit(self._pool, shape, placement)
            if fit is not None:
                return fit
        self.skips.unfit.add(shape.number)
        return None

    def rules_out(self, job: PendingJob, now_s: float) -> bool:
        shape, running, shadow = job.shape, self._running, self._shadow
        known = running.needs.get(shape.number)
        cores = known if known is not None else running.need(shape)
        if cores > running.free:
            return not self._is_due(now_s)
        if self._pool.outages:
            return False
        too_long = cores > shadow.extra and now_s + (job.duration_s or LONGEST_S) > shadow.shadow_s
        return too_long and not self._is_due(now_s)

    def reserve(self, job: PendingJob) -> Reservation:
        kept = self._kept.get(job.jobid)
        if kept is not None:
            return kept
        cores, limit = self._running.need(job.shape), self._limit_s(job)
        if self._kept or self._profile is not None:
            return self._keep(job, self._deep().earliest(cores, limit), limit, cores)
        if self._pool.outages:
            return self._keep(job, self._earliest_beside(cores, limit), limit, cores)
        now_s, running = self._now_s, self._running  # with no reservation, what is free once stays free
        start_s, given = running.releases.when(cores - running.free)
        soon_s = now_s if cores <= running.free else nextafter(now_s, inf)
        if start_s < soon_s:
            start_s, given = soon_s, running.releases.given_by(soon_s)
        if start_s < self._last_s:
            self._shadow.set(start_s, running.free + given - cores, now_s)
        return self._keep(job, start_s, limit, cores)

    def seat(self, job: PendingJob, placement: str) -> Fits | Reservation:
        kept = self._kept.get(job.jobid)
        if kept is not None:
            return kept
        if not self._kept and self._profile is None:
            return self.place(job, placement) or self.reserve(job)
        cores, limit = self._running.need(job.shape), self._limit_s(job)
        start_s = self._deep().earliest(cores, limit)
        fit = find_fit(self._pool, job.shape, placement) if start_s == self._now_s else None
        return fit or self._keep(job, start_s, limit, cores)

    def keep(self, job: PendingJob, old: Reservation) -> bool:
        if job.jobid in self._kept:
            return True
        cores, limit = self._running.need(job.shape), self._limit_s(job)
        start_s = max(old.start_s, self._now_s)
        if not self._deep().fits(start_s, limit, cores):
            return False
        self._keep(job, start_s, limit, cores)
        return True

    def claim(self, job: PendingJob, old: Reservation, going: Iterable[int]) -> Reservation | None:
        jobid, running = job.jobid, self._running
        if not self.keep(job, self._not_now(old)):
            return None
        self._going = sum([running.releases.weight_of(each) for each in going]) + running.weight_leaving
        self._claimed.add(jobid)
        self._hold()
        made = self._kept[jobid] = self._kept[jobid]._replace(fit=old.fit)  # for when places matter again
        return made

    def _hold(self) -> None:
        """Take the claimed cores, except those about to become free, from now on."""
        held = max(0, sum([self._kept[jobid].cores for jobid in self._claimed]) - self._going)
        self._take(self._now_s, nextafter(self._now_s, inf), held - self._held)
        self._held = held

    def settle(self, job: PendingJob, old: Reservation) -> bool:
        if job.jobid in self._kept:
            self.drop(job.jobid)
        if old.start_s <= self._now_s:
            return False
        if not self._kept and self._profile is None:
            if self.reserve(job) == old:
                return True
            self.drop(job.jobid)
            return False
        needs, number = self._running.needs, job.shape.number
        if old.cores != (needs[number] if number in needs else self._running.need(job.shape)):
            return False  # planned by its place, as what it asks for: whole nodes may have more
        profile, limit = self._profile or self._deep(), self._limit_s(job)
        start_s = profile.earliest(old.cores, limit)
        if start_s != old.start_s or start_s + limit != old.end_s:
            return False
        self._kept[old.jobid] = old
        if start_s < inf:
            profile.take(start_s, old.end_s, old.cores)
            self._short_s_of.clear()
        return True

    def waive(self, jobid: int) -> None:
        old = self._kept.pop(jobid, None)
        if old is None:
            return
        if self._profile is None:
            self._shadow.lift()  # it was the only one
        elif old.start_s < inf:
            self._take(old.start_s, old.end_s, -old.cores)
            if jobid in self._claimed:
                self._claimed.remove(jobid)
                self._hold()

    def renew(self, now_s: float) -> bool:
        profile = self._profile
        if not (self._running.uniform or (self._pool.outages and self._running.are_whole)):
            return False
        if profile is not None and (self._last_s < inf or self._running.releases.first_s <= now_s):
            return False  # limits that end with the resources get shorter; a job past its end may end at any time
        if not super().renew(now_s):
            return False
        if profile is not None:
            profile.advance(now_s)
            self._short_s_of.clear()
        if self._shadow.shadow_s < inf:
            self._shadow.advance(now_s)
        return True

    def began(self, job: PendingJob, fit: Fits) -> None:
        if job.jobid in self._kept:
            self.waive(job.jobid)
        if self._profile is not None:  # what it has is no part of the profile, which was made before
            self._take(self._now_s, self._now_s + self._limit_s(job), self._running.need(job.shape))
        elif self._kept:
            release = self._running.releases.get(job.jobid)
            if release is not None:
                self._shadow.began(release)
                if release.end_s > self._shadow.shadow_s:
                    self._spare -= self._cores_beside(fit)

    # ---- beside outages

    def _place_beside(self, job: PendingJob, placement: str) -> Fits | None:
        """Return a placement that crosses no outage; one that outlasts the start of the reservation leaves it enough,
        perhaps since it is on targets that outages keep from that.
        """
        pool, shape, end_s = self._pool, job.shape, self._now_s + self._limit_s(job)
        with LeftOut(pool, shape, pool.outages.barred(self._now_s, end_s) & pool.ranks.mask):
            fit = find_fit(pool, shape, placement)
            if fit is not None and end_s > self._shadow.shadow_s and self._cores_beside(fit) > self._spare:
                with LeftOut(pool, shape, pool.ranks.mask & ~self._barred):
                    fit = find_fit(pool, shape, placement)
        if fit is None:
            self.skips.too_long(job, self._limit_s(job))
        return fit

    def _earliest_beside(self, cores: int, limit_s: float) -> float:
        """Return when so many cores are free first on targets that no outage keeps from then on, and set the shadow."""
        running, now_s = self._running, self._now_s
        soon_s = nextafter(now_s, inf)
        for begin_s, end_s, barred in self._pool.outages.stretches(limit_s, now_s, inf):
            barred &= self._pool.ranks.mask
            inside, lost = running.inside(barred), running.free_inside(barred)
            missing = cores - running.free + lost
            start_s, given = begin_s, 0
            if begin_s > now_s or missing > 0:
                start_s = max(begin_s, soon_s)
                given = running.releases.given_by(start_s) - inside.given_by(start_s)
                while given < missing and start_s <= end_s and start_s < inf:
                    start_s = running.releases.when(missing + inside.given_by(start_s))[0]
                    given = running.releases.given_by(start_s) - inside.given_by(start_s)
            if start_s <= end_s and start_s < self._last_s:
                self._barred, self._spare = barred, given - missing
                at_once = self._spare + lost  # a job that takes more now, and goes on, leaves too few
                self._shadow.set(start_s, at_once, now_s)
                return start_s
        return inf

    def _cores_beside(self, fit: Fits) -> int:
        """Return the cores of a placement on targets that outages do not keep from the reservation."""
        found = 0
        for at, word, cores, *_ in fit.blocks:
            if at != NO_TARGET:
                found += (word & ~(self._barred >> (at << WORD_SHIFT))).bit_count() * cores.bit_count()
        return found

    # ---- elastic jobs, and the profile

    def grew(self, job: PendingJob, fit: Fits) -> None:
        """Record that a running job has got more; `job` stands for that part."""
        cores, end_s = cores_in(fit.blocks), self._now_s + self._limit_s(job)
        if self._profile is not None:
            self._take(self._now_s, end_s, cores)
        elif self._kept:
            self._shadow.began(JobRelease(end_s, job.jobid, cores))

    def _keep(self, job: PendingJob, start_s: float, limit: float, cores: int) -> Reservation:
        made = self._kept[job.jobid] = _reservation(Reservation, (job.jobid, start_s, start_s + limit, cores, None))
        if self._profile is not None and start_s < inf:
            self._take(start_s, made.end_s, cores)
        return made

    def _take(self, start_s: float, end_s: float, cores: int) -> None:
        """Take cores from the profile, and discard values derived from it."""
        assert self._profile is not None
        self._profile.take(start_s, end_s, cores)
        self._short_s_of.clear()

    def _short_s(self, cores: int) -> float:
        """Return the shortest limit that is too long for this number of cores; `inf` if none is."""
        if self._profile is None:
            return self._shadow.short_s if cores > self._shadow.extra else inf
        short_s = self._short_s_of.get(cores)
        if short_s is None:
            until_s = self._profile.free_until_s(cores)
            short_s = self._short_s_of[cores] = least_beyond(until_s, self._now_s) if until_s < self._last_s else inf
        return short_s

    def _deep(self) -> Profile:
        """Return the profile, made when it is needed for the first time."""
        if self._profile is None:
            running = self._running
            self._profile = Profile(running.releases, running.free, self._now_s)
            for kept in self._kept.values():
                if kept.start_s < inf:
                    self._take(kept.start_s, kept.end_s, kept.cores)
            self._shadow.lift()
        return self._profile


_reservation: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once a pass


# ---- free cores over time

CHUNK = 64
"""Steps a chunk at rest (at most twice that): 200 chunks with 10,000 running jobs and 1,000 reservations."""

_end_s, _weight = itemgetter(0), itemgetter(2)


class Profile:
    """Free cores over time: those free now and those that `releases` free, less those taken.

    Chunk `c` has the times at which its steps begin and the free cores in each, still to be reduced by `owed[c]`;
    `least[c]` and `most[c]` are its extremes, and `firsts[c]` is when it begins. `bounds` has, by number of cores,
    limits and the times before which no job with such a limit, or a longer one, can start, until something is freed.
    """

    __slots__ = ("_bounds", "_firsts", "_free", "_least", "_most", "_now_s", "_owed", "_times")

    def __init__(self, releases: ReleaseIndex, free: int, now_s: float) -> None:
        ends: list[float] = [now_s, *map(_end_s, releases)]
        levels: list[int] = list(accumulate(map(_weight, releases), initial=free))
        late = bisect_right(ends, nextafter(now_s, inf), lo=1)
        if late > 1:  # a job past its end still runs, and may end at any time from now on
            ends[1:late] = [nextafter(now_s, inf)] * (late - 1)
        steps = dict(zip(ends, levels, strict=True))  # of jobs that end together the last one says what is free then
        steps.pop(inf, None)
        times, free_of = list(steps), list(steps.values())
        self._now_s = now_s
        self._bounds: dict[int, tuple[list[float], list[float]]] = {}
        self._times = [times[at : at + CHUNK] for at in range(0, len(times), CHUNK)]
        self._free = [free_of[at : at + CHUNK] for at in range(0, len(times), CHUNK)]
        self._firsts = [chunk[0] for chunk in self._times]
        self._owed = [0] * len(self._firsts)
        self._least = [chunk[0] for chunk in self._free]
        self._most = [chunk[-1] for chunk in self._free]

    def take(self, start_s: float, end_s: float, cores: int) -> None:
        """Reserves cores from `start_s` (now or later) to before `end_s`; a negative number gives them back."""
        if cores < 0:
            self._bounds.clear()
        firsts = self._firsts
        first, last = bisect_right(firsts, start_s) - 1, bisect_left(firsts, end_s) - 1
        if first < last:  # from behind, since chunks may be split
            self._take_in(last, firsts[last], end_s, cores)
            end_s = firsts[first + 1]
            for totals in (self._least, self._most):
                totals[first + 1 : last] = [count - cores for count in totals[first + 1 : last]]
            self._owed[first + 1 : last] = [owed + cores for owed in self._owed[first + 1 : last]]
        self._take_in(first, start_s, end_s, cores)

    def advance(self, now_s: float) -> None:
        """Set the time to `now_s`, with nothing else changed."""
        self._now_s = now_s
        passed = bisect_right(self._firsts, now_s) - 1
        if passed > 0:
            for chunks in (self._times, self._free, self._firsts, self._owed, self._least, self._most):
                del chunks[:passed]

    def earliest(self, cores: int, limit_s: float) -> float:
        """Return the first instant from which on `cores` are free for `limit_s`; `inf` if never."""
        bounds = self._bounds.get(cores)
        if bounds is None:
            bounds = self._bounds[cores] = [0.0], [-inf]
        limits, starts = bounds
        at = bisect_right(limits, limit_s)
        bound_s = starts[at - 1]
        found_s = self._search(cores, limit_s, bound_s if bound_s > self._now_s else self._now_s)
        if found_s > bound_s:
            until = bisect_right(starts, found_s, at)
            if limits[at - 1] == limit_s:
                at -= 1
            limits[at:until] = [limit_s]
            starts[at:until] = [found_s]
        return found_s

    def fits(self, start_s: float, limit_s: float, cores: int) -> bool:
        """Return whether `cores` are free from `start_s` on for `limit_s`."""
        return self._search(cores, limit_s, start_s, start_s) == start_s

    def free_until_s(self, cores: int) -> float:
        """Return until when `cores` are free from now on: now if they are not, `inf` if for ever."""
        now_s = self._now_s
        first = bisect_right(self._firsts, now_s) - 1
        for chunk in range(first, len(self._firsts)):
            if self._least[chunk] < cores:
                times, free, need = self._times[chunk], self._free[chunk], cores + self._owed[chunk]
                for step in range(bisect_right(times, now_s) - 1 if chunk == first else 0, len(times)):
                    if free[step] < need:
                        return max(times[step], now_s)
        return inf

    def _search(self, cores: int, limit_s: float, from_s: float, until_s: float = inf) -> float:
        """Return the earliest start at `from_s` or later; `inf` when there is none up to `until_s`."""
        firsts, least, most = self._firsts, self._least, self._most
        start_s, chunks = from_s, len(firsts)
        chunk = bisect_right(firsts, start_s) - 1
        end_s = start_s + limit_s
        while start_s <= until_s and start_s < inf:
            if least[chunk] < cores:
                if most[chunk] < cores:  # not enough anywhere in this chunk, nor in some that follow
                    chunk += 1
                    while chunk < chunks and most[chunk] < cores:
                        chunk += 1
                    if chunk == chunks:
                        return inf
                    start_s = firsts[chunk]
                    end_s = start_s + limit_s
                    continue
                start_s = self._within(chunk, cores, limit_s, start_s)
                end_s = start_s + limit_s
            chunk += 1
            if chunk == chunks or firsts[chunk] >= end_s:
                break
        return start_s if start_s <= until_s else inf

    def _within(self, chunk: int, cores: int, limit_s: float, start_s: float) -> float:
        """Return the earliest start that nothing in this chunk forbids; the start of the next chunk if there is
        none.
        """
        times, free, need = self._times[chunk], self._free[chunk], cores + self._owed[chunk]
        first, steps = max(bisect_right(times, start_s) - 1, 0), len(times)
        end_s, chunk_end_s = start_s + limit_s, self._end_of(chunk)
        if end_s >= chunk_end_s:  # what lacks last decides: it forbids every start before
            for step in range(steps - 1, first - 1, -1):
                if free[step] < need:
                    return times[step + 1] if step + 1 < steps else chunk_end_s
            return start_s
        lacking = False
        for step in range(first, steps):
            if free[step] < need:
                if not lacking:
                    if times[step] >= end_s:
                        return start_s
                    lacking = True
            elif lacking:
                lacking = False
                start_s = times[step]
                end_s = start_s + limit_s
        return chunk_end_s if lacking else start_s

    def _end_of(self, chunk: int) -> float:
        return self._firsts[chunk + 1] if chunk + 1 < len(self._firsts) else inf

    def _take_in(self, chunk: int, start_s: float, end_s: float, cores: int) -> None:
        """Subtract the cores within one chunk, with steps inserted at the begin and the end if there are none."""
        times, free, owed = self._times[chunk], self._free[chunk], self._owed[chunk]
        first = bisect_left(times, start_s)
        if first == len(times) or times[first] != start_s:
            times.insert(first, start_s)
            free.insert(first, free[first - 1])
        last = len(times)
        if end_s < self._end_of(chunk):
            last = bisect_left(times, end_s, first)
            if last == len(times) or times[last] != end_s:
                times.insert(last, end_s)
                free.insert(last, free[last - 1])
        free[first:last] = [count - cores for count in free[first:last]]
        self._least[chunk] = min(free) - owed
        self._most[chunk] = max(free) - owed
        if len(times) > 2 * CHUNK:
            self._split(chunk)

    def _split(self, chunk: int) -> None:
        times, free, owed = self._times[chunk], self._free[chunk], self._owed[chunk]
        self._times[chunk : chunk + 1] = times[:CHUNK], times[CHUNK:]
        self._free[chunk : chunk + 1] = free[:CHUNK], free[CHUNK:]
        self._owed[chunk : chunk + 1] = owed, owed
        self._firsts[chunk : chunk + 1] = times[0], times[CHUNK]
        self._least[chunk : chunk + 1] = min(free[:CHUNK]) - owed, min(free[CHUNK:]) - owed
        self._most[chunk : chunk + 1] = max(free[:CHUNK]) - owed, max(free[CHUNK:]) - owed
