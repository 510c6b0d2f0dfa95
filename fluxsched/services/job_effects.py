"""Performer of what the job manager decides: rows to the store, messages to schedulers, processes to executors.

A turn's effects that must wait for the disk (starts, answers, news for watchers) are gathered and registered as one
after-commit callback at the end of the turn. Messages to schedulers go out at once: the log is in order, so a crash
forgets the later before the earlier. Jobs are counted for monitoring, a few additions a job.

Law: the oldest ended jobs are removed with their logs, what they printed, and parts that no job shares, in small pieces
with pauses between them: first what a job printed (in no turn), then its rows. So a crash leaves a record without
output at worst, which goes with the next round. The job with the highest id stays: no id is given twice.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from logging import DEBUG
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import structs

from fluxsched.config.values import HistorySettings
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.reasons import Why
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor.base import (
    EXPIRED,
    Executor,
    InputPlace,
    JobLaunch,
    Measured,
    PerilogReports,
    ResumedJob,
    TaskSettings,
    expired_note,
    spool_directory,
)
from fluxsched.executor.timed import TimeLimits
from fluxsched.history import GroupOf, JobAccounting, JobFlow
from fluxsched.jobs import states as effect
from fluxsched.jobs.job import Job, JobSummary
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.states import EXEC
from fluxsched.jobs.table import RESULTS, result_name
from fluxsched.messaging.memo import ObjectMemo
from fluxsched.messaging.peers import Peer, RpcRequest
from fluxsched.messaging.router import Router
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs as msg
from fluxsched.protocol.messages.instance import JobMetrics
from fluxsched.store.jobs import (
    NO_JOBSPEC,
    EventPacker,
    JobspecRow,
    Parts,
    ended_count,
    id_list,
    known_parts,
    last_jobid,
    oldest_ended,
    pack_resources,
    parts_of_only,
)
from fluxsched.store.store import Store, Writer
from fluxsched.system.log import Subject, logger, of_job
from fluxsched.system.loop import (
    LONG_S,
    PIECE_ITEMS,
    WAITS_S,
    Histogram,
    Timer,
    Turns,
    error_answer,
    is_expected,
    pieces,
)

log = logger("jobs")

CLOCK_LOOK_S = 1.0
"""Interval of checking the wall clock while a job waits for a time (seconds)."""
REPORTS_S = 1.0
"""Time from the welcome of keepers until their reports of what has ended before are here (seconds)."""
JobEvents = tuple[int, list[dict[str, Any]]]
"""Job id, and the events of one of the job's rows."""
Resize = effect.GrowShells | effect.ShrinkShells
Publish = Callable[[Sequence[JobEvents]], None]
_encode = msgspec.json.encode


class LeasedJobs(Protocol):
    """Jobs that run in other instances, by leases."""

    def has(self, jobid: int) -> bool:
        """Return whether the job has a lease."""

    def explain(self, job: JobSummary, why: Why) -> Why:
        """Return the reason why a job does not run, extended by those of clusters where it may run or is to begin."""

    def extend_listed(self, jobs: list[dict[str, Any]]) -> None:
        """Extend the reasons in a list of jobs as `explain` does that of one."""


class NoLeases:
    """The leased jobs of an instance without clusters."""

    def has(self, jobid: int) -> bool:
        """Return False."""
        return False

    def explain(self, job: JobSummary, why: Why) -> Why:
        """Return the reason as it is."""
        return why

    def extend_listed(self, jobs: list[dict[str, Any]]) -> None:
        """Leave the reasons as they are."""


