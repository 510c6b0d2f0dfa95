"""`job-manager.reasons`: why many jobs wait, for lists."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fluxsched.protocol.messages.common import JobNumber, Payload, WallTime

REASONS_MAX = 200
"""Jobs in one request: more rows than a page shows."""

JobNumbers = Annotated[list[JobNumber], Meta(max_length=REASONS_MAX)]
ReasonEntry = tuple[JobNumber, str, WallTime | None, bool]
"""Job id, why it waits, when it may start at the earliest (null: not known), and whether that is promised."""


class ReasonsRequest(Payload, frozen=True):
    """Request for the reasons of these jobs."""

    ids: JobNumbers


class SchedReasonsRequest(Payload, frozen=True):
    """Request for the reasons of these jobs to the scheduler of a group."""

    ids: JobNumbers
    group: str = "default"


class ReasonsResponse(Payload, frozen=True, omit_defaults=False):
    """Reasons of those of the jobs that wait."""

    jobs: list[ReasonEntry]
