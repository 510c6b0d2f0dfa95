"""Job manager's service: submit, watch, steer and look up jobs (RFC 21), control queues, send jobs to other instances.

Names of the queue requests (enable or disable submission, start or stop allocation) are Flux's. A lease is a job that
another instance runs here (`lease.*`); `cluster.*` is about what this instance has of others.

Allocation (RFC 27) between the job manager and a scheduler, and a scheduler's accounts (`sched.accounts`; ours).

The accounts list what each uses, what its share is, and its limits.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from fluxsched.core.jobfields import WHEN_MAX
from fluxsched.protocol.messages.common import (
    Empty,
    EventObject,
    FreeForm,
    HostlistText,
    IdsetText,
    Integer,
    JobNumber,
    JobspecObject,
    PastSizeEntry,
    Payload,
    RObject,
    Seconds,
    Size,
    Unsigned32,
    WallTime,
    WindowSide,
)

__all__ = [
    "ClusterForgetRequest",
    "ClusterForgetResponse",
    "ClusterInfo",
    "ClusterListResponse",
    "Empty",
    "LeaseInfo",
    "LeaseSettleRequest",
    "LeaseSubmitRequest",
    "LeaseSubmitResponse",
    "LeaseWatchRequest",
    "LeaseWatchResponse",
    "LeaseWithdrawRequest",
]

URGENCY_DEFAULT = 16
LIST_ENTRIES_DEFAULT = 1000

WaitStatus = Annotated[int, Meta(ge=-1, le=0xFFFFFFFF, description="wait(2) status; -1: it never ran")]


class JobspecParts(msgspec.Struct, forbid_unknown_fields=True):
    """A jobspec (RFC 14, version 1) whose larger parts are not decoded yet."""

    resources: msgspec.Raw
    tasks: list[dict[str, Any]]
    attributes: msgspec.Raw
    version: Literal[1]


class SubmitRequest(Payload, frozen=True):
    """Submit a job; `urgency` 0 holds it, 31 expedites it. Answered once the job is stored."""

    jobspec: JobspecObject
    urgency: Integer = URGENCY_DEFAULT
    flags: Size = 0


class SubmitResponse(Payload, frozen=True):
    """Id of the new job."""

    id: JobNumber


class SubmitArrayRequest(Payload, frozen=True):
    """Submit jobs that differ only in the texts at `paths` of the jobspec, of which each row of `texts` has those of
    one job. They are the first of an array, or continue `array`.

    Answered once all are stored. What refuses the first job of an array refuses the request.
    """

    jobspec: JobspecObject
    paths: list[list[str | int]]
    texts: list[list[str]]
    array: JobNumber = 0
    urgency: Integer = URGENCY_DEFAULT
    flags: Size = 0


class SubmitArrayResponse(Payload, frozen=True):
    """Ids of the new jobs in the order of their rows, 0 for one that is refused; of these the row, errno and reason."""

    ids: list[JobNumber]
    refused: list[tuple[Size, Size, str]]


class WaitRequest(Payload, frozen=True):
    """Answered when the job is inactive; one that is submitted again after it was preempted, when its last attempt is,
    unless `follow` is false.
    """

    id: JobNumber
    follow: bool = True


class WaitResponse(Payload, frozen=True):
    """Result of the job; the exception is the one that ended it.

    `last`: the attempt that this is about, if another; `requeued_as`: the one that continues this one.
    """

    id: JobNumber
    success: bool
    status: WaitStatus
    errstr: str = ""
    exception_type: str | None = None
    exception_note: str | None = None
    last: JobNumber | None = None
    requeued_as: JobNumber | None = None


class WaitAllRequest(Payload, frozen=True):
    """A stream with one WaitResponse for each of these jobs, as soon as it is inactive."""

    ids: list[JobNumber]


class RaiseRequest(Payload, frozen=True):
    """Raise an exception on a job (RFC 21, exception event); severity 0 is fatal.

    `ranks` (ours): only if the job still holds some of these; a release of them may be under way to the sender.
    """

    id: JobNumber
    type: str
    severity: Annotated[int, Meta(ge=0, le=7)]
    note: str = ""
    ranks: str | None = None


class JobCancelRequest(Payload, frozen=True):
    """Cancel a job: an exception of type `cancel`, severity 0."""

    id: JobNumber
    note: str = ""


class JobCancelResponse(Payload, frozen=True):
    """`last`: the attempt that was canceled, where that is another job than the one named."""

    last: JobNumber | None = None


class KillRequest(Payload, frozen=True):
    """Send a signal to all tasks of a running job."""

    id: JobNumber
    signum: Annotated[int, Meta(ge=1, le=64)]


class MemoRequest(Payload, frozen=True):
    """A memo of a job (RFC 21, memo event): keys to note below `annotations.user`, or with null to take back."""

    id: JobNumber
    memo: dict[str, Any]
    volatile: bool = False


class UrgencyRequest(Payload, frozen=True):
    """Set a job's urgency, 0 to 31 (RFC 21, urgency event)."""

    id: JobNumber
    urgency: Integer


