"""What may be asked about jobs: listings, results, reasons. Reads only.

Law: nothing here changes a job; keys and words are those of job-manager.list's JobInfo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fluxsched.core.waitstatus import ended_text, return_code
from fluxsched.core.why import Why
from fluxsched.jobs.job.job import HELD_PRIORITY, SENT, WAITING, Job
from fluxsched.jobs.job.states import ACTIVE, DEPEND, INACTIVE, PENDING, RUN, SCHED
from fluxsched.jobs.queue.queues import JobQueue, QueueStatus

if TYPE_CHECKING:
    from fluxsched.core.jobspec import Jobspec
    from fluxsched.jobs.lifecycle.lifecycle import Engine

LIST_MAX = 1000
"""Jobs in one listing unless asked otherwise."""

PIECE_JOBS = 128
"""Jobs that a listing looks at in one go: half a millisecond."""

EVERY_STATE = ACTIVE | INACTIVE


class Filter(NamedTuple):
    """Which jobs a listing wants; None means all. `states` is a union of states, `since_s` compares t_inactive, and
    `matches` is what a constraint says besides.
    """

    ids: tuple[int, ...] | None = None
    states: int = EVERY_STATE
    queue: str | None = None
    name: str | None = None
    userid: int | None = None
    max_entries: int = LIST_MAX
    since_s: float = 0.0
    matches: Callable[[Job], bool] | None = None


ALL_JOBS = Filter()


class JobResult(msgspec.Struct, frozen=True, gc=False):
    """How a job ended; `status` is a wait status, -1 if nothing ran; `result` COMPLETED, FAILED, CANCELED, TIMEOUT."""

    jobid: int
    success: bool
    status: int
    result: str
    errstr: str
    exception_type: str | None
    exception_note: str | None
    t_inactive: float


_RESULTS = {"cancel": "CANCELED", "timeout": "TIMEOUT", "timelimit": "TIMEOUT"}


def result(job: Job) -> JobResult | None:
    """The job's result; None until it is inactive."""
    if job.state is not INACTIVE:
        return None
    fatal, status, success = job.fatal, job.status, job.success
    kind = fatal["type"] if fatal else None
    return JobResult(
        jobid=job.id,
        success=success,
        status=-1 if status is None else status,
        result="COMPLETED" if success else _RESULTS.get(kind or "", "FAILED"),
        errstr=_error_text(fatal, status),
        exception_type=kind,
        exception_note=fatal["note"] if fatal else None,
        t_inactive=job.t_inactive,
    )


def shell_status(status: int) -> int:
    """A wait status as a shell passes it on, whose exit code is 128 + n where signal n ended its program (RFC 21)."""
    signum = status & 0x7F
    return (128 + signum if signum else status >> 8 & 0xFF) << 8


def _error_text(fatal: dict[str, Any] | None, status: int | None) -> str:
    if fatal is not None:
        return f"exception {fatal['type']}: {fatal['note']}" if fatal["note"] else f"exception {fatal['type']}"
    if not status:
        return ""
    signum = status & 0x7F
    return f"ended by signal {signum}" if signum else f"exit code {status >> 8 & 0xFF}"


def count_tasks(jobspec: Jobspec) -> int:
    """How many tasks the jobspec asks for, at its smallest."""
    request = jobspec.request
    return jobspec.ntasks(request.slots.min * (request.nodes.min if request.nodes is not None else 1))


def info(job: Job) -> dict[str, Any]:
    """What a listing shows of a job; keys without a value yet are left out."""
    found: dict[str, Any] = {
        "id": job.id,
        "state": job.state.name,
        "name": job.name,
        "userid": job.userid,
        "urgency": job.urgency,
        "priority": job.priority,
        "t_submit": job.t_submit,
        "ntasks": job.ntasks,
        "duration": job.duration_s,
        "annotations": job.annotations or {},
        "dependencies": list(job.dependencies or ()),
        "command": list(job.command),
    }
    optional = {
        "queue": job.queue.name,
        "array": job.array or None,
        "t_run": job.t_run or None,
        "t_cleanup": job.t_cleanup or None,
        "t_inactive": job.t_inactive or None,
        "status": job.status,
        "exception": job.fatal,
    }
    if job.status is not None:
        optional |= {"returncode": return_code(job.status), "ended": ended_text(job.status)}
    if job.usage is not None:
        optional["usage"] = job.usage.to_json()
    if job.ranks:
        optional |= {
            "nnodes": len(job.ranks),
            "ncores": job.ncores,
            "ranks": str(job.ranks),
            "nodelist": job.nodelist,
            "expiration": job.expiration_s,
        }
    ended = result(job)
    if ended is not None:
        optional |= {"success": ended.success, "result": ended.result}
    found.update((key, value) for key, value in optional.items() if value is not None)
    return found


