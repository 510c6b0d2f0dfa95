"""Limits of a site under every policy: what the holders of each have at once, and what a job that waits is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.limits import EACH, SiteLimit
from fluxsched.sched.hooks.limits import with_limits
from tests.sched.site import Bench, make_r, spec

from .conftest import faults, started, told

POLICIES = ("fifo", "firstfit", "easy", "conservative", "hybrid", "fair:backfill=easy")
TWO_EACH = SiteLimit(user=EACH, running=2, user_name=EACH)


def bench_under(*limits, policy="firstfit", ranks="0-3", plugins=()):
    bench = Bench(policy, plugins=with_limits({"": list(plugins)}, limits))
    bench.grow(make_r(ranks, 4))
    return bench


@pytest.mark.parametrize("policy", POLICIES)
def test_a_user_has_so_many_running_jobs_and_is_told(policy):
    bench = bench_under(TWO_EACH, policy=policy)
    for jobid in range(1, 6):
        bench.submit(jobid, duration=100.0)
    found = bench.run()
    assert set(started(found)) == {1, 2}
    text = "plugin 'limits': limit of each user: 2 + 1 running jobs exceed 2"
    assert told(found)[3] == text
    assert bench.scheduler.why(5, bench.now_s).reason == text
    bench.free(1)
    assert set(started(bench.run())) == {3}
    assert faults(found) == []


def test_each_amount_is_counted_over_all_that_a_holder_has():
    limit = SiteLimit(queue=EACH, nodes=3, cores=6)
    bench = bench_under(SiteLimit(bank="default", nodes=3, cores=6), policy="firstfit")
    bench.submit(1, nodes=2, cores=2)
    bench.submit(2, nodes=2)
    bench.submit(3, cores=3)
    bench.submit(4, cores=2)
    found = bench.run()
    assert set(started(found)) == {1, 4}
    assert told(found)[2] == "plugin 'limits': limit of bank default: 2 + 2 nodes exceed 3"
    assert told(found)[3] == "plugin 'limits': limit of bank default: 4 + 3 cores exceed 6"
    assert limit.holder(0, None, None) is None, "a job in no queue has none to be limited by"


def test_what_is_allotted_beyond_the_request_counts():
    bench = bench_under(SiteLimit(bank=EACH, cores=6))
    bench.submit(1, nodes=1, exclusive=True)  # 4 cores, though it asks for one
    bench.submit(2, nodes=1, exclusive=True)
    bench.submit(3, nslots=2)
    found = bench.run()
    assert set(started(found)) == {1, 3}
    assert told(found)[2] == "plugin 'limits': limit of each bank: 4 + 4 cores exceed 6"


def test_a_job_that_ran_before_counts_whatever_it_exceeds():
    bench = bench_under(SiteLimit(bank=EACH, running=0))
    bench.did(bench.scheduler.hello(7, 16, 1000, 1.0, make_r("0", 4), jobspec=spec(), now_s=100.0))
    bench.submit(1)
    assert started(bench.run()) == {}
    assert "1 + 1 running jobs exceed 0" in bench.scheduler.why(1, bench.now_s).reason


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_no_holder_ever_has_more(data):
    policy = data.draw(st.sampled_from(POLICIES))
    most, cores_most = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 12))
    bench = bench_under(SiteLimit(bank=EACH, running=most), SiteLimit(bank="a", cores=cores_most), policy=policy)
    running: dict[int, tuple[str, int]] = {}
    jobs: dict[int, tuple[str, int]] = {}
    for jobid in range(1, 25):
        bank, cores = data.draw(st.sampled_from("ab")), data.draw(st.integers(1, 2))
        jobs[jobid] = (bank, cores)
        bench.submit(jobid, cores=cores, bank=bank, duration=10.0)
        if running and data.draw(st.booleans()):
            ended = data.draw(st.sampled_from(sorted(running)))
            bench.free(ended)
            del running[ended], jobs[ended]
        running |= {each: jobs[each] for each in started(bench.run())}
        for name in "ab":
            assert sum(of == name for of, _ in running.values()) <= most
        assert sum(cores for of, cores in running.values() if of == "a") <= cores_most
    while running:
        for ended in list(running):
            bench.free(ended)
            del running[ended], jobs[ended]
        running |= {each: jobs[each] for each in started(bench.run())}
    assert not jobs, "all have had their turn"
