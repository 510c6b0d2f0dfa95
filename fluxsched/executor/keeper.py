"""The keeper: its process, and its side of the conversation; jobs are started, watched and reported, instance or not.

Law: a report is kept until an instance says that it is stored. While there is no instance time limits are the keeper's
affair; jobs that do not outlive their instance end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.executor import wire as msg
from fluxsched.executor.base import (
    TERMINATING,
    JobLaunch,
    Measured,
    Reports,
    TaskSettings,
    expired_note,
    spool_directory,
)
from fluxsched.executor.cleanup import clear_in_turns, end_leftovers, scratch_directory
from fluxsched.executor.forward import OutputForwarder
from fluxsched.executor.io import JobInput
from fluxsched.executor.kept_directories import KeptDirectories
from fluxsched.executor.local import LocalExecutor
from fluxsched.executor.relay import ClientRelay
from fluxsched.executor.wire import connected
from fluxsched.messaging.memo import JobspecMemo
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import LOG_NAME
from fluxsched.system.log import exception_text, logger, set_up_logging
from fluxsched.system.loop import Faults, Timer, Turns
from fluxsched.system.processes import settle
from fluxsched.transport.base import Client
from fluxsched.transport.local import StreamClient, peer_of

log = logger("keeper")

RECEIVE_MAX = 64
"""Transport messages taken at a time."""
UNANSWERED_MAX = 64
"""Questions of a lease that may be unanswered: a stopped instance is not asked for ever."""
TIMEOUT = "timeout"
ASKED_TO_END = "the keeper of its tasks was asked to end"


class TaskExecutor(Protocol):
    """Executor that runs the tasks: `LocalExecutor`, or that of a simulation."""

    kill_timeout_s: float

    def start(self, job: JobLaunch) -> None:
        """Start a job as in `Executor`."""

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """Signal a job as in `Executor`."""

    def input_of(self, jobid: int) -> JobInput | None:
        """Return a job's input as in `Executor`."""
        ...

    def measure(self, jobid: int, measured: Measured) -> None:
        """Measure a job as in `Executor`."""

    def grow(self, jobid: int, r: Mapping[str, Any], ranks: Idset, first: int | None = None) -> None:
        """Start the tasks of these targets of R, where the job has none, as of `Executor`; they are numbered from
        `first` on, or follow those that it has.
        """

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """Shrink a job as in `Executor`; all targets named are released once, also those without a task."""

    def fence_done(self, one: msg.PmiFenceDone) -> None:
        """Give the tasks of a shared job the answer of its hosts."""

    def close(self) -> None:
        """End the executor as in `Executor`."""


