"""Where jobs are placed, case by case, and what is said of those that are not; `test_pool_model.py` has the rest."""

from dataclasses import replace

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.fair.accounts import FairSettings
from tests.sched.site import Bench, Later, Never, Places, limit, make_r, request_of

GIB = 1 << 30


@pytest.fixture
def places():
    """Ranks 0-3 with 4 cores, 4-5 with 8 cores and 2 GPUs; 1 and 4 have ssd."""
    return Places(make_r("0-3", 4, ssd="1"), make_r("4-5", 8, 2, ssd="4"))


@pytest.mark.parametrize(
    ("placement", "taken", "wanted", "ranks"),
    [
        ("best-fit", [3], {}, "0"), ("best-fit", [3], {"cores": 2}, "1"), ("best-fit", [3], {"cores": 5}, "4"),
        ("worst-fit", [], {}, "4"), ("worst-fit", [5], {}, "5"), ("worst-fit", [5, 5], {}, "0"),
        ("best-fit", [], {"nodes": Count(2, 8, 2), "cores": 4}, "0-5"),
        ("best-fit", [4], {"nodes": Count(2, 8, 2), "cores": 4}, "1-4"),
    ],
)  # fmt: skip
def test_the_order_of_targets(places, placement, taken, wanted, ranks):
    for cores in taken:
        places.take(request_of(cores=cores), placement)
    assert places.ranks(request_of(**wanted), placement) == ranks


@pytest.mark.parametrize(
    ("placement", "wanted", "parts"),
    [
        ("best-fit", {"slots": 3, "cores": 2}, [(0, 0b1111, 0), (1, 0b0011, 0)]),
        ("worst-fit", {"slots": 3, "cores": 3, "gpus": 1}, [(4, 0b111111, 0b11), (5, 0b111, 0b1)]),
        ("best-fit", {"nodes": 1, "gpus": 1, "exclusive": True}, [(4, 0xFF, 0b11)]),
    ],
)
def test_cores_and_gpus_of_targets(places, placement, wanted, parts):
    fit = places.find(request_of(**wanted), placement)
    assert [part[:3] for part in fit.parts] == parts
    assert fit.nslots == wanted.get("slots", 1)


def test_targets_in_a_row_that_give_the_same_ids_are_one_block():
    places = Places(make_r("0-4", 4))
    places.occupy("0-4", cores=1)
    assert [(block.word, block.cores) for block in places.find(request_of(nodes=5)).blocks] == [(0b11111, 0b0010)]
    places.occupy("2", cores=2)
    places.occupy("0-1,3-4", cores=1)
    places.bench.free(3)  # rank 2 has its lowest core again, and as many free ones as the others
    assert [(block.word, block.cores) for block in places.find(request_of(nodes=5)).blocks] == [
        (0b00011, 0b0100), (0b00100, 0b0001), (0b11000, 0b0100),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "nslots"),
    [
        ({"nodes": 3, "slots": Count(1, None)}, 12), ({"nodes": 2, "slots": Count(1, None)}, 16),
        ({"slots": Count(1, 1000, 2, "*")}, 32), ({"slots": Count(33, None)}, None),
    ],
)  # fmt: skip
def test_ranges_of_slots_get_the_most_that_fits(places, wanted, nslots):
    found = places.find(request_of(**wanted))
    assert isinstance(found, Never) if nslots is None else found.nslots == nslots


@pytest.mark.parametrize(
    ("constraint", "want"),
    [
        ({"properties": ["ssd"]}, "1,4"), ({"properties": ["^ssd"]}, "0,2-3,5"), ({"hostlist": ["n[2-3]"]}, "2-3"),
        ({"ranks": ["3-4"]}, "3-4"), ({"not": [{"ranks": ["0-3"]}]}, "4-5"), ({"or": []}, "0-5"), ({"and": []}, "0-5"),
    ],
)  # fmt: skip
def test_constraints(places, constraint, want):
    assert places.ranks(request_of(nodes=Count(1, None), constraint=constraint)) == want


