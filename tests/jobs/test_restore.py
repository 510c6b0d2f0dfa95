"""What the eventlog remembers: a replay reproduces the state, and a restart goes on from it."""

from __future__ import annotations

from math import inf, nextafter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.jobs import query
from fluxsched.jobs.manager import read
from fluxsched.jobs.query import EVERY_JOB
from fluxsched.jobs.queues import MISSING_REASON, QueueConfig
from fluxsched.jobs.states import INACTIVE, RUN, Persist, State, TargetsGranted, WakeAt
from fluxsched.jobs.table import INACTIVE_KEPT_MAX, JobTable
from fluxsched.protocol.messages.jobs import AllocRequest, SchedCancelRequest
from tests.generated.share import examples

ids = Idset.parse
REPRODUCED = (
    "id", "userid", "urgency", "priority", "flags", "state", "t_submit", "t_run", "t_cleanup", "t_inactive", "ranks",
    "started", "status", "exceptions", "fatal", "ncores", "nodelist", "expiration_s", "duration_s", "name", "command",
    "ntasks", "usage", "t_first", "attempt", "next_id", "sharing",
)  # fmt: skip


def snapshot(job):
    """All that a replay must reproduce; annotations are volatile until `alloc` (RFC 27)."""
    found = {name: getattr(job, name) for name in REPRODUCED}
    found["dependencies"] = job.dependencies or None
    if job.state >= RUN:
        found["annotations"] = job.annotations or None
    if job.state is not INACTIVE:
        found |= {
            name: getattr(job, name) for name in ("overrides", "R", "held", "freed", "starttime_s", "recent_events")
        }
    return found


OPERATIONS = (
    "submit", "submit", "submit", "submit after", "grant", "grant", "started", "started", "finished", "finished all",
    "release one", "release", "cancel", "warn", "exec_failed", "urgency", "update", "agree", "annotate", "canceled",
    "denied", "stop", "start", "lose", "ready", "limited", "preempt", "preempt and end", "preempt and end",
)  # fmt: skip
Step = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(0, 31))
Steps = st.lists(Step, min_size=15, max_size=60)


class Story:
    """Turns random steps into calls that are possible in the world, or refused politely by it."""

    def __init__(self, world, spec, r_of):
        self.world, self.spec, self.r_of = world, spec, r_of
        self.last_id = 0

    def step(self, what, pick, number):
        world, manager = self.world, self.world.manager
        jobid = max(1, self.last_id - pick)
        if jobid in manager.jobs:
            jobid = manager.jobs.last(jobid).id
        if what.startswith("submit"):
            self._submit(what, jobid, number)
            return
        if what == "preempt and end":  # what is rare by chance
            for part, status in (("grant", 0), ("preempt", 0), ("finished all", 2 * number + 1)):
                self.step(part, pick, status)
            return
        calls = {
            "grant": ("alloc_granted", "sched", jobid, self.r_of(f"{2 * jobid}-{2 * jobid + 1}"), {"sched": {"n": 1}}),
            "started": ("started", jobid),
            "finished": ("finished", jobid, number << 8),
            "finished all": ("finished", jobid, number % 2 * 256),
            "release one": ("released", jobid, ids(str(2 * jobid)), False),
            "release": ("released", jobid, None, True),
            "cancel": ("cancel", jobid, number, "why not"),
            "preempt": ("raise_exception", jobid, "preempt", 0, "for another", 0),
            "warn": ("raise_exception", jobid, "warn", 1 + number % 7, "", None),
            "exec_failed": ("exec_failed", jobid, "broken"),
            "urgency": ("set_urgency", jobid, number, 1),
            "update": ("update", jobid, {"attributes.system.duration": 10_000.0 + number}),
            "agree": ("expiration_answered", jobid, None),
            "annotate": ("annotate", "sched", jobid, {"sched": {"m": number}}),
            "canceled": ("alloc_canceled", "sched", jobid),
            "denied": ("alloc_denied", "sched", jobid, "no"),
            "stop": ("start", None, False),
            "start": ("start", None, True),
            "lose": ("scheduler_lost", "sched"),
        }
        try:
            if what in calls:
                world.do(*calls[what], **({"release": True} if what == "finished all" else {}))
            elif not manager.links.known("sched"):
                world.scheduler(limit=2 if what == "limited" else None)
        except FluxschedError:
            manager.check()  # refused, and nothing has changed

    def _submit(self, what, jobid, number):
        schemes = ("after", "afterany", "afterok", "afternotok")
        dependencies = []
        if what == "submit after" and self.last_id:
            dependencies = [{"scheme": schemes[number % 4], "value": str(jobid)}]
        self.last_id += 1
        spec = self.spec(dependencies=dependencies, name=f"n{number}", requeue=number % 3)
        self.world.submit(self.last_id, spec, urgency=number)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=Steps)
