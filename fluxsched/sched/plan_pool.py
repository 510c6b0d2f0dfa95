"""Plans on the real pool: constraints, GPUs, countables and partly used targets are what they are.

Law: a reservation has its place, and nothing else is placed there at that time. Time is gone through by giving back,
in a trial, what ends on the way; the earliest instant at which the job finds a place that nobody else is to have
meanwhile is its start. Reservations prefer what is busy now, so that what is free now stays of use to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from math import inf, nextafter
from operator import itemgetter

from fluxsched.errors import LocalProtocolError
from fluxsched.sched import placing
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.ledger import Holding
from fluxsched.sched.line import Skips, Waiting
from fluxsched.sched.orders import cores_asked
from fluxsched.sched.outcome import Block, Fits, on_targets, parts_in
from fluxsched.sched.outlook import Span
from fluxsched.sched.plan import Planner
from fluxsched.sched.pool import Pool
from fluxsched.sched.running import RunningJobs, touches
from fluxsched.sched.shelf import BEST_FIT
from fluxsched.sched.trial import Trial


class PoolPlan(Planner):
    """A `Plan` of places."""

    __slots__ = ("_jobs", "_moved")

    def __init__(self, pool: Pool, running: RunningJobs, now_s: float, last_s: float) -> None:
        super().__init__(Skips(), pool, running, now_s, last_s)
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
        request = job.request
        plain = not (request.amounts or request.node_amounts or request.shared)
        return self._enter(job, self._foresee(job) if plain else self._sweep(job, self._now_s, inf))

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
            _set_aside(trial, others)
            return trial.find(job.request, placement)

    def _choose_again(self) -> None:
        """The same reservation at the same time, at other places if that leaves more to others now."""
        self._moved = False
        (kept,) = self._kept.values()
        again = self._sweep(self._jobs[kept.jobid], kept.start_s, kept.start_s)
        if again.start_s == kept.start_s:
            self._kept[kept.jobid] = again

    def _foresee(self, job: Waiting) -> Reservation:
        """The time is found without trying; then only what the job needs is given back, to choose its place."""
        limit, request, running = self._limit_s(job), job.request, self._running
        good, kept = running.good_for(request), self._spans(job.jobid)
        start_s, given = running.outlook.earliest(request, limit, self._now_s, good, kept)
        if start_s == inf:
            return Reservation(job.jobid, inf, inf, cores_asked(request), None)
        with Trial(self._pool) as trial:
            trial.give(given)
            _set_aside(trial, self._others(job.jobid, start_s, start_s + limit))
            fit = trial.find(request, BEST_FIT, prefer_given=True)
        if fit is None:
            raise LocalProtocolError(f"job {job.jobid} was foreseen to fit at {start_s}, and has no place then")
        return Reservation(job.jobid, start_s, start_s + limit, cores_asked(request), fit)

    def _spans(self, jobid: int) -> dict[int, list[Span]]:
        """What other jobs are to have, target by target."""
        spans: dict[int, list[Span]] = {}
        for kept in self._kept.values():
            if kept.fit is not None and kept.jobid != jobid:
                for rank, cores, gpus, _ in parts_in(on_targets(kept.fit.blocks)):
                    spans.setdefault(rank, []).append((kept.start_s, kept.end_s, cores, gpus))
        return spans

    def _sweep(self, job: Waiting, from_s: float, until_s: float, wanted: Fits | None = None) -> Reservation:
        """Goes through time as running jobs and reservations end, and tries the job from one instant to another.

        At `wanted`, if that is given, else anywhere. What others have in the meantime is not touched.
        """
        limit, asked = self._limit_s(job), cores_asked(job.request)
        free, at_s = self._running.free, from_s
        ends = self._ends()
        next_s, holding = next(ends, _NEVER)
        with Trial(self._pool) as trial:
            while at_s <= until_s and at_s < inf:
                while next_s <= at_s and next_s < inf:
                    if holding is not None:
                        trial.give(holding.blocks)
                        free += self._running.weight(holding)
                    next_s, holding = next(ends, _NEVER)
                if free >= asked:  # fewer cores are free in truth, if reservations have begun
                    fit = self._try(trial, job, wanted, self._others(job.jobid, at_s, at_s + limit))
                    if fit is not None:
                        return Reservation(job.jobid, at_s, at_s + limit, asked, fit)
                at_s = next_s
        return Reservation(job.jobid, inf, inf, asked, None)

    def _try(self, trial: Trial, job: Waiting, wanted: Fits | None, others: list[Block]) -> Fits | None:
        mark = trial.mark()
        try:
            _set_aside(trial, others)
            if wanted is not None:
                return wanted if self._holds(trial, wanted) else None
            if trial.find(job.request, BEST_FIT) is None:
                return None
            return trial.find(job.request, BEST_FIT, prefer_given=True)
        finally:
            trial.back(mark)

    def _holds(self, trial: Trial, wanted: Fits) -> bool:
        """Whether this very placement can be had in the trial."""
        if not self._running.usable(wanted.blocks):
            return False
        try:
            trial.take(wanted.blocks)
        except LocalProtocolError:
            return False
        return True

    def _ends(self) -> Iterator[tuple[float, Holding | None]]:
        """When running jobs and reservations end, in order."""
        soon_s = nextafter(self._now_s, inf)
        running = ((max(end_s, soon_s), holding) for end_s, holding in self._running.by_end())
        kept = sorted(kept.end_s for kept in self._kept.values() if kept.end_s < inf)
        return merge(running, ((end_s, None) for end_s in kept), key=itemgetter(0))


_NEVER: tuple[float, Holding | None] = (inf, None)


def _set_aside(trial: Trial, blocks: Iterable[Block]) -> None:
    """One by one, since what several are to have one after the other can be set aside only once."""
    for block in blocks:
        trial.keep((block,))
