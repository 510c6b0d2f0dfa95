"""The `local` executor as the instance has it: tasks are children of a keeper, a process that outlives the instance.

Law: a job is started at one keeper, once. Whether it may have run is known from the store: what identifies its
processes, or the keeper that is about to start its only one, is there before any of them runs. So a job that no keeper
knows is started if nothing of it is on record; else what may be left of it is ended beyond doubt, and it has failed. A
keeper whose connection ends is dead, or is killed. A keeper's report is acknowledged once it is stored, and what it
repeats of jobs that have ended is passed over. The first keeper is started with the first job.

As long as no processes of a job are on record another keeper may have to start it, so what its keeper was told is kept
until then. Keepers are found by their sockets in the state or run directory; a process that a connection leads to is
held by a pidfd as long as the connection lives, only keepers of the same user are talked to, and a socket is removed
only if none of them is behind it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Protocol

from msgspec import structs

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.executor import io, keeper_main
from fluxsched.executor import wire as msg
from fluxsched.executor.base import (
    TERMINATING,
    InputAnswer,
    InputPlace,
    JobLaunch,
    Measured,
    Reports,
    ResumedJob,
    StoreOutput,
    TaskSettings,
    Window,
    no_op,
)
from fluxsched.executor.cleanup import BOOTED, clear_orphans
from fluxsched.executor.layout import is_instance
from fluxsched.executor.timed import MARGIN_S, NestedJobs
from fluxsched.executor.wire import connected
from fluxsched.messaging.memo import ObjectMemo
from fluxsched.system.files import FILE_MODE
from fluxsched.system.log import logger
from fluxsched.system.loop import Timer, TurnHooks, Turns
from fluxsched.transport.base import Client
from fluxsched.transport.local import peer_of

log = logger("keeper")

RESTARTED = "the instance was restarted"
KILLED = "the keeper of its tasks was killed"


@dataclass(frozen=True, slots=True)
class KeeperLimits:
    """Limits of the conversation with keepers."""

    hello_s: float = 30.0
    """Maximum time until a keeper must answer (seconds): a stopped one must not block an instance for ever."""
    end_s: float = 5.0
    """Maximum time until a keeper must end its tasks and itself (seconds)."""
    clear_s: float = 5.0
    """Maximum time until killed processes must be gone (seconds)."""
    again_s: float = 1.0
    """Time before a keeper without jobs that has ended is replaced (seconds)."""
    connect_s: float = 5.0
    """Maximum time until a keeper must accept a connection (seconds): a stopped one may have no room for a further one.
    """
    gone_s: float = 5.0
    """Maximum time until a killed keeper must be gone (seconds); one that waits for a disk may never be."""
    measure_s: float = 10.0
    """Maximum time until a keeper must have measured a job (seconds): somebody waits for it."""
    margin_s: float = MARGIN_S
    tries_max: int = 3
    """Keepers to which a job is given: one that ends them all is not to end more."""


LIMITS = KeeperLimits()


class KeeperExecutor:
    """Gives jobs to keepers, and reports what these report."""

    def __init__(
        self, turns: Turns, reports: Reports, host: KeeperHost, kill_timeout_s: float, *, outlives: bool,
        limits: KeeperLimits = LIMITS, output: StoreOutput | None = None, hooks: TurnHooks | None = None,
    ) -> None:  # fmt: skip
        """Create an executor. `output` stores what keepers of another host send; None if keepers write into the spool
        directory themselves. `hooks` is its membership where turns have many such executors.
        """
        self._limits = limits
        self._turns = turns
        self._reports = reports
        self._nested = NestedJobs(turns, reports, kill_timeout_s, limits.margin_s)
        self._host = host
        self._kill_timeout_s = kill_timeout_s
        self._outlives = outlives
        self._output = output
        self._links: list[KeeperLink] = []
        self._runs: dict[int, GivenJob] = {}
        self._left: dict[int, object] = {}
        """Records of processes that are to be ended before this executor is settled, by job id."""
        self._settled: Callable[[], None] = no_op
        self._is_settled = False
        """True once the state of all jobs of the previous instance is known."""
        self._closed = False
        self._guards = False
        self._inputs: count[int] = count(1)
        self._handlers: dict[type, Callable[[KeeperLink, Any], None]] = {
            msg.KeeperWelcome: self._welcomed,
            msg.JobSpawned: self._spawned,
            msg.JobStarted: self._started,
            msg.JobRaised: self._raised,
            msg.JobFinished: self._finished,
            msg.JobFailed: self._failed,
            msg.TargetsReleased: self._released,
            msg.PmiFence: self._pmi_fence,
            msg.JobOutput: self._written,
            msg.InputAnswered: KeeperLink.input_answered,
            msg.JobMeasured: KeeperLink.job_measured,
            msg.ProcessesCleared: self._cleared,
        }
        self._hooks: TurnHooks = turns if hooks is None else hooks
        self._hooks.source(self._take)
        self._hooks.at_end(self._flush)

    # -- requests -----------------------------------------------------------------------------------------------

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """See `Executor.resume`: the keepers that are there are asked which jobs they have."""
        self._settled = settled
        self._left = dict(records)
        for job in jobs:
            run = self._runs[job.launch.jobid] = GivenJob(job.launch, job.record)
            if job.is_ending:
                run.signals.append((SIGTERM, job.grace_s))
            self._nested.add_job(job.launch)
            if job.going:
                self.shrink(job.launch.jobid, job.going)
        for client in self._host.living():
            link = self._connect(client)
            link.patience = self._turns.after(self._limits.hello_s, partial(self._lost, link, "it does not answer"))
            link.send()
        self._settle()

    def start(self, job: JobLaunch) -> None:
        """See `Executor.start`. Raises Refused if there is no keeper and none can be started."""
        self._runs[job.jobid] = run = GivenJob(job, None)
        self._nested.add_job(job)
        if self._is_settled:
            try:
                self._give(run)
            except Refused:
                del self._runs[job.jobid]
                raise

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        run = self._runs.get(jobid)
        if run is not None:
            run.signal(signum, grace_s)

    def limit(self, jobid: int, expiration_s: float) -> None:
        run = self._runs.get(jobid)
        if run is not None:
            run.limit(expiration_s)

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        self.grow_from(jobid, r, None)

    def grow_from(self, jobid: int, r: Mapping[str, Any], first: int | None) -> None:
        """Give a running job these targets too; its new tasks are numbered from `first` on, or follow those here."""
        run = self._runs.get(jobid)
        if run is not None and not self._nested.has(jobid):
            run.grow(r, first)

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        run = self._runs.get(jobid)
        if run is not None:
            if self._nested.has(jobid):
                self._nested.shrink(jobid, ranks, grace_s)
            else:
                run.shrink(ranks, grace_s)

    def give_back(self, jobid: int, ranks: Idset) -> None:
        self._nested.give_back(jobid, ranks)

    def input_of(self, jobid: int) -> InputPlace | None:
        run = self._runs.get(jobid)
        return None if run is None else run.input_place(self._inputs)

    def measure(self, jobid: int, measured: Measured) -> None:
        run = self._runs.get(jobid)
        if run is None or not run.is_open or run.link is None or not run.link.measures:
            measured(None)
        else:
            number, link = next(self._inputs), run.link
            link.measured[number] = measured
            link.send(msg.MeasureJob(jobid, number))
            self._turns.after(self._limits.measure_s, lambda: link.job_measured(msg.JobMeasured(number)))

    def open(self, jobid: int) -> None:
        """Open the gate of a shared job, since the processes of all its keepers are on record. Idempotent."""
        run = self._runs.get(jobid)
        if run is not None:
            run.open()

    def fence_done(self, one: msg.PmiFenceDone) -> None:
        """Send the keeper what the hosts of a shared job have put; it asks again if its connection is lost."""
        run = self._runs.get(one.jobid)
        if run is not None and run.link is not None:
            run.link.send(one)

    def guard(self) -> None:
        """Have a keeper, jobs or not: it ends the processes on record when this instance is killed."""
        self._guards = True
        try:
            self._current()
        except Refused as fault:
            log.error("if this instance is killed its command runs on: %s", fault)

    def close(self) -> None:
        self._end(msg.EndKeeper())
        for link in self._links:
            self._host.end_keeper(link.client, self._limits.end_s if link.has_said else 0.0)
            link.client.close()

    def detach(self, within_s: float) -> None:
        self._end(msg.Leave(within_s))
        for link in self._links:
            if not link.has_said:
                self._host.end_keeper(link.client, 0.0)
            link.client.close()

    def _end(self, word: msg.KeeperMessage) -> None:
        self._closed = True
        for link in self._links:
            if link.has_said:
                link.send(word)
                link.flush()

    # -- keepers ------------------------------------------------------------------------------------------------

    def _current(self) -> KeeperLink:
        for link in self._links:
            if not (link.is_retiring or link.is_ending):
                return link
        try:
            return self._connect(self._host.start())
        except OSError as fault:
            raise Refused(f"no keeper for its tasks can be started: {fault.strerror}", fault.errno) from fault

    def _connect(self, client: Any) -> KeeperLink:
        link = KeeperLink(client, self._turns, self._hooks.wake)
        self._links.append(link)
        self._hooks.attach(client.start)
        return link

    def _give(self, run: GivenJob) -> None:
        run.tries += 1
        if run.tries > self._limits.tries_max:
            raise Refused(f"{self._limits.tries_max} keepers ended before they could start it: see the log")
        link = run.link = self._current()
        link.start(run.launch, self._kill_timeout_s, outlives=self._outlives, forwards=self._output is not None)
        run.given(link)

    def _take(self, until_s: float) -> bool:
        more = False
        for link in list(self._links):
            try:
                messages, some = link.receive()
                more |= some
                self._read(link, messages)
                if link.client.lost is not None:
                    self._lost(link, link.client.lost)
            except RemoteProtocolError as fault:
                self._lost(link, str(fault))
        return more

    def _read(self, link: KeeperLink, messages: list[Any]) -> None:
        serial = 0
        for one in messages:
            handle, serial = partial(self._handlers[type(one)], link, one), getattr(one, "serial", serial)
            what = f"report {type(one).__name__} of a keeper"
            self._turns.run_isolated(handle, what, partial(_unhandled, link, one))
        if serial:
            send = link.send if any(self._opens_gate(link, one) for one in messages) else link.send_later
            self._reports.stored(lambda: send(msg.Stored(serial, list(link.unhandled))))

    def _opens_gate(self, link: KeeperLink, one: msg.FromKeeper) -> bool:
        """Return whether tasks wait for the confirmation of this report: not for `OpenJob`, which brings it along."""
        run = self._run_of(link, one.jobid) if isinstance(one, msg.JobSpawned) else None
        return run is not None and (run.may_open or not run.launch.is_shared)

    def _flush(self) -> None:
        for link in self._links:
            link.flush()

    def _lost(self, link: KeeperLink, reason: str) -> None:
        """Take the loss of a keeper, which is dead or will be now: another one takes over its work."""
        if link not in self._links or self._closed:
            return
        records, again = self._unlink(link)
        self._host.end_keeper(link.client, self._limits.end_s if link.is_ending else 0.0)
        if not link.is_ending:
            log.warning("the keeper has ended, which it should not: %s", reason)
        if not self._is_settled:
            self._left |= records
            self._settle()
            return
        self._clear(records)
        for run in again:
            self._give_or_fail(run)
        if self._guards:
            self._turns.after(self._limits.again_s, self._guard_again)

    def _unlink(self, link: KeeperLink) -> tuple[dict[int, object], list[GivenJob]]:
        """Remove a link that has ended; return the records of processes that its keeper had, and the jobs that it was
        given and that are not on record.
        """
        self._links.remove(link)
        if link.patience is not None:
            link.patience.cancel()
        link.client.close()
        for number in list(link.inputs):
            link.answer_input(number, Refused("the keeper of the job's tasks has ended", errno.ESRCH))
        for number in list(link.measured):
            link.job_measured(msg.JobMeasured(number))
        records = dict(link.clearing or {})
        again: list[GivenJob] = []
        for jobid in sorted(link.jobs):
            run = self._runs[jobid]
            run.link, run.is_open = None, False
            if run.record is None:
                again.append(run)
            else:
                records[jobid] = run.record
        return records, again

    def _guard_again(self) -> None:
        if not self._closed:
            self.guard()

    def _give_or_fail(self, run: GivenJob) -> None:
        """Start a job whose tasks have not run, unless it was ended meanwhile."""
        try:
            if any(signum in TERMINATING for signum, _ in run.signals):
                raise Refused("it was ended before its tasks ran")
            self._give(run)
        except Refused as fault:
            del self._runs[run.launch.jobid]
            self._reports.failed(run.launch.jobid, str(fault))

    # -- after a restart ----------------------------------------------------------------------------------------

    def _welcomed(self, link: KeeperLink, one: msg.KeeperWelcome) -> None:
        link.welcomed()
        link.measures = one.measures
        link.is_retiring |= (
            one.version != msg.VERSION
            or not one.measures
            or any(other.is_known and not other.is_retiring for other in self._links if other is not link)
        )
        for held in one.jobs:
            run = self._runs.get(held.jobid)
            if run is None or run.link not in (None, link):
                link.unwanted.add(held.jobid)
                link.send(msg.SignalJob(held.jobid, SIGKILL))
                continue
            link.jobs.add(held.jobid)
            if run.link is None:
                self._left.pop(held.jobid, None)
                run.adopted(link, held)
                if held.runs:
                    self._reports.opened(held.jobid)
        self._retire(link)
        self._settle()

    def _retire(self, link: KeeperLink) -> None:
        """End a keeper that gets no more jobs, and has none."""
        if link.is_retiring and not link.jobs and not link.clearing:
            link.is_ending = True
            self._reports.stored(lambda: link.send(msg.EndKeeper()))

    def _settle(self) -> None:
        """Once all keepers have answered, have the processes ended that no keeper has, and start the jobs that never
        ran.
        """
        if self._is_settled or not all(link.is_known or link.patience is None for link in self._links):
            return
        if self._left:
            asked = {jobid for link in self._links for jobid in link.clearing or ()}
            self._clear({jobid: record for jobid, record in self._left.items() if jobid not in asked})
            return
        self._is_settled = True
        for run in [run for run in self._runs.values() if run.link is None]:
            self._give_or_fail(run)
        self._settled()

    def _clear(self, records: Mapping[int, object]) -> None:
        if not records:
            return
        try:
            link = self._current()
        except Refused as fault:
            log.error("%s", fault)
            self._gone(records, clear_orphans(records, self._limits.clear_s))
        else:
            link.clearing = {**(link.clearing or {}), **records}
            link.send(msg.ClearProcesses(dict(records)))

    def _cleared(self, link: KeeperLink, one: msg.ProcessesCleared) -> None:
        records = {jobid: record for jobid, record in (link.clearing or {}).items() if jobid in one.notes}
        link.clearing = {jobid: record for jobid, record in (link.clearing or {}).items() if jobid not in records}
        self._gone(records, one.notes)
        self._retire(link)

    def _why_cleared(self) -> str:
        return KILLED if self._is_settled else RESTARTED

    def _gone(self, records: Mapping[int, object], notes: Mapping[int, str]) -> None:
        """Remove jobs of whose processes nothing is left."""
        why = self._why_cleared()
        for jobid in records:
            self._left.pop(jobid, None)
            self._reports.record(jobid, None, None)
            if self._runs.pop(jobid, None) is not None:
                note = notes.get(jobid, "no process of the job was left")
                is_lost = self._is_settled or note == BOOTED
                report = self._reports.node_failed if is_lost else self._reports.failed
                report(jobid, f"{why}; {note}")
        self._settle()

    # -- reports ------------------------------------------------------------------------------------------------

    def _run_of(self, link: KeeperLink, jobid: int) -> GivenJob | None:
        """Return the job of a report; None if it has ended by our record, and the report is repeated."""
        run = self._runs.get(jobid)
        return run if run is not None and run.link is link else None

    def _spawned(self, link: KeeperLink, one: msg.JobSpawned) -> None:
        run = self._run_of(link, one.jobid)
        if run is not None:
            run.record = one.record
            run.settled()
            self._reports.record(one.jobid, one.record, None)

    def _started(self, link: KeeperLink, one: msg.JobStarted) -> None:
        run = self._run_of(link, one.jobid)
        if run is not None:
            run.is_open, run.no_input = True, one.no_input
            if one.record is not None:
                run.record = one.record
                self._reports.record(one.jobid, one.record, None)
            self._reports.started(one.jobid)
            self._reports.opened(one.jobid)

    def _raised(self, link: KeeperLink, one: msg.JobRaised) -> None:
        if self._run_of(link, one.jobid) is not None:
            self._reports.raised(one.jobid, one.kind, one.note)

    def _finished(self, link: KeeperLink, one: msg.JobFinished) -> None:
        if self._ended(link, one.jobid):
            self._reports.finished(one.jobid, one.status, one.usage)

    def _failed(self, link: KeeperLink, one: msg.JobFailed) -> None:
        if self._ended(link, one.jobid):
            self._reports.failed(one.jobid, one.note)

    def _released(self, link: KeeperLink, one: msg.TargetsReleased) -> None:
        run = self._run_of(link, one.jobid)
        news = EMPTY if run is None else run.released(Idset.parse(one.ranks))
        if news:
            self._reports.released(one.jobid, news)

    def _pmi_fence(self, link: KeeperLink, one: msg.PmiFence) -> None:
        if self._run_of(link, one.jobid) is not None:
            self._reports.fence(one)

    def _written(self, link: KeeperLink, one: msg.JobOutput) -> None:
        """Store output; that of a job that is not at this keeper is discarded, or it would be sent for ever."""
        run, size = self._run_of(link, one.jobid), one.offset + len(one.data)
        if run is not None and self._output is not None:
            size = self._output(run.launch, one.name, one.offset, one.data)
        link.send(msg.OutputStored(one.jobid, one.name, size))

    def _ended(self, link: KeeperLink, jobid: int) -> bool:
        """Record that the job has no process any more; return whether that was unknown."""
        link.jobs.discard(jobid)
        link.unwanted.discard(jobid)
        run = self._run_of(link, jobid)
        if run is None:
            return False
        del self._runs[jobid]
        self._nested.remove_job(jobid)
        if run.record is not None:
            self._reports.record(jobid, None, None)
        if link.is_retiring:
            self._retire(link)
        return True


def _unhandled(link: KeeperLink, one: Any, fault: Exception) -> None:
    """Record a report that failed to be handled as unhandled, not as stored, since it may have had no effect."""
    if hasattr(one, "serial"):
        link.unhandled.append(one.serial)


# ---- a job that was given to a keeper


class GivenJob:
    """Job that is given to a keeper, or is to be."""

    __slots__ = (
        "_counted",
        "_grace_s",
        "_grown",
        "_outdated",
        "_shrunk",
        "going",
        "has_input",
        "is_open",
        "launch",
        "link",
        "may_open",
        "no_input",
        "record",
        "signals",
        "tries",
    )

    def __init__(self, launch: JobLaunch, record: object | None) -> None:
        self.launch = launch
        self.record = record
        self.link: KeeperLink | None = None
        self.is_open = False
        self.may_open = False
        """True if it is shared, and the processes of all its keepers are on record."""
        self.no_input = ""
        """Why its tasks are sent no input, as far as is known."""
        self.has_input = True
        """True while further input may be sent; input after a piece that exceeded a limit would follow a gap."""
        self.tries = 0
        self.signals: list[tuple[int, float | None]] = []
        """Not known to have arrived: a connection may end first, or another keeper have to start the job."""
        self._counted: int | None = None
        """How many before these its keeper has handled; None while that is not known."""
        self.going = EMPTY
        """Targets that it is to give back."""
        self._grace_s: float | None = None
        """Time that its tasks on the last of them have to end (seconds); None for the kill timeout."""
        self._grown: list[msg.GrowJob] = []
        self._shrunk: list[msg.ShrinkJob] = []
        self._outdated = EMPTY
        """Targets whose release has been stored without the keeper's knowledge: it reports the release again."""

    def input_place(self, numbers: count[int]) -> KeeperInput | None:
        """Return the destination of input for its tasks; None unless they run. Raises Refused if they accept none."""
        if self.link is None or not self.is_open:
            return None
        if self.no_input:
            raise Refused(self.no_input, errno.ENOSYS)
        return KeeperInput(self.link, self, numbers)

    def signal(self, signum: int, grace_s: float | None) -> None:
        """Have the job's tasks signaled."""
        self.signals.append((signum, grace_s))
        if len(self.signals) > SIGNALS_MAX:
            del self.signals[0]
            self._counted = None if self._counted is None else self._counted + 1
        if self.link is not None:
            self.link.send(msg.SignalJob(self.launch.jobid, signum, grace_s))

    def repeat(self) -> None:
        """Have the keeper, when it is back, told again to give back targets: it may not have heard it."""
        if self.going:
            self._shrunk = [msg.ShrinkJob(self.launch.jobid, str(self.going), self._grace_s)]

    def open(self) -> None:
        """Have its tasks run, those of all keepers being on record."""
        self.may_open = True
        if self.link is not None:
            self.link.send(msg.OpenJob(self.launch.jobid))

    def limit(self, expiration_s: float) -> None:
        """Tell the keeper when the job expires, which it enforces while there is no instance."""
        self.launch = structs.replace(self.launch, expiration_s=expiration_s)
        if self.link is not None:
            self.link.send(msg.LimitJob(self.launch.jobid, expiration_s))

    def grow(self, r: Mapping[str, Any], first: int | None) -> None:
        """Have its tasks started on the targets of `r` (R of them alone), too."""
        ranks = ResourceSet.parse(r).ranks
        if self.launch.ranks is not None:
            self.launch = structs.replace(self.launch, ranks=self.launch.ranks | ranks)
        self._say(self._grown, msg.GrowJob(self.launch.jobid, dict(r), str(ranks), first))

    def shrink(self, ranks: Idset, grace_s: float | None) -> None:
        """Have the job's tasks on these targets ended."""
        self.going |= ranks
        self._grace_s = grace_s
        self._say(self._shrunk, msg.ShrinkJob(self.launch.jobid, str(ranks), grace_s))

    def _say(self, kept: list[Any], one: msg.GrowJob | msg.ShrinkJob) -> None:
        if self.link is None or self.record is None:
            kept.append(one)
        if self.link is not None:
            self.link.send(one)

    def given(self, link: KeeperLink, handled: int = 0) -> None:
        """Send the keeper that now has the job, and has handled so many of its signals, what may not have arrived."""
        if self._counted is not None:  # else those that it has handled are of an instance before
            del self.signals[: max(0, handled - self._counted)]
        self._counted = handled
        for signum, grace_s in self.signals:
            link.send(msg.SignalJob(self.launch.jobid, signum, grace_s))
        link.send(*self._grown, *self._shrunk)
        if self.may_open:
            link.send(msg.OpenJob(self.launch.jobid))
        if self.record is not None:
            self.settled()

    def settled(self) -> None:
        """Discard pending messages, since the processes are on record: no other keeper starts the job."""
        self._grown.clear()
        self._shrunk.clear()

    def adopted(self, link: KeeperLink, held: msg.HeldJob) -> None:
        """Adopt a job that a keeper has had since before this instance: send the messages it missed."""
        self.link, self.is_open = link, held.runs
        link.send(msg.LimitJob(self.launch.jobid, self.launch.expiration_s))
        jobspec = self.launch.jobspec
        if (held.ranks or held.released) and jobspec.request.elastic and not is_instance(jobspec):
            r, jobid = dict(self.launch.R), self.launch.jobid
            own = ResourceSet.parse(r).ranks if self.launch.ranks is None else self.launch.ranks
            has, ranks = Idset.parse(held.ranks), own - self.going
            self._outdated = Idset.parse(held.released) & ranks
            if missing := ranks - has:
                link.send(msg.GrowJob(jobid, r, str(missing)))
            if surplus := has - ranks - self.going:
                link.send(msg.ShrinkJob(jobid, str(surplus)))
        self.given(link, held.signals)

    def released(self, ranks: Idset) -> Idset:
        """Record that nothing is left on these targets by the keeper's report; return those for which that was
        unknown.
        """
        news = (ranks - self._outdated) & self.going
        self._outdated -= ranks
        self.going -= news
        return news


