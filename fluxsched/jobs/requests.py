"""Requests about jobs by users, the instance and its executor.

Users submit, raise exceptions, signal, and update urgency, duration and memos; the executor reports of the jobs that
run.

Law: every request is checked before anything changes (Refused, InvalidValue: the sender's fault); then one turn of the
lifecycle, whose effects the caller performs. Permissions are the caller's business, which knows roles.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from math import floor, inf
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import SECONDS_MAX, SiteLimit, check_ours
from fluxsched.core.jobid import check_outputs, format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import Outage, Outages
from fluxsched.core.quantities import format_duration, rough_duration
from fluxsched.core.text import printable, there_are
from fluxsched.errors import InvalidTransition, InvalidValue, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.jobs.dependencies import RESERVATION, SINGLETON, Dependency, parse_dependencies, reserved
from fluxsched.jobs.job import (
    SENT,
    URGENCY_DEFAULT,
    URGENCY_EXPEDITE,
    URGENCY_HOLD,
    WAITING,
    Job,
    JobSummary,
    priority_of,
)
from fluxsched.jobs.lifecycle import DURATION_KEY, Lifecycle
from fluxsched.jobs.queues import Banks, JobQueue
from fluxsched.jobs.states import (
    CLEANUP,
    DEPEND,
    EXEC,
    INACTIVE,
    NODE_FAILURE,
    PENDING,
    PREEMPT,
    PROLOG,
    REQUEUE,
    RETURN,
    RUN,
    SCHED,
    Effect,
    Kill,
    ToScheduler,
    UpdateDone,
    with_memo,
)
from fluxsched.protocol.messages.jobs import ExpirationRequest, PrioritizeRequest

JOBS_ACTIVE_MAX = 1 << 20
"""Active jobs (RFC 27 wants to scale to a million in SCHED); about 3 KiB each."""

NAME_CHARS_MAX = 1024
"""A job's name is for people, and is in every listing."""

START_S = 1.0
"""Time that a job in a reservation has to start, so that its limit may be as much less than the reservation lasts."""

NOTE_CHARS_MAX = 1024
"""An exception's note is for people; it is stored with the job and shown in listings."""

TYPE_CHARS_MAX = 32
"""An exception's type is compared by programs."""

EXCEPTIONS_MAX = 256
"""Exceptions a job, so that a component gone wild cannot fill log and memory; one that ends a job always passes."""


