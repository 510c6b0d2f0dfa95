"""Requests of several parts: placed when all their minima fit at once, against brute force on small pools."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rfields import ONE_PART
from fluxsched.sched.pool import select as reasons
from fluxsched.sched.pool.parts import Hall, by_suited
from fluxsched.sched.pool.place import WhatIf, find_fit, find_on, place_now, shortage
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    PLACEMENTS,
    WORST_FIT,
    Fits,
    Infeasible,
    Insufficient,
    Shape,
    parts_in,
)
from fluxsched.sched.pool.pool import Pool
from tests.sched.site import make_r

ids = Idset.parse


def only(ranks):
    return Constraint.parse({"ranks": [ranks]}) if ranks else EVERYTHING


def part(label, nodes, ranks="", cores=1, gpus=0, elastic=True):
    return Request(
        Count.parse(nodes), cores=cores, gpus=gpus, exclusive=True, constraint=only(ranks), label=label, elastic=elastic
    )


def parts(*several):
    request = Request.of_parts(several)
    return Shape(request.bound(EVERYTHING, None, True) if several[0].elastic else request)


def pool_of(resources, up=None):
    pool = Pool()
    pool.add(resources, resources.ranks if up is None else ids(up))
    return pool


def placed(fit):
    return None if fit is None else [str(ranks) for ranks in fit.by_part]


TEAM = parts(part("coordinator", 1), part("workers", "4-10"))


# ---- the numbers of the specification


def test_a_coordinator_and_its_workers():
    pool = pool_of(make_r("0-6", gpus=1))
    assert placed(find_fit(pool, TEAM, WORST_FIT)) == ["0", "1-4"]
    fit = find_fit(pool, TEAM, WORST_FIT, extras=True)
    assert placed(fit) == ["0", "1-6"]
    assert fit is not None
    assert (fit.nslots, [p.rank for p in fit.parts], fit.parts[0].gpus) == (7, list(range(7)), 1)
    pool.take(fit.blocks)
    assert place_now(pool, TEAM, WORST_FIT) == Insufficient(
        f"needs {TEAM.request}; coordinator and workers need 5 nodes; none is free, 7 nodes are busy"
    )


def test_gangs_over_a_group_that_is_too_small_are_never_placed():
    """Groups of 8 and of 1: the smaller is never used, not even for a part."""
    small, large = pool_of(make_r("8")), pool_of(make_r("0-7"))
    assert placed(find_fit(large, TEAM, WORST_FIT, extras=True)) == ["0", "1-7"]
    why = f"needs {TEAM.request}; coordinator and workers need 5 nodes, the group has only 1 node for any of them"
    assert place_now(small, TEAM, WORST_FIT) == Infeasible(why)
    assert shortage(small, TEAM.request) == (None, why)
    assert shortage(large, TEAM.request) == (None, None)


def test_what_two_parts_share_counts_for_both():
    shape = parts(part("a", 2, "0-2"), part("b", "2-9", "1-3"), part("c", 1))
    pool = pool_of(make_r("0-4"), up="0-3")
    assert place_now(pool, shape, WORST_FIT) == Insufficient(
        f"needs {shape.request}; a, b and c need 5 nodes; 4 nodes fit now, 1 node is down"
    )
    pool.set_up(ids("4"))
    assert placed(find_fit(pool, shape, WORST_FIT, extras=True)) == ["0-1", "2-3", "4"]
    pool.remove(ids("3"))
    why = f"needs {shape.request}; a and b need 4 nodes, the group has only 3 nodes for any of them"
    assert place_now(pool, shape, WORST_FIT) == Infeasible(why)


def test_what_no_part_finds_large_enough():
    shape = parts(part("a", "1-2"), part("b", 1, gpus=2))
    why = f"needs {shape.request}; b needs 1 node, the group has no node for it"
    assert place_now(pool_of(make_r("0-3", gpus=1)), shape, WORST_FIT) == Infeasible(why)


def test_the_first_part_gets_its_extras_first():
    shape = parts(part("a", "1-5:2"), part("b", "1-9"))
    pool = pool_of(make_r("0-5"))
    assert placed(find_fit(pool, shape, WORST_FIT, extras=True)) == ["0-4", "5"]
    fixed = parts(part("a", "1-3", elastic=False), part("b", "1-9", elastic=False))
    assert placed(find_fit(pool, fixed, WORST_FIT)) == ["0-2", "3-5"]


def test_targets_that_few_parts_can_use_are_taken_first():
    pool = pool_of(make_r("0-3"))
    assert placed(find_fit(pool, parts(part("a", "1-2"), part("b", 1, "0-1")), WORST_FIT)) == ["2", "0"]


def test_the_order_is_that_of_the_placement():
    pool = pool_of(make_r("0-1", cores=8))
    pool.add(make_r("2-3", cores=4), ids("2-3"))
    shape = parts(part("a", "1-2"), part("b", 1))
    assert placed(find_fit(pool, shape, WORST_FIT)) == ["0", "1"]
    assert placed(find_fit(pool, shape, BEST_FIT)) == ["2", "3"]
    assert find_on(pool, shape, 0) is None


def test_a_what_if_prefers_what_was_given():
    pool = pool_of(make_r("0-7"))
    held = find_fit(pool, parts(part("a", "5-6"), part("b", 1)), WORST_FIT)
    assert held is not None
    pool.take(held.blocks)
    shape = parts(part("a", "1-2"), part("b", 2))
    with WhatIf(pool) as what_if:
        assert what_if.find(shape, BEST_FIT) is None
        what_if.give(held.blocks)
        assert placed(what_if.find(shape, BEST_FIT, prefer_given=True)) == ["0", "1-2"]
        assert placed(what_if.find(shape, BEST_FIT, avoid=held.blocks[:1])) is None


def test_licences_are_the_jobs():
    shape = Shape(Request.of_parts((part("a", "1-2"), part("b", 1)), (("matlab", 2),)))
    pool = pool_of(make_r("0-3"))
    assert isinstance(place_now(pool, shape, WORST_FIT), Infeasible)
    pool.instance_countables.add((("matlab", 2),))
    fit = find_fit(pool, shape, WORST_FIT)
    assert fit is not None
    assert fit.blocks[-1].amounts == (("matlab", 2),)
    pool.take(fit.blocks)
    assert place_now(pool, shape, WORST_FIT) == Insufficient(reasons.lacking_now(shape.request, (("matlab", 0),)))


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


@settings(max_examples=60)
@given(PARTS, SETS, SETS, st.booleans(), st.sampled_from(PLACEMENTS))
def test_parts_fit_if_and_only_if_brute_force_fits_them(asked, busy, down, elastic, placement):
    pool = Pool()
    for at, rank in enumerate(RANKS):  # two classes
        entry = {"rank": str(rank), "children": {"core": "0-1", **({"gpu": "0"} if at % 2 else {})}}
        execution = {"R_lite": [entry], "starttime": 0.0, "expiration": 0.0, "nodelist": [f"n{rank}"]}
        pool.add(ResourceSet.parse({"version": 1, "execution": execution}), Idset.of({rank} - down))
    pool.claim(tuple([block for rank in busy if (block := _block(pool, rank))]))
    several = [
        Request(nodes, exclusive=True, constraint=only(str(Idset.of(some)) or "9"), label=f"p{at}", elastic=elastic)
        for at, (nodes, some) in enumerate(asked)
    ]
    shape = Shape(Request.of_parts(several))
    if elastic and not shape.request.nodes.is_fixed:
        shape = Shape(shape.request.bound(EVERYTHING, None, True))
    free = [some - busy - down for _, some in asked]
    minima = [nodes.min for nodes, _ in asked]
    fit = find_fit(pool, shape, placement, extras=True)
    assert (fit is not None) == fits_all(free, minima)
    outcome = place_now(pool, shape, placement)
    assert isinstance(outcome, Infeasible) == (not fits_all([some for _, some in asked], minima))
    if fit is None:
        assert not isinstance(outcome, Fits)
        return
    counts = list(minima)
    for at, (nodes, _) in enumerate(asked):
        fitting = [n for n in nodes.values(6) if fits_all(free, [*counts[:at], n, *counts[at + 1 :]])]
        counts[at] = max(fitting)
    assert [len(ranks) for ranks in fit.by_part] == counts
    assert all(set(ranks) <= some for ranks, some in zip(fit.by_part, free, strict=True))
    assert [p.rank for p in fit.parts] == sorted(rank for ranks in fit.by_part for rank in ranks)
    assert all((p.cores, p.gpus) == pool.free_ids(p.rank) for p in parts_in(fit.blocks))
    assert pool.take(fit.blocks)


def _block(pool, rank):
    shape = Shape(Request(exclusive=True, constraint=only(str(rank))))
    fit = find_fit(pool, shape, BEST_FIT)
    return None if fit is None else fit.blocks[0]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), SETS), min_size=1, max_size=4))
def test_what_is_short_is_what_lacks_most(asked):
    suited = [some for _, some in asked]
    masks = [Idset.of(some).mask for some in suited]
    counts = {key: mask.bit_count() for key, mask in by_suited(masks).items()}
    short = Hall(counts, [n for n, _ in asked]).shortfall()
    sets = [some for size in range(1, len(asked) + 1) for some in combinations(range(len(asked)), size)]
    found = [(some, sum(asked[at][0] for at in some), len(set().union(*[suited[at] for at in some]))) for some in sets]
    most = max(needed - there for _, needed, there in found)
    assert (short is None) == fits_all(suited, [n for n, _ in asked]) == (most <= 0)
    assert short == (next(each for each in found if each[1] - each[2] == most) if most > 0 else None)


def test_eight_parts_that_suit_each_their_own_sets():
    pool = pool_of(make_r("0-255"))
    several = [
        part(f"p{at}", "16-32", str(Idset.of(rank for rank in range(256) if rank >> at & 1 or rank % 3 == 0)))
        for at in range(8)
    ]
    fit = find_fit(pool, parts(*several), WORST_FIT, extras=True)
    assert fit is not None
    assert [len(ranks) for ranks in fit.by_part] == [32] * 8
    assert len(fit.parts) == 256


def test_parts_are_never_on_targets_that_take_one_part_only():
    pool = pool_of(make_r("0-5").add_property(ONE_PART, ids("0-3")))
    two = parts(part("a", 1), part("b", "1-4"))
    assert placed(find_fit(pool, two, WORST_FIT)) == ["4", "5"]
    assert isinstance(place_now(pool, parts(part("a", 1), part("b", "2-4")), WORST_FIT), Infeasible)
    whole = Shape(Request(Count.parse(6), exclusive=True))
    assert isinstance(place_now(pool, whole, WORST_FIT), Fits)
