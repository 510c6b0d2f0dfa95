"""The group in which a job runs or ran, where its queue has several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fluxsched.jobs.job.job import Job

GroupOf: TypeAlias = Callable[[int], str | None]
"""Whose a target is."""


def group_name(job: Job, group_of: GroupOf) -> str:
    """By the lowest of its targets, as they are now; all groups of its queue if it had none, or those are elsewhere."""
    config = job.queue.config
    if not config.others:
        return config.group
    found = group_of(job.ranks.min()) if job.ranks else None
    return found if found is not None and found in config.groups else job.queue.groups_text
