"""All clusters of an instance: which jobs run in which, their leases in the store, the `lease` executor, `job why`.

Law: a job's lease is stored in the transaction of its `alloc` event, and removed in that of its end. Of a silent
cluster `job why` says so, since when, and what can be done about it, not that its targets are down.

The `lease` service: jobs that another instance has run here, each once by its name (rfc/clusters.md).

Law: a name is in the store from the transaction of its job's submit until its holder has stored the job's end, so a
submit that comes again finds the job whatever was killed between. A holder has one session, its latest: what an earlier
one sent and comes late is refused, so that what a holder was told of a name stays true.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from fluxsched.clusters.links import ClusterConnection, ClusterLink, ClusterPace, FluxLink, OwnLink
from fluxsched.clusters.loop import STORED_KIND, ClusterLoop, LeaseReports, OfferedTargets, OpenClient, OutputCopy
from fluxsched.config.values import ClusterSettings
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.reasons import Why, and_in_clusters
from fluxsched.core.resources import ResourceSet, with_own_topology
from fluxsched.core.text import there_are
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.executor.base import TERMINATING, JobLaunch, Measured, Reports, ResumedJob
from fluxsched.jobs.job import JobSummary
from fluxsched.jobs.states import CANCEL, INACTIVE, PENDING, RUN, SCHED, merge
from fluxsched.jobs.table import result
from fluxsched.leases import Lease, LeaseState, Wish, holder_of, jobspec_for, lease_name, size_is_settled
from fluxsched.messaging.memo import JobspecMemo
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Router, forget
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.jobs import UsageInfo
from fluxsched.services.job_effects import JobEffects, JobEvents
from fluxsched.services.jobs import JobService, read_ended_job
from fluxsched.services.resource import ResourceService
from fluxsched.store.store import Store, Writer
from fluxsched.system.clock import local_text

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
        jobid = self._jobs.accept(request, self._specs.read(wanted.jobspec), wanted.urgency, 0, msg.LeaseSubmitResponse)
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


# ---- clusters

HOLDER = ("lease", "holder")
SESSIONS = ("lease", "sessions")
"""Rows of `saved`: by which name leases of this state are known, and the number of its latest start: the time, since a
backup that is restored shall not come back with a number that was used.
"""
SESSION_BITS = 24
"""Number of bits of a session's number that count the connections of one start; one a second for half a year."""


@dataclass(slots=True)
class StoredClusters:
    """Stored state of clusters, as read at a restart."""

    holder: str = ""
    latest_start: int = 0
    leases: list[Lease] = field(default_factory=list)
    mirrors: dict[str, ResourceSet] = field(default_factory=dict)

    def read(self, kind: str, key: str, value: object) -> bool:
        """Take a row of `saved`; return whether it is about clusters."""
        if (kind, key) == HOLDER:
            self.holder = str(value)
        elif (kind, key) == SESSIONS and isinstance(value, int):
            self.latest_start = value
        elif kind == STORED_KIND:
            if isinstance(value, dict):
                self.mirrors[key] = ResourceSet.parse(value)
        else:
            return False
        return True


