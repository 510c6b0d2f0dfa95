"""Amounts of countable resources: names, limits, algebra, and their place in R beside children and beside R_lite."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core import quantities as amounts
from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.idset import Idset
from fluxsched.core.quantities import AMOUNT_KINDS_MAX, AMOUNT_MAX, Amounts, amount_text, parse_amount, parse_amounts
from fluxsched.core.request import parse_resources
from fluxsched.core.resources import Children, ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded

KINDS = st.dictionaries(st.sampled_from(["disk", "matlab", "memory"]), st.integers(1, 5))


PAGE = (Path(__file__).parents[2] / "rfc/amounts.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- ([^\n]+) -->\n```json\n(.*?)```", PAGE, re.DOTALL))


def test_the_examples_of_the_page() -> None:
    resources = ResourceSet.parse(EXAMPLES["R"])
    assert json.loads(EXAMPLES["R"]) == resources.to_json()
    request, _ = parse_resources(json.loads(EXAMPLES["jobspec resources"]), EVERYTHING)
    assert resources.children(0).amounts == amounts.total(amounts.times(request.amounts, 4), request.node_amounts)
    assert resources.shared == request.shared


def r(rlite: list[dict[str, Any]], shared: object = None) -> dict[str, Any]:
    ranks = ",".join(entry["rank"] for entry in rlite)
    execution = {"R_lite": rlite, "starttime": 0.0, "expiration": 0.0, "nodelist": [f"n[{ranks}]"]}
    return {"version": 1, "execution": execution | ({} if shared is None else {"shared": shared})}


@pytest.mark.parametrize(
    ("value", "want"),
    [(3, 3), ("3", 3), ("512GiB", 512 << 30), ("4 kB", 4000), ("1PB", 10**15), ("7B", 7)],
)
def test_amounts_as_people_write_them(value: object, want: int) -> None:
    assert parse_amount(value) == want


@pytest.mark.parametrize("value", [0, -1, True, 1.5, None, "", "GiB", "1.5GiB", "1 XB", "1e3"])
def test_what_is_no_amount(value: object) -> None:
    with pytest.raises(InvalidValue):
        parse_amount(value)


def test_the_limits() -> None:
    assert parse_amounts({"x": AMOUNT_MAX}) == (("x", AMOUNT_MAX),)
    with pytest.raises(LimitExceeded, match=r"amounts\['x'\]: the amount .* above the limit"):
        parse_amounts({"x": AMOUNT_MAX + 1})
    with pytest.raises(LimitExceeded, match="lists 17 kinds: the limit is 16"):
        parse_amounts({f"x{n}": 1 for n in range(AMOUNT_KINDS_MAX + 1)})


@pytest.mark.parametrize("kind", ["core", "node", "slot", "gpu", "", "1x", "a b", "x" * 65, "ü"])
def test_names_that_no_kind_has(kind: str) -> None:
    with pytest.raises(InvalidValue, match="is not the name of a countable resource"):
        parse_amounts({kind: 1})


@pytest.mark.parametrize(
    ("kind", "amount", "want"),
    [("memory", 8 << 30, "8 GiB memory"), ("memory", 1000, "1000 memory"), ("disk", 1024, "1024 disk")],
)
def test_words(kind: str, amount: int, want: str) -> None:
    assert amount_text(kind, amount) == want


@given(KINDS, KINDS)
@settings(max_examples=50)
def test_the_algebra_is_that_of_bags(left: dict[str, int], right: dict[str, int]) -> None:
    one, other = parse_amounts(left), parse_amounts(right)

    def bag(found: dict[str, int]) -> Amounts:
        return tuple(sorted((kind, amount) for kind, amount in found.items() if amount > 0))

    kinds = left.keys() | right.keys()
    assert amounts.larger(one, other) == bag({k: max(left.get(k, 0), right.get(k, 0)) for k in kinds})
    assert amounts.smaller(one, other) == bag({k: min(left.get(k, 0), right.get(k, 0)) for k in kinds})
    assert amounts.less(one, other) == bag({k: left.get(k, 0) - right.get(k, 0) for k in kinds})
    assert amounts.total(one, other) == bag({k: left.get(k, 0) + right.get(k, 0) for k in kinds})
    assert amounts.times(one, 3) == bag({k: 3 * amount for k, amount in left.items()})
    mine, theirs = Children(Idset(3), amounts=one), Children(Idset(1), amounts=other)
    assert (mine - theirs) | (mine & theirs) <= mine
    assert mine & theirs <= theirs


def test_r_with_amounts() -> None:
    obj = r(
        [
            {"rank": "0-1", "children": {"core": "0-3"}, "amounts": {"memory": 1024, "disk": 7}},
            {"rank": "2", "children": {"core": "0-3", "gpu": "0"}},
        ],
        {"matlab": 3},
    )
    resources = ResourceSet.parse(obj)
    assert resources.shared == (("matlab", 3),)
    assert resources.children(1).amounts == (("disk", 7), ("memory", 1024))
    assert (resources.count("memory"), resources.count("matlab"), resources.count("core")) == (2048, 3, 12)
    assert resources.summary() == "rank[0-1]/core[0-3],disk:7,memory:1024 rank2/core[0-3],gpu0 matlab:3"
    assert ResourceSet.parse(resources.to_json()) == resources
    assert resources.to_json()["execution"]["R_lite"][0]["children"] == {"core": "0-3"}  # what stock readers look at


def test_what_is_shared_belongs_to_no_target() -> None:
    resources = ResourceSet.parse(r([{"rank": "0-1", "children": {"core": "0-3"}}], {"matlab": 3}))
    for part in (resources.restrict(Idset(1)), resources.restrict(resources.ranks), resources.without(Idset(1))):
        assert part.shared == ()
    assert (resources | resources.restrict(Idset(1))).shared == (("matlab", 3),)
    assert (resources - resources.with_shared((("matlab", 1),))).shared == (("matlab", 2),)
    assert resources.with_shared(()) == resources.restrict(resources.ranks)
    assert resources.rerank(5).shared == (("matlab", 3),)


def test_targets_of_different_amounts_are_different_entries() -> None:
    children = {"core": "0"}
    resources = ResourceSet.parse(
        r([{"rank": str(n), "children": children, "amounts": {"memory": 1 + n % 2}} for n in range(4)])
    )
    assert [str(entry) for entry in resources.entries] == ["rank[0,2]/core0,memory:1", "rank[1,3]/core0,memory:2"]


@pytest.mark.parametrize(
    ("entry", "shared", "text"),
    [
        ({"amounts": []}, None, r"R_lite\[0\]: amounts must be an object"),
        ({"amounts": {"memory": "8"}}, None, r"R_lite\[0\]: amounts\['memory'\]: .* whole number"),
        ({"children": {"core": "0", "x": "0"}, "amounts": {"x": 1}}, None, "x: a kind has ids in children or an am"),
        ({}, {"matlab": 0}, r"shared: amounts\['matlab'\]"),
        ({}, 1, "shared: amounts must be an object"),
    ],
)
def test_wrong_amounts_are_refused_by_path(entry: dict[str, Any], shared: object, text: str) -> None:
    for more in ([], [{"rank": "7", "children": {"core": "0"}}]):
        with pytest.raises(InvalidValue, match=text):
            ResourceSet.parse(r([{"rank": "0", "children": {"core": "0"}, **entry}, *more], shared))
