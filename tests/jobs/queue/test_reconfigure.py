"""Queues are configured anew while jobs wait and run: what was accepted stays accepted, what is gone holds back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.errors import Refused
from fluxsched.jobs.effects import SaveQueue, SchedCancel
from fluxsched.jobs.job.states import State
from fluxsched.jobs.queue.queues import MISSING_REASON, QueueConfig

A, B = QueueConfig("a", duration_limit_s=600.0), QueueConfig("b")


@pytest.fixture
def named(new_world: Callable[..., Any]) -> Any:
    world = new_world({"a": A, "b": B}, default_queue="a")
    world.scheduler()
    return world


def test_lowered_limits_hold_for_new_jobs_only(named: Any, spec: Callable[..., Any]) -> None:
    named.run(1, spec=spec(duration_s=600.0))
    named.submit(2, spec(duration_s=600.0))
    named.do("reconfigure", {"a": QueueConfig("a", duration_limit_s=60.0), "b": B}, "a")
    assert (named.state(1), named.state(2), named.last) == (State.RUN, State.SCHED, [])
    with pytest.raises(Refused, match="limit of queue a 1m"):
        named.submit(3, spec(duration_s=600.0))
    named.grant(2)
    assert named.state(2) is State.RUN
    with pytest.raises(Refused, match="limit of queue a 1m"):
        named.do("update", 1, {"attributes.system.duration": 599.0})


def test_a_new_queue_is_served_at_once_by_the_scheduler_of_its_group(named: Any, spec: Callable[..., Any]) -> None:
    named.manager.queue_control.start("a", False, now_s=1.0)
    named.do("reconfigure", {"c": QueueConfig("c"), "a": A, "b": B}, "c")
    assert [effect.name for effect in named.of(SaveQueue)] == ["c"]
    named.submit(1)
    assert (named.sent(), named.job(1).queue.name) == ([1], "c")
    named.submit(2, spec(queue="a", duration_s=1.0))
    assert named.sent() == []  # switches stay
    assert named.manager.queues.names() == ["c", "a", "b"]


def test_a_queue_that_is_gone_holds_back_its_jobs_until_it_is_there_again(named: Any, spec: Callable[..., Any]) -> None:
    named.run(1, spec=spec(queue="b"))
    named.submit(2, spec(queue="b"))
    named.do("reconfigure", {"a": A}, None)
    assert named.of(SchedCancel) == [SchedCancel("sched", 2)]
    named.do("alloc_canceled", "sched", 2)
    assert (named.sent(), named.state(1)) == ([], State.RUN)
    assert MISSING_REASON in named.why(2).reason
    with pytest.raises(Refused, match=MISSING_REASON):
        named.submit(3, spec(queue="b"))
    named.submit(4, spec(duration_s=1.0))
    assert named.job(4).queue.name == "a"  # the only one that is configured is the default
    named.end(1)
    named.do("reconfigure", {"a": A, "b": B}, "a")
    assert named.sent() == [2]
    named.grant(2)
    named.do("started", 2)
    named.end(2)
    named.do("reconfigure", {"a": A}, None)
    assert named.manager.queues.names() == ["a"]


def test_what_cannot_be_is_said_and_the_rest_goes(named: Any, spec: Callable[..., Any]) -> None:
    queues = named.manager.queues
    elsewhere = {"a": QueueConfig("a", group="x"), "b": B}
    assert queues.faults(elsewhere) == []
    named.submit(1, spec(duration_s=1.0))
    assert queues.faults(elsewhere) == [
        "queue a has 1 active job: its groups can change once no job is in it, or at a restart"
    ]
    named.do("cancel", 1, 1000, "")
    named.do("alloc_canceled", "sched", 1)
    named.do("reconfigure", elsewhere, "a")
    named.submit(2, spec(duration_s=1.0))
    assert named.sent() == []
    named.scheduler("other", ("x",))
    assert named.sent() == [2]


def test_the_queue_without_a_name_becomes_named_ones_when_it_is_empty(world: Any) -> None:
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
