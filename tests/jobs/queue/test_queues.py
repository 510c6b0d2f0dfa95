"""RFC 33: admission, defaults, limits, stop and start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.constraint import Constraint
from fluxsched.errors import InvalidValue, Refused
from fluxsched.jobs.effects import SaveQueue, SchedCancel
from fluxsched.jobs.job.states import State
from fluxsched.jobs.queue.queues import QueueConfig, Queues

BATCH = QueueConfig("batch", requires=Constraint.parse({"properties": ["batch"]}), default_duration_s=60.0)
DEBUG = QueueConfig("debug", duration_limit_s=600.0, nodes_min=2, nodes_max=4, cores_max=8, gpus_max=0)
QUEUES = {"batch": BATCH, "debug": DEBUG}


@pytest.fixture
def named(new_world: Callable[..., Any]) -> Any:
    world = new_world(QUEUES, default_queue="batch")
    world.scheduler()
    return world


def system(world: Any, jobid: int) -> dict[str, Any]:
    stored: dict[str, Any] = world.stored[jobid]["jobspec"]["attributes"]["system"]
    return stored


def test_the_default_queue_and_its_defaults_go_into_the_jobspec(named: Any, spec: Callable[..., Any]) -> None:
    jobspec = spec()
    named.submit(1, jobspec)
    assert system(named, 1)["queue"] == "batch"
    assert system(named, 1)["duration"] == 60.0
    assert system(named, 1)["constraints"] == {"properties": ["batch"]}
    assert "queue" not in jobspec.raw["attributes"]["system"]
    assert named.job(1).duration_s == 60.0


def test_the_jobs_own_wishes_stay(named: Any, spec: Callable[..., Any]) -> None:
    named.submit(1, spec(duration_s=5.0, queue="batch", constraint={"hostlist": ["n1"]}))
    assert system(named, 1)["duration"] == 5.0
    assert system(named, 1)["constraints"] == {"and": [{"hostlist": ["n1"]}, {"properties": ["batch"]}]}


def test_a_jobspec_that_needs_no_change_is_not_copied(named: Any, spec: Callable[..., Any]) -> None:
    jobspec = spec(duration_s=5.0, queue="debug", nodes=2)
    named.submit(1, jobspec)
    assert named.stored[1]["jobspec"] is jobspec.raw


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
def test_limits(named: Any, spec: Callable[..., Any], options: dict[str, Any], match: str) -> None:
    with pytest.raises(Refused, match=match):
        named.submit(1, spec(queue="debug", **options))
    assert named.stored == {}


def test_limits_hold_for_updates(named: Any, spec: Callable[..., Any]) -> None:
    named.submit(1, spec(queue="debug", nodes=2, duration_s=5.0))
    with pytest.raises(Refused, match="limit of queue debug"):
        named.do("update", 1, {"attributes.system.duration": 1000})


def test_unknown_queues(named: Any, world: Any, new_world: Callable[..., Any], spec: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match="queue 'x' does not exist: use one of batch, debug"):
        named.submit(1, spec(queue="x"))
    with pytest.raises(Refused, match="one queue without a name"):
        world.submit(1, spec(queue="x"))
    with pytest.raises(Refused, match="no default queue: name one of batch, debug"):
        new_world(QUEUES).submit(1)
    with pytest.raises(InvalidValue, match="default queue 'x' is not configured"):
        new_world(QUEUES, default_queue="x")


def test_the_only_queue_is_the_default(new_world: Callable[..., Any]) -> None:
    world = new_world({"batch": BATCH})
    world.submit(1)
    assert world.job(1).queue.name == "batch"


def test_disabled(named: Any, spec: Callable[..., Any]) -> None:
    (saved,) = named.manager.queue_control.enable("batch", False, "maintenance")
    with pytest.raises(Refused, match="queue batch accepts no jobs: maintenance"):
        named.submit(1)
    named.submit(2, spec(queue="debug", nodes=2, duration_s=1.0))
    assert saved.state == {"enable": False, "enable_reason": "maintenance", "start": True, "start_reason": ""}
    named.manager.queue_control.enable("batch", True)
    named.submit(1)


def test_stop_takes_requests_back_and_start_sends_them_again(named: Any, spec: Callable[..., Any]) -> None:
    named.submit(1)
    named.submit(2, spec(queue="debug", nodes=2, duration_s=1.0))
    named.do("start", "batch", False, "later")
    assert named.of(SchedCancel) == [SchedCancel("sched", 1)]
    assert [effect.name for effect in named.of(SaveQueue)] == ["batch"]
    named.submit(3)
    assert named.sent() == []
    named.do("alloc_canceled", "sched", 1)
    assert named.sent() == []
    assert named.why(3).reason == "queue batch is stopped: later"
    named.do("start", "batch", True)
    assert named.sent() == [1, 3]


def test_start_before_the_cancellation_is_answered(world: Any) -> None:
    world.submit(1)
    world.do("start", None, False)
    world.do("start", None, True)
    assert world.sent() == []
    world.do("alloc_canceled", "sched", 1)
    assert world.sent() == [1]


def test_a_grant_that_crosses_the_stop_is_taken(world: Any) -> None:
    world.submit(1)
    world.do("start", None, False)
    world.grant(1)
    assert world.state(1) is State.RUN


def test_all_queues_and_none(named: Any) -> None:
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
def test_a_refusal_says_what_was_to_be_done(named: Any, verb: str, ask: Callable[..., Any]) -> None:
    with pytest.raises(Refused, match=f"name the queue to {verb} "):
        ask(named.manager, None)
    for all_queues in (False, True):
        with pytest.raises(Refused, match=f"cannot {verb} queue 'x', which does not exist: use batch, debug"):
            ask(named.manager, "x", all_queues=all_queues)


def test_of_a_name_and_all_the_name_counts(named: Any) -> None:
    assert [effect.name for effect in named.do("start", "debug", False, all_queues=True)] == ["debug"]


def test_status(named: Any) -> None:
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


def test_switches_survive_a_restart(named: Any, new_world: Callable[..., Any]) -> None:
    effects = named.do("start", "debug", False, "later")
    again = new_world(QUEUES, default_queue="batch")
    again.manager.queue_control.restore(effects[0].name, effects[0].state)
    again.manager.queue_control.restore("gone", effects[0].state)
    assert [queue.start_reason for queue in again.manager.queues.select("debug", False, "show")] == ["later"]


def test_a_job_restored_without_a_queue_makes_no_anonymous_queue() -> None:
    queues = Queues({"a": QueueConfig("a"), "b": QueueConfig("b")})
    assert not queues.for_restored(None).enabled
    for name, told in ((None, "no default queue: name one of a, b"), ("c", "'c' does not exist: use one of a, b")):
        with pytest.raises(Refused, match=told):
            queues.for_submit(name)
