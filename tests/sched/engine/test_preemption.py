"""`Preempt` and `Wake`: what is granted and what is refused, whichever policy asks; and what is going in plans."""

from dataclasses import replace
from math import inf, nan

import pytest

from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import PREEMPT, Granted, Raise
from fluxsched.sched.fair.accounts import RATE_WINDOW_S, FairSettings
from fluxsched.sched.policy import Preempt, Wake
from tests.sched.site import Bench, Scripted, limit, make_r, size_of, spec


@pytest.fixture
def policy():
    return Scripted()


@pytest.fixture
def full(policy):
    """Jobs 1 and 2 hold the two targets, 1 preemptible after 10 s, 2 never; 3 waits for one of them."""
    bench = Bench(policy)
    bench.grow("0-1")
    bench.submit(1, spec(nodes=1, exclusive=True, preemptible_after=10))
    bench.submit(2, nodes=1, exclusive=True)
    bench.run()
    bench.submit(3, nodes=1, exclusive=True, duration=60)
    bench.run()
    return bench


def preempt(bench, policy, *jobids, beneficiary=3):
    policy.wanted = [Preempt(jobid, beneficiary, "account a uses 2 of its share 1") for jobid in jobids]
    bench.scheduler.updated("default", 0.0)  # all is examined
    return [effect for effect in bench.run() if isinstance(effect, Raise)]


def test_a_granted_one_raises_an_exception_that_says_for_whom(full, policy):
    full.now_s += 10
    (raised,) = preempt(full, policy, 1)
    assert (raised.jobid, raised.type) == (1, PREEMPT)
    assert raised.note == "preempted so that job ƒ4 can start: account a uses 2 of its share 1"
    assert full.scheduler.report.stats()["preempted"] == 1
    assert full.scheduler.report.stats()["refused"] == 0


@pytest.mark.parametrize(
    ("jobid", "after_s", "why"), [(1, 9.999, "too young"), (2, 1e9, "never"), (3, 10, "waits"), (99, 10, "not here")]
)
def test_what_is_refused(full, policy, jobid, after_s, why):
    full.now_s += after_s
    assert preempt(full, policy, jobid) == [], why
    assert full.scheduler.report.stats()["refused"] == 1
    assert not policy.seen[-1][1]


def test_one_that_is_going_or_ends_anyway_is_refused(full, policy):
    full.now_s += 10
    assert len(preempt(full, policy, 1, 1)) == 1
    assert full.scheduler.report.stats()["refused"] == 1
    full.now_s += 100
    assert preempt(full, policy, 1) == []


def test_one_on_a_shrunk_target_is_refused(full, policy):
    full.now_s += 10
    ranks = full.granted[1].ranks
    full.did(full.scheduler.shrunk("default", ranks, True))
    assert preempt(full, policy, 1) == []
    assert full.scheduler.report.stats()["refused"] == 1


def test_one_on_which_no_exception_was_raised_is_not_going_and_is_not_asked_again(full, policy):
    full.now_s += 10
    preempt(full, policy, 1)
    full.run()
    full.scheduler.preempt_failed(1)
    full.scheduler.preempt_failed(99)
    assert preempt(full, policy, 1) == []
    assert policy.seen[-1][1] == {}
    assert [kept.start_s for kept in full.scheduler.report.planned()] == [inf], "it has no end any more"
    full.free(1)
    assert [effect.jobid for effect in full.run() if isinstance(effect, Granted)] == [3]
    full.scheduler.check()


def test_one_that_began_in_the_future_began_when_it_was_found_running(policy):
    bench = Bench(policy)
    bench.grow("0")
    later = replace(make_r("0"), starttime_s=bench.now_s + 3600)
    bench.scheduler.hello(1, 16, 1, 1.0, later, jobspec=spec(cores=4, preemptible_after=10), now_s=bench.now_s)
    bench.submit(3, cores=4, duration=60)
    bench.run()
    assert preempt(bench, policy, 1) == []
    bench.now_s += 10
    assert [effect.jobid for effect in preempt(bench, policy, 1)] == [1]


def test_for_a_job_that_does_not_wait_none_is_preempted(full, policy):
    full.now_s += 10
    assert preempt(full, policy, 1, beneficiary=2) == preempt(full, policy, 1, beneficiary=77) == []


def test_what_is_going_holds_all_until_it_is_freed_and_plans_take_it_to_end_in_time(full, policy):
    assert [kept.start_s for kept in full.scheduler.report.planned()] == [inf], "jobs 1 and 2 have no limit"
    full.now_s += 10
    preempt(full, policy, 1)
    assert [effect.annotations for effect in full.run()] == [{"sched": {"t_estimate": full.now_s + 5.0}}]
    (kept,) = full.scheduler.report.planned()
    assert (kept.jobid, kept.start_s) == (3, full.now_s + 5.0)
    assert policy.seen[-1][1] == {1: 3}
    full.free(1)
    assert [effect.jobid for effect in full.run() if isinstance(effect, Granted)] == [3]
    assert policy.seen[-1][1] == {}


def test_an_end_of_its_own_that_comes_sooner_stays():
    policy = Scripted()
    bench = Bench(policy, preempt_timeout_s=30.0)
    bench.grow("0")
    bench.submit(1, spec(cores=4, duration=20, preemptible_after=0))
    bench.run()
    bench.submit(3, cores=4, duration=60)
    bench.now_s += 1
    preempt(bench, policy, 1)
    bench.run()
    assert [kept.start_s for kept in bench.scheduler.report.planned()] == [120.0]
    bench.scheduler.expiration(1, 500.0)
    bench.run()
    assert [kept.start_s for kept in bench.scheduler.report.planned()] == [131.0], "it is killed by then"


