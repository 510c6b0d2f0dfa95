"""Every topic of an instance: what it carries, how it is answered, and who may call it.

Law: a service answers no topic that is not here, and nothing is here that no page of `rfc/` explains (a test compares).
`LOCAL_TOPICS` has those that exist only at the local socket, as far as an instance can answer Flux's own; it takes
precedence over `TOPICS` at that socket, and has the same right for a topic of both. Any other topic is the owner's
alone. A topic that starts a program, or reaches one that runs, is the owner's: tasks run as the instance's user. So is
the memo of a job, which tells the owner's commands where a nested instance is. Where tasks run as their users
(`run-as-user`), these are for each user and its own jobs. Keepers may call the topics of their own service, which
nobody else may but the owner, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fluxsched.core.role import Role
from fluxsched.protocol.messages import flux, instance, jobs, resource
from fluxsched.protocol.messages.common import (
    AttrRequest,
    AttrResponse,
    CancelRequest,
    ConfigReloadResponse,
    Empty,
    FreeForm,
    InstanceInfo,
)
from fluxsched.protocol.messages.instance import (
    MachineChange,
    MetricsResponse,
    PlanRequest,
    PlanResponse,
    ReasonsRequest,
    ReasonsResponse,
    RunningRequest,
    RunningResponse,
    SchedReasonsRequest,
    TraceRequest,
    TraceResponse,
)
from fluxsched.protocol.messages.jobs import QueueStatusRequest, SubmitResponse, UrgencyRequest
from fluxsched.protocol.messages.resource import SchedStatusResponse


class Scope(Enum):
    """Jobs that a guest may name: its own, or those that it may see (in private mode the same)."""

    OWN = "own"
    SEEN = "seen"
    RUN = "run"
    """Own, for admins as well: what is asked for acts as the user of the job."""


class Right(NamedTuple):
    """Right to call a topic: the least role of people, and the jobs for which a guest may."""

    least: Role
    scope: Scope | None = None
    counts_jobs: bool = False
    """True if the answer is about all jobs: where jobs are private it is the admins'."""
    is_keepers: bool = False
    """True if keepers may call it, too."""
    is_users: bool = False
    """True if it starts a program or reaches one: where tasks run as their users, it is each user's for `scope`, else
    the owner's.
    """


GUESTS: Final = Right(Role.GUEST)
"""Listings leave out what a guest may not see; of streams a peer ends its own."""
GUESTS_SEEN: Final = Right(Role.GUEST, Scope.SEEN)
GUESTS_OWN: Final = Right(Role.GUEST, Scope.OWN)
COUNTS: Final = Right(Role.GUEST, counts_jobs=True)
ADMINS: Final = Right(Role.ADMIN)
OWNER: Final = Right(Role.OWNER)
KEEPERS: Final = Right(Role.OWNER, is_keepers=True)
SUBMIT: Final = Right(Role.OWNER, is_users=True)
CHECK: Final = Right(Role.ADMIN, is_users=True)
PROGRAMS: Final = Right(Role.OWNER, Scope.RUN, is_users=True)


class AnswerKind(Enum):
    """How a request is answered; a success of the last three is on disk."""

    ONCE = "once"
    STREAM = "by a stream"
    STORED = "stored, however long that takes"
    IF_ROOM = "stored, or refused where there is no room on disk"
    IF_WRITABLE = "stored, or refused if nothing can be written: it frees room"


ONCE: Final = AnswerKind.ONCE
STREAM: Final = AnswerKind.STREAM
STORED: Final = AnswerKind.STORED
IF_ROOM: Final = AnswerKind.IF_ROOM
IF_WRITABLE: Final = AnswerKind.IF_WRITABLE


@dataclass(frozen=True, slots=True)
class Topic:
    """One method. `request` and `response` are what `codec.unpack` takes; `response` is None for NORESPONSE.

    `plain` lists the classes of a second dialect of the responses, which a stream uses instead of `response`.
    """

    request: Any
    response: Any
    doc: str
    right: Right
    answer: AnswerKind = ONCE
    plain: tuple[type, ...] = ()

    @property
    def streaming(self) -> bool:
        """Return whether several responses answer a request."""
        return self.answer is STREAM

    @property
    def stored(self) -> bool:
        """Return whether a success is on disk."""
        return self.answer not in (ONCE, STREAM)


