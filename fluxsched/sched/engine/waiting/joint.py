"""Jobs of queues that several groups serve: one line of waiting jobs, over which each group passes in turn.

Law: such a job waits in each group that could ever hold it, everywhere at the place that its key gives it. It has a
reservation in at most one of them, where it starts first; when it starts in one it has left all others in that step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TypeAlias

from fluxsched.core.why import in_groups
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.decisions import Reason, Reservation
from fluxsched.sched.effects import Annotated, Effect
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.judging import add_infeasible
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.plan.base import Plan
from fluxsched.sched.pool.placement import Fits
from fluxsched.sched.queue.pending import Skips, Waiting
from fluxsched.sched.shape import Shape

Enter: TypeAlias = Callable[[Group, Waiting, str | None, float], list[Effect]]
"""How a feasible job enters a group at a time, if plugins are to be asked."""

# ---- jobs that arrive and leave


def judge_in(groups: Sequence[Group], shape: Shape) -> str | None:
    """Why the shape can never fit in any of these groups; None if it can in one of them."""
    whys: list[tuple[str, str]] = []
    for group in groups:
        why = group.judge(shape)
        if why is None:
            return None
        whys.append((group.name, why))
    return in_groups(whys) if len(whys) > 1 else whys[0][1]


def arrive(
    groups: tuple[Group, ...], job: Waiting, name: str | None, asks_to_wait: bool, enter: Enter, now_s: float
) -> list[Effect]:
    """A job arrives for the line of these groups; `enter` asks plugins about it, in one of the groups.

    Raises InvalidValue if it is new and none could ever hold it, and LimitExceeded if a queue is full.
    """
    able = [group for group in groups if group.judge(job.shape) is None]
    if not able and all(group.refuses(job.t_submit_s, asks_to_wait) for group in groups):
        raise InvalidValue(judge_in(groups, job.shape) or "")
    groups[0].joint[job.jobid] = groups
    try:
        if able and job.shape.scope is not None:
            return enter(able[0], job, name, now_s)
        return join(groups[0], job, name, now_s)
    except LimitExceeded:
        del groups[0].joint[job.jobid]
        raise


def withdraw(jobid: int, groups: Iterable[Group]) -> bool:
    """The job's request is withdrawn in all these groups; whether it was in any."""
    found = False
    for group in groups:
        if group.withdraw(jobid):
            found = True
            if group.joint.pop(jobid, None) is None and not group.joint:
                return True
    return found


def join(group: Group, job: Waiting, name: str | None, now_s: float) -> list[Effect]:
    """The job joins the queue of its group, or of each of its groups that could ever hold it; the others keep it aside.

    Raises LimitExceeded, and then it is in none, if a queue is full.
    """
    groups = group.joint.get(job.jobid)
    if groups is None:
        return group.add(job, name, now_s)
    effects: list[Effect] = []
    whys = [(each, each.judge(job.shape)) for each in groups]
    try:
        for each, why in whys:
            if why is None:
                each.set_aside.pop(job.jobid, None)
                effects = each.add(job, name, now_s)
    except LimitExceeded:
        leave_others(None, groups, job.jobid)
        raise
    for each, why in whys:
        if why is not None:
            effects = [*add_infeasible(each, job, name, why)] or effects
    able = [each for each, why in whys if why is None]
    if able and all(each.is_expected for each in able):
        effects = [*effects, *able[0].tell_expected(job.jobid)]
    return effects


def leave_others(group: Group | None, groups: Iterable[Group], jobid: int) -> None:
    """The job leaves the lines of all these groups but one, which is told what its owner has been told."""
    for each in groups:
        if each is not group:
            if group is not None:
                group.notices.take_over(jobid, each.notices)
            each.withdraw(jobid)


def leaves_all(group: Group, jobid: int) -> bool:
    """Whether a job that a group's policy has denied, and that is no longer there, waits nowhere else."""
    if group.offers_elsewhere(jobid):
        return False
    leave_others(group, group.joint.pop(jobid, ()), jobid)
    return True


# ---- passes


def standing(group: Group, jobid: int) -> Reservation | None:
    """The reservation of the job in another group, if it has one there whose time is known."""
    found = _planned(group, jobid)
    return None if found is None else found[2]


