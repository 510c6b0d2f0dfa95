"""The link to an instance of ours: `lease.*`, its targets by `resource.watch`."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Any

from fluxsched.errors import FluxschedError, RPCError
from fluxsched.leases.lease import Lease, SeenJob
from fluxsched.leases.states import LeaseEvent
from fluxsched.protocol.messages import clusters as msg
from fluxsched.protocol.messages import jobs, queues
from fluxsched.protocol.messages.common import Empty
from fluxsched.protocol.messages.live.machine import MachineChange
from fluxsched.runtime.clusters.connection import ClusterConnection, read
from fluxsched.runtime.clusters.link import LinkEvents, TakeOutput, why_closed

QUEUE_S = 2.0
"""How often it is looked whether the queue there takes and starts jobs (seconds)."""
CLOSED_S = 0.2
"""The same while it does not, as while the other instance starts: jobs wait for it (seconds)."""

PASSING = frozenset((errno.EAGAIN, errno.ESHUTDOWN, errno.ENOSPC, errno.EIO, errno.EBUSY, errno.ETIMEDOUT))
"""Errors of a submit that pass: it is tried again."""

REFUSED = {
    errno.ENOSYS: "it takes no leases: its fluxsched is too old",
    errno.EPERM: "only its owner has leases there: connect as its user, or by tcp with a key of the role owner",
    errno.ESTALE: "a later start of this state has used it: stop the other instance that has a copy of it; where "
    "there is none, the clock here was behind at this start: set it right and restart, or restart the cluster",
}
"""What refusals of `lease.watch` mean."""


class OwnLink:
    """A `ClusterLink` to an instance of ours."""

    def __init__(
        self, connection: ClusterConnection, events: LinkEvents, holder: str, session: int, queue: str | None
    ) -> None:
        self._connection = connection
        self._events = events
        self._holder = holder
        self._session = session
        self._queue = queue
        self._listed: list[SeenJob] | None = []

    def begin(self) -> None:
        """See `ClusterLink`. The queue comes first: by it is known which targets count."""
        self._ask_queue(self._begin_queue)
        watch = msg.LeaseWatchRequest(self._holder, self._session)
        self._connection.ask("lease.watch", watch, self._leases, streaming=True)

    def _ask_queue(self, take: Callable[[queues.QueueStatus | None], None]) -> None:
        """Call `take` with the status of the queue that gets our jobs; None if there is no default queue there."""

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is not None and self._queue is not None:
                self._connection.lose(f"queue {self._queue!r} there: {error}")
            else:
                take(None if error is not None else read(payload, queues.QueueStatus))

        self._connection.ask("job-manager.queue-status", queues.QueueStatusRequest(self._queue), answered)

    def _begin_queue(self, status: queues.QueueStatus | None) -> None:
        self._events.reaches(None if status is None else tuple(status.groups or (status.group,)))
        self._connection.ask("resource.watch", Empty(), self._machine, streaming=True)
        self._look_at(status)

    def _look(self) -> None:
        self._ask_queue(self._look_at)

    def _look_at(self, status: queues.QueueStatus | None) -> None:
        why = "" if status is None else _why_closed(status)
        self._events.closed(why)
        self._connection.later(CLOSED_S if why else QUEUE_S, self._look)

    def _machine(self, payload: bytes | None, error: RPCError | None) -> None:
        if error is not None:
            self._connection.lose(f"resource.watch: {error}")
            return
        change = read(payload, MachineChange)
        groups = None if change.groups is None else {group.name: group.targets for group in change.groups}
        self._events.machine(change.R, change.states, groups)

    def _leases(self, payload: bytes | None, error: RPCError | None) -> None:
        if error is not None and error.errnum == errno.ESTALE and self._listed is None:
            self._events.displaced()
            return
        if error is not None:
            self._connection.lose(REFUSED.get(error.errnum, str(error)))
            return
        answer = read(payload, msg.LeaseWatchResponse)
        seen = [_seen(one) for one in answer.leases]
        if self._listed is None:
            self._events.changed(seen)
            return
        self._listed += seen
        if answer.whole:
            listed, self._listed = self._listed, None
            self._events.listed(listed)

    def submit(self, lease: Lease) -> None:
        """See `ClusterLink`."""
        name = lease.name

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is None:
                jobid = read(payload, msg.LeaseSubmitResponse).id
                self._events.changed([SeenJob(name, jobid, LeaseEvent.WAITING)])
            elif error.errnum in PASSING:
                self._events.refused(name, str(error), passes=True)
            elif error.errnum != errno.ESTALE:  # else a later session has begun, which will list what there is
                self._ask_queue(lambda status: self._refused(name, str(error), status))

        request = msg.LeaseSubmitRequest(name, self._session, lease.jobspec, lease.urgency)
        self._connection.ask("lease.submit", request, answered)

    def _refused(self, name: str, note: str, status: queues.QueueStatus | None) -> None:
        """A refusal of a queue that accepts no jobs at all is not about this one."""
        if status is not None and not status.enable:
            self._events.closed(_why_closed(status))
            self._events.turned_away(name, note)
        else:
            self._events.refused(name, note, passes=False)

    def withdraw(self, name: str, jobid: int) -> None:
        """See `ClusterLink`: in one step there, so it either was begun or never will be."""

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is not None and error.errnum == errno.ENOENT:
                self._events.absent(name)

        self._connection.ask("lease.withdraw", msg.LeaseWithdrawRequest(name, self._session), answered)

    def cancel(self, name: str, jobid: int, note: str) -> None:
        """See `ClusterLink`. Where the id is not known yet it is withdrawn, and cancelled when it is."""
        if jobid:
            self._connection.ask("job-manager.cancel", jobs.JobCancelRequest(jobid, note), _ignored)
        else:
            self.withdraw(name, jobid)

    def signal(self, jobid: int, signum: int) -> None:
        """See `ClusterLink`."""
        self._connection.ask("job-manager.kill", jobs.KillRequest(jobid, signum), _ignored)

    def limit(self, jobid: int, duration_s: float) -> None:
        """See `ClusterLink`."""
        updates: dict[str, Any] = {"attributes.system.duration": duration_s}
        self._connection.ask("job-manager.update", jobs.UpdateRequest(jobid, updates), _ignored)

    def settle(self, names: Sequence[str]) -> None:
        """See `ClusterLink`."""
        for start in range(0, len(names), msg.LEASE_NAMES_MAX):
            some = list(names[start : start + msg.LEASE_NAMES_MAX])
            self._connection.ask("lease.settle", msg.LeaseSettleRequest(some), _ignored)

    def output(self, jobid: int, take: TakeOutput, ended: Callable[[str | None], None]) -> None:
        """See `ClusterLink`."""

        def answered(payload: bytes | None, error: RPCError | None) -> None:
            if error is None:
                piece = read(payload, jobs.OutputResponse)
                take(piece.stream, piece.data, piece.task or 0)
            else:
                ended(None if error.errnum == errno.ENODATA else str(error))

        self._connection.ask("job-manager.output", jobs.OutputRequest(jobid, True), answered, streaming=True)


def _why_closed(status: queues.QueueStatus) -> str:
    title = "its queue" if status.name is None else f"its queue {status.name}"
    return why_closed(title, status.enable, status.enable_reason, status.start, status.start_reason)


def _seen(one: msg.LeaseInfo) -> SeenJob:
    if one.state == "waiting":
        return SeenJob(one.name, one.id, LeaseEvent.WAITING)
    if one.state == "running":
        return SeenJob(one.name, one.id, LeaseEvent.BEGUN, nodelist=one.nodelist or "")
    what = LeaseEvent.FINISHED if one.began else LeaseEvent.REFUSED
    usage = None if one.usage is None else _plain(one.usage)
    status = -1 if one.status is None else one.status
    return SeenJob(one.name, one.id, what, status, one.exception or "", one.note, usage, one.nodelist or "")


def _plain(usage: jobs.UsageInfo) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in jobs.UsageInfo.__struct_fields__}


def _ignored(payload: bytes | None, error: FluxschedError | None) -> None:
    """What follows is seen by the watch."""
