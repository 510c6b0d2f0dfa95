"""Plans by counting cores, where any free ones are as good as any others.

Law: exact. Jobs on equal units need only be counted: whoever is to start finds free units, whichever they are, since
the units that are free at its start stay free for it until those that are planned behind it begin, and these choose
their units then. A single reservation is asked of the index of running jobs itself; more of them make a profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, nextafter
from sys import float_info

from fluxsched.sched import placing
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.line import Skips, Waiting
from fluxsched.sched.outcome import Fits
from fluxsched.sched.plan import Planner
from fluxsched.sched.pool import Pool
from fluxsched.sched.profile import Profile, Releases
from fluxsched.sched.rounding import least_beyond
from fluxsched.sched.running import RunningJobs

LONGEST_S = float_info.max
"""The limit of a job that has none: less only than `inf`, which is too long for nobody."""


class Room(Skips):
    """What is free now: `extra` cores for ever, the others until `until_s`, when a single reservation begins.

    So of all kinds of jobs in a stretch of the queue it is known at once which cannot start, or for so long only.
    """

    __slots__ = ("_running", "extra", "short_s")

    def __init__(self, running: RunningJobs) -> None:
        super().__init__()
        self._running = running
        self.extra = inf
        self.short_s = inf

    def look_over(self, kinds: Iterable[int]) -> None:
        needs, free = self._running.needs, self._running.free
        for kind in kinds:
            known = needs.get(kind)
            if known is not None:
                cores = known[1]
                if cores > free:
                    self.kinds.add(kind)
                elif cores > self.extra:
                    self.long[kind] = self.short_s


class CountedPlan(Planner):
    """A `Plan` of numbers."""

    __slots__ = ("_profile", "_room", "_rooms")

    def __init__(self, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        self._room = Room(running)
        super().__init__(self._room, pool, running, now_s, last_s)
        self._profile: Profile | None = None
        self._rooms: dict[int, float] = {}  # the shortest limit that is too long, from now on, for so many cores

    def place(self, job: Waiting, placement: str) -> Fits | None:
        request, running = job.request, self._running
        known = running.needs.get(id(request))
        cores = known[1] if known is not None else running.need(request)
        if cores <= running.free:
            short_s = self._short_s(cores)
            if short_s <= (job.duration_s or LONGEST_S):
                self.skips.too_long(request, short_s)
                return None
            fit = placing.find(self._pool, request, placement)
            if fit is not None:
                return fit
        self.skips.kinds.add(id(request))
        return None

    def reserve(self, job: Waiting) -> Reservation:
        cores, limit = self._running.need(job.request), self._limit_s(job)
        return self._keep(job, self._earliest(cores, limit), limit, cores)

    def seat(self, job: Waiting, placement: str) -> Fits | Reservation:
        cores, limit = self._running.need(job.request), self._limit_s(job)
        start_s = self._earliest(cores, limit)
        fit = placing.find(self._pool, job.request, placement) if start_s == self._now_s else None
        return fit or self._keep(job, start_s, limit, cores)

    def keep(self, job: Waiting, old: Reservation) -> bool:
        cores, limit = self._running.need(job.request), self._limit_s(job)
        start_s = max(old.start_s, self._now_s)
        if not self._deep().fits(start_s, limit, cores):
            return False
        self._keep(job, start_s, limit, cores)
        return True

    def drop(self, jobid: int) -> None:
        old = self._kept.pop(jobid, None)
        if old is not None and old.start_s < inf:
            if self._profile is not None:
                self._profile.take(old.start_s, old.end_s, -old.cores)
            self._look_again()

    def renew(self, now_s: float) -> bool:
        if self._profile is not None or not self._running.uniform or not super().renew(now_s):
            return False
        if self._room.short_s < inf:
            (only,) = self._kept.values()
            self._room.short_s = least_beyond(only.start_s, now_s)
        return True

    def began(self, job: Waiting, fit: Fits) -> None:
        if job.jobid in self._kept:
            self.drop(job.jobid)
        if self._profile is not None:  # what it has is no part of the profile, which was made before
            cores = self._running.need(job.request)
            self._profile.take(self._now_s, self._now_s + self._limit_s(job), cores)
        if self._kept:
            self._look_again()

    def _keep(self, job: Waiting, start_s: float, limit: float, cores: int) -> Reservation:
        made = self._kept[job.jobid] = Reservation(job.jobid, start_s, start_s + limit, cores, None)
        if start_s < inf:
            if self._profile is not None:
                self._profile.take(start_s, made.end_s, cores)
            self._look_again()
        return made

    def _earliest(self, cores: int, limit: float) -> float:
        """When so many are free for so long."""
        if self._kept or self._profile is not None:
            return self._deep().earliest(cores, limit)
        missing = cores - self._running.free  # with no reservation, what is free once stays free
        return self._now_s if missing <= 0 else max(self._running.endings.when(missing), nextafter(self._now_s, inf))

    def _look_again(self) -> None:
        """Something began or is planned: what that leaves to others."""
        self._rooms.clear()
        room, running = self._room, self._running
        room.extra = room.short_s = inf
        if len(self._kept) == 1 and self._profile is None:
            (only,) = self._kept.values()
            if only.start_s < self._last_s:
                room.extra = running.free + running.endings.given_by(only.start_s) - only.cores
                room.short_s = least_beyond(only.start_s, self._now_s)

    def _short_s(self, cores: int) -> float:
        """The shortest limit that is too long for so many cores; `inf` if none is."""
        if self._profile is None:
            return self._room.short_s if cores > self._room.extra else inf
        short_s = self._rooms.get(cores)
        if short_s is None:
            until_s = self._profile.free_until_s(cores)
            short_s = self._rooms[cores] = least_beyond(until_s, self._now_s) if until_s < self._last_s else inf
        return short_s

    def _deep(self) -> Profile:
        """The profile, made when it is needed for the first time."""
        if self._profile is None:
            running = self._running
            self._profile = Profile(Releases(running.endings, running.free, self._now_s), self._now_s)
            for kept in self._kept.values():
                if kept.start_s < inf:
                    self._profile.take(kept.start_s, kept.end_s, kept.cores)
            self._look_again()
        return self._profile
