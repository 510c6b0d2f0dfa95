"""For which waiting jobs others are preempted, and how the places that come free are kept for them.

Law: in fair order from the first job that could not start, while its account stays within its share with it, running
jobs are found that go for it, and the rate lasts. A job for which others are going gets no more until these are gone,
and has a reservation until then. No job is preempted for one of its own account.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from math import ceil, inf

from fluxsched.core.duration import format_duration
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.policies.fair.levels import Levels
from fluxsched.sched.policies.fair.victims import OverShare, VictimSearch, paths_over_share
from fluxsched.sched.policies.fair.view import FairView
from fluxsched.sched.policies.giving_way import NOT_ENOUGH, cannot_preempt, rate_reached, until_gone
from fluxsched.sched.policy import (
    PAUSE,
    AccountLines,
    Decision,
    ExtrasSearch,
    Fits,
    Preempt,
    Preemptions,
    Reservation,
    Reserve,
    Shrink,
    Skips,
    View,
    Waiting,
    Wake,
    cores_in,
    merged,
)


def why_not_preempted(lines: AccountLines, job: Waiting, preemptions: Preemptions, now_s: float) -> str:
    """Return what keeps running jobs from being preempted for this one, as a pass would find it first; empty if some
    are going for it, or if it is in no account.
    """
    account, running = job.account, preemptions.running
    if account is None or job.jobid in preemptions.awaited:
        return ""
    levels, usage = Levels(lines.book.tree), lines.book.usage(job.shape)
    for other, going in preemptions.usage_going():
        levels.add(other, -going)
    banks = levels.scope(account, usage)
    if not banks:
        if not running.jobs:
            return ""
        name, used, share = "/".join(account.path), levels.usage(account) + usage, levels.share(account)
        return f"no job is preempted for it: with it account {name} would use {used:.6g} of its share of {share:.6g}"
    if not (running.jobs and preemptions.rate):
        return cannot_preempt(preemptions)
    paths = paths_over_share(job, banks, levels, running)
    if not paths:
        return "no job is preempted for it: no other account with preemptible jobs uses more than its share"
    held = [holding for other in paths for holding in running.of_account[other].values()]
    early_s = min(holding.started_s + (holding.preemptible_after_s or 0.0) for holding in held)
    if early_s > now_s:
        wait = format_duration(ceil(early_s - now_s))
        return f"the jobs that could be preempted for it may not be before {wait} from now (preemptible-after)"
    return rate_reached(preemptions, now_s) or NOT_ENOUGH


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
        """Nothing is worked out where no job may be preempted, nor leave a target."""
        preemptions = self._preemptions
        if not (preemptions.running.jobs and preemptions.rate) and not preemptions.elastic:
            return
        walk = self._mine.walk(Skips())
        self._count_going()
        while not walk.over:
            job = walk.next()
            if job is None:
                yield PAUSE
            elif job.jobid not in self._preemptions.awaited:
                if self._view.is_put_off(job):
                    return
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
            again_s = preemptions.rests_until_s(job.jobid, now_s)
            extras = ExtrasSearch(job.shape, preemptions, now_s)
            if again_s <= now_s and preemptions.elastic:
                yield from self._search_extras(extras, OverShare(job, banks, self._levels), job)
            search = VictimSearch(job, banks, self._levels, preemptions.running, now_s, extras)
            if extras.fit is None and search.is_hopeless and not preemptions.any_going and not extras.chosen:
                return False
            may_preempt = bool(preemptions.running.jobs) and bool(preemptions.rate)
            if extras.fit is None and may_preempt and self._view.is_put_off(job, whole=True):
                return False
            if extras.fit is None and may_preempt:
                again_s = max(again_s, preemptions.next_s(1, now_s))
            if again_s <= now_s:
                if extras.fit is None and may_preempt:
                    yield from self._search(search)
                fit = extras.fit or search.fit
                within = self._levels.scope(account, self._usage(job, fit))
                if (search.victims or extras.chosen) and fit is not None and len(within) < len(banks):
                    banks = within  # what it gets is more than what it asks for
                    continue
                again_s = search.early_s if fit is None else preemptions.next_s(len(search.victims), now_s)
                if again_s <= now_s and fit is not None:
                    yield from self._preempt(search, extras, fit, job)
                    self._count(job, account, fit)
                    return True
                preemptions.searched_in_vain(job.jobid, search.looked_at + extras.looked_at, now_s)
            if again_s < inf:
                yield Wake(again_s)
            return False
        return False

    def _search_extras(self, extras: ExtrasSearch, may_go: OverShare, job: Waiting) -> Iterator[Decision]:
        with self._view.if_gone() as what_if:
            able, least = what_if.openings(job.shape).able(), what_if.missing(job.shape)
        for _ in extras.look(able, may_go, least):
            yield PAUSE
        with self._view.if_gone() as what_if:
            for other, fit in self._seats:
                what_if.seat(other.shape, fit)
            extras.choose(what_if)
        yield PAUSE

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

    def _preempt(self, search: VictimSearch, extras: ExtrasSearch, fit: Fits, job: Waiting) -> Iterator[Decision]:
        leaving = merged(extras.chosen)
        usage = dict.fromkeys(leaving, 0.0)
        for each in extras.chosen:
            usage[each.jobid] += each.usage
        for jobid, ranks in leaving.items():
            account = self._preemptions.elastic[jobid].account
            yield Shrink(jobid, ranks, self._why(account), job.jobid)
            self._gave(account, usage[jobid])
        for part in search.victims.values():
            yield Preempt(part.jobid, job.jobid, self._why(part.account))
            self._gave(part.account, part.usage)
        if search.victims or leaving:
            start_s = self._now_s + self._preemptions.timeout_s
            self._view.plan.drop(job.jobid)
            made = Reservation(job.jobid, start_s, start_s + job.limit_s, cores_in(fit.blocks), fit)
            yield Reserve(made, until_gone(len(search.victims), len(leaving.keys() - search.victims.keys())))

    def _why(self, account: Account | None) -> str:
        assert account is not None
        name, usage, share = "/".join(account.path), self._levels.usage(account), self._levels.share(account)
        return f"account {name} uses {usage:.6g} of its share of {share:.6g}"

    def _gave(self, account: Account | None, usage: float) -> None:
        if account is not None:
            self._levels.add(account, -usage)
