"""`sched.plan`: when and where the scheduler of a group will start jobs that wait."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fluxsched.protocol.messages.common import IdsetText, JobNumber, Payload, Size, WallTime

PlannedJob = tuple[JobNumber, WallTime, WallTime, IdsetText | None, Size, Size, bool]
"""Job id, start, end (0: none), targets if they are chosen already, numbers of nodes (0: any) and cores, and whether it
is promised: kept as a reservation. What is not promised is a forecast: the earliest start as things are now.
"""


class PlanRequest(Payload, frozen=True):
    """The plans of the queues of one group."""

    group: str = "default"
    max_entries: Annotated[int, Meta(ge=0, le=0x7FFFFFFF)] | None = None


class PlanResponse(Payload, frozen=True, omit_defaults=False):
    """Starts in order of time, and how many waiting jobs are not in the plan, or would have been too many."""

    jobs: list[PlannedJob]
    left_out: Size
