"""RFC 33: admission, defaults, limits, stop and start, banks; queues that are configured anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxsched.core.constraint import Constraint
from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.core.text import NAMES_TOLD
from fluxsched.errors import InvalidValue, Refused
from fluxsched.jobs.query import first_waiting
from fluxsched.jobs.queues import ANY_BANK, MISSING_REASON, Banks, QueueConfig, Queues
from fluxsched.jobs.states import SaveQueue, State
from fluxsched.protocol.messages.jobs import SchedCancelRequest

# RFC 33: admission, defaults, limits, stop and start.


BATCH = QueueConfig("batch", requires=Constraint.parse({"properties": ["batch"]}), default_duration_s=60.0)
DEBUG = QueueConfig("debug", duration_limit_s=600.0, nodes_min=2, nodes_max=4, cores_max=8, gpus_max=0)
QUEUES = {"batch": BATCH, "debug": DEBUG}


@pytest.fixture
def named(new_world):
    world = new_world(QUEUES, default_queue="batch")
    world.scheduler()
    return world


def system(world, jobid):
    return world.stored[jobid]["jobspec"]["attributes"]["system"]


def test_the_default_queue_and_its_defaults_go_into_the_jobspec(named, spec):
    jobspec = spec()
    named.submit(1, jobspec)
    assert system(named, 1)["queue"] == "batch"
    assert system(named, 1)["duration"] == 60.0
    assert system(named, 1)["constraints"] == {"properties": ["batch"]}
    assert "queue" not in jobspec.raw["attributes"]["system"]
    assert named.job(1).duration_s == 60.0


def test_the_jobs_own_wishes_stay(named, spec):
    named.submit(1, spec(duration_s=5.0, queue="batch", constraint={"hostlist": ["n1"]}))
    assert system(named, 1)["duration"] == 5.0
    assert system(named, 1)["constraints"] == {"and": [{"hostlist": ["n1"]}, {"properties": ["batch"]}]}


def test_the_first_waiting_jobs_of_a_queue_are_found_among_the_oldest(named, spec):
    for jobid, urgency in ((1, 16), (2, 16), (3, 16), (4, 31), (5, 0)):
        named.submit(jobid, urgency=urgency, userid=7 if jobid == 2 else 1000)
    named.submit(6, spec(queue="debug", nodes=2, duration_s=5.0))
    named.grant(1)
    jobs, (batch, debug) = named.manager.jobs, named.manager.queues
    assert first_waiting(jobs, batch, 9) == [4, 2, 3, 5]
    assert first_waiting(jobs, batch, 2) == [4, 2]
    assert first_waiting(jobs, batch, 9, userid=7) == [2]
    assert first_waiting(jobs, batch, 9, looked_max=2) == [2, 3]  # job 4 came later
    assert first_waiting(jobs, debug, 9) == [6]


def test_a_jobspec_that_needs_no_change_is_not_copied(named, spec):
    jobspec = spec(duration_s=5.0, queue="debug", nodes=2)
    named.submit(1, jobspec)
    assert named.stored[1]["jobspec"] is jobspec.raw


def test_equal_jobs_share_the_jobspec_with_the_defaults_of_their_queue(named, spec):
    jobspec, control = spec(), named.manager.queue_control
    for jobid in (1, 2):
        named.submit(jobid, jobspec)
    named.manager.requests.change_banks(Banks("physics"))
    named.submit(3, jobspec)
    control.reconfigure({**QUEUES, "batch": replace(BATCH, default_duration_s=9.0)}, "batch", named.now_s)
    named.submit(4, jobspec)
    first, second, third, last = [named.job(jobid).jobspec for jobid in (1, 2, 3, 4)]
    assert first is second
    assert [one.sharing.bank for one in (second, third)] == [None, "physics"]
    assert [one.duration_s for one in (third, last)] == [60.0, 9.0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"duration_s": 601.0, "nodes": 2}, r"duration .*, limit of queue debug 10m"),
        ({"nodes": 2}, r"duration infinity \(none was asked for\), limit of queue debug 10m"),
        ({"duration_s": 5.0, "nodes": 1}, "1 nodes, queue debug asks for at least 2"),
        ({"duration_s": 5.0, "nodes": 5}, "5 nodes, limit of queue debug 4"),
        ({"duration_s": 5.0, "nodes": 2, "cores_per_task": 5}, "10 cores, limit of queue debug 8"),
        ({"duration_s": 5.0, "nodes": 2, "gpus_per_task": 1}, "2 gpus, limit of queue debug 0"),
        ({"duration_s": 5.0, "cores_per_task": 9}, "9 cores, limit of queue debug 8"),
    ],
)
def test_limits(named, spec, options, match):
    with pytest.raises(Refused, match=match):
        named.submit(1, spec(queue="debug", **options))
    assert named.stored == {}


def test_limits_hold_for_updates(named, spec):
    named.submit(1, spec(queue="debug", nodes=2, duration_s=5.0))
    with pytest.raises(Refused, match="limit of queue debug"):
        named.do("update", 1, {"attributes.system.duration": 1000})


def test_unknown_queues(named, world, new_world, spec):
    with pytest.raises(Refused, match="queue 'x' does not exist: use one of batch, debug"):
        named.submit(1, spec(queue="x"))
    with pytest.raises(Refused, match="one queue without a name"):
        world.submit(1, spec(queue="x"))
    with pytest.raises(Refused, match="no default queue: name one of batch, debug"):
        new_world(QUEUES).submit(1)
    with pytest.raises(InvalidValue, match="default queue 'x' is not configured"):
        new_world(QUEUES, default_queue="x")


def test_the_only_queue_is_the_default(new_world):
    world = new_world({"batch": BATCH})
    world.submit(1)
    assert world.job(1).queue.name == "batch"


def test_disabled(named, spec):
    (saved,) = named.manager.queue_control.enable("batch", False, "maintenance")
    with pytest.raises(Refused, match="queue batch accepts no jobs: maintenance"):
        named.submit(1)
    named.submit(2, spec(queue="debug", nodes=2, duration_s=1.0))
    assert saved.state == {"enable": False, "enable_reason": "maintenance", "start": True, "start_reason": ""}
    named.manager.queue_control.enable("batch", True)
    named.submit(1)


def test_stop_takes_requests_back_and_start_sends_them_again(named, spec):
    named.submit(1)
    named.submit(2, spec(queue="debug", nodes=2, duration_s=1.0))
    named.do("start", "batch", False, "later")
    assert named.requests(SchedCancelRequest) == [SchedCancelRequest(1)]
    assert [effect.name for effect in named.of(SaveQueue)] == ["batch"]
    named.submit(3)
    assert named.sent() == []
    named.do("alloc_canceled", "sched", 1)
    assert named.sent() == []
    assert named.why(3).reason == "queue batch is stopped: later"
    named.do("start", "batch", True)
    assert named.sent() == [1, 3]


def test_all_queues_and_none(named):
    assert [effect.name for effect in named.do("start", None, False, all_queues=True)] == ["batch", "debug"]
    with pytest.raises(Refused, match=r"name the queue to start \(batch, debug\) or give --all"):
        named.do("start", None, True)
    with pytest.raises(Refused, match="cannot show queue 'x', which does not exist: use batch, debug"):
        named.manager.queues.select("x", False, "show")
    with pytest.raises(InvalidValue, match="limit 512"):
        named.manager.queue_control.enable("batch", False, "r" * 513)


@pytest.mark.parametrize(
    ("verb", "ask"),
    [
        ("enable", lambda manager, name, **more: manager.queue_control.enable(name, True, **more)),
        ("disable", lambda manager, name, **more: manager.queue_control.enable(name, False, **more)),
        ("start", lambda manager, name, **more: manager.queue_control.start(name, True, **more, now_s=1.0)),
        ("stop", lambda manager, name, **more: manager.queue_control.start(name, False, **more, now_s=1.0)),
    ],
)
def test_a_refusal_says_what_was_to_be_done(named, verb, ask):
    with pytest.raises(Refused, match=f"name the queue to {verb} "):
        ask(named.manager, None)
    for all_queues in (False, True):
        with pytest.raises(Refused, match=f"cannot {verb} queue 'x', which does not exist: use batch, debug"):
            ask(named.manager, "x", all_queues=all_queues)


def test_of_a_name_and_all_the_name_counts(named):
    assert [effect.name for effect in named.do("start", "debug", False, all_queues=True)] == ["debug"]


def test_status(named):
    named.submit(1)
    named.grant(1)
    named.submit(2)
    (batch,) = named.manager.queues.select("batch", False, "show")
    held_back = named.manager.queue_control.held_back
    assert (batch.enabled, batch.started, batch.active, batch.running) == (True, True, 2, 1)
    assert held_back(batch) == (None, "")
    named.do("start", "batch", False)
    assert held_back(batch) == (None, "stopped by an administrator")
    named.do("start", "batch", True)
    named.do("scheduler_lost", "sched")
    assert held_back(batch) == ("scheduler", "no scheduler serves group default")


def test_switches_survive_a_restart(named, new_world):
    effects = named.do("start", "debug", False, "later")
    again = new_world(QUEUES, default_queue="batch")
    again.manager.queue_control.restore(effects[0].name, effects[0].state)
    again.manager.queue_control.restore("gone", effects[0].state)
    assert [queue.start_reason for queue in again.manager.queues.select("debug", False, "show")] == ["later"]


def test_a_job_restored_without_a_queue_makes_no_anonymous_queue():
    queues = Queues({"a": QueueConfig("a"), "b": QueueConfig("b")})
    assert not queues.for_restored(None).enabled
    for name, told in ((None, "no default queue: name one of a, b"), ("c", "'c' does not exist: use one of a, b")):
        with pytest.raises(Refused, match=told):
            queues.for_submit(name)


# Queues are configured anew while jobs wait and run: what was accepted stays accepted, what is gone holds back.


A, B = QueueConfig("a", duration_limit_s=600.0), QueueConfig("b")


@pytest.fixture
def changing(new_world):
    world = new_world({"a": A, "b": B}, default_queue="a")
    world.scheduler()
    return world


def test_lowered_limits_hold_for_new_jobs_only(changing, spec):
    changing.run(1, spec=spec(duration_s=600.0))
    changing.submit(2, spec(duration_s=600.0))
    changing.do("reconfigure", {"a": QueueConfig("a", duration_limit_s=60.0), "b": B}, "a")
    assert (changing.state(1), changing.state(2), changing.last) == (State.RUN, State.SCHED, [])
    with pytest.raises(Refused, match="limit of queue a 1m"):
        changing.submit(3, spec(duration_s=600.0))
    changing.grant(2)
    assert changing.state(2) is State.RUN
    with pytest.raises(Refused, match="limit of queue a 1m"):
        changing.do("update", 1, {"attributes.system.duration": 599.0})


def test_a_new_queue_is_served_at_once_by_the_scheduler_of_its_group(changing, spec):
    changing.manager.queue_control.start("a", False, now_s=1.0)
    changing.do("reconfigure", {"c": QueueConfig("c"), "a": A, "b": B}, "c")
    assert [effect.name for effect in changing.of(SaveQueue)] == ["c"]
    changing.submit(1)
    assert (changing.sent(), changing.job(1).queue.name) == ([1], "c")
    changing.submit(2, spec(queue="a", duration_s=1.0))
    assert changing.sent() == []  # switches stay
    assert changing.manager.queues.names() == ["c", "a", "b"]


def test_a_queue_that_is_gone_holds_back_its_jobs_until_it_is_there_again(changing, spec):
    changing.run(1, spec=spec(queue="b"))
    changing.submit(2, spec(queue="b"))
    changing.do("reconfigure", {"a": A}, None)
    assert changing.requests(SchedCancelRequest) == [SchedCancelRequest(2)]
    changing.do("alloc_canceled", "sched", 2)
    assert (changing.sent(), changing.state(1)) == ([], State.RUN)
    assert MISSING_REASON in changing.why(2).reason
    with pytest.raises(Refused, match=MISSING_REASON):
        changing.submit(3, spec(queue="b"))
    changing.submit(4, spec(duration_s=1.0))
    assert changing.job(4).queue.name == "a"  # the only one that is configured is the default
    changing.end(1)
    changing.do("reconfigure", {"a": A, "b": B}, "a")
    assert changing.sent() == [2]
    changing.grant(2)
    changing.do("started", 2)
    changing.end(2)
    changing.do("reconfigure", {"a": A}, None)
    assert changing.manager.queues.names() == ["a"]


def test_what_cannot_be_is_said_and_the_rest_goes(changing, spec):
    queues = changing.manager.queues
    elsewhere = {"a": QueueConfig("a", group="x"), "b": B}
    assert queues.faults(elsewhere) == []
    changing.submit(1, spec(duration_s=1.0))
    assert queues.faults(elsewhere) == [
        "queue a has 1 active job: its groups can change once no job is in it, or at a restart"
    ]
    changing.do("cancel", 1, 1000, "")
    changing.do("alloc_canceled", "sched", 1)
    changing.do("reconfigure", elsewhere, "a")
    changing.submit(2, spec(duration_s=1.0))
    assert changing.sent() == []
    changing.scheduler("other", ("x",))
    assert changing.sent() == [2]


def test_the_queue_without_a_name_becomes_named_ones_when_it_is_empty(world):
    queues = world.manager.queues
    world.run(1)
    assert queues.faults({"a": A}) == [
        "the queue has 1 active job: queues can have names once no job is in it, or after a restart"
    ]
    assert queues.faults({}) == queues.faults({None: QueueConfig(duration_limit_s=9.0)}) == []
    world.end(1)
    assert queues.faults({"a": A}) == []
    world.do("reconfigure", {"a": B}, None)
    world.submit(2)
    assert (world.sent(), queues.names()) == ([2], ["a"])
    world.do("reconfigure", {}, None)
    world.do("alloc_canceled", "sched", 2)
    world.submit(3)
    assert (world.job(3).queue.name, world.sent()) == (None, [3])


# The bank of a job is decided when it is submitted, and never again.


def test_any_bank_counts_where_none_is_configured(new_world, spec):
    world = new_world()
    world.submit(1, spec(bank="any"))
    world.submit(2)
    assert [world.job(each).jobspec.sharing.bank for each in (1, 2)] == ["any", None]


def test_the_default_is_put_into_the_jobspec(new_world, spec):
    queues = {"a": QueueConfig("a", default_duration_s=60.0)}
    world = new_world(queues, banks=Banks("physics", ("physics", "optics")))
    world.submit(1)
    world.submit(2, spec(bank="optics"))
    (one, two) = [world.job(each).jobspec for each in (1, 2)]
    assert (one.sharing.bank, one.duration_s, one.queue) == ("physics", 60.0, "a")
    assert world.stored[1]["jobspec"]["attributes"]["system"]["bank"] == "physics"
    assert two.sharing.bank == "optics"


def test_a_bank_called_default_needs_no_setting(new_world):
    world = new_world(banks=Banks(None, (DEFAULT_BANK, "physics")))
    world.submit(1)
    assert world.job(1).jobspec.sharing.bank is None


@pytest.mark.parametrize(
    ("banks", "named", "told"),
    [
        (Banks(None, ("a", "b")), "c", "bank 'c' does not exist: use one of a, b"),
        (Banks("a", ("a", "b")), "c", "bank 'c' does not exist: use one of a, b"),
        (Banks(None, ("a", "b")), None, "the job names no bank, and there is no default: name one of a, b"),
        (Banks(None, ()), "c", "bank 'c' does not exist: use one of none"),
        (Banks(None, [f"b{at}" for at in range(NAMES_TOLD + 5)]), "c", f"b{NAMES_TOLD - 1} and 5 more"),
    ],
)
def test_an_unknown_bank_is_refused_with_those_that_exist(new_world, spec, banks, named, told):
    world = new_world(banks=banks)
    with pytest.raises(Refused, match=told):
        world.submit(1, spec(bank=named))
    assert world.stored == {}


def test_an_accepted_job_stays_accepted(new_world, spec):
    world = new_world(banks=Banks(None, ("a",)))
    world.scheduler()
    world.submit(1, spec(bank="a"))
    world.manager.requests.change_banks(Banks(None, ("b",)))
    world.grant(1)
    with pytest.raises(Refused, match="bank 'a' does not exist: use one of b"):
        world.submit(2, spec(bank="a"))
    world.manager.requests.change_banks(ANY_BANK)
    world.submit(2, spec(bank="a"))
