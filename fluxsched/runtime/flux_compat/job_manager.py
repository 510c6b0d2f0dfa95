"""`job-manager` of the endpoint for Flux clients, where Flux asks or answers otherwise than our own clients.

What is the same in both dialects (raise, kill, update, queue-list, queue-enable, queue-start) is not here. Law: nothing
is decided here; what is asked for is put to the job manager in its own words.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable

from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.jobs.effects import Effect
from fluxsched.jobs.job.states import ACTIVE, RUNNING
from fluxsched.jobs.query import listing
from fluxsched.jobs.query.job_query import EVERY_JOB, find, parse_query
from fluxsched.protocol.messages import flux_jobs as msg
from fluxsched.protocol.messages.queues import QueueStatusRequest
from fluxsched.runtime.messaging.incremental import in_steps
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.jobs.service import JobService
from fluxsched.runtime.system.log import logger

log = logger("flux")

HISTORY_JOBS_MAX = 10_000
"""Job ids in one answer about the past."""
SLICE_JOBS = 100
"""Jobs that an exception or a signal for all of them reaches at a time (some 5 ms)."""
_SLICE = re.compile(r"\[(?:(-?[0-9]{1,9})|(-?[0-9]{1,9})?:(-?[0-9]{1,9})?(?::(-?[0-9]{1,9})?)?)\]")

UNSERVED = {
    "job-manager.purge": "an instance of fluxsched forgets ended jobs by itself: its store keeps their record",
    "job-manager.purge-id": "an instance of fluxsched forgets ended jobs by itself: its store keeps their record",
    "job-manager.events-journal": "an instance of fluxsched has no journal of all jobs in Flux's form: "
    "follow job-info.eventlog-watch, or ask its own job-manager.watch",
}
"""What stock commands ask for and an instance of ours does not have."""


class JobManagerService:
    """Serves what is special of `job-manager`."""

    def __init__(self, effects: JobEffects, jobs: JobService, router: Router) -> None:
        self._effects = effects
        self._manager = effects.manager
        self._jobs = jobs
        self._drains: list[RpcRequest] = []
        self._idles: list[RpcRequest] = []
        router.serve_local(
            {
                "job-manager.urgency": self._urgency,
                "job-manager.raiseall": self._raise_all,
                "job-manager.killall": self._kill_all,
                "job-manager.alloc-query": self._alloc_query,
                "job-manager.history.get": self._history,
                "job-manager.drain": self._drain,
                "job-manager.idle": self._idle,
                "job-manager.stats-get": self._stats,
            }
            | dict.fromkeys(UNSERVED, _unserved)
        )
        router.serve_local({"job-manager.queue-status": self._queue_status})
        router.on_lost(lambda peer: self._forget(peer))
        effects.published.append(self._look)

    def _urgency(self, request: RpcRequest) -> None:
        self._jobs.answer(request, msg.OldUrgencyResponse(self._jobs.set_urgency(request)))

    def _queue_status(self, request: RpcRequest) -> None:
        found = self._jobs.queue_status(request.payload(QueueStatusRequest).name)
        request.respond(
            msg.FluxQueueStatus(
                name=found.name,
                enable=found.enable,
                disable_reason=found.enable_reason,
                start=found.start,
                stop_reason=found.start_reason,
                blocked=found.blocked,
            )
        )

    def _stats(self, request: RpcRequest) -> None:
        def answered(latest: list[int]) -> None:
            request.respond(
                msg.ManagerStats(
                    active_jobs=len(self._manager.jobs.active),
                    inactive_jobs=len(self._manager.jobs.inactive),
                    max_jobid=latest[0] if latest else 0,
                )
            )

        newest = listing.newest(self._manager.jobs, EVERY_JOB._replace(max_entries=1))
        in_steps(self._effects.turns, request, newest, answered)

    # -- many jobs at once --------------------------------------------------------------------------------------

    def _raise_all(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.RaiseAllRequest)

        def raised(jobid: int) -> list[Effect]:
            now_s, by = self._effects.now_s, request.userid
            return self._manager.requests.raise_exception(jobid, wanted.type, wanted.severity, wanted.note, by, now_s)

        self._to_all(request, wanted.userid, wanted.states, wanted.dry_run, raised)

    def _kill_all(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.KillAllRequest)

        def killed(jobid: int) -> list[Effect]:
            return self._manager.requests.kill(jobid, wanted.signum, self._effects.now_s)

        self._to_all(request, wanted.userid, RUNNING, wanted.dry_run, killed)

    def _to_all(
        self, request: RpcRequest, userid: int, states: int, dry_run: bool, do: Callable[[int], list[Effect]]
    ) -> None:
        """Do something to all active jobs of a user in these states, the latest first: else those that wait would
        start as others end.
        """
        count = errors = 0
        query = parse_query(None, ("userid", userid))
        meant = find(self._manager.jobs, query._replace(states=states & ACTIVE), SLICE_JOBS)

        def some() -> None:
            nonlocal count, errors
            jobs = next(meant, None)
            if jobs is None:
                self._jobs.answer(request, msg.CountResponse(count, errors))
                return
            for job in jobs:
                count += 1
                try:
                    self._effects.perform([] if dry_run else do(job.id))
                except FluxschedError as error:
                    log.info("%s: %s", request.topic, error)
                    errors += 1
            self._effects.turns.post(some)

        some()

    # -- how much there is to do --------------------------------------------------------------------------------

    def _alloc_query(self, request: RpcRequest) -> None:
        manager = self._manager
        request.respond(
            msg.AllocQueryResponse(
                queue_length=sum(len(queue.waiting) for queue in manager.queues),
                alloc_pending=sum(len(link.outstanding) for link in manager.links),
                running=self._running(),
            )
        )

    def _running(self) -> int:
        return sum(queue.running for queue in self._manager.queues)

    def _history(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.HistoryRequest)
        found = _SLICE.fullmatch(wanted.slice)
        if found is None:
            raise InvalidValue(f"slice {wanted.slice!r:.40} is not [INDEX] or [START:STOP:STEP] as Python has it")
        index, *bounds = (None if part is None else int(part) for part in found.groups())
        if bounds[2] == 0:
            raise InvalidValue(f"slice {wanted.slice!r:.40}: the step is 0")
        part = slice(*bounds) if index is None else slice(index, index + 1 or None)
        query = parse_query(None, ("userid", wanted.userid))._replace(max_entries=HISTORY_JOBS_MAX)
        newest = listing.newest(self._manager.jobs, query)
        turns = self._effects.turns
        in_steps(turns, request, newest, lambda jobids: request.respond(msg.HistoryResponse(jobids[part])))

    def _drain(self, request: RpcRequest) -> None:
        self._drains.append(request)
        self._effects.after_commit(self._look)

    def _idle(self, request: RpcRequest) -> None:
        self._idles.append(request)
        self._effects.after_commit(self._look)

    def _look(self) -> None:
        """Answer requests that wait for the end of all jobs, or of all running ones."""
        if self._drains and not self._manager.jobs.active:
            drains, self._drains = self._drains, []
            for request in drains:
                request.respond()
        if self._idles and not self._running():
            idles, self._idles = self._idles, []
            for request in idles:
                request.respond(msg.IdleResponse(pending=len(self._manager.jobs.active)))

    def _forget(self, peer: object) -> None:
        self._drains = [request for request in self._drains if request.peer is not peer]
        self._idles = [request for request in self._idles if request.peer is not peer]


def _unserved(request: RpcRequest) -> None:
    raise Refused(UNSERVED[request.topic], errno.ENOSYS)