class Clusters:
    """The clusters that are configured, and those that leases are left of."""

    def __init__(
        self,
        settings: Iterable[ClusterSettings],
        stored: StoredClusters,
        holder: str,
        connect: OpenClient,
        connecting: Writer,
        effects: JobEffects,
        resource: ResourceService,
        router: Router,
        store: Store,
        spool: Path,
        pace: ClusterPace,
        answered: Callable[[], None],
    ) -> None:
        """`answered` is called when it becomes known of another cluster whether it answers."""
        self._lease_reports = LeaseReports(answered, self._note_place, self._returned, self._over)
        self._stored = stored
        self._pace = pace
        self._connect = connect
        self._connecting = connecting
        self._effects = effects
        self._resource = resource
        self._store = store
        self._turns = effects.turns
        self._settings = tuple(settings)
        self._loops: dict[str, ClusterLoop] = {}
        self._ranks: dict[str, Idset] = {}
        """Each rank that a target of a cluster has, or had."""
        self._leases: dict[int, Lease | FluxschedError] = {}
        """Leases of jobs that are about to start; the leases are being stored."""
        self._clusters: dict[int, str] = {lease.jobid: lease.cluster for lease in stored.leases}
        self._restored = {lease.jobid: lease for lease in stored.leases}
        self._holder = stored.holder or holder
        self._start = max(stored.latest_start + 1, int(self._turns.wall_s))
        self._sessions = 0
        self._spool = spool
        router.serve({"cluster.list": self._list, "cluster.forget": self._forget})

    @property
    def is_used(self) -> bool:
        """Return whether a cluster is configured or a lease is stored."""
        return bool(self._settings or self._stored.leases)

    @property
    def have_answered(self) -> bool:
        """Return whether each cluster has answered or is known to be silent."""
        return all(loop.has_answered for loop in self._loops.values())

    @property
    def mirrored(self) -> Idset:
        """Return the targets of all clusters."""
        found = EMPTY
        for ranks in self._ranks.values():
            found |= ranks
        return found

    def mirrors(self) -> list[tuple[str, ResourceSet]]:
        """Return the targets of each configured cluster in this instance's R, for a reload of the inventory."""
        resources = self._resource.module.resources
        theirs = {name: loop.offered.targets for name, loop in self._loops.items() if loop.settings}
        return [(name, with_own_topology(resources.restrict(targets))) for name, targets in theirs.items()]

    # -- assembly

    def executor(self, reports: Reports) -> LeaseExecutor:
        """Return the executor of the clusters' jobs; from now on these are recognised."""
        effects = self._effects
        if self.is_used:
            effects.add_leases(self)
            effects.held.append(self.held)
            effects.unheld.append(self.unheld)
            self._store.add("saved", (*HOLDER, msgspec.json.encode(self._holder)))
            self._store.add("saved", (*SESSIONS, msgspec.json.encode(self._start)))
            known = {one.name: one for one in self._settings}
            left = dict.fromkeys(lease.cluster for lease in self._stored.leases)
            for name in [*known, *(name for name in left if name not in known)]:
                self._loops[name] = self._loop(name, known.get(name), reports)
            for name, theirs in self._stored.mirrors.items():
                if name in known:
                    self._grown(name, self._resource.module.targets.admit(theirs).resources.ranks)
        return LeaseExecutor(reports, self._loop_of, self._take)

    def _loop(self, name: str, settings: ClusterSettings | None, reports: Reports) -> ClusterLoop:
        turns, store = self._turns, self._store
        is_group = settings is not None
        has_parts = settings is None or not settings.is_flux
        offered = OfferedTargets(
            name, self._resource, store, turns, self._grown, is_group=is_group, has_parts=has_parts, pace=self._pace
        )  # fmt: skip
        return ClusterLoop(
            name, settings, self._connect, self._link, offered, OutputCopy(self._spool, self._is_spooled),
            reports, self._lease_reports, store, turns, self._connecting, self._pace,
        )  # fmt: skip

    def _link(self, connection: ClusterConnection, loop: ClusterLoop) -> ClusterLink:
        assert loop.settings is not None, "only configured clusters are connected to"
        if loop.settings.is_flux:
            return FluxLink(connection, loop, self._holder, loop.table.leases.keys, loop.settings.queue)
        self._sessions += 1
        session = (self._start << SESSION_BITS) + self._sessions
        return OwnLink(connection, loop, self._holder, session, loop.settings.queue, self._pace)

    def open(self) -> None:
        """Connect to the clusters once the number of this start is on disk; abandon leases whose jobs have ended."""
        for jobid in self._restored.keys() - self._effects.manager.jobs.active.keys():
            del self._restored[jobid]
            self._store.remove("lease", (jobid,))
        for loop in self._loops.values():
            self._store.after_commit(loop.open)

    def close(self) -> None:
        """Close the connections to all clusters."""
        for loop in self._loops.values():
            loop.close()

    def held(self, jobid: int, ranks: Idset) -> None:
        """Record that a job holds these targets."""
        self.granted(jobid, ranks)
        self._jobs_changed(ranks)

    def unheld(self, released: Sequence[tuple[int, Idset]]) -> None:
        """Record that each of these jobs no longer holds these targets."""
        for _, ranks in released:
            self._jobs_changed(ranks)

    def _jobs_changed(self, ranks: Idset) -> None:
        for name, mine in self._ranks.items():
            if ranks & mine:
                self._loops[name].offered.jobs_changed()

    # -- jobs

    def _grown(self, name: str, ranks: Idset) -> None:
        self._ranks[name] = self._ranks.get(name, EMPTY) | ranks

    def has(self, jobid: int) -> bool:
        """Return whether the job has a lease."""
        return jobid in self._clusters

    def is_out_of_reach(self, jobid: int) -> bool:
        """Return whether the job runs in a cluster that is silent."""
        loop = self._loop_of(jobid)
        return loop is not None and not loop.table.is_known

    def granted(self, jobid: int, held: Idset) -> None:
        """Create the lease of a job that has just been granted these targets, if they are a cluster's, in the same
        transaction.
        """
        cluster = next((name for name, ranks in self._ranks.items() if held <= ranks), None)
        if cluster is None or jobid in self._clusters:
            return
        job = self._effects.manager.jobs.active[jobid]
        assert job.jobspec is not None, "a job that is to start has its jobspec"
        settings = self._loops[cluster].settings
        queue = None if settings is None else settings.queue
        self._clusters[job.id] = cluster
        try:
            jobspec = jobspec_for(job.jobspec, job.id, cluster, queue, job.duration_s, job.parsed())
        except InvalidValue as fault:
            self._leases[job.id] = fault
            return
        attempt = 0 if job.attempt is None else job.attempt.number
        lease = Lease(job.id, attempt, cluster, lease_name(self._holder, job.id), jobspec, urgency=job.urgency)
        self._leases[job.id] = lease
        self._store.add("lease", lease.row())

    def _take(self, jobid: int) -> Lease:
        found = self._leases.pop(jobid, None) or self._restored.pop(jobid, None)
        if isinstance(found, Lease):
            return found
        raise found if found is not None else Refused(f"job {format_f58(jobid)} has no lease")

    def _returned(self, jobid: int, note: str) -> None:
        loop, job = self._loop_of(jobid), self._effects.manager.jobs.active.get(jobid)
        if loop is not None and job is not None:
            loop.offered.returned(jobid, len(job.held), loop.table.return_after_s)
        self._effects.returned(jobid, note)

    def _loop_of(self, jobid: int) -> ClusterLoop | None:
        return self._loops.get(self._clusters.get(jobid, ""))

    def explain(self, job: JobSummary, why: Why) -> Why:
        if job.state & PENDING:
            return why._replace(reason=and_in_clusters(why.reason, self._unavailable(job.queue.config.groups)))
        loop = self._loop_of(job.id) if job.state is RUN else None
        lease = None if loop is None else loop.table.of_job(job.id)
        return why if loop is None or lease is None else lease_status(loop, lease) or why

    def _unavailable(self, groups: Iterable[str]) -> list[str]:
        loops = [loop for name in groups if (loop := self._loops.get(name))]
        return list(filter(None, map(why_unavailable, loops)))

    def extend_listed(self, jobs: list[dict[str, Any]]) -> None:
        """Add the reasons of clusters, as in `job why`, to listed jobs that wait; a job without a reason, which waits
        its turn, gets one if none of its groups begins any job.
        """
        found: dict[tuple[str, ...], list[str]] = {}
        for one in jobs if self._loops else ():
            job = self._effects.manager.jobs.active.get(one["id"])
            if job is None or job.state is not SCHED:
                continue
            groups = job.queue.config.groups
            if groups not in found:
                found[groups] = self._unavailable(groups)
            clusters = found[groups]
            reason = one["annotations"].get("sched", {}).get("reason_pending")
            if clusters and (reason or len(clusters) == len(groups)):
                text = and_in_clusters(reason or "", clusters)
                one["annotations"] = merge(one["annotations"], {"sched": {"reason_pending": text}})

    def _over(self, jobid: int) -> None:
        self._clusters.pop(jobid, None)

    def _note_place(self, jobid: int, cluster: str, there: int, nodelist: str) -> None:
        job = self._effects.manager.jobs.active.get(jobid)
        if job is not None:
            known = {"id": there, "nodelist": nodelist}
            where = {"cluster": cluster} | {key: value for key, value in known.items() if value}
            job.annotations = {**(job.annotations or {}), "lease": where}

    def _is_spooled(self, jobid: int) -> bool:
        """Return whether the output of the job is kept by the instance that runs it."""
        job = self._effects.manager.jobs.active.get(jobid)
        if job is None or job.jobspec is None or job.jobspec.test_run_duration_s is not None:
            return False
        return job.jobspec.output is None

    # -- requests

    def _list(self, request: RpcRequest) -> None:
        request.respond(msg.ClusterListResponse([loop.info() for loop in self._loops.values()]))

    def _forget(self, request: RpcRequest) -> None:
        name = request.payload(msg.ClusterForgetRequest).name
        loop = self._loops.get(name)
        if loop is None:
            raise Refused(f"there is no cluster {name!r}; {there_are(list(self._loops))}", errno.ENOENT)
        if loop.table.is_known:
            text = f"cluster {name} answers, so its leases need not be given up: cancel its jobs instead"
            raise Refused(text, errno.EBUSY)
        returned, failed = loop.forget()
        self._effects.after_commit(lambda: request.respond(msg.ClusterForgetResponse(returned, failed)))


