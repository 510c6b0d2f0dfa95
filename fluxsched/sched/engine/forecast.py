"""When jobs may start at the earliest, where their policy has not planned them: by what running jobs leave.

Law: a bound, not a promise. It rests on how long running jobs may still run at most, and where one of them has no limit
there is none.
"""

from __future__ import annotations

from math import inf
from typing import Final

from fluxsched.core.jobid import format_f58
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.placement import BEST_FIT
from fluxsched.sched.queue.orders import FIFO
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.registry import OWN

WALKED_PARTS_MAX = 10_000
"""Targets of running jobs, counted once for each job there, that the forecasts of one answer may walk through, all of
them for each: 0.1 s. One is made in any case.
"""
NAMED_MAX = 3
"""Jobs without a limit that are named; one would do."""


def forecasts_max(ledger: Ledger) -> int:
    """How many forecasts one answer may make; linear in the running jobs."""
    return max(1, WALKED_PARTS_MAX // max(1, sum([len(holding.parts) for holding in ledger])))


def order_of(queue: PolicyQueue) -> str | None:
    """In which order jobs of the queue are looked at; None for the policy of a plugin that sorts them itself."""
    if queue.jobs.lines is not None:
        return None
    return queue.order or (FIFO if type(queue.policy) in OWN.values() else None)


FITS_NOW: Final = "it fits now"
"""What a forecast rests on where running jobs are not in the way."""


class Forecast:
    """When jobs may start at the earliest; asks an index of its own, so that policies that do not plan pay nothing."""

    def __init__(self, group: Group, ledger: Ledger, now_s: float, *, is_bounded: bool = False) -> None:
        """`is_bounded`: after `forecasts_max` no further request is looked up."""
        self._walks_max = forecasts_max(ledger) if is_bounded else inf
        self._group = group
        self._now_s = now_s
        self._endless = [holding.jobid for holding in group.holdings() if holding.end_s == inf]
        self._running = RunningJobs(group.pool, ledger)
        self._known: dict[tuple[int, float], float] = {}

    def of(self, queue: PolicyQueue, job: Waiting) -> tuple[float | None, str]:
        """The time, and what it rests on."""
        kept = queue.planned.get(job.jobid)
        if kept is not None and kept.start_s < inf:
            return kept.start_s, "as it is planned; sooner if running jobs end before their limits"
        if len(self._known) >= self._walks_max and (job.shape.number, job.duration_s) not in self._known:
            return None, "not worked out: so many jobs run that it is known only if asked for this job alone"
        start_s, head = self._earliest(job), queue.jobs.first
        if start_s == inf and job.shape.number in self._group.pool.narrowed:
            return None, "not known: plugins keep targets from it"
        if start_s == inf:
            return None, f"not known: {self._why_not()}"
        if queue.jobs.lines is not None:
            head = None  # it is another one by account
        in_line = order_of(queue) == FIFO or (head is not None and head.jobid in queue.planned)
        if in_line and head is not None and head.jobid != job.jobid and self._behind(queue, head, start_s):
            planned = queue.planned.get(head.jobid)
            head_s = self._earliest(head) if planned is None else planned.start_s
            name = format_f58(head.jobid)
            if head_s == inf:
                return None, f"not known: job {name}, first in line, has no time itself; {self._why_not()}"
            return max(head_s, start_s), f"not before job {name}, first in line"
        if start_s <= self._now_s:
            return None, FITS_NOW
        return start_s, "if running jobs use up their limits and no job goes ahead of it"

    def _behind(self, queue: PolicyQueue, head: Waiting, start_s: float) -> bool:
        """Whether the first in line blocks the job: it fits now but does not start, or only the first is tried."""
        if start_s <= self._now_s:
            return True
        reasons = self._group.notices.reasons
        return not queue.planned and reasons.keys() == {head.jobid}

    def _earliest(self, job: Waiting) -> float:
        """When the job fits on what running jobs leave, `now_s` at the earliest: once for all that ask for the same."""
        group, key = self._group, (job.shape.number, job.duration_s)
        if key not in self._known:
            plan = PoolPlan(group.pool, self._running, self._now_s, group.expiration_s or inf)
            fits = plan.place(job, BEST_FIT) is not None
            self._known[key] = self._now_s if fits else plan.reserve(job).start_s
        return self._known[key]

    def _why_not(self) -> str:
        if self._endless:
            names = ", ".join(format_f58(jobid) for jobid in self._endless[:NAMED_MAX])
            more = len(self._endless) - NAMED_MAX
            names += f" and {more} more" if more > 0 else ""
            return f"{names}, running, has no time limit" if len(self._endless) == 1 else f"{names} run without a limit"
        if self._group.pool.down:
            return "it needs nodes that are down"
        return "no running job will release the resources it needs"
