"""Pool and placement, case by case: whole nodes, ranges, slots, GPUs, order of placement, constraints, words."""

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Count
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.sched.pool import place
from fluxsched.sched.pool.place import infeasible, place_now
from fluxsched.sched.pool.placement import BEST_FIT, FIRST_FIT, WORST_FIT, Fits, Infeasible, Insufficient, Part, Shape
from fluxsched.sched.pool.pool import CHOICES_MAX, Pool
from fluxsched.sched.pool.target_class import LEVELS_MAX, TRAITS_MAX
from tests.sched.site import make_r, request_of


@pytest.fixture
def pool():
    """Ranks 0-3 with 4 cores, 4-5 with 8 cores and 2 GPUs; 1 and 4 have ssd."""
    made = Pool()
    for resources in (make_r("0-3", 4, ssd="1"), make_r("4-5", 8, 2, ssd="4")):
        made.add(resources, resources.ranks)
    return made


def ranks(pool, request, placement=BEST_FIT):
    outcome = place_now(pool, Shape(request), placement)
    assert isinstance(outcome, Fits), outcome
    return str(Idset.of([part.rank for part in outcome.parts]))


def take(pool, request, placement=BEST_FIT):
    outcome = place_now(pool, Shape(request), placement)
    assert isinstance(outcome, Fits), outcome
    assert pool.take(outcome.blocks)
    return outcome


def test_best_fit_fills_gaps_and_keeps_gpus(pool):
    take(pool, request_of(slots=1, cores=3))
    assert ranks(pool, request_of()) == "0"
    assert ranks(pool, request_of(cores=2)) == "1"
    assert ranks(pool, request_of(cores=5)) == "4"


def test_worst_fit_spreads(pool):
    assert ranks(pool, request_of(), WORST_FIT) == "4"
    take(pool, request_of(cores=5), WORST_FIT)
    assert ranks(pool, request_of(), WORST_FIT) == "5"
    take(pool, request_of(cores=5), WORST_FIT)
    assert ranks(pool, request_of(), WORST_FIT) == "0"


def test_first_fit_takes_the_lowest_rank(pool):
    take(pool, request_of(cores=3), FIRST_FIT)
    assert ranks(pool, request_of(cores=2), FIRST_FIT) == "1"
    assert ranks(pool, request_of(cores=5), FIRST_FIT) == "4"
    assert ranks(pool, request_of(nodes=3, cores=1), FIRST_FIT) == "0-2"
    outcome = place_now(pool, Shape(request_of(slots=5, cores=2)), FIRST_FIT)
    assert isinstance(outcome, Fits)
    assert outcome.parts == (Part(1, 0b1111, 0), Part(2, 0b1111, 0), Part(3, 0b0011, 0))


def test_slots_pack_on_few_targets(pool):
    outcome = place_now(pool, Shape(request_of(slots=3, cores=2)), BEST_FIT)
    assert isinstance(outcome, Fits)
    assert outcome.parts == (Part(0, 0b1111, 0), Part(1, 0b0011, 0))
    assert outcome.nslots == 3


def test_core_and_gpu_together(pool):
    outcome = place_now(pool, Shape(request_of(slots=3, cores=3, gpus=1)), WORST_FIT)
    assert isinstance(outcome, Fits)
    assert outcome.parts == (Part(4, 0b111111, 0b11), Part(5, 0b111, 0b1))
    take(pool, request_of(slots=3, cores=3, gpus=1), WORST_FIT)
    left = place_now(pool, Shape(request_of(slots=1, cores=6, gpus=1)), WORST_FIT)
    assert isinstance(left, Insufficient)  # the core count is there and the GPU is there, but not on one target


def test_whole_nodes_give_everything(pool):
    outcome = take(pool, request_of(nodes=1, cores=1, gpus=1, exclusive=True))
    assert outcome.parts == (Part(4, 0xFF, 0b11),)
    assert outcome.nslots == 1
    take(pool, request_of(cores=1, gpus=1))
    blocked = place_now(pool, Shape(request_of(nodes=1, cores=1, gpus=1, exclusive=True)), BEST_FIT)
    assert blocked == Insufficient("needs 1 exclusive node of 1 slot of 1 core, 1 gpu; none is free, 2 nodes are busy")


def test_a_node_count_range_takes_what_is_free(pool):
    request = request_of(nodes=Count(2, 8, 2), cores=4)
    assert ranks(pool, request) == "0-5"
    take(pool, request_of(nodes=1, cores=4))
    assert ranks(pool, request) == "1-4"


def test_slots_a_node_in_a_range_leave_enough_nodes(pool):
    outcome = place_now(pool, Shape(request_of(nodes=3, slots=Count(1, None), cores=1)), BEST_FIT)
    assert isinstance(outcome, Fits)
    assert outcome.nslots == 12
    assert len(outcome.parts) == 3
    outcome = place_now(pool, Shape(request_of(nodes=2, slots=Count(1, None), cores=1)), BEST_FIT)
    assert isinstance(outcome, Fits)
    assert outcome.nslots == 16  # the two large ones can have more slots a node


def test_total_slots_in_a_range(pool):
    outcome = place_now(pool, Shape(request_of(slots=Count(1, 1000, 2, "*"), cores=1)), BEST_FIT)
    assert isinstance(outcome, Fits)
    assert outcome.nslots == 32
    assert isinstance(place_now(pool, Shape(request_of(slots=Count(33, None), cores=1)), BEST_FIT), Infeasible)


