"""The earliest start, found target by target, against the sweep through time that tries each instant."""

from dataclasses import replace
from itertools import combinations
from math import inf, nextafter

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.topology import Topology
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.pool_plan import PoolPlan
from fluxsched.sched.plan.running_jobs import RunningJobs
from fluxsched.sched.pool.find_fit import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, WORST_FIT, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import PendingJob
from tests.generated.share import examples
from tests.sched.site import make_r, request_of

NOW_S = 10.0
NETWORK = Topology.parse(
    [{"name": "l0", "hosts": "n[0-2]"}, {"name": "l1", "hosts": "n[3-5]"}, {"name": "l2", "hosts": "n[6-7]"},
     {"name": "s", "switches": "l[0-1]"}]
)  # fmt: skip
"""Target 8 is under no switch."""

wishes = st.one_of(
    st.fixed_dictionaries({"slots": st.integers(1, 8), "cores": st.integers(1, 3), "gpus": st.integers(0, 1)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 4), "cores": st.integers(1, 4), "gpus": st.integers(0, 1)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 4), "exclusive": st.just(True)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 3), "constraint": st.just({"properties": ["ssd"]})}),
)
ends = st.sampled_from([0.0, 5.0, 11.0, 12.0, 15.0, 20.0])
"""No end, overdue, or later."""
placements = st.sampled_from([BEST_FIT, WORST_FIT])
limits = st.sampled_from([0.0, 1.0, 3.0, 8.0])


class Running:
    """Jobs that run on a pool when a plan is made."""

    def __init__(self, resources, up=None):
        self.pool = Pool()
        self.pool.add(resources, resources.ranks if up is None else up)
        self.ledger = Ledger([self.pool])
        self.index = RunningJobs(self.pool, self.ledger)
        self.index.follow()

    def start(self, jobid, request, end_s, placement=BEST_FIT, among=None):
        """If it fits."""
        fit = find_fit(self.pool, Shape(request), placement, None, among)
        if fit is not None:
            self.ledger.adopt(jobid, fit.blocks, end_s)
            self.index.began(self.ledger.allocations[jobid])

    def start_all(self, wanted):
        for jobid, (wish, end_s, placement) in enumerate(wanted):
            self.start(jobid, request_of(**wish), end_s, placement)

    def plan(self, until_s=inf):
        return PoolPlan(self.pool, self.index, NOW_S, until_s)


def waiting_job(jobid, request, limit_s):
    return PendingJob(jobid, 16, 1, 0.0, Shape(request), limit_s)


def largest_hops(fit):
    hosts = [f"n{part.rank}" for part in fit.parts]
    hops = [NETWORK.hops(one, other) for one in hosts for other in hosts]
    return max(inf if each is None else each for each in hops)


@settings(max_examples=examples(180), deadline=None)
@given(
    network=st.booleans(),
    running=st.lists(st.tuples(wishes, ends, placements), max_size=14),
    waiting=st.lists(
        st.lists(st.tuples(wishes, limits, st.sampled_from([None, 2, 2, 4])), min_size=1, max_size=6),
        min_size=1, max_size=3,
    ),
    data=st.data(),
)  # fmt: skip
def test_it_tells_what_trying_would(network, running, waiting, data):
    resources = make_r("0-8", 4, ssd="1-6").with_topology(NETWORK) if network else make_r("0-5", 4, 1, ssd="1-2")
    site = Running(resources)
    site.start_all(running)
    for turn, wanted in enumerate(waiting):
        plan = site.plan(data.draw(st.sampled_from([inf, 40.0])))
        for at, (wish, limit_s, bound) in enumerate(wanted):
            bound = bound if network else None
            job = waiting_job(1000 + 10 * turn + at, replace(request_of(**wish), max_hops=bound), limit_s)
            tried = plan._sweep(job, NOW_S, inf)
            made = plan.reserve(job)
            assert made.start_s == tried.start_s
            assert bound is None or made.fit is None or largest_hops(made.fit) <= bound
        down = Idset.of(data.draw(st.sets(st.integers(0, 5), max_size=2)))
        site.pool.set_down(down)
        site.index.changed(down)
        for jobid in data.draw(st.sets(st.integers(0, 13), max_size=4)):
            if jobid in site.ledger:
                site.ledger.release_all(jobid)
                site.index.freed(jobid)