class UrgencyResponse(Payload, frozen=True):
    """The urgency that the job had before."""

    old: Integer


class UpdateRequest(Payload, frozen=True):
    """Change a job's attributes: dotted name to new value, such as `attributes.system.duration`."""

    id: JobNumber
    updates: dict[str, Any]


LIST_SORTED_MAX = 5_000
"""Jobs of one list in the order of an attribute: all that are shown are sorted in one step."""
LIST_START_MAX = 5_000
"""Jobs that a list in an order may leave out before its first: they are sorted, too, for some 20 ms at a time."""
ListOrder = Literal[
    "newest", "active", "id", "state", "userid", "name", "queue", "bank", "ntasks", "nnodes", "ncores", "t_submit",
    "waited", "runtime", "duration", "urgency", "priority",
]  # fmt: skip


class ListRequest(Payload, frozen=True):
    """Selection of jobs to list; absent filters let everything pass.

    `since`: inactive after this time; `constraint`: a further condition, as in SelectRequest. `order`: `active` lists
    those that run, from the latest, then those that wait, by their place in the queue, then those that have ended; an
    attribute sorts by it, `descending` from the greatest value, jobs without one last. In any order but `newest` the
    response has a `count`, and the first `start` jobs are left out.
    """

    ids: list[JobNumber] | None = None
    states: list[str] | None = None
    queue: str | None = None
    name: str | None = None
    user: Unsigned32 | None = None
    max_entries: Size = LIST_ENTRIES_DEFAULT
    since: WallTime | None = None
    constraint: dict[str, Any] | None = None
    order: ListOrder = "newest"
    descending: bool = False
    start: Annotated[int, Meta(ge=0, le=LIST_START_MAX)] = 0


class SelectRequest(Payload, frozen=True):
    """A stream with the ids of all jobs for which the constraint holds (RFC 31's shape, operators of RFC 43 and ours);
    None and `{}` hold for all.
    """

    constraint: dict[str, Any] | None = None


class SelectResponse(Payload, frozen=True):
    """Part of the selected ids."""

    ids: list[JobNumber]


class GpuUsageInfo(Payload, frozen=True, kw_only=True):
    """GPUs of a job that were sampled, their seconds, those that were busy, and the most memory in use on one."""

    count: Size
    held_s: Seconds
    busy_s: Seconds
    max_bytes: Size


class UsageInfo(Payload, frozen=True, kw_only=True):
    """Usage of a job's tasks: `max_rss_bytes` is the peak of their largest process (or more: `max_rss_is_bound`)."""

    wall_s: Seconds
    user_s: Seconds
    system_s: Seconds
    max_rss_bytes: Size
    max_rss_is_bound: bool = False
    gpus: GpuUsageInfo | None = None


