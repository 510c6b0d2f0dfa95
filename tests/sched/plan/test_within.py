"""The earliest start within a bound on hops, against the sweep through time that tries each instant."""

from dataclasses import replace
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.topology import Topology
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, WORST_FIT, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import Waiting
from tests.sched.plan.running_at_random import some_running
from tests.sched.site import make_r, request_of

NOW_S = 10.0

wishes = st.one_of(
    st.fixed_dictionaries({"slots": st.integers(1, 8), "cores": st.integers(1, 3)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 4), "cores": st.integers(1, 4)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 4), "exclusive": st.just(True)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 3), "constraint": st.just({"properties": ["ssd"]})}),
)
ends = st.sampled_from([0.0, 5.0, 11.0, 12.0, 15.0, 20.0])
limits = st.sampled_from([0.0, 1.0, 3.0, 8.0])
bounds = st.sampled_from([None, 2, 2, 4])
NETWORK = Topology.parse(
    [
        {"name": "l0", "hosts": "n[0-2]"},
        {"name": "l1", "hosts": "n[3-5]"},
        {"name": "l2", "hosts": "n[6-7]"},
        {"name": "s", "switches": "l[0-1]"},
    ]
)  # n8 is under none


def largest_hops(fit):
    hosts = [f"n{part.rank}" for part in fit.parts]
    hops = [NETWORK.hops(one, other) for one in hosts for other in hosts]
    return max(inf if each is None else each for each in hops)


@settings(max_examples=30, deadline=None)
@given(
    running=st.lists(st.tuples(wishes, ends, st.sampled_from([BEST_FIT, WORST_FIT])), max_size=14),
    waiting=st.lists(st.lists(st.tuples(wishes, limits, bounds), min_size=1, max_size=5), min_size=1, max_size=3),
    data=st.data(),
)
def test_it_tells_what_trying_would(running, waiting, data):
    pool = Pool()
    resources = make_r("0-8", 4, ssd="1-6").with_topology(NETWORK)
    pool.add(resources, resources.ranks)
    ledger, index = some_running(pool, request_of, running)
    for turn, wanted in enumerate(waiting):
        plan = PoolPlan(pool, index, NOW_S, data.draw(st.sampled_from([inf, 40.0])))
        for at, (wish, limit_s, bound) in enumerate(wanted):
            shape = Shape(replace(request_of(**wish), max_hops=bound))
            job = Waiting(1000 + 10 * turn + at, 16, 1, 0.0, shape, limit_s)
            tried = plan._sweep(job, NOW_S, inf)
            made = plan.reserve(job)
            assert made.start_s == tried.start_s
            assert bound is None or made.fit is None or largest_hops(made.fit) <= bound
        down = Idset.of(data.draw(st.sets(st.integers(0, 8), max_size=2)))
        pool.set_down(down)
        index.changed(down)
        for jobid in data.draw(st.sets(st.integers(0, 13), max_size=4)):
            if jobid in ledger:
                ledger.release_all(jobid)
                index.freed(jobid)


def test_a_bounded_head_waits_for_the_leaf_that_is_free_first():
    """Four nodes are free at 12, but three under one leaf only at 15."""
    pool = Pool()
    resources = make_r("0-8").with_topology(NETWORK)
    pool.add(resources, resources.ranks)
    ledger = Ledger([pool])
    index = RunningJobs(pool, ledger)
    whole = Shape(request_of(nodes=1, exclusive=True))
    for rank, end_s in enumerate((12.0, 12.0, 90.0, 15.0, 12.0, 12.0, 11.0, 11.0, 11.0)):
        fit = find_fit(pool, whole, BEST_FIT, None, Idset(1 << rank))
        assert fit is not None
        ledger.adopt(rank, fit.blocks, end_s)
    head = Waiting(100, 16, 1, 0.0, Shape(replace(request_of(nodes=3, exclusive=True), max_hops=2)), 60.0)
    plan = PoolPlan(pool, index, NOW_S, inf)
    made = plan.reserve(head)
    assert made.start_s == 15.0
    assert made.fit is not None
    assert {part.rank for part in made.fit.parts} == {3, 4, 5}
    assert index.need(head.shape) == 0