@dataclass(frozen=True, slots=True)
class KeeperOutside:
    """Operations through which a keeper acts on its surroundings."""

    executor: Callable[[Reports], TaskExecutor]
    """Function that makes the executor of the tasks, given its receiver of reports."""
    clear: Callable[[Mapping[int, object], Callable[[dict[int, str]], None]], None]
    """Function of (records, cleared) that ends the leftovers of another keeper; `cleared` is called with the notes."""
    scratch: Callable[[], Path | None]
    """The directory of the jobs' temporary directories."""
    ended: Callable[[bool], None]
    """Function called when there is nothing left to do: with True if the instance is lost, and its jobs are to end with
    it.
    """
    pid: int
    cores: Sequence[Idset] | None = None
    """The processing units of each core id of this host, for an instance that does not know them."""
    lease: LeaseTerms | None = None
    """Terms on which a keeper of another host runs jobs; None for a keeper beside its instance."""
    spool: Path | None = None
    """Directory for what tasks print, in place of that of the instance, which other hosts do not have."""
    sockets: Path | None = None
    """Directory for sockets at which tasks find their instance, accessible to its owner alone; None where the
    instance's own are.
    """


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Terms of a lease: how long a keeper may run jobs of an instance that it does not hear."""

    ping_s: float
    """Interval of asking whether the instance is there (seconds)."""
    orphan_timeout_s: float
    """Time from the last question that was answered, counted from when it was sent, to the end of the lease
    (seconds).
    """


class KeeperLease:
    """How long a keeper may go on without its instance. It ends on the keeper's own clock, and an instance that counts
    from its last answer never counts less (Gray and Cheriton 1989).
    """

    def __init__(
        self, turns: Turns, terms: LeaseTerms, send: Callable[[msg.Ping], None], is_over: Callable[[], None]
    ) -> None:
        """`send` is called for each question, `is_over` once when the lease has ended."""
        self._turns = turns
        self._terms = terms
        self._send = send
        self._is_over = is_over
        self._number = 0
        self._sent_s: dict[int, float] = {}
        """When the questions that are not answered were sent."""
        self._asking: Timer | None = None
        self._ends_s = turns.clock.monotonic_s() + terms.orphan_timeout_s
        self._end = turns.after(terms.orphan_timeout_s, self._look)

    def connected(self) -> None:
        """Begin to ask on a new connection."""
        self.disconnected()
        self._ask()

    def disconnected(self) -> None:
        """Stop to ask, since nobody would answer."""
        self._sent_s.clear()
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def answered(self, number: int) -> None:
        """Renew the lease from when this question was sent; one of another connection does nothing."""
        sent_s = self._sent_s.pop(number, None)
        if sent_s is not None:
            self.renew(sent_s)

    def renew(self, from_s: float) -> None:
        """Have the lease end the orphan timeout after this time (monotonic clock), unless it ends later anyway."""
        self._ends_s = max(self._ends_s, from_s + self._terms.orphan_timeout_s)

    def _ask(self) -> None:
        self._number += 1
        if len(self._sent_s) < UNANSWERED_MAX:
            self._sent_s[self._number] = self._turns.clock.monotonic_s()
            self._send(msg.Ping(self._number))
        self._asking = self._turns.after(self._terms.ping_s, self._ask)

    def _look(self) -> None:
        left_s = self._ends_s - self._turns.clock.monotonic_s()
        if left_s <= 0.0:
            self._is_over()
        else:
            self._end = self._turns.after(left_s, self._look)


class KeeperService:
    """Serves one instance at a time, and the next one after it."""

    def __init__(self, turns: Turns, outside: KeeperOutside) -> None:
        self._turns = turns
        self._outside = outside
        self._settings: msg.KeeperSettings | None = None
        self._task_settings: TaskSettings | None = None
        self._jobspecs = JobspecMemo()
        self._jobs: dict[int, KeptJob] = {}
        self._reports: deque[msg.JobReport] = deque()
        self._gates: dict[int, Callable[[], None]] = {}
        self._serial = 0
        self._client: Client | None = None
        self._new: list[Client] = []
        self._outbox: list[msg.KeeperMessage] = []
        self._returning: Timer | None = None
        self._is_ending = False
        """True if the tasks were asked to end, and the keeper is about to."""
        self._behind_s = 0.0
        """How far our wall clock is behind that of the instance (seconds)."""
        self._forwarder = OutputForwarder(turns, self._say)
        reports = Reports(
            self._started, self._finished, self._failed, self._record, self._raised, released=self._released,
            fence=self._fence, spooled=self._forwarder.follow, closed=self._forwarder.close_files,
        )  # fmt: skip
        self._executor = outside.executor(reports)
        self._handlers: dict[type, Callable[[Any], None]] = {
            msg.KeeperSettings: self._settle,
            msg.StartJob: self._start,
            msg.SignalJob: self._signal,
            msg.LimitJob: self._limit,
            msg.GrowJob: self._grow,
            msg.ShrinkJob: self._shrink,
            msg.SendInput: self._input,
            msg.MeasureJob: self._measure,
            msg.OutputStored: self._forwarder.answered,
            msg.Stored: self._stored,
            msg.ClearProcesses: self._clear,
            msg.Leave: self._leave,
            msg.EndKeeper: lambda one: outside.ended(False),
            msg.OpenJob: self._open,
            msg.Pong: self._pong,
            msg.PmiFenceDone: lambda one: self._executor.fence_done(one),
        }
        self._relay = None if outside.sockets is None else ClientRelay(turns, outside.sockets)
        if self._relay is not None:
            self._handlers |= self._relay.handlers
        self._lease: KeeperLease | None = None
        if outside.lease is not None:
            self._lease = KeeperLease(turns, outside.lease, self._say, lambda: outside.ended(True))
        turns.source(self._take)
        turns.at_end(self._flush)

    def attend(self, client: Client) -> None:
        """Listen to a new connection, which becomes that of the instance with its hello."""
        self._new.append(client)
        self._turns.wake()

    def end_jobs(self) -> None:
        """Ask all tasks to end, and have them killed after the kill timeout; that ends their jobs on all hosts."""
        self._is_ending = True
        for jobid, job in self._jobs.items():
            if not job.has_ended:
                self._report(msg.JobRaised(self._next(), jobid, "exec", ASKED_TO_END))
            self._executor.kill(jobid, signal.SIGTERM)

    def close(self) -> None:
        """Kill the running jobs and close all connections."""
        self._executor.close()
        if self._client is not None:
            self._client.close()
        for other in self._new:
            other.close()
        if self._relay is not None:
            self._relay.disconnected()

    @property
    def has_instance(self) -> bool:
        """Return whether an instance is connected."""
        return self._client is not None

    @property
    def is_idle(self) -> bool:
        """Return whether the keeper has no job and no report that is to be stored."""
        return not (self._jobs or self._reports)

    # -- the connection -----------------------------------------------------------------------------------------

    def _take(self, until_s: float) -> bool:
        for other in list(self._new):
            self._greet(other)
        client, more = self._client, False
        if client is not None:
            arrived = client.receive(RECEIVE_MAX)
            more = len(arrived) == RECEIVE_MAX
            for frames in arrived:
                self._receive(client, frames)
            if client.lost is not None and self._client is client:
                self._lost(client)
        return more

    def _greet(self, client: Client) -> None:
        arrived = client.receive(1)
        if not arrived:
            if client.lost is not None:
                self._new.remove(client)
                self._turns.post(self._check_left)
            return
        self._new.remove(client)
        try:
            first, *rest = msg.from_instance(arrived[0])
            if not isinstance(first, msg.KeeperHello):
                raise RemoteProtocolError(f"expected KeeperHello as the first message, got {type(first).__name__}")
        except RemoteProtocolError as fault:
            log.error("%s", fault)
            client.close()
            return
        if self._client is not None:
            self._client.close()
        self._client = client
        self._behind_s = first.now_s - self._turns.clock.wall_s() if first.now_s else 0.0
        self._disarm()
        unstored = self._unstored()
        held = [
            msg.HeldJob(jobid, job.attempt, job.runs, str(job.ranks), str(unstored.get(jobid, "")), job.signals)
            for jobid, job in self._jobs.items()
        ]
        fences = [fence for job in self._jobs.values() for fence in job.fences]
        self._outbox = [msg.KeeperWelcome(msg.VERSION, self._outside.pid, held, measures=True), *fences, *self._reports]
        if self._lease is not None:
            self._lease.connected()
        self._forwarder.connected()
        if self._relay is not None:
            self._relay.connected()
        for one in rest:
            self._handle(one)

    def _receive(self, client: Client, frames: list[bytes]) -> None:
        try:
            for one in msg.from_instance(frames):
                self._handle(one)
        except RemoteProtocolError as fault:
            log.error("%s", fault)
            client.close()

    def _handle(self, one: msg.FromInstance) -> None:
        handler = self._handlers.get(type(one))
        if handler is not None:
            self._turns.run_isolated(lambda: handler(one), type(one).__name__)

    def _say(self, one: msg.KeeperMessage) -> None:
        self._outbox.append(one)
        self._turns.wake()

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if self._client is not None and self._relay is not None:
            outbox += self._relay.take()
        if self._client is not None and outbox:
            for frames in msg.packed(outbox):
                self._client.send(frames)

    def _lost(self, client: Client) -> None:
        """Take the loss of the instance, which was killed or is about to restart."""
        client.close()
        self._client = None
        self._outbox.clear()
        self._forwarder.disconnected()
        if self._lease is not None:
            self._lease.disconnected()
        if self._relay is not None:
            self._relay.disconnected()
        if self._returning is None:
            self._check_left()

    def _check_left(self) -> None:
        """End the keeper if it is idle without an instance that is restarted, or if no instance will be; one that has a
        lease waits for that to end.
        """
        if self._client is not None or self._new:
            return
        if self._lease is not None:
            self._arm_all()
        elif self._settings is None or not self._settings.outlives:
            self._outside.ended(True)
        elif self.is_idle:
            self._outside.ended(False)
        else:
            self._arm_all()

    def _leave(self, one: msg.Leave) -> None:
        if self._lease is not None:
            self._lease.renew(self._turns.clock.monotonic_s())  # no longer, since the next instance counts so too
        self._returning = self._turns.after(one.within_s, self._not_returned)

    def _not_returned(self) -> None:
        self._returning = None
        self._check_left()

    # -- time limits while there is no instance -----------------------------------------------------------------

    def _limit(self, one: msg.LimitJob) -> None:
        job = self._jobs.get(one.jobid)
        if job is not None:
            job.expiration_s = one.expiration_s

    def _arm_all(self) -> None:
        for jobid, job in self._jobs.items():
            self._arm(jobid, job)

    def _arm(self, jobid: int, job: KeptJob) -> None:
        if job.expiration_s > 0.0 and job.limit is None and not job.has_ended:
            delay_s = job.expiration_s - self._turns.clock.wall_s() - self._behind_s
            job.limit = self._turns.after(delay_s, partial(self._raised, jobid, TIMEOUT, expired_note(job.limit_s)))

    def _disarm(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None
        for job in self._jobs.values():
            if job.limit is not None:
                job.limit.cancel()
                job.limit = None

    # -- requests -----------------------------------------------------------------------------------------------

    def _settle(self, one: msg.KeeperSettings) -> None:
        self._settings = one
        self._task_settings = None
        self._executor.kill_timeout_s = one.kill_timeout_s

    def _start(self, one: msg.StartJob) -> None:
        jobid = one.jobid
        if jobid in self._jobs:
            return
        ranks = Idset.parse(one.ranks) if one.ranks else None
        self._jobs[jobid] = KeptJob(one, ranks)
        try:
            if self._is_ending:
                raise Refused(ASKED_TO_END)
            settings = self._settings_of_tasks()
            if self._forwards:
                self._forwarder.begin(jobid, spool_directory(settings.spool, jobid))
            if self._relay is not None:
                self._relay.want()
            self._executor.start(
                JobLaunch(
                    jobid,
                    self._jobspecs.read(one.jobspec),
                    one.R,
                    settings,
                    one.attempt,
                    one.expiration_s,
                    ranks,
                    one.first,
                    one.is_shared,
                    one.beside,
                    one.userid,
                )
            )
        except FluxschedError as error:
            self._failed(jobid, str(error))
        except Exception as exc:  # whatever it is, it is this job's alone
            self._turns.report_bug(f"start of job {format_f58(jobid)}", exc)
            self._failed(jobid, f"start: a fault of fluxsched ({type(exc).__name__}: {exc}): the log has the traceback")

    @property
    def _forwards(self) -> bool:
        return self._settings is not None and self._settings.forwards and self._outside.spool is not None

    def _settings_of_tasks(self) -> TaskSettings:
        """Return the settings of tasks here, which are made for the first job that has them.

        Raises RemoteProtocolError.
        """
        given, outside = self._settings, self._outside
        if given is None:
            raise RemoteProtocolError("expected KeeperSettings before the first StartJob")
        if self._task_settings is None:
            cores = outside.cores if given.cores is None else [Idset.parse(text) for text in given.cores]
            environment = given.environment if self._relay is None else self._relay.environment(given.environment)
            spool = outside.spool or Path(given.spool)
            self._task_settings = TaskSettings(environment, spool, cores, outside.scratch())
        return self._task_settings

    def _signal(self, one: msg.SignalJob) -> None:
        job = self._jobs.get(one.jobid)
        if job is not None:
            job.signals += 1
        if one.signum in TERMINATING:
            self._forwarder.give_up(one.jobid)
        self._executor.kill(one.jobid, one.signum, one.grace_s)
        if one.signum == signal.SIGKILL:
            self._open(msg.OpenJob(one.jobid))  # who waits there is dead; the end is known when none waits any more

    def _grow(self, one: msg.GrowJob) -> None:
        job = self._jobs.get(one.jobid)
        new = EMPTY if job is None else Idset.parse(one.ranks) - job.ranks
        if job is not None and new:
            job.ranks |= new
            self._executor.grow(one.jobid, one.R, new, one.first)

    def _shrink(self, one: msg.ShrinkJob) -> None:
        """Shrink a job; a target that it never had is released like the others; the release of others is being
        reported.
        """
        job = self._jobs.get(one.jobid)
        if job is not None:
            ranks = Idset.parse(one.ranks) - (self._unstored().get(one.jobid, EMPTY) - job.ranks)
            if ranks:
                self._executor.shrink(one.jobid, ranks, one.grace_s)

    def _input(self, one: msg.SendInput) -> None:
        try:
            place = self._executor.input_of(one.jobid)
            tasks = None if one.tasks is None else Idset.parse(one.tasks)
            if place is None:
                self._outbox.append(msg.InputAnswered(one.number))
            else:
                taken = partial(self._taken, one.number)
                place.send(one.data, tasks, eof=one.eof, taken=taken, window=one.window)
        except FluxschedError as error:
            exceeded = isinstance(error, LimitExceeded)
            self._outbox.append(msg.InputAnswered(one.number, error.errnum, str(error), exceeded))

    def _measure(self, one: msg.MeasureJob) -> None:
        asking = self._client

        def measured(usage: dict[str, Any] | None) -> None:
            if self._client is asking:  # the next instance has questions of the same numbers
                self._say(msg.JobMeasured(one.number, usage))

        self._executor.measure(one.jobid, measured)

    def _taken(self, number: int) -> None:
        self._say(msg.InputAnswered(number))

    def _clear(self, one: msg.ClearProcesses) -> None:
        self._outside.clear(one.records, self._cleared)

    def _cleared(self, notes: dict[int, str]) -> None:
        self._say(msg.ProcessesCleared(notes))

    def _stored(self, one: msg.Stored) -> None:
        reports, kept = self._reports, list[msg.JobReport]()
        while reports and reports[0].serial <= one.serial:
            report = reports.popleft()
            if report.serial in one.kept:
                kept.append(report)
            elif isinstance(report, msg.JobSpawned):
                self._jobs[report.jobid].stored(self._gates.pop(report.serial))
            elif isinstance(report, msg.JobFinished | msg.JobFailed):
                del self._jobs[report.jobid]
                self._forwarder.remove(report.jobid)
        reports.extendleft(reversed(kept))

    def _unstored(self) -> dict[int, Idset]:
        """Return the targets by job whose release is not known to be stored."""
        found: dict[int, Idset] = {}
        for one in self._reports:
            if isinstance(one, msg.TargetsReleased):
                found[one.jobid] = found.get(one.jobid, EMPTY) | Idset.parse(one.ranks)
        return found

    def _open(self, one: msg.OpenJob) -> None:
        job = self._jobs.get(one.jobid)
        if job is not None:
            job.open()

    def _pong(self, one: msg.Pong) -> None:
        if self._lease is not None:
            self._lease.answered(one.number)

    # -- reports ------------------------------------------------------------------------------------------------

    def _report(self, report: msg.JobReport) -> None:
        self._reports.append(report)
        if self._client is not None:
            self._outbox.append(report)
            self._turns.wake()

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _record(self, jobid: int, record: object | None, then: Callable[[], None] | None) -> None:
        if not isinstance(record, dict):
            return
        if then is None:  # it goes with the report of the start
            self._jobs[jobid].record = record
        else:
            serial = self._next()
            self._gates[serial] = then
            self._report(msg.JobSpawned(serial, jobid, record))

    def _started(self, jobid: int) -> None:
        self._jobs[jobid].runs = True
        no_input = ""
        try:
            self._executor.input_of(jobid)
        except Refused as error:
            no_input = str(error)
        self._report(msg.JobStarted(self._next(), jobid, no_input, self._jobs[jobid].record))

    def _raised(self, jobid: int, kind: str, note: str) -> None:
        self._report(msg.JobRaised(self._next(), jobid, kind, note))
        if self._client is None:  # else the instance has it killed
            self._executor.kill(jobid, signal.SIGTERM)

    def _released(self, jobid: int, ranks: Idset) -> None:
        self._jobs[jobid].ranks -= ranks
        self._report(msg.TargetsReleased(self._next(), jobid, str(ranks)))

    def _fence(self, one: msg.PmiFence) -> None:
        job = self._jobs[one.jobid]
        job.fences = (*job.fences[-1:], one)
        if self._client is not None:
            self._outbox.append(one)
            self._turns.wake()

    def _finished(self, jobid: int, status: int, usage: dict[str, Any] | None) -> None:
        self._jobs[jobid].mark_ended()
        self._forwarder.finish(jobid, lambda: self._report(msg.JobFinished(self._next(), jobid, status, usage)))

    def _failed(self, jobid: int, note: str) -> None:
        self._jobs[jobid].mark_ended()
        self._report(msg.JobFailed(self._next(), jobid, note))


# ---- a job of the keeper


class KeptJob:
    """One that runs, or whose end is not known to be stored."""

    __slots__ = (
        "_gates", "_may_open", "_r", "_ranks", "attempt", "expiration_s", "fences", "has_ended", "limit", "record",
        "runs", "signals",
    )  # fmt: skip

    def __init__(self, start: msg.StartJob, ranks: Idset | None) -> None:
        """`ranks` are the targets of its R that are this keeper's, None if all are."""
        self._r = start.R
        self._ranks = ranks
        self._gates: list[Callable[[], None]] = []
        """Gates that are closed although the processes behind them are on record: there are others."""
        self._may_open = not start.is_shared
        self.attempt = start.attempt
        self.expiration_s = start.expiration_s
        self.limit: Timer | None = None
        self.record: dict[str, Any] | None = None
        """Record that identifies its processes, if it goes with the report that they run."""
        self.runs = False
        self.signals = 0
        """Number of messages that had it signaled."""
        self.fences: tuple[msg.PmiFence, ...] = ()
        """The last two messages of its tasks for those of other hosts."""
        self.has_ended = False
        """True if no process of it is left, although its output may not be stored yet."""

    @property
    def limit_s(self) -> float:
        """Return the job's time limit from the start of its R and its expiration, which may have changed; 0 if
        unknown.
        """
        begun_s = self._r.get("execution", {}).get("starttime") or 0.0
        return self.expiration_s - begun_s if begun_s else 0.0

    @property
    def ranks(self) -> Idset:
        """Return the targets that the job has been given and that are not released; parsed on demand, since few are
        requested.
        """
        if self._ranks is None:
            self._ranks = ResourceSet.parse(self._r).ranks
        return self._ranks

    @ranks.setter
    def ranks(self, ranks: Idset) -> None:
        self._ranks = ranks

    def stored(self, gate: Callable[[], None]) -> None:
        """Open this gate, the processes behind which are on record, once those of all keepers are."""
        if self._may_open and not self.has_ended:
            gate()
        else:
            self._gates.append(gate)

    def open(self) -> None:
        """Open all gates from now on, since the processes of all keepers are on record."""
        self._may_open = True
        gates, self._gates = self._gates, []
        for gate in gates:
            gate()

    def mark_ended(self) -> None:
        """Record that the job has no process any more."""
        self.runs, self._ranks, self.has_ended = False, EMPTY, True
        self._gates.clear()
        if self.limit is not None:
            self.limit.cancel()


