"""Partitions of a resource manager, made and changed as a configuration says."""

from __future__ import annotations

from collections.abc import Sequence

from fluxsched.adapters.si.config.settings import PartitionSettings
from fluxsched.adapters.si.machine.answers.observations import ADD, QUEUE, REMOVE, SET
from fluxsched.adapters.si.machine.tables.bookings import Bookings
from fluxsched.adapters.si.machine.tables.entries import Partition
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.policies.tree.policy import Tree
from fluxsched.sched.policy import NO, YES
from fluxsched.sched.quotas.tree import QueueTree


def make_partition(settings: PartitionSettings) -> Partition:
    """A partition without nodes."""
    tree, policy = QueueTree(settings.root), Tree(settings.node_order, _switch(settings.preemption))
    scheduler = Scheduler(policy, notify=False, quotas=tree)
    scheduler.weigh(settings.weights)
    return Partition(settings, tree, policy, scheduler)


def _switch(on: bool) -> str:
    return YES if on else NO


def configure(bookings: Bookings, settings: Sequence[PartitionSettings]) -> None:
    """Other settings for the partitions of a manager, which were found to be without faults for it."""
    kept = {each.name: each for each in settings}
    for name in [name for name in bookings.partitions if name not in kept]:
        del bookings.partitions[name]
    for name, each in kept.items():
        partition = bookings.partitions.get(name)
        if partition is None:
            bookings.partitions[name] = make_partition(each)
            continue
        partition.settings = each
        changes = partition.tree.reconfigure(each.root)
        partition.policy.settle(each.node_order, _switch(each.preemption))
        partition.scheduler.weigh(each.weights)
        for reason, paths, change in (
            ("Added", changes.made, ADD), ("Draining", changes.draining, SET), ("Removed", changes.dropped, REMOVE)
        ):  # fmt: skip
            for path in paths:
                bookings.observed.event(QUEUE, path, "", reason, change)
