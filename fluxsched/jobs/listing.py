"""Jobs in the order in which Flux lists them, and how many there are of which kind. Reads only.

Law: what costs is proportional to the jobs looked at, never to their number times its logarithm: a million may wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import nlargest, nsmallest
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from fluxsched.jobs import lookups
from fluxsched.jobs.job import Job
from fluxsched.jobs.selection import Selection
from fluxsched.jobs.states import INACTIVE, PENDING, RUNNING, State

if TYPE_CHECKING:
    from fluxsched.jobs.engine import Engine


def select_jobs(engine: Engine, wanted: Selection, max_entries: int, since_s: float) -> list[Job]:
    """The first `max_entries` jobs: those that wait by their place in line, then those that run and those that have
    ended (after `since_s`), each from the latest.
    """
    found: list[Job] = []
    if wanted.states & PENDING:
        found += nsmallest(max_entries, _among(engine.active.values(), wanted, PENDING), key=Job.key)
    if wanted.states & RUNNING and len(found) < max_entries:
        running = _among(engine.active.values(), wanted, RUNNING)
        found += nlargest(max_entries - len(found), running, key=lambda job: (job.t_run, job.id))
    if wanted.states & INACTIVE:
        ended = _among(reversed(engine.inactive.values()), wanted, INACTIVE)
        found += islice((job for job in ended if job.t_inactive > since_s), max_entries - len(found))
    return found


def _among(jobs: Iterable[Job], wanted: Selection, states: int) -> Iterator[Job]:
    return (job for job in jobs if job.state & states and wanted.matches(job))


def newest(engine: Engine, count: int, userid: int | None) -> list[int]:
    """The ids of the latest jobs, of one user or of all, from the latest."""
    active = islice((job.id for job in reversed(engine.active.values()) if userid in (None, job.userid)), count)
    ended = nlargest(count, (job.id for job in engine.inactive.values() if userid in (None, job.userid)))
    return nlargest(count, [*active, *ended])


class Tally(NamedTuple):
    """Jobs a state and jobs a result, by their names."""

    states: Counter[str]
    results: Counter[str]


def tally(engine: Engine) -> dict[str | None, Tally]:
    """The jobs of each queue that there is or was."""
    found = {queue.name: Tally(Counter(), Counter()) for queue in engine.queues}
    for job in engine.active.values():
        found[job.queue.name].states[job.state.name] += 1
    for job in engine.inactive.values():
        ended = lookups.result(job)
        assert ended is not None, "a job that is kept as ended has a result"
        of_queue = found[job.queue.name]
        of_queue.states[State.INACTIVE.name] += 1
        of_queue.results[ended.result] += 1
    return found
