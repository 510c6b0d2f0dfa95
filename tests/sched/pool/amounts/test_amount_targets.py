"""Targets without cores, by example; `test_pool_model.py` compares them with the reference."""

import pytest

from fluxsched.core.constraint import Constraint
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.resources import Children, Entry, ResourceSet
from fluxsched.errors import InvalidValue, LocalProtocolError
from fluxsched.sched.pool import amounts as targets
from fluxsched.sched.pool.choice import Narrowed
from fluxsched.sched.pool.place import find_fit, find_on, infeasible, place_now
from fluxsched.sched.pool.placement import BINPACKING, FAIR, Infeasible, Insufficient, Shape
from fluxsched.sched.pool.pool import Pool, busy


def node(rank, *names, **amounts):
    ranks = Idset(1 << rank)
    entry = Entry(ranks, Children(amounts=tuple(sorted(amounts.items()))))
    return ResourceSet((entry,), Hostlist((f"n{rank}",)), dict.fromkeys(names, ranks))


def pool_of(*nodes):
    pool = Pool()
    for each in nodes:
        pool.add(each, each.ranks)
    return pool


def shape(constraint=None, **amounts):
    return Shape(Request.of_amounts(tuple(sorted(amounts.items())), constraint))


def rank_of(fit):
    return None if fit is None else fit.parts[0].rank


def start(pool, wanted, placement=FAIR):
    fit = find_fit(pool, wanted, placement)
    if fit is not None:
        assert pool.take(fit.blocks)
    return rank_of(fit)


def test_fair_spreads_and_binpacking_fills():
    for placement, ranks in ((FAIR, [0, 1, 0, 1]), (BINPACKING, [0, 0, 0, 0])):
        pool = pool_of(node(0, vcore=4, memory=4), node(1, vcore=4, memory=4))
        assert [start(pool, shape(vcore=1, memory=1), placement) for _ in ranks] == ranks


def test_a_kind_that_a_target_lacks_is_zero():
    pool = pool_of(node(0, vcore=4), node(1, vcore=4, gpu=1))
    assert start(pool, shape(gpu=1)) == 1
    assert start(pool, shape(gpu=1)) is None
    assert infeasible(pool, shape(gpu=1).request) is None
    assert "has 1 gpu" in str(infeasible(pool, shape(gpu=2).request)).replace("have", "has")


def test_a_capacity_that_falls_below_what_is_held_takes_nothing_more():
    pool = pool_of(node(0, vcore=4))
    fit = find_fit(pool, shape(vcore=3), FAIR)
    assert fit is not None
    assert pool.take(fit.blocks)
    pool.resize(0, (("vcore", 2),))
    assert pool[0].amounts == (("vcore", -1),)
    assert start(pool, shape(vcore=1)) is None
    pool.give(fit.blocks)
    assert pool[0].amounts == (("vcore", 2),)
    assert pool[0].idle
    assert start(pool, shape(vcore=2)) == 0


def test_what_is_occupied_is_not_free_and_lowers_the_share():
    pool = pool_of(node(0, vcore=4), node(1, vcore=4))
    pool.resize(0, (("vcore", 4),), (("vcore", 3),))
    assert start(pool, shape(vcore=1)) == 1
    assert find_on(pool, shape(vcore=2), 0) is None
    assert pool[0].amounts == (("vcore", 1),)


def test_a_withheld_target_is_used_by_name_only():
    pool = pool_of(node(0, vcore=4), node(1, vcore=1))
    pool.withhold(0)
    assert rank_of(find_fit(pool, shape(vcore=1), FAIR)) == 1
    assert find_fit(pool, shape(vcore=2), FAIR) is None
    assert isinstance(place_now(pool, shape(vcore=2), FAIR), Insufficient)
    fit = find_on(pool, shape(vcore=2), 0)
    assert fit is not None
    assert pool.take(fit.blocks)
    pool.offer(0)
    assert rank_of(find_fit(pool, shape(vcore=2), FAIR)) == 0


