"""Reservations of the last pass: kept in a new plan, and named as what a job that fits waits for; and what an elastic
job gets beyond its minima at its start.

Law: nothing is changed here but the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from fluxsched.core.duration import format_duration
from fluxsched.core.jobid import format_f58
from fluxsched.sched.decisions import Start
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.plan.counted import CountedPlan
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.queue.pending import Waiting


def keep_planned(
    group: Group, plan: CountedPlan | PoolPlan, queues: Iterable[PolicyQueue], now_s: float
) -> None:
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
    """A plan of places with all reservations of the group, for what comes after the passes of its queues."""
    plan = PoolPlan(group.pool, group.running, now_s, group.expiration_s or inf)
    keep_planned(group, plan, group.queues.values(), now_s)
    return plan


def with_extras(group: Group, job: Waiting, start: Start, placement: str) -> Start:
    """The start of an elastic job: with as much as fits, if no other job of the group may start."""
    if sum([queue.jobs.offered for queue in group.queues.values()]) > 1:
        return start
    fit = find_fit(group.pool, job.shape, placement, extras=True)
    return start if fit is None else start._replace(fit=fit)


def in_the_way(group: Group, job: Waiting, now_s: float) -> str:
    """Why a job does not start though it fits: another job has a reservation."""
    planned = [kept for queue in group.queues.values() for kept in queue.planned.values() if kept.jobid != job.jobid]
    kept = [kept for kept in planned if kept.start_s < inf]
    if not kept:
        return "fits now, but jobs ahead of it wait"
    first = min(kept, key=lambda kept: kept.start_s)
    name, in_s = format_f58(first.jobid), float(round(max(0.0, first.start_s - now_s)))
    return f"fits now, but not for as long as it may run: job {name} is to start in {format_duration(in_s)}"
