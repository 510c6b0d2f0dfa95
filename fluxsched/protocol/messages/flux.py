"""Requests of stock Flux clients at the local socket, where they differ from what our own clients send.

Recorded from 0.88: about the instance and its resources, and about jobs. Of an instance of ours each target counts as a
broker.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fluxsched.protocol.messages.common import IdsetText, Integer, JobNumber, Payload, Size, Unsigned32, WallTime


class ReloadFromRequest(Payload, frozen=True):
    """`resource.reload`: the path of an R file, or with `xml` of a directory of hwloc's XML."""

    path: str
    xml: bool = False
    force: bool = False


class WaitUpRequest(Payload, frozen=True):
    """`resource.monitor-waitup`: answered once so many targets are online."""

    up: Size


class GroupRequest(Payload, frozen=True):
    """`groups.get`: a group of brokers (no group of targets of ours: Flux's `broker.online` and the like)."""

    name: str


class GroupResponse(Payload, frozen=True):
    """The ranks in the group."""

    members: IdsetText


class StateResponse(Payload, frozen=True):
    """`state-machine.get`: the broker's state, and for how long (seconds)."""

    state: str
    duration: WallTime


class AttributesResponse(Payload, frozen=True):
    """`attr.list`: the names that `attr.get` knows."""

    names: list[str]


# ---- jobs

ANY_JOB = (-1, 0xFFFFFFFFFFFFFFFF)
"""`job-manager.wait` for whichever job ends next: all bits set, with a sign or without."""

JobOrAny = Annotated[int, Meta(ge=-1, description="job id (RFC 19), or all bits set: any")]


class IngestRequest(Payload, frozen=True):
    """Submit the jobspec in `J`, signed by mechanism `none` (RFC 15) or not at all."""

    J: str
    urgency: Integer = 16
    flags: Size = 0


class JobListRequest(Payload, frozen=True):
    """Selection of jobs and of their attributes (RFC 43); `since`: inactive after this time; 0 entries: no limit."""

    max_entries: Size
    attrs: list[str]
    since: WallTime = 0.0
    constraint: dict[str, Any] | None = None


class JobListResponse(Payload, frozen=True):
    """A job of a list; the first says which version of the protocol this is."""

    jobs: list[dict[str, Any]]
    version: Size | None = None


class JobListIdRequest(Payload, frozen=True):
    """One job; with `state` the answer waits until the job has reached it."""

    id: JobNumber
    attrs: list[str]
    state: Size = 0


class JobListIdResponse(Payload, frozen=True):
    """The job's id and attributes."""

    job: dict[str, Any]


class JobAttributesResponse(Payload, frozen=True):
    """Names of all job attributes."""

    attrs: list[str]


class JobStates(Payload, frozen=True, omit_defaults=False):
    """Number of jobs by state."""

    depend: Size
    priority: Size
    sched: Size
    run: Size
    cleanup: Size
    inactive: Size
    total: Size


class _JobCounts(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """Jobs a state, and how those ended that have."""

    job_states: JobStates
    successful: Size
    failed: Size
    canceled: Size
    timeout: Size
    inactive_purged: Size = 0


class QueueJobs(_JobCounts, frozen=True, kw_only=True, omit_defaults=False):
    """The jobs of one queue."""

    name: str


class JobStatsResponse(_JobCounts, frozen=True, kw_only=True, omit_defaults=False):
    """The jobs of all queues, and of each that has a name."""

    queues: list[QueueJobs]


class EventlogWatchRequest(Payload, frozen=True):
    """Follow a job's `eventlog`, `guest.exec.eventlog` or `guest.output`; flag 2: say when history ends."""

    id: JobNumber
    path: str
    flags: Size = 0


class EventlogWatchResponse(Payload, frozen=True):
    """One event, as a line of text (RFC 18)."""

    event: str


class StdinRequest(Payload, frozen=True):
    """Input for the tasks `rank` (an idset, or `all`): the context of a `data` event (RFC 24)."""

    stream: Literal["stdin"]
    rank: str
    data: str = ""
    encoding: Literal["UTF-8", "base64"] = "UTF-8"
    eof: bool = False


class InfoLookupRequest(Payload, frozen=True):
    """Parts of a job's record; flag 1: jobspec and R as objects, flag 2: with what was changed later."""

    id: JobNumber
    keys: list[str]
    flags: Size = 0


class WaitableRequest(Payload, frozen=True):
    """Wait until a waitable job is inactive: this one, or any."""

    id: JobOrAny


class WaitableResponse(Payload, frozen=True, omit_defaults=False):
    """Result of the job, and a text for people if it did not end well."""

    id: JobNumber
    success: bool
    errstr: str


class OldUrgencyResponse(Payload, frozen=True):
    """The urgency that the job had before."""

    old_urgency: Integer


class FluxQueueStatus(Payload, frozen=True):
    """Status of a queue: whether it takes jobs and has them scheduled, with the reason if not."""

    enable: bool
    start: bool
    name: str | None = None
    disable_reason: str | None = None
    stop_reason: str | None = None
    blocked: str | None = None


class AllocQueryResponse(Payload, frozen=True, omit_defaults=False):
    """Requests for resources that wait here, those that a scheduler has, and jobs that have theirs."""

    queue_length: Size
    alloc_pending: Size
    running: Size


class IdleResponse(Payload, frozen=True, omit_defaults=False):
    """No job runs; so many are left."""

    pending: Size


class HistoryRequest(Payload, frozen=True):
    """Ids of jobs, newest first: a Python slice or index in brackets."""

    slice: str = "[:]"
    userid: Unsigned32 | None = None


class HistoryResponse(Payload, frozen=True):
    """Ids of jobs, in the order of the history."""

    jobs: list[JobNumber]


class RaiseAllRequest(Payload, frozen=True):
    """Raise an exception on all jobs of a user (4294967295: of all) in these states; `dry_run` only counts."""

    dry_run: bool
    userid: Unsigned32
    states: Size
    severity: Annotated[int, Meta(ge=0, le=7)]
    type: str
    note: str = ""


class KillAllRequest(Payload, frozen=True):
    """Send a signal to all running jobs of a user (4294967295: of all); `dry_run` only counts."""

    dry_run: bool
    userid: Unsigned32
    signum: Annotated[int, Meta(ge=1, le=64)]


class CountResponse(Payload, frozen=True, omit_defaults=False):
    """Numbers of jobs that were selected, and of those for which the request failed."""

    count: Size
    errors: Size = 0


class ManagerStats(Payload, frozen=True, omit_defaults=False):
    """Figures of the job manager that stock commands look at; nothing keeps house after a job here."""

    active_jobs: Size
    inactive_jobs: Size
    max_jobid: JobNumber
    housekeeping: dict[str, Any] = msgspec.field(default_factory=lambda: {"running": {}})
