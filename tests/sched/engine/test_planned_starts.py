"""When and where jobs will start: reservations as promises, else a forecast, also while a pass makes them anew."""

from math import inf

import pytest

from fluxsched.protocol.messages.instance import SchedReasonsRequest
from fluxsched.scheduler.session import reasons_of
from tests.sched.site import Bench, limit, spec

FORECASTS_MAX, FORECAST_KEPT_S, KEPT_S, PLANNED_JOBS_MAX = limit(
    "FORECASTS_MAX", "FORECAST_KEPT_S", "KEPT_S", "PLANNED_JOBS_MAX"
)


@pytest.fixture
def four():
    """At 100 s job 1 runs on two of four nodes until 200; jobs 2 (4 nodes) and 3 (1 node, for long) wait."""

    def build(policy, limit_s=100.0, **options):
        bench = Bench(policy, **options)
        bench.grow("0-3")
        bench.submit(1, nodes=2, cores=4, duration=limit_s)
        bench.run()
        bench.submit(2, nodes=4, cores=4, duration=50.0)
        bench.submit(3, nodes=1, cores=4, duration=1000.0)
        bench.run()
        return bench

    return build


def plan(bench, group="default"):
    return bench.scheduler.report.plan(bench.scheduler.group(group), bench.now_s)


def starts(bench):
    return {one.jobid: (one.start_s, one.end_s, one.is_promised) for one in plan(bench)}


@pytest.mark.parametrize(
    ("policy", "planned"),
    [
        ("conservative", {2: (200.0, 250.0, True), 3: (250.0, 1250.0, True)}),
        ("easy", {2: (200.0, 250.0, True)}),
        ("hybrid:depth=2", {2: (200.0, 250.0, True), 3: (250.0, 1250.0, True)}),
        ("fair:backfill=easy", {2: (200.0, 250.0, True)}),
        ("fifo", {2: (200.0, 250.0, False), 3: (200.0, 1200.0, False)}),
        ("hybrid:depth=0", {2: (1100.0, 1150.0, False)}),
    ],
)
def test_what_each_policy_plans(four, policy, planned):
    assert starts(four(policy)) == planned


def test_where_and_how_much(four):
    bench = four("conservative")
    first, second = plan(bench)
    assert (first.nnodes, first.ncores, str(first.ranks) if first.ranks else None) == (4, 16, None)
    bench.submit(4, nodes=1, cores=1, duration=10.0, constraint={"ranks": ["3"]})
    bench.run()
    bench.now_s += KEPT_S
    found = {one.jobid: one for one in plan(bench)}
    assert (str(found[2].ranks), found[2].nnodes, found[2].ncores) == ("0-3", 4, 16)
    assert second.jobid == 3


def test_no_limit_no_forecast(four):
    assert starts(four("fifo", limit_s=0.0)) == {}
    assert starts(four("easy", limit_s=0.0)) == {}


def test_a_forecast_job_without_a_limit_has_no_end(four):
    bench = four("fifo")
    bench.submit(9, nodes=4, cores=4, priority=31)
    bench.run()
    assert starts(bench)[9] == (200.0, inf, False)


def test_an_answer_with_forecasts_serves_for_longer(four):
    bench = four("fifo")
    assert starts(bench)[2] == (200.0, 250.0, False)
    bench.scheduler.expiration(1, 150.0)
    bench.now_s += KEPT_S
    assert starts(bench)[2][0] == 200.0
    bench.now_s += FORECAST_KEPT_S
    assert starts(bench)[2][0] == 150.0


def test_an_answer_serves_all_who_ask_for_a_while(four):
    bench = four("conservative")
    assert plan(bench)
    bench.submit(5, nodes=4, cores=4, duration=1.0)
    bench.run()
    bench.scheduler.cancel(2)
    assert [one.jobid for one in plan(bench)] == [3], "those that have gone are not shown"
    bench.now_s += KEPT_S
    bench.run()
    assert {one.jobid for one in plan(bench)} == {5}
    bench.now_s -= 1000.0
    assert {one.jobid for one in plan(bench)} == {5}, "a clock that steps back is no reason to keep an answer for long"


def test_within_a_pass_what_it_has_not_come_to_stands_as_before(four):
    bench = four("conservative:order=sjf")
    before = starts(bench)
    bench.submit(6, nodes=4, cores=4, duration=5.0)
    bench.now_s += KEPT_S
    passing = bench.scheduler.schedule(bench.now_s)
    next(passing)
    during = starts(bench)
    passing.close()
    assert before.keys() <= during.keys()
    assert during[2][2] is True


def test_an_answer_has_limits(four, lower):
    assert (PLANNED_JOBS_MAX, FORECASTS_MAX) == (1000, 8)
    lower(PLANNED_JOBS_MAX=1)
    assert list(starts(four("conservative"))) == [2], "the first in time"
    lower(PLANNED_JOBS_MAX=2)
    lower(FORECASTS_MAX=1)
    assert list(starts(four("fifo"))) == [2]
    lower(FORECASTS_MAX=2)
    assert list(starts(four("fifo"))) == [2, 3]
    lower(WALKED_PARTS_MAX=0)
    assert list(starts(four("fifo"))) == [2], "one is made in any case"


def test_a_group_that_is_not_served(four):
    with pytest.raises(Exception, match="group 'lab' was not acquired"):
        plan(four("fifo"), "lab")


def test_before_the_first_grow_nothing_is_planned():
    bench = Bench("conservative")
    bench.submit(1, spec())
    assert plan(bench) == []


def test_reasons_of_many_share_what_is_forecast(four, lower):
    bench = four("easy")
    for jobid in (7, 8):
        bench.submit(jobid, nodes=3, cores=4, duration=10.0)
    bench.run()

    def asked():
        wanted = SchedReasonsRequest([1, 2, 3, 7, 8, 99])
        return {jobid: tuple(rest) for jobid, *rest in reasons_of(bench.scheduler, wanted, bench.now_s).jobs}

    found = asked()
    assert found.keys() == {2, 3, 7, 8}, "job 1 runs, and job 99 is not known"
    for jobid, (reason, earliest_s, _) in found.items():
        alone = bench.scheduler.why(jobid, bench.now_s)
        assert (reason, earliest_s) == (alone.reason, alone.earliest_s)
    assert [jobid for jobid in found if found[jobid][2]] == [2]
    lower(WALKED_PARTS_MAX=0)
    assert [jobid for jobid, (_, earliest_s, _) in asked().items() if earliest_s is None] != []
    assert asked()[2] == found[2], "what is planned needs no forecast"


def test_jobs_on_many_targets_make_forecasts_dear(four, lower):
    lower(WALKED_PARTS_MAX=6)  # job 1 runs on two targets: forecasts for three jobs are made
    bench = four("fifo")
    for jobid in (4, 5):
        bench.submit(jobid, nodes=4, cores=4, duration=10.0)
    bench.run()
    assert len(starts(bench)) == 3