class JobEffects:
    """Performer of the job manager's effects, the only one."""

    def __init__(
        self,
        manager: JobManager,
        router: Router,
        store: Store,
        turns: Turns,
        settings: TaskSettings,
        preempt_timeout_s: float,
        group_of: GroupOf,
    ) -> None:
        """Create a performer; a preempted job gets SIGKILL `preempt_timeout_s` after SIGTERM."""
        self.manager = manager
        self.settings = settings
        self.publish: list[Publish] = []
        self.published: list[Callable[[], None]] = []
        self.submitted: list[Callable[[JobSummary], None]] = []
        """Called with a job whose submission is about to be stored."""
        self.followed: dict[int, Callable[[int, list[dict[str, Any]]], None]] = {}
        """By job a function that is called with its events when they are about to be stored: what is stored then goes
        into their transaction.
        """
        self.executors: dict[str, Executor] = {}
        self.leases: LeasedJobs = NoLeases()
        self.held: list[Callable[[int, Idset], None]] = []
        """Called when a job holds these targets; its `alloc` event is not stored yet."""
        self.unheld: list[Callable[[Sequence[tuple[int, Idset]]], None]] = []
        """Called when each of these jobs no longer holds these targets, which is on disk."""
        self._preempt_timeout_s = preempt_timeout_s
        self.ended_count = 0
        """Jobs that have ended since this began."""
        self.updates: dict[int, list[RpcRequest]] = {}
        self._running: dict[int, Executor] = {}
        self._router = router
        self._store = store
        self.turns = turns
        self._limits = TimeLimits(turns, self._time_is_up)
        self._expired = set[int]()
        """Jobs of the previous instance whose time is up, and of which it is not known yet how they ended."""
        self._unpublished_events: list[JobEvents] = []
        self._starts: list[effect.StartShells | Resize] = []
        self._pack = EventPacker().pack
        self._released_targets: list[tuple[int, Idset]] = []
        self._after: list[tuple[Subject | None, Callable[[], None]]] = []
        self._parts = Parts(partial(store.add, "part"), *known_parts(store.read))
        self._rows: ObjectMemo[JobspecRow] = ObjectMemo(self._parts.split, lambda row: len(row.text))
        self.counts = JobCounts()
        self.accounting = JobAccounting(turns, store, manager.queues.for_restored, group_of)
        self._debugs = log.isEnabledFor(DEBUG)
        self._due: Timer | None = None
        self._due_at_s = 0.0
        turns.at_end(self._end_turn)

    def add_executor(self, name: str, executor: Executor) -> None:
        """Have an executor run jobs: those of this host (`local`), those whose time alone passes (`test`), or those
        that run in clusters (`lease`).
        """
        self.executors[name] = executor

    def add_leases(self, leases: LeasedJobs) -> None:
        """Have the jobs that have one of these leases run by the executor `lease`."""
        self.leases = leases

    def bind_tasks(self, cores: list[Idset] | None) -> None:
        """Bind the tasks of jobs that start from now on to processing units, by core; None leaves them unbound."""
        self.settings = structs.replace(self.settings, cores=cores)

    @property
    def now_s(self) -> float:
        """Wall time of this turn (seconds since the epoch)."""
        return self.turns.wall_s

    def after_commit(self, call: Callable[[], None]) -> None:
        """Run `call` once the decisions of this turn are on disk."""
        if not self._after:
            self.turns.wake()
        self._after.append((self.turns.handling, call))

    def _end_turn(self) -> None:
        """Have all that waits for the disk done in one go: a closure a job and kind costs more than its work."""
        news, starts, given, after = self._unpublished_events, self._starts, self._released_targets, self._after
        if not (news or starts or given or after):
            return
        self._unpublished_events, self._starts, self._released_targets, self._after = [], [], [], []

        self._store.spread_after_commit(self._committed(news, starts, given, after))

    def _committed(
        self,
        news: list[JobEvents],
        starts: list[effect.StartShells | Resize],
        given: list[tuple[int, Idset]],
        after: list[tuple[Subject | None, Callable[[], None]]],
    ) -> Iterator[None]:
        """Do all that waited for one transaction, in pieces: a slow disk may have made it a large one.

        Targets are given back before it is announced that their jobs have ended: who hears that finds them free.
        """
        for gone in pieces(given):
            left: list[tuple[int, Idset]] = []
            for jobid, ranks in gone:
                job = self.manager.jobs.active.get(jobid)  # it may have grown by them again before this was stored
                left.append((jobid, ranks if job is None else ranks - job.held))
            for note in self.unheld:
                note(left)
            yield
        for stretches in pieces(news):
            for publish in self.publish:
                publish(stretches)
            yield
        for some in pieces(starts):
            for one in some:
                if isinstance(one, effect.StartShells):
                    self._launch(one)
                else:
                    self._resize(one)
            yield
        for calls in pieces(after):
            for self.turns.handling, call in calls:
                if self._debugs:
                    log.debug("stored by transaction %d", self._store.commits)
                self.turns.run_isolated(call, "an answer")
            self.turns.handling = None
            yield
        for notify in self.published:
            notify()

    # -- effects ------------------------------------------------------------------------------------------------

    def perform(self, effects: Iterable[Any]) -> None:
        """Perform these effects in order."""
        for one in effects:
            _PERFORMERS[type(one)](self, one)

    def _persist(self, one: effect.Persist) -> None:
        jobid, events = one.jobid, one.events
        ended_s, packed = self._pack(events)
        text, environment, files = NO_JOBSPEC if one.jobspec is None else self._rows.get(one.jobspec)
        resources = "" if one.R is None else pack_resources(one.R)
        self._store.add("job_log", (jobid, ended_s, packed, text, environment, files, resources))
        self._unpublished_events.append((jobid, events))
        if one.jobspec is not None:
            self.counts.submitted += 1
            for note in self.submitted:
                note(self.manager.jobs.get(jobid))
        if ended_s:
            self.ended_count += 1
            self._limits.disarm(jobid)
            job = self.manager.jobs.get(jobid)
            result = result_name(job)
            if result is not None:
                self.counts.ended[result] += 1
                self.accounting.ended(job, result)
        if self.followed and (follow := self.followed.get(jobid)) is not None:
            follow(jobid, events)

    def _to_scheduler(self, one: effect.ToScheduler) -> None:
        peer: Any = one.scheduler
        topic, message = _SENT_AS.get(type(one.message)), one.message
        if topic is not None:
            self._router.request(peer, topic, message)
        elif isinstance(message, msg.ExpirationRequest):
            self._propose(peer, message)

    def _propose(self, peer: Peer, proposed: msg.ExpirationRequest) -> None:
        """Have a scheduler agree to the new expiration of a running job."""
        jobid = proposed.id

        def answered(answer: Any) -> None:
            error = "the scheduler went away" if answer is None else None
            if answer is not None and answer.errnum not in (0, errno.ENOSYS):
                error = (answer.payload or b"refused").decode(errors="replace")
            self.perform(self.manager.allocation.expiration_answered(jobid, error, self.now_s))

        self._router.call(peer, "sched.expiration", framing.pack(proposed), answered)

    def _targets_granted(self, one: effect.TargetsGranted) -> None:
        for note in self.held:
            note(one.jobid, one.ranks)

    def _targets_freed(self, one: effect.TargetsFreed) -> None:
        self._released_targets.append((one.jobid, one.ranks))

    def _start(self, one: effect.StartShells | Resize) -> None:
        self._starts.append(one)

    def _kill(self, one: effect.Kill) -> None:
        """Signal a job after its start has been stored, or it could be signaled before it runs; on a full disk limits
        hold.
        """
        grace_s = self._preempt_timeout_s if one.preempted else None
        self._store.when_idle(lambda: self._signal(one.jobid, one.signum, grace_s))

    def _signal(self, jobid: int, signum: int, grace_s: float | None) -> None:
        executor = self._running.get(jobid)
        if executor is not None:
            executor.kill(jobid, signum, grace_s)

    def _update_done(self, one: effect.UpdateDone) -> None:
        executor = self._running.get(one.jobid)
        if executor is not None and one.error is None:
            expiration_s = self.manager.jobs.get(one.jobid).expiration_s
            self._limits.arm(one.jobid, expiration_s)
            executor.limit(one.jobid, expiration_s)
        for request in self.updates.pop(one.jobid, ()):
            if one.error is None:
                self.after_commit(request.respond)
            else:
                request.error(errno.EINVAL, one.error)

    def _save_queue(self, one: effect.SaveQueue) -> None:
        self._store.add("saved", ("queue", one.name or "", _encode(one.state)))

    def _wake_at(self, one: effect.WakeAt) -> None:
        if self._due is not None and self._due.call is not None:
            if self._due_at_s <= one.at_s:
                return
            self._due.cancel()
        self._due_at_s = one.at_s
        self._await_due()

    def _await_due(self) -> None:
        """Look at the wall clock now and then: timers do not follow it when it is set."""
        left_s = self._due_at_s - self.turns.clock.wall_s()
        call = self._timers_due if left_s <= CLOCK_LOOK_S else self._await_due
        self._due = self.turns.after(min(left_s, CLOCK_LOOK_S), call)

    def _timers_due(self) -> None:
        if self._due_at_s > self.turns.clock.wall_s():
            self._await_due()  # the clock was set back
        else:
            self.perform(self.manager.due(self.turns.clock.wall_s()))

    # -- execution ----------------------------------------------------------------------------------------------

    def _launch(self, one: effect.StartShells) -> None:
        jobid = one.jobid
        job = self.manager.jobs.active[jobid]
        self._running[jobid] = executor = self._executor_of(job)
        self.counts.started(job)
        try:
            executor.start(self._launch_of(job, one.R))
        except Exception as exc:  # whatever it is, it is this job's alone
            if not is_expected(exc):
                self.turns.report_bug(f"start of job {format_f58(jobid)}", exc)
            self.exec_failed(jobid, error_answer("start", exc)[1])
            return
        if job.expiration_s and jobid in self._running:
            self._limits.arm(jobid, job.expiration_s)

    def _resize(self, one: Resize) -> None:
        """Have a running job grow or shrink; a job that is ending needs no other size."""
        executor, job = self._running.get(one.jobid), self.manager.jobs.active.get(one.jobid)
        if executor is None or job is None or job.fatal is not None:
            return
        if isinstance(one, effect.GrowShells):
            executor.grow(one.jobid, one.R)
        else:
            executor.shrink(one.jobid, one.ranks, self._preempt_timeout_s)

    def _executor_of(self, job: Job) -> Executor:
        assert job.jobspec is not None, "a job that is to start has its jobspec"
        if self.leases.has(job.id):
            return self.executors["lease"]
        return self.executors["test" if job.jobspec.test_run_duration_s is not None else "local"]

    def _launch_of(self, job: Job, r: Mapping[str, Any]) -> JobLaunch:
        assert job.jobspec is not None, "a job that is to start has its jobspec"
        return JobLaunch(
            job.id,
            job.jobspec,
            r,
            self.settings,
            attempt=0 if job.attempt is None else job.attempt.number,
            expiration_s=job.expiration_s,
            userid=self.settings.user_of(job.userid),
        )

    def running_launch(self, jobid: int) -> JobLaunch:
        """Return the launch of a job of the `local` executor that runs. Raises Refused."""
        job = self.manager.jobs.get(jobid)
        held = job.R if isinstance(job, Job) and self._running.get(jobid) is self.executors["local"] else None
        if not isinstance(job, Job) or held is None:
            raise Refused(f"job {format_f58(jobid)} does not run here", errno.ESRCH)
        return self._launch_of(job, held)

    def input_of(self, jobid: int) -> InputPlace | None:
        """Return the destination of input for a job's tasks; None unless they run. Raises Refused if they accept
        none.
        """
        return self.executors["lease" if self.leases.has(jobid) else "local"].input_of(jobid)

    def measure(self, jobid: int, measured: Measured) -> None:
        """Call `measured` with what the tasks of a job have used so far; with None unless it runs."""
        executor = self._running.get(jobid)
        measured(None) if executor is None else executor.measure(jobid, measured)

    def _time_is_up(self, jobid: int) -> None:
        job = self.manager.jobs.active.get(jobid)
        self.raise_reported(jobid, "timeout", expired_note(0.0 if job is None else job.duration_s))

    def _expire_all(self) -> None:
        for jobid in list(self._expired):
            self._expire(jobid)

    def _expire(self, jobid: int) -> None:
        """Raise `timeout` on a job whose time was up before it was found, unless it had ended by then."""
        if jobid in self._expired:
            self._expired.remove(jobid)
            job = self.manager.jobs.active.get(jobid)
            if job is not None and job.status is None:
                self._time_is_up(jobid)

    def resume(self, jobids: Iterable[int], records: Mapping[int, object], settled: Callable[[], None]) -> None:
        """Have the executors resume the jobs of the previous instance; `settled` is called once the fate of each is
        known. Of `records` nothing else is left then.
        """
        found: dict[Executor, list[ResumedJob]] = {executor: [] for executor in self.executors.values()}
        waiting, now_s = len(found), self.now_s
        for jobid in jobids:
            job = self.manager.jobs.active[jobid]
            self._running[jobid] = executor = self._executor_of(job)
            begun_s = job.t_run if job.started else None
            grace_s = self._preempt_timeout_s if job.is_preempted else None
            held = job.R
            assert held is not None, "a job that is to run has its R"
            is_ending, launch = job.fatal is not None, self._launch_of(job, held)
            record = records.get(jobid)
            found[executor].append(
                ResumedJob(launch, record, begun_s, is_ending, grace_s, job.going, job.perilog, job.freed)
            )
            if job.status is None and 0.0 < job.expiration_s <= now_s:
                self._expired.add(jobid)
            elif job.status is None:
                self._limits.arm(jobid, job.expiration_s)

        def one_settled() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting:
                return
            self.turns.after(REPORTS_S, self._expire_all)
            settled()

        for name, executor in self.executors.items():
            executor.resume(found[executor], records if name == "local" else {}, one_settled)

    def started(self, jobid: int) -> None:
        """Record an executor's report that the job's tasks run; it is repeated until known to be stored."""
        if not self.manager.jobs.get(jobid).started:
            self.perform(self.manager.execution.started(jobid, self.turns.wall_s))

    def finished(self, jobid: int, status: int, usage: dict[str, Any] | None) -> None:
        """Record an executor's report that all tasks have ended and nothing of them is left."""
        self._running.pop(jobid, None)
        self.perform(self.manager.execution.finished(jobid, status, self.turns.wall_s, release=True, usage=usage))

    def perilog_reports(self, drain: Callable[[str, str, str], None]) -> PerilogReports:
        """Return the reports about programs before and after jobs; see `PerilogReports.drain`."""
        return PerilogReports(self._noted, self._unprepared, self._ended, self._failed, self.freed, drain)

    def _noted(self, jobid: int, name: str, context: dict[str, Any]) -> None:
        self.perform(self.manager.execution.noted(jobid, name, context, self.now_s))

    def _unprepared(self, jobid: int, note: str) -> None:
        self._limits.disarm(jobid)
        self.perform(self.manager.execution.unprepared(jobid, note, self.now_s))

    def _ended(self, jobid: int, status: int, usage: dict[str, Any] | None) -> None:
        self._limits.disarm(jobid)
        self.perform(self.manager.execution.finished(jobid, status, self.now_s, usage=usage))

    def _failed(self, jobid: int, note: str, is_lost: bool) -> None:
        self._limits.disarm(jobid)
        self.exec_failed(jobid, note, is_lost=is_lost, release=False)

    def freed(self, jobid: int) -> None:
        """Record that nothing of a job that has ended runs any more, nor a program of the site after it."""
        self._running.pop(jobid, None)
        self.perform(self.manager.execution.released(jobid, None, True, self.now_s))

    def released(self, jobid: int, ranks: Idset) -> None:
        """Record an executor's report that nothing of a job is left on targets by which it was shrunk; it is repeated
        until known to be stored.
        """
        job = self.manager.jobs.active.get(jobid)
        left = EMPTY if job is None else ranks & job.going
        if left:
            self.perform(self.manager.execution.released(jobid, left, final=False, now_s=self.now_s))

    def lost(self, jobid: int, ranks: Idset, note: str) -> None:
        """Record an executor's report that a running elastic job goes on without its tasks on these targets."""
        if jobid in self.manager.jobs.active:
            self.perform(self.manager.allocation.lost(jobid, ranks, note, self.now_s))

    def exec_failed(self, jobid: int, note: str, *, is_lost: bool = False, release: bool = True) -> None:
        """Take an executor's failure to run the job, since its host `is_lost` or for another reason; with `release`
        nothing of it is left.
        """
        self._expire(jobid)
        if release:
            self._running.pop(jobid, None)
        self.perform(self.manager.execution.exec_failed(jobid, note, self.now_s, is_lost=is_lost, release=release))

    def node_failed(self, jobid: int, note: str) -> None:
        """Take an executor's report that a host of the job was lost, and nothing of the job is left."""
        self.exec_failed(jobid, note, is_lost=True)

    def returned(self, jobid: int, note: str) -> None:
        """Take an executor's report that it has not begun the job and will not; it is submitted again."""
        self._running.pop(jobid, None)
        self.perform(self.manager.execution.returned(jobid, note, self.now_s))

    def record_process(self, jobid: int, record: object | None, then: Callable[[], None] | None) -> None:
        """Keep (or forget) which processes are a job's, then go on (kill -9 of the instance must find them)."""
        if record is None:
            self._store.remove("process", (jobid,))
        else:
            self._store.add("process", (jobid, _encode(record)))
        if then is not None:
            self.after_commit(then)

    def forget_parts(self, numbers: Sequence[int]) -> None:
        """Ensure that no later job refers to these parts of jobspecs, which are about to be removed."""
        self._parts.forget(numbers)
        self._rows.clear()

    def raise_reported(self, jobid: int, kind: str, note: str) -> None:
        """Raise an exception that an executor reports, since the job must end; the report is repeated until known to be
        stored.

        A job that was to end at the begin of an outage, which its executor does not know, is told so.
        """
        job = self.manager.jobs.get(jobid)
        if kind == "timeout" and isinstance(job, Job) and job.moved_end is not None:
            name = job.moved_end[0]
            outages = "reservation" if self.manager.requests.reservations.has(name) else "outage"
            note = f"{EXPIRED}: {outages} {name} begins, for which running jobs end"
        raised = job.exceptions or ()
        if not any(one["context"]["type"] == kind and one["context"].get("note") == note for one in raised):
            self.raise_job(jobid, kind, note)

    def raise_jobs(self, jobids: Iterable[int], note: str, kind: str = EXEC) -> None:
        """Fatal exceptions in the instance's own name."""
        for jobid in jobids:
            self.raise_job(jobid, kind, note)

    def raise_job(self, jobid: int, kind: str, note: str) -> None:
        """Raise a fatal exception; a job that has ended meanwhile, or has as many as it may have, needs no further
        one.
        """
        try:
            effects = self.manager.requests.raise_exception(jobid, kind, 0, note, None, self.now_s)
        except FluxschedError as exc:
            log.info("job %s: no %s exception: %s", format_f58(jobid), kind, exc, extra=of_job(jobid))
            return
        self.perform(effects)