def test_reasons_are_words(places):
    ssd = {"properties": ["ssd"]}
    assert places.find(request_of(constraint={"not": []})) == Never(
        "needs 1 slot of 1 core with nothing; no node of the group matches"
    )
    assert places.find(request_of(cores=9)) == Never(
        "needs 1 slot of 9 cores; no node is large enough: the largest that matches has 8 cores and 2 gpus"
    )
    assert places.find(request_of(gpus=1, constraint={"ranks": ["0-3"]})) == Never(
        "needs 1 slot of 1 core, 1 gpu with ranks 0-3; no node is large enough: the largest that matches has 4 cores "
        "and no gpu"
    )
    assert places.find(request_of(nodes=3, cores=5)) == Never(
        "needs 3 nodes of 5 cores; the group has only 2 such nodes"
    )
    places.down("1")
    places.take(request_of(cores=5, constraint=ssd))
    assert places.find(request_of(nodes=2, cores=4, constraint=ssd)) == Later(
        "needs 2 nodes of 4 cores with ssd; none is free, n1 is out of service, 1 node is busy"
    )
    assert places.find(request_of(slots=30)) == Later(
        "needs 30 slots of 1 core; 23 slots fit now, n1 is out of service"
    )
    places.up("1")
    places.take(request_of(gpus=1))
    assert places.find(request_of(nodes=2, gpus=1, exclusive=True)) == Later(
        "needs 2 exclusive nodes of 1 core, 1 gpu; 1 node fits now, 1 node is busy"
    )


def test_bad_grows_change_nothing(places):
    grown = places.scheduler.grown
    with pytest.raises(RemoteProtocolError, match="5"):
        grown("default", make_r("5-6"), Idset.parse("5-6"), Idset())
    with pytest.raises(RemoteProtocolError, match="1048576 at most"):
        grown("default", make_r("6", limit("LEVELS_MAX") // 2, 2), Idset.parse("6"), Idset())
    assert str(places.scheduler.report.resource_status()[0].ranks) == "0-5"


def test_more_sets_of_properties_than_classes():
    n = 3 * limit("TRAITS_MAX")
    places = Places(make_r(f"0-{n - 1}", 2, **{f"p{rank:03}": str(rank) for rank in range(n)}))
    for rank in (0, n // 3, n - 1):
        assert places.ranks(request_of(constraint={"properties": [f"p{rank:03}"]})) == str(rank)
    assert places.ranks(request_of(nodes=Count(1, None))) == f"0-{n - 1}"


# ---- least-lost


def machine(*targets):
    """Targets of so many cores, GPUs and GiB, by rank."""
    entries = [
        {
            "rank": str(rank),
            "children": {"core": f"0-{cores - 1}", **({"gpu": str(Idset.span(0, gpus - 1))} if gpus else {})},
            **({"amounts": {"memory": memory * GIB}} if memory else {}),
        }
        for rank, (cores, gpus, memory) in enumerate(targets)
    ]
    execution = {"R_lite": entries, "starttime": 0, "expiration": 0, "nodelist": [f"n[0-{len(targets) - 1}]"]}
    return ResourceSet.parse({"version": 1, "execution": execution})


def test_the_smaller_remainder_comes_first_by_the_weights_of_fair():
    """Of 50 cores and 32 GiB 6 cores and 32 GiB are left of one, which weigh 14, and 22 and 96 of the other, 46."""
    wanted = Request(cores=50, amounts=(("memory", 32 * GIB),))
    places = Places(machine((72, 0, 128), (56, 0, 64)))
    assert [places.take(wanted, "least-lost").parts[0].rank for _ in range(2)] == [1, 0]
    places = Places(machine((72, 0, 64), (56, 0, 64 + 72)))  # by weight, and not by cores
    assert places.ranks(replace(wanted, nodes=Count.fixed(1), exclusive=True), "least-lost") == "0"


def test_of_whole_targets_of_parts_counts_what_was_not_asked_for():
    nodes = Request(Count.fixed(1), cores=50, amounts=(("memory", 32 * GIB),), exclusive=True, label="a")
    several = Request.of_parts([nodes, replace(nodes, cores=60, label="b")])
    assert Places(machine((64, 4, 64), (72, 0, 128), (56, 0, 64))).ranks(several, "least-lost") == "1-2"


@pytest.mark.parametrize(
    ("weights", "targets", "first"),
    [
        ({"core": 1.0, "gpu": 10.0}, [(12, 0, 0), (8, 2, 0)], "0"),
        ({"core": 1.0, "gpu": 1.0}, [(12, 0, 0), (8, 2, 0)], "1"),
        ({"core": 1.0, "memory": 0.5 / GIB}, [(14, 0, 8), (4, 0, 32)], "0"),
        ({"core": 1.0, "memory": 0.25 / GIB}, [(14, 0, 8), (4, 0, 32)], "1"),
    ],
)
def test_weights_decide(weights, targets, first):
    bench = Bench("easy:placement=least-lost", fair=FairSettings(weights=weights))
    bench.grow(machine(*targets))
    bench.submit(1, cores=4)
    assert bench.starts() == {1: first}
