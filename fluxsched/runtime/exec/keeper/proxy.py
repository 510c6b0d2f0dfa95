"""The `local` executor as the instance has it: tasks are children of a keeper, a process that outlives the instance.

Law: a job is started at one keeper, once. Whether it may have run is known from the store: what identifies its
processes is there before any of them runs. So a job that no keeper knows is started if nothing of it is on record;
else what may be left of it is ended beyond doubt, and it has failed. A keeper whose connection ends is dead, or is
killed. What a keeper reports is said to be stored once it is, and what it repeats of jobs that have ended is passed
over. The first keeper is started with the first job.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from signal import SIGKILL, SIGTERM
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import Refused, RemoteProtocolError
from fluxsched.runtime.exec.base import TERMINATING, InputPlace, JobLaunch, Reports, ResumedJob
from fluxsched.runtime.exec.cleanup.orphans import clear_orphans
from fluxsched.runtime.exec.keeper import messages as msg
from fluxsched.runtime.exec.keeper.given_job import GivenJob
from fluxsched.runtime.exec.keeper.host import KeeperHost
from fluxsched.runtime.exec.keeper.link import KeeperLink
from fluxsched.runtime.exec.nested import NestedJobs
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system.log import logger

log = logger("keeper")

HELLO_S = 30.0
"""How long a keeper may take to answer (seconds): a stopped one must not keep an instance from its work for ever."""
END_S = 5.0
"""How long a keeper may take to end its tasks and itself (seconds)."""
CLEAR_S = 5.0
"""How long killed processes may take to be gone (seconds)."""
AGAIN_S = 1.0
"""Time before a keeper without jobs that has ended is replaced (seconds)."""
TRIES_MAX = 3
"""Keepers to which a job is given: one that ends them all is not to end more."""
RESTARTED = "the instance was restarted"
KILLED = "the keeper of its tasks was killed"


class KeeperExecutor:
    """Gives jobs to keepers, and reports what these report."""

    def __init__(
        self, turns: Turns, reports: Reports, host: KeeperHost, kill_timeout_s: float, *, outlives: bool
    ) -> None:
        self._turns = turns
        self._reports = reports
        self._nested = NestedJobs(turns, reports, kill_timeout_s)
        self.give_back = self._nested.give_back
        self._host = host
        self._kill_timeout_s = kill_timeout_s
        self._outlives = outlives
        self._links: list[KeeperLink] = []
        self._runs: dict[int, GivenJob] = {}
        self._left: dict[int, object] = {}
        """Records of processes that are to be ended before this executor is settled, by job id."""
        self._settled: Callable[[], None] = _nothing
        self._is_settled = False
        """Whether it is known of all jobs of the instance before what became of them."""
        self._closed = False
        self._guards = False
        self._inputs: count[int] = count(1)
        self._handlers: Mapping[type, Callable[[KeeperLink, Any], None]] = {
            msg.KeeperWelcome: self._welcomed,
            msg.JobSpawned: self._spawned,
            msg.JobStarted: self._started,
            msg.JobRaised: self._raised,
            msg.JobFinished: self._finished,
            msg.JobFailed: self._failed,
            msg.TargetsReleased: self._released,
            msg.InputAnswered: KeeperLink.input_answered,
            msg.ProcessesCleared: self._cleared,
        }
        turns.source(self._take)
        turns.at_end(self._flush)

    # -- requests -----------------------------------------------------------------------------------------------

    def resume(self, jobs: Sequence[ResumedJob], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """See `Executor.resume`: the keepers that are there are asked which jobs they have."""
        self._settled = settled
        self._left = dict(records)
        for job in jobs:
            run = self._runs[job.launch.jobid] = GivenJob(job.launch, job.record)
            if job.is_ending:
                run.signals.append((SIGTERM, job.grace_s))
            self._nested.begin(job.launch)
            if job.going:
                self.shrink(job.launch.jobid, job.going)
        for client in self._host.living():
            link = self._connect(client)
            link.patience = self._turns.after(HELLO_S, partial(self._lost, link, "it does not answer"))
            link.say()
        self._settle()

    def start(self, job: JobLaunch) -> None:
        """See `Executor.start`. Raises Refused if there is no keeper and none can be started."""
        self._runs[job.jobid] = run = GivenJob(job, None)
        self._nested.begin(job)
        if self._is_settled:
            try:
                self._give(run)
            except Refused:
                del self._runs[job.jobid]
                raise

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        """See `Executor.kill`."""
        run = self._runs.get(jobid)
        if run is not None:
            run.signal(signum, grace_s)

    def limit(self, jobid: int, expiration_s: float) -> None:
        """See `Executor.limit`."""
        run = self._runs.get(jobid)
        if run is not None and run.link is not None:
            run.link.say(msg.LimitJob(jobid, expiration_s))

    def grow(self, jobid: int, r: Mapping[str, Any]) -> None:
        """See `Executor.grow`."""
        run = self._runs.get(jobid)
        if run is not None and not self._nested.has(jobid):
            run.grow(r)

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        """See `Executor.shrink`."""
        run = self._runs.get(jobid)
        if run is not None:
            why_not = (partial(self._nested.shrink, jobid) if self._nested.has(jobid) else run.shrink)(ranks, grace_s)
            if why_not:
                self._reports.raised(jobid, "exec", why_not)

    def input_of(self, jobid: int) -> InputPlace | None:
        """See `Executor.input_of`."""
        run = self._runs.get(jobid)
        return None if run is None else run.input_place(self._inputs)

    def guard(self) -> None:
        """Have a keeper, jobs or not: it ends what is on record when this instance is killed."""
        self._guards = True
        try:
            self._current()
        except Refused as fault:
            log.error("if this instance is killed its command runs on: %s", fault)

    def close(self) -> None:
        """See `Executor.close`."""
        self._end(msg.EndKeeper())
        for link in self._links:
            self._host.end(link.client, END_S if link.has_said else 0.0)
            link.client.close()

    def leave(self, within_s: float) -> None:
        """See `Executor.leave`."""
        self._end(msg.Leave(within_s))
        for link in self._links:
            if not link.has_said:
                self._host.end(link.client, 0.0)
            link.client.close()

    def _end(self, word: msg.KeeperMessage) -> None:
        self._closed = True
        for link in self._links:
            if link.has_said:
                link.say(word)
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
        link = KeeperLink(client, self._turns)
        self._links.append(link)
        self._turns.attach(client.start)
        return link

    def _give(self, run: GivenJob) -> None:
        run.tries += 1
        if run.tries > TRIES_MAX:
            raise Refused(f"{TRIES_MAX} keepers ended while they were to start it: see the log")
        link = run.link = self._current()
        link.start(run.launch, self._kill_timeout_s, outlives=self._outlives)
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
            self._turns.run_isolated(handle, f"report of a keeper: {one!r:.80}", partial(_unhandled, link, one))
        if serial:
            self._reports.stored(lambda: link.say(msg.Stored(serial, list(link.unhandled))))

    def _flush(self) -> None:
        for link in self._links:
            link.flush()

    def _lost(self, link: KeeperLink, reason: str) -> None:
        """A keeper is dead, or will be now: what it was to do is done by another one."""
        if link not in self._links or self._closed:
            return
        self._links.remove(link)
        if link.patience is not None:
            link.patience.cancel()
        link.client.close()
        self._host.end(link.client, END_S if link.is_ending else 0.0)
        if not link.is_ending:
            log.warning("the keeper has ended, which it should not: %s", reason)
        for number in list(link.inputs):
            link.answer_input(number, Refused("the keeper of the job's tasks has ended", errno.ESRCH))
        records = dict(link.clearing or {})
        again: list[GivenJob] = []
        for jobid in sorted(link.jobs):
            run = self._runs[jobid]
            run.link, run.is_open = None, False
            if run.record is None:
                again.append(run)
            else:
                records[jobid] = run.record
        if not self._is_settled:
            self._left |= records
            self._settle()
            return
        self._clear(records)
        for run in again:
            self._give_or_fail(run)
        if self._guards:
            self._turns.after(AGAIN_S, self._guard_again)

    def _guard_again(self) -> None:
        if not self._closed:
            self.guard()

    def _give_or_fail(self, run: GivenJob) -> None:
        """Start a job whose tasks have not run, unless it was to end meanwhile."""
        try:
            if any(signum in TERMINATING for signum, _ in run.signals):
                raise Refused("it was ended before its tasks ran")
            self._give(run)
        except Refused as fault:
            del self._runs[run.launch.jobid]
            self._reports.failed(run.launch.jobid, str(fault))

    # -- after a restart ----------------------------------------------------------------------------------------

    def _welcomed(self, link: KeeperLink, one: msg.KeeperWelcome) -> None:
        link.welcomed(one.version)
        link.is_retiring |= one.version != msg.VERSION or any(
            other.is_known and not other.is_retiring for other in self._links if other is not link
        )
        for held in one.jobs:
            run = self._runs.get(held.jobid)
            if run is None or run.link not in (None, link):
                link.say(msg.SignalJob(held.jobid, SIGKILL))
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
        """A keeper that gets no more jobs, and has none, ends."""
        if link.is_retiring and not link.jobs and not link.clearing:
            link.is_ending = True
            self._reports.stored(lambda: link.say(msg.EndKeeper()))

    def _settle(self) -> None:
        """When all keepers have answered: have the processes ended that none has, and start what never ran."""
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
            self._gone(records, clear_orphans(records, CLEAR_S))
        else:
            link.clearing = {**(link.clearing or {}), **records}
            link.say(msg.ClearProcesses(dict(records)))

    def _cleared(self, link: KeeperLink, one: msg.ProcessesCleared) -> None:
        records = {jobid: record for jobid, record in (link.clearing or {}).items() if jobid in one.notes}
        link.clearing = {jobid: record for jobid, record in (link.clearing or {}).items() if jobid not in records}
        self._gone(records, one.notes)
        self._retire(link)

    def _gone(self, records: Mapping[int, object], notes: Mapping[int, str]) -> None:
        """Nothing is left of these processes."""
        why = KILLED if self._is_settled else RESTARTED
        for jobid in records:
            self._left.pop(jobid, None)
            self._reports.record(jobid, None, _nothing)
            if self._runs.pop(jobid, None) is not None:
                self._reports.failed(jobid, f"{why}; {notes.get(jobid, 'no process of the job was left')}")
        self._settle()

    # -- reports ------------------------------------------------------------------------------------------------

    def _run_of(self, link: KeeperLink, jobid: int) -> GivenJob | None:
        """The job that a report is about; None if it has ended by our record, and the report is repeated."""
        run = self._runs.get(jobid)
        return run if run is not None and run.link is link else None

    def _spawned(self, link: KeeperLink, one: msg.JobSpawned) -> None:
        run = self._run_of(link, one.jobid)
        if run is not None:
            run.record = one.record
            run.settled()
            self._reports.record(one.jobid, one.record, _nothing)

    def _started(self, link: KeeperLink, one: msg.JobStarted) -> None:
        run = self._run_of(link, one.jobid)
        if run is not None:
            run.is_open, run.no_input = True, one.no_input
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

    def _ended(self, link: KeeperLink, jobid: int) -> bool:
        """The job has no process any more; whether that is news."""
        link.jobs.discard(jobid)
        run = self._run_of(link, jobid)
        if run is None:
            return False
        del self._runs[jobid]
        self._nested.end(jobid)
        if run.record is not None:
            self._reports.record(jobid, None, _nothing)
        if link.is_retiring:
            self._retire(link)
        return True


def _unhandled(link: KeeperLink, one: Any, fault: Exception) -> None:
    """It is not said to be stored, since nothing may have come of it."""
    if hasattr(one, "serial"):
        link.unhandled.append(one.serial)


def _nothing() -> None:
    """What follows a record: the keeper is told with all others that it is stored."""