def _service(service: str, **methods: tuple[Any, ...]) -> dict[str, Topic]:
    """Topics of one service from `method_name=(request, response, doc, right, answer?, plain?)`."""
    return {
        f"{service}.{method.replace('_', '-')}": Topic(request, response, doc, right, *more)
        for method, (request, response, doc, right, *more) in methods.items()
    }


_RESOURCE = _service(
    "resource",
    acquire=(
        resource.AcquireRequest,
        resource.AcquireResponse,
        "acquire a group and follow it",
        OWNER,
        STREAM,
        (resource.AcquireFirst, resource.AcquireChange),
    ),
    acquire_cancel=(CancelRequest, None, "release an acquired group", OWNER),
    release=(resource.ReleaseRequest, Empty, "release targets that a shrink named", OWNER, STORED),
    drain=(resource.DrainRequest, Empty, "take targets out of service", ADMINS, IF_ROOM),
    undrain=(resource.UndrainRequest, Empty, "return drained targets to service", ADMINS, IF_ROOM),
    assign=(resource.AssignRequest, resource.MoveResponse, "move targets to a group", ADMINS, IF_ROOM),
    include=(resource.IncludeRequest, resource.MoveResponse, "move targets to their configured group", ADMINS, IF_ROOM),
    outage_add=(resource.OutageAddRequest, resource.OutageAddResponse, "plan an outage of targets", ADMINS, IF_ROOM),
    outage_update=(resource.OutageUpdateRequest, Empty, "change a planned outage", ADMINS, IF_ROOM),
    outage_remove=(resource.OutageRemoveRequest, Empty, "call a planned outage off", ADMINS, IF_ROOM),
    outage_list=(Empty, resource.OutagesResponse, "all planned outages", GUESTS),
    groups=(Empty, resource.GroupsResponse, "all groups and their acquirers", GUESTS),
    targets=(
        resource.TargetsRequest,
        resource.TargetsResponse,
        "ranks that a list of ranks, hosts and sets names",
        GUESTS,
    ),
    status=(Empty, resource.StatusResponse, "state of all targets", GUESTS),
    sched_status=(Empty, resource.SchedStatusResponse, "all, down and allocated resources", GUESTS),
    property_add=(resource.PropertyRequest, Empty, "add properties to targets", ADMINS, IF_ROOM),
    property_remove=(resource.PropertyRequest, Empty, "remove properties from targets", ADMINS, IF_ROOM),
    expiration_update=(
        resource.ExpirationUpdateRequest,
        Empty,
        "set the expiration of the instance's R",
        ADMINS,
        IF_ROOM,
    ),
    reload=(resource.ReloadRequest, ConfigReloadResponse, "replace the inventory", ADMINS, IF_ROOM),
    journal=(Empty, resource.JournalResponse, "resource events, history first", ADMINS, STREAM),
    journal_cancel=(CancelRequest, None, "end a journal stream", ADMINS),
    watch=(Empty, MachineChange, "state of all targets and its changes", GUESTS, STREAM),
    watch_cancel=(CancelRequest, None, "end a resource.watch stream", GUESTS),
)