class KeeperInput:
    """Destination of input for the tasks of one job."""

    def __init__(self, link: KeeperLink, job: GivenJob, numbers: count[int]) -> None:
        self._link = link
        self._job = job
        self._numbers = numbers

    def send(
        self, data: bytes, tasks: Idset | None, *, eof: bool, answered: InputAnswer, window: Window | None = None
    ) -> None:
        link, jobid = self._link, self._job.launch.jobid
        if data and not self._job.has_input:
            raise Refused("the input of all tasks has ended", errno.EPIPE)
        if link.held_bytes(jobid) + len(data) > io.HELD_BYTES_MAX:
            self._job.has_input = False
            raise LimitExceeded(
                f"more than {io.HELD_BYTES_MAX >> 20} MiB of input wait to be read: give a file instead (--input)"
            )
        number = next(self._numbers)
        link.inputs[number] = jobid, len(data), answered
        link.send(msg.SendInput(jobid, number, data, None if tasks is None else str(tasks), eof, window))


# ---- hosts of keepers


class KeeperHost(Protocol):
    """Finds and starts keepers. Connections are made, nothing has been said on them."""

    def living(self) -> Sequence[Client]:
        """Return a connection to each keeper of a previous instance; called once, before any is started.

        Raises FluxschedError if it is unknown of one whether it exists.
        """
        ...

    def start(self) -> Client:
        """Return a connection to a new keeper. Raises OSError when none can be started."""
        ...

    def end_keeper(self, client: Client, timeout_s: float) -> None:
        """Wait for the end of this keeper, which was asked to end or does not answer, and then kill it; blocks."""
        ...


