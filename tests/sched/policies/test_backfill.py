"""What backfill promises, on generated workloads: nodes of cores and GPUs, constraints, limits that hold."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.generated.share import examples
from tests.sched.site import Bench, limit, make_r, simulate, spec

ORDERS = limit("ORDERS")

SSD = {"properties": ["ssd"]}
TIMES = st.integers(0, 60).map(float)
LIMITS = st.integers(1, 40).map(float)
SHAPES = st.one_of(
    st.fixed_dictionaries({"nslots": st.integers(1, 6), "cores": st.integers(1, 2)}),
    st.fixed_dictionaries({"cores": st.integers(1, 4), "gpus": st.integers(0, 2)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 3), "cores": st.integers(1, 4)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 2), "exclusive": st.just(True)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 2), "constraint": st.just({"properties": ["ssd"]})}),
    st.fixed_dictionaries({"cores": st.integers(1, 3), "constraint": st.just({"properties": ["^ssd"]})}),
    st.fixed_dictionaries({"parts": st.sampled_from([((1, None), ("1-2", SSD)), ((1, SSD), (1, SSD), ("1-2", None))])}),
)
MIXED = st.lists(st.tuples(TIMES, LIMITS, LIMITS, SHAPES), min_size=2, max_size=25)
QUEUES = st.sampled_from(["batch", "debug", "far"])
MOVES = st.tuples(QUEUES, st.integers(1, 3), LIMITS, st.integers(0, 2), st.booleans())
COUNTED = st.lists(
    st.tuples(TIMES, LIMITS, LIMITS, st.fixed_dictionaries({"nslots": st.integers(1, 6)})), min_size=2, max_size=25
)
WHOLE_SHAPES = st.one_of(
    st.fixed_dictionaries({"parts": st.sampled_from([((1, None), (2, None)), ((3, None), (3, None))])}),
    st.fixed_dictionaries({"nodes": st.integers(1, 4), "exclusive": st.just(True)}),
)
WHOLE = st.lists(st.tuples(TIMES, LIMITS, LIMITS, WHOLE_SHAPES), min_size=2, max_size=20)


def workload(drawn):
    """(submit, run, spec): nobody runs longer than its limit."""
    return [(at, min(run, limit), spec(duration=limit, **shape)) for at, run, limit, shape in sorted(drawn, key=repr)]


@pytest.fixture(scope="session")
def nodes():
    """Four nodes of four cores and two GPUs, two of them with ssd."""
    return make_r("0-3", cores=4, gpus=2, ssd="0-1")


@given(MIXED, st.sampled_from(["easy", *(f"easy:order={order}" for order in ORDERS)]))
@settings(max_examples=examples(120))
def test_the_head_never_starts_later_than_its_first_estimate(nodes, drawn, policy):
    study = simulate(policy, nodes, workload(drawn))
    assert len(study.starts) == len(drawn)  # nobody starves
    for jobid, estimates in study.estimates.items():
        first_s = estimates[0][1]
        assert first_s < inf
        assert study.starts[jobid] <= first_s
        assert all(later <= before for (_, before), (_, later) in pairwise(estimates))


SSD = {"cores": 2, "constraint": {"properties": ["^ssd"]}}
ELSEWHERE = [
    (0.0, 22.0, 15.0, SSD), (16.0, 27.0, 29.0, SSD), (20.0, 22.0, 22.0, {"nodes": 2, "exclusive": True}),
    (0.0, 16.0, 5.0, {"nodes": 1, "cores": 1}), (0.0, 16.0, 39.0, {"exclusive": True, "nodes": 1}),
    (19.0, 19.0, 23.0, {"nslots": 1, "cores": 2}), (21.0, 30.0, 4.0, {"nslots": 6, "cores": 2}),
    (21.0, 2.0, 25.0, {"nslots": 1, "cores": 2}), (21.0, 3.0, 3.0, {"nslots": 3, "cores": 2}),
    (38.0, 4.0, 3.0, {"nslots": 1, "cores": 2}), (42.0, 6.0, 3.0, {"cores": 1, "gpus": 1}),
]  # fmt: skip
"""A job starts where another was to, which gets another place for the same time: that place is its promise then."""


SEATED = [
    (0.0, 1.0, 1.0, {"nodes": 1, "exclusive": True}), (0.0, 1.0, 1.0, {"nslots": 1, "cores": 1}),
    (12.0, 22.0, 22.0, {"nodes": 2, "constraint": {"properties": ["ssd"]}}),
    (18.0, 7.0, 8.0, {"nodes": 1, "exclusive": True}), (29.0, 2.0, 1.0, {"nodes": 1, "exclusive": True}),
    (30.0, 1.0, 1.0, {"nodes": 2, "constraint": {"properties": ["ssd"]}}), (0.0, 1.0, 1.0, {"nslots": 1, "cores": 1}),
    (0.0, 1.0, 1.0, {"nslots": 1, "cores": 1}), (18.0, 3.0, 2.0, {"nslots": 6, "cores": 2}),
    (18.0, 23.0, 26.0, {"nslots": 5, "cores": 1}), (29.0, 14.0, 14.0, {"nslots": 3, "cores": 1}),
    (41.0, 1.0, 4.0, {"nodes": 2, "cores": 1}),
]  # fmt: skip
"""The last but one reservation was moved to the place of the last, while a seat was looked for that one."""


@given(MIXED, st.sampled_from(["conservative:compress", "conservative:compress,order=sjf"]))
@example(drawn=ELSEWHERE, policy="conservative:compress,order=sjf")
@example(drawn=SEATED, policy="conservative:compress")
@settings(max_examples=examples(100))
def test_no_job_starts_later_than_promised_with_compress(nodes, drawn, policy):
    study = simulate(policy, nodes, workload(drawn))
    assert len(study.starts) == len(drawn)
    for jobid, estimates in study.estimates.items():
        promised = [start_s for _, start_s in estimates]
        assert promised == sorted(promised, reverse=True)  # it only moves to an earlier time
        assert study.starts[jobid] <= promised[-1] < inf


@given(MIXED)
@settings(max_examples=examples(40))
def test_a_promise_may_break_without_compress(nodes, drawn):
    """The plan made anew keeps the order only; all start all the same, and each has an estimate while it waits."""
    study = simulate("conservative", nodes, workload(drawn))
    assert len(study.starts) == len(drawn)
    assert all(start_s < inf for estimates in study.estimates.values() for _, start_s in estimates)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [("hybrid:depth=0", "firstfit"), ("hybrid:depth=1", "easy"), ("hybrid:depth=all", "conservative"),
     ("hybrid:depth=1,order=sjf", "easy:order=sjf"), ("hybrid:depth=0,order=saf", "firstfit:order=saf")],
)  # fmt: skip
@given(drawn=MIXED)
@settings(max_examples=examples(40))
def test_hybrid_is_what_it_says(nodes, one, other, drawn):
    jobs = workload(drawn)
    assert simulate(one, nodes, jobs).starts == simulate(other, nodes, jobs).starts


POLICIES = [
    "fifo", "firstfit", "firstfit:order=saf", "easy", "easy:order=sjf", "hybrid:depth=2", "hybrid:depth=all",
    "conservative", "conservative:compress", "conservative:order=sjf",
]  # fmt: skip


@given(MIXED | COUNTED, st.sampled_from(POLICIES))
@settings(max_examples=examples(150))
def test_examining_only_what_may_have_changed_changes_nothing(nodes, drawn, policy):
    jobs = workload(drawn)
    quick, whole = simulate(policy, nodes, jobs), simulate(policy, nodes, jobs, fresh=True)
    assert quick.starts == whole.starts
    if "order" not in policy:
        assert quick.selections == whole.selections
    if policy.startswith("conservative"):
        assert quick.estimates == whole.estimates


def simulate_by_place(policy, resources, jobs):
    """With a target of another size, which is down all the time, so that nothing is counted."""
    other = make_r("8", 3, 1)
    first_s = min(at for at, _, _ in jobs)
    down = {first_s: lambda scheduler: scheduler.went_offline(other.ranks)}
    return simulate(policy, resources | other, jobs, meanwhile=down)


@pytest.mark.parametrize("machine", ["one target a core", "one target"])
@pytest.mark.parametrize("policy", ["easy", "easy:order=sjf"])
@given(drawn=COUNTED)
@settings(max_examples=examples(25))
def test_counting_says_what_the_pool_says(policy, machine, drawn):
    """With one reservation; several have their places on the pool, which counting does not fix before they start."""
    resources = make_r("0-5", 1) if machine == "one target a core" else make_r("0", 6)
    jobs = workload(drawn)
    assert simulate_by_place(policy, resources, jobs).starts == simulate(policy, resources, jobs).starts


@given(drawn=WHOLE)
@settings(max_examples=examples(20))
def test_counting_says_what_the_pool_says_of_parts(drawn):
    jobs, resources = workload(drawn), make_r("0-5")
    assert simulate_by_place("easy", resources, jobs).starts == simulate("easy", resources, jobs).starts


@pytest.mark.parametrize("is_plain", [True, False])
def test_no_job_of_another_queue_delays_a_first_job_on_nodes_that_both_may_use(is_plain):
    bench = Bench("easy")
    bench.grow(make_r("0-1", cores=1))
    kind = {} if is_plain else {"constraint": {"ranks": ["0-1"]}}
    bench.submit(1, queue="batch", duration=100.0, nodes=1, **kind)
    bench.submit(2, queue="batch", duration=100.0, nodes=2, **kind)  # starts at 100 s
    bench.submit(3, queue="debug", duration=200.0, nodes=1, **kind)
    bench.submit(4, queue="debug", duration=50.0, nodes=1, **kind)
    bench.run()
    assert bench.granted.keys() == {1, 4}


@pytest.mark.parametrize("policy", ["easy", "fair"])
@pytest.mark.parametrize("is_plain", [True, False])
def test_each_queue_keeps_its_first_job_where_queues_share_a_group(is_plain, policy):
    """`batch` has ranks 0-1, `debug` the others: a stream of small jobs overtakes no first job of its own queue."""
    bench = Bench(policy)
    bench.grow(make_r("0-3", cores=1))

    def submit(jobid, queue, nodes, limit_s, ranks):
        constraint = {"ranks": [ranks]}
        kind = {"nodes": nodes, "exclusive": True} if is_plain else {"nodes": nodes}
        bench.submit(jobid, queue=queue, duration=limit_s, constraint=constraint, **kind)

    submit(1, "batch", 2, 1000.0, "0-1")
    submit(2, "debug", 1, 10.0, "2")
    submit(3, "debug", 1, 20.0, "3")
    bench.run()
    submit(4, "batch", 2, 100.0, "0-1")
    submit(5, "batch", 1, 100.0, "0-1")
    bench.run()
    submit(6, "debug", 2, 100.0, "2-3")  # the first of its queue, behind all others
    effects = bench.run()
    assert [made.start_s for made in bench.scheduler.report.planned() if made.jobid == 6] == [120.0]
    if policy == "easy":  # `fair` annotates later
        estimates = [each.annotations["sched"].get("t_estimate") for each in effects if each.jobid == 6]
        assert estimates == [120.0]
    for jobid in range(7, 12):
        submit(jobid, "debug", 1, 60.0, "2-3")
        bench.run()
    assert sorted(made.jobid for made in bench.scheduler.report.planned()) == [4, 6]
    if policy == "easy":
        assert "first in line" in bench.scheduler.why(6, bench.now_s).rule
        assert "1 ahead of it" in bench.scheduler.why(5, bench.now_s).rule
        assert "2 ahead of it" in bench.scheduler.why(8, bench.now_s).rule
    for now_s, ended in ((110.0, 2), (120.0, 3)):
        bench.now_s = now_s
        bench.free(ended)
        bench.run()
    assert set(bench.granted) == {1, 6}
    assert bench.scheduler.cancel(4)
    bench.run()
    assert 5 not in bench.granted  # ranks 0-1 are busy: it is the first of its queue now
    assert 5 in [made.jobid for made in bench.scheduler.report.planned()]
    if policy == "easy":
        assert "first in line" in bench.scheduler.why(5, bench.now_s).rule


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(MOVES, min_size=3, max_size=30))
def test_with_one_account_fair_keeps_the_heads_of_easy(jobs):
    """`debug` and `batch` share some nodes, `far` has its own; jobs come, end, and are moved in their queues."""
    nodes = {"batch": "0-3", "debug": "2-5", "far": "6-7"}
    plain, fair = Bench("easy"), Bench("fair")
    for bench in (plain, fair):
        bench.grow(make_r("0-7", cores=1))
    for jobid, (queue, count, limit_s, ended, is_urgent) in enumerate(jobs, 1):
        kind = {"nodes": min(count, 2) if queue == "far" else count, "exclusive": True, "duration": 10 * limit_s}
        kind |= {"queue": queue, "constraint": {"ranks": [nodes[queue]]}}
        for bench in (plain, fair):
            bench.submit(jobid, priority=17 if is_urgent else 16, **kind)
            bench.run()
            bench.now_s += 5.0
            for done in sorted(bench.granted)[:ended]:
                bench.free(done)
            bench.run()
        assert fair.granted.keys() == plain.granted.keys()
        starts = [{made.jobid: made.start_s for made in bench.scheduler.report.planned()} for bench in (plain, fair)]
        assert starts[0] == starts[1]


def test_one_queue_or_none_has_one_head():
    bench = Bench("easy")
    bench.grow(make_r("0-3", cores=1))
    for jobid, (nodes, queue) in enumerate(((3, None), (2, "only"), (3, "only"), (1, "only")), 1):
        bench.submit(jobid, nodes=nodes, exclusive=True, duration=10.0 * jobid, queue=queue)
        if jobid == 1:
            bench.run()
    bench.run()
    assert [made.jobid for made in bench.scheduler.report.planned()] == [2]
