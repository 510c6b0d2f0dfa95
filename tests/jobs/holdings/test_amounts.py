"""Amounts in the job manager's record: no more is granted than there is, and each goes back with its target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RemoteProtocolError
from fluxsched.jobs.holdings.holdings import Holdings, parse_grant
from tests.jobs.elastic import elastic, grow, released, shrink

GIB = 1 << 30
ids = Idset.parse


def make_r(ranks: str, cores: str = "0", memory: int = 0, matlab: int = 0) -> dict[str, Any]:
    entry: dict[str, Any] = {"rank": ranks, "children": {"core": cores}}
    hosts = [f"n{rank}" for rank in ids(ranks)]
    execution: dict[str, Any] = {"R_lite": [entry], "nodelist": hosts, "starttime": 0.0, "expiration": 0.0}
    if memory:
        entry["amounts"] = {"memory": memory}
    if matlab:
        execution["shared"] = {"matlab": matlab}
    return {"version": 1, "execution": execution}


THERE = ResourceSet.parse(make_r("0-3", "0-7", 16 * GIB, 2))


def watched(world: Any) -> Any:
    """A world whose manager knows how much there is."""
    world.manager.holdings.there = lambda: THERE
    return world


def held(holdings: Holdings) -> tuple[dict[int, Amounts], Amounts]:
    return {rank: children.amounts for rank, children in holdings.entries()}, holdings.shared


@pytest.mark.parametrize(
    ("granted", "told"),
    [
        (make_r("1", "1", 5 * GIB), "^job 2 was granted 5 GiB memory where 4 GiB memory is free of rank 1$"),
        (make_r("0-1", "1", 5 * GIB), "of rank 1$"),
        (make_r("0", "1", 0, 2), "^job 2 was granted 2 matlab where 1 matlab is free of the instance$"),
        (make_r("9", "1", 1), "^job 2 was granted 1 memory where 0 memory is free of rank 9$"),
    ],
)
def test_more_than_is_free_is_refused_and_changes_nothing(world: Any, granted: dict[str, Any], told: str) -> None:
    watched(world).run(1, make_r("1", "0", 12 * GIB, 1))
    before = held(world.manager.holdings)
    world.submit(2)
    with pytest.raises(RemoteProtocolError, match=told):
        world.grant(2, granted)
    assert held(world.manager.holdings) == before == ({1: (("memory", 12 * GIB),)}, (("matlab", 1),))
    world.grant(2, make_r("1", "1", 4 * GIB, 1))
    assert held(world.manager.holdings) == ({1: (("memory", 16 * GIB),)}, (("matlab", 2),))


def test_a_rank_s_amounts_go_back_with_it_and_those_of_the_instance_with_the_last_one(world: Any) -> None:
    watched(world).run(1, make_r("0-2", "0", 9 * GIB, 2))
    world.do("finished", 1, 0)
    world.do("released", 1, ids("1"), False)
    [freed] = world.freed()
    assert freed.R["execution"]["R_lite"] == [{"rank": "1", "children": {"core": "0"}, "amounts": {"memory": 9 * GIB}}]
    assert held(world.manager.holdings) == (dict.fromkeys((0, 2), (("memory", 9 * GIB),)), (("matlab", 2),))
    world.do("released", 1, None, True)
    assert held(world.manager.holdings) == ({}, ())


def test_a_restart_restores_them_even_if_there_is_less_by_now(world: Any, new_world: Callable[..., Any]) -> None:
    watched(world).run(1, make_r("0-1", "0", 9 * GIB, 2))  # runs on
    world.run(2, make_r("1-2", "1", 2 * GIB))  # its end was stored, and the release of one target
    world.do("finished", 2, 0)
    world.do("released", 2, ids("1"), False)
    again = new_world()
    again.manager.holdings.there = lambda: ResourceSet.parse(make_r("0-1", "0-7", 8 * GIB, 1))
    restored = again.manager.restore(world.rows(), world.now_s + 1)
    again.perform(restored.effects)
    assert restored.orphans == (1,)
    holdings = again.manager.holdings
    assert held(holdings) == (dict.fromkeys((0, 1), (("memory", 9 * GIB),)), (("matlab", 2),))
    with pytest.raises(RemoteProtocolError, match="where 0 memory is free of rank 1; 1 matlab where 0 matlab is free"):
        holdings.take(3, parse_grant(3, make_r("1", "1", GIB, 1)))
    again.do("exec_failed", 1, "the instance was restarted")
    assert held(holdings) == ({}, ())
    holdings.take(3, parse_grant(3, make_r("1", "1", 8 * GIB, 1)))


amounts = st.integers(0, 8)


@given(st.lists(st.tuples(st.sampled_from(["0", "1", "0-1", "0-3"]), amounts, amounts), max_size=12), st.data())
def test_what_is_held_is_the_sum_of_what_jobs_hold(
    grants: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """Whatever is granted and freed in whatever order; `check` compares with the sum."""
    holdings = Holdings()
    holdings.there = lambda: ResourceSet.parse(make_r("0-3", "0-63", 16, 16))
    mine: dict[int, Idset] = {}
    for jobid, (ranks, memory, matlab) in enumerate(grants):
        free = 16 - max([dict(amounts).get("memory", 0) for rank, amounts in held(holdings)[0].items()
                         if rank in ids(ranks)], default=0)  # fmt: skip
        fits = memory <= free and matlab <= 16 - dict(holdings.shared).get("matlab", 0)
        try:
            holdings.take(jobid, parse_grant(jobid, make_r(ranks, str(jobid), memory, matlab)))
        except RemoteProtocolError:
            assert not fits
        else:
            assert fits
            mine[jobid] = ids(ranks)
        if mine and data.draw(st.booleans()):
            one = data.draw(st.sampled_from(sorted(mine)))
            given_back = data.draw(st.sampled_from([mine[one], mine[one].first(1)]))
            holdings.give(one, given_back)
            mine[one] -= given_back
            if not mine[one]:
                del mine[one]
        holdings.check()
    for jobid in mine:
        holdings.give(jobid)
    assert held(holdings) == ({}, ())


def test_amounts_come_with_targets_that_a_job_grows_by_and_go_with_them(world: Any) -> None:
    watched(world).submit(1, elastic("1-3"))
    world.grant(1, make_r("0", "0-7", 16 * GIB, 1))
    grow(world, make_r("1", "0-7", 16 * GIB))
    shares = dict.fromkeys((0, 1), (("memory", 16 * GIB),))
    assert held(world.manager.holdings) == (shares, (("matlab", 1),))
    assert ResourceSet.parse(world.job().R).shared == (("matlab", 1),)
    with pytest.raises(RemoteProtocolError, match="was granted 17 GiB memory where 16 GiB memory is free of rank 2"):
        grow(world, make_r("2", "0-7", 17 * GIB))
    with pytest.raises(RemoteProtocolError, match="is to grow by matlab of the instance, which it has once"):
        grow(world, make_r("2", "0-7", GIB, 1))
    shrink(world, "0")
    released(world, "0")
    assert held(world.manager.holdings) == ({1: shares[1]}, (("matlab", 1),))
    world.end()
    assert held(world.manager.holdings) == ({}, ())