class JobInfo(Payload, frozen=True, kw_only=True):
    """One job as lists show it."""

    id: JobNumber
    state: str
    name: str
    userid: Unsigned32
    urgency: Integer
    t_submit: WallTime
    ntasks: Size
    duration: Seconds
    priority: Unsigned32 | None = None
    array: JobNumber | None = None
    t_run: WallTime | None = None
    t_cleanup: WallTime | None = None
    t_inactive: WallTime | None = None
    queue: str | None = None
    asked: str | None = None
    nodes_asked: Size | None = None
    cores_asked: Size | None = None
    nnodes: Size | None = None
    ncores: Size | None = None
    ranks: IdsetText | None = None
    nodelist: HostlistText | None = None
    sizes: list[PastSizeEntry] | None = None
    parts: dict[str, IdsetText] | None = None
    switch: str | None = None
    expiration: WallTime | None = None
    status: WaitStatus | None = None
    returncode: int | None = None
    ended: str | None = None
    usage: UsageInfo | None = None
    success: bool | None = None
    result: Literal["COMPLETED", "FAILED", "CANCELED", "TIMEOUT"] | None = None
    exception: dict[str, Any] | None = None
    bank: str | None = None
    job_set: str | None = None
    preemptible_after: Seconds | None = None
    requeue: Size | None = None
    attempt: Size | None = None
    requeue_of: JobNumber | None = None
    requeued_as: JobNumber | None = None
    annotations: dict[str, Any] = msgspec.field(default_factory=dict)
    dependencies: list[str] = msgspec.field(default_factory=list)
    command: list[str] = msgspec.field(default_factory=list)


class ListResponse(Payload, frozen=True):
    """The jobs that passed the filters, in the order asked for, and in order `active` how many passed in all."""

    jobs: list[JobInfo]
    count: Size | None = None


class LookupRequest(Payload, frozen=True):
    """Ask for parts of a job's record."""

    id: JobNumber
    keys: list[Literal["jobspec", "R", "eventlog"]]


class LookupResponse(Payload, frozen=True):
    """The parts asked for; R is absent while there is none."""

    id: JobNumber
    jobspec: JobspecObject | None = None
    R: RObject | None = None
    eventlog: list[EventObject] | None = None


class EventlogRequest(Payload, frozen=True):
    """Stream a job's eventlog; with `follow` until the job is inactive."""

    id: JobNumber
    follow: bool = False


class EventlogResponse(Payload, frozen=True):
    """Events in order (RFC 18)."""

    events: list[EventObject]


class ChangesRequest(Payload, frozen=True):
    """Stream a job's resources, and its grows and shrinks, until it is inactive (ours)."""

    id: JobNumber


class ReleasedRequest(Payload, frozen=True):
    """From the instance that a job is: nothing of it is left on these targets, by which the job was shrunk."""

    id: JobNumber
    ranks: IdsetText


class ChangesResponse(Payload, frozen=True):
    """Resources of the job from `timestamp` on: `R`, without targets that it is to release.

    `ranks` are what it grows or shrinks by, in the first response (`now`) all that it has; `note` says why it is to
    shrink.
    """

    id: JobNumber
    event: Literal["now", "grow", "shrink"]
    timestamp: WallTime
    ranks: IdsetText
    R: RObject
    note: str | None = None


class WatchRequest(Payload, frozen=True):
    """Stream events of many jobs at once: of these ids, with these event names; absent means all."""

    ids: list[JobNumber] | None = None
    names: list[str] | None = None
    history: bool = False


class WatchResponse(Payload, frozen=True):
    """Events as `[id, timestamp, name, context]`; `clean` also says status, success, result and errstr."""

    events: list[tuple[JobNumber, WallTime, str, dict[str, Any]]]


class OutputRequest(Payload, frozen=True):
    """Stream what a job's tasks have written; with `follow` until the job has finished."""

    id: JobNumber
    follow: bool = False


