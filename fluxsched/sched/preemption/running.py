"""Running jobs that allow preemption, by account and by target, as a search for victims needs them.

Law: one entry in a dict is all that a start or an end costs. What is on which target is caught up with when it is asked
for, in time linear in what began and ended since, and in slices.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from math import inf
from typing import Final, NamedTuple

from fluxsched.core.amounts import Amounts
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.ledger import Holding
from fluxsched.sched.pool.placement import Blocks, on_targets, parts_in

CATCH_UP_JOBS: Final = 1024
"""Jobs that are taken in at a time: some milliseconds."""

UsageOf = Callable[[Holding], float]
"""What a job holds, in units of weight (u in the formulas)."""


class PartHeld(NamedTuple):
    """What one job has of one target; parts sort by who began last, then by the higher id."""

    started_s: float
    jobid: int
    usage: float
    account: Account | None
    allowed_s: float
    cores: int
    gpus: int
    amounts: Amounts


class TargetJobs:
    """The jobs on one target that allow preemption. `usage` is that of all of them, wherever they hold it."""

    __slots__ = ("_weighted_start", "least_usage", "parts", "usage", "youngest_s")

    def __init__(self) -> None:
        self.parts: dict[int, PartHeld] = {}
        self.usage = self._weighted_start = 0.0
        self.least_usage = 0.0
        self.youngest_s = -inf

    def summarize(self, origin_s: float) -> None:
        """Works out the sums anew, so that they do not drift; starts count from `origin_s`, to keep their digits."""
        usage = weighted_start = 0.0
        least_usage, youngest_s = inf, -inf
        for part in self.parts.values():
            usage += part.usage
            weighted_start += part.usage * (part.started_s - origin_s)
            least_usage = min(least_usage, part.usage)
            youngest_s = max(youngest_s, part.started_s)
        self.usage, self._weighted_start = usage, weighted_start
        self.least_usage, self.youngest_s = least_usage, youngest_s

    def work(self, age_s: float) -> float:
        """The work of all of them, at so long after the origin."""
        return self.usage * age_s - self._weighted_start


class PreemptibleJobs:
    """All of a scheduler; `jobs` by id, in the order in which they began, and `of_account` by account."""

    def __init__(self, usage_of: UsageOf) -> None:
        self.jobs: dict[int, Holding] = {}
        self.of_account: dict[Account, dict[int, Holding]] = {}
        self.by_target: dict[int, TargetJobs] = {}
        self.origin_s = 0.0
        self._usage_of = usage_of
        self._known: dict[int, Blocks] = {}
        self._touched: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def began(self, holding: Holding) -> None:
        """A job began that may be preempted, now or later, or holds less than before."""
        jobid = holding.jobid
        self.jobs[jobid] = holding
        self._touched[jobid] = None
        if holding.account is not None:
            self.of_account.setdefault(holding.account, {})[jobid] = holding

    def ended(self, jobid: int) -> None:
        """The job is over, or is going."""
        holding = self.jobs.pop(jobid, None)
        if holding is None:
            return
        self._touched[jobid] = None
        if holding.account is not None:
            mine = self.of_account[holding.account]
            del mine[jobid]
            if not mine:
                del self.of_account[holding.account]

    def usage(self, holding: Holding) -> float:
        """What the job holds, in units of weight."""
        return self._usage_of(holding)

    def targets_of(self, account: Account) -> set[int]:
        """Where jobs of the account are, as far as has been caught up with."""
        known, mine = self._known, self.of_account.get(account, ())
        return {part.rank for jobid in mine for part in parts_in(on_targets(known.get(jobid, ())))}

    def catch_up(self) -> bool:
        """Takes in some of what has happened; whether that is all."""
        stale: set[int] = set()
        for jobid in list(islice(self._touched, CATCH_UP_JOBS)):
            del self._touched[jobid]
            for rank, *_ in parts_in(on_targets(self._known.pop(jobid, ()))):
                del self.by_target[rank].parts[jobid]
                stale.add(rank)
            holding = self.jobs.get(jobid)
            if holding is not None:
                self._enter(holding, stale)
        for rank in stale:
            target = self.by_target[rank]
            if target.parts:
                target.summarize(self.origin_s)
            else:
                del self.by_target[rank]
        return not self._touched

    def _enter(self, holding: Holding, stale: set[int]) -> None:
        jobid, usage, account = holding.jobid, self._usage_of(holding), holding.account
        if not self._known:
            self.origin_s = holding.started_s
        allowed_s = inf if holding.preemptible_after_s is None else holding.started_s + holding.preemptible_after_s
        self._known[jobid] = holding.blocks
        for rank, cores, gpus, amounts in parts_in(on_targets(holding.blocks)):
            target = self.by_target.get(rank)
            if target is None:
                target = self.by_target[rank] = TargetJobs()
            target.parts[jobid] = PartHeld(holding.started_s, jobid, usage, account, allowed_s, cores, gpus, amounts)
            stale.add(rank)
