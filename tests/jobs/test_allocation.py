"""The job manager's side of RFC 27: hello, ready, limited mode, losses, and what breaks the protocol."""

from __future__ import annotations

import pytest

from fluxsched.core.idset import Idset
from fluxsched.errors import Refused, RemoteProtocolError
from fluxsched.jobs.queues import QueueConfig
from fluxsched.jobs.states import State, ToScheduler
from fluxsched.protocol.messages.jobs import (
    AllocRequest,
    FreeRequest,
    HelloResponse,
    PrioritizeRequest,
    SchedCancelRequest,
)
from tests.jobs.elastic import elastic

ids = Idset.parse


def test_ready_sends_everything_in_priority_order_and_counts(alone):
    for jobid, urgency in [(1, 16), (2, 20), (3, 16), (4, 0)]:
        alone.submit(jobid, urgency=urgency)
    hello, count, _ = alone.scheduler()
    assert (hello, count) == ([], 3)
    assert alone.sent() == [2, 1, 3]


def test_nothing_is_sent_before_ready(alone):
    alone.manager.allocation.hello("sched")
    alone.submit(1)
    assert alone.sent() == []
    with pytest.raises(RemoteProtocolError, match="no request outstanding"):
        alone.grant(1)


def test_one_scheduler_a_group(new_world):
    world = new_world()
    world.manager.allocation.hello("one", ("a", "b", "a"))
    with pytest.raises(Refused, match="serves group b: ") as caught:
        world.manager.allocation.hello("two", ("b", "c"))
    assert caught.value.errnum == 16
    world.manager.allocation.hello("two", ("c",))
    with pytest.raises(RemoteProtocolError, match="was sent twice on one connection"):
        world.manager.allocation.hello("two", ("d",))
    with pytest.raises(RemoteProtocolError, match="names no group"):
        world.manager.allocation.hello("three", ())


@pytest.mark.parametrize("limit", [0, -1, 2147483648])
def test_ready_has_rules(alone, limit):
    with pytest.raises(RemoteProtocolError, match="hello first"):
        alone.manager.allocation.ready("sched", None, 1.0)
    alone.manager.allocation.hello("sched")
    with pytest.raises(RemoteProtocolError, match=f"limit {limit} is not within"):
        alone.manager.allocation.ready("sched", limit, 1.0)
    alone.manager.allocation.ready("sched", None, 1.0)
    with pytest.raises(RemoteProtocolError, match="ready was sent twice"):
        alone.manager.allocation.ready("sched", None, 1.0)


def test_each_queue_goes_to_the_scheduler_of_its_group(new_world, spec):
    world = new_world({name: QueueConfig(name, group=f"group-{name}") for name in ("a", "b", "c")}, default_queue="a")
    world.scheduler("one", ("group-a", "group-c"))
    world.scheduler("two", ("group-b",))
    for jobid, queue in enumerate("abc", start=1):
        world.submit(jobid, spec(queue=queue))
        assert [effect.scheduler for effect in world.of(ToScheduler)] == ["two" if queue == "b" else "one"]
    with pytest.raises(RemoteProtocolError, match="no request outstanding"):
        world.grant(2, scheduler="one")
    world.do("scheduler_lost", "one")
    world.scheduler("three", ("group-c",))
    assert world.sent() == [3]


def two_groups(new_world):
    """Queue wide has groups east, with target 0, and west, with target 1."""
    return new_world({"wide": QueueConfig("wide", "east", others=("west",))}, default_queue="wide")


def r_of(ranks):
    execution = {"R_lite": [{"rank": ranks, "children": {"core": "0"}}], "nodelist": [f"n[{ranks}]"]}
    return {"version": 1, "execution": {**execution, "starttime": 10.0, "expiration": 0.0}}


def not_in(groups, ranks):
    return ranks - Idset.of([{"east": 0, "west": 1}[group] for group in groups])


