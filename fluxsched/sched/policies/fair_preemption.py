"""Preemption under `fair`: for which waiting jobs running ones go, which of them, and where.

Law: in fair order from the first job that could not start, while its account stays within its share with it, running
jobs are found that go for it, and the rate lasts. A job for which others are going gets no more until these are gone,
and has a reservation until then. No job is preempted for one of its own account. U is what is held, less what is being
preempted, plus what the preempting jobs request; accounts are compared on every level below the bank that they share.

On each target that could hold a node (or one more slot) of the job, jobs are chosen until it fits there: each time, of
the account that is furthest over its share, and over it on every such level, the job that began last. Targets are
taken in the order of the work that each loses if it is the first, the lower rank at a tie, until the job fits; each
then loses what must go by then. What is not needed is spared, the first chosen first. If they do not suffice, none
goes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from heapq import heapify, heappop, heappush
from math import ceil, inf
from typing import Final

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import format_duration, total
from fluxsched.sched.fair.accounts import SLACK, Account, Accounts
from fluxsched.sched.policies.backfill import NOT_ENOUGH, cannot_preempt, rate_reached, until_gone
from fluxsched.sched.policies.fair_view import FairView
from fluxsched.sched.policy import (
    PAUSE,
    AccountLines,
    Decision,
    ExtrasSearch,
    Fits,
    JobAllocation,
    LackingParts,
    Leaving,
    Openings,
    PartHeld,
    PendingJob,
    Preempt,
    PreemptibleJobs,
    Preemptions,
    Reservation,
    Reserve,
    Shrink,
    Skips,
    View,
    Wake,
    WhatIfPreempted,
    cores_in,
    enough,
    merged,
)


def why_not_preempted(lines: AccountLines, job: PendingJob, preemptions: Preemptions, now_s: float) -> str:
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
        return f"no job is preempted for it: with it account {name} would use {_of_share(used, share)}"
    if not (running.jobs and preemptions.rate):
        return cannot_preempt(preemptions)
    paths = paths_over_share(job, banks, levels, running)
    if not paths:
        return "no job is preempted for it: no other account with preemptible jobs uses more than its share"
    held = [allocation for other in paths for allocation in running.of_account[other].values()]
    early_s = min(allocation.started_s + (allocation.preemptible_after_s or 0.0) for allocation in held)
    if early_s > now_s:
        wait = format_duration(ceil(early_s - now_s))
        return f"the jobs that could be preempted for it are protected for another {wait} (preemptible-after)"
    return rate_reached(preemptions, now_s) or NOT_ENOUGH


def _of_share(used: float, share: float) -> str:
    return f"{used:.6g} of its share of {round(share, 1):.9g}"


class PreemptingPass:
    """Preemptions of a pass at `now_s` (wall time, seconds), after all jobs that can start have started."""

    def __init__(self, view: View, mine: FairView, now_s: float) -> None:
        self._view = view
        self._mine = mine
        self._now_s = now_s
        self._book = mine.lines.book
        self._preemptions = view.preemptions
        self._levels = Levels(self._book.tree)
        self._seats: list[tuple[PendingJob, Fits | None]] = []

    def decide(self) -> Iterator[Decision]:
        """Yield the preemptions; without effort where no job may be preempted, or release a target."""
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
        """Subtract the usage of jobs being preempted, and add that of the jobs they are preempted for."""
        preemptions, levels = self._preemptions, self._levels
        for account, usage in preemptions.usage_going():
            levels.add(account, -usage)
        for jobid in preemptions.awaited:
            job = self._view.job(jobid)
            if job is not None and job.account is not None:
                kept = self._view.planned.get(jobid)
                self._count(job, job.account, None if kept is None else kept.fit)

    def _count(self, job: PendingJob, account: Account, fit: Fits | None) -> None:
        self._levels.add(account, self._usage(job, fit))
        self._mine.reserved(job.jobid)
        self._seats.append((job, fit))

    def _usage(self, job: PendingJob, fit: Fits | None) -> float:
        """Return the usage of the job's request, or of its placement if that is more: whole targets may have more."""
        asked = self._book.usage(job.shape)
        return asked if fit is None else max(asked, self._book.held_usage(fit))

    def _preempt_for(self, job: PendingJob) -> Generator[Decision, None, bool]:
        """Preempt for a job, and return whether it can start once others have ended, so that the next one may be
        tried.
        """
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
                    yield from self._search(search, job)
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

    def _search_extras(self, extras: ExtrasSearch, may_go: OverShare, job: PendingJob) -> Iterator[Decision]:
        with self._view.if_gone(job) as what_if:
            able, least = what_if.openings(job.shape).able(), what_if.missing(job.shape)
        for _ in extras.look(able, may_go, least):
            yield PAUSE
        with self._view.if_gone(job) as what_if:
            for other, fit in self._seats:
                what_if.seat(other.shape, fit)
            extras.choose(what_if)
        yield PAUSE

    def _search(self, search: VictimSearch, job: PendingJob) -> Iterator[Decision]:
        while not self._preemptions.running.catch_up():
            yield PAUSE
        done = False
        while not done:
            with self._view.if_gone(job) as what_if:
                for other, fit in self._seats:
                    what_if.seat(other.shape, fit)
                done = search.go_on(what_if)
            yield PAUSE

    def _preempt(self, search: VictimSearch, extras: ExtrasSearch, fit: Fits, job: PendingJob) -> Iterator[Decision]:
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
        return f"account {name} uses {_of_share(usage, share)}"

    def _gave(self, account: Account | None, usage: float) -> None:
        if account is not None:
            self._levels.add(account, -usage)


