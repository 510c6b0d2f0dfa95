"""Where a job may start now although outages are ahead, and in words which of them keeps it waiting.

Law: a job that crosses no outage is placed as if there were none. The owner is told of an outage only if the job would
start now without any, and then with the time limit with which it fits before, if there is one.
"""

from __future__ import annotations

from math import floor, inf
from typing import Final

from fluxsched.core.outages import Outage
from fluxsched.core.quantities import format_duration
from fluxsched.sched.engine.group import Group
from fluxsched.sched.engine.held_jobs import end_of
from fluxsched.sched.engine.policy_queue import TimeText
from fluxsched.sched.pool.find_fit import LeftOut, Returned, find_fit, place_now
from fluxsched.sched.pool.placement import BEST_FIT, Fits, Insufficient, Outcome
from fluxsched.sched.sorted_jobs import PendingJob

_MINUTE_S: Final = 60
_INSTANT_S: Final = 1e-3


def left_out(group: Group, job: PendingJob, now_s: float) -> LeftOut:
    """Return the targets that outages keep from a job that would start at `now_s`, for a `with` block."""
    pool = group.pool
    barred = pool.outages.barred(now_s, end_of(job.duration_s, group.expiration_s, now_s) or inf) if pool.outages else 0
    return LeftOut(pool, job.shape, barred & pool.ranks.mask)


def fit_now(group: Group, job: PendingJob, now_s: float, placement: str) -> Fits | None:
    """Return a placement of the job now that crosses no outage; None if there is none."""
    pool = group.pool
    fit = find_fit(pool, job.shape, placement)
    if fit is None or not pool.is_barred(fit.blocks, now_s, end_of(job.duration_s, group.expiration_s, now_s)):
        return fit
    with left_out(group, job, now_s):
        return find_fit(pool, job.shape, placement)


def outcome_now(group: Group, job: PendingJob, now_s: float, placement: str) -> Outcome:
    """Return the outcome for a job on what is free now, with the reason in words."""
    pool = group.pool
    if not pool.outages:
        return place_now(pool, job.shape, placement)
    with left_out(group, job, now_s):
        outcome = place_now(pool, job.shape, placement)
    if isinstance(outcome, Insufficient):
        with Returned(pool, pool.outages.on(now_s) & pool.down):
            if find_fit(pool, job.shape, placement) is not None:
                return Insufficient(_why(group, job, now_s))
    return outcome


def _why(group: Group, job: PendingJob, now_s: float) -> str:
    """Return which outage a job that fits now would cross, and the longest limit with which it crosses none."""
    end_s = end_of(job.duration_s, group.expiration_s, now_s) or inf
    ahead = group.pool.outages.crossed(now_s, end_s)
    outage = ahead[-1]
    for one in ahead:  # the first one with which it no longer fits, so a shorter limit is of use
        if not _fits_within(group, job, now_s, one.from_s + _INSTANT_S):
            outage = one
            break
    limit = f"the limit of {format_duration(job.duration_s)}" if job.duration_s else "a job without a limit"
    said = f"outage {outage.name} keeps {_hosts(group, outage)} {_when(outage, group.time_text)}; {limit} crosses it"
    left_s = outage.from_s - now_s
    if left_s < 1.0:
        return said
    whole_s = floor(left_s / _MINUTE_S) * _MINUTE_S or floor(left_s)
    return f"{said}; it fits with --time-limit {format_duration(float(whole_s))}"


def _fits_within(group: Group, job: PendingJob, start_s: float, end_s: float) -> bool:
    pool = group.pool
    with LeftOut(pool, job.shape, pool.outages.barred(start_s, end_s) & pool.ranks.mask):
        return find_fit(pool, job.shape, BEST_FIT) is not None


def _hosts(group: Group, outage: Outage) -> str:
    mine = outage.targets & group.pool.ranks
    return str(group.pool.source.hosts(mine)) or f"ranks {mine}"


def _when(outage: Outage, text: TimeText) -> str:
    return f"from {text(outage.from_s)} to {text(outage.until_s)}"