class Requests:
    """Users' side of the job manager."""

    def __init__(self, lifecycle: Lifecycle, active_max: int, banks: Banks) -> None:
        self._lifecycle = lifecycle
        self._jobs = lifecycle.jobs
        self.active_max = active_max
        self._banks = banks
        self._checked: object = None
        """The last attributes that were checked: those of jobs that come together are one object."""
        self.reservations = Reservations(lifecycle)

    def change_banks(self, banks: Banks) -> None:
        """Judge the banks of jobs that are submitted from now on by these."""
        self._banks = banks

    def change_limits(self, limits: Sequence[SiteLimit]) -> None:
        """Judge jobs that are submitted from now on by these limits."""
        self._lifecycle.limits.change(limits, self._jobs.active.values())

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
        """Accept a new job, and take it as far as it gets: usually to SCHED. `jobid` must be new.

        Raises Refused (EINVAL: queue or bank unknown, queue disabled or limits; ENOENT: unknown antecedent; EAGAIN:
        too many jobs, of all or of a holder of a limit) or InvalidValue.
        """
        queue, jobspec, dependencies = self.admitted(jobspec, userid, urgency, now_s)
        if jobid in self._jobs:
            raise InvalidValue(f"job id {jobid} is taken: ids must be unique")
        job = Job(jobid, queue, jobspec=jobspec)
        self._lifecycle.begin(now_s)
        self._lifecycle.submit(job, userid, urgency, flags, depends=bool(dependencies))
        link = self._lifecycle.links.serving(queue.group)
        if link is None or not link.ready:
            self._lifecycle.links.unjudged.add(jobid)
        if dependencies:
            for dependency in dependencies:
                self._lifecycle.log(job, "dependency-add", {"description": dependency.description})
            self._lifecycle.await_dependencies(job)
        if job.state is DEPEND:
            self._lifecycle.advance(job)
        return self._lifecycle.end()

    def admitted(
        self, jobspec: Jobspec, userid: int, urgency: int, now_s: float
    ) -> tuple[JobQueue, Jobspec, list[Dependency]]:
        """Return the queue of a new job, its jobspec as the queue takes it, and its dependencies; raise as `submit`."""
        _check_urgency(urgency)
        if len(self._jobs.active) >= self.active_max:
            raise Refused(f"{self.active_max} jobs are active, the limit: submit when some have ended", errno.EAGAIN)
        if jobspec.raw["attributes"] is not self._checked:
            check_submitted(jobspec)
            self._checked = jobspec.raw["attributes"]
        queue = self._lifecycle.queues.for_submit(jobspec.queue)
        jobspec = queue.admit(jobspec, self._banks.missing_in(jobspec))
        if self._lifecycle.limits.are_there:
            self._lifecycle.limits.check(jobspec, userid, queue.name)
        dependencies = list(self._checked_dependencies(jobspec)) if jobspec.dependencies else []
        if jobspec.deadline_s is not None:
            begins_s = [each.at_s for each in dependencies if each.at_s is not None]
            _check_deadline(jobspec.deadline_s, jobspec.duration_s, max(begins_s, default=now_s), now_s)
        if jobspec.request.reservation:
            dependencies += self.reservations.awaited(jobspec, userid, now_s)
        return queue, jobspec, dependencies

    def raise_exception(
        self,
        jobid: int,
        type: str,
        severity: int,
        note: str,
        userid: int | None,
        now_s: float,
        ranks: Idset | None = None,
    ) -> list[Effect]:
        """Return an exception (RFC 21): severity 0 ends the job, 1-7 are only logged.

        Nothing happens to a job that holds none of the `ranks`, if they are given. Raises Refused or InvalidValue.
        """
        if not 0 <= severity <= 7:
            raise InvalidValue(f"exception severity {severity} is not within 0 (fatal) to 7 (RFC 21)")
        if not 0 < len(type) <= TYPE_CHARS_MAX or not type.isprintable() or " " in type:
            shown = type[:TYPE_CHARS_MAX]
            raise InvalidValue(f"exception type {shown!r} is not a word of 1-{TYPE_CHARS_MAX} characters")
        if len(note) > NOTE_CHARS_MAX:
            raise LimitExceeded(f"exception note has {len(note)} characters, limit {NOTE_CHARS_MAX}: shorten it")
        if type == REQUEUE and severity == 0:
            _check_runs(self._jobs.get(jobid))
        job = self._jobs.get_active(jobid)
        if ranks is not None and ranks.isdisjoint(job.held):
            return []
        if type == PREEMPT and severity == 0 and job.state is not RUN:
            where = f"{job.title} is in state {job.state.name}"
            raise Refused(f"{where}: only a running job can be preempted", errno.EINVAL)
        if type in (RETURN, PROLOG) and severity == 0:
            what = f"exceptions of type {type!r} are reserved for the instance"
            raise Refused(f"{what}: cancel the job instead", errno.EINVAL)
        if len(job.exceptions or ()) >= EXCEPTIONS_MAX and (severity > 0 or job.state is CLEANUP):
            raise LimitExceeded(f"{job.title} has {EXCEPTIONS_MAX} exceptions already: no more are logged")
        self._lifecycle.begin(now_s)
        if severity == 0:
            self._lifecycle.fail(job, type, note, userid=userid)
        else:
            self._lifecycle.log_exception(job, type, severity, note, userid=userid)
        return self._lifecycle.end()

    def kill(self, jobid: int, signum: int, now_s: float) -> list[Effect]:
        """Signal a running job, which is no exception. Raises Refused (ENOENT, EINVAL)."""
        job = self._jobs.get_active(jobid)
        if not 1 <= signum <= 64:
            raise InvalidValue(f"signal {signum} is not within 1-64")
        if not job.executing:
            raise Refused(f"{job.title} is in state {job.state.name}: it has no running tasks to signal", errno.EINVAL)
        return [Kill(jobid, signum, "asked by a user")]

    def set_urgency(self, jobid: int, urgency: int, userid: int, now_s: float) -> list[Effect]:
        """Change a pending job's urgency: 0 holds it, 31 puts it first. Raises Refused (ENOENT, EINVAL)."""
        _check_urgency(urgency)
        job = self._jobs.get_active(jobid)
        if not job.state & PENDING:
            raise Refused(f"{job.title} has its resources: the urgency no longer matters", errno.EINVAL)
        self._lifecycle.begin(now_s)
        self._lifecycle.log(job, "urgency", {"urgency": urgency, "userid": userid})
        priority = priority_of(urgency)
        if job.state is SCHED and priority != job.priority:
            self._reprioritize(job, priority)
        return self._lifecycle.end()

    def update(self, jobid: int, updates: Mapping[str, Any], now_s: float, *, may_prolong: bool = True) -> list[Effect]:
        """Change a job's duration (`attributes.system.duration`, seconds, 0: without end).

        A pending job's jobspec changes at once; a running job's expiration once its scheduler agrees. UpdateDone
        tells when. Unless the sender `may_prolong` running jobs, these end no later than before: others were promised
        a start after them. Raises Refused (EPERM for that) or InvalidValue.
        """
        job = self._jobs.get_active(jobid)
        duration_s = _duration_update(updates)
        job.queue.check_duration(duration_s)
        self._lifecycle.limits.check_duration(job, duration_s)
        if job.state & PENDING:
            return self._update_pending(job, duration_s, now_s)
        link = self._lifecycle.links.serving(job.queue.group)
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
        if not may_prolong and job.expiration_s and not 0 < expiration_s <= job.expiration_s:
            asked = format_duration(duration_s) if duration_s else "infinity"
            least = f"{format_duration(job.expiration_s - job.starttime_s)}, which it has"
            raise Refused(f"{job.title} runs: its user may set at most {least}, not {asked}: ask an admin", errno.EPERM)
        job.expiration_asked_s = expiration_s
        return [ToScheduler(link.scheduler, ExpirationRequest(jobid, expiration_s))]

    def memo(self, jobid: int, memo: Mapping[str, Any], now_s: float, *, volatile: bool = False) -> list[Effect]:
        """Add a user's memo to an active job (RFC 21), shown in `annotations.user`; null removes a key.

        A volatile one is not in the eventlog, so a restart forgets it.

        Raises Refused (ENOENT, EINVAL), LimitExceeded.
        """
        job = self._jobs.get_active(jobid)
        noted = with_memo(job.annotations, memo)
        self._lifecycle.begin(now_s)
        if volatile:
            job.annotations = noted
            return self._lifecycle.end()
        self._lifecycle.log(job, "memo", dict(memo))
        return self._lifecycle.end()

    def _checked_dependencies(self, jobspec: Jobspec) -> Iterable[Dependency]:
        dependencies = parse_dependencies(jobspec.dependencies)
        unknown = [
            dependency.description
            for dependency in dependencies
            if dependency.antecedent is not None and dependency.antecedent not in self._jobs
        ]
        if unknown:
            raise Refused(f"dependency {', '.join(unknown)}: no such job is known", errno.ENOENT)
        if jobspec.job_name is None and any(dependency.description == SINGLETON for dependency in dependencies):
            raise InvalidValue(f"{SINGLETON} jobs require a job name (--job-name): they wait for others of that name")
        return dependencies

    def _reprioritize(self, job: Job, priority: int) -> None:
        self._lifecycle.log(job, "priority", {"priority": priority})
        link = self._lifecycle.links.serving(job.queue.group)
        if priority == URGENCY_HOLD:
            self._lifecycle.withdraw(job)
        elif job.request == SENT:
            assert link is not None, "a request is outstanding at no scheduler"
            self._lifecycle.out.append(ToScheduler(link.scheduler, PrioritizeRequest([(job.id, priority)])))
            link.reorder(job)
            self._lifecycle.touched[job.queue.group] = None
        elif job.request <= WAITING:
            self._lifecycle.enqueue(job)

    def _update_pending(self, job: Job, duration_s: float, now_s: float) -> list[Effect]:
        self._lifecycle.begin(now_s)
        self._lifecycle.log(job, "jobspec-update", {DURATION_KEY: duration_s})
        self._lifecycle.bound(job)
        if job.request == SENT:
            self._lifecycle.withdraw(job)  # asked again, with the new jobspec, when the answer has come
        self._lifecycle.out.append(UpdateDone(job.id, None))
        return self._lifecycle.end()


