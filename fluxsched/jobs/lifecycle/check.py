"""The laws of the package over its whole state, asserted: for tests, shutdown and the simulator."""

from __future__ import annotations

from fluxsched.jobs.job.dependencies import Name, name_of
from fluxsched.jobs.job.job import HELD_PRIORITY, NO_REQUEST, WAITING, Job
from fluxsched.jobs.job.states import CLEANUP, DEPEND, INACTIVE, RUN, SCHED
from fluxsched.jobs.lifecycle.lifecycle import Lifecycle


def check(lifecycle: Lifecycle) -> None:
    """Assert every law of the package over the whole state."""
    lifecycle.holdings.check()
    for link in lifecycle.links:
        link.check()
    for queue in lifecycle.queues:
        jobs = [job for job in lifecycle.jobs.active.values() if job.queue is queue]
        assert queue.active == len(jobs), f"{queue.title}: {queue.active} counted as active, {len(jobs)} are"
        running = sum(job.id in lifecycle.holdings for job in jobs)
        assert queue.running == running, f"{queue.title}: {queue.running} counted as running, {running} are"
        waiting = sum(job.request == WAITING for job in jobs)
        assert len(queue.waiting) == waiting, f"{queue.title}: {len(queue.waiting)} queued, {waiting} wait"
    for job in lifecycle.jobs.active.values():
        _check_job(lifecycle, job)
    for job in lifecycle.jobs.inactive.values():
        assert job.state is INACTIVE, f"job {job.id} is kept as ended but is not"
        assert not job.held, f"job {job.id} has ended but still holds {job.held}"
        assert job.packed_r is None, f"job {job.id} has ended but its R is still in memory"
        assert job.jobspec is None, f"job {job.id} has ended but its jobspec is still in memory"
    waiting_ids = {job.id for job in lifecycle.jobs.active.values() if job.state is DEPEND}
    assert lifecycle.dependencies.dependents() <= waiting_ids, "jobs without dependencies are in the index"
    names: dict[Name, set[int]] = {}
    for job in lifecycle.jobs.active.values():
        if (name := name_of(job)) is not None:
            names.setdefault(name, set()).add(job.id)
    assert lifecycle.dependencies.named() == names, "the active jobs of each name are not those in the index"


def _check_job(lifecycle: Lifecycle, job: Job) -> None:
    link = lifecycle.links.serving(job.queue.group)
    sent = link is not None and job.id in link.outstanding
    assert job.jobspec is not None, f"job {job.id} has no jobspec"
    assert job.state in (DEPEND, SCHED, RUN, CLEANUP), f"job {job.id} rests in {job.state.name}"
    assert bool(job.dependencies) == (job.state is DEPEND), f"job {job.id}: dependencies and state disagree"
    assert lifecycle.dependencies.open_of(job.id, (job.dependencies or {}).values()), f"job {job.id} is not indexed"
    assert lifecycle.holdings.ranks(job.id) == job.held, f"job {job.id} does not hold what the record says"
    assert bool(job.held) == (job.state in (RUN, CLEANUP)), f"job {job.id} in {job.state.name} holds {job.held}"
    assert job.held ^ job.freed == job.ranks, f"job {job.id} lost targets"
    assert job.going <= job.held, f"job {job.id} is leaving {job.going - job.held}, which it does not hold"
    assert sent == (job.request > WAITING), f"job {job.id}: the request state is wrong"
    if job.state is SCHED:
        assert (job.request == NO_REQUEST) <= (job.priority == HELD_PRIORITY), f"job {job.id} waits in no queue"
        assert (job.id in job.queue.waiting) == (job.request == WAITING), f"job {job.id} is queued wrongly"
    else:
        assert job.request == NO_REQUEST, f"job {job.id} in {job.state.name} asks for resources"
