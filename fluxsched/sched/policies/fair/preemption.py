"""For which waiting jobs others are preempted, and how the places that come free are kept for them.

Law: in fair order from the first job that could not start, while its account stays within its share with it, running
jobs are found that go for it, and the rate lasts. A job for which others are going gets no more until these are gone,
and has a reservation until then. No job is preempted for one of its own account.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from math import inf

from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.policies.fair.levels import Levels
from fluxsched.sched.policies.fair.victims import VictimSearch
from fluxsched.sched.policies.fair.view import FairView
from fluxsched.sched.policy import (
    PAUSE,
    RESERVED,
    WORST_FIT,
    Decision,
    Fits,
    Preempt,
    Reservation,
    Reserve,
    Skips,
    Start,
    View,
    Waiting,
    Wake,
    cores_in,
)


def seat_awaiting(view: View, mine: FairView, now_s: float) -> Iterator[Decision]:
    """Jobs for which others are going start, or have a reservation, before the others are looked at."""
    awaiting = [job for job in map(view.job, view.preemptions.awaited) if job is not None and job.priority]
    if not awaiting:
        return
    plan, preemptions = view.plan, view.preemptions
    places = {jobid: old for jobid, old in view.planned.items() if preemptions.awaits(jobid, old.start_s, now_s)}
    for job in awaiting:
        if job.jobid in places:
            plan.claim(job, places[job.jobid], preemptions.going)
    for job in awaiting:
        if mine.limits.admits(job, True):
            plan.waive(job.jobid)
            fit = plan.place(job, WORST_FIT)
            if fit is not None:
                yield Start(job.jobid, fit, RESERVED)
                continue
            mine.limits.keep(job)
            old = places.get(job.jobid)
            kept = None if old is None else plan.claim(job, old, preemptions.going)
            left = len(preemptions.awaited.get(job.jobid, ()))
            yield Reserve(kept or plan.reserve(job), _until_gone(left) if left else view.reason(job))


class PreemptingPass:
    """What a pass at `now_s` (wall time, seconds) preempts, after all that can start has started."""

    def __init__(self, view: View, mine: FairView, now_s: float) -> None:
        self._view = view
        self._mine = mine
        self._now_s = now_s
        self._book = mine.lines.book
        self._preemptions = view.preemptions
        self._levels = Levels(self._book.tree)
        self._seats: list[tuple[Waiting, Fits | None]] = []

    def decide(self) -> Iterator[Decision]:
        """Nothing is worked out where no job may be preempted."""
        if not self._preemptions.running.jobs or not self._preemptions.rate:
            return
        walk = self._mine.walk(Skips())
        self._count_going()
        while not walk.over:
            job = walk.next()
            if job is None:
                yield PAUSE
            elif job.jobid not in self._preemptions.awaited:
                done = yield from self._preempt_for(job)
                if not done:
                    return

    def _count_going(self) -> None:
        """What is going no longer counts, and those count for which it goes."""
        preemptions, levels = self._preemptions, self._levels
        for account, usage in preemptions.usage_going():
            levels.add(account, -usage)
        for jobid in preemptions.awaited:
            job = self._view.job(jobid)
            if job is not None and job.account is not None:
                kept = self._view.planned.get(jobid)
                self._count(job, job.account, None if kept is None else kept.fit)

    def _count(self, job: Waiting, account: Account, fit: Fits | None) -> None:
        self._levels.add(account, self._usage(job, fit))
        self._mine.reserved(job.jobid)
        self._seats.append((job, fit))

    def _usage(self, job: Waiting, fit: Fits | None) -> float:
        """What the job asks for at least, and what it gets: whole targets may have more."""
        asked = self._book.usage(job.shape)
        return asked if fit is None else max(asked, self._book.held_usage(fit))

    def _preempt_for(self, job: Waiting) -> Generator[Decision, None, bool]:
        """Whether the job can start once others are gone, so that the next one may be looked at."""
        account, preemptions, now_s = job.account, self._preemptions, self._now_s
        assert account is not None
        banks = self._levels.scope(account, self._usage(job, None))
        while banks:
            search = VictimSearch(job, banks, self._levels, preemptions.running, now_s)
            if search.is_hopeless and not preemptions.any_going:
                return False
            again_s = max(preemptions.rests_until_s(job.jobid, now_s), preemptions.next_s(1, now_s))
            if again_s <= now_s:
                yield from self._search(search)
                within = self._levels.scope(account, self._usage(job, search.fit))
                if search.victims and len(within) < len(banks):
                    banks = within  # what it gets is more than what it asks for
                    continue
                again_s = search.early_s if search.fit is None else preemptions.next_s(len(search.victims), now_s)
                if again_s <= now_s and search.fit is not None:
                    yield from self._preempt(search, search.fit, job)
                    self._count(job, account, search.fit)
                    return True
                preemptions.searched_in_vain(job.jobid, search.looked_at, now_s)
            if again_s < inf:
                yield Wake(again_s)
            return False
        return False

    def _search(self, search: VictimSearch) -> Iterator[Decision]:
        while not self._preemptions.running.catch_up():
            yield PAUSE
        done = False
        while not done:
            with self._view.if_gone() as what_if:
                for other, fit in self._seats:
                    what_if.seat(other.shape, fit)
                done = search.go_on(what_if)
            yield PAUSE

    def _preempt(self, search: VictimSearch, fit: Fits, job: Waiting) -> Iterator[Decision]:
        levels = self._levels
        for part in search.victims.values():
            account = part.account
            assert account is not None
            name, usage, share = "/".join(account.path), levels.usage(account), levels.share(account)
            yield Preempt(part.jobid, job.jobid, f"account {name} uses {usage:.6g} of its share of {share:.6g}")
            levels.add(account, -part.usage)
        if search.victims:
            start_s = self._now_s + self._preemptions.timeout_s
            self._view.plan.drop(job.jobid)
            made = Reservation(job.jobid, start_s, start_s + job.limit_s, cores_in(fit.blocks), fit)
            yield Reserve(made, _until_gone(len(search.victims)))


def _until_gone(jobs: int) -> str:
    return f"starts when {jobs} preempted {'job is' if jobs == 1 else 'jobs are'} gone"
