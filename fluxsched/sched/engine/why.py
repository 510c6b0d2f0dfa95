"""Why a job waits, from what its policy has decided: the reason, the rule, and when it may start at the earliest.

Law: nothing is promised that is not kept. A reservation is a promise; else the earliest time is a bound, by how long
running jobs may still run at most, and where one of them has no limit there is none.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from math import inf

from fluxsched.core.jobid import format_f58
from fluxsched.core.why import Why
from fluxsched.errors import Refused
from fluxsched.sched.engine.lacking import lacking
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.engine.waiting.set_aside import RULE, WHEN
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import find_fit, place_now
from fluxsched.sched.pool.placement import BEST_FIT, Fits
from fluxsched.sched.pool.reasons import counted
from fluxsched.sched.queue.orders import FIFO
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.quotas.queue import Application
from fluxsched.sched.registry import OWN, says

NAMED_MAX = 3
"""Jobs without a limit that are named; one would do."""


def why_of(jobid: int, groups: Iterable[Group], ledger: Ledger, now_s: float) -> Why:
    """The answer about a job. Raises Refused for one that is not known here."""
    for group in groups:
        if jobid in group.set_aside:
            return explain_set_aside(group, jobid)
        queue = group.queue_of(jobid)
        job = None if queue is None else queue.jobs.get(jobid)
        if queue is not None and job is not None:
            return explain(group, queue, job, ledger, now_s)
    if jobid in ledger:
        return Why("holds resources")
    raise Refused(f"job {jobid} neither waits nor holds anything here", errno.ENOENT)


def explain(group: Group, queue: PolicyQueue, job: Waiting, ledger: Ledger, now_s: float) -> Why:
    """The answer about a job of this queue; linear in the running jobs."""
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
        return _explain_ask(group, queue, job, job.application)
    name, order = queue.policy.name, _order_of(queue)
    how = says(queue.policy) or "it does not say how it decides"
    told = _told_by_policy(queue, job, now_s)
    if told is not None and told.reason:
        return told._replace(rule=f"{told.rule} under {name}: {how}")
    ahead = queue.jobs.ahead_of(job.jobid, order or FIFO, now_s)
    if told is not None:
        rule = f"{told.rule}; under {name}: {how}"
    elif order is None:
        others = len(queue.jobs) - 1
        place = f"with {counted(others, 'other')} in an order of its own" if others else "alone"
        rule = f"waits {place} under {name}: {how}"
    elif order != FIFO and job.jobid in queue.planned:
        rule = f"has a reservation under {name}: {how}"
    else:
        place_in = "in line" if order == FIFO else f"in the order {order},"
        place = f"first {place_in}" if not ahead else f"{ahead} ahead of it" + ("" if order == FIFO else f" {place_in}")
        rule = f"{place} under {name}: {how}"
    earliest_s, when = _Forecast(group, ledger, now_s).of(queue, job)
    return Why(_reason(group, queue, job, ahead if order else None, order or FIFO), rule, when, earliest_s)


def _explain_ask(group: Group, queue: PolicyQueue, job: Waiting, application: Application) -> Why:
    """The answer about an ask in a tree of queues."""
    found = lacking(group, job)
    rule = f"of application {application.id} in queue {application.queue.path}, under {queue.policy.name}"
    if found is None:
        return Why("waits its turn: nothing that it needs is lacking", rule, "in one of the next passes")
    return Why(found.text, rule, "not known: allocations have no end that is known before")


def _order_of(queue: PolicyQueue) -> str | None:
    """In which order jobs are looked at; None for the policy of a plugin that sorts them itself."""
    if queue.jobs.lines is not None:
        return None
    return queue.order or (FIFO if type(queue.policy) in OWN.values() else None)


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
    return Why(f"{group.why_set_aside(jobid)}{held}", RULE, WHEN)


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


class _Forecast:
    """When jobs may start at the earliest; asks an index of its own, so that policies that do not plan pay nothing."""

    def __init__(self, group: Group, ledger: Ledger, now_s: float) -> None:
        self._group = group
        self._now_s = now_s
        self._endless = [holding.jobid for holding in group.holdings() if holding.end_s == inf]
        self._running = RunningJobs(group.pool, ledger)

    def of(self, queue: PolicyQueue, job: Waiting) -> tuple[float | None, str]:
        """The time, and what it rests on."""
        kept = queue.planned.get(job.jobid)
        if kept is not None and kept.start_s < inf:
            return kept.start_s, "as it is planned; sooner if running jobs end before their limits"
        start_s, head = self._earliest(job), queue.jobs.first
        if start_s == inf and job.shape.number in self._group.pool.narrowed:
            return None, "not known: plugins keep targets from it"
        if start_s == inf:
            return None, f"not known: {self._why_not()}"
        if queue.jobs.lines is not None:
            head = None  # it is another one by account
        in_line = _order_of(queue) == FIFO or (head is not None and head.jobid in queue.planned)
        if in_line and head is not None and head.jobid != job.jobid and self._behind(queue, head, start_s):
            planned = queue.planned.get(head.jobid)
            head_s = self._earliest(head) if planned is None else planned.start_s
            name = format_f58(head.jobid)
            if head_s == inf:
                return None, f"not known: job {name}, first in line, has no time itself; {self._why_not()}"
            return max(head_s, start_s), f"not before job {name}, first in line"
        if start_s <= self._now_s:
            return None, "it fits now"
        return start_s, "if running jobs use up their limits and no job goes ahead of it"

    def _behind(self, queue: PolicyQueue, head: Waiting, start_s: float) -> bool:
        """Whether the first in line blocks the job: it fits now but does not start, or only the first is tried."""
        if start_s <= self._now_s:
            return True
        reasons = self._group.notices.reasons
        return not queue.planned and reasons.keys() == {head.jobid}

    def _earliest(self, job: Waiting) -> float:
        """When the job fits on what running jobs leave; `now_s` at the earliest."""
        group = self._group
        plan = PoolPlan(group.pool, self._running, self._now_s, group.expiration_s or inf)
        fits = plan.place(job, BEST_FIT) is not None
        return self._now_s if fits else plan.reserve(job).start_s

    def _why_not(self) -> str:
        if self._endless:
            names = ", ".join(format_f58(jobid) for jobid in self._endless[:NAMED_MAX])
            more = len(self._endless) - NAMED_MAX
            names += f" and {more} more" if more > 0 else ""
            return f"{names}, running, has no time limit" if len(self._endless) == 1 else f"{names} run without a limit"
        if self._group.pool.down:
            return "it needs nodes that are down"
        return "no running job will release the resources it needs"
