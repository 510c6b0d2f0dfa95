"""Why jobs wait, and when they may start, also those that are not submitted: by decisions that stand, or a forecast.

Law: reads only, also within a pass: what it has not come to yet stands as it was planned before. A reservation is a
promise. Otherwise the earliest time is a bound, from the time limits of running jobs and from the reservations of all
queues of the group; if a job in the way has no limit, there is no bound. Quotas come first, since without them no node
is looked for, but for what there is in all. In KEPT_S one answer about all planned starts is made, however often it is
asked for.

When jobs that were not submitted would start is tried on a plan that is made for the answer and then forgotten. Such a
job starts now where the policy would start it beside the reservations that stand; else it is planned behind the jobs
ahead of it, each of which is planned before it, as many as AHEAD_MAX. Jobs are taken to run as long as their limits
allow. Where no start can be known, the answer says why. What is planned for an answer is bounded.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from math import floor, inf
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import WHEN_MAX
from fluxsched.core.jobid import format_f58
from fluxsched.core.reasons import SITE_LIMITS, WaitKind, Why, cause, in_groups, wait_kind
from fluxsched.core.text import counted
from fluxsched.errors import Refused
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.engine.group import Group, home_of, is_planned, why_set_aside
from fluxsched.sched.engine.held_jobs import outcome_now
from fluxsched.sched.engine.policy_queue import RULE, WHEN, PolicyQueue
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.counted_plan import CountedPlan
from fluxsched.sched.plan.pool_plan import PoolPlan
from fluxsched.sched.plan.running_jobs import RunningJobs
from fluxsched.sched.policy import NOTHING
from fluxsched.sched.pool.find_fit import find_fit, place_now
from fluxsched.sched.pool.placement import BEST_FIT, Fits, ranks_in
from fluxsched.sched.queue import FIFO, AdmissionTerms, PendingJob, cores_asked
from fluxsched.sched.registry import is_own, says

NODE: Final = "node"
QUEUE: Final = "queue"
LIMIT: Final = "limit"
GATE: Final = "gate"
RESERVED: Final = "reserved"
CAUSES: Final = (NODE, QUEUE, LIMIT, GATE, RESERVED)
"""Room on a node; a maximum of a queue; a limit of a user or group; a plugin lets it wait; its node is not free yet."""


class WaitCause(NamedTuple):
    """The first thing that a pending job lacks; `kind` is one of CAUSES, `rank` is the node that is kept, if one is."""

    kind: str
    text: str
    rank: int | None = None


def wait_cause(group: Group, job: PendingJob, now_s: float) -> WaitCause | None:
    """Return what a job of the group lacks; None if nothing but its turn."""
    rank = group.reserved.by_job.get(job.jobid)
    if rank is not None:
        kept = group.pool.source.named(Idset.one(rank))
        return WaitCause(RESERVED, f"{kept} is kept for it, where not enough is free yet", rank)
    narrowed = group.pool.narrowed.get(job.shape.number)
    if narrowed is not None and narrowed.later:
        return WaitCause(GATE, narrowed.later)
    exceeded = None if job.terms is None else group.admission.exceeded(job.terms, job.request.amounts)
    if exceeded is None or exceeded.is_of_root:
        outcome = outcome_now(group, job, now_s, BEST_FIT)
        if not isinstance(outcome, Fits):
            return WaitCause(NODE, outcome.why)
    if exceeded is not None:
        return WaitCause(LIMIT if exceeded.is_limit else QUEUE, exceeded.text)
    said = None if group.hooks is None else group.notices.reasons.get(job.jobid)
    return WaitCause(GATE, said) if isinstance(said, str) else None


def wait_cause_of(groups: Iterable[Group], jobid: int, now_s: float = 0.0) -> WaitCause | None:
    """Return what a job of any of these groups lacks; None if nothing but its turn, or if it is not pending."""
    for group in groups:
        gated = None if group.hooks is None else group.hooks.gates.gated.get(jobid)
        if gated is not None:
            return WaitCause(GATE, gated.why)
        queue = group.queue_of(jobid)
        job = None if queue is None else queue.jobs.get(jobid)
        if job is not None:
            return wait_cause(group, job, now_s)
    return None


# ---- forecasts

WALKED_PARTS_MAX = 10_000
"""Targets of running jobs, counted once for each job there, that the forecasts of one answer may walk through, all of
them for each: 0.1 s. One is made in any case.
"""
NAMED_MAX = 3
"""Jobs without a limit that are named; one would do."""


RESERVATIONS_COUNTED_MAX = 100
"""Reservations, the first of a pass, that forecasts count; the bound is lower where there are more. Each is walked
through for each job: 0.1 s for the 200 jobs of one answer.
"""


def forecasts_max(ledger: Ledger) -> int:
    """Return the number of forecasts that one answer may make; targets are counted until they are too many for two."""
    parts = 0
    for allocation in ledger:
        parts += sum([word.bit_count() for _, word, *_ in allocation.blocks])
        if 2 * parts > WALKED_PARTS_MAX:
            return 1
    return max(1, WALKED_PARTS_MAX // max(1, parts))


def order_of(queue: PolicyQueue) -> str | None:
    """Return the order in which jobs of the queue are examined; None if a plugin's policy sorts them itself."""
    if queue.jobs.lines is not None:
        return None
    return queue.order or (FIFO if is_own(queue.policy) else None)


