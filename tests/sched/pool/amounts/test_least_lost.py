"""The placement `least-lost`: the free remainder that weighs least, ties by rank (the pool model has the rest)."""

from dataclasses import replace

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import WEIGHTS, FairSettings, Measure
from fluxsched.sched.policy import reads_fair
from fluxsched.sched.pool.countables import LOST_WEIGHTS
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import LEAST_LOST, Block, Shape
from fluxsched.sched.pool.pool import Pool
from tests.sched.site import policy_of

GIB = 1 << 30


def pool_of(*targets, weights=None):
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
    pool = Pool()
    resources = ResourceSet.parse({"version": 1, "execution": execution})
    pool.add(resources, resources.ranks)
    if weights is not None:
        pool.classes.lost.set(Measure(weights).unit_weights)
    return pool


def request(cores, memory=0, gpus=0, slots=1):
    amounts = (("memory", memory * GIB),) if memory else ()
    return Shape(Request(slots=Count.fixed(slots), cores=cores, gpus=gpus, amounts=amounts))


def ranks(pool, shape):
    fit = find_fit(pool, shape, LEAST_LOST)
    assert fit is not None
    pool.take(fit.blocks)
    return [part.rank for part in fit.parts]


def test_the_usual_weights_are_those_of_fair():
    assert dict(LOST_WEIGHTS) == Measure(WEIGHTS).unit_weights


def test_the_smaller_remainder_comes_first():
    """50 cores and 32 GiB: 6 cores and 32 GiB are left of one, which weigh 14, and 22 and 96 of the other, 46."""
    pool = pool_of((72, 0, 128), (56, 0, 64))
    lost = pool.classes.lost
    assert [lost.of(6, 0, (("memory", 32 * GIB),)), lost.of(22, 0, (("memory", 96 * GIB),))] == [14 << 32, 46 << 32]
    assert ranks(pool, request(50, 32)) == [1]
    assert ranks(pool, request(50, 32)) == [0]


@pytest.mark.parametrize("of_parts", [False, True])
def test_of_whole_targets_counts_what_was_not_asked_for(of_parts):
    nodes = Request(Count.fixed(1), cores=50, amounts=(("memory", 32 * GIB),), exclusive=True, label="a")
    several = Request.of_parts([nodes, replace(nodes, cores=60, label="b")])
    pool = pool_of((64, 4, 64), (72, 0, 128), (56, 0, 64))
    assert sorted(ranks(pool, Shape(several if of_parts else nodes))) == ([1, 2] if of_parts else [2])
    assert ranks(pool_of((72, 0, 64), (56, 0, 64 + 72)), Shape(nodes)) == [0]  # by weight, and not by cores


def test_what_is_taken_of_a_countable_counts_by_target():
    pool = pool_of((8, 0, 64), (8, 0, 64), (8, 0, 64))
    assert ranks(pool, request(1, 1)) == [0]
    assert ranks(pool, request(1, 60)) == [0]  # 3 GiB are left there
    assert ranks(pool, request(1)) == [0]
    assert ranks(pool, request(6)) == [1]
    assert ranks(pool, request(1, 40)) == [1]


@pytest.mark.parametrize(("weights", "first"), [({"core": 1.0, "gpu": 10.0}, 0), ({"core": 1.0, "gpu": 1.0}, 1)])
def test_weights_decide(weights, first):
    assert ranks(pool_of((12, 0, 0), (8, 2, 0), weights=weights), request(4)) == [first]


def test_ties_go_by_rank_also_between_levels_and_classes():
    weights = {"core": 1.0, "gpu": 2.0}
    pool = pool_of((6, 1, 0), (4, 2, 0), (8, 0, 0), weights=weights)
    assert [ranks(pool, request(2)) for _ in range(3)] == [[0], [0], [0]]
    pool = pool_of(*[(8, 2, 0)] * 3, weights=weights)
    pool.take((Block(0, 1, 0b11, 0),))
    pool.take((Block(0, 2, 0, 0b1),))
    assert ranks(pool, request(1)) == [0]
    assert ranks(pool, request(1)) == [0]
    pool.take((Block(0, 2, 0b1111, 0),))
    assert ranks(pool, request(1)) == [1]


def test_of_several_slots_a_target_gets_as_many_as_fit():
    """Of 5, 1 is left with two slots of 2; of 4, nothing."""
    assert ranks(pool_of((5, 0, 0), (4, 0, 0)), request(2, slots=2)) == [1]
    assert ranks(pool_of((5, 0, 0), (4, 0, 0)), request(2, slots=3)) == [0, 1]


def test_policies_have_it_and_the_scheduler_takes_the_weights_of_fair():
    policy = policy_of("easy:placement=least-lost")
    assert reads_fair(policy)
    assert not reads_fair(policy_of("easy"))
    scheduler = Scheduler(policy, fair=FairSettings(weights={"core": 0.5, "gpu": 0.25}))
    (group,) = scheduler._groups.values()
    assert (group.pool.classes.lost.core, group.pool.classes.lost.gpu, group.pool.classes.lost.kinds) == (2, 1, {})
