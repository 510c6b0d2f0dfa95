"""Why a job waits, from what its policy has decided: the reason, the rule, and when it may start at the earliest.

Law: nothing is promised that is not kept. A reservation is a promise; else the earliest time is a bound, by how long
running jobs may still run at most, and where one of them has no limit there is none.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from math import inf

from fluxsched.core.why import Why, in_groups
from fluxsched.errors import Refused
from fluxsched.sched.engine.forecast import FITS_NOW, Forecast, order_of
from fluxsched.sched.engine.lacking import LIMIT, NODE, QUEUE, lacking
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.joint import is_planned
from fluxsched.sched.engine.waiting.judging import why_set_aside
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.engine.waiting.set_aside import RULE, WHEN
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.pool.place import find_fit, place_now
from fluxsched.sched.pool.placement import BEST_FIT, Fits
from fluxsched.sched.pool.reasons import counted
from fluxsched.sched.queue.orders import FIFO
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.quotas.queue import Application
from fluxsched.sched.registry import says

Forecasts = dict[str, Forecast]
"""By group: what was forecast for the jobs of one answer, so that those who ask for the same cost no more than one."""


def why_of(
    jobid: int, groups: Iterable[Group], ledger: Ledger, now_s: float, forecasts: Forecasts | None = None
) -> Why:
    """The answer about a job; `forecasts` are kept from one job to the next of the same answer, whose cost is bounded
    then. Raises Refused for a job that is not known here.
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
            return explain(group, queue, job, _forecast(group, ledger, now_s, forecasts), now_s)
    if jobid in ledger:
        return Why("holds resources")
    raise Refused(f"job {jobid} neither waits nor holds anything here", errno.ENOENT)


def _explain_joint(
    groups: Sequence[Group], jobid: int, ledger: Ledger, now_s: float, forecasts: Forecasts | None
) -> Why:
    """The answer about a job of several groups: what holds in each, and where it may start first."""
    found: list[tuple[Group, Why]] = []
    reasons: list[tuple[str, str]] = []
    for group in groups:
        queue = group.queue_of(jobid)
        job = None if queue is None else queue.jobs.get(jobid)
        if queue is not None and job is not None:
            why = explain(group, queue, job, _forecast(group, ledger, now_s, forecasts), now_s)
            found.append((group, why))
            reasons.append((group.name, why.reason))
        elif jobid in group.set_aside:
            reasons.append((group.name, group.set_aside[jobid].why))
    planned = [why for group, why in found if is_planned(group, jobid)]
    first = planned[0] if planned else min([why for _, why in found], key=_earliest_s)
    return first._replace(reason=in_groups(reasons))


def _earliest_s(why: Why) -> float:
    return inf if why.earliest_s is None else why.earliest_s


def _forecast(group: Group, ledger: Ledger, now_s: float, forecasts: Forecasts | None) -> Callable[[], Forecast]:
    """What makes or finds the forecast of a group when it is asked for."""

    def get() -> Forecast:
        if forecasts is None:
            return Forecast(group, ledger, now_s)
        if group.name not in forecasts:
            forecasts[group.name] = Forecast(group, ledger, now_s, is_bounded=True)
        return forecasts[group.name]

    return get


def explain(group: Group, queue: PolicyQueue, job: Waiting, forecast: Callable[[], Forecast], now_s: float) -> Why:
    """The answer about a job of this queue; linear in the running jobs."""
    if group.is_expected:
        return Why(group.expected, "no job is judged before that", "not known: as soon as it answers")
    if not group.grown:
        return Why(
            f"waits for the resources of group {group.name!r} to be acquired",
            "no job is judged before that",
            "not known: as soon as they are acquired",
        )
    if 0 < group.expiration_s <= now_s:
        return Why(
            f"the resources of group {group.name!r} expired {group.time_text(group.expiration_s)}",
            "nothing starts after their end",
            "not before they have a later end: reload an R that has one",
        )
    if not job.priority:
        held = "is held: its priority is 0; raise its urgency"
        return Why(held, "a job on hold is skipped", "not while it is held")
    if job.application is not None:
        return _explain_ask(group, queue, job, job.application, now_s)
    name, order = queue.policy.name, order_of(queue)
    how = says(queue.policy) or "it does not say how it decides"
    told = _told_by_policy(queue, job, now_s)
    if told is not None and told.reason:
        return told._replace(rule=f"{told.rule} under {name}: {how}")
    ahead = queue.jobs.ahead_of(job.jobid, order or FIFO, now_s)
    if told is not None:
        rule = f"{told.rule}; under {name}: {how}"
    elif order is None:
        others = len(queue.jobs) - 1
        place = f"with {counted(others, 'other')}" if others else "alone"
        rule = f"waits {place} in the order of policy {name}: {how}"
    elif order != FIFO and job.jobid in queue.planned:
        rule = f"has a reservation under {name}: {how}"
    else:
        place_in = "in line" if order == FIFO else f"in the order {order},"
        place = f"first {place_in}" if not ahead else f"{ahead} ahead of it" + ("" if order == FIFO else f" {place_in}")
        rule = f"{place} under {name}: {how}"
    reason = _reason(group, queue, job, ahead if order else None, order or FIFO)
    if _is_refused_by_plugin(group, job, reason):
        rule = f"a plugin refuses it for now; policy {name} tries it again"
        return Why(reason, rule, "not known: it is up to the plugin")
    earliest_s, when = forecast().of(queue, job)
    if when == FITS_NOW and job.jobid in group.notices.reasons:
        when = f"not known: it fits now, and policy {name} holds it back"
    return Why(f"{reason}{_not_preempted(group, queue, job, now_s)}", rule, when, earliest_s)


