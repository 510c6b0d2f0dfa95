"""`job-manager.running`: the jobs that hold resources, the largest first."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fluxsched.protocol.messages.common import (
    IdsetText,
    JobNumber,
    PastSizeEntry,
    Payload,
    Size,
    TargetsText,
    Unsigned32,
    WallTime,
)

RunningEntry = tuple[JobNumber, IdsetText, WallTime, WallTime, Size, Unsigned32, str, str, list[PastSizeEntry]]
"""Job id, the targets that it holds, `t_run`, expiration (0: none), cores, userid, queue (empty: none), name, and its
sizes before, if it has grown or shrunk.
"""


class RunningRequest(Payload, frozen=True):
    """Selection of running jobs: on some `targets` only, if given; `max_entries` of them at most."""

    targets: TargetsText | None = None
    max_entries: Annotated[int, Meta(ge=0, le=0x7FFFFFFF)] | None = None


class RunningResponse(Payload, frozen=True, omit_defaults=False):
    """Jobs, those with most core-seconds first (up to their limits), and how many more there are."""

    jobs: list[RunningEntry]
    left_out: Size
