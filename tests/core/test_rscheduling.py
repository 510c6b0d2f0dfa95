"""What we write into R's `scheduling`: parts, beside what others have written there."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.core import topology
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue

ids = Idset.parse
FOREIGN = {"graph": {"nodes": []}, "writer": "fluxion"}


def r(ranks: str, scheduling: object = None) -> ResourceSet:
    obj: dict[str, Any] = {
        "version": 1,
        "execution": {"R_lite": [{"rank": ranks, "children": {"core": "0-3"}}]},
    }
    return ResourceSet.parse(obj if scheduling is None else {**obj, "scheduling": scheduling})


def ours(**parts: str) -> object:
    return topology.with_parts(None, {label: ids(ranks) for label, ranks in parts.items()})


def test_parts_are_written_and_read() -> None:
    assert ours(lead="0", work="1-4") == {"writer": "fluxsched", "parts": {"lead": "0", "work": "1-4"}}
    found = r("0-4", ours(work="1-4", lead="0")).parts
    assert list(found.items()) == [("work", ids("1-4")), ("lead", ids("0"))]
    assert r("0-2", ours(lead="0", work="1-4")).parts == {"lead": ids("0"), "work": ids("1-2")}
    assert r("0").parts == r("0", FOREIGN).parts == r("0", {"writer": "fluxsched"}).parts == {}


def test_a_foreign_one_is_left_alone() -> None:
    assert topology.is_foreign({"graph": {}})
    assert not topology.is_foreign(None)
    assert topology.with_parts(FOREIGN, {"lead": ids("0")}) is FOREIGN
    assert topology.joined(FOREIGN, ours(lead="0")) is FOREIGN
    assert topology.joined(ours(lead="0"), FOREIGN) == ours(lead="0")


def test_other_keys_of_ours_stay() -> None:
    before = {"writer": "fluxsched", "topology": ["x"], "parts": {"lead": "0"}}
    assert topology.with_parts(before, {}) == {"writer": "fluxsched", "topology": ["x"]}
    assert topology.with_parts(ours(lead="0"), {}) is None


def test_what_an_r_gets_in_addition_is_joined() -> None:
    both = r("0-2", ours(lead="0", work="1-2")) | r("3-4", ours(work="3-4", more="5"))
    assert both.scheduling == ours(lead="0", work="1-4", more="5")
    assert (r("0", ours(lead="0")) | r("1")).scheduling == (r("0") | r("1", ours(lead="0"))).scheduling


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([], "scheduling.parts must be an object of label: idset, not an array"),
        ({"lead": 3}, r"scheduling\.parts\['lead'\]: "),
        ({"lead": "0-1", "work": "1-2"}, r"scheduling\.parts\['work'\]: ranks 1 also belong to another part"),
    ],
)
def test_what_cannot_be_read_is_refused_by_who_reads_it(parts: object, error: str) -> None:
    carried = r("0-4", {"writer": "fluxsched", "parts": parts})
    with pytest.raises(InvalidValue, match=error):
        _ = carried.parts
    assert (carried | r("5", ours(lead="5"))).scheduling
