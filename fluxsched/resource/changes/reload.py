"""Another R or another configuration for a running instance: what would change, worked out before anything does.

Law: hosts keep ranks, drains and assignments. What vanished is lost; a target whose cores or GPUs changed leaves and
comes home again with the new ones; both and a change of group wait like any move. If a job holds such a target the
reload is refused, naming all of them and why, unless it is forced.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import Refused
from fluxsched.resource.state.groups import DEFAULT, Groups, check_configured, split
from fluxsched.resource.state.inventory import Inventory, Targets


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """A reload in our ranks: `resources` with the lost targets, the checked configuration, and the targets affected."""

    resources: ResourceSet
    configured: Mapping[str, Idset]
    vanished: Idset
    changed: Idset
    returned: Idset
    fresh: Idset
    regrouped: Mapping[str, Idset]


def plan_reload(targets: Targets, groups: Groups, inventory: Inventory, configured: Mapping[str, Idset]) -> ReloadPlan:
    """Return the plan of a reload; `configured` is in the ranks of the new inventory.

    Raises InvalidValue like a start would.
    """
    check_configured(inventory.resources, configured)  # in its own ranks: the text must name what the person wrote
    admission = targets.admit(inventory.resources)
    admitted = admission.resources
    merged = targets.merged(admitted)
    ours = {name: admission.ours(ranks) for name, ranks in configured.items()}
    for name, absent in split(groups.configured, merged.ranks - admitted.ranks):
        if name != DEFAULT:  # the lost stay configured as they were, for their return
            ours[name] = ours.get(name, EMPTY) | absent
    checked = check_configured(merged, ours)
    groups.check_new(*checked)
    present, fresh = targets.present, admitted.ranks - targets.resources.ranks
    free = (admitted.ranks - fresh) - Idset.of(groups.assigned)
    astray = {name: (ranks & free) - groups.goals.get(name, EMPTY) for name, ranks in checked.items()}
    given = inventory.resources
    return ReloadPlan(
        resources=merged.with_expiration(given.starttime_s, given.expiration_s).with_topology(given.topology),
        configured=checked,
        vanished=present - admitted.ranks,
        changed=targets.changed(admitted) & present,
        returned=targets.lost & admitted.ranks,
        fresh=fresh,
        regrouped={name: part for name, part in astray.items() if part},
    )


def refuse_held(plan: ReloadPlan, targets: Targets, groups: Groups, held: Idset) -> None:
    """Raise Refused (EBUSY) naming all held targets that the plan would take away from their jobs."""
    faults = []
    for part, why in ((plan.vanished & held, "not in the new R"), (plan.changed & held, "with other resources there")):
        if part:
            faults.append(f"{targets.describe(part)} {why}")
    for name, part in plan.regrouped.items():
        if busy := part & held - groups.members.get(name, EMPTY):
            faults.append(f"{targets.describe(busy)} going to group {name!r}")
    if faults:
        raise Refused(f"cannot reload while jobs hold {'; '.join(faults)}; wait for them, or force it", errno.EBUSY)