# ---- the connection to a keeper

SIGNALS_MAX = 256
"""Signals of a job that are kept until it is known that they have arrived; older ones have, or are lost."""
RECEIVE_MAX = 64
"""Transport messages taken at a time."""
LATER_S = 0.1
"""Time for which a message that nobody waits for may wait for another one (seconds)."""


class KeeperLink:
    """One keeper as its instance knows it."""

    def __init__(self, client: Client, turns: Turns, wake: Callable[[], None]) -> None:
        """`wake` has a turn run soon, which flushes the link at its end."""
        self.client = client
        self.jobs: set[int] = set()
        """Jobs given to the keeper, or reported by it, whose end has not been reported."""
        self.unwanted: set[int] = set()
        """Jobs reported by it that count as ended, and are being killed."""
        self.is_known = False
        """True once the keeper has answered the hello."""
        self.is_retiring = False
        """True if the keeper serves the jobs that it has, and gets no further ones."""
        self.is_ending = False
        """True if the keeper was sent the request to end."""
        self.clearing: Mapping[int, object] | None = None
        """Records of processes that it is to end."""
        self.inputs: dict[int, tuple[int, int, InputAnswer]] = {}
        """Job, bytes and callback by number of the input that the keeper has not answered."""
        self.measured: dict[int, Measured] = {}
        """Functions to be called with the usage of a job, by number of the question."""
        self.measures = False
        """True if it knows `MeasureJob`."""
        self.unhandled: list[int] = []
        """Serial numbers of reports whose handling failed."""
        self.patience: Timer | None = None
        """Timer for the keeper's answer to the hello."""
        self.heard_s = 0.0
        """When it last asked whether we are here, by the monotonic clock."""
        self._turns = turns
        self._wake = wake
        self._outbox: list[msg.KeeperMessage] = []
        self._has_said = False
        self._is_late = False
        self._jobspecs = ObjectMemo(msg.packed_jobspec, lambda packed: memoryview(packed).nbytes)
        self._last_settings: TaskSettings | None = None

    @property
    def has_said(self) -> bool:
        """Return whether any message was sent to the keeper."""
        return self._has_said

    def send(self, *messages: msg.KeeperMessage) -> None:
        """Send with the end of the turn."""
        if not self._has_said:
            self._has_said = True
            self._outbox.append(msg.KeeperHello(msg.VERSION, os.getpid(), self._turns.clock.wall_s()))
        self._outbox += messages
        self._wake()

    def send_later(self, one: msg.KeeperMessage) -> None:
        """Send a message that nobody waits for: with the next one, or else soon."""
        self._outbox.append(one)
        if not self._is_late:
            self._is_late = True
            self._turns.after(LATER_S, self._send_late)

    def _send_late(self) -> None:
        self._is_late = False
        self._wake()

    def start(self, job: JobLaunch, kill_timeout_s: float, *, outlives: bool, forwards: bool) -> None:
        """Have the keeper start a job; settings shared with earlier jobs are sent once."""
        settings = job.settings
        if settings is not self._last_settings:
            self._last_settings = settings
            cores = None if settings.cores is None else [str(units) for units in settings.cores]
            spool, environment = os.path.realpath(settings.spool), dict(settings.environment)
            self.send(msg.KeeperSettings(spool, environment, cores, kill_timeout_s, outlives, forwards))
        self.jobs.add(job.jobid)
        jobspec = self._jobspecs.get(job.jobspec)
        ranks = "" if job.ranks is None else str(job.ranks)
        self.send(
            msg.StartJob(
                job.jobid,
                job.attempt,
                jobspec,
                dict(job.R),
                job.expiration_s,
                ranks,
                job.first,
                job.is_shared,
                job.beside,
                job.userid,
            )
        )

    def welcomed(self) -> None:
        """Record that the keeper has answered the hello."""
        if self.patience is not None:
            self.patience.cancel()
        self.is_known = True

    def flush(self) -> None:
        """Send the outbox to the transport."""
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            for frames in msg.packed(outbox):
                self.client.send(frames)

    def receive(self) -> tuple[list[Any], bool]:
        """Return the messages received from the keeper, and whether there may be more. Raises RemoteProtocolError."""
        arrived = self.client.receive(RECEIVE_MAX)
        return [one for frames in arrived for one in msg.from_keeper(frames)], len(arrived) == RECEIVE_MAX

    def held_bytes(self, jobid: int) -> int:
        """Input of a job that it has not answered."""
        return sum(size for job, size, _ in self.inputs.values() if job == jobid)

    def input_answered(self, one: msg.InputAnswered) -> None:
        """Record that the keeper has room for more input, or has refused this one."""
        refused = LimitExceeded if one.exceeded else Refused
        self.answer_input(one.number, refused(one.note, one.errnum) if one.errnum else None)

    def job_measured(self, one: msg.JobMeasured) -> None:
        """Pass the usage of a job on to who has asked for it."""
        measured = self.measured.pop(one.number, None)
        if measured is not None:
            measured(one.usage)

    def answer_input(self, number: int, error: FluxschedError | None) -> None:
        """Notify the sender of input of its result."""
        found = self.inputs.pop(number, None)
        if found is not None:
            found[2](error)


