"""Parts of a request by hops: each under the lowest switch with room, all within the bound."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.topology import Topology
from fluxsched.sched.pool import parts as near
from fluxsched.sched.pool import parts as near_ever
from fluxsched.sched.pool.parts import TRIES_MAX
from fluxsched.sched.pool.place import find_fit, place_now
from fluxsched.sched.pool.placement import BEST_FIT, Fits, Infeasible, Insufficient, Shape
from fluxsched.sched.pool.pool import Pool
from tests.sched.site import make_r

NETWORK = Topology.parse(
    [
        {"name": "l0", "hosts": "n[0-3]"},
        {"name": "l1", "hosts": "n[4-7]"},
        {"name": "l2", "hosts": "n8"},
        {"name": "s", "switches": "l[0-2]"},
    ]
)


def parts(*nodes, max_hops=None):
    each = [Request(Count.parse(n), exclusive=True, label=f"p{at}") for at, n in enumerate(nodes)]
    return Shape(Request.of_parts(each).bound(EVERYTHING, max_hops, False))


def pool_of(busy=""):
    pool = Pool()
    resources = make_r("0-8").with_topology(NETWORK)
    pool.add(resources, resources.ranks)
    for rank in Idset.parse(busy):
        fit = find_fit(pool, Shape(Request(Count.fixed(1), exclusive=True)), BEST_FIT, None, Idset(1 << rank))
        assert fit is not None
        assert pool.take(fit.blocks)
    return pool


def placed(pool, shape):
    outcome = place_now(pool, shape, BEST_FIT)
    assert isinstance(outcome, Fits), outcome
    return [str(ranks) for ranks in outcome.by_part]


def test_each_part_is_under_one_leaf():
    assert placed(pool_of(), parts(3, 4)) == ["4-6", "0-3"]
    assert placed(pool_of(busy="0"), parts(1, 4)) == ["1", "4-7"]
    assert placed(pool_of(busy="0,4"), parts(1, 3, 3)) == ["8", "1-3", "5-7"]


def test_all_parts_wait_for_their_bound():
    assert placed(pool_of(busy="0"), parts(1, 3, 4, max_hops=2)) == ["8", "1-3", "4-7"]
    outcome = place_now(pool_of(busy="0,4"), parts(1, 2, 4, max_hops=2), BEST_FIT)
    assert isinstance(outcome, Insufficient)
    assert outcome.why.endswith(
        "all parts fit, but not that near each other: of p1 at most 3 nodes are under one switch of 2 hops (l0 or l1); "
        "of p2 at most 3 nodes are under one switch of 2 hops (l0 or l1)"
    )
    never = place_now(pool_of(), parts(1, 5, max_hops=2), BEST_FIT)
    assert isinstance(never, Infeasible)
    assert "p1 needs 5 exclusive nodes" in never.why


def test_a_range_gets_what_is_within_the_bound():
    assert placed(pool_of(), parts("1-9", max_hops=2)) == ["0-3"]
    assert placed(pool_of(), parts("1-9", "1-9", max_hops=2)) == ["0-3", "4"]


def test_only_so_many_switches_are_tried(monkeypatch):
    assert TRIES_MAX == 256
    pool, shape = pool_of(busy="0"), parts(3, 3, max_hops=2)
    assert isinstance(place_now(pool, shape, BEST_FIT), Fits)
    monkeypatch.setattr(near, "TRIES_MAX", 1)
    assert placed(pool, parts(2, max_hops=2)) == ["1-2"]


def test_parts_that_can_never_all_be_near_are_denied(monkeypatch):
    assert near_ever.TRIES_MAX == 256
    pool, shape = pool_of(busy="0,4"), parts(3, 3, 2, max_hops=2)
    outcome = place_now(pool, shape, BEST_FIT)
    assert isinstance(outcome, Infeasible)
    assert outcome.why.endswith("; each part has room within the bound, but never all of them at one time")
    assert isinstance(place_now(pool, parts(1, 4, 2, 2, max_hops=2), BEST_FIT), Insufficient)
    monkeypatch.setattr(near_ever, "TRIES_MAX", 1)
    assert isinstance(place_now(pool, shape, BEST_FIT), Insufficient)


def can(free, sizes, max_hops):
    """Whether all parts find targets that near each other, by trying all."""
    if not sizes:
        return True
    for some in combinations(sorted(free), sizes[0]):
        hops = [NETWORK.hops(f"n{one}", f"n{other}") or 99 for one, other in combinations(some, 2)]
        if max(hops, default=0) <= max_hops and can(free - set(some), sizes[1:], max_hops):
            return True
    return False


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 8)), st.lists(st.integers(1, 4), min_size=2, max_size=3), st.sampled_from([2, 4]))
def test_a_bound_is_met_whenever_it_can_be(busy, sizes, max_hops):
    outcome = place_now(pool_of(str(Idset.of(busy))), parts(*sizes, max_hops=max_hops), BEST_FIT)
    assert isinstance(outcome, Fits) == can(set(range(9)) - busy, sizes, max_hops)
    assert isinstance(outcome, Infeasible) != can(set(range(9)), sizes, max_hops)
    if isinstance(outcome, Fits):
        taken = Idset()
        for ranks, size in zip(outcome.by_part, sizes, strict=True):
            assert len(ranks) == size
            assert ranks.isdisjoint(taken)
            taken |= ranks
            hosts = [f"n{rank}" for rank in ranks]
            assert all((NETWORK.hops(one, other) or 0) <= max_hops for one in hosts for other in hosts)
