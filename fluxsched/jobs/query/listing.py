"""Jobs as listings show them, and how many there are of which kind. Reads only.

Law: a million jobs may wait, so a function that looks at all of them is a generator: it yields None after each step,
between which others are served, and its result at last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nlargest
from itertools import islice
from typing import Any, NamedTuple

from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.result import result_name
from fluxsched.jobs.job.states import ACTIVE, INACTIVE, PENDING, State
from fluxsched.jobs.job.table import JobTable
from fluxsched.jobs.query.attributes import info
from fluxsched.jobs.query.job_query import EVERY_JOB, STEP_JOBS, JobQuery, find
from fluxsched.jobs.queue.queues import Queues

PIECE_JOBS = 128
"""Jobs that a listing looks at in one go: half a millisecond."""


def list_jobs(
    jobs: JobTable, query: JobQuery, piece_jobs: int = PIECE_JOBS
) -> Iterator[list[dict[str, Any]]]:
    """Yield the attributes of the selected jobs in pieces, newest first, active jobs before ended ones.

    Whatever happens between two pieces, no job is listed twice, and each as it is then.
    """
    left = query.max_entries
    for some in find(jobs, query, piece_jobs):
        found = [info(job) for job in islice(some, left)]
        left -= len(found)
        yield found
        if left <= 0:
            return


def in_flux_order(
    jobs: JobTable, query: JobQuery, step_jobs: int = STEP_JOBS
) -> Iterator[list[Job] | None]:
    """The first `max_entries` jobs as Flux orders them: those that wait by their place in the queue, then those that
    run and those that have ended, each from the latest.
    """
    waiting = Best(query.max_entries, Job.key)
    running = Best(query.max_entries, lambda job: (-job.t_run, -job.id))
    ended: list[Job] = []
    for some in find(jobs, query, step_jobs):
        for job in some:
            (waiting if job.state & PENDING else ended if job.state is INACTIVE else running).append(job)
        if len(ended) >= query.max_entries:
            break
        yield None
    yield (waiting.first() + running.first() + ended)[: query.max_entries]


class Best:
    """The first `count` of many, without keeping the many."""

    def __init__(self, count: int, key: Callable[[Job], Any]) -> None:
        self._count = count
        self._key = key
        self._jobs: list[Job] = []

    def append(self, job: Job) -> None:
        """Add a job."""
        self._jobs.append(job)
        if len(self._jobs) > 2 * self._count + STEP_JOBS:
            self._jobs = self.first()

    def first(self) -> list[Job]:
        """The first of those so far, in order."""
        return sorted(self._jobs, key=self._key)[: self._count]  # a part is sorted already, so no heap is faster


def newest(jobs: JobTable, query: JobQuery, step_jobs: int = STEP_JOBS) -> Iterator[list[int] | None]:
    """The ids of the latest `max_entries` jobs, from the latest."""
    found: list[int] = []
    for some in find(jobs, query, step_jobs):
        found = nlargest(query.max_entries, [*found, *[job.id for job in some]])
        yield None
    yield found


class Tally(NamedTuple):
    """Jobs a state and jobs a result, by their names."""

    states: Counter[str]
    results: Counter[str]


def tally(
    jobs: JobTable, queues: Queues, step_jobs: int = STEP_JOBS
) -> Iterator[dict[str | None, Tally] | None]:
    """The jobs of each queue, past and present."""
    found = {queue.name: Tally(Counter(), Counter()) for queue in queues}
    for some in find(jobs, EVERY_JOB, step_jobs):
        for job in some:
            of_queue = found.setdefault(job.queue.name, Tally(Counter(), Counter()))
            of_queue.states[job.state.name] += 1
            ended = result_name(job)
            if ended is not None:
                of_queue.results[ended] += 1
        yield None
    yield found


def total(queues: dict[str | None, Tally]) -> Tally:
    """The tallies of all queues together."""
    whole = Tally(Counter(), Counter())
    for found in queues.values():
        whole.states.update(found.states)
        whole.results.update(found.results)
    return whole


def counts(whole: Tally) -> dict[str, int]:
    """Jobs a state, in lower case; `inactive` counts those in memory."""
    return {state.name.lower(): whole.states[state.name] for state in State if state & (ACTIVE | INACTIVE)}
