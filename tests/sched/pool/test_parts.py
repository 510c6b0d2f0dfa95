"""Requests of several parts: placed when all their minima fit at once, near each other if they want; by brute force."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from tests.sched.site import Later, Never, Places, limit, lowered, make_r

PLACEMENTS = ("worst-fit", "best-fit", "least-lost")


def part(label, nodes, ranks="", cores=1, gpus=0, elastic=True):
    only = Constraint.parse({"ranks": [ranks]}) if ranks else EVERYTHING
    return Request(
        Count.parse(nodes), cores=cores, gpus=gpus, exclusive=True, constraint=only, label=label, elastic=elastic
    )


def parts(*several):
    request = Request.of_parts(several)
    return request.bound(EVERYTHING, None, True) if several[0].elastic else request


def placed(fit):
    assert not isinstance(fit, str), fit
    return [str(ranks) for ranks in fit.by_part]


TEAM = parts(part("coordinator", 1), part("workers", "4-10"))


# ---- the numbers of the specification


def test_a_coordinator_and_its_workers():
    places = Places(make_r("0-6", gpus=1))
    fit = places.take(TEAM, "worst-fit")
    assert placed(fit) == ["0", "1-6"]
    assert (fit.nslots, [p.rank for p in fit.parts], fit.parts[0].gpus) == (7, list(range(7)), 1)
    places = Places(make_r("0-6", gpus=1))
    places.occupy("0-6")
    assert places.find(TEAM, "worst-fit") == Later(
        f"needs {TEAM}; coordinator and workers need 5 nodes; none is free, 7 nodes are busy"
    )


def test_gangs_over_a_group_that_is_too_small_are_never_placed():
    """Groups of 8 and of 1: the smaller is never used, not even for a part."""
    assert placed(Places(make_r("0-7")).find(TEAM, "worst-fit")) == ["0", "1-7"]
    why = f"needs {TEAM}; coordinator and workers need 5 nodes, the group has only 1 node for any of them"
    assert Places(make_r("8")).find(TEAM) == Never(why)


def test_what_two_parts_share_counts_for_both():
    wanted = parts(part("a", 2, "0-2"), part("b", "2-9", "1-3"), part("c", 1))
    places = Places(make_r("0-4"), offline="4")
    assert places.find(wanted) == Later(
        f"needs {wanted}; a, b and c need 5 nodes; 4 nodes fit now, n4 is out of service"
    )
    places.up("4")
    assert placed(places.find(wanted, "worst-fit")) == ["0-1", "2-3", "4"]
    places.bench.shrink("3")
    why = f"needs {wanted}; a and b need 4 nodes, the group has only 3 nodes for any of them"
    assert places.find(wanted) == Never(why)


def test_what_no_part_finds_large_enough():
    wanted = parts(part("a", "1-2"), part("b", 1, gpus=2))
    why = f"needs {wanted}; b needs 1 node, the group has no node for it"
    assert Places(make_r("0-3", gpus=1)).find(wanted) == Never(why)


def test_the_first_part_gets_its_extras_first_and_what_few_can_use_is_taken_first():
    places = Places(make_r("0-5"))
    assert placed(places.find(parts(part("a", "1-5:2"), part("b", "1-9")), "worst-fit")) == ["0-4", "5"]
    fixed = parts(part("a", "1-3", elastic=False), part("b", "1-9", elastic=False))
    assert placed(places.find(fixed, "worst-fit")) == ["0-2", "3-5"]
    rare = parts(part("a", "1-2", elastic=False), part("b", 1, "0-1", elastic=False))
    assert placed(places.find(rare, "worst-fit")) == ["2-3", "0"]


def test_the_order_is_that_of_the_placement():
    places = Places(make_r("0-1", cores=8), make_r("2-3", cores=4))
    wanted = parts(part("a", 1, elastic=False), part("b", 1, elastic=False))
    assert placed(places.find(wanted, "worst-fit")) == ["0", "1"]
    assert placed(places.find(wanted, "best-fit")) == ["2", "3"]


def test_licences_are_the_jobs():
    wanted = Request.of_parts((part("a", "1-2"), part("b", 1)), (("matlab", 2),))
    assert isinstance(Places(make_r("0-3")).find(wanted), Never)
    r = make_r("0-3").to_json()
    places = Places(ResourceSet.parse({**r, "execution": {**r["execution"], "shared": {"matlab": 2}}}))
    assert places.take(wanted).blocks[-1].amounts == (("matlab", 2),)
    assert "only 0 matlab" in places.find(Request(shared=(("matlab", 1),)))


# ---- near each other

NETWORK = Topology.parse(
    [{"name": "l0", "hosts": "n[0-3]"}, {"name": "l1", "hosts": "n[4-7]"}, {"name": "l2", "hosts": "n8"},
     {"name": "s", "switches": "l[0-2]"}]
)  # fmt: skip


def near(*nodes, max_hops=None):
    each = [Request(Count.parse(n), exclusive=True, label=f"p{at}") for at, n in enumerate(nodes)]
    return Request.of_parts(each).bound(EVERYTHING, max_hops, False)


def network(busy=""):
    places = Places(make_r("0-8").with_topology(NETWORK))
    places.occupy(busy)
    return places


def test_each_part_is_under_one_leaf_and_within_the_bound():
    for busy, wanted, ranks in (
        ("", near(3, 4), ["4-6", "0-3"]), ("0", near(1, 4), ["1", "4-7"]), ("0,4", near(1, 3, 3), ["8", "1-3", "5-7"]),
        ("0", near(1, 3, 4, max_hops=2), ["8", "1-3", "4-7"]), ("", near("1-9", max_hops=2), ["0-3"]),
        ("", near("1-9", "1-9", max_hops=2), ["0-3", "4"]),
    ):  # fmt: skip
        assert placed(network(busy).find(wanted)) == ranks


def test_all_parts_wait_for_their_bound():
    short = "at most 3 nodes are under one switch of 2 hops (l0 or l1)"
    why = network("0,4").find(near(1, 2, 4, max_hops=2))
    assert why.endswith(f"all parts fit, but not that near each other: of p1 {short}; of p2 {short}")
    never = network().find(near(1, 5, max_hops=2))
    assert isinstance(never, Never)
    assert "p1 needs 5 exclusive nodes" in never


def test_only_so_many_switches_are_tried():
    assert limit("TRIES_MAX") == 256
    places, both, never = network("0"), near(3, 3, max_hops=2), near(3, 3, 2, max_hops=2)
    assert not isinstance(places.find(both), str)
    assert isinstance(places.find(never), Never)
    assert places.find(never).endswith("; each part has room within the bound, but never all of them at one time")
    assert isinstance(network("0,4").find(near(1, 4, 2, 2, max_hops=2)), Later)
    with lowered(TRIES_MAX=1):
        assert placed(network("0").find(near(2, max_hops=2))) == ["1-2"]
        assert isinstance(network("0,4").find(never), Later)


def can_be_near(free, sizes, max_hops):
    """Whether all parts find targets that near each other, by trying all."""
    if not sizes:
        return True
    for some in combinations(sorted(free), sizes[0]):
        hops = [NETWORK.hops(f"n{one}", f"n{other}") or 99 for one, other in combinations(some, 2)]
        if max(hops, default=0) <= max_hops and can_be_near(free - set(some), sizes[1:], max_hops):
            return True
    return False


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 8)), st.lists(st.integers(1, 4), min_size=2, max_size=3), st.sampled_from([2, 4]))
def test_a_bound_is_met_whenever_it_can_be(busy, sizes, max_hops):
    outcome = network(str(Idset.of(busy))).find(near(*sizes, max_hops=max_hops))
    assert isinstance(outcome, str) != can_be_near(set(range(9)) - busy, sizes, max_hops)
    assert isinstance(outcome, Never) != can_be_near(set(range(9)), sizes, max_hops)
    if not isinstance(outcome, str):
        taken = Idset()
        for ranks, size in zip(outcome.by_part, sizes, strict=True):
            assert len(ranks) == size
            assert ranks.isdisjoint(taken)
            taken |= ranks
            hosts = [f"n{rank}" for rank in ranks]
            assert all((NETWORK.hops(one, other) or 0) <= max_hops for one in hosts for other in hosts)


# ---- against brute force


def fits_all(suited, counts):
    """Whether so many targets can be found for each part, by trying."""
    if not counts:
        return True
    return any(
        fits_all([other - set(some) for other in suited[1:]], counts[1:])
        for some in combinations(sorted(suited[0]), counts[0])
    )


RANKS = range(6)
SETS = st.sets(st.sampled_from(RANKS))
RANGES = st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(1, 2)).map(
    lambda c: Count.fixed(c[0]) if not c[1] else Count(c[0], c[0] + c[1], c[2])
)
PARTS = st.lists(st.tuples(RANGES, SETS), min_size=2, max_size=4)


@settings(max_examples=60, deadline=None)
@given(PARTS, SETS, SETS, st.booleans(), st.sampled_from(PLACEMENTS))
def test_parts_fit_if_and_only_if_brute_force_fits_them(asked, busy, down, elastic, placement):
    places = Places(*[make_r(str(rank), 2, rank % 2) for rank in RANKS])  # two classes
    places.occupy(Idset.of(busy))
    places.down(str(Idset.of(down)))
    several = [
        part(f"p{at}", str(nodes), str(Idset.of(some)) or "9", elastic=elastic)
        for at, (nodes, some) in enumerate(asked)
    ]
    wanted = Request.of_parts(several)
    if elastic and not wanted.nodes.is_fixed:
        wanted = wanted.bound(EVERYTHING, None, True)
    free = [some - busy - down for _, some in asked]
    minima = [nodes.min for nodes, _ in asked]
    outcome = places.find(wanted, placement)
    assert isinstance(outcome, Never) == (not fits_all([some for _, some in asked], minima))
    assert isinstance(outcome, str) == (not fits_all(free, minima))
    if isinstance(outcome, str):
        short = shortest([some for _, some in asked], minima)
        assert isinstance(outcome, Later) or f"{short} node" in outcome
        return
    counts = list(minima)
    for at, (nodes, _) in enumerate(asked):
        fitting = [n for n in nodes.values(6) if fits_all(free, [*counts[:at], n, *counts[at + 1 :]])]
        counts[at] = max(fitting)
    assert [len(ranks) for ranks in outcome.by_part] == counts
    assert all(set(ranks) <= some for ranks, some in zip(outcome.by_part, free, strict=True))
    assert [p.rank for p in outcome.parts] == sorted(rank for ranks in outcome.by_part for rank in ranks)
    assert all((p.cores, p.gpus) == (0b11, p.rank % 2) for p in outcome.parts)


def shortest(suited, counts):
    """How many targets those parts need that lack most of them."""
    sets = [some for size in range(1, len(counts) + 1) for some in combinations(range(len(counts)), size)]
    needs = [(sum(counts[at] for at in some), len(set().union(*[suited[at] for at in some]))) for some in sets]
    most = max(needed - there for needed, there in needs)
    return next(needed for needed, there in needs if needed - there == most)


def test_eight_parts_that_suit_each_their_own_sets():
    several = [
        part(f"p{at}", "16-32", str(Idset.of(rank for rank in range(256) if rank >> at & 1 or rank % 3 == 0)))
        for at in range(8)
    ]
    fit = Places(make_r("0-255")).find(parts(*several), "worst-fit")
    assert [len(ranks) for ranks in fit.by_part] == [32] * 8
