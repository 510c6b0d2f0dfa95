"""The topics that exist only at the local socket: Flux's own, as far as an instance of ours can answer them.

Law: as for `topics`, over which this table takes precedence at that socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fluxsched.protocol.messages import flux_instance as instance
from fluxsched.protocol.messages import flux_jobs as jobs
from fluxsched.protocol.messages.common import CancelRequest, Empty, FreeForm
from fluxsched.protocol.messages.jobs import SubmitResponse, UrgencyRequest
from fluxsched.protocol.messages.queues import QueueStatusRequest
from fluxsched.protocol.messages.resource import SchedStatusResponse
from fluxsched.protocol.topics import Topic

_INSTANCE = {
    "broker.ping": Topic(FreeForm, FreeForm, "return the request with route, userid, rolemask and rank", "broker"),
    "attr.list": Topic(Empty, instance.AttributesResponse, "names of all attributes", "attr"),
    "state-machine.get": Topic(Empty, instance.StateResponse, "state of the broker, and since when", "state-machine"),
    "state-machine.wait": Topic(Empty, Empty, "answered once jobs can be run", "state-machine"),
    "groups.get": Topic(instance.GroupRequest, instance.GroupResponse, "ranks online or torpid", "groups"),
    "resource.reload": Topic(instance.ReloadFromRequest, Empty, "replace the inventory by an R file", "resource"),
    "sched.resource-status": Topic(
        Empty, SchedStatusResponse, "`resource.sched-status` by its former name", "sched"
    ),
    "resource.monitor-waitup": Topic(instance.WaitUpRequest, Empty, "wait until so many are online", "resource"),
    "resource.acquire-mute": Topic(Empty, Empty, "stop reporting changes to acquirers", "resource"),
}

_JOBS = {
    "job-ingest.submit": Topic(jobs.IngestRequest, SubmitResponse, "submit a signed jobspec", "job-ingest"),
    "job-list.list": Topic(jobs.JobListRequest, jobs.JobListResponse, "jobs and their attributes", "job-list", True),
    "job-list.list-id": Topic(jobs.JobListIdRequest, jobs.JobListIdResponse, "one job's attributes", "job-list"),
    "job-list.list-attrs": Topic(Empty, jobs.JobAttributesResponse, "names of the attributes", "job-list"),
    "job-list.job-stats": Topic(Empty, jobs.JobStatsResponse, "numbers of jobs by state and result", "job-list"),
    "job-info.lookup": Topic(jobs.InfoLookupRequest, FreeForm, "parts of a job's record", "job-info"),
    "job-info.eventlog-watch": Topic(
        jobs.EventlogWatchRequest, jobs.EventlogWatchResponse, "a log of one job", "job-info", True
    ),
    "job-info.eventlog-watch-cancel": Topic(CancelRequest, None, "end such a stream", "job-info"),
    "shell-*.stdin": Topic(jobs.StdinRequest, Empty, "send input to the tasks of the job `*`", "shell-*"),
}

_JOB_MANAGER = {
    f"job-manager.{method}": Topic(request, response, doc, "job-manager")
    for method, request, response, doc in (
        ("wait", jobs.WaitableRequest, jobs.WaitableResponse, "wait for a waitable job, or for any"),
        ("urgency", UrgencyRequest, jobs.OldUrgencyResponse, "set a job's urgency"),
        ("raiseall", jobs.RaiseAllRequest, jobs.CountResponse, "raise an exception on many jobs"),
        ("killall", jobs.KillAllRequest, jobs.CountResponse, "signal many jobs"),
        ("queue-status", QueueStatusRequest, jobs.FluxQueueStatus, "one queue's state"),
        ("alloc-query", Empty, jobs.AllocQueryResponse, "how many jobs wait for resources"),
        ("history.get", jobs.HistoryRequest, jobs.HistoryResponse, "ids of the latest jobs"),
        ("drain", Empty, Empty, "answered when no job is left"),
        ("idle", Empty, jobs.IdleResponse, "answered when no job runs"),
        ("stats-get", Empty, jobs.ManagerStats, "the service's figures"),
    )
}

LOCAL_TOPICS: Mapping[str, Topic] = MappingProxyType(_INSTANCE | _JOBS | _JOB_MANAGER)
"""Every topic by name; one that is also in `topics.TOPICS` is answered differently here."""