def standing(queue: PolicyQueue) -> Mapping[int, Reservation]:
    """Return the reservations of a queue, within a pass those that it has not come to yet among them."""
    return {**queue.planned_before, **queue.planned} if queue.planned_before else queue.planned


def _standing_of(queue: PolicyQueue, jobid: int) -> Reservation | None:
    return queue.planned.get(jobid) or queue.planned_before.get(jobid)


def reservations(group: Group) -> Iterator[tuple[PendingJob, Reservation]]:
    """Yield the jobs of all queues whose reservations stand, in the order in which a pass makes them."""
    for queue in group.queues.values():
        for kept in standing(queue).values():
            job = queue.jobs.get(kept.jobid)
            if job is not None and kept.start_s < inf:
                yield job, kept


def make_again(
    plan: CountedPlan | PoolPlan, group: Group, job: PendingJob, kept: Reservation, now_s: float
) -> Reservation:
    """Make a reservation in a plan as the next pass would, and return it."""
    if group.preemptions.awaits(kept.jobid, kept.start_s, now_s):
        plan.claim(job, kept, group.preemptions.going)
    return plan.reserve(job)


FITS_NOW: Final = "it fits now"
"""Basis of a forecast where running jobs do not delay the start."""


class Forecast:
    """Forecast of the earliest starts of jobs.

    It has an index of its own unless the policy plans and keeps one: policies that do not plan pay nothing.
    """

    def __init__(self, group: Group, ledger: Ledger, now_s: float, *, is_bounded: bool = False) -> None:
        """`is_bounded`: after `forecasts_max` no further request is looked up."""
        self._walks_max = forecasts_max(ledger) if is_bounded else inf
        self._ledger = ledger
        self._group = group
        self._now_s = now_s
        self.running = group.running if group.running.is_followed else RunningJobs(group.pool, ledger)
        self._known: dict[tuple[int, float], float] = {}
        self._plan: PoolPlan | None = None
        """Made for the first job that needs it."""

    def of(self, queue: PolicyQueue, job: PendingJob) -> tuple[float | None, str]:
        """Return the earliest start of the job, and the basis of the forecast; None for an unknown time."""
        kept = _standing_of(queue, job.jobid)
        if kept is not None and kept.start_s < inf:
            return kept.start_s, "as it is planned; sooner if running jobs end before their limits"
        if len(self._known) >= self._walks_max and (job.shape.number, job.duration_s) not in self._known:
            return None, "not worked out: too many jobs run; ask for this job alone"
        start_s, head = self._earliest(job), queue.jobs.first
        if start_s == inf and job.shape.number in self._group.pool.narrowed:
            return None, "not known: plugins keep targets from it"
        if start_s == inf:
            return None, f"not known: {self.why_not()}"
        if queue.jobs.lines is not None:
            head = None  # it is another one by account
        in_line = order_of(queue) == FIFO or (head is not None and head.jobid in queue.planned)
        if in_line and head is not None and head.jobid != job.jobid and self._behind(queue, head, start_s):
            planned = _standing_of(queue, head.jobid)
            head_s = self._earliest(head) if planned is None else planned.start_s
            name = format_f58(head.jobid)
            if head_s == inf:
                return None, f"not known: job {name}, first in line, has no estimate itself; {self.why_not()}"
            return max(head_s, start_s), f"not before job {name}, first in line"
        if start_s <= self._now_s:
            return None, FITS_NOW
        which = "running jobs" if next(reservations(self._group), None) is None else "running and planned jobs"
        return start_s, f"if {which} use up their limits and no job goes ahead of it"

    def _behind(self, queue: PolicyQueue, head: PendingJob, start_s: float) -> bool:
        """Return whether the head of the queue blocks the job: the job fits now but does not start, or only the head is
        tried.
        """
        if start_s <= self._now_s:
            return True
        reasons = self._group.notices.reasons
        return not queue.planned and reasons.keys() == {head.jobid}

    def _earliest(self, job: PendingJob) -> float:
        """Return when the job first fits beside running jobs and reservations, `now_s` at the earliest; found once for
        equal requests.
        """
        key = job.shape.number, job.duration_s
        if key not in self._known:
            if self._plan is None:
                self._plan = self._plan_ahead()
            plan = self._plan
            fits = plan.place(job, BEST_FIT) is not None
            self._known[key] = self._now_s if fits else plan.reserve(job).start_s
            plan.waive(job.jobid)
        return self._known[key]

    def _plan_ahead(self) -> PoolPlan:
        """Return a plan of the first reservations that stand, of all queues."""
        group = self._group
        plan = PoolPlan(group.pool, self.running, self._now_s, group.expiration_s or inf)
        most = min(RESERVATIONS_COUNTED_MAX, forecasts_max(self._ledger))
        for job, kept in islice(reservations(group), most):
            make_again(plan, group, job, kept, self._now_s)
        return plan

    def why_not(self) -> str:
        """Return why no start is known of a job that does not fit now."""
        if running := [allocation.jobid for allocation in self._group.allocations() if allocation.end_s == inf]:
            return _endless("running", running)
        if planned := [kept.jobid for _, kept in reservations(self._group) if kept.end_s == inf]:
            return _endless("planned", planned)
        if self._group.pool.down:
            return "it needs nodes that are out of service"
        return "no running job will release the resources it needs"


