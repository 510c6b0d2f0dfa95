"""Orders in which a policy may try the waiting jobs, by name: option `order`.

Law: every order is total and stable, with ties in the order of the queue; a job without a limit counts as endless. All
but one are fixed for a job, so the queue keeps them like its own; `lxf` changes with time and is sorted each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from fluxsched.core.jobspec import Request
from fluxsched.sched.queue.sorted_jobs import Waiting

FIFO: Final = "fifo"
"""The order of the queue."""

LXF: Final = "lxf"
"""Largest expansion factor first: (time waited + limit) / limit, so that short jobs do not wait long."""


def cores_asked(request: Request) -> int:
    """The least number of cores that a request takes, over all its nodes; a whole node counts as what it asks for."""
    return request.least_cores if request.parts else request.least_nodes * request.slots.min * request.cores


FIXED: Final[Mapping[str, Callable[[Waiting], tuple[Any, ...]]]] = {
    "sjf": lambda job: (job.limit_s, *job.key),
    "ljf": lambda job: (-job.limit_s, *job.key),
    "saf": lambda job: (job.limit_s * cores_asked(job.request), *job.key),
    "laf": lambda job: (-job.limit_s * cores_asked(job.request), *job.key),
    "sqf": lambda job: (cores_asked(job.request), *job.key),
    "lqf": lambda job: (-cores_asked(job.request), *job.key),
}
"""Shortest and longest limit, smallest and largest area (limit times cores), fewest and most cores first."""

ORDERS: Final = (FIFO, *FIXED, LXF)


def expansion(job: Waiting, now_s: float) -> float:
    """(time waited + limit) / limit; 1.0 for a job without a limit."""
    return 1.0 + (now_s - job.t_submit_s) / job.limit_s


def key_of(order: str, now_s: float) -> Callable[[Waiting], tuple[Any, ...]]:
    """The sort key of jobs in one of the ORDERS."""
    if order == LXF:
        return lambda job: (-expansion(job, now_s), *job.key)
    return FIXED.get(order) or (lambda job: job.key)