def _is_refused_by_plugin(group: Group, job: Waiting, reason: str) -> bool:
    """Whether the reason is a plugin's, which refused it, one of its equals, or all targets, and not its policy's."""
    narrowed = group.pool.narrowed.get(job.shape.number)
    return reason in group.notices.refused.values() or (narrowed is not None and reason == narrowed.later)


def _not_preempted(group: Group, queue: PolicyQueue, job: Waiting, now_s: float) -> str:
    """Return what keeps a policy that preempts from doing so for a job that lacks resources, behind its reason."""
    explain = getattr(queue.policy, "why_not_preempted", None)
    if explain is None or isinstance(place_now(group.pool, job.shape, BEST_FIT), Fits):
        return ""
    text: str = explain(queue.jobs.lines, queue.jobs.by_id.get, job, group.preemptions, now_s)
    return f"; {text}" if text else ""


def _explain_ask(group: Group, queue: PolicyQueue, job: Waiting, application: Application, now_s: float) -> Why:
    """The answer about an ask in a tree of queues."""
    found = lacking(group, job)
    rule = f"of application {application.id} in queue {application.queue.path}, under {queue.policy.name}"
    if found is None:
        return Why("waits its turn: nothing that it needs is lacking", rule, "in one of the next passes")
    not_preempted = _not_preempted(group, queue, job, now_s) if found.kind in (NODE, QUEUE, LIMIT) else ""
    return Why(f"{found.text}{not_preempted}", rule, "not known: allocations have no end that is known before")


def _told_by_policy(queue: PolicyQueue, job: Waiting, now_s: float) -> Why | None:
    """What a policy that keeps accounts says itself."""
    explain = getattr(queue.policy, "explain", None)
    if explain is None or queue.jobs.lines is None:
        return None
    told: Why = explain(queue.jobs.lines, job, now_s)
    return told


def explain_set_aside(group: Group, jobid: int) -> Why:
    """The answer about a job that was set aside."""
    held = "" if group.set_aside[jobid].job.priority else "; it is held, too: raise its urgency"
    return Why(f"{why_set_aside(group, jobid)}{held}", RULE, WHEN)


def _reason(group: Group, queue: PolicyQueue, job: Waiting, ahead: int | None, order: str) -> str:
    reason = group.notices.reasons.get(job.jobid)
    if reason is not None:
        return reason if isinstance(reason, str) else reason()
    narrowed = group.pool.narrowed.get(job.shape.number)
    if narrowed is not None and narrowed.later and find_fit(group.pool, job.shape, BEST_FIT) is None:
        return narrowed.later
    if queue.jobs.lines is None and (group.changed or group.notices.reasons):
        if ahead is None:
            return "its policy has not looked at it yet"
        place_in = "in the queue" if order == FIFO else f"in the order {order}"
        return f"waits its turn; {ahead} ahead of it {place_in}" if ahead else "is the next to be looked at"
    outcome = place_now(group.pool, job.shape, BEST_FIT)
    if not isinstance(outcome, Fits):
        return outcome.why
    if queue.jobs.lines is not None:
        return "fits now, but jobs ahead of it wait"
    return f"fits now, but policy {queue.policy.name!r} has looked at the queue and decided nothing about it"
