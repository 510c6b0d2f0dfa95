"""The job manager's side of RFC 27: hello, ready, answers to `sched.alloc`, and what schedulers have it keep.

`sched.*` goes to the connection that said hello for the group. Law: an error response to alloc or free, a grant of
what is held, or the peer's loss suspends scheduling for its groups until a scheduler says hello again. What is kept
between two schedulers is one value a set of groups: it is returned as it came, and a value that became unreadable on
disk is the next scheduler's to judge.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.text import printable
from fluxsched.errors import FluxschedError, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.jobs.allocation import Foreign
from fluxsched.jobs.queues import DEFAULT_GROUP
from fluxsched.jobs.states import TargetsGranted
from fluxsched.leases import size_is_settled
from fluxsched.messaging.memo import PayloadMemo
from fluxsched.messaging.peers import Peer, RpcRequest
from fluxsched.messaging.router import Router
from fluxsched.protocol import framing
from fluxsched.protocol.framing import Message
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.instance import PlanRequest, SchedReasonsRequest
from fluxsched.protocol.messages.jobs import AccountsRequest
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.module_processes import ModuleTable
from fluxsched.store.integrity import SELECTED, is_intact
from fluxsched.store.store import Store
from fluxsched.system.log import logger

log = logger("jobs")
ANNOTATIONS_KEPT = 4096
"""Annotations that are remembered: jobs that wait for the same, or ran on the same cores, share them (2 MiB)."""
FEASIBILITY_S = 1.0
"""Maximum time until a scheduler must report whether a job could ever run (seconds); ours answer within milliseconds.
"""
ANNOTATIONS_BYTES_MAX = 256
"""Longer annotations are not shared between jobs."""
ANSWER = framing.QuickReader(framing.with_raw(msg.AllocResponse, "annotations"), "R")


class SchedulingService:
    """Schedulers of the groups, and the translation of their responses."""

    def __init__(
        self, effects: JobEffects, router: Router, store: Store, modules: ModuleTable, foreign: Foreign
    ) -> None:
        """`foreign` returns those of some targets that are in none of these groups."""
        self._effects = effects
        self._foreign = foreign
        self._modules = modules
        self._states = SchedulerStates(store)
        self._keeps: dict[Peer, tuple[str, ...]] = {}
        """Groups for which a peer's state is kept, also when it no longer serves them but is still connected."""
        self._router = router
        self._groups: dict[Peer, tuple[str, ...]] = {}
        self._ready: set[Peer] = set()
        self._silent: set[Peer] = set()
        """Schedulers that have not answered feasibility.check: they are not asked again until they do."""
        self._suspended = False
        self.annotations = PayloadMemo(_annotations, ANNOTATIONS_KEPT, ANNOTATIONS_BYTES_MAX)
        self.on_ready: list[Callable[[], None]] = []
        router.serve(
            {
                "job-manager.sched-hello": self._hello,
                "job-manager.sched-ready": self._sched_ready,
                "job-manager.sched-save": self._save,
                "job-manager.sched-grow": self._grow,
                "job-manager.sched-shrink": self._shrink,
                "feasibility.check": self._feasibility,
                "sched.why": self._sched_why,
                "sched.permit": self._sched_permit,
                "sched.accounts": self._sched_accounts,
                "sched.plan": self._sched_plan,
                "sched.reasons": self._sched_reasons,
            }
        )
        router.on_response("sched.alloc", self._answer)
        router.on_response("sched.free", self._answer)
        router.on_lost(self._gone)

    def ready(self, groups: tuple[str, ...]) -> bool:
        """Return whether a scheduler is ready for every one of `groups`."""
        served = {group for peer in self._ready for group in self._groups[peer]}
        return set(groups) <= served

    def is_ready(self, peer: Peer) -> bool:
        """Return whether this peer has sent hello and ready."""
        return peer in self._ready

    def scheduler_of(self, group: str) -> Peer | None:
        """Return the connection that serves a group's queues."""
        for peer, groups in self._groups.items():
            if group in groups:
                return peer
        return None

    def _hello(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.HelloRequest)
        groups = tuple(wanted.groups) if wanted.groups is not None else (DEFAULT_GROUP,)
        self._modules.check_acquirer(groups, request.peer)
        request.open_stream(lambda: None)
        items = self._effects.manager.allocation.hello(request.peer, groups, partial_ok=wanted.partial_ok)
        self._groups[request.peer] = self._keeps[request.peer] = groups
        for item in items:
            request.respond(item)
        request.finish()

    def _sched_ready(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.ReadyRequest)
        if request.peer not in self._groups:
            raise RemoteProtocolError("job-manager.sched-ready: send job-manager.sched-hello first")
        if wanted.mode not in ("limited", "unlimited"):
            raise RemoteProtocolError(f"job-manager.sched-ready: mode {wanted.mode!r} is not limited or unlimited")
        if wanted.mode == "limited" and (wanted.limit is None or not 1 <= wanted.limit <= 0x7FFFFFFF):
            raise RemoteProtocolError(f"job-manager.sched-ready: limit {wanted.limit} is not in 1..2147483647")
        limit = wanted.limit if wanted.mode == "limited" else None
        count, effects = self._effects.manager.allocation.ready(request.peer, limit, self._effects.now_s)
        self._ready.add(request.peer)
        request.respond(msg.ReadyResponse(count=count, state=self._states.read_state(self._groups[request.peer])))
        self._effects.perform(effects)
        for call in self.on_ready:
            call()

    def _save(self, request: RpcRequest) -> None:
        wanted, groups = request.payload(msg.SaveRequest), self._keeps.get(request.peer)
        if groups is None:
            raise RemoteProtocolError("job-manager.sched-save: send job-manager.sched-hello first")
        for group in groups:
            if self.scheduler_of(group) not in (None, request.peer):
                raise Refused(f"another scheduler serves group {group!r} by now, and its state is kept", errno.EBUSY)
        if wanted.set_aside:
            log.warning("the state saved for groups %s is set aside: the scheduler's log says why", ",".join(groups))
        self._states.save_state(groups, wanted.state, wanted.set_aside, request.respond)

    def _grow(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.GrowRequest)
        self._check_ready(request, wanted.id)
        allocation, peer = self._effects.manager.allocation, request.peer
        effects = allocation.grow(peer, wanted.id, wanted.R, self._effects.now_s, self._foreign)
        self._effects.perform(effects)
        ranks = next(one.ranks for one in effects if isinstance(one, TargetsGranted))

        def answer() -> None:
            try:
                allocation.grow_answered(peer, wanted.id, ranks)
            except Refused as fault:
                request.error(fault.errnum, str(fault))
            else:
                request.respond()

        self._effects.after_commit(answer)

    def _shrink(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.ShrinkRequest)
        self._check_ready(request, wanted.id)
        shrink, ranks = self._effects.manager.allocation.shrink, Idset.parse(wanted.ranks)
        self._effects.perform(shrink(request.peer, wanted.id, ranks, wanted.note, self._effects.now_s))
        self._effects.after_commit(request.respond)

    def _check_ready(self, request: RpcRequest, jobid: int) -> None:
        if self._suspended:
            raise Refused("the instance is about to end, and accepts no more changes", errno.ESHUTDOWN)
        if request.peer not in self._ready:
            raise RemoteProtocolError(f"{request.topic}: send job-manager.sched-hello and sched-ready first")
        if self._effects.leases.has(jobid):
            raise size_is_settled(jobid)

    def remove_scheduler(self, peer: Peer) -> None:
        """Accept nothing more from this scheduler: its groups are free, and its requests wait for another."""
        self._lost(peer)

    def suspend(self) -> None:
        """Grant nothing more, since the instance is about to end; waiting jobs remain in the store."""
        self._suspended = True
        for peer in list(self._groups):
            self._lost(peer)

    def _answer(self, peer: Peer, message: Message) -> None:
        if self._suspended:
            return
        if message.errnum:
            text = (message.payload or b"").decode(errors="replace")
            raise FluxschedError(f"error response {message.errnum}: {text}", message.errnum)
        if peer not in self._groups:
            raise RemoteProtocolError("a response of a peer that has not sent hello")
        answer = ANSWER.read(message.payload)
        manager, now_s = self._effects.manager, self._effects.now_s
        annotations = self.annotations.read(answer.annotations) if answer.annotations is not None else None
        if answer.type == msg.SUCCESS:
            if answer.R is None:
                raise RemoteProtocolError(f"success for job {answer.id} carries no R")
            effects = manager.allocation.alloc_granted(peer, answer.id, answer.R, annotations, now_s, self._foreign)
        elif answer.type == msg.ANNOTATE:
            if annotations is None:
                raise RemoteProtocolError(f"annotate for job {answer.id} carries no annotations")
            manager.allocation.alloc_annotated(peer, answer.id, annotations)
            return
        elif answer.type == msg.DENY:
            effects = manager.allocation.alloc_denied(peer, answer.id, answer.note or "", now_s)
        else:
            effects = manager.allocation.alloc_canceled(peer, answer.id, now_s)
        self._effects.perform(effects)

    def _feasibility(self, request: RpcRequest) -> None:
        jobspec = Jobspec.parse(request.payload(msg.FeasibilityRequest).jobspec)
        queue = self._effects.manager.queues.for_submit(jobspec.queue)
        asked = msg.FeasibilityRequest(queue.admit(jobspec).bare, request.userid)  # with what the queue requires
        peer = self._serving(queue.group)
        if peer in self._silent:
            text = "has left a feasibility.check unanswered, and gets no more until it answers"
            raise Refused(f"the scheduler of group {queue.group!r} {text}", errno.ENOSYS)

        def late() -> None:
            if request.is_open:
                self._silent.add(peer)
                log.warning("%s does not answer feasibility.check: jobs are submitted unchecked", peer.name)
                request.error(errno.ETIMEDOUT, f"feasibility.check: no answer of the scheduler in {FEASIBILITY_S:g} s")

        timer = self._effects.turns.after(FEASIBILITY_S, late)

        def answered(answer: Message | None) -> None:
            timer.cancel()
            self._silent.discard(peer)
            if answer is None:
                request.error(errno.ENOSYS, f"{request.topic}: the scheduler went away before it answered")
            elif request.is_open:
                request.relay(answer)

        self._router.call(peer, request.topic, framing.pack(asked), answered)

    def _sched_why(self, request: RpcRequest) -> None:
        job = self._effects.manager.jobs.get(request.payload(msg.SchedWhyRequest).id)
        self._forward(request, job.queue.group)

    def _sched_permit(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.PermitRequest)
        job = self._effects.manager.jobs.get(wanted.id)
        self._forward(request, job.queue.group, framing.pack(wanted))

    def _sched_accounts(self, request: RpcRequest) -> None:
        wanted = request.payload(AccountsRequest)
        group = wanted.group
        if group == DEFAULT_GROUP and self.scheduler_of(group) is None and len(self._groups) == 1:
            group = next(iter(self._groups.values()))[0]  # there are no other accounts to ask for
        self._forward(request, group, framing.pack(wanted))  # packed anew: fields that were not understood stay behind

    def _sched_plan(self, request: RpcRequest) -> None:
        wanted = request.payload(PlanRequest)
        self._forward(request, wanted.group, framing.pack(wanted))

    def _sched_reasons(self, request: RpcRequest) -> None:
        wanted = request.payload(SchedReasonsRequest)
        self._forward(request, wanted.group, framing.pack(wanted))

    def _forward(self, request: RpcRequest, group: str, payload: bytes | None = None) -> None:
        self._router.forward(request, self._serving(group), payload)

    def _serving(self, group: str) -> Peer:
        """Return the scheduler of a group. Raises Refused (ENOSYS) if it has none."""
        peer = self.scheduler_of(group)
        if peer is None:
            raise Refused(f"no scheduler serves group {group!r}; load one with `fluxsched module load`", errno.ENOSYS)
        return peer

    def _gone(self, peer: Peer) -> None:
        self._keeps.pop(peer, None)
        self._lost(peer)

    def _lost(self, peer: Peer) -> None:
        self._ready.discard(peer)
        if self._groups.pop(peer, None) is not None:
            self._effects.perform(self._effects.manager.allocation.scheduler_lost(peer, self._effects.now_s))


