"""A job's attributes under the names of RFC 43, with the numbers that Flux gives to states and results.

Law: reads only; an attribute that has no value yet, or never will, is None and stays out of a listing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from fluxsched.errors import InvalidValue
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.states import INACTIVE
from fluxsched.jobs.query import lookups

RESULT_BITS: Mapping[str, int] = {"COMPLETED": 1, "FAILED": 2, "CANCELED": 4, "TIMEOUT": 8}
"""RFC 43's results as single bits, so that sets of results are plain ints."""

ALL = "all"
"""The attribute that stands for all attributes."""

Get = Callable[[Job], Any]


def result_bit(job: Job) -> int | None:
    """The job's result as a bit; None until it is inactive."""
    ended = lookups.result(job)
    return None if ended is None else RESULT_BITS[ended.result]


def _ended(get: Get) -> Get:
    return lambda job: get(job) if job.state is INACTIVE else None


def _exception(key: str) -> Get:
    """A part of the gravest exception, the first of its kind."""

    def get(job: Job) -> Any:
        if not job.exceptions:
            return None
        return min((event["context"] for event in job.exceptions), key=lambda context: context["severity"])[key]

    return _ended(get)


def _nnodes(job: Job) -> int | None:
    if job.ranks:
        return len(job.ranks)
    nodes = job.jobspec.request.nodes if job.jobspec is not None else None
    return nodes.min if nodes is not None else None


def _ncores(job: Job) -> int | None:
    if job.ranks:
        return job.ncores
    if job.jobspec is None:
        return None
    request = job.jobspec.request
    return request.cores * request.slots.min * (request.nodes.min if request.nodes is not None else 1)


ATTRIBUTES: Mapping[str, Get] = MappingProxyType(
    {
        "userid": attrgetter("userid"),
        "urgency": attrgetter("urgency"),
        "priority": lambda job: job.priority if job.t_sched else None,
        "t_submit": attrgetter("t_submit"),
        "t_depend": attrgetter("t_submit"),  # a job is validated in the turn in which it is submitted
        "t_priority": lambda job: job.t_sched or None,  # and has its priority in the turn in which it asks for one
        "t_sched": lambda job: job.t_sched or None,
        "t_run": lambda job: job.t_run or None,
        "t_cleanup": lambda job: job.t_cleanup or None,
        "t_inactive": lambda job: job.t_inactive or None,
        "state": lambda job: int(job.state),
        "name": attrgetter("name"),
        "cwd": attrgetter("cwd"),
        "queue": lambda job: job.queue.name,
        "ntasks": attrgetter("ntasks"),
        "ncores": _ncores,
        "duration": attrgetter("duration_s"),
        "nnodes": _nnodes,
        "ranks": lambda job: str(job.ranks) or None,
        "nodelist": lambda job: job.nodelist or None,
        "success": _ended(attrgetter("success")),
        "exception_occurred": _ended(lambda job: bool(job.exceptions)),
        "exception_type": _exception("type"),
        "exception_severity": _exception("severity"),
        "exception_note": _exception("note"),
        "result": result_bit,
        "expiration": lambda job: job.expiration_s if job.ranks else None,
        "annotations": lambda job: job.annotations or None,
        "dependencies": lambda job: list(job.dependencies or ()) or None,
        "waitstatus": lambda job: None if job.status is None else lookups.shell_status(job.status),
        "project": lambda job: None,  # accounting of Flux: an instance of ours has none
        "bank": lambda job: None,
    }
)


def checked(names: Iterable[str]) -> tuple[str, ...]:
    """The names of attributes, `all` spelled out. Raises InvalidValue naming those that are unknown."""
    wanted = tuple(names)
    unknown = [name for name in wanted if name != ALL and name not in ATTRIBUTES]
    if unknown:
        raise InvalidValue(f"unknown job attributes {', '.join(unknown)}; known: {', '.join(ATTRIBUTES)}, {ALL}")
    return tuple(ATTRIBUTES) if ALL in wanted else wanted


def describe(job: Job, names: Iterable[str]) -> dict[str, Any]:
    """The job's id and those of the named attributes that have a value."""
    found: dict[str, Any] = {"id": job.id}
    for name in names:
        value = ATTRIBUTES[name](job)
        if value is not None:
            found[name] = value
    return found
