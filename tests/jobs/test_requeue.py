"""Jobs that are submitted again: how often, after which pause, in whose place, and what else moves with them."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import RETRY_PAUSE_MAX_S, RETRY_PAUSE_S
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused
from fluxsched.jobs.query import history
from fluxsched.jobs.states import Kill, Persist, State
from fluxsched.protocol.messages.jobs import AllocRequest

NEXT = 1001
"""The id of the first job that is submitted again."""

SIGKILL = 9
NOTE = "for job ƒX of default/ann: U 0 of S 8"


def requeued(spec, times=1, **options):
    raw = spec(**options).to_json()
    raw["attributes"]["system"]["fluxsched"] = {"requeue": times}
    return Jobspec.parse(raw)


@pytest.fixture
def preempted(world, spec):
    """Submit a job, run it, preempt it and let it end."""

    def run(jobid=1, times=1, status=15, **options):
        world.run(jobid, spec=requeued(spec, times, **options))
        world.do("raise_exception", jobid, "preempt", 0, NOTE, 0)
        world.end(jobid, status)
        return world

    return run


def test_a_preempted_job_is_asked_to_end_with_a_grace_time_of_its_own(world):
    world.run(1)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    assert world.of(Kill) == [Kill(1, 15, f"preempt: {NOTE}", True)]
    assert world.state(1) is State.CLEANUP
    world.end(1, 15)
    found = world.result(1)
    assert (found.result, found.exception_type, found.exception_note) == ("FAILED", "preempt", NOTE)
    assert found.errstr == f"exception preempt: {NOTE}"
    assert NOTE in world.why(1).reason
    assert not world.manager.jobs.active, "it has not asked to be submitted again"


def test_a_scheduler_that_comes_later_is_told_that_a_job_is_going(world):
    for jobid in (1, 2, 3):
        world.run(jobid)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    since_s = world.now_s
    world.do("raise_exception", 2, "timeout", 0, "", 0)
    world.do("scheduler_lost", "sched")
    hello = world.manager.allocation.hello("sched")
    assert [(item.id, item.preempted) for item in hello] == [(1, since_s), (2, None), (3, None)]


def test_it_is_submitted_again_in_the_transaction_of_its_end(preempted):
    world = preempted()
    old, new = world.of(Persist)
    assert [event["name"] for event in old.events] == ["finish", "release", "free", "clean"]
    assert [event["name"] for event in new.events] == ["submit", "validate", "depend", "priority"]
    assert (old.jobid, new.jobid, new.jobspec) == (1, NEXT, world.stored[1]["jobspec"])
    assert old.events[-1]["context"] == {"requeue": {"as": NEXT}}
    t_first = world.stored[1]["events"][0]["timestamp"]
    assert new.events[0]["context"]["requeue"] == {"of": 1, "attempt": 1, "t_first": t_first}
    assert world.sent() == [NEXT]
    assert world.result(1).next_id == NEXT
    assert world.why(1).reason.endswith("it was submitted again as job ƒJG")
    assert history(world.manager.jobs, world.job(1)) is None
    assert history(world.manager.jobs, world.job(NEXT)) == f"attempt 1 of 1; ƒ2 ended with exception preempt: {NOTE}"
    world.manager.jobs.forget(1)
    assert history(world.manager.jobs, world.job(NEXT)) == "attempt 1 of 1; ƒ2 ended with what is no longer known"


def test_it_is_submitted_no_more_often_than_it_asked_for(preempted):
    world = preempted(times=2)
    for attempt in (NEXT, NEXT + 1):
        world.grant(attempt)
        world.do("started", attempt)
        world.do("raise_exception", attempt, "preempt", 0, NOTE, 0)
        world.end(attempt, 15)
    assert [world.job(jobid).attempt for jobid in (1, NEXT)] == [None, (1, 1, world.job(1).t_submit, 0)]
    assert world.job(NEXT + 1).attempt == (NEXT, 2, world.job(1).t_submit, 0)
    assert world.job(NEXT + 1).next_id == 0
    assert world.manager.jobs.last(1) is world.job(NEXT + 1)
    assert not world.manager.jobs.active


def test_it_stands_in_line_by_its_first_submission(preempted, new_world):
    world = preempted()
    first_s = world.job(1).t_submit
    (asked,) = world.requests(AllocRequest)
    assert (asked.id, asked.t_submit) == (NEXT, first_s)
    assert world.job(NEXT).t_submit > first_s
    world.do("scheduler_lost", "sched")
    world.submit(2)
    again = new_world()
    again.stored, again.now_s = world.stored, world.now_s + 10
    again.perform(again.manager.restore(world.rows(), again.now_s).effects)
    again.scheduler(limit=1)
    assert again.sent() == [NEXT], "before job 2, which was submitted before it was preempted"
    assert again.requests(AllocRequest)[0].t_submit == first_s
    again.grant(NEXT)
    again.do("scheduler_lost", "sched")
    (item,) = again.manager.allocation.hello("sched")
    assert (item.id, item.t_submit) == (NEXT, first_s)


@pytest.mark.parametrize("status", [0, 15, 1 << 8])
def test_a_job_that_ended_well_has_done_its_work(preempted, status):
    world = preempted(status=status)
    found = world.result(1)
    assert found.success == (status == 0)
    assert found.result == ("FAILED" if status else "COMPLETED")
    assert found.exception_type == ("preempt" if status else None), "what did not end it is not told as its end"
    assert bool(found.next_id) == (status != 0)


@pytest.mark.parametrize(("kind", "again"), [("cancel", False), ("timeout", True), ("exec", True), ("memory", True)])
def test_only_its_user_can_end_a_job_for_good_once_it_is_preempted(world, spec, kind, again):
    world.run(1, spec=requeued(spec))
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.do("raise_exception", 1, kind, 0, "", 0)
    assert world.of(Kill) == [Kill(1, 15, kind)], "with the usual grace time, which may be shorter"
    world.end(1, 15)
    assert bool(world.job(1).next_id) == again


@pytest.mark.parametrize("kind", ["cancel", "timeout", "exec", "preemption"])
def test_nothing_but_preemption_submits_a_job_again(world, spec, kind):
    world.run(1, spec=requeued(spec))
    world.do("raise_exception", 1, kind, 0, "", 0)
    world.end(1, 15)
    assert not world.manager.jobs.active


def test_only_a_running_job_can_be_preempted(world, spec):
    world.submit(1, requeued(spec))
    with pytest.raises(Refused, match="job ƒ2 is in state SCHED: only a running job can be preempted") as raised:
        world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    assert raised.value.errnum == errno.EINVAL
    world.grant(1)
    world.do("finished", 1, 1 << 8)
    with pytest.raises(Refused, match="is in state CLEANUP"):
        world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.do("released", 1, None, True)
    assert not world.manager.jobs.active
    assert world.do("submit", 2, requeued(spec), userid=5)
    world.do("raise_exception", 2, "preempt", 1, "a mere remark", 0)
    assert world.state(2) is State.SCHED


def test_it_is_submitted_with_what_it_asked_for_at_last(world, spec, r_of):
    raw = requeued(spec, duration_s=60.0).to_json()
    raw["attributes"]["system"]["array"] = 0
    world.submit(1, Jobspec.parse(raw), urgency=20, flags=4)
    world.do("set_urgency", 1, 21, 5)
    world.grant(1, r_of("1", starttime_s=100.0, expiration_s=160.0))
    world.do("update", 1, {"attributes.system.duration": 90})
    world.do("expiration_answered", 1, None)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.end(1, 15)
    job, system = world.job(NEXT), world.stored[NEXT]["jobspec"]["attributes"]["system"]
    assert (job.duration_s, system["duration"], system["array"]) == (90.0, 90.0, 1)
    assert (job.urgency, job.priority, job.flags, job.userid, job.array) == (21, 21, 4, world.job(1).userid, 1)


@pytest.mark.parametrize(("scheme", "end"), [("afterok", 0), ("afterany", 1 << 8), ("afternotok", 1 << 8)])
def test_what_depends_on_a_job_waits_for_its_last_attempt(world, spec, scheme, end):
    world.submit(1, requeued(spec))
    world.submit(2, spec(dependencies=[{"scheme": scheme, "value": "1"}, {"scheme": scheme, "value": "ƒ2"}]))
    world.grant(1)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.end(1, 15)
    assert list(world.job(2).dependencies) == [f"{scheme}=ƒJG"]
    names = world.names(2)
    assert names[-3:] == ["dependency-remove", "dependency-add", "dependency-remove"]
    world.submit(3, spec(dependencies=[{"scheme": scheme, "value": "1"}]))
    assert list(world.job(3).dependencies) == [f"{scheme}=ƒJG"], "one that comes later waits for the same"
    world.grant(NEXT)
    world.end(NEXT, end)
    assert [world.state(jobid) for jobid in (2, 3)] == [State.SCHED] * 2


def test_a_start_that_was_waited_for_has_been(world, spec):
    world.submit(1, requeued(spec))
    world.submit(2, spec(dependencies=[{"scheme": "after", "value": "1"}]))
    world.grant(1)
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.end(1, 15)
    assert list(world.job(2).dependencies) == ["after=ƒJG"], "it was preempted before it started"
    world.grant(NEXT)
    world.do("started", NEXT)
    assert world.state(2) is State.SCHED
    world.run(4, spec=requeued(spec))
    world.do("raise_exception", 4, "preempt", 0, NOTE, 0)
    world.end(4, 15)
    world.submit(5, spec(dependencies=[{"scheme": "after", "value": "4"}]))
    assert world.state(5) is State.SCHED


def test_a_held_remainder_is_released_before_the_next_attempt(world, spec, r_of):
    world.run(1, r_of("2-3"), spec=requeued(spec))
    world.do("raise_exception", 1, "preempt", 0, NOTE, 0)
    world.do("finished", 1, SIGKILL)
    world.do("released", 1, Idset.parse("2"), False)
    assert world.sent() == []
    world.do("released", 1, Idset.parse("3"), True)
    assert [free.final for free in world.freed()] == [True]
    assert world.sent() == [NEXT]


# ---- lost nodes, ends of the tasks themselves, and users


def retried(spec, times=1, on=None, pause_s=None, **options):
    raw = requeued(spec, times, **options).to_json()
    ours = {"retry-on": on, "retry-pause": pause_s}
    raw["attributes"]["system"]["fluxsched"] |= {key: value for key, value in ours.items() if value is not None}
    return Jobspec.parse(raw)


def wait_of(world, jobid):
    """How long after its submission a job begins at the earliest; None if it waits for no time."""
    job = world.job(jobid)
    times = [one.at_s for one in (job.dependencies or {}).values()]
    return times[0] - job.t_submit if times else None


@pytest.mark.parametrize(
    ("on", "status", "again"),
    [
        ("exit:75", 75 << 8, True), ("exit:75", 74 << 8, False), ("exit:75", 0, False), ("signal:9", 9, True),
        ("signal:9", 137 << 8, True), ("signal:9", 9 << 8, False), ("exit:75,signal:9", 9, True),
        ("exit:1-9", 9 << 8, True), ("exit:1-255", 15, True), (None, 75 << 8, False),
    ],
)  # fmt: skip
def test_the_end_of_its_tasks_is_a_reason_to_try_again_if_the_job_says_so(world, spec, on, status, again):
    world.run(1, spec=retried(spec, on=on, pause_s=0))
    world.end(1, status)
    assert bool(world.job(1).next_id) == again
    assert bool(world.manager.jobs.active) == again
    if again:
        assert world.sent() == [NEXT]
        assert history(world.manager.jobs, world.job(NEXT)).startswith("attempt 1 of 1; ƒ2 ended with ")


def test_the_pause_before_a_retry_doubles_and_outlives_the_instance(world, spec, new_world, r_of):
    world.submit(1, retried(spec, 3, "exit:75", 30))
    waits, jobid = [], 1
    for _ in range(3):
        world.grant(jobid, r_of())
        world.end(jobid, 75 << 8)
        jobid = world.job(jobid).next_id
        assert world.state(jobid) is State.DEPEND
        waits.append(wait_of(world, jobid))
        if len(waits) == 2:
            again = new_world()
            again.stored, again.now_s = world.stored, world.now_s + 10
            again.perform(again.manager.restore(world.rows(), again.now_s).effects)
            again.scheduler()
            world = again
            assert wait_of(world, jobid) == 60.0, "it waits for the same time"
        assert world.why(jobid).earliest_s == world.job(jobid).t_submit + waits[-1]
        world.now_s += waits[-1]
        world.do("due")
        assert world.sent() == [jobid]
    assert waits == [30.0, 60.0, 120.0]
    world.grant(jobid, r_of())
    world.end(jobid, 75 << 8)
    assert not world.manager.jobs.active, "it has had its three retries"


def test_a_pause_has_a_limit(world, spec, r_of):
    world.submit(1, retried(spec, 2, "exit:1", RETRY_PAUSE_MAX_S * 0.75))
    world.grant(1, r_of())
    world.end(1, 1 << 8)
    assert wait_of(world, NEXT) == RETRY_PAUSE_MAX_S * 0.75
    world.now_s += RETRY_PAUSE_MAX_S
    world.do("due")
    world.grant(NEXT, r_of())
    world.end(NEXT, 1 << 8)
    assert wait_of(world, NEXT + 1) == RETRY_PAUSE_MAX_S


def test_a_lost_node_is_a_reason_to_try_again_after_the_usual_pause(world, spec):
    world.run(1, spec=requeued(spec))
    world.do("exec_failed", 1, "host n1 was lost", is_lost=True)
    assert world.result(1).exception_type == "node-failure"
    assert wait_of(world, NEXT) == RETRY_PAUSE_S
    world.do("raise_exception", NEXT, "cancel", 0, "", 0)
    assert not world.manager.jobs.active
    world.run(2)
    world.do("exec_failed", 2, "host n1 was lost", is_lost=True)
    assert not world.manager.jobs.active, "a job that has not asked for it is not tried again"


def test_targets_that_leave_a_group_are_lost(world, spec):
    world.run(1, spec=retried(spec, pause_s=0))
    world.do("raise_exception", 1, "node-failure", 0, "n1 left group 'batch'", None, ranks=Idset.parse("1"))
    world.end(1, 15)
    assert world.sent() == [NEXT]


@pytest.mark.parametrize("kind", ["timeout", "memory", "cancel"])
def test_what_ended_a_job_is_not_the_end_of_its_tasks(world, spec, kind):
    world.run(1, spec=retried(spec, on="signal:1-64,exit:1-255"))
    world.do("raise_exception", 1, kind, 0, "", 0)
    world.end(1, 15)
    assert not world.manager.jobs.active


@pytest.mark.parametrize("status", [0, 15])
def test_its_user_has_a_running_job_wait_again_at_no_cost(world, spec, status):
    world.run(1, spec=requeued(spec, 1))
    for jobid in (1, NEXT, NEXT + 1):
        if jobid != 1:
            world.grant(jobid)
            world.do("started", jobid)
        world.do("raise_exception", jobid, "requeue", 0, "another node, please", 5)
        assert world.of(Kill) == [Kill(jobid, 15, "requeue: another node, please")]
        world.end(jobid, status)
        assert world.sent() == [world.job(jobid).next_id], "at once"
    assert world.job(NEXT + 2).attempt == (NEXT + 1, 0, world.job(1).t_submit, 0)
    assert "submitted again: " in history(world.manager.jobs, world.job(NEXT))


def test_only_a_running_job_is_requeued(world, spec):
    world.submit(1)
    with pytest.raises(Refused, match="job ƒ2 is in state SCHED: it waits already, only a running job is requeued"):
        world.do("raise_exception", 1, "requeue", 0, "", 0)
    world.grant(1)
    world.do("finished", 1, 1 << 8)
    with pytest.raises(Refused, match="is in state CLEANUP: it is ending, only a running job is requeued"):
        world.do("raise_exception", 1, "requeue", 0, "", 0)
    world.do("released", 1, None, True)
    with pytest.raises(Refused, match="job ƒ2 has ended, only a running job is") as raised:
        world.do("raise_exception", 1, "requeue", 0, "", 0)
    assert raised.value.errnum == errno.EINVAL
    world.run(2)
    world.do("raise_exception", 2, "requeue", 0, "", 0)
    world.do("raise_exception", 2, "cancel", 0, "", 0)
    world.end(2, 15)
    assert not world.manager.jobs.active, "a job that was canceled meanwhile does not wait again"


# kill -9 between any two transactions of a preemption: the job is submitted again exactly once, never lost, never run
# twice at a time. The next life may be killed at any point as well.


TIMES = 2
Transaction = list[Persist]


class Life:
    """One life of an instance, each of whose turns is a transaction."""

    def __init__(self, new_world, before):
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

    def _take(self, effects):
        rows = [Persist(one.jobid, list(one.events), one.jobspec, one.R) for one in effects if isinstance(one, Persist)]
        if rows:
            self.done.append(rows)

    def do(self, method, *args, **options):
        self._take(self.world.do(method, *args, **options))

    def serve(self):
        self._take(self.world.scheduler()[2])

    def drive(self):
        """Let every job run to a good end."""
        world = self.world
        world.scheduler()
        while waiting := [job.id for job in world.manager.jobs.active.values() if job.state is State.SCHED]:
            for jobid in waiting:
                world.grant(jobid)
                world.do("started", jobid)
                world.end(jobid)

    def prefixes(self, since=0):
        """What can be on disk after a crash."""
        yield from (self.done[:count] for count in range(since, len(self.done) + 1))


def story(new_world, spec, r_of):
    """Two preemptions, one of which ends step by step, and what depends on the job; then a good end."""
    life = Life(new_world, [])
    life.serve()
    life.do("submit", 1, requeued(spec, TIMES), userid=1000)
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


def chains(world):
    """Which job continues which, by the logs."""
    found = {}
    for jobid in world.stored:
        for context in world.contexts(jobid, "submit"):
            if "requeue" in context:
                assert context["requeue"]["of"] not in found, "submitted twice"
                found[context["requeue"]["of"]] = jobid
    return found


def verify(life):
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


def test_a_crash_after_any_transaction_neither_loses_nor_repeats_an_attempt(new_world, spec, r_of):
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