class OutputResponse(Payload, frozen=True):
    """A piece of output; binary in msgpack, base64 in JSON."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    task: Size | None = None


class InputRequest(Payload, frozen=True):
    """Send a job's tasks input, all of them or some; `eof`: that is its end.

    Answered when there is room for more. `window` has the rows and columns that the terminal of the task has from now
    on.
    """

    id: JobNumber
    data: bytes = b""
    eof: bool = False
    tasks: IdsetText | None = None
    window: tuple[WindowSide, WindowSide] | None = None


class ExecRequest(Payload, frozen=True):
    """Run a command beside the tasks of a running job, on one of its hosts (`job-manager.exec`; ours).

    It is a line for the shell. Input is sent to it as to a job, under the `number` of the first response.
    """

    id: JobNumber
    host: str
    command: str


class ExecResponse(Payload, frozen=True):
    """Events of a command: first its `number`, once it runs; then pieces of its output, binary in msgpack and base64 in
    JSON; last its wait status.
    """

    number: JobNumber | None = None
    stream: Literal["stdout", "stderr"] | None = None
    data: bytes = b""
    status: int | None = None


class UsageRequest(Payload, frozen=True):
    """Measure what the tasks of a running job have used so far (`job-manager.usage`; ours)."""

    id: JobNumber


class UsageResponse(Payload, frozen=True):
    """The usage as in the context of a `finish` event, but memory is that of processes that are alive; null where it is
    not known, and for a job that does not run.
    """

    usage: dict[str, Any] | None


class WhyRequest(Payload, frozen=True):
    """Why is this job not running (`job-manager.why`; ours)? Works in every state."""

    id: JobNumber


class WhyResponse(Payload, frozen=True):
    """The answer in a user's words, and what it rests on. `attempt`: which one this is, and why there is one."""

    id: JobNumber
    state: str
    reason: str
    queue: str | None = None
    earliest: WallTime | None = None
    annotations: dict[str, Any] = msgspec.field(default_factory=dict)
    rule: str | None = None
    when: str | None = None
    attempt: str | None = None
    kind: str | None = None


# ---- queues


class QueueListResponse(Payload, frozen=True):
    """The named queues; empty when there is one anonymous queue."""

    queues: list[str]


QUEUE_WAITING_MAX: Final = 200
"""Waiting jobs that one answer about a queue names: as many as `job-manager.reasons` takes."""


class QueueStatusRequest(Payload, frozen=True):
    """Ask for one queue; without a name for the anonymous one. `waiting`: the number of waiting jobs to be named."""

    name: str | None = None
    waiting: Annotated[int, Meta(ge=0, le=QUEUE_WAITING_MAX)] = 0


class QueueStatus(Payload, frozen=True):
    """Status of a queue: whether it takes jobs and has them scheduled, with the reason if not.

    `blocked` is the obstacle besides an administrator. `group` is the group that serves it, and `groups` are all of
    them if there are several; `policy` is the policy by which their scheduler orders it, while there is one. `waiting`
    are its first waiting jobs, as many as were asked for. The others are its configuration (RFC 33): the constraint on
    its jobs (RFC 31), and its limits; an absent limit is no limit.
    """

    enable: bool
    start: bool
    name: str | None = None
    enable_reason: str | None = None
    start_reason: str | None = None
    blocked: str | None = None
    group: str = "default"
    groups: list[str] | None = None
    policy: str | None = None
    constraints: FreeForm | None = None
    duration_default: Seconds | None = None
    duration_max: Seconds | None = None
    nnodes_min: Size | None = None
    nnodes_max: Size | None = None
    ncores_max: Size | None = None
    ngpus_max: Size | None = None
    waiting: list[JobNumber] | None = None


class QueueEnableRequest(Payload, frozen=True):
    """Let a queue (or `all`) take jobs, or no longer."""

    enable: bool
    name: str | None = None
    reason: str | None = None
    all: bool = False


class QueueStartRequest(Payload, frozen=True):
    """Let the jobs of a queue (or `all`) be scheduled, or no longer."""

    start: bool
    name: str | None = None
    reason: str | None = None
    all: bool = False


# ---- leases and clusters

LEASE_NAME_CHARS_MAX = 128
"""A name is the holder's, a slash and a job id; it is kept with every lease."""

LEASE_NAMES_MAX = 10_000
"""Names in one request: a megabyte."""