# ---- the keeper's process


CLEAR_S = 5.0
"""Maximum time until killed processes of another keeper must be gone (seconds)."""
BACKLOG = 8
"""Connections that wait: there is one instance at a time."""
LOOK_S = 60.0
"""Interval in which a keeper without an instance checks whether the next instance could find it (seconds)."""


def serve(said: bytes, path: str, listener_fd: int, run_directory: str, grace_s: float) -> None:
    """Serve the instance at descriptor 0, of which `said` was received, and later ones, until all is done."""
    first = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    listener = socket.socket(fileno=listener_fd)
    if run_directory:
        name = Path(run_directory) / LOG_NAME
        set_up_logging(name if name.exists() else None, 0)
    keeper = Keeper(path, listener)
    is_gone = False
    try:
        is_gone = asyncio.run(keeper.run(connected(first, said)))
    except Exception as exc:  # last resort of a process without a terminal: its log has the reason
        log.critical("the keeper ends: %s", exception_text(exc), exc_info=exc)
    finally:
        if keeper.is_reachable:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if is_gone and os.path.isdir(run_directory):
            end_leftovers(run_directory, grace_s)
        keeper.close()


class Keeper:
    """The parts of a keeper."""

    def __init__(self, path: str, listener: socket.socket) -> None:
        self._path = path
        self._name = _file_of(path)
        self._listener = listener
        self._faults = Faults()
        self._scratch: tuple[Path, int] | None = None
        self._turns = Turns(SystemClock(), self._failed, self._faults.note)
        self._service: KeeperService | None = None
        self._done: asyncio.Future[bool] | None = None

    @property
    def is_reachable(self) -> bool:
        """Return whether the keeper's own socket is still at its path, and not that of a later keeper."""
        return self._name is not None and self._name == _file_of(self._path)

    async def run(self, client: StreamClient) -> bool:
        """Serve until all is done; return whether the instance is lost and its jobs are to end with it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        self._done = done
        outside = KeeperOutside(
            executor=lambda reports: LocalExecutor(
                self._turns,
                reports,
                0.0,
                alone=True,
                temporary=KeptDirectories(),
                output=KeptDirectories(("stdout", "stderr")),
            ),
            clear=lambda records, cleared: clear_in_turns(self._turns, records, CLEAR_S, cleared),
            scratch=self._directory,
            ended=self._ended,
            pid=os.getpid(),
        )
        self._service = KeeperService(self._turns, outside)
        self._turns.start(loop)
        self._attend(client)
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)  # who connects sees this process as its peer from now on
        loop.add_reader(self._listener, self._accept)
        self._turns.after(LOOK_S, self._look)
        settle()
        try:
            return await done
        finally:
            loop.remove_reader(self._listener)
            self._listener.close()

    def _failed(self, exc: BaseException) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc)

    def _ended(self, is_gone: bool) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(is_gone)

    def close(self) -> None:
        """Kill the running jobs, and remove the temporary directories."""
        if self._service is not None:
            self._service.close()
        self._turns.stop()
        if self._scratch is not None:
            path, owner = self._scratch
            shutil.rmtree(path, ignore_errors=True)
            os.close(owner)

    def _attend(self, client: StreamClient) -> None:
        assert self._service is not None
        self._turns.attach(client.start)
        self._service.attend(client)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if peer_of(connection)[1] == os.geteuid():
                self._attend(connected(connection))
            else:
                connection.close()

    def _look(self) -> None:
        """End the jobs if no instance could find the keeper any more; else check again later."""
        assert self._service is not None
        if not (self._service.has_instance or self.is_reachable):
            log.warning("%s was removed, so no instance can find its jobs: they are ended", self._path)
            self._ended(True)
            return
        self._turns.after(LOOK_S, self._look)

    def _directory(self) -> Path:
        if self._scratch is None:
            self._scratch = scratch_directory()
        return self._scratch[0]


def _file_of(path: str) -> tuple[int, int] | None:
    """Return the identity of the file at `path`, which a file that replaces it does not have: a bound socket keeps its
    inode.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
