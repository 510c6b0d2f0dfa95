"""Placement by hops: the vectors, bounds and their reasons, and every choice against one that tries all sets."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.constraint import Constraint
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import Children, Entry, ResourceSet
from fluxsched.core.topology import Switch, Topology
from tests.generated.share import examples
from tests.sched.site import Later, Never, Places

PLACEMENTS = ("best-fit", "worst-fit")


def leaves_of(*sizes):
    """Leaves l0, l1, ... of consecutive hosts n0, n1, ..."""
    first, made = 0, []
    for at, size in enumerate(sizes):
        made.append(Switch(f"l{at}", Hostlist(tuple(f"n{host}" for host in range(first, first + size)))))
        first += size
    return made


def places_on(switches, targets, cores=4, free=None, gpus=""):
    """Targets 0, 1, ... on hosts n0, n1, ..., of which all but `free` are taken whole."""
    with_gpus = Idset.parse(gpus)
    ranks = Idset.span(0, targets - 1)
    kinds = ((ranks - with_gpus, EMPTY), (with_gpus, Idset.parse("0-1")))
    entries = tuple(Entry(some, Children(Idset.span(0, cores - 1), own)) for some, own in kinds if some)
    resources = ResourceSet(
        entries, Hostlist(tuple(f"n{at}" for at in range(targets))), {"gpu": with_gpus} if gpus else {},
        topology=Topology.of(switches),
    )  # fmt: skip
    places = Places(resources)
    if free is not None:
        places.occupy(resources.ranks - Idset.parse(free))
    return places


def nodes(n, slots=1, cores=1, exclusive=True, **more):
    return Request(Count.parse(n), Count.parse(slots), cores, exclusive=exclusive, **more)


def slots(n, cores=1, **more):
    return Request(None, Count.parse(n), cores, **more)


TWO = [*leaves_of(4, 4), Switch("spine", switches=("l0", "l1"))]


def test_nodes_go_where_their_largest_hops_are_least():
    places = places_on(TWO, 8, free="0,1,4-7")
    for placement in PLACEMENTS:
        assert places.ranks(nodes(4), placement) == "4-7"
        assert places.ranks(nodes(4, exclusive=False), placement) == "4-7"
    assert places.ranks(nodes(2)) == "0-1"  # the fullest
    assert places.ranks(nodes(5)) == "0-1,4-6"


def test_a_bound_waits_and_says_why():
    places = places_on(TWO, 8, free="0,1,4,5")
    outcome = places.find(nodes(4, max_hops=2))
    assert outcome == Later(
        "needs 4 exclusive nodes of 1 core within 2 hops; 4 nodes fit now, 4 nodes are busy; "
        "at most 2 nodes are under one switch of 2 hops (l0 or l1)"
    )
    assert places.ranks(nodes(4, max_hops=4)) == "0-1,4-5"
    assert places.ranks(nodes("2-8", max_hops=2)) == "0-1"


def test_a_bound_that_can_never_be_met_is_denied():
    places = places_on(TWO, 8)
    assert places.find(nodes(5, max_hops=2)) == Never(
        "needs 5 exclusive nodes of 1 core within 2 hops; "
        "at most 4 nodes are under one switch of 2 hops (l0 or l1), also when all are free"
    )
    assert places.ranks(nodes(4, max_hops=2)) == "0-3"
    assert isinstance(places.find(slots(17, max_hops=2)), Never)
    assert places.ranks(slots(16, max_hops=2)) == "0-3"


def test_a_bound_without_a_topology_is_denied_with_the_remedy():
    places = places_on([], 8)
    outcome = places.find(nodes(2, max_hops=2))
    assert isinstance(outcome, Never)
    assert outcome.endswith("since there is no [topology]: submit without max-hops")
    assert places.ranks(nodes(1, max_hops=2)) == "0"
    assert places.ranks(nodes("1-4", max_hops=2)) == "0"
    assert places.ranks(slots(4, max_hops=2)) == "0"


def test_targets_under_other_roots_are_never_within_a_bound():
    places = places_on(leaves_of(2, 2), 6)
    assert places.ranks(nodes(3)) == "0-2"
    assert isinstance(places.find(nodes(3, max_hops=16)), Never)
    assert places.ranks(nodes(2, max_hops=2)) == "0-1"


def test_slots_over_several_targets_go_under_one_leaf():
    places = places_on([*leaves_of(2, 2), Switch("s", switches=("l0", "l1"))], 4, cores=32)
    places.take(slots(1, 16))
    assert places.ranks(slots(4, 16)) == "2-3"  # leaf 0 has a partly used one, and holds 3
    assert places.ranks(slots(3, 16)) == "0-1"
    assert places.ranks(slots(2, 16)) == "1"  # one target will do
    assert places.ranks(slots(7, 16)) == "0-3"
    assert isinstance(places.find(slots(5, 16, max_hops=2)), Never)


def test_gangs_over_groups_of_8_and_1_never_use_the_smaller():
    places = places_on([*leaves_of(8, 1), Switch("s", switches=("l0", "l1"))], 9)
    for _ in range(4):
        fit = places.take(nodes(2))
        assert all(part.rank != 8 for part in fit.parts)
    assert isinstance(places.find(nodes(2)), Later)


def test_constraints_and_gpus_count_where_they_are():
    places = places_on(TWO, 8, gpus="1-2,4-6")
    three = nodes(3, constraint=Constraint.parse({"properties": ["gpu"]}))
    assert places.ranks(three) == "4-6"
    assert places.ranks(Request(Count.parse(3), gpus=1)) == "4-6"
    assert places.ranks(nodes(2, constraint=three.constraint)) == "1-2"
    assert places.ranks(nodes(4), "worst-fit") == "0-3"


def test_a_range_takes_the_most_that_fits_then_the_nearest():
    places = places_on(TWO, 8, free="0,1,4-6")
    assert places.ranks(nodes("2-4")) == "0-1,4-5"
    assert places.ranks(nodes("2-4", max_hops=2)) == "4-6"
    assert places.ranks(nodes("2-3")) == "4-6"


def test_targets_come_go_and_move():
    places = places_on(TWO, 8, free="0-1,4-7")
    assert places.ranks(nodes(4)) == "4-7"
    places.down("4")
    assert places.ranks(nodes(3)) == "5-7"
    assert places.ranks(nodes(4)) == "0-1,5-6"
    places.up("4")
    assert places.ranks(nodes(4)) == "4-7"
    places.bench.shrink("7")
    assert places.ranks(nodes(3)) == "4-6"
    places.bench.did(
        places.scheduler.updated(
            "default",
            topology=Topology.of([Switch("x", Hostlist.parse("n[0,4-6]")), Switch("y", Hostlist.parse("n[1-3]"))]),
        )
    )
    assert places.ranks(nodes(4)) == "0,4-6"
    places.bench.did(places.scheduler.updated("default", topology=Topology()))
    assert places.ranks(nodes(4)) == "0-1,4-5"


def test_a_host_that_joins_is_under_its_switch():
    places = places_on(leaves_of(2), 2)
    late = ResourceSet(
        (Entry(Idset.parse("2-3"), Children(Idset.span(0, 3))),), Hostlist.parse("n[2-3]"),
        topology=Topology.of([Switch("l1", Hostlist.parse("n[2-3]")), Switch("s", switches=("l1",))]),
    )  # fmt: skip
    places.bench.grow(late)
    assert places.ranks(nodes(2)) == "0-1"
    places.occupy("0")
    assert places.ranks(nodes(2, max_hops=2)) == "2-3"


# ---- against all sets


@st.composite
def machines(draw):
    """Up to 64 targets under a tree whose leaves may not be equally deep; some are under none."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=8))
    below = leaves_of(*sizes)
    made = list(below)
    for at in range(draw(st.integers(0, 4))):
        if len(below) < 2:
            break
        taken = draw(st.lists(st.sampled_from(below), unique=True, min_size=1, max_size=4))
        above = Switch(f"s{at}", switches=tuple(switch.name for switch in taken))
        made.append(above)
        below = [switch for switch in below if switch not in taken] + [above]
    return made, min(sum(sizes) + draw(st.integers(0, 2)), 64)


