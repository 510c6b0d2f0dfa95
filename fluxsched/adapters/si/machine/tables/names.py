"""Names of the interface and what they are here: partitions, states of applications."""

from __future__ import annotations

from typing import Final

from fluxsched.adapters.si.machine.applications import ApplicationState
from fluxsched.sched.quotas.queue import ACCEPTED, COMPLETING, RUNNING, STARTING

DEFAULT_PARTITION: Final = "default"

PARTITION_CHARS: Final = 256
"""Of a partition's name that are shown."""

STAGES: Final = {
    ApplicationState.NEW: ACCEPTED,
    ApplicationState.ACCEPTED: ACCEPTED,
    ApplicationState.RESUMING: ACCEPTED,
    ApplicationState.STARTING: STARTING,
    ApplicationState.RUNNING: RUNNING,
    ApplicationState.FAILING: COMPLETING,
    ApplicationState.COMPLETING: COMPLETING,
    ApplicationState.COMPLETED: COMPLETING,
    ApplicationState.FAILED: COMPLETING,
}
"""Stages in the tree of queues, by the state of an application."""


def plain_partition(name: str) -> str:
    """`default` for the empty name, and without the rmID in brackets that may come first."""
    if name.startswith("["):
        name = name.partition("]")[2]
    return name or DEFAULT_PARTITION