def test_a_queue_of_several_groups_needs_one_scheduler(new_world):
    world = two_groups(new_world)
    for some, other in (("east", "west"), ("west", "east")):
        with pytest.raises(Refused, match=f"has groups east, west, which need one scheduler: acquire {other}, too"):
            world.manager.allocation.hello("one", (some,))
    world.scheduler("one", ("east", "west"))
    world.submit(1)
    assert [effect.scheduler for effect in world.of(ToScheduler)] == ["one"]
    world.do("scheduler_lost", "one")
    world.scheduler("two", ("west", "east"))
    assert world.sent() == [1]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_grant_is_from_one_group_of_the_queue(new_world, rank):
    world = two_groups(new_world)
    world.scheduler("one", ("east", "west"))
    world.submit(1)
    with pytest.raises(RemoteProtocolError, match="not of one of its queue's groups east, west"):
        world.do("alloc_granted", "one", 1, r_of("0-1"), None, foreign=not_in)
    with pytest.raises(RemoteProtocolError, match="not its scheduler's"):
        world.do("alloc_granted", "one", 1, r_of("1-2"), None, foreign=not_in)
    world.do("alloc_granted", "one", 1, r_of(rank), None, foreign=not_in)
    assert str(world.held[1]) == rank
    world.do("scheduler_lost", "one")
    assert [item.id for item in world.manager.allocation.hello("two", ("east", "west"))] == [1]


def test_a_job_grows_in_the_group_in_which_it_runs(new_world):
    def not_in(groups, ranks):
        return ranks - Idset.of([{"east": 0, "west": 2}[group] + at for group in groups for at in (0, 1)])

    world = two_groups(new_world)
    world.scheduler("one", ("east", "west"))
    world.submit(1, elastic("1-3"))
    world.do("alloc_granted", "one", 1, r_of("0"), None, foreign=not_in)
    world.do("started", 1)
    for other in ("2", "1-2"):
        with pytest.raises(RemoteProtocolError, match=f"grow by targets {other}, which are not .*, in which it runs"):
            world.do("grow", "one", 1, r_of(other), foreign=not_in)
    world.do("grow", "one", 1, r_of("1"), foreign=not_in)
    assert str(world.job().held) == "0-1"


def test_limited_mode_sends_the_best_first(alone):
    for jobid in range(1, 5):
        alone.submit(jobid, urgency=jobid)
    _, count, _ = alone.scheduler(limit=2)
    assert (count, alone.sent()) == (4, [4, 3])
    alone.grant(4)
    assert alone.sent() == [2]
    alone.do("alloc_denied", "sched", 3, None)
    assert alone.sent() == [1]
    assert alone.why(1).reason == "the scheduler has not decided yet"


def test_a_better_newcomer_displaces_the_worst(alone):
    alone.scheduler(limit=2)
    alone.submit(1, urgency=10)
    alone.submit(2, urgency=12)
    alone.submit(3, urgency=10)
    assert alone.last[1:] == []  # a tie displaces nobody
    alone.submit(4, urgency=20)
    assert alone.requests(SchedCancelRequest) == [SchedCancelRequest(1)]
    alone.submit(5, urgency=21)
    assert alone.requests(SchedCancelRequest) == []  # one at a time
    assert alone.why(5).reason.startswith("2 jobs are with the scheduler already")
    alone.do("alloc_canceled", "sched", 1)
    assert alone.sent() == [5]
    assert alone.requests(SchedCancelRequest) == [SchedCancelRequest(2)]
    alone.do("alloc_canceled", "sched", 2)
    assert alone.sent() == [4]
    alone.grant(5)
    alone.grant(4)
    assert alone.sent() == [1]  # the displaced come back in their old places
    alone.grant(2)
    assert alone.sent() == [3]


