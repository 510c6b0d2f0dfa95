"""The last step of a pass: elastic jobs get what is left, in the way of no waiting job.

Law: a job grows as backfill, by a step of the range of a part at a time: by what no reservation needs before the job
ends. The next is always the job whose account has the least key, where accounts are kept, else the one that began
first. Without a job that could grow nothing is done, and a step that finds no place is tried once a pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from fluxsched.core.count import Count
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.request import Request
from fluxsched.sched.accounts.order import FairOrder
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.effects import PAUSED, Effect
from fluxsched.sched.engine.running.decided import enlarge, hand_out
from fluxsched.sched.engine.running.planned import plan_of_all
from fluxsched.sched.engine.scheduling_pass import SchedulingPass
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.holdings.elastic import ElasticPart, targets_of
from fluxsched.sched.ledger import Holding
from fluxsched.sched.plan.counted import CountedPlan
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.policy import PAUSE_EVERY
from fluxsched.sched.pool.choice import Narrowed, restricted
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, Fits, joined, ranks_in
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.shape import Shape, Shapes


class Growing:
    """Of one group; `latest` is its last pass over a queue, `added` what jobs got that is still to be handed out."""

    def __init__(self, group: Group, shapes: Shapes) -> None:
        self._group = group
        self._shapes = shapes
        self.latest: SchedulingPass | None = None
        self.added: dict[int, Fits] = {}

    @property
    def is_due(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._group.ledger.elastic.growable or self.added)

    def run(self, now_s: float) -> Iterator[Effect]:
        """What jobs get, job by job; a pass that is dropped before hands out the rest next time."""
        yield from self._grow(now_s)
        yield from self._hand_out(now_s)

    def _grow(self, now_s: float) -> Iterator[Effect]:
        group = self._group
        jobs = [holding for holding in group.ledger.elastic.growable.values() if self._may_grow(holding, now_s)]
        if not jobs:
            return
        step = GrowingStep(group, self.latest, self._shapes, now_s)
        turns = _ByStart(jobs) if group.ledger.book is None else _ByAccount(jobs, group, now_s)
        steps = 0
        try:
            while (holding := turns.first()) is not None:
                fit = step.of(holding)
                if fit is None or enlarge(group, holding.jobid, fit, now_s) is None:
                    turns.leave(holding)
                    continue
                step.took(holding, fit)
                self.added[holding.jobid] = _together(self.added.get(holding.jobid), fit)
                turns.took(holding, fit)
                steps += 1
                if not steps % PAUSE_EVERY:
                    yield PAUSED
        finally:
            turns.end()

    def _may_grow(self, holding: Holding, now_s: float) -> bool:
        """Whether a job of this group may grow now; else a pass comes when it rests no more."""
        elastic, group = holding.elastic, self._group
        if elastic is None or holding.is_ending or elastic.leaving or 0.0 < holding.expiration_s <= now_s:
            return False
        if holding.blocks[0].word & ~group.pool.members_at(holding.blocks[0].at):
            return False
        if now_s < elastic.paused_until_s:
            group.wake_s = min(group.wake_s, elastic.paused_until_s)
            return False
        return True

    def _hand_out(self, now_s: float) -> Iterator[Effect]:
        group = self._group
        while self.added:
            jobid, fit = self.added.popitem()
            holding = group.ledger.elastic.by_id.get(jobid)
            if holding is not None:
                yield hand_out(group, holding, fit, now_s)


class GrowingStep:
    """Finds places for steps of jobs in one pass at `now_s` (wall time, seconds)."""

    def __init__(self, group: Group, latest: SchedulingPass | None, shapes: Shapes, now_s: float) -> None:
        self._group = group
        self._latest = latest
        self._shapes = shapes
        self._now_s = now_s
        self._plan: CountedPlan | PoolPlan | None = None
        self._reserves = any(
            kept.start_s < inf for queue in group.queues.values() for kept in queue.planned.values()
        )
        self._unfit: set[int] = set()  # numbers of shapes
        self._known: dict[tuple[Request, int, Shape], Shape] = {}

    def of(self, holding: Holding) -> Fits | None:
        """The next step of a job, of the part that is furthest behind."""
        elastic = holding.elastic
        assert elastic is not None
        parts = sorted(enumerate(elastic.parts), key=_beyond_minimum)
        for at, part in parts:
            step = part.step
            fit = self._find(holding, part, step) if step else None
            if fit is not None:
                by_part = [EMPTY] * len(elastic.parts)
                by_part[at] = ranks_in(fit.blocks)
                several = tuple(by_part) if elastic.shape.request.parts else ()
                return Fits(elastic.shape, fit.blocks, fit.nslots, several)
        return None

    def took(self, holding: Holding, fit: Fits) -> None:
        """The job has got what was found."""
        if self._plan is not None:
            self._plan.grew(self._job_of(holding, self._shape_of(holding, fit)), fit)

    def _find(self, holding: Holding, part: ElasticPart, step: int) -> Fits | None:
        group, shape = self._group, self._shape(holding, part, step)
        if shape.number in self._unfit:
            return None
        if shape.scope is not None:
            group.renew(shape)
        fit = find_fit(group.pool, shape, BEST_FIT)
        if fit is None:
            self._unfit.add(shape.number)
            return None
        job = self._job_of(holding, shape)
        plan = self._plan_for(shape) if self._reserves else None  # before targets are left out: others ask alike
        for among in self._nearest_first(holding, part):
            if among is None:
                return fit if plan is None else plan.place(job, BEST_FIT)
            found = self._place_among(job, among, plan)
            if found is not None:
                return found
        return None

    def _place_among(self, job: Waiting, among: Idset, plan: CountedPlan | PoolPlan | None) -> Fits | None:
        pool, shape = self._group.pool, job.shape
        before = pool.narrowed.get(shape.number)
        left = among.mask if before is None else among.mask & before.ranks
        choice = restricted(pool.choice_of(shape), left)
        if not choice:
            return None
        pool.narrow(shape, Narrowed(choice, choice, left, "", "", left))
        try:
            fit = find_fit(pool, shape, BEST_FIT)
            return fit if fit is None or plan is None else plan.place(job, BEST_FIT)
        finally:
            pool.narrow(shape, before)

    def _plan_for(self, shape: Shape) -> CountedPlan | PoolPlan:
        """The plan of the last pass, or one with all reservations where it lacks some, or cannot count this shape."""
        if self._plan is None:
            self._plan = None if self._latest is None else self._latest.plan_made
            if self._plan is not None and not self._has_all(self._plan):
                self._plan = None
        if self._plan is None or (isinstance(self._plan, CountedPlan) and not self._group.running.need(shape)):
            self._plan = plan_of_all(self._group, self._now_s)
        return self._plan

    def _has_all(self, plan: CountedPlan | PoolPlan) -> bool:
        """Whether it has all reservations: those of jobs for which others are going are made beside it."""
        for queue in self._group.queues.values():
            for jobid, kept in queue.planned.items():
                if kept.start_s < inf and not plan.has(jobid):
                    return False
        return True

    def _nearest_first(self, holding: Holding, part: ElasticPart) -> Iterator[Idset | None]:
        """The targets that come into question: those nearest to what the part has, then farther ones; None for all.

        What is held whole has no room for a job's own others.
        """
        pool, bound = self._group.pool, part.request.max_hops
        held = ranks_in(holding.blocks)
        for hops, there in pool.rooms.network.common(part.ranks):
            if bound is not None and hops > bound:
                return
            if not there <= held:
                yield there - held
        if bound is None:
            yield None if part.request.exclusive else pool.ranks - held

    def _shape(self, holding: Holding, part: ElasticPart, step: int) -> Shape:
        """So many targets more of a part."""
        assert holding.elastic is not None
        like = holding.elastic.shape
        key = part.request, step, like
        shape = self._known.get(key)
        if shape is None:
            settled = replace(part.request, nodes=Count.fixed(step), elastic=False, label="", shared=())
            request = replace(settled, max_hops=None)  # the targets that come into question are within the bound
            shape = self._known[key] = self._shapes.of(request, like.labels, like.scope)
        return shape

    def _shape_of(self, holding: Holding, fit: Fits) -> Shape:
        assert holding.elastic is not None
        for part, ranks in zip(holding.elastic.parts, targets_of(fit), strict=True):
            if ranks:
                return self._shape(holding, part, len(ranks))
        return holding.elastic.shape

    def _job_of(self, holding: Holding, shape: Shape) -> Waiting:
        """The step as a job that may run as long as the whole may still."""
        left_s = holding.expiration_s - self._now_s if holding.expiration_s else 0.0
        return Waiting(holding.jobid, 1, 0, 0.0, shape, left_s)


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
        part = min(holding.elastic.parts, key=_size_beyond)
        held = len(holding.elastic.held)
        return self._book.held_usage(holding) / held * part.step if held else 0.0


def _began(holding: Holding) -> tuple[float, int]:
    return holding.started_s, holding.jobid


def _size_beyond(part: ElasticPart) -> int:
    return part.size - part.nodes.min


def _beyond_minimum(numbered: tuple[int, ElasticPart]) -> int:
    return _size_beyond(numbered[1])


def _together(one: Fits | None, other: Fits) -> Fits:
    if one is None:
        return other
    by_part = tuple([mine | theirs for mine, theirs in zip(one.by_part, other.by_part, strict=True)])
    return Fits(one.shape, joined((*one.blocks, *other.blocks)), one.nslots + other.nslots, by_part)