def test_any_history_is_reproduced_by_its_eventlog(new_world, spec, r_of, steps):
    world = new_world()
    world.scheduler()
    story = Story(world, spec, r_of)
    for step in steps:
        story.step(*step)
    rows = world.rows()
    for row in rows:
        replayed, _ = read(row, world.manager.queues.for_restored(None))
        assert snapshot(replayed) == snapshot(world.job(row[0]))

    again = new_world()
    again.stored = {jobid: {**row, "events": list(row["events"])} for jobid, row in world.stored.items()}
    restored = again.manager.restore(rows, world.now_s + 1)
    again.now_s = world.now_s + 1
    again.perform(restored.effects)
    for jobid in restored.orphans:
        again.do("exec_failed", jobid, "the instance went down")
    assert len(again.manager.grants) == 0
    before = {row[0]: world.job(row[0]).state for row in rows}
    assert all(again.state(jobid) is INACTIVE for jobid in before if before[jobid] >= RUN)
    # what waited waits on; after a second restart too
    third = new_world()
    third.manager.restore(again.rows(), again.now_s + 1)
    third.manager.check()
    before, after = ({job.id: job.state for job in one.manager.jobs.active.values()} for one in (again, third))
    assert after == before


def restart(world, new_world, *args, **options):
    again = new_world(*args, **options)
    again.stored = world.stored
    again.now_s = world.now_s + 10
    restored = again.manager.restore(world.rows(), again.now_s)
    again.perform(restored.effects)
    return again, restored


def test_pending_jobs_wait_on(alone, new_world, spec):
    alone.submit(1)
    alone.submit(2, urgency=0)
    alone.submit(3, spec(dependencies=[{"scheme": "afterok", "value": "1"}, {"scheme": "begin-time", "value": "900"}]))
    alone.do("set_urgency", 1, 20, 5)
    alone.do("update", 1, {"attributes.system.duration": 60})
    again, restored = restart(alone, new_world)
    assert restored.orphans == ()
    assert again.of(WakeAt) == [WakeAt(900.0)]
    assert again.names(1)[-2:] == ["flux-restart", "priority"]
    assert again.names(3)[-1] == "flux-restart"
    again.scheduler()
    (request,) = again.requests(AllocRequest)
    assert (request.id, request.priority) == (1, 20)
    assert request.jobspec["attributes"]["system"]["duration"] == 60.0
    again.grant(1)
    again.end(1)
    assert again.job(3).dependencies.keys() == {"begin-time=900"}
    again.now_s = 1000.0
    again.do("due")
    assert again.sent() == [3]


def test_running_jobs_are_orphans_until_they_are_confirmed_dead(world, new_world, r_of):
    world.run(1, r_of("0-1"))
    world.run(2, r_of("2-5"))
    world.do("cancel", 2, 0, "")
    world.do("finished", 2, 9)
    world.do("released", 2, ids("2"), False)
    world.run(3, r_of("6"))
    world.do("cancel", 3, 0, "stop")
    again, restored = restart(world, new_world)
    assert restored.orphans == (1, 3)
    taken = [TargetsGranted(1, ids("0-1")), TargetsGranted(2, ids("3-5")), TargetsGranted(3, ids("6"))]
    assert again.of(TargetsGranted) == taken
    assert again.state(2) is State.INACTIVE  # its finish was stored: nothing of it runs
    assert again.result(2).result == "CANCELED"
    hello, _, _ = again.scheduler()
    assert [(item.id, item.R) for item in hello] == [(1, r_of("0-1")), (3, r_of("6"))]
    again.do("exec_failed", 1, "the instance was restarted")
    assert again.result(1).exception_type == "exec"
    assert r_of("0-1") == again.freed()[0].R
    again.do("exec_failed", 3, "the instance was restarted")
    assert again.result(3).result == "CANCELED"
    assert again.held == {}


