"""Instance services: agents, keepers, modules, metrics, history, live machine, plans, reasons, running jobs, traces.

Target agents are processes that report targets online and send their heartbeats; modules are schedulers as processes of
their own. Counts of `instance.metrics` begin anew with each start of the instance. `resource.watch` sends the state of
every target first, then what is different.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from fluxsched.protocol.messages.common import (
    IdsetText,
    Integer,
    JobNumber,
    PastSizeEntry,
    Payload,
    RObject,
    Seconds,
    Size,
    TargetsText,
    Unsigned32,
    WallTime,
)
from fluxsched.protocol.messages.resource import DrainInfo, GroupInfo, PartDrainInfo, PlannedOutage, SpareInfo


class AgentHello(Payload, frozen=True):
    """An agent presents its host: the ranks it is responsible for, or a newly discovered R; with `check` it only asks
    whether it may.
    """

    host: str
    heartbeat_s: Seconds
    R: RObject | None = None
    ranks: IdsetText | None = None
    check: bool = False


class AgentWelcome(Payload, frozen=True):
    """The targets of the agent, and how often to send a heartbeat."""

    targets: IdsetText
    interval_s: Seconds


class AgentHeartbeat(Payload, frozen=True):
    """Sign of life number `seq`; no response. Silence makes the targets torpid, then offline."""

    seq: Size


# ---- notices of admins to all users


class NoticeAddRequest(Payload, frozen=True, kw_only=True):
    """Show all users a text: until a time, or `for` so many seconds; without either until it is removed."""

    text: str
    until: WallTime | None = None
    for_: Seconds | None = msgspec.field(name="for", default=None)

    def __post_init__(self) -> None:
        if self.until is not None and self.for_ is not None:
            raise ValueError("`until` and `for` are two ends: give one of them")


class NoticeAddResponse(Payload, frozen=True):
    """The number of the notice."""

    id: Size


class NoticeRemoveRequest(Payload, frozen=True):
    """Remove the notices with these numbers, or without `ids` all; none if one of them is not shown."""

    ids: list[Size] | None = None


class Notice(Payload, frozen=True, kw_only=True):
    """A text for all users, who set it and when, and until when it is shown."""

    id: Size
    text: str
    user: str
    timestamp: WallTime
    until: WallTime | None = None


class NoticesResponse(Payload, frozen=True, omit_defaults=False):
    """The notices that are shown now, the oldest first."""

    notices: list[Notice]


# ---- the keeper of another host (rfc/keeper.md): `executor.wire` has what it says, in both directions


class KeeperConnectRequest(Payload, frozen=True):
    """A keeper presents itself. A connection of the same host that exists is closed."""

    host: str
    """The host's name in R."""
    boot_id: str
    version: Unsigned32
    """Version of the messages that the keeper understands."""
    pid: Unsigned32


class KeeperMessages(Payload, frozen=True):
    """Some messages between a keeper and its instance, in order; opaque here."""

    messages: list[bytes]
    is_cut: bool = False
    """True if the last message goes on with the first one of the next response or request."""


# ---- modules and the services that they register

HungAfter = Annotated[float, msgspec.Meta(ge=0.2)]


class ModuleLoadRequest(Payload, frozen=True):
    """Start a module: `fifo:placement=best-fit` or `./file.py:option=value`, for these groups (none: `default`).

    `restart`, `fallback` and `hung-after` (seconds, at least 0.2) say what is done about it should it fail.
    """

    spec: str
    name: str | None = None
    groups: list[str] = msgspec.field(default_factory=list)
    restart: Size | None = None
    fallback: str | None = None
    hung_after: HungAfter | None = msgspec.field(default=None, name="hung-after")


class ModuleLoadResponse(Payload, frozen=True):
    """The module runs under this name and process id."""

    name: str
    pid: Size


class ModuleRequest(Payload, frozen=True):
    """Remove, reload or ask about one module."""

    name: str


class ModuleInfo(Payload, frozen=True):
    """One module. The keys up to `recvqueue` are those of Flux (status 1: running); the others are ours."""

    name: str
    path: str
    idle: Integer
    status: Integer
    services: list[str]
    sendqueue: Size
    recvqueue: Size
    pid: Size | None = None
    groups: list[str] | None = None
    error: str | None = None


class ModuleListResponse(Payload, frozen=True):
    """All modules, built-in services among them."""

    mods: list[ModuleInfo]


class ServiceRequest(Payload, frozen=True):
    """Register or give up a service: requests for `SERVICE.*` then go to the sender (RFC 6)."""

    service: str


# ---- `instance.metrics`: figures for monitoring


class HistogramValue(Payload, frozen=True, omit_defaults=False):
    """Histogram of a value: `counts[i]` times not above `bounds[i]`; the last count is of larger ones."""

    bounds: tuple[float, ...]
    counts: tuple[Size, ...]
    sum: float


class GroupMetrics(Payload, frozen=True, omit_defaults=False):
    """Targets of a group: its own, those of them that are leaving, and those that jobs may be put on."""

    name: str
    targets: Size
    leaving: Size
    usable: Size
    acquired: bool


class QueueMetrics(Payload, frozen=True, omit_defaults=False):
    """Active jobs of a queue (its name is empty if it has none): without resources, and with them."""

    name: str
    pending: Size
    running: Size


class StoreMetrics(Payload, frozen=True, omit_defaults=False):
    """Transactions by their time (seconds), rows that wait for the disk, and why nothing can be written, if so."""

    commits: HistogramValue
    waiting_rows: Size
    fault: str | None