def _endless(state: str, jobids: Sequence[int]) -> str:
    """Return that jobs in this state, running or planned, have no limit; NAMED_MAX of them are named."""
    names = ", ".join(format_f58(jobid) for jobid in jobids[:NAMED_MAX])
    more = len(jobids) - NAMED_MAX
    names += f" and {more} more" if more > 0 else ""
    if len(jobids) == 1:
        return f"{names}, {state}, has no time limit"
    return f"{names} run without a limit" if state == "running" else f"{names}, {state}, have no time limit"


# ---- why a job waits

Forecasts = dict[str, Forecast]
"""Forecasts by group for one answer, so that equal requests are looked up only once."""


def why_of(
    jobid: int, groups: Iterable[Group], ledger: Ledger, now_s: float, forecasts: Forecasts | None = None
) -> Why:
    """Return the reason of a pending job; `forecasts` are kept for the jobs of one answer, whose cost is bounded then.

    Raise Refused for an unknown job.
    """
    groups = list(groups)
    joint = groups[0].joint.get(jobid)
    if joint is not None and any(each.queue_of(jobid) is not None for each in joint):
        return _explain_joint(joint, jobid, ledger, now_s, forecasts)
    for group in groups:
        if jobid in group.set_aside:
            return explain_set_aside(group, jobid)
        queue = group.queue_of(jobid)
        job = None if queue is None else queue.jobs.get(jobid)
        if queue is not None and job is not None:
            return explain(group, queue, job, _lazy_forecast(group, ledger, now_s, forecasts), now_s)
    if jobid in ledger:
        return Why("holds resources")
    raise Refused(f"job {format_f58(jobid)} is unknown to this scheduler", errno.ENOENT)


