"""Targets come and go: a dynamic inventory grows and loses, a reload replaces R and the configuration of groups.

Law: what is lost leaves to no group and is remembered; what returns is its old self, drained and assigned as before. A
target that returns before it has left must still be released, and is then grown again like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.resource.changes.moves import Moves
from fluxsched.resource.changes.reload import ReloadPlan
from fluxsched.resource.changes.restore import Restorer
from fluxsched.resource.journal import Outbox
from fluxsched.resource.state.drain import Drains
from fluxsched.resource.state.groups import EXCLUDE, Groups
from fluxsched.resource.state.inventory import Targets
from fluxsched.resource.state.monitor import Monitor
from fluxsched.resource.state.properties import PropertyOverrides


class Presence:
    """Changes which targets there are; callers have checked that they may."""

    def __init__(
        self,
        targets: Targets,
        groups: Groups,
        monitor: Monitor,
        drains: Drains,
        moves: Moves,
        overrides: PropertyOverrides,
        restorer: Restorer,
        out: Outbox,
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._monitor = monitor
        self._drains = drains
        self._moves = moves
        self._overrides = overrides
        self._restorer = restorer
        self._out = out

    def lose(self, targets: Idset, now_s: float) -> None:
        """Mark targets as offline and remove them from their groups, into no other."""
        if targets:
            self._monitor.set_offline(targets, now_s)
            self._targets.lost |= targets
            self._post("lost", targets, now_s)
            self._moves.begin(targets)
            self._moves.settle(targets, now_s)

    def join(self, joining: ResourceSet, configured: Mapping[str, Idset], now_s: float) -> None:
        """New and returned targets, none of which is present; `configured` places the new ones."""
        fresh = joining.ranks - self._targets.resources.ranks
        self._targets.take(joining)
        self._arrive(joining.ranks, fresh, configured, now_s)

    def reload(self, plan: ReloadPlan, now_s: float) -> None:
        """Shrink what changed, take R and groups over, move the rest, welcome what is new, lose what vanished.

        Arrivals are reported to acquirers before departures, so that a replaced group is never empty.
        """
        self._moves.begin(plan.changed)
        self._targets.replace(self._overrides.applied(plan.resources, plan.resources.ranks))
        self._groups.reconfigure({name: ranks - plan.fresh for name, ranks in plan.configured.items()})
        for group, part in plan.regrouped.items():
            self._moves.to(group, part, False, None, now_s)
        joined = plan.fresh | plan.returned
        if joined:
            self._arrive(joined, plan.fresh, plan.configured, now_s)
        self.lose(plan.vanished, now_s)
        self._moves.settle(plan.changed, now_s)

    def _arrive(self, joined: Idset, fresh: Idset, configured: Mapping[str, Idset], now_s: float) -> None:
        """R has them already: stored rows apply, live properties apply, and groups grow."""
        self._targets.lost -= joined
        self._groups.adopt(fresh, configured)
        self._restorer.apply_rows(fresh)
        self._targets.replace(self._overrides.applied(self._targets.resources, joined))
        self._post("join", joined, now_s)
        self._drains.lift(joined & self._groups.goals[EXCLUDE], "excluded", None, now_s)
        self._moves.settle_new(joined - self._groups.all_leaving)
        self._moves.settle(joined, now_s)

    def _post(self, name: str, targets: Idset, now_s: float) -> None:
        self._out.post(now_s, name, {"idset": str(targets), "nodelist": self._targets.nodelist(targets)})
