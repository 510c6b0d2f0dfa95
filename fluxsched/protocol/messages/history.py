"""The `history` service: what the store keeps of the past for people, in figures by time (rfc/history.md)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from fluxsched.protocol.messages.common import IdsetText, Payload, Seconds, Size, TargetsText, WallTime

Mean = Annotated[float, Meta(ge=0.0, description="mean over a step")]
WaitSeconds = Annotated[float, Meta(ge=0.0, description="seconds from submit to resources")]


class SamplesRequest(Payload, frozen=True):
    """Samples from `since` (absent: a day before `until`) until `until` (absent: now), at most `points_max` (0: 1000)
    steps.
    """

    since: WallTime | None = None
    until: WallTime | None = None
    points_max: Size = 0


class SamplesResponse(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """Columns, a value a step.

    `t` has the beginnings of the steps, each `step` long; a step that is not there was not observed, and one that was
    observed in part has so many seconds in `observed`.

    `cores` by state, and `pending` and `running` jobs by queue (its name is empty if it has none), are means over what
    was observed; `submitted`, `started` and `ended` by result are counts. `wait_p50` and `wait_p95` are of the jobs
    that started, from ranges of a factor of 1.67 at most; null if none did.
    """

    step: Size
    t: list[WallTime]
    observed: list[Seconds]
    cores: dict[str, list[Mean]]
    pending: dict[str, list[Mean]]
    running: dict[str, list[Mean]]
    submitted: list[Size]
    started: list[Size]
    ended: dict[str, list[Size]]
    wait_p50: list[WaitSeconds | None]
    wait_p95: list[WaitSeconds | None]


class IntervalsRequest(Payload, frozen=True):
    """Intervals that overlap `since` (absent: a day before `until`) to `until` (absent: now), of these targets alone if
    some are named; at most `max_entries` (0: 1000), the latest.
    """

    since: WallTime | None = None
    until: WallTime | None = None
    targets: TargetsText | None = None
    max_entries: Size = 0


StateInterval = tuple[IdsetText, str, WallTime, WallTime | None, str]
"""Targets, their state, from when until when (null: it lasts), and a note: the reason of a drain."""


class IntervalsResponse(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """Intervals in which targets could not be used, and why, by begin; at all other `observed` times they could.

    Outside `observed`, while no instance ran, a state is what it was before. `left_out` earlier ones exist.
    """

    intervals: list[StateInterval]
    observed: list[tuple[WallTime, WallTime]]
    left_out: Size


USABLE: Final = ("allocated", "free")
"""The states of a target on which jobs may be put; all others are kept as intervals."""

ReportBy = Literal["user", "bank", "queue", "group", "property"]


class ReportRequest(Payload, frozen=True):
    """Request for the usage of jobs from `since` until `until`, in `max_entries` rows with the most core-seconds.

    `since` is 30 days before `until` if absent, `until` is now if absent, and 0 entries mean 1000.
    """

    by: ReportBy = "user"
    since: WallTime | None = None
    until: WallTime | None = None
    max_entries: Size = 0


class ReportRow(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """Jobs that ended, by result, those that run still, and what both used, of one user (a userid), bank, ...

    Use is counted where it was, jobs and their waits where they ended. `waits` jobs had resources; `wait_mean` is
    exact, `wait_p50` and `wait_p95` are from ranges of a factor of 1.67 at most. `cpu_seconds` is CPU time that was
    measured, and `cpu_core_seconds` what the jobs held for which it was.
    """

    name: str
    jobs: Size
    running: Size
    results: dict[str, Size]
    core_seconds: Seconds
    gpu_seconds: Seconds
    cpu_seconds: Seconds
    cpu_core_seconds: Seconds
    waits: Size
    wait_mean: WaitSeconds | None
    wait_p50: WaitSeconds | None
    wait_p95: WaitSeconds | None


class ReportResponse(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """`since` and `until` as they were answered for: whole hours, of long ago whole days, until now at most.

    `capacity` are core-seconds of the machine by state while it was observed, for `observed` seconds, of which those
    that were allocated are the `core_seconds` of the total; null for guests where jobs are private. `left_out` rows are
    only in the `total`.
    """

    by: str
    since: WallTime
    until: WallTime
    rows: list[ReportRow]
    left_out: Size
    total: ReportRow
    observed: Seconds
    capacity: dict[str, Seconds] | None
