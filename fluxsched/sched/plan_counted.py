"""Plans by counting cores, where any free ones are as good as any others.

Law: exact. Jobs on equal units need only be counted: whoever is to start finds free units, whichever they are, since
the units that are free at its start stay free for it until those that are planned behind it begin, and these choose
their units then. A single reservation is asked of the index of running jobs itself; more of them make a profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, nextafter

from fluxsched.sched import placing
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.line import Skips, Waiting
from fluxsched.sched.outcome import Fits
from fluxsched.sched.plan import limit_s
from fluxsched.sched.pool import Pool
from fluxsched.sched.profile import Profile, Releases
from fluxsched.sched.running import RunningJobs


class CountedPlan:
    """A `Plan`; `last_s` is when the resources end."""

    __slots__ = ("_extra", "_kept", "_last_s", "_left_s", "_now_s", "_pool", "_profile", "_rooms", "_running", "skips")

    def __init__(self, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        self.skips = Skips()
        self._pool = pool
        self._running = running
        self._now_s = now_s
        self._last_s = last_s
        self._left_s = last_s - now_s
        self._kept: dict[int, Reservation] = {}
        self._profile: Profile | None = None
        self._rooms: dict[int, float] = {}  # for how long, from now on, so many cores can be had
        self._extra: int | None = None  # what a single reservation leaves when it begins

    def place(self, job: Waiting, placement: str) -> Fits | None:
        found = next(self.placeable((job,), placement), None)
        return found and found[1]

    def placeable(self, jobs: Iterable[Waiting | None], placement: str) -> Iterator[tuple[Waiting, Fits] | None]:
        running, rooms, left_s = self._running, self._rooms, self._left_s
        kinds, needs = self.skips.kinds, running.needs
        for job in jobs:
            if job is None:
                yield None
                continue
            known = needs.get(id(job.request))
            cores = known[1] if known is not None else running.need(job.request)
            if cores > running.free:
                kinds.add(id(job.request))
                continue
            if self._kept:
                room_s = rooms.get(cores)
                if room_s is None:
                    room_s = rooms[cores] = self._room_s(cores)
                if room_s < (job.duration_s or inf) and room_s < left_s:
                    self.skips.too_long(job.request, nextafter(room_s, inf))
                    continue
            fit = placing.find(self._pool, job.request, placement)
            if fit is None:
                kinds.add(id(job.request))
            else:
                yield job, fit

    def reserve(self, job: Waiting) -> Reservation:
        cores, limit = self._running.need(job.request), limit_s(job, self._left_s)
        return self._keep(job, self._earliest(cores, limit), limit, cores)

    def seat(self, job: Waiting, placement: str) -> Fits | Reservation:
        cores, limit = self._running.need(job.request), limit_s(job, self._left_s)
        start_s = self._earliest(cores, limit)
        fit = placing.find(self._pool, job.request, placement) if start_s == self._now_s else None
        return fit or self._keep(job, start_s, limit, cores)

    def keep(self, job: Waiting, old: Reservation) -> bool:
        cores, limit = self._running.need(job.request), limit_s(job, self._left_s)
        start_s = max(old.start_s, self._now_s)
        if not self._deep().fits(start_s, limit, cores):
            return False
        self._keep(job, start_s, limit, cores)
        return True

    def drop(self, jobid: int) -> None:
        old = self._kept.pop(jobid, None)
        if old is not None and old.start_s < inf:
            self._forget()
            if self._profile is not None:
                self._profile.take(old.start_s, old.end_s, -old.cores)

    def renew(self, now_s: float) -> bool:
        due = any(kept.start_s <= now_s for kept in self._kept.values())
        if due or self._profile is not None or not self._running.uniform:
            return False
        self._now_s = now_s
        self._left_s = self._last_s - now_s
        self._rooms.clear()
        return True

    def began(self, job: Waiting, fit: Fits) -> None:
        self.drop(job.jobid)
        self._forget()
        if self._profile is not None:  # what it has is no part of the profile, which was made before
            cores = self._running.need(job.request)
            self._profile.take(self._now_s, self._now_s + limit_s(job, self._left_s), cores)

    def _keep(self, job: Waiting, start_s: float, limit: float, cores: int) -> Reservation:
        made = self._kept[job.jobid] = Reservation(job.jobid, start_s, start_s + limit, cores, None)
        if start_s < inf:
            self._forget()
            if self._profile is not None:
                self._profile.take(start_s, made.end_s, cores)
        return made

    def _earliest(self, cores: int, limit: float) -> float:
        """When so many are free for so long."""
        if self._kept or self._profile is not None:
            return self._deep().earliest(cores, limit)
        missing = cores - self._running.free  # with no reservation, what is free once stays free
        return self._now_s if missing <= 0 else max(self._running.endings.when(missing), nextafter(self._now_s, inf))

    def _forget(self) -> None:
        """Something began or is planned: what is left for others is worked out again."""
        self._rooms.clear()
        self._extra = None

    def _room_s(self, cores: int) -> float:
        if self._profile is not None:
            return self._profile.room_s(cores)
        (only,) = self._kept.values()
        if only.start_s == inf:
            return inf
        if self._extra is None:
            running = self._running
            self._extra = running.free + running.endings.given_by(only.start_s) - only.cores
        return inf if self._extra >= cores else only.start_s - self._now_s

    def _deep(self) -> Profile:
        """The profile, made when it is needed for the first time."""
        if self._profile is None:
            running = self._running
            self._profile = Profile(Releases(running.endings, running.free, self._now_s), self._now_s)
            for kept in self._kept.values():
                if kept.start_s < inf:
                    self._profile.take(kept.start_s, kept.end_s, kept.cores)
        return self._profile