def list_jobs(engine: Engine, wanted: Filter) -> Iterator[list[dict[str, Any]]]:
    """The jobs wanted, newest first, active ones before those that have ended; piece by piece, for there may be a
    million to look through. Whatever happens between two pieces, no job is listed twice, and each as it is then.
    """
    left = wanted.max_entries
    for some in _candidates(engine, wanted):
        if left <= 0:
            return
        found = list(islice((info(job) for job in some if _matches(job, wanted)), left))
        left -= len(found)
        yield found


def _candidates(engine: Engine, wanted: Filter) -> Iterator[list[Job]]:
    """The jobs to look at, the first one first."""
    ended = wanted.ids
    if ended is None:
        ended = tuple(reversed(engine.inactive)) if wanted.states & INACTIVE else ()
        if wanted.states & ACTIVE:
            yield from walk_active(engine, PIECE_JOBS)
    for start in range(0, len(ended), PIECE_JOBS):
        yield _known(engine, ended[start : start + PIECE_JOBS])


def walk_active(engine: Engine, step: int) -> Iterator[list[Job]]:
    """The jobs that are active when it begins, from the latest, `step` or fewer at a time. Between two steps anything
    may happen: a job that has ended since comes as what it is then.
    """
    ended = dict.fromkeys(engine.inactive)
    for jobids in engine.active_ids.walk(step):
        yield _known(engine, [jobid for jobid in jobids if jobid not in ended])


def _known(engine: Engine, jobids: Iterable[int]) -> list[Job]:
    found = (engine.active.get(jobid) or engine.inactive.get(jobid) for jobid in jobids)
    return [job for job in found if job is not None]


def _matches(job: Job, wanted: Filter) -> bool:
    return (
        bool(job.state & wanted.states)
        and (wanted.queue is None or job.queue.name == wanted.queue)
        and (wanted.name is None or job.name == wanted.name)
        and (wanted.userid is None or job.userid == wanted.userid)
        and (job.state is not INACTIVE or job.t_inactive >= wanted.since_s)
        and (wanted.matches is None or wanted.matches(job))
    )


def queue_status(engine: Engine, queue: JobQueue) -> QueueStatus:
    """RFC 33: a started queue that no scheduler serves is reported as stopped, blocked by `scheduler`."""
    link = engine.links.serving(queue.group)
    blocked = queue.started and (link is None or not link.ready)
    return QueueStatus(
        name=queue.name,
        enable=queue.enabled,
        enable_reason=queue.enable_reason,
        start=queue.started and not blocked,
        start_reason=f"no scheduler serves group {queue.group}" if blocked else queue.start_reason,
        blocked="scheduler" if blocked else None,
        active=queue.active,
        running=queue.running,
        config=queue.config,
    )


BEGIN_TIME = "begin-time="
"""What such a dependency is described by; seconds since the epoch follow."""


def _what_became(job: Job) -> str:
    """Of a job that waits no longer."""
    ended = result(job)
    if ended is not None:
        return f"it has ended: {ended.errstr or 'success'}"
    return f"it {'runs' if job.state is RUN else 'is ending'} on {job.nodelist or 'nothing'}"


def why(engine: Engine, job: Job) -> Why:
    """What the job waits for, in words of its user; the scheduler's own reason if it has given one."""
    if not job.state & PENDING:
        return Why(_what_became(job))
    if job.state is DEPEND:
        return _depends(job)
    if job.priority == HELD_PRIORITY:
        rule = "a job on hold is not started: give it an urgency, fluxsched urgency JOBID default"
        return Why("it is held: its urgency is 0", rule, "not while it is held")
    queue = job.queue
    if not queue.started:
        rule = "jobs of a stopped queue are not scheduled: it is for an administrator to start it"
        return Why(f"{queue.title} is stopped: {queue.start_reason}", rule, "not while it is stopped")
    link = engine.links.serving(queue.group)
    if link is None or not link.ready:
        rule = "a scheduler has to serve the group of the job's queue: see fluxsched module list"
        return Why(f"no scheduler serves group {queue.group}", rule, "not before one is there")
    if job.state is SCHED and job.request == WAITING:
        sent = len(link.outstanding)
        return Why(f"{sent} jobs are with the scheduler already, its limit; this one comes later")
    reason = (job.annotations or {}).get("sched", {}).get("reason_pending") if job.request == SENT else None
    return Why(str(reason) if reason else "the scheduler has not decided yet")


def _depends(job: Job) -> Why:
    """Times are known, the ends of other jobs are not."""
    waits = job.dependencies or ()
    times = [float(one.removeprefix(BEGIN_TIME)) for one in waits if one.startswith(BEGIN_TIME)]
    when = "not known: the jobs that it depends on come first" if len(times) < len(waits) else "its begin time"
    return Why(
        f"waits for its dependencies: {', '.join(waits)}",
        "a job is scheduled once all its dependencies are met",
        when,
        max(times) if len(times) == len(waits) and times else None,
    )