LeaseName = Annotated[str, Meta(pattern="^[!-~]+/[!-~]+$", max_length=LEASE_NAME_CHARS_MAX, description="HOLDER/JOB")]
HolderName = Annotated[str, Meta(pattern="^[!-~]+$", max_length=LEASE_NAME_CHARS_MAX)]


class LeaseSubmitRequest(Payload, frozen=True):
    """Submit a job once by this name: again it is answered with the job that there is. `session`: that of the watch."""

    name: LeaseName
    session: Size
    jobspec: JobspecObject
    urgency: Annotated[int, Meta(ge=0, le=31)] = URGENCY_DEFAULT


class LeaseSubmitResponse(Payload, frozen=True):
    """Id of the job that was submitted."""

    id: JobNumber


class LeaseWatchRequest(Payload, frozen=True):
    """All jobs of a holder, then what changes of them. From now on submits of earlier sessions are refused."""

    holder: HolderName
    session: Size


class LeaseInfo(Payload, frozen=True, kw_only=True):
    """One job: `began` if its tasks were started, `nodelist` where they run, `status` once it has ended."""

    name: LeaseName
    id: JobNumber
    state: Literal["waiting", "running", "ended"]
    began: bool = False
    nodelist: str | None = None
    status: WaitStatus | None = None
    exception: str | None = None
    note: str = ""
    usage: UsageInfo | None = None


class LeaseWatchResponse(Payload, frozen=True):
    """Jobs that are new or have changed; `whole`: these are all that there are (the first answer)."""

    leases: list[LeaseInfo]
    whole: bool = False


class LeaseWithdrawRequest(Payload, frozen=True):
    """Cancel the job of this name unless it has its resources. ENOENT: there is none; EBUSY: it has them."""

    name: LeaseName
    session: Size


class LeaseSettleRequest(Payload, frozen=True):
    """The ends of these are known, so the names can be forgotten; those of jobs that have not ended are kept."""

    names: Annotated[list[LeaseName], Meta(max_length=LEASE_NAMES_MAX)]