def test_a_grant_that_crosses_a_displacement_is_taken(alone):
    alone.scheduler(limit=1)
    alone.submit(1)
    alone.submit(2, urgency=20)
    alone.grant(1)
    assert alone.state(1) is State.RUN
    assert alone.sent() == [2]


def test_priorities_decide_who_is_displaced(alone):
    alone.scheduler(limit=2)
    alone.submit(1, urgency=10)
    alone.submit(2, urgency=12)
    alone.submit(3, urgency=5)
    alone.do("set_urgency", 2, 4, 5)
    assert alone.requests(PrioritizeRequest) == [PrioritizeRequest([(2, 4)])]
    assert alone.requests(SchedCancelRequest) == [SchedCancelRequest(2)]
    alone.do("alloc_canceled", "sched", 2)
    assert alone.sent() == [3]
    alone.do("set_urgency", 2, 31, 5)
    assert alone.requests(SchedCancelRequest) == [SchedCancelRequest(3)]


def test_a_canceled_request_counts_until_it_is_answered(alone):
    alone.scheduler(limit=1)
    alone.submit(1)
    alone.submit(2)
    alone.do("cancel", 1, 0, "")
    assert alone.sent() == []
    alone.do("alloc_canceled", "sched", 1)
    assert alone.sent() == [2]


def test_a_core_granted_twice_is_refused_naming_both_jobs(world, r_of):
    world.submit(1)
    world.submit(2)
    world.grant(1, r_of("0-3", "0-1"))
    with pytest.raises(RemoteProtocolError, match=r"^job 2 was granted rank3/core1 held by job 1$"):
        world.grant(2, r_of("3-5", "1-2"))
    assert world.state(2) is State.SCHED
    world.grant(2, r_of("3-5", "2-3"))
    with pytest.raises(RemoteProtocolError, match="job 2, which has no request outstanding"):
        world.grant(2, r_of("6"))


def test_cores_are_free_again_before_the_scheduler_hears_of_it(world, r_of):
    world.run(1, r_of("0-1"))
    world.submit(2)
    world.do("finished", 1, 0)
    world.do("released", 1, ids("1"), False)
    world.grant(2, r_of("1"))
    world.do("released", 1, None, True)
    world.submit(3)
    world.grant(3, r_of("0"))


@pytest.mark.parametrize("method", ["alloc_denied", "alloc_canceled"])
def test_answers_to_nothing(world, method):
    args = ("note",) if method == "alloc_denied" else ()
    with pytest.raises(RemoteProtocolError, match="job 5, which has no request outstanding"):
        world.do(method, "sched", 5, *args)
    with pytest.raises(RemoteProtocolError, match="hello first"):
        world.do(method, "stranger", 5, *args)
    world.run(1)
    with pytest.raises(RemoteProtocolError, match="job 1, which has no request outstanding"):
        world.do(method, "sched", 1, *args)


def test_a_bad_r_changes_nothing(world):
    world.submit(1)
    with pytest.raises(RemoteProtocolError, match="R for job 1 is not an RFC 20 R"):
        world.grant(1, {"execution": 5})
    world.grant(1)
    assert world.state(1) is State.RUN


def test_what_a_lost_scheduler_said_of_waiting_jobs_is_forgotten(world):
    world.submit(1)
    world.do("annotate", "sched", 1, {"sched": {"t_estimate": 5.0}})
    world.do("scheduler_lost", "sched")
    assert world.manager.jobs.active[1].annotations is None


