"""The earliest start, found target by target, against the sweep through time that tries each instant."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan import earliest_start
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import BEST_FIT, WORST_FIT
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.shape import Shape

MakeR = Callable[..., ResourceSet]
RequestOf = Callable[..., Request]
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


@settings(max_examples=150)
@given(
    running=st.lists(st.tuples(wishes, ends, placements), max_size=12),
    waiting=st.lists(st.lists(st.tuples(wishes, limits), min_size=1, max_size=6), min_size=1, max_size=3),
    data=st.data(),
)
def test_it_tells_what_trying_would(
    make_r: MakeR, request_of: RequestOf, running: list[Any], waiting: list[Any], data: st.DataObject
) -> None:
    pool = Pool()
    resources = make_r("0-5", 4, 1, ssd="1-2")
    pool.add(resources, resources.ranks)
    ledger = Ledger([pool])
    index = RunningJobs(pool, ledger)
    index.follow()
    for jobid, (wish, end_s, placement) in enumerate(running):
        fit = find_fit(pool, Shape(request_of(**wish)), placement)
        if fit is not None:
            ledger.adopt(jobid, fit.blocks, end_s)
            index.began(ledger.get(jobid))  # type: ignore[arg-type]
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


def test_who_would_run_into_a_reservation_is_seen_where_its_start_is_a_coarser_float_than_the_last_good_moment(
    make_r: MakeR, request_of: RequestOf
) -> None:
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
        index.began(ledger.get(jobid))  # type: ignore[arg-type]
    plan = PoolPlan(pool, index, NOW_S, inf)
    both = request_of(nodes=2, constraint={"properties": ["ssd"]})
    assert plan.reserve(Waiting(3, 16, 1, 0.0, Shape(both), 5.0)).start_s == 20.0
    assert plan.reserve(Waiting(4, 16, 1, 0.0, Shape(request_of(nodes=2)), 8.0)).start_s == 25.0


def test_no_more_gains_than_the_limit_are_remembered(
    monkeypatch: pytest.MonkeyPatch, make_r: MakeR, request_of: RequestOf
) -> None:
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
    index.began(ledger.get(1))  # type: ignore[arg-type]
    plan = PoolPlan(pool, index, NOW_S, inf)
    for cores in range(1, 5):
        job = Waiting(1 + cores, 16, 1, 0.0, Shape(request_of(cores=cores)), 5.0)
        assert plan.reserve(job).start_s >= 20.0
        assert len(index.busy_targets._by_shape) <= 2
