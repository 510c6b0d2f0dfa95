"""Hello: every job that runs is found again, with its R out of the KVS (RFC 27), before anything new is decided.

Law: the KVS is asked for many R at once, in windows, and jobs are taken over in the order in which hello named them.
A job whose R cannot be taken over gets a fatal exception, as RFC 27 asks: its resources are others' now.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

from fluxsched.adapters.flux import texts
from fluxsched.adapters.flux.commits import key_of
from fluxsched.adapters.flux.handle import LOG_DEBUG, LOG_ERR, BrokerHandle, BrokerReply
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.alloc import HelloRequest, HelloResponse
from fluxsched.protocol.messages.jobs import RaiseRequest

LOOKUPS_MAX = 256
"""Lookups out at once: the KVS answers them in one round trip, and no queue of the broker grows without bound."""

Take = Callable[[HelloResponse, ResourceSet, Idset], None]


class RunningJobLookup:
    """One hello; `take` is given each job with its R and freed ranks, `end` is called when all are known."""

    def __init__(self, handle: BrokerHandle, take: Take, end: Callable[[FluxschedError | None], None]) -> None:
        self._handle = handle
        self._take = take
        self._end = end
        self._told = False
        self._named: deque[HelloResponse] = deque()
        self._asked: deque[tuple[HelloResponse, list[BrokerReply]]] = deque()

    def start(self, partial_ok: bool) -> None:
        """Say hello."""
        payload = codec.to_json({"partial-ok": HelloRequest(partial_ok).partial_ok})
        self._handle.rpc("job-manager.sched-hello", payload, self._hello, streaming=True)

    def _hello(self, reply: BrokerReply) -> None:
        if not reply.errnum:
            self._named.append(codec.from_json(reply.payload, HelloResponse))
        elif reply.errnum == errno.ENODATA:
            self._told = True
        else:
            self._end(RPCError(f"job-manager.sched-hello: {reply.text}", reply.errnum))
            return
        self._go_on()

    def _go_on(self) -> None:
        while self._asked and self._asked[0][1]:
            job, (reply,) = self._asked.popleft()
            self._adopt(job, reply)
        while self._named and len(self._asked) < LOOKUPS_MAX:
            job, found = self._named.popleft(), list[BrokerReply]()
            self._asked.append((job, found))
            self._handle.lookup(key_of(job.id), lambda reply, found=found: self._found(found, reply))  # type: ignore[misc]
        if self._told and not self._asked:
            self._told = False
            self._end(None)

    def _found(self, found: list[BrokerReply], reply: BrokerReply) -> None:
        found.append(reply)
        self._go_on()

    def _adopt(self, job: HelloResponse, reply: BrokerReply) -> None:
        try:
            if reply.errnum:
                raise RPCError(f"its R cannot be read: {reply.text}", reply.errnum)
            self._take(job, ResourceSet.parse(codec.from_json(reply.payload, dict)), Idset.parse(job.free or ""))
        except FluxschedError as fault:
            self._raise(job.id, fault)
        else:
            self._handle.log(LOG_DEBUG, texts.hello(self._name(job.id), job))

    def _raise(self, jobid: int, fault: FluxschedError) -> None:
        name = self._name(jobid)
        self._handle.log(LOG_ERR, f"hello: cannot take over {name}, raising a fatal exception on it: {fault}")
        note = f"failed to reallocate R for running job: {fault}"
        raised = RaiseRequest(id=jobid, type=texts.RESTART, severity=0, note=note)
        self._handle.rpc("job-manager.raise", codec.to_json(raised), lambda answer: self._raised(name, answer))

    def _raised(self, name: str, reply: BrokerReply) -> None:
        if reply.errnum:
            self._handle.log(LOG_ERR, f"hello: exception on {name}: {reply.text}")

    def _name(self, jobid: int) -> str:
        return format_f58(jobid, ascii=self._handle.ascii)