_JOB_MANAGER = _service(
    "job-manager",
    submit=(jobs.SubmitRequest, jobs.SubmitResponse, "submit a job", SUBMIT, IF_ROOM),
    submit_array=(jobs.SubmitArrayRequest, jobs.SubmitArrayResponse, "submit jobs that are alike", SUBMIT, IF_ROOM),
    wait=(jobs.WaitRequest, jobs.WaitResponse, "wait until a job is inactive", GUESTS_OWN),
    wait_all=(jobs.WaitAllRequest, jobs.WaitResponse, "wait until many jobs are inactive", GUESTS_OWN, STREAM),
    wait_all_cancel=(CancelRequest, None, "end a wait-all stream", GUESTS),
    cancel=(jobs.JobCancelRequest, jobs.JobCancelResponse, "cancel a job", GUESTS_OWN, IF_WRITABLE),
    kill=(jobs.KillRequest, Empty, "signal a job's tasks", GUESTS_OWN),
    memo=(jobs.MemoRequest, Empty, "add a memo to a job", PROGRAMS, STORED),
    released=(
        jobs.ReleasedRequest,
        Empty,
        "a nested instance has released targets that its job gives back",
        PROGRAMS,
        STORED,
    ),
    urgency=(jobs.UrgencyRequest, jobs.UrgencyResponse, "set a job's urgency", GUESTS_OWN, IF_ROOM),
    update=(jobs.UpdateRequest, Empty, "change a job's attributes", GUESTS_OWN, IF_ROOM),
    list=(jobs.ListRequest, jobs.ListResponse, "list jobs", GUESTS),
    select=(jobs.SelectRequest, jobs.SelectResponse, "ids of the jobs that a constraint selects", GUESTS, STREAM),
    select_cancel=(CancelRequest, None, "end a select stream", GUESTS),
    lookup=(jobs.LookupRequest, jobs.LookupResponse, "parts of a job's record", GUESTS_OWN),
    eventlog=(jobs.EventlogRequest, jobs.EventlogResponse, "one job's events", GUESTS_OWN, STREAM),
    eventlog_cancel=(CancelRequest, None, "end an eventlog stream", GUESTS),
    changes=(
        jobs.ChangesRequest,
        jobs.ChangesResponse,
        "a job's resources, and its grows and shrinks",
        GUESTS_OWN,
        STREAM,
    ),
    changes_cancel=(CancelRequest, None, "end a changes stream", GUESTS),
    watch=(jobs.WatchRequest, jobs.WatchResponse, "many jobs' events", GUESTS_OWN, STREAM),
    watch_cancel=(CancelRequest, None, "end a watch stream", GUESTS),
    output=(jobs.OutputRequest, jobs.OutputResponse, "output of a job's tasks", GUESTS_OWN, STREAM),
    output_cancel=(CancelRequest, None, "end an output stream", GUESTS),
    input=(jobs.InputRequest, Empty, "send input to a job's tasks", PROGRAMS),
    exec=(jobs.ExecRequest, jobs.ExecResponse, "run a command beside a job's tasks", PROGRAMS, STREAM),
    exec_cancel=(CancelRequest, None, "end a command", SUBMIT),
    when=(jobs.WhenRequest, jobs.WhenResponse, "when jobs would start that are not submitted", SUBMIT),
    why=(jobs.WhyRequest, jobs.WhyResponse, "why a job is not running", GUESTS_SEEN),
    usage=(jobs.UsageRequest, jobs.UsageResponse, "what a running job has used so far", GUESTS_OWN),
    reasons=(ReasonsRequest, ReasonsResponse, "why many jobs wait", GUESTS_SEEN),
    running=(RunningRequest, RunningResponse, "jobs that hold resources, the largest first", GUESTS),
    sched_hello=(
        jobs.HelloRequest,
        jobs.HelloResponse,
        "register a scheduler; the running jobs follow",
        OWNER,
        STREAM,
    ),
    sched_ready=(jobs.ReadyRequest, jobs.ReadyResponse, "a scheduler accepts alloc requests", OWNER),
    sched_save=(jobs.SaveRequest, Empty, "keep a scheduler's state for the next one of its groups", OWNER, IF_ROOM),
    sched_grow=(jobs.GrowRequest, Empty, "an elastic job gets more targets", OWNER, STORED),
    sched_shrink=(jobs.ShrinkRequest, Empty, "an elastic job is to leave targets", OWNER, STORED),
    queue_list=(Empty, jobs.QueueListResponse, "names of the queues", GUESTS),
    queue_status=(jobs.QueueStatusRequest, jobs.QueueStatus, "one queue's state", GUESTS),
    queue_enable=(jobs.QueueEnableRequest, Empty, "enable or disable submission to a queue", ADMINS, IF_ROOM),
    queue_start=(jobs.QueueStartRequest, Empty, "start or stop scheduling of a queue", ADMINS, IF_ROOM),
    **{"raise": (jobs.RaiseRequest, Empty, "raise an exception on a job", GUESTS_OWN, IF_WRITABLE)},
)

