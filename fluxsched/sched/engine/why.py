"""Why a job waits, from what its policy has decided: the reason, the rule, and when it may start at the earliest.

Law: nothing is promised that nobody keeps. A reservation is a promise; else the earliest time is a bound, by what those
who run may still take at most, and where a running job has no limit there is none.
"""

from __future__ import annotations

from math import inf

from fluxsched.core.jobid import format_f58
from fluxsched.core.why import Why
from fluxsched.sched.engine.group import Group
from fluxsched.sched.engine.policy_queue import Lane
from fluxsched.sched.engine.set_aside import RULE, WHEN
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import place_now
from fluxsched.sched.pool.placement import BEST_FIT, Fits
from fluxsched.sched.pool.reasons import counted
from fluxsched.sched.queue.orders import FIFO
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.registry import OWN, says

NAMED_MAX = 3
"""Jobs without a limit that are named; one would do."""


def explain(group: Group, lane: Lane, job: Waiting, ledger: Ledger, now_s: float) -> Why:
    """The answer about a job of this lane; linear in the running jobs."""
    if not group.grown:
        return Why(
            f"waits for the resources of group {group.name!r} to be acquired",
            "nobody is judged before they have come",
            "not known: as soon as they come",
        )
    if 0 < group.expiration_s <= now_s:
        return Why(
            f"the resources of group {group.name!r} expired {group.time_text(group.expiration_s)}",
            "nothing starts after their end",
            "not before they have a later end: reload an R that has one",
        )
    if not job.priority:
        held = "is held: its priority is 0; raise its urgency"
        return Why(held, "a job on hold is passed over", "not while it is held")
    name, order = lane.policy.name, _order_of(lane)
    how = says(lane.policy) or "it does not say how it decides"
    ahead = lane.queue.ahead_of(job.jobid, order or FIFO, now_s)
    if order is None:
        rule = f"one of {counted(len(lane.queue), 'job')} that wait under {name}, in an order of its own: {how}"
    elif order != FIFO and job.jobid in lane.planned:
        rule = f"has a reservation under {name}: {how}"
    else:
        queue = "in line" if order == FIFO else f"in the order {order},"
        place = f"first {queue}" if not ahead else f"{ahead} ahead of it" + ("" if order == FIFO else f" {queue}")
        rule = f"{place} under {name}: {how}"
    earliest_s, when = _Forecast(group, ledger, now_s).of(lane, job)
    return Why(_reason(group, lane, job, ahead if order else None, order or FIFO), rule, when, earliest_s)


def _order_of(lane: Lane) -> str | None:
    """In which order jobs are looked at; None for a policy of somebody else's that sorts them itself."""
    return lane.order or (FIFO if type(lane.policy) in OWN.values() else None)


def explain_aside(group: Group, jobid: int) -> Why:
    """The answer about a job that was set aside."""
    held = "" if group.aside[jobid].job.priority else "; it is held, too: raise its urgency"
    return Why(f"{group.why_aside(jobid)}{held}", RULE, WHEN)


def _reason(group: Group, lane: Lane, job: Waiting, ahead: int | None, order: str) -> str:
    reason = group.reasons.get(job.jobid)
    if reason is not None:
        return reason if isinstance(reason, str) else reason()
    if group.changed or group.reasons:
        if ahead is None:
            return "its policy has not looked at it yet"
        queue = "in the queue" if order == FIFO else f"in the order {order}"
        return f"waits its turn; {ahead} ahead of it {queue}" if ahead else "is the next to be looked at"
    outcome = place_now(group.pool, job.request, BEST_FIT)
    if not isinstance(outcome, Fits):
        return outcome.why
    return f"fits now, but policy {lane.policy.name!r} has looked at the queue and decided nothing about it"


class _Forecast:
    """When jobs may start at the earliest; asks an index of its own, so that policies that do not plan pay nothing."""

    def __init__(self, group: Group, ledger: Ledger, now_s: float) -> None:
        self._group = group
        self._now_s = now_s
        self._endless = [holding.jobid for holding in group.holdings() if not holding.expiration_s]
        self._running = RunningJobs(group.pool, ledger)

    def of(self, lane: Lane, job: Waiting) -> tuple[float | None, str]:
        """The time, and what it rests on."""
        kept = lane.planned.get(job.jobid)
        if kept is not None and kept.start_s < inf:
            return kept.start_s, "as it is planned; sooner if running jobs end before their limits"
        start_s, head = self._earliest(job), lane.queue.first
        if start_s == inf:
            return None, f"not known: {self._why_not()}"
        in_line = _order_of(lane) == FIFO or (head is not None and head.jobid in lane.planned)
        if in_line and head is not None and head.jobid != job.jobid and self._behind(lane, head, job, start_s):
            planned = lane.planned.get(head.jobid)
            head_s = self._earliest(head) if planned is None else planned.start_s
            name = format_f58(head.jobid)
            if head_s == inf:
                return None, f"not known: job {name}, first in line, has no time itself; {self._why_not()}"
            return max(head_s, start_s), f"not before job {name}, first in line"
        if start_s <= self._now_s:
            return None, "it fits now"
        return start_s, "if running jobs use up their limits and nobody goes before it"

    def _behind(self, lane: Lane, head: Waiting, job: Waiting, start_s: float) -> bool:
        """Whether the first in line is in its way: it fits now and does not start, or only the first is looked at."""
        if start_s <= self._now_s:
            return True
        reasons = self._group.reasons
        return not lane.planned and reasons.keys() == {head.jobid}

    def _earliest(self, job: Waiting) -> float:
        """When it fits, on what running jobs leave; past and present alike are now."""
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
        return "nobody who runs gives back what it needs"
