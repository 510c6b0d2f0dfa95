"""Plans by counting cores, where any free ones are as good as any others.

Law: exact. Jobs on equal units need only be counted: a job that is to start finds free units, whichever they are, since
the units that are free at its start stay free for it until those that are planned behind it begin, and these choose
their units then. A single reservation is asked of the index of running jobs itself; more of them make a profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nextafter
from sys import float_info
from typing import Final

from fluxsched.sched.decisions import Reservation
from fluxsched.sched.plan.base import Planner, least_beyond
from fluxsched.sched.plan.profile import Profile
from fluxsched.sched.plan.releases import JobRelease
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import Fits, cores_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue.sorted_jobs import Skips, Waiting

LONGEST_S = float_info.max
"""The limit of a job that has none: less only than `inf`, which no limit reaches."""

UNKNOWN: Final = -1.0
"""A limit that was not worked out."""


class Shadow(Skips):
    """What is free now: `extra` cores for ever, the others until `shadow_s`, when the only reservation begins.

    Both are named as in the literature on EASY. So of all requests in a stretch of the queue it is known at once which
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
        """A new pass: there is no reservation, and no request was tried."""
        self.unfit.clear()
        self.long.clear()
        self.extra = self.shadow_s = self._short_s = inf

    def lift(self) -> None:
        """No reservation, or more than one."""
        self.extra = self.shadow_s = self._short_s = inf

    def set(self, shadow_s: float, extra: int, now_s: float) -> None:
        """The only reservation begins at `shadow_s`, and so many cores will still be free then."""
        self.extra = float(extra)
        self.shadow_s = shadow_s
        self._now_s, self._short_s = now_s, UNKNOWN

    def advance(self, now_s: float) -> None:
        """Time has gone on."""
        self._now_s, self._short_s = now_s, UNKNOWN

    @property
    def short_s(self) -> float:
        """The shortest limit with which a job that starts now is not over by then; worked out when it matters."""
        if self._short_s < 0:
            self._short_s = least_beyond(self.shadow_s, self._now_s)
        return self._short_s

    def began(self, release: JobRelease) -> None:
        """A job was started: it takes `extra` cores unless it ends before the shadow."""
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

    __slots__ = ("_going", "_held", "_profile", "_shadow", "_short_s_of")

    def __init__(self, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        self._shadow = Shadow(running)
        super().__init__(self._shadow, pool, running, now_s, last_s)
        self._profile: Profile | None = None
        self._short_s_of: dict[int, float] = {}  # the shortest limit that is too long for so many cores from now on
        self._going = 0  # cores that are about to come free for those with a claim
        self._held = 0  # cores that are free, and are kept for those from now on

    def anew(self, now_s: float, last_s: float) -> CountedPlan:
        """Resets the plan for the next pass, which costs less than making a new one."""
        self._now_s, self._last_s, self._left_s = now_s, last_s, last_s - now_s
        self._kept.clear()
        self._claimed.clear()
        self._held = 0
        self._profile = None
        self._short_s_of.clear()
        self._shadow.clear()
        return self

    def place(self, job: Waiting, placement: str) -> Fits | None:
        shape, running = job.shape, self._running
        known = running.needs.get(shape.number)
        cores = known if known is not None else running.need(shape)
        if cores <= running.free:
            short_s = self._short_s(cores)
            if short_s <= (job.duration_s or LONGEST_S):
                self.skips.too_long(job, short_s)
                return None
            fit = find_fit(self._pool, shape, placement)
            if fit is not None:
                return fit
        self.skips.unfit.add(shape.number)
        return None

    def rules_out(self, job: Waiting, now_s: float) -> bool:
        shape, running, shadow = job.shape, self._running, self._shadow
        known = running.needs.get(shape.number)
        cores = known if known is not None else running.need(shape)
        if cores > running.free:
            return not self._is_due(now_s)
        too_long = cores > shadow.extra and now_s + (job.duration_s or LONGEST_S) > shadow.shadow_s
        return too_long and not self._is_due(now_s)

    def reserve(self, job: Waiting) -> Reservation:
        kept = self._kept.get(job.jobid)
        if kept is not None:
            return kept
        cores, limit = self._running.need(job.shape), self._limit_s(job)
        if self._kept or self._profile is not None:
            return self._keep(job, self._deep().earliest(cores, limit), limit, cores)
        now_s, running = self._now_s, self._running  # with no reservation, what is free once stays free
        start_s, given = running.releases.when(cores - running.free)
        soon_s = now_s if cores <= running.free else nextafter(now_s, inf)
        if start_s < soon_s:
            start_s, given = soon_s, running.releases.given_by(soon_s)
        if start_s < self._last_s:
            self._shadow.set(start_s, running.free + given - cores, now_s)
        return self._keep(job, start_s, limit, cores)

    def seat(self, job: Waiting, placement: str) -> Fits | Reservation:
        kept = self._kept.get(job.jobid)
        if kept is not None:
            return kept
        if not self._kept and self._profile is None:
            return self.place(job, placement) or self.reserve(job)
        cores, limit = self._running.need(job.shape), self._limit_s(job)
        start_s = self._deep().earliest(cores, limit)
        fit = find_fit(self._pool, job.shape, placement) if start_s == self._now_s else None
        return fit or self._keep(job, start_s, limit, cores)

    def keep(self, job: Waiting, old: Reservation) -> bool:
        if job.jobid in self._kept:
            return True
        cores, limit = self._running.need(job.shape), self._limit_s(job)
        start_s = max(old.start_s, self._now_s)
        if not self._deep().fits(start_s, limit, cores):
            return False
        self._keep(job, start_s, limit, cores)
        return True

    def claim(self, job: Waiting, old: Reservation, going: Iterable[int]) -> Reservation | None:
        jobid, running = job.jobid, self._running
        if not self.keep(job, self._not_now(old)):
            return None
        self._going = sum([running.releases.weight_of(each) for each in going]) + running.weight_leaving
        self._claimed.add(jobid)
        self._hold()
        made = self._kept[jobid] = self._kept[jobid]._replace(fit=old.fit)  # for when places matter again
        return made

    def _hold(self) -> None:
        """Of what is claimed, all that is not about to come free has to be free from now on."""
        held = max(0, sum([self._kept[jobid].cores for jobid in self._claimed]) - self._going)
        self._take(self._now_s, nextafter(self._now_s, inf), held - self._held)
        self._held = held

    def settle(self, job: Waiting, old: Reservation) -> bool:
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
        if not self._running.uniform:
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

    def began(self, job: Waiting, fit: Fits) -> None:
        if job.jobid in self._kept:
            self.waive(job.jobid)
        if self._profile is not None:  # what it has is no part of the profile, which was made before
            self._take(self._now_s, self._now_s + self._limit_s(job), self._running.need(job.shape))
        elif self._kept:
            release = self._running.releases.get(job.jobid)
            if release is not None:
                self._shadow.began(release)

    def grew(self, job: Waiting, fit: Fits) -> None:
        """A running job has got more; `job` stands for that part."""
        cores, end_s = cores_in(fit.blocks), self._now_s + self._limit_s(job)
        if self._profile is not None:
            self._take(self._now_s, end_s, cores)
        elif self._kept:
            self._shadow.began(JobRelease(end_s, job.jobid, cores))

    def _keep(self, job: Waiting, start_s: float, limit: float, cores: int) -> Reservation:
        made = self._kept[job.jobid] = _reservation(Reservation, (job.jobid, start_s, start_s + limit, cores, None))
        if self._profile is not None and start_s < inf:
            self._take(start_s, made.end_s, cores)
        return made

    def _take(self, start_s: float, end_s: float, cores: int) -> None:
        """Changes the profile, and what is known of it."""
        assert self._profile is not None
        self._profile.take(start_s, end_s, cores)
        self._short_s_of.clear()

    def _short_s(self, cores: int) -> float:
        """The shortest limit that is too long for so many cores; `inf` if none is."""
        if self._profile is None:
            return self._shadow.short_s if cores > self._shadow.extra else inf
        short_s = self._short_s_of.get(cores)
        if short_s is None:
            until_s = self._profile.free_until_s(cores)
            short_s = self._short_s_of[cores] = least_beyond(until_s, self._now_s) if until_s < self._last_s else inf
        return short_s

    def _deep(self) -> Profile:
        """The profile, made when it is needed for the first time."""
        if self._profile is None:
            running = self._running
            self._profile = Profile(running.releases, running.free, self._now_s)
            for kept in self._kept.values():
                if kept.start_s < inf:
                    self._take(kept.start_s, kept.end_s, kept.cores)
            self._shadow.lift()
        return self._profile


_reservation: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once a pass
