"""Reservations and what moves them: drains, shrinks, other limits, other queues; what users are told of them."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidValue
from fluxsched.sched.decisions import Annotated, Granted, Paused
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.registry import load
from tests.sched.site import Bench, limit, make_r, scheduler_of, spec

CHUNKS_SKIPPED, NOTICE_EVERY_S = limit("CHUNKS_SKIPPED", "NOTICE_EVERY_S")

PLANNING = ["easy", "hybrid:depth=3", "conservative", "conservative:compress"]


def planned(scheduler):
    return {kept.jobid: kept.start_s for kept in scheduler.report.planned()}


def blocked(bench):
    """At 100 s jobs 1 and 2 run on two of four nodes each, until 150 and 200; job 3 needs three."""
    bench.grow("0-3")
    bench.submit(1, nodes=2, exclusive=True, duration=50.0)
    bench.submit(2, nodes=2, exclusive=True, duration=100.0)
    bench.submit(3, nodes=3, exclusive=True, duration=10.0)
    bench.run()


@pytest.mark.parametrize("policy", PLANNING)
def test_a_reservation_is_when_limits_end(policy):
    bench = Bench(policy)
    blocked(bench)
    assert planned(bench.scheduler) == {3: 200.0}


@pytest.mark.parametrize("policy", PLANNING)
def test_another_limit_moves_it(policy):
    bench = Bench(policy)
    blocked(bench)
    bench.did(bench.scheduler.expiration(2, 170.0))
    bench.run()
    assert planned(bench.scheduler) == {3: 170.0}
    bench.did(bench.scheduler.expiration(2, 300.0))  # a limit that does not hold breaks the promise
    bench.run()
    assert planned(bench.scheduler) == {3: 300.0}


@pytest.mark.parametrize("policy", ["conservative", "conservative:compress"])
def test_what_was_planned_by_its_place_counts_with_whole_nodes(policy):
    """While a job waits that shares nodes, places are planned; exclusive jobs of one core take four all the same."""
    bench = Bench(policy)
    bench.grow("0-1")
    bench.submit(1, nodes=2, exclusive=True, duration=50.0)
    bench.run()
    for jobid in (2, 3):
        bench.submit(jobid, nodes=1, exclusive=True, duration=100.0)
    bench.submit(4, nodes=1, duration=10.0)
    bench.run()
    bench.scheduler.cancel(4)
    bench.submit(5, nodes=1, exclusive=True, duration=10.0)
    bench.run()
    assert planned(bench.scheduler) == {2: 150.0, 3: 150.0, 5: 250.0}


@pytest.mark.parametrize("policy", PLANNING)
def test_a_drained_target_does_not_come_back_with_its_job(policy):
    bench = Bench(policy)
    bench.grow("0-3")
    bench.submit(1, nodes=2, exclusive=True, duration=50.0)
    bench.submit(2, nodes=2, exclusive=True, duration=100.0)
    bench.submit(3, nodes=2, exclusive=True, duration=10.0)
    bench.run()
    assert planned(bench.scheduler) == {3: 150.0}
    lost = bench.granted[1].ranks.first(1)
    bench.did(bench.scheduler.went_offline(lost))
    bench.run()
    assert planned(bench.scheduler) == {3: 200.0}
    bench.did(bench.scheduler.went_online(lost))
    bench.run()
    assert planned(bench.scheduler) == {3: 150.0}


def test_what_only_drained_targets_could_serve_has_no_estimate_and_blocks_no_job():
    bench = Bench("easy")
    bench.grow("0-3", offline="3")
    bench.submit(1, nodes=4, exclusive=True, duration=10.0)
    bench.submit(2, nodes=3, exclusive=True, duration=1000.0)
    bench.run()
    assert set(bench.granted) == {2}
    assert planned(bench.scheduler) == {1: float("inf")}


@pytest.mark.parametrize("policy", PLANNING)
def test_a_shrink_moves_it_or_sets_the_job_aside(policy):
    bench = Bench(policy)
    bench.grow("0-3")
    bench.submit(1, nodes=2, exclusive=True, duration=50.0)
    bench.submit(2, nodes=2, exclusive=True, duration=100.0)
    bench.submit(3, nodes=2, exclusive=True, duration=10.0)
    bench.submit(4, nodes=4, exclusive=True, duration=10.0)
    bench.run()
    assert planned(bench.scheduler)[3] == 150.0
    effects = bench.did(bench.scheduler.shrunk("default", bench.granted[1].ranks.first(1), typed=True))
    assert [effect.jobid for effect in effects if isinstance(effect, Annotated)] == [4]
    assert bench.scheduler.report.set_aside().keys() == {4}
    bench.run()
    assert planned(bench.scheduler) == {3: 200.0}


@pytest.mark.parametrize("policy", PLANNING)
def test_a_job_past_its_end_may_end_at_any_time(policy):
    bench = Bench(policy)
    blocked(bench)
    bench.now_s = 500.0
    bench.submit(4, nodes=1, exclusive=True, duration=1.0)
    bench.run()
    assert 500.0 < planned(bench.scheduler)[3] < 500.1
    assert 4 not in bench.granted


def test_owners_are_told_at_a_bounded_rate():
    bench = Bench("easy")
    bench.grow("0-3")
    bench.submit(1, nodes=4, exclusive=True, duration=100.0)
    bench.submit(2, nodes=4, exclusive=True, duration=10.0)
    told = [effect for effect in bench.run() if isinstance(effect, Annotated)]
    assert [effect.annotations["sched"]["t_estimate"] for effect in told] == [200.0]
    for end_s in (150.0, 160.0, 170.0):
        bench.now_s += 1.0
        bench.did(bench.scheduler.expiration(1, end_s))
        assert bench.run() == []
    bench.now_s += NOTICE_EVERY_S
    bench.did(bench.scheduler.expiration(1, 180.0))
    assert bench.run() == [Annotated(2, {"sched": {"t_estimate": 180.0}})]
    bench.now_s += NOTICE_EVERY_S
    bench.did(bench.scheduler.expiration(1, 180.4))
    assert bench.run() == []  # not worth a message
    bench.free(1)
    (granted,) = bench.run()
    notes = granted.annotations["sched"]
    assert (notes["selection_type"], notes["t_estimate"], notes["reason_pending"]) == ("reserved", None, None)


def test_what_cannot_be_promised_any_more_is_taken_back_at_once():
    bench = Bench("easy")
    bench.grow("0-3")
    bench.submit(1, nodes=4, exclusive=True, duration=100.0)
    bench.submit(2, nodes=4, exclusive=True, duration=10.0)
    bench.run()
    bench.now_s += 1.0
    bench.did(bench.scheduler.went_offline(Idset.parse("3")))
    (told,) = bench.run()
    assert told.annotations["sched"]["t_estimate"] is None
    assert "n3 is out of service" in told.annotations["sched"]["reason_pending"]
    bench.did(bench.scheduler.went_online(Idset.parse("3")))
    assert bench.run() == []  # a promise may wait


def test_who_overtakes_was_backfilled():
    bench = Bench("easy")
    bench.grow("0-3")
    bench.submit(1, nodes=3, exclusive=True, duration=100.0)
    bench.submit(2, nodes=4, exclusive=True, duration=10.0)
    bench.submit(3, nodes=1, exclusive=True, duration=101.0)
    bench.submit(4, nodes=1, exclusive=True, duration=100.0)
    selections = {effect.jobid: effect.selection for effect in bench.run() if isinstance(effect, Granted)}
    assert selections == {1: "immediate", 4: "backfilled"}


@pytest.mark.parametrize(("policy", "warned"), [("easy", True), ("conservative", True), ("fifo", False)])
def test_a_job_without_a_limit_is_warned_where_backfill_suffers(policy, warned):
    bench = Bench(policy)
    bench.grow("0")
    effects = bench.submit(1, spec())
    assert [set(effect.annotations["sched"]) for effect in effects] == ([{"warning"}] if warned else [])
    assert bench.submit(2, duration=5.0) == []


def test_the_end_of_the_resources_is_a_limit():
    bench = Bench("easy")
    bench.grow(make_r("0-1", expiration=400.0))
    assert bench.submit(1, nodes=1, exclusive=True) == []
    bench.submit(2, nodes=2, exclusive=True)
    bench.run()
    assert planned(bench.scheduler) == {2: 400.0}


@pytest.mark.slow
def test_a_pass_over_many_who_are_blocked_pauses():
    scheduler = scheduler_of("easy", notify=False)
    resources = make_r("0-3", 1)
    scheduler.grown("default", resources, resources.ranks, Idset())
    scheduler.alloc(0, 16, 1, 0.0, spec(nslots=3, duration=100.0))
    list(scheduler.schedule(0.0))
    wide, long = spec(nslots=4, duration=50.0), spec(nslots=1, duration=500.0)
    jobs = 3 * CHUNKS_SKIPPED * 512
    for jobid in range(1, jobs):
        scheduler.alloc(jobid, 16, 1, 0.0, wide if jobid % 2 else long)
    effects = list(scheduler.schedule(1.0))
    assert effects
    assert {type(effect) for effect in effects} == {Paused}


class PolicyQueues:
    """Two queues over one group: `debug` has a policy of its own."""

    def __init__(self, specs):
        policy, own, _ = load(specs)
        self.bench = Bench(policy, queues={"batch": "default", "debug": "default"})
        self.bench.scheduler = Scheduler(policy, ("default",), {"batch": "default", "debug": "default"}, own)
        self.bench.grow(make_r("0-3", debug="0-1"))


DEBUG = {"properties": ["debug"]}


@pytest.mark.parametrize("other", ["fifo", "firstfit", "easy", "conservative"])
def test_queues_of_one_group_keep_each_others_reservations(other):
    """The head of `batch` waits for all nodes; jobs of `debug` may use the idle ones until then, and no longer."""
    bench = PolicyQueues(f"easy;debug={other}").bench
    bench.submit(1, nodes=2, exclusive=True, duration=100.0, queue="batch", constraint={"not": [DEBUG]})
    bench.run()
    bench.submit(2, nodes=4, exclusive=True, duration=10.0, queue="batch")
    bench.run()
    bench.submit(3, nodes=1, exclusive=True, duration=100.0, queue="debug", constraint=DEBUG)
    bench.submit(4, nodes=1, exclusive=True, duration=101.0, queue="debug", constraint=DEBUG)
    bench.run()
    assert set(bench.granted) == {1, 3}
    assert planned(bench.scheduler)[2] == 200.0
    bench.now_s = 200.0
    bench.free(1)
    bench.free(3)
    bench.run()
    assert set(bench.granted) == {2}


def test_each_queue_has_its_own_order():
    bench = PolicyQueues("fifo;debug=firstfit:order=sjf").bench
    for jobid, limit_s in ((1, 50.0), (2, 20.0), (3, 30.0)):
        bench.submit(jobid, nodes=1, exclusive=True, duration=limit_s, queue="debug", constraint=DEBUG)
    bench.run()
    assert set(bench.granted) == {2, 3}


def test_a_policy_of_a_queue_is_named_with_it():
    policy, own, _ = load("conservative:compress;debug=fifo;gpu=easy:order=sjf")
    made = [policy, *own.values()]
    assert [one.name for one in made] == ["conservative", "fifo", "easy"]
    assert list(own) == ["debug", "gpu"]
    for bad in ("easy;fifo", "easy;=fifo", "easy;debug=fifo;debug=easy", "easy;debug="):
        with pytest.raises(InvalidValue):
            load(bad)
    with pytest.raises(InvalidValue, match=r"^queue 'debug': policy 'fifo': no option 'order'"):
        load("easy;debug=fifo:order=sjf")