def _explain_joint(
    groups: Sequence[Group], jobid: int, ledger: Ledger, now_s: float, forecasts: Forecasts | None
) -> Why:
    """Return the reason of a job of several groups: that in each, and where it may start first."""
    found: list[tuple[Group, Why]] = []
    reasons: list[tuple[str, str]] = []
    for group in groups:
        queue = group.queue_of(jobid)
        job = None if queue is None else queue.jobs.get(jobid)
        if queue is not None and job is not None:
            why = explain(group, queue, job, _lazy_forecast(group, ledger, now_s, forecasts), now_s)
            found.append((group, why))
            reasons.append((group.name, why.reason))
        elif jobid in group.set_aside:
            reasons.append((group.name, group.set_aside[jobid].why))
    planned = [why for group, why in found if is_planned(group, jobid)]
    first = planned[0] if planned else min([why for _, why in found], key=_earliest_s)
    return first._replace(reason=in_groups(reasons))


def _earliest_s(why: Why) -> float:
    return inf if why.earliest_s is None else why.earliest_s


def _lazy_forecast(group: Group, ledger: Ledger, now_s: float, forecasts: Forecasts | None) -> Callable[[], Forecast]:
    """Return a function that makes or finds the forecast of a group when it is called."""

    def get() -> Forecast:
        if forecasts is None:
            return Forecast(group, ledger, now_s)
        if group.name not in forecasts:
            forecasts[group.name] = Forecast(group, ledger, now_s, is_bounded=True)
        return forecasts[group.name]

    return get


def not_yet(group: Group, now_s: float) -> Why | None:
    """Return why no job at all of the group starts, since its resources are not there yet, or not any more."""
    if group.is_expected:
        rule, when = "no job is judged before that", "not known: as soon as it answers"
        return Why(group.expected, rule, when, kind=WaitKind.NO_RESOURCES)
    if not group.grown:
        return Why(
            f"waits for the resources of group {group.name!r} to be acquired",
            "no job is judged before that",
            "not known: as soon as they are acquired",
            kind=WaitKind.NO_RESOURCES,
        )
    if 0 < group.expiration_s <= now_s:
        return Why(
            f"the resources of group {group.name!r} expired {group.time_text(group.expiration_s)}",
            "nothing starts after their end",
            "not before they have a later end: reload an R that has one",
            kind=WaitKind.NO_RESOURCES,
        )
    return None


def explain(group: Group, queue: PolicyQueue, job: PendingJob, forecast: Callable[[], Forecast], now_s: float) -> Why:
    """Return the answer about a job of this queue; linear in the running jobs."""
    if (unusable := not_yet(group, now_s)) is not None:
        return unusable
    if not job.priority:
        held = "is held: its priority is 0; raise its urgency"
        return Why(held, "a job on hold is skipped", "not while it is held", kind=WaitKind.HELD)
    if job.terms is not None:
        return _explain_by_terms(group, queue, job, job.terms, now_s)
    name, order = queue.policy.name, order_of(queue)
    how = says(queue.policy) or "it does not say how it decides"
    told = told_by_policy(queue, job, now_s)
    if told is not None and told.reason:
        return told._replace(rule=f"{told.rule} under {name}: {how}")
    ahead = queue.jobs.ahead_of(job.jobid, order or FIFO, now_s)
    if told is not None:
        rule = f"{told.rule}; under {name}: {how}"
    elif order is None:
        others = len(queue.jobs) - 1
        place = f"waits with {counted(others, 'other')} in the order of" if others else "no other job waits under"
        rule = f"{place} policy {name}: {how}"
    elif order != FIFO and job.jobid in queue.planned:
        rule = f"has a reservation under {name}: {how}"
    else:
        place_in = "in line" if order == FIFO else f"in the order {order},"
        place = f"first {place_in}" if not ahead else f"{ahead} ahead of it" + ("" if order == FIFO else f" {place_in}")
        rule = f"{place} under {name}: {how}"
    reason = _reason(group, queue, job, ahead if order else None, order or FIFO, now_s)
    kind, again = wait_kind(reason), f"policy {name} tries it again"
    if kind in SITE_LIMITS:
        rule = f"a limit of the site holds it back; {again} as jobs end"
        return Why(str(reason), rule, "not known: once enough jobs that count for the limit have ended", kind=kind)
    if kind is WaitKind.PLUGIN:
        rule = f"a plugin refuses it for now; {again}"
        return Why(str(reason), rule, "not known: it is up to the plugin", kind=kind)
    earliest_s, when = forecast().of(queue, job)
    if when == FITS_NOW and job.jobid in group.notices.reasons:
        when = f"not known: it fits now, and policy {name} holds it back"
    return Why(f"{reason}{_not_preempted(group, queue, job, now_s)}", rule, when, earliest_s, kind)