# ---- reasons why a cluster is unavailable


def why_unavailable(loop: ClusterLoop) -> str:
    """Why no job, or none of some size, begins in the cluster at present; empty if any may."""
    if loop.settings is None:
        return ""
    if not loop.table.is_known and not loop.offered.targets:
        return ""  # the scheduler says that it has not answered
    if not loop.table.is_known:
        return f"cluster {loop.name} is silent{_since(loop)}: {loop.note}"
    note = loop.offered.note
    return f"cluster {loop.name}: {note}" if note else ""


def lease_status(loop: ClusterLoop, lease: Lease) -> Why | None:
    """Return the reason why a job with targets of the cluster waits; None if the job runs and the cluster answers."""
    has_begun, silent = lease.state is LeaseState.RUNNING, not loop.table.is_known
    if has_begun and not silent:
        return None
    if silent:
        what = "runs in" if has_begun else "was sent to" if lease.state is LeaseState.SENT else "is to run in"
        kept = f"its jobs are kept until it answers; if it will not return: fluxsched cluster forget {loop.name}"
        return Why(f"it {what} cluster {loop.name}, which is silent{_since(loop)}: {loop.note}", kept)
    reason = f"it was given targets of cluster {loop.name} and waits to start there"
    if lease.wish is Wish.RETURN:
        return Why(f"{reason}; it is being taken back, since that took too long")
    late_s = lease.since_s + loop.table.return_after_s
    rule = f"a job not begun there by {local_text(late_s)} is submitted again here, without counting as an attempt"
    return Why(reason, rule)


