"""What a job takes in memory while it runs, and once it has ended."""

from __future__ import annotations

import tracemalloc
from typing import Any

from fluxsched.jobs.job import KINDS_KEPT, JobKind, JobKinds

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


def test_ended_jobs_share_what_they_have_alike(world: Any, spec: Any) -> None:
    for jobid in (1, 2, 3, 4):
        world.submit(jobid, spec(bank="physics") if jobid > 2 else spec())
        world.grant(jobid)
    for jobid in (1, 2, 3):
        world.end(jobid)
    world.do("exec_failed", 4, "no such program")
    first, second, other, failed = map(world.job, (1, 2, 3, 4))
    assert first.kind is second.kind
    assert (other.sharing.bank, first.sharing.bank, failed.sharing) == ("physics", None, other.sharing)
    assert [event["context"]["note"] for event in failed.exceptions] == ["no such program"]
    assert failed.fatal == failed.exceptions[0]["context"]
    assert (first.exceptions, first.fatal) == (None, None)
    for name in JobKind.__struct_fields__:
        assert getattr(first, name) == getattr(first.kind, name)


def test_kinds_are_remembered_up_to_a_number() -> None:
    kinds = JobKinds()
    first = JobKind()
    attributes = [getattr(first, name) for name in JobKind.__struct_fields__]
    at = JobKind.__struct_fields__.index("array")
    for array in range(KINDS_KEPT + 1):
        attributes[at] = array
        assert kinds.get(tuple(attributes)) is kinds.get(tuple(attributes))
    assert len(kinds._known) == 1
