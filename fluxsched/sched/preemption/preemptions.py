"""Preemption in one scheduler: which jobs are going, for which other job, and how many more may be preempted.

Law: a job is preempted at most once, and in any `window_s` at most `rate` of them are. What is going holds what it
has until that is freed (law 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Final

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.sched.accounts.settings import RATE_WINDOW_S, FairSettings
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.ledger import Holding, Ledger
from fluxsched.sched.pool.placement import Blocks, HeldBlocks, Holds, cores_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.preemption.if_gone import IfGone
from fluxsched.sched.preemption.running import PreemptibleJobs, UsageOf

PREEMPT_TIMEOUT_S: Final = 5.0
"""`[exec] preempt-timeout`, where nothing else is known."""

UNKNOWN: Final = 0
"""The beneficiary of a job that was found going: none has this id."""

RATE: Final = FairSettings().rate

REST_FROM: Final = 512
"""Running jobs that may be looked at in vain in each pass: some milliseconds."""

REST_S: Final = 1e-4
"""For each job that was looked at in vain: then searches take some hundredths of the time."""

REST_MAX_S = 10.0
"""No search takes as long as that would be the rest after it: the clock has stepped back."""


def cores_held(held: Holds) -> float:
    """What is used by what holds something where there are no accounts: its cores."""
    return float(cores_in(held.blocks))


class Preemptions:
    """`running` are the jobs that may be preempted, `going` maps those that were to the job that they go for.

    `leaving` maps jobs that go on, and are to leave some targets, to these, by the job that they leave them to.
    `awaited` maps beneficiaries to those that are not gone yet: to none once they all are, until a pass has seen that
    while no job is going. What is going is killed after `timeout_s`. `of_account` counts preempted jobs.
    Before `in_use` there was no job that may be preempted or leave a target, nor one that was to.
    """

    __slots__ = (
        "_begun_s", "_in_vain", "_ledger", "_spared", "awaited", "going", "in_use", "leaving", "of_account", "rate",
        "running", "timeout_s", "window_s",
    )  # fmt: skip

    def __init__(
        self,
        ledger: Ledger,
        timeout_s: float = PREEMPT_TIMEOUT_S,
        rate: int = RATE,
        usage_of: UsageOf = cores_held,
    ) -> None:
        self._ledger = ledger
        self.rate = rate
        self.window_s: float = RATE_WINDOW_S
        self.timeout_s = timeout_s
        self.running = PreemptibleJobs(usage_of)
        self.in_use = False
        self.going: dict[int, int] = {}
        self.leaving: dict[int, dict[int, Idset]] = {}
        self.of_account: dict[Account, int] = {}
        self.awaited: dict[int, set[int]] = {}
        self._begun_s: deque[float] = deque()
        self._in_vain: tuple[int, float] = (0, -inf)
        self._spared: set[int] = set()  # on which no exception could be raised

    def limit(self, rate: int, window_s: float) -> None:
        """At most `rate` are preempted in any `window_s` (seconds)."""
        self.rate, self.window_s = rate, window_s

    # ---- questions

    def left(self, now_s: float) -> int:
        """How many more jobs may be preempted at `now_s` (wall time, seconds)."""
        begun_s = self._begun_s
        while begun_s and begun_s[0] + self.window_s <= now_s:
            begun_s.popleft()
        if begun_s and begun_s[-1] > now_s:  # the clock stepped back: what has begun began now at the latest
            self._begun_s = begun_s = deque([min(each_s, now_s) for each_s in begun_s])
        return self.rate - len(begun_s)

    def next_s(self, jobs: int, now_s: float) -> float:
        """When so many jobs may be preempted (wall time, seconds); inf if that is more than the rate allows, ever."""
        missing = jobs - self.left(now_s)
        if missing <= 0:
            return now_s
        return self._begun_s[missing - 1] + self.window_s if missing <= len(self._begun_s) else inf

    def refuses(self, jobid: int, now_s: float) -> bool:
        """Whether the job must not be preempted at `now_s`: it is not here, is ending, or has not allowed it yet."""
        holding = self._ledger.get(jobid)
        if holding is None or holding.must_end or holding.preemptible_after_s is None:
            return True
        if jobid in self.going or jobid in self._spared:
            return True
        return now_s < holding.started_s + holding.preemptible_after_s or self.left(now_s) <= 0

    def awaits(self, jobid: int, start_s: float, now_s: float) -> bool:
        """Whether a job that is to start then (wall time, seconds) does so where others are going."""
        return jobid in self.awaited and start_s <= now_s + self.timeout_s

    def usage_going(self) -> Iterator[tuple[Account, float]]:
        """What is going, in units of weight, and whose it is."""
        for holding, blocks in self._blocks_going():
            if holding.account is not None:
                yield holding.account, self.running.usage(HeldBlocks(blocks))

    def holdings_going(self) -> list[Holding]:
        """What the jobs hold that are going."""
        return [self._ledger.holdings[jobid] for jobid in self.going]

    def if_gone(self, pool: Pool) -> IfGone:
        """What would fit if all that is going were gone; for a `with` block."""
        return IfGone(pool, self._ledger, [blocks for _, blocks in self._blocks_going()])

    def _blocks_going(self) -> Iterator[tuple[Holding, Blocks]]:
        """What jobs hold that are going, and what others are to leave."""
        for jobid in self.going:
            holding = self._ledger.holdings[jobid]
            yield holding, holding.staying
        for jobid in self.leaving:
            holding = self._ledger.holdings[jobid]
            yield holding, holding.on_ranks(holding.leaving)

    @property
    def elastic(self) -> Mapping[int, Holding]:
        """The running jobs that may change their size."""
        return self._ledger.elastic.by_id

    @property
    def any_going(self) -> bool:
        """Whether any job is going, or is to leave a target."""
        return bool(self.going or self.leaving)

    # ---- searches in vain

    def searched_in_vain(self, jobid: int, looked_at: int, now_s: float) -> None:
        """So many running jobs were looked at for this one at `now_s`, and it cannot start: `rests_until_s`."""
        self._in_vain = jobid, now_s + (looked_at * REST_S if looked_at > REST_FROM else 0.0)

    def rests_until_s(self, jobid: int, now_s: float) -> float:
        """When to look again for a job for which it was in vain (wall time, seconds); `now_s` for any other.

        What is long to search changes with each event, and mostly not enough.
        """
        searched, until_s = self._in_vain
        return until_s if searched == jobid and now_s < until_s <= now_s + REST_MAX_S else now_s

    # ---- events

    def began(self, holding: Holding) -> None:
        """A job holds something."""
        if holding.elastic is not None:
            self.in_use = True
        if holding.preemptible_after_s is None or holding.jobid in self.going or holding.jobid in self._spared:
            return
        self.in_use = True
        self.running.began(holding)

    def found(self, holding: Holding, preempted_s: float | None, now_s: float) -> None:
        """A job held something before this scheduler came, and was preempted then (None: not); for whom is lost."""
        if preempted_s is None:
            self.began(holding)
            return
        began_s = min(preempted_s, now_s)
        self._goes(holding.jobid, UNKNOWN, began_s)
        self._begun_s = deque(sorted((*self._begun_s, began_s)))

    def freed(self, jobid: int, waits: Callable[[int], bool]) -> None:
        """A job has freed a part of what it holds, or all; `waits` says whether a job still waits."""
        left = self._ledger.get(jobid)
        if jobid in self.leaving:
            self.has_left(jobid, waits)
        if jobid in self.running.jobs:
            if left is None:
                self.running.ended(jobid)
            else:
                self.running.began(left)
        elif left is None and jobid in self.going:
            self._is_gone(jobid, waits)
        elif left is None:
            self._spared.discard(jobid)

    def has_left(self, jobid: int, waits: Callable[[int], bool]) -> None:
        """A job that is to leave targets has freed something, or is to leave fewer."""
        leaving = self.leaving[jobid]
        holding = self._ledger.get(jobid)
        still = EMPTY if holding is None else holding.leaving
        for beneficiary, ranks in list(leaving.items()):
            if ranks & still:
                leaving[beneficiary] = ranks & still
                continue
            del leaving[beneficiary]
            if self.going.get(jobid) != beneficiary:
                self._has_gone_for(beneficiary, jobid, waits)
        if not leaving:
            del self.leaving[jobid]

    def failed(self, jobid: int, waits: Callable[[int], bool]) -> None:
        """The job manager has not preempted the job: it is not going, and nothing is asked of it again."""
        if jobid in self.going:
            self._spared.add(jobid)
            self._ledger.set_going(jobid, inf)
            self._is_gone(jobid, waits)

    def looked_after(self, beneficiaries: Iterable[int]) -> None:
        """These have left, or a pass has come to its end since the last job that went for them is gone."""
        for jobid in beneficiaries:
            if jobid in self.awaited and not self.awaited[jobid]:
                del self.awaited[jobid]

    def _goes(self, jobid: int, beneficiary: int, began_s: float) -> None:
        self.in_use = True
        self._ledger.set_going(jobid, began_s + self.timeout_s)
        self.going[jobid] = beneficiary
        self.awaited.setdefault(beneficiary, set()).add(jobid)

    def _is_gone(self, jobid: int, waits: Callable[[int], bool]) -> None:
        beneficiary = self.going.pop(jobid)
        if beneficiary not in self.leaving.get(jobid, ()):
            self._has_gone_for(beneficiary, jobid, waits)

    def _has_gone_for(self, beneficiary: int, jobid: int, waits: Callable[[int], bool]) -> None:
        if beneficiary in self.awaited:
            self.awaited[beneficiary].discard(jobid)
        if not waits(beneficiary):
            self.looked_after((beneficiary,))

    def preempt(self, holding: Holding, beneficiary: int, now_s: float) -> None:
        """The job, which `refuses` allows, is going from now on, so that the beneficiary can start."""
        self.running.ended(holding.jobid)
        self._goes(holding.jobid, beneficiary, now_s)
        self._begun_s.append(now_s)
        if holding.account is not None:
            self.of_account[holding.account] = self.of_account.get(holding.account, 0) + 1

    def shrink(self, holding: Holding, ranks: Idset, beneficiary: int) -> None:
        """The job, which the ledger has leave these targets, does so for this beneficiary (UNKNOWN: for no job)."""
        self.in_use = True
        leaving = self.leaving.setdefault(holding.jobid, {})
        leaving[beneficiary] = leaving.get(beneficiary, EMPTY) | ranks
        self.awaited.setdefault(beneficiary, set()).add(holding.jobid)
        self.resized(holding)

    def resized(self, holding: Holding) -> None:
        """The job has more than before, or is to leave something."""
        if holding.jobid in self.running.jobs:
            self.running.began(holding)
