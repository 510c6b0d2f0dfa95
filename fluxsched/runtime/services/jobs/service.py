"""The `job-manager` service as users see it: submit, raise, urgency, update, list, lookup, why, queues."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import msgspec

from fluxsched.core.jobid import FluidGenerator, format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue, Refused
from fluxsched.jobs.job.job import SENT
from fluxsched.jobs.query import listing
from fluxsched.jobs.query.lookups import Filter
from fluxsched.jobs.query.selection import Selection, parse_selection
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.header import Message
from fluxsched.protocol.messages import alloc, queues
from fluxsched.protocol.messages import jobs as msg
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Work
from fluxsched.runtime.messaging.incremental import in_steps
from fluxsched.runtime.messaging.payload_memo import JobspecMemo
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.jobs.records import list_filter, stored_job
from fluxsched.runtime.services.jobs.scheduling import SchedulingService

SUBMIT = codec.with_raw(msg.SubmitRequest, "jobspec")

WHY_S = 2.0
"""How long a scheduler may think about why a job waits; then what the job manager knows must do (seconds)."""


class JobService:
    """Serves `job-manager.*` except what schedulers and streams ask."""

    def __init__(
        self,
        effects: JobEffects,
        scheduling: SchedulingService,
        router: Router,
        store: Store,
        fluids: FluidGenerator,
    ) -> None:
        self._effects = effects
        self._manager = effects.manager
        self._scheduling = scheduling
        self._router = router
        self._store = store
        self._turns = effects.turns
        self._fluids = fluids
        self._specs = JobspecMemo()
        self.accepting = True
        self.policy_of: Callable[[str | None, str], str | None] = lambda queue, group: None
        router.serve(self._handlers())

    def _handlers(self) -> dict[str, Callable[[RpcRequest], None]]:
        return {
            "job-manager.submit": self._submit,
            "job-manager.raise": self._raise,
            "job-manager.cancel": self._cancel,
            "job-manager.kill": self._kill,
            "job-manager.memo": self._memo,
            "job-manager.urgency": self._urgency,
            "job-manager.update": self._update,
            "job-manager.list": self._list,
            "job-manager.select": self._select,
            "job-manager.lookup": self._lookup,
            "job-manager.why": self._why,
            "job-manager.queue-list": self._queue_list,
            "job-manager.queue-status": self._queue_status,
            "job-manager.queue-enable": self._queue_enable,
            "job-manager.queue-start": self._queue_start,
        }

    def _submit(self, request: RpcRequest) -> None:
        wanted = request.payload(SUBMIT)
        self.submit(request, self._specs.read(wanted.jobspec), wanted.urgency, wanted.flags)

    def submit(self, request: RpcRequest, jobspec: Jobspec, urgency: int, flags: int) -> int:
        """Take the job of the request's user, and answer with its id once it is stored."""
        if not self.accepting:
            raise Refused("the instance is shutting down and accepts no jobs", errno.ESHUTDOWN)
        jobid, now_s = self._fluids.next(int(self._turns.wall_s * 1000)), self._turns.wall_s
        self._effects.perform(
            self._manager.submit(jobid, jobspec, userid=request.userid, urgency=urgency, flags=flags, now_s=now_s)
        )
        self.answer(request, msg.SubmitResponse(jobid))
        return jobid

    def _raise(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.RaiseRequest)
        self._raise_exception(request, wanted.id, wanted.type, wanted.severity, wanted.note)

    def _cancel(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.JobCancelRequest)
        self._raise_exception(request, wanted.id, "cancel", 0, wanted.note)

    def _raise_exception(self, request: RpcRequest, jobid: int, kind: str, severity: int, note: str) -> None:
        self._effects.perform(
            self._manager.raise_exception(jobid, kind, severity, note, request.userid, self._turns.wall_s)
        )
        self.answer(request)

    def _kill(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.KillRequest)
        self._effects.perform(self._manager.kill(wanted.id, wanted.signum, self._turns.wall_s))
        self._store.when_settled(request.respond)  # nothing of it is stored, and on a full disk it makes room

    def _memo(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.MemoRequest)
        self._effects.perform(
            self._manager.memo(wanted.id, wanted.memo, self._turns.wall_s, volatile=wanted.volatile)
        )
        self.answer(request)

    def _urgency(self, request: RpcRequest) -> None:
        self.answer(request, msg.UrgencyResponse(self.set_urgency(request)))

    def set_urgency(self, request: RpcRequest) -> int:
        """Do what an UrgencyRequest asks; the urgency that the job had before."""
        wanted = request.payload(msg.UrgencyRequest)
        old = self._manager.job(wanted.id).urgency
        self._effects.perform(
            self._manager.set_urgency(wanted.id, wanted.urgency, request.userid, self._turns.wall_s)
        )
        return old

    def _update(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.UpdateRequest)
        effects = self._manager.update(wanted.id, wanted.updates, request.userid, self._turns.wall_s)
        self._effects.updates.setdefault(wanted.id, []).append(request)
        self._effects.perform(effects)

    def _list(self, request: RpcRequest) -> None:
        self._turns.spread(self._tell(request, list_filter(request.payload(msg.ListRequest))), request.failed)

    def _tell(self, request: RpcRequest, wanted: Filter) -> Work:
        """Answer with the jobs wanted, gathered and packed in pieces."""
        found: list[msgspec.Raw] = []
        for some in self._manager.listing_pieces(wanted):
            found += [msgspec.Raw(codec.pack(one)) for one in some]
            yield
        request.respond({"jobs": found})

    def _select(self, request: RpcRequest) -> None:
        selection = parse_selection(request.payload(msg.SelectRequest).constraint)
        request.open_stream(lambda: None)
        self._turns.spread(self._tell_ids(request, selection), request.failed)

    def _tell_ids(self, request: RpcRequest, wanted: Selection) -> Work:
        for ids in listing.select_ids(self._manager, wanted):
            if not request.is_open:
                return
            if ids:
                request.respond(msg.SelectResponse(ids))
            yield
        request.finish()

    def stats(self, request: RpcRequest) -> None:
        """Answer with how many jobs are in which state."""
        counts = listing.counts(self._manager)
        in_steps(self._turns, request, counts, lambda found: request.respond({"jobs": found}))

    def _lookup(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.LookupRequest)
        unknown = [key for key in wanted.keys if key not in ("jobspec", "R", "eventlog")]
        if unknown:
            raise InvalidValue(f"unknown keys {', '.join(unknown)}; a job has jobspec, R and eventlog")

        def answer() -> None:
            found = stored_job(self._store, wanted.id)
            if found is None:
                request.error(errno.ENOENT, f"job {format_f58(wanted.id)} is unknown")
                return
            request.respond(msg.LookupResponse(id=wanted.id, **{key: found[key] for key in wanted.keys}))

        self._store.when_settled(answer)

    def _why(self, request: RpcRequest) -> None:
        jobid = request.payload(msg.WhyRequest).id
        job = self._manager.job(jobid)
        known = self._manager.why(jobid)
        answer = msg.WhyResponse(
            id=jobid,
            state=job.state.name,
            reason=known.reason,
            queue=job.queue.name,
            earliest=known.earliest_s,
            annotations=job.annotations or {},
            rule=known.rule or None,
            when=known.when or None,
        )
        peer = self._scheduling.scheduler_of(job.queue.group)
        if job.request != SENT or peer is None:
            request.respond(answer)
            return

        def answered(message: Message | None) -> None:
            """The scheduler's own words, where it has some in time."""
            if late.call is None:
                return
            if message is None or message.errnum:
                request.respond(answer)
            else:
                found = codec.unpack(message.payload, alloc.SchedWhyResponse)
                said = {"reason": found.reason, "earliest": found.earliest, "rule": found.rule, "when": found.when}
                request.respond(msgspec.structs.replace(answer, **said))
            late.cancel()

        silent = f"{answer.reason} (it has not answered for {WHY_S:g} s)"
        late = self._turns.after(WHY_S, lambda: request.respond(msgspec.structs.replace(answer, reason=silent)))
        self._router.call(peer, "sched.why", codec.pack(alloc.SchedWhyRequest(id=jobid)), answered)

    # -- queues -------------------------------------------------------------------------------------------------

    def _queue_list(self, request: RpcRequest) -> None:
        request.respond(queues.QueueListResponse(queues=self._manager.queues.names()))

    def _queue_status(self, request: RpcRequest) -> None:
        request.respond(self.queue_status(request.payload(queues.QueueStatusRequest).name))

    def queue_status(self, name: str | None) -> queues.QueueStatus:
        """All about one queue. Raises Refused (ENOENT)."""
        status = self._manager.queue_status(name)[0]
        config = status.config
        return queues.QueueStatus(
            name=status.name,
            enable=status.enable,
            enable_reason=status.enable_reason or None,
            start=status.start,
            start_reason=status.start_reason or None,
            blocked=status.blocked,
            group=config.group,
            policy=self.policy_of(status.name, config.group),
            constraints=config.requires.to_json() if config.requires is not None else None,
            duration_default=config.default_duration_s or None,
            duration_max=config.duration_limit_s or None,
            nnodes_min=config.nodes_min,
            nnodes_max=config.nodes_max,
            ncores_max=config.cores_max,
            ngpus_max=config.gpus_max,
        )

    def _queue_enable(self, request: RpcRequest) -> None:
        wanted = request.payload(queues.QueueEnableRequest)
        self._effects.perform(
            self._manager.queue_enable(wanted.name, wanted.enable, wanted.reason, all_queues=wanted.all)
        )
        self.answer(request)

    def _queue_start(self, request: RpcRequest) -> None:
        wanted = request.payload(queues.QueueStartRequest)
        effects = self._manager.queue_start(
            wanted.name, wanted.start, wanted.reason, all_queues=wanted.all, now_s=self._turns.wall_s
        )
        self._effects.perform(effects)
        self.answer(request)

    def answer(self, request: RpcRequest, payload: object = None) -> None:
        """Respond once what was decided is on disk."""
        self._effects.after_commit(partial(request.respond, payload))

