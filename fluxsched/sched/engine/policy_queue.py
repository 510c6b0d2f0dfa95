"""A queue with the policy that orders it, over the targets of a group, and the jobs of it that are set aside.

Law: the policy queues of one group see the same pool and respect each other's reservations. Jobs that were accepted and
that their group cannot hold any more wait, set aside, until it can. No policy sees them, so that no job waits behind
one that cannot start; a job that is back has the place that its priority and its time of submission give it. Owners
learn what is missing and since when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

from fluxsched.core.jobspec import Jobspec
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.plan.counted_plan import CountedPlan
from fluxsched.sched.plan.pool_plan import PoolPlan
from fluxsched.sched.plan.running_jobs import RunningJobs
from fluxsched.sched.policy import ANYTHING, ITS_START, NOTHING, PAUSE_EVERY, Policy, placement_of
from fluxsched.sched.queue import PendingJobs
from fluxsched.sched.sorted_jobs import PendingJob, QueueKey, Skips, key_of

UNCOUNTED: Final = -2
"""Initial value, which is no generation of a pool, nor that of an index that is not followed yet (-1)."""


class PolicyQueue:
    """`name` is the queue's, or empty for all queues of the group that have no policy of their own.

    `planned` are the reservations that the policy made in its last pass, `plan` is what it made them in. While a pass
    makes them anew, `planned_before` are those that it found. `arrivals` are
    the jobs that came since, if nothing else has happened, none is ahead of the first waiting job or of one with a
    reservation, and the policy need only examine them (`changed_by_arrivals`); else None.
    `order` is the one of ORDERS in which the policy last asked for jobs, None if in none; `placement` the one of
    PLACEMENTS by which it places them.
    """

    __slots__ = (
        "_counted",
        "_rear",
        "_uncountable",
        "arrivals",
        "changed_by_arrivals",
        "grows",
        "jobs",
        "name",
        "order",
        "placement",
        "plan",
        "planned",
        "planned_before",
        "plans_one",
        "policy",
        "replans",
    )  # fmt: skip

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self.jobs = PendingJobs()
        self.planned: dict[int, Reservation] = {}
        self.planned_before: dict[int, Reservation] = {}
        self.plan: CountedPlan | PoolPlan | None = None
        self.arrivals: list[PendingJob] | None = None
        self.changed_by_arrivals: str = getattr(policy, "ARRIVALS", ANYTHING)
        self.replans: bool = getattr(policy, "REPLANS", False)
        self.plans_one: bool = getattr(policy, "PLANS_ONE", False)
        self.grows: bool = getattr(policy, "GROWS", False)
        self.placement = placement_of(policy)
        self.order: str | None = None
        self._rear: QueueKey | None = None  # a job behind it is behind all that were examined
        self._uncountable = 0  # jobs whose need cannot be counted, as of generation `_counted`
        self._counted = UNCOUNTED

    def add(self, job: PendingJob, running: RunningJobs, now_s: float) -> bool:
        """Add a job to the queue; return False if no pass can decide anything new because of it.

        Raise LimitExceeded if the queue is full.
        """
        key = self.jobs.add(job)
        known = running.needs.get(job.shape.number)
        if not known and self._counted == running.generation and not running.need(job.shape):
            self._uncountable += 1
        if self.arrivals is None:
            return True
        if not job.priority:
            return False
        first = self.jobs.first
        if (
            first is None
            or first is job
            or self.jobs.is_head(job)
            or (self.jobs.last is not job and key < self._rearmost(first))
        ):
            self.arrivals = None
            return True
        change, plan = self.changed_by_arrivals, self.plan
        if change == NOTHING or (change == ITS_START and plan is not None and plan.rules_out(job, now_s)):
            return False
        self.arrivals.append(job)
        return True

    def passed(self, plan: CountedPlan | PoolPlan | None) -> None:
        """Record the plan of a completed pass: until something else happens, only new jobs need to be examined."""
        self.plan = plan
        self.arrivals = [] if self.changed_by_arrivals != ANYTHING else None
        self._rear = None  # worked out when it matters: most arrivals are the last in line

    def _rearmost(self, first: PendingJob) -> QueueKey:
        """Return the last in order of the first waiting job and those with a reservation."""
        if self._rear is None:
            by_id = self.jobs.by_id
            self._rear = max([first.key, *[by_id[jobid].key for jobid in self.planned if jobid in by_id]])
        return self._rear

    def removed(self, job: PendingJob, running: RunningJobs) -> None:
        """Update counts after a job was removed from the queue."""
        self.planned.pop(job.jobid, None)
        if self._uncountable and self._counted == running.generation and not running.need(job.shape):
            self._uncountable -= 1

    def recount(self) -> None:
        """Discard the count of jobs, after the targets that a shape may choose from have changed."""
        self._counted = UNCOUNTED

    def countable(self, running: RunningJobs) -> bool:
        """Return whether only the number of free cores matters to all pending jobs."""
        if self._counted != running.generation:
            self._counted = running.generation
            self._uncountable = sum(jobs for shape, jobs in self.jobs.shapes() if not running.need(shape))
        return not self._uncountable


def arrived(arrivals: list[PendingJob], skips: Skips, order: str, now_s: float) -> Iterator[PendingJob | None]:
    """Yield the arrivals in this order, without those that `skips` names; now and then None."""
    if len(arrivals) > 1:
        arrivals.sort(key=key_of(order, now_s))
    for at, job in enumerate(arrivals, 1):
        number = job.shape.number
        if number not in skips.unfit and (number not in skips.long or job.limit_s < skips.long[number]):
            yield job
        if not at % PAUSE_EVERY:
            yield None


# ---- set aside

WAIT, DENY = "wait", "deny"
UNSATISFIABLE: Final = (WAIT, DENY)
"""Treatment of accepted jobs that their group can no longer hold: `[policy] unsatisfiable`."""

TimeText = Callable[[float], str]
"""A time (wall time, seconds) in words for people."""

RULE: Final = "set aside: an accepted job waits while its group cannot hold it, and delays no other job"
WHEN: Final = "not known: as soon as the group has what it needs"


def utc_text(time_s: float) -> str:
    """`Nov22 12:03 UTC`, where no time zone is known."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%b%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):  # beyond the calendar: tests and simulations of long times
        return f"{time_s:.0f} s"


def asks_to_wait(jobspec: Jobspec) -> bool:
    """Return whether the job is to wait even if it is infeasible now (`submit --allow-infeasible`)."""
    system = jobspec.raw.get("attributes", {}).get("system") or {}
    return bool(system.get("unsatisfiable") == WAIT)


class SetAside:
    """One job that was set aside. `had` nodes (or slots) there were until `since_s` (wall time, seconds).

    `had` is None where it is not known; with `lost` false it never fitted since `since_s`, as far
    as this scheduler knows.
    """

    __slots__ = ("had", "job", "lost", "queue", "since_s", "why")

    def __init__(
        self, job: PendingJob, queue: PolicyQueue, why: str, since_s: float, lost: bool, had: int | None
    ) -> None:
        self.job = job
        self.queue = queue
        self.why = why
        self.since_s = since_s
        self.lost = lost
        self.had = had

    def reason(self, time_text: TimeText) -> str:
        """`needs 4 nodes of 1 slot of 1 core; the group has only 3 such nodes; it had 4 until Nov22 12:03`."""
        time = time_text(self.since_s)
        if not self.lost:
            return f"{self.why}, at least since {time}"
        return f"{self.why}; it had {'enough' if self.had is None else self.had} until {time}"
