"""Reservations of one pass: which job is to start when, and what may start now without delaying them.

Law: a reservation is kept by what is placed: a job placed now touches nothing that another job is to get before its
limit ends. There are two ways to know that, which with one reservation give the same answers:

- by counting (`counted.py`), where any free cores are as good as any others: targets are equal, every request and
  every running job takes them whole, or there is one target (`RunningJobs.need`). Costs O(log n) a question.
- on the real pool (`placed.py`), with constraints, GPUs and partly used targets: what-if changes. There each
  reservation has its place, so that several of them may leave less room than their numbers would.

Time is seconds of wall time; a job that runs past its end is taken to end at any time from now on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import fsum, inf, nextafter, ulp
from typing import Protocol

from fluxsched.sched.decisions import Reservation
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, Fits
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue.sorted_jobs import Skips, Waiting


class Plan(Protocol):
    """The reservations, as a policy uses them; `skips` names jobs that need not be tried again in this pass."""

    skips: Skips

    def place(self, job: Waiting, placement: str) -> Fits | None:
        """Where the job may start now without delaying any reservation but its own."""
        ...

    def placeable(self, jobs: Iterable[Waiting | None], placement: str) -> Iterator[tuple[Waiting, Fits] | None]:
        """Those jobs that `place` finds a place for, one at a time; None is passed on. Start each before the next."""
        ...

    def reserve(self, job: Waiting) -> Reservation:
        """Plans the job at the earliest time that delays no other reservation; one that has a reservation keeps it."""
        ...

    def seat(self, job: Waiting, placement: str) -> Fits | Reservation:
        """Where the job may start if that is now, else its reservation; one that has a reservation keeps it."""
        ...

    def has(self, jobid: int) -> bool:
        """Whether the job has a reservation."""
        ...

    def keep(self, job: Waiting, old: Reservation) -> bool:
        """Plans the job when it was planned before; False, and nothing is kept, if that does not hold any more."""
        ...

    def claim(self, job: Waiting, old: Reservation, going: Iterable[int]) -> Reservation | None:
        """Plans the job where it was planned before, and keeps that from now on, as far as it is free or comes free.

        `going` are the running jobs that are about to end; None if it cannot be had, or no longer.
        """
        ...

    def waive(self, jobid: int) -> None:
        """Cancels a reservation, even a claim."""
        ...

    def drop(self, jobid: int) -> None:
        """Cancels a reservation; a claim stands."""
        ...

    def renew(self, now_s: float) -> bool:
        """Continues at a later time if nothing was freed since; False: a new plan is needed. Called by the engine."""
        ...

    def began(self, job: Waiting, fit: Fits) -> None:
        """The engine has made a start real; called by it, not by policies."""
        ...


class Planner:
    """What both kinds of plan have in common; `last_s` is when the resources end."""

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

    def place(self, job: Waiting, placement: str) -> Fits | None:
        raise NotImplementedError

    def placeable(self, jobs: Iterable[Waiting | None], placement: str) -> Iterator[tuple[Waiting, Fits] | None]:
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

    def rules_out(self, job: Waiting, now_s: float) -> bool:
        """Whether the job cannot start until something is freed; asked by the engine when it arrives, at `now_s`."""
        return find_fit(self._pool, job.shape, BEST_FIT) is None and not self._is_due(now_s)

    def _is_due(self, now_s: float) -> bool:
        """Whether a reservation should have begun."""
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

    def settle(self, job: Waiting, old: Reservation) -> bool:
        """Plans the job again if that comes out as it was in the last pass; called by the engine."""
        return False

    def _not_now(self, old: Reservation) -> Reservation:
        """The same, to begin later than now: what has not gone when it was to be gone may do so at any time."""
        soon_s = nextafter(self._now_s, inf)
        return old if old.start_s >= soon_s else old._replace(start_s=soon_s)

    def _limit_s(self, job: Waiting) -> float:
        """How long the job may run if it starts now, until the resources end."""
        limit_s = job.duration_s or inf
        return limit_s if limit_s < self._left_s else self._left_s


def least_beyond(until_s: float, part_s: float) -> float:
    """The least that, added to `part_s`, gives more than `until_s`, as doubles add.

    A plan and what becomes of it have to agree on which jobs end by then, and that is known as begin + limit, rounded.
    The difference of two times is rounded otherwise: for times of the present day the two disagree once in a hundred
    where limits have decimals.
    """
    rest_s = fsum((until_s, ulp(until_s) / 2, -part_s))
    return rest_s if rest_s + part_s > until_s else nextafter(rest_s, inf)