# ---- the keeper of this host

PREFIX = "keeper-"
"""Prefix of the sockets' names; a number follows."""
BACKLOG = 8


class LocalKeeperHost:
    """See `KeeperHost`."""

    def __init__(
        self, directory: Path, run_directory: Path | None, owner: int, grace_s: float, limits: KeeperLimits = LIMITS
    ) -> None:
        """`directory` is where the sockets are.

        `run_directory` is what a keeper clears when the instance is killed, `owner` the descriptor that holds the lock
        on it; None where a next instance resumes the jobs.
        """
        self._directory = os.path.realpath(directory)
        self._run_directory = run_directory
        self._owner = owner
        self._grace_s = grace_s
        self._limits = limits
        self._pidfds: dict[Client, tuple[int, int]] = {}

    def living(self) -> Sequence[Client]:
        found: list[Client] = []
        for number in self._numbers():
            path = self._path(number)
            try:
                found.append(self._connect(path))
            except (ConnectionRefusedError, FileNotFoundError, ProcessLookupError, PermissionError) as fault:
                log.info("%s is removed: %s", path, fault.strerror or fault)
                with contextlib.suppress(OSError):
                    os.unlink(path)
            except BlockingIOError as fault:
                raise FluxschedError(
                    f"cannot determine whether jobs run at keeper {path}: it has accepted no connection within "
                    f"{self._limits.connect_s:g} s; if it is stopped, continue it (kill -CONT) or end it (kill -KILL), "
                    "then start again",
                    errno.ETIMEDOUT,
                ) from fault
            except OSError as fault:  # there may be jobs behind it, which would be lost with the socket
                text = f"cannot determine whether jobs run at keeper {path}: {fault.strerror}; start again without that"
                raise FluxschedError(text, fault.errno) from fault
        return found

    def start(self) -> Client:
        path = self._path(max(self._numbers(), default=0) + 1)
        ours, theirs = socket.socketpair()
        with theirs, self._listen(path) as listener:
            words = [sys.executable, "-I", "-S", keeper_main.__file__, path, str(listener.fileno())]
            words += [str(self._run_directory or ""), str(self._grace_s), os.pathsep.join(sys.path)]
            kept = [listener.fileno()] + ([] if self._run_directory is None else [self._owner])
            try:
                process = subprocess.Popen(
                    words, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=kept,
                    start_new_session=True,
                )  # fmt: skip
            except OSError:
                ours.close()
                os.unlink(path)
                raise
        process.returncode = 0  # `end` reaps it
        return self._known(ours, process.pid)

    def end_keeper(self, client: Client, timeout_s: float) -> None:
        pid, fd = self._pidfds.pop(client, (0, -1))
        if fd < 0:
            return
        if not select.select([fd], [], [], timeout_s)[0]:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            gone_s = self._limits.gone_s
            if not select.select([fd], [], [], gone_s)[0]:
                log.error("keeper %d is not gone %g s after it was killed: it may be waiting for a disk", pid, gone_s)
        os.close(fd)
        with contextlib.suppress(ChildProcessError):  # that of an instance before
            os.waitpid(pid, os.WNOHANG)

    def _numbers(self) -> list[int]:
        names = (name.removeprefix(PREFIX) for name in os.listdir(self._directory) if name.startswith(PREFIX))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, number: int) -> str:
        return f"{self._directory}/{PREFIX}{number}"

    def _listen(self, path: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(path) as name:
            listener.bind(name)
        os.chmod(path, FILE_MODE)
        listener.listen(BACKLOG)
        return listener

    def _connect(self, path: str) -> Client:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connect_s = self._limits.connect_s
        limit = struct.pack("@ll", int(connect_s), int(connect_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            with _short(path) as name:
                connection.connect(name)
            pid, userid = peer_of(connection)
            if userid != os.geteuid():
                raise PermissionError(1, "it is another user's")
            return self._known(connection, pid)
        except BaseException:
            connection.close()
            raise

    def _known(self, connection: socket.socket, pid: int) -> Client:
        client = connected(connection)
        self._pidfds[client] = pid, os.pidfd_open(pid)
        return client


@contextlib.contextmanager
def _short(path: str) -> Iterator[str]:
    """Yield a name of a socket that is short enough for the kernel, wherever its directory is."""
    directory, name = os.path.split(path)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
