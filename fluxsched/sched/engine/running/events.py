"""What happens to elastic jobs that run: what the job manager answers, targets that leave their group, hello.

Law: the ledger checks before anything changes; then the groups and the preemptions are told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.sched.effects import Effect, Shrunk
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.holdings.elastic import SHRINK_PAUSE_S, Elastic
from fluxsched.sched.ledger import Holding, Ledger
from fluxsched.sched.preemption.preemptions import UNKNOWN, Preemptions
from fluxsched.sched.shape import Shape


def left_group(targets: Idset) -> str:
    """Return the text of the exception on a job whose targets have left its group."""
    return f"{'target' if len(targets) == 1 else 'targets'} {targets} left the group"


class ResizedJobs:
    """Of all groups; `waits` says whether a job waits, `freed` is told that a job has freed something, and `lost` that
    targets have left their group.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        ledger: Ledger,
        preemptions: Preemptions,
        waits: Callable[[int], bool],
        freed: Callable[[int, list[int]], list[Effect]],
        lost: Callable[[Idset, float], list[Effect]],
    ) -> None:
        self._groups = groups
        self._ledger = ledger
        self._preemptions = preemptions
        self._waits = waits
        self._freed = freed
        self._lost = lost

    def grow_stored(self, jobid: int, now_s: float) -> list[Effect]:
        """The job manager has stored the oldest grow that was not answered; what has left the group since, goes now.

        It may go for waiting jobs from now on, so these are looked at again.
        """
        holding = self._ledger.elastic.by_id.get(jobid)
        if holding is None or holding.elastic is None:
            return []
        ranks = holding.elastic.stored()
        lost = EMPTY
        for group in self._groups.values():
            lost |= group.leaving & ranks
            if any(queue.jobs.offered for queue in group.queues.values()) and not ranks.isdisjoint(group.pool.ranks):
                group.invalidate_pass()
        return self._lost(lost, now_s) if lost else []

    def grow_failed(self, jobid: int, ranks: Idset, now_s: float, is_settled: bool) -> list[Effect]:
        """The job manager has refused a grow: what is left of it is free again, and the job rests as after a shrink.

        One whose size `is_settled` never changes it again.
        """
        holding = self._ledger.elastic.by_id.get(jobid)
        if holding is None or holding.elastic is None:
            return []  # it has ended, and was shrunk by all of it
        holding.elastic.stored_not(ranks)
        holding.elastic.paused_until_s = now_s + SHRINK_PAUSE_S
        if is_settled:
            self._ledger.elastic.settle(holding)
        left = ranks & holding.elastic.unstored
        emptied = self._ledger.ungrow(jobid, left, now_s) if left else []
        return self._freed(jobid, emptied)

    def shrink_failed(self, jobid: int, ranks: Idset, now_s: float, is_settled: bool) -> None:
        """The job manager has refused a shrink: the job keeps the targets, and is left alone for a while, or for ever.
        """
        holding = self._ledger.elastic.by_id.get(jobid)
        if holding is not None and holding.elastic is not None and self._ledger.unshrink(jobid, ranks, now_s):
            holding.elastic.kept_until_s = now_s + SHRINK_PAUSE_S
            if is_settled:
                self._ledger.elastic.settle(holding)
            if jobid in self._preemptions.leaving:
                self._preemptions.has_left(jobid, self._waits)
            self._preemptions.resized(holding)
            self.has_changed(holding)

    def leave(self, targets: Idset, now_s: float) -> dict[int, Shrunk | None]:
        """Targets have left their group: the jobs that leave them and go on, with what that takes (None: nothing new).
        """
        found: dict[int, Shrunk | None] = {}
        for jobid, holding in list(self._ledger.elastic.by_id.items()):
            elastic = holding.elastic
            if elastic is None or elastic.is_settled or holding.is_ending:
                continue
            mine = (elastic.held | elastic.leaving) & targets
            ranks = elastic.to_leave(mine) if mine else None
            if ranks is None:
                continue
            found[jobid] = None
            if ranks and self._ledger.shrink(jobid, ranks, now_s + self._preemptions.timeout_s, now_s):
                self._preemptions.shrink(holding, ranks, UNKNOWN)
                elastic.paused_until_s = now_s + SHRINK_PAUSE_S
                self.has_changed(holding)
                found[jobid] = Shrunk(jobid, ranks, left_group(mine))
        return found

    def found(self, holding: Holding, queue: str) -> None:
        """An elastic job of this queue was found running: it grows by the placement of the queue's present policy."""
        if holding.elastic is not None:
            holding.elastic.placement = self._placement_in(queue)
        if holding.leaving:
            self._preemptions.shrink(holding, holding.leaving, UNKNOWN)

    def _placement_in(self, queue: str) -> str:
        """The placement of the queue's own policy, else of the policy for all other queues, which groups share."""
        queues = [group.queues for group in self._groups.values()]
        for at in queues:
            if queue in at:
                return at[queue].placement
        return queues[0][""].placement

    def has_changed(self, holding: Holding) -> None:
        """What a running job has, or when it is to end, is known or another: plans are made anew."""
        for group in self._groups.values():
            group.running.began(holding)
            group.invalidate_pass()


def adopted_elastic(
    shape: Shape,
    R: ResourceSet,  # noqa: N803
    free: Idset,
    going: Idset,
    grown: Idset,
    leave_by_s: float,
    shrunk_s: float | None,
) -> Elastic | None:
    """The sizes of a job that is found running; None if it is not elastic here, or does not hold what it asks for.

    It is to leave what is `going` by then (wall time, seconds), and has got what is `grown` after its start;
    `shrunk_s` is when it was last shrunk.
    """
    request, held = shape.request, R.ranks - free
    if not request.elastic or not held:
        return None
    try:
        by_label = R.parts
    except InvalidValue:
        return None
    by_part = [by_label.get(part.label, EMPTY) & held for part in request.parts] if request.parts else [held]
    if sum(map(len, by_part)) != len(held) or not by_part[0]:
        return None
    elastic = Elastic(shape, by_part, ((by_part[0] - grown) or by_part[0]).min())
    if grown & held:
        elastic.grown.append((leave_by_s, grown & held))
    if going & held:
        elastic.leave(going & held, leave_by_s)
    if shrunk_s is not None:
        elastic.paused_until_s = shrunk_s + SHRINK_PAUSE_S
    elastic.is_settled = bool(free)
    if any(part.size not in part.nodes for part in elastic.parts):
        return None
    return elastic
