"""Every topic of an instance: what it carries, what it answers, whose service it is.

Law: a service answers no topic that is not here, and nothing is here that no page of `rfc/` explains (a test compares).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fluxsched.protocol.messages import (
    accounts,
    acquire,
    agents,
    alloc,
    clusters,
    history,
    jobs,
    modules,
    queues,
    resource,
)
from fluxsched.protocol.messages.common import (
    AttrRequest,
    AttrResponse,
    CancelRequest,
    ConfigReloadResponse,
    Empty,
    FreeForm,
    InstanceInfo,
)
from fluxsched.protocol.messages.live.machine import MachineChange
from fluxsched.protocol.messages.live.plan import PlanRequest, PlanResponse
from fluxsched.protocol.messages.live.reasons import ReasonsRequest, ReasonsResponse, SchedReasonsRequest
from fluxsched.protocol.messages.live.running import RunningRequest, RunningResponse
from fluxsched.protocol.messages.live.trace import TraceRequest, TraceResponse
from fluxsched.protocol.messages.metrics import MetricsResponse


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
        acquire.AcquireRequest,
        acquire.AcquireResponse,
        "acquire a group and follow it",
        True,
        (acquire.AcquireFirst, acquire.AcquireChange),
    ),
    acquire_cancel=(CancelRequest, None, "release an acquired group"),
    release=(acquire.ReleaseRequest, Empty, "release targets that a shrink named"),
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
    sched_hello=(alloc.HelloRequest, alloc.HelloResponse, "register a scheduler; the running jobs follow", True),
    sched_ready=(alloc.ReadyRequest, alloc.ReadyResponse, "a scheduler accepts alloc requests"),
    sched_save=(alloc.SaveRequest, Empty, "keep a scheduler's state for the next one of its groups"),
    sched_grow=(alloc.GrowRequest, Empty, "an elastic job gets more targets"),
    sched_shrink=(alloc.ShrinkRequest, Empty, "an elastic job is to leave targets"),
    queue_list=(Empty, queues.QueueListResponse, "names of the queues"),
    queue_status=(queues.QueueStatusRequest, queues.QueueStatus, "one queue's state"),
    queue_enable=(queues.QueueEnableRequest, Empty, "enable or disable submission to a queue"),
    queue_start=(queues.QueueStartRequest, Empty, "start or stop scheduling of a queue"),
) | {
    "job-manager.raise": Topic(jobs.RaiseRequest, Empty, "raise an exception on a job", "job-manager"),
}

_SCHED = _service(
    "sched",
    alloc=(alloc.AllocRequest, alloc.AllocResponse, "request resources for a job; matched by id, several responses"),
    free=(alloc.FreeRequest, None, "free a job's resources"),
    cancel=(alloc.SchedCancelRequest, None, "cancel an alloc request"),
    prioritize=(alloc.PrioritizeRequest, None, "new priorities of waiting jobs"),
    expiration=(alloc.ExpirationRequest, Empty, "change a running job's expiration"),
    permit=(alloc.PermitRequest, Empty, "permit a job for which a plugin waits, or refuse it"),
    why=(alloc.SchedWhyRequest, alloc.SchedWhyResponse, "why a job waits"),
    reasons=(SchedReasonsRequest, ReasonsResponse, "why many jobs wait"),
    plan=(PlanRequest, PlanResponse, "when and where waiting jobs will start"),
    accounts=(accounts.AccountsRequest, accounts.AccountsResponse, "accounts: usage, shares, limits"),
) | _service("feasibility", check=(alloc.FeasibilityRequest, Empty, "check whether a jobspec could ever run"))

_ADMIN = (
    _service(
        "module",
        load=(modules.ModuleLoadRequest, modules.ModuleLoadResponse, "start a module"),
        remove=(modules.ModuleRequest, Empty, "stop a module"),
        reload=(modules.ModuleRequest, modules.ModuleLoadResponse, "stop a module and start it again"),
        list=(Empty, modules.ModuleListResponse, "all modules"),
        stats=(modules.ModuleRequest, FreeForm, "a module's figures"),
    )
    | _service(
        "service",
        add=(modules.ServiceRequest, Empty, "register a service"),
        remove=(modules.ServiceRequest, Empty, "unregister it"),
    )
    | _service(
        "agent",
        hello=(agents.AgentHello, agents.AgentWelcome, "an agent reports targets online"),
        heartbeat=(agents.AgentHeartbeat, None, "an agent is alive"),
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
        samples=(history.SamplesRequest, history.SamplesResponse, "utilisation, queues and jobs over time"),
        intervals=(history.IntervalsRequest, history.IntervalsResponse, "when targets could not be used, and why"),
        report=(history.ReportRequest, history.ReportResponse, "what jobs used, by user, bank, queue, ..."),
    )
    | _service(
        "lease",
        submit=(clusters.LeaseSubmitRequest, clusters.LeaseSubmitResponse, "submit a job once by its name"),
        watch=(clusters.LeaseWatchRequest, clusters.LeaseWatchResponse, "the jobs of a holder of leases", True),
        watch_cancel=(CancelRequest, None, "end a lease.watch stream"),
        withdraw=(clusters.LeaseWithdrawRequest, Empty, "cancel a leased job unless it has its resources"),
        settle=(clusters.LeaseSettleRequest, Empty, "acknowledge the ends of leased jobs"),
    )
    | _service(
        "cluster",
        list=(Empty, clusters.ClusterListResponse, "the clusters, and how many leases they have"),
        forget=(clusters.ClusterForgetRequest, clusters.ClusterForgetResponse, "give up a silent cluster's leases"),
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