_SCHED = _service(
    "sched",
    alloc=(
        jobs.AllocRequest,
        jobs.AllocResponse,
        "request resources for a job; matched by id, several responses",
        OWNER,
    ),
    free=(jobs.FreeRequest, None, "free a job's resources", OWNER),
    cancel=(jobs.SchedCancelRequest, None, "cancel an alloc request", OWNER),
    prioritize=(jobs.PrioritizeRequest, None, "new priorities of waiting jobs", OWNER),
    expiration=(jobs.ExpirationRequest, Empty, "change a running job's expiration", OWNER),
    permit=(jobs.PermitRequest, Empty, "permit a job for which a plugin waits, or refuse it", ADMINS),
    when=(jobs.SchedWhenRequest, jobs.WhenResponse, "when jobs would start that are not submitted", ADMINS),
    why=(jobs.SchedWhyRequest, jobs.SchedWhyResponse, "why a job waits", ADMINS),
    reasons=(SchedReasonsRequest, ReasonsResponse, "why many jobs wait", ADMINS),
    plan=(PlanRequest, PlanResponse, "when and where waiting jobs will start", COUNTS),
    accounts=(jobs.AccountsRequest, jobs.AccountsResponse, "accounts: usage, shares, limits", COUNTS),
) | _service("feasibility", check=(jobs.FeasibilityRequest, Empty, "check whether a jobspec could ever run", CHECK))

_ADMIN = (
    _service(
        "module",
        load=(instance.ModuleLoadRequest, instance.ModuleLoadResponse, "start a module", OWNER),
        remove=(instance.ModuleRequest, Empty, "stop a module", OWNER),
        reload=(instance.ModuleRequest, instance.ModuleLoadResponse, "stop a module and start it again", ADMINS),
        list=(Empty, instance.ModuleListResponse, "all modules", GUESTS),
        stats=(instance.ModuleRequest, FreeForm, "a module's figures", ADMINS),
    )
    | _service(
        "service",
        add=(instance.ServiceRequest, Empty, "register a service", OWNER),
        remove=(instance.ServiceRequest, Empty, "unregister it", OWNER),
    )
    | _service(
        "agent",
        hello=(instance.AgentHello, instance.AgentWelcome, "an agent reports targets online", ADMINS),
        heartbeat=(instance.AgentHeartbeat, None, "an agent is alive", ADMINS),
    )
    | _service(
        "instance",
        info=(Empty, InstanceInfo, "its URI, owner and state", GUESTS),
        metrics=(Empty, MetricsResponse, "its figures for monitoring", ADMINS),
        ready=(Empty, InstanceInfo, "answered once agents are online and the scheduler is ready or has failed", GUESTS),
        stop=(Empty, Empty, "end the instance", OWNER),
        restart=(Empty, Empty, "restart it in place; its jobs continue", OWNER),
        trace=(TraceRequest, TraceResponse, "messages as they pass", OWNER, STREAM),
        trace_cancel=(CancelRequest, None, "end a trace stream", OWNER),
        notice_add=(instance.NoticeAddRequest, instance.NoticeAddResponse, "show all users a text", ADMINS, IF_ROOM),
        notice_remove=(instance.NoticeRemoveRequest, Empty, "remove notices, some or all", ADMINS, IF_WRITABLE),
        notice_list=(Empty, instance.NoticesResponse, "notices that are shown to users", GUESTS),
        renounce=(Empty, Empty, "act as a guest without an account from now on", GUESTS),
        goodbye=(Empty, None, "a peer disconnects cleanly", GUESTS),
    )
    | _service(
        "history",
        samples=(instance.SamplesRequest, instance.SamplesResponse, "utilisation, queues and jobs over time", COUNTS),
        intervals=(
            instance.IntervalsRequest,
            instance.IntervalsResponse,
            "when targets could not be used, and why",
            COUNTS,
        ),
        report=(instance.ReportRequest, instance.ReportResponse, "what jobs used, by user, bank, queue, ...", GUESTS),
    )
    | _service(
        "lease",
        submit=(jobs.LeaseSubmitRequest, jobs.LeaseSubmitResponse, "submit a job once by its name", OWNER, STORED),
        watch=(jobs.LeaseWatchRequest, jobs.LeaseWatchResponse, "the jobs of a holder of leases", OWNER, STREAM),
        watch_cancel=(CancelRequest, None, "end a lease.watch stream", OWNER),
        withdraw=(jobs.LeaseWithdrawRequest, Empty, "cancel a leased job unless it has its resources", OWNER, STORED),
        settle=(jobs.LeaseSettleRequest, Empty, "acknowledge the ends of leased jobs", OWNER, STORED),
    )
    | _service(
        "cluster",
        list=(Empty, jobs.ClusterListResponse, "the clusters, and how many leases they have", GUESTS),
        forget=(
            jobs.ClusterForgetRequest,
            jobs.ClusterForgetResponse,
            "give up a silent cluster's leases",
            ADMINS,
            STORED,
        ),
    )
    | _service(
        "keeper",
        connect=(
            instance.KeeperConnectRequest,
            instance.KeeperMessages,
            "the keeper of another host connects; messages to it follow",
            KEEPERS,
            STREAM,
        ),
        connect_cancel=(CancelRequest, None, "end the connection of a keeper", KEEPERS),
        report=(instance.KeeperMessages, None, "messages of a keeper", KEEPERS),
    )
    | _service("attr", get=(AttrRequest, AttrResponse, "one attribute", GUESTS))
    | _service(
        "config",
        get=(Empty, FreeForm, "the configuration as an object", GUESTS),
        reload=(Empty, ConfigReloadResponse, "read the configuration again", ADMINS, STORED),
    )
)

