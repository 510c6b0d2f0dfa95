"""When jobs that were not submitted would start: tried on a plan that is made for the answer and then forgotten.

Law: nothing is changed. A job starts now where the policy would start it beside the reservations that stand; else it is
planned behind the jobs ahead of it, each of which is planned before it, as many as AHEAD_MAX. Jobs are taken to run as
long as their limits allow. Where no start can be known, the answer says why. What is planned for an answer is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, inf
from typing import Final, NamedTuple

from fluxsched.core.jobfields import WHEN_MAX
from fluxsched.core.text import counted
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.engine.group import Group
from fluxsched.sched.engine.policy_queue import PolicyQueue
from fluxsched.sched.engine.why import Forecast, make_again, not_yet, order_of, reservations, standing, told_by_policy
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.counted_plan import CountedPlan
from fluxsched.sched.plan.pool_plan import PoolPlan
from fluxsched.sched.policy import NOTHING
from fluxsched.sched.pool.placement import BEST_FIT
from fluxsched.sched.queue import PendingJob

AHEAD_MAX = 1000
"""Waiting jobs that are planned before the jobs that are asked about, where counting cores suffices."""

PLANNED_PARTS_MAX = 20_000
"""Targets, or jobs if more of these run, that an answer may go through, once for each job that is planned, where each
has its place.
"""

FORESEEN_PARTS_MAX = 300_000
"""Targets that an answer may go through for jobs that are asked about: only their start is found, ten times faster."""

RESERVED_PARTS_MAX = 200_000
"""Targets that an answer may go through for the reservations that stand, which it makes anew before all else."""

MINUTE_S: Final = 60.0
"""Unit of the time limits that are proposed, and the shortest of them (seconds)."""

AT_ONCE: Final = "it fits now"


class StartEstimate(NamedTuple):
    """When a job would start if it were submitted now, and what that rests on; `start_s` is None where it is not known.

    `short_s` is the longest time limit with which it would start now, if not with its own; 0.0 if there is none.
    `never`: it is infeasible.
    """

    start_s: float | None
    when: str
    short_s: float = 0.0
    never: bool = False


NOT_WORKED_OUT: Final = StartEstimate(None, "not worked out: too many jobs run; ask for this size alone")
TOO_MANY_RESERVED: Final = StartEstimate(None, "not worked out: too many jobs have reservations")


class StartPlan:
    """The plan of one queue, for jobs that would all have the same place in it; `plans` are made for the answer."""

    def __init__(
        self, group: Group, queue: PolicyQueue, ledger: Ledger, jobs: Sequence[PendingJob], now_s: float, plans: int
    ) -> None:
        self._plans = plans
        self._group = group
        self._queue = queue
        self._now_s = now_s
        self._forecast = Forecast(group, ledger, now_s)
        self._mine = jobs[0]
        self._plan = self._new_plan(jobs)
        self._is_crowded = self._reserved() > self._plans_max(RESERVED_PARTS_MAX)
        self._starts_s = [] if self._is_crowded else sorted({kept.start_s for kept in self._keep_reservations()})
        self._may_overtake = queue.changed_by_arrivals != NOTHING
        self._is_by_account = queue.jobs.lines is not None
        self._is_behind = not self._may_overtake and next(self._ahead(), None) is not None

    def estimates(self, jobs: Sequence[PendingJob]) -> list[StartEstimate]:
        """Return the answer about each of the jobs, none of which delays another."""
        if self._is_crowded:
            return [self._known_before(job) or TOO_MANY_RESERVED for job in jobs]
        found = {at: self._known_before(job) or self._now(job) for at, job in enumerate(jobs)}
        later = {at: self._short_s(jobs[at]) for at, known in found.items() if known is None}
        if later:
            placed = [at for at in later if not self._foresees(jobs[at])]
            most, foreseen = self._plans_max(PLANNED_PARTS_MAX), self._plans_max(FORESEEN_PARTS_MAX)
            basis, last_s = self._plan_ahead(most - max(1, len(placed)))
            answered = {*placed[:most], *[at for at in later if at not in placed][:foreseen]}
            for at, short_s in later.items():
                made = self._later(jobs[at], basis, last_s) if at in answered else NOT_WORKED_OUT
                found[at] = made._replace(short_s=short_s)
        return [known for known in found.values() if known is not None]

    # ---- plan

    def _new_plan(self, jobs: Sequence[PendingJob]) -> CountedPlan | PoolPlan:
        """Return an empty plan, which counts where places do not matter to any job."""
        group, running = self._group, self._forecast.running
        waiting = (shape for queue in group.queues.values() for shape, _ in queue.jobs.shapes())
        counts = running.uniform and all(running.need(job.shape) for job in jobs) and all(map(running.need, waiting))
        make = CountedPlan if counts else PoolPlan
        return make(group.pool, running, self._now_s, group.expiration_s or inf)

    def _reserved(self) -> int:
        """Return the number of reservations that stand, if each has its place."""
        if isinstance(self._plan, CountedPlan):
            return 0
        return sum([len(standing(queue)) for queue in self._group.queues.values()])

    def _keep_reservations(self) -> Iterator[Reservation]:
        """Make the reservations of jobs ahead as the next pass would, in the policy's order, and yield them."""
        mine = self._queue.jobs
        for job, kept in reservations(self._group):
            if mine.get(job.jobid) is not job or self._is_ahead(job):
                yield make_again(self._plan, self._group, job, kept, self._now_s)

    def _is_ahead(self, job: PendingJob) -> bool:
        return bool(job.sort) or job.key < self._mine.key

    def _plans_max(self, parts_max: int) -> int:
        """Return how many jobs may be planned; where each has its place, those that go through so many parts."""
        if isinstance(self._plan, CountedPlan):
            return AHEAD_MAX // self._plans + WHEN_MAX
        return max(1, parts_max // self._plans // max(len(self._group.pool.ranks), len(self._group.ledger)))

    def _plan_ahead(self, most: int) -> tuple[str, float]:
        """Plan jobs ahead, `most` of them; return what an answer rests on, and the last start of them."""
        if self._is_by_account:
            return "by the reservations that stand; accounts with less usage may go ahead of it", self._now_s
        most = min(AHEAD_MAX // self._plans, max(0, most))
        count, last_s = 0, self._now_s
        for job in self._ahead():
            if count == most:
                return f"not before: more than {counted(most, 'job')} ahead of it, and only these are planned", last_s
            count += 1
            start_s = self._plan.reserve(job).start_s
            if start_s < inf:
                last_s = max(last_s, start_s)
        behind = f"behind {counted(count, 'job')}, " if count else ""
        return f"{behind}if all use up their limits", last_s

    def _ahead(self) -> Iterator[PendingJob]:
        """Yield the jobs ahead, in their order."""
        for job in self._queue.jobs:
            if not self._is_ahead(job):
                return
            yield job

    # ---- answers

    def _foresees(self, job: PendingJob) -> bool:
        return isinstance(self._plan, PoolPlan) and self._plan.foresees(job)

    def _known_before(self, job: PendingJob) -> StartEstimate | None:
        """Return the answer that needs no plan: it can never start, or rules other than resources hold it back."""
        group, queue = self._group, self._queue
        if never := group.judge(job.shape):
            return StartEstimate(None, f"can never run: {never}", never=True)
        narrowed = group.pool.narrowed.get(job.shape.number)
        if narrowed is not None and narrowed.later:
            return StartEstimate(None, f"not known: {narrowed.later}")
        told = told_by_policy(queue, job, self._now_s) if job.account is not None else None
        if told is not None and told.reason:
            return StartEstimate(told.earliest_s, f"{'' if told.earliest_s else 'not known: '}{told.reason}")
        return None

    def _now(self, job: PendingJob) -> StartEstimate | None:
        """Return the answer about a job that starts now; None if it does not."""
        if self._is_behind or self._plan.place(job, BEST_FIT) is None:
            return None
        return StartEstimate(self._now_s, AT_ONCE)

    def _short_s(self, job: PendingJob) -> float:
        """Return the longest limit, in whole minutes, with which the job would start now; 0.0 if there is none."""
        if self._is_behind:
            return 0.0
        begins_s = [one.from_s for one in self._group.pool.outages.crossed(self._now_s, inf)]
        limits = {
            floor((at_s - self._now_s) / MINUTE_S) * MINUTE_S for at_s in (*self._starts_s, *begins_s) if at_s < inf
        }
        tried = sorted(limit_s for limit_s in limits if MINUTE_S <= limit_s < job.limit_s)
        low, high = 0, len(tried)
        while low < high:
            middle = (low + high) >> 1
            if self._plan.place(job._replace(duration_s=tried[middle]), BEST_FIT) is None:
                high = middle
            else:
                low = middle + 1
        return tried[low - 1] if low else 0.0

    def _later(self, job: PendingJob, basis: str, last_s: float) -> StartEstimate:
        """Return the answer about a job that does not start now, behind those ahead of it."""
        plan = self._plan
        if isinstance(plan, PoolPlan) and self._foresees(job):
            start_s = plan.start_of(job)
        else:
            start_s = plan.reserve(job).start_s
            plan.waive(job.jobid)
        if start_s == inf:
            return StartEstimate(None, f"not known: {self._forecast.why_not()}")
        if not self._may_overtake:
            start_s = max(start_s, last_s)
        if order_of(self._queue) is None and not self._is_by_account:
            basis = f"{basis}; policy {self._queue.policy.name} decides itself which job is next"
        return StartEstimate(start_s, basis)


def estimates_in(
    group: Group, queue: PolicyQueue, ledger: Ledger, jobs: Sequence[PendingJob], now_s: float, plans: int
) -> list[StartEstimate]:
    """Return the answers about jobs that would be the last of their priority in this queue of the group.

    `plans` is the number of such plans, which share what an answer may take.
    """
    held = not_yet(group, now_s)
    if held is None and group.admission.is_open_ended:
        return [StartEstimate(None, "not known: allocations have no end that is known before") for _ in jobs]
    if held is not None:
        return [StartEstimate(None, f"not known: {held.reason}") for _ in jobs]
    if not jobs[0].priority:
        return [StartEstimate(None, "not known: a job on hold is skipped; give it an urgency above 0") for _ in jobs]
    return StartPlan(group, queue, ledger, jobs, now_s, plans).estimates(jobs)


def earliest_of(found: Sequence[Sequence[StartEstimate]]) -> list[StartEstimate]:
    """Return the earliest answer about each job, of those of several groups."""
    return [min(each, key=_start) for each in zip(*found, strict=True)]


def _start(estimate: StartEstimate) -> tuple[float, bool]:
    return inf if estimate.start_s is None else estimate.start_s, estimate.never
