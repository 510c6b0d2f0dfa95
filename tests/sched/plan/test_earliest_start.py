"""The earliest start, found target by target, against the sweep through time that tries each instant."""

from dataclasses import replace
from itertools import combinations
from math import inf, nextafter

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan import earliest as earliest_start
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, WORST_FIT, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import Waiting
from tests.generated.share import examples
from tests.sched.plan.running_at_random import some_running
from tests.sched.site import make_r, request_of

NOW_S = 10.0

wishes = st.one_of(
    st.fixed_dictionaries({"slots": st.integers(1, 6), "cores": st.integers(1, 3), "gpus": st.integers(0, 1)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 4), "cores": st.integers(1, 4), "gpus": st.integers(0, 1)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 3), "exclusive": st.just(True)}),
    st.fixed_dictionaries({"nodes": st.integers(1, 2), "constraint": st.just({"properties": ["ssd"]})}),
)
ends = st.sampled_from([0.0, 5.0, 11.0, 12.0, 15.0, 20.0])
"""No end, overdue, or later."""
placements = st.sampled_from([BEST_FIT, WORST_FIT])
limits = st.sampled_from([0.0, 1.0, 3.0, 8.0])


@settings(max_examples=examples(150))
@given(
    running=st.lists(st.tuples(wishes, ends, placements), max_size=12),
    waiting=st.lists(st.lists(st.tuples(wishes, limits), min_size=1, max_size=6), min_size=1, max_size=3),
    data=st.data(),
)
def test_it_tells_what_trying_would(running, waiting, data):
    pool = Pool()
    resources = make_r("0-5", 4, 1, ssd="1-2")
    pool.add(resources, resources.ranks)
    ledger, index = some_running(pool, request_of, running)
    for turn, wanted in enumerate(waiting):
        plan = PoolPlan(pool, index, NOW_S, data.draw(st.sampled_from([inf, 40.0])))
        for at, (wish, limit_s) in enumerate(wanted):
            job = Waiting(1000 + 10 * turn + at, 16, 1, 0.0, Shape(request_of(**wish)), limit_s)
            tried = plan._sweep(job, NOW_S, inf)
            assert plan.reserve(job).start_s == tried.start_s
        down = Idset.of(data.draw(st.sets(st.integers(0, 5), max_size=2)))
        pool.set_down(down)
        index.changed(down)
        for jobid in data.draw(st.sets(st.integers(0, 11), max_size=4)):
            if jobid in ledger:
                ledger.release_all(jobid)
                index.freed(jobid)


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
    pool = Pool()
    resources = make_r("0-5", 4, 1, ssd="1-2")
    pool.add(resources, resources.ranks - Idset.of(down))
    ledger, index = some_running(pool, request_of, running)
    plan = PoolPlan(pool, index, NOW_S, inf)
    kept = []
    for jobid, (asked, limit_s) in enumerate(waiting, 1000):
        several = [request_of(nodes=nodes, exclusive=True, constraint=what) for nodes, what in asked]
        request = Request.of_parts([replace(part, elastic=elastic) for part in several])
        job = Waiting(jobid, 16, 1, 0.0, Shape(replace(request, elastic=elastic)), limit_s)
        made = plan.reserve(job)
        assert made.start_s == plain_start(pool, ledger, kept, asked, limit_s or inf)
        if made.fit is not None:
            mine = {part.rank for part in made.fit.parts}
            meanwhile = [their for start_s, end_s, their in kept if start_s < made.end_s and made.start_s < end_s]
            assert not mine & set().union(*meanwhile)
            kept.append((made.start_s, made.end_s, mine))
            assert [len(ranks) for ranks in made.fit.by_part] == [c.min for c, _ in asked] or not elastic


def test_who_would_run_into_a_reservation_is_seen_where_its_start_is_a_coarser_float_than_the_last_good_moment():
    pool = Pool()
    resources = make_r("0-2", 1, 0, ssd="0,2")
    pool.add(resources, resources.ranks)
    ledger = Ledger([pool])
    index = RunningJobs(pool, ledger)
    index.follow()
    for jobid, rank, end_s in ((1, 1, 13.0), (2, 2, 20.0)):
        fit = find_fit(pool, Shape(request_of(nodes=1, constraint={"ranks": [str(rank)]})), BEST_FIT)
        assert fit is not None
        ledger.adopt(jobid, fit.blocks, end_s)
        index.began(ledger.get(jobid))
    plan = PoolPlan(pool, index, NOW_S, inf)
    both = request_of(nodes=2, constraint={"properties": ["ssd"]})
    assert plan.reserve(Waiting(3, 16, 1, 0.0, Shape(both), 5.0)).start_s == 20.0
    assert plan.reserve(Waiting(4, 16, 1, 0.0, Shape(request_of(nodes=2)), 8.0)).start_s == 25.0


def test_no_more_gains_than_the_limit_are_remembered(monkeypatch):
    assert earliest_start.GAINS_MAX > 2
    monkeypatch.setattr(earliest_start, "GAINS_MAX", 2)
    pool, resources = Pool(), make_r("0-2", 4)
    pool.add(resources, resources.ranks)
    ledger = Ledger([pool])
    index = RunningJobs(pool, ledger)
    index.follow()
    fit = find_fit(pool, Shape(request_of(nodes=3, cores=4)), BEST_FIT)
    assert fit is not None
    ledger.adopt(1, fit.blocks, 20.0)
    index.began(ledger.get(1))
    plan = PoolPlan(pool, index, NOW_S, inf)
    for cores in range(1, 5):
        job = Waiting(1 + cores, 16, 1, 0.0, Shape(request_of(cores=cores)), 5.0)
        assert plan.reserve(job).start_s >= 20.0
        assert len(index.busy_targets._by_shape) <= 2