class PeerMetrics(Payload, frozen=True, omit_defaults=False):
    """Connected peers, those lost without goodbye, open streams, requests that wait for answers, what is unsent, and
    messages to peers that were gone.
    """

    connected: Size
    lost: Size
    streams: Size
    open_requests: Size
    unsent_messages: Size
    unsent_bytes: Size
    received: Size
    sent: Size
    dropped: Size


class JobMetrics(Payload, frozen=True, omit_defaults=False):
    """Jobs submitted, started, and ended by result; seconds from submit to start."""

    submitted: Size
    started: Size
    ended: dict[str, Size]
    wait: HistogramValue


class MetricsResponse(Payload, frozen=True, omit_defaults=False):
    """All of it. Each target and each core is counted in one state."""

    version: str
    starttime: WallTime
    resident_bytes: Integer
    faults: Size
    targets: dict[str, Size]
    cores: dict[str, Size]
    groups: tuple[GroupMetrics, ...]
    queues: tuple[QueueMetrics, ...]
    jobs: JobMetrics
    store: StoreMetrics
    peers: PeerMetrics


# ---- `history`: what the store keeps of the past, in figures by time (rfc/history.md)

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

    `since` is 30 days before `until` if absent, `until` is now if absent, and 0 entries mean 1000. With `days`
    rows have the core-seconds of each day, and are 100 at most.
    """

    by: ReportBy = "user"
    since: WallTime | None = None
    until: WallTime | None = None
    max_entries: Size = 0
    days: bool = False


class ReportRow(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """Jobs that ended, by result, those that run still, and what both used, of one user (a userid), bank, ...

    Use is counted where it was, jobs and their waits where they ended. `waits` jobs had resources; `wait_mean` is
    exact, `wait_p50` and `wait_p95` are from ranges of a factor of 1.67 at most. `cpu_seconds` is CPU time that was
    measured, and `cpu_core_seconds` what the jobs held for which it was; `gpu_busy_seconds` are seconds of GPUs that
    were busy, of `gpu_sampled_seconds`. `days` are the core-seconds of each day, if these were asked for, and
    `cores` those that a queue or property has now.
    """

    name: str
    jobs: Size
    running: Size
    results: dict[str, Size]
    core_seconds: Seconds
    gpu_seconds: Seconds
    cpu_seconds: Seconds
    cpu_core_seconds: Seconds
    gpu_busy_seconds: Seconds
    gpu_sampled_seconds: Seconds
    waits: Size
    wait_mean: WaitSeconds | None
    wait_p50: WaitSeconds | None
    wait_p95: WaitSeconds | None
    days: list[Seconds] | None = None
    cores: Size | None = None


class ReportResponse(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """`since` and `until` as they were answered for: whole hours, of long ago whole days, until now at most.

    `capacity` are core-seconds of the machine by state while it was observed, for `observed` seconds, of which those
    that were allocated are the `core_seconds` of the total; null for guests where jobs are private. `left_out` rows are
    only in the `total`. `days` are the beginnings of the days that rows have, by the instance's clock.
    """

    by: str
    since: WallTime
    until: WallTime
    rows: list[ReportRow]
    left_out: Size
    total: ReportRow
    observed: Seconds
    capacity: dict[str, Seconds] | None
    days: list[WallTime] | None = None


# ---- `resource.watch`: the state of every target


class MachineChange(Payload, frozen=True, kw_only=True):
    """Changed state of targets; all of it in the first response. An absent key is unchanged.

    `states` has targets by their state, `busy` and `busy_gpus` by the number of their cores and GPUs that jobs hold: of
    all targets only those that changed, and in the first response only those of which a job holds some. `drains`,
    `parts`, `withheld`, `groups`, `outages`, `spares` and `replaced` are complete, as in `resource.status`,
    `resource.groups` and `resource.outage-list`. Targets that a new `R` does not have are removed.
    """

    R: RObject | None = None
    states: dict[str, IdsetText] | None = None
    busy: dict[str, IdsetText] | None = None
    busy_gpus: dict[str, IdsetText] | None = None
    drains: dict[IdsetText, DrainInfo] | None = None
    parts: list[PartDrainInfo] | None = None
    withheld: list[PartDrainInfo] | None = None
    outages: list[PlannedOutage] | None = None
    groups: list[GroupInfo] | None = None
    made_up: IdsetText | None = None
    spares: IdsetText | None = None
    replaced: list[SpareInfo] | None = None


# ---- `sched.plan`: when and where the scheduler of a group will start jobs that wait

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


# ---- `job-manager.reasons`: why many jobs wait, for lists

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
    """Reasons of those of the jobs that wait, and the kind of each, in the same order; none by older schedulers."""

    jobs: list[ReasonEntry]
    kinds: tuple[str, ...] = ()


# ---- `job-manager.running`: the jobs that hold resources, the largest first

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


# ---- `instance.trace`: messages between the instance and its peers


class TraceRequest(Payload, frozen=True):
    """Messages whose topics have one of these beginnings; all if none is given."""

    topics: tuple[str, ...] = ()


class TracedMessage(Payload, frozen=True, omit_defaults=False):
    """One message: received (`<-`) from a peer or sent (`->`) to it, and its payload as text, shortened.

    Environments, input and output of jobs are left out of the text.
    """

    t: WallTime
    direction: Literal["<-", "->"]
    peer: str
    type: Literal["request", "response"]
    topic: str
    text: str


class TraceResponse(Payload, frozen=True, omit_defaults=False):
    """Some messages in order, and how many more there were since the answer before."""

    messages: list[TracedMessage]
    dropped: Size
