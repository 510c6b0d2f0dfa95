"""What a scheduler says of itself to people: numbers, and what is counted, down and allocated.

Law: nothing is changed here; linear in the groups and their targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fluxsched.core.build import BUILD
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.effects import grouped
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.pool.listing import busy


def group_stats(group: Group) -> dict[str, Any]:
    """Numbers of one group; `waiting` counts those that are set aside, too: they are `unsatisfiable`.

    A job of several groups counts in each that could hold it.
    """
    set_aside = len(group.set_aside)
    if group.joint:
        set_aside = sum([not group.offers_elsewhere(jobid) for jobid in group.set_aside])
    return {
        "targets": len(group.pool.ranks), "down": len(group.pool.down), "leaving": len(group.leaving),
        "waiting": group.waiting - len(group.set_aside) + set_aside,
        **({"unsatisfiable": set_aside} if set_aside else {}),
        "planned": sum(len(queue.planned) for queue in group.queues.values()),
        "queues": {
            queue.name: {"policy": queue.policy.name, "waiting": len(queue.jobs), "planned": len(queue.planned)}
            for queue in group.queues.values() if queue.name
        },
    }  # fmt: skip


def stats(policy: str, groups: Iterable[Group], ledger: Ledger, counts: Mapping[str, int]) -> dict[str, Any]:
    """The same of all groups, what runs, and the counts of a scheduler with this policy."""
    running = {"running": len(ledger), "foreign": ledger.foreign()}
    by_group = {group.name: group_stats(group) for group in groups}
    return {"policy": policy, "build": BUILD, **counts, **running, "groups": by_group}


def planned(groups: Iterable[Group]) -> Iterator[Reservation]:
    """The reservations that stand, queue by queue."""
    for group in groups:
        for queue in group.queues.values():
            yield from queue.planned.values()


def resource_status(groups: Iterable[Group]) -> tuple[ResourceSet, ResourceSet, ResourceSet]:
    """All that is counted, what of it is down, what of it is allocated."""
    total = down = allocated = EMPTY_R
    for group in groups:
        pool = group.pool
        counted = pool.resources
        total |= counted
        down |= counted.restrict(pool.down)
        allocated |= ResourceSet.build(grouped(busy(pool)), pool.source, 0.0, 0.0, None)
    return total, down, allocated