COMMON: Mapping[str, Topic] = MappingProxyType(
    _service(
        "NAME",
        ping=(FreeForm, FreeForm, "return the request with route, userid, rolemask and rank", GUESTS),
        stats_get=(Empty, FreeForm, "the service's figures", ADMINS),
        disconnect=(Empty, None, "a peer is lost; generated by the receiving side", GUESTS),
    )
)
"""Topics that every service answers; NAME is the service."""

_OWN = _RESOURCE | _JOB_MANAGER | _SCHED | _ADMIN

SERVICES = frozenset(name.partition(".")[0] for name in _OWN)

_COMMON_RIGHTS = {
    "resource.stats-get": GUESTS,
    "job-manager.stats-get": COUNTS,
    "keeper.ping": KEEPERS,
    "keeper.stats-get": KEEPERS,
    "keeper.disconnect": KEEPERS,
}
"""Rights to the common topics of services, where they are not those of COMMON."""

TOPICS: Mapping[str, Topic] = MappingProxyType(
    _OWN
    | {
        (own := name.replace("NAME", service, 1)): replace(topic, right=_COMMON_RIGHTS.get(own, topic.right))
        for service in sorted(SERVICES)
        for name, topic in COMMON.items()
    }
)
"""Every topic by name, the common ones once for each service."""


# ---- topics of the local socket

_INSTANCE = {
    "broker.ping": Topic(FreeForm, FreeForm, "return the request with route, userid, rolemask and rank", GUESTS),
    "attr.list": Topic(Empty, flux.AttributesResponse, "names of all attributes", GUESTS),
    "state-machine.get": Topic(Empty, flux.StateResponse, "state of the broker, and since when", GUESTS),
    "state-machine.wait": Topic(Empty, Empty, "answered once jobs can be run", GUESTS),
    "groups.get": Topic(flux.GroupRequest, flux.GroupResponse, "ranks online or torpid", GUESTS),
    "resource.reload": Topic(flux.ReloadFromRequest, Empty, "replace the inventory by an R file", ADMINS, IF_ROOM),
    "sched.resource-status": Topic(Empty, SchedStatusResponse, "`resource.sched-status` by its former name", GUESTS),
    "resource.monitor-waitup": Topic(flux.WaitUpRequest, Empty, "wait until so many are online", ADMINS),
    "resource.acquire-mute": Topic(Empty, Empty, "stop reporting changes to acquirers", OWNER),
}

