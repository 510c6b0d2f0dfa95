"""`job-list` of the endpoint for Flux clients: stock `flux jobs` and its like (RFC 43).

Law: an answer is made slice by slice, a turn each: however long a list is, others need not wait for it.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable
from math import inf, nextafter
from typing import Any

from fluxsched.errors import FluxschedError
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.query import attributes, listing
from fluxsched.jobs.query.job_query import parse_query
from fluxsched.protocol.messages import flux_jobs as msg
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.incremental import in_steps
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.records import LIST_ENTRIES_MAX
from fluxsched.runtime.services.jobs.streams import JobStreams

PROTOCOL = 1
"""The version of the streaming list."""
SLICE_JOBS = 200
"""Jobs described in one turn (some 2 ms), and sent in one response."""


class JobList:
    """Serves `job-list`."""

    def __init__(self, manager: JobManager, streams: JobStreams, router: Router, turns: Turns) -> None:
        self._manager = manager
        self._streams = streams
        self._turns = turns
        self._router = router
        router.serve_local(
            {
                "job-list.list": self._list,
                "job-list.list-id": self._list_id,
                "job-list.list-attrs": self._list_attributes,
                "job-list.job-stats": self._stats,
            }
        )

    def _list(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.JobListRequest)
        names = attributes.checked(wanted.attrs)
        count = min(wanted.max_entries or LIST_ENTRIES_MAX, LIST_ENTRIES_MAX)
        since_s = nextafter(wanted.since, inf)  # Flux means those that ended later, we those that did not end earlier
        only = ("userid", self._router.permissions.sees_only(request))
        query = parse_query(wanted.constraint, only)._replace(max_entries=count, since_s=since_s)
        looking = listing.in_flux_order(self._manager.jobs, query)
        if request.streaming:
            request.open_stream(lambda: None)
            in_steps(self._turns, request, looking, lambda found: self._send(request, deque(found), names, PROTOCOL))
        else:
            in_steps(self._turns, request, looking, lambda found: request.respond(_described(found, names)))

    def _send(self, request: RpcRequest, jobs: deque[Job], names: tuple[str, ...], version: int | None) -> None:
        if not request.is_open:
            return
        some = [jobs.popleft() for _ in range(min(SLICE_JOBS, len(jobs)))]
        if some:
            request.respond(_described(some, names, version))
        if jobs:
            self._turns.post(lambda: self._send(request, jobs, names, None))
        else:
            request.finish()

    def _list_id(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.JobListIdRequest)
        names = attributes.checked(wanted.attrs)
        try:
            job = self._manager.jobs.get(wanted.id)
        except FluxschedError:
            request.error(errno.ENOENT)  # without a text, by which `flux jobs` knows an unknown id
            return

        def look(_: object) -> None:
            if job.state >= wanted.state:
                request.respond(msg.JobListIdResponse(attributes.describe(job, names)))
                self._streams.unsubscribe(job.id, request)

        if job.state >= wanted.state:
            look(None)
        else:
            self._streams.subscribe(job.id, request, look)

    def _list_attributes(self, request: RpcRequest) -> None:
        request.respond(msg.JobAttributesResponse([*attributes.FLUX_ATTRIBUTES, attributes.ALL]))

    def _stats(self, request: RpcRequest) -> None:
        tally = listing.tally(self._manager.jobs, self._manager.queues)
        in_steps(self._turns, request, tally, lambda found: request.respond(_stats_of(found)))


def _described(jobs: Iterable[Job], names: tuple[str, ...], version: int | None = None) -> msg.JobListResponse:
    return msg.JobListResponse([attributes.describe(job, names) for job in jobs], version)


def _stats_of(queues: dict[str | None, listing.Tally]) -> msg.JobStatsResponse:
    named = [msg.QueueJobs(name=name, **_figures(found)) for name, found in queues.items() if name is not None]
    return msg.JobStatsResponse(queues=named, **_figures(listing.total(queues)))


def _figures(found: listing.Tally) -> dict[str, Any]:
    """A tally in the words of `job-list.job-stats`."""
    names = [name for name in msg.JobStates.__struct_fields__ if name != "total"]
    states = {name: found.states[name.upper()] for name in names}
    return {
        "job_states": msg.JobStates(**states, total=sum(states.values())),
        "successful": found.results["COMPLETED"],
        "failed": found.results["FAILED"],
        "canceled": found.results["CANCELED"],
        "timeout": found.results["TIMEOUT"],
    }