class ClusterInfo(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """One cluster of this instance. `since`: when it was heard or lost; `leases`: how many in which state."""

    name: str
    uri: str
    kind: Literal["fluxsched", "flux"]
    state: Literal["connected", "silent", "unknown"]
    since: WallTime | None = None
    note: str = ""
    targets: Size = 0
    online: Size = 0
    leases: dict[str, Size] = msgspec.field(default_factory=dict)


class ClusterListResponse(Payload, frozen=True):
    """All clusters, those with leases that are no longer configured among them."""

    clusters: list[ClusterInfo]


class ClusterForgetRequest(Payload, frozen=True):
    """Give up the leases of a silent cluster: the caller vouches for it that nothing of them runs there."""

    name: str


class ClusterForgetResponse(Payload, frozen=True, omit_defaults=False):
    """Numbers of leases: of jobs that are submitted anew here, and of jobs that end with an exception."""

    returned: Size
    failed: Size


# ---- sched

SUCCESS: Final = 0
ANNOTATE: Final = 1
DENY: Final = 2
CANCEL: Final = 3

Priority = Annotated[int, Meta(ge=0, le=0xFFFFFFFF, description="0 holds the job, 4294967295 expedites it")]


class HelloRequest(Payload, frozen=True):
    """A scheduler's first words (RFC 27, Hello). `groups` is ours: whose queues it serves, absent for `default`."""

    partial_ok: bool = msgspec.field(name="partial-ok", default=False)
    groups: list[str] | None = None


class HelloResponse(Payload, frozen=True, omit_defaults=False):
    """One job that holds resources (RFC 27, Hello). `R` and `jobspec` are ours: in Flux they are in the KVS.

    The environment is left out of `jobspec`. `preempted`, ours too: since when it is going for the sake of another job;
    `going`: which targets of its R it was shrunk by and has not released yet; `grown`: which of them it has grown by;
    `shrunk`: when it was last shrunk.
    """

    id: JobNumber
    priority: Priority
    userid: Unsigned32
    t_submit: WallTime
    free: IdsetText | None = None
    R: RObject | None = None
    jobspec: JobspecObject | None = None
    preempted: WallTime | None = None
    going: IdsetText | None = None
    grown: IdsetText | None = None
    shrunk: WallTime | None = None


class ReadyRequest(Payload, frozen=True):
    """Number of alloc requests that the scheduler takes at once (RFC 27, Ready); `limit` in limited mode only."""

    mode: Literal["limited", "unlimited"]
    limit: Annotated[int, Meta(ge=1, le=2147483647)] | None = None

    def __post_init__(self) -> None:
        if (self.mode == "limited") != (self.limit is not None):
            raise ValueError("`limit` belongs to mode `limited`, and only to it")


class ReadyResponse(Payload, frozen=True):
    """The queue depth (RFC 27, Ready). `state` is ours: what a scheduler of these groups saved last."""

    count: Size
    state: Any = None


class SaveRequest(Payload, frozen=True):
    """Keep this until a scheduler of the same groups is ready (`job-manager.sched-save`; ours).

    `set-aside`: what was kept before was of no use; it is kept under another name, until the next time.
    """

    state: Any
    set_aside: bool = msgspec.field(name="set-aside", default=False)


class AllocRequest(Payload, frozen=True):
    """A job wants resources (RFC 27, Alloc). The environment is left out of `jobspec`; `t_submit` is today's usage.

    `unjudged`: it was submitted while no scheduler was ready for it, so none has judged whether it can ever run.
    """

    id: JobNumber
    priority: Priority
    userid: Unsigned32
    jobspec: JobspecObject
    t_submit: WallTime | None = None
    unjudged: bool = False


class AllocResponse(Payload, frozen=True):
    """SUCCESS, ANNOTATE, DENY or CANCEL, by job id (RFC 27, Alloc). `R` comes with SUCCESS, `note` with DENY."""

    id: JobNumber
    type: Literal[0, 1, 2, 3]
    R: RObject | None = None
    annotations: dict[str, Any] | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.type == ANNOTATE and self.annotations is None:
            raise ValueError("type 1 (annotate) needs `annotations`")


class FreeRequest(Payload, frozen=True):
    """These resources of the job are free again; `final` marks its last free (RFC 27, Free). No response."""

    id: JobNumber
    R: RObject
    final: bool = False


class LiteEntry(TypedDict):
    """Entry of R_lite: ranks with the same children and amounts.

    It is a plain dictionary, as parsers of R_lite expect it.
    """

    rank: str
    children: dict[str, str]
    amounts: NotRequired[dict[str, int]]


class LiteExecution(msgspec.Struct, frozen=True, gc=False):
    """The part of `execution` that names resources; one entry alone is how it was written in 2019."""

    R_lite: list[LiteEntry] | LiteEntry


class LiteR(msgspec.Struct, frozen=True, gc=False):
    """R of a free request without hosts, properties and times, which do not matter for what is freed.

    Every part is typed, so nothing is walked again behind the decoder: a free is read in a quarter of the time that its
    whole R takes, and most messages to a scheduler are frees.
    """

    execution: LiteExecution


class GrowRequest(Payload, frozen=True):
    """A running elastic job gets these targets too (`job-manager.sched-grow`; ours). Empty response once stored."""

    id: JobNumber
    R: RObject


class ShrinkRequest(Payload, frozen=True):
    """A running elastic job is to leave these targets (`job-manager.sched-shrink`; ours).

    Empty response once stored; each target comes back with a `sched.free` when nothing of the job runs there any more.
    """

    id: JobNumber
    ranks: IdsetText
    note: str = ""


class SchedCancelRequest(Payload, frozen=True):
    """Forget a waiting alloc request (RFC 27, Cancel); answered by a CANCEL to the alloc request."""

    id: JobNumber


class PrioritizeRequest(Payload, frozen=True):
    """New priorities of waiting jobs, `[id, priority]` each (RFC 27, Prioritize). No response."""

    jobs: list[tuple[JobNumber, Priority]]


class ExpirationRequest(Payload, frozen=True):
    """A running job's proposed end (RFC 27, Expiration); an integer in the RFC, a real in Flux: both are taken."""

    id: JobNumber
    expiration: WallTime


class FeasibilityRequest(Payload, frozen=True):
    """Could this jobspec ever run (`feasibility.check`)? Empty, or EOVERFLOW with a text that says why not.

    `userid` is whose job it would be, for plugins; an instance puts the sender there.
    """

    jobspec: JobspecObject
    userid: Unsigned32 | None = None


class SchedWhyRequest(Payload, frozen=True):
    """Why does this job wait (`sched.why`; ours)?"""

    id: JobNumber


class PermitRequest(Payload, frozen=True):
    """May this job start, for which a plugin waits (`sched.permit`; ours)? `allow` false queues it again."""

    id: JobNumber
    plugin: str
    allow: bool
    reason: str = ""


class SchedWhyResponse(Payload, frozen=True):
    """The scheduler's answer in a user's words: the reason, the rule, the earliest start and what that rests on."""

    id: JobNumber
    reason: str
    earliest: WallTime | None = None
    rule: str | None = None
    when: str | None = None
    kind: str | None = None


# ---- when would jobs start that are not submitted?

AskedJobs = Annotated[list[JobspecObject], Meta(max_length=WHEN_MAX)]


class WhenRequest(Payload, frozen=True):
    """When would each of these jobs start if it were submitted now (`job-manager.when`; ours)? Nothing is stored."""

    jobspecs: AskedJobs
    urgency: Annotated[int, Meta(ge=0, le=31)] = 16


class SchedWhenRequest(Payload, frozen=True):
    """The question for the scheduler of a queue (`sched.when`; ours), with the user and priority of the jobs."""

    jobspecs: AskedJobs
    userid: Unsigned32
    priority: Unsigned32


class WhenEntry(Payload, frozen=True, omit_defaults=False):
    """When one of the jobs would start (no `start`: not known, or never), and what that rests on.

    `short` is the longest time limit with which it would start now, if it does not with its own. `refused`: it would
    not be accepted, or can never run, for the reason in `when`. `limit` is its time limit as its queue gives it.
    """

    when: str
    start: WallTime | None = None
    short: Annotated[float, Meta(ge=0.0, description="seconds")] | None = None
    refused: bool = False
    limit: Annotated[float, Meta(ge=0.0, description="seconds")] | None = None


class WhenResponse(Payload, frozen=True):
    """The answers, in the order of the jobspecs, each as if it alone were submitted."""

    estimates: list[WhenEntry]


# ---- accounts

WeightedUsage = Annotated[float, Meta(ge=0.0, description="in units of weight")]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0, description="of everything")]
ResourceMinutes = Annotated[float, Meta(description="resource minutes: units of weight times minutes")]