def test_a_job_whose_finish_is_stored_ends_as_it_finished(world, new_world):
    world.run(1)
    world.do("finished", 1, 0)
    again, restored = restart(world, new_world)
    assert restored.orphans == ()
    assert again.result(1).success
    assert again.names(1)[-4:] == ["flux-restart", "release", "free", "clean"]


def test_an_expiration_that_was_changed_is_told_at_hello(world, new_world, r_of):
    world.run(1, r_of("0", starttime_s=100.0, expiration_s=160.0))
    world.do("update", 1, {"attributes.system.duration": 1000})
    world.do("expiration_answered", 1, None)
    again, _ = restart(world, new_world)
    assert again.manager.allocation.hello("sched")[0].R["execution"]["expiration"] == 1100.0


def test_an_antecedent_that_is_forgotten_fails_its_dependents(alone, new_world, spec):
    alone.submit(1)
    alone.submit(2, spec(dependencies=[{"scheme": "afterok", "value": "1"}, {"scheme": "afterany", "value": "1"}]))
    del alone.stored[1]
    again, _ = restart(alone, new_world)
    assert again.contexts(2, "exception")[0]["note"] == "afterok=1: job ƒ2 is no longer known"


def test_a_queue_that_is_gone_holds_its_jobs_back(new_world, spec):
    world = new_world({"old": QueueConfig("old")})
    world.submit(1)
    again, _ = restart(world, new_world, {"new": QueueConfig("new")})
    again.scheduler()
    assert again.sent() == []
    assert again.why(1).reason == f"queue old is stopped: {MISSING_REASON}"
    assert again.do("cancel", 1, 0, "")


def test_summaries_of_ended_jobs_are_bounded_oldest_first(new_world):
    assert JobTable().inactive_kept_max == INACTIVE_KEPT_MAX
    world = new_world(inactive_kept_max=3)
    world.scheduler()
    for jobid in range(1, 6):
        world.run(jobid)
        world.end(jobid)
    assert list(world.manager.jobs.inactive) == [3, 4, 5]
    again, _ = restart(world, new_world, inactive_kept_max=2)
    assert list(again.manager.jobs.inactive) == [4, 5]
    assert not again.of(Persist)


def test_ended_jobs_are_listed_as_they_ended_after_a_restart_too(world, new_world):
    for jobid in (1, 2):
        world.run(jobid)
    for jobid in (2, 1):
        world.end(jobid)
    again, _ = restart(world, new_world)
    assert list(again.manager.jobs.inactive) == list(world.manager.jobs.inactive) == [2, 1]
    since_s = nextafter(again.job(2).t_inactive, inf)
    *_, found = query.in_flux_order(again.manager.jobs, EVERY_JOB._replace(since_s=since_s))
    assert [job.id for job in found or ()] == [1]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda row: (row[0], [], row[2], row[3]), "has no submit event"),
        (lambda row: (row[0], row[1], None, row[3]), "its jobspec is not in the store"),
        (lambda row: (row[0], row[1], row[2], None), "its R is not in the store"),
        (lambda row: (row[0], row[1][1:], row[2], row[3]), "has no submit event"),
        (lambda row: (row[0], row[1][:1] + row[1][2:], row[2], row[3]), "event 'depend': InvalidTransition"),
        (lambda row: (row[0], [{"name": "submit", "timestamp": 1.0}], row[2], row[3]), "event 'submit': KeyError"),
        (lambda row: (row[0], ["nonsense"], row[2], row[3]), "event 'nonsense': TypeError"),
    ],
)
def test_a_damaged_store_is_named(world, new_world, damage, match):
    world.run(1)
    with pytest.raises(InvalidValue, match=match):
        new_world().manager.restore([damage(world.rows()[0])], 5.0)