COUNTS = st.sampled_from(["1", "2", "1-2", "2-4"]).map(Count.parse)
WHERE = st.sampled_from([{}, {"properties": ["ssd"]}, {"ranks": ["0,2-4"]}])
PARTS = st.lists(st.tuples(COUNTS, WHERE), min_size=2, max_size=3)


def plain_start(pool, ledger, kept, asked, limit_s):
    """The earliest instant at which each part has as many targets as it needs, by trying all choices of targets."""
    soon_s = nextafter(NOW_S, inf)
    free_s = dict.fromkeys([rank for rank in pool.ranks if pool.is_up(rank)], NOW_S)
    for holding in ledger:
        for rank in holding.parts:
            if rank in free_s:
                free_s[rank] = max(free_s[rank], holding.end_s, soon_s)
    names = {"ssd": {1, 2}}

    def suits(constraint, rank):
        if "properties" in constraint:
            return rank in names["ssd"]
        return rank in (0, 2, 3, 4) if constraint else True

    for start_s in sorted({NOW_S, *free_s.values(), *[end_s for _, end_s, _ in kept]}):
        taken = set().union(*[mine for begin_s, end_s, mine in kept if begin_s < start_s + limit_s and end_s > start_s])
        free = {rank for rank, when_s in free_s.items() if when_s <= start_s} - taken
        if start_s < inf and _fits_all([(c.min, {r for r in free if suits(what, r)}) for c, what in asked]):
            return start_s
    return inf


def _fits_all(asked):
    if not asked:
        return True
    (n, suited), *others = asked
    some = combinations(sorted(suited), n)
    return any(_fits_all([(m, mine - set(chosen)) for m, mine in others]) for chosen in some)


@settings(max_examples=examples(40))
@given(
    running=st.lists(st.tuples(wishes, ends, placements), max_size=8),
    waiting=st.lists(st.tuples(PARTS, limits), min_size=1, max_size=4),
    down=st.sets(st.integers(0, 5), max_size=2),
    elastic=st.booleans(),
)
def test_jobs_of_parts_start_as_soon_as_any_choice_of_targets_allows(running, waiting, down, elastic):
    resources = make_r("0-5", 4, 1, ssd="1-2")
    site = Running(resources, resources.ranks - Idset.of(down))
    site.start_all(running)
    plan = site.plan()
    kept = []
    for jobid, (asked, limit_s) in enumerate(waiting, 1000):
        several = [request_of(nodes=nodes, exclusive=True, constraint=what) for nodes, what in asked]
        request = Request.of_parts([replace(part, elastic=elastic) for part in several])
        job = waiting_job(jobid, replace(request, elastic=elastic), limit_s)
        made = plan.reserve(job)
        assert made.start_s == plain_start(site.pool, site.ledger, kept, asked, limit_s or inf)
        if made.fit is not None:
            mine = {part.rank for part in made.fit.parts}
            meanwhile = [their for start_s, end_s, their in kept if start_s < made.end_s and made.start_s < end_s]
            assert not mine & set().union(*meanwhile)
            kept.append((made.start_s, made.end_s, mine))
            assert [len(ranks) for ranks in made.fit.by_part] == [c.min for c, _ in asked] or not elastic


def test_who_would_run_into_a_reservation_is_seen_where_its_start_is_a_coarser_float_than_the_last_good_moment():
    site = Running(make_r("0-2", 1, 0, ssd="0,2"))
    for jobid, rank, end_s in ((1, 1, 13.0), (2, 2, 20.0)):
        site.start(jobid, request_of(nodes=1), end_s, among=Idset(1 << rank))
    plan = site.plan()
    both = request_of(nodes=2, constraint={"properties": ["ssd"]})
    assert plan.reserve(waiting_job(3, both, 5.0)).start_s == 20.0
    assert plan.reserve(waiting_job(4, request_of(nodes=2), 8.0)).start_s == 25.0


def test_a_bounded_head_waits_for_the_leaf_that_is_free_first():
    """Four nodes are free at 12, but three under one leaf only at 15."""
    site = Running(make_r("0-8").with_topology(NETWORK))
    for rank, end_s in enumerate((12.0, 12.0, 90.0, 15.0, 12.0, 12.0, 11.0, 11.0, 11.0)):
        site.start(rank, request_of(nodes=1, exclusive=True), end_s, among=Idset(1 << rank))
    made = site.plan().reserve(waiting_job(100, replace(request_of(nodes=3, exclusive=True), max_hops=2), 60.0))
    assert made.start_s == 15.0
    assert {part.rank for part in made.fit.parts} == {3, 4, 5}
