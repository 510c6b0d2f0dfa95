"""Running jobs are taken over with their R, which is in the KVS and not in hello's answers (RFC 27).

Law: the KVS is asked for many R at once, in windows, and jobs are taken over in the order in which hello named them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from fluxsched.adapters.flux import texts
from fluxsched.adapters.flux.commits import key_of
from fluxsched.adapters.flux.handle import LOG_DEBUG, BrokerHandle, BrokerReply
from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError, RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.alloc import HelloResponse
from fluxsched.runtime.scheduler_process.effects import Call, Effects
from fluxsched.runtime.scheduler_process.session import SchedulerSession

LOOKUPS_MAX = 256
"""Lookups in flight: the KVS answers them in one round trip, and no queue of the broker grows without bound."""

Perform = Callable[[Effects], None]


class RunningJobLookup:
    """Stands between hello's answers and the session, and adds each job's R."""

    def __init__(self, handle: BrokerHandle, session: SchedulerSession) -> None:
        self._handle = handle
        self._session = session
        self._last: RPCError | None = None
        self._named: deque[HelloResponse] = deque()
        self._asked: deque[tuple[HelloResponse, list[BrokerReply]]] = deque()

    def answered(self, call: Call, job: HelloResponse | None, error: RPCError | None, perform: Perform) -> None:
        """Take one answer of hello; ENODATA, or any other error, is its last."""
        self._last = error
        if job is not None:
            self._named.append(job)
        self._continue(call, perform)

    def _continue(self, call: Call, perform: Perform) -> None:
        while self._asked and self._asked[0][1]:
            job, (reply,) = self._asked.popleft()
            self._take_over(call, job, reply, perform)
        while self._named and len(self._asked) < LOOKUPS_MAX:
            job, found = self._named.popleft(), list[BrokerReply]()
            self._asked.append((job, found))

            def answered(reply: BrokerReply, found: list[BrokerReply] = found) -> None:
                found.append(reply)
                self._continue(call, perform)

            self._handle.lookup(key_of(job.id), answered)
        if self._last is not None and not self._asked:
            error, self._last = self._last, None
            perform(self._session.answered(call, None, error, 0.0))

    def _take_over(self, call: Call, job: HelloResponse, reply: BrokerReply, perform: Perform) -> None:
        self._handle.log(LOG_DEBUG, texts.hello(format_f58(job.id, ascii=self._handle.ascii), job))
        try:
            if reply.errnum:
                raise RPCError(f"its R cannot be read: {reply.text}", reply.errnum)
            R = codec.from_json(reply.payload, dict)  # noqa: N806
        except FluxschedError as fault:
            perform(self._session.refuse_job(job.id, fault))
            return
        full = HelloResponse(job.id, job.priority, job.userid, job.t_submit, job.free, R)
        perform(self._session.answered(call, full, None, 0.0))
