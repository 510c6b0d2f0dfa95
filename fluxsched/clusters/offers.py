"""The `lease` service: jobs that another instance has run here, each once by its name (rfc/clusters.md).

Law: a name is in the store from the transaction of its job's submit until its holder has stored the job's end, so a
submit that comes again finds the job whatever was killed between. A holder has one session, its latest: what an earlier
one sent and comes late is refused, so that what a holder was told of a name stays true.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from fluxsched.errors import Refused
from fluxsched.jobs.states import CANCEL, INACTIVE, PENDING
from fluxsched.jobs.table import result
from fluxsched.leases import holder_of
from fluxsched.messaging.memo import JobspecMemo
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Router, forget
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.jobs import UsageInfo
from fluxsched.services.job_effects import JobEffects, JobEvents
from fluxsched.services.jobs import JobService, read_ended_job
from fluxsched.store.store import Store

GIVEN_MAX = 1 << 20
"""Names kept at a time: as many as there may be active jobs."""

ENTRIES_MAX = 1000
"""Jobs in one response of `lease.watch`."""

_SUBMIT = framing.with_raw(msg.LeaseSubmitRequest, "jobspec")
_NEWS = frozenset(("start", "clean"))


class LeaseService:
    """Service of the `lease.*` topics."""

    def __init__(
        self,
        effects: JobEffects,
        jobs: JobService,
        router: Router,
        store: Store,
    ) -> None:
        self._effects = effects
        self._manager = effects.manager
        self._jobs = jobs
        self._store = store
        self._turns = effects.turns
        self._specs = JobspecMemo()
        self._jobids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._states: dict[int, Literal["waiting", "running", "ended"]] = {}
        """States of leased jobs by names of `LeaseInfo.state`, as far as they are on disk: none is sent before."""
        self._by_holder: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._sessions: dict[str, int] = {}
        self._watchers: dict[str, RpcRequest] = {}
        self._changed: dict[int, None] = {}
        """Jobs with news on disk that their holders do not have yet, in order."""
        router.serve(
            {
                "lease.submit": self._submit,
                "lease.watch": self._watch,
                "lease.withdraw": self._withdraw,
                "lease.settle": self._settle,
            }
        )
        effects.publish.append(self._publish)
        effects.published.append(self._flush)

    def __len__(self) -> int:
        return len(self._jobids)

    def restore(self, names: Mapping[str, int]) -> None:
        """Restore the names of before a restart, once the jobs are restored."""
        for name, jobid in names.items():
            self._keep(name, jobid)

    def _keep(self, name: str, jobid: int) -> None:
        job = self._manager.jobs.active.get(jobid)
        self._states[jobid] = "ended" if job is None else "running" if job.started else "waiting"
        self._jobids[name], self._names[jobid] = jobid, name
        self._by_holder[holder_of(name)][name] = None

    # -- requests

    def _submit(self, request: RpcRequest) -> None:
        wanted = request.payload(_SUBMIT)
        name = wanted.name
        self._check_session(holder_of(name), wanted.session)
        known = self._jobids.get(name)
        if known is not None:
            self._jobs.answer(request, msg.LeaseSubmitResponse(known))
            return
        if len(self._jobids) >= GIVEN_MAX:
            raise Refused(f"{GIVEN_MAX} leases are kept, the limit: end some first", errno.EAGAIN)
        jobid = self._jobs.accept(
            request, self._specs.read(wanted.jobspec), wanted.urgency, 0, msg.LeaseSubmitResponse
        )
        self._keep(name, jobid)
        self._store.add("leased", (name, jobid))

    def _watch(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.LeaseWatchRequest)
        holder = wanted.holder
        self._check_session(holder, wanted.session)
        request.open_stream(lambda: self._unwatch(holder, request))
        self._sessions[holder] = wanted.session
        earlier = self._watchers.pop(holder, None)
        if earlier is not None:
            earlier.error(errno.ESTALE, f"a later session of {holder} watches now")

        def begin() -> None:
            if request.is_open:
                self._watchers[holder] = request
                self._send_all(holder, request)

        self._store.when_idle(begin, request.failed)  # or a change would be listed and news

    def _unwatch(self, holder: str, request: RpcRequest) -> None:
        if self._watchers.get(holder) is request:
            forget(self._watchers, holder)

    def _withdraw(self, request: RpcRequest) -> None:
        wanted = request.payload(msg.LeaseWithdrawRequest)
        self._check_session(holder_of(wanted.name), wanted.session)
        jobid = self._jobids.get(wanted.name)
        if jobid is None:
            raise Refused(f"there is no job named {wanted.name}", errno.ENOENT)
        job = self._manager.jobs.find(jobid)
        if job is not None and job.state & PENDING:
            note, now_s = "its lease was withdrawn", self._turns.wall_s
            self._effects.perform(self._manager.requests.raise_exception(jobid, CANCEL, 0, note, request.userid, now_s))
        elif job is not None and job.state is not INACTIVE:
            raise Refused(f"{job.title} has its resources: it was not withdrawn", errno.EBUSY)
        self._jobs.answer(request)

    def _settle(self, request: RpcRequest) -> None:
        for name in request.payload(msg.LeaseSettleRequest).names:
            jobid = self._jobids.get(name)
            if jobid is not None and jobid not in self._manager.jobs.active:
                del self._jobids[name], self._names[jobid], self._states[jobid]
                forget(self._by_holder[holder_of(name)], name)
                self._store.remove("leased", (name,))
        self._jobs.answer(request)

    def _check_session(self, holder: str, session: int) -> None:
        latest = self._sessions.get(holder, 0)
        if session < latest:
            raise Refused(f"session {session} of {holder} is over: session {latest} has begun", errno.ESTALE)

    # -- news

    def _publish(self, stored: Sequence[JobEvents]) -> None:
        """Publish the states of leased jobs whose events are on disk now."""
        if not self._names:
            return
        for jobid, events in stored:
            if jobid in self._names and any(event["name"] in _NEWS for event in events):
                self._states[jobid] = "ended" if events[-1]["name"] == "clean" else "running"
                self._changed[jobid] = None

    def _flush(self) -> None:
        changed, self._changed = self._changed, {}
        found: defaultdict[str, list[msg.LeaseInfo]] = defaultdict(list)
        for jobid in changed:
            name = self._names.get(jobid, "")
            if holder_of(name) in self._watchers:
                found[holder_of(name)].append(self._info(name, jobid))
        for holder, leases in found.items():
            request = self._watchers[holder]
            for start in range(0, len(leases), ENTRIES_MAX):
                request.respond(msg.LeaseWatchResponse(leases[start : start + ENTRIES_MAX]))

    def _send_all(self, holder: str, request: RpcRequest) -> None:
        names = list(self._by_holder.get(holder, ()))
        for start in range(0, len(names), ENTRIES_MAX):
            some = [self._info(name, self._jobids[name]) for name in names[start : start + ENTRIES_MAX]]
            request.respond(msg.LeaseWatchResponse(some))
        request.respond(msg.LeaseWatchResponse([], whole=True))

    def _info(self, name: str, jobid: int) -> msg.LeaseInfo:
        state = self._states[jobid]
        if state == "ended":
            return self._ended(name, jobid)
        job = self._manager.jobs.find(jobid) if state == "running" else None
        nodelist = None if job is None else job.nodelist or None
        return msg.LeaseInfo(name=name, id=jobid, state=state, began=state == "running", nodelist=nodelist)

    def _ended(self, name: str, jobid: int) -> msg.LeaseInfo:
        job = self._manager.jobs.find(jobid) or read_ended_job(self._store, jobid)
        how = None if job is None else result(job)
        if job is None or how is None:
            return msg.LeaseInfo(name=name, id=jobid, state="ended", began=True, status=-1, note="its record is gone")
        return msg.LeaseInfo(
            name=name,
            id=jobid,
            state="ended",
            began=job.started,
            nodelist=job.nodelist or None,
            status=how.status,
            exception=how.exception_type,
            note=how.exception_note or how.errstr,
            usage=None if job.usage is None else msgspec.convert(job.usage.to_json(), UsageInfo),
        )
