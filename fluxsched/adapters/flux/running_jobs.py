"""Running jobs are taken over with their R, which is in the KVS and not in hello's answers (RFC 27).

Law: the KVS is asked for many jobs at once, in windows, and jobs are taken over in the order in which hello named them.
Where accounts are kept or there are plugins, it is asked for their jobspecs, too, with the updates in their eventlogs,
in which a plugin of Flux may have set the bank; a job whose jobspec cannot be read runs on, as if it had none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from fluxsched.adapters.flux import texts
from fluxsched.adapters.flux.commits import key_of
from fluxsched.adapters.flux.handle import LOG_DEBUG, LOG_ERR, BrokerHandle, BrokerReply
from fluxsched.core.jobid import format_f58
from fluxsched.core.jsontext import with_path
from fluxsched.errors import FluxschedError, RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.alloc import HelloResponse
from fluxsched.sched.decisions import PREEMPT
from fluxsched.scheduler.session import Call, Effects, SchedulerSession

LOOKUPS_MAX = 256
"""Lookups in flight: the KVS answers them in one round trip, and no queue of the broker grows without bound."""

R, JOBSPEC, EVENTLOG = "R", "jobspec", "eventlog"
"""Keys of a job that are looked up (RFC 16, job schema)."""

Perform = Callable[[Effects], None]
JobLookups = dict[str, BrokerReply]


class RunningJobLookup:
    """Stands between hello's answers and the session, and adds each job's R."""

    def __init__(
        self, handle: BrokerHandle, session: SchedulerSession, now_s: Callable[[], float], *, jobspecs: bool
    ) -> None:
        self._handle = handle
        self._session = session
        self._now_s = now_s
        self._keys = (R, JOBSPEC, EVENTLOG) if jobspecs else (R,)
        self._last: RPCError | None = None
        self._named: deque[HelloResponse] = deque()
        self._asked: deque[tuple[HelloResponse, JobLookups]] = deque()

    def answered(self, call: Call, job: HelloResponse | None, error: RPCError | None, perform: Perform) -> None:
        """Take one answer of hello; ENODATA, or any other error, is its last."""
        self._last = error
        if job is not None:
            self._named.append(job)
        self._continue(call, perform)

    def _continue(self, call: Call, perform: Perform) -> None:
        while self._asked and len(self._asked[0][1]) == len(self._keys):
            self._take_over(call, *self._asked.popleft(), perform)
        while self._named and (len(self._asked) + 1) * len(self._keys) <= LOOKUPS_MAX:
            job, found = self._named.popleft(), JobLookups()
            self._asked.append((job, found))
            for key in self._keys:

                def answered(reply: BrokerReply, found: JobLookups = found, key: str = key) -> None:
                    found[key] = reply
                    self._continue(call, perform)

                self._handle.lookup(key_of(job.id, key), answered)
        if self._last is not None and not self._asked:
            error, self._last = self._last, None
            perform(self._session.answered(call, None, error, self._now_s()))

    def _take_over(self, call: Call, job: HelloResponse, found: JobLookups, perform: Perform) -> None:
        reply = found[R]
        self._handle.log(LOG_DEBUG, texts.hello(format_f58(job.id, ascii=self._handle.ascii), job))
        try:
            if reply.errnum:
                raise RPCError(f"its R cannot be read: {reply.text}", reply.errnum)
            resources = codec.from_json(reply.payload, dict)
        except FluxschedError as fault:
            perform(self._session.refuse_job(job.id, fault))
            return
        known = job.id, job.priority, job.userid, job.t_submit, job.free, resources
        log = found[EVENTLOG].payload if EVENTLOG in found else None
        full = HelloResponse(*known, self._jobspec(job.id, found), preempted_s(log or b""))
        perform(self._session.answered(call, full, None, self._now_s()))

    def _jobspec(self, jobid: int, found: JobLookups) -> Any:
        """As bytes, which the session reads like those of an alloc request; None if there is none."""
        if JOBSPEC not in found:
            return None
        for reply in (found[JOBSPEC], found[EVENTLOG]):
            if reply.errnum:
                name = format_f58(jobid, ascii=self._handle.ascii)
                self._handle.log(LOG_ERR, f"hello: {name} counts as if it had no jobspec: {reply.text}")
                return None
        return updated(found[JOBSPEC].payload or b"", found[EVENTLOG].payload or b"")


def preempted_s(eventlog: bytes) -> float | None:
    """Since when a job is going that holds something still (wall time, seconds); None if it is not.

    An eventlog that cannot be read says nothing.
    """
    try:
        for event in _events(eventlog, "exception"):
            if (event["context"]["type"], event["context"]["severity"]) == (PREEMPT, 0):
                return float(event["timestamp"])
    except (FluxschedError, TypeError, ValueError, KeyError):
        pass
    return None


def _events(eventlog: bytes, name: str) -> Iterator[dict[str, Any]]:
    """Yield the events with this name. Raises RemoteProtocolError or KeyError for an event that is none."""
    having = f'"{name}"'.encode()
    for line in eventlog.splitlines() if having in eventlog else ():  # mostly there is no such event
        if having in line:
            event = codec.from_json(line, dict[str, Any])
            if event["name"] == name:
                yield event


def updated(jobspec: bytes, eventlog: bytes) -> bytes:
    """A jobspec with the updates that were logged since it was submitted (RFC 21); what cannot be read says nothing."""
    try:
        updates = [event["context"] for event in _events(eventlog, "jobspec-update")]
        if not updates:
            return jobspec
        tree = codec.from_json(jobspec, dict)
        for path, value in (pair for update in updates for pair in update.items()):
            tree = with_path(tree, path, value)
    except (FluxschedError, AttributeError, KeyError):
        return jobspec
    return codec.to_json(tree)
