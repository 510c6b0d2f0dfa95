"""Finds where a running elastic job can have more: the next step of its range, for a plan that is to be kept.

Law: nothing is changed. A step is within the range and the hops of a part, near to what the part has, placed as the job
was at its start, free now, and for as long as the job may run still nothing that the plan needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fluxsched.core.count import Count
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.request import Request
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.holdings.elastic import ElasticPart, targets_of
from fluxsched.sched.ledger import Holding
from fluxsched.sched.plan.counted import CountedPlan
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.pool.choice import Narrowed, restricted
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import Fits, ranks_in
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.shape import Shape, Shapes


class GrowingStep:
    """Steps of a group's jobs in one pass at `now_s` (wall time, seconds).

    `plan_for` returns the plan with all reservations that can place this shape, None if there are none. A step that
    finds no place even without a plan is not tried again.
    """

    def __init__(
        self, group: Group, shapes: Shapes, now_s: float, plan_for: Callable[[Shape], CountedPlan | PoolPlan | None]
    ) -> None:
        self._group = group
        self._shapes = shapes
        self._now_s = now_s
        self._plan_for = plan_for
        self._unfit: set[int] = set()  # numbers of shapes
        self._known: dict[tuple[Request, int, Shape], Shape] = {}

    def may_grow(self, holding: Holding) -> bool:
        """Whether a job of this group may grow now; if it rests after a shrink, a pass comes when it rests no more."""
        elastic, group = holding.elastic, self._group
        if elastic is None or holding.is_ending or elastic.leaving or 0.0 < holding.expiration_s <= self._now_s:
            return False
        if holding.blocks[0].word & ~group.pool.members_at(holding.blocks[0].at):
            return False
        if self._now_s < elastic.paused_until_s:
            group.wake_s = min(group.wake_s, elastic.paused_until_s)
            return False
        return True

    def of(self, holding: Holding) -> Fits | None:
        """The next step of a job that may grow, of the part that is least beyond its minimum."""
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

    def as_job(self, holding: Holding, fit: Fits) -> Waiting:
        """What the job gets as one that may run as long as the whole may still: for plans."""
        assert holding.elastic is not None
        for part, ranks in zip(holding.elastic.parts, targets_of(fit), strict=True):
            if ranks:
                return self._job_of(holding, self._shape(holding, part, len(ranks)))
        return self._job_of(holding, holding.elastic.shape)

    # ---- within

    def _find(self, holding: Holding, part: ElasticPart, step: int) -> Fits | None:
        assert holding.elastic is not None
        group, shape, placement = self._group, self._shape(holding, part, step), holding.elastic.placement
        if shape.number in self._unfit:
            return None
        if shape.scope is not None:
            group.renew(shape)
        fit = find_fit(group.pool, shape, placement)
        if fit is None:
            self._unfit.add(shape.number)
            return None
        job = self._job_of(holding, shape)
        plan = self._plan_for(shape)  # before targets are left out: others ask alike
        for among in self._nearest_first(holding, part):
            if among is None:
                return fit if plan is None else plan.place(job, placement)
            found = self._place_among(job, among, plan, placement)
            if found is not None:
                return found
        return None

    def _place_among(
        self, job: Waiting, among: Idset, plan: CountedPlan | PoolPlan | None, placement: str
    ) -> Fits | None:
        pool, shape = self._group.pool, job.shape
        before = pool.narrowed.get(shape.number)
        left = among.mask if before is None else among.mask & before.ranks
        choice = restricted(pool.choice_of(shape), left)
        if not choice:
            return None
        pool.narrow(shape, Narrowed(choice, choice, left, "", "", left))
        try:
            fit = find_fit(pool, shape, placement)
            return fit if fit is None or plan is None else plan.place(job, placement)
        finally:
            pool.narrow(shape, before)

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

    def _job_of(self, holding: Holding, shape: Shape) -> Waiting:
        left_s = holding.expiration_s - self._now_s if holding.expiration_s else 0.0
        return Waiting(holding.jobid, 1, 0, 0.0, shape, left_s)


def _beyond_minimum(numbered: tuple[int, ElasticPart]) -> int:
    return numbered[1].beyond_minimum