@pytest.mark.parametrize(
    ("constraint", "want"),
    [
        ({"properties": ["ssd"]}, "1,4"), ({"properties": ["^ssd"]}, "0,2-3,5"), ({"hostlist": ["n[2-3]"]}, "2-3"),
        ({"ranks": ["3-4"]}, "3-4"), ({"not": [{"ranks": ["0-3"]}]}, "4-5"), ({"or": []}, "0-5"), ({"and": []}, "0-5"),
    ],
)  # fmt: skip
def test_constraints(pool, constraint, want):
    assert ranks(pool, request_of(nodes=Count(1, None), constraint=constraint)) == want


def test_not_nothing(pool):
    outcome = place_now(pool, Shape(request_of(constraint={"not": []})), BEST_FIT)
    assert outcome == Infeasible("needs 1 slot of 1 core with nothing; no node of the group matches")


def test_reasons_are_words(pool):
    ssd = {"properties": ["ssd"]}
    pool.set_down(Idset.parse("1"))
    take(pool, request_of(cores=5, constraint=ssd))
    assert place_now(pool, Shape(request_of(nodes=2, cores=4, constraint=ssd)), BEST_FIT) == Insufficient(
        "needs 2 nodes of 1 slot of 4 cores with ssd; none is free, 1 node is down, 1 node is busy"
    )
    assert place_now(pool, Shape(request_of(slots=30)), BEST_FIT) == Insufficient(
        "needs 30 slots of 1 core; 23 slots fit now, 1 node is down"
    )
    assert infeasible(pool, request_of(cores=9)) == (
        "needs 1 slot of 9 cores; no node is large enough: the largest that matches has 8 cores and 2 gpus"
    )
    assert infeasible(pool, request_of(nodes=3, cores=5)) == (
        "needs 3 nodes of 1 slot of 5 cores; the group has only 2 such nodes"
    )


def test_feasibility_ignores_availability_but_not_shrink(pool):
    six = request_of(nodes=6)
    pool.set_down(Idset.parse("0-5"))
    assert infeasible(pool, six) is None
    assert isinstance(place_now(pool, Shape(six), BEST_FIT), Insufficient)
    pool.remove(Idset.parse("2"))
    assert infeasible(pool, six) is not None


def test_down_gets_nothing_more_and_a_free_there_is_kept(pool):
    fit = take(pool, request_of(cores=2))
    pool.set_down(Idset.parse("0"))
    assert not pool.take(fit.blocks)
    assert ranks(pool, request_of(cores=2)) == "1"
    pool.give(fit.blocks)
    assert ranks(pool, request_of(nodes=Count(1, None))) == "1-5"
    pool.set_up(Idset.parse("0"))
    assert ranks(pool, request_of(nodes=Count(1, None))) == "0-5"


def test_take_and_give_twice_are_bugs(pool):
    blocks = take(pool, request_of(cores=2)).blocks
    assert not pool.take(blocks)
    with pytest.raises(LocalProtocolError, match="not free"):
        pool.claim(blocks)
    pool.give(blocks)
    with pytest.raises(LocalProtocolError, match="free already"):
        pool.give(blocks)


def test_a_rank_grown_twice_is_refused_and_nothing_changes(pool):
    with pytest.raises(RemoteProtocolError, match="5"):
        pool.add(make_r("5-6"), EMPTY)
    assert str(pool.ranks) == "0-5"


def test_targets_beyond_the_limit_are_refused_and_nothing_changes(pool):
    with pytest.raises(RemoteProtocolError, match="1048576 at most"):
        pool.add(make_r("6", LEVELS_MAX // 2, 2), EMPTY)
    assert str(pool.ranks) == "0-5"


def test_properties_change_live(pool):
    ssd = request_of(nodes=Count(1, None), constraint={"properties": ["ssd"]})
    pool.describe({"ssd": Idset.parse("2-3,99")}, {"ssd": Idset.parse("0-1")})
    assert ranks(pool, ssd) == "2-4"
    pool.describe({}, {"nvme": Idset.parse("0"), "ssd": Idset.parse("0-5")})
    assert isinstance(place_now(pool, Shape(ssd), BEST_FIT), Infeasible)


def test_more_sets_of_properties_than_classes():
    each = {f"p{rank:03}": str(rank) for rank in range(3 * TRAITS_MAX)}
    resources = make_r(f"0-{3 * TRAITS_MAX - 1}", 2, **each)
    pool = Pool()
    pool.add(resources, resources.ranks)
    for rank in (0, TRAITS_MAX, 3 * TRAITS_MAX - 1):
        assert ranks(pool, request_of(constraint={"properties": [f"p{rank:03}"]})) == str(rank)
    assert ranks(pool, request_of(nodes=Count(1, None))) == str(resources.ranks)


def test_remembered_constraints_are_bounded(pool):
    for rank in range(CHOICES_MAX + 5):
        infeasible(pool, request_of(constraint={"ranks": [str(rank)]}))
    assert len(pool._choices) <= CHOICES_MAX


def test_busy_targets_keep_what_is_taken_when_their_properties_change(pool):
    whole, part = take(pool, request_of(nodes=1, cores=4)), take(pool, request_of(cores=3))
    pool.describe({"new": Idset.parse("0-5")}, {})
    assert (pool[0].cores, pool[1].cores) == (0, 0b1000)
    assert ranks(pool, request_of(nodes=Count(1, None), constraint={"properties": ["new"]})) == "1-5"
    pool.give(whole.blocks + part.blocks)
    assert all(pool[rank].idle for rank in pool.ranks)
    assert ranks(pool, request_of(nodes=6)) == "0-5"


def test_prepared_shapes_are_bounded(monkeypatch, pool):
    assert place.PREPARED_MAX > 2
    monkeypatch.setattr(place, "PREPARED_MAX", 2)
    shapes = [Shape(request_of(cores=cores)) for cores in (1, 2, 3)]
    for shape in shapes * 2:
        assert isinstance(place_now(pool, shape, BEST_FIT), Fits)
        assert len(pool.prepared) <= 2
