"""Which running jobs go so that a waiting one can start, and where.

Law: on each target that could hold a node (or one more slot) of the job, those go that must until it fits there: each
time of the account that is furthest over its share, and over it on every level below the bank that it shares with the
job's account, the job that began last. Targets are taken in the order of the work that each loses if it is the first,
the lower rank at a tie, until the job fits; each then loses what must go by then. Several parts of the job are looked
at one after the other (`lacking_parts`). What is not needed is spared, the first chosen first. If they do not suffice,
none goes.

Targets are worked out in the order of what is lost there at least, so most of them never are.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from fluxsched.core.amounts import total
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.policies.fair.levels import Levels, below_common
from fluxsched.sched.policy import (
    ExtrasSearch,
    Fits,
    Holding,
    IfGone,
    LackingParts,
    Leaving,
    Openings,
    PartHeld,
    PreemptibleJobs,
    Waiting,
    enough,
    merged,
)

VICTIMS_MAX = 65_536
"""Running jobs that are looked at for one waiting job; if they do not suffice, none goes."""

ESTIMATES_A_JOB: Final = 8
"""Targets of which it takes as long to say what is lost there at least as to look at one job."""

LOOKED_AT_ONCE: Final = 2048
"""Of these, how many between two pauses: some milliseconds."""

Standing = tuple[float, float, int]
"""Of an account, over others: usage by share, then when its last job began, and the id of that."""


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
        job: Waiting,
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
        """How many running jobs it took, about: for what is lost at least, targets count for less."""
        return self._looked + self._estimated // ESTIMATES_A_JOB

    @property
    def is_hopeless(self) -> bool:
        """Whether no account of which a job could go is over its share."""
        return not self._paths

    def go_on(self, what_if: IfGone) -> bool:
        """Looks at some more jobs; whether that was enough."""
        shape, pause_at = self._job.shape, self._looked + LOOKED_AT_ONCE
        openings = what_if.openings(shape)
        if self._extras is not None:
            what_if.leave_all(self._extras.chosen)
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
        """The entries from the first that helps on, for one part more once all is there for those so far."""
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
        """Works out what is lost on a target if it is the first that is taken."""
        if rank not in self._priced:
            self._priced.add(rank)
            self._offer(rank, self._on_target(rank, openings, {}))

    def _offer(self, rank: int, chosen: list[PartHeld] | None) -> None:
        if chosen is not None and self._entries is not None:
            work = sum([part.usage * (self._now_s - part.started_s) for part in chosen])
            heappush(self._entries, (work, rank, True))

    def _settle(self, what_if: IfGone, openings: Openings) -> None:
        """Spares what is not needed; of those that each are on one target, which is taken whole, all are.

        Unless that suits a part that had enough.
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
        """Those that must go there, in order; None if the job fits there already, or they do not suffice.

        The account that is furthest over its share comes next, at a tie that of the job that began last.
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
        """The next account; those that are no longer over their share on all levels never are again."""
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
        """Those that may go, by account, each from the first that began; None where some of them must and may not."""
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
        """On targets that jobs leave before, what must go besides is worked out anew."""
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
    job: Waiting, banks: list[Account], levels: Levels, running: PreemptibleJobs
) -> dict[Account, tuple[Account, ...]]:
    """The accounts that are over their share on each level below the bank they have in common with the job's."""
    found = {}
    for account in running.of_account:
        path = below_common(account, banks)
        if path and account is not job.account and all(levels.usage(at) > levels.bound(at) for at in path):
            found[account] = path
    return found


class OverShare:
    """Whose extras may go: accounts over their share on each level below the bank that they share with the job's."""

    __slots__ = ("_banks", "_job", "_levels", "_lost", "_paths")

    def __init__(self, job: Waiting, banks: list[Account], levels: Levels) -> None:
        self._job = job
        self._banks = banks
        self._levels = levels
        self._lost: dict[Account, float] = {}
        self._paths: dict[Account, tuple[Account, ...]] = {}

    def allows(self, holding: Holding) -> bool:
        account = holding.account
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
