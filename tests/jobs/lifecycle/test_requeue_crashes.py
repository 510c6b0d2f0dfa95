"""kill -9 between any two transactions of a preemption: the job is submitted again exactly once, never lost, never
run twice at a time. The next life may be killed at any point as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.jobs.effects import Persist
from fluxsched.jobs.job.states import State

TIMES = 2
Transaction = list[Persist]


class Life:
    """One life of an instance, each of whose turns is a transaction."""

    def __init__(self, new_world: Callable[..., Any], before: list[Transaction]) -> None:
        self.world = world = new_world()
        world.now_s += 1000.0 * len(before)
        self.done = list(before)
        for transaction in before:
            for row in transaction:
                world._store(Persist(row.jobid, list(row.events), row.jobspec, row.R))
        restored = world.manager.restore(world.rows(), world.now_s)
        self._take(world.perform(restored.effects))
        for jobid in restored.orphans:
            self.do("exec_failed", jobid, "the instance was restarted")

    def _take(self, effects: list[Any]) -> None:
        rows = [Persist(one.jobid, list(one.events), one.jobspec, one.R) for one in effects if isinstance(one, Persist)]
        if rows:
            self.done.append(rows)

    def do(self, method: str, *args: Any, **options: Any) -> None:
        self._take(self.world.do(method, *args, **options))

    def serve(self) -> None:
        self._take(self.world.scheduler()[2])

    def drive(self) -> None:
        """Let every job run to a good end."""
        world = self.world
        world.scheduler()
        while waiting := [job.id for job in world.manager.jobs.active.values() if job.state is State.SCHED]:
            for jobid in waiting:
                world.grant(jobid)
                world.do("started", jobid)
                world.end(jobid)

    def prefixes(self, since: int = 0) -> Iterator[list[Transaction]]:
        """What can be on disk after a crash."""
        yield from (self.done[:count] for count in range(since, len(self.done) + 1))


def requeued(spec: Callable[..., Jobspec]) -> Jobspec:
    raw = spec().to_json()
    raw["attributes"]["system"]["fluxsched"] = {"requeue": TIMES}
    return Jobspec.parse(raw)


def story(new_world: Callable[..., Any], spec: Callable[..., Jobspec], r_of: Callable[..., Any]) -> Life:
    """Two preemptions, one of which ends step by step, and what depends on the job; then a good end."""
    life = Life(new_world, [])
    life.serve()
    life.do("submit", 1, requeued(spec), userid=1000)
    life.do("submit", 2, spec(dependencies=[{"scheme": "afterok", "value": "1"}]), userid=1000)
    for jobid, step_by_step in ((1, True), (1001, False)):
        life.do("alloc_granted", "sched", jobid, r_of("4-5"), None)
        life.do("started", jobid)
        life.do("raise_exception", jobid, "preempt", 0, "for another", 0)
        life.do("finished", jobid, 15, release=not step_by_step)
        if step_by_step:
            life.do("released", jobid, Idset.parse("4"), False)
            life.do("released", jobid, None, True)
    life.do("alloc_granted", "sched", 1002, r_of("4-5"), None)
    life.do("started", 1002)
    life.do("finished", 1002, 0, release=True)
    return life


def chains(world: Any) -> dict[int, int]:
    """Which job continues which, by the logs."""
    found: dict[int, int] = {}
    for jobid in world.stored:
        for context in world.contexts(jobid, "submit"):
            if "requeue" in context:
                assert context["requeue"]["of"] not in found, "submitted twice"
                found[context["requeue"]["of"]] = jobid
    return found


def verify(life: Life) -> None:
    """Let the last life come to its end, and look at all that was done in all lives."""
    world = life.world
    attempts = [1] if 1 in world.stored else []
    following = chains(world)
    while attempts and attempts[-1] in following:
        attempts.append(following[attempts[-1]])
    active = [jobid for jobid in attempts if jobid in world.manager.jobs.active]
    assert active in ([], attempts[-1:]), "an earlier attempt is there beside a later one"
    life.drive()
    assert not world.manager.jobs.active, "lost: it waits for what never comes"
    if not attempts:
        return
    last = world.manager.jobs.last(1)
    following = chains(world)
    assert len(following) <= TIMES
    assert last.id == (following[max(following)] if following else 1)
    for jobid in following:
        assert world.job(jobid).is_preempted
        assert world.job(jobid).next_id == following[jobid]
    crashed_as_it_ran = last.fatal is not None and last.fatal["type"] == "exec"
    assert last.success != crashed_as_it_ran
    if 2 in world.stored:
        assert world.job(2).success == last.success, "what depends on it has its last attempt's fate"


def test_a_crash_after_any_transaction_neither_loses_nor_repeats_an_attempt(
    new_world: Callable[..., Any], spec: Callable[..., Jobspec], r_of: Callable[..., Any]
) -> None:
    told = story(new_world, spec, r_of)
    assert told.world.manager.jobs.last(1).success
    assert len(told.done) == 15
    repeated = 0
    for on_disk in told.prefixes():
        second = Life(new_world, on_disk)
        for more in second.prefixes(len(on_disk) + 1):
            verify(Life(new_world, more))
            repeated += 1
        verify(second)
    assert repeated > len(told.done), "the second life was killed, too"
