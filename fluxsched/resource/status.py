"""Status of the resource module for people and tools: `resource.status`, `resource.sched-status`, groups.

Law: reading changes nothing, and equal lines are merged; the shapes are those of Flux, with our own keys beside them.
"""

from __future__ import annotations

from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import EMPTY_TOPOLOGY
from fluxsched.resource.sessions import Sessions
from fluxsched.resource.state.drain import Drains
from fluxsched.resource.state.groups import EXCLUDE, Groups, GroupView
from fluxsched.resource.state.held_targets import HeldTargets
from fluxsched.resource.state.inventory import Targets
from fluxsched.resource.state.monitor import Monitor


def status(
    targets: Targets, groups: Groups, monitor: Monitor, drains: Drains, holdings: HeldTargets
) -> dict[str, Any]:
    """R with the lost targets (so that their hosts can be named), the drain lines, and a set for every state."""
    return {
        "R": targets.resources,
        "drain": drains.report(targets.present, holdings.held),
        "online": monitor.online,
        "offline": targets.present - monitor.online,
        "exclude": groups.members[EXCLUDE],
        "torpid": monitor.torpid,
        "lost": targets.lost,
        "groups": dict(groups.members),
    }


def states(
    targets: Targets, groups: Groups, monitor: Monitor, drains: Drains, holdings: HeldTargets
) -> dict[str, Idset]:
    """Each target in one state, the first that applies; in time linear in bits of the sets, not in targets."""
    held, ranks, left, found = holdings.held, targets.resources.ranks, targets.resources.ranks, dict[str, Idset]()
    for name, those in (
        ("lost", targets.lost),
        ("excluded", groups.members[EXCLUDE]),
        ("offline", ranks - monitor.online),
        ("draining", drains.drained & held),
        ("drained", drains.drained),
        ("torpid", monitor.torpid),
        ("leaving", EMPTY if groups.nothing_moves else groups.all_leaving),
        ("allocated", held),
    ):
        found[name] = left & those
        left -= those
    found["free"] = left
    return found


def sched_status(targets: Targets, groups: Groups, usable: Idset, allocated: ResourceSet) -> dict[str, ResourceSet]:
    """All that schedulers may get (not excluded, not lost), what of it is down, and what is allocated."""
    everything = targets.resources.restrict(targets.present - groups.members[EXCLUDE])
    everything = everything.with_topology(EMPTY_TOPOLOGY)  # `resource.status` tells it, to those who ask
    total = everything.with_shared(targets.resources.shared)
    return {"all": total, "down": everything.without(usable), "allocated": allocated}


def groups(groups: Groups, sessions: Sessions) -> list[GroupView]:
    """Every group, in the order in which they came to be."""
    views = []
    for name in groups.names:
        session = sessions.get(name)
        dialect = None if session is None else "typed" if session.typed else "plain"
        views.append(groups.view(name, None if session is None else session.acquirer, dialect))
    return views