_SENT_AS: dict[type, str] = {
    msg.AllocRequest: "sched.alloc",
    msg.FreeRequest: "sched.free",
    msg.SchedCancelRequest: "sched.cancel",
    msg.PrioritizeRequest: "sched.prioritize",
}
_PERFORMERS: dict[type, Callable[[JobEffects, Any], None]] = {
    effect.Persist: JobEffects._persist,
    effect.ToScheduler: JobEffects._to_scheduler,
    effect.TargetsGranted: JobEffects._targets_granted,
    effect.TargetsFreed: JobEffects._targets_freed,
    effect.StartShells: JobEffects._start,
    effect.GrowShells: JobEffects._start,
    effect.ShrinkShells: JobEffects._start,
    effect.Kill: JobEffects._kill,
    effect.WakeAt: JobEffects._wake_at,
    effect.UpdateDone: JobEffects._update_done,
    effect.SaveQueue: JobEffects._save_queue,
}


# ---- counts for metrics


class JobCounts:
    """Jobs submitted, started and ended."""

    def __init__(self) -> None:
        self.submitted = 0
        self._started = 0
        self.ended: dict[str, int] = dict.fromkeys(RESULTS, 0)
        """Jobs that are inactive, by the name of their result."""
        self._wait = Histogram(WAITS_S)

    def started(self, job: Job) -> None:
        """Count a job whose shells are started. It has waited from its submit until it was allocated resources."""
        self._started += 1
        self._wait.observe(max(0.0, job.t_run - job.t_submit))

    def value(self) -> JobMetrics:
        """Return all counts until now, for monitoring."""
        return JobMetrics(self.submitted, self._started, self._ended_by_result(), self._wait.coarser(LONG_S))

    def for_history(self) -> JobFlow:
        """Return the counts of jobs for samples."""
        return JobFlow(self.submitted, self._started, self._ended_by_result(), self._wait.counts())

    def _ended_by_result(self) -> dict[str, int]:
        return {name.lower(): count for name, count in self.ended.items()}