def test_weights_change_the_order():
    pool = pool_of(node(0, vcore=4, memory=2), node(1, vcore=2, memory=4))
    for rank in (0, 1):
        fit = find_on(pool, shape(vcore=1, memory=1), rank)
        assert fit is not None
        assert pool.take(fit.blocks)
    pool.weights = {"vcore": 1.0, "memory": 0.0}
    assert rank_of(find_fit(pool, shape(vcore=1), FAIR)) == 0
    pool.weights = {"vcore": 0.5, "memory": 2.5}
    assert rank_of(find_fit(pool, shape(vcore=1), FAIR)) == 1


def test_properties_and_named_targets():
    pool = pool_of(node(0, "zone=a", vcore=4), node(1, "zone=b", vcore=4))
    in_b = Constraint.parse({"properties": ["zone=b"]})
    assert rank_of(find_fit(pool, shape(in_b, vcore=1), FAIR)) == 1
    assert find_on(pool, shape(in_b, vcore=1), 0) is None
    pool.describe({"zone=b": Idset(1)}, {"zone=b": Idset(2)})
    assert rank_of(find_fit(pool, shape(in_b, vcore=1), FAIR)) == 0
    assert pool.source.properties == {"zone=a": Idset(1), "zone=b": Idset(1)}
    assert rank_of(find_fit(pool, shape(vcore=1), FAIR, among=Idset(2))) == 1


def test_only_targets_without_cores_are_resized_or_withheld():
    pool = Pool()
    pool.add(ResourceSet((Entry(Idset(1), Children(Idset(3))),)), Idset(1))
    for change in (lambda: pool.resize(0, ()), lambda: pool.withhold(0), lambda: pool.offer(5)):
        with pytest.raises(LocalProtocolError, match="no target without cores"):
            change()


def test_more_than_one_slot_without_cores_never_fits():
    pool = pool_of(node(0, vcore=4))
    amounts = (("vcore", 1),)
    several = Request(slots=Request().slots.fixed(2), cores=0, amounts=amounts)
    assert "one slot on one node" in str(infeasible(pool, several))


def test_a_target_without_cores_goes_down_and_up():
    pool = pool_of(node(0, vcore=4))
    fit = find_fit(pool, shape(vcore=1), FAIR)
    assert fit is not None
    assert pool.take(fit.blocks)
    pool.set_down(Idset(1))
    assert start(pool, shape(vcore=1)) is None
    assert find_on(pool, shape(vcore=1), 0) is None
    pool.give(fit.blocks)
    pool.set_up(Idset(1))
    assert start(pool, shape(vcore=4)) == 0


def test_a_withheld_target_stays_withheld_when_it_comes_up_again():
    pool = pool_of(node(0, vcore=4))
    pool.withhold(0)
    pool.set_down(Idset(1))
    pool.set_up(Idset(1))
    assert start(pool, shape(vcore=1)) is None


def test_plugins_narrow_and_score_targets_without_cores():
    pool = pool_of(*[node(rank, vcore=4) for rank in range(4)])
    wanted = shape(vcore=1)
    pool.narrow(wanted, Narrowed((), (), 0b1110, "later", "never", 0b1111, ((0b0110, 10), (0b1001, 90))))
    assert [start(pool, wanted) for _ in range(5)] == [3, 3, 3, 3, 1]
    assert find_on(pool, wanted, 0) is None
    pool.narrow(wanted, Narrowed((), (), 0, "the plugin says later", "", 0b1))
    assert place_now(pool, wanted, FAIR) == Insufficient("the plugin says later")
    pool.narrow(wanted, Narrowed((), (), 0, "", "the plugin says never", 0))
    assert place_now(pool, wanted, FAIR) == Infeasible("the plugin says never")