# ---- victims

VICTIMS_MAX = 65_536
"""Running jobs that are looked at for one waiting job; if they do not suffice, none goes."""

ESTIMATES_A_JOB: Final = 8
"""Number of targets whose least loss takes as long to estimate as it takes to look at one job."""

LOOKED_AT_ONCE: Final = 2048
"""Number of running jobs looked at between two pauses: some milliseconds."""

Standing = tuple[float, float, int]
"""Standing of an account: usage by share, then the start and the id of its last job."""


class VictimSearch:
    """The search for one job at `now_s` (wall time, seconds), in slices: `go_on` says when it is over.

    Then the job fits at `fit`, if that is not None, once `victims` are gone, and all that are going. `early_s` is when
    another job may be preempted that has not allowed it yet (wall time, seconds; inf if there is none). `extras` go
    before, as many as are needed: the search for these was over, and they do not suffice.
    """

    __slots__ = (
        "_entries", "_estimated", "_extras", "_job", "_left", "_left_usage", "_levels", "_looked", "_lost", "_now_s",
        "_parts", "_passed_over", "_paths", "_priced", "_running", "early_s", "fit", "victims",
    )  # fmt: skip

    def __init__(
        self,
        job: PendingJob,
        banks: list[Account],
        levels: Levels,
        running: PreemptibleJobs,
        now_s: float,
        extras: ExtrasSearch | None = None,
    ) -> None:
        self._job = job
        self._levels = levels
        self._running = running
        self._now_s = now_s
        self._paths = paths_over_share(job, banks, levels, running)
        self._entries: list[tuple[float, int, bool]] | None = None
        self._parts = 0  # of the job, that are looked at so far
        self._passed_over: list[tuple[float, int, bool]] = []  # which help none of these
        self._priced: set[int] = set()
        self._lost: dict[Account, float] = {}  # of the usage, by the victims so far
        self._looked = self._estimated = 0
        self._extras = extras
        self._left: dict[int, Idset] = {}  # the targets that jobs leave before which go on
        self._left_usage: dict[int, float] = {}
        self._leave_before([] if extras is None else extras.chosen)
        self.victims: dict[int, PartHeld] = {}
        self.early_s = inf
        self.fit: Fits | None = None

    @property
    def looked_at(self) -> int:
        """Return the approximate number of running jobs looked at: for an estimate of the work lost, targets count for
        less.
        """
        return self._looked + self._estimated // ESTIMATES_A_JOB

    @property
    def is_hopeless(self) -> bool:
        """Return whether no account with a job that could be preempted is over its share."""
        return not self._paths

    def go_on(self, what_if: WhatIfPreempted) -> bool:
        """Look at some more jobs, and return whether that was enough."""
        shape, pause_at = self._job.shape, self._looked + LOOKED_AT_ONCE
        openings = what_if.openings(shape)
        if self._extras is not None:
            what_if.release_targets(self._extras.chosen)
        if self._entries is None:
            self.fit = what_if.find(shape)
            if self.fit is not None or not self._paths:
                return True
            self._entries = self._running.least_work(self._paths, openings.need, openings.left, self._now_s)
            self._forget_left()
            self._estimated = len(self._entries)
            heapify(self._entries)
        what_if.give(self.victims)
        lacking = openings.lacking_parts()
        for _ in range(self._parts):
            lacking.next_part()
        while entries := self._helpful(lacking):
            if self._looked >= VICTIMS_MAX:
                break
            if self._looked >= pause_at:
                return False
            _, rank, exact = heappop(entries)
            if not exact:
                self._price(rank, openings)
                continue
            chosen = self._on_target(rank, openings, self._lost)
            if chosen is None:
                continue
            self._choose(chosen, openings)
            what_if.give([part.jobid for part in chosen])
            if shape.request.parts:
                freed = [at for part in chosen for at in self._running.ranks_of(part.jobid)]
                lacking.came_free(openings.opened(freed))
            if what_if.fits(shape):
                self._settle(what_if, openings)
                return True
            if self._job.request.nodes is None:
                self._offer(rank, self._on_target(rank, openings, self._lost))  # another slot may come free there
        self.victims.clear()
        return True

    def _helpful(self, lacking: LackingParts) -> list[tuple[float, int, bool]]:
        """Return the entries from the first that helps on, for one part more once all is there for those so far."""
        entries = self._entries
        assert entries is not None
        while not lacking.lacks:
            for entry in self._passed_over:
                heappush(entries, entry)
            self._passed_over.clear()
            if not lacking.next_part():
                return entries
            self._parts += 1
        while entries and not lacking.helps([entries[0][1]]):
            self._passed_over.append(heappop(entries))
        return entries

    def _price(self, rank: int, openings: Openings) -> None:
        """Work out the work lost on a target if it is the first that is taken."""
        if rank not in self._priced:
            self._priced.add(rank)
            self._offer(rank, self._on_target(rank, openings, {}))

    def _offer(self, rank: int, chosen: list[PartHeld] | None) -> None:
        if chosen is not None and self._entries is not None:
            work = sum([part.usage * (self._now_s - part.started_s) for part in chosen])
            heappush(self._entries, (work, rank, True))

    def _settle(self, what_if: WhatIfPreempted, openings: Openings) -> None:
        """Spare jobs that need not be preempted.

        Where each job is on one target, which is taken whole, all are needed, unless a target suits a part that had
        enough.
        """
        if self._extras is not None:
            self._extras.chosen = [each for each in self._extras.chosen if each.jobid not in self.victims]
            self._extras.spare(what_if)
        many = any(len(self._running.ranks_of(jobid)) > 1 for jobid in self.victims)
        if many or openings.left or self._job.request.parts:
            for jobid in list(self.victims):
                if what_if.spare(jobid, self._job.shape):
                    del self.victims[jobid]
        self.fit = what_if.find(self._job.shape)

    # ---- one target

    def _on_target(self, rank: int, openings: Openings, before: dict[Account, float]) -> list[PartHeld] | None:
        """Return the jobs to preempt on a target, in order; None if the job fits there already, or they do not suffice.

        The account that is furthest over its share is next, at a tie that of the job that began last.
        """
        opening = openings.at(rank)
        by_account = None if opening is None else self._candidates(rank, not openings.left)
        if opening is None or not by_account:
            return None
        cores, gpus, amounts, need_cores, need_gpus, need_amounts = opening
        lost = dict(before)
        standings = {account: self._standing(account, parts[-1], lost) for account, parts in by_account.items()}
        chosen: list[PartHeld] = []
        while cores.bit_count() < need_cores or gpus.bit_count() < need_gpus or not enough(amounts, need_amounts):
            account = self._furthest(standings, lost)
            if account is None:
                return None
            mine = by_account[account]
            part = mine.pop()
            chosen.append(part)
            cores |= part.cores
            gpus |= part.gpus
            if need_amounts:
                amounts = total(amounts, part.amounts)
            for at in self._paths[account]:
                lost[at] = lost.get(at, 0.0) + part.usage
            if mine:
                standings[account] = self._standing(account, mine[-1], lost)
            else:
                del standings[account]
        return chosen

    def _standing(self, account: Account, last: PartHeld, lost: dict[Account, float]) -> Standing:
        share = self._levels.share(account)
        over = (self._levels.usage(account) - lost.get(account, 0.0)) / share if share else inf
        return over, last.started_s, last.jobid

    def _furthest(self, standings: dict[Account, Standing], lost: dict[Account, float]) -> Account | None:
        """Return the next account; those that are no longer over their share on all levels never are again."""
        levels = self._levels
        while standings:
            account = max(standings, key=standings.__getitem__)
            for at in self._paths[account]:
                if levels.usage(at) - lost.get(at, 0.0) <= levels.bound(at):
                    del standings[account]
                    break
            else:
                return account
        return None

    def _candidates(self, rank: int, whole: bool) -> dict[Account, list[PartHeld]] | None:
        """Return the jobs that may be preempted, by account, in order of start; None if one must be preempted and may
        not be.
        """
        parts = self._running.by_target[rank].parts
        self._looked += len(parts)
        found: dict[Account, list[PartHeld]] = {}
        for jobid, held in parts.items():
            part = held
            account = part.account
            if jobid in self.victims:
                continue
            left = self._left.get(jobid) if self._left else None
            if left is not None:
                if rank in left:
                    continue
                part = part._replace(usage=part.usage - self._left_usage[jobid])
            if account is None or account not in self._paths:
                if whole:
                    return None
                continue
            if part.allowed_s > self._now_s:
                self.early_s = min(self.early_s, part.allowed_s)
                if whole:
                    return None
                continue
            mine = found.get(account)
            if mine is None:
                found[account] = [part]
            else:
                mine.append(part)
        for mine in found.values():
            mine.sort()
        return found

    def _leave_before(self, chosen: list[Leaving]) -> None:
        """Jobs that go on leave these before: then less of them is left, and less is used by their accounts."""
        self._left = merged(chosen)
        for each in chosen:
            self._left_usage[each.jobid] = self._left_usage.get(each.jobid, 0.0) + each.usage
            for at in self._paths.get(each.account, ()) if each.account is not None else ():
                self._lost[at] = self._lost.get(at, 0.0) + each.usage

    def _forget_left(self) -> None:
        """Discard the estimates of targets that jobs release, where the further work lost is to be worked out anew."""
        if self._left and self._entries is not None:
            ranks = EMPTY
            for left in self._left.values():
                ranks |= left
            self._entries = [(-inf, each[1], False) if each[1] in ranks else each for each in self._entries]

    def _choose(self, chosen: list[PartHeld], openings: Openings) -> None:
        for part in chosen if openings.left else ():
            for rank in self._running.ranks_of(part.jobid):
                self._price(rank, openings)  # while the job is still there
        for part in chosen:
            self.victims[part.jobid] = part
            assert part.account is not None
            for at in self._paths[part.account]:
                self._lost[at] = self._lost.get(at, 0.0) + part.usage


