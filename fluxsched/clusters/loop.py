"""One cluster: its leases, its targets as they are offered here, the output of its jobs, and the connection to it.

Law: what is on disk here decides. A lease is in the store before it is sent, and until the end of its job is; where the
other instance is silent nothing is concluded from that. The group follows what the other instance says: a target that
jobs of others use is offline here, though a use that is over within `OCCUPIED_S` is not noticed, since the end of a job
of ours looks like one. Where a job was not begun in time, jobs that want as many targets are not offered any for as
long again: else the job that is returned, the first in line, would come to the same place. One that has no targets for
jobs of ours any more keeps, offline, those that it had. Output is copied into the spool directory here, from the first
byte whenever a copy begins, since what was copied before a loss is not known exactly.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fluxsched.clusters.links import ClusterConnection, ClusterLink, ClusterPace
from fluxsched.config.values import ClusterSettings
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError
from fluxsched.executor.base import Reports, spool_directory, spool_name
from fluxsched.leases import (
    CancelThere,
    Lease,
    LeaseBegan,
    LeaseDropped,
    LeaseEffect,
    LeaseFailed,
    LeaseFinished,
    LeaseReturned,
    LeaseSeen,
    LeaseState,
    LeaseTable,
    Mirror,
    SaveLease,
    SeenJob,
    SettleThere,
    SignalThere,
    SubmitThere,
    WithdrawThere,
    taken_by_others,
)
from fluxsched.protocol.messages.jobs import ClusterInfo
from fluxsched.services.resource import ResourceService
from fluxsched.store.store import Store, Writer
from fluxsched.system.clock import local_text
from fluxsched.system.log import logger
from fluxsched.system.loop import Timer, Turns
from fluxsched.transport.base import Client

log = logger("clusters")

FIRST_ANSWER_S = 5.0
"""Maximum time for which this instance is not ready because a first response is missing (seconds)."""

DISPLACED = "another instance with a copy of this state has its leases there: stop one, and restart the other"
"""Reason why a cluster is silent if another instance uses it under the same holder name."""

OpenClient = Callable[[str, str | None], Client]
"""Connects to a URI with the key in a file, which may take seconds. Raises FluxschedError."""
MakeLink = Callable[[ClusterConnection, "ClusterLoop"], ClusterLink]


@dataclass(frozen=True, slots=True)
class LeaseReports:
    """Callbacks for what an executor does not report."""

    answered: Callable[[], None]
    """It first became known whether the other instance answers."""
    placed: Callable[[int, str, int, str], None]
    """(jobid, cluster, id there, hosts there): the job is in that cluster (0, empty: not known so far)."""
    returned: Callable[[int, str], None]
    """(jobid, note): the job was not begun in time, and is submitted again."""
    over: Callable[[int], None]
    """(jobid): the job has no lease any more."""


class ClusterLoop:
    """The leases of one cluster, and the `LinkEvents` of its link.

    `settings` is None for a cluster that is not configured any more.
    """

    def __init__(
        self,
        name: str,
        settings: ClusterSettings | None,
        connect: OpenClient,
        make_link: MakeLink,
        offered: OfferedTargets,
        output: OutputCopy,
        reports: Reports,
        lease_reports: LeaseReports,
        store: Store,
        turns: Turns,
        connecting: Writer,
        pace: ClusterPace,
    ) -> None:
        self.name = name
        self._pace = pace
        self.settings = settings
        self.offered = offered
        self.table = LeaseTable(name, settings.return_after_s if settings is not None else 0.0)
        self.has_answered = settings is None
        self.note = "it has not answered yet" if settings is not None else "it is not configured any more"
        self.since_s: float | None = None
        self._connect = connect
        self._connecting = connecting
        self._make_link = make_link
        self._output = output
        self._reports = reports
        self._lease_reports = lease_reports
        self._store = store
        self._turns = turns
        self._connection: ClusterConnection | None = None
        self._link: ClusterLink | None = None
        self._late: Timer | None = None
        self._finishing: dict[int, SeenJob] = {}
        """Jobs that have ended there, while the rest of their output is copied."""
        self._is_closed = False
        if settings is not None:
            turns.source(self._take)

    # -- the connection

    def open(self) -> None:
        """Connect, now and whenever the connection is lost."""
        if self._is_closed or self.settings is None or self._connection is not None:
            return
        if not self.has_answered:
            self._turns.after(FIRST_ANSWER_S, self._answered)
        uri, key = self.settings.uri, self.settings.key
        found: list[Client | FluxschedError] = []

        def connect() -> None:
            try:
                client = self._connect(uri, key)
            except FluxschedError as fault:
                found.append(fault)
                return
            found.append(client)
            if self._is_closed:  # then no turn comes any more
                client.close()

        self._connecting.run(connect, lambda: self._opened(found[0]))

    def _opened(self, found: Client | FluxschedError) -> None:
        if self._is_closed or self.settings is None:
            return
        if isinstance(found, FluxschedError):
            self._silent(str(found))
            self._turns.after(self._pace.reconnect_s, self.open)
            return
        self._connection = connection = ClusterConnection(found, self._turns, self._lost, json=self.settings.is_flux)
        self._link = self._make_link(connection, self)
        self._link.begin()
        self._turns.after(self._pace.listen_s, partial(self._listen, connection, connection.received))

    def _take(self, until_s: float) -> bool:
        return self._connection is not None and self._connection.take()

    def _listen(self, connection: ClusterConnection, received: int) -> None:
        if connection is not self._connection:
            return
        if connection.received == received:
            connection.lose(f"it has not answered within {self._pace.listen_s:g} s")
            return
        self._turns.after(self._pace.listen_s, partial(self._listen, connection, connection.received))

    def _lost(self, reason: str) -> None:
        self._connection = self._link = None
        self.table.lost()
        self._output.lost(self.name)
        self._silent(reason)
        self._turns.after(self._pace.reconnect_s, self.open)

    def _silent(self, reason: str) -> None:
        if self.note != reason:
            log.warning("cluster %s is silent: %s", self.name, reason)
            self.since_s = self._turns.wall_s
        self.note = reason
        self.offered.silent()
        self._answered()

    def _answered(self) -> None:
        if not self.has_answered:
            self.has_answered = True
            self._lease_reports.answered()

    def close(self) -> None:
        """Close the connection for good; leases stay as they are stored."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = self._link = None

    # -- what is asked here

    def want(self, lease: Lease) -> None:
        """Add a lease that is in the store."""
        if lease.state is not LeaseState.RUNNING:
            self._lease_reports.placed(lease.jobid, self.name, 0, "")
        self.perform(self.table.want(lease))
        self._await_late()

    def kill(self, jobid: int) -> None:
        """Have the job end in the other instance."""
        self.perform(self.table.kill(jobid))

    def signal(self, jobid: int, signum: int) -> None:
        """Send a signal to the tasks of the job."""
        self.perform(self.table.signal(jobid, signum))

    def limit(self, jobid: int, duration_s: float) -> None:
        """Change the job's time limit, counted from its start; a silent cluster does not receive it, and the limit is
        enforced in this instance.
        """
        lease = self.table.of_job(jobid)
        if lease is not None and lease.id_there and self._link is not None:
            self._link.limit(lease.id_there, duration_s)

    def forget(self) -> tuple[int, int]:
        """Give up all leases: how many are returned, and how many jobs end."""
        effects = self.table.forget()
        self.perform(effects)
        returned = sum(isinstance(one, LeaseReturned) for one in effects)
        return returned, sum(isinstance(one, LeaseFailed) for one in effects)

    def info(self) -> ClusterInfo:
        """Return the description of the cluster for people."""
        settings = self.settings
        state = "unknown" if settings is None else "connected" if self.table.is_known else "silent"
        return ClusterInfo(
            name=self.name,
            uri="" if settings is None else settings.uri,
            kind="flux" if settings is not None and settings.is_flux else "fluxsched",
            state=state,  # type: ignore[arg-type]
            since=self.since_s,
            note=self.offered.note if state == "connected" else self.note,
            targets=len(self.offered.targets),
            online=len(self.offered.online),
            leases=self.table.counts(),
        )

    def _await_late(self) -> None:
        if self._late is None and (late_s := self.table.next_late_s) is not None:
            self._late = self._turns.after(late_s - self._turns.clock.wall_s(), self._be_late)

    def _be_late(self) -> None:
        self._late = None
        self.perform(self.table.expire(self._turns.clock.wall_s()))
        self._await_late()

    # -- what is heard: see LinkEvents

    def listed(self, jobs: Sequence[SeenJob]) -> None:
        log.info("cluster %s answers: it has %d of our jobs", self.name, len(jobs))
        self.since_s = self._turns.wall_s
        self.perform(self.table.listed(jobs))
        for jobid, seen in list(self._finishing.items()):
            self._finish(jobid, seen)
        for lease in self.table.leases.values():
            if lease.state is LeaseState.RUNNING:
                self._copy(lease.jobid)
        self._answer_if_known()

    def changed(self, jobs: Iterable[SeenJob]) -> None:
        for seen in jobs:
            self.perform(self.table.seen(seen))

    def refused(self, name: str, note: str, *, passes: bool) -> None:
        if passes:
            connection = self._connection
            log.info("cluster %s does not take %s at present: %s", self.name, name, note)
            self._turns.after(
                self._pace.resubmit_s, lambda: self.absent(name) if connection is self._connection else None
            )
        else:
            self.perform(self.table.refused(name, note))

    def closed(self, why: str) -> None:
        if why and why != self.offered.closed:
            log.info("cluster %s takes no jobs at present: %s", self.name, why)
        self.offered.close(why)

    def displaced(self) -> None:
        """See `LinkEvents`. Each would keep canceling the jobs of the other, so this one does not connect again."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.lose(DISPLACED)

    def turned_away(self, name: str, note: str) -> None:
        if self.table.is_known:
            self.perform(self.table.closed(name, note))

    def absent(self, name: str) -> None:
        if self.table.is_known:
            self.perform(self.table.absent(name))

    def machine(
        self,
        R: Mapping[str, Any] | None,  # noqa: N803 - RFC 20's name
        states: Mapping[str, str] | None,
        groups: Mapping[str, str] | None,
    ) -> None:
        self.offered.change(R, states, groups)
        self._answer_if_known()

    def reaches(self, groups: tuple[str, ...] | None) -> None:
        self.offered.mirror.wanted_groups = groups

    def _answer_if_known(self) -> None:
        if self.table.is_known and self.offered.is_known:
            self.note = ""
            self._answered()

    # -- effects

    def perform(self, effects: Iterable[LeaseEffect]) -> None:
        """Perform the effects that the table decided, in order."""
        for one in effects:
            self._perform(one)

    def _perform(self, one: LeaseEffect) -> None:
        link = self._link
        match one:
            case SaveLease(lease):
                self._store.change("lease is", (lease.jobid, lease.state.value))
            case LeaseSeen(jobid, there, nodelist):
                self._lease_reports.placed(jobid, self.name, there, nodelist)
            case LeaseBegan(jobid):
                self._reports.started(jobid)
                self._copy(jobid)
            case LeaseFinished(jobid, seen):
                self._finish(jobid, seen)
            case LeaseFailed(jobid, note):
                self._over(jobid, lambda: self._reports.failed(jobid, note))
            case LeaseReturned(jobid, note):
                self._over(jobid, lambda: self._lease_reports.returned(jobid, note))
            case LeaseDropped(jobid):
                self._over(jobid, lambda: self._reports.finished(jobid, 15, None))
            case _ if link is None:
                pass  # what is to be said is said again when the other instance is heard
            case SubmitThere(lease):
                link.submit(lease)
            case WithdrawThere(name, there):
                link.withdraw(name, there)
            case CancelThere(name, there, note):
                link.cancel(name, there, note)
            case SignalThere(there, signum):
                link.signal(there, signum)
            case SettleThere(names):
                link.settle(names)

    def _copy(self, jobid: int) -> None:
        lease = self.table.of_job(jobid)
        if lease is not None and self._link is not None:
            self._output.follow(self.name, jobid, lease.id_there, self._link)

    def _finish(self, jobid: int, seen: SeenJob) -> None:
        """End the job like its counterpart there, once its output has been copied."""
        self._finishing[jobid] = seen
        self._reports.started(jobid)  # of a job that began unseen, too

        def finish() -> None:
            del self._finishing[jobid]
            if seen.exception:
                self._reports.raised(jobid, seen.exception, f"cluster {self.name}: {seen.note}")
            if seen.status < 0:
                self._reports.failed(jobid, f"cluster {self.name}: {seen.note or 'it is not known how the job ended'}")
            else:
                self._reports.finished(jobid, seen.status, seen.usage)

        if self._link is not None:
            self._output.finish(self.name, jobid, seen.id, self._link, lambda: self._over(jobid, finish))

    def _over(self, jobid: int, report: Callable[[], None]) -> None:
        """Remove the lease's row in the transaction of the job's end; when that is on disk, the name there is not
        needed any more.
        """
        self._store.remove("lease", (jobid,))
        report()
        self._lease_reports.over(jobid)
        self._reports.stored(lambda: self.perform(self.table.stored(jobid)))


# ---- leases that others offer

STORED_KIND = "cluster"
"""Kind of the rows of `saved` with a cluster's targets in this instance's R, for the ranks of jobs after a restart."""


class _Returned(NamedTuple):
    """Job that was not begun there in time, the number of targets it wanted, and the time until which that is
    remembered.
    """

    jobid: int
    wanted: int
    until_s: float


class OfferedTargets:
    """The group of one cluster."""

    def __init__(
        self,
        name: str,
        service: ResourceService,
        store: Store,
        turns: Turns,
        grown: Callable[[str, Idset], None],
        *,
        is_group: bool,
        has_parts: bool,
        pace: ClusterPace,
    ) -> None:
        self._pace = pace
        self.mirror = Mirror(name, has_parts=has_parts)
        self.is_known = False
        self._name = name
        self._service = service
        self._store = store
        self._turns = turns
        self._grown = grown
        self._is_waiting = False
        self._is_group = is_group
        self._stored = ""
        self.closed = ""
        """Why no job is taken or started there at present."""
        self._returned: list[_Returned] = []
        self._has_none = False
        self._known_targets = EMPTY
        service.changed.append(self._note_change)

    @property
    def targets(self) -> Idset:
        """Return the targets of the cluster's group."""
        return self._service.module.targets_of_group(self._name) if self._is_group else EMPTY

    @property
    def online(self) -> Idset:
        """Return the targets of the cluster's group that may be used."""
        return self._service.module.usable(self._name) if self.targets else EMPTY

    def change(
        self,
        R: Mapping[str, Any] | None,  # noqa: N803 - RFC 20's name
        states: Mapping[str, str] | None,
        groups: Mapping[str, str] | None,
    ) -> None:
        """Apply changes that the other instance reports. Raises InvalidValue for invalid ones."""
        self.mirror.change(R, states, groups)
        self.is_known = True
        if R is not None or groups is not None or states is not None:
            theirs, module = self.mirror.resources, self._service.module
            self._has_none = not theirs
            if theirs:
                self._grown(self._name, module.targets.admit(theirs).resources.ranks)
                self._service.perform(module.mirror(self._name, theirs, self._turns.wall_s))
                self._keep()
        self._show()

    def _note_change(self) -> None:
        """Look again once the group has other targets: one that comes back does so only after its release here."""
        targets = self.targets
        if targets != self._known_targets:
            self._known_targets = targets
            self._turns.post(self._targets_changed)

    def _targets_changed(self) -> None:
        if self.is_known:
            self._keep()
            self._show()

    def close(self, why: str) -> None:
        """Why no job is taken or started there from now on; empty: jobs are, also such as were returned."""
        if why != self.closed:
            self.closed = why
            self._returned.clear()
            self._show()

    def returned(self, jobid: int, count: int, pause_s: float) -> None:
        """Record that a job of so many targets was not begun there: none of as many is granted for a while."""
        one = _Returned(jobid, count, self._turns.wall_s + pause_s)
        self._returned.append(one)
        self._show()
        self._turns.after(pause_s, partial(self._forget, one))

    def _forget(self, one: _Returned) -> None:
        """Remove a record whose time is over, whatever the wall clock reads, which may have been set back."""
        if one in self._returned:
            self._returned.remove(one)
            self._show()

    @property
    def note(self) -> str:
        """Why less is granted there at present than could be; empty if all is."""
        returned = self.not_begun
        if self._has_none:
            return "it has no targets for jobs of this instance at present"
        if self.closed or returned is None:
            return self.closed
        jobs = "no job" if returned.wanted == 1 else f"no job of {returned.wanted} nodes or more"
        until = local_text(returned.until_s)
        return f"{format_f58(returned.jobid)} did not start there in time;  {jobs} is sent until {until}"

    @property
    def not_begun(self) -> _Returned | None:
        """Return the smallest of the jobs that were returned lately."""
        return min(self._returned, key=lambda one: one.wanted, default=None)

    def silent(self) -> None:
        """Set the targets offline, since the cluster is silent: nothing new is granted there."""
        self.is_known = False
        if targets := self.targets:
            self._service.perform(self._service.module.set_offline(targets, self._turns.wall_s))

    def jobs_changed(self) -> None:
        """Note that jobs of this instance hold more or less of the group."""
        if self.is_known:
            self._look_later()

    def _keep(self) -> None:
        module = self._service.module
        text = msgspec.json.encode(module.resources.restrict(self.targets).to_json()) if self.targets else b"null"
        if text.decode() != self._stored:
            self._stored = text.decode()
            self._store.add("saved", (STORED_KIND, self._name, text))

    def _show(self, *, is_settled: bool = False) -> None:
        """Set online the targets that may be used; targets that others seem to use are checked again first."""
        module, targets = self._service.module, self.targets
        if not self.is_known or not targets:
            return
        admission = module.targets.admit(self.mirror.resources)
        usable = admission.ours(self.mirror.usable) & targets
        taken = taken_by_others(admission.ours(self.mirror.in_use) & targets, module.held & targets)
        online, now_s = module.report.online & targets, self._turns.wall_s
        if (taken & online) and not is_settled:
            self._look_later()
            taken -= online
        wanted = self._granted_now(usable - taken)
        if online - wanted:
            self._service.perform(module.set_offline(online - wanted, now_s))
        if wanted - online:
            self._service.perform(module.set_online(wanted - online, now_s))

    def _granted_now(self, targets: Idset) -> Idset:
        """Return those of these targets on which a job may begin."""
        if self.closed:
            return EMPTY
        if (returned := self.not_begun) is None:
            return targets
        held = self._service.module.held
        return Idset.of([*(targets - held), *(targets & held)][: returned.wanted - 1])

    def _look_later(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._turns.after(self._pace.occupied_s, self._look)

    def _look(self) -> None:
        self._is_waiting = False
        self._show(is_settled=True)


# ---- output of jobs there


@dataclass(slots=True)
class _Copy:
    cluster: str
    is_complete: bool = False
    then: Callable[[], None] | None = None


class OutputCopy:
    """Copies under way, by job. `wants`: whether a job's output is kept in the spool directory at all."""

    def __init__(self, spool: Path, wants: Callable[[int], bool]) -> None:
        self._spool = spool
        self._wants = wants
        self._copies: dict[int, _Copy] = {}

    def follow(self, cluster: str, jobid: int, there: int, link: ClusterLink) -> None:
        """Copy the output of the job there, past and future."""
        if jobid in self._copies or not self._wants(jobid):
            return
        copy = self._copies[jobid] = _Copy(cluster)
        directory = spool_directory(self._spool, jobid)
        shutil.rmtree(directory, ignore_errors=True)
        files: dict[str, int] = {}

        def take(stream: str, data: bytes, task: int) -> None:
            if self._copies.get(jobid) is copy:
                self._append(directory, files, stream, data, task)

        def ended(fault: str | None) -> None:
            if fault is not None:
                log.warning("output of job %s in cluster %s: %s", format_f58(jobid), cluster, fault)
            copy.is_complete = True
            if copy.then is not None and self._copies.get(jobid) is copy:
                del self._copies[jobid]
                copy.then()

        link.output(there, take, ended)

    def finish(self, cluster: str, jobid: int, there: int, link: ClusterLink, then: Callable[[], None]) -> None:
        """Call `then` once all output of the job has been copied."""
        self.follow(cluster, jobid, there, link)
        copy = self._copies.get(jobid)
        if copy is None or copy.is_complete:
            self._copies.pop(jobid, None)
            then()
        else:
            copy.then = then

    def lost(self, cluster: str) -> None:
        """End the copies over a lost connection; they start anew over the next one."""
        for jobid in [jobid for jobid, copy in self._copies.items() if copy.cluster == cluster]:
            del self._copies[jobid]

    def _append(self, directory: Path, files: dict[str, int], stream: str, data: bytes, task: int) -> None:
        """Append output to a task's file; files of tasks are made in the order of their numbers, by which they are
        found.
        """
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            for number in range(files.get(stream, -1) + 1, task + 1):
                (directory / spool_name(stream, number)).touch(mode=0o600)
                files[stream] = number
            with (directory / spool_name(stream, task)).open("ab") as file:
                file.write(data)
        except OSError as exc:
            log.warning("%s cannot be written: %s", directory, exc)