def test_equal_targets_are_one_kind():
    pool = pool_of(node(0, "ssd", vcore=4), node(1, vcore=4), node(2, "ssd", vcore=4))
    found = {(amounts, names): str(ranks) for amounts, names, ranks in pool.amount_targets.kinds()}
    assert found == {((("vcore", 4),), ("ssd",)): "0,2", ((("vcore", 4),), ()): "1"}


def test_targets_with_cores_and_without_share_a_word():
    pool = pool_of(node(1, vcore=4))
    pool.add(ResourceSet((Entry(Idset(1), Children(Idset(3))),), Hostlist(("n0",))), Idset(1))
    assert start(pool, shape(vcore=1)) == 1
    assert start(pool, Shape(Request(cores=2))) == 0
    assert start(pool, Shape(Request(cores=1))) is None
    pool.remove(Idset(2))
    assert start(pool, shape(vcore=1)) is None
    assert 1 not in pool
    assert 0 in pool


def test_a_search_skips_thousands_of_targets_that_are_too_small():
    pool = Pool()
    small, large = Idset.span(0, 9999), Idset.of([9000, 16384])
    for ranks, memory in ((small - large, 10), (large, 11)):
        entry = Entry(ranks, Children(amounts=(("memory", memory), ("vcore", 4))))
        pool.add(ResourceSet((entry,)), ranks)
    assert [start(pool, shape(memory=11), placement) for placement in (BINPACKING, FAIR, FAIR)] == [9000, 16384, None]
    assert list(pool.amount_targets.all_kinds.ranks((("memory", 11),), pool.amount_targets.members))[-1] == 16384


def test_what_is_remembered_is_limited(monkeypatch):
    assert targets.ALLOWED_MAX > 1 < targets.SCALES_MAX
    monkeypatch.setattr(targets, "ALLOWED_MAX", 1)
    monkeypatch.setattr(targets, "SCALES_MAX", 1)
    pool = pool_of(*[node(rank, f"p{rank}", vcore=4 + rank) for rank in range(3)])
    for rank in (0, 1, 2, 0):
        assert start(pool, shape(Constraint.parse({"properties": [f"p{rank}"]}), vcore=1)) == rank
    assert len(pool.amount_targets._allowed) == len(pool.amount_targets._scales) == 1
    pool.amount_targets.check()


def test_what_is_held_is_shown_without_cores():
    pool = pool_of(node(0, "ssd", vcore=4), node(1, vcore=4))
    assert start(pool, shape(vcore=1)) == 0
    assert pool.source.summary() == "rank[0-1]/vcore:4"
    assert str(shape(memory=1 << 30, vcore=1).request) == "1 slot of 1 GiB memory, 1 vcore"
    assert [(block.word, block.amounts) for block in busy(pool)] == [(1, (("vcore", 1),))]


def test_one_grow_brings_targets_with_cores_and_without():
    entries = Entry(Idset(0b001), Children(Idset(3))), Entry(Idset(0b110), Children(amounts=(("vcore", 4),)))
    both = ResourceSet(entries, Hostlist(("n0", "n1", "n2")), {"ssd": Idset(0b011)})
    pool = Pool()
    pool.add(both, both.ranks)
    ssd = Constraint.parse({"properties": ["ssd"]})
    assert start(pool, shape(ssd, vcore=3)) == 1
    assert start(pool, shape(ssd, vcore=3)) is None
    assert start(pool, Shape(Request(cores=2, constraint=ssd))) == 0
    assert pool.source == pool.resources == both
    with pytest.raises(InvalidValue, match="name all or none"):
        pool.add(ResourceSet((Entry(Idset(8), Children()),)), Idset(8))
    pool.remove(both.ranks)
    pool.add(ResourceSet((Entry(Idset(1), Children(amounts=(("vcore", 1),))),)), Idset(1))
    assert start(pool, shape(vcore=1)) == 0
    assert infeasible(pool, shape(ssd, vcore=1).request) is not None
