"""Every topic of an instance: what it carries, what it answers, whose service it is.

Law: a service answers no topic that is not here, and nothing is here that no page of `rfc/` explains (a test compares).
`LOCAL_TOPICS` has those that exist only at the local socket, as far as an instance can answer Flux's own; it takes
precedence over `TOPICS` at that socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fluxsched.protocol.messages import flux, instance, jobs, resource, sched
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


@dataclass(frozen=True, slots=True)
class Topic:
    """One method. `request` and `response` are what `codec.unpack` takes; `response` is None for NORESPONSE.

    `plain` lists the classes of a second dialect of the responses, which a stream uses instead of `response`.
    """

    request: Any
    response: Any
    doc: str
    service: str
    streaming: bool = False
    plain: tuple[type, ...] = ()

    @property
    def noresponse(self) -> bool:
        """Return whether the topic has no response."""
        return self.response is None


def _service(service: str, **methods: tuple[Any, ...]) -> dict[str, Topic]:
    """Topics of one service from `method_name=(request, response, doc, streaming?, plain?)`."""
    return {
        f"{service}.{method.replace('_', '-')}": Topic(request, response, doc, service, *more)
        for method, (request, response, doc, *more) in methods.items()
    }


_RESOURCE = _service(
    "resource",
    acquire=(
        resource.AcquireRequest,
        resource.AcquireResponse,
        "acquire a group and follow it",
        True,
        (resource.AcquireFirst, resource.AcquireChange),
    ),
    acquire_cancel=(CancelRequest, None, "release an acquired group"),
    release=(resource.ReleaseRequest, Empty, "release targets that a shrink named"),
    drain=(resource.DrainRequest, Empty, "take targets out of service"),
    undrain=(resource.UndrainRequest, Empty, "return drained targets to service"),
    assign=(resource.AssignRequest, resource.MoveResponse, "move targets to a group"),
    include=(resource.IncludeRequest, resource.MoveResponse, "move targets to their configured group"),
    groups=(Empty, resource.GroupsResponse, "all groups and their acquirers"),
    targets=(resource.TargetsRequest, resource.TargetsResponse, "ranks that a list of ranks, hosts and sets names"),
    status=(Empty, resource.StatusResponse, "state of all targets"),
    sched_status=(Empty, resource.SchedStatusResponse, "all, down and allocated resources"),
    property_add=(resource.PropertyRequest, Empty, "add properties to targets"),
    property_remove=(resource.PropertyRequest, Empty, "remove properties from targets"),
    expiration_update=(resource.ExpirationUpdateRequest, Empty, "set the expiration of the instance's R"),
    reload=(resource.ReloadRequest, ConfigReloadResponse, "replace the inventory"),
    journal=(Empty, resource.JournalResponse, "resource events, history first", True),
    journal_cancel=(CancelRequest, None, "end a journal stream"),
    watch=(Empty, MachineChange, "state of all targets and its changes", True),
    watch_cancel=(CancelRequest, None, "end a resource.watch stream"),
)

_JOB_MANAGER = _service(
    "job-manager",
    submit=(jobs.SubmitRequest, jobs.SubmitResponse, "submit a job"),
    wait=(jobs.WaitRequest, jobs.WaitResponse, "wait until a job is inactive"),
    wait_all=(jobs.WaitAllRequest, jobs.WaitResponse, "wait until many jobs are inactive", True),
    wait_all_cancel=(CancelRequest, None, "end a wait-all stream"),
    cancel=(jobs.JobCancelRequest, jobs.JobCancelResponse, "cancel a job"),
    kill=(jobs.KillRequest, Empty, "signal a job's tasks"),
    memo=(jobs.MemoRequest, Empty, "add a memo to a job"),
    released=(jobs.ReleasedRequest, Empty, "a nested instance has released targets that its job gives back"),
    urgency=(jobs.UrgencyRequest, jobs.UrgencyResponse, "set a job's urgency"),
    update=(jobs.UpdateRequest, Empty, "change a job's attributes"),
    list=(jobs.ListRequest, jobs.ListResponse, "list jobs"),
    select=(jobs.SelectRequest, jobs.SelectResponse, "ids of the jobs that a constraint selects", True),
    select_cancel=(CancelRequest, None, "end a select stream"),
    lookup=(jobs.LookupRequest, jobs.LookupResponse, "parts of a job's record"),
    eventlog=(jobs.EventlogRequest, jobs.EventlogResponse, "one job's events", True),
    eventlog_cancel=(CancelRequest, None, "end an eventlog stream"),
    changes=(jobs.ChangesRequest, jobs.ChangesResponse, "a job's resources, and its grows and shrinks", True),
    changes_cancel=(CancelRequest, None, "end a changes stream"),
    watch=(jobs.WatchRequest, jobs.WatchResponse, "many jobs' events", True),
    watch_cancel=(CancelRequest, None, "end a watch stream"),
    output=(jobs.OutputRequest, jobs.OutputResponse, "output of a job's tasks", True),
    output_cancel=(CancelRequest, None, "end an output stream"),
    input=(jobs.InputRequest, Empty, "send input to a job's tasks"),
    why=(jobs.WhyRequest, jobs.WhyResponse, "why a job is not running"),
    reasons=(ReasonsRequest, ReasonsResponse, "why many jobs wait"),
    running=(RunningRequest, RunningResponse, "jobs that hold resources, the largest first"),
    sched_hello=(sched.HelloRequest, sched.HelloResponse, "register a scheduler; the running jobs follow", True),
    sched_ready=(sched.ReadyRequest, sched.ReadyResponse, "a scheduler accepts alloc requests"),
    sched_save=(sched.SaveRequest, Empty, "keep a scheduler's state for the next one of its groups"),
    sched_grow=(sched.GrowRequest, Empty, "an elastic job gets more targets"),
    sched_shrink=(sched.ShrinkRequest, Empty, "an elastic job is to leave targets"),
    queue_list=(Empty, jobs.QueueListResponse, "names of the queues"),
    queue_status=(jobs.QueueStatusRequest, jobs.QueueStatus, "one queue's state"),
    queue_enable=(jobs.QueueEnableRequest, Empty, "enable or disable submission to a queue"),
    queue_start=(jobs.QueueStartRequest, Empty, "start or stop scheduling of a queue"),
) | {
    "job-manager.raise": Topic(jobs.RaiseRequest, Empty, "raise an exception on a job", "job-manager"),
}

_SCHED = _service(
    "sched",
    alloc=(sched.AllocRequest, sched.AllocResponse, "request resources for a job; matched by id, several responses"),
    free=(sched.FreeRequest, None, "free a job's resources"),
    cancel=(sched.SchedCancelRequest, None, "cancel an alloc request"),
    prioritize=(sched.PrioritizeRequest, None, "new priorities of waiting jobs"),
    expiration=(sched.ExpirationRequest, Empty, "change a running job's expiration"),
    permit=(sched.PermitRequest, Empty, "permit a job for which a plugin waits, or refuse it"),
    why=(sched.SchedWhyRequest, sched.SchedWhyResponse, "why a job waits"),
    reasons=(SchedReasonsRequest, ReasonsResponse, "why many jobs wait"),
    plan=(PlanRequest, PlanResponse, "when and where waiting jobs will start"),
    accounts=(sched.AccountsRequest, sched.AccountsResponse, "accounts: usage, shares, limits"),
) | _service("feasibility", check=(sched.FeasibilityRequest, Empty, "check whether a jobspec could ever run"))

_ADMIN = (
    _service(
        "module",
        load=(instance.ModuleLoadRequest, instance.ModuleLoadResponse, "start a module"),
        remove=(instance.ModuleRequest, Empty, "stop a module"),
        reload=(instance.ModuleRequest, instance.ModuleLoadResponse, "stop a module and start it again"),
        list=(Empty, instance.ModuleListResponse, "all modules"),
        stats=(instance.ModuleRequest, FreeForm, "a module's figures"),
    )
    | _service(
        "service",
        add=(instance.ServiceRequest, Empty, "register a service"),
        remove=(instance.ServiceRequest, Empty, "unregister it"),
    )
    | _service(
        "agent",
        hello=(instance.AgentHello, instance.AgentWelcome, "an agent reports targets online"),
        heartbeat=(instance.AgentHeartbeat, None, "an agent is alive"),
    )
    | _service(
        "instance",
        info=(Empty, InstanceInfo, "its URI, owner and state"),
        metrics=(Empty, MetricsResponse, "its figures for monitoring"),
        ready=(Empty, InstanceInfo, "answered once agents are online and the scheduler is ready or has failed"),
        stop=(Empty, Empty, "end the instance"),
        restart=(Empty, Empty, "restart it in place; its jobs continue"),
        trace=(TraceRequest, TraceResponse, "messages as they pass", True),
        trace_cancel=(CancelRequest, None, "end a trace stream"),
        goodbye=(Empty, None, "a peer disconnects cleanly"),
    )
    | _service(
        "history",
        samples=(instance.SamplesRequest, instance.SamplesResponse, "utilisation, queues and jobs over time"),
        intervals=(instance.IntervalsRequest, instance.IntervalsResponse, "when targets could not be used, and why"),
        report=(instance.ReportRequest, instance.ReportResponse, "what jobs used, by user, bank, queue, ..."),
    )
    | _service(
        "lease",
        submit=(jobs.LeaseSubmitRequest, jobs.LeaseSubmitResponse, "submit a job once by its name"),
        watch=(jobs.LeaseWatchRequest, jobs.LeaseWatchResponse, "the jobs of a holder of leases", True),
        watch_cancel=(CancelRequest, None, "end a lease.watch stream"),
        withdraw=(jobs.LeaseWithdrawRequest, Empty, "cancel a leased job unless it has its resources"),
        settle=(jobs.LeaseSettleRequest, Empty, "acknowledge the ends of leased jobs"),
    )
    | _service(
        "cluster",
        list=(Empty, jobs.ClusterListResponse, "the clusters, and how many leases they have"),
        forget=(jobs.ClusterForgetRequest, jobs.ClusterForgetResponse, "give up a silent cluster's leases"),
    )
    | _service("attr", get=(AttrRequest, AttrResponse, "one attribute"))
    | _service(
        "config",
        get=(Empty, FreeForm, "the configuration as an object"),
        reload=(Empty, ConfigReloadResponse, "read the configuration again"),
    )
)

COMMON: Mapping[str, Topic] = MappingProxyType(
    _service(
        "NAME",
        ping=(FreeForm, FreeForm, "return the request with route, userid, rolemask and rank"),
        stats_get=(Empty, FreeForm, "the service's figures"),
        disconnect=(Empty, None, "a peer is lost; generated by the receiving side"),
    )
)
"""Topics that every service answers; NAME is the service."""

_OWN = _RESOURCE | _JOB_MANAGER | _SCHED | _ADMIN

SERVICES = frozenset(topic.service for topic in _OWN.values())

TOPICS: Mapping[str, Topic] = MappingProxyType(
    _OWN
    | {
        name.replace("NAME", service, 1): Topic(
            topic.request, topic.response, topic.doc, service, topic.streaming, topic.plain
        )
        for service in sorted(SERVICES)
        for name, topic in COMMON.items()
    }
)
"""Every topic by name, the common ones once for each service."""


# ---- topics of the local socket

_INSTANCE = {
    "broker.ping": Topic(FreeForm, FreeForm, "return the request with route, userid, rolemask and rank", "broker"),
    "attr.list": Topic(Empty, flux.AttributesResponse, "names of all attributes", "attr"),
    "state-machine.get": Topic(Empty, flux.StateResponse, "state of the broker, and since when", "state-machine"),
    "state-machine.wait": Topic(Empty, Empty, "answered once jobs can be run", "state-machine"),
    "groups.get": Topic(flux.GroupRequest, flux.GroupResponse, "ranks online or torpid", "groups"),
    "resource.reload": Topic(flux.ReloadFromRequest, Empty, "replace the inventory by an R file", "resource"),
    "sched.resource-status": Topic(Empty, SchedStatusResponse, "`resource.sched-status` by its former name", "sched"),
    "resource.monitor-waitup": Topic(flux.WaitUpRequest, Empty, "wait until so many are online", "resource"),
    "resource.acquire-mute": Topic(Empty, Empty, "stop reporting changes to acquirers", "resource"),
}

_JOBS = {
    "job-ingest.submit": Topic(flux.IngestRequest, SubmitResponse, "submit a signed jobspec", "job-ingest"),
    "job-list.list": Topic(flux.JobListRequest, flux.JobListResponse, "jobs and their attributes", "job-list", True),
    "job-list.list-id": Topic(flux.JobListIdRequest, flux.JobListIdResponse, "one job's attributes", "job-list"),
    "job-list.list-attrs": Topic(Empty, flux.JobAttributesResponse, "names of the attributes", "job-list"),
    "job-list.job-stats": Topic(Empty, flux.JobStatsResponse, "numbers of jobs by state and result", "job-list"),
    "job-info.lookup": Topic(flux.InfoLookupRequest, FreeForm, "parts of a job's record", "job-info"),
    "job-info.eventlog-watch": Topic(
        flux.EventlogWatchRequest, flux.EventlogWatchResponse, "a log of one job", "job-info", True
    ),
    "job-info.eventlog-watch-cancel": Topic(CancelRequest, None, "end such a stream", "job-info"),
    "shell-*.stdin": Topic(flux.StdinRequest, Empty, "send input to the tasks of the job `*`", "shell-*"),
}

_LOCAL_JOB_MANAGER = {
    f"job-manager.{method}": Topic(request, response, doc, "job-manager")
    for method, request, response, doc in (
        ("wait", flux.WaitableRequest, flux.WaitableResponse, "wait for a waitable job, or for any"),
        ("urgency", UrgencyRequest, flux.OldUrgencyResponse, "set a job's urgency"),
        ("raiseall", flux.RaiseAllRequest, flux.CountResponse, "raise an exception on many jobs"),
        ("killall", flux.KillAllRequest, flux.CountResponse, "signal many jobs"),
        ("queue-status", QueueStatusRequest, flux.FluxQueueStatus, "one queue's state"),
        ("alloc-query", Empty, flux.AllocQueryResponse, "how many jobs wait for resources"),
        ("history.get", flux.HistoryRequest, flux.HistoryResponse, "ids of the latest jobs"),
        ("drain", Empty, Empty, "answered when no job is left"),
        ("idle", Empty, flux.IdleResponse, "answered when no job runs"),
        ("stats-get", Empty, flux.ManagerStats, "the service's figures"),
    )
}

LOCAL_TOPICS: Mapping[str, Topic] = MappingProxyType(_INSTANCE | _JOBS | _LOCAL_JOB_MANAGER)
"""Every topic by name; one that is also in `TOPICS` is answered differently here."""
