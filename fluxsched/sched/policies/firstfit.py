"""Whoever fits starts: jobs that cannot start now are skipped, and big jobs may be overtaken for ever.

Within a pass things only become less free, so a request that failed once fails for every equal one behind it: for those
no placement is tried, and their reason does not change with every free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from fluxsched.core.jobspec import Request
from fluxsched.sched.policy import PLACEMENT, WORST_FIT, Decision, Insufficient, Option, Pending, View, decide

BEHIND_EQUALS = "jobs ahead of it need the same and wait"


class FirstFit:
    """Priority order, then submit time, skipping what is blocked; `placement` is how targets are chosen."""

    name: ClassVar[str] = "firstfit"
    OPTIONS: ClassVar[Mapping[str, Option]] = {"placement": PLACEMENT}

    def __init__(self, placement: str = WORST_FIT) -> None:
        self._placement = placement

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        blocked: set[Request] = set()
        for job in view.queue:
            if job.request in blocked:
                yield Pending(job.jobid, BEHIND_EQUALS)
                continue
            outcome = view.place(job, self._placement)
            if isinstance(outcome, Insufficient):
                blocked.add(job.request)
            yield decide(job, outcome)
