"""Targets of another instance as a group of this one: the inventory with them as they are now.

Law: a mirrored target keeps its rank here, like every target, and belongs to the group of its cluster alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.resource.state.groups import DEFAULT, EXCLUDE, Groups
from fluxsched.resource.state.inventory import Inventory, Targets


def with_mirror(
    targets: Targets, configured: Mapping[str, Idset], group: str, theirs: ResourceSet
) -> tuple[Inventory, dict[str, Idset]] | None:
    """The inventory and its groups with `theirs`, in whatever ranks, as the whole of `group`; None if it is so now."""
    admitted = targets.admit(theirs).resources
    mine = configured.get(group, EMPTY) & targets.present
    whole = targets.resources
    if admitted.ranks == mine and not targets.changed(admitted) and _describes(whole, admitted):
        return None
    rest = whole.restrict(targets.present - configured.get(group, EMPTY))
    groups = {name: ranks & rest.ranks for name, ranks in configured.items() if name not in (DEFAULT, group)}
    added, ranks = joined(rest, theirs, above=targets.resources.ranks)
    former = set(whole.hosts(configured.get(group, EMPTY)).hosts)
    kept = whole.topology.restrict([host for host in whole.topology.leaf_of if host not in former])
    added = added.with_topology(kept | theirs.topology)
    return Inventory(added, targets.method, targets.dynamic), groups | {group: ranks}


def _describes(known: ResourceSet, admitted: ResourceSet) -> bool:
    """Return whether these targets are known with the properties and switches that they have now."""
    mine, hosts = known.restrict(admitted.ranks).job_view(), admitted.nodelist.hosts
    if mine.properties != admitted.properties:
        return False
    return known.topology.restrict(hosts) == admitted.topology.restrict(hosts)


def with_mirrors(
    inventory: Inventory, groups: Mapping[str, Idset], mirrors: Iterable[tuple[str, ResourceSet]]
) -> tuple[Inventory, dict[str, Idset]]:
    """The inventory of a start or a reload with all mirrored targets behind it; those that have ranks keep them if no
    other target has them.
    """
    whole, found = inventory.resources, dict(groups)
    for group, theirs in mirrors:
        whole, found[group] = joined(whole, theirs)
    return replace(inventory, resources=whole), found


def check_owners(targets: Targets, groups: Groups, moving: Idset, group: str) -> None:
    """Raises InvalidValue if targets of a cluster are to be moved to a group, or others to that of a cluster."""
    for name in sorted(groups.mirrors):
        mine = moving & groups.configured.get(name, EMPTY)
        if name == group and moving - mine:
            text = f"group {name!r} has the targets of cluster {name!r} and no others"
            raise InvalidValue(f"cannot assign {targets.describe(moving - mine)}: {text}")
        if name != group and mine:
            text = f"cannot assign {targets.describe(mine)}: of cluster {name!r}, in whose group they stay"
            remedy = "drain them, or exclude them there" if group == EXCLUDE else "assign targets of this instance"
            raise InvalidValue(f"{text}; {remedy}")


def joined(whole: ResourceSet, theirs: ResourceSet, above: Idset = EMPTY) -> tuple[ResourceSet, Idset]:
    """Both, and the ranks of `theirs`: other ones above all that there are, where theirs are taken."""
    if not theirs:
        return whole, EMPTY
    if theirs.ranks & (whole.ranks | above):
        theirs = theirs.rerank((whole.ranks | above).max() + 1)
    both = whole | theirs
    return both.with_expiration(whole.starttime_s, whole.expiration_s).with_shared(whole.shared), theirs.ranks
