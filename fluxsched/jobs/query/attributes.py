"""Attributes of jobs under the names of `core.job_attributes`, in both dialects: ours, and Flux's with its numbers.

Law: reads only; an attribute that has no value yet, or never will, is None and stays out of a listing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from fluxsched.core.asked_text import asked_text
from fluxsched.core.job_attributes import JOB_ATTRIBUTES
from fluxsched.core.waitstatus import ended_text, return_code
from fluxsched.errors import InvalidValue
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.result import result_name, shell_status
from fluxsched.jobs.job.sizes import listed_sizes
from fluxsched.jobs.job.states import INACTIVE

RESULT_BITS: Final[Mapping[str, int]] = {"COMPLETED": 1, "FAILED": 2, "CANCELED": 4, "TIMEOUT": 8}
"""RFC 43's results as single bits, so that sets of results are plain ints."""

ALL: Final = "all"
"""The attribute that means all attributes."""

Get = Callable[[Job], Any]


def result_bit(job: Job) -> int | None:
    """The job's result as a bit; None until it is inactive."""
    name = result_name(job)
    return None if name is None else RESULT_BITS[name]


def _ended(get: Get) -> Get:
    return lambda job: get(job) if job.state is INACTIVE else None


def _placed(get: Get) -> Get:
    return lambda job: get(job) if job.ranks else None


def _exited(get: Callable[[int], Any]) -> Get:
    return lambda job: None if job.status is None else get(job.status)


def _time(name: str) -> Get:
    get = attrgetter(name)
    return lambda job: get(job) or None


def _exception(key: str) -> Get:
    """A part of the gravest exception, the first of its kind."""

    def get(job: Job) -> Any:
        if not job.exceptions:
            return None
        return min((event["context"] for event in job.exceptions), key=lambda context: context["severity"])[key]

    return _ended(get)


def _asked_nodes(job: Job) -> int | None:
    nodes = job.jobspec.request.nodes if job.jobspec is not None else None
    return nodes.min if nodes is not None else None


def _asked_cores(job: Job) -> int | None:
    if job.jobspec is None:
        return None
    return job.jobspec.request.least_cores


_GETTERS: Final[Mapping[str, Get]] = {
    "id": attrgetter("id"),
    "state": lambda job: job.state.name,
    "name": attrgetter("name"),
    "userid": attrgetter("userid"),
    "urgency": attrgetter("urgency"),
    "priority": attrgetter("priority"),
    "t_submit": attrgetter("t_submit"),
    "ntasks": attrgetter("ntasks"),
    "duration": attrgetter("duration_s"),
    "annotations": lambda job: job.annotations or {},
    "dependencies": lambda job: list(job.dependencies or ()),
    "command": lambda job: list(job.command),
    "queue": lambda job: job.queue.name,
    "array": lambda job: job.array or None,
    "t_depend": attrgetter("t_submit"),  # a job is validated in the turn in which it is submitted
    "t_priority": _time("t_sched"),  # and has its priority in the turn in which it asks for one
    "t_sched": _time("t_sched"),
    "t_run": _time("t_run"),
    "t_cleanup": _time("t_cleanup"),
    "t_inactive": _time("t_inactive"),
    "status": attrgetter("status"),
    "waitstatus": _exited(shell_status),
    "exception": attrgetter("fatal"),
    "exception_occurred": _ended(lambda job: bool(job.exceptions)),
    "exception_type": _exception("type"),
    "exception_severity": _exception("severity"),
    "exception_note": _exception("note"),
    "returncode": _exited(return_code),
    "ended": _exited(ended_text),
    "usage": lambda job: None if job.usage is None else job.usage.to_json(),
    "asked": lambda job: (asked_text(job.jobspec.request) or None) if job.jobspec is not None else None,
    "nnodes": _placed(lambda job: len(job.ranks)),
    "ncores": _placed(attrgetter("ncores")),
    "ranks": _placed(lambda job: str(job.ranks)),
    "nodelist": _placed(attrgetter("nodelist")),
    "sizes": lambda job: listed_sizes(job) if job.sizes else None,
    "parts": _placed(lambda job: None if job.by_part is None else dict(job.by_part)),
    "switch": _placed(lambda job: job.switch or None),
    "expiration": _placed(attrgetter("expiration_s")),
    "success": _ended(attrgetter("success")),
    "result": result_name,
    "cwd": attrgetter("cwd"),
    "project": lambda job: None,  # accounting of Flux: our instances have none
    "bank": lambda job: job.sharing.bank,
    "job_set": lambda job: job.sharing.job_set,
    "preemptible_after": lambda job: job.sharing.preemptible_after_s,
    "requeue": lambda job: job.sharing.requeue or None,
    "attempt": lambda job: job.attempt and job.attempt.number,
    "requeue_of": lambda job: job.attempt and job.attempt.of,
    "requeued_as": lambda job: job.next_id or None,
}

_FLUX_GETTERS: Final[Mapping[str, Get]] = {
    "state": lambda job: int(job.state),
    "result": result_bit,
    "priority": lambda job: job.priority if job.t_sched else None,
    "annotations": lambda job: job.annotations or None,
    "dependencies": lambda job: list(job.dependencies or ()) or None,
    "nnodes": lambda job: len(job.ranks) or _asked_nodes(job),
    "ncores": lambda job: job.ncores if job.ranks else _asked_cores(job),
    "nodelist": lambda job: job.nodelist or None,
}
"""Attributes in Flux's dialect where it differs: numbers for states and results, requested values until some are
granted.
"""

LISTED: Final[tuple[tuple[str, Get], ...]] = tuple(
    (name, _GETTERS[name]) for name, declared in JOB_ATTRIBUTES.items() if declared.listed
)
"""Attributes listed by job-manager.list."""

FLUX_ATTRIBUTES: Final[Mapping[str, Get]] = MappingProxyType(
    {name: _FLUX_GETTERS.get(name, _GETTERS[name]) for name, declared in JOB_ATTRIBUTES.items() if declared.flux}
)
"""The attributes of Flux's job-list (RFC 43)."""


def info(job: Job) -> dict[str, Any]:
    """Return the attributes of a job in job-manager.list."""
    return {name: value for name, get in LISTED if (value := get(job)) is not None}


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """The names of Flux's attributes, `all` expanded. Raises InvalidValue naming those that are unknown."""
    wanted = tuple(names)
    unknown = [name for name in wanted if name != ALL and name not in FLUX_ATTRIBUTES]
    if unknown:
        raise InvalidValue(f"unknown job attributes {', '.join(unknown)}; known: {', '.join(FLUX_ATTRIBUTES)}, {ALL}")
    return tuple(FLUX_ATTRIBUTES) if ALL in wanted else wanted


def describe(job: Job, names: Iterable[str]) -> dict[str, Any]:
    """The job's id and those of Flux's named attributes that have a value."""
    found: dict[str, Any] = {"id": job.id}
    for name in names:
        value = FLUX_ATTRIBUTES[name](job)
        if value is not None:
            found[name] = value
    return found
