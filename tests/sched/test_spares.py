"""Feasibility beside spares: a group is as large as it is configured, whichever of two stands in for the other."""

from __future__ import annotations

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import GroupChange
from fluxsched.core.rlite import PartsByRank
from fluxsched.sched.decisions import Denied
from fluxsched.sched.engine.scheduler import apply
from tests.sched.site import Bench, make_r


class Site(Bench):
    """A bench that notes which jobs are denied."""

    denied: tuple[int, ...] = ()

    def did(self, effects):
        self.denied += tuple([effect.jobid for effect in effects if isinstance(effect, Denied)])
        return super().did(effects)


@pytest.fixture
def bench() -> Site:
    """Four targets, of which 1 is drained, and a spare of more cores and a property of its own in its place."""
    bench = Site("firstfit", unsatisfiable="deny")
    change(bench, GroupChange(make_r("0-3"), online=ids("0-3")))
    replaced = GroupChange(make_r("8", cores=8, fast="8"), online=ids("8"), offline=ids("1"), spares={8: 1})
    change(bench, replaced)
    return bench


def ids(text: str) -> Idset:
    return Idset.parse(text)


def change(bench: Site, told: GroupChange) -> None:
    bench.did(apply(bench.scheduler, "default", told, True, bench.now_s))


FITS = {"nodes": {"nodes": 4}, "slots": {"nslots": 16}, "parts": {"parts": ((1, None), (3, None))}}
TOO_LARGE = {
    "nodes": {"nodes": 5},
    "slots": {"nslots": 17},
    "parts": {"parts": ((1, None), (4, None))},
    "cores": {"nodes": 1, "cores": 5},
    "property": {"constraint": {"properties": ["fast"]}},
    "rank": {"constraint": {"ranks": ["8"]}},
}


@pytest.mark.parametrize("wanted", FITS.values(), ids=FITS)
def test_what_needs_all_targets_is_accepted_and_starts_on_the_spare(bench: Site, wanted: dict) -> None:
    bench.submit(1, **wanted)
    assert list(bench.starts()) == [1]
    assert 8 in bench.granted[1].ranks


@pytest.mark.parametrize("wanted", TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_needs_both_the_spare_and_what_it_replaces_is_denied(bench: Site, wanted: dict) -> None:
    bench.submit(1, **wanted)
    assert 1 in bench.denied
    bench.submit(2, constraint={"ranks": ["1"]})
    assert 2 not in bench.denied


def test_it_is_counted_when_the_other_has_left_and_until_that_is_back(bench: Site) -> None:
    bench.submit(1, nodes=4, duration=10.0)
    bench.starts()
    bench.submit(2, nodes=4)
    change(bench, GroupChange(shrink=ids("1")))
    assert not bench.denied
    change(bench, GroupChange(make_r("1"), offline=ids("1")))
    bench.submit(3, nodes=5)
    assert bench.denied == (3,)


def test_one_on_its_way_home_is_not_counted_either(bench: Site) -> None:
    change(bench, GroupChange(online=ids("1"), offline=ids("8"), spares={8: 8}))
    bench.submit(1, nodes=5)
    bench.submit(2, nodes=4)
    assert bench.denied == (1,)
    change(bench, GroupChange(shrink=ids("8")))
    change(bench, GroupChange(spares={}))
    assert bench.denied == (1,)
    assert list(bench.starts()) == [2]


def test_drained_parts_and_spares_at_a_time(bench: Site) -> None:
    parts = PartsByRank.parse([{"rank": "0,8", "children": {"core": "0-1"}}])
    change(bench, GroupChange(parts=parts))
    bench.submit(1, nodes=4, cores=4)
    bench.submit(2, nodes=4, cores=5)
    bench.submit(3, nodes=5)
    assert bench.denied == (2, 3)


def test_a_spare_without_a_place_is_a_target_like_any_other(bench: Site) -> None:
    change(bench, GroupChange(spares={}))
    bench.submit(1, nodes=5)
    assert not bench.denied
    change(bench, GroupChange(grow=None, shrink=EMPTY, spares={8: 1}))
    assert bench.denied == (1,)