def test_if_the_beneficiary_leaves_its_victims_are_going_all_the_same(full, policy):
    full.now_s += 10
    preempt(full, policy, 1)
    full.did(full.scheduler.cancel(3))
    assert full.scheduler.report.stats()["preempted"] == 1
    full.free(1)
    full.submit(4)
    full.run()
    assert policy.seen[-1][1] == {}


def test_a_job_found_running_may_be_preempted_by_what_its_jobspec_says():
    """Unless it is said that it is going already."""
    policy = Scripted()
    bench = Bench(policy)
    machine = make_r("0")
    bench.grow(machine)
    held = ResourceSet.parse({**machine.to_json(), "execution": {**machine.to_json()["execution"], "starttime": 90.0}})
    bench.granted[1] = held
    bench.did(bench.scheduler.hello(1, 16, 1000, 1.0, held, jobspec=spec(cores=4, preemptible_after=20), now_s=100.0))
    bench.submit(3, cores=4)
    assert preempt(bench, policy, 1) == []
    bench.now_s = 110.0
    assert [raised.jobid for raised in preempt(bench, policy, 1)] == [1]


def test_a_job_that_is_found_going_is_going():
    policy = Scripted()
    bench = Bench(policy, fair=FairSettings(rate=2))
    machine = make_r("0")
    bench.grow(machine)
    bench.granted[1] = machine
    jobspec = spec(cores=4, preemptible_after=0)
    bench.did(bench.scheduler.hello(1, 16, 1000, 1.0, machine, jobspec=jobspec, now_s=100.0, preempted_s=98.0))
    bench.submit(3, cores=4)
    assert preempt(bench, policy, 1) == []
    now_s, going, left = policy.seen[-1]
    assert (going, left) == ({1: 0}, 1), "it counts for the rate as well"
    assert bench.scheduler.why(3, now_s).earliest_s == 103.0, "5 s after it was preempted"
    bench.free(1)
    bench.run()
    assert policy.seen[-1][1] == {}
    assert 3 in bench.granted


# ---- the rate


def test_the_rate_holds_in_any_window():
    policy = Scripted()
    bench = Bench(policy, fair=FairSettings(rate=2))
    bench.grow(make_r("0", cores=8))
    for jobid in range(1, 9):
        bench.submit(jobid, spec(preemptible_after=0))
    bench.run()
    bench.submit(9, cores=8)
    assert len(preempt(bench, policy, 1, 2, 3, beneficiary=9)) == 2
    assert bench.scheduler.report.stats()["refused"] == 1
    bench.now_s += RATE_WINDOW_S - 0.001
    assert preempt(bench, policy, 3, beneficiary=9) == []
    bench.now_s += 0.001
    assert len(preempt(bench, policy, 3, 4, 5, beneficiary=9)) == 2
    assert [left for _, _, left in policy.seen[-3:]] == [2, 0, 2]
    bench.now_s -= 50
    preempt(bench, policy, 5, beneficiary=9)
    bench.now_s += RATE_WINDOW_S
    assert len(preempt(bench, policy, 5, beneficiary=9)) == 1, "a clock that steps back does not stop it for long"


def test_at_rate_0_none_is_preempted():
    policy = Scripted()
    bench = Bench(policy, fair=FairSettings(rate=0))
    bench.grow("0")
    bench.submit(1, spec(cores=4, preemptible_after=0))
    bench.run()
    bench.submit(3, cores=4)
    assert preempt(bench, policy, 1) == []


# ---- searches


def test_a_long_search_in_vain_rests_for_the_time_that_it_is_worth(full, policy):
    searches = policy.preemptions
    searches.searched_in_vain(7, limit("REST_FROM"), 100.0)
    assert searches.rests_until_s(7, 100.0) == 100.0, "a short one is made again in each pass"
    searches.searched_in_vain(7, 10_000, 100.0)
    assert searches.rests_until_s(7, 100.0) == 101.0
    assert searches.rests_until_s(8, 100.0) == 100.0, "another job"
    assert searches.rests_until_s(7, 101.0) == 101.0
    before_s = 101.0 - limit("REST_MAX_S") - 1
    assert searches.rests_until_s(7, before_s) == before_s, "the clock stepped back"


@pytest.mark.plain_only("looks into objects")
def test_what_begins_and_ends_unseen_leaves_nothing_behind():
    bench = Bench("easy")
    bench.grow("0")
    sizes = []
    for jobid in range(1, 20):
        bench.submit(jobid, spec(cores=4, preemptible_after=0))
        bench.run()
        bench.free(jobid)
        sizes.append(size_of(bench.scheduler))
    assert max(sizes[10:]) <= max(sizes[:10])


# ---- waking


def test_a_pass_comes_when_it_was_asked_for(full, policy):
    policy.wanted = [Wake(105.0), Wake(104.0), Wake(106.0)]
    full.scheduler.updated("default", 0.0)
    full.run()
    assert full.scheduler.next_notice_s == 104.0
    passes = len(policy.seen)
    full.now_s = 103.0
    full.run()
    assert len(policy.seen) == passes, "nothing has happened"
    full.now_s = 104.0
    full.run()
    assert len(policy.seen) == passes + 1
    assert full.scheduler.next_notice_s > 106.0, "the pass asks again for what it needs"


@pytest.mark.parametrize("at_s", [100.0, 99.0, -inf, nan])
def test_a_time_that_has_come_is_refused_since_passes_would_never_end(full, policy, at_s):
    policy.wanted = [Wake(at_s)]
    full.scheduler.updated("default", 0.0)
    full.run()
    assert full.scheduler.next_notice_s > 100.0
    assert full.scheduler.report.stats()["refused"] == 1