def test_annotations(world):
    world.submit(1)
    world.do("annotate", "sched", 1, {"sched": {"reason_pending": "full", "t_estimate": 5.0}})
    assert world.job(1).annotations == {"sched": {"reason_pending": "full", "t_estimate": 5.0}}
    assert world.why(1).reason == "full"
    with pytest.raises(RemoteProtocolError, match="alloc response for job 1: annotations"):
        world.do("annotate", "sched", 1, {str(key): 1 for key in range(100)})
    world.do("alloc_granted", "sched", 1, R_ONE, {"sched": {"reason_pending": None}, "user": {"a": 1}})
    assert world.contexts(1, "alloc") == [{"annotations": {"sched": {"t_estimate": 5.0}, "user": {"a": 1}}}]
    world.do("annotate", "sched", 1, {"sched": {"late": 1}})
    world.end(1)
    world.do("annotate", "sched", 1, {"sched": {"late": 1}})
    assert world.job(1).annotations == {"sched": {"t_estimate": 5.0}, "user": {"a": 1}}
    with pytest.raises(RemoteProtocolError, match="job 9, which does not exist"):
        world.do("annotate", "sched", 9, {})


def test_an_annotation_may_come_when_its_job_is_forgotten(new_world):
    world = new_world(inactive_kept_max=1)
    world.scheduler()
    for jobid in (1, 2):
        world.submit(jobid)
        world.do("cancel", jobid, 0, "")
        world.do("alloc_canceled", "sched", jobid)
    assert 1 not in world.manager.jobs.inactive
    world.do("annotate", "sched", 1, {"sched": {"late": 1}})  # may have been a job


R_ONE = {"execution": {"R_lite": [{"rank": "0", "children": {"core": "0"}}]}}


def test_a_lost_scheduler_leaves_jobs_alone(world, r_of):
    world.run(1, r_of("0-3"))
    world.submit(2)
    world.submit(3, urgency=20)
    world.do("cancel", 2, 0, "")
    world.do("scheduler_lost", "sched")
    assert world.last == []
    assert [world.state(jobid) for jobid in (1, 2, 3)] == [State.RUN, State.INACTIVE, State.SCHED]
    world.submit(4)
    assert world.why(4).reason == "no scheduler serves group default"
    with pytest.raises(RemoteProtocolError, match="hello first"):
        world.grant(3)

    hello, count, _ = world.scheduler("again")
    assert hello == [HelloResponse(1, 16, 1000, 102.0, "", r_of("0-3"), world.stored[1]["jobspec"])]
    assert count == 2
    assert world.sent() == [3, 4]


def test_hello_tells_what_was_freed_already(world, r_of):
    world.run(1, r_of("0-3"))
    world.do("finished", 1, 0)
    world.do("released", 1, ids("0-1"), False)
    world.do("scheduler_lost", "sched")
    world.do("released", 1, ids("2"), False)
    assert world.freed() == []  # nobody to tell: the next hello does
    (item,) = world.manager.allocation.hello("partial")
    assert item.free == "0-2"
    assert r_of("0-3") == item.R
    world.do("scheduler_lost", "partial")
    (item,) = world.manager.allocation.hello("whole", partial_ok=False)
    assert item.free == ""
    assert item.R["execution"]["R_lite"] == [{"rank": "3", "children": {"core": "0"}}]


def test_a_free_between_hello_and_ready_is_sent_after_ready(world, r_of):
    world.run(1, r_of("0"))
    world.do("scheduler_lost", "sched")
    world.manager.allocation.hello("again")
    world.submit(2)
    world.end(1)
    assert world.freed() == []
    _, effects = world.manager.allocation.ready("again", None, 500.0)
    assert [type(effect.message) for effect in effects] == [FreeRequest, AllocRequest]
    assert effects[0] == ToScheduler("again", FreeRequest(1, r_of("0"), True))


def test_losing_a_stranger_is_nothing(world):
    assert world.do("scheduler_lost", "stranger") == []


def test_hello_tells_only_of_its_groups(new_world, spec):
    world = new_world({name: QueueConfig(name, group=name) for name in "ab"}, default_queue="a")
    world.scheduler("one", ("a", "b"))
    world.run(1, scheduler="one", spec=spec(queue="a"))
    world.run(2, scheduler="one", spec=spec(queue="b"))
    world.do("scheduler_lost", "one")
    assert [item.id for item in world.manager.allocation.hello("two", ("b",))] == [2]