def spread(topology, some):
    """The largest hops between two of these targets."""
    pairs = [topology.hops(f"n{one}", f"n{other}") for one, other in combinations(some, 2)]
    return max([float("inf") if hops is None else hops for hops in pairs], default=0)


def least_spread(topology, units, n):
    """The least that targets holding `n` in all can have: within some distance of one of them are enough."""
    if max(units.values(), default=0) >= n:
        return 0
    balls = set()
    for middle in units:
        away = {other: topology.hops(f"n{middle}", f"n{other}") for other in units}
        for hops in {hops for hops in away.values() if hops}:
            balls.add(tuple([other for other in units if (own := away[other]) is not None and own <= hops]))
    large = [[*ball] for ball in balls if sum(units[at] for at in ball) >= n]
    return min([spread(topology, ball) for ball in large], default=float("inf"))


@settings(max_examples=examples(30), deadline=None)
@given(machines(), st.data())
def test_the_largest_hops_are_the_least_of_all(machine, data):
    switches, targets = machine
    places, topology = places_on(switches, targets), Topology.of(switches)
    free = dict.fromkeys(range(targets), 4)
    for rank in data.draw(st.lists(st.integers(0, targets - 1), unique=True)):
        busy = data.draw(st.integers(1, 4))
        places.occupy(Idset(1 << rank), cores=busy)
        free[rank] -= busy
    for _ in range(4):
        n, cores = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([1, 2, 4]))
        bound = data.draw(st.sampled_from([None, 2, 4, 6]))
        if data.draw(st.booleans()):
            request = nodes(n, cores=cores, exclusive=cores == 4, max_hops=bound)
            units = {rank: 1 for rank, left in free.items() if left >= cores}
        else:
            request = slots(n, cores, max_hops=bound)
            units = {rank: left // cores for rank, left in free.items() if left >= cores}
        placement = data.draw(st.sampled_from(PLACEMENTS))
        kept = data.draw(st.booleans())
        outcome = (places.take if kept else places.find)(request, placement)
        least, enough = least_spread(topology, units, n), sum(units.values()) >= n
        if not enough or (bound is not None and least > bound):
            assert isinstance(outcome, str), (request, least)
            continue
        assert not isinstance(outcome, str), (request, least, outcome)
        got = [part.rank for part in outcome.parts]
        assert outcome.nslots == n
        assert spread(topology, got) == least, (request, got)
        if kept:
            for part in outcome.parts:
                free[part.rank] -= part.cores.bit_count()
