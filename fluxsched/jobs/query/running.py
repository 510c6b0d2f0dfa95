"""The jobs that hold resources, the largest first. Reads only.

Law: as many jobs may run as there are cores, so this is a generator: it yields None after each step, between which
others are served, and its result at last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.table import JobTable
from fluxsched.jobs.query.listing import Best

RUNNING_JOBS_MAX = 10_000
"""Jobs in one answer: more bars than a picture has pixels; their answer takes a megabyte and 60 ms."""
ENDLESS_S: Final = 1e12
"""For jobs without a limit: longer than all limits, so that they come first, and by their cores."""
STEP_HOLDERS = 512
"""Jobs looked at in one step: half a millisecond."""


class RunningQuery(NamedTuple):
    """Selection of running jobs: those that hold one of `targets`, those of one user; at most `max_entries`."""

    targets: Idset | None = None
    userid: int | None = None
    max_entries: int = RUNNING_JOBS_MAX


class Largest(NamedTuple):
    """The largest of them, and how many more there are."""

    jobs: list[Job]
    left_out: int


def largest(
    jobs: JobTable, holders: Iterable[int], query: RunningQuery, step_holders: int = STEP_HOLDERS
) -> Iterator[Largest | None]:
    """Yield the selected jobs by core-seconds from start to limit; those without a limit are first.

    `holders` are the jobs that hold something now, by the record; what happens later does not change it.
    """
    best, count = Best(query.max_entries, _place), 0
    left = iter(holders)
    while some := list(islice(left, step_holders)):
        for jobid in some:
            job = jobs.active.get(jobid)
            if job is not None and _is_meant(job, query):
                best.append(job)
                count += 1
        yield None
    found = best.first()
    yield Largest(found, count - len(found))


def _is_meant(job: Job, query: RunningQuery) -> bool:
    if query.userid is not None and job.userid != query.userid:
        return False
    return query.targets is None or not query.targets.isdisjoint(job.held)


def _place(job: Job) -> float:
    length_s = job.expiration_s - job.starttime_s if job.expiration_s else ENDLESS_S
    return -job.ncores * length_s
