"""Reservations of one pass: who is to start when, and what may start now without being in their way.

Law: a reservation is kept by what is placed, never by hope: a job placed now touches nothing that somebody who is ahead
of it is to get before its limit ends. Two ways to know that give the same answers where both apply:

- by counting (`CountedPlan`), where any free cores are as good as any others: targets are equal, every request and
  every running job takes them whole, or there is one target (`RunningJobs.need`). Costs O(log n) a question.
- on the real pool (`PoolPlan`), with constraints, GPUs and partly used targets: trial changes, undone.

Time is seconds of wall time; a job that runs past its end is taken to end at any time from now on.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from math import inf, nextafter
from operator import itemgetter
from typing import Protocol

from fluxsched.errors import LocalProtocolError
from fluxsched.sched import placing
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.ledger import Holding
from fluxsched.sched.line import Skips, Waiting
from fluxsched.sched.orders import cores_asked
from fluxsched.sched.outcome import Block, Fits
from fluxsched.sched.pool import Pool
from fluxsched.sched.profile import Profile, Releases
from fluxsched.sched.running import RunningJobs, touches
from fluxsched.sched.shelf import BEST_FIT
from fluxsched.sched.trial import Trial


class Plan(Protocol):
    """What a policy asks; `skips` names what need not be asked again in this pass."""

    skips: Skips

    def place(self, job: Waiting, placement: str) -> Fits | None:
        """Where the job may start now without being in the way of any reservation but its own."""
        ...

    def reserve(self, job: Waiting) -> Reservation:
        """Plans the job at the earliest time that harms no other reservation, which then is kept."""
        ...

    def seat(self, job: Waiting, placement: str) -> Fits | Reservation:
        """Where the job may start if that is now, else its reservation, which then is kept."""
        ...

    def keep(self, job: Waiting, old: Reservation) -> bool:
        """Plans the job when it was planned before; False, and nothing is kept, if that does not hold any more."""
        ...

    def drop(self, jobid: int) -> None:
        """Takes a reservation back."""
        ...

    def began(self, job: Waiting, fit: Fits) -> None:
        """The engine has made a start real; called by it, not by policies."""
        ...


class CountedPlan:
    """By counting cores. With `deep` for many reservations; without, asked of the running jobs themselves."""

    def __init__(self, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        self.skips = Skips()
        self._pool = pool
        self._running = running
        self._now_s = now_s
        self._last_s = last_s
        self._kept: dict[int, Reservation] = {}
        self._profile: Profile | None = None
        self._rooms: dict[int, float] = {}

    def place(self, job: Waiting, placement: str) -> Fits | None:
        cores, limit_s = self._running.need(job.request), self._limit_s(job)
        if cores > self._running.free:
            self.skips.kinds.add(id(job.request))
            return None
        if self._kept:
            room_s = self._room_s(cores)
            if room_s < limit_s:
                self.skips.too_long(job.request, nextafter(room_s, inf))
                return None
        fit = placing.find(self._pool, job.request, placement)
        if fit is None:
            self.skips.kinds.add(id(job.request))
        return fit

    def reserve(self, job: Waiting) -> Reservation:
        cores, limit_s = self._running.need(job.request), self._limit_s(job)
        if not self._kept and self._profile is None:
            return self._keep(job, self._first(cores), limit_s, cores)
        return self._keep(job, self._deep().earliest(cores, limit_s), limit_s, cores)

    def seat(self, job: Waiting, placement: str) -> Fits | Reservation:
        cores, limit_s = self._running.need(job.request), self._limit_s(job)
        start_s = self._deep().earliest(cores, limit_s)
        fit = placing.find(self._pool, job.request, placement) if start_s == self._now_s else None
        return fit or self._keep(job, start_s, limit_s, cores)

    def keep(self, job: Waiting, old: Reservation) -> bool:
        cores, limit_s = self._running.need(job.request), self._limit_s(job)
        start_s = max(old.start_s, self._now_s)
        if not self._deep().fits(start_s, limit_s, cores):
            return False
        self._keep(job, start_s, limit_s, cores)
        return True

    def drop(self, jobid: int) -> None:
        old = self._kept.pop(jobid, None)
        if old is not None and old.start_s < inf:
            self._rooms.clear()
            if self._profile is not None:
                self._profile.take(old.start_s, old.end_s, -old.cores)

    def began(self, job: Waiting, fit: Fits) -> None:
        self.drop(job.jobid)
        self._rooms.clear()
        if self._profile is not None:  # its releases were copied before
            end_s = self._now_s + self._limit_s(job)
            self._profile.take(self._now_s, end_s, self._running.need(job.request))

    def _keep(self, job: Waiting, start_s: float, limit_s: float, cores: int) -> Reservation:
        made = self._kept[job.jobid] = Reservation(job.jobid, start_s, start_s + limit_s, cores, None)
        if start_s < inf:
            self._rooms.clear()
            if self._profile is not None:
                self._profile.take(start_s, made.end_s, cores)
        return made

    def _limit_s(self, job: Waiting) -> float:
        return min(job.duration_s or inf, self._last_s - self._now_s)

    def _first(self, cores: int) -> float:
        """When so many are free, with no reservation but running jobs."""
        missing = cores - self._running.free
        return self._now_s if missing <= 0 else max(self._running.endings.when(missing), nextafter(self._now_s, inf))

    def _room_s(self, cores: int) -> float:
        """For how long, from now on, so many cores can be had."""
        room_s = self._rooms.get(cores)
        if room_s is None:
            if self._profile is not None:
                room_s = self._profile.room_s(cores)
            else:
                (only,) = self._kept.values()
                room_s = inf
                if only.start_s < inf:
                    free = self._running.free + self._running.endings.given_by(only.start_s)
                    room_s = only.start_s - self._now_s if free - only.cores < cores else inf
            self._rooms[cores] = room_s
        return room_s

    def _deep(self) -> Profile:
        """The profile, made at the second reservation: a single one needs none."""
        if self._profile is None:
            running = self._running
            self._profile = Profile(Releases(running.endings, running.free, self._now_s), self._now_s)
            for kept in self._kept.values():
                if kept.start_s < inf:
                    self._profile.take(kept.start_s, kept.end_s, kept.cores)
        return self._profile


class PoolPlan:
    """On the real pool. Reservations prefer what is busy now, so that what is free now stays of use to others."""

    def __init__(self, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        self.skips = Skips()
        self._pool = pool
        self._running = running
        self._now_s = now_s
        self._last_s = last_s
        self._kept: dict[int, Reservation] = {}
        self._jobs: dict[int, Waiting] = {}
        self._moved = False  # something began since the reservation was placed: there may be a better place for it

    def place(self, job: Waiting, placement: str) -> Fits | None:
        fit = placing.find(self._pool, job.request, placement)
        if fit is None:
            self.skips.kinds.add(id(job.request))
            return None
        end_s = self._now_s + self._limit_s(job)
        others = self._others(job.jobid, self._now_s, end_s)
        if not touches(fit.blocks, others):
            return fit
        fit = self._around(job, placement, others)
        if fit is None and self._moved and len(self._kept) == 1:
            self._choose_again()
            fit = self._around(job, placement, self._others(job.jobid, self._now_s, end_s))
        if fit is None:
            self.skips.too_long(job.request, end_s - self._now_s)
        return fit

    def reserve(self, job: Waiting) -> Reservation:
        return self._enter(job, self._sweep(job, self._now_s, inf))

    def seat(self, job: Waiting, placement: str) -> Fits | Reservation:
        return self.place(job, placement) or self.reserve(job)

    def keep(self, job: Waiting, old: Reservation) -> bool:
        start_s = max(old.start_s, self._now_s)
        made = self._sweep(job, start_s, start_s, old.fit)
        return made.start_s < inf and bool(self._enter(job, made))

    def drop(self, jobid: int) -> None:
        self._kept.pop(jobid, None)
        self._jobs.pop(jobid, None)

    def began(self, job: Waiting, fit: Fits) -> None:
        self.drop(job.jobid)
        self._moved = True

    def _limit_s(self, job: Waiting) -> float:
        return min(job.duration_s or inf, self._last_s - self._now_s)

    def _enter(self, job: Waiting, made: Reservation) -> Reservation:
        self._kept[job.jobid], self._jobs[job.jobid] = made, job
        return made

    def _others(self, jobid: int, start_s: float, end_s: float) -> list[Block]:
        """What other jobs are to have at some time from one instant to before another."""
        return [
            block
            for kept in self._kept.values()
            if kept.fit is not None and kept.start_s < end_s and kept.end_s > start_s and kept.jobid != jobid
            for block in kept.fit.blocks
        ]

    def _around(self, job: Waiting, placement: str, others: list[Block]) -> Fits | None:
        with Trial(self._pool) as trial:
            return trial.find(job.request, placement, avoid=others)

    def _choose_again(self) -> None:
        """The same reservation at the same time, at other places if that leaves more to others now."""
        self._moved = False
        (kept,) = self._kept.values()
        again = self._sweep(self._jobs[kept.jobid], kept.start_s, kept.start_s)
        if again.start_s == kept.start_s:
            self._kept[kept.jobid] = again

    def _sweep(self, job: Waiting, from_s: float, until_s: float, wanted: Fits | None = None) -> Reservation:
        """Goes through time as running jobs and reservations end, and tries the job from one instant to another.

        At `wanted`, if that is given, else anywhere. What others have in the meantime is not touched.
        """
        limit_s, asked = self._limit_s(job), cores_asked(job.request)
        free, at_s = self._running.free, from_s
        ends = self._ends()
        next_s, holding = next(ends, _NEVER)
        with Trial(self._pool) as trial:
            while at_s <= until_s and at_s < inf:
                while next_s <= at_s:
                    if holding is not None:
                        trial.give(holding.blocks)
                        free += self._running.weight(holding)
                    next_s, holding = next(ends, _NEVER)
                if free >= asked:  # fewer cores are free in truth, if reservations have begun
                    fit = self._try(trial, job, wanted, self._others(job.jobid, at_s, at_s + limit_s))
                    if fit is not None:
                        return Reservation(job.jobid, at_s, at_s + limit_s, asked, fit)
                at_s = next_s
        return Reservation(job.jobid, inf, inf, asked, None)

    def _try(self, trial: Trial, job: Waiting, wanted: Fits | None, others: list[Block]) -> Fits | None:
        if wanted is not None:
            return wanted if self._holds(trial, wanted, others) else None
        if trial.find(job.request, BEST_FIT, avoid=others) is None:
            return None
        return trial.find(job.request, BEST_FIT, avoid=others, prefer_given=True)

    def _holds(self, trial: Trial, wanted: Fits, others: list[Block]) -> bool:
        """Whether this very placement can be had in the trial."""
        if touches(wanted.blocks, others) or not self._running.usable(wanted.blocks):
            return False
        mark = trial.mark()
        try:
            trial.take(wanted.blocks)
        except LocalProtocolError:
            return False
        finally:
            trial.back(mark)
        return True

    def _ends(self) -> Iterator[tuple[float, Holding | None]]:
        """When running jobs and reservations end, in order."""
        soon_s = nextafter(self._now_s, inf)
        running = ((max(end_s, soon_s), holding) for end_s, holding in self._running.by_end())
        kept = sorted(kept.end_s for kept in self._kept.values() if kept.end_s < inf)
        return merge(running, ((end_s, None) for end_s in kept), key=itemgetter(0))


_NEVER: tuple[float, Holding | None] = (inf, None)


def plan_of(
    pool: Pool, running: RunningJobs, countable: bool, now_s: float, last_s: float
) -> CountedPlan | PoolPlan:
    """By counting if that is exact for all who run and wait, else on the real pool. `last_s` ends every job."""
    return (CountedPlan if countable else PoolPlan)(pool, running, now_s, last_s)
