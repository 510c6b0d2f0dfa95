"""Changes of resources: of an acquired group of targets (RFC 28), and of the R of a job that grows and shrinks.

Laws: the parts of a change apply in the order grow, shrink, offline, online, update. `difference` is the only place
that works out a change from two states. The times of a resized R (rfc/allocation.md) are those of the R that the job
had; what was given and taken back again leaves nothing behind, nor do its switches. `nslots` is left out where it is
not known which targets had how many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import NO_OUTAGES, Outages
from fluxsched.core.parts import NO_PARTS, PartsByRank
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology, put_parts

Properties: TypeAlias = Mapping[str, Idset]
"""Mapping of property names to targets."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Change reported to an acquirer in one message; `online` and `offline` cover all targets of `grow`.

    `grow` is empty, not None, when a group without targets is acquired; with `incomplete` its targets are not known
    yet, so nothing may be concluded from what it lacks. `expiration_s` (seconds since the epoch, 0 for none), the
    properties and the topology are None or empty where R stays as it is. `outages` are all that are known from then on,
    of other targets, too; None where these stay. So are `parts`, the drained ones.
    """

    grow: ResourceSet | None = None
    shrink: Idset = EMPTY
    online: Idset = EMPTY
    offline: Idset = EMPTY
    expiration_s: float | None = None
    property_add: Properties = field(default_factory=dict)
    property_remove: Properties = field(default_factory=dict)
    topology: Topology | None = None
    incomplete: bool = False
    outages: Outages | None = None
    parts: PartsByRank | None = None

    @property
    def joined(self) -> Idset:
        """Return the targets of `grow`."""
        return EMPTY if self.grow is None else self.grow.ranks

    @property
    def is_update(self) -> bool:
        """Return whether R changes on targets that stay."""
        properties = bool(self.property_add) or bool(self.property_remove)
        others = self.topology is not None or self.outages is not None or self.parts is not None
        return properties or others or self.expiration_s is not None


class GroupState(NamedTuple):
    """A group as its acquirer knows it: its targets, those of them that are usable, the R that describes them, the
    outages, and the drained parts.
    """

    resources: ResourceSet
    targets: Idset
    online: Idset
    outages: Outages = NO_OUTAGES
    parts: PartsByRank = NO_PARTS


def difference(before: GroupState, after: GroupState) -> GroupChange | None:
    """Return the change from one state to the next; None if there is none."""
    joined = left = EMPTY
    if before.targets != after.targets:
        joined, left = after.targets - before.targets, before.targets - after.targets
    flipped = before.online ^ after.online
    online, offline = flipped & after.online, (flipped & before.online - left) | (joined - after.online)
    expiration_s, added, removed = None, dict[str, Idset](), dict[str, Idset]()
    topology: Topology | None = None
    one, other = before.resources, after.resources
    if one is not other:
        stay = before.targets & after.targets
        expiration_s = None if one.expiration_s == other.expiration_s else other.expiration_s
        added, removed = _gained(one, other, stay), _gained(other, one, stay)
        topology = _rewired(one, other, stay)
    outages = None if before.outages == after.outages else after.outages
    parts = None if before.parts == after.parts else after.parts
    update = expiration_s, added, removed, topology
    change = GroupChange(None, left, online, offline, *update, outages=outages, parts=parts)
    if not (joined or left or online or offline or change.is_update):
        return None
    return replace(change, grow=with_own_topology(other.restrict(joined))) if joined else change


def with_own_topology(resources: ResourceSet) -> ResourceSet:
    """Return the resources with the switches of their hosts alone."""
    topology = resources.topology
    return resources.with_topology(topology.restrict(resources.nodelist.hosts)) if topology else resources


def _rewired(before: ResourceSet, after: ResourceSet, among: Idset) -> Topology | None:
    """Return the switches of targets `among`, if they are others than before."""
    if before.topology is after.topology:
        return None
    was, now = (source.topology.restrict(source.hosts(among).hosts) for source in (before, after))
    return None if was == now else now


def _gained(before: ResourceSet, after: ResourceSet, among: Idset) -> dict[str, Idset]:
    """Properties that targets `among` have after and did not have before."""
    pairs = ((name, (ids & among) - before.properties.get(name, EMPTY)) for name, ids in after.properties.items())
    return {name: ids for name, ids in pairs if ids}


# ---- the R of a job that grows and shrinks

def grown(before: ResourceSet, added: ResourceSet) -> ResourceSet:
    """With what was added, targets of which it has none. Raises InvalidValue if only one of the two has hosts."""
    nslots = None if before.nslots is None or added.nslots is None else before.nslots + added.nslots
    start_s, end_s = before.starttime_s, before.expiration_s
    return dataclasses.replace(before | added, nslots=nslots, starttime_s=start_s, expiration_s=end_s)


def shrunk(before: ResourceSet, ranks: Idset) -> ResourceSet:
    """Without these of its targets, where it has the same slots on each node; what it has once stays."""
    left = with_own_topology(before.without(ranks).with_shared(before.shared))
    if before.parts:
        return dataclasses.replace(left, nslots=None, scheduling=put_parts(left.scheduling, left.parts))
    nslots = None if before.nslots is None else before.nslots // len(before.ranks) * len(left.ranks)
    return dataclasses.replace(left, nslots=nslots or None)