def _not_preempted(group: Group, queue: PolicyQueue, job: PendingJob, now_s: float) -> str:
    """Return what keeps a policy that preempts from doing so for a job that lacks resources, behind its reason."""
    explain = getattr(queue.policy, "why_not_preempted", None)
    if explain is None or isinstance(place_now(group.pool, job.shape, BEST_FIT), Fits):
        return ""
    text: str = explain(queue.jobs, job, group.preemptions, now_s)
    return f"; {text}" if text else ""


_KINDS: Final[Mapping[str, WaitKind]] = MappingProxyType({
    NODE: WaitKind.NO_ROOM, QUEUE: WaitKind.LIMIT_OF_QUEUE, LIMIT: WaitKind.LIMIT_OF_USER, GATE: WaitKind.PLUGIN,
    RESERVED: WaitKind.NO_ROOM,
})  # fmt: skip


def _explain_by_terms(group: Group, queue: PolicyQueue, job: PendingJob, terms: AdmissionTerms, now_s: float) -> Why:
    """Return the answer about a job that has terms of the admission."""
    found = wait_cause(group, job, now_s)
    rule = f"{group.admission.describe(terms)}, under {queue.policy.name}"
    if found is None:
        text, when = "waits its turn: all its resources are available", "in one of the next passes"
        return Why(text, rule, when, kind=WaitKind.BEHIND)
    not_preempted = _not_preempted(group, queue, job, now_s) if found.kind in (NODE, QUEUE, LIMIT) else ""
    when = "not known: allocations have no end that is known before"
    return Why(f"{found.text}{not_preempted}", rule, when, kind=_KINDS[found.kind])


def told_by_policy(queue: PolicyQueue, job: PendingJob, now_s: float) -> Why | None:
    """Return the explanation of a policy that keeps accounts; None if it gives none."""
    explain = getattr(queue.policy, "explain", None)
    if explain is None or queue.jobs.lines is None:
        return None
    told: Why = explain(queue.jobs.lines, job, now_s)
    return told


def explain_set_aside(group: Group, jobid: int) -> Why:
    """Return the answer about a job that was set aside."""
    held = "" if group.set_aside[jobid].job.priority else "; it is held, too: raise its urgency"
    return Why(f"{why_set_aside(group, jobid)}{held}", RULE, WHEN, kind=WaitKind.TOO_LARGE)


def _reason(group: Group, queue: PolicyQueue, job: PendingJob, ahead: int | None, order: str, now_s: float) -> str:
    """Return the reason with its kind, if it is known."""
    reason = group.notices.reasons.get(job.jobid)
    if reason is not None:
        return reason if isinstance(reason, str) else reason()
    narrowed = group.pool.narrowed.get(job.shape.number)
    if narrowed is not None and narrowed.later and find_fit(group.pool, job.shape, BEST_FIT) is None:
        return narrowed.later
    if queue.jobs.lines is None and (group.changed or group.notices.reasons):
        return cause(_turn(queue, job, ahead, order), WaitKind.BEHIND)
    outcome = outcome_now(group, job, now_s, BEST_FIT)
    if not isinstance(outcome, Fits):
        return outcome.why
    undecided = f"policy {queue.policy.name!r} has looked at the queue and decided nothing about it"
    return cause(f"fits now, but {undecided if queue.jobs.lines is None else 'jobs ahead of it wait'}", WaitKind.BEHIND)


