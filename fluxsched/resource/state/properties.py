"""Properties added and removed live: they override the source of R, target by target, and follow the host.

Law: a request is done whole or refused whole; what was removed live stays removed when the source, read again, has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.core.group_change import Properties
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.resource.journal import Outbox
from fluxsched.resource.state.inventory import Targets

PROPERTIES_MAX = 1024
"""Names of properties in one R: every job's R and every constraint walks them."""


class PropertyOverrides:
    """Properties changed live, by target and name: True for added, False for removed."""

    def __init__(self, targets: Targets, out: Outbox) -> None:
        self._targets = targets
        self._out = out
        self._of: dict[int, dict[str, bool]] = {}

    def change(self, properties: Properties, add: bool, now_s: float) -> None:
        """Add properties to targets or remove them.

        Raises InvalidValue for illegal names, for targets that are unknown or lost, all named, and for a removal from
        targets that do not have the property; LimitExceeded above PROPERTIES_MAX names.
        """
        verb = "add" if add else "remove"
        if not any(properties.values()):
            raise InvalidValue(f"cannot {verb} properties: no target is named; give NAME: targets")
        named = EMPTY
        for ranks in properties.values():
            named |= ranks
        self._targets.require(named, f"{verb} properties {', '.join(sorted(properties))}")
        resources = _changed(self._targets.resources, properties, add)
        if len(resources.properties) > PROPERTIES_MAX:
            raise LimitExceeded(f"{len(resources.properties)} properties are above the limit of {PROPERTIES_MAX}")
        self._targets.replace(resources)
        for name, ranks in properties.items():
            for rank in ranks:
                self._of.setdefault(rank, {})[name] = add
        for rank in named:
            self._out.save("property", self._targets.key(rank), self._row(rank))
        context = {"properties": {name: str(ranks) for name, ranks in properties.items()}}
        self._out.post(now_s, f"property-{verb}", context)

    def restore(self, rank: int, row: Mapping[str, Any]) -> None:
        """Take up a stored row; `applied` makes it count."""
        self._of[rank] = dict.fromkeys(row.get("add", ()), True) | dict.fromkeys(row.get("remove", ()), False)

    def applied(self, resources: ResourceSet, targets: Idset) -> ResourceSet:
        """R as its source has it, with what was changed live on these targets."""
        ranks: dict[tuple[str, bool], list[int]] = {}
        for rank in targets & Idset.of(self._of):
            for name, add in self._of[rank].items():
                ranks.setdefault((name, add), []).append(rank)
        for (name, add), found in ranks.items():
            having = resources.properties.get(name, EMPTY)
            changed = Idset.of(found) if add else Idset.of(found) & having
            resources = _changed(resources, {name: changed}, add)
        return resources

    def _row(self, rank: int) -> dict[str, Any]:
        changes = self._of[rank]
        return {
            "add": sorted(name for name, add in changes.items() if add),
            "remove": sorted(name for name, add in changes.items() if not add),
        }


def _changed(resources: ResourceSet, properties: Properties, add: bool) -> ResourceSet:
    for name, ranks in properties.items():
        resources = resources.add_property(name, ranks) if add else resources.remove_property(name, ranks)
    return resources
