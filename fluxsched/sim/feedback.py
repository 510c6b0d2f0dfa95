"""Feedback: who submits a job only when an earlier one is over, after some time to think (SWF 2.2, fields 17 and 18).

Law: a job follows one that stands before it in the trace, so nobody waits for himself; whose preceding job is not there
is submitted at his own time.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxsched.sim.trace import TraceJob


def followers(jobs: Sequence[TraceJob]) -> dict[int, list[int]]:
    """The places of the jobs that follow each job, by its place."""
    places: dict[int | str, int] = {}
    found: dict[int, list[int]] = {}
    for at, job in enumerate(jobs):
        before = None if job.preceding is None else places.get(job.preceding)
        if before is not None:
            found.setdefault(before, []).append(at)
        places[job.job] = at
    return found
