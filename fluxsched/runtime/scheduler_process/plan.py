"""`sched.plan`: when and where jobs will start, as messages."""

from __future__ import annotations

from math import inf

from fluxsched.protocol.messages.live.plan import PlannedJob, PlanRequest, PlanResponse
from fluxsched.sched.engine.planned_starts import PLANNED_JOBS_MAX, PlannedStart
from fluxsched.sched.engine.scheduler import Scheduler


def plan_of(scheduler: Scheduler, wanted: PlanRequest, now_s: float) -> PlanResponse:
    """The answer. Raises RemoteProtocolError for a group that the scheduler does not serve."""
    starts = scheduler.plan(wanted.group, now_s)
    jobs = [_planned(start) for start in starts[: wanted.max_entries or PLANNED_JOBS_MAX]]
    return PlanResponse(jobs, scheduler.group(wanted.group).waiting - len(jobs))


def _planned(start: PlannedStart) -> PlannedJob:
    end_s = 0.0 if start.end_s == inf else start.end_s
    ranks = None if start.ranks is None else str(start.ranks)
    return start.jobid, start.start_s, end_s, ranks, start.nnodes, start.ncores, start.is_promised
