"""The tables of a partition as a JSON object, for people: no text of a configuration, and no tag."""

from __future__ import annotations

from typing import Any

from fluxsched.adapters.si.machine.tables.entries import (
    ApplicationEntry,
    AskEntry,
    HeldAllocation,
    NodeEntry,
    Partition,
)
from fluxsched.sched.quotas.queue import Queue


def dump_partition(partition: Partition) -> dict[str, Any]:
    """Return all tables of the partition."""
    return {
        "name": partition.name,
        "nodes": [_node(node) for node in partition.ranks.values()],
        "queues": _queue(partition.tree.root),
        "applications": [_application(each) for each in partition.applications.values()],
        "scheduler": partition.scheduler.stats(),
    }


def _node(node: NodeEntry) -> dict[str, Any]:
    return {
        "nodeID": node.node_id,
        "rank": node.rank,
        "schedulable": dict(node.schedulable),
        "occupied": dict(node.occupied),
        "foreign": {key: dict(amounts) for key, amounts in node.foreign.items()},
        "attributes": node.attributes,
        "draining": node.is_draining,
        "up": node.is_up,
        "allocations": [held.uuid for held in node.held.values()],
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {
        "path": queue.path,
        "leaf": queue.is_leaf,
        "guaranteed": dict(queue.settings.guaranteed),
        "max": dict(queue.settings.maximum),
        "used": dict(queue.usage),
        "draining": queue.draining,
        "applications": list(queue.applications),
        "queues": [_queue(child) for child in queue.children.values()],
    }


def _application(application: ApplicationEntry) -> dict[str, Any]:
    return {
        "applicationID": application.application_id,
        "state": application.progress.state.value,
        "queue": application.account.queue.path,
        "user": application.account.user,
        "used": dict(application.account.usage),
        "asks": [_ask(ask) for ask in application.asks.values()],
        "allocations": [_allocation(held) for held in application.held.values()],
    }


def _ask(ask: AskEntry) -> dict[str, Any]:
    return {
        "allocationKey": ask.key,
        "resource": dict(ask.resource.amounts),
        "priority": ask.priority,
        "pending": ask.left,
        "replacing": ask.replacing,
        "placeholder": ask.is_placeholder,
    }


def _allocation(held: HeldAllocation) -> dict[str, Any]:
    return {
        "UUID": held.uuid,
        "allocationKey": held.ask.key,
        "nodeID": held.node.node_id,
        "resource": dict(held.ask.resource.amounts),
        "placeholder": held.ask.is_placeholder,
        "demanded": held.demand,
    }
