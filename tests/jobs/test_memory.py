"""What a job takes in memory while it runs, and once it has ended."""

from __future__ import annotations

import tracemalloc
from typing import Any

JOBS = 400
RANK = 100_000
"""That of the first job: a bit mask of such a rank takes 13 KiB."""
RUNNING_BYTES_MAX, ENDED_BYTES_MAX = 3_500, 2_500
"""A job, with tables that a few jobs share here."""
NOTES = {"sched": {"resource_summary": "rank100000/core0", "selection_type": "immediate"}}


def allocated_bytes() -> int:
    """Return the bytes that our modules have allocated, compiled ones as this one's: others may be imported
    meanwhile.
    """
    wanted = [tracemalloc.Filter(True, pattern) for pattern in ("*/fluxsched/*", __file__)]
    found = tracemalloc.take_snapshot().filter_traces(wanted)
    return sum(each.size for each in found.statistics("filename"))


def test_memory_of_running_and_of_ended_jobs(world: Any, spec: Any, r_of: Any) -> None:
    manager, jobspec, now_s = world.manager, spec(), 5.0
    manager.requests.submit(JOBS + 1, jobspec, userid=1, now_s=now_s)
    manager.allocation.alloc_granted("sched", JOBS + 1, r_of("0"), None, now_s)
    tracemalloc.start()
    try:
        for jobid in range(1, JOBS + 1):
            manager.requests.submit(jobid, jobspec, userid=1, now_s=now_s)
            notes = {key: dict(value) for key, value in NOTES.items()}
            manager.allocation.alloc_granted("sched", jobid, r_of(str(RANK + jobid)), notes, now_s)
            manager.execution.started(jobid, now_s)
        running = allocated_bytes()
        for jobid in range(1, JOBS + 1):
            manager.execution.finished(jobid, 0, now_s, release=True)
        ended = allocated_bytes()
    finally:
        tracemalloc.stop()

    assert running < JOBS * RUNNING_BYTES_MAX
    assert ended < JOBS * ENDED_BYTES_MAX
    assert manager.jobs.get(1).annotations == NOTES
    assert str(manager.jobs.get(1).ranks) == str(RANK + 1)
