"""The R of a job (RFC 20, 27): built from placements, and read for its ranks alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings

from fluxsched.core.idset import Idset
from fluxsched.core.resources import Children, Entry, ResourceSet, rlite_ranks
from fluxsched.errors import InvalidValue

ids = Idset.parse

SPEC = importlib.util.spec_from_file_location("r_makers", Path(__file__).with_name("r_makers.py"))
r_makers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(r_makers)
make, entry, sets, TWO = r_makers.make, r_makers.entry, r_makers.sets, r_makers.TWO


def test_build() -> None:
    source = ResourceSet.parse({**TWO.to_json(), "scheduling": {"writer": "x"}})
    part = Children(ids("0-1"))
    r = ResourceSet.build([(0, part), (4, part), (ids("1-2"), Children(ids("0"), ids("0")))], source, 1.0, 2.0, 3)
    assert r.to_json() == {
        "version": 1,
        "execution": {
            "R_lite": [entry("0,4", "0-1"), entry("1-2", "0", gpu="0")],
            "starttime": 1.0,
            "expiration": 2.0,
            "nodelist": ["a[0-2],b0"],
            "properties": {"ssd": "0,4"},
            "nslots": 3,
        },
        "scheduling": {"writer": "x"},
    }
    assert rlite_ranks(r.to_json()) == r.ranks == ids("0-2,4")


def test_build_joins_slots_of_one_rank_and_refuses_a_core_given_twice() -> None:
    r = ResourceSet.build([(1, Children(ids("0"))), (1, Children(ids("1"))), (2, Children(ids("0-1")))], TWO, 0, 0, 3)
    assert r.summary() == "rank[1-2]/core[0-1]"
    with pytest.raises(InvalidValue, match="rank 1 is listed twice with core1"):
        ResourceSet.build([(1, Children(ids("0-1"))), (1, Children(ids("1")))], TWO, 0, 0, 2)
    with pytest.raises(InvalidValue, match="rank 1 is listed twice with core0"):
        ResourceSet.build([(1, part) for part in [Children(ids("0"))] * 2], TWO, 0, 0, 2)
    with pytest.raises(InvalidValue, match="rank 9 not among"):
        ResourceSet.build([(9, Children(ids("0")))], TWO, 0, 0, 1)
    with pytest.raises(InvalidValue, match="not after starttime"):
        ResourceSet.build([(1, Children(ids("0")))], TWO, 2.0, 1.0, 1)


@settings(max_examples=60)
@given(sets())
def test_building_from_all_parts_gives_the_source(source: ResourceSet) -> None:
    rank_by_rank = [(rank, source.children(rank)) for rank in source.ranks]
    entry_by_entry = [(e.ranks, e.children) for e in source.entries]
    for parts in (rank_by_rank, entry_by_entry):
        assert ResourceSet.build(parts, source, 0.0, 0.0, None) == source.job_view()


@settings(max_examples=60)
@given(sets())
def test_rlite_ranks_agrees_with_parse(r: ResourceSet) -> None:
    assert rlite_ranks(r.to_json()) == r.ranks


def test_rlite_ranks_of_every_form() -> None:
    assert rlite_ranks(make({"rank": "1-6", "children": {}})) == ids("1-6")
    assert rlite_ranks(make([entry("131071")])) == ids("131071")
    assert rlite_ranks(make([entry("5"), entry("0"), entry("7-9")])) == ids("0,5,7-9")
    for bad in ({}, {"execution": []}, make("0"), make([entry("1,")]), make([{"rank": 1}]), make([[]]), make([{}])):
        with pytest.raises(InvalidValue, match="R"):
            rlite_ranks(bad)


def test_equal_targets_are_one_entry_however_many() -> None:
    all_ranks = Idset.span(0, 131_071)
    r = ResourceSet((Entry(all_ranks, Children(ids("0-63"))),))
    assert r.to_json()["execution"]["R_lite"] == [entry("0-131071", "0-63")]
    left = r - r.restrict(ids("5"))
    assert left.summary() == "rank[0-4,6-131071]/core[0-63]"
    assert (left | r).entries == r.entries
