"""What the owner of a waiting job was not told at once, since he had just heard of it, is told when it is due."""

from math import inf, nextafter
from random import Random

import pytest

from fluxsched.core.idset import Idset
from fluxsched.sched.decisions import PAUSED, Annotated
from tests.sched.site import Bench, limit, make_r, scheduler_of, spec

ESTIMATE_STEP_S, NOTICE_EVERY_S = limit("ESTIMATE_STEP_S", "NOTICE_EVERY_S")


def kept_back(bench):
    """At 100 s job 2 was told that it starts at 200 s; since 101 s it is to start at 150 s, and was not told yet."""
    bench.grow("0-3")
    bench.submit(1, nodes=4, exclusive=True, duration=100.0)
    bench.submit(2, nodes=4, exclusive=True, duration=10.0)
    bench.run()
    assert bench.scheduler.next_notice_s == inf
    bench.now_s += 1.0
    bench.did(bench.scheduler.expiration(1, 150.0))
    assert bench.run() == []
    assert bench.scheduler.next_notice_s == 100.0 + NOTICE_EVERY_S


def test_what_was_kept_back_is_told_when_it_is_due_though_nothing_happens():
    bench = Bench("easy")
    kept_back(bench)
    for end_s in (160.0, 170.0):
        bench.now_s += 1.0
        bench.did(bench.scheduler.expiration(1, end_s))
        assert bench.run() == []
    passes = bench.scheduler.report.stats()["passes"]
    bench.now_s = nextafter(bench.scheduler.next_notice_s, 0.0)
    assert bench.run() == []
    bench.now_s = bench.scheduler.next_notice_s
    assert bench.run() == [Annotated(2, {"sched": {"t_estimate": 170.0}})]
    assert bench.run() == []
    assert bench.scheduler.next_notice_s == inf
    assert bench.scheduler.report.stats()["passes"] == passes, "no policy was asked for it"


def test_what_is_as_it_was_when_it_is_due_is_not_told_again():
    bench = Bench("easy")
    kept_back(bench)
    bench.did(bench.scheduler.expiration(1, 200.0))
    assert bench.run() == []
    bench.now_s += NOTICE_EVERY_S
    assert bench.run() == [PAUSED]  # to find out may have taken its time
    assert bench.scheduler.next_notice_s == inf


LEFT = {
    "started": lambda bench: bench.free(1),
    "canceled": lambda bench: bench.scheduler.cancel(2),
    "held": lambda bench: bench.scheduler.prioritize([(2, 0)]),
    "denied": lambda bench: bench.scheduler.shrunk("default", Idset.parse("3"), typed=True),
}


@pytest.mark.parametrize("left", LEFT)
def test_who_does_not_wait_any_more_is_told_nothing(left):
    bench = Bench("easy")
    kept_back(bench)
    LEFT[left](bench)
    assert not any(isinstance(effect, Annotated) for effect in bench.run())
    bench.now_s = bench.scheduler.next_notice_s
    assert bench.run() == []
    assert bench.scheduler.next_notice_s == inf


def test_who_comes_again_is_told_in_his_own_time():
    bench = Bench("easy")
    kept_back(bench)
    bench.scheduler.cancel(2)
    bench.now_s += 1.0
    bench.submit(2, nodes=4, exclusive=True, duration=10.0)
    (told,) = bench.run()
    assert told.annotations["sched"]["t_estimate"] == 150.0
    bench.did(bench.scheduler.expiration(1, 160.0))
    assert bench.run() == []
    bench.now_s = bench.scheduler.next_notice_s
    assert bench.run() == [PAUSED]  # that was to be told to who was here before
    assert bench.scheduler.next_notice_s == bench.now_s + 2.0
    bench.now_s += 2.0
    assert bench.run() == [Annotated(2, {"sched": {"t_estimate": 160.0}})]


def test_a_pass_that_was_dropped_leaves_what_is_due_for_later():
    bench = Bench("easy")
    kept_back(bench)
    bench.now_s += NOTICE_EVERY_S
    bench.did(bench.scheduler.cancel(2))
    for jobid in (3, 4):
        bench.submit(jobid, nodes=4, exclusive=True, duration=10.0)
    effects = bench.scheduler.schedule(bench.now_s)
    next(effects)
    effects.close()
    assert bench.scheduler.next_notice_s < bench.now_s
    bench.run()
    assert bench.scheduler.next_notice_s > bench.now_s


@pytest.mark.parametrize("policy", ["easy", "hybrid:depth=3", "conservative"])
def test_ten_seconds_after_the_last_event_all_reasons_are_current(policy):
    """Whatever came and went: what owners have heard is what is planned, and nothing is left in the heap."""
    bench, known = Bench(policy), {}
    bench.grow("0-3")
    draw = Random(28)
    for jobid in range(1, 60):
        bench.now_s += draw.random()
        bench.submit(jobid, nodes=draw.randint(1, 4), exclusive=True, duration=draw.uniform(5.0, 90.0))
        if bench.granted and draw.random() < 0.5:
            bench.free(draw.choice(list(bench.granted)))
        if draw.random() < 0.2:
            bench.did(bench.scheduler.cancel(draw.randint(1, jobid)))
        for effect in bench.run():
            _hear(known, effect)
    bench.now_s += NOTICE_EVERY_S
    for effect in bench.run():
        _hear(known, effect)
    assert bench.scheduler.next_notice_s == inf
    estimates = {kept.jobid: kept.start_s for kept in bench.scheduler.report.planned()}
    assert estimates
    for jobid, start_s in estimates.items():
        assert known[jobid] == pytest.approx(start_s, abs=ESTIMATE_STEP_S)


def _hear(known, effect):
    sched = effect.annotations["sched"] if isinstance(effect, Annotated) else {}
    if "t_estimate" in sched:
        known[effect.jobid] = sched["t_estimate"]


def test_without_annotations_none_are_kept_back():
    scheduler = scheduler_of("easy", notify=False)
    resources = make_r("0-3")
    scheduler.grown("default", resources, resources.ranks, Idset())
    for jobid in (1, 2):
        scheduler.alloc(jobid, 16, 1000, float(jobid), spec(nodes=4, exclusive=True, duration=100.0))
    for end_s in (150.0, 160.0):
        assert not any(isinstance(effect, Annotated) for effect in scheduler.schedule(100.0))
        scheduler.expiration(1, end_s)
    assert scheduler.next_notice_s == inf
