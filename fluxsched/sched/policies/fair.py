"""Fair shares: the next job is of the account that uses least for its weight; another policy decides where and when.

That policy sees the waiting jobs in fair order, without those that a limit holds back, and its decisions pass through
here: what starts or gets a reservation counts in the usage of its account from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any, ClassVar, Final

from fluxsched.core.compiling import mypyc_attr
from fluxsched.core.quantities import parse_duration
from fluxsched.core.reasons import Why
from fluxsched.sched.fair.accounts import ALL, DOMINANT, RATE_MAX, SHARES, SIGNALS, USAGES, Signal
from fluxsched.sched.policies.backfill import seat_awaiting
from fluxsched.sched.policies.fair_preemption import PreemptingPass, why_not_preempted
from fluxsched.sched.policies.fair_view import FairView, explain, limit_text
from fluxsched.sched.policy import (
    AccountLines,
    Decision,
    Option,
    Pending,
    PendingJob,
    PendingJobs,
    Policy,
    Preemptions,
    Reserve,
    Stages,
    View,
    Wake,
    placement_of,
)


def parse_amount(text: str) -> float:
    """Return a number of at least 0. Raises ValueError."""
    value = float(text)
    if not 0 <= value < inf:
        raise ValueError("it is a number of at least 0")
    return value


def parse_rate(text: str) -> int:
    """Return the rate, a number of jobs. Raise ValueError."""
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > RATE_MAX:
        raise ValueError(f"a rate is a number within 0-{RATE_MAX}")
    return int(text)


FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], object]]]] = {
    "signal": ("signal", Signal),
    "half_life": ("half_life_s", float),
    "usage": ("dominant", DOMINANT.__eq__),
    "shares": ("shares_of_all", ALL.__eq__),
    "cap": ("cap", float),
    "budget": ("budget_min", float),
    "rate": ("rate", int),
}
"""Our options that are settings of `[fair]`: the name there, and what makes its value."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Fair:
    __doc__: Final = "The account that uses least for its weight comes next, under the policy `backfill`."

    name: ClassVar[str] = "fair"
    ACCOUNTS: ClassVar[bool] = True
    INNER: ClassVar[str] = "backfill"
    OPTIONS: ClassVar[Mapping[str, Option]] = {
        "backfill": Option("easy", help="the policy that decides which of the jobs start; its options may follow"),
        "signal": Option(None, SIGNALS, help="the measure of past usage by which accounts are ordered"),
        "half-life": Option(None, parse=parse_duration, help="time after which past usage counts half, such as 7d"),
        "usage": Option(None, USAGES, help="what counts: the sum of weights, or the largest part of any one resource"),
        "shares": Option(None, SHARES, help="accounts that share: those that have jobs, or all configured ones"),
        "cap": Option(None, parse=parse_amount, help="maximal usage of non-preemptible jobs, in shares"),
        "budget": Option(None, parse=parse_amount, help="resource minutes a user for preemptible jobs above the share"),
        "rate": Option(None, parse=parse_rate, help="most jobs that may be preempted in any 60 s"),
    }

    def __init__(self, backfill: Policy, **settings: Any) -> None:
        self.BACKFILLS = bool(getattr(backfill, "BACKFILLS", False))
        self.GROWS = bool(getattr(backfill, "GROWS", False))
        self.placement = placement_of(backfill)
        self.fair_overrides: Mapping[str, object] = {
            FIELDS[name][0]: FIELDS[name][1](value) for name, value in settings.items() if value is not None
        }
        self.inner = backfill

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        lines = view.lines
        if lines is None:
            return iter(self.inner.schedule(view, now_s))
        lines.forget_plans()
        mine = FairView(view, lines, now_s)
        stages = (
            partial(seat_awaiting, view, now_s, partial(_admits, mine), mine.limits.keep),
            partial(self.inner.schedule, mine, now_s),
            partial(_afterwards, view, mine, now_s),
        )
        return Stages(stages, partial(_watch, mine))

    def explain(self, lines: AccountLines, job: PendingJob, now_s: float) -> Why:
        """Why a job waits, as far as that is for us to say."""
        return explain(lines, job, now_s)

    def why_not_preempted(self, jobs: PendingJobs, job: PendingJob, preemptions: Preemptions, now_s: float) -> str:
        """Return why no running jobs are preempted for a pending job; see `preemption`."""
        return "" if jobs.lines is None else why_not_preempted(jobs.lines, job, preemptions, now_s)


def _admits(mine: FairView, job: PendingJob) -> bool:
    return mine.limits.admits(job, True)


def _watch(mine: FairView, decision: Decision) -> None:
    if isinstance(decision, Reserve):
        mine.reserved(decision.reservation.jobid)


def _afterwards(view: View, mine: FairView, now_s: float) -> Iterator[Decision]:
    yield from _lost(view, mine)
    mine.forget_reserved()
    yield from _limited(mine)
    yield from PreemptingPass(view, mine, now_s).decide()


def _lost(view: View, mine: FairView) -> Iterator[Decision]:
    """Yield decisions for jobs whose reservation was lost to another account's job, so that the estimate is
    withdrawn.
    """
    for jobid in view.planned:
        job = None if mine.has_reserved(jobid) else view.job(jobid)
        if job is not None:
            yield Pending(jobid, view.reason(job))


def _limited(view: FairView) -> Iterator[Decision]:
    """Yield decisions for jobs that limits defer, and a wake-up when a limit ends by itself."""
    for job, found in view.limits.blocked:
        yield Pending(job.jobid, partial(limit_text, found))
    if view.limits.wake_s < inf:
        yield Wake(view.limits.wake_s)
