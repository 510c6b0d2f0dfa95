"""The passes of one queue: what its policy sees, and how each decision is made real before the next is asked for.

Law: nothing is done that the ledger refuses; what it accepts reaches the plans and the preemptions. Reservations of the
last pass are kept in a new plan. A step by which a running elastic job grows is within the range and the hops of a
part, near to what the part has, placed as the job was at its start, free now, and for as long as the job may run still
nothing that the plan needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from reprlib import repr as short
from typing import Any, Final

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.quantities import format_duration
from fluxsched.core.reasons import Cause, WaitKind, cause
from fluxsched.core.request import Count, Request
from fluxsched.sched.decisions import (
    BACKFILLED,
    PAUSED,
    PREEMPT,
    RESERVED,
    Denied,
    Deny,
    Effect,
    Granted,
    Grow,
    Grown,
    Pause,
    Pending,
    Preempt,
    Raise,
    Reservation,
    Reserve,
    Shrink,
    Shrunk,
    Start,
    Wake,
    Withhold,
)
from fluxsched.sched.engine.group import (
    REASON_CHARS_MAX,
    Group,
    JointPlan,
    leave_others,
    leaves_all,
    notify_owner,
    reserve,
    standing,
)
from fluxsched.sched.engine.held_jobs import end_of, fit_now, left_out, outcome_now, running_job
from fluxsched.sched.engine.policy_queue import HeldBack, PolicyQueue, arrived
from fluxsched.sched.ledger import SHRINK_PAUSE_S, ElasticPart, JobAllocation, targets_of
from fluxsched.sched.loading import checked
from fluxsched.sched.plan.counted_plan import CountedPlan, Plan, ReservedNodes
from fluxsched.sched.plan.pool_plan import PoolPlan
from fluxsched.sched.policies.backfill import give_way, seat_awaiting
from fluxsched.sched.policy import PAUSE_EVERY, Running, Stages
from fluxsched.sched.pool.find_fit import find_fit, find_on
from fluxsched.sched.pool.placement import BEST_FIT, WORST_FIT, Fits, Insufficient, Outcome, Shape, Shapes, ranks_in
from fluxsched.sched.pool.select_targets import Narrowed, restricted
from fluxsched.sched.preemption import Preemptions, WhatIfPreempted
from fluxsched.sched.queue import FIFO, AccountLines, JobIndex, PendingJob, Skips, warn_of_end


class SchedulingPass:
    """The pass of a queue at `now_s` (wall time, seconds); one object serves all passes of its queue.

    What has no underscore is the `View` that its policy gets, besides `begin`, `apply` and `end`.
    """

    __slots__ = (
        "_alone", "_arrivals", "_counted", "_counts", "_elastic", "_events", "_group", "_jobs", "_joint", "_overtakes",
        "_plan", "_queue", "_shapes", "_step", "held_back", "now_s", "planned",
    )  # fmt: skip

    def __init__(self, group: Group, queue: PolicyQueue, counts: dict[str, int], shapes: Shapes) -> None:
        self.now_s = 0.0
        self.planned: Mapping[int, Reservation] = queue.planned
        self._group, self._queue, self._jobs = group, queue, queue.jobs
        self._joint, self._elastic = group.joint, group.ledger.elastic.by_id  # mostly empty
        self._alone = len(group.queues) == 1
        self._counts = counts
        self._shapes = shapes
        self._step: GrowingStep | None = None  # made when a policy first asks for one in a pass
        self._plan: CountedPlan | PoolPlan | None = None
        self._counted: CountedPlan | None = None  # used again and again
        self._events = group.events
        self._arrivals: list[PendingJob] | None = None
        self._overtakes = False  # some jobs were not offered, since they still wait
        self.held_back: HeldBack | None = None  # what plugins say, if there are any

    def begin(self, now_s: float) -> Iterator[object]:
        """Yield the decisions of the policy, each made when it is asked for."""
        group, queue = self._group, self._queue
        self.now_s, self._step = now_s, None
        if group.reserved.by_job:
            group.reserved.lapse(now_s)
        self._events = group.events
        self._arrivals, queue.arrivals = queue.arrivals, None
        self._overtakes = self._arrivals is not None and self._still_holds(now_s)
        self.planned = queue.planned
        if self._overtakes:
            self._plan = queue.plan
        else:
            self._arrivals, self._plan = None, None
            queue.planned_before, queue.planned = queue.planned, {}
            if not self._alone and any(other.planned for other in group.queues.values()):
                self._plan = self._make_plan()
        if group.pool.outages:
            group.wake_s = min(group.wake_s, group.pool.outages.next_end_s(now_s))
        decisions: Iterator[Any] = checked(queue.policy.schedule(self, now_s))
        if self._elastic and self._jobs.lines is None:
            stages = partial(seat_awaiting, self, now_s), partial(iter, decisions), partial(give_way, self, now_s)
            return Stages(stages)
        return decisions

    def end(self, done: bool) -> None:
        """End the pass, complete (`done`) or dropped; if it was dropped, reservations that it did not reach are
        kept.
        """
        queue, lines = self._queue, self._jobs.lines
        queue.planned_before = {}
        if lines is not None:
            lines.forget_plans()
        if self._plan is not None and isinstance(self._plan, PoolPlan):
            for each in self._group.queues.values():
                each.planned = self._plan.as_kept(each.planned)
        if not done:
            left = {jobid: kept for jobid, kept in self.planned.items() if jobid in queue.jobs}
            queue.planned = {**left, **queue.planned}
            return
        preemptions = self._group.preemptions
        if preemptions.awaited:
            preemptions.looked_after([jobid for jobid in preemptions.awaited if self._has_seen(jobid)])
        if self._alone and self._events == self._group.events:
            queue.passed(self._plan)

    def _has_seen(self, jobid: int) -> bool:
        """Return whether nothing more is to be kept for a job for which others were preempted: it runs or could have
        started.

        As long as any job is going, it may have to wait for that, since another one may have started in its place.
        """
        if jobid in self._group.ledger:
            return True
        here = jobid in self._jobs.by_id and standing(self._group, jobid) is None
        return here and not self._group.preemptions.any_going

    # ---- what the policy sees

    @property
    def queue(self) -> Iterator[PendingJob]:
        shut = self._group.pool.shut
        return iter(self._jobs) if not shut else (job for job in self._jobs if job.shape.number not in shut)

    @property
    def first(self) -> PendingJob | None:
        return self._jobs.first if self.held_back is None else self._jobs.first_but(self._group.pool.shut)

    def first_beside(self, queues: Collection[str]) -> PendingJob | None:
        return self._jobs.first_beside(queues, self._group.pool.shut if self.held_back is not None else _NO_SHAPE)

    def candidates(self, skips: Skips, order: str = FIFO) -> Iterator[PendingJob | None]:
        self._queue.order = order
        skips.by_limit = self.has_outages
        if self.held_back is not None:
            self.held_back.skips = skips
            skips.unfit |= self._group.pool.shut
        if self._arrivals is not None:
            return arrived(self._arrivals, skips, order, self.now_s)
        jobs = self._jobs.walk(skips, order, self.now_s)
        return self._unsettled(jobs) if self._queue.replans and self.planned else jobs

    def job(self, jobid: int) -> PendingJob | None:
        return self._jobs.by_id.get(jobid)

    @property
    def preemptions(self) -> Preemptions:
        return self._group.preemptions

    def if_gone(self, job: PendingJob | None = None) -> WhatIfPreempted:
        group = self._group
        kept = None if job is None or not group.pool.outages_for(job.request) else left_out(group, job, self.now_s)
        return group.preemptions.if_gone(group.pool, kept)

    def late(self, order: str = FIFO) -> None:
        """Return None to policies of 0.1.0, which ask for arrivals here: they then examine all jobs."""
        warn_of_end("late of the view", "declare ARRIVALS and REPLANS")

    @property
    def lines(self) -> AccountLines | None:
        return self._jobs.lines

    @property
    def index(self) -> JobIndex | None:
        return self._jobs.index

    @property
    def reserved_nodes(self) -> ReservedNodes:
        return self._group.reserved

    def is_held_back(self, job: PendingJob) -> bool:
        return self.held_back is not None and job.jobid in self.held_back.of_job

    @property
    def has_outages(self) -> bool:
        return bool(self._group.pool.outages)

    def is_put_off(self, job: PendingJob, whole: bool = False) -> bool:
        return self._group.is_put_off(job.jobid, whole)

    def find_on(self, job: PendingJob, rank: int) -> Fits | None:
        with left_out(self._group, job, self.now_s):
            return find_on(self._group.pool, job.shape, rank)

    def step(self, jobid: int) -> Fits | None:
        allocation = self._group.ledger.elastic.growable.get(jobid)
        return None if allocation is None or not self._steps.may_grow(allocation) else self._steps.of(allocation)

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            self._plan = self._make_plan()
        return JointPlan(self._plan, self._group) if self._joint else self._plan

    @property
    def plan_made(self) -> CountedPlan | PoolPlan | None:
        """The plan of the last pass, if that made one."""
        return self._plan

    def place(self, job: PendingJob, placement: str = WORST_FIT) -> Outcome:
        if self.held_back is not None and self.held_back.bars(job, placement):
            return Insufficient(self._reason(job))
        outcome = outcome_now(self._group, job, self.now_s, placement)
        if self._plan is None or not isinstance(outcome, Fits):
            return outcome
        return self._plan.place(job, placement) or Insufficient(in_the_way(self._group, job, self.now_s))

    def find(self, job: PendingJob, placement: str = WORST_FIT) -> Fits | None:
        if self.held_back is not None and self.held_back.bars(job, placement):
            return None
        if self._plan is None:
            return fit_now(self._group, job, self.now_s, placement)
        return self._plan.place(job, placement)

    def reason(self, job: PendingJob) -> Callable[[], str]:
        return partial(self._reason, job)

    @property
    def running(self) -> Iterator[Running]:
        return map(running_job, self._group.allocations())

    @property
    def by_end(self) -> Iterator[Running]:
        return (running_job(allocation) for _, allocation, _ in self._group.running.by_end())

    # ---- within

    @property
    def _steps(self) -> GrowingStep:
        if self._step is None:
            self._step = GrowingStep(self._group, self._shapes, self.now_s, self._plan_for)
        return self._step

    def _plan_for(self, shape: Shape) -> CountedPlan | PoolPlan | None:
        """Return the plan of this pass; another one with the same reservations where it cannot count a shape."""
        if isinstance(self._plan, CountedPlan) and not self._group.running.need(shape):
            return plan_of_all(self._group, self.now_s)
        return self._plan

    def _still_holds(self, now_s: float) -> bool:
        """Return whether the plan of the last pass still holds, so that only arrivals need to be examined."""
        plan = self._queue.plan
        if plan is None:
            return True
        return plan.renew(now_s) and (isinstance(plan, PoolPlan) or self._queue.countable(self._group.running))

    def _unsettled(self, jobs: Iterator[PendingJob | None]) -> Iterator[PendingJob | None]:
        """Yield the jobs whose reservation differs from that of the last pass; all others keep theirs."""
        plan = self._plan = self._make_plan() if self._plan is None else self._plan
        settle, old, planned, settled = plan.settle, self.planned, self._queue.planned, 0
        for job in jobs:
            kept = None if job is None else old.get(job.jobid)
            if job is None or kept is None or not settle(job, kept):
                yield job
                continue
            planned[job.jobid] = kept
            self._overtakes = True
            settled += 1
            if not settled % PAUSE_EVERY:
                yield None

    def _reason(self, job: PendingJob) -> str:
        if self.held_back is not None and self.held_back.has(job):
            return self.held_back.why(job)
        outcome = outcome_now(self._group, job, self.now_s, BEST_FIT)
        return in_the_way(self._group, job, self.now_s) if isinstance(outcome, Fits) else outcome.why

    def _make_plan(self) -> CountedPlan | PoolPlan:
        """Return a plan with the reservations of other queues; those that no longer hold are for them to make again."""
        group = self._group
        running, queues, last_s = group.running, group.queues.values(), group.expiration_s or inf
        plan: CountedPlan | PoolPlan
        counts = running.uniform or (bool(group.pool.outages) and self._counts_beside_outages())
        for queue in queues:
            counts = counts and queue.countable(running)
        if not counts:
            plan = PoolPlan(group.pool, running, self.now_s, last_s)
        elif self._counted is None:
            plan = self._counted = CountedPlan(group.pool, running, self.now_s, last_s)
        else:
            plan = self._counted.anew(self.now_s, last_s)
        if self._alone:
            return plan
        keep_planned(group, plan, [queue for queue in queues if queue is not self._queue], self.now_s)
        return plan

    def _counts_beside_outages(self) -> bool:
        """Return whether one reservation is made at most, on targets that are equal and held whole, none of which is to
        come back.
        """
        group, pool, head = self._group, self._group.pool, self._jobs.first
        if not self._alone or not self._queue.plans_one or self._elastic or self._joint or group.preemptions.awaited:
            return False
        if head is None or self._jobs.first_beside([head.queue]) is not None or not group.running.are_whole:
            return False
        return not group.running.any_leaving and not (pool.outages.on(self.now_s) & pool.ranks & pool.down)

    # ---- what becomes of decisions

    def apply(self, decision: object) -> Effect | None:
        """Make one decision real; None when it was refused or has no effect outside."""
        match decision:
            case Start():
                return self._start(decision)
            case Reserve(reservation, reason):
                jobid = reservation.jobid
                if jobid not in self._jobs.by_id:
                    return None
                if self._joint and jobid in self._joint:
                    return reserve(self._group, self._queue, reservation, reason, self.planned, self.now_s)
                self._queue.planned[jobid] = reservation
                return self._group.notices.notify(jobid, reason, reservation.start_s, self.now_s)
            case Pending(jobid, reason):
                if jobid not in self._jobs.by_id:
                    return None
                if self._joint and jobid in self._joint:
                    return notify_owner(self._group, jobid, reason, None, self.now_s)
                return self._group.notices.notify(jobid, reason, None, self.now_s)
            case Deny(jobid, note):
                if not self._group.remove(jobid, self._queue):
                    return None
                if not leaves_all(self._group, jobid):
                    return PAUSED
                self._counts["denied"] += 1
                return Denied(jobid, note[:REASON_CHARS_MAX])
            case Pause():
                return PAUSED
            case Preempt(_, for_jobid):
                raised = preempt(self._group, decision, self.now_s) if for_jobid in self._jobs.by_id else None
                self._counts["preempted"] += raised is not None
                return raised
            case Shrink(_, _, _, for_jobid):
                is_known = not for_jobid or for_jobid in self._jobs.by_id
                return shrink(self._group, decision, self.now_s) if is_known else None
            case Grow(jobid, fit):
                grown = grow(self._group, decision, self.now_s)
                if grown is not None and self._plan is not None:
                    self._plan.grew(self._steps.as_job(self._group.ledger.allocations[jobid], fit), fit)
                return grown
            case Withhold():
                reserved = self._group.reserved
                if decision.takes_over:
                    reserved.clear(decision.jobid, decision.rank)
                return PAUSED if reserved.reserve(decision.jobid, decision.rank, self.now_s) else None
            case Wake(at_s):
                return self._wake(at_s)
            case _:
                raise TypeError(f"it yielded {short(decision)}: a policy yields {_DECISIONS}")

    def _wake(self, at_s: float) -> Effect | None:
        """Request a pass at a time; refused if it is not in the future, since passes would follow each other without
        end.
        """
        if not at_s > self.now_s:
            return None
        self._group.wake_s = min(self._group.wake_s, at_s)
        return PAUSED

    def _start(self, start: Start) -> Granted | None:
        job = self._jobs.by_id.get(start.jobid)
        if job is None:
            return None
        if not isinstance(start.fit, Fits):  # compiled code would name another place
            started = f"it started job {format_f58(start.jobid)} with {type(start.fit).__name__}"
            raise TypeError(f"{started}: only a Fits can start")
        group, now_s = self._group, self.now_s
        if job.shape.request.elastic and len(self._jobs) == 1:
            start = with_extras(group, job, start, self._queue.placement, now_s)
        end_s = end_of(job.duration_s, group.expiration_s, now_s)
        allocation = group.ledger.commit(start, self._jobs, group.pool, end_s, now_s)
        if allocation is None:
            return None
        return self.granted(job, start.fit, allocation, self.began(job, start, allocation))

    def began(self, job: PendingJob, start: Start, allocation: JobAllocation) -> str:
        """Plans and all else that follows the ledger learn of it; how the job was chosen (`sched.selection_type`)."""
        group, queue, jobid = self._group, self._queue, job.jobid
        reserved = jobid in self.planned or jobid in queue.planned
        queue.removed(job, group.running)
        if jobid in group.reserved.by_job:
            group.reserved.release(jobid)
        group.running.placed(allocation)
        if allocation.preemptible_after_s is not None or allocation.elastic is not None:
            note_begun(group, allocation, queue.placement)
        if self._joint and jobid in self._joint:
            leave_others(group, self._joint[jobid], jobid)
        if self._plan is not None:
            self._plan.began(job, start.fit)
        return RESERVED if reserved else BACKFILLED if self._overtakes else start.selection

    def granted(
        self,
        job: PendingJob,
        fit: Fits,
        allocation: JobAllocation,
        selection: str,
        notes: Mapping[str, Any] | None = None,
    ) -> Granted:
        """Return the answer; `notes` are annotations besides ours."""
        self._counts["granted"] += 1
        jobid, group = job.jobid, self._group
        notices = group.notices
        told = jobid in notices.reasons
        if self._joint:
            told |= self._joint.pop(jobid, None) is not None  # perhaps by another group
        withdrawn = notices.forget(jobid) if told else None
        return Granted(jobid, fit, self.now_s, allocation.expiration_s, group.pool, selection, withdrawn, notes)


_NO_SHAPE: Final = frozenset[int]()
_DECISIONS: Final = "Start, Pending, Deny, Reserve, Preempt, Shrink, Grow, Withhold, Wake or Pause"


# ---- steps of elastic jobs


class GrowingStep:
    """Steps of a group's jobs in one pass at `now_s` (wall time, seconds).

    `plan_for` returns the plan with all reservations that can place this shape, None if there are none. A step that
    finds no place even without a plan is not tried again.
    """

    def __init__(
        self, group: Group, shapes: Shapes, now_s: float, plan_for: Callable[[Shape], CountedPlan | PoolPlan | None]
    ) -> None:
        self._group = group
        self._shapes = shapes
        self._now_s = now_s
        self._plan_for = plan_for
        self._unfit: set[int] = set()  # numbers of shapes
        self._known: dict[tuple[Request, int, Shape], Shape] = {}

    def may_grow(self, allocation: JobAllocation) -> bool:
        """Return whether a job of this group may grow now.

        While it pauses after a shrink, a pass is requested for the end of the pause.
        """
        elastic, group = allocation.elastic, self._group
        if elastic is None or allocation.is_ending or elastic.leaving or 0.0 < allocation.expiration_s <= self._now_s:
            return False
        if allocation.blocks[0].word & ~group.pool.members_at(allocation.blocks[0].at):
            return False
        if self._now_s < elastic.paused_until_s:
            group.wake_s = min(group.wake_s, elastic.paused_until_s)
            return False
        return True

    def of(self, allocation: JobAllocation) -> Fits | None:
        """Return the next step of a job that may grow, of the part that is least beyond its minimum."""
        elastic = allocation.elastic
        assert elastic is not None
        parts = sorted(enumerate(elastic.parts), key=_beyond_minimum)
        for at, part in parts:
            step = part.step
            fit = self._find(allocation, part, step) if step else None
            if fit is not None:
                by_part = [EMPTY] * len(elastic.parts)
                by_part[at] = ranks_in(fit.blocks)
                several = tuple(by_part) if elastic.shape.request.parts else ()
                return Fits(elastic.shape, fit.blocks, fit.nslots, several)
        return None

    def as_job(self, allocation: JobAllocation, fit: Fits) -> PendingJob:
        """Return the grow as a job of its own, with the remaining time of the running job, for plans."""
        assert allocation.elastic is not None
        for part, ranks in zip(allocation.elastic.parts, targets_of(fit), strict=True):
            if ranks:
                return self._job_of(allocation, self._shape(allocation, part, len(ranks)))
        return self._job_of(allocation, allocation.elastic.shape)

    # ---- within

    def _find(self, allocation: JobAllocation, part: ElasticPart, step: int) -> Fits | None:
        assert allocation.elastic is not None
        group, shape, placement = self._group, self._shape(allocation, part, step), allocation.elastic.placement
        if shape.number in self._unfit:
            return None
        if shape.scope is not None:
            group.renew(shape)
        if find_fit(group.pool, shape, placement) is None:
            self._unfit.add(shape.number)
            return None
        job = self._job_of(allocation, shape)
        with left_out(group, job, self._now_s):
            return self._find_near(allocation, part, job, placement)

    def _find_near(self, allocation: JobAllocation, part: ElasticPart, job: PendingJob, placement: str) -> Fits | None:
        """Return the nearest place for a step, which is `job`."""
        shape = job.shape
        fit = find_fit(self._group.pool, shape, placement)
        if fit is None:
            return None
        plan = self._plan_for(shape)  # before targets are left out: others ask alike
        for among in self._nearest_first(allocation, part):
            if among is None:
                return fit if plan is None else plan.place(job, placement)
            found = self._place_among(job, among, plan, placement)
            if found is not None:
                return found
        return None

    def _place_among(
        self, job: PendingJob, among: Idset, plan: CountedPlan | PoolPlan | None, placement: str
    ) -> Fits | None:
        pool, shape = self._group.pool, job.shape
        before = pool.narrowed.get(shape.number)
        left = among.mask if before is None else among.mask & before.ranks
        choice = restricted(pool.choice_of(shape), left)
        if not choice:
            return None
        pool.narrow(shape, Narrowed(choice, choice, left, "", "", left))
        try:
            fit = find_fit(pool, shape, placement)
            return fit if fit is None or plan is None else plan.place(job, placement)
        finally:
            pool.narrow(shape, before)

    def _nearest_first(self, allocation: JobAllocation, part: ElasticPart) -> Iterator[Idset | None]:
        """Yield the candidate targets: those nearest to the targets of the part, then farther ones; None for all.

        Targets that are held whole have no room for further targets of the same job.
        """
        pool, bound = self._group.pool, part.request.max_hops
        held = ranks_in(allocation.blocks)
        for hops, there in pool.rooms.network.common(part.ranks):
            if bound is not None and hops > bound:
                return
            if not there <= held:
                yield there - held
        if bound is None:
            yield None if part.request.exclusive else pool.ranks - held

    def _shape(self, allocation: JobAllocation, part: ElasticPart, step: int) -> Shape:
        """Return the shape of `step` more targets of a part."""
        assert allocation.elastic is not None
        like = allocation.elastic.shape
        key = part.request, step, like
        shape = self._known.get(key)
        if shape is None:
            settled = replace(part.request, nodes=Count.fixed(step), elastic=False, label="", shared=())
            request = replace(settled, max_hops=None)  # the targets that come into question are within the bound
            shape = self._known[key] = self._shapes.of(request, like.labels, like.scope)
        return shape

    def _job_of(self, allocation: JobAllocation, shape: Shape) -> PendingJob:
        left_s = allocation.expiration_s - self._now_s if allocation.expiration_s else 0.0
        return PendingJob(allocation.jobid, 1, 0, 0.0, shape, left_s)


def _beyond_minimum(numbered: tuple[int, ElasticPart]) -> int:
    return numbered[1].beyond_minimum


# ---- decisions made real


def note_begun(group: Group, allocation: JobAllocation, placement: str) -> None:
    """Record the start of a job that may be preempted or is elastic; an elastic one grows by its `placement`."""
    if allocation.elastic is not None:
        allocation.elastic.placement = placement
    group.preemptions.began(allocation)


def preempt(group: Group, decision: Preempt, now_s: float) -> Raise | None:
    """End a job that holds something in the group; None if that is refused."""
    jobid, beneficiary, reason = decision
    if group.preemptions.refuses(jobid, now_s):
        return None
    allocation = group.ledger.allocations[jobid]
    if not any(block.word & group.pool.members_at(block.at) for block in allocation.blocks):
        return None
    group.preemptions.preempt(allocation, beneficiary, now_s)
    group.running.began(allocation)
    group.invalidate_pass()  # what is planned may begin sooner
    note = f"preempted so that job {format_f58(beneficiary)} can start: {reason}"
    return Raise(jobid, note[:REASON_CHARS_MAX], PREEMPT, beneficiary)


def shrink(group: Group, decision: Shrink, now_s: float) -> Shrunk | None:
    """Has a job leave targets of the group; None if that is refused."""
    jobid, ranks, reason, beneficiary = decision
    if not isinstance(ranks, Idset):
        raise TypeError(f"it shrank job {format_f58(jobid)} by {type(ranks).__name__}: ranks are an Idset")
    if not ranks <= group.pool.ranks:
        return None
    by_s = now_s + group.preemptions.timeout_s
    allocation = group.ledger.shrink(jobid, ranks, by_s, now_s)
    if allocation is None or allocation.elastic is None:
        return None
    allocation.elastic.paused_until_s = now_s + SHRINK_PAUSE_S
    group.preemptions.shrink(allocation, ranks, beneficiary)
    group.running.began(allocation)
    group.invalidate_pass()  # what is planned may begin sooner
    note = f"left to job {format_f58(beneficiary)}: {reason}" if beneficiary else reason
    return Shrunk(jobid, ranks, note[:REASON_CHARS_MAX], beneficiary)


def grow(group: Group, decision: Grow, now_s: float) -> Grown | None:
    """Give a job targets of the group; None if that is refused."""
    jobid, fit = decision
    if not isinstance(fit, Fits):
        raise TypeError(f"it grew job {format_f58(jobid)} by {type(fit).__name__}: only a Fits can be added")
    allocation = enlarge(group, jobid, fit, now_s)
    return None if allocation is None else hand_out(group, allocation, fit, now_s)


def enlarge(group: Group, jobid: int, fit: Fits, now_s: float) -> JobAllocation | None:
    """Add a fit to the resources of a job, to be handed out later; return None if that is refused."""
    allocation = group.ledger.elastic.by_id.get(jobid)
    if allocation is None or allocation.elastic is None or now_s < allocation.elastic.paused_until_s:
        return None
    if group.ledger.grow(jobid, fit, group.pool, now_s) is None:
        return None
    group.preemptions.resized(allocation)
    group.running.began(allocation)
    return allocation


def hand_out(group: Group, allocation: JobAllocation, fit: Fits, now_s: float) -> Grown:
    """Return the effect that reports a grow to the job manager."""
    assert allocation.elastic is not None
    allocation.elastic.asked.append(ranks_in(fit.blocks))
    for queue in group.queues.values():
        queue.arrivals = None  # plans of the last pass do not know of it
    return Grown(allocation.jobid, fit, now_s, allocation.expiration_s, group.pool)


# ---- plans of all queues


def keep_planned(group: Group, plan: CountedPlan | PoolPlan, queues: Iterable[PolicyQueue], now_s: float) -> None:
    """Has a plan keep the reservations of these queues at `now_s` (wall time, seconds)."""
    preemptions = group.preemptions
    for queue in queues:
        for kept in sorted(queue.planned.values(), key=lambda kept: kept.start_s):
            job = queue.jobs.get(kept.jobid)
            if job is not None and kept.start_s < inf:
                if preemptions.awaits(kept.jobid, kept.start_s, now_s):
                    plan.claim(job, kept, preemptions.going)
                plan.keep(job, kept)


def plan_of_all(group: Group, now_s: float) -> PoolPlan:
    """Return a plan of placements with all reservations of the group, for use after the passes of its queues."""
    plan = PoolPlan(group.pool, group.running, now_s, group.expiration_s or inf)
    keep_planned(group, plan, group.queues.values(), now_s)
    return plan


def with_extras(group: Group, job: PendingJob, start: Start, placement: str, now_s: float) -> Start:
    """Return the start of an elastic job: with as much as fits, if no other job of the group may start."""
    if sum([queue.jobs.offered for queue in group.queues.values()]) > 1:
        return start
    with left_out(group, job, now_s):
        fit = find_fit(group.pool, job.shape, placement, extras=True)
    return start if fit is None or group.ledger.elastic.rule.refuses_extras(fit) else start._replace(fit=fit)


def in_the_way(group: Group, job: PendingJob, now_s: float) -> Cause:
    """Why a job does not start though it fits: another job has a reservation."""
    planned = [kept for queue in group.queues.values() for kept in queue.planned.values() if kept.jobid != job.jobid]
    kept = [kept for kept in planned if kept.start_s < inf]
    if not kept:
        return cause("fits now, but jobs ahead of it wait", WaitKind.BEHIND)
    first = min(kept, key=lambda kept: kept.start_s)
    name, in_s = format_f58(first.jobid), float(round(max(0.0, first.start_s - now_s)))
    text = f"fits now, but not for as long as it may run: job {name} is to start in {format_duration(in_s)}"
    return cause(text, WaitKind.BEHIND)