def paths_over_share(
    job: PendingJob, banks: list[Account], levels: Levels, running: PreemptibleJobs
) -> dict[Account, tuple[Account, ...]]:
    """Return the accounts that are over their share on each level below the bank they have in common with the job's."""
    found = {}
    for account in running.of_account:
        path = below_common(account, banks)
        if path and account is not job.account and all(levels.usage(at) > levels.bound(at) for at in path):
            found[account] = path
    return found


class OverShare:
    """Rule that allows extras of accounts over their share on each level below the bank shared with the job's
    account.
    """

    __slots__ = ("_banks", "_job", "_levels", "_lost", "_paths")

    def __init__(self, job: PendingJob, banks: list[Account], levels: Levels) -> None:
        self._job = job
        self._banks = banks
        self._levels = levels
        self._lost: dict[Account, float] = {}
        self._paths: dict[Account, tuple[Account, ...]] = {}

    def allows(self, allocation: JobAllocation) -> bool:
        account = allocation.account
        if account is None or account is self._job.account:
            return False
        path = self._paths.get(account)
        if path is None:
            path = self._paths[account] = below_common(account, self._banks)
        return bool(path) and self._is_over(path)

    def takes(self, account: Account | None, usage: float) -> bool:
        path = () if account is None else self._paths.get(account, ())
        if not path or not self._is_over(path):
            return False
        for at in path:
            self._lost[at] = self._lost.get(at, 0.0) + usage
        return True

    def fresh(self) -> OverShare:
        return OverShare(self._job, self._banks, self._levels)

    def _is_over(self, path: tuple[Account, ...]) -> bool:
        levels = self._levels
        return all(levels.usage(at) - self._lost.get(at, 0.0) > levels.bound(at) for at in path)