def _annotations(data: bytes) -> dict[str, Any] | None:
    return framing.unpack(data, dict[str, Any] | None)


# ---- states of schedulers

KIND = "scheduler"
"""Kind of the rows in table `saved`; the key has the groups, since another policy may serve them next time."""

SET_ASIDE = "scheduler-set-aside"
"""Kind of the rows with unusable state: the last one of each key."""

STATE_BYTES_MAX = 32 * 2**20
"""Maximum size of a value as JSON. Our schedulers save a text of at most 16 MiB, in which quotes are then escaped."""

SHOWN_BYTES = 40
"""Maximum part of an unreadable value that is passed on (bytes)."""

KINDS = (KIND, SET_ASIDE)


class SchedulerStates:
    """The values, by the groups that a scheduler serves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, bytes] = {}

    def read_state(self, groups: Sequence[str]) -> Any:
        """Return the last state kept for these groups, None if there is none."""
        value = self._value(_key(groups))
        if value is None:
            return None
        try:
            return msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return printable(value[:SHOWN_BYTES].decode(errors="replace"))

    def save_state(self, groups: Sequence[str], state: object, set_aside: bool, stored: Callable[[], None]) -> None:
        """Keep a value, and call `stored` once it is on disk. Raises LimitExceeded."""
        value = msgspec.json.encode(state)
        if len(value) > STATE_BYTES_MAX:
            raise LimitExceeded(f"state of {len(value)} bytes, the limit is {STATE_BYTES_MAX}: keep less")
        key = _key(groups)
        before = self._value(key) if set_aside else None
        if before is not None:
            self._store.add("saved", (SET_ASIDE, key, before))
        self._known[key] = value
        self._store.add("saved", (KIND, key, value))
        self._store.after_commit(stored)

    def _value(self, key: str) -> bytes | None:
        """Return the value as it is or soon will be on disk, where it may be anything."""
        known = self._known.get(key)
        if known is not None:
            return known
        rows = self._store.read(f"SELECT {SELECTED['saved']} FROM saved WHERE kind = ? AND key = ?", (KIND, key))
        if not rows:
            return None
        value = rows[0][2]
        value = value if isinstance(value, bytes) else str(value).encode(errors="replace")
        return value if is_intact(rows[0]) else b"damaged: " + value[:SHOWN_BYTES]  # which is no JSON


def _key(groups: Sequence[str]) -> str:
    return ",".join(sorted(groups))