class AccountsRequest(Payload, frozen=True):
    """All accounts of the scheduler of a group, in parts: `start` is the `next` of the answer before."""

    group: str = "default"
    start: Size = 0


class AccountInfo(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """One account, with all that is below it. A user is an account, too, and is in a bank.

    `fair_usage` is its share of the capacity, and `signal` its remembered usage; `firm_...` is of jobs that cannot be
    preempted, `cap` the most that these may use, and `budget_left` what a user's preemptible jobs may still be charged
    (null: no limit). `held` are amounts by resource. Jobs that wait are those not on hold; `preempted` counts since the
    scheduler started.
    """

    path: list[str]
    user: bool
    active: bool
    weight: float
    share: Fraction
    fair_usage: WeightedUsage
    usage: WeightedUsage
    signal: WeightedUsage
    firm_usage: WeightedUsage
    firm_signal: WeightedUsage
    cap: WeightedUsage | None
    budget_left: ResourceMinutes | None
    held: dict[str, Size]
    waiting: Size
    running: Size
    preempted: Size


class AccountsResponse(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """Some accounts, each after those above it, and the settings in force; `next` is null in the last part."""

    signal: str
    half_life: Seconds
    weights: dict[str, float]
    shares: Literal["active", "all"]
    capacity: WeightedUsage
    budget: ResourceMinutes | None
    rate: Size
    accounts: list[AccountInfo]
    next: Size | None