def split(world):
    """The stored rows of active and of ended jobs."""
    rows = world.rows()
    ended = [row for row in rows if row[1][-1]["name"] == "clean"]
    return [row for row in rows if row not in ended], ended


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_ended_jobs_are_read_later_or_when_one_is_looked_for(world, new_world, steps):
    for jobid in (1, 2, 3):
        world.run(jobid)
    for jobid in (3, 1, 2):
        world.end(jobid)
    world.submit(4)
    active, ended = split(world)
    again, faults = new_world(), list[InvalidValue]()
    work = again.manager.restore_ended([ended[:1], ended[1:]], faults.append)
    again.perform(again.manager.restore(active, 100.0).effects)
    again.scheduler()
    for _ in range(steps):
        next(work, None)
    again.run(5)
    again.end(5)
    jobs = again.manager.jobs
    assert jobs.get(2).state is INACTIVE
    assert list(work) == faults == []
    assert list(jobs.inactive) == [3, 1, 2, 5]
    again.manager.check()


def test_a_dependency_on_an_ended_job_reads_it(world, new_world, spec):
    world.run(1)
    world.submit(2, spec(dependencies=[{"scheme": "afterok", "value": "1"}]))
    active, _ = split(world)
    world.end(1)
    again = new_world()
    again.manager.restore_ended([split(world)[1]], lambda fault: None)
    rows = [row for row in active if row[0] == 2]
    again.perform(again.manager.restore(rows, 100.0).effects)
    assert again.state(2) is State.SCHED


def test_an_ended_job_that_cannot_be_read_is_left_out_and_named(world, new_world):
    for jobid in (1, 2):
        world.run(jobid)
        world.end(jobid)
    _, (first, second) = split(world)
    again, faults = new_world(), list[InvalidValue]()
    list(again.manager.restore_ended([[(first[0], [], None, None), second]], faults.append))
    assert list(again.manager.jobs.inactive) == [2]
    assert [str(fault) for fault in faults] == ["eventlog of job ƒ2 has no submit event"]


def test_a_restart_repeats_no_cancellation(world, new_world):
    world.submit(1)
    world.do("set_urgency", 1, 0, 5)
    again, _ = restart(world, new_world)
    again.scheduler()
    assert again.requests(SchedCancelRequest) == []
    assert again.sent() == []


def test_what_a_job_used_is_read_with_its_finish_where_that_has_it(world, new_world, r_of):
    used = {"wall_s": 1.5, "user_s": 1.0, "system_s": 0.25, "max_rss_bytes": 1 << 20}
    gpus = {"count": 2, "held_s": 3.0, "busy_s": 0.5, "max_bytes": 1 << 30}
    for jobid, usage in ((1, used | {"tasks": [{"status": 0}]}), (2, None), (3, used | {"gpus": gpus})):
        world.run(jobid, r_of(str(jobid)))
        world.do("finished", jobid, 0, release=True, usage=usage)
    again, _ = restart(world, new_world)
    assert again.job(1).usage.to_json() == used
    assert again.job(2).usage is None
    assert again.job(3).usage.to_json() == used | {"gpus": gpus}


def test_nonsense_for_what_a_job_used_is_named(world, new_world):
    world.run(1)
    used = {"wall_s": 1.5, "user_s": 1.0, "system_s": 0.25, "max_rss_bytes": 1}
    world.do("finished", 1, 0, release=True, usage=used)
    world.contexts(1, "finish")[0]["usage"]["wall_s"] = "long"
    with pytest.raises(InvalidValue, match=r"eventlog of job ƒ2: event 'finish'.*usage"):
        restart(world, new_world)


def test_waiting_jobs_of_one_priority_share_what_a_restart_logs(world, new_world):
    for jobid, urgency in ((1, 16), (2, 16), (3, 20), (4, 0)):
        world.submit(jobid, urgency=urgency)
    again, _ = restart(world, new_world)
    one, two, three, held = (again.stored[jobid]["events"][-2:] for jobid in (1, 2, 3, 4))
    assert [event["name"] for event in one] == ["flux-restart", "priority"]
    assert all(ours is theirs for ours, theirs in zip(one, two, strict=True))
    assert [events[1]["context"]["priority"] for events in (one, three, held)] == [16, 20, 0]
    again.scheduler()
    assert again.sent() == [3, 1, 2]
    again.do("set_urgency", 1, 5, 1)
    assert again.names(1)[-4:] == ["flux-restart", "priority", "urgency", "priority"]
    assert again.names(2)[-2:] == ["flux-restart", "priority"]
