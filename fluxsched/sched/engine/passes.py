"""When passes run: over the groups where something changed, one queue after the other; then the notices that are due.

Law: a policy is asked for one decision at a time, and each is made real, or refused, before the next (law 2), so a pass
may be dropped between any two: what is left is decided next time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Final, TypeAlias

from fluxsched.errors import LocalProtocolError
from fluxsched.sched.decisions import Deny, Grow, Preempt, Shrink, Start, Wake, Withhold
from fluxsched.sched.effects import PAUSED, DecisionRefused, Effect
from fluxsched.sched.engine.hooked.hooked_pass import HookedPass
from fluxsched.sched.engine.running.growing import Growing
from fluxsched.sched.engine.running.refused import why_refused
from fluxsched.sched.engine.scheduling_pass import SchedulingPass
from fluxsched.sched.engine.waiting.group import NONE_GO, WHOLE_JOBS_GO, Group
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.fault_lines import raise_at
from fluxsched.sched.shape import Shapes

ROUNDS_MAX = 8
"""Times that the groups of a queue pass over its line at one instant, since jobs of it started or moved in another."""

SOON_S: Final = 1.0
"""After that they do so again."""

REFUSALS_MAX = 1000
"""Decisions refused in one pass: a policy that keeps making invalid decisions would never end its pass."""

REFUSALS_LOGGED_MAX = 10
"""Refused decisions of one pass that are logged for the author of the policy, at most."""


class Passes:
    """The passes of all groups; `counts` are those that are shown to people."""

    def __init__(self, groups: Iterable[Group], counts: dict[str, int], shapes: Shapes) -> None:
        groups = list(groups)
        self._counts = counts
        self._joint = groups[0].joint if groups else {}
        self._telling = [group for group in groups if group.notices.enabled]
        self._of_group: list[tuple[Group, list[_Passes]]] = [
            (group, [(queue, *_passes_of(group, queue, counts, shapes)) for queue in group.queues.values()])
            for group in groups
        ]
        self._last_refusal = ""
        self._elastic = groups[0].ledger.elastic.by_id if groups else {}
        self._growing = {group.name: Growing(group, shapes) for group in groups}

    def run(self, now_s: float) -> Iterator[Effect]:
        """The effects of each decision as it falls, and of the notices that are due at `now_s` (wall time)."""
        elastic = self._elastic
        for group, passes in self._in_turn(now_s) if self._joint else self._of_group:
            if group.wake_s <= now_s:
                group.wake_s = inf
                group.invalidate_pass()
            if group.quotas is not None and group.generation != group.quotas.order.generation:
                group.changed = True  # a stage, settings, or what others freed
            if not group.changed or not group.grown or (group.expiration_s and group.expiration_s <= now_s):
                continue
            refused, begun = 0, False
            for queue, scheduling_pass, hooked in passes:
                if not queue.jobs.by_id and not (queue.grows and elastic):
                    continue
                if not begun:
                    begun = True
                    self._counts["passes"] += 1
                    group.changed = False
                    if group.quotas is not None:
                        group.generation = group.quotas.order.generation
                done = False
                decisions: Iterator[object] | None = None
                try:
                    if elastic:
                        self._growing[group.name].latest = scheduling_pass
                    decisions = scheduling_pass.begin(now_s) if hooked is None else hooked.begin(now_s)
                    for decision in decisions:
                        if hooked is None:
                            effect = scheduling_pass.apply(decision)
                        else:
                            effect = hooked.apply(decision)
                            while hooked.more:
                                yield hooked.more.pop(0)
                        if effect is not None:
                            yield effect
                        elif isinstance(decision, _REFUSABLE):
                            refused += 1
                            yield from self._refused(group, queue, decision, refused, now_s)
                    if hooked is not None:
                        hooked.end()
                        while hooked.more:
                            yield hooked.more.pop(0)
                    done = True
                except Exception as fault:
                    raise_at(decisions, fault)
                    raise
                finally:
                    scheduling_pass.end(done)
                    if not done:
                        group.changed = True
            if elastic:
                group.passed = True
                if not begun:  # none waits: there is just room to grow
                    group.changed = False
        if elastic:
            yield from self._grow(now_s)
        for group in self._telling:
            if group.notices.next_s <= now_s:
                yield from _due_notices(group, now_s)

    def _grow(self, now_s: float) -> Iterator[Effect]:
        """Elastic jobs get what the passes have left, where there were some."""
        for group, _ in self._of_group:
            growing = self._growing[group.name]
            if group.passed and growing.is_due:
                yield from growing.run(now_s)
            group.passed, growing.latest = False, None

    def _in_turn(self, now_s: float) -> Iterator[tuple[Group, list[_Passes]]]:
        """The groups, where some have a line in common; again, as long as what one has done changes another.

        Others go for a job of several groups only when none of these has started it as it is, and whole jobs only when
        none has extras enough.
        """
        for group, _ in self._of_group:
            group.turn = NONE_GO
        yield from self._of_group
        for _ in range(ROUNDS_MAX - 1):
            if not self._to_pass_again():
                self._next_turn()
            again = self._to_pass_again()
            if not again:
                return
            yield from again
        for group, _ in self._of_group:
            if group.changed:
                group.wake_s = min(group.wake_s, now_s + SOON_S)

    def _to_pass_again(self) -> list[tuple[Group, list[_Passes]]]:
        return [each for each in self._of_group if each[0].changed and any(at.jobs.by_id for at, *_ in each[1])]

    def _next_turn(self) -> None:
        """More may go, and the groups look again where they have put something off."""
        for group, _ in self._of_group:
            group.turn = min(group.turn + 1, WHOLE_JOBS_GO)
            if group.has_put_off:
                group.has_put_off, group.changed = False, True

    @property
    def next_notice_s(self) -> float:
        """When a notice that was held back is due, or a pass that was asked for (wall time, seconds; else inf)."""
        next_s = inf
        for group, _ in self._of_group:  # written out, since a simulation asks at each instant
            if group.notices.next_s < next_s:
                next_s = group.notices.next_s
            if group.wake_s < next_s:
                next_s = group.wake_s
        return next_s

    def _refused(
        self, group: Group, queue: PolicyQueue, decision: object, refused: int, now_s: float
    ) -> Sequence[DecisionRefused]:
        """Counts a refused decision, the `refused`th of this pass; what to log of it. Raises LocalProtocolError beyond
        REFUSALS_MAX.
        """
        self._counts["refused"] += 1
        why = why_refused(group, queue.jobs.by_id, decision, now_s)
        if refused > REFUSALS_MAX:
            last = f"; the last: {why}" if why else ""
            raise LocalProtocolError(
                f"policy {queue.policy.name!r}: over {REFUSALS_MAX} decisions refused in one pass; it should not start "
                "or deny jobs that left the queue, nor use a fit for another request or of an earlier state, nor "
                f"preempt jobs that are going or have not allowed it yet{last}"
            )
        if not why or why == self._last_refusal or refused > REFUSALS_LOGGED_MAX:
            return ()
        self._last_refusal = why
        return (DecisionRefused(f"policy {queue.policy.name!r}: {why}"),)


_Passes: TypeAlias = tuple[PolicyQueue, SchedulingPass, HookedPass | None]
"""A queue, its pass, and what makes the pass's decisions real if there are plugins."""


def _passes_of(
    group: Group, queue: PolicyQueue, counts: dict[str, int], shapes: Shapes
) -> tuple[SchedulingPass, HookedPass | None]:
    """The pass of a queue, and what makes its decisions real if there are plugins."""
    plain = SchedulingPass(group, queue, counts, shapes)
    return plain, None if group.hooks is None else HookedPass(group, queue, plain, group.hooks)


_REFUSABLE: Final = (Start, Deny, Preempt, Shrink, Grow, Wake, Withhold)
"""Decisions that have no effect only if they are refused."""


def _due_notices(group: Group, now_s: float) -> Iterator[Effect]:
    """Tells what was held back and is due, as it is by now; PAUSED where that is nothing new."""
    notices = group.notices
    for jobid in notices.due(now_s):
        queue = group.queue_of(jobid)
        job = None if queue is None else queue.jobs.get(jobid)
        if queue is not None and job is not None and job.priority:
            kept = queue.planned.get(jobid)
            start_s = None if kept is None else kept.start_s
            yield notices.tell(jobid, notices.reasons[jobid], start_s, now_s) or PAUSED
