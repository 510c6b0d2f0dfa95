"""Moves of targets from group to group: shrink, wait, arrive, grow (rfc/acquisition.md).

Law: nothing leaves while a job holds it, nor before the typed acquirer that was told to shrink has released it or is
lost; only then does the next group grow. The one shortcut: a target that returns to the group it was leaving is a
member again at once if that group is not acquired.
"""

from __future__ import annotations

from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.resource.journal import Outbox
from fluxsched.resource.sessions import Sessions
from fluxsched.resource.state.drain import Drains
from fluxsched.resource.state.groups import EXCLUDE, Groups, split
from fluxsched.resource.state.held_targets import HeldTargets
from fluxsched.resource.state.inventory import Targets
from fluxsched.resource.state.monitor import Monitor


class Moves:
    """The one place where a target changes its group."""

    def __init__(
        self,
        targets: Targets,
        groups: Groups,
        sessions: Sessions,
        holdings: HeldTargets,
        drains: Drains,
        monitor: Monitor,
        out: Outbox,
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._sessions = sessions
        self._holdings = holdings
        self._drains = drains
        self._monitor = monitor
        self._out = out
        self._rows: dict[int, dict[str, Any]] = {}

    @property
    def usable(self) -> Idset:
        """Online and lively and not drained, wherever it belongs."""
        return self._monitor.available - self._drains.drained

    def to(self, goal: str, targets: Idset, graceful: bool, user: str | None, now_s: float) -> None:
        """Targets shall belong to `goal`.

        Settled ones start leaving now or, graceful, are drained and leave once no job holds them. For leaving ones
        only the destination changes.
        """
        groups, members = self._groups, self._groups.members
        groups.aim(targets, goal)
        home = targets & members[goal] & groups.waiting
        groups.waiting -= home
        self._drains.lift(self._drains.made_for_move(home), "the move was called off", user, now_s)
        moving = targets - groups.all_leaving - members[goal]
        if graceful:
            self._drains.drain_for_move(moving & self._holdings.held, goal, user, now_s)
            groups.waiting |= moving
        else:
            self.begin(moving)
        self.settle(targets, now_s)

    def begin(self, targets: Idset) -> None:
        """Targets start leaving their groups: the acquirers of these are sent a shrink."""
        for name, part in split(self._groups.members, targets):
            self._groups.leave(name, part)
            self._sessions.leave(name, part)

    def settle(self, candidates: Idset, now_s: float) -> None:
        """Let those of them move on that nothing holds back any more."""
        groups = self._groups
        self.begin((groups.waiting & candidates) - self._holdings.held)
        arrived: dict[str | None, Idset] = {}
        for source, part in split(groups.leaving, candidates):
            for goal, some in self._headed(part):
                ready = self._ready(source, goal, some)
                if ready:
                    groups.arrive(source, goal, ready)
                    self._post_release(source, goal, ready, now_s)
                    arrived[goal] = arrived.get(goal, EMPTY) | ready
        for goal, part in arrived.items():
            self._settled(goal, part, now_s)

    def settle_new(self, targets: Idset) -> None:
        """Targets that no group owned are settled where they belong."""
        self._groups.join(targets, self._holdings.held)

    def finish(self, touched: Idset) -> None:
        """The end of every call: changes are reported to the acquirers, and moves are stored as they are now."""
        self._sessions.report(self.usable)
        moving = self._groups.moving
        for rank in touched & (moving | Idset.of(self._rows)):
            row = self._row(rank) if rank in moving else None
            if row != self._rows.get(rank):
                self._out.save("leaving", self._targets.key(rank), row)
                if row is None:
                    del self._rows[rank]
                else:
                    self._rows[rank] = row

    def restore(self, rank: int, source: str, graceful: bool) -> None:
        """Take up a stored move: the target is in `source` still. Where it belongs, the groups know."""
        groups, target = self._groups, Idset.of([rank])
        for name in groups.names:
            groups.members[name] -= target
        if graceful and rank not in groups.goals[source]:
            groups.members[source] |= target
            groups.waiting |= target
        else:
            groups.leaving[source] |= target
        self._rows[rank] = {}  # unlike any row: it is stored again as it stands, or deleted

    def _headed(self, leaving: Idset) -> list[tuple[str | None, Idset]]:
        """Leaving targets by where they go; the lost ones go nowhere."""
        lost = leaving & self._targets.lost
        here: list[tuple[str | None, Idset]] = list(split(self._groups.goals, leaving - lost))
        return [*here, (None, lost)] if lost else here

    def _ready(self, source: str, goal: str | None, leaving: Idset) -> Idset:
        session = self._sessions.get(source)
        if session is None and goal == source:
            return leaving
        return leaving - self._holdings.held - (EMPTY if session is None else session.unreleased)

    def _settled(self, goal: str | None, arrived: Idset, now_s: float) -> None:
        drains = self._drains
        if goal == EXCLUDE:
            drains.lift(arrived, "excluded", None, now_s)
        else:
            drains.lift(drains.made_for_move(arrived), f"moved to group {goal}" if goal else "lost", None, now_s)

    def _post_release(self, source: str, goal: str | None, targets: Idset, now_s: float) -> None:
        context = {"idset": str(targets), "nodelist": self._targets.nodelist(targets), "from": source}
        self._out.post(now_s, "release", context if goal is None else context | {"group": goal})

    def _row(self, rank: int) -> dict[str, Any]:
        source, goal = self._groups.group_of(rank), self._groups.goal_of(rank)
        return {"from": source, "to": goal, "graceful": rank in self._groups.waiting}