# ---- ended jobs that are forgotten

LOOK_S = 10.0
"""Interval of checking whether jobs have become too many or too old (seconds)."""
PAUSE_S = 0.1
"""Pause between two rounds of removals (seconds)."""
ROUND_JOBS = 256
"""Jobs removed in a round, some in each transaction: 2,500 jobs a second, or 200 million a day."""


class JobHistory:
    """Removes ended jobs; `background` is where directories are removed."""

    def __init__(self, effects: JobEffects, store: Store, settings: HistorySettings, background: Writer) -> None:
        self._effects = effects
        self._store = store
        self._settings = settings
        self._background = background
        self._turns = effects.turns
        self._next: Timer | None = None
        self._is_looking = False
        """True from a search until the jobs found are to be removed: another search would find and count them again."""
        self._count = ended_count(store.read)
        """Ended jobs in the store when this began, less those that were removed since."""

    def start(self) -> None:
        """Begin to look from time to time."""
        self._look_in(LOOK_S)

    @property
    def count(self) -> int:
        """Return the number of ended jobs that are remembered."""
        return self._count + self._effects.ended_count

    def _look_in(self, delay_s: float) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._turns.after(delay_s, self._look)

    def _look(self) -> None:
        self._look_in(LOOK_S)  # first, since what follows may fail to read
        if not self._is_looking:
            self._is_looking = True
            self._store.when_idle(self._choose)  # what has not been announced may be asked for yet

    def _choose(self) -> None:
        gone = list[int]()
        try:
            if self._store.fault is None:
                gone = self._found()
        finally:
            self._is_looking = bool(gone)
        if gone:
            self._background.run(partial(_remove, self._effects.settings.spool, gone), partial(self._forget, gone))

    def _found(self) -> list[int]:
        """Return the next jobs that are too many or too old."""
        surplus = self.count - self._settings.number_max
        old_s = self._turns.wall_s - self._settings.age_max_s
        last = last_jobid(self._store.read)
        oldest = enumerate(oldest_ended(self._store.read, ROUND_JOBS))
        return [jobid for at, (jobid, ended_s) in oldest if (at < surplus or ended_s < old_s) and jobid != last]

    def _forget(self, jobids: Sequence[int]) -> None:
        """Remove jobs, some in each of the next transactions: one with all of them would delay every answer."""
        some, left = jobids[:PIECE_ITEMS], jobids[PIECE_ITEMS:]
        self._is_looking = False  # if the store cannot be read the next look finds these again
        parts = parts_of_only(self._store.read, some)
        if parts:
            self._effects.forget_parts(parts)
        for jobid in some:
            self._effects.manager.jobs.forget(jobid)
        self._store.remove("job_log", (id_list(some),))
        if parts:
            self._store.remove("part", (id_list(parts),))
        self._store.change("fewer are counted")
        self._count -= len(some)
        log.debug("%d jobs that ended long ago are forgotten", len(some))
        self._turns.wake()
        self._is_looking = bool(left)
        if left:
            self._store.after_commit(partial(self._forget, left))
        else:
            self._look_in(PAUSE_S)


def _remove(spool: Path, jobids: Sequence[int]) -> None:
    for jobid in jobids:
        shutil.rmtree(spool_directory(spool, jobid), ignore_errors=True)