# ---- use and share of accounts


class Levels:
    """U and S of each account, worked out when they are asked for."""

    __slots__ = ("_accounts", "_changes", "_shares")

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._changes: dict[Account, float] = {}
        self._shares: dict[Account, float] = {}

    def usage(self, account: Account) -> float:
        """U, in units of weight."""
        return account.all_jobs.usage + self._changes.get(account, 0.0)

    def share(self, account: Account) -> float:
        """S, in units of weight."""
        share = self._shares.get(account)
        if share is None:
            share = self._shares[account] = self._accounts.fair_usage(account)
        return share

    def bound(self, account: Account) -> float:
        """Above this an account is above its share."""
        return self.share(account) * (1 + SLACK)

    def add(self, account: Account, usage: float) -> None:
        """Add usage to an account and all above it, or subtract it (below 0)."""
        changes = self._changes
        for at in account.up():
            changes[at] = changes.get(at, 0.0) + usage

    def scope(self, account: Account, usage: float) -> list[Account]:
        """Return the banks, from the lowest, whose other accounts may be preempted for an account that asks for more
        usage.

        Below each of them the account stays within its share. There are none if it does not itself.
        """
        found: list[Account] = []
        at = account
        while at.parent is not None and self.usage(at) + usage <= self.bound(at):
            at = at.parent
            found.append(at)
        return found


def below_common(account: Account, banks: list[Account]) -> tuple[Account, ...]:
    """Return the account and those above it, below the first of these banks; none if it is below none of them."""
    found: list[Account] = []
    for at in account.up():
        if at in banks:
            return tuple(found)
        found.append(at)
    return ()