def _since(loop: ClusterLoop) -> str:
    return "" if loop.since_s is None else f" since {local_text(loop.since_s)}"


# ---- the executor of leased jobs

START_KEY = "starttime"


class LeaseExecutor:
    """Executor that forwards requests to the loop of the job's cluster; reports originate there."""

    def __init__(
        self, reports: Reports, loop_of: Callable[[int], ClusterLoop | None], take: Callable[[int], Lease]
    ) -> None:
        self._reports = reports
        self._loop_of = loop_of
        self._take = take
        """The lease of a job that is to start, which is in the store. Raises FluxschedError."""

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """Resume leases; each counts as sent, since the store does not record exactly whether a lease was sent."""
        for job in jobs:
            try:
                lease = self._take(job.launch.jobid)
            except FluxschedError as fault:
                self._reports.failed(job.launch.jobid, str(fault))
                continue
            lease.state = LeaseState.SENT if job.begun_s is None else LeaseState.RUNNING
            self._want(lease, job.launch)
            if job.is_ending:
                self.kill(lease.jobid, 15)
        settled()

    def start(self, job: JobLaunch) -> None:
        """Send the lease, which is on disk."""
        self._want(self._take(job.jobid), job)

    def _want(self, lease: Lease, job: JobLaunch) -> None:
        lease.since_s = _granted_s(job.R)
        loop = self._loop_of(lease.jobid)
        if loop is not None:
            loop.want(lease)

    def limit(self, jobid: int, expiration_s: float) -> None:
        """Set the time limit in this instance's record, and forward it."""
        loop = self._loop_of(jobid)
        lease = None if loop is None else loop.table.of_job(jobid)
        if loop is not None and lease is not None:
            loop.limit(jobid, max(0.0, expiration_s - lease.since_s) if expiration_s else 0.0)

    def measure(self, jobid: int, measured: Measured) -> None:
        """Say that nothing is known before the job has ended there."""
        measured(None)

    def input_of(self, jobid: int) -> None:
        """Raise Refused: input is not forwarded."""
        loop = self._loop_of(jobid)
        if loop is not None:
            raise Refused(f"the job runs in cluster {loop.name}: its tasks cannot be sent input from here")

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """End the job there by a terminating signal, with the grace time that holds there."""
        loop = self._loop_of(jobid)
        if loop is None:
            return
        if signum in TERMINATING:
            loop.kill(jobid)
        else:
            loop.signal(jobid, signum)

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        """Do nothing: the size of a job there was settled when it was sent, so the job manager refuses growth
        before.
        """

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """Report the targets as released, as for `grow`: the job keeps in the cluster what it has."""
        self._reports.released(jobid, ranks)

    def give_back(self, jobid: int, ranks: Idset) -> None:
        """Raise Refused: jobs there do not change their size."""
        raise size_is_settled(jobid)

    def close(self) -> None:
        """Do nothing: the loops are closed with the instance."""

    def detach(self, within_s: float) -> None:
        """Do nothing: the jobs continue in their clusters."""


def _granted_s(R: Mapping[str, Any]) -> float:  # noqa: N803 - RFC 20's name
    return float(R["execution"].get(START_KEY, 0.0))
