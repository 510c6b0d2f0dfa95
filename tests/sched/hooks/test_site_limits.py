"""Limits of a site under every policy: what the holders of each have at once, and what a job that waits is told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import EACH, HOLDERS_MAX, Holders, SiteLimit
from fluxsched.sched.hooks import with_limits
from tests.generated.share import examples
from tests.sched.elastic.elastic_site import ElasticSite, jobspec, resources
from tests.sched.site import Bench, make_r, spec, started

from .conftest import faults, told

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
    text = "limit of each user: 2 + 1 running jobs exceed 2"
    assert told(found)[3] == text
    why = bench.scheduler.why(5, bench.now_s)
    assert why.reason == text
    name, _, _ = policy.partition(":")
    assert why.rule == f"a limit of the site holds it back; policy {name} tries it again as jobs end"
    assert why.when == "not known: once enough jobs that count for the limit have ended"
    bench.free(1)
    assert set(started(bench.run())) == {3}
    assert faults(found) == []


def test_far_below_the_limits_no_answer_is_asked_for_again():
    (limits,) = with_limits({}, [SiteLimit(user=EACH, running=4)])[""]
    bench = Bench("fifo", plugins={"": [limits]})
    bench.grow(make_r("0-3", 4))
    for jobid in range(1, 6):
        bench.submit(jobid, duration=100.0)
        before = limits.generation
        bench.run()
        assert (limits.generation > before) == (jobid == 4), "the fourth leaves no room for another"
    bench.free(1)
    assert limits.generation == 2, "now there is room for the fifth"
    assert set(started(bench.run())) == {5}


def test_limits_that_bound_nothing_that_runs_are_no_plugin():
    assert with_limits({}, [SiteLimit(user=EACH, waiting=5), SiteLimit(bank="a", minutes=3.0)]) == {}


def test_so_many_holders_are_known():
    assert HOLDERS_MAX == 65_536
    holders = Holders([SiteLimit(user=EACH), SiteLimit(user=7, bank="a")], known_max=3)
    for userid in (*range(9), *range(9)):
        key = (0, (str(userid),))
        assert holders.of(userid, "a", None) == ((key, (1, ("7", "a"))) if userid == 7 else (key,))
        assert holders.of(userid, "b", None) == (key,)
        assert len(holders._known) <= 3


def test_each_amount_is_counted_over_all_that_a_holder_has():
    limit = SiteLimit(queue=EACH, nodes=3, cores=6)
    bench = bench_under(SiteLimit(bank="default", nodes=3, cores=6), policy="firstfit")
    bench.submit(1, nodes=2, cores=2)
    bench.submit(2, nodes=2)
    bench.submit(3, cores=3)
    bench.submit(4, cores=2)
    found = bench.run()
    assert set(started(found)) == {1, 4}
    assert told(found)[2] == "limit of bank default: 2 + 2 nodes exceed 3"
    assert told(found)[3] == "limit of bank default: 4 + 3 cores exceed 6"
    assert limit.holder(0, None, None) is None, "a job in no queue has none to be limited by"


def test_what_is_allotted_beyond_the_request_counts():
    bench = bench_under(SiteLimit(bank=EACH, cores=6))
    bench.submit(1, nodes=1, exclusive=True)  # 4 cores, though it asks for one
    bench.submit(2, nodes=1, exclusive=True)
    bench.submit(3, nslots=2)
    found = bench.run()
    assert set(started(found)) == {1, 3}
    assert told(found)[2] == "limit of each bank: 4 + 4 cores exceed 6"


def test_a_job_that_ran_before_counts_whatever_it_exceeds():
    bench = bench_under(SiteLimit(bank=EACH, running=0))
    bench.did(bench.scheduler.hello(7, 16, 1000, 1.0, make_r("0", 4), jobspec=spec(), now_s=100.0))
    bench.submit(1)
    assert started(bench.run()) == {}
    assert "1 + 1 running jobs exceed 0" in bench.scheduler.why(1, bench.now_s).reason


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(80))
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


def elastic_site(*limits, policy="easy", ranks="0-7"):
    return ElasticSite(policy, ranks, plugins=with_limits({}, limits))


@pytest.mark.parametrize("policy", POLICIES)
def test_an_elastic_job_grows_as_far_as_its_limits_allow_and_counts_with_what_it_has(policy):
    site = elastic_site(SiteLimit(user=EACH, nodes=5, user_name=EACH), policy=policy)
    site.submit(1, jobspec("2-6"))
    site.run()
    assert site.sizes(1) == [5]
    site.submit(2, jobspec(1, elastic=False))
    site.submit(3, jobspec(1, elastic=False), userid=1001)
    site.run()
    assert site.sizes(3) == [1], "another user has a limit of their own"
    assert site.scheduler.why(2, site.now_s).reason.endswith("limit of each user: 5 + 1 nodes exceed 5")
    site.end(1)
    site.run()
    assert site.sizes(2) == [1]


def test_a_job_that_has_grown_or_shrunk_frees_exactly_what_it_had():
    site = elastic_site(SiteLimit(user=EACH, cores=16, nodes=4, user_name=EACH))
    for turn in range(3):
        first, second = 10 * turn + 1, 10 * turn + 2
        site.submit(first, jobspec("1-4"))
        site.run()
        assert site.sizes(first) == [4]
        site.did(site.scheduler.shrunk("default", Idset.parse("0"), True, site.now_s))
        site.run()
        site.gone()
        assert sum(site.sizes(first)) <= 4
        site.end(first)
        site.submit(second, jobspec(4, elastic=False))
        site.run()
        assert site.sizes(second) == [4]
        site.end(second)
        back = resources("0")
        site.did(site.scheduler.grown("default", back, back.ranks, Idset(), site.now_s))


def test_a_job_found_running_counts_with_what_it_has_and_may_grow_to_the_limit():
    site = elastic_site(SiteLimit(user=EACH, nodes=3, user_name=EACH))
    spec_of_it = jobspec("1-6")
    site.specs[7], site.held[7] = spec_of_it, resources("0-1")
    site.did(site.scheduler.hello(7, 16, 1000, 1.0, site.held[7], jobspec=spec_of_it, now_s=site.now_s))
    site.run()
    site.submit(8, jobspec(1, elastic=False))
    site.run()
    assert "limit of each user: 3 + 1 nodes exceed 3" in site.scheduler.why(8, site.now_s).reason
