"""How running jobs give way to waiting ones where no accounts are kept: extras go for the first who waits.

Law: only if that suffices; a job for which others are going gets no more until these are gone, and has a reservation
until then, so that no other job starts in its place. Nothing is looked at where no running job has extras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, inf
from typing import Final

from fluxsched.core.duration import format_duration
from fluxsched.sched.policy import (
    PAUSE,
    RESERVED,
    WORST_FIT,
    AllMayGo,
    Decision,
    ExtrasSearch,
    Fits,
    Preemptions,
    Reservation,
    Reserve,
    Shrink,
    Start,
    View,
    Waiting,
    cores_in,
    merged,
)

NOT_ENOUGH: Final = (
    "the jobs that may be preempted for it would not make enough room, or are kept for a job that comes first"
)
"""Why nothing is preempted for a job, where no limit keeps it from that."""


def cannot_preempt(preemptions: Preemptions) -> str:
    """Return why no job at all is preempted, where none may be."""
    if preemptions.running.jobs:
        return "no job is preempted: the rate of preemptions is 0"
    return "no running job is preemptible"


def rate_reached(preemptions: Preemptions, now_s: float) -> str:
    """Return when the next job may be preempted, if the rate does not allow it now; else nothing."""
    again_s = preemptions.next_s(1, now_s)
    if again_s <= now_s:
        return ""
    when = f": the next one in {format_duration(ceil(again_s - now_s))}" if again_s < inf else ""
    limit = f"{preemptions.rate} in {format_duration(preemptions.window_s)}"
    return f"no more jobs are preempted for now, at most {limit}{when}"


def seat_awaiting(
    view: View,
    now_s: float,
    admits: Callable[[Waiting], bool] | None = None,
    keep: Callable[[Waiting], None] | None = None,
) -> Iterator[Decision]:
    """Jobs for which others are going start, or have a reservation, before the others are looked at.

    Those that `admits` does not let start now are left out; `keep` is told of those that have to wait.
    """
    awaiting = [job for job in map(view.job, view.preemptions.awaited) if job is not None and job.priority]
    if not awaiting:
        return
    plan, preemptions = view.plan, view.preemptions
    places = {jobid: old for jobid, old in view.planned.items() if preemptions.awaits(jobid, old.start_s, now_s)}
    for job in awaiting:
        if job.jobid in places:
            plan.claim(job, places[job.jobid], preemptions.going)
    for job in awaiting:
        if admits is None or admits(job):
            plan.waive(job.jobid)
            fit = plan.place(job, WORST_FIT)
            if fit is not None:
                yield Start(job.jobid, fit, RESERVED)
                continue
            if keep is not None:
                keep(job)
            old = places.get(job.jobid)
            kept = None if old is None else plan.claim(job, old, preemptions.going)
            left = preemptions.awaited.get(job.jobid, ())
            ending = sum([jobid in preemptions.going for jobid in left])
            reason = until_gone(ending, len(left) - ending) if left else view.reason(job)
            yield Reserve(kept or plan.reserve(job), reason)


def give_way(view: View, now_s: float) -> Iterator[Decision]:
    """Extras go for the first who waits, if that suffices; after all that can start has started."""
    job, preemptions = view.first, view.preemptions
    if job is None or not preemptions.elastic or job.jobid in preemptions.awaited or view.is_held_back(job):
        return
    if view.is_put_off(job):
        return
    extras = ExtrasSearch(job.shape, preemptions, now_s)
    with view.if_gone() as what_if:
        able, least = what_if.openings(job.shape).able(), what_if.missing(job.shape)
    for _ in extras.look(able, AllMayGo(), least):
        yield PAUSE
    with view.if_gone() as what_if:
        for jobid in preemptions.awaited:
            other, kept = view.job(jobid), view.planned.get(jobid)
            if other is not None:
                what_if.seat(other.shape, None if kept is None else kept.fit)
        extras.choose(what_if)
    yield PAUSE
    if extras.fit is not None and extras.chosen:
        yield from _shrink(view, job, extras, extras.fit, now_s)


def _shrink(view: View, job: Waiting, extras: ExtrasSearch, fit: Fits, now_s: float) -> Iterator[Decision]:
    leaving = merged(extras.chosen)
    for jobid, ranks in leaving.items():
        yield Shrink(jobid, ranks, "it is the first that waits", job.jobid)
    start_s = now_s + view.preemptions.timeout_s
    view.plan.drop(job.jobid)
    made = Reservation(job.jobid, start_s, start_s + job.limit_s, cores_in(fit.blocks), fit)
    yield Reserve(made, until_gone(0, len(leaving)))


def until_gone(preempted: int, shrunk: int) -> str:
    """What the owner of a job is told for which so many jobs are going, and so many others are to leave targets."""
    going = f"{preempted} preempted {'job' if preempted == 1 else 'jobs'}"
    extras = f"extras of {shrunk} elastic {'job' if shrunk == 1 else 'jobs'}"
    what = [going] * bool(preempted) + [extras] * bool(shrunk)
    return f"starts when {' and '.join(what)} {'is' if preempted == 1 and not shrunk else 'are'} gone"
