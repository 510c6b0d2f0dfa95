"""Partitions of a resource manager, made and changed as a configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fluxsched.adapters.si.config.settings import PartitionSettings
from fluxsched.adapters.si.machine.answers.observations import ADD, REMOVE, SET
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.predicates import Predicates
from fluxsched.adapters.si.machine.tables.entries import Partition
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.policies.tree import Tree
from fluxsched.sched.policy import NO, YES
from fluxsched.sched.queue import Waiting
from fluxsched.sched.quotas.tree import QueueTree


def make_partition(bookings: Bookings, settings: PartitionSettings) -> Partition:
    """A partition without nodes. The callback of its resource manager is asked for its predicates, if it has any, after
    the plugins of the service.
    """
    tree, policy = QueueTree(settings.root), Tree(settings.node_order, _switch(settings.preemption))
    callback, plugins = bookings.callback, list[Plugin](bookings.make_plugins())
    predicates = Predicates(callback, bookings.key_of, bookings.node_of)
    if hasattr(callback, "Predicates"):
        plugins.append(predicates)
        policy.may_reserve = predicates.allows_reservation
    if hasattr(callback, "PreemptionPredicates"):
        policy.judge = partial(_judged, bookings, predicates)
    scheduler = Scheduler(policy, notify=False, quotas=tree, plugins={"": plugins} if plugins else None)
    scheduler.weigh(settings.weights)
    return Partition(settings, tree, policy, scheduler)


def _judged(
    bookings: Bookings, predicates: Predicates, job: Waiting, rank: int, gone: Sequence[int], start_index: int
) -> int | None:
    return predicates.last_to_go(job.jobid, rank, [bookings.key_of(jobid) for jobid in gone], start_index)


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
            bookings.partitions[name] = make_partition(bookings, each)
            continue
        partition.settings = each
        changes = partition.tree.reconfigure(each.root)
        partition.policy.settle(each.node_order, _switch(each.preemption))
        partition.scheduler.weigh(each.weights)
        for reason, paths, change in (
            ("Added", changes.made, ADD), ("Draining", changes.draining, SET), ("Removed", changes.dropped, REMOVE)
        ):  # fmt: skip
            for path in paths:
                bookings.observed.queue_event(path, name, reason, change, "by another configuration")
