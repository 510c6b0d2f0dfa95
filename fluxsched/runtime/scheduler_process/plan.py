"""`sched.plan` and `sched.reasons`: when and where jobs will start, and why they wait, as messages."""

from __future__ import annotations

from math import inf

from fluxsched.errors import Refused
from fluxsched.protocol.messages.live.plan import PlannedJob, PlanRequest, PlanResponse
from fluxsched.protocol.messages.live.reasons import ReasonEntry, ReasonsResponse, SchedReasonsRequest
from fluxsched.sched.engine.planned_starts import PLANNED_JOBS_MAX, PlannedStart
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.engine.why import Forecasts


def plan_of(scheduler: Scheduler, wanted: PlanRequest, now_s: float) -> PlanResponse:
    """The answer. Raises RemoteProtocolError for a group that the scheduler does not serve."""
    starts = scheduler.plan(wanted.group, now_s)
    jobs = [_planned(start) for start in starts[: wanted.max_entries or PLANNED_JOBS_MAX]]
    return PlanResponse(jobs, scheduler.group(wanted.group).waiting - len(jobs))


def reasons_of(scheduler: Scheduler, wanted: SchedReasonsRequest, now_s: float) -> ReasonsResponse:
    """The answer; jobs that do not wait here are left out."""
    forecasts: Forecasts = {}
    promised = {kept.jobid for kept in scheduler.planned() if kept.start_s < inf}
    found: list[ReasonEntry] = []
    for jobid in wanted.ids:
        try:
            why = scheduler.why(jobid, now_s, forecasts)
        except Refused:  # it has gone meanwhile
            continue
        if why.rule or why.when:  # else it holds resources
            found.append((jobid, why.reason, why.earliest_s, jobid in promised))
    return ReasonsResponse(found)


def _planned(start: PlannedStart) -> PlannedJob:
    end_s = 0.0 if start.end_s == inf else start.end_s
    ranks = None if start.ranks is None else str(start.ranks)
    return start.jobid, start.start_s, end_s, ranks, start.nnodes, start.ncores, start.is_promised
