"""The job manager's facade: what users, admins, the executor and the store say to it.

Law: every request is checked before anything changes (Refused, InvalidValue: the sender's fault); then one turn of the
engine, whose effects the caller performs. Who may do what is decided by the caller, which knows roles.

The executor's promises: after StartShells it reports `started` at most once, then `finished` at most once, then
`released` until nothing is left; or `exec_failed` at any time once nothing of the job runs. After Kill it does the
same, sooner.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from fluxsched.core.duration import format_duration
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import SECONDS_MAX
from fluxsched.core.why import Why
from fluxsched.errors import InvalidTransition, InvalidValue, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.jobs.effects import Effect, Kill, SaveQueue, SchedExpiration, SchedPrioritize, UpdateDone
from fluxsched.jobs.job.annotations import with_memo
from fluxsched.jobs.job.dependencies import Dependency, parse_dependencies
from fluxsched.jobs.job.job import SENT, URGENCY_DEFAULT, URGENCY_EXPEDITE, URGENCY_HOLD, WAITING, Job, priority_of
from fluxsched.jobs.job.states import CLEANUP, DEPEND, PENDING, RUN, SCHED
from fluxsched.jobs.lifecycle.allocation import SchedulerSide
from fluxsched.jobs.lifecycle.restore import Restored, StoredJob, restore
from fluxsched.jobs.lifecycle.submitted import check_submitted
from fluxsched.jobs.query import lookups
from fluxsched.jobs.query.lookups import ALL_JOBS, Filter, JobResult
from fluxsched.jobs.queue.queues import JobQueue, QueueConfig, QueueStatus, checked_reason

if TYPE_CHECKING:
    from fluxsched.core.jobspec import Jobspec

NOTE_CHARS_MAX = 1024
"""An exception's note is for people; it is stored with the job and shown in listings."""

TYPE_CHARS_MAX = 32
"""An exception's type is a word that programs compare."""

EXCEPTIONS_MAX = 256
"""Exceptions a job, so that a component gone wild cannot fill log and memory; one that ends a job always passes."""

EVENTLOG_VERSION = 1
"""RFC 21's version of the eventlog format."""

DURATION_KEY = "attributes.system.duration"


