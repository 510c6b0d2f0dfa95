"""The last step of a pass: elastic jobs get what is left, in the way of no waiting job.

Law: a job grows as backfill, by a step of the range of a part at a time: by what no reservation needs before the job
ends. The next is always the job whose account has the least key, where accounts are kept, else the one that began
first. Without a job that could grow nothing is done, and a step that finds no place is tried once a pass. Where a
policy of the group decides how jobs grow (`Policy`, `GROWS`), nothing is done either.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from fluxsched.sched.accounts.order import FairOrder
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.effects import PAUSED, Effect
from fluxsched.sched.engine.running.decided import enlarge, hand_out
from fluxsched.sched.engine.running.growing_step import GrowingStep
from fluxsched.sched.engine.running.planned import plan_of_all
from fluxsched.sched.engine.scheduling_pass import SchedulingPass
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.holdings.elastic import ElasticPart
from fluxsched.sched.ledger import Holding
from fluxsched.sched.plan.counted import CountedPlan
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.policy import PAUSE_EVERY
from fluxsched.sched.pool.placement import Fits, joined
from fluxsched.sched.shape import Shape, Shapes


class Growing:
    """Of one group; `latest` is its last pass over a queue, `added` what jobs got that is still to be handed out."""

    def __init__(self, group: Group, shapes: Shapes) -> None:
        self._group = group
        self._shapes = shapes
        self.latest: SchedulingPass | None = None
        self.added: dict[int, Fits] = {}
        self._by_policy = any(queue.grows for queue in group.queues.values())

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do."""
        return bool((self._group.ledger.elastic.growable and not self._by_policy) or self.added)

    def run(self, now_s: float) -> Iterator[Effect]:
        """What jobs get, job by job; a pass that is dropped before hands out the rest next time."""
        yield from self._grow(now_s)
        yield from self._hand_out(now_s)

    def _grow(self, now_s: float) -> Iterator[Effect]:
        group = self._group
        plans = _Plans(group, self.latest, now_s)
        step = GrowingStep(group, self._shapes, now_s, plans.of)
        jobs = [holding for holding in group.ledger.elastic.growable.values() if step.may_grow(holding)]
        if not jobs:
            return
        turns = _ByStart(jobs) if group.ledger.book is None else _ByAccount(jobs, group, now_s)
        steps = 0
        try:
            while (holding := turns.first()) is not None:
                fit = step.of(holding)
                if fit is None or enlarge(group, holding.jobid, fit, now_s) is None:
                    turns.leave(holding)
                    continue
                if plans.made is not None:
                    plans.made.grew(step.as_job(holding, fit), fit)
                self.added[holding.jobid] = _together(self.added.get(holding.jobid), fit)
                turns.took(holding, fit)
                steps += 1
                if not steps % PAUSE_EVERY:
                    yield PAUSED
        finally:
            turns.end()

    def _hand_out(self, now_s: float) -> Iterator[Effect]:
        group = self._group
        while self.added:
            jobid, fit = self.added.popitem()
            holding = group.ledger.elastic.by_id.get(jobid)
            if holding is not None:
                yield hand_out(group, holding, fit, now_s)


class _Plans:
    """The plan that steps are found in, made when the first needs one; `made` is None as long as none did."""

    def __init__(self, group: Group, latest: SchedulingPass | None, now_s: float) -> None:
        self.made: CountedPlan | PoolPlan | None = None
        self._group = group
        self._latest = latest
        self._now_s = now_s
        self._reserves: bool | None = None

    def of(self, shape: Shape) -> CountedPlan | PoolPlan | None:
        """The plan of the last pass, or one with all reservations where it lacks some, or cannot count this shape."""
        if self._reserves is None:
            queues = self._group.queues.values()
            self._reserves = any(kept.start_s < inf for queue in queues for kept in queue.planned.values())
        if not self._reserves:
            return None
        if self.made is None:
            self.made = None if self._latest is None else self._latest.plan_made
            if self.made is not None and not self._has_all(self.made):
                self.made = None
        if self.made is None or (isinstance(self.made, CountedPlan) and not self._group.running.need(shape)):
            self.made = plan_of_all(self._group, self._now_s)
        return self.made

    def _has_all(self, plan: CountedPlan | PoolPlan) -> bool:
        """Whether it has all reservations: those of jobs for which others are going are made beside it."""
        for queue in self._group.queues.values():
            for jobid, kept in queue.planned.items():
                if kept.start_s < inf and not plan.has(jobid):
                    return False
        return True


class _ByStart:
    """The job that began first grows as far as it can, then the next."""

    def __init__(self, jobs: list[Holding]) -> None:
        self._jobs = sorted(jobs, key=_began, reverse=True)

    def first(self) -> Holding | None:
        return self._jobs[-1] if self._jobs else None

    def took(self, holding: Holding, fit: Fits) -> None:
        """The next step is again that of the first."""

    def leave(self, holding: Holding) -> None:
        """The job, which was the first, cannot grow any more in this pass."""
        self._jobs.pop()

    def end(self) -> None:
        """The pass is over."""


class _ByAccount:
    """Each step is one of the account with the least key, of its job that began first."""

    def __init__(self, jobs: list[Holding], group: Group, now_s: float) -> None:
        book = group.ledger.book
        assert book is not None
        self._now_s = now_s
        self._book = book
        self._order = FairOrder(book.tree)
        self._of_account: dict[Account, _ByStart] = {}
        by_account: dict[Account, list[Holding]] = {}
        for holding in jobs:
            if holding.account is not None:
                by_account.setdefault(holding.account, []).append(holding)
        for account, mine in by_account.items():
            self._of_account[account] = _ByStart(mine)
            self._offer(account)

    def first(self) -> Holding | None:
        account = self._order.first(self._now_s)
        return None if account is None else self._of_account[account].first()

    def took(self, holding: Holding, fit: Fits) -> None:
        """The ledger has booked it."""
        if holding.account is not None:
            self._offer(holding.account)

    def leave(self, holding: Holding) -> None:
        """The job cannot grow any more in this pass."""
        if holding.account is not None:
            self._of_account[holding.account].leave(holding)
            self._offer(holding.account)

    def end(self) -> None:
        """The pass is over."""

    def _offer(self, account: Account) -> None:
        holding = self._of_account[account].first()
        if holding is None or holding.elastic is None:
            self._order.withdraw(account)
            return
        self._order.offer(account, self._step_usage(holding))

    def _step_usage(self, holding: Holding) -> float:
        """What the next step adds, about: as much as its targets so far use, each."""
        assert holding.elastic is not None
        part = min(holding.elastic.parts, key=_beyond_minimum)
        held = len(holding.elastic.held)
        return self._book.held_usage(holding) / held * part.step if held else 0.0


def _began(holding: Holding) -> tuple[float, int]:
    return holding.started_s, holding.jobid


def _beyond_minimum(part: ElasticPart) -> int:
    return part.beyond_minimum


def _together(one: Fits | None, other: Fits) -> Fits:
    if one is None:
        return other
    by_part = tuple([mine | theirs for mine, theirs in zip(one.by_part, other.by_part, strict=True)])
    return Fits(one.shape, joined((*one.blocks, *other.blocks)), one.nslots + other.nslots, by_part)
