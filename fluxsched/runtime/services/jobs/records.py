"""Job records as messages: filters for listings, wait answers, and what the store knows of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.result import JobResult, result
from fluxsched.jobs.job.states import VIRTUAL_STATES, State
from fluxsched.jobs.lifecycle import restore
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.query.job_query import EVERY_STATE, JobQuery, parse_query
from fluxsched.protocol.messages.jobs import ListRequest, WaitResponse
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.storage.jobs import read_events, read_job

STATES: dict[str, int] = {**State.__members__, **VIRTUAL_STATES, "ALL": EVERY_STATE}
"""State names, RFC 21's virtual ones among them, as `job-manager.list` accepts them."""
LIST_ENTRIES_MAX = 100_000
"""Jobs in one list answer; more are asked for in pieces by `since`."""


def list_query(
    wanted: ListRequest, only_userid: int | None = None, targets: Callable[[str], Idset] | None = None
) -> JobQuery:
    """What a list request selects, of the jobs of one user if the sender may see no others; see `parse_query`."""
    states = 0
    for name in wanted.states or ("ALL",):
        if name.upper() not in STATES:
            raise InvalidValue(f"job state {name!r} is unknown; known: {', '.join(STATES)}")
        states |= STATES[name.upper()]
    terms = (("queue", wanted.queue), ("name", wanted.name), ("userid", wanted.user), ("userid", only_userid))
    query = parse_query(wanted.constraint, *terms, targets=targets)
    return query._replace(
        ids=None if wanted.ids is None else tuple(wanted.ids),
        states=states & query.states,
        max_entries=min(wanted.max_entries or LIST_ENTRIES_MAX, LIST_ENTRIES_MAX),
        since_s=wanted.since or 0.0,
    )


def wait_response(result: JobResult) -> WaitResponse:
    """The answer to `job-manager.wait`."""
    return WaitResponse(
        id=result.jobid,
        success=result.success,
        status=_wait_status(result),
        errstr=result.errstr,
        exception_type=result.exception_type,
        exception_note=result.exception_note,
        last=result.last_id or None,
        requeued_as=result.next_id or None,
    )


def clean_context(result: JobResult) -> dict[str, Any]:
    """What a watcher learns with the `clean` event."""
    found = {
        "status": _wait_status(result),
        "success": result.success,
        "result": result.result,
        "errstr": result.errstr,
    }
    return found | {"requeued_as": result.next_id} if result.next_id else found


def _wait_status(result: JobResult) -> int:
    """That of a job that never ran is the one of `exit 1`."""
    return result.status if result.status >= 0 else 1 << 8


def stored_job(store: Store, jobid: int) -> dict[str, Any] | None:
    """A job's log, jobspec and R as they are on disk; None when the store does not know it."""
    return read_job(store.read, jobid)


def stored_log(store: Store, jobid: int) -> list[dict[str, Any]] | None:
    """The log alone."""
    return read_events(store.read, jobid)


def stored_resources(store: Store, jobid: int) -> dict[str, Any] | None:
    """The R that the job was started with; None if it was not, or is not there."""
    found = read_job(store.read, jobid)
    return None if found is None else found["R"]


def current_resources(jobid: int, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The R of a stored job as it is after all that has changed it; None if it has none."""
    return restore.replayed(jobid, record["eventlog"], record["R"]).R


def clean_result(manager: JobManager, store: Store, jobid: int) -> JobResult:
    """How a job ended whose `clean` event is on disk, though it may be forgotten here."""
    job = manager.jobs.inactive.get(jobid)
    found = result(job) if job is not None else stored_result(store, jobid)
    assert found is not None, "a clean job has a result"
    return found


def stored_result(store: Store, jobid: int) -> JobResult | None:
    """How a job ended, by its log on disk; None when it has not, or is not there."""
    job = read_ended_job(store, jobid)
    return None if job is None else result(job)


def read_ended_job(store: Store, jobid: int) -> Job | None:
    """A job that has ended, by its log on disk alone; None when it is not there."""
    found = stored_log(store, jobid)
    return None if found is None else restore.replayed(jobid, found, None)
