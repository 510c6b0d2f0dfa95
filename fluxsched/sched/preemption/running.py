"""Running jobs that allow preemption, by account and by target, as a search for victims needs them.

Law: one entry in a dict is all that a start or an end costs. What is on which target is caught up with when it is asked
for, in time linear in what began and ended since, and in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice, repeat
from math import inf
from typing import Final, NamedTuple

from fluxsched.core.amounts import Amounts
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.ledger import Holding
from fluxsched.sched.pool.bitset import WORD_SHIFT
from fluxsched.sched.pool.placement import Blocks, HeldBlocks, Holds, on_targets, parts_in

CATCH_UP_JOBS: Final = 1024
"""Jobs that are taken in at a time: some milliseconds."""

ROUNDING: Final = 1e-3
"""Of sums of work, in units of weight times seconds: they are summed in another order where they are estimated."""

FEW: Final = 7
"""Where others keep so many times what is needed, it is no use to see what they would have to lose."""

NARROW: Final = 8
"""Where accounts have fewer than one in so many of the jobs, only the targets of these are looked at."""

Estimate = tuple[float, int, bool]
"""(work that is lost at least, rank, whether that is exact)."""

UsageOf = Callable[[Holds], float]
"""What is used by what holds something, in units of weight (u in the formulas)."""


def rank_of(holding: Holding) -> int:
    """The first rank on which a job holds something."""
    block = holding.blocks[0]
    return block.at << WORD_SHIFT | (block.word & -block.word).bit_length() - 1


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
    """The jobs on one target that allow preemption, and sums from which it follows what is lost there at least.

    `cores` is what they hold of it. Their `usage` is that of all they hold, wherever it is, and rates are usage by core
    of this target. `weighted_start` is the sum of usage x start, which counts from an origin.
    """

    __slots__ = (
        "cores", "least_rate", "least_usage", "most_rate", "oldest_s", "parts", "usage", "weighted_start", "youngest_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parts: dict[int, PartHeld] = {}
        self.cores = 0
        self.usage = self.weighted_start = 0.0
        self.least_usage = self.least_rate = self.most_rate = 0.0
        self.youngest_s = self.oldest_s = 0.0

    def summarize(self, origin_s: float) -> None:
        """Works out the sums anew, so that they do not drift."""
        cores, usage, weighted_start = 0, 0.0, 0.0
        least_usage, least_rate, most_rate = inf, inf, 0.0
        youngest_s, oldest_s = -inf, inf
        for part in self.parts.values():
            mine = part.cores.bit_count()
            least_usage = min(least_usage, part.usage)
            youngest_s = max(youngest_s, part.started_s)
            if not mine:
                least_rate = 0.0  # it may stay, whatever else does
                continue
            cores += mine
            usage += part.usage
            weighted_start += part.usage * (part.started_s - origin_s)
            rate = part.usage / mine
            least_rate = min(least_rate, rate)
            most_rate = max(most_rate, rate)
            oldest_s = min(oldest_s, part.started_s)
        self.cores, self.usage, self.weighted_start = cores, usage, weighted_start
        self.least_usage, self.least_rate, self.most_rate = least_usage, least_rate, most_rate
        self.youngest_s, self.oldest_s = youngest_s, oldest_s


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
        if jobid in self._known:
            self._touched[jobid] = None
        else:  # it was never taken in
            self._touched.pop(jobid, None)
        if holding.account is not None:
            mine = self.of_account[holding.account]
            del mine[jobid]
            if not mine:
                del self.of_account[holding.account]

    def usage(self, held: Holds) -> float:
        """What a job uses, or a part of one, in units of weight."""
        return self._usage_of(held)

    def least_work(self, accounts: Collection[Account], need: int, left: int, now_s: float) -> list[Estimate]:
        """What is lost at least on each target with jobs of these accounts where `need` cores are to come free.

        That is what must go at the age of the youngest; and all, less what may stay at the age of the oldest. Others
        may keep `left` cores there; where they may keep none, it is just what is lost.
        """
        targets = self._targets_of(accounts)
        age_s = now_s - self.origin_s
        if not left:
            works = [each.usage * age_s - each.weighted_start for _, each in targets]
            return list(zip(works, [rank for rank, _ in targets], repeat(True)))
        goes = [
            (must if (must := (each.cores - left) * each.least_rate) > each.least_usage else each.least_usage)
            * (now_s - each.youngest_s)
            - ROUNDING
            for _, each in targets
        ]
        if left < FEW * need:
            stays = [min(left, each.cores) * each.most_rate * (now_s - each.oldest_s) for _, each in targets]
            alls = [each.usage * age_s - each.weighted_start - ROUNDING for _, each in targets]
            goes = [max(one, all_of_them - stay) for one, all_of_them, stay in zip(goes, alls, stays, strict=True)]
        return list(zip(goes, [rank for rank, _ in targets], repeat(False)))

    def _targets_of(self, accounts: Collection[Account]) -> Collection[tuple[int, TargetJobs]]:
        """Targets with jobs of these accounts; all, unless these have few of the jobs."""
        jobs = sum([len(self.of_account[account]) for account in accounts])
        if jobs * NARROW >= len(self.jobs):
            return self.by_target.items()
        ranks = {rank for account in accounts for jobid in self.of_account[account] for rank in self.ranks_of(jobid)}
        return [(rank, self.by_target[rank]) for rank in ranks]

    def ranks_of(self, jobid: int) -> list[int]:
        """The ranks on which the job holds something, as of the last `catch_up`."""
        return [part.rank for part in parts_in(on_targets(self._known.get(jobid, ())))]

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
        blocks = holding.staying
        usage = self._usage_of(HeldBlocks(blocks) if holding.leaving else holding)
        jobid, account = holding.jobid, holding.account
        if not self._known:
            self.origin_s = holding.started_s
        allowed_s = inf if holding.preemptible_after_s is None else holding.started_s + holding.preemptible_after_s
        self._known[jobid] = blocks
        for rank, cores, gpus, amounts in parts_in(on_targets(blocks)):
            target = self.by_target.get(rank)
            if target is None:
                target = self.by_target[rank] = TargetJobs()
            target.parts[jobid] = PartHeld(holding.started_s, jobid, usage, account, allowed_s, cores, gpus, amounts)
            stale.add(rank)