def _turn(queue: PolicyQueue, job: PendingJob, ahead: int | None, order: str) -> str:
    """Return which jobs the policy looks at before this one, `ahead` of them if that is known."""
    if ahead is None:
        return "its policy has not looked at it yet"
    place_in = "in the queue" if order == FIFO else f"in the order {order}"
    if ahead:
        return f"waits its turn; {ahead} ahead of it {place_in}"
    first = queue.jobs.first
    if order == FIFO and first is not None and first.queue != job.queue:
        return f"waits its turn; job {format_f58(first.jobid)} of another queue is ahead of it"
    return "is the next to be looked at"


# ---- planned starts

PLANNED_JOBS_MAX = 1000
"""Jobs in one answer: a conservative plan has every waiting job."""
FORECASTS_MAX = 8
"""Jobs of a queue that are forecast."""
KEPT_S = 1.0
"""Time for which one answer is reused (seconds)."""
FORECAST_KEPT_S = 5.0
"""Time for which an answer with forecasts is reused (seconds), so that forecasts take 2 % of a scheduler's time."""


class PlannedStart(NamedTuple):
    """Planned start of a job at `start_s`, with its end by `end_s` (wall time, seconds; `inf`: it has no limit).

    `ranks` are None where they are not chosen yet; `nnodes` is 0 where any number will do.
    """

    jobid: int
    start_s: float
    end_s: float
    ranks: Idset | None
    nnodes: int
    ncores: int
    is_promised: bool


class PlannedStarts:
    """The answers about the groups of one scheduler."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[str, tuple[float, float, list[PlannedStart]]] = {}
        """Time, validity (seconds) and value of the last answer, by group."""

    def of(self, group: Group, now_s: float) -> list[PlannedStart]:
        """Return the first of them in order of time; jobs that do not wait any more are left out."""
        made_s, kept_s, found = self._kept.get(group.name, (-inf, 0.0, []))
        if not made_s <= now_s < made_s + kept_s:
            found = nsmallest(PLANNED_JOBS_MAX, _starts(group, self._ledger, now_s), key=attrgetter("start_s"))
            is_forecast = any(not queue.planned and queue.jobs.first is not None for queue in group.queues.values())
            kept_s = FORECAST_KEPT_S if is_forecast else KEPT_S
            self._kept[group.name] = now_s, kept_s, found
        return [one for one in found if group.queue_of(one.jobid) is not None]


def _starts(group: Group, ledger: Ledger, now_s: float) -> Iterator[PlannedStart]:
    if not group.grown or group.admission.is_open_ended:
        return
    forecast: Forecast | None = None
    count = min(FORECASTS_MAX, forecasts_max(ledger))
    for queue in group.queues.values():
        promised = list(_promised(queue))
        yield from promised
        if not promised and queue.jobs.first is not None:
            if forecast is None:
                forecast = Forecast(group, ledger, now_s)
            mine = (job for job in queue.jobs if home_of(group, job.jobid) is group)
            yield from _forecast_starts(forecast, queue, islice(mine, count), group.expiration_s or inf)


def _promised(queue: PolicyQueue) -> Iterator[PlannedStart]:
    for planned in (queue.planned, queue.planned_before):
        for kept in planned.values():
            job = queue.jobs.by_id.get(kept.jobid)
            if job is None or kept.start_s == inf or (planned is not queue.planned and kept.jobid in queue.planned):
                continue
            yield PlannedStart(
                kept.jobid, kept.start_s, kept.end_s, _ranks(kept), _nodes(job), kept.cores, is_promised=True
            )


def _forecast_starts(
    forecast: Forecast, queue: PolicyQueue, jobs: Iterable[PendingJob], last_s: float
) -> Iterator[PlannedStart]:
    for job in jobs:
        start_s, _ = forecast.of(queue, job)
        if start_s is not None:
            end_s = min(start_s + (job.duration_s or inf), last_s)
            cores = cores_asked(job.request)
            yield PlannedStart(job.jobid, start_s, end_s, None, _nodes(job), cores, is_promised=False)


def _ranks(kept: Reservation) -> Idset | None:
    return None if kept.fit is None else ranks_in(kept.fit.blocks)


def _nodes(job: PendingJob) -> int:
    nodes = job.request.nodes
    return 0 if nodes is None else nodes.min


# ---- jobs that were not submitted

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
        return StartEstimate(self._now_s, FITS_NOW)

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
