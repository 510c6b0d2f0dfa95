"""Jobs in the order in which Flux lists them, and how many there are of which kind. Reads only.

Law: a million jobs may wait, so whoever looks at all of them does it in steps, between which others are served: the
functions that look are generators, which yield None after each step and their result at last. They look at the jobs
that there were at first, each once, though it may end meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.states import ACTIVE, INACTIVE, PENDING, State
from fluxsched.jobs.query import lookups
from fluxsched.jobs.query.selection import Selection

if TYPE_CHECKING:
    from fluxsched.jobs.lifecycle.lifecycle import Engine

STEP_JOBS = 4096
"""Jobs looked at in one step: some 4 ms."""


def select_jobs(engine: Engine, wanted: Selection, max_entries: int, since_s: float) -> Iterator[list[Job] | None]:
    """The first `max_entries` jobs: those that wait by their place in line, then those that run and those that have
    ended (after `since_s`), each from the latest.
    """
    ended = list(reversed(engine.inactive.values())) if wanted.states & INACTIVE else []
    waiting = _Best(max_entries, Job.key)
    running = _Best(max_entries, lambda job: (-job.t_run, -job.id))
    for some in lookups.walk_active(engine, STEP_JOBS) if wanted.states & ACTIVE else ():
        for job in some:
            if wanted.matches(job):
                (waiting if job.state & PENDING else running).add(job)
        yield None
    found = waiting.first() + running.first()
    for some in _steps(ended):
        if len(found) >= max_entries or some[0].t_inactive <= since_s:
            break
        found += [job for job in some if job.t_inactive > since_s and wanted.matches(job)]
        yield None
    yield found[:max_entries]


def select_ids(engine: Engine, wanted: Selection) -> Iterator[list[int]]:
    """The ids of all jobs wanted, a step at a time: active ones first, from the latest, so that who cancels them in
    this order does not make room for those that come later.
    """
    ended = list(reversed(engine.inactive.values())) if wanted.states & INACTIVE else []
    active = lookups.walk_active(engine, STEP_JOBS) if wanted.states & ACTIVE else iter(())
    for some in chain(active, _steps(ended)):
        yield [job.id for job in some if job.state & wanted.states and wanted.matches(job)]


def _steps(jobs: list[Job]) -> Iterator[list[Job]]:
    return (jobs[at : at + STEP_JOBS] for at in range(0, len(jobs), STEP_JOBS))


class _Best:
    """The first `count` of many, without keeping the many."""

    def __init__(self, count: int, key: Callable[[Job], Any]) -> None:
        self._count = count
        self._key = key
        self._jobs: list[Job] = []

    def add(self, job: Job) -> None:
        self._jobs.append(job)
        if len(self._jobs) > 2 * self._count + STEP_JOBS:
            self._jobs = self.first()

    def first(self) -> list[Job]:
        return nsmallest(self._count, self._jobs, key=self._key)


def newest(engine: Engine, count: int, userid: int | None) -> Iterator[list[int] | None]:
    """The ids of the latest jobs, of one user or of all, from the latest."""
    ended = list(engine.inactive.values())
    found: list[int] = []
    for some in lookups.walk_active(engine, STEP_JOBS):
        found += [job.id for job in some if userid in (None, job.userid)]
        if len(found) >= count:
            break
        yield None
    for some in _steps(ended):
        found += [job.id for job in some if userid in (None, job.userid)]
        yield None
    yield sorted(found, reverse=True)[:count]


def counts(engine: Engine) -> Iterator[dict[str, int] | None]:
    """Jobs a state, in lower case, and `inactive` for those in memory."""
    found = Counter({INACTIVE: len(engine.inactive)})
    for some in lookups.walk_active(engine, STEP_JOBS):
        found.update(job.state for job in some)
        yield None
    yield {state.name.lower(): found[state] for state in State if state & (ACTIVE | INACTIVE)}


class Tally(NamedTuple):
    """Jobs a state and jobs a result, by their names."""

    states: Counter[str]
    results: Counter[str]


def tally(engine: Engine) -> Iterator[dict[str | None, Tally] | None]:
    """The jobs of each queue that there is or was."""
    found = {queue.name: Tally(Counter(), Counter()) for queue in engine.queues}
    for some in chain(lookups.walk_active(engine, STEP_JOBS), _steps(list(engine.inactive.values()))):
        for job in some:
            of_queue = found[job.queue.name]
            of_queue.states[job.state.name] += 1
            ended = lookups.result(job)
            if ended is not None:
                of_queue.results[ended.result] += 1
        yield None
    yield found