def home_of(group: Group, jobid: int) -> Group:
    """The group that speaks for a waiting job: where it has a reservation, else the first in whose line it is.

    One whose targets are not known yet comes after all others.
    """
    groups = group.joint.get(jobid)
    if groups is None:
        return group
    offering = [each for each in groups if each.queue_of(jobid) is not None]
    planned = [each for each in offering if is_planned(each, jobid)]
    return [*planned, *[each for each in offering if not each.is_expected], *offering, group][0]


def tell(group: Group, jobid: int, reason: Reason, start_s: float | None, now_s: float) -> Annotated | None:
    """The reason and the estimate (wall time, seconds) for the owner, unless another group speaks for the job."""
    home = home_of(group, jobid)
    if home is not group:
        group.notices.reasons[jobid] = reason
        return None
    for each in group.joint.get(jobid, ()):
        group.notices.take_over(jobid, each.notices)
    return group.notices.tell(jobid, reason, start_s, now_s)


def reserve(
    group: Group, queue: PolicyQueue, made: Reservation, reason: Reason, before: Mapping[int, Reservation], now_s: float
) -> Annotated | None:
    """A group has planned a job of several, which from now on has no reservation in another one.

    Where it is later than `before`, the others are asked again.
    """
    jobid, found = made.jobid, _planned(group, made.jobid)
    if found is not None and made.start_s < inf:
        other, at, _ = found
        del at.planned[jobid]
        other.invalidate_pass()
        found = None
    if found is None:
        queue.planned[jobid] = made
        old = before.get(jobid)
        if old is not None and old.start_s < made.start_s:
            for each in group.joint[jobid]:
                if each is not group:
                    each.invalidate_pass()
    return tell(group, jobid, reason, made.start_s, now_s)


def is_planned(group: Group, jobid: int) -> bool:
    """Whether the job has a reservation in this group whose time is known."""
    return _own_plan(group, jobid) is not None


def _planned(group: Group, jobid: int) -> tuple[Group, PolicyQueue, Reservation] | None:
    for each in group.joint.get(jobid, ()):
        if each is not group:
            found = _own_plan(each, jobid)
            if found is not None:
                return each, *found
    return None


def _own_plan(group: Group, jobid: int) -> tuple[PolicyQueue, Reservation] | None:
    queue = group.queue_of(jobid)
    kept = None if queue is None else queue.planned.get(jobid)
    return None if queue is None or kept is None or kept.start_s == inf else (queue, kept)


class JointPlan:
    """The plan of a group as its policy uses it, where jobs have reservations in other groups: those that would not
    start sooner here get a reservation without a time, which keeps no place.
    """

    __slots__ = ("_group", "_plan", "skips")

    def __init__(self, plan: Plan, group: Group) -> None:
        self._plan = plan
        self._group = group
        self.skips: Skips = plan.skips

    def reserve(self, job: Waiting) -> Reservation:
        return self._unless_later(job, self._plan.reserve(job))

    def seat(self, job: Waiting, placement: str) -> Fits | Reservation:
        found = self._plan.seat(job, placement)
        return found if isinstance(found, Fits) else self._unless_later(job, found)

    def _unless_later(self, job: Waiting, made: Reservation) -> Reservation:
        other = standing(self._group, job.jobid)
        if other is None or made.start_s < other.start_s:
            return made
        self._plan.drop(job.jobid)
        return Reservation(job.jobid, inf, inf, made.cores, None)

    # ---- as it is

    def place(self, job: Waiting, placement: str) -> Fits | None:
        return self._plan.place(job, placement)

    def placeable(self, jobs: Iterable[Waiting | None], placement: str) -> Iterator[tuple[Waiting, Fits] | None]:
        return self._plan.placeable(jobs, placement)

    def has(self, jobid: int) -> bool:
        return self._plan.has(jobid)

    def keep(self, job: Waiting, old: Reservation) -> bool:
        return self._plan.keep(job, old)

    def claim(self, job: Waiting, old: Reservation, going: Iterable[int]) -> Reservation | None:
        return self._plan.claim(job, old, going)

    def waive(self, jobid: int) -> None:
        self._plan.waive(jobid)

    def drop(self, jobid: int) -> None:
        self._plan.drop(jobid)

    def renew(self, now_s: float) -> bool:
        return self._plan.renew(now_s)

    def began(self, job: Waiting, fit: Fits) -> None:
        self._plan.began(job, fit)