_JOBS = {
    "job-ingest.submit": Topic(flux.IngestRequest, SubmitResponse, "submit a signed jobspec", SUBMIT, IF_ROOM),
    "job-list.list": Topic(flux.JobListRequest, flux.JobListResponse, "jobs and their attributes", GUESTS, STREAM),
    "job-list.list-id": Topic(flux.JobListIdRequest, flux.JobListIdResponse, "one job's attributes", GUESTS_SEEN),
    "job-list.list-attrs": Topic(Empty, flux.JobAttributesResponse, "names of the attributes", GUESTS),
    "job-list.job-stats": Topic(Empty, flux.JobStatsResponse, "numbers of jobs by state and result", COUNTS),
    "job-info.lookup": Topic(flux.InfoLookupRequest, FreeForm, "parts of a job's record", GUESTS_OWN),
    "job-info.eventlog-watch": Topic(
        flux.EventlogWatchRequest, flux.EventlogWatchResponse, "a log of one job", GUESTS_OWN, STREAM
    ),
    "job-info.eventlog-watch-cancel": Topic(CancelRequest, None, "end such a stream", GUESTS),
    "shell-*.stdin": Topic(flux.StdinRequest, Empty, "send input to the tasks of the job `*`", PROGRAMS),
}

_LOCAL_JOB_MANAGER = _service(
    "job-manager",
    wait=(flux.WaitableRequest, flux.WaitableResponse, "wait for a waitable job, or for any", GUESTS_OWN),
    urgency=(UrgencyRequest, flux.OldUrgencyResponse, "set a job's urgency", GUESTS_OWN, IF_ROOM),
    raiseall=(flux.RaiseAllRequest, flux.CountResponse, "raise an exception on many jobs", ADMINS, IF_WRITABLE),
    killall=(flux.KillAllRequest, flux.CountResponse, "signal many jobs", ADMINS),
    queue_status=(QueueStatusRequest, flux.FluxQueueStatus, "one queue's state", GUESTS),
    alloc_query=(Empty, flux.AllocQueryResponse, "how many jobs wait for resources", ADMINS),
    **{"history.get": (flux.HistoryRequest, flux.HistoryResponse, "ids of the latest jobs", ADMINS)},
    drain=(Empty, Empty, "answered when no job is left", ADMINS),
    idle=(Empty, flux.IdleResponse, "answered when no job runs", ADMINS),
    stats_get=(Empty, flux.ManagerStats, "the service's figures", COUNTS),
)

LOCAL_TOPICS: Mapping[str, Topic] = MappingProxyType(_INSTANCE | _JOBS | _LOCAL_JOB_MANAGER)
"""Every topic by name; one that is also in `TOPICS` is answered differently here."""


# ---- rights

RIGHTS: Mapping[str, Right] = MappingProxyType(
    {name: topic.right for topics in (TOPICS, LOCAL_TOPICS) for name, topic in topics.items()}
)


def least_of(topic: str, *, private_jobs: bool, run_as_user: bool = False) -> tuple[Role, Scope | None]:
    """Return the least role of people for `topic`, and the scope of a guest."""
    right = right_of(topic)
    if private_jobs and right.counts_jobs:
        return Role.ADMIN, None
    return Role.GUEST if right.is_users and run_as_user else right.least, right.scope


def right_of(topic: str) -> Right:
    """Return the right to call a topic; one that each job has of its own is known by a pattern."""
    return RIGHTS.get(topic) or RIGHTS.get(each_jobs(topic), OWNER)


def each_jobs(topic: str) -> str:
    """Return the pattern of a topic that each job has of its own: `shell-*.stdin`."""
    kind, _, rest = topic.partition("-")
    return f"{kind}-*.{rest.rpartition('.')[2]}"


def is_of_keepers(topic: str) -> bool:
    """Return whether keepers may call `topic`."""
    return RIGHTS.get(topic, OWNER).is_keepers


def answered(answer: AnswerKind) -> frozenset[str]:
    """Return the topics that are answered in this way, in either dialect."""
    return frozenset(
        name for topics in (TOPICS, LOCAL_TOPICS) for name, topic in topics.items() if topic.answer is answer
    )