class JobManager(SchedulerSide):
    """All jobs of an instance (RFC 21), their queues (RFC 33) and dependencies (RFC 26); see `Engine` for options."""

    # -- users

    def submit(
        self,
        jobid: int,
        jobspec: Jobspec,
        *,
        userid: int,
        urgency: int = URGENCY_DEFAULT,
        flags: int = 0,
        now_s: float,
    ) -> list[Effect]:
        """A new job, as far as it goes: usually into the line for resources. `jobid` must be new.

        Raises Refused (EINVAL: queue unknown, disabled or limits; ENOENT: unknown antecedent; EAGAIN: too many
        jobs) or InvalidValue.
        """
        _check_urgency(urgency)
        if len(self.active) >= self._active_max:
            raise Refused(f"{self._active_max} jobs are active, the limit: submit when some have ended", errno.EAGAIN)
        if jobid in self.active or jobid in self.inactive:
            raise InvalidValue(f"job id {jobid} is taken: ids must be unique")
        check_submitted(jobspec)
        queue = self.queues.for_submit(jobspec.queue)
        jobspec = queue.admit(jobspec)
        dependencies = self._checked_dependencies(jobspec) if jobspec.dependencies else ()
        job = Job(jobid, queue, jobspec)
        job.ntasks = lookups.count_tasks(jobspec)
        self._begin(now_s)
        context = {"userid": userid, "urgency": urgency, "flags": flags, "version": EVENTLOG_VERSION}
        self._log(job, "submit", context, jobspec=job.raw)
        self._log(job, "validate")
        self._admit(job)
        if dependencies:
            for dependency in dependencies:
                self._log(job, "dependency-add", {"description": dependency.description})
            self._await_dependencies(job)
        if job.state is DEPEND:
            self._advance(job)
        return self._end()

    def cancel(self, jobid: int, userid: int, note: str, now_s: float) -> list[Effect]:
        """End the job: a `cancel` exception of severity 0. Raises Refused (ENOENT, EINVAL)."""
        return self.raise_exception(jobid, "cancel", 0, note, userid, now_s)

    def raise_exception(
        self,
        jobid: int,
        type: str,
        severity: int,
        note: str,
        userid: int | None,
        now_s: float,
        wait_status: int | None = None,
    ) -> list[Effect]:
        """An exception (RFC 21): severity 0 ends the job, 1-7 are only logged. Raises Refused or InvalidValue."""
        if not 0 <= severity <= 7:
            raise InvalidValue(f"exception severity {severity} is not within 0 (fatal) to 7 (RFC 21)")
        if not 0 < len(type) <= TYPE_CHARS_MAX or not type.isprintable() or " " in type:
            shown = type[:TYPE_CHARS_MAX]
            raise InvalidValue(f"exception type {shown!r} is not a word of 1-{TYPE_CHARS_MAX} characters")
        if len(note) > NOTE_CHARS_MAX:
            raise LimitExceeded(f"exception note has {len(note)} characters, limit {NOTE_CHARS_MAX}: shorten it")
        job = self._active(jobid)
        if len(job.exceptions or ()) >= EXCEPTIONS_MAX and (severity > 0 or job.state is CLEANUP):
            raise LimitExceeded(f"{job.title} has {EXCEPTIONS_MAX} exceptions already: no more are logged")
        self._begin(now_s)
        if severity == 0:
            self._fail(job, type, note, userid=userid, wait_status=wait_status)
        else:
            self._log_exception(job, type, severity, note, userid=userid)
        return self._end()

    def kill(self, jobid: int, signum: int, now_s: float) -> list[Effect]:
        """Signal a running job, which is no exception. Raises Refused (ENOENT, EINVAL)."""
        job = self._active(jobid)
        if not 1 <= signum <= 64:
            raise InvalidValue(f"signal {signum} is not within 1-64")
        if not job.executing:
            raise Refused(f"{job.title} is in state {job.state.name}: nothing runs to be signalled", errno.EINVAL)
        return [Kill(jobid, signum, "asked by a user")]

    def set_urgency(self, jobid: int, urgency: int, userid: int, now_s: float) -> list[Effect]:
        """Change a pending job's urgency: 0 holds it, 31 puts it first. Raises Refused (ENOENT, EINVAL)."""
        _check_urgency(urgency)
        job = self._active(jobid)
        if not job.state & PENDING:
            raise Refused(f"{job.title} has its resources: the urgency no longer matters", errno.EINVAL)
        self._begin(now_s)
        self._log(job, "urgency", {"urgency": urgency, "userid": userid})
        priority = priority_of(urgency)
        if job.state is SCHED and priority != job.priority:
            self._reprioritize(job, priority)
        return self._end()

    def update(self, jobid: int, updates: Mapping[str, Any], userid: int, now_s: float) -> list[Effect]:
        """Change a job's duration (`attributes.system.duration`, seconds, 0: without end).

        A pending job's jobspec changes at once; a running job's expiration once its scheduler agrees. UpdateDone
        tells when. Raises Refused or InvalidValue.
        """
        job = self._active(jobid)
        duration_s = _duration_update(updates)
        job.queue.check_duration(duration_s)
        if job.state & PENDING:
            return self._update_pending(job, duration_s, now_s)
        link = self.links.serving(job.queue.group)
        if job.state is not RUN:
            raise Refused(f"{job.title} is ending: its duration no longer matters", errno.EINVAL)
        if job.expiration_asked_s is not None:
            raise Refused(f"{job.title}: an earlier change of its duration is not answered yet", errno.EBUSY)
        if link is None or not link.ready:
            raise Refused(f"{job.title}: no scheduler serves group {job.queue.group}: load one first", errno.EAGAIN)
        expiration_s = job.starttime_s + duration_s if duration_s else 0.0
        if duration_s and expiration_s <= now_s:
            lived = format_duration(duration_s)
            raise Refused(f"{job.title} has run longer than {lived} already: cancel it instead", errno.EINVAL)
        job.expiration_asked_s = expiration_s
        return [SchedExpiration(link.scheduler, jobid, expiration_s)]

    def memo(self, jobid: int, memo: Mapping[str, Any], now_s: float, *, volatile: bool = False) -> list[Effect]:
        """Note what somebody says of an active job (RFC 21): `annotations.user` shows it, null takes it back.
        A volatile one is not in the eventlog, so a restart forgets it.

        Raises Refused (ENOENT, EINVAL), LimitExceeded.
        """
        job = self._active(jobid)
        noted = with_memo(job.annotations, memo)
        self._begin(now_s)
        if volatile:
            job.annotations = noted
            return self._end()
        self._log(job, "memo", dict(memo))
        return self._end()

    # -- the executor

    def started(self, jobid: int, now_s: float) -> list[Effect]:
        """The job's shells run."""
        job = self._executing(jobid, "start")
        if job.started:
            raise InvalidTransition(f"job {jobid}: started twice")
        self._begin(now_s)
        self._log(job, "start")
        if job.id in self._dependencies:
            self._settled.append(job)
        return self._end()

    def finished(
        self, jobid: int, status: int, now_s: float, *, release: bool = False, usage: dict[str, Any] | None = None
    ) -> list[Effect]:
        """All shells have exited; `status` is the largest wait status, `usage` (ours) what the tasks used if that was
        measured. With `release` everything is released too.
        """
        job = self._executing(jobid, "finish")
        if job.status is not None:
            raise InvalidTransition(f"job {jobid}: finished twice")
        self._begin(now_s)
        if job.fatal is not None and (cause := job.fatal.get("wait_status")) is not None:
            status = lookups.shell_status(cause)  # RFC 21: that of the root cause replaces the largest one
        self._log(job, "finish", {"status": status} if usage is None else {"status": status, "usage": usage})
        if release:
            self._release(job, None)
        return self._end()

    def released(self, jobid: int, ranks: Idset | None, final: bool, now_s: float) -> list[Effect]:
        """Nothing of the job runs on these ranks any more (None: on all that are left).

        Raises RemoteProtocolError for ranks that it does not hold, and for a `final` that leaves some.
        """
        job = self._executing(jobid, "release")
        given = job.held if ranks is None else ranks
        if not given or not given <= job.held:
            raise RemoteProtocolError(f"job {jobid}: release of ranks {given - job.held or 'none'}, held: {job.held}")
        if final and given != job.held:
            raise RemoteProtocolError(f"job {jobid}: a final release that leaves ranks {job.held - given}")
        if job.state is not CLEANUP:
            raise InvalidTransition(f"job {jobid}: release in state {job.state.name}, before finish")
        self._begin(now_s)
        self._release(job, given)
        return self._end()

    def exec_failed(self, jobid: int, note: str, now_s: float) -> list[Effect]:
        """Nothing of the job runs (any more), and not as it should: a fatal `exec` exception, everything released."""
        job = self._executing(jobid, "failure")
        self._begin(now_s)
        self._log_exception(job, "exec", 0, note[:NOTE_CHARS_MAX])
        self._release(job, None)
        return self._end()

    # -- time and store

    def due(self, now_s: float) -> list[Effect]:
        """Begin-times up to now have come; called too early, it asks to be called again."""
        self._woken_at_s = None
        self._begin(now_s)
        for found in self._dependencies.due(now_s):
            self._decide(found)
            job = self.active.get(found.jobid)
            if job is not None and job.state is DEPEND:
                self._advance(job)
        self._wake()
        return self._end()

    def restore(self, rows: Iterable[StoredJob], now_s: float) -> Restored:
        """Take up the stored jobs, oldest first, before anything else is asked; see `restore.py`."""
        return restore(self, rows, now_s)

    # -- queues

    def queue_enable(
        self, name: str | None, enable: bool, reason: str | None = None, *, all_queues: bool = False
    ) -> list[Effect]:
        """Take jobs, or refuse them with the reason. Raises Refused (ENOENT, EINVAL)."""
        text = "" if enable else checked_reason(reason, "disabled by an administrator")
        queues = self.queues.select(name, all_queues, "enable" if enable else "disable")
        for queue in queues:
            queue.enabled, queue.enable_reason = enable, text
        return [SaveQueue(queue.name, queue.state()) for queue in queues]

    def queue_start(
        self, name: str | None, start: bool, reason: str | None = None, *, all_queues: bool = False, now_s: float
    ) -> list[Effect]:
        """Schedule, or hold back: then requests in hand are cancelled (RFC 33). Raises Refused (ENOENT, EINVAL)."""
        text = "" if start else checked_reason(reason, "stopped by an administrator")
        queues = self.queues.select(name, all_queues, "start" if start else "stop")
        self._begin(now_s)
        for queue in queues:
            queue.started, queue.start_reason = start, text
            self._out.append(SaveQueue(queue.name, queue.state()))
            self._touched[queue.group] = None
            if not start:
                self._withdraw_queue(queue)
        return self._end()

    def queues_reconfigure(
        self, configs: Mapping[str | None, QueueConfig], default: str | None, now_s: float
    ) -> list[Effect]:
        """Other configurations of the queues, against which `queues.faults` has nothing to say. Jobs that were accepted
        stay accepted; those of a queue that is gone wait until it is back.
        """
        new, gone = self.queues.reconfigure(configs, default)
        self._begin(now_s)
        self._out += [SaveQueue(queue.name, queue.state()) for queue in new]
        for queue in gone:
            self._withdraw_queue(queue)
        for link in self.links:
            link.queues = self.queues.served_by(link.groups)
            self._touched.update(dict.fromkeys(link.groups))
        return self._end()

    def queue_restore(self, name: str | None, state: Mapping[str, Any]) -> None:
        """Switches as SaveQueue stored them; those of a queue that is no more are ignored."""
        for queue in self.queues:
            if queue.name == name:
                queue.enabled, queue.enable_reason = bool(state["enable"]), str(state["enable_reason"])
                queue.started, queue.start_reason = bool(state["start"]), str(state["start_reason"])

    def queue_status(self, name: str | None = None) -> list[QueueStatus]:
        """RFC 33's status of one queue, or of all. Raises Refused (ENOENT)."""
        return [lookups.queue_status(self, queue) for queue in self.queues.select(name, name is None, "show")]

    # -- reads

    def listing(self, wanted: Filter = ALL_JOBS) -> list[dict[str, Any]]:
        """What listings show of the jobs wanted, newest first (`lookups.info`)."""
        return list(chain.from_iterable(self.listing_pieces(wanted)))

    def listing_pieces(self, wanted: Filter) -> Iterator[list[dict[str, Any]]]:
        """The same in pieces, between which anything may happen."""
        return lookups.list_jobs(self, wanted)

    def wait_result(self, jobid: int) -> JobResult | None:
        """How the job ended; None while it has not. Raises Refused (ENOENT)."""
        return lookups.result(self.job(jobid))

    def why(self, jobid: int) -> Why:
        """What the job waits for, or how it stands. Raises Refused (ENOENT)."""
        return lookups.why(self, self.job(jobid))

    # -- helpers

    def _checked_dependencies(self, jobspec: Jobspec) -> Iterable[Dependency]:
        dependencies = parse_dependencies(jobspec.dependencies)
        unknown = [
            dependency.description
            for dependency in dependencies
            if dependency.antecedent
            and dependency.antecedent not in self.active
            and dependency.antecedent not in self.inactive
        ]
        if unknown:
            raise Refused(f"dependency {', '.join(unknown)}: no such job is known", errno.ENOENT)
        return dependencies

    def _reprioritize(self, job: Job, priority: int) -> None:
        self._log(job, "priority", {"priority": priority})
        link = self.links.serving(job.queue.group)
        if priority == URGENCY_HOLD:
            self._withdraw(job)
        elif job.request == SENT:
            assert link is not None, "a request is outstanding at no scheduler"
            self._out.append(SchedPrioritize(link.scheduler, [(job.id, priority)]))
            link.reorder(job)
            self._touched[job.queue.group] = None
        elif job.request <= WAITING:
            self._enqueue(job)

    def _update_pending(self, job: Job, duration_s: float, now_s: float) -> list[Effect]:
        self._begin(now_s)
        self._log(job, "jobspec-update", {DURATION_KEY: duration_s})
        if job.request == SENT:
            self._withdraw(job)  # asked again, with the new jobspec, when the answer has come
        self._out.append(UpdateDone(job.id, None))
        return self._end()

    def _withdraw_queue(self, queue: JobQueue) -> None:
        link = self.links.serving(queue.group)
        if link is not None:
            for job in link.outstanding.values():
                if job.queue is queue:
                    link.cancel(job, self._out)


def _check_urgency(urgency: int) -> None:
    if not URGENCY_HOLD <= urgency <= URGENCY_EXPEDITE:
        raise InvalidValue(f"urgency {urgency} is not within {URGENCY_HOLD} (hold) to {URGENCY_EXPEDITE} (expedite)")


def _duration_update(updates: Mapping[str, Any]) -> float:
    """The duration that the updates ask for. Raises Refused or InvalidValue naming what cannot be changed."""
    others = [key for key in updates if key != DURATION_KEY]
    if others or not updates:
        raise Refused(f"cannot update {', '.join(others) or 'nothing'}: only {DURATION_KEY} can change", errno.EINVAL)
    value = updates[DURATION_KEY]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        wanted = f"is not a number of seconds within 0 and {SECONDS_MAX:.0f} (0: without end)"
        raise InvalidValue(f"{DURATION_KEY} {value!r} {wanted}")
    return float(value)