class Reservations:
    """Advance reservations (`change`), for jobs that name one: they wait for its begin, and end with it unless they
    have started.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._of: dict[str, Outage] = {}
        self._is_known = False  # until the first change, after which jobs of the store are judged

    def awaited(self, jobspec: Jobspec, userid: int, now_s: float) -> list[Dependency]:
        """Return what a job that names a reservation waits for. Raises Refused if it cannot run there: ENOENT, EPERM,
        and EINVAL for its limit, or for more nodes than are reserved.
        """
        name = jobspec.request.reservation
        known = self._of.get(name)
        there = None if known is None else known.next(now_s)
        if there is None:
            what = f"there is no reservation {printable(name)!r}, or it is over"
            raise Refused(f"{what}; {there_are(sorted(self._of))}", errno.ENOENT)
        if there.users and userid not in there.users:
            raise Refused(f"reservation {name!r} is for other users: ask who made it", errno.EPERM)
        left_s = there.until_s - (there.from_s if there.every_s else max(there.from_s, now_s)) - START_S
        if not 0 < jobspec.duration_s <= left_s:
            limit = f"a limit of {format_duration(jobspec.duration_s)}" if jobspec.duration_s else "no time limit"
            least = f"give one of at most {format_duration(float(max(0, floor(left_s))))} (--time-limit)"
            raise Refused(f"the job has {limit} and would run on after reservation {name!r}: {least}", errno.EINVAL)
        nodes, reserved_nodes = jobspec.request.nodes, len(there.targets)
        if nodes is not None and nodes.min > reserved_nodes:
            most = f"reservation {name!r} has {reserved_nodes}: ask for at most {reserved_nodes} (--nodes)"
            raise Refused(f"the job needs {nodes.min} nodes, and {most}", errno.EINVAL)
        return [reserved(name)] if there.from_s > now_s else []

    def has(self, name: str) -> bool:
        """Return whether there is a reservation of this name."""
        return name in self._of

    def change(self, outages: Outages, now_s: float) -> list[Effect]:
        """Schedule the jobs of those that have begun, and end those that wait for one that is no more."""
        self._lifecycle.begin(now_s)
        found = {each.name: each for each in outages.all if each.is_reservation}
        for name, each in found.items():
            there = each.next(now_s)
            if there is not None and there.from_s <= now_s:
                self._lifecycle.begun(name)
        ends_s = {name: inf if each.every_s else each.until_s for name, each in found.items()}
        if self._lifecycle.reservation_ends_s != ends_s or not self._is_known:
            self._lifecycle.reservation_ends_s = ends_s
            for job in list(self._lifecycle.jobs.active.values()):
                name = "" if job.jobspec is None else job.jobspec.request.reservation
                if not name or not job.state & PENDING:
                    continue
                if name in found:
                    self._lifecycle.bound(job)
                else:
                    self._lifecycle.fail(job, RESERVATION, f"reservation {name!r} is over, or was removed")
        self._of, self._is_known = found, True
        return self._lifecycle.end()


def _check_deadline(deadline_s: float, limit_s: float, begin_s: float, now_s: float) -> None:
    """Raise Refused (EINVAL) if a job that begins now, or at its begin-time, cannot be over by its deadline."""
    if deadline_s - limit_s > max(begin_s, now_s):
        return
    left_s = deadline_s - now_s
    when = f"is in {rough_duration(left_s)}" if left_s >= 1.0 else "is over"
    begin = f", its begin-time in {rough_duration(begin_s - now_s)}" if begin_s > now_s else ""
    limit = f", and its limit is {format_duration(limit_s)}" if limit_s else ""
    remedy = "give a later one, or a shorter limit" + (", or an earlier begin" if begin else "")
    raise Refused(f"the deadline of the job {when}{begin}{limit}: {remedy}", errno.EINVAL)


def check_submitted(jobspec: Jobspec) -> None:
    """Check the rules for attributes at submission: a job in the store was accepted by the rules of its day.

    Raise InvalidValue for unknown tags in names of output files and unknown attributes of ours, LimitExceeded for a
    name above NAME_CHARS_MAX.
    """
    check_ours(jobspec.raw["attributes"].get("system") or {})
    check_outputs(jobspec.output, jobspec.error)
    name = jobspec.job_name or ""
    if len(name) > NAME_CHARS_MAX:
        raise LimitExceeded(f"the job's name has {len(name)} characters, limit {NAME_CHARS_MAX}: shorten it")


def _check_runs(job: JobSummary) -> None:
    """Raise Refused for a job that cannot be requeued since it does not run."""
    if job.state is RUN:
        return
    if job.state is INACTIVE:
        again = f"fluxsched job info {format_f58(job.id)} jobspec | fluxsched job submit"
        ended = f"{job.title} has ended, only a running job is requeued"
        raise Refused(f"{ended}: submit it again by `{again}`", errno.EINVAL)
    how = "it waits already" if job.state & PENDING else "it is ending"
    raise Refused(f"{job.title} is in state {job.state.name}: {how}, only a running job is requeued", errno.EINVAL)


def _check_urgency(urgency: int) -> None:
    if not URGENCY_HOLD <= urgency <= URGENCY_EXPEDITE:
        raise InvalidValue(f"urgency {urgency} is not within {URGENCY_HOLD} (hold) to {URGENCY_EXPEDITE} (expedite)")


def _duration_update(updates: Mapping[str, Any]) -> float:
    """Return the duration that the updates ask for. Raises Refused or InvalidValue naming what cannot be changed."""
    others = [key for key in updates if key != DURATION_KEY]
    if others or not updates:
        raise Refused(f"cannot update {', '.join(others) or 'nothing'}: only {DURATION_KEY} can change", errno.EINVAL)
    value = updates[DURATION_KEY]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        wanted = f"is not a number of seconds within 0 and {SECONDS_MAX:.0f} (0: without end)"
        raise InvalidValue(f"{DURATION_KEY} {value!r} {wanted}")
    return float(value)


# ---- reports of the executor


class Execution:
    """The executor's side of the job manager."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._jobs = lifecycle.jobs

    def started(self, jobid: int, now_s: float) -> list[Effect]:
        """Record that the job's shells run."""
        job = self._executing(jobid, "start")
        if job.started:
            raise InvalidTransition(f"job {jobid}: started twice")
        self._lifecycle.begin(now_s)
        self._lifecycle.log_start(job)
        if job.id in self._lifecycle.dependencies.awaited:
            self._lifecycle.settled.append(job)
        return self._lifecycle.end()

    def finished(
        self, jobid: int, status: int, now_s: float, *, release: bool = False, usage: dict[str, Any] | None = None
    ) -> list[Effect]:
        """All shells have exited; `status` is the largest wait status, `usage` (ours) what the tasks used if that was
        measured. With `release` everything is released too.
        """
        job = self._executing(jobid, "finish")
        if job.status is not None:
            raise InvalidTransition(f"job {jobid}: finished twice")
        self._lifecycle.begin(now_s)
        self._lifecycle.finish(job, status, usage, release=release)
        return self._lifecycle.end()

    def released(self, jobid: int, ranks: Idset | None, final: bool, now_s: float) -> list[Effect]:
        """Nothing of the job runs on these ranks any more (None: on all that are left).

        Of a job that runs on these are some that it was shrunk by.

        Raises RemoteProtocolError for ranks that it does not hold, and for a `final` that leaves some.
        """
        job = self._executing(jobid, "release")
        given = job.held if ranks is None else ranks
        if not given or not given <= job.held:
            raise RemoteProtocolError(f"job {jobid}: release of ranks {given - job.held or 'none'}, held: {job.held}")
        if final and given != job.held:
            raise RemoteProtocolError(f"job {jobid}: a final release that leaves ranks {job.held - given}")
        if job.state is not CLEANUP and (final or not given <= job.going):
            raise InvalidTransition(f"job {jobid}: release in state {job.state.name}, before finish")
        self._lifecycle.begin(now_s)
        self._lifecycle.release(job, given)
        return self._lifecycle.end()

    def exec_failed(
        self, jobid: int, note: str, now_s: float, *, is_lost: bool = False, release: bool = True
    ) -> list[Effect]:
        """Nothing of the job runs (any more), and not as it should: a fatal `exec` exception, or `node-failure` where
        its host `is_lost`. With `release` everything is released too.
        """
        job = self._executing(jobid, "failure")
        self._lifecycle.begin(now_s)
        self._lifecycle.log_exception(job, NODE_FAILURE if is_lost else EXEC, 0, note[:NOTE_CHARS_MAX])
        if release:
            self._lifecycle.release(job, None)
        return self._lifecycle.end()

    def unprepared(self, jobid: int, note: str, now_s: float) -> list[Effect]:
        """Record that a program before the job's tasks has failed: these will not be started."""
        job = self._executing(jobid, "failure of a prolog")
        self._lifecycle.begin(now_s)
        self._lifecycle.log_exception(job, PROLOG, 0, note[:NOTE_CHARS_MAX])
        return self._lifecycle.end()

    def noted(self, jobid: int, name: str, context: dict[str, Any], now_s: float) -> list[Effect]:
        """Log an event about a program before or after the job's tasks."""
        job = self._executing(jobid, name)
        self._lifecycle.begin(now_s)
        self._lifecycle.log(job, name, context)
        return self._lifecycle.end()

    def returned(self, jobid: int, note: str, now_s: float) -> list[Effect]:
        """Record that the job was not begun, and will not be where it was to run: it is submitted again, at no cost of
        attempts.
        """
        job = self._executing(jobid, "return")
        if job.started:
            raise InvalidTransition(f"job {jobid}: returned after it was started")
        self._lifecycle.begin(now_s)
        self._lifecycle.log_exception(job, RETURN, 0, note[:NOTE_CHARS_MAX])
        self._lifecycle.release(job, None)
        return self._lifecycle.end()

    def _executing(self, jobid: int, event: str) -> Job:
        """Return the job that the executor reports. Raises InvalidTransition for one that it does not run."""
        found = self._jobs.active.get(jobid)
        if found is None or not found.executing:
            state = (found or self._jobs.get(jobid)).state.name
            raise InvalidTransition(f"job {jobid}: the executor reports {event}, but is not running it (state {state})")
        return found
